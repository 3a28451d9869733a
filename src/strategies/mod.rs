//! The strategy lab: from the name of a strategy to the one that runs: fitted, read from a file, or chosen among all.

mod catalogue;
pub mod file;
mod find;
pub mod matrix;

use std::path::PathBuf;
use std::sync::Arc;

use hushflow_mechanism::error::ExpectedError;
use hushflow_mechanism::optimize::OptimizeError;
use hushflow_mechanism::optimize::buffered::FitError;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::strategy::{
    Chosen, Factorization, MatrixError, Strategy, StrategyError, StrategyName, build_chosen,
    build_factorization, stamped,
};
use hushflow_mechanism::workload::Workload;
use thiserror::Error;

pub use catalogue::{catalogue, default_strategy};
pub use file::{Request, SavedStrategy, StrategyFileError};
pub use find::find;
pub use hushflow_mechanism::optimize::buffered::Objective;

/// What a strategy is to be good for.
#[derive(Clone, Debug, PartialEq)]
pub struct Purpose {
    /// The workload A.
    pub workload: Workload,
    /// Number of steps, at least 1.
    pub horizon: u64,
    /// How often what is protected takes part.
    pub participation: Participation,
    /// How often the strategy begins anew: 1 for a strategy that goes through, s for s copies one after another.
    pub stamps: u64,
    /// What a fit minimises where it can choose.
    pub objective: Objective,
}

impl Purpose {
    /// Single participation, one copy, least mean squared error.
    pub fn new(workload: Workload, horizon: u64) -> Self {
        let (participation, objective) = (Participation::Single, Objective::Rmse);
        Self { workload, horizon, participation, stamps: 1, objective }
    }

    /// The purpose of one copy.
    fn of_a_copy(&self) -> Self {
        Self { horizon: self.horizon.div_ceil(self.stamps), stamps: 1, ..self.clone() }
    }
}

/// How far a search has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What is being found.
    pub strategy: StrategyName,
    /// Points looked at.
    pub iteration: usize,
    /// The least value so far.
    pub objective: f64,
    /// No value is below; 0 where no bound is known yet.
    pub lower_bound: f64,
}

/// Why there is no such strategy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StrategiesError {
    /// It can't be made.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// An optimiser did not find it.
    #[error("the strategy `{strategy}` can't be found: {source}")]
    Optimize {
        /// As on the command line.
        strategy: String,
        /// Why.
        source: OptimizeError,
    },
    /// A fit did not find it.
    #[error("the strategy `{strategy}` can't be fitted: {source}")]
    Fit {
        /// As on the command line.
        strategy: String,
        /// Why.
        source: FitError,
    },
    /// The file it is in can't be used.
    #[error(transparent)]
    File(#[from] StrategyFileError),
    /// The matrix it is can't be used.
    #[error(transparent)]
    MatrixFile(#[from] matrix::MatrixError),
    /// Too many steps for a matrix.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A saved strategy is for something else.
    #[error("{}: the strategy was made for {found}, not for {expected}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What is asked.
        expected: String,
    },
    /// More copies than steps.
    #[error(
        "{stamps} copies of a strategy don't fit into {horizon} steps; expected at most one copy for every step"
    )]
    Stamps {
        /// Number of copies.
        stamps: u64,
        /// Number of steps.
        horizon: u64,
    },
    /// Nothing fits into the memory allowed.
    #[error(
        "no strategy for this workload keeps within {limit} bytes a coordinate; expected a memory_limit of 0 or more, \
         and 64 for good ones"
    )]
    MemoryLimit {
        /// Bytes a coordinate.
        limit: u64,
    },
}

/// A strategy made for a purpose.
#[derive(Clone)]
pub struct Candidate {
    /// What it is made of: what a log keeps.
    pub chosen: Chosen,
    /// What errors and sensitivities are computed from.
    pub factorization: Arc<dyn Factorization>,
    /// The same as it runs; `None` for those that are there for comparison.
    pub strategy: Option<Arc<dyn Strategy>>,
    /// A lower bound of the loss of all strategies, where the search computed one.
    pub loss_lower_bound: Option<f64>,
}

impl Candidate {
    /// Makes the strategy of this name for a purpose, which may take a search: `progress` is told.
    ///
    /// # Errors
    /// [`StrategiesError`] says what can't be and how to mend it.
    pub fn new(
        name: &StrategyName,
        purpose: &Purpose,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Self, StrategiesError> {
        let Purpose { horizon, stamps, .. } = *purpose;
        if stamps == 0 || stamps > horizon {
            return Err(StrategiesError::Stamps { stamps, horizon });
        }
        let copy = purpose.of_a_copy();
        let found = find(name, &copy, progress)?;
        let lower_bound = found.lower_bound.filter(|_| stamps == 1);
        Self::of_chosen(found.chosen, purpose, lower_bound)
    }

    /// Makes a strategy from what was found for one copy of it.
    ///
    /// # Errors
    /// [`StrategiesError::Strategy`].
    pub fn of_chosen(
        chosen: Chosen,
        purpose: &Purpose,
        loss_lower_bound: Option<f64>,
    ) -> Result<Self, StrategiesError> {
        let copy = purpose.of_a_copy();
        let (horizon, copies) = (purpose.horizon, purpose.stamps);
        if !chosen.name.runs() {
            let block = build_factorization(&chosen.name, &copy.workload, copy.horizon)?;
            let factorization = match copies {
                1 => block,
                _ => Arc::new(stamped::StampedFactorization::new(block, copy.horizon, horizon)?),
            };
            return Ok(Self { chosen, factorization, strategy: None, loss_lower_bound });
        }
        let block = build_chosen(&chosen, &copy.workload, Some(copy.horizon))?;
        let strategy: Arc<dyn Strategy> = match copies {
            1 => block,
            _ => Arc::new(stamped::Stamped::new(block, copy.horizon, Some(horizon))?),
        };
        let factorization: Arc<dyn Factorization> = strategy.clone();
        Ok(Self { chosen, factorization, strategy: Some(strategy), loss_lower_bound })
    }

    /// Errors for single participation.
    ///
    /// # Errors
    /// [`StrategiesError::Strategy`] for a horizon out of range.
    pub fn error(&self, purpose: &Purpose) -> Result<ExpectedError, StrategiesError> {
        Ok(ExpectedError::new(&purpose.workload, self.factorization.as_ref(), purpose.horizon)?)
    }
}
