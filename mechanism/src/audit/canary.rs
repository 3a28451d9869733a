//! Canaries: pairs of neighbouring streams that are as far apart as neighbours can be, each in its
//! own way.
//!
//! | canary | difference | worst case of |
//! |---|---|---|
//! | `opposite` | e against −e | first moments; jme, pp and joint-clip in place |
//! | `second-moments` | e against a record across it (d = 1: centre) | second moments, large λ |
//! | `joint` | e against the record farthest in both moments together | jme in place, λ not free |
//! | `outlier` | as `opposite`, 10⁶ times beyond the ball | clippers that miss single records |
//! | `another-key` | e moves to another key | count, first and second moments at once |
//! | `another-epoch` | e moves to another epoch | the same, for opposed columns of C |
//! | `left-out`, `outlier-left-out` | e, or an outlier, against no record | zero-out |
//!
//! e lies on the sphere of the clip norm. A canary needs at most two columns, two keys, and the
//! epochs of the longest column of C, or those of the worst pattern that a participation schema
//! allows. Every cell of the differing record also holds three records that do not differ, because
//! the fault of clipping sums instead of records is visible only in cells with several records.
//!
//! The derivation of the joint record is at the head of [`sensitivity`](crate::sensitivity).
//!
//! # Audited path
//! The subject of an audit: the real path from records to releases, or in tests a broken one.

use super::{AuditClaim, AuditError};
use crate::mechanism::{MatrixMechanism, Method, MomentMechanism};
use crate::moments::{Accumulators, Bins, Clipper, Histogram, Layout, QuantisedRows};
use crate::noise::NoiseSource;
use crate::release::{ReleaseShard, Shards};
use crate::sensitivity::{Neighbours, free_second_weight};
use nalgebra::DMatrix;
use std::collections::BTreeMap;

/// Number of other records, at the centre, in every cell of the differing record.
const COMPANIONS: usize = 3;

/// Distance of an outlier, in units of the ball's radius.
const FAR: f64 = 1e6;

/// Maximum number of patterns of participation that are examined.
const PATTERNS: usize = 1000;

/// Maximum number of patterns whose pairs are all examined.
const PAIRED: usize = 256;

/// A pair of neighbouring streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// Name, as in the table above.
    pub name: &'static str,
    /// Number of keys: one, or two for a record that moves between them.
    pub keys: u32,
    /// The records of both streams.
    pub worlds: [Vec<CanaryRecord>; 2],
}

impl Canary {
    /// Builds one stream of several trials, each with its own keys. Trial i has the records of the
    /// world with number `worlds[i]`.
    pub(super) fn stream(&self, epochs: u64, worlds: &[usize]) -> CanaryStream {
        let records = worlds.iter().zip(0..).flat_map(|(&world, trial)| {
            let shift = trial * self.keys;
            self.worlds[world]
                .iter()
                .map(move |record| CanaryRecord { key: shift + record.key, ..record.clone() })
        });
        CanaryStream { keys: worlds.len() as u32 * self.keys, epochs, records: records.collect() }
    }
}

/// Returns the canaries of a mechanism, without duplicates.
///
/// # Errors
/// [`AuditError`] if the matrix of the strategy can't be computed for this many epochs.
pub fn canaries(audited: &AuditClaim) -> Result<Vec<Canary>, AuditError> {
    let moments = audited.mechanism.moments();
    let steps = Steps::new(audited)?;
    let make = CanaryBuilder { clip_norm: moments.parameters().clip_norm, pattern: steps.worst() };
    let (neighbours, layout) = (moments.parameters().neighbours, moments.layout());
    let e = along(layout, 0.0);
    if neighbours == Neighbours::ZeroOut {
        let left_out = |name, length: f64| make.canary(name, &scaled(&e, length), None);
        return Ok(vec![left_out("left-out", 1.0), left_out("outlier-left-out", FAR)]);
    }
    let mut all = vec![make.canary("opposite", &e, Some(&scaled(&e, -1.0)))];
    if layout.second_len() > 0 {
        let (one, other) = across(layout);
        all.push(make.canary("second-moments", &one, Some(&other)));
        all.extend(farthest(moments).map(|(one, other)| make.canary("joint", &one, Some(&other))));
    }
    all.push(make.canary("outlier", &scaled(&e, FAR), Some(&scaled(&e, -FAR))));
    if neighbours == Neighbours::ReplaceOne {
        all.extend(audited.two_keys.then(|| make.moved("another-key", &e, 1, &make.pattern)));
        all.extend(steps.farthest().map(|[one, other]| {
            CanaryBuilder { pattern: one, ..make }.moved("another-epoch", &e, 0, &other)
        }));
    }
    Ok(all)
}

/// Returns the unit vector at an angle to the first axis; ±1 in one dimension.
fn along(layout: Layout, angle: f64) -> Vec<f64> {
    if layout.dimension == 1 { vec![angle.cos().signum()] } else { vec![angle.cos(), angle.sin()] }
}

fn scaled(record: &[f64], factor: f64) -> Vec<f64> {
    record.iter().map(|value| value * factor).collect()
}

/// Returns two records whose second moments are farthest apart, full or diagonal.
fn across(layout: Layout) -> (Vec<f64>, Vec<f64>) {
    let e = along(layout, 0.0);
    let other = if layout.dimension == 1 { vec![0.0] } else { along(layout, std::f64::consts::FRAC_PI_2) };
    (e, other)
}

/// Returns two records whose weighted first and second moments together are farthest apart, or
/// `None` if these are e and −e. Angles are symmetric about the diagonal, where Σx∘x distinguishes
/// all that Σxxᵀ does.
fn farthest(moments: &MomentMechanism) -> Option<(Vec<f64>, Vec<f64>)> {
    let (layout, nu) = (moments.layout(), moments.claim().weights.second);
    let is_clipped_jointly = moments.parameters().method == Method::JointClip;
    if is_clipped_jointly || nu <= free_second_weight(layout.dimension) {
        return None;
    }
    if layout.dimension == 1 {
        return Some((vec![1.0], vec![((1.0 - 2.0 / nu).sqrt() - 1.0) / 2.0]));
    }
    let (diagonal, half) = (std::f64::consts::FRAC_PI_4, (-0.5 / nu).acos() / 2.0);
    Some((along(layout, diagonal + half), along(layout, diagonal - half)))
}

/// The steps, from 0, at which a record takes part, and its sign at each.
type Pattern = Vec<(usize, f64)>;

/// Builds canaries by placing records at the steps of a pattern.
struct CanaryBuilder {
    clip_norm: f64,
    pattern: Pattern,
}

impl CanaryBuilder {
    /// Places a record, in units of the clip norm, that the other world replaces or leaves out.
    fn canary(&self, name: &'static str, one: &[f64], other: Option<&[f64]>) -> Canary {
        let records = |record: &[f64]| self.records(record, 0, &self.pattern);
        self.in_company(Canary {
            name,
            keys: 1,
            worlds: [records(one), other.map(records).unwrap_or_default()],
        })
    }

    /// Places a record that moves to another key, or to the steps of another pattern.
    fn moved(&self, name: &'static str, record: &[f64], key: u32, pattern: &Pattern) -> Canary {
        let worlds = [self.records(record, 0, &self.pattern), self.records(record, key, pattern)];
        self.in_company(Canary { name, keys: key + 1, worlds })
    }

    fn records(&self, record: &[f64], key: u32, pattern: &Pattern) -> Vec<CanaryRecord> {
        let at_step = |&(step, sign): &(usize, f64)| CanaryRecord {
            key,
            epoch: step as u64 + 1,
            values: scaled(record, sign * self.clip_norm),
        };
        pattern.iter().map(at_step).collect()
    }

    fn in_company(&self, mut canary: Canary) -> Canary {
        let mut cells: Vec<_> =
            canary.worlds.iter().flatten().map(|record| (record.key, record.epoch)).collect();
        cells.sort_unstable();
        cells.dedup();
        let width = canary.worlds[0].first().map_or(0, |record| record.values.len());
        let companion = |(key, epoch)| CanaryRecord { key, epoch, values: vec![0.0; width] };
        let companions = cells.into_iter().flat_map(|cell| std::iter::repeat_n(companion(cell), COMPANIONS));
        let companions: Vec<_> = companions.collect();
        for world in &mut canary.worlds {
            world.extend(companions.iter().cloned());
            world.sort_by_key(|record| (record.key, record.epoch));
        }
        canary
    }
}

/// Products of the columns of C, which determine the steps at which a record has most influence.
struct Steps {
    gram: DMatrix<f64>,
    patterns: Vec<Pattern>,
}

impl Steps {
    fn new(audited: &AuditClaim) -> Result<Self, AuditError> {
        let matrix = audited.mechanism.strategies().first().matrix(audited.epochs)?;
        let gram = matrix.gram(&(0..matrix.columns()).collect::<Vec<_>>());
        let schedule = audited.participation.on(matrix.columns());
        let equally_spaced =
            || schedule.starts().take(PATTERNS).map(|start| schedule.pattern(start)).collect();
        let patterns = schedule.patterns(schedule.first_steps(), PATTERNS).unwrap_or_else(equally_spaced);
        let patterns = patterns.iter().map(|steps| signed(&gram, steps)).collect();
        Ok(Self { gram, patterns })
    }

    /// Returns ⟨Σ±c_i, Σ±c_j⟩ for the steps i of one pattern and j of another.
    fn product(&self, one: &Pattern, other: &Pattern) -> f64 {
        let terms = |&(i, sign): &(usize, f64)| {
            other.iter().map(move |&(j, other)| sign * other * self.gram[(i, j)]).sum::<f64>()
        };
        one.iter().map(terms).sum()
    }

    /// Returns the pattern that moves the release farthest.
    fn worst(&self) -> Pattern {
        let largest = self.patterns.iter().max_by(|a, b| self.product(a, a).total_cmp(&self.product(b, b)));
        largest.cloned().unwrap_or_default()
    }

    /// Returns two patterns whose difference moves the release farthest; `None` if there is only
    /// one pattern.
    fn farthest(&self) -> Option<[Pattern; 2]> {
        let some: Vec<_> =
            self.patterns.iter().step_by(self.patterns.len().div_ceil(PAIRED).max(1)).collect();
        let pairs =
            some.iter().enumerate().flat_map(|(i, one)| some[..i].iter().map(move |other| [*other, *one]));
        let distance =
            |[a, b]: &[&Pattern; 2]| self.product(a, a) + self.product(b, b) - 2.0 * self.product(a, b);
        let farthest = pairs.max_by(|a, b| distance(a).total_cmp(&distance(b)));
        farthest.map(|pair| pair.map(Clone::clone))
    }
}

/// Returns signs, chosen step by step so that each step adds to the change of the previous steps.
fn signed(gram: &DMatrix<f64>, steps: &[usize]) -> Pattern {
    let mut pattern = Pattern::new();
    for &step in steps {
        let along: f64 = pattern.iter().map(|&(before, sign)| sign * gram[(before, step)]).sum();
        pattern.push((step, if along < 0.0 { -1.0 } else { 1.0 }));
    }
    pattern
}

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
    /// Builds the path of a mechanism. Columns are treated as centred and scaled: without bounds on
    /// columns, a record may lie anywhere in the ball.
    ///
    /// # Errors
    /// [`AuditError`] if there is no clipper for the mechanism.
    pub fn new(mechanism: MatrixMechanism) -> Result<Self, AuditError> {
        let parameters = mechanism.moments().parameters();
        let clipper = Clipper::unscaled(parameters.layout.dimension, parameters.clip_norm)?;
        let clipper = clipper.with_histograms(histograms(parameters.layout.bins)?);
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

    /// Releases all epochs of one shard, with simulated crashes at epochs 1, 2, 4, 8, …. The first
    /// noise drawn for such an epoch is lost before publication, and noise is drawn again from the
    /// earlier state.
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

/// Returns histograms of the first column with these numbers of bins. The bins are divided evenly,
/// because the noise depends on their total alone. The first inner edge separates opposite records.
fn histograms(bins: Bins) -> Result<Vec<Histogram>, AuditError> {
    let Bins { histograms, number } = bins;
    let of = |histogram: u32| {
        let own = number / histograms + u32::from(histogram < number % histograms);
        Ok(Histogram::new(0, (-1..i64::from(own)).map(|edge| edge as f64).collect())?)
    };
    (0..histograms).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers cover texts with one value, and trees with few nodes above their bins.
    #[test]
    fn canaries_have_as_many_histograms_and_bins_as_the_mechanism() {
        for (count, number) in [(0, 0), (1, 1), (2, 2), (3, 4), (3, 10), (20, 20 * 65_536)] {
            let bins = Bins { histograms: count, number };
            assert_eq!(Bins::of(&histograms(bins).unwrap()), bins);
        }
        // The first of four bins is below 0, the second from 0 on.
        let parting = histograms(Bins { histograms: 3, number: 10 }).unwrap();
        assert!(
            parting.iter().all(|histogram| histogram.bin(-0.5) == Some(0) && histogram.bin(0.5) == Some(1))
        );
        // Fewer bins than histograms are an error: no histogram may be dropped.
        assert!(histograms(Bins { histograms: 2, number: 1 }).is_err());
    }
}
