//! Fits buffers for records that take part several times, with or without a delay line.
//!
//! Without one, buffers forget at different phases of the gap to begin with. Each curve has values
//! for parts of the gap, which the fit varies. With one, the curves do not depend on the phase, and
//! the corners of the absolute overlaps are smoothed less and less. Finally, the gain of each phase
//! is set so that its worst pattern has sensitivity 1. Nothing is random, and nothing depends on
//! the clock or the number of threads.

use super::{
    BufferedFit, FitError, MAX_BUFFERS, TOLERANCE, check_buffers, check_horizon, descent::minimize,
    periodic_loss::PeriodicLoss,
};
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    participation::ParticipationSchedule,
    strategy::{
        Factorization, Fit, Kind, MAX_DENSE_HORIZON, Objective, OptimisedStrategy, Purpose, SearchError,
        buffered::{
            self, Buffered, BufferedParameters, Buffers, PeriodicBuffer, PeriodicBuffers, PeriodicCurve,
            rows::WorkloadSums,
        },
        kind::ComparedStrategy,
    },
    workload::Workload,
};
use libm::{exp, log, sin};

/// `comb-blt:b`: b buffers behind a delay line of one gap.
pub(in crate::strategy) static COMB_BLT: Kind = Kind {
    number: Some(("buffers", MAX_BUFFERS)),
    horizon: MAX_DENSE_HORIZON,
    compared: |kind, purpose| compared_periodic(kind, purpose, 3),
    fit: Fit::Parameters {
        search: |name, purpose, progress| {
            fit_periodic(purpose, name.number().get(), true, progress)
                .map(OptimisedStrategy::from)
                .map_err(|source| SearchError::Fit { strategy: name.to_string(), source })
        },
        objective: false,
    },
    strategy: Some(buffered::of_parameters),
    ..Kind::new("comb-blt", "b buffers and a delay line: near the best C for participations at one gap")
};

/// Longest horizon for which a comparison fits them.
const QUICK_STEPS: u64 = 1024;

/// A strategy for several participations, with this number of buffers, in a comparison.
pub(super) fn compared_periodic(
    kind: &'static Kind,
    purpose: &Purpose,
    buffers: u32,
) -> Result<Vec<ComparedStrategy>, &'static str> {
    match WorkloadSums::new(&purpose.workload) {
        Some(_) if is_several(purpose) => Ok(vec![kind.numbered(buffers).up_to(QUICK_STEPS)]),
        Some(_) => Err("for several participations"),
        None => Err("for workloads with exponential memory"),
    }
}

/// Whether a record takes part more than once within the horizon.
pub(super) fn is_several(purpose: &Purpose) -> bool {
    purpose.participation.on(purpose.horizon as usize).count() > 1
}

/// Most steps of a phase: their inner products are kept for all pairs.
const MAX_MEMBERS: u64 = 1024;

/// Coefficients of a curve, and most parts of the gap.
const KNOTS: usize = 12;
const MAX_PARTS: usize = 100;

/// Widths of the smoothed corners, and the steps of a descent at each.
const LINE_STAGES: [(f64, usize); 3] = [(1e-2, 80), (1e-3, 80), (1e-4, 80)];
const BUFFER_STAGES: [(f64, usize); 1] = [(0.0, 600)];

/// Fits buffers to records that take part several times, at gaps of the participation.
///
/// # Errors
/// [`FitError`] for numbers out of range, workloads whose memory is not exponential, an objective
/// other than the root mean square, and records that take part once.
pub(super) fn fit_periodic(
    purpose: &Purpose,
    buffers: u32,
    delay: bool,
    progress: OnProgress<'_>,
) -> Result<BufferedFit, FitError> {
    let Purpose { workload, horizon, participation, objective, .. } = purpose;
    check_buffers(buffers)?;
    let refused = |reason| FitError::Workload { workload: workload.to_string(), reason };
    let sums = WorkloadSums::new(workload)
        .ok_or(refused("it must be `prefix`, `average`, `exponential:β`, `momentum:β` or `adam:β`"))?;
    check_horizon(workload, Some(*horizon))?;
    let schedule = participation.on(*horizon as usize);
    if schedule.count() < 2 {
        return Err(FitError::Once);
    }
    if *objective == Objective::MaxError {
        return Err(refused("for several participations, fit for the root mean square"));
    }
    let limit = MAX_DENSE_HORIZON.min(MAX_MEMBERS * schedule.gap() as u64);
    if *horizon > limit {
        return Err(FitError::Horizon { workload: workload.to_string(), found: *horizon, limit });
    }
    let cells = if delay { 0 } else { schedule.gap().min(MAX_PARTS) };
    let loss = PeriodicLoss::new(workload, sums, schedule, [KNOTS, cells], delay);
    let buffers = buffers as usize;
    let mut variables = start(&loss, schedule.gap(), buffers, cells, delay);
    let stages: &[(f64, usize)] = if delay { &LINE_STAGES } else { &BUFFER_STAGES };
    for (iteration, &(smoothing, steps)) in (1..).zip(stages) {
        let function = |variables: &[f64]| loss.log(buffers, variables, smoothing);
        let end = minimize(&function, &variables, steps, TOLERANCE);
        variables = end.variables;
        let objective = exp(0.5 * end.value);
        if progress(&OptimizerProgress { iteration, objective, ..Default::default() }).is_break() {
            break;
        }
    }
    let parameters = parameters(&loss, schedule, buffers, cells, delay, &variables);
    let value = value(workload, &parameters);
    Ok(BufferedFit { parameters, value, lower_bound: None })
}

/// The first variables. With a delay line, time constants are spread up to twice the gap; without
/// one, each buffer forgets at another phase.
fn start(loss: &PeriodicLoss, gap: usize, buffers: usize, cells: usize, delay: bool) -> Vec<f64> {
    let mut variables = vec![0.0; loss.variables(buffers)];
    let mut fill = |curve: usize, level: f64, phases: &dyn Fn(usize) -> f64| {
        let start = loss.start(buffers, curve);
        for knot in 0..KNOTS {
            // Curves without a slope would keep a symmetry that the best ones lack.
            variables[start + knot] = level + 0.02 * sin((knot * (curve + 1)) as f64);
        }
        for cell in 0..cells {
            variables[start + KNOTS + cell] = phases(cell) + 0.1 * sin((cell * (curve + 2)) as f64);
        }
    };
    let none = |_: usize| 0.0;
    for j in 0..buffers {
        if delay {
            let scale = log(2.0 * gap as f64) * (j as f64 + 0.5) / buffers as f64;
            fill(1 + 2 * j, scale, &none);
            fill(2 + 2 * j, log(0.5) - 0.5 * scale, &none);
            continue;
        }
        let width = gap as f64 / cells as f64;
        let age = |cell: usize| ((cell + cells - j * cells / buffers) % cells) as f64 * width;
        fill(1 + 2 * j, 0.0, &|cell| if age(cell) < width { -3.0 } else { log(age(cell) + 2.0) + 1.0 });
        fill(2 + 2 * j, 0.0, &|cell| -1.0 - 0.5 * log(gap as f64 - age(cell)));
    }
    if delay {
        fill(1 + 2 * buffers, -0.6, &none);
        fill(2 + 2 * buffers, -0.6, &none);
    }
    variables
}

fn parameters(
    loss: &PeriodicLoss,
    schedule: ParticipationSchedule,
    buffers: usize,
    cells: usize,
    delay: bool,
    variables: &[f64],
) -> BufferedParameters {
    let limited = |values: &[f64]| values.iter().map(|value| value.clamp(-40.0, 40.0)).collect();
    let curve = |curve: usize, phases: usize| {
        let values = &variables[loss.start(buffers, curve)..];
        PeriodicCurve { ends: limited(&values[..KNOTS]), phases: limited(&values[KNOTS..KNOTS + phases]) }
    };
    let buffer = |j: usize, phases: usize| PeriodicBuffer {
        decay: curve(1 + 2 * j, phases),
        weight: curve(2 + 2 * j, phases),
    };
    let gain = PeriodicCurve { phases: limited(&loss.levels(buffers, variables)), ..curve(0, 0) };
    let periodic = PeriodicBuffers {
        gap: schedule.gap() as u32,
        gain,
        buffers: (0..buffers).map(|j| buffer(j, cells)).collect(),
        delay: delay.then(|| buffer(buffers, 0)),
    };
    BufferedParameters { horizon: Some(schedule.horizon() as u64), buffers: Buffers::Periodic(periodic) }
}

/// The root mean square of the errors of the strategy as it runs. Its sensitivity is 1.
fn value(workload: &Workload, parameters: &BufferedParameters) -> f64 {
    let Ok(strategy) = Buffered::new(COMB_BLT.name(), parameters.clone()) else { return f64::INFINITY };
    let steps = parameters.steps();
    let rows = strategy.decoder_row_norms(workload, steps);
    (rows.map(|row| row * row).sum::<f64>() / steps as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;

    /// Total squared loss over the certified optimum.
    fn ratio(participation: &str, steps: u64, buffers: u32, delay: bool, optimum: f64) -> f64 {
        let workload = Workload::Prefix;
        let purpose =
            Purpose { participation: participation.parse().unwrap(), ..Purpose::new(workload, steps) };
        let fit = fit_periodic(&purpose, buffers, delay, &mut |_| ControlFlow::Continue(())).unwrap();
        let strategy = Buffered::new(COMB_BLT.name(), fit.parameters).unwrap();
        let matrix = strategy.matrix(steps).unwrap();
        let schedule = purpose.participation.on(steps as usize);
        let sum = |start| matrix.gram(&schedule.pattern(start)).iter().map(|x| x.abs()).sum::<f64>();
        let sensitivity = schedule.starts().map(sum).fold(0.0, f64::max);
        assert!((sensitivity - 1.0).abs() < 1e-6, "{sensitivity}");
        sensitivity * fit.value * fit.value * steps as f64 / optimum
    }

    #[test]
    fn buffers_come_near_the_optimum_of_several_participations() {
        for (participation, steps, buffers, optimum, excess) in [
            ("4x16", 64, 2, 1243.467, 0.10),
            ("4x16", 64, 4, 1243.467, 0.065),
            ("20x16", 320, 4, 83169.97, 0.15),
        ] {
            let ratio = ratio(participation, steps, buffers, false, optimum);
            assert!(ratio < 1.0 + excess, "{participation}, {buffers} buffers: {ratio}");
        }
    }

    #[test]
    fn a_delay_line_reaches_the_optimum_of_several_participations() {
        for (participation, steps, buffers, optimum, excess) in [
            ("4x16", 64, 3, 1243.467, 0.01),
            ("20x16", 320, 2, 83169.97, 0.03),
            ("20x16", 320, 3, 83169.97, 0.015),
        ] {
            let ratio = ratio(participation, steps, buffers, true, optimum);
            assert!(ratio < 1.0 + excess, "{participation}, {buffers} buffers: {ratio}");
        }
    }
}
