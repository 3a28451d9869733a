//! `square_batches`: squares of whole-batch sums, which standard Adam uses for its second moment.

use crate::measurement::Cut;
use crate::{ClosedEpoch, Fault, OpenEpochs, PartialSums};
use hushflow_mechanism::moments::{Layout, Sums};
use hushflow_mechanism::release::Shards;
use std::collections::BTreeMap;
use std::ops::Range;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// Adds counts and first moments over all workers and puts the square of each sum in the position
/// of the second moments. Sums of one key, cut by `from`, come out cut by `to`.
///
/// More than `most` records in an epoch raise the fault: the number of records is public, and a
/// record's effect on a square depends on it.
pub(crate) fn square_batches<'scope>(
    sums: StreamVec<'scope, u64, PartialSums>,
    most: u32,
    from: Cut,
    to: Cut,
    fault: Fault,
) -> StreamVec<'scope, u64, PartialSums> {
    let by_shard = Exchange::new(|partial: &PartialSums| u64::from(partial.shard));
    sums.unary_frontier(by_shard, "SquareBatches", move |_capability, _info| {
        let mut epochs = OpenEpochs::new(fault);
        move |(input, frontier), output| {
            epochs.collect(input, BTreeMap::new, |shards, partial| add(shards, from.shards, &partial));
            epochs.on_close([frontier], |run| {
                for ClosedEpoch { times: [time], data: shards, .. } in run {
                    for (shard, sums) in shards {
                        let squared = squared(&sums.to_wide(), from.shards.range(shard), most, to)?;
                        output.session(time).give_iterator(squared.into_iter());
                    }
                }
                Ok(())
            });
        }
    })
}

/// Adds modulo 2¹²⁸. A sum cannot leave that range: a batch has fewer than 2³² records, or its
/// public number is a fault.
fn add(shards: &mut BTreeMap<u32, Sums>, from: Shards, partial: &PartialSums) {
    let range = from.range(partial.shard);
    let sums = shards.remove(&partial.shard);
    let sums = sums.unwrap_or_else(|| Sums::zero((range.end - range.start) as usize));
    shards.insert(partial.shard, sums.plus(partial.offset as usize, &partial.sums, None));
}

/// Cuts a run of counts and first moments, and the squares of the first moments, by `to`.
fn squared(sums: &[i128], run: Range<u64>, most: u32, to: Cut) -> Result<Vec<PartialSums>, String> {
    let Cut { measurement, layout, shards } = to;
    if run.start == Layout::COUNT as u64 && sums[0] > i128::from(most) {
        return Err(format!(
            "an epoch has more than the {most} records that its squares were calibrated for"
        ));
    }
    let first = run.start.max(layout.first().start as u64);
    let squares = sums[(first - run.start) as usize..].iter().map(|sum| sum.wrapping_mul(*sum));
    let squares = Zeroizing::new(squares.collect::<Vec<_>>());
    let shift = (layout.second().start - layout.first().start) as u64;
    let cut = |sums: &[i128], start: u64| {
        let piece = |(shard, piece): (u32, Range<u64>)| PartialSums {
            measurement,
            shard,
            offset: piece.start - shards.range(shard).start,
            sums: Zeroizing::new(sums[(piece.start - start) as usize..(piece.end - start) as usize].to_vec())
                .into(),
        };
        shards.split(start..start + sums.len() as u64).map(piece).collect::<Vec<_>>()
    };
    Ok([cut(sums, run.start), cut(&squares, first + shift)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::tests::vectors;
    use crate::{Accumulate, Clip, Measurement, Records};
    use hushflow_mechanism::mechanism::Method;
    use hushflow_mechanism::moments::SecondMoment;
    use hushflow_mechanism::sensitivity::Neighbours;
    use std::num::NonZeroU32;
    use std::sync::mpsc;
    use timely::dataflow::operators::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    const LAYOUT: Layout = Layout { dimension: 3, second: SecondMoment::Diagonal };

    fn measurement(most: u32, shards: u32) -> Measurement {
        let method = Method::BatchSquares { size: NonZeroU32::new(most).unwrap() };
        vectors(method, LAYOUT, Neighbours::ReplaceOneInPlace).shards_at_most(shards).build().unwrap()
    }

    /// Sums for two records, one in each worker's batch, and the fault.
    fn outcome(most: u32, shards: u32) -> (Vec<i128>, Option<String>) {
        let (sender, receiver) = mpsc::channel();
        let fault = Fault::new();
        let (raised, measurement) = (fault.clone(), measurement(most, shards));
        let to = measurement.shards();
        timely::execute_directly(move |worker| {
            worker.dataflow::<u64, _, _>(|scope| {
                let batch = |values: [f64; 3]| Records {
                    keys: vec![0],
                    epochs: vec![0],
                    values: values.into(),
                    ..Records::default()
                };
                vec![batch([1.0, -2.0, 3.0]), batch([4.0, 5.0, -7.0])]
                    .to_stream(scope)
                    .container::<Vec<_>>()
                    .clip(&measurement, fault.clone())
                    .accumulate(&measurement, fault)
                    .inspect(move |partial| sender.send(partial.clone()).unwrap());
            });
            (0..20).for_each(|_| {
                worker.step();
            });
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        });
        let mut sums = vec![0; LAYOUT.coordinates()];
        for partial in receiver.try_iter() {
            let start = to.range(partial.shard).start + partial.offset;
            sums[start as usize..][..partial.sums.len()].copy_from_slice(&partial.sums.to_wide());
        }
        (sums, raised.reason().map(String::from))
    }

    #[test]
    fn sums_are_squared_however_they_are_cut() {
        for shards in [1, 2, 3, 5, 7] {
            assert_eq!(outcome(2, shards), (vec![2, 5, 3, -4, 25, 9, 16], None), "{shards:?}");
        }
    }

    #[test]
    fn too_many_records_are_a_fault() {
        let (sums, fault) = outcome(1, 2);
        assert_eq!(sums, [0; 7]);
        assert!(fault.unwrap().starts_with("an epoch has more than the 1 records"));
    }
}
