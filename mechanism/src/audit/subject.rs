//! The subject of an audit: the real path from records to releases, or in tests a broken one.

use super::AuditError;
use crate::mechanism::MatrixMechanism;
use crate::moments::{Accumulators, Clipper, QuantisedRows};
use crate::noise::NoiseSource;
use crate::release::{ReleaseShard, Shards};
use std::collections::BTreeMap;

/// Shards of a run: their borders and noise streams are audited too.
const SHARDS: u32 = 4;

/// A record in a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryRecord {
    /// Number of its key, from 0.
    pub key: u32,
    /// Its epoch, from 1.
    pub epoch: u64,
    /// Its values, centred and scaled.
    pub values: Vec<f64>,
}

/// All records of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryStream {
    /// Number of keys.
    pub keys: u32,
    /// Number of epochs.
    pub epochs: u64,
    /// The records, in any order. Consecutive records of one key are fastest.
    pub records: Vec<CanaryRecord>,
}

impl CanaryStream {
    fn check(&self, record: &CanaryRecord) -> Result<(), AuditError> {
        let (&CanaryRecord { key, epoch, .. }, &CanaryStream { keys, epochs, .. }) = (record, self);
        if key < keys && (1..=epochs).contains(&epoch) {
            return Ok(());
        }
        Err(AuditError::Cell { key, epoch, keys, epochs })
    }
}

/// A path from records to releases, in the two steps of a run.
pub trait AuditSubject: Sync {
    /// Returns the sums of the clipped records: for each epoch the coordinates of all keys, laid
    /// end to end.
    ///
    /// # Errors
    /// [`AuditError`] if a step of the path fails.
    fn sums(&self, stream: &CanaryStream) -> Result<Vec<Vec<i128>>, AuditError>;

    /// Returns the published values of one run with these sums, epoch by epoch. Equal seeds give
    /// equal noise.
    ///
    /// # Errors
    /// [`AuditError`] if a step of the path fails.
    fn release(&self, sums: &[Vec<i128>], source: NoiseSource) -> Result<Vec<Vec<i128>>, AuditError>;
}

/// The path of every run: [`Clipper`], [`Accumulators`], [`ReleaseShard`], with crashes and
/// restarts.
pub struct RealPath {
    mechanism: MatrixMechanism,
    clipper: Clipper,
}

impl RealPath {
    /// Builds the path of a mechanism. Columns are taken as centred and scaled: without bounds on
    /// columns, a record may lie anywhere in the ball that the sensitivity is for.
    ///
    /// # Errors
    /// [`AuditError`] if there is no clipper for the mechanism.
    pub fn new(mechanism: MatrixMechanism) -> Result<Self, AuditError> {
        let parameters = mechanism.moments().parameters();
        let clipper = Clipper::unscaled(parameters.layout.dimension, parameters.clip_norm)?;
        let clipper = mechanism.moments().clipper(clipper)?;
        Ok(Self { mechanism, clipper })
    }

    /// Returns all coordinates of one epoch.
    fn sums_of_epoch<'a>(
        &self,
        keys: u32,
        records: impl Iterator<Item = &'a CanaryRecord>,
    ) -> Result<Vec<i128>, AuditError> {
        let layout = self.mechanism.layout();
        let (mut of_row, mut rows) = (Vec::new(), QuantisedRows::new(layout.dimension));
        for record in records {
            self.clipper.quantise(&record.values, &mut rows)?;
            of_row.push(record.key);
        }
        let mut accumulators = Accumulators::new(layout);
        accumulators.add(&of_row, &rows)?;
        let mut all = vec![0; keys as usize * layout.coordinates()];
        for (key, sums) in accumulators.take() {
            let start = key as usize * layout.coordinates();
            all[start..start + layout.coordinates()].copy_from_slice(&sums.to_wide());
        }
        Ok(all)
    }

    /// Releases all epochs of one shard. It crashes after epochs 1, 2, 4, 8, …: the noise drawn for
    /// such an epoch is lost before anyone has seen it, and drawn again from the earlier state.
    fn release_shard(
        &self,
        shard: u32,
        shards: Shards,
        sums: &[Vec<i128>],
        source: NoiseSource,
    ) -> Result<Vec<Vec<i128>>, AuditError> {
        let range = shards.range(shard);
        let range = range.start as usize..range.end as usize;
        let mut machine = ReleaseShard::new(shard, shards, &self.mechanism, source);
        let mut epochs = Vec::with_capacity(sums.len());
        for (epoch, sums) in (1..).zip(sums) {
            let sums = &sums[range.clone()];
            machine.prepare()?;
            if u64::is_power_of_two(epoch) {
                let state = machine.save();
                machine.release(epoch, sums)?;
                machine = ReleaseShard::new(shard, shards, &self.mechanism, source);
                machine.restore(&state)?;
            }
            epochs.push(machine.release(epoch, sums)?);
        }
        Ok(epochs)
    }
}

impl AuditSubject for RealPath {
    fn sums(&self, stream: &CanaryStream) -> Result<Vec<Vec<i128>>, AuditError> {
        let mut epochs: BTreeMap<u64, Vec<&CanaryRecord>> = BTreeMap::new();
        for record in &stream.records {
            stream.check(record)?;
            epochs.entry(record.epoch).or_default().push(record);
        }
        (1..=stream.epochs)
            .map(|epoch| self.sums_of_epoch(stream.keys, epochs.remove(&epoch).into_iter().flatten()))
            .collect()
    }

    fn release(&self, sums: &[Vec<i128>], source: NoiseSource) -> Result<Vec<Vec<i128>>, AuditError> {
        let coordinates = sums.first().map_or(0, Vec::len);
        let keys = (coordinates / self.mechanism.layout().coordinates()) as u32;
        let shards = Shards::new(keys, self.mechanism.layout(), SHARDS);
        let mut epochs = vec![Vec::with_capacity(coordinates); sums.len()];
        for shard in 0..shards.number() {
            let released = self.release_shard(shard, shards, sums, source)?;
            epochs.iter_mut().zip(released).for_each(|(all, part)| all.extend(part));
        }
        Ok(epochs)
    }
}
