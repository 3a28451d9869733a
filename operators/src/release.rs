//! `release`: encodes the sums of all workers and adds exact noise, for every epoch, with or
//! without data.

use crate::closing::EveryRun;
use crate::{DISCOVERY_SHARD, Fault, Measurement, PartialSums, ShardRelease};
use hushflow_mechanism::moments::Sums;
use hushflow_mechanism::release::{ReleaseError, ReleaseShard};
use std::collections::BTreeMap;
use std::ops::Range;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Broadcast;

/// Returns which of `workers` releases a shard. Worker 0 discovers keys.
pub fn shard_owner(shard: u32, workers: usize) -> usize {
    if shard == DISCOVERY_SHARD { 0 } else { shard as usize % workers }
}

/// Releases sums with noise.
pub trait ReleaseMoments<'scope> {
    /// Releases every epoch that closes, in order, on the workers that own its shards.
    ///
    /// An empty epoch must not be visible, so the operator follows the frontier and does not wait
    /// for data. It also follows the frontier of `ends`, so a source must advance both together.
    /// When the input ends, it continues to the largest epoch that came through `ends`. Once `ends`
    /// is closed the end is known, and the operator stops there even if its input never ends, as in
    /// a loop that contains it.
    ///
    /// The fault is raised by an input that closes without a last epoch, which is a fault of its
    /// source and not the end of the stream. Sums of another measurement raise it too.
    ///
    /// One record, in epoch 2, of a stream that ends with epoch 3:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let (keys, epochs, values) = (vec![0], vec![2], vec![0.5]);
    /// let batch = Records { keys, epochs, values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault.clone());
    ///     let releases = sums.release(vec![3].to_stream(scope), &measurement, fault);
    ///     let releases = releases.container::<Vec<_>>();
    ///     releases.inspect(move |private| sender.send(private.epochs()).expect("a receiver"));
    /// });
    /// assert_eq!(receiver.iter().flatten().collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn release(
        self,
        ends: StreamVec<'scope, u64, u64>,
        measurement: &Measurement,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ShardRelease>;
}

impl<'scope> ReleaseMoments<'scope> for StreamVec<'scope, u64, PartialSums> {
    fn release(
        self,
        ends: StreamVec<'scope, u64, u64>,
        measurement: &Measurement,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ShardRelease> {
        let (index, peers, measurement) = (self.scope().index(), self.scope().peers(), measurement.clone());
        let by_shard = Exchange::new(|partial: &PartialSums| u64::from(partial.shard));
        self.binary_frontier(ends.broadcast(), by_shard, Pipeline, "Release", move |capability, _info| {
            let mut runs = EveryRun::new(capability, measurement.first_epoch(), fault.clone());
            let mut owned = OwnedShards::new(measurement.clone(), index, peers);
            let longest = owned.longest_run();
            let last_of_run =
                move |first| measurement.last_of_run(first).min(first.saturating_add(longest - 1));
            move |(sums, frontier), ends, output| {
                let next = runs.next().unwrap_or(u64::MAX);
                sums.for_each_time(|_, batches| {
                    for partial in batches.flat_map(|batch| batch.drain(..)) {
                        owned.take(next, partial).unwrap_or_else(|reason| fault.raise(reason));
                    }
                });
                let more = runs.on_close(frontier, ends, &last_of_run, |run, [time]| {
                    output.session(time).give_iterator(owned.release(run)?.into_iter());
                    Ok(())
                });
                if more && let Err(error) = owned.prepare() {
                    fault.raise(error);
                }
            }
        })
    }
}

/// Maximum number of coordinates of a run of epochs, unless a single epoch has more. The noise of a
/// run is in memory at once, and should stay in the processor's second-level cache until sums are
/// added.
const RUN_COORDINATES: usize = 1 << 15;

struct OwnedShards {
    measurement: Measurement,
    shards: BTreeMap<u32, OwnedShard>,
    /// Reason why the states of a restart could not be restored; reported with the first epoch.
    broken: Option<ReleaseError>,
}

struct OwnedShard {
    machine: ReleaseShard,
    /// Sums of open epochs.
    partials: Vec<PartialSums>,
    /// Sums that are all 0, kept from their first use on: for epochs without records, and to add
    /// partial sums to.
    zero: Option<Sums>,
    /// 64-bit sums of several workers, whose memory is reused in the next epoch.
    room: Option<Sums>,
}

impl OwnedShards {
    fn new(measurement: Measurement, index: usize, peers: usize) -> Self {
        let mut owned = OwnedShards { shards: BTreeMap::new(), broken: None, measurement };
        let all = 0..owned.measurement.shards().number();
        for number in all.filter(|&number| shard_owner(number, peers) == index) {
            let mut machine = owned.measurement.machine(number);
            if let Some(state) = owned.measurement.states().get(&number)
                && let Err(error) = machine.restore(state)
            {
                owned.broken = Some(error);
            }
            let (partials, zero, room) = (Vec::new(), None, None);
            owned.shards.insert(number, OwnedShard { machine, partials, zero, room });
        }
        owned
    }

    /// Maximum number of epochs to release together.
    fn longest_run(&self) -> u64 {
        let coordinates: usize = self.shards.values().map(|shard| shard.machine.coordinates()).sum();
        (RUN_COORDINATES / coordinates.max(1)).max(1) as u64
    }

    /// Keeps sums until their epoch closes. Those of epochs before `next`, which are over, are
    /// dropped.
    fn take(&mut self, next: u64, partial: PartialSums) -> Result<(), String> {
        partial.measurement.check(self.measurement.id(), "sums")?;
        if let Some(shard) = self.shards.get_mut(&partial.shard).filter(|_| partial.epoch >= next) {
            shard.partials.push(partial);
        }
        Ok(())
    }

    /// Draws the noise of the next epoch, unless noise is drawn late.
    fn prepare(&mut self) -> Result<(), ReleaseError> {
        if !self.measurement.draws_ahead() {
            return Ok(());
        }
        self.shards.values_mut().try_for_each(|shard| shard.machine.prepare())
    }

    fn release(&mut self, run: Range<u64>) -> Result<Vec<ShardRelease>, String> {
        if let Some(error) = self.broken.take() {
            return Err(error.to_string());
        }
        let checkpoint = self.measurement.is_checkpoint_due(run.end - 1);
        let measurement = self.measurement.id();
        let release = |(&shard, owned): (&u32, &mut OwnedShard)| {
            // The noise is drawn before the sums are read.
            owned.machine.prepare_run((run.end - run.start) as usize)?;
            let sums = owned.sums_of(run.clone());
            let values = owned.machine.release_run(run.start, sums.iter().map(Sums::row))?;
            let state = checkpoint.then(|| owned.machine.save());
            Ok(ShardRelease { measurement, shard, first: run.start, sums, values, state })
        };
        let releases: Result<_, ReleaseError> = self.shards.iter_mut().map(release).collect();
        releases.map_err(|error| error.to_string())
    }
}

impl OwnedShard {
    /// Takes the total of each epoch.
    fn sums_of(&mut self, run: Range<u64>) -> Vec<Sums> {
        let Self { machine, partials, zero, room } = self;
        let coordinates = machine.coordinates();
        let mut zero = || zero.get_or_insert_with(|| Sums::zero(coordinates)).clone();
        partials.sort_by_key(|partial| partial.epoch);
        let closed = partials.partition_point(|partial| partial.epoch < run.end);
        let mut partials = partials.drain(..closed).peekable();
        let total_of = |epoch| {
            let Some(first) = partials.next_if(|partial| partial.epoch == epoch) else { return zero() };
            let has_more_partials = partials.peek().is_some_and(|partial| partial.epoch == epoch);
            // If one partial covers the whole shard, the others are added to it in place.
            let (mut sums, rest) =
                if first.sums.len() == coordinates { (first.sums, None) } else { (zero(), Some(first)) };
            let others = std::iter::from_fn(|| partials.next_if(|partial| partial.epoch == epoch));
            for partial in rest.into_iter().chain(others) {
                sums = sums.plus(partial.offset as usize, &partial.sums, room.take());
            }
            *room = sums.shared().filter(|_| has_more_partials);
            sums
        };
        run.map(total_of).collect()
    }
}
