//! The state machine of discovery: candidates, their sums, and the slots of keys that are shown.
//!
//! Everything here is private except the names of slots. [`Candidates::close`] returns the
//! additions of an epoch as integers for the private log and for the release;
//! [`Candidates::replay`] applies them again.

use super::names::{PRIVATE, PUBLIC, push_name, take_name};
use super::tree::KeyNoise;
use super::{Counted, Discovery, names_of};
use crate::moments::{IntegerRow, Layout};
use crate::noise::{EntropyError, NoiseGenerator, NoiseSource};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use thiserror::Error;
use zeroize::Zeroizing;

/// Domain separator: only hashes for keys of generators begin with it.
const DOMAIN: &[u8] = b"hushflow discovery 1";

/// Reasons why an epoch can't be closed, or why a state can't be restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// There is no entropy for noise, so the epoch is not released.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// An epoch is not the next one: epochs are closed in order, once each.
    #[error("epoch {found} was closed for keys whose next epoch is {expected}")]
    OutOfOrder {
        /// The epoch.
        found: u64,
        /// The next epoch.
        expected: u64,
    },
    /// The saved state belongs to another pipeline, or is malformed.
    #[error("the saved candidates can't be read: they are of another pipeline or version")]
    State,
}

/// Candidates and slots of a log.
pub struct Candidates {
    discovery: Arc<Discovery>,
    coordinates: usize,
    source: NoiseSource,
    /// The secret of each closed epoch.
    secrets: Vec<Zeroizing<[u8; 32]>>,
    candidates: HashMap<Arc<str>, Candidate>,
    slots: HashMap<Arc<str>, u32>,
    /// The names of the slots in use.
    names: Vec<Arc<str>>,
}

/// A key that is not shown.
struct Candidate {
    /// The sums of its records.
    sums: Zeroizing<Vec<i128>>,
    /// The entities with a record of the key, ascending; empty if records are counted.
    entities: Zeroizing<Vec<u128>>,
    /// The noise of the key's count. It is drawn once the key has enough records to be tested.
    noise: KeyNoise,
}

impl Candidate {
    fn new() -> Self {
        Candidate { sums: Zeroizing::default(), entities: Zeroizing::default(), noise: KeyNoise::default() }
    }

    /// Adds entities, and returns those that are new, ascending.
    fn add_entities(&mut self, arrived: &[u128]) -> Zeroizing<Vec<u128>> {
        let is_new = |entity: &u128| self.entities.binary_search(entity).is_err();
        let mut new = Zeroizing::new(Vec::with_capacity(arrived.len()));
        new.extend(arrived.iter().copied().filter(is_new));
        new.sort_unstable();
        new.dedup();
        // Growing in place would leave copies of entities in freed memory.
        let mut all = Zeroizing::new(Vec::with_capacity(self.entities.len() + new.len()));
        let mut known = self.entities.iter().copied().peekable();
        for &entity in new.iter() {
            all.extend(std::iter::from_fn(|| known.next_if(|&known| known < entity)));
            all.push(entity);
        }
        all.extend(known);
        self.entities = all;
        new
    }

    /// Returns the count that the test uses.
    fn count(&self, counted: Counted) -> i128 {
        match counted {
            Counted::Records => self.sums[Layout::COUNT],
            Counted::Entities { .. } => self.entities.len() as i128,
        }
    }
}

/// The records of a key in an epoch, or some of them. Private.
pub struct KeyArrival<'s> {
    /// The key.
    pub name: Arc<str>,
    /// The sums of the records; `None` if there are no sums.
    pub sums: Option<IntegerRow<'s>>,
    /// The entities that have these records, in any order; empty if records are counted.
    pub entities: &'s [u128],
}

/// The sums and entities of a candidate in an epoch.
#[derive(Default)]
struct Arrived {
    sums: Zeroizing<Vec<i128>>,
    entities: Zeroizing<Vec<u128>>,
}

/// A candidate, or the additions of an epoch to a candidate, in the private log. Private.
struct StoredCandidate<'i> {
    name: String,
    sums: &'i [i128],
    entities: Zeroizing<Vec<u128>>,
}

/// The additions of an epoch. Private, except `public`.
pub struct ClosedKeys {
    /// The sums of slots with records, or with a key that is new.
    pub slots: BTreeMap<u32, Zeroizing<Vec<i128>>>,
    /// The names of new keys, in the order of their slots.
    pub public: Vec<i128>,
    /// What [`Candidates::replay`] needs: the secret, and the sums and new entities of candidates
    /// with records.
    pub private: Zeroizing<Vec<i128>>,
}

impl Candidates {
    /// Starts before the first epoch, without keys.
    pub fn new(discovery: Arc<Discovery>, layout: Layout, source: NoiseSource) -> Self {
        Self {
            discovery,
            coordinates: layout.coordinates(),
            source,
            secrets: Vec::new(),
            candidates: HashMap::new(),
            slots: HashMap::new(),
            names: Vec::new(),
        }
    }

    /// The next epoch; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.secrets.len() as u64 + 1
    }

    /// The names of the slots in use, in order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    fn is_full(&self) -> bool {
        self.names.len() >= self.discovery.parameters.most as usize
    }

    /// Closes the next epoch, in which these keys have records. A key may occur several times.
    ///
    /// # Errors
    /// [`DiscoveryError`]; the value must not be used afterwards.
    pub fn close<'s>(
        &mut self,
        epoch: u64,
        arrivals: impl IntoIterator<Item = KeyArrival<'s>>,
    ) -> Result<ClosedKeys, DiscoveryError> {
        self.check_order(epoch)?;
        let secret = secret(self.source, epoch)?;
        let mut private = Zeroizing::new(as_integers(&secret).to_vec());
        self.secrets.push(secret);
        let mut slots: BTreeMap<u32, Zeroizing<Vec<i128>>> = BTreeMap::new();
        let mut arrived: BTreeMap<Arc<str>, Arrived> = BTreeMap::new();
        let is_full = self.is_full();
        for KeyArrival { name, sums, entities } in arrivals {
            if let Some(&slot) = self.slots.get(&name) {
                sums.into_iter().for_each(|sums| add(slots.entry(slot).or_default(), sums));
            } else if !is_full {
                let arrived = arrived.entry(name).or_default();
                sums.into_iter().for_each(|sums| add(&mut arrived.sums, sums));
                arrived.entities.extend_from_slice(entities);
            }
        }
        for (name, mut arrived) in arrived {
            arrived.sums.resize(self.coordinates, 0);
            push_name(&mut private, &name, PRIVATE);
            private.extend_from_slice(&arrived.sums);
            let new = self.add_candidate(name, &arrived.sums, &arrived.entities);
            self.push_entities(&mut private, &new);
        }
        let mut public = Vec::new();
        for name in self.shown(epoch) {
            let Some(candidate) = self.candidates.remove(&name) else { continue };
            push_name(&mut public, &name, PUBLIC);
            slots.insert(self.take_slot(name), candidate.sums);
        }
        self.forget_if_full();
        Ok(ClosedKeys { slots, public, private })
    }

    /// Returns the candidates that pass the test after this epoch, in the order of their names and
    /// at most as many as there are free slots.
    fn shown(&mut self, epoch: u64) -> Vec<Arc<str>> {
        let Self { discovery, secrets, candidates, .. } = self;
        let least = i128::from(discovery.parameters.at_least);
        let mut shown = Vec::new();
        for (name, candidate) in candidates.iter_mut() {
            let count = candidate.count(discovery.parameters.counted);
            if count < least {
                continue;
            }
            let noise = &mut candidate.noise;
            while noise.epochs() < epoch {
                let secret = &secrets[noise.epochs() as usize];
                noise.advance(&discovery.gaussian, &mut generator(secret, name));
            }
            if discovery.shows(epoch, count, noise.total()) {
                shown.push(Arc::clone(name));
            }
        }
        shown.sort_unstable();
        shown.truncate(discovery.parameters.most as usize - self.names.len());
        shown
    }

    /// Applies the results that [`close`](Self::close) returned for the next epoch, without testing
    /// candidates again.
    ///
    /// # Errors
    /// [`DiscoveryError`]; the value must not be used afterwards.
    pub fn replay(&mut self, epoch: u64, private: &[i128], public: &[i128]) -> Result<(), DiscoveryError> {
        self.check_order(epoch)?;
        let (secret, mut rest) = private.split_first_chunk().ok_or(DiscoveryError::State)?;
        self.secrets.push(of_integers(secret));
        while !rest.is_empty() {
            let StoredCandidate { name, sums, entities } =
                self.take_candidate(&mut rest).ok_or(DiscoveryError::State)?;
            self.add_candidate(name.into(), sums, &entities);
        }
        for name in names_of(public).ok_or(DiscoveryError::State)? {
            let (name, _) = self.candidates.remove_entry(&*name).ok_or(DiscoveryError::State)?;
            self.take_slot(name);
        }
        self.forget_if_full();
        Ok(())
    }

    /// Returns the state, for [`restore`](Self::restore): numbers of epochs, slots and candidates,
    /// then secrets, names, sums and entities.
    pub fn save(&self) -> Zeroizing<Vec<i128>> {
        let numbers = [self.secrets.len(), self.names.len(), self.candidates.len()];
        let of_candidate = 1 + self.coordinates + 3;
        // Growing would leave copies of sums in freed memory.
        let length = 3 + 2 * numbers[0] + 4 * numbers[1] + of_candidate * numbers[2];
        let long = |name: &Arc<str>| name.len().div_ceil(PRIVATE);
        let length = length + self.names.iter().chain(self.candidates.keys()).map(long).sum::<usize>();
        let length =
            length + self.candidates.values().map(|candidate| candidate.entities.len()).sum::<usize>();
        let mut saved = Zeroizing::new(Vec::with_capacity(length));
        saved.extend(numbers.map(|number| number as i128));
        self.secrets.iter().for_each(|secret| saved.extend(as_integers(secret)));
        self.names.iter().for_each(|name| push_name(&mut saved, name, PRIVATE));
        for (name, candidate) in &self.candidates {
            push_name(&mut saved, name, PRIVATE);
            saved.extend_from_slice(&candidate.sums);
            self.push_entities(&mut saved, &candidate.entities);
        }
        saved
    }

    /// Restores a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`DiscoveryError::State`]; the value must not be used afterwards.
    pub fn restore(&mut self, saved: &[i128]) -> Result<(), DiscoveryError> {
        self.read(saved).ok_or(DiscoveryError::State)
    }

    fn read(&mut self, saved: &[i128]) -> Option<()> {
        let (numbers, mut rest) = saved.split_first_chunk::<3>()?;
        let [epochs, slots, candidates] = numbers.map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        for _ in 0..epochs {
            let (secret, after) = rest.split_first_chunk()?;
            self.secrets.push(of_integers(secret));
            rest = after;
        }
        for _ in 0..slots {
            let name = take_name(&mut rest, PRIVATE)?;
            self.take_slot(name.into());
        }
        for _ in 0..candidates {
            let StoredCandidate { name, sums, entities } = self.take_candidate(&mut rest)?;
            self.add_candidate(name.into(), sums, &entities);
        }
        (rest.is_empty() && self.names.len() <= self.discovery.parameters.most as usize).then_some(())
    }

    fn check_order(&self, found: u64) -> Result<(), DiscoveryError> {
        let expected = self.next_epoch();
        if found == expected { Ok(()) } else { Err(DiscoveryError::OutOfOrder { found, expected }) }
    }

    /// Reads name, sums and entities from the front of the integers, and removes them there.
    fn take_candidate<'i>(&self, integers: &mut &'i [i128]) -> Option<StoredCandidate<'i>> {
        let name = take_name(integers, PRIVATE)?;
        let (sums, mut rest) = integers.split_at_checked(self.coordinates)?;
        let mut entities = Zeroizing::default();
        if self.counts_entities() {
            let (&number, after) = rest.split_first()?;
            let (hashes, after) = after.split_at_checked(usize::try_from(number).ok()?)?;
            entities = Zeroizing::new(hashes.iter().map(|&hash| hash as u128).collect());
            rest = after;
        }
        *integers = rest;
        Some(StoredCandidate { name, sums, entities })
    }

    /// Appends the number of entities and the entities, if they are counted.
    fn push_entities(&self, integers: &mut Vec<i128>, entities: &[u128]) {
        if self.counts_entities() {
            integers.push(entities.len() as i128);
            integers.extend(entities.iter().map(|&hash| hash as i128));
        }
    }

    fn counts_entities(&self) -> bool {
        matches!(self.discovery.parameters.counted, Counted::Entities { .. })
    }

    /// Adds sums and entities to a candidate. Returns the entities that are new to it.
    fn add_candidate(&mut self, name: Arc<str>, sums: &[i128], entities: &[u128]) -> Zeroizing<Vec<u128>> {
        let candidate = self.candidates.entry(name).or_insert_with(Candidate::new);
        add(&mut candidate.sums, sums.into());
        candidate.add_entities(entities)
    }

    /// Gives a key the next slot.
    fn take_slot(&mut self, name: Arc<str>) -> u32 {
        let slot = self.names.len() as u32;
        self.slots.insert(Arc::clone(&name), slot);
        self.names.push(name);
        slot
    }

    /// Discards all candidates once no slot is free: then no candidate can ever be shown, and this
    /// fact is public.
    fn forget_if_full(&mut self) {
        if self.is_full() {
            self.candidates = HashMap::new();
        }
    }
}

/// Adds to sums. Empty sums count as zeros.
fn add(sums: &mut Zeroizing<Vec<i128>>, others: IntegerRow<'_>) {
    if sums.is_empty() {
        sums.reserve_exact(others.len());
        sums.extend(others.iter());
        return;
    }
    sums.iter_mut().zip(others.iter()).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
}

/// Draws the secret of an epoch.
fn secret(source: NoiseSource, epoch: u64) -> Result<Zeroizing<[u8; 32]>, EntropyError> {
    // No shard has this number.
    let mut generator = source.generator(epoch, u64::MAX)?;
    let mut secret = Zeroizing::new([0; 32]);
    rand::Rng::fill_bytes(&mut generator, &mut *secret);
    Ok(secret)
}

/// Returns the generator of a key's noise in the epoch of this secret.
fn generator(secret: &[u8; 32], name: &str) -> NoiseGenerator {
    let hash = Sha256::new().chain_update(DOMAIN).chain_update(secret).chain_update(name).finalize();
    let key: Zeroizing<[u8; 32]> = Zeroizing::new(hash.into());
    NoiseGenerator::of_key(&key, 0)
}

fn as_integers(secret: &[u8; 32]) -> [i128; 2] {
    let half = |half: usize| std::array::from_fn(|byte| secret[16 * half + byte]);
    [0, 1].map(|part| i128::from_le_bytes(half(part)))
}

fn of_integers(integers: &[i128; 2]) -> Zeroizing<[u8; 32]> {
    let mut secret = Zeroizing::new([0; 32]);
    secret
        .chunks_exact_mut(16)
        .zip(integers)
        .for_each(|(half, integer)| half.copy_from_slice(&integer.to_le_bytes()));
    secret
}
