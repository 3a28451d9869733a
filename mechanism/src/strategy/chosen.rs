//! A strategy as it runs and as a log keeps it: its name, and the numbers that were found for it.
//!
//! What was found is stored and never found again: a fit may come out differently on another machine or in another
//! version, and a log must be read by the very C that wrote it.

use super::{DenseParameters, StrategyName, buffered::BufferedParameters};
use serde::{Deserialize, Serialize};

/// A name, and what it stands for where that had to be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// The strategy that runs; never [`StrategyName::Auto`].
    pub name: StrategyName,
    /// What had to be found for it; `None` where the name says it all.
    pub fitted: Option<Fitted>,
}

/// What an optimiser found, or a file said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fitted {
    /// The coefficients of a Toeplitz matrix, in units of 2^-[`COEFFICIENT_BITS`](super::COEFFICIENT_BITS).
    Toeplitz(Vec<i64>),
    /// Buffers, of a Toeplitz matrix or of a power law.
    Buffered(BufferedParameters),
    /// The entries of a lower-triangular matrix.
    Dense(DenseParameters),
}

impl From<StrategyName> for Chosen {
    fn from(name: StrategyName) -> Self {
        Self { name, fitted: None }
    }
}
