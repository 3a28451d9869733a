//! A strategy as it runs and as a log stores it: its name and its fitted parameters.
//!
//! Fitted parameters are stored and never recomputed. A fit may differ between machines and
//! versions, and a log must be read with exactly the C that wrote it.

use super::{DenseParameters, StrategyName, buffered::BufferedParameters};
use serde::{Deserialize, Serialize};

/// A name, and its fitted parameters if it needs them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// The strategy that runs; never [`StrategyName::Auto`].
    pub name: StrategyName,
    /// Fitted parameters; `None` if the name determines the strategy.
    pub fitted: Option<Fitted>,
}

/// Parameters from an optimiser or a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fitted {
    /// The coefficients of a Toeplitz matrix, in units of
    /// 2^-[`COEFFICIENT_BITS`](super::COEFFICIENT_BITS).
    Toeplitz(Vec<i64>),
    /// Buffers of a Toeplitz matrix or of a power law.
    Buffered(BufferedParameters),
    /// The entries of a lower-triangular matrix.
    Dense(DenseParameters),
}

impl From<StrategyName> for Chosen {
    fn from(name: StrategyName) -> Self {
        Self { name, fitted: None }
    }
}
