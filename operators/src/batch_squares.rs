//! `square_batches`: the squares of whole batches, of which Adam as usually written takes its second moment.

use crate::{Fault, PartialSums};
use hushflow_mechanism::moments::Layout;
use hushflow_mechanism::release::Shards;
use std::collections::BTreeMap;
use std::ops::Range;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// Squares batches.
pub trait SquareBatches<'scope> {
    /// Adds the sums of counts and first moments of all workers up and puts the square of every sum beside it, in the place
    /// of second moments: sums of one key, cut by `from`, come out cut by `layout` and `to`.
    ///
    /// More than `most` records in an epoch raise the fault: what a record can do to a square depends on how many there are.
    fn square_batches(
        self,
        layout: Layout,
        most: u32,
        from: Shards,
        to: Shards,
        fault: Fault,
    ) -> StreamVec<'scope, u64, PartialSums>;
}

impl<'scope> SquareBatches<'scope> for StreamVec<'scope, u64, PartialSums> {
    fn square_batches(
        self,
        layout: Layout,
        most: u32,
        from: Shards,
        to: Shards,
        fault: Fault,
    ) -> StreamVec<'scope, u64, PartialSums> {
        let by_shard = Exchange::new(|partial: &PartialSums| u64::from(partial.shard));
        self.unary_frontier(by_shard, "SquareBatches", move |_capability, _info| {
            let mut open = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each_time(|time, batches| {
                    let (_, shards) =
                        open.entry(*time.time()).or_insert_with(|| (time.retain(0), BTreeMap::new()));
                    for partial in batches.flat_map(|batch| batch.drain(..)) {
                        if !add(shards, from, &partial) {
                            fault.raise("a sum left the range of exact 128-bit arithmetic");
                        }
                    }
                });
                while !fault.is_raised()
                    && let Some(entry) = open.first_entry()
                    && !frontier.less_equal(entry.key())
                {
                    let (_, shards) = entry.get();
                    let squared = shards.iter().try_fold(Vec::new(), |mut partials, (&shard, sums)| {
                        partials.extend(squared(sums, from.range(shard), layout, most, to)?);
                        Ok(partials)
                    });
                    // On a fault the capability stays with its epoch: it must not look like an end.
                    match squared {
                        Ok(partials) => output.session(&entry.remove().0).give_iterator(partials.into_iter()),
                        Err::<_, String>(reason) => fault.raise(reason),
                    }
                }
            }
        })
    }
}

type Sums = Zeroizing<Vec<i128>>;

fn add(shards: &mut BTreeMap<u32, Sums>, from: Shards, partial: &PartialSums) -> bool {
    let range = from.range(partial.shard);
    let empty = || Zeroizing::new(vec![0i128; (range.end - range.start) as usize]);
    let sums = shards.entry(partial.shard).or_insert_with(empty);
    let run = sums.get_mut(partial.offset as usize..).unwrap_or_default();
    run.iter_mut().zip(partial.sums.to_wide().iter()).all(|(total, sum)| match total.checked_add(*sum) {
        Some(sum) => {
            *total = sum;
            true
        }
        None => false,
    })
}

/// The sums of a run of counts and first moments, and the squares of the latter, cut anew.
fn squared(
    sums: &[i128],
    run: Range<u64>,
    layout: Layout,
    most: u32,
    to: Shards,
) -> Result<Vec<PartialSums>, String> {
    if run.start == Layout::COUNT as u64 && sums[0] > i128::from(most) {
        return Err(format!(
            "an epoch has more than the {most} records that its squares were calibrated for"
        ));
    }
    let first = run.start.max(layout.first().start as u64);
    let squares: Option<Sums> = sums[(first - run.start) as usize..]
        .iter()
        .map(|sum| sum.checked_mul(*sum))
        .collect::<Option<Vec<_>>>()
        .map(Zeroizing::new);
    let squares = squares.ok_or("a square left the range of exact 128-bit arithmetic")?;
    let shift = (layout.second().start - layout.first().start) as u64;
    let cut = |sums: &[i128], start: u64| {
        let piece = |(shard, piece): (u32, Range<u64>)| PartialSums {
            shard,
            offset: piece.start - to.range(shard).start,
            sums: Zeroizing::new(sums[(piece.start - start) as usize..(piece.end - start) as usize].to_vec())
                .into(),
        };
        to.split(start..start + sums.len() as u64).map(piece).collect::<Vec<_>>()
    };
    Ok([cut(sums, run.start), cut(&squares, first + shift)].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::{Clip, Records};
    use hushflow_mechanism::moments::{Clipper, SecondMoment};
    use std::sync::{Arc, mpsc};
    use timely::dataflow::operators::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    const LAYOUT: Layout = Layout { dimension: 3, second: SecondMoment::Diagonal };

    /// Sums that come out for two records, one on each worker's batch, and the fault.
    fn outcome(most: u32, shards: [u32; 2]) -> (Vec<i128>, Option<String>) {
        let (sender, receiver) = mpsc::channel();
        let fault = Fault::new();
        let raised = fault.clone();
        let from = Shards::new(1, LAYOUT.without_second(), shards[0]);
        let to = Shards::new(1, LAYOUT, shards[1]);
        timely::execute_directly(move |worker| {
            worker.dataflow::<u64, _, _>(|scope| {
                // ζ = 2²⁰ makes the grid the integers.
                let clipper = Arc::new(Clipper::unscaled(3, 1048576.0).unwrap());
                let batch = |values: [f64; 3]| Records {
                    keys: vec![0],
                    epochs: vec![0],
                    values: values.into(),
                    ..Records::default()
                };
                vec![batch([1.0, -2.0, 3.0]), batch([4.0, 5.0, -7.0])]
                    .to_stream(scope)
                    .container::<Vec<_>>()
                    .clip(clipper, fault.clone())
                    .accumulate(LAYOUT.without_second(), from, fault.clone())
                    .square_batches(LAYOUT, most, from, to, fault)
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
        for shards in [[1, 1], [1, 3], [2, 1], [3, 7], [4, 5]] {
            assert_eq!(outcome(2, shards), (vec![2, 5, 3, -4, 25, 9, 16], None), "{shards:?}");
        }
    }

    #[test]
    fn too_many_records_are_a_fault() {
        let (sums, fault) = outcome(1, [1, 2]);
        assert_eq!(sums, [0; 7]);
        assert!(fault.unwrap().starts_with("an epoch has more than the 1 records"));
    }
}
