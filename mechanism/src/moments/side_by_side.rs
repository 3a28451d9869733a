//! Loops over several long records at once.
//!
//! Their cost is loading records from memory. A processor prefetches several address streams in
//! parallel, and sums that several records share are loaded and stored once for all of them. Eight
//! records at a time take half the time of one after another. The same code is also compiled for
//! registers of 256 bits, and the version is selected once (`pulp`). Each operation stays one of
//! IEEE's, in the same order, so the results are the same, bit by bit.
//!
//! Numbers are moved by value in blocks of eight: compilers can't vectorise writes to memory that
//! may be aliased.

use super::rounding::{as_integer, round_ties_even};
use pulp::{Arch, Simd, WithSimd};

/// Lanes of a block.
const LANES: usize = 8;

/// Number of records whose norms are computed at once.
const NORMS: usize = 8;

/// Number of records that are added at once.
pub(super) const SUMS: usize = 8;

/// Returns the squared norm of a row, from eight partial sums.
pub fn squared_norm<V: Copy + Into<f64>>(row: &[V]) -> f64 {
    let [norm] = in_lanes([row]);
    norm
}

/// Appends the [`squared_norm`] of records of one length to `norms`.
pub(super) fn squared_norms<V: Copy + Into<f64>>(records: &[V], dimension: usize, norms: &mut Vec<f64>) {
    let arch = Arch::new();
    for group in records.chunks(NORMS * dimension) {
        if group.len() == NORMS * dimension {
            let record = |place| &group[place * dimension..][..dimension];
            norms.extend(arch.dispatch(SquaredNorms::<V, NORMS>(std::array::from_fn(record))));
        } else {
            norms.extend(group.chunks(dimension).flat_map(|record| arch.dispatch(SquaredNorms([record]))));
        }
    }
}

struct SquaredNorms<'a, V, const R: usize>([&'a [V]; R]);

impl<V: Copy + Into<f64>, const R: usize> WithSimd for SquaredNorms<'_, V, R> {
    type Output = [f64; R];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f64; R] {
        in_lanes(self.0)
    }
}

#[inline(always)]
fn in_lanes<V: Copy + Into<f64>, const R: usize>(rows: [&[V]; R]) -> [f64; R] {
    let (blocks, rests) =
        (rows.map(|row| row.as_chunks::<LANES>().0), rows.map(|row| row.as_chunks::<LANES>().1));
    let number = blocks.iter().map(|blocks| blocks.len()).min().unwrap_or(0);
    let blocks = blocks.map(|blocks| &blocks[..number]);
    let mut sums = [[0.0; LANES]; R];
    for place in 0..number {
        for (sums, blocks) in sums.iter_mut().zip(&blocks) {
            let squares = blocks[place].map(|value| value.into() * value.into());
            sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        }
    }
    let rest = |rest: &[V]| rest.iter().map(|&value| value.into() * value.into()).sum::<f64>();
    std::array::from_fn(|row| sums[row].iter().sum::<f64>() + rest(rests[row]))
}

/// Scales and rounds records, and adds them and their squares to the sums. Returns the sum of each
/// record's squares.
///
/// All have the length of the sums. All sums are of integers, and below 2⁵³, so nothing is rounded
/// except the records.
pub(super) fn add_records<V: Copy + Into<f64>, const R: usize>(
    records: [&[V]; R],
    scales: [f64; R],
    first: &mut [f64],
    second: &mut [f64],
) -> [f64; R] {
    Arch::new().dispatch(AddRecords { records, scales, first, second })
}

struct AddRecords<'a, V, const R: usize> {
    records: [&'a [V]; R],
    scales: [f64; R],
    first: &'a mut [f64],
    second: &'a mut [f64],
}

impl<V: Copy + Into<f64>, const R: usize> WithSimd for AddRecords<'_, V, R> {
    type Output = [f64; R];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f64; R] {
        let Self { records, scales, first, second } = self;
        let records = records.map(|record| &record[..first.len()]);
        let (blocks, rests) = (
            records.map(|record| record.as_chunks::<LANES>().0),
            records.map(|record| record.as_chunks::<LANES>().1),
        );
        let ((firsts, first_rest), (seconds, second_rest)) = (first.as_chunks_mut(), second.as_chunks_mut());
        let mut squared_norms = [[0.0; LANES]; R];
        for (place, (first, second)) in firsts.iter_mut().zip(seconds).enumerate() {
            let (mut integers_sum, mut squares_sum): ([f64; LANES], [f64; LANES]) = (*first, *second);
            for record in 0..R {
                let integers =
                    blocks[record][place].map(|value| round_ties_even(value.into() * scales[record]));
                let squares = integers.map(|integer| integer * integer);
                for lane in 0..LANES {
                    integers_sum[lane] += integers[lane];
                    squares_sum[lane] += squares[lane];
                    squared_norms[record][lane] += squares[lane];
                }
            }
            (*first, *second) = (integers_sum, squares_sum);
        }
        let mut norms = squared_norms.map(|lanes| lanes.iter().sum());
        for record in 0..R {
            let sums = first_rest.iter_mut().zip(second_rest.iter_mut());
            for (value, (first, second)) in rests[record].iter().zip(sums) {
                let integer = round_ties_even((*value).into() * scales[record]);
                *first += integer;
                *second += integer * integer;
                norms[record] += integer * integer;
            }
        }
        norms
    }
}

/// Adds integers below 2⁵¹ in magnitude to sums, or overwrites these where they are stale. No sum
/// may exceed 64 bits.
pub(super) fn add_integers(sums: &mut [i64], are_stale: bool, integers: &[f64]) {
    Arch::new().dispatch(AddIntegers { sums, are_stale, integers });
}

struct AddIntegers<'a> {
    sums: &'a mut [i64],
    are_stale: bool,
    integers: &'a [f64],
}

impl WithSimd for AddIntegers<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { sums, are_stale, integers } = self;
        let ((sums, sums_rest), (integers, integers_rest)) = (sums.as_chunks_mut(), integers.as_chunks());
        let blocks = sums.iter_mut().zip(integers);
        if are_stale {
            // Overwritten values need not be read.
            blocks.for_each(|(sums, integers): (_, &[f64; LANES])| *sums = integers.map(as_integer));
        } else {
            blocks.for_each(|(sums, integers)| {
                let (before, integers): ([i64; LANES], [f64; LANES]) = (*sums, *integers);
                *sums = std::array::from_fn(|lane| before[lane].wrapping_add(as_integer(integers[lane])));
            });
        }
        for (sum, &integer) in sums_rest.iter_mut().zip(integers_rest) {
            *sum = if are_stale { 0 } else { *sum }.wrapping_add(as_integer(integer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the sums by definition.
    fn one_by_one(records: &[Vec<f64>], scales: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let columns = records[0].len();
        let integer =
            |record: usize, column: usize| (records[record][column] * scales[record]).round_ties_even();
        let sum = |power: i32| {
            (0..columns)
                .map(|column| (0..records.len()).map(|record| integer(record, column).powi(power)).sum())
                .collect()
        };
        let norm = |record| (0..columns).map(|column| integer(record, column).powi(2)).sum();
        (sum(1), sum(2), (0..records.len()).map(norm).collect())
    }

    proptest! {
        #[test]
        fn several_records_are_one_after_another(
            columns in 1usize..40,
            scales in prop::array::uniform8(1.0..1000.0),
            values in prop::collection::vec(-100.0..100.0, 40 * SUMS),
        ) {
            let records: Vec<Vec<f64>> = values.chunks(40).map(|record| record[..columns].to_vec()).collect();
            let expected = one_by_one(&records, &scales);
            let [mut first, mut second] = [vec![0.0; columns], vec![0.0; columns]];
            let slices: [&[f64]; SUMS] = std::array::from_fn(|record| &records[record][..]);
            let norms = add_records(slices, scales, &mut first, &mut second);
            prop_assert_eq!((&first, &second, &norms[..]), (&expected.0, &expected.1, &expected.2[..]));

            let [mut again, mut squares] = [vec![0.0; columns], vec![0.0; columns]];
            let single = |record: usize| add_records([slices[record]], [scales[record]], &mut again, &mut squares)[0];
            prop_assert_eq!((0..SUMS).map(single).collect::<Vec<_>>(), expected.2);
            prop_assert_eq!((again, squares), (first.clone(), second));

            let mut sums = vec![7; columns];
            add_integers(&mut sums, false, &first);
            prop_assert!(sums.iter().zip(&first).all(|(sum, integer)| *sum == 7 + *integer as i64));
            add_integers(&mut sums, true, &first);
            prop_assert!(sums.iter().zip(&first).all(|(sum, integer)| *sum == *integer as i64));
        }

        #[test]
        fn norms_are_the_same_to_the_last_bit(
            dimension in 1usize..40,
            number in 0usize..20,
            values in prop::collection::vec(-1e3f32..1e3, 800),
        ) {
            let records = &values[..dimension * number];
            let mut norms = Vec::new();
            squared_norms(records, dimension, &mut norms);
            let expected: Vec<f64> = records.chunks(dimension).map(squared_norm).collect();
            prop_assert_eq!(norms, expected);
        }
    }
}
