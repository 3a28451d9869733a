//! Finds strategies whose parameters come from an optimiser or a file.

use std::ops::ControlFlow;
use std::path::Path;

use hushflow_mechanism::optimize;
use hushflow_mechanism::strategy::{
    Dense, Fit, StrategyChoice, StrategyError, StrategyName, StrategyParameters, build_chosen, compare, fit,
};

use super::file::{SavedStrategy, StrategyRequest, recall, remember};
use super::matrix::read_matrix;
use super::{Candidate, Purpose, SearchProgress, SearchQuantity, StrategiesError};

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchResult {
    /// The strategy.
    pub chosen: StrategyChoice,
    /// Lower bound of the loss of every strategy for the purpose, if known.
    pub lower_bound: Option<f64>,
}

/// Finds the strategy of this name for one copy of a purpose: directly if the name determines it,
/// from a file, from an earlier result, or by a search that reports to `progress`.
///
/// # Errors
/// [`StrategiesError`].
pub fn find(
    name: &StrategyName,
    purpose: &Purpose,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<SearchResult, StrategiesError> {
    match (name, name.fit()) {
        (StrategyName::File(path), _) => load(name, path.as_ref(), purpose),
        (StrategyName::Auto, _) => choose(purpose, u64::MAX, progress),
        (_, Fit::None) => Ok(SearchResult { chosen: name.clone().into(), lower_bound: None }),
        (_, Fit::Parameters { .. } | Fit::Program { .. }) => {
            let saved = match recall(&request(name, purpose)) {
                Some(saved) => saved,
                None => {
                    let (saved, _) = search(name, purpose, progress)?;
                    remember(&saved);
                    saved
                }
            };
            Ok(SearchResult { chosen: saved.strategy, lower_bound: saved.lower_bound })
        }
    }
}

fn request(name: &StrategyName, purpose: &Purpose) -> StrategyRequest {
    let method = match name.fit() {
        Fit::Parameters { objective: true, .. } => format!("{name}, {}", purpose.objective),
        _ => name.to_string(),
    };
    StrategyRequest::new(method, &purpose.workload, purpose.horizon, purpose.participation)
}

/// Searches without using earlier results. Returns the result and, if the search proves one, a
/// lower bound of the objective over the class.
///
/// # Errors
/// [`StrategiesError`].
pub fn search(
    name: &StrategyName,
    purpose: &Purpose,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<(SavedStrategy, Option<f64>), StrategiesError> {
    let report = &mut |at: &optimize::OptimizerProgress| {
        let optimize::OptimizerProgress { iteration, objective, lower_bound, .. } = *at;
        let (strategy, quantity) = (name.clone(), SearchQuantity::Loss);
        progress(&SearchProgress { strategy, quantity, iteration, objective, lower_bound });
        ControlFlow::Continue(())
    };
    let fitted = fit(name, purpose, report)?;
    let chosen = StrategyChoice { name: name.clone(), fitted: Some(fitted.fitted) };
    let saved = SavedStrategy::new(request(name, purpose), chosen, fitted.objective, fitted.lower_bound);
    Ok((saved, fitted.class_bound))
}

/// Loads a saved strategy, or any lower-triangular C as a matrix of numbers.
fn load(name: &StrategyName, path: &Path, purpose: &Purpose) -> Result<SearchResult, StrategiesError> {
    let saved = path.extension().is_some_and(|extension| extension == "json");
    let chosen = if saved {
        SavedStrategy::load(path)?.strategy
    } else {
        let c = read_matrix(path)?;
        let refused = |source| StrategiesError::OfFile { path: path.into(), source };
        let parameters = Dense::new(name.clone(), &c).map_err(refused)?.parameters().clone();
        StrategyChoice { name: name.clone(), fitted: Some(StrategyParameters::Dense(parameters)) }
    };
    let built = match build_chosen(&chosen, &purpose.workload, None) {
        // The saved parameters define a strategy for any number of steps, so choose the horizon.
        Err(StrategyError::NoHorizon { .. }) => {
            build_chosen(&chosen, &purpose.workload, Some(purpose.horizon))
        }
        built => built,
    };
    match built?.horizon().filter(|&steps| steps < purpose.horizon) {
        Some(steps) => Err(StrategiesError::Mismatch {
            path: path.into(),
            found: format!("{steps} steps"),
            expected: format!("{} steps", purpose.horizon),
        }),
        None => Ok(SearchResult { chosen, lower_bound: None }),
    }
}

/// Returns the best strategy that runs with at most this many bytes of state per coordinate.
///
/// # Errors
/// [`StrategiesError::MemoryLimit`] if none does.
pub fn choose(
    purpose: &Purpose,
    memory_limit: u64,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<SearchResult, StrategiesError> {
    let mut best: Option<(f64, SearchResult)> = None;
    for name in compare(purpose, false).strategies {
        let candidate = match Candidate::new(&name, purpose, progress) {
            Err(error) if error.omission().is_some() => continue,
            candidate => candidate?,
        };
        let Some(strategy) = &candidate.strategy else { continue };
        if strategy.encoder_bytes() as u64 > memory_limit {
            continue;
        }
        let error = candidate.error_under(purpose)?;
        let value = error.of(purpose.objective);
        if best.as_ref().is_none_or(|(least, _)| value < *least) {
            best = Some((
                value,
                SearchResult { chosen: candidate.chosen, lower_bound: candidate.loss_lower_bound },
            ));
        }
    }
    best.map(|(_, found)| found).ok_or(StrategiesError::MemoryLimit { limit: memory_limit })
}
