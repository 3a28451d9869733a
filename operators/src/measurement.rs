//! Defines a release in one value, which every operator takes.
//!
//! Records must be bounded by the clipper of the mechanism whose noise is added, sums must be cut
//! into the shards that the release expects, and both must begin with the same epoch. A
//! [`Measurement`] holds all of this, so nothing made for one release can be used in another. (The
//! idea is OpenDP's `Measurement`, a function together with its cost.)
//!
//! Data between operators carry the id of their measurement, and an operator raises the fault on
//! any other id. An id is a hash of the measurement's contents, so it is equal on all workers of
//! all processes.

mod covers;
mod error;

use covers::covers;
pub use error::MeasurementError;

use crate::{Entity, EntityHistory, EntityLimits, PartialSums, Windows};
use hushflow_mechanism::discovery::Discovery;
use hushflow_mechanism::mechanism::MatrixMechanism;
use hushflow_mechanism::moments::{Clipper, Histogram, Layout, Sums};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use zeroize::Zeroizing;

const CHECKPOINT_INTERVAL: u64 = 64;

/// Encoder states by shard. **Private.**
pub type EncoderStates = BTreeMap<u32, Zeroizing<Vec<u8>>>;

/// Identifies the measurement under which data were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeasurementId(u64);

impl MeasurementId {
    pub(crate) fn of(parts: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        parts.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// Returns an error unless this is the `expected` id.
    pub(crate) fn check(self, expected: Self, what: &str) -> Result<(), String> {
        if self == expected {
            return Ok(());
        }
        Err(format!(
            "{what} came that were made under another measurement: give one value to all operators of a release"
        ))
    }
}

/// Defines the measured quantities, the bounds of records and the noise. It is equal on every
/// worker. Clones share it.
///
/// ```
/// use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters};
/// use hushflow_mechanism::moments::{Layout, SecondMoment};
/// use hushflow_mechanism::sensitivity::Neighbours;
/// use hushflow_mechanism::strategy::build;
/// use hushflow_mechanism::workload::Workload;
/// use hushflow_operators::Measurement;
///
/// let parameters = MomentParameters {
///     method: Method::Jme,
///     layout: Layout::new(1, SecondMoment::Full),
///     neighbours: Neighbours::ReplaceOne,
///     clip_norm: 1.0,
///     noise_multiplier: 4.0,
///     second_moment_weight: None,
///     count_weight: None,
///     bin_weight: None,
/// };
/// let strategy = build("square-root", &Workload::Prefix, Some(8))?;
/// let mechanism = MatrixMechanism::new(parameters, strategy)?;
/// let measurement = Measurement::of_columns(mechanism, [(0.0, 100.0)]).keys(3).build()?;
/// assert_eq!(measurement.shards().coordinates(), 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Measurement(Arc<MeasurementData>);

struct MeasurementData {
    id: MeasurementId,
    mechanism: Arc<MatrixMechanism>,
    clipper: Arc<Clipper>,
    columns: Arc<[(f64, f64)]>,
    shards: Shards,
    options: MeasurementOptions,
}

#[derive(Clone)]
struct MeasurementOptions {
    keys: u32,
    shards: ShardNumber,
    source: NoiseSource,
    draw_ahead: bool,
    checkpoint_interval: u64,
    first_epoch: u64,
    states: Arc<EncoderStates>,
    entities: Option<EntityLimits>,
    indicators: bool,
    histories: Option<Arc<Vec<(Entity, EntityHistory)>>>,
    discovery: Option<Arc<Discovery>>,
}

/// How coordinates are cut into shards.
#[derive(Clone, Copy)]
enum ShardNumber {
    Usual,
    AtMost(u32),
    AtLeast(u32),
}

/// Makes a [`Measurement`].
#[derive(Clone)]
#[must_use = "it makes a measurement when it is built"]
pub struct MeasurementBuilder {
    mechanism: Arc<MatrixMechanism>,
    columns: Option<Arc<[(f64, f64)]>>,
    histograms: Vec<Histogram>,
    options: MeasurementOptions,
}

impl Measurement {
    /// Measures records whose columns have these public bounds, lower and upper.
    pub fn of_columns(
        mechanism: impl Into<Arc<MatrixMechanism>>,
        bounds: impl Into<Arc<[(f64, f64)]>>,
    ) -> MeasurementBuilder {
        MeasurementBuilder::new(mechanism.into(), Some(bounds.into()))
    }

    /// Measures vectors that are already centred and scaled, such as gradients.
    pub fn of_vectors(mechanism: impl Into<Arc<MatrixMechanism>>) -> MeasurementBuilder {
        MeasurementBuilder::new(mechanism.into(), None)
    }

    /// Strategies, sensitivity and noise.
    pub fn mechanism(&self) -> &Arc<MatrixMechanism> {
        &self.0.mechanism
    }

    /// The clipper that bounds records.
    pub fn clipper(&self) -> &Arc<Clipper> {
        &self.0.clipper
    }

    /// Positions of one key's coordinates in a release.
    pub fn layout(&self) -> Layout {
        self.0.mechanism.layout()
    }

    /// How the coordinates of all keys are cut.
    pub fn shards(&self) -> Shards {
        self.0.shards
    }

    /// The first epoch to release.
    pub fn first_epoch(&self) -> u64 {
        self.0.options.first_epoch
    }

    /// Returns the state machine of a shard, before its first epoch.
    pub fn machine(&self, shard: u32) -> ReleaseShard {
        ReleaseShard::new(shard, self.0.shards, &self.0.mechanism, self.0.options.source)
    }

    /// Wraps one worker's sums of consecutive coordinates of a shard in an epoch, for
    /// [`ReleaseMoments`](crate::ReleaseMoments). `offset` is the position of the first one in the
    /// shard. They are sent at the time of the epoch, or before.
    ///
    /// The noise covers records that the [clipper](Self::clipper) of this measurement bounded.
    /// [`Accumulate`](crate::Accumulate) adds only such records; here the caller must ensure this.
    pub fn partial_sums(&self, epoch: u64, shard: u32, offset: u64, sums: Sums) -> PartialSums {
        PartialSums { measurement: self.id(), epoch, shard, offset, sums }
    }

    pub(crate) fn id(&self) -> MeasurementId {
        self.0.id
    }

    pub(crate) fn discovery(&self) -> (Option<&Arc<Discovery>>, NoiseSource) {
        (self.0.options.discovery.as_ref(), self.0.options.source)
    }

    pub(crate) fn states(&self) -> &EncoderStates {
        &self.0.options.states
    }

    pub(crate) fn draws_ahead(&self) -> bool {
        self.0.options.draw_ahead
    }

    /// Whether a checkpoint is due after an epoch.
    pub(crate) fn is_checkpoint_due(&self, epoch: u64) -> bool {
        epoch.is_multiple_of(self.0.options.checkpoint_interval)
    }

    /// Returns the last epoch that a run from `first` on may have. A checkpoint may be due only
    /// after the last epoch of a run.
    pub(crate) fn last_of_run(&self, first: u64) -> u64 {
        let interval = self.0.options.checkpoint_interval.max(1);
        first.saturating_add(interval - 1) / interval * interval
    }

    /// Parameters of [`BoundEntities`](crate::BoundEntities); `None` if single records are
    /// protected.
    pub(crate) fn bound_setup(&self) -> Option<BoundSetup> {
        let MeasurementOptions { entities, indicators, histories, first_epoch, .. } = &self.0.options;
        let limits = (*entities)?;
        Some(BoundSetup {
            limits,
            discovers: self.discovers(),
            by_column: *indicators,
            dimension: self.0.clipper.dimension(),
            columns: self.0.columns.clone(),
            histories: histories.clone().unwrap_or_default(),
            first_epoch: *first_epoch,
        })
    }
}

/// A measurement in which only the settings of a restart can change. Bounds, keys, entities and
/// noise are fixed.
#[derive(Clone)]
pub struct FixedMeasurement(MeasurementBuilder);

impl FixedMeasurement {
    /// See [`MeasurementBuilder::draw_late`].
    pub fn draw_late(self) -> Self {
        Self(self.0.draw_late())
    }

    /// See [`MeasurementBuilder::checkpoint_interval`].
    pub fn checkpoint_interval(self, epochs: u64) -> Self {
        Self(self.0.checkpoint_interval(epochs))
    }

    /// See [`MeasurementBuilder::resume`].
    pub fn resume(self, first_epoch: u64, states: impl Into<Arc<EncoderStates>>) -> Self {
        Self(self.0.resume(first_epoch, states))
    }

    /// See [`MeasurementBuilder::histories`].
    pub fn histories(self, histories: impl Into<Arc<Vec<(Entity, EntityHistory)>>>) -> Self {
        Self(self.0.histories(histories))
    }

    /// See [`MeasurementBuilder::build`].
    ///
    /// # Errors
    /// [`MeasurementError`] for parameters that do not fit together.
    pub fn build(self) -> Result<Measurement, MeasurementError> {
        self.0.build()
    }
}

impl MeasurementBuilder {
    /// Fixes all settings except those of a restart.
    pub fn fixed(self) -> FixedMeasurement {
        FixedMeasurement(self)
    }

    fn new(mechanism: Arc<MatrixMechanism>, columns: Option<Arc<[(f64, f64)]>>) -> Self {
        let options = MeasurementOptions {
            keys: 1,
            shards: ShardNumber::Usual,
            source: NoiseSource::System,
            draw_ahead: true,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            first_epoch: 1,
            states: Arc::default(),
            entities: None,
            indicators: false,
            histories: None,
            discovery: None,
        };
        Self { mechanism, columns, histograms: Vec::new(), options }
    }

    /// Sets the number of keys, 1 by default. Keys are numbered from 0.
    pub fn keys(mut self, keys: u32) -> Self {
        self.options.keys = keys;
        self
    }

    /// Cuts coordinates into at most this many shards, by default as [`Shards::of`] does. The
    /// number is fixed for the life of a release.
    pub fn shards_at_most(mut self, number: u32) -> Self {
        self.options.shards = ShardNumber::AtMost(number);
        self
    }

    /// Cuts coordinates as [`Shards::at_least`] does, so that a shard stays in a processor's cache.
    pub fn shards_at_least(mut self, number: u32) -> Self {
        self.options.shards = ShardNumber::AtLeast(number);
        self
    }

    /// Sets the source of noise, the operating system by default. Use a seeded source in tests and
    /// simulations only.
    pub fn noise(mut self, source: NoiseSource) -> Self {
        self.options.source = source;
        self
    }

    /// Draws the noise of a shard just before its sums are read, not while waiting for them. This
    /// is faster where no operator waits, as in a training loop, because the noise is still in the
    /// processor's cache.
    pub fn draw_late(mut self) -> Self {
        self.options.draw_ahead = false;
        self
    }

    /// Saves encoder states after every epoch that is a multiple of this number, at least 1; 64 by
    /// default.
    pub fn checkpoint_interval(mut self, epochs: u64) -> Self {
        self.options.checkpoint_interval = epochs.max(1);
        self
    }

    /// Continues an earlier run at `first_epoch`, the epoch after the last committed one, with the
    /// encoder states after the last committed one.
    pub fn resume(mut self, first_epoch: u64, states: impl Into<Arc<EncoderStates>>) -> Self {
        (self.options.first_epoch, self.options.states) = (first_epoch, states.into());
        self
    }

    /// Protects entities within these limits: records must pass
    /// [`BoundEntities`](crate::BoundEntities).
    pub fn entities(mut self, limits: EntityLimits) -> Self {
        self.options.entities = Some(limits);
        self
    }

    /// Lets values be missing one by one, as NaN: rows hold an indicator beside each value, so the
    /// mechanism is for twice the columns
    /// ([`Clipper::with_indicators`](hushflow_mechanism::moments::Clipper::with_indicators)).
    pub fn with_indicators(mut self) -> Self {
        self.options.indicators = true;
        self
    }

    /// Counts records in the bins of these histograms beside the moments. A record may have values
    /// after those of its columns, which only histograms use.
    pub fn histograms(mut self, histograms: Vec<Histogram>) -> Self {
        self.histograms = histograms;
        self
    }

    /// Discovers keys into as many slots as there are keys: records pass
    /// [`Discover`](crate::Discover) instead of [`Accumulate`](crate::Accumulate), and their keys
    /// may have any numbers.
    pub fn discover(mut self, discovery: impl Into<Arc<Discovery>>) -> Self {
        self.options.discovery = Some(discovery.into());
        self
    }

    /// Sets the histories of entities after the epochs released before a restart.
    pub fn histories(mut self, histories: impl Into<Arc<Vec<(Entity, EntityHistory)>>>) -> Self {
        self.options.histories = Some(histories.into());
        self
    }

    /// Builds the measurement, with the clipper that the mechanism's sensitivity assumes.
    ///
    /// # Errors
    /// [`MeasurementError`] for parameters that do not fit together.
    pub fn build(self) -> Result<Measurement, MeasurementError> {
        let Self { mechanism, columns, histograms, options } = self;
        if options.first_epoch == 0 {
            return Err(MeasurementError::FirstEpoch);
        }
        let moments = mechanism.moments();
        let clip_norm = moments.parameters().clip_norm;
        let clipper = match &columns {
            Some(bounds) => Clipper::new(bounds, clip_norm)?,
            None => Clipper::unscaled(mechanism.layout().dimension, clip_norm)?,
        };
        let clipper = if options.indicators { clipper.with_indicators()? } else { clipper };
        let clipper = moments.clipper(clipper.with_histograms(histograms))?;
        let (noise, limits) =
            (mechanism.layout().sent, options.entities.and_then(|limits| limits.sent_limit));
        if noise != limits {
            return Err(MeasurementError::Sent { noise, limits });
        }
        if let Some(limits) = options.entities {
            if !covers(&mechanism, limits, options.discovery.as_deref()) {
                let (participation, records) = (mechanism.participation(), mechanism.records_at_once());
                return Err(MeasurementError::Entities { limits, participation, records });
            }
            if options.first_epoch > 1 && options.histories.is_none() {
                return Err(MeasurementError::Histories { first_epoch: options.first_epoch });
            }
        }
        let (keys, layout) = (options.keys, mechanism.layout());
        let slots = options.discovery.as_ref().map(|discovery| discovery.parameters().most);
        if let Some(slots) = slots.filter(|&slots| slots != keys) {
            return Err(MeasurementError::Discovery { slots, keys });
        }
        if slots.is_some() && limits.is_some() {
            return Err(MeasurementError::SentDiscovery);
        }
        let shards = match options.shards {
            ShardNumber::Usual => Shards::of(keys, layout),
            ShardNumber::AtMost(most) => Shards::new(keys, layout, most),
            ShardNumber::AtLeast(least) => Shards::at_least(keys, layout, least),
        };
        let columns = columns.map(|bounds| with_outer_edges(&bounds, &clipper)).unwrap_or_default();
        let id = MeasurementId::of((
            columns.iter().map(|(lower, upper)| [lower.to_bits(), upper.to_bits()]).collect::<Vec<_>>(),
            (keys, shards.number(), options.source.is_private(), options.first_epoch, options.indicators),
            format!("{:?}", (moments.parameters(), options.entities, mechanism.horizon())),
            format!(
                "{:?}",
                (clipper.histograms(), options.discovery.as_ref().map(|found| found.parameters()))
            ),
            (moments.sensitivity().to_bits(), mechanism.is_correlated()),
            moments.noise().get(1).map(|noise| noise.sum_bits),
            // The header of a saved encoder has the fingerprint of its strategy.
            [mechanism.strategies().first(), mechanism.strategies().second()].map(|c| c.encoder(1).save()),
        ));
        let clipper = Arc::new(clipper);
        Ok(Measurement(Arc::new(MeasurementData { id, mechanism, clipper, columns, shards, options })))
    }
}

/// Returns the bounds of all values of a record: of its columns, and the outer edges of values that
/// are only for histograms.
fn with_outer_edges(bounds: &[(f64, f64)], clipper: &Clipper) -> Arc<[(f64, f64)]> {
    let mut all = bounds.to_vec();
    all.resize(clipper.record_width(), (0.0, 1.0));
    for histogram in clipper.histograms().iter().filter(|histogram| histogram.column() >= bounds.len()) {
        let edges = histogram.edges();
        all[histogram.column()] = (edges[0], edges[edges.len() - 1]);
    }
    all.into()
}

/// Parameters of bounding. Equal on every worker, except for the histories.
#[derive(Clone)]
pub(crate) struct BoundSetup {
    pub(crate) limits: EntityLimits,
    /// Whether entities are counted to discover keys.
    pub(crate) discovers: bool,
    /// Whether a record that lacks some values counts in the means of the columns that it has.
    pub(crate) by_column: bool,
    /// Number of columns whose values a record needs to count; those after it are for histograms.
    pub(crate) dimension: usize,
    /// Public bounds of each value, lower and upper, between which means are computed.
    pub(crate) columns: Arc<[(f64, f64)]>,
    /// Histories after the epochs released before a restart, at least of the entities that the
    /// worker owns ([`Entity::owner`]). Empty at the first start.
    pub(crate) histories: Arc<Vec<(Entity, EntityHistory)>>,
    /// The first epoch to release: 1 at the first start.
    pub(crate) first_epoch: u64,
}

/// Parameters of [`Commit`](crate::Commit). Made from the [`Measurement`] or
/// [`Windows`](crate::Windows) of the releases.
#[derive(Clone, Copy)]
pub struct CommitPlan {
    pub(crate) id: MeasurementId,
    pub(crate) shards: u32,
    pub(crate) first_epoch: u64,
}

impl From<&Measurement> for CommitPlan {
    fn from(measurement: &Measurement) -> Self {
        let shards = measurement.shards().number() + u32::from(measurement.discovers());
        let first_epoch = measurement.first_epoch();
        Self { id: measurement.id(), shards, first_epoch }
    }
}

impl From<&Windows> for CommitPlan {
    fn from(windows: &Windows) -> Self {
        Self { id: windows.id(), shards: windows.keys, first_epoch: windows.first_epoch }
    }
}

#[cfg(test)]
pub(crate) mod tests;
