//! The `square_batches` operator: squares of whole-batch sums, which standard Adam uses for its
//! second moment.

use hushflow_mechanism::moments::{Layout, Sums};
use hushflow_mechanism::release::Shards;
use hushflow_operators::{ClosedEpoch, Fault, Measurement, OpenEpochs, PartialSums};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// One worker's count and first moments in a shard of these alone.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct FirstSums {
    pub(crate) shard: u32,
    pub(crate) sums: Sums,
}

/// Adds counts and first moments over all workers and puts the square of each sum in the position
/// of the second moments.
///
/// More than `most` records in an epoch raise the fault: the number of records is public, and a
/// record's effect on a square depends on it.
pub(crate) fn square_batches<'scope>(
    sums: StreamVec<'scope, u64, FirstSums>,
    most: u32,
    measurement: &Measurement,
    fault: Fault,
) -> StreamVec<'scope, u64, PartialSums> {
    let by_shard = Exchange::new(|sums: &FirstSums| u64::from(sums.shard));
    let squares = BatchSquares { most, layout: measurement.layout(), shards: measurement.shards() };
    let measurement = measurement.clone();
    sums.unary_frontier(by_shard, "SquareBatches", move |_capability, _info| {
        let mut epochs = OpenEpochs::new(fault);
        move |(input, frontier), output| {
            epochs.collect(input, BTreeMap::new, add);
            epochs.on_close([frontier], |run| {
                for ClosedEpoch { epoch, times: [time], data: shards } in run {
                    for (shard, sums) in shards {
                        let pieces = squares.of(shard, &sums.to_wide())?.into_iter();
                        output.session(time).give_iterator(pieces.map(
                            |SumsPiece { shard, offset, sums }| {
                                measurement.partial_sums(epoch, shard, offset, sums.into())
                            },
                        ));
                    }
                }
                Ok(())
            });
        }
    })
}

/// Adds modulo 2¹²⁸. A sum cannot leave that range: a batch has fewer than 2³² records, because a
/// larger number raises the fault.
fn add(shards: &mut BTreeMap<u32, Sums>, FirstSums { shard, sums }: FirstSums) {
    let sums = match shards.remove(&shard) {
        Some(total) => total.plus(0, &sums, None),
        None => sums,
    };
    shards.insert(shard, sums);
}

/// Makes the squares and cuts them into shards.
pub(crate) struct BatchSquares {
    pub(crate) most: u32,
    pub(crate) layout: Layout,
    pub(crate) shards: Shards,
}

/// Sums of a shard, from this position on.
pub(crate) struct SumsPiece {
    pub(crate) shard: u32,
    pub(crate) offset: u64,
    pub(crate) sums: Zeroizing<Vec<i128>>,
}

impl BatchSquares {
    /// Returns the shards of counts and first moments alone.
    pub(crate) fn first_shards(&self) -> Shards {
        Shards::new(1, self.layout.without_second(), self.shards.number())
    }

    /// Cuts a shard of counts and first moments, and the squares of the first moments.
    pub(crate) fn of(&self, shard: u32, sums: &[i128]) -> Result<Vec<SumsPiece>, String> {
        let BatchSquares { most, layout, shards } = self;
        let run = self.first_shards().range(shard);
        if run.start == Layout::COUNT as u64 && sums[0] > i128::from(*most) {
            return Err(format!(
                "an epoch has more than the {most} records that its squares were calibrated for"
            ));
        }
        let first = run.start.max(layout.first().start as u64);
        let squares = sums[(first - run.start) as usize..].iter().map(|sum| sum.wrapping_mul(*sum));
        let squares = Zeroizing::new(squares.collect::<Vec<_>>());
        let shift = (layout.second().start - layout.first().start) as u64;
        let cut = |sums: &[i128], start: u64| {
            let piece = |(shard, piece): (u32, Range<u64>)| {
                let sums = sums[(piece.start - start) as usize..(piece.end - start) as usize].to_vec();
                SumsPiece {
                    shard,
                    offset: piece.start - shards.range(shard).start,
                    sums: Zeroizing::new(sums),
                }
            };
            shards.split(start..start + sums.len() as u64).map(piece).collect::<Vec<_>>()
        };
        let mut pieces = cut(sums, run.start);
        pieces.extend(cut(&squares, first + shift));
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_mechanism::moments::SecondMoment;

    const LAYOUT: Layout = Layout::new(3, SecondMoment::Diagonal);

    /// Sums and squares of two workers' sums of one record each.
    fn outcome(most: u32, shards: u32) -> Result<Vec<i128>, String> {
        let squares = BatchSquares { most, layout: LAYOUT, shards: Shards::new(1, LAYOUT, shards) };
        let mut open = BTreeMap::new();
        for record in [[1, 1, -2, 3], [1, 4, 5, -7]] {
            for (shard, run) in squares.first_shards().split(0..4) {
                let sums = Zeroizing::new(record[run.start as usize..run.end as usize].to_vec());
                add(&mut open, FirstSums { shard, sums: sums.into() });
            }
        }
        let mut all = vec![0; LAYOUT.coordinates()];
        for (shard, sums) in open {
            for SumsPiece { shard, offset, sums } in squares.of(shard, &sums.to_wide())? {
                let start = squares.shards.range(shard).start + offset;
                all[start as usize..][..sums.len()].copy_from_slice(&sums);
            }
        }
        Ok(all)
    }

    #[test]
    fn sums_are_squared_for_any_number_of_shards() {
        for shards in [1, 2, 3, 5, 7] {
            assert_eq!(outcome(2, shards), Ok(vec![2, 5, 3, -4, 25, 9, 16]), "{shards:?}");
        }
    }

    #[test]
    fn too_many_records_are_an_error() {
        assert!(outcome(1, 2).unwrap_err().starts_with("an epoch has more than the 1 records"));
    }
}
