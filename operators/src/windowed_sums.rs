//! `windowed_sums`: exact sums of the last w epochs of every key, by insertion and retraction.
//!
//! A record of epoch t is in the windows of epochs t, …, t + w − 1. The differential collection
//! inserts it at t and retracts it at t + w. Records of one key and epoch are one update whose
//! difference is the vector of their sums. Sums are integers, so retraction is exact and the order
//! of updates does not matter.
//!
//! These sums are **exact and therefore private**. They are for mechanisms that read whole windows
//! before they add noise, never for a reader.

use crate::accumulate::add;
use crate::{ClosedEpoch, Fault, Measurement, OpenEpochs, QuantisedRecords};
use differential_dataflow::difference::{Abelian, IsZero, Monoid, Semigroup};
use differential_dataflow::{AsCollection, VecCollection};
use hushflow_mechanism::moments::{Accumulators, Sums};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// The sums of a key as a difference. It prints nothing of them.
#[derive(Clone, Serialize, Deserialize)]
pub struct Difference(Sums);

impl Difference {
    /// Count, first and second moments, in the order of the
    /// [`Layout`](hushflow_mechanism::moments::Layout); empty for zero.
    pub fn sums(&self) -> &Sums {
        &self.0
    }

    fn take(&mut self) -> Sums {
        std::mem::replace(&mut self.0, Sums::zero(0))
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Difference(private)")
    }
}

impl Ord for Difference {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.row().iter().cmp(other.0.row().iter())
    }
}

impl PartialOrd for Difference {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Difference {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Difference {}

impl IsZero for Difference {
    fn is_zero(&self) -> bool {
        self.0.row().iter().all(|sum| sum == 0)
    }
}

impl Semigroup for Difference {
    fn plus_equals(&mut self, other: &Self) {
        let sums = self.take();
        self.0 = if sums.is_empty() { other.0.clone() } else { sums.plus(0, &other.0, None) };
    }
}

impl Monoid for Difference {
    fn zero() -> Self {
        Difference(Sums::zero(0))
    }
}

impl Abelian for Difference {
    fn negate(&mut self) {
        let mut sums = self.0.to_wide();
        sums.iter_mut().for_each(|sum| *sum = sum.wrapping_neg());
        self.0 = sums.into();
    }
}

/// Sums over sliding windows.
pub trait WindowedSums<'scope> {
    /// Returns the sums of every key over the last `window` epochs, as a collection of keys: its
    /// differences up to epoch t add up to the sum of the records of epochs t − `window` + 1 to t.
    /// There is no update where nothing changes.
    ///
    /// Records that were clipped under another measurement raise the fault.
    ///
    /// For the records ⅛, ¼ and ½ in epochs 1, 2 and 3, windows of two epochs have the sums ⅛, ⅜
    /// and ¾:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let batch = Records { keys: vec![0; 3], epochs: vec![1, 2, 3], values: vec![0.125, 0.25, 0.5], ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let windows = records.windowed_sums(&measurement, 2.try_into().expect("not 0"), fault);
    ///     windows.inner.inspect(move |(_key, epoch, difference)| {
    ///         let first = difference.sums().to_wide()[1] >> 17; // behind the count; eighths, of which a unit is 2⁻¹⁷
    ///         seen.send((*epoch, first)).expect("heard");
    ///     });
    /// });
    /// let changes: Vec<_> = all_seen.iter().collect();
    /// let sum = |at| changes.iter().filter(|(epoch, _)| *epoch <= at).map(|(_, change)| change).sum::<i128>();
    /// assert_eq!([1, 2, 3, 4, 5].map(sum), [1, 3, 6, 4, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn windowed_sums(
        self,
        measurement: &Measurement,
        window: NonZeroU64,
        fault: Fault,
    ) -> VecCollection<'scope, u64, u32, Difference>;
}

impl<'scope> WindowedSums<'scope> for StreamVec<'scope, u64, QuantisedRecords> {
    fn windowed_sums(
        self,
        measurement: &Measurement,
        window: NonZeroU64,
        fault: Fault,
    ) -> VecCollection<'scope, u64, u32, Difference> {
        let sums = per_epoch(self, measurement, fault);
        let gone = sums.clone().negate().delay(move |epoch| epoch.saturating_add(window.get()));
        sums.concat(gone).consolidate()
    }
}

/// Returns each worker's sums of an epoch as updates when it closes.
fn per_epoch<'scope>(
    records: StreamVec<'scope, u64, QuantisedRecords>,
    measurement: &Measurement,
    fault: Fault,
) -> VecCollection<'scope, u64, u32, Difference> {
    let measurement = measurement.clone();
    let updates: StreamVec<'scope, u64, (u32, u64, Difference)> =
        records.unary_frontier(Pipeline, "WindowedSums", move |_capability, _info| {
            let mut epochs = OpenEpochs::new(fault.clone());
            move |(input, frontier), output| {
                let sums = || Accumulators::new(measurement.layout());
                epochs.collect(input, sums, |sums, records| add(sums, &records, &measurement, &fault));
                epochs.on_close([frontier], |run| {
                    for ClosedEpoch { epoch, times: [time], data: mut sums } in run {
                        let update = |(key, sums): (u32, Sums)| (key, epoch, Difference(sums));
                        output.session(time).give_iterator(sums.take().into_iter().map(update));
                    }
                    Ok(())
                });
            }
        });
    updates.as_collection()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::tests::vectors;
    use crate::{Clip, Epochs, Records};
    use hushflow_mechanism::mechanism::Method;
    use hushflow_mechanism::moments::{Layout, SecondMoment};
    use hushflow_mechanism::sensitivity::Neighbours;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex, mpsc};
    use timely::dataflow::operators::{Inspect, vec::ToStream};

    const LAYOUT: Layout = Layout { dimension: 2, second: SecondMoment::Full };

    type Record = (u32, u64, [i8; 2]);

    /// Returns the changes (key, epoch, sums) on this number of workers.
    fn changes(records: &[Record], window: u64, workers: usize) -> Vec<(u32, u64, Vec<i128>)> {
        let (records, window) = (Arc::new(records.to_vec()), NonZeroU64::new(window).expect("a window"));
        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        timely::execute(timely::Config::process(workers), move |worker| {
            let sender = sender.lock().expect("no worker panics").clone();
            let mut batch = Records::default();
            for (key, epoch, values) in records.iter().skip(worker.index()).step_by(worker.peers()) {
                batch.keys.push(*key);
                batch.epochs.push(*epoch);
                batch.values.extend(values.map(f64::from));
            }
            worker.dataflow::<u64, _, _>(|scope| {
                let measurement = vectors(Method::Jme, LAYOUT, Neighbours::ReplaceOne).keys(3).build();
                let measurement = measurement.expect("a measurement");
                let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
                let clipped = records.clip(&measurement, Fault::new());
                clipped.windowed_sums(&measurement, window, Fault::new()).inner.inspect(
                    move |(key, epoch, difference)| {
                        sender.send((*key, *epoch, difference.sums().to_wide().to_vec())).expect("heard");
                    },
                );
            });
        })
        .expect("threads can be started");
        receiver.iter().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn windows_are_what_adding_their_records_up_gives(
            records in prop::collection::vec((0..3_u32, 1..9_u64, prop::array::uniform2(-9..9_i8)), 0..40),
            window in 1..6_u64,
            workers in 1..3_usize,
        ) {
            let changes = changes(&records, window, workers);
            for key in 0..3 {
                for epoch in 0..16 {
                    let mut found = [0; 6];
                    for (_, _, change) in changes.iter().filter(|change| change.0 == key && change.1 <= epoch) {
                        found.iter_mut().zip(change).for_each(|(sum, change)| *sum += change);
                    }
                    let mut expected = [0; 6];
                    let inside = |at: u64| at <= epoch && epoch < at + window;
                    for &(_, _, [x, y]) in records.iter().filter(|record| record.0 == key && inside(record.1)) {
                        let [x, y] = [i128::from(x), i128::from(y)];
                        let record = [1, x, y, x * x, x * y, y * y];
                        expected.iter_mut().zip(record).for_each(|(sum, part)| *sum += part);
                    }
                    prop_assert_eq!(found, expected, "key {} at epoch {}", key, epoch);
                }
            }
        }
    }

    #[test]
    fn what_comes_and_goes_alike_changes_nothing() {
        let records: Vec<Record> = (1..=5).map(|epoch| (0, epoch, [2, -3])).collect();
        let found = changes(&records, 1, 1).into_iter().map(|(_, epoch, sums)| (epoch, sums[0]));
        assert_eq!(found.collect::<Vec<_>>(), [(1, 1), (6, -1)]);
    }
}
