//! Tests that sums are exact, key by key.

use super::super::SecondMoment::{Diagonal, Full};
use super::super::{Clipper, RecordError, SecondMoment};
use super::*;
use chacha20::ChaCha20Rng;
use num_bigint::BigInt;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

/// With ζ = 2²⁰, one unit of the grid is 1.
fn quantised(dimension: usize, records: &[f64]) -> QuantisedRows {
    let mut rows = QuantisedRows::new(dimension);
    Clipper::unscaled(dimension, 1048576.0).unwrap().quantise_all(records, &mut rows).unwrap();
    rows
}

/// Integers large enough that about half of the records are clipped: squares near 2⁴⁰.
fn random_rows(dimension: usize, count: usize, seed: u64) -> QuantisedRows {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let size = 1048576.0 * (3.0 / dimension as f64).sqrt();
    let records: Vec<f64> = (0..dimension * count).map(|_| rng.random_range(-size..size)).collect();
    quantised(dimension, &records)
}

/// Returns the sums of one key by definition, in integers of any size.
fn reference<'a>(layout: Layout, rows: impl Iterator<Item = &'a [f64]>) -> Vec<BigInt> {
    let mut sums = vec![BigInt::ZERO; layout.coordinates()];
    for row in rows {
        let integers: Vec<BigInt> = row.iter().map(|&value| BigInt::from(value as i64)).collect();
        sums[Layout::COUNT] += 1;
        layout.first().zip(&integers).for_each(|(index, integer)| sums[index] += integer);
        for (index, (i, j)) in layout.second().zip(layout.second_entries()) {
            sums[index] += &integers[i] * &integers[j];
        }
    }
    sums
}

fn check(layout: Layout, keys: &[u32], rows: &QuantisedRows, sums: &BTreeMap<u32, Sums>) {
    let mut distinct = keys.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(sums.keys().eq(&distinct));
    for (key, sums) in sums {
        let rows = rows.values().chunks_exact(layout.dimension).zip(keys);
        let expected = reference(layout, rows.filter(|(_, other)| *other == key).map(|(row, _)| row));
        assert!(sums.row().iter().map(BigInt::from).eq(expected), "key {key}");
    }
}

fn added(layout: Layout, keys: &[u32], rows: &QuantisedRows) -> BTreeMap<u32, Sums> {
    let mut accumulators = Accumulators::new(layout);
    accumulators.add(keys, rows).unwrap();
    accumulators.take()
}

#[test]
fn sums_are_exact_on_both_sides_of_every_boundary() {
    for second in [Full, Diagonal] {
        for dimension in [1, 7, 8, 33, 65] {
            let layout = Layout::new(dimension, second);
            for count in [1, 31, 32, 33, 255, 257] {
                let rows = random_rows(dimension, count, 2);
                check(layout, &vec![3; count], &rows, &added(layout, &vec![3; count], &rows));
            }
        }
    }
}

/// Odd squares just below 2⁴⁰: an odd number of them, added in one block, would exceed 2⁵³ and
/// lose the last bit.
#[test]
fn blocks_of_the_longest_records_are_exact() {
    let count = 3 * BLOCK_ROWS + 1;
    let length = (1 << 20) - 1;
    for dimension in [1, 8] {
        let mut record = vec![0.0; dimension];
        record[dimension - 1] = -f64::from(length);
        let layout = Layout::new(dimension, Full);
        let mut accumulators = Accumulators::new(layout);
        accumulators.add_to_key(0, &quantised(dimension, &record.repeat(count))).unwrap();
        let sums = accumulators.take()[&0].to_wide();
        let (count, length) = (count as i128, i128::from(length));
        assert_eq!(sums[Layout::COUNT], count);
        assert_eq!(sums[layout.first().end - 1], -count * length);
        assert_eq!(sums.last(), Some(&(count * length * length)));
    }
}

#[test]
fn blocks_with_cancelling_signs_are_exact() {
    let layout = Layout::new(9, Full);
    let rows = random_rows(9, 2 * BLOCK_ROWS + 5, 3);
    let keys = vec![0; rows.len()];
    check(layout, &keys, &rows, &added(layout, &keys, &rows));
}

/// First moments of the first row of a record, second moments of its second row.
#[test]
fn records_clipped_with_their_squares_have_a_row_for_each_moment() {
    for (dimension, second) in [(1, Full), (3, Full), (9, Full), (40, Full), (9, Diagonal)] {
        let layout = Layout::new(dimension, second);
        let clipper = Clipper::unscaled(dimension, 1.0).unwrap().jointly(0.5).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(4);
        let records: Vec<f64> = (0..300 * dimension).map(|_| rng.random_range(-1.0..1.0)).collect();
        let mut rows = QuantisedRows::new(dimension);
        clipper.quantise_all(&records, &mut rows).unwrap();
        let part = |skip: usize| rows.values().chunks_exact(dimension).skip(skip).step_by(2);
        let [firsts, seconds] = [0, 1].map(|skip| reference(layout, part(skip)));
        let expected =
            firsts[..1 + dimension].iter().chain(&seconds[layout.second()]).cloned().collect::<Vec<_>>();
        let sums = &added(layout, &[5; 300], &rows)[&5];
        assert!(sums.row().iter().map(BigInt::from).eq(expected), "{layout:?}");
    }
}

#[test]
fn records_of_two_clippers_do_not_mix() {
    let mut joint = QuantisedRows::new(1);
    let clipper = Clipper::unscaled(1, 1048576.0).unwrap().jointly(1.0).unwrap();
    clipper.quantise(&[1.0], &mut joint).unwrap();
    let mut accumulators = Accumulators::new(Layout::new(1, Full));
    accumulators.add_to_key(1, &joint).unwrap();
    let mixed = accumulators.add_to_key(1, &quantised(1, &[1.0]));
    assert_eq!(mixed, Err(MomentError::Width { found: 1, expected: 2 }));
    let plain = Clipper::unscaled(1, 1048576.0).unwrap();
    assert_eq!(plain.quantise(&[1.0], &mut joint), Err(RecordError::Mixed));
    assert_eq!(plain.quantise_all(&[1.0], &mut joint), Err(RecordError::Mixed));
}

/// Alternating rows of two keys, so that each is added alone, and more rows than a block can
/// hold: odd squares just below 2⁴⁰.
#[test]
fn rows_one_by_one_are_exact_beyond_a_block() {
    let length = (1 << 20) - 1;
    for second in [Full, Diagonal, SecondMoment::None] {
        let layout = Layout::new(2, second);
        let rows = quantised(2, &[0.0, f64::from(length)].repeat(2 * (2 * BLOCK_ROWS + 1)));
        let keys: Vec<u32> = (0..rows.len() as u32).map(|row| row % 2).collect();
        let mut accumulators = Accumulators::new(layout);
        // Too few rows for the pass over many keys (`scattered`).
        for start in (0..rows.len()).step_by(PENDING_ROWS) {
            let run = start..rows.len().min(start + PENDING_ROWS);
            accumulators.add_rows(&keys[run.clone()], &rows, run).unwrap();
        }
        let sums = accumulators.take();
        check(layout, &keys, &rows, &sums);
        assert_eq!(
            sums[&1].to_wide()[..3],
            [2 * BLOCK_ROWS as i128 + 1, 0, (2 * BLOCK_ROWS as i128 + 1) * i128::from(length)]
        );
    }
}

/// Batches that are added in one pass (`scattered`) and others, in turns, with keys that have no
/// rows or few.
#[test]
fn mixed_keys_are_exact_in_batches_of_every_size() {
    let mut rng = ChaCha20Rng::seed_from_u64(6);
    for (dimension, second) in
        [(1, Full), (3, SecondMoment::None), (8, Full), (9, Full), (9, Diagonal), (10, Full)]
    {
        let layout = Layout::new(dimension, second);
        let rows = random_rows(dimension, 2000, 5);
        let keys: Vec<u32> = (0..2000).map(|_| [0, 2, 2, 2, 5, 5, 6, 7, 9][rng.random_range(0..9)]).collect();
        let mut accumulators = Accumulators::new(layout);
        for epoch in 0..2 {
            let (mut start, mut size) = (0, 1 + epoch);
            while start < keys.len() {
                let run = start..keys.len().min(start + size);
                accumulators.add_rows(&keys[run.clone()], &rows, run.clone()).unwrap();
                (start, size) = (run.end, size * 2 % 1021);
            }
            check(layout, &keys, &rows, &accumulators.take());
        }
    }
}

#[test]
fn empty_batches_make_no_keys() {
    let mut accumulators = Accumulators::new(Layout::new(2, Full));
    accumulators.add(&[], &QuantisedRows::new(2)).unwrap();
    accumulators.add_to_key(1, &QuantisedRows::new(2)).unwrap();
    assert!(accumulators.take().is_empty());
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let mut accumulators = Accumulators::new(Layout::new(2, Full));
    let (rows, wide) = (quantised(2, &[1.0; 4]), quantised(3, &[1.0; 3]));
    let dimension = Err(MomentError::Dimension { found: 3, expected: 2 });
    assert_eq!(accumulators.add(&[1], &rows), Err(MomentError::Keys { keys: 1, rows: 2 }));
    assert_eq!(accumulators.add(&[1], &wide), dimension);
    assert_eq!(accumulators.add_to_key(1, &wide), dimension);
}

fn layouts() -> impl Strategy<Value = Layout> {
    (1..20usize, prop::bool::ANY)
        .prop_map(|(dimension, full)| Layout::new(dimension, if full { Full } else { Diagonal }))
}

proptest! {
    /// Checks every order of records, size of batches and assignment to workers.
    #[test]
    fn sums_do_not_depend_on_order_or_place(
        layout in layouts(),
        (keys, shuffled) in prop::collection::vec(0..4u32, 1..300)
            .prop_map(|keys| keys.into_iter().enumerate().collect::<Vec<_>>())
            .prop_flat_map(|keys| (Just(keys.clone()), Just(keys).prop_shuffle())),
        batch in 1..100usize,
        workers in 1..4usize,
        seed in 0..1000u64,
    ) {
        let rows = random_rows(layout.dimension, keys.len(), seed);
        let mut parts: Vec<_> = (0..workers).map(|_| Accumulators::new(layout)).collect();
        for (number, batch) in shuffled.chunks(batch).enumerate() {
            let records: Vec<f64> = batch
                .iter()
                .flat_map(|(row, _)| &rows.values()[row * layout.dimension..][..layout.dimension])
                .copied()
                .collect();
            let keys: Vec<u32> = batch.iter().map(|(_, key)| *key).collect();
            parts[number % workers].add(&keys, &quantised(layout.dimension, &records)).unwrap();
        }
        let mut whole = Accumulators::new(layout);
        for part in &mut parts {
            part.take().iter().for_each(|(key, sums)| whole.merge(*key, sums.row()));
        }
        let keys: Vec<u32> = keys.into_iter().map(|(_, key)| key).collect();
        check(layout, &keys, &rows, &whole.take());
    }
}
