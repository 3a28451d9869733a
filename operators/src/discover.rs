//! `discover`: the sums of keys that are not listed, and the keys that each epoch shows.

use crate::accumulate::accumulate_with;
use crate::closing::EveryRun;
use crate::measurement::MeasurementId;
use crate::{Entity, Fault, Measurement, PartialSums, QuantisedRecords, ShardRelease};
use hushflow_mechanism::discovery::{Candidates, KeyArrival};
use hushflow_mechanism::moments::Sums;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;
use zeroize::{Zeroize, Zeroizing};

/// Shard number of the names and candidates of an epoch. No shard of sums has this number.
pub const DISCOVERY_SHARD: u32 = u32::MAX;

/// Returns the name of a key by the number that its records have.
pub type KeyNames = Arc<dyn Fn(u32) -> Option<Arc<str>> + Send + Sync>;

/// Discovers keys.
pub trait Discover<'scope> {
    /// Sums the records of every key, and sends the sums of the keys that are shown, cut by shard,
    /// and the names of new keys as a release of their own. Both go on to
    /// [`Commit`](crate::Commit): the sums through [`ReleaseMoments`](crate::ReleaseMoments).
    ///
    /// Sums are exchanged, with the entities of each key if they are counted, and worker 0 decides
    /// which keys are shown. Only worker 0 uses `names`, which must know the key of every record.
    /// `ends` is that of [`release`](crate::ReleaseMoments::release). A measurement whose keys are
    /// listed raises the fault.
    fn discover(
        self,
        ends: StreamVec<'scope, u64, u64>,
        measurement: &Measurement,
        names: KeyNames,
        fault: Fault,
    ) -> (StreamVec<'scope, u64, PartialSums>, StreamVec<'scope, u64, ShardRelease>);
}

/// One worker's sums of the keys of an epoch.
#[derive(Clone, Serialize, Deserialize)]
struct KeySums {
    measurement: MeasurementId,
    epoch: u64,
    keys: Vec<u32>,
    /// The sums of all keys, end to end.
    sums: Sums,
    /// Keys with their entities, if entities are counted.
    key_entities: Vec<(u32, Entity)>,
}

/// Output of the discovery for an epoch.
#[derive(Clone)]
enum Discovered {
    Sums(PartialSums),
    Names(ShardRelease),
}

impl<'scope> Discover<'scope> for StreamVec<'scope, u64, QuantisedRecords> {
    fn discover(
        self,
        ends: StreamVec<'scope, u64, u64>,
        measurement: &Measurement,
        names: KeyNames,
        fault: Fault,
    ) -> (StreamVec<'scope, u64, PartialSums>, StreamVec<'scope, u64, ShardRelease>) {
        let is_first = self.scope().index() == 0;
        let sums =
            accumulate_with(self, "Sum keys", measurement, fault.clone(), |epoch, summed, measurement| {
                let (keys, sums) = summed.sums.take_row();
                let key_entities = std::mem::take(&mut summed.key_entities);
                Ok([KeySums { measurement: measurement.id(), epoch, keys, sums, key_entities }])
            });
        let measurement = measurement.clone();
        let (by_sums, by_ends) = (Exchange::new(|_: &KeySums| 0), Exchange::new(|_: &u64| 0));
        let discovered =
            sums.binary_frontier(ends, by_sums, by_ends, "Discover", move |capability, _info| {
                let owned = is_first.then(|| OpenKeys::new(measurement.clone(), names));
                let owned = owned.and_then(|owned| owned.map_err(|reason| fault.raise(reason)).ok());
                let first = measurement.first_epoch();
                let mut state = owned.map(|owned| (owned, EveryRun::new(capability, first, fault.clone())));
                move |(sums, frontier), ends, output| {
                    let Some((open, runs)) = &mut state else { return };
                    let next = runs.next().unwrap_or(u64::MAX);
                    sums.for_each_time(|_, batches| {
                        for sums in batches.flat_map(|batch| batch.drain(..)) {
                            open.take(next, sums).unwrap_or_else(|reason| fault.raise(reason));
                        }
                    });
                    let last_of_run = |first| measurement.last_of_run(first);
                    runs.on_close(frontier, ends, last_of_run, |run, [time]| {
                        let mut session = output.session(time);
                        for epoch in run {
                            session.give_iterator(open.close(epoch)?.into_iter());
                        }
                        Ok(())
                    });
                }
            });
        let sums = discovered.clone().flat_map(|discovered| match discovered {
            Discovered::Sums(sums) => Some(sums),
            Discovered::Names(_) => None,
        });
        let names = discovered.flat_map(|discovered| match discovered {
            Discovered::Names(names) => Some(names),
            Discovered::Sums(_) => None,
        });
        (sums, names)
    }
}

impl Measurement {
    /// Whether keys are discovered.
    pub fn discovers(&self) -> bool {
        self.discovery().0.is_some()
    }

    /// Returns the candidates before the first epoch, from the state of a restart if there is one.
    ///
    /// # Errors
    /// If keys are listed, or the state is that of another pipeline.
    pub fn candidates(&self) -> Result<Candidates, String> {
        let (discovery, source) = self.discovery();
        let discovery = discovery.ok_or("the keys of this measurement are listed: accumulate them")?;
        let mut candidates = Candidates::new(Arc::clone(discovery), self.layout(), source);
        if let Some(state) = self.states().get(&DISCOVERY_SHARD) {
            let saved = saved_candidates(state).ok_or("the saved candidates are cut off")?;
            candidates.restore(&saved).map_err(|error| error.to_string())?;
        }
        Ok(candidates)
    }
}

/// Candidates, and the sums of open epochs.
struct OpenKeys {
    measurement: Measurement,
    names: KeyNames,
    candidates: Candidates,
    open: BTreeMap<u64, Vec<KeySums>>,
}

impl OpenKeys {
    fn new(measurement: Measurement, names: KeyNames) -> Result<Self, String> {
        let candidates = measurement.candidates()?;
        Ok(OpenKeys { measurement, names, candidates, open: BTreeMap::new() })
    }

    /// Keeps sums until their epoch closes. Those of epochs before `next`, which are over, are
    /// dropped.
    fn take(&mut self, next: u64, sums: KeySums) -> Result<(), String> {
        sums.measurement.check(self.measurement.id(), "sums")?;
        if sums.epoch >= next {
            self.open.entry(sums.epoch).or_default().push(sums);
        }
        Ok(())
    }

    fn close(&mut self, epoch: u64) -> Result<Vec<Discovered>, String> {
        let Self { measurement, names, candidates, open } = self;
        let (layout, shards) = (measurement.layout(), measurement.shards());
        let width = layout.coordinates();
        let arrived = open.remove(&epoch).unwrap_or_default();
        let mut entities: Vec<_> = arrived
            .iter()
            .flat_map(|arrived| &arrived.key_entities)
            .map(|&(key, Entity(hash))| (key, hash))
            .collect();
        entities.sort_unstable();
        let (of_keys, hashes): (Vec<_>, Vec<_>) = entities.iter().copied().unzip();
        let hashes = Zeroizing::new(hashes);
        entities.zeroize();
        let name = |number| names(number).ok_or("a record's key has no name: number keys by their names");
        let mut keys = Vec::new();
        for KeySums { keys: numbers, sums, .. } in &arrived {
            for (&number, at) in numbers.iter().zip(0..) {
                let sums = Some(sums.row().run(at * width..(at + 1) * width));
                keys.push(KeyArrival { name: name(number)?, sums, entities: &[] });
            }
        }
        let mut start = 0;
        for run in of_keys.chunk_by(|key, next| key == next) {
            let entities = &hashes[start..start + run.len()];
            keys.push(KeyArrival { name: name(run[0])?, sums: None, entities });
            start += run.len();
        }
        let closed = candidates.close(epoch, keys).map_err(|error| error.to_string())?;
        let mut discovered = Vec::new();
        for (slot, sums) in closed.slots {
            let (start, sums) = (u64::from(slot) * width as u64, Sums::from(sums));
            for (shard, piece) in shards.split(start..start + width as u64) {
                let part = sums.part((piece.start - start) as usize..(piece.end - start) as usize);
                let offset = piece.start - shards.range(shard).start;
                discovered.push(Discovered::Sums(measurement.partial_sums(epoch, shard, offset, part)));
            }
        }
        let state = measurement.is_checkpoint_due(epoch).then(|| candidate_state(candidates));
        let (id, at) = (measurement.id(), (DISCOVERY_SHARD, epoch));
        let names = ShardRelease::of_numbers(id, at, closed.public, closed.private.into(), state);
        discovered.push(Discovered::Names(names));
        Ok(discovered)
    }
}

/// Returns the state of candidates as bytes, for a checkpoint.
pub fn candidate_state(candidates: &Candidates) -> Zeroizing<Vec<u8>> {
    let integers = candidates.save();
    let mut bytes = Zeroizing::new(Vec::with_capacity(16 * integers.len()));
    integers.iter().for_each(|integer| bytes.extend(integer.to_le_bytes()));
    bytes
}

/// Returns the integers of such a state, for [`Candidates::restore`]; `None` if bytes remain.
pub fn saved_candidates(bytes: &[u8]) -> Option<Zeroizing<Vec<i128>>> {
    let (integers, rest) = bytes.as_chunks();
    rest.is_empty()
        .then(|| Zeroizing::new(integers.iter().map(|bytes| i128::from_le_bytes(*bytes)).collect()))
}
