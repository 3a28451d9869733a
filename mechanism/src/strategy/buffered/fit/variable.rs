//! Fits the curves of buffers that vary with time.
//!
//! A fit begins with a short horizon, where steps are cheap, from several starts. It continues at
//! four times the horizon, with the curves stretched along the logarithmic axis: time scales
//! between 1 and n keep their positions. Each stage starts with the curvature estimate of the
//! previous stage. The fit is deterministic and depends neither on the clock nor on the number of
//! threads.

use super::{
    BufferedFit, FitError, MAX_BUFFERS, TOLERANCE, check_buffers, check_horizon,
    descent::Descent,
    periodic::{self, compared_periodic, fit_periodic, takes_part_repeatedly},
    variable_loss::VariableLoss,
};
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    strategy::{
        Factorization, Fit, Kind, Objective, OptimisedStrategy, Purpose, SearchError,
        buffered::{
            self, Buffered, BufferedParameters, Buffers, MAX_VARIABLE_STEPS, VariableBuffer,
            rows::WorkloadSums,
        },
    },
    workload::Workload,
};
use libm::{exp, log};

/// `variable-blt:b`: b buffers whose decays and weights vary with time.
pub(in crate::strategy) static VARIABLE_BLT: Kind = Kind {
    number: Some(("buffers", MAX_BUFFERS)),
    horizon: MAX_VARIABLE_STEPS,
    compared: |kind, purpose| {
        if takes_part_repeatedly(purpose) {
            return compared_periodic(kind, purpose, 4);
        }
        if WorkloadSums::new(&purpose.workload).is_none() {
            return Err("for workloads with exponential memory");
        }
        Ok([2, 3, 4, 5].map(|buffers| kind.numbered(buffers).up_to(QUICK_STEPS)).into())
    },
    fit: Fit::Parameters {
        search: |name, purpose, progress| {
            let buffers = name.number().get();
            let fit = if takes_part_repeatedly(purpose) {
                fit_periodic(purpose, buffers, false, progress)
            } else {
                fit_variable(&purpose.workload, purpose.horizon, purpose.objective, buffers, progress)
            };
            fit.map(OptimisedStrategy::from)
                .map_err(|source| SearchError::Fit { strategy: name.to_string(), source })
        },
        objective: true,
    },
    strategy: Some(buffered::of_parameters),
    ..Kind::new("variable-blt", "b buffers that vary with time, fitted: constant memory, near the best C")
};

/// Longest horizon for which these buffers are compared or are the default. The fit takes a second.
/// Each construction of the strategy takes a tenth of a second for the gains.
const QUICK_STEPS: u64 = 1 << 17;

/// Whether these buffers suit the purpose and are quick to fit: in a few seconds for several
/// participations.
pub(in crate::strategy) fn variable_buffers_fit(purpose: &Purpose) -> bool {
    let limit = if takes_part_repeatedly(purpose) { periodic::QUICK_STEPS } else { QUICK_STEPS };
    purpose.horizon <= limit && WorkloadSums::new(&purpose.workload).is_some()
}

/// Number of coefficients of a curve.
const KNOTS: usize = 12;

/// Longest horizon of the first stage, and the ratio to the next one.
const FIRST_STEPS: u64 = 64;
const STAGE_RATIO: u64 = 4;

/// Steps of a descent in the first stage, and in later stages before the whole horizon.
const DESCENT_STEPS: [usize; 2] = [100, 60];

/// Steps of a descent with the whole horizon: more if they are cheap. For the largest error the
/// number is fixed, because after more steps the descent for the next norm would begin with a worse
/// estimate of the curvature.
fn last_descent(horizon: u64, objective: Objective) -> usize {
    match objective {
        Objective::Rmse => ((1 << 15) / horizon).clamp(100, 400) as usize,
        Objective::MaxError => 100,
    }
}

/// Number of successive steps with almost no gain that end a descent.
const PATIENCE: usize = 5;

/// Shares of the logarithmic axis over which the first time constants are spread.
const SPREADS: [f64; 3] = [1.0, 0.8, 0.6];

/// Exponents of the norms of the squared errors that approximate their maximum, in the order of
/// the stages.
const MAXIMUM_NORMS: [f64; 4] = [4.0, 32.0, 256.0, 2048.0];

/// Fits buffers that vary with time to a workload, for records that take part once.
///
/// # Errors
/// [`FitError::Buffers`], [`FitError::Horizon`], and [`FitError::Workload`] for workloads whose
/// memory is not exponential.
fn fit_variable(
    workload: &Workload,
    steps: u64,
    objective: Objective,
    buffers: u32,
    progress: OnProgress<'_>,
) -> Result<BufferedFit, FitError> {
    check_buffers(buffers)?;
    let workload_name = workload.to_string();
    let Some(sums) = WorkloadSums::new(workload) else {
        let reason = "it must be `prefix`, `average`, `exponential:β`, `momentum:β` or `adam:β`";
        return Err(FitError::Workload { workload: workload_name, reason });
    };
    check_horizon(workload, Some(steps))?;
    if steps > MAX_VARIABLE_STEPS {
        return Err(FitError::Horizon { workload: workload_name, found: steps, limit: MAX_VARIABLE_STEPS });
    }
    let (mut before, mut iteration, mut continues) = (0, 0, true);
    let mut best: Vec<(Descent, Vec<f64>)> = Vec::new();
    for stage in stages(steps, objective) {
        let loss = VariableLoss::new(workload, sums, stage.steps, KNOTS, stage.norm);
        let starts = match best.pop() {
            None => {
                SPREADS.map(|spread| (Descent::patient(PATIENCE), start(stage.steps, buffers, spread))).into()
            }
            Some((descent, curves)) => vec![(descent, stretched(curves, before, stage.steps))],
        };
        before = stage.steps;
        let mut lowest = f64::INFINITY;
        for (mut descent, start) in starts {
            let length = if continues { stage.descent } else { 0 };
            let end = descent.run(&|curves| loss.log(curves), &start, length, TOLERANCE);
            if end.value < lowest || best.is_empty() {
                lowest = end.value;
                best = vec![(descent, end.variables)];
            }
            iteration += 1;
            let reached = OptimizerProgress { iteration, objective: exp(0.5 * lowest), ..Default::default() };
            continues = continues && progress(&reached).is_continue();
        }
    }
    let parameters = parameters(steps, &best.pop().map(|(_, curves)| curves).unwrap_or_default());
    let value = value(workload, objective, &parameters);
    Ok(BufferedFit { parameters, value, lower_bound: None })
}

/// A descent at a horizon, for a norm of the errors.
struct Stage {
    steps: u64,
    norm: f64,
    descent: usize,
}

/// Stages from the shortest horizon to the longest, where each norm has a stage of its own.
fn stages(steps: u64, objective: Objective) -> Vec<Stage> {
    let mut horizons = vec![steps];
    while let Some(&horizon) = horizons.last().filter(|horizon| **horizon > FIRST_STEPS) {
        horizons.push(horizon.div_ceil(STAGE_RATIO));
    }
    let norms: &[f64] = match objective {
        Objective::Rmse => &[1.0],
        Objective::MaxError => &MAXIMUM_NORMS,
    };
    let [first, between] = DESCENT_STEPS;
    let last = last_descent(steps, objective);
    let shorter = horizons.split_off(1).into_iter().rev().enumerate();
    let shorter = shorter.map(|(number, steps)| Stage {
        steps,
        norm: norms[0],
        descent: if number == 0 { first } else { between },
    });
    shorter.chain(norms.iter().map(|&norm| Stage { steps, norm, descent: last })).collect()
}

/// Time constants spread over the logarithmic axis, with entries of C that fall with the root of
/// the lag.
fn start(steps: u64, buffers: u32, spread: f64) -> Vec<f64> {
    let scale = |j: u32| log(steps.max(2) as f64) * spread * (f64::from(j) + 0.5) / f64::from(buffers);
    // Curves without a slope would keep a symmetry that the best curves lack.
    let curve = |j: u32, level: f64| {
        (0..KNOTS).map(move |knot| level + 0.01 * libm::sin((knot as u32 * (j + 1)) as f64))
    };
    let decays = (0..buffers).flat_map(|j| curve(j, scale(j)));
    let weights = (0..buffers).flat_map(|j| curve(j, log(0.5) - 0.5 * scale(j)));
    decays.chain(weights).collect()
}

/// The curves of a longer horizon.
fn stretched(mut curves: Vec<f64>, before: u64, steps: u64) -> Vec<f64> {
    let ratio = log(steps.max(2) as f64) / log(before.max(2) as f64);
    curves.iter_mut().for_each(|coefficient| *coefficient *= ratio);
    curves
}

/// The decay curves of all buffers come first, then those of their weights.
fn parameters(steps: u64, curves: &[f64]) -> BufferedParameters {
    let limited = |curve: &[f64]| curve.iter().map(|value| value.clamp(-40.0, 40.0)).collect();
    let (decays, weights) = curves.split_at(curves.len() / 2);
    let curves = decays.chunks(KNOTS).zip(weights.chunks(KNOTS));
    let buffers =
        curves.map(|(decay, weight)| VariableBuffer { decay: limited(decay), weight: limited(weight) });
    BufferedParameters { horizon: Some(steps), buffers: Buffers::Variable(buffers.collect()) }
}

/// The objective of the strategy as it runs.
fn value(workload: &Workload, objective: Objective, parameters: &BufferedParameters) -> f64 {
    let Ok(strategy) = Buffered::new(VARIABLE_BLT.name(), parameters.clone()) else { return f64::INFINITY };
    let steps = parameters.steps();
    let rows = strategy.decoder_row_norms(workload, steps);
    match objective {
        Objective::Rmse => (rows.map(|row| row * row).sum::<f64>() / steps as f64).sqrt(),
        Objective::MaxError => rows.fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    fn fitted(workload: &str, steps: u64, objective: Objective, buffers: u32) -> f64 {
        let (workload, progress) = (workload.parse().unwrap(), &mut |_: &_| ControlFlow::Continue(()));
        fit_variable(&workload, steps, objective, buffers, progress).unwrap().value
    }

    #[test]
    fn a_fit_for_the_largest_error_makes_it_smaller() {
        let workload = "prefix".parse().unwrap();
        let largest = |objective| {
            let progress = &mut |_: &_| ControlFlow::Continue(());
            let fit = fit_variable(&workload, 512, objective, 3, progress).unwrap();
            value(&workload, Objective::MaxError, &fit.parameters)
        };
        let [by_mean, by_largest] = [Objective::Rmse, Objective::MaxError].map(largest);
        assert!(by_largest < 0.95 * by_mean, "{by_largest} against {by_mean}");
    }

    /// Certified lower bounds of the total squared error of all strategies.
    #[test]
    fn few_buffers_reach_the_optimum() {
        let optima = [
            ("prefix", 1, 1.0),
            ("prefix", 33, 119.283),
            ("prefix", 512, 3842.16),
            ("average", 96, 2.91507),
            ("average", 512, 3.01695),
            ("exponential:0.9", 10, 18.0546),
            ("exponential:0.99", 512, 2277.24),
            ("exponential:0.999", 1000, 7352.09),
            ("momentum:0.9", 365, 107069.6),
            ("adam:0.99", 512, 3.18902),
        ];
        for (workload, steps, optimum) in optima {
            for (buffers, excess) in [(3, 0.003), (5, 0.0005)] {
                let value = fitted(workload, steps, Objective::Rmse, buffers);
                let ratio = value * value * steps as f64 / optimum;
                assert!(ratio < 1.0 + excess, "{workload}, {steps}, {buffers} buffers: {ratio}");
            }
        }
    }

    /// Lower bounds of the largest error of all strategies: the least weighted squared error, for
    /// weights of the steps that an independent program found.
    #[test]
    fn few_buffers_reach_the_least_largest_error() {
        let bounds = [
            ("prefix", 365, 2.641896),
            ("exponential:0.9", 96, 1.446954),
            ("exponential:0.999", 33, 1.903277),
            ("momentum:0.9", 96, 13.485306),
        ];
        for (workload, steps, bound) in bounds {
            let ratio = fitted(workload, steps, Objective::MaxError, 3) / bound;
            assert!(ratio < 1.002, "{workload}, {steps}: {ratio}");
        }
    }
}
