//! `commit`: makes epochs durable before anyone sees them.

use crate::{CommitPlan, Fault, ShardRelease, Values};
use hushflow_mechanism::moments::RunSums;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// All data of an epoch: the private part, for the log only, and the public values.
pub struct EpochCommit<M> {
    /// The epoch.
    pub epoch: u64,
    /// Source positions from which to resume after this epoch.
    pub marks: Vec<M>,
    /// Exact sums of all keys end to end, shard by shard. **Private.**
    pub sums: Vec<RunSums>,
    /// The released values of all keys.
    pub values: Values,
    /// Encoder states by shard after this epoch if a checkpoint is due, else empty. **Private.**
    pub states: Vec<(u32, Zeroizing<Vec<u8>>)>,
}

/// A durable log of epochs.
pub trait CommitLog<M>: 'static {
    /// Makes these epochs durable, in order, with one sync for all of them. They may be published
    /// once this returns.
    ///
    /// # Errors
    /// Any error ends the run: nothing is published and nothing is retried.
    fn commit(&mut self, epochs: &[EpochCommit<M>]) -> Result<(), Box<dyn Error>>;
}

impl<M> EpochCommit<M> {
    /// Returns the public part.
    pub fn released(&self) -> Released {
        Released { epoch: self.epoch, values: self.values.clone() }
    }
}

/// The public part of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The epoch.
    pub epoch: u64,
    /// Its values, with noise.
    pub values: Values,
}

/// Commits.
pub trait Commit<'scope> {
    /// Gathers all shards of each epoch on worker 0, commits the epochs in order and then sends
    /// them on.
    ///
    /// `plan` is the [`Measurement`](crate::Measurement) of the releases, or the
    /// [`Windows`](crate::Windows); releases of another one raise the fault. `marks` carries the
    /// source positions of an epoch at its time. `log` is used on worker 0 only. An example with a
    /// custom log:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// struct Paper(mpsc::Sender<u64>);
    ///
    /// impl CommitLog<u64> for Paper {
    ///     fn commit(&mut self, epochs: &[EpochCommit<u64>]) -> Result<(), Box<dyn std::error::Error>> {
    ///         epochs.iter().try_for_each(|epoch| Ok(self.0.send(epoch.epoch)?))
    ///     }
    /// }
    ///
    /// let batch = Records { keys: vec![0], epochs: vec![2], values: vec![0.5], ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault.clone());
    ///     let releases = sums.release(vec![3].to_stream(scope), &measurement, fault.clone());
    ///     let marks = Vec::<u64>::new().to_stream(scope); // nowhere to resume from
    ///     let released = releases.commit(marks, &measurement, Some(Box::new(Paper(seen))), fault);
    ///     released.inspect(|released| assert_eq!(released.values.len(), 3)); // count, Σx, Σx²
    /// });
    /// assert_eq!(all_seen.iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, M>,
        plan: impl Into<CommitPlan>,
        log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, Released>;
}

impl<'scope> Commit<'scope> for StreamVec<'scope, u64, ShardRelease> {
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, M>,
        plan: impl Into<CommitPlan>,
        mut log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, Released> {
        let plan = plan.into();
        let to_writer = Exchange::new(|_: &ShardRelease| 0);
        let marks_to_writer = Exchange::new(|_: &M| 0);
        self.binary_frontier(marks, to_writer, marks_to_writer, "Commit", move |_capability, _info| {
            let mut next = plan.first_epoch;
            let mut open: BTreeMap<u64, Parts<M>> = BTreeMap::new();
            // Times of epochs on their way into the log. The operator holds only the times of
            // releases, so it ends when the releases end, also in a loop.
            let mut times = VecDeque::new();
            move |(releases, release_frontier), (marks, mark_frontier), output| {
                releases.for_each_time(|time, batches| {
                    let parts = open.entry(*time.time()).or_default();
                    parts.time.get_or_insert_with(|| time.retain(0));
                    parts.releases.extend(batches.flat_map(|batch| batch.drain(..)));
                });
                marks.for_each_time(|time, batches| {
                    let parts = open.entry(*time.time()).or_default();
                    parts.marks.extend(batches.flat_map(|batch| batch.drain(..)));
                });
                let Some(log) = log.as_mut().filter(|_| !fault.is_raised()) else { return };
                let mut epochs = Vec::new();
                while !release_frontier.less_equal(&next)
                    && !mark_frontier.less_equal(&next)
                    && let Some(mut parts) = open.remove(&next)
                {
                    if parts.releases.is_empty() && release_frontier.is_empty() {
                        // Marks of an epoch that was still open when the source ended: there is no
                        // release for it.
                        break;
                    }
                    times.extend(parts.time.take());
                    match parts.assemble(next, plan) {
                        Ok(epoch) => epochs.push(epoch),
                        Err(reason) => return fault.raise(reason),
                    }
                    next += 1;
                }
                if epochs.is_empty() {
                    return;
                }
                if let Err(error) = log.commit(&epochs) {
                    return fault.raise(error);
                }
                for (EpochCommit { epoch, values, .. }, time) in epochs.into_iter().zip(times.drain(..)) {
                    output.session(&time).give(Released { epoch, values });
                }
            }
        })
    }
}

struct Parts<M> {
    /// Held from the first release on.
    time: Option<Capability<u64>>,
    releases: Vec<ShardRelease>,
    marks: Vec<M>,
}

impl<M> Default for Parts<M> {
    fn default() -> Self {
        Parts { time: None, releases: Vec::new(), marks: Vec::new() }
    }
}

impl<M> Parts<M> {
    fn assemble(mut self, epoch: u64, plan: CommitPlan) -> Result<EpochCommit<M>, String> {
        self.releases.iter().try_for_each(|release| release.measurement.check(plan.id, "releases"))?;
        self.releases.sort_by_key(|release| release.shard);
        let complete = self.releases.iter().map(|release| release.shard).eq(0..plan.shards);
        if !complete {
            return Err(format!(
                "epoch {epoch} has {} of its {} shards: a worker is missing",
                self.releases.len(),
                plan.shards
            ));
        }
        let (mut sums, mut values, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for release in self.releases {
            sums.push(release.sums);
            values.push(release.values);
            states.extend(release.state.map(|state| (release.shard, state)));
        }
        Ok(EpochCommit { epoch, marks: self.marks, sums, values: Values::new(values), states })
    }
}
