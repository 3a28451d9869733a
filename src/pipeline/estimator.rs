//! Estimators of windows: what `[release] method` may name beside methods of moments.

use std::fmt;

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};
use serde::{Deserialize, Serialize};

use super::scales;

/// What is asked of every window. All of it is public.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Estimator {
    /// A robust mean.
    Mean {
        /// How.
        method: mean::Method,
        /// α: the share of records that may be anything.
        corruption: f64,
        /// Standard deviations of the columns' clean values: a list, nothing where they are estimated, or `"whiten"`.
        #[serde(default = "scales::estimated", with = "scales")]
        scale: Scale,
        /// R: all means are within R scales of 0.
        range: Option<f64>,
    },
    /// A covariance.
    Covariance {
        /// How.
        method: covariance::Method,
        /// The share of the budget for a mean to centre by.
        centre: Option<f64>,
    },
}

impl fmt::Display for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean { method, .. } => method.fmt(f),
            Self::Covariance { method, .. } => method.fmt(f),
        }
    }
}
