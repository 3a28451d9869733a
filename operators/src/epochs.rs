//! `epochs`: sends every record at the time of its epoch.

use crate::Records;
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Moves records to their epochs.
pub trait SplitEpochs<'scope> {
    /// Sends every record at the time of its epoch.
    ///
    /// The source assigns epochs by a [`Schedule`](hushflow_mechanism::epochs::Schedule), which
    /// reads only the record and the public clock. The source must send at a time that is at most
    /// the oldest open epoch, and hold its capability there. Then every epoch closes when the clock
    /// passes its end. A record whose epoch is before the time at which it was sent joins the epoch
    /// of that time.
    ///
    /// A batch needs one key, one epoch and the same number of values for every record, and an
    /// entity and a position for all records or for none. Any other batch passes without keys, and
    /// [`Accumulate`](crate::Accumulate) refuses it.
    ///
    /// ```
    /// use hushflow_mechanism::epochs::{Clock, CountSchedule, Schedule};
    /// use hushflow_operators::{Records, SplitEpochs};
    /// use timely::dataflow::operators::{Inspect, vec::ToStream};
    ///
    /// let schedule = Schedule::ByCount(CountSchedule { records_per_epoch: 2, horizon: 10 });
    /// let values = vec![0.5, 0.25, 0.125];
    /// let mut batch = Records { keys: vec![0; 3], values, ..Records::default() };
    /// for row in 0..3 {
    ///     batch.epochs.extend(schedule.assign(0, Clock { row, ..Clock::START }).epoch());
    /// }
    /// timely::example(|scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     records.epochs().inspect_time(|epoch, batch| match epoch {
    ///         1 => assert_eq!(batch.values, [0.5, 0.25]),
    ///         _ => assert_eq!((*epoch, batch.values.as_slice()), (2, [0.125].as_slice())),
    ///     });
    /// });
    /// ```
    fn epochs(self) -> StreamVec<'scope, u64, Records>;
}

impl<'scope> SplitEpochs<'scope> for StreamVec<'scope, u64, Records> {
    fn epochs(self) -> StreamVec<'scope, u64, Records> {
        self.unary(Pipeline, "Epochs", move |_capability, _info| {
            move |input, output| {
                input.for_each_time(|time, batches| {
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        for (epoch, records) in split(records) {
                            let capability = time.delayed(&epoch.max(*time.time()), 0);
                            output.session(&capability).give(records);
                        }
                    }
                });
            }
        })
    }
}

/// Cuts a batch by epoch. A batch with one epoch, the usual case, passes unchanged. A batch with
/// inconsistent lengths passes without keys, which later operators refuse.
fn split(mut records: Records) -> BTreeMap<u64, Records> {
    let first = records.epochs.first().copied().unwrap_or_default();
    let (count, values) = (records.keys.len(), records.values.len());
    let optional = |length: usize| length == 0 || length == count;
    let agree = optional(records.entities.len()) && optional(records.positions.len());
    if count != records.epochs.len() || values < count || !values.is_multiple_of(count) || !agree {
        records.keys.clear();
        return BTreeMap::from([(first, records)]);
    }
    if records.epochs.iter().all(|&epoch| epoch == first) {
        return BTreeMap::from([(first, records)]);
    }
    let mut parts: BTreeMap<u64, Records> = BTreeMap::new();
    let dimension = values / count;
    for (at, row) in records.values.chunks_exact(dimension).enumerate() {
        let part = parts.entry(records.epochs[at]).or_default();
        part.keys.push(records.keys[at]);
        part.epochs.push(records.epochs[at]);
        part.entities.extend(records.entities.get(at));
        part.positions.extend(records.positions.get(at));
        part.values.extend_from_slice(row);
    }
    parts
}

#[cfg(test)]
mod tests {
    use crate::measurement::tests::vectors;
    use crate::{Accumulate, Clip, Fault, Records, SplitEpochs};
    use hushflow_mechanism::mechanism::Method;
    use hushflow_mechanism::moments::{Layout, SecondMoment};
    use hushflow_mechanism::sensitivity::Neighbours;
    use timely::dataflow::operators::{Probe, vec::ToStream};

    /// Runs one batch up to its sums. Returns whether it raised the fault and whether its epoch
    /// still closed.
    fn outcome(keys: usize, epochs: &[u64], values: usize) -> (bool, bool) {
        let batch = Records {
            keys: vec![0; keys],
            epochs: epochs.to_vec(),
            values: vec![0.5; values],
            ..Records::default()
        };
        timely::execute_directly(move |worker| {
            let fault = Fault::new();
            let layout = Layout::new(2, SecondMoment::Full);
            let measurement = vectors(Method::Jme, layout, Neighbours::ReplaceOne).build().unwrap();
            let raised = fault.clone();
            let probe = worker.dataflow::<u64, _, _>(|scope| {
                let records = vec![batch].to_stream(scope).container::<Vec<_>>();
                let sums = records.epochs().clip(&measurement, fault.clone()).accumulate(&measurement, fault);
                sums.probe().0
            });
            (0..20).for_each(|_| {
                worker.step();
            });
            let outcome = (raised.is_raised(), probe.done());
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
            outcome
        })
    }

    #[test]
    fn inconsistent_batches_raise_the_fault_and_keep_their_epoch_open() {
        assert_eq!(outcome(2, &[1, 2], 4), (false, true));
        assert_eq!(outcome(0, &[], 0), (false, true));
        for (keys, epochs, values) in [
            (2, &[1, 2][..], 5),
            (2, &[1, 1], 3),
            (3, &[1, 2, 1], 4),
            (2, &[1], 4),
            (1, &[1, 2], 2),
            (2, &[1, 2], 1),
            (0, &[1, 2], 4),
        ] {
            assert_eq!(outcome(keys, epochs, values), (true, false), "{keys} {epochs:?} {values}");
        }
    }
}
