//! `commit`: makes epochs durable before anyone sees them.

use crate::{CommitPlan, Fault, OpenEpochs, ReleasedEpoch, ShardRelease};
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
    /// Encoder states by shard after this epoch if a checkpoint is due, else empty. **Private.**
    pub states: Vec<(u32, Zeroizing<Vec<u8>>)>,
}

/// A durable log of epochs. A closure that takes the epochs is one, too.
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
    /// let log = move |epochs: &[EpochCommit<u64>]| {
    ///     epochs.iter().try_for_each(|epoch| Ok(sender.send(epoch.released.epoch)?))
    /// };
    /// let (keys, epochs, values) = (vec![0], vec![2], vec![0.5]);
    /// let batch = Records { keys, epochs, values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault.clone());
    ///     let releases = sums.release(vec![3].to_stream(scope), &measurement, fault.clone());
    ///     let marks = Vec::<u64>::new().to_stream(scope); // no positions to resume from
    ///     let released = releases.commit(marks, &measurement, Some(Box::new(log)), fault);
    ///     released.inspect(|released| assert_eq!(released.len(), 3)); // count, Σx, Σx²
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, M>,
        plan: impl Into<CommitPlan>,
        log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ReleasedEpoch>;
}

impl<'scope> Commit<'scope> for StreamVec<'scope, u64, ShardRelease> {
    fn commit<M: ExchangeData>(
        self,
        marks: StreamVec<'scope, u64, M>,
        plan: impl Into<CommitPlan>,
        mut log: Option<Box<dyn CommitLog<M>>>,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ReleasedEpoch> {
        let plan = plan.into();
        let to_writer = Exchange::new(|_: &ShardRelease| 0);
        let marks_to_writer = Exchange::new(|_: &M| 0);
        self.binary_frontier(marks, to_writer, marks_to_writer, "Commit", move |_capability, _info| {
            let mut next = plan.first_epoch;
            let mut epochs = OpenEpochs::new(fault);
            move |(releases, release_frontier), (marks, mark_frontier), output| {
                epochs
                    .collect(releases, PendingEpoch::new, |pending, release| pending.releases.push(release));
                epochs.collect(marks, PendingEpoch::new, |pending, mark| pending.marks.push(mark));
                let Some(log) = log.as_mut() else { return };
                epochs.on_close([release_frontier, mark_frontier], |mut run| {
                    if release_frontier.is_empty() {
                        // An epoch that was still open when the source ended has marks, but no
                        // release.
                        run.retain(|closed| !closed.data.releases.is_empty());
                    }
                    let times: Vec<_> = run.iter().map(|closed| closed.times).collect();
                    let assembled = (next..)
                        .zip(run)
                        .map(|(next, closed)| closed.data.assemble(closed.epoch, next, plan));
                    let commits = assembled.collect::<Result<Vec<_>, _>>()?;
                    if commits.is_empty() {
                        return Ok(());
                    }
                    log.commit(&commits).map_err(|error| error.to_string())?;
                    next += commits.len() as u64;
                    for (commit, [time]) in commits.into_iter().zip(times) {
                        output.session(time).give(commit.released);
                    }
                    Ok(())
                });
            }
        })
    }
}

struct PendingEpoch<M> {
    releases: Vec<ShardRelease>,
    marks: Vec<M>,
}

impl<M> PendingEpoch<M> {
    fn new() -> Self {
        PendingEpoch { releases: Vec::new(), marks: Vec::new() }
    }

    /// Returns the data of an epoch, which must be the `next` one.
    fn assemble(mut self, epoch: u64, next: u64, plan: CommitPlan) -> Result<EpochCommit<M>, String> {
        self.releases.iter().try_for_each(|release| release.measurement.check(plan.id, "releases"))?;
        self.releases.sort_by_key(|release| release.shard);
        let complete = self.releases.iter().map(|release| release.shard).eq(0..plan.shards);
        if epoch != next {
            return Err(format!("epoch {epoch} came where epoch {next} follows: a worker is missing"));
        }
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
        Ok(EpochCommit { released: ReleasedEpoch::new(epoch, values), marks: self.marks, sums, states })
    }
}
