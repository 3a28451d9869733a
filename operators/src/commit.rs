//! `commit`: makes epochs durable before they are published.

use crate::closing::{HeldTime, least_frontier};
use crate::{CommitPlan, Fault, ReleasedEpoch, ShardRelease};
use hushflow_mechanism::moments::Sums;
use std::error::Error;
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// All data of an epoch: the private part, for the log only, and the public values.
pub struct EpochCommit<M> {
    /// The epoch and its released values.
    pub released: ReleasedEpoch,
    /// Source positions from which to resume after this epoch.
    pub marks: Vec<M>,
    /// Exact sums of all keys end to end, shard by shard. **Private.**
    pub sums: Vec<Sums>,
    /// Encoder states by shard after this epoch. Empty unless a checkpoint is due. **Private.**
    pub states: Vec<(u32, Zeroizing<Vec<u8>>)>,
}

/// A durable log of epochs. A closure that takes the epochs is also a log.
pub trait CommitLog<M>: 'static {
    /// Makes these epochs durable, in order, with one sync for all of them. They may be published
    /// once this returns.
    ///
    /// # Errors
    /// Any error ends the run: nothing is published and nothing is retried.
    fn commit(&mut self, epochs: &[EpochCommit<M>]) -> Result<(), Box<dyn Error>>;
}

impl<M, F> CommitLog<M> for F
where
    F: FnMut(&[EpochCommit<M>]) -> Result<(), Box<dyn Error>> + 'static,
{
    fn commit(&mut self, epochs: &[EpochCommit<M>]) -> Result<(), Box<dyn Error>> {
        self(epochs)
    }
}

/// Commits releases to a log.
pub trait Commit<'scope> {
    /// Gathers all shards of each epoch on worker 0, commits the epochs in order and then sends
    /// them on.
    ///
    /// `plan` is the [`Measurement`](crate::Measurement) of the releases, or the
    /// [`Windows`](crate::Windows); releases of another plan raise the fault. `marks` carries the
    /// source positions of each epoch, at its time or before. `log` is used on worker 0 only. An
    /// example with a custom log:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let log = move |epochs: &[EpochCommit<u64>]| {
    ///     epochs.iter().try_for_each(|epoch| Ok(sender.send(epoch.released.epoch)?))
    /// };
    /// let (keys, epochs, values) = (vec![0], vec![2], vec![0.5]);
    /// let batch = Records { keys, epochs, values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault.clone());
    ///     let releases = sums.release(vec![3].to_stream(scope), &measurement, fault.clone());
    ///     let marks = Vec::<(u64, u64)>::new().to_stream(scope); // no positions to resume from
    ///     let released = releases.commit(marks, &measurement, Some(Box::new(log)), fault);
    ///     released.inspect(|released| assert_eq!(released.len(), 3)); // count, Σx, Σx²
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, (u64, M)>,
        plan: impl Into<CommitPlan>,
        log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ReleasedEpoch>;
}

impl<'scope> Commit<'scope> for StreamVec<'scope, u64, ShardRelease> {
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, (u64, M)>,
        plan: impl Into<CommitPlan>,
        mut log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ReleasedEpoch> {
        let plan = plan.into();
        // Releases come to worker 0 alone.
        log = log.filter(|_| self.scope().index() == 0);
        let to_writer = Exchange::new(|_: &ShardRelease| 0);
        let marks_to_writer = Exchange::new(|_: &(u64, M)| 0);
        self.binary_frontier(marks, to_writer, marks_to_writer, "Commit", move |_capability, _info| {
            let (mut held, mut pending) = (HeldTime::new(), PendingEpochs::new(plan));
            move |(releases, release_frontier), (marks, mark_frontier), output| {
                releases.for_each_time(|time, batches| {
                    held.hold(&time);
                    batches
                        .flat_map(|batch| batch.drain(..))
                        .for_each(|release| pending.releases.push(release));
                });
                marks.for_each_time(|time, batches| {
                    held.hold(&time);
                    pending.marks.extend(batches.flat_map(|batch| batch.drain(..)));
                });
                let Some(log) = log.as_mut() else { return };
                if fault.is_raised() {
                    return;
                }
                let limit = least_frontier([release_frontier, mark_frontier]);
                // An epoch that was still open when the source ended has marks, but no release.
                let end = if release_frontier.is_empty() { limit.min(pending.end()) } else { limit };
                let committed = pending.take_before(end).and_then(|commits| {
                    if !commits.is_empty() {
                        log.commit(&commits).map_err(|error| error.to_string())?;
                    }
                    Ok(commits)
                });
                match committed {
                    Ok(commits) => {
                        if let Some([time]) = held.get() {
                            output
                                .session(time)
                                .give_iterator(commits.into_iter().map(|commit| commit.released));
                        }
                        let is_open = !release_frontier.is_empty() && !pending.is_empty();
                        held.advance(limit, is_open);
                    }
                    Err(reason) => fault.raise(reason),
                }
            }
        })
    }
}

/// Received parts of uncommitted epochs.
struct PendingEpochs<M> {
    plan: CommitPlan,
    /// The first uncommitted epoch.
    next: u64,
    releases: Vec<ShardRelease>,
    marks: Vec<(u64, M)>,
}

impl<M> PendingEpochs<M> {
    fn new(plan: CommitPlan) -> Self {
        PendingEpochs { plan, next: plan.first_epoch, releases: Vec::new(), marks: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.marks.is_empty()
    }

    /// The epoch after the last one that was released.
    fn end(&self) -> u64 {
        self.releases.iter().map(|release| release.epochs().end).fold(self.next, u64::max)
    }

    /// Takes the epochs before `end`, all of which must be there.
    fn take_before(&mut self, end: u64) -> Result<Vec<EpochCommit<M>>, String> {
        self.releases.iter().try_for_each(|release| release.measurement.check(self.plan.id, "releases"))?;
        if end <= self.next {
            return Ok(Vec::new());
        }
        let shards = self.plan.shards as usize;
        self.marks.sort_by_key(|(epoch, _)| *epoch);
        let closed = self.marks.partition_point(|(epoch, _)| *epoch < end);
        let mut marks = self.marks.drain(..closed).peekable();
        // Sorted by shard, and within a shard by epoch.
        self.releases.sort_by_key(|release| (release.shard, release.first));
        let mut of_shards: Vec<_> = self
            .releases
            .chunk_by_mut(|one, next| one.shard == next.shard)
            .map(|of_shard| of_shard.iter_mut().peekable())
            .collect();
        let mut commits = Vec::with_capacity((end - self.next) as usize);
        for epoch in self.next..end {
            let mut commit = EpochCommit {
                released: ReleasedEpoch::new(epoch, Vec::new()),
                marks: Vec::new(),
                sums: Vec::with_capacity(shards),
                states: Vec::new(),
            };
            let mut values = Vec::with_capacity(shards);
            for releases in &mut of_shards {
                while releases.next_if(|release| release.epochs().end <= epoch).is_some() {}
                let Some(release) = releases.peek_mut().filter(|release| release.epochs().contains(&epoch))
                else {
                    continue;
                };
                commit.sums.push(release.sums[(epoch - release.first) as usize].clone());
                values.push(release.values_of(epoch));
                if release.epochs().end == epoch + 1 {
                    commit.states.extend(release.state.take().map(|state| (release.shard, state)));
                }
            }
            if values.len() < shards {
                return Err(format!(
                    "epoch {epoch} has {} of its {shards} shards: a worker is missing",
                    values.len()
                ));
            }
            commit.released = ReleasedEpoch::new(epoch, values);
            let is_own = |(of, _): &(u64, M)| *of <= epoch;
            commit.marks.extend(std::iter::from_fn(|| marks.next_if(is_own)).map(|(_, mark)| mark));
            commits.push(commit);
        }
        drop((of_shards, marks));
        self.releases.retain(|release| release.epochs().end > end);
        self.next = end;
        Ok(commits)
    }
}
