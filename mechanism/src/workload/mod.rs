//! Workloads A: which weighted sums of the epochs are wanted.
//!
//! Every workload here is a lower-triangular Toeplitz matrix whose row t may be divided by a number of its
//! own: `A[t,i] = toeplitz(t−i) / divisor(t)`. Steps count from 1, as in the papers.

mod state;

pub use state::WorkloadState;

use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU64, str::FromStr};
use thiserror::Error;

/// A lower-triangular workload A with a row for every epoch.
///
/// Written as on the command line, in text and in serialised form alike:
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Workload {
    /// `A[t,i] = 1`: running sums.
    Prefix,
    /// `A[t,i] = 1/t`: running averages.
    Average,
    /// `A[t,i] = β^(t−i)`.
    Exponential(Decay),
    /// `A[t,i] = 1/k` for the last k epochs.
    Window(NonZeroU64),
}

/// The factor β by which an exponential workload forgets at every step: above 0 and below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay(f64);

/// What is wrong with a workload, or with a row given to it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkloadError {
    /// No workload is written like this.
    #[error(
        "no workload is written `{found}`; expected `prefix`, `average`, `exponential:β` or `window:k`, \
         for example `exponential:0.9` or `window:10`"
    )]
    Unknown {
        /// What was written.
        found: String,
    },
    /// The decay is no number between 0 and 1.
    #[error(
        "the decay of an exponential workload is `{found}`; expected a number above 0 and below 1, \
         for example `exponential:0.9`"
    )]
    Decay {
        /// What was given.
        found: String,
    },
    /// The length of a window is no positive integer.
    #[error(
        "the length of a window is `{found}`; expected a whole number of epochs, at least 1, \
         for example `window:10`"
    )]
    Window {
        /// What was given.
        found: String,
    },
    /// A row does not have the number of coordinates the state was made for.
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
    /// [`WorkloadError::Decay`] for every other number, and for NaN.
    pub fn new(decay: f64) -> Result<Self, WorkloadError> {
        if decay > 0.0 && decay < 1.0 {
            Ok(Self(decay))
        } else {
            Err(WorkloadError::Decay { found: decay.to_string() })
        }
    }

    /// The factor β.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Workload {
    /// `A[t,i]` for steps from 1; 0 above the diagonal and outside the matrix.
    pub fn coefficient(&self, t: u64, i: u64) -> f64 {
        if i == 0 || i > t { 0.0 } else { self.toeplitz_coefficient(t - i) / self.row_divisor(t) }
    }

    /// First `terms` coefficients of the Toeplitz part: the first column of A times its row divisors.
    pub fn toeplitz_part(&self, terms: usize) -> Vec<f64> {
        (0..terms as u64).map(|lag| self.toeplitz_coefficient(lag)).collect()
    }

    /// What row t ≥ 1 of the Toeplitz part is divided by to give row t of A.
    pub fn row_divisor(&self, t: u64) -> f64 {
        if *self == Self::Average { t as f64 } else { 1.0 }
    }

    /// Starts applying this workload to a stream of rows with the given number of coordinates.
    pub fn state(&self, coordinates: usize) -> WorkloadState {
        WorkloadState::new(self, coordinates)
    }

    fn toeplitz_coefficient(&self, lag: u64) -> f64 {
        match self {
            Self::Prefix | Self::Average => 1.0,
            Self::Exponential(decay) => decay.get().powf(lag as f64),
            Self::Window(length) if lag < length.get() => 1.0 / length.get() as f64,
            Self::Window(_) => 0.0,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("prefix"),
            Self::Average => f.write_str("average"),
            Self::Exponential(decay) => write!(f, "exponential:{}", decay.get()),
            Self::Window(length) => write!(f, "window:{length}"),
        }
    }
}

impl FromStr for Workload {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        match text.split_once(':') {
            None if text == "prefix" => Ok(Self::Prefix),
            None if text == "average" => Ok(Self::Average),
            Some(("exponential", decay)) => {
                let number = decay.parse().map_err(|_| WorkloadError::Decay { found: decay.into() })?;
                Decay::new(number).map(Self::Exponential)
            }
            Some(("window", length)) => {
                length.parse().map(Self::Window).map_err(|_| WorkloadError::Window { found: length.into() })
            }
            _ => Err(WorkloadError::Unknown { found: text.into() }),
        }
    }
}

impl TryFrom<String> for Workload {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<Self, WorkloadError> {
        text.parse()
    }
}

impl From<Workload> for String {
    fn from(workload: Workload) -> Self {
        workload.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_read_and_written_back() {
        for text in ["prefix", "average", "exponential:0.9", "window:10", "window:18446744073709551615"] {
            let workload: Workload = text.parse().unwrap();
            assert_eq!(workload.to_string(), text);
            let json = serde_json::to_string(&workload).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Workload>(&json).unwrap(), workload);
        }
    }

    #[test]
    fn impossible_workloads_are_refused_with_what_would_be_right() {
        let check = |text: &str, hint: &str| {
            let message = text.parse::<Workload>().unwrap_err().to_string();
            let shown = text.rsplit(':').next().unwrap();
            assert!(message.contains(shown) && message.contains(hint), "{text}: {message}");
        };
        for text in ["", "sum", "prefix:3", "average:", "window", "exponential", "Prefix", " prefix"] {
            check(text, "expected `prefix`, `average`, `exponential:β` or `window:k`");
        }
        for text in ["0", "1", "-0.5", "1.5", "NaN", "inf", "half", ""] {
            check(&format!("exponential:{text}"), "above 0 and below 1");
        }
        for text in ["0", "-1", "2.5", "ten", "", "18446744073709551616"] {
            check(&format!("window:{text}"), "at least 1");
        }
    }

    #[test]
    fn coefficients_are_those_of_the_definitions() {
        let check = |text: &str, row: [f64; 5]| {
            let workload: Workload = text.parse().unwrap();
            let found: Vec<f64> = (0..=4).map(|i| workload.coefficient(3, i)).collect();
            assert_eq!(found, row, "{text}");
        };
        check("prefix", [0.0, 1.0, 1.0, 1.0, 0.0]);
        check("average", [0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0]);
        check("exponential:0.5", [0.0, 0.25, 0.5, 1.0, 0.0]);
        check("window:2", [0.0, 0.0, 0.5, 0.5, 0.0]);
    }

    proptest! {
        #[test]
        fn every_decay_survives_being_written(decay in 0.0..1.0f64) {
            if let Ok(decay) = Decay::new(decay) {
                let workload = Workload::Exponential(decay);
                prop_assert_eq!(workload.to_string().parse::<Workload>(), Ok(workload));
            }
        }
    }
}
