//! `release`: encodes the sums of all workers and adds exact noise, for every epoch, whether it had data or not.

use crate::closing::Closing;
use crate::records::{ShardValues, Spare};
use crate::{Fault, PartialSums, ShardRelease};
use hushflow_mechanism::mechanism::MatrixMechanism;
use hushflow_mechanism::moments::RunSums;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseError, ReleaseShard, Shards};
use std::collections::BTreeMap;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Broadcast;
use zeroize::Zeroizing;

/// What a release needs to know. The same on every worker, but for the states.
#[derive(Clone)]
pub struct ReleaseSetup {
    /// Strategies, sensitivity and noise.
    pub mechanism: Arc<MatrixMechanism>,
    /// How coordinates are cut.
    pub shards: Shards,
    /// Where noise comes from.
    pub source: NoiseSource,
    /// Whether the noise of an epoch is drawn while its sums are waited for. Otherwise that of a shard is drawn when its turn comes, just
    /// before its sums are looked at: where nothing is waited for it is still in the processor's cache then.
    pub draw_ahead: bool,
    /// Encoder states of shards after the epochs released before a restart, at least of those that the worker owns
    /// ([`shard_owner`]): empty at the first start.
    pub states: Arc<BTreeMap<u32, Zeroizing<Vec<u8>>>>,
    /// The first epoch to release: 1 at the first start.
    pub first_epoch: u64,
    /// A checkpoint of the encoders is due after every epoch that is a multiple of this.
    pub checkpoint_interval: u64,
}

/// The worker, of so many, that releases a shard.
pub fn shard_owner(shard: u32, workers: usize) -> usize {
    shard as usize % workers
}

/// Adds noise.
pub trait Release<'scope> {
    /// Releases every epoch that closes, in order, on the workers that own its shards.
    ///
    /// That an epoch had no records must not show, so the operator does not wait for data: it walks the frontier. When the
    /// input ends it goes on to the largest epoch that came through `ends`, and no further: an input that closes
    /// without having said where it ends is a fault of its source, not the end of the stream. Once `ends` is closed the end
    /// is known, and the operator stops there even if its input never ends, as in a loop that it is a part of.
    /// One record, in epoch 2, of a stream that ends with epoch 3:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let batch = Records { keys: vec![0], epochs: vec![2], values: vec![0.5], ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(clipper, fault.clone());
    ///     let sums = records.accumulate(layout, shards, fault.clone());
    ///     let releases = sums.release(vec![3].to_stream(scope), setup, fault);
    ///     releases.inspect_time(move |epoch, _private| seen.send(*epoch).expect("heard"));
    /// });
    /// assert_eq!(all_seen.iter().collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn release(
        self,
        ends: StreamVec<'scope, u64, u64>,
        setup: ReleaseSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ShardRelease>;
}

impl<'scope> Release<'scope> for StreamVec<'scope, u64, PartialSums> {
    fn release(
        self,
        ends: StreamVec<'scope, u64, u64>,
        setup: ReleaseSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, ShardRelease> {
        let (index, peers) = (self.scope().index(), self.scope().peers());
        let by_shard = Exchange::new(|partial: &PartialSums| u64::from(partial.shard));
        self.binary_frontier(ends.broadcast(), by_shard, Pipeline, "Release", move |mut capability, _info| {
            capability.downgrade(&setup.first_epoch);
            let mut capability = Some(capability);
            let mut owned = Owned::new(setup, index, peers);
            let mut open: BTreeMap<u64, Vec<PartialSums>> = BTreeMap::new();
            let mut last_epoch = 0;
            move |(sums, sums_frontier), (ends, ends_frontier), output| {
                sums.for_each_time(|time, batches| {
                    open.entry(*time.time()).or_default().extend(batches.flat_map(|batch| batch.drain(..)));
                });
                ends.for_each_time(|_, batches| {
                    last_epoch = batches.flat_map(|batch| batch.drain(..)).fold(last_epoch, u64::max);
                });
                let Some(held) = capability.as_mut() else { return };
                if fault.is_raised() {
                    return;
                }
                let closing = Closing::of(sums_frontier, ends_frontier, last_epoch, *held.time());
                while *held.time() < closing.limit {
                    let epoch = *held.time();
                    match owned.release(epoch, open.remove(&epoch).unwrap_or_default()) {
                        Ok(releases) => output.session(&held).give_iterator(releases.into_iter()),
                        Err(error) => return fault.raise(error),
                    }
                    held.downgrade(&(epoch + 1));
                }
                if closing.is_over(*held.time()) {
                    capability = None;
                } else if let Err(error) = owned.prepare() {
                    fault.raise(error);
                }
            }
        })
    }
}

/// The shards of one worker.
struct Owned {
    setup: ReleaseSetup,
    shards: BTreeMap<u32, ReleaseShard>,
    /// Memory of values that have been seen.
    spare: Spare,
    /// Sums of several workers in 64 bits, whose memory serves for the next epoch.
    sums: BTreeMap<u32, RunSums>,
    /// Why the states of a restart could not be taken over; reported with the first epoch.
    broken: Option<ReleaseError>,
}

impl Owned {
    fn new(setup: ReleaseSetup, index: usize, peers: usize) -> Self {
        let spare = Spare::new((setup.shards.number() as usize).div_ceil(peers));
        let (shards, sums) = (BTreeMap::new(), BTreeMap::new());
        let mut owned = Owned { shards, spare, sums, broken: None, setup };
        let ReleaseSetup { mechanism, shards, source, .. } = &owned.setup;
        for number in (0..shards.number()).filter(|&number| shard_owner(number, peers) == index) {
            let mut shard = ReleaseShard::new(number, *shards, mechanism, *source);
            if let Some(state) = owned.setup.states.get(&number)
                && let Err(error) = shard.restore(state)
            {
                owned.broken = Some(error);
            }
            owned.shards.insert(number, shard);
        }
        owned
    }

    /// Draws the noise of the next epoch, if it is to be drawn now.
    fn prepare(&mut self) -> Result<(), ReleaseError> {
        if !self.setup.draw_ahead {
            return Ok(());
        }
        self.shards.values_mut().try_for_each(|shard| shard.prepare_in(|| self.spare.take()))
    }

    fn release(&mut self, epoch: u64, partials: Vec<PartialSums>) -> Result<Vec<ShardRelease>, ReleaseError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let mut by_shard: BTreeMap<u32, Vec<PartialSums>> = BTreeMap::new();
        for partial in partials {
            by_shard.entry(partial.shard).or_default().push(partial);
        }
        let checkpoint = epoch.is_multiple_of(self.setup.checkpoint_interval);
        let release = |(&shard, machine): (&u32, &mut ReleaseShard)| {
            // Before its sums are looked at.
            machine.prepare_in(|| self.spare.take())?;
            let partials = by_shard.remove(&shard).unwrap_or_default();
            let several = partials.len() > 1;
            let sums = total(partials, machine.coordinates(), self.sums.remove(&shard))?;
            self.sums.extend(sums.shared().filter(|_| several).map(|sums| (shard, sums)));
            let values = ShardValues::new(machine.release_row(epoch, sums.row())?, self.spare.clone());
            let state = checkpoint.then(|| machine.save());
            Ok(ShardRelease { shard, sums, values, state })
        };
        self.shards.iter_mut().map(release).collect()
    }
}

/// The sums of a shard. If there is one partial that has all of them, the others are added to it.
fn total(
    partials: Vec<PartialSums>,
    coordinates: usize,
    mut room: Option<RunSums>,
) -> Result<RunSums, ReleaseError> {
    let mut partials = partials.into_iter().peekable();
    let whole = partials.next_if(|partial| partial.sums.len() == coordinates);
    let sums = whole.map_or_else(|| RunSums::zero(coordinates), |partial| partial.sums);
    let plus =
        |sums: RunSums, partial: PartialSums| sums.plus(partial.offset as usize, &partial.sums, room.take());
    partials.try_fold(sums, plus).map_err(|_| ReleaseError::Overflow)
}
