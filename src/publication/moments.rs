//! A publication of moments: the mechanism, its noise, and the views of its releases.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::pld::DominatingPair;
use hushflow_mechanism::accounting::{Delta, Epsilon, MARGIN, gaussian};
use hushflow_mechanism::discovery::Discovery;
use hushflow_mechanism::epochs::{CountSchedule, Schedule};
use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{Clipper, Histogram, HistogramError, Layout};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::release::UNREAD_COUNT;
use hushflow_mechanism::strategy::{StrategyError, build_chosen};
use hushflow_mechanism::view::{View, ViewNoise, noise_correlations};
use hushflow_mechanism::workload::{Decay, Workload};
use hushflow_operators::{FixedMeasurement, Measurement};
use serde::{Deserialize, Serialize};

use super::training::{gaussian_cover, noise_progress, random_batches};
use super::{
    ChosenStrategies, DiscoverySetting, Grid, Publication, PublicationError, check_width, guarantee,
};
use crate::estimates::{self, ColumnScales, ScaledView};
use crate::histogram::of_records;
use crate::ledger::Charge;
use crate::pipeline::{PublicParameters, Release, bounds_by_key};
use crate::state::PublicHeader;
use crate::strategies::SearchProgress;

/// Noise and strategy of a log, determined once and then fixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// σ of one Gaussian mechanism of sensitivity 1.
    pub noise_multiplier: f64,
    /// The strategies that run.
    pub strategies: ChosenStrategies,
    /// The integers that are released.
    pub grid: Grid,
}

/// Public parameters and the values derived from them.
#[derive(Clone)]
pub struct MomentPublication {
    parameters: PublicParameters,
    private: bool,
    calibration: Calibration,
    clipper: Arc<Clipper>,
    /// One for each key if keys have bounds of their own, otherwise a single one.
    key_scales: Vec<ColumnScales>,
    mechanism: Arc<MatrixMechanism>,
    /// Noise levels of existing views, shared by views of the same workload.
    levels: Arc<Mutex<Vec<Weak<ViewNoise>>>>,
    /// The pair that dominates a step or a pass of random batches, once it is needed.
    pub(super) dominating: Arc<OnceLock<DominatingPair>>,
}

impl MomentPublication {
    /// Calibrates the noise to the guarantee, for strategies that their names determine. `private`
    /// is false if a seeded generator will draw the noise.
    ///
    /// # Errors
    /// [`PublicationError`] names the invalid parameter and the remedy.
    pub fn calibrate(parameters: PublicParameters, private: bool) -> Result<Self, PublicationError> {
        let chosen = ChosenStrategies::named(&parameters.release);
        Self::calibrate_chosen(parameters, chosen, private, &mut |_| ())
    }

    /// Calibrates the noise to the guarantee, for the strategies that [`chosen`](super::chosen)
    /// returned for the parameters. For random batches that is a search, which reports to
    /// `progress`.
    ///
    /// # Errors
    /// As [`calibrate`](Self::calibrate).
    pub fn calibrate_chosen(
        parameters: PublicParameters,
        chosen: ChosenStrategies,
        private: bool,
        progress: &mut dyn FnMut(&SearchProgress),
    ) -> Result<Self, PublicationError> {
        refuse_windows(&parameters)?;
        let (epsilon, delta) = guarantee_of_noise(&parameters)?;
        let near = gaussian::noise_multiplier(epsilon, delta).value();
        let calibrated = |grid| -> Result<_, PublicationError> {
            let mechanism = mechanism(&parameters, &chosen, near, grid)?;
            let noise_multiplier = mechanism.moments().calibrated(epsilon, delta, cells(&parameters))?;
            let of_keys = multiplier_of_keys(&parameters, noise_multiplier);
            Ok((mechanism.with_noise_multiplier(of_keys)?, noise_multiplier))
        };
        let ((mechanism, noise_multiplier), grid) = match random_batches(&parameters) {
            Some((batches, run)) => {
                // A record must not move steps in which it does not take part: no rounding.
                let mechanism = mechanism(&parameters, &chosen, near, Grid::Exact)?;
                let report = &mut noise_progress(&chosen, epsilon, progress);
                let found = batches.calibrated(&mechanism, run, (epsilon, delta), report)?.unwrap_or(near);
                ((mechanism.with_noise_multiplier(found)?, found), Grid::Exact)
            }
            None => Grid::choose(calibrated, |(mechanism, _)| mechanism.moments().rounding_share())?,
        };
        let calibration = Calibration { noise_multiplier, strategies: chosen, grid };
        let publication = Self::new(parameters, mechanism, calibration, private)?;
        // A stated threshold may be too low for this noise.
        publication.discovery()?;
        Ok(publication)
    }

    /// Reads the publication from the header of a public log.
    ///
    /// # Errors
    /// [`PublicationError::Header`], [`PublicationError::Windows`], or why its parameters are
    /// invalid.
    pub fn from_header(header: &PublicHeader) -> Result<Self, PublicationError> {
        Publication::from_header(header)?.into_moments()
    }

    /// Makes the publication of a log with this noise and strategy.
    pub(super) fn calibrated(
        parameters: PublicParameters,
        calibration: Calibration,
        private: bool,
    ) -> Result<Self, PublicationError> {
        let Calibration { noise_multiplier, strategies, grid } = &calibration;
        let mechanism = mechanism(&parameters, strategies, *noise_multiplier, *grid)?;
        Self::new(parameters, mechanism, calibration, private)
    }

    /// Continues with the noise and the strategy of an earlier run, which are fixed for the whole
    /// log.
    ///
    /// # Errors
    /// [`PublicationError`] if there is no such noise or strategy.
    pub fn with_calibration(self, calibration: Calibration) -> Result<Self, PublicationError> {
        if calibration == self.calibration {
            return Ok(self);
        }
        Self::calibrated(self.parameters, calibration, self.private)
    }

    /// Returns the noise and strategy of the log.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    fn new(
        parameters: PublicParameters,
        mechanism: MatrixMechanism,
        calibration: Calibration,
        private: bool,
    ) -> Result<Self, PublicationError> {
        // A key's records before its discovery enter its slot in one epoch.
        let together =
            if parameters.discovery().is_some() { parameters.epochs.schedule.horizon() } else { 1 };
        if let Schedule::ByCount(CountSchedule { records_per_epoch, .. }) = parameters.epochs.schedule
            // A batch that is drawn at random may have all rows.
            && let of_batch = random_batches(&parameters).map_or(0, |(batches, _)| batches.records)
            && let rows = records_per_epoch.saturating_mul(together).max(of_batch)
            && let Some(most) = mechanism.most_records().filter(|&most| most < rows)
        {
            return Err(PublicationError::TooLong { rows, most });
        }
        let clip_norm = mechanism.moments().parameters().clip_norm;
        let clipper_of = |bounds: &[(f64, f64)]| -> Result<Clipper, PublicationError> {
            let clipper = match &parameters.training {
                Some(_) => Clipper::unscaled(bounds.len(), clip_norm)?,
                None => Clipper::new(bounds, clip_norm)?,
            };
            let clipper = if parameters.by_column() { clipper.with_indicators()? } else { clipper };
            let histograms = histograms(&parameters)?;
            Ok(mechanism.moments().clipper(clipper.with_histograms(histograms))?)
        };
        let key_scales = bounds_by_key(&parameters.columns, parameters.key.as_ref())
            .iter()
            .map(|bounds| {
                let clipper = clipper_of(bounds)?;
                let (centres, half_widths) = (clipper.centres().to_vec(), clipper.half_widths().to_vec());
                Ok(ColumnScales { centres, half_widths })
            })
            .collect::<Result<_, PublicationError>>()?;
        let bounds: Vec<_> = parameters.columns.iter().map(|column| (column.lower, column.upper)).collect();
        let clipper = Arc::new(clipper_of(&bounds)?);
        let mechanism = Arc::new(mechanism);
        let (levels, dominating) = (Arc::default(), Arc::default());
        Ok(MomentPublication {
            parameters,
            private,
            calibration,
            clipper,
            key_scales,
            mechanism,
            levels,
            dominating,
        })
    }

    /// Returns the spending of all its releases.
    ///
    /// # Errors
    /// [`PublicationError`] if its parameters give no guarantee.
    pub fn charge(&self) -> Result<Charge, PublicationError> {
        let parameters = &self.parameters;
        let sampled = self.sampled()?;
        let (noise_multiplier, total_variation) = match &sampled {
            None => (self.calibration.noise_multiplier, self.total_variation()?),
            Some(sampled) => gaussian_cover(parameters, sampled)?,
        };
        Ok(Charge {
            pipeline: parameters.name.clone(),
            method: parameters.release.method.to_string(),
            unit: parameters.adjacency().unit,
            within: parameters.entity.as_ref().map(|entity| entity.within.clone()).unwrap_or_default(),
            neighbours: parameters.privacy.neighbours,
            private: self.private,
            epsilon: parameters.privacy.epsilon,
            delta: parameters.privacy.delta,
            noise_multiplier,
            total_variation,
            epochs: self.horizon(),
            rho: None,
            pure: None,
            sampled,
        })
    }

    /// Returns whether the noise multiplier in use gives the stated guarantee. It may be below the
    /// current calibration by half of the calibration's margin. This allowance is larger than
    /// rounding differences between versions.
    ///
    /// # Errors
    /// [`PublicationError`] if no noise gives the guarantee.
    pub fn guarantee_holds(&self) -> Result<bool, PublicationError> {
        let (epsilon, delta) = guarantee_of_noise(&self.parameters)?;
        // Calibration leaves a reserve for differences between versions.
        if let Some(spent) = self.spent_by_random_batches(None, delta)? {
            return Ok(spent <= epsilon.value());
        }
        let needed = self.mechanism.moments().calibrated(epsilon, delta, cells(&self.parameters))?;
        Ok(self.calibration.noise_multiplier >= needed * (1.0 - MARGIN / 2.0))
    }

    /// Returns the bound of the distance of all noise from its ideal: the share of δ that
    /// calibration reserved.
    ///
    /// # Errors
    /// [`PublicationError`] if no noise gives the guarantee.
    pub fn discreteness(&self) -> Result<Discreteness, PublicationError> {
        let (moments, cells) = (self.mechanism.moments(), cells(&self.parameters));
        if random_batches(&self.parameters).is_some() {
            return Ok(moments.drawn_discreteness(cells)?);
        }
        let (epsilon, delta) = guarantee_of_noise(&self.parameters)?;
        Ok(moments.discreteness(epsilon, delta, cells)?)
    }

    /// Returns the total variation distance of all releases from a Gaussian mechanism: the distance
    /// of the noise, plus that of the discovery of keys.
    pub(super) fn total_variation(&self) -> Result<f64, PublicationError> {
        let of_keys = self.discovery()?.map_or(0.0, |discovery| discovery.total_variation());
        Ok((self.discreteness()?.total_variation() + of_keys) * (1.0 + MARGIN))
    }

    /// Returns noise and thresholds of the discovery of keys; `None` if keys are listed.
    ///
    /// # Errors
    /// [`PublicationError::Discovery`] if its parameters are invalid.
    pub fn discovery(&self) -> Result<Option<Discovery>, PublicationError> {
        let setting = DiscoverySetting::of(&self.parameters);
        setting.map(|setting| setting.discovery(self.calibration.noise_multiplier)).transpose()
    }

    /// Returns the public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        &self.parameters
    }

    /// Whether the noise is private. A seeded generator gives no protection.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Returns the number of keys; 1 without keys.
    pub fn keys(&self) -> u32 {
        self.parameters.keys()
    }

    /// Returns the name of a key; `all` without keys.
    pub fn key_name(&self, key: u32) -> &str {
        self.parameters.key_name(key)
    }

    /// Returns the number of epochs.
    pub fn horizon(&self) -> u64 {
        self.parameters.epochs.schedule.horizon()
    }

    /// Positions of one key's coordinates in a release.
    pub fn layout(&self) -> Layout {
        self.mechanism.layout()
    }

    /// Returns the measurement that the operators take: bounds, keys, entities and noise of this
    /// publication. It can still [resume](FixedMeasurement::resume) after a restart.
    ///
    /// # Errors
    /// [`PublicationError::Noise`] unless `source` is private if the publication is, and seeded if
    /// it is not.
    pub fn measurement(&self, source: NoiseSource) -> Result<FixedMeasurement, PublicationError> {
        if source.is_private() != self.private {
            return Err(PublicationError::Noise { private: self.private });
        }
        let bounds: Arc<[_]> =
            self.parameters.columns.iter().map(|column| (column.lower, column.upper)).collect();
        let measurement = match &self.parameters.training {
            Some(_) => Measurement::of_vectors(self.mechanism.clone()),
            None => Measurement::of_columns(self.mechanism.clone(), bounds),
        };
        let measurement = measurement.keys(self.keys()).noise(source);
        let measurement = measurement.histograms(self.clipper.histograms().to_vec());
        let measurement = match self.discovery()? {
            Some(discovery) => measurement.discover(discovery),
            None => measurement,
        };
        let measurement =
            if self.parameters.by_column() { measurement.with_indicators() } else { measurement };
        Ok(match &self.parameters.entity {
            None => measurement.fixed(),
            Some(entity) => measurement.entities(entity.limits).fixed(),
        })
    }

    /// Bounds and clip norm.
    pub fn clipper(&self) -> &Arc<Clipper> {
        &self.clipper
    }

    /// Strategies, sensitivity and noise.
    pub fn mechanism(&self) -> &Arc<MatrixMechanism> {
        &self.mechanism
    }

    /// Makes a view from the first epoch on.
    pub fn view(&self, workload: &Workload) -> View {
        View::sharing(&self.mechanism, &self.levels(workload), self.keys())
    }

    /// Returns the noise levels of a workload. Views of the workload share them as long as a view
    /// or this value exists.
    pub fn levels(&self, workload: &Workload) -> Arc<ViewNoise> {
        let mut known = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|levels| levels.strong_count() > 0);
        if let Some(found) =
            known.iter().filter_map(Weak::upgrade).find(|levels| levels.workload() == workload)
        {
            return found;
        }
        let levels = Arc::new(ViewNoise::new(&self.mechanism, workload, self.horizon()));
        known.push(Arc::downgrade(&levels));
        levels
    }

    /// Returns the correlations of the noise of first moments under two averages, from the first
    /// epoch on.
    pub fn noise_correlations(&self, decays: [Decay; 2]) -> impl Iterator<Item = f64> + Send + use<> {
        noise_correlations(decays.map(|decay| self.levels(&Workload::Adam(decay))), decays)
    }

    /// Returns the view with the names and scales of this log's columns.
    pub fn scaled_view(&self, view: &estimates::EstimateView) -> Arc<ScaledView> {
        Arc::new(ScaledView {
            view: view.clone(),
            columns: self.parameters.columns.iter().map(|column| column.name.clone()).collect(),
            key_scales: self.key_scales.clone(),
            indicator_step: self.clipper.indicator_step(),
            keyed_bounds: self.parameters.columns.iter().map(|column| !column.bounds.is_empty()).collect(),
            histograms: self.parameters.histograms.clone(),
            bins_every_record: self.bins_every_record(),
        })
    }

    /// Whether each record that counts has a bin in every histogram of a column, because it can't
    /// lack a value.
    fn bins_every_record(&self) -> bool {
        let PublicParameters { privacy, .. } = &self.parameters;
        !self.parameters.by_column() && !privacy.neighbours.counts_are_public()
    }

    /// Whether sums over keys are meaningful: not for the method `pp`, nor if keys have bounds of
    /// their own or are discovered.
    pub fn has_totals(&self) -> bool {
        let PublicParameters { release, .. } = &self.parameters;
        let adds_up = !self.parameters.has_key_bounds() && self.parameters.discovery().is_none();
        release.method != Method::Pp && adds_up
    }

    /// Converts a density to the units of the columns.
    ///
    /// # Errors
    /// [`DensityError`] if numbers leave the range of floating point.
    pub fn to_units(&self, density: &Density) -> Result<Density, DensityError> {
        density.to_units(self.clipper.half_widths(), self.clipper.centres())
    }
}

fn refuse_windows(parameters: &PublicParameters) -> Result<(), PublicationError> {
    match parameters.estimator.clone() {
        None => Ok(()),
        Some(estimator) => Err(PublicationError::Windows(Box::new(estimator))),
    }
}

fn strategies(parameters: &PublicParameters, chosen: &ChosenStrategies) -> Result<Strategies, StrategyError> {
    let PublicParameters { release, epochs, .. } = parameters;
    let build = |chosen, workload| build_chosen(chosen, workload, Some(epochs.schedule.horizon()));
    let first = build(&chosen.strategy, &release.workload)?;
    let Some(second) = &chosen.second_strategy else { return Ok(Strategies::shared(first)) };
    let workload = release.second.as_ref().map_or(&release.workload, |second| &second.workload);
    Ok(Strategies::separate(first, build(second, workload)?))
}

fn mechanism(
    parameters: &PublicParameters,
    chosen: &ChosenStrategies,
    noise_multiplier: f64,
    grid: Grid,
) -> Result<MatrixMechanism, PublicationError> {
    let privacy = &parameters.privacy;
    let (layout, clip_norm) = vectors(parameters)?;
    // Check before any allocation: the header of a log may be forged.
    check_width(parameters.keys().into(), layout)?;
    // No reader needs the number of rows in a step, so a private count gets little of the budget.
    let is_unread = parameters.training.is_some() && !privacy.neighbours.counts_are_public();
    let count_weight = is_unread.then(|| UNREAD_COUNT.sqrt() * clip_norm);
    let moments = MomentParameters {
        method: parameters.release.method,
        layout,
        neighbours: privacy.neighbours,
        clip_norm,
        noise_multiplier: multiplier_of_keys(parameters, noise_multiplier),
        second_moment_weight: privacy.second_moment_weight,
        count_weight,
        bin_weight: privacy.histogram_weight,
    };
    let strategies = match (strategies(parameters, chosen)?, grid) {
        (strategies, Grid::Exact) => strategies,
        (strategies, Grid::Rounded) => strategies.rounded(),
    };
    let is_single = parameters.entity.is_none() && parameters.training.is_none();
    let participation = if is_single { Participation::Single } else { parameters.participation() };
    let horizon = parameters.epochs.schedule.horizon();
    let mechanism = MatrixMechanism::with_participation(moments, strategies, participation, horizon)?;
    Ok(mechanism.for_records_at_once(parameters.records_at_once())?)
}

/// Returns the layout and the clip norm of the vectors whose moments are released: of records, and
/// of their indicators if values may be missing one by one.
fn vectors(parameters: &PublicParameters) -> Result<(Layout, f64), PublicationError> {
    let PublicParameters { columns, privacy, release: Release { method, .. }, .. } = parameters;
    if parameters.by_column() && !method.takes_missing_values() {
        return Err(PublicationError::ByColumn(*method));
    }
    let sent = parameters.entity.as_ref().and_then(|entity| entity.limits.sent_limit);
    let layout =
        Layout { sent, bins: parameters.bins(), ..Layout::new(columns.len(), privacy.second_moments) };
    let clip_norm = privacy.clip_norm;
    Ok(if parameters.by_column() { with_indicators(layout, clip_norm) } else { (layout, clip_norm) })
}

/// Returns the histograms of the values of a record.
fn histograms(parameters: &PublicParameters) -> Result<Vec<Histogram>, HistogramError> {
    of_records(&parameters.histograms, &parameters.column_names())
}

/// Returns the layout and the clip norm of records with an indicator for each value.
pub fn with_indicators(layout: Layout, clip_norm: f64) -> (Layout, f64) {
    let layout = Layout { dimension: 2 * layout.dimension, ..layout };
    (layout, Clipper::norm_with_indicators(clip_norm))
}

/// Number of pairs of key and epoch.
fn cells(parameters: &PublicParameters) -> f64 {
    parameters.epochs.schedule.horizon() as f64 * f64::from(parameters.keys())
}

/// Returns the noise multiplier of the moments of keys, if that of all releases together is
/// `noise_multiplier`.
fn multiplier_of_keys(parameters: &PublicParameters, noise_multiplier: f64) -> f64 {
    let setting = DiscoverySetting::of(parameters);
    setting.map_or(noise_multiplier, |setting| setting.multiplier_of_moments(noise_multiplier))
}

/// Returns ε, and the part of δ for which noise is calibrated.
fn guarantee_of_noise(parameters: &PublicParameters) -> Result<(Epsilon, Delta), PublicationError> {
    let (epsilon, delta) = guarantee(parameters)?;
    let of_noise = DiscoverySetting::of(parameters).map(|setting| setting.delta_of_noise(epsilon, delta));
    Ok((epsilon, of_noise.unwrap_or(Ok(delta))?))
}
