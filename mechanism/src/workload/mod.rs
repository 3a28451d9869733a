//! Workloads A: the weighted sums over epochs to estimate.
//!
//! Every named workload is a lower-triangular Toeplitz matrix whose rows may have divisors:
//! `A[t,i] = toeplitz(t−i) / divisor(t)`. Any other matrix can be given entry by entry. Steps count
//! from 1, as in the papers.

mod state;
#[cfg(test)]
mod tests;

pub use state::MatrixWorkload;
pub use state::WorkloadState;

use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU64, str::FromStr, sync::Arc};
use thiserror::Error;

/// A lower-triangular workload A with one row per epoch.
///
/// Text and serialised form are as on the command line; a matrix is serialised with its rows:
///
/// ```
/// use hushflow_mechanism::workload::Workload;
///
/// let workload: Workload = "window:10".parse()?;
/// assert_eq!(workload.coefficient(12, 3), 0.1);
/// assert_eq!(workload.coefficient(12, 2), 0.0);
/// assert_eq!(workload.to_string(), "window:10");
/// # Ok::<(), hushflow_mechanism::workload::WorkloadError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WorkloadForm", into = "WorkloadForm")]
#[non_exhaustive]
pub enum Workload {
    /// `A[t,i] = 1`: running sums, whose mean is the mean of all records so far. The default of
    /// releases, forecasts and views.
    #[default]
    Prefix,
    /// `A[t,i] = 1/t`: running averages.
    Average,
    /// `A[t,i] = β^(t−i)`.
    Exponential(Decay),
    /// `A[t,i] = 1/k` for the last k epochs.
    Window(NonZeroU64),
    /// `A[t,i] = 1/min(t,k)` for the last k epochs: a window whose first rows have smaller
    /// divisors.
    WindowMean(NonZeroU64),
    /// `A[t,i] = (1 − β^(t−i+1))/(1 − β)`: running sums of heavy-ball momentum.
    Momentum(Decay),
    /// `A[t,i] = (1 − β)β^(t−i)/(1 − β^t)`: the exponential average with the bias correction of
    /// Adam.
    Adam(Decay),
    /// Given entry by entry.
    Matrix(Arc<MatrixWorkload>),
}

/// The decay β of a workload per step: above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay(f64);

/// Errors of workloads and of the rows given to them.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The text has no known form.
    #[error(
        "unknown workload `{found}`; expected `prefix`, `average`, `exponential:β`, `window:k`, `window-mean:k`, \
         `momentum:β` or `adam:β`, for example `exponential:0.9` or `window:10`"
    )]
    Unknown {
        /// The rejected text.
        found: String,
    },
    /// The decay is not a number between 0 and 1.
    #[error(
        "the decay of a workload is `{found}`; expected a number above 0 and below 1, for example `exponential:0.9`"
    )]
    Decay {
        /// The rejected value.
        found: String,
    },
    /// The length of a window is not a positive integer.
    #[error(
        "the length of a window is `{found}`; expected a whole number of epochs, at least 1, \
         for example `window:10`"
    )]
    Window {
        /// The rejected value.
        found: String,
    },
    /// A matrix cannot be read from its name alone.
    #[error(
        "the workload `matrix:{found}` names a file, which is not read here: name it in a pipeline file, or in \
         --workload of plan, optimize or tail"
    )]
    MatrixFile {
        /// The text after `matrix:`.
        found: String,
    },
    /// A matrix is empty or not square.
    #[error(
        "a workload matrix needs a row and a column for every epoch, at least one; found {rows} rows and {columns} columns"
    )]
    Shape {
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        columns: usize,
    },
    /// An entry of a matrix is NaN or infinite.
    #[error("row {row}, column {column} of the workload matrix is not finite; expected a number")]
    NotFinite {
        /// From 1.
        row: usize,
        /// From 1.
        column: usize,
    },
    /// A matrix has an entry above the diagonal: it would use future epochs.
    #[error(
        "row {row}, column {column} of the workload matrix is not 0: epoch {row} can't use what epoch {column} will bring; \
         expected zeros above the diagonal"
    )]
    NotCausal {
        /// From 1.
        row: usize,
        /// From 1.
        column: usize,
    },
    /// The epoch is past the last row of a matrix.
    #[error("the workload matrix ends at epoch {horizon}")]
    PastHorizon {
        /// Its number of rows.
        horizon: u64,
    },
    /// A row does not have the state's number of coordinates.
    #[error("a row has {found} coordinates; this state was made for {expected}")]
    Coordinates {
        /// Number of coordinates of the row.
        found: usize,
        /// Number of coordinates of the state.
        expected: usize,
    },
}

impl Decay {
    /// Checks that `0 < decay < 1`.
    ///
    /// # Errors
    /// [`WorkloadError::Decay`] for any other number and for NaN.
    pub fn new(decay: f64) -> Result<Self, WorkloadError> {
        if decay > 0.0 && decay < 1.0 {
            Ok(Self(decay))
        } else {
            Err(WorkloadError::Decay { found: decay.to_string() })
        }
    }

    /// Returns the factor β.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Decay {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let number = text.parse().map_err(|_| WorkloadError::Decay { found: text.into() })?;
        Self::new(number)
    }
}

impl Workload {
    /// Syntax of each workload, and its value at epoch t for inputs x₁, …, xₜ: a sum and its
    /// divisor.
    pub const FORMS: &[(&'static str, &'static str)] = &[
        ("prefix", "Sum of all epochs so far; divisor 1. Its mean is the mean of all records so far."),
        ("average", "Sum of all epochs so far, divided by t: the mean epoch so far."),
        ("exponential:β", "Sum of βᵃ·x over epochs of age a, with 0 < β < 1; divisor 1."),
        (
            "window:k",
            "Sum of the last k epochs, divided by k from the first epoch on: before epoch k it ramps up from 1/k.",
        ),
        (
            "window-mean:k",
            "Sum of the last k epochs, divided by their number, min(t, k): the mean epoch of the window, without ramp.",
        ),
        ("momentum:β", "Sum of (1 + β + … + βᵃ)·x over epochs of age a; divisor 1."),
        (
            "adam:β",
            "Sum of βᵃ·x over epochs of age a, divided by 1 + β + … + βᵗ⁻¹: the exponential average, without ramp.",
        ),
    ];

    /// `A[t,i]` for steps from 1; 0 above the diagonal and outside the matrix.
    pub fn coefficient(&self, t: u64, i: u64) -> f64 {
        match self {
            _ if i == 0 || i > t => 0.0,
            Self::Matrix(matrix) => {
                matrix.rows().get((t as usize - 1, i as usize - 1)).copied().unwrap_or(0.0)
            }
            _ => self.toeplitz_coefficient(t - i) / self.row_divisor(t),
        }
    }

    /// The last epoch that has a row; `None` if every epoch has one.
    pub fn horizon(&self) -> Option<u64> {
        match self {
            Self::Matrix(matrix) => Some(matrix.rows().nrows() as u64),
            _ => None,
        }
    }

    /// First `terms` coefficients of the Toeplitz part: the first column of A times its row
    /// divisors. `None` if A is not a Toeplitz matrix with row divisors.
    pub fn toeplitz_part(&self, terms: usize) -> Option<Vec<f64>> {
        match self {
            Self::Matrix(matrix) if !matrix.is_toeplitz() => None,
            _ => Some((0..terms as u64).map(|lag| self.toeplitz_coefficient(lag)).collect()),
        }
    }

    /// The largest absolute weight in row t.
    pub fn largest_coefficient(&self, t: u64) -> f64 {
        match self {
            Self::Matrix(_) => (1..=t).map(|i| self.coefficient(t, i).abs()).fold(0.0, f64::max),
            // Momentum weighs the first epoch most; the weights of all other workloads never
            // decrease with the epoch.
            Self::Momentum(_) => self.coefficient(t, 1),
            _ => self.coefficient(t, t),
        }
    }

    /// The number of epochs of a window.
    pub(crate) fn window(&self) -> Option<u64> {
        match self {
            Self::Window(length) | Self::WindowMean(length) => Some(length.get()),
            _ => None,
        }
    }

    /// The workload with the same Toeplitz part and no divisors.
    pub(crate) fn undivided(&self) -> Self {
        match self {
            Self::Average => Self::Prefix,
            Self::Adam(decay) => Self::Exponential(*decay),
            Self::WindowMean(length) => Self::Window(*length),
            other => other.clone(),
        }
    }

    /// The divisor of row t ≥ 1 of the Toeplitz part.
    pub fn row_divisor(&self, t: u64) -> f64 {
        self.divisor_at(t as f64)
    }

    /// As [`row_divisor`](Self::row_divisor), for a t that may lie between two rows.
    pub(crate) fn divisor_at(&self, t: f64) -> f64 {
        match self {
            Self::Average => t,
            Self::Adam(decay) => geometric_sum(*decay, t),
            Self::WindowMean(length) => (t / length.get() as f64).min(1.0),
            _ => 1.0,
        }
    }

    /// A for the first `steps` epochs.
    pub fn matrix(&self, steps: usize) -> DMatrix<f64> {
        DMatrix::from_fn(steps, steps, |t, i| self.coefficient(t as u64 + 1, i as u64 + 1))
    }

    /// The sum of row t ≥ 1 of A. A t between two rows interpolates their sums, except for a matrix
    /// given entry by entry.
    pub fn row_sum(&self, t: f64) -> f64 {
        match self {
            Self::Prefix => t,
            Self::Average | Self::Adam(_) | Self::WindowMean(_) => 1.0,
            Self::Exponential(decay) => geometric_sum(*decay, t),
            Self::Window(length) => t.min(length.get() as f64) / length.get() as f64,
            Self::Momentum(decay) => momentum_sum(*decay, t),
            Self::Matrix(_) => (1..=t as u64).map(|i| self.coefficient(t as u64, i)).sum(),
        }
    }

    /// Pairs of a weight and a workload W with `A[t,i]² = Σ weight·W[t,i] / row_divisor(t)²`.
    pub(crate) fn squared_terms(&self) -> Vec<(f64, Self)> {
        let squared_decay =
            |decay: &Decay| Self::Exponential(Decay((decay.get() * decay.get()).max(f64::MIN_POSITIVE)));
        match self {
            Self::Prefix | Self::Average => vec![(1.0, Self::Prefix)],
            Self::Exponential(decay) | Self::Adam(decay) => vec![(1.0, squared_decay(decay))],
            Self::Window(length) | Self::WindowMean(length) => {
                vec![(1.0 / length.get() as f64, Self::Window(*length))]
            }
            Self::Momentum(decay) => {
                // (1 − β·β^lag)² / (1 − β)².
                let (beta, scale) = (decay.get(), (1.0 - decay.get()).powi(-2));
                let terms = [
                    (1.0, Self::Prefix),
                    (-2.0 * beta, Self::Exponential(*decay)),
                    (beta * beta, squared_decay(decay)),
                ];
                terms.map(|(weight, term)| (weight * scale, term)).to_vec()
            }
            Self::Matrix(matrix) => vec![(1.0, Self::Matrix(Arc::new(matrix.squared())))],
        }
    }

    /// Starts applying this workload to a stream of rows with this number of coordinates.
    pub fn state(&self, coordinates: usize) -> WorkloadState {
        WorkloadState::new(self, coordinates)
    }

    fn toeplitz_coefficient(&self, lag: u64) -> f64 {
        match self {
            Self::Prefix | Self::Average => 1.0,
            Self::Exponential(decay) | Self::Adam(decay) => libm::pow(decay.get(), lag as f64),
            Self::Momentum(decay) => {
                -libm::expm1((lag + 1) as f64 * libm::log(decay.get())) / (1.0 - decay.get())
            }
            Self::Window(length) | Self::WindowMean(length) if lag < length.get() => {
                1.0 / length.get() as f64
            }
            Self::Window(_) | Self::WindowMean(_) => 0.0,
            Self::Matrix(matrix) => matrix.rows().get((lag as usize, 0)).copied().unwrap_or(0.0),
        }
    }
}

/// A workload whose state is a decayed sum and, for momentum, the running sum of that sum.
#[derive(Clone, Copy)]
pub(crate) struct WorkloadSums {
    /// β.
    pub(crate) decay: f64,
    /// Whether the workload adds up the decayed sum.
    pub(crate) summed: bool,
}

impl WorkloadSums {
    /// Returns the state of a workload; `None` if it needs more than two sums.
    pub(crate) fn new(workload: &Workload) -> Option<Self> {
        let with = |decay: &Decay, summed| Some(Self { decay: decay.get(), summed });
        match workload {
            Workload::Prefix | Workload::Average => Some(Self { decay: 1.0, summed: false }),
            Workload::Exponential(decay) | Workload::Adam(decay) => with(decay, false),
            Workload::Momentum(decay) => with(decay, true),
            _ => None,
        }
    }
}

/// `Σ_(l<t) β^l`.
fn geometric_sum(decay: Decay, t: f64) -> f64 {
    -libm::expm1(t * libm::log(decay.get())) / (1.0 - decay.get())
}

/// `Σ_(l<t) (1 − β^(l+1))/(1 − β) = (t − β Σ_(l<t) β^l)/(1 − β)`. If the two terms nearly cancel,
/// it is computed by powers of 1 − β: `Σ_m C(t+1, m+2) (β − 1)^m`.
fn momentum_sum(decay: Decay, t: f64) -> f64 {
    let complement = 1.0 - decay.get();
    if t * complement > 0.1 {
        return (t - decay.get() * geometric_sum(decay, t)) / complement;
    }
    let next = |(m, term): (f64, f64)| (m + 1.0, -term * complement * (t - m - 1.0) / (m + 3.0));
    let terms = std::iter::successors(Some((0.0, 0.5 * t * (t + 1.0))), |&last| Some(next(last)));
    terms.take(12).map(|(_, term)| term).sum()
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("prefix"),
            Self::Average => f.write_str("average"),
            Self::Exponential(decay) => write!(f, "exponential:{}", decay.get()),
            Self::Window(length) => write!(f, "window:{length}"),
            Self::WindowMean(length) => write!(f, "window-mean:{length}"),
            Self::Momentum(decay) => write!(f, "momentum:{}", decay.get()),
            Self::Adam(decay) => write!(f, "adam:{}", decay.get()),
            Self::Matrix(matrix) => write!(f, "matrix:{}", matrix.name()),
        }
    }
}

impl FromStr for Workload {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        match text.split_once(':') {
            None if text == "prefix" => Ok(Self::Prefix),
            None if text == "average" => Ok(Self::Average),
            Some(("exponential", decay)) => decay.parse().map(Self::Exponential),
            Some(("momentum", decay)) => decay.parse().map(Self::Momentum),
            Some(("adam", decay)) => decay.parse().map(Self::Adam),
            Some(("matrix", file)) => Err(WorkloadError::MatrixFile { found: file.into() }),
            Some((name @ ("window" | "window-mean"), length)) => {
                let form = if name == "window" { Self::Window } else { Self::WindowMean };
                length.parse().map(form).map_err(|_| WorkloadError::Window { found: length.into() })
            }
            _ => Err(WorkloadError::Unknown { found: text.into() }),
        }
    }
}

/// The serialised form: text, and for a matrix its name with its rows up to the diagonal.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WorkloadForm {
    Text(String),
    Matrix { matrix: String, rows: Vec<Vec<f64>> },
}

impl TryFrom<WorkloadForm> for Workload {
    type Error = WorkloadError;

    fn try_from(form: WorkloadForm) -> Result<Self, WorkloadError> {
        match form {
            WorkloadForm::Text(text) => text.parse(),
            WorkloadForm::Matrix { matrix, rows } => {
                let columns = rows.last().map_or(0, Vec::len);
                if columns != rows.len() || rows.iter().zip(1..).any(|(row, length)| row.len() != length) {
                    return Err(WorkloadError::Shape { rows: rows.len(), columns });
                }
                let entry = |t: usize, i: usize| rows[t].get(i).copied().unwrap_or(0.0);
                Self::from_matrix(matrix, DMatrix::from_fn(rows.len(), columns, entry))
            }
        }
    }
}

impl From<Workload> for WorkloadForm {
    fn from(workload: Workload) -> Self {
        let Workload::Matrix(matrix) = workload else { return Self::Text(workload.to_string()) };
        let row = |t: usize| matrix.rows().row(t).columns(0, t + 1).iter().copied().collect();
        Self::Matrix { matrix: matrix.name().into(), rows: (0..matrix.rows().nrows()).map(row).collect() }
    }
}
