//! Makes the strategy with a given name: by a fit, from a file, or by comparing all
//! strategies.

mod error;
pub mod file;
mod find;
pub mod matrix;
pub mod schedule;

use std::num::NonZeroU64;
use std::sync::Arc;

use hushflow_mechanism::error::ExpectedError;
use hushflow_mechanism::sensitivity::participation_sensitivity;
use hushflow_mechanism::strategy::{
    Factorization, OmissionReason, Purpose, SearchError, Stamped, Strategy, StrategyChoice, StrategyError,
    StrategyName, build_chosen, build_factorization,
};

pub use error::StrategiesError;
pub use file::{SavedStrategy, StrategyRequest, remember};
pub use find::{SearchResult, choose, find, search};

/// Stands for any dimension above 1 in results about vectors.
const VECTOR_DIMENSION: usize = 2;

/// What a search varies and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchQuantity {
    /// The least loss of a strategy.
    Loss,
    /// ε of a strategy's noise, which is to reach the stated one.
    Epsilon,
}

/// Progress of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchProgress {
    /// The strategy that the search is for.
    pub strategy: StrategyName,
    /// What `objective` is.
    pub quantity: SearchQuantity,
    /// Number of points.
    pub iteration: usize,
    /// The least loss so far, or the newest ε.
    pub objective: f64,
    /// Lower bound of all losses, 0 if unknown; or the stated ε.
    pub lower_bound: f64,
}

impl StrategiesError {
    /// Reason why a comparison leaves the strategy out; `None` for an error that ends a comparison.
    pub fn omission(&self) -> Option<OmissionReason> {
        let detail = || self.to_string();
        match self {
            Self::Stopped => Some(OmissionReason::Stopped),
            Self::Strategy(error) | Self::Search(SearchError::Strategy(error)) => match error {
                StrategyError::Workload { reason, .. } => {
                    Some(OmissionReason::NoForm { detail: (*reason).into() })
                }
                StrategyError::Horizon { limit, .. } => Some(OmissionReason::Horizon { limit: *limit }),
                _ => None,
            },
            Self::Search(SearchError::Fit { .. } | SearchError::Optimize { .. }) | Self::Matrix(_) => {
                Some(OmissionReason::Failed { detail: detail() })
            }
            _ => None,
        }
    }
}

/// A requested strategy.
#[derive(Clone, Debug)]
pub struct RequestedStrategy {
    /// Its name, with the path for one from a file.
    pub name: StrategyName,
    /// Maximum bytes of encoder state per coordinate, for a name such as `auto` that leaves the
    /// choice.
    pub memory_limit: u64,
}

impl RequestedStrategy {
    /// Finds the strategy for one copy of a purpose.
    ///
    /// # Errors
    /// [`StrategiesError`].
    pub fn find(
        &self,
        purpose: &Purpose,
        progress: &mut dyn FnMut(&SearchProgress),
    ) -> Result<SearchResult, StrategiesError> {
        match &self.name {
            StrategyName::Auto => choose(purpose, self.memory_limit, progress),
            name => find(name, purpose, progress),
        }
    }
}

/// A strategy made for a purpose.
#[derive(Clone)]
pub struct Candidate {
    /// Its parameters, as a log stores them.
    pub chosen: StrategyChoice,
    /// Its factorization, for errors and sensitivities.
    pub factorization: Arc<dyn Factorization>,
    /// The strategy that runs; `None` for one that is only compared.
    pub strategy: Option<Arc<dyn Strategy>>,
    /// Lower bound of the loss of all strategies, if the search computed one.
    pub loss_lower_bound: Option<f64>,
}

impl Candidate {
    /// Makes the strategy of this name for a purpose, possibly by a search that reports to
    /// `progress`.
    ///
    /// # Errors
    /// [`StrategiesError`] names the problem and the remedy.
    pub fn new(
        name: &StrategyName,
        purpose: &Purpose,
        progress: &mut dyn FnMut(&SearchProgress),
    ) -> Result<Self, StrategiesError> {
        let Purpose { horizon, stamps, .. } = *purpose;
        if stamps == 0 || stamps > horizon {
            return Err(StrategiesError::Stamps { stamps, horizon });
        }
        let copy = purpose.of_single_copy();
        let result = find(name, &copy, progress)?;
        let lower_bound = result.lower_bound.filter(|_| stamps == 1);
        Self::of_chosen(result.chosen, purpose, lower_bound)
    }

    /// Makes the requested strategy.
    ///
    /// # Errors
    /// [`StrategiesError`].
    pub fn of_requested(
        wanted: &RequestedStrategy,
        purpose: &Purpose,
        progress: &mut dyn FnMut(&SearchProgress),
    ) -> Result<Self, StrategiesError> {
        let result = wanted.find(&purpose.of_single_copy(), progress)?;
        Self::of_chosen(result.chosen, purpose, None)
    }

    /// Makes a strategy from the result for one copy of it.
    ///
    /// # Errors
    /// [`StrategiesError::Strategy`].
    pub fn of_chosen(
        chosen: StrategyChoice,
        purpose: &Purpose,
        loss_lower_bound: Option<f64>,
    ) -> Result<Self, StrategiesError> {
        let copy = purpose.of_single_copy();
        let length = NonZeroU64::new(copy.horizon).filter(|_| purpose.stamps > 1);
        let horizon = Some(purpose.horizon);
        if let Some(block) = build_factorization(&chosen.name, &copy.workload, copy.horizon) {
            let factorization: Arc<dyn Factorization> = match length {
                None => block?,
                Some(length) => Arc::new(Stamped::new(block?, length, horizon, &purpose.workload)?),
            };
            return Ok(Self { chosen, factorization, strategy: None, loss_lower_bound });
        }
        let block = build_chosen(&chosen, &copy.workload, Some(copy.horizon))?;
        let strategy: Arc<dyn Strategy> = match length {
            None => block,
            Some(length) => Arc::new(Stamped::new(block, length, horizon, &purpose.workload)?),
        };
        let factorization: Arc<dyn Factorization> = strategy.clone();
        Ok(Self { chosen, factorization, strategy: Some(strategy), loss_lower_bound })
    }

    /// Returns the errors under single participation.
    ///
    /// # Errors
    /// [`StrategiesError::Strategy`] for a horizon out of range.
    pub fn error(&self, purpose: &Purpose) -> Result<ExpectedError, StrategiesError> {
        Ok(ExpectedError::new(&purpose.workload, self.factorization.as_ref(), purpose.horizon)?)
    }

    /// Returns the errors under the purpose's participation.
    ///
    /// # Errors
    /// [`StrategiesError::Matrix`] if C is too large for its sensitivity to be computed.
    pub fn error_under(&self, purpose: &Purpose) -> Result<ExpectedError, StrategiesError> {
        if purpose.participation.is_single() {
            return self.error(purpose);
        }
        let matrix = self.factorization.matrix(purpose.horizon)?;
        let claim = participation_sensitivity(&matrix, purpose.participation, VECTOR_DIMENSION)?;
        let rows = self.factorization.decoder_row_samples(&purpose.workload, purpose.horizon);
        Ok(ExpectedError::of_samples(claim.value(), rows))
    }
}
