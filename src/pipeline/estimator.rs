//! Estimators of windows: values of `[release] method` besides the moment methods.

use std::fmt;

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};
use serde::{Deserialize, Serialize};

use super::scales;

/// The estimator of every window. All its parameters are public.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WindowEstimator {
    /// A robust mean.
    Mean {
        /// Estimation method.
        method: mean::MeanMethod,
        /// α: share of records that may be arbitrarily corrupt.
        corruption: f64,
        /// Standard deviations of clean values: a list, absent if estimated, or `"whiten"`.
        #[serde(with = "scales")]
        scale: Scale,
        /// R: bound on every mean, in scales around 0.
        range: Option<f64>,
    },
    /// A covariance.
    Covariance {
        /// Estimation method.
        method: covariance::CovarianceMethod,
        /// Share of the budget for a private mean to centre by.
        centre: Option<f64>,
    },
}

impl fmt::Display for WindowEstimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean { method, .. } => method.fmt(f),
            Self::Covariance { method, .. } => method.fmt(f),
        }
    }
}
