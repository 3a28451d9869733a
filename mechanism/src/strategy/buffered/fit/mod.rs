//! Fits the buffers of a strategy to a workload, a horizon and a participation schema.
//!
//! A fit goes from one buffer to the requested number. It starts from poles spread evenly over the
//! scales of time, and from the best fit with one buffer fewer, with a buffer added in each of its
//! gaps. The best result is kept, or the fit with one buffer fewer if that is better, so more
//! buffers are never worse. Nothing is random, and nothing depends on the clock or the number of
//! threads.

mod bound;
mod descent;
mod periodic;
mod periodic_errors;
mod periodic_loss;
mod power_law;
mod toeplitz;
mod variable;
mod variable_loss;

pub(in crate::strategy) use periodic::COMB_BLT;
pub(in crate::strategy) use power_law::POWER_LAW;
pub(in crate::strategy) use variable::{VARIABLE_BLT, variable_buffers_fit};

use super::{
    BufferedParameters, Buffers, ENDLESS_TOEPLITZ_STEPS, ExponentialBuffer, MAX_BUFFERS,
    encoder::{complements, inverse_complements},
    rows,
};
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    participation::Participation,
    strategy::{
        Fit, Kind, Objective, OptimisedStrategy, Purpose, SearchError, StrategyName, StrategyParameters,
    },
    workload::Workload,
};
use bound::toeplitz_lower_bound;
use descent::DualNumber;
use descent::minimize;
use thiserror::Error;
use toeplitz::{Repetition, ToeplitzLoss};

/// `blt:b`: a buffered linear Toeplitz matrix (Dvijotham et al., 2024), fitted to the workload.
pub(in crate::strategy) static BLT: Kind = Kind {
    number: Some(("buffers", MAX_BUFFERS)),
    compared: |kind, purpose| purpose.if_toeplitz([2, 5].map(|buffers| kind.numbered(buffers).always())),
    fit: Fit::Parameters { search: search_blt, objective: true },
    strategy: Some(super::of_parameters),
    ..Kind::new("blt", "b buffers, fitted: constant memory, near the best Toeplitz C")
};

fn search_blt(
    name: &StrategyName,
    purpose: &Purpose,
    progress: OnProgress<'_>,
) -> Result<OptimisedStrategy, SearchError> {
    let Purpose { workload, horizon, participation, objective, .. } = purpose;
    let schedule = participation.on(*horizon as usize);
    let repetition = (*participation != Participation::Single)
        .then(|| Repetition { count: schedule.count() as u64, gap: schedule.gap() as u64 });
    fit_blt(workload, Some(*horizon), repetition, *objective, name.number().get(), progress)
        .map(OptimisedStrategy::from)
        .map_err(|source| SearchError::Fit { strategy: name.to_string(), source })
}

/// Poles and zeros of 8 buffers.
type Poles = DualNumber<16>;

/// Longest workload given entry by entry: a fit stores n² numbers.
const MAX_MATRIX_STEPS: u64 = 4096;

/// Maximum number of participations of an entity: every evaluation of a loss visits all of them.
const MAX_PARTICIPATIONS: u64 = 4096;

/// Number of steps up to which a fit for the root mean square has a lower bound.
const BOUNDED_STEPS: u64 = 1 << 13;

/// A descent ends when a step gains less than this part of the loss.
const TOLERANCE: f64 = 1e-11;

/// The outcome of a fit.
#[derive(Clone, Debug, PartialEq)]
struct BufferedFit {
    /// Parameters of the strategy, rounded as it runs. It has fewer buffers than allowed if more do
    /// not help.
    parameters: BufferedParameters,
    /// Sensitivity times error: the standard deviation of the objective, with a noise multiplier of
    /// 1 and records of norm 1.
    value: f64,
    /// Lower bound for all Toeplitz strategies; `None` if none is known.
    lower_bound: Option<f64>,
}

impl From<BufferedFit> for OptimisedStrategy {
    fn from(fit: BufferedFit) -> Self {
        Self {
            fitted: StrategyParameters::Buffered(fit.parameters),
            objective: fit.value,
            lower_bound: None,
            class_bound: fit.lower_bound,
        }
    }
}

/// Reasons why there is no fit.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FitError {
    /// The number of buffers is out of range.
    #[error("{found} buffers are asked for; expected 1 to {MAX_BUFFERS}")]
    Buffers {
        /// The requested number.
        found: u32,
    },
    /// The number of steps is out of range.
    #[error("the horizon is {found} steps; for the workload `{workload}` it can be 1 to {limit}")]
    Horizon {
        /// As on the command line.
        workload: String,
        /// The requested number.
        found: u64,
        /// Largest number of steps.
        limit: u64,
    },
    /// The error of the workload grows without bound.
    #[error(
        "buffers that forget at a fixed pace need a horizon for the workload `{workload}`: say how many steps the stream has"
    )]
    NoHorizon {
        /// As on the command line.
        workload: String,
    },
    /// The count or the gap of a participation is 0.
    #[error("a participation of {count} times with a gap of {gap} is asked for; expected at least 1 of both")]
    Repetition {
        /// The requested count.
        count: u64,
        /// The requested gap.
        gap: u64,
    },
    /// An entity takes part too often.
    #[error(
        "an entity that takes part {found} times is asked for; a fit can deal with {MAX_PARTICIPATIONS} within the horizon"
    )]
    Participations {
        /// The requested count.
        found: u64,
    },
    /// The first row has the largest error for every strategy.
    #[error(
        "the largest error of the workload `{workload}` is that of its first step, which no strategy makes smaller than the identity does: \
         fit for the root mean square instead"
    )]
    FirstStep {
        /// As on the command line.
        workload: String,
    },
    /// A record takes part once, and the fit is for several participations.
    #[error(
        "a delay line helps only records that take part several times: say how often with --participation, as in 20x100"
    )]
    Once,
    /// This kind of fit does not support the workload.
    #[error("there is no such fit for the workload `{workload}`: {reason}")]
    Workload {
        /// As on the command line.
        workload: String,
        /// The requirement.
        reason: &'static str,
    },
}

/// Fits a buffered linear Toeplitz matrix with up to `buffers` buffers.
///
/// Sensitivity is that of records that take part as `repetition` says, or once if it is `None`. A
/// horizon of `None` is for a stream without end, and needs a workload that forgets: `exponential`,
/// `adam`, `window` or `window-mean`.
///
/// # Errors
/// All of [`FitError`] except [`FitError::Once`].
fn fit_blt(
    workload: &Workload,
    horizon: Option<u64>,
    repetition: Option<Repetition>,
    objective: Objective,
    buffers: u32,
    progress: OnProgress<'_>,
) -> Result<BufferedFit, FitError> {
    check_buffers(buffers)?;
    let steps = check_horizon(workload, horizon)?;
    let single = repetition.is_none_or(|repetition| repetition.count == 1);
    let repetition = repetition.unwrap_or(Repetition { count: 1, gap: steps });
    check_repetition(repetition, steps)?;
    check_objective(workload, objective)?;
    let loss = ToeplitzLoss::new(workload, horizon, steps, repetition, objective);
    let scales = scales(workload, steps, repetition);
    let (parameters, value) = grow(&loss, scales, horizon, buffers as usize, progress);
    let quick = horizon.is_none() || objective == Objective::MaxError || steps <= BOUNDED_STEPS;
    let lower_bound =
        if quick && single { toeplitz_lower_bound(workload, objective, &parameters) } else { None };
    Ok(BufferedFit { parameters, value, lower_bound })
}

fn check_repetition(Repetition { count, gap }: Repetition, steps: u64) -> Result<(), FitError> {
    match gap {
        _ if count == 0 || gap == 0 => Err(FitError::Repetition { count, gap }),
        _ if count.min(steps.div_ceil(gap)) > MAX_PARTICIPATIONS => {
            Err(FitError::Participations { found: count })
        }
        _ => Ok(()),
    }
}

fn check_buffers(buffers: u32) -> Result<(), FitError> {
    if (1..=MAX_BUFFERS).contains(&buffers) { Ok(()) } else { Err(FitError::Buffers { found: buffers }) }
}

fn check_horizon(workload: &Workload, horizon: Option<u64>) -> Result<u64, FitError> {
    let name = || workload.to_string();
    let limit = workload.horizon().map_or(ENDLESS_TOEPLITZ_STEPS, |rows| rows.min(MAX_MATRIX_STEPS));
    match horizon {
        Some(found) if !(1..=limit).contains(&found) => {
            Err(FitError::Horizon { workload: name(), found, limit })
        }
        Some(steps) => Ok(steps),
        None => match workload {
            Workload::Exponential(_) | Workload::Adam(_) | Workload::Window(_) | Workload::WindowMean(_) => {
                Ok(ENDLESS_TOEPLITZ_STEPS)
            }
            _ => Err(FitError::NoHorizon { workload: name() }),
        },
    }
}

fn check_objective(workload: &Workload, objective: Objective) -> Result<(), FitError> {
    let divided = matches!(workload, Workload::Average | Workload::Adam(_) | Workload::WindowMean(_));
    let name = || workload.to_string();
    match objective {
        Objective::MaxError if divided => Err(FitError::FirstStep { workload: name() }),
        Objective::MaxError if workload.toeplitz_part(0).is_none() => {
            let reason = "for the largest error, it must be a Toeplitz matrix";
            Err(FitError::Workload { workload: name(), reason })
        }
        _ => Ok(()),
    }
}

/// Time scales, in steps, over which the initial poles are spread.
fn scales(workload: &Workload, steps: u64, repetition: Repetition) -> Vec<u64> {
    let window = match workload {
        Workload::Window(length) | Workload::WindowMean(length) => length.get(),
        _ => steps,
    };
    let mut scales = vec![steps, repetition.gap.min(steps), window.min(steps), steps.isqrt()];
    scales.dedup();
    scales
}

/// Fits with 1, 2, … buffers, each from the one before.
fn grow(
    loss: &ToeplitzLoss,
    scales: Vec<u64>,
    horizon: Option<u64>,
    buffers: usize,
    progress: OnProgress<'_>,
) -> (BufferedParameters, f64) {
    let mut best: Option<(BufferedParameters, f64)> = None;
    let (mut poles, mut iteration): (Vec<f64>, _) = (Vec::new(), 0);
    'counts: for count in 1..=buffers {
        let fresh = scales.iter().map(|&steps| toeplitz::spread(loss.base, steps, count));
        let starts: Vec<_> = fresh.chain(insertions(loss.base, &poles)).collect();
        let mut lowest: Option<(Vec<f64>, f64)> = None;
        for start in starts {
            let end = descend(loss, &start);
            if lowest.as_ref().is_none_or(|(_, value)| end.1 < *value) {
                if let Some(found) = rounded(loss, &end.0, horizon)
                    && best.as_ref().is_none_or(|(_, value)| found.1 < *value)
                {
                    best = Some(found);
                }
                lowest = Some(end);
            }
            let value = best.as_ref().map_or(f64::INFINITY, |(_, value)| *value);
            iteration += 1;
            if progress(&OptimizerProgress { iteration, objective: value, ..OptimizerProgress::default() })
                .is_break()
            {
                break 'counts;
            }
        }
        poles = lowest.map(|(poles, _)| poles).unwrap_or_default();
    }
    best.unwrap_or_else(|| identity_like(loss, horizon))
}

/// Descends from complements. Returns complements and the logarithm of the loss.
fn descend(loss: &ToeplitzLoss, start: &[f64]) -> (Vec<f64>, f64) {
    let function = |variables: &[f64]| {
        let duals: Vec<_> = variables.iter().enumerate().map(|(j, &v)| Poles::variable(v, j)).collect();
        let loss = loss.log_loss(&loss.complements(&duals));
        (loss.value, loss.slopes[..variables.len()].to_vec())
    };
    let end = minimize(&function, &loss.variables(start), 300, TOLERANCE);
    let duals: Vec<_> = end.variables.iter().map(|&v| DualNumber::<0>::constant(v)).collect();
    let complements = loss.complements(&duals);
    (complements.iter().flatten().map(|c| c.value).collect(), end.value)
}

/// Inserts a pair in each of the gaps between poles and zeros, and before the first.
fn insertions(base: f64, poles: &[f64]) -> Vec<Vec<f64>> {
    let before = |j: usize| if j == 0 { base + (poles[0] - base) * 0.1 } else { poles[j - 1] };
    let insert = |j: usize| {
        let (low, high) = (before(j) - base, poles[j] - base);
        let between = |part: f64| base + low * libm::pow(high / low, part);
        let mut more = poles.to_vec();
        more.splice(j..j, [between(0.35), between(0.65)]);
        more
    };
    (0..poles.len()).map(insert).collect()
}

/// Returns the strategy with these poles, rounded as it runs, and its value; `None` if rounding
/// invalidates it.
fn rounded(loss: &ToeplitzLoss, poles: &[f64], horizon: Option<u64>) -> Option<(BufferedParameters, f64)> {
    let duals: Vec<_> =
        poles.as_chunks::<2>().0.iter().map(|pair| pair.map(DualNumber::<0>::constant)).collect();
    let weights = toeplitz::weights(&duals);
    let buffer = |(pair, weight): (&[f64; 2], DualNumber<0>)| ExponentialBuffer {
        decay: 1.0 - pair[0],
        weight: weight.value,
    };
    let buffers = Buffers::Toeplitz(poles.as_chunks::<2>().0.iter().zip(weights).map(buffer).collect());
    let parameters = BufferedParameters { horizon, buffers }.rounded();
    let value = value(loss, &parameters)?;
    Some((parameters, value))
}

/// Sensitivity times error of the rounded strategy.
fn value(loss: &ToeplitzLoss, parameters: &BufferedParameters) -> Option<f64> {
    let Buffers::Toeplitz(buffers) = &parameters.buffers else { return None };
    // The sensitivity to several participations requires coefficients that never grow.
    if loss.repetition.count > 1 && buffers.iter().map(|b| b.weight).sum::<f64>() > 1.0 {
        return None;
    }
    parameters.check(&BLT.name()).ok()?;
    let constants = |values: Vec<f64>| values.into_iter().map(DualNumber::<0>::constant).collect::<Vec<_>>();
    let (poles, zeros) = (constants(complements(buffers)), constants(inverse_complements(buffers)));
    let Repetition { count, gap } = loss.repetition;
    let sensitivity = rows::participation_norm_squared(buffers, loss.steps, count, gap);
    Some((sensitivity * loss.error_squared(&poles, &zeros).value).sqrt()).filter(|value| value.is_finite())
}

/// One buffer with almost no effect: the fallback if no descent ends at a strategy.
fn identity_like(loss: &ToeplitzLoss, horizon: Option<u64>) -> (BufferedParameters, f64) {
    let buffer = ExponentialBuffer { decay: 0.5, weight: 0.5f64.powi(40) };
    let parameters = BufferedParameters { horizon, buffers: Buffers::Toeplitz(vec![buffer]) };
    let value = value(loss, &parameters).unwrap_or(f64::INFINITY);
    (parameters, value)
}

#[cfg(test)]
mod tests;
