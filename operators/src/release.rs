//! `release`: encodes the sums of all workers and adds exact noise, for every epoch, with or
//! without data.

use crate::closing::EveryEpoch;
use crate::{ClosedEpoch, Fault, Measurement, PartialSums, ShardRelease};
use hushflow_mechanism::moments::Sums;
use hushflow_mechanism::release::{ReleaseError, ReleaseShard};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Broadcast;

/// Returns which of `workers` releases a shard.
pub fn shard_owner(shard: u32, workers: usize) -> usize {
    shard as usize % workers
}

/// Adds noise.
pub trait ReleaseMoments<'scope> {
    /// Releases every epoch that closes, in order, on the workers that own its shards.
    ///
    /// An empty epoch must not be visible, so the operator follows the frontier and does not wait
    /// for data. It follows that of `ends` too, so a source lets both move on together. When the
    /// input ends, it goes on to the largest epoch that came through `ends`. Once `ends` is closed
    /// the end is known, and the operator stops there even if its input never ends, as in a loop
    /// that contains it.
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
    ///     releases.inspect_time(move |epoch, _private| sender.send(*epoch).expect("a receiver"));
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3]);
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
            let mut epochs = EveryEpoch::new(capability, measurement.first_epoch(), fault.clone());
            let mut owned = OwnedShards::new(measurement, index, peers);
            move |sums, ends, output| {
                let more = epochs.on_close(sums, ends, |run| {
                    for ClosedEpoch { epoch, times: [time], data: partials } in run {
                        output.session(time).give_iterator(owned.release(epoch, partials)?.into_iter());
                    }
                    Ok(())
                });
                if more && let Err(error) = owned.prepare() {
                    fault.raise(error);
                }
            }
        })
    }
}

struct OwnedShards {
    measurement: Measurement,
    shards: BTreeMap<u32, ReleaseShard>,
    /// 64-bit sums of several workers, whose memory is reused in the next epoch.
    sums: BTreeMap<u32, Sums>,
    /// Why the states of a restart could not be restored; reported with the first epoch.
    broken: Option<ReleaseError>,
}

impl OwnedShards {
    fn new(measurement: Measurement, index: usize, peers: usize) -> Self {
        let (shards, sums) = (BTreeMap::new(), BTreeMap::new());
        let mut owned = OwnedShards { shards, sums, broken: None, measurement };
        let all = 0..owned.measurement.shards().number();
        for number in all.filter(|&number| shard_owner(number, peers) == index) {
            let mut shard = owned.measurement.machine(number);
            if let Some(state) = owned.measurement.states().get(&number)
                && let Err(error) = shard.restore(state)
            {
                owned.broken = Some(error);
            }
            owned.shards.insert(number, shard);
        }
        owned
    }

    /// Draws the noise of the next epoch, unless noise is drawn late.
    fn prepare(&mut self) -> Result<(), ReleaseError> {
        if !self.measurement.draws_ahead() {
            return Ok(());
        }
        self.shards.values_mut().try_for_each(ReleaseShard::prepare)
    }

    fn release(&mut self, epoch: u64, partials: Vec<PartialSums>) -> Result<Vec<ShardRelease>, String> {
        if let Some(error) = self.broken.take() {
            return Err(error.to_string());
        }
        let measurement = self.measurement.id();
        let mut by_shard: BTreeMap<u32, Vec<PartialSums>> = BTreeMap::new();
        for partial in partials {
            partial.measurement.check(measurement, "sums")?;
            by_shard.entry(partial.shard).or_default().push(partial);
        }
        let checkpoint = self.measurement.is_checkpoint_due(epoch);
        let release = |(&shard, machine): (&u32, &mut ReleaseShard)| {
            // Before its sums are read.
            machine.prepare()?;
            let partials = by_shard.remove(&shard).unwrap_or_default();
            let several = partials.len() > 1;
            let sums = total(partials, machine.coordinates(), self.sums.remove(&shard));
            self.sums.extend(sums.shared().filter(|_| several).map(|sums| (shard, sums)));
            let values = machine.release_row(epoch, sums.row())?;
            let state = checkpoint.then(|| machine.save());
            Ok(ShardRelease { measurement, shard, sums, values, state })
        };
        let releases: Result<_, ReleaseError> = self.shards.iter_mut().map(release).collect();
        releases.map_err(|error| error.to_string())
    }
}

/// Adds the partial sums of a shard. If one partial covers the whole shard, the others are added to
/// it in place.
fn total(partials: Vec<PartialSums>, coordinates: usize, mut room: Option<Sums>) -> Sums {
    let mut partials = partials.into_iter().peekable();
    let whole = partials.next_if(|partial| partial.sums.len() == coordinates);
    let sums = whole.map_or_else(|| Sums::zero(coordinates), |partial| partial.sums);
    let plus =
        |sums: Sums, partial: PartialSums| sums.plus(partial.offset as usize, &partial.sums, room.take());
    partials.fold(sums, plus)
}
