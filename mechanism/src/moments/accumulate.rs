//! The sums of all keys of one epoch on one worker.
//!
//! A row of d numbers adds to d(d+3)/2 sums.
//!
//! - Few sums: a key has a block of them in floating point, which is exact for up to [`BLOCK_ROWS`]
//!   rows, and each row is added at once. A few cache lines of each of a thousand keys stay in the
//!   nearest caches.
//! - Many sums: updating them for every record would cost more memory traffic than arithmetic. So a
//!   key buffers its rows until they hold about as many numbers as its sums do, and multiplies them
//!   at once. A key with few records stays small. All keys share one workspace.

use super::clipped::NARROW_RECORDS;
use super::products::{BLOCK_ROWS, BlockProducts};
use super::products::{add_record, is_narrow};
use super::sums::{add, add_runs};
use super::{IntegerRow, Layout, MomentError, QuantisedRows, Sums};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use zeroize::{Zeroize, Zeroizing};

/// The least number of rows of one key that are multiplied at once; a key of wide records buffers
/// at least this many.
const PENDING_ROWS: usize = 32;

/// Adds quantised records up, key by key.
///
/// ```
/// use hushflow_mechanism::moments::{Accumulators, Clipper, Layout, QuantisedRows, SecondMoment};
///
/// let mut rows = QuantisedRows::new(2);
/// // ζ = 2²⁰ makes the grid the integers.
/// Clipper::unscaled(2, 1048576.0)?.quantise_all(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut rows)?;
///
/// let mut accumulators = Accumulators::new(Layout { dimension: 2, second: SecondMoment::Full, sent: None });
/// accumulators.add(&[7, 4, 7], &rows)?;
/// let sums = accumulators.take();
/// assert_eq!(**sums[&4].to_wide(), [1, 3, 4, 9, 12, 16]);
/// assert_eq!(**sums[&7].to_wide(), [2, 6, 8, 26, 32, 40]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Accumulators {
    layout: Layout,
    /// Values of a record, as in the first rows added; 0 before any.
    width: usize,
    /// Index of each key in `keys`.
    places: HashMap<u32, u32, BuildHasherDefault<Scatter>>,
    keys: Vec<KeySums>,
    products: BlockProducts,
    /// Number of records added; `None` if sums were added.
    records: Option<u64>,
    /// Wiped memory of keys, for the next ones.
    spare: Vec<KeySums>,
    /// Memory for the total of a key.
    total: Zeroizing<Vec<i128>>,
}

/// Most keys whose memory is kept for later ones.
const SPARE_KEYS: usize = 8;

/// Sums of a key, and rows not yet in them.
struct KeySums {
    key: u32,
    /// Empty before the first rows are added.
    sums: Zeroizing<Vec<i128>>,
    /// Wide records: the rows. Narrow ones: the sums of at most [`BLOCK_ROWS`] rows.
    pending: Zeroizing<Vec<f64>>,
}

impl KeySums {
    /// Makes a key without rows.
    fn new(key: u32) -> Self {
        Self { key, sums: Zeroizing::default(), pending: Zeroizing::default() }
    }

    fn sums(&mut self, layout: Layout) -> &mut [i128] {
        self.sums.resize(layout.coordinates(), 0);
        &mut self.sums
    }

    /// Adds narrow records one by one, fewer than [`BLOCK_ROWS`].
    fn add_each(&mut self, rows: &[f64], width: usize, layout: Layout) {
        if self.pending.is_empty() {
            self.pending.reserve_exact(layout.coordinates());
            self.pending.resize(layout.coordinates(), 0.0);
        } else if self.pending[Layout::COUNT] as usize + rows.len() / width > BLOCK_ROWS {
            self.sums.resize(layout.coordinates(), 0);
            add_runs(&mut self.sums, [&self.pending[..]].into_iter());
            self.pending.fill(0.0);
        }
        rows.chunks_exact(width).for_each(|row| add_record(&mut self.pending, row, layout));
    }
}

impl Accumulators {
    /// Starts without keys.
    pub fn new(layout: Layout) -> Self {
        let products = BlockProducts::new(layout);
        let (places, keys, spare) = (HashMap::default(), Vec::new(), Vec::new());
        Self {
            layout,
            width: 0,
            places,
            keys,
            products,
            records: Some(0),
            spare,
            total: Zeroizing::default(),
        }
    }

    /// Adds a batch of rows; `keys` has the key of each. Consecutive rows of one key are fastest.
    pub fn add(&mut self, keys: &[u32], rows: &QuantisedRows) -> Result<(), MomentError> {
        self.add_rows(keys, rows, 0..rows.len())
    }

    /// As [`add`](Self::add), for some of the rows; `keys` has the keys of these.
    pub fn add_rows(
        &mut self,
        keys: &[u32],
        rows: &QuantisedRows,
        run: Range<usize>,
    ) -> Result<(), MomentError> {
        self.check_width(rows)?;
        let values = rows.values().get(run.start * self.width..run.end * self.width);
        let Some(mut rest) = values.filter(|_| keys.len() == run.len()) else {
            return Err(MomentError::Keys { keys: keys.len(), rows: run.len() });
        };
        for run in keys.chunk_by(PartialEq::eq) {
            let (rows, after) = rest.split_at(run.len() * self.width);
            rest = after;
            self.add_run(run[0], rows);
        }
        Ok(())
    }

    /// Adds a batch of rows that all belong to one key.
    pub fn add_to_key(&mut self, key: u32, rows: &QuantisedRows) -> Result<(), MomentError> {
        self.check_width(rows)?;
        if !rows.is_empty() {
            self.add_run(key, rows.values());
        }
        Ok(())
    }

    /// Adds to the number of sent records of a key, if the layout has one.
    pub fn add_sent(&mut self, key: u32, number: u64) {
        if let Some(position) = self.layout.sent() {
            self.records = None;
            let index = self.index(key);
            let sent = &mut self.keys[index].sums(self.layout)[position];
            *sent = sent.wrapping_add(number.into());
        }
    }

    /// Adds sums of other records of a key.
    pub(super) fn merge(&mut self, key: u32, sums: IntegerRow<'_>) {
        self.records = None;
        let index = self.index(key);
        add(self.keys[index].sums(self.layout), sums);
    }

    /// Returns the keys that have sums, ascending.
    pub fn keys(&self) -> Vec<u32> {
        let mut keys: Vec<u32> = self.keys.iter().map(|key| key.key).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the sums of all keys, in the order of keys, and clears them.
    pub fn take(&mut self) -> BTreeMap<u32, Sums> {
        let mut sums = Vec::with_capacity(self.keys.len());
        self.drain(|key, of_key| sums.push((key, Zeroizing::new(of_key.to_vec()).into())));
        sums.into_iter().collect()
    }

    /// Returns the keys that have sums, ascending, and their sums, end to end, and clears them. The
    /// sums are in 64 bits if that is certain to hold them, whatever the records are.
    pub fn take_row(&mut self) -> (Vec<u32>, Sums) {
        let keys = self.keys();
        let length = keys.len() * self.layout.coordinates();
        let sums = match self.records.filter(|&records| records <= NARROW_RECORDS) {
            Some(records) => {
                let mut all = Zeroizing::new(Vec::with_capacity(length));
                self.drain(|_, sums| all.extend(sums.iter().map(|&sum| sum as i64)));
                Sums::of(all, records)
            }
            None => {
                let mut all = Zeroizing::new(Vec::with_capacity(length));
                self.drain(|_, sums| all.extend_from_slice(sums));
                all.into()
            }
        };
        (keys, sums)
    }

    /// Calls `give` with every key, ascending, and its sums in the order of the layout, and clears
    /// them. Keeps the memory of a few keys.
    pub fn drain(&mut self, mut give: impl FnMut(u32, &[i128])) {
        let few = self.keys.len() <= SPARE_KEYS;
        self.records = Some(0);
        if few {
            self.places.clear();
        } else {
            (self.places, self.spare) = (HashMap::default(), Vec::new());
        }
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable_by_key(|key| key.key);
        for mut of_key in keys.drain(..) {
            let KeySums { key, sums, pending } = &mut of_key;
            let total: &mut [i128] = if sums.is_empty() {
                // Made only when needed: for a million columns, making it would be expensive.
                self.total.clear();
                self.total.resize(self.layout.coordinates(), 0);
                &mut self.total
            } else {
                &mut *sums
            };
            if is_narrow(self.layout) {
                add_runs(total, [&pending[..]].into_iter());
            } else {
                self.products.add_rows(pending, self.width.max(1), total);
            }
            give(*key, total);
            if few {
                // Not `Vec::zeroize`, which wipes twice, the second time byte by byte.
                sums[..].zeroize();
                pending[..].zeroize();
                (sums.clear(), pending.clear());
                self.spare.push(of_key);
            }
        }
        self.total[..].zeroize();
        self.products.wipe();
        if few {
            self.keys = keys;
        }
    }

    fn index(&mut self, key: u32) -> usize {
        let Self { places, keys, spare, .. } = self;
        let index = places.entry(key).or_insert_with(|| {
            keys.push(spare.pop().map_or_else(|| KeySums::new(key), |spare| KeySums { key, ..spare }));
            keys.len() as u32 - 1
        });
        *index as usize
    }

    fn add_run(&mut self, key: u32, rows: &[f64]) {
        let (width, layout) = (self.width, self.layout);
        self.records = self.records.map(|records| records + (rows.len() / width.max(1)) as u64);
        let enough = width * PENDING_ROWS.max(layout.coordinates() / layout.dimension);
        let index = self.index(key);
        let key = &mut self.keys[index];
        if rows.len() >= enough {
            return self.products.add_rows(rows, width, key.sums(layout));
        }
        if is_narrow(layout) {
            return key.add_each(rows, width, layout);
        }
        key.pending.extend_from_slice(rows);
        if key.pending.len() >= enough {
            let pending = std::mem::take(&mut key.pending);
            self.products.add_rows(&pending, width, key.sums(layout));
            key.pending = pending;
            key.pending.zeroize();
        }
    }

    fn check_width(&mut self, rows: &QuantisedRows) -> Result<(), MomentError> {
        let (found, expected) = (rows.dimension(), self.layout.dimension);
        if found != expected {
            return Err(MomentError::Dimension { found, expected });
        }
        if !rows.is_empty() {
            let (found, expected) = (rows.width(), self.width);
            if expected != 0 && found != expected {
                return Err(MomentError::Width { found, expected });
            }
            self.width = found;
        }
        Ok(())
    }
}

/// Keys are consecutive numbers or nearly so; a multiplication scatters them.
#[derive(Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The hash table uses the lowest and the highest bits.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::super::SecondMoment::{Diagonal, Full};
    use super::super::{Clipper, RecordError, SecondMoment};
    use super::*;
    use chacha20::ChaCha20Rng;
    use num_bigint::BigInt;
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};

    /// ζ = 2²⁰ makes the grid the integers.
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
                let layout = Layout { dimension, second, sent: None };
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
            let layout = Layout { dimension, second: Full, sent: None };
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
        let layout = Layout { dimension: 9, second: Full, sent: None };
        let rows = random_rows(9, 2 * BLOCK_ROWS + 5, 3);
        let keys = vec![0; rows.len()];
        check(layout, &keys, &rows, &added(layout, &keys, &rows));
    }

    /// First moments of the first row of a record, second moments of its second row.
    #[test]
    fn records_clipped_with_their_squares_have_a_row_for_each_moment() {
        for (dimension, second) in [(1, Full), (3, Full), (9, Full), (40, Full), (9, Diagonal)] {
            let layout = Layout { dimension, second, sent: None };
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
        let mut accumulators = Accumulators::new(Layout { dimension: 1, second: Full, sent: None });
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
            let layout = Layout { dimension: 2, second, sent: None };
            let rows = quantised(2, &[0.0, f64::from(length)].repeat(2 * (2 * BLOCK_ROWS + 1)));
            let keys: Vec<u32> = (0..rows.len() as u32).map(|row| row % 2).collect();
            let sums = added(layout, &keys, &rows);
            check(layout, &keys, &rows, &sums);
            assert_eq!(
                sums[&1].to_wide()[..3],
                [2 * BLOCK_ROWS as i128 + 1, 0, (2 * BLOCK_ROWS as i128 + 1) * i128::from(length)]
            );
        }
    }

    #[test]
    fn empty_batches_make_no_keys() {
        let mut accumulators = Accumulators::new(Layout { dimension: 2, second: Full, sent: None });
        accumulators.add(&[], &QuantisedRows::new(2)).unwrap();
        accumulators.add_to_key(1, &QuantisedRows::new(2)).unwrap();
        assert!(accumulators.take().is_empty());
    }

    #[test]
    fn batches_that_do_not_fit_are_refused() {
        let mut accumulators = Accumulators::new(Layout { dimension: 2, second: Full, sent: None });
        let (rows, wide) = (quantised(2, &[1.0; 4]), quantised(3, &[1.0; 3]));
        let dimension = Err(MomentError::Dimension { found: 3, expected: 2 });
        assert_eq!(accumulators.add(&[1], &rows), Err(MomentError::Keys { keys: 1, rows: 2 }));
        assert_eq!(accumulators.add(&[1], &wide), dimension);
        assert_eq!(accumulators.add_to_key(1, &wide), dimension);
    }

    fn layouts() -> impl Strategy<Value = Layout> {
        (1..20usize, prop::bool::ANY).prop_map(|(dimension, full)| Layout {
            dimension,
            second: if full { Full } else { Diagonal },
            sent: None,
        })
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
}
