//! Finds strategies that a name does not determine, by an optimiser or from a file.

use std::ops::ControlFlow;
use std::path::Path;

use hushflow_mechanism::optimize::buffered::{self, Repetition, fit_blt, fit_power_law};
use hushflow_mechanism::optimize::{self, Optimum, QuadraticForm, Settings, coa, multi_epoch};
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::strategy::{
    Chosen, Dense, Fitted, StrategyName, banded_optimal, optimal_banded_toeplitz, toeplitz_units,
};
use nalgebra::DMatrix;

use super::file::{Request, SavedStrategy, recall, remember};
use super::matrix::read_matrix;
use super::{Candidate, Progress, Purpose, StrategiesError, catalogue};

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The strategy.
    pub chosen: Chosen,
    /// Lower bound of the loss of every strategy for the purpose, if known.
    pub lower_bound: Option<f64>,
}

impl Found {
    fn of_name(name: &StrategyName) -> Self {
        Self { chosen: name.clone().into(), lower_bound: None }
    }
}

/// Finds the strategy of this name for one copy of a purpose: directly if the name determines it,
/// from a file, from an earlier result, or by a search that reports to `progress`.
///
/// # Errors
/// [`StrategiesError`].
pub fn find(
    name: &StrategyName,
    purpose: &Purpose,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Found, StrategiesError> {
    match name {
        StrategyName::File(path) => load(name, path.as_ref(), purpose),
        StrategyName::Auto => choose(purpose, u64::MAX, progress),
        searched if searched.is_searched() => {
            let request = request(name, purpose);
            if let Some(saved) = recall(&request) {
                return Ok(Found { chosen: saved.strategy, lower_bound: saved.lower_bound });
            }
            let (saved, _) = search(name, purpose, progress)?;
            remember(&saved);
            Ok(Found { chosen: saved.strategy, lower_bound: saved.lower_bound })
        }
        said => Ok(Found::of_name(said)),
    }
}

fn request(name: &StrategyName, purpose: &Purpose) -> Request {
    let method = match name {
        StrategyName::BufferedToeplitz(_) => format!("{name}, {}", purpose.objective),
        _ => name.to_string(),
    };
    Request::new(method, &purpose.workload, purpose.horizon, purpose.participation)
}

/// Searches without using earlier results. Returns the result, and a bound of the value of all
/// Toeplitz strategies if the fit knows one.
///
/// # Errors
/// [`StrategiesError`].
pub fn search(
    name: &StrategyName,
    purpose: &Purpose,
    progress: &mut dyn FnMut(&Progress),
) -> Result<(SavedStrategy, Option<f64>), StrategiesError> {
    let Purpose { workload, horizon, .. } = purpose;
    let saved = |fitted, objective, bound| {
        let chosen = Chosen { name: name.clone(), fitted: Some(fitted) };
        SavedStrategy::new(request(name, purpose), chosen, objective, bound)
    };
    Ok(match name {
        StrategyName::BufferedToeplitz(buffers) => {
            let fit = fitted(name, progress, |told| {
                let repetition = repetition(purpose);
                fit_blt(workload, Some(*horizon), repetition, purpose.objective, buffers.get(), told)
            })?;
            (saved(Fitted::Buffered(fit.parameters), fit.value, None), fit.lower_bound)
        }
        StrategyName::PowerLaw(buffers) => {
            let fit = fitted(name, progress, |told| fit_power_law(workload, None, buffers.get(), told))?;
            (saved(Fitted::Buffered(fit.parameters), fit.value, None), fit.lower_bound)
        }
        StrategyName::BandedOptimal(bands) => {
            let best = banded_optimal(*bands, workload, *horizon)?;
            (saved(Fitted::Dense(best.strategy.parameters().clone()), best.objective, None), None)
        }
        StrategyName::BandedToeplitzOptimal(bands) => {
            let coefficients = optimal_banded_toeplitz(*bands, workload, *horizon)?;
            (saved(Fitted::Toeplitz(toeplitz_units(&coefficients)), 1.0, None), None)
        }
        _ => {
            let optimum = optimal(name, purpose, &Settings::for_steps(*horizon), progress)?;
            let parameters = Dense::new(name.clone(), &optimum.strategy)?.parameters().clone();
            let bound = Some(optimum.lower_bound).filter(|_| bounds_all(name, purpose));
            (saved(Fitted::Dense(parameters), optimum.objective, bound), None)
        }
    })
}

/// Whether the lower bound of this search applies to the purpose: that of `coa` is for single
/// participation.
fn bounds_all(name: &StrategyName, purpose: &Purpose) -> bool {
    *name == StrategyName::Optimal || purpose.participation.is_single()
}

/// Returns the dense optimum for a purpose, under single participation if the purpose or `coa`
/// requires it.
fn optimal(
    name: &StrategyName,
    purpose: &Purpose,
    settings: &Settings,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Optimum, StrategiesError> {
    let failed = |source| StrategiesError::Optimize { strategy: name.to_string(), source };
    check_rows(name, purpose)?;
    let form = QuadraticForm::from_workload(&purpose.workload, purpose.horizon as usize).map_err(failed)?;
    let told = &mut |at: &optimize::Progress| {
        let optimize::Progress { iteration, objective, lower_bound, .. } = *at;
        progress(&Progress { strategy: name.clone(), iteration, objective, lower_bound });
        ControlFlow::Continue(())
    };
    let schedule = purpose.participation.on(purpose.horizon as usize);
    match schedule.count() {
        count if count > 1 && *name != StrategyName::Coa => {
            multi_epoch(&form, count, schedule.gap(), settings, told)
        }
        _ => coa(&form, settings, told),
    }
    .map_err(failed)
}

/// Checks that there are rows for all steps, and no more steps than a dense strategy allows.
fn check_rows(name: &StrategyName, purpose: &Purpose) -> Result<(), StrategiesError> {
    use hushflow_mechanism::strategy::{MAX_DENSE_HORIZON, StrategyError};
    let strategy = name.to_string();
    let (found, limit) = (purpose.horizon, purpose.workload.horizon().unwrap_or(u64::MAX));
    let limit = limit.min(MAX_DENSE_HORIZON);
    if (1..=limit).contains(&found) {
        Ok(())
    } else {
        Err(StrategyError::Horizon { strategy, found, limit }.into())
    }
}

fn repetition(purpose: &Purpose) -> Option<Repetition> {
    if purpose.participation == Participation::Single {
        return None;
    }
    let schedule = purpose.participation.on(purpose.horizon as usize);
    Some(Repetition { count: schedule.count() as u64, gap: schedule.gap() as u64 })
}

fn fitted(
    name: &StrategyName,
    progress: &mut dyn FnMut(&Progress),
    fit: impl FnOnce(buffered::OnProgress<'_>) -> Result<buffered::Fit, buffered::FitError>,
) -> Result<buffered::Fit, StrategiesError> {
    let mut iteration = 0;
    let told = &mut |at: &buffered::Progress| {
        iteration += 1;
        progress(&Progress { strategy: name.clone(), iteration, objective: at.value, lower_bound: 0.0 });
        ControlFlow::Continue(())
    };
    fit(told).map_err(|source| StrategiesError::Fit { strategy: name.to_string(), source })
}

/// Loads a saved strategy, or any lower-triangular C as a matrix of numbers.
fn load(name: &StrategyName, path: &Path, purpose: &Purpose) -> Result<Found, StrategiesError> {
    let saved = path.extension().is_some_and(|extension| extension == "json");
    let chosen = if saved {
        SavedStrategy::load(path)?.strategy
    } else {
        let c: DMatrix<f64> = read_matrix(path)?;
        let refused = |source| StrategiesError::OfFile { path: path.into(), source };
        let parameters = Dense::new(name.clone(), &c).map_err(refused)?.parameters().clone();
        Chosen { name: name.clone(), fitted: Some(Fitted::Dense(parameters)) }
    };
    let steps = match &chosen.fitted {
        Some(Fitted::Dense(parameters)) => Some(parameters.steps() as u64),
        Some(Fitted::Buffered(parameters)) => parameters.horizon,
        _ => None,
    };
    match steps.filter(|&steps| steps < purpose.horizon) {
        Some(steps) => Err(StrategiesError::Mismatch {
            path: path.into(),
            found: format!("{steps} steps"),
            expected: format!("{} steps", purpose.horizon),
        }),
        None => Ok(Found { chosen, lower_bound: None }),
    }
}

/// Returns the best strategy that runs with at most this many bytes of state per coordinate.
///
/// # Errors
/// [`StrategiesError::MemoryLimit`] if none does.
pub fn choose(
    purpose: &Purpose,
    memory_limit: u64,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Found, StrategiesError> {
    let mut best: Option<(f64, Found)> = None;
    for name in catalogue(purpose).into_iter().filter(StrategyName::runs) {
        let candidate = Candidate::new(&name, purpose, progress)?;
        let Some(strategy) = &candidate.strategy else { continue };
        if strategy.encoder_bytes() as u64 > memory_limit {
            continue;
        }
        let error = candidate.error_under(purpose)?;
        let value = purpose.objective.of(&error);
        if best.as_ref().is_none_or(|(least, _)| value < *least) {
            best = Some((value, Found { chosen: candidate.chosen, lower_bound: candidate.loss_lower_bound }));
        }
    }
    best.map(|(_, found)| found).ok_or(StrategiesError::MemoryLimit { limit: memory_limit })
}
