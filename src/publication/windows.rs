//! Window estimates: the releases of a pipeline whose `[release] method` estimates from a whole
//! sample.
//!
//! A window is an epoch, or several. When its last epoch closes, the estimator sees all records of
//! each key at once. The release holds, for each key, the estimate or the reason why there is none.
//! It is committed and published like other releases (`docs/formats.md`); an epoch with which no
//! window ends releases nothing. The ledger is charged once for all windows. A record that is in a
//! single window costs as much as one estimate (parallel composition). Where windows overlap, or
//! entities are protected, the budget is divided ([`window_budget`](super::window_budget)).
//!
//! The estimators are those of [`estimators::mean`](crate::estimators::mean) and
//! [`estimators::covariance`](crate::estimators::covariance). On the same rows they compute what
//! `hushflow mean` and `hushflow covariance` compute.

use std::f64::consts::TAU;
use std::sync::Arc;

use hushflow_estimators::covariance::{self, CovarianceBudget, CovarianceSample};
use hushflow_estimators::mean::{self, Question, Scale};
use hushflow_mechanism::accounting::{MARGIN, Rho};
use hushflow_mechanism::noise::{NoiseGenerator, NoiseSource};
use hushflow_mechanism::release::Numbers;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::windows::{WindowOverlap, WindowSpan};
use hushflow_operators::{EncoderStates, Entity, EntityHistory, WindowEntities, Windows};

use rand::Rng;
use serde_json::{Map, Value};

use super::PublicationError;
use super::report::{self, WindowReport};
use super::window_budget::divided;
use crate::estimates::{Estimate, Plot};
use crate::ledger::Charge;
use crate::pipeline::{PublicParameters, WindowEstimator};

/// Public parameters of window estimates, and the values derived from them.
#[derive(Clone, Debug)]
pub struct WindowPublication {
    parameters: PublicParameters,
    estimator: WindowEstimator,
    private: bool,
    overlap: WindowOverlap,
    estimate: WindowEstimate,
    charge: Charge,
    noise_multiplier: f64,
}

impl WindowPublication {
    /// Makes the publication; `None` if the pipeline publishes moments. `private` is false if a
    /// seeded generator will draw the noise.
    ///
    /// # Errors
    /// [`PublicationError`] names the invalid parameter and the remedy.
    pub fn new(parameters: PublicParameters, private: bool) -> Result<Option<Self>, PublicationError> {
        let Some(estimator) = parameters.estimator.clone() else { return Ok(None) };
        let horizon = parameters.epochs.schedule.horizon();
        if parameters.window.count(horizon) == 0 {
            return Err(PublicationError::NoWindow { span: parameters.window, horizon });
        }
        let (participation, records) = (parameters.participation(), parameters.records_at_once());
        let overlap = WindowOverlap::new(parameters.window, horizon, participation, records);
        let (estimate, charge) = divided(&parameters, &estimator, &overlap, private)?;
        let noise_multiplier = charge.noise_multiplier;
        Ok(Some(Self { parameters, estimator, private, overlap, estimate, charge, noise_multiplier }))
    }

    /// Sets the noise multiplier to that of a log's header.
    pub(super) fn with_noise_multiplier(self, noise_multiplier: f64) -> Self {
        Self { noise_multiplier, ..self }
    }

    /// σ of one Gaussian mechanism that represents all releases, as in the header of the log.
    pub(super) fn noise_multiplier(&self) -> f64 {
        self.noise_multiplier
    }

    /// Checks that the recorded cost matches the parameters.
    pub fn guarantee_holds(&self) -> bool {
        self.noise_multiplier >= self.charge.noise_multiplier * (1.0 - MARGIN / 2.0)
            && self.noise_multiplier <= self.charge.noise_multiplier * (1.0 + 1e-6)
    }

    /// Returns the spending of all windows together.
    pub fn charge(&self) -> Charge {
        Charge { noise_multiplier: self.noise_multiplier, ..self.charge.clone() }
    }

    /// Returns the public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        &self.parameters
    }

    /// Returns the estimator of every window.
    pub fn estimator(&self) -> &WindowEstimator {
        &self.estimator
    }

    /// Returns which epochs a window contains, and when windows end.
    pub fn span(&self) -> WindowSpan {
        self.parameters.window
    }

    /// Returns the overlap of the windows that contain a unit, which determines their joint cost.
    pub fn overlap(&self) -> &WindowOverlap {
        &self.overlap
    }

    /// Whether the releases are private: false if a seeded generator drew the noise.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Returns the windows from `first_epoch` on, with the rows kept from earlier epochs.
    pub fn windows(
        &self,
        first_epoch: u64,
        checkpoint_interval: u64,
        states: EncoderStates,
        histories: Vec<(Entity, EntityHistory)>,
    ) -> Windows {
        let parameters = &self.parameters;
        let entities = parameters.entity.as_ref().map(|entity| WindowEntities {
            limits: entity.limits,
            bounds: bounds(parameters).into(),
            histories: Arc::new(histories),
        });
        Windows {
            columns: parameters.columns.len(),
            keys: parameters.keys(),
            first_epoch,
            checkpoint_interval,
            span: parameters.window,
            entities,
            states: Arc::new(states),
        }
    }

    /// Returns the estimate of every window with all its parameters.
    pub fn window_estimate(&self) -> &WindowEstimate {
        &self.estimate
    }

    /// Returns the estimates in the release of an epoch, key by key; empty if no window ends with
    /// it. `None` if the values are malformed.
    pub fn read(&self, epoch: u64, mut values: &[i128]) -> Option<Vec<Arc<dyn Estimate>>> {
        let span = self.span();
        if !span.ends_at(epoch) {
            return values.is_empty().then(Vec::new);
        }
        let columns: Arc<[String]> =
            self.parameters.columns.iter().map(|column| column.name.clone()).collect();
        let window = |_| {
            let mut fields = self.read_window(&columns, &mut values)?;
            if !span.is_each_epoch() {
                fields.insert("first_epoch".into(), span.first_epoch(epoch).into());
            }
            let (columns, is_covariance) = (Arc::clone(&columns), self.is_covariance());
            Some(Arc::new(WindowReport { columns, is_covariance, fields }) as Arc<dyn Estimate>)
        };
        let windows = (0..self.parameters.keys()).map(window).collect::<Option<_>>()?;
        values.is_empty().then_some(windows)
    }

    pub(super) fn is_covariance(&self) -> bool {
        matches!(self.estimator, WindowEstimator::Covariance { .. })
    }

    pub(super) fn read_window(&self, columns: &[String], values: &mut &[i128]) -> Option<Map<String, Value>> {
        Some(match self.is_covariance() {
            true => report::of_window_covariance(Numbers::read(values)?, columns),
            false => {
                let (rows, answer) = Numbers::read(values)?;
                report::of_window_mean(rows, answer)
            }
        })
    }

    /// Returns the chart of the page: the mean or variance of each column.
    pub fn plot(&self) -> Plot {
        let columns: Vec<String> = self.parameters.columns.iter().map(|column| column.name.clone()).collect();
        report::plot(&columns, self.is_covariance())
    }

    /// Describes the estimator in one line.
    pub fn about(&self) -> &'static str {
        match &self.estimator {
            WindowEstimator::Mean { method, .. } => method.about(),
            WindowEstimator::Covariance { method, .. } => method.about(),
        }
    }

    /// Returns these windows with the estimate of other ones, for audits. The charge does not cover
    /// it.
    #[must_use]
    pub fn with_estimate_of(&self, others: &Self) -> Self {
        Self { estimate: others.estimate.clone(), ..self.clone() }
    }

    /// Returns the least number of rows of a window that is not refused as too small; `None` if the
    /// method has no such limit.
    pub fn rows_needed(&self) -> Option<usize> {
        match &self.estimate {
            WindowEstimate::Mean { question, columns } => mean::rows_needed(*columns, question).ok(),
            WindowEstimate::Covariance { neighbours: Neighbours::ReplaceOneInPlace, .. } => Some(2),
            WindowEstimate::Covariance { .. } => None,
        }
    }

    /// Returns the report of a window of `rows` made-up rows. Its noise forecasts that of a window
    /// of as many rows. The forecast reads no data and spends nothing.
    pub fn forecast(&self, rows: usize) -> Option<Map<String, Value>> {
        let columns: Vec<String> = self.parameters.columns.iter().map(|column| column.name.clone()).collect();
        let mut generator = NoiseSource::Seeded(0).generator(0, 0).ok()?;
        let numbers = self.estimate.numbers(&self.made_up_rows(rows), &mut generator);
        self.read_window(&columns, &mut &numbers[..])
    }

    /// Returns rows that are normal about the middle of the bounds, with the stated scale, or a
    /// sixth of the width of the bounds. They are always the same.
    pub(super) fn made_up_rows(&self, rows: usize) -> Vec<f64> {
        let scales = match &self.estimator {
            WindowEstimator::Mean { scale: Scale::Known(scales), .. } => Some(scales),
            _ => None,
        };
        let Ok(mut generator) = NoiseSource::Seeded(0).generator(0, 1) else { return Vec::new() };
        let mut normal = || {
            let mut uniform = || ((generator.next_u64() >> 11) as f64 + 0.5) * 0.5_f64.powi(53);
            (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()
        };
        let bounds = bounds(&self.parameters);
        let mut values = Vec::with_capacity(rows.saturating_mul(bounds.len()));
        for _ in 0..rows {
            for (at, &(lower, upper)) in bounds.iter().enumerate() {
                let scale = scales.and_then(|scales| scales.get(at)).copied();
                let scale = scale.unwrap_or((upper - lower) / 6.0);
                values.push(lower + (upper - lower) / 2.0 + scale * normal());
            }
        }
        values
    }
}

/// The estimate of a window with all its parameters.
#[derive(Clone, Debug)]
pub enum WindowEstimate {
    /// A robust mean.
    Mean {
        /// The estimate.
        question: Question,
        /// Number of columns of a record.
        columns: usize,
    },
    /// A covariance.
    Covariance {
        /// The method.
        method: covariance::CovarianceMethod,
        /// Share of the budget for a mean to centre by.
        centre: Option<f64>,
        /// ρ of zCDP of one window, for one record.
        rho: Rho,
        /// The neighbour relation of the guarantee.
        neighbours: Neighbours,
        /// Bounds of each column.
        bounds: Vec<(f64, f64)>,
    },
}

impl WindowEstimate {
    /// Returns the numbers to release for a window with these rows. The command computes the same
    /// from the same rows.
    pub fn numbers(&self, rows: &[f64], generator: &mut NoiseGenerator) -> Vec<i128> {
        let mut numbers = Vec::new();
        match self {
            Self::Mean { question, columns } => {
                let answer = mean::estimate(rows, *columns, question, generator);
                (rows.len() / (*columns).max(1), answer).write(&mut numbers);
            }
            Self::Covariance { method, centre, rho, neighbours, bounds } => {
                let sample = CovarianceSample::new(bounds, rows, *neighbours);
                let estimate = sample.and_then(|sample| {
                    method.estimate(&sample, *centre, CovarianceBudget::new(*rho), generator)
                });
                estimate.write(&mut numbers);
            }
        }
        numbers
    }
}

/// Returns the bounds of each column, lower and upper.
pub(super) fn bounds(parameters: &PublicParameters) -> Vec<(f64, f64)> {
    parameters.columns.iter().map(|column| (column.lower, column.upper)).collect()
}
