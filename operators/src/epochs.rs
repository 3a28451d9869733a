//! `epochs`: moves every record to the epoch that it belongs to.

use crate::Records;
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Brings records to their epochs.
pub trait Epochs<'scope> {
    /// Sends every record at the time of its epoch.
    ///
    /// The source assigns epochs by a [`Schedule`](hushflow_mechanism::epochs::Schedule), which looks at the record and at
    /// the public clock only, sends at a time not above the oldest open epoch, and holds its capability
    /// there: then every epoch closes when the clock says so. A record whose epoch is below the time at which it was
    /// sent joins the epoch of that time.
    ///
    /// ```
    /// use hushflow_mechanism::epochs::{Clock, CountSchedule, Schedule};
    /// use hushflow_operators::{Epochs, Records};
    /// use timely::dataflow::operators::{Inspect, vec::ToStream};
    ///
    /// let schedule = Schedule::ByCount(CountSchedule { records_per_epoch: 2, horizon: 10 });
    /// let mut batch = Records { keys: vec![0; 3], values: vec![0.5, 0.25, 0.125], ..Records::default() };
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

impl<'scope> Epochs<'scope> for StreamVec<'scope, u64, Records> {
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

/// Cuts a batch by epoch. The usual batch, whose records share an epoch, is handed on as it is.
fn split(records: Records) -> BTreeMap<u64, Records> {
    let Some(&first) = records.epochs.first() else { return BTreeMap::new() };
    if records.epochs.iter().all(|&epoch| epoch == first) {
        return BTreeMap::from([(first, records)]);
    }
    let mut parts: BTreeMap<u64, Records> = BTreeMap::new();
    let dimension = records.values.len() / records.len();
    let rows = records.values.chunks_exact(dimension);
    for ((&epoch, &key), row) in records.epochs.iter().zip(&records.keys).zip(rows) {
        let part = parts.entry(epoch).or_default();
        part.keys.push(key);
        part.epochs.push(epoch);
        part.values.extend_from_slice(row);
    }
    parts
}
