//! Estimators of windows: values of `[release] method` other than the moment methods.

use std::fmt;

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
        /// Standard deviations of clean values. Serialized as a list if known, as null if
        /// estimated, or as `"whiten"`.
        #[serde(serialize_with = "serialize_scale", deserialize_with = "deserialize_scale")]
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

/// Column scales in the header of a log: null if estimated, a list if known, or `"whiten"`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ScaleSetting {
    Known(Vec<f64>),
    Named(ScaleName),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScaleName {
    Whiten,
}

fn serialize_scale<S: Serializer>(scale: &Scale, serializer: S) -> Result<S::Ok, S::Error> {
    let written = match scale {
        Scale::Known(scales) => Some(ScaleSetting::Known(scales.clone())),
        Scale::Estimated => None,
        Scale::Whitened => Some(ScaleSetting::Named(ScaleName::Whiten)),
    };
    written.serialize(serializer)
}

fn deserialize_scale<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
    Ok(match Option::<ScaleSetting>::deserialize(deserializer)? {
        Some(ScaleSetting::Known(scales)) => Scale::Known(scales),
        Some(ScaleSetting::Named(ScaleName::Whiten)) => Scale::Whitened,
        None => Scale::Estimated,
    })
}
