//! Window estimates: the releases of a pipeline whose `[release] method` estimates from a whole
//! sample.
//!
//! Every epoch is a window. When it closes, the estimator sees all records of each key at once. The
//! release holds, for each key, the estimate or the reason why there is none. It is committed and
//! published like other releases (`docs/formats.md`). A window leaves no state. A record and its
//! neighbour are in the same single window, so all windows together cost as much as one (parallel
//! composition), and the ledger is charged once.
//!
//! The estimators are those of [`estimators::mean`](crate::estimators::mean) and
//! [`estimators::covariance`](crate::estimators::covariance). Their results equal those of
//! `hushflow mean` and `hushflow covariance` on the same rows.

use std::sync::Arc;

use hushflow_estimators::covariance::{self, CovarianceBudget, CovarianceSample};
use hushflow_estimators::mean::{self, Question};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, MARGIN, Rho};
use hushflow_mechanism::noise::{NoiseGenerator, NoiseSource};
use hushflow_mechanism::release::Numbers;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_operators::Windows;

use super::report::{self, WindowReport};
use super::{PublicationError, guarantee};
use crate::estimates::Estimate;
use crate::ledger::Charge;
use crate::pipeline::{PublicParameters, WindowEstimator};

/// Public parameters of window estimates, and the values derived from them.
#[derive(Clone, Debug)]
pub struct WindowPublication {
    parameters: PublicParameters,
    estimator: WindowEstimator,
    private: bool,
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
        let charge = charge(&parameters, &estimator, private)?;
        let noise_multiplier = charge.noise_multiplier;
        Ok(Some(Self { parameters, estimator, private, charge, noise_multiplier }))
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

    /// False if a seeded generator drew the noise: such releases protect nobody.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Returns the windows, beginning with `first_epoch`.
    pub fn windows(&self, first_epoch: u64, checkpoint_interval: u64) -> Windows {
        let (columns, keys) = (self.parameters.columns.len(), self.parameters.keys());
        Windows { columns, keys, first_epoch, checkpoint_interval }
    }

    /// Returns the estimate of every window with all its parameters.
    ///
    /// # Errors
    /// [`PublicationError`] for an unusable budget.
    pub fn window_estimate(&self) -> Result<WindowEstimate, PublicationError> {
        let parameters = &self.parameters;
        let (epsilon, delta) = guarantee(parameters)?;
        let columns = parameters.columns.len();
        Ok(match &self.estimator {
            WindowEstimator::Mean { method, corruption, scale, range } => {
                let (method, corruption, scale, range) = (*method, *corruption, scale.clone(), *range);
                let question = Question { method, epsilon, delta, corruption, scale, range };
                WindowEstimate::Mean { question, columns }
            }
            WindowEstimator::Covariance { method, centre } => WindowEstimate::Covariance {
                method: *method,
                centre: *centre,
                rho: rho(*method, columns, (epsilon, delta))?,
                neighbours: parameters.privacy.neighbours,
                bounds: parameters.columns.iter().map(|column| (column.lower, column.upper)).collect(),
            },
        })
    }

    /// Returns the estimates in a release, key by key; `None` if the values are malformed.
    pub fn read(&self, mut values: &[i128]) -> Option<Vec<Arc<dyn Estimate>>> {
        let columns: Arc<[String]> =
            self.parameters.columns.iter().map(|column| column.name.clone()).collect();
        let is_covariance = matches!(self.estimator, WindowEstimator::Covariance { .. });
        let window = |_| {
            let fields = match is_covariance {
                true => report::of_window_covariance(Numbers::read(&mut values)?, &columns),
                false => {
                    let (rows, answer) = Numbers::read(&mut values)?;
                    report::of_window_mean(rows, answer)
                }
            };
            let columns = Arc::clone(&columns);
            Some(Arc::new(WindowReport { columns, is_covariance, fields }) as Arc<dyn Estimate>)
        };
        let windows = (0..self.parameters.keys()).map(window).collect::<Option<_>>()?;
        values.is_empty().then_some(windows)
    }
}

/// The estimate of a window with all its parameters.
#[derive(Clone, Debug)]
pub enum WindowEstimate {
    /// A robust mean.
    Mean {
        /// What is estimated.
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
        /// ρ of zCDP, for all windows together.
        rho: Rho,
        /// The neighbour relation of the guarantee.
        neighbours: Neighbours,
        /// Bounds of each column.
        bounds: Vec<(f64, f64)>,
    },
}

impl WindowEstimate {
    /// Returns the numbers to release for a window with these rows. The command gives the same
    /// result on the same rows.
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

fn rho(
    method: covariance::CovarianceMethod,
    columns: usize,
    promise: (Epsilon, Delta),
) -> Result<Rho, AccountingError> {
    method.rho_for(columns, promise).ok_or(AccountingError::Rho(0.0))
}

/// Cost of one window, which is also the cost of all windows together.
fn charge(
    parameters: &PublicParameters,
    estimator: &WindowEstimator,
    private: bool,
) -> Result<Charge, PublicationError> {
    let (epsilon, delta) = guarantee(parameters)?;
    let name = parameters.name.clone();
    // Only its privacy matters here.
    let source = if private { NoiseSource::System } else { NoiseSource::Seeded(0) };
    let window = match estimator {
        WindowEstimator::Mean { method, range, .. } => {
            Charge::of_mean(name, (*method, range.is_some()), (epsilon, delta), source)?
        }
        WindowEstimator::Covariance { method, .. } => {
            let columns = parameters.columns.len();
            let spending = method.spending(columns, rho(*method, columns, (epsilon, delta))?)?;
            let neighbours = parameters.privacy.neighbours;
            Charge::of_covariance((name, *method), &spending, (epsilon, delta), neighbours, source)?
        }
    };
    Ok(Charge { epochs: parameters.epochs.schedule.horizon(), ..window })
}
