//! `epochs`: moves every record to the epoch that it belongs to.

use crate::Records;
use hushflow_mechanism::epochs::Schedule;
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Assigns records to epochs.
pub trait Epochs<'scope> {
    /// Moves every record to its epoch by the [`Schedule`], which looks at that record and at the public clock only.
    ///
    /// The source sends at a time not above the oldest epoch that was open by the clock of the batch's first record, and
    /// holds its capability there: then every epoch closes when the clock says so. A record that the schedule
    /// drops is dropped here. (A source that sends later than that has its records join the epoch of their time.)
    ///
    /// ```
    /// use hushflow_mechanism::epochs::{Clock, CountSchedule, Schedule};
    /// use hushflow_operators::{Epochs, Records};
    /// use timely::dataflow::operators::{Inspect, vec::ToStream};
    ///
    /// let schedule = Schedule::ByCount(CountSchedule { records_per_epoch: 2, horizon: 10 });
    /// let batch = Records {
    ///     keys: vec![0; 3],
    ///     values: vec![0.5, 0.25, 0.125],
    ///     event_times: vec![0; 3],
    ///     clocks: (0..3).map(|row| Clock { row, ..Clock::START }).collect(),
    /// };
    /// timely::example(|scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     records.epochs(schedule).inspect_time(|epoch, batch| match epoch {
    ///         1 => assert_eq!(batch.values, [0.5, 0.25]),
    ///         _ => assert_eq!((*epoch, batch.values.as_slice()), (2, [0.125].as_slice())),
    ///     });
    /// });
    /// ```
    fn epochs(self, schedule: Schedule) -> StreamVec<'scope, u64, Records>;
}

impl<'scope> Epochs<'scope> for StreamVec<'scope, u64, Records> {
    fn epochs(self, schedule: Schedule) -> StreamVec<'scope, u64, Records> {
        self.unary(Pipeline, "Epochs", move |_capability, _info| {
            move |input, output| {
                input.for_each_time(|time, batches| {
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        for (epoch, records) in split(&schedule, records) {
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
fn split(schedule: &Schedule, records: Records) -> BTreeMap<u64, Records> {
    let assigned: Vec<Option<u64>> = records
        .event_times
        .iter()
        .zip(&records.clocks)
        .map(|(&event_time, &clock)| schedule.assign(event_time, clock).epoch())
        .collect();
    if let Some(&Some(epoch)) = assigned.first()
        && assigned.iter().all(|&other| other == Some(epoch))
    {
        return BTreeMap::from([(epoch, records)]);
    }
    let mut parts: BTreeMap<u64, Records> = BTreeMap::new();
    let dimension = records.values.len() / records.len().max(1);
    for (place, epoch) in assigned.into_iter().enumerate() {
        if let Some(epoch) = epoch {
            let part = parts.entry(epoch).or_default();
            part.keys.push(records.keys[place]);
            part.values.extend_from_slice(&records.values[place * dimension..][..dimension]);
        }
    }
    parts
}
