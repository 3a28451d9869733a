//! Fits buffers for records that take part several times, with or without a delay line.
//!
//! A fit begins with `blt`, the best Toeplitz strategy with the same number of buffers. The buffers
//! of `blt` are constant. If the fit finds nothing better than `blt`, it returns `blt`.
//!
//! - *At one gap.* Each curve has values for parts of the gap, which the fit varies. It descends
//!   twice: from that Toeplitz strategy, and from buffers that forget at different phases of the
//!   gap. The gain of each phase is set so that its worst pattern has sensitivity 1.
//! - *With a delay line.* The curves do not depend on the phase.
//! - *At gaps that may be longer* (`20x100+`). Both descents minimise the loss for equal gaps. In
//!   the descent from the Toeplitz strategy, neither curves nor gains depend on the phase. The
//!   results of both are compared by their sensitivity to all gaps.
//!
//! The corners of absolute overlaps and the maximum over patterns are smoothed less and less. The
//! fit is deterministic: it does not depend on the clock or the number of threads.

use super::{
    BufferedFit, FitError, MAX_BUFFERS, TOLERANCE, check_buffers, check_horizon, descent::Descent, fit_blt,
    periodic_loss::PeriodicLoss, toeplitz::Repetition,
};
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    participation::ParticipationSchedule,
    strategy::{
        Factorization, Fit, Kind, MAX_DENSE_HORIZON, Objective, OptimisedStrategy, Purpose, SearchError,
        buffered::{
            self, Buffered, BufferedParameters, Buffers, ExponentialBuffer, PeriodicBuffer, PeriodicBuffers,
            PeriodicCurve, rows::WorkloadSums,
        },
        kind::ComparedStrategy,
        participation_sensitivity,
    },
};
use libm::{exp, log, sin};
use std::ops::ControlFlow;

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

/// Longest horizon for which a comparison of strategies includes this fit.
pub(super) const QUICK_STEPS: u64 = 1024;

/// Entry of a comparison of strategies: this kind, with this number of buffers.
pub(super) fn compared_periodic(
    kind: &'static Kind,
    purpose: &Purpose,
    buffers: u32,
) -> Result<Vec<ComparedStrategy>, &'static str> {
    match WorkloadSums::new(&purpose.workload) {
        Some(_) if takes_part_repeatedly(purpose) => Ok(vec![kind.numbered(buffers).up_to(QUICK_STEPS)]),
        Some(_) => Err("for several participations"),
        None => Err("for workloads with exponential memory"),
    }
}

/// Whether a record takes part more than once within the horizon.
pub(super) fn takes_part_repeatedly(purpose: &Purpose) -> bool {
    purpose.participation.on(purpose.horizon as usize).count() > 1
}

/// Maximum number of steps of a phase. The inner products of all pairs of them are kept.
const MAX_MEMBERS: u64 = 1024;

/// Number of coefficients of a curve.
const KNOTS: usize = 12;
/// Maximum number of parts of a gap.
const MAX_PARTS: usize = 100;

/// Steps of a descent between two progress reports.
const REPORTED_STEPS: usize = 80;

/// Smoothing of maxima.
#[derive(Clone, Copy, Debug)]
pub(super) struct Smoothing {
    /// Width of the corners of absolute values.
    pub(super) corner: f64,
    /// Exponent of the norm that approximates the maximum over patterns.
    pub(super) norm: f64,
}

/// Stages of a descent.
const STAGES: [Smoothing; 3] = [
    Smoothing { corner: 1e-2, norm: 32.0 },
    Smoothing { corner: 1e-3, norm: 256.0 },
    Smoothing { corner: 1e-4, norm: 2048.0 },
];

/// A dimension above 1, so that no bound that holds only for scalars is used.
const VECTORS: usize = 2;

/// Weight of a buffer that the Toeplitz strategy does not use.
const UNUSED_WEIGHT: f64 = 1e-4;

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
    let buffers = buffers as usize;
    let (mut iteration, mut is_stopped) = (0, false);
    let mut report = |objective: f64| {
        if !is_stopped {
            iteration += 1;
            let reached = OptimizerProgress { iteration, objective, ..Default::default() };
            is_stopped = progress(&reached).is_break();
        }
        if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let repetition = Repetition { count: schedule.count() as u64, gap: schedule.gap() as u64 };
    let toeplitz =
        fit_blt(workload, Some(*horizon), Some(repetition), *objective, buffers as u32, &mut |found| {
            report(found.objective)
        })?;
    let constant = match &toeplitz.parameters.buffers {
        Buffers::Toeplitz(buffers) => buffers.clone(),
        _ => Vec::new(),
    };
    let is_flexible = schedule.is_flexible();
    let parts = schedule.gap().min(MAX_PARTS);
    // Whether a descent starts from constant buffers, and the number of parts of the gap.
    let starts: &[(bool, usize)] = match (delay, is_flexible) {
        (true, _) => &[(false, 0)],
        (false, true) => &[(true, 0), (false, parts)],
        (false, false) => &[(true, parts), (false, parts)],
    };
    let mut best = toeplitz;
    for &(is_constant, cells) in starts {
        if report(best.value).is_break() {
            break;
        }
        let is_shared = is_flexible && cells == 0 && !delay;
        let loss = PeriodicLoss::new(workload, sums, schedule, [KNOTS, cells], delay, is_shared);
        let mut variables = match is_constant {
            true => start_of_constant(&loss, &constant, buffers, cells),
            false => start(&loss, schedule.gap(), buffers, cells, delay),
        };
        let mut descent = Descent::patient(0);
        'descent: for stage in STAGES {
            // Without a delay line no overlap is negative.
            let smoothing = Smoothing { corner: if delay { stage.corner } else { 0.0 }, ..stage };
            let function = |variables: &[f64]| loss.log(buffers, variables, smoothing);
            if delay {
                // The curvature near a wide corner is not that near a narrower one.
                descent = Descent::patient(0);
            }
            for _ in 0..if delay { 1 } else { 3 } {
                let end = descent.run(&function, &variables, REPORTED_STEPS, TOLERANCE);
                variables = end.variables;
                if report(exp(0.5 * end.value) / (*horizon as f64).sqrt()).is_break() {
                    break 'descent;
                }
            }
        }
        let parameters = parameters(&loss, schedule, buffers, cells, delay, &variables);
        let value = value(purpose, &parameters);
        if value < best.value {
            best = BufferedFit { parameters, value, lower_bound: None };
        }
    }
    Ok(best)
}

/// The variables of constant buffers, with phases that differ a little.
fn start_of_constant(
    loss: &PeriodicLoss,
    constant: &[ExponentialBuffer],
    buffers: usize,
    cells: usize,
) -> Vec<f64> {
    let mut variables = vec![0.0; loss.variables(buffers)];
    for j in 0..buffers {
        // A fit has fewer buffers than allowed if more do not help.
        let (decay, weight) = match constant.get(j) {
            Some(buffer) => (buffer.decay, buffer.weight),
            None => (0.5, UNUSED_WEIGHT),
        };
        for (curve, level) in [(1 + 2 * j, log(decay / (1.0 - decay))), (2 + 2 * j, log(weight))] {
            let start = loss.start(buffers, curve);
            variables[start..start + KNOTS].fill(level);
            for cell in 0..cells {
                variables[start + KNOTS + cell] = 0.02 * sin((cell * (curve + 2)) as f64);
            }
        }
    }
    variables
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

/// Sensitivity times the root mean square of the errors of the strategy as it runs.
fn value(purpose: &Purpose, parameters: &BufferedParameters) -> f64 {
    let steps = parameters.steps();
    let Ok(strategy) = Buffered::new(COMB_BLT.name(), parameters.clone()) else { return f64::INFINITY };
    // Gains are clamped to their ranges, so the sensitivity may differ from 1.
    let sensitivity = || {
        let matrix = strategy.matrix(steps).ok()?;
        participation_sensitivity(&matrix, purpose.participation, VECTORS).ok()
    };
    let squared = sensitivity().map_or(f64::INFINITY, |claim| claim.squared);
    let rows = strategy.decoder_row_norms(&purpose.workload, steps);
    (squared * rows.map(|row| row * row).sum::<f64>() / steps as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

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

    /// Sensitivity times error, both from the matrix.
    fn loss(purpose: &Purpose, parameters: &BufferedParameters) -> f64 {
        let strategy = Buffered::new(COMB_BLT.name(), parameters.clone()).unwrap();
        let matrix = strategy.matrix(purpose.horizon).unwrap();
        let claim = participation_sensitivity(&matrix, purpose.participation, VECTORS).unwrap();
        let workload = purpose.workload.matrix(purpose.horizon as usize);
        let decoder = workload * matrix.entries().try_inverse().unwrap();
        (claim.squared * decoder.norm_squared() / purpose.horizon as f64).sqrt()
    }

    #[test]
    fn no_fit_is_worse_than_that_of_constant_buffers() {
        for (workload, participation, steps) in [
            ("prefix", "4x16", 64),
            ("prefix", "4x16+", 64),
            ("prefix", "20x5", 150),
            ("prefix", "20x5+", 150),
            ("prefix", "2x40+", 90),
            ("average", "10x4", 60),
            ("momentum:0.9", "3x20+", 80),
        ] {
            let participation = participation.parse().unwrap();
            let purpose = Purpose { participation, ..Purpose::new(workload.parse().unwrap(), steps) };
            let schedule = participation.on(steps as usize);
            let repetition = Repetition { count: schedule.count() as u64, gap: schedule.gap() as u64 };
            for buffers in [2, 4] {
                let proceed: OnProgress<'_> = &mut |_| ControlFlow::Continue(());
                let (workload, objective) = (&purpose.workload, Objective::Rmse);
                let blt = fit_blt(workload, Some(steps), Some(repetition), objective, buffers, proceed);
                let blt = loss(&purpose, &blt.unwrap().parameters);
                for delay in [false, true] {
                    let proceed: OnProgress<'_> = &mut |_| ControlFlow::Continue(());
                    let fit = fit_periodic(&purpose, buffers, delay, proceed).unwrap();
                    let found = loss(&purpose, &fit.parameters);
                    let named = format!("{workload} {participation} {buffers} {delay}: {found} and {blt}");
                    assert!(found <= blt * (1.0 + 1e-9), "{named}");
                    assert!((fit.value / found - 1.0).abs() < 1e-6, "{named}, not {}", fit.value);
                }
            }
        }
    }

    /// If few patterns reach the horizon, and at gaps that may be longer, fits are better than
    /// constant buffers, whose loss is 1.2347 times the optimum.
    #[test]
    fn fits_gain_where_patterns_are_short() {
        for (participation, buffers, delay, ratio) in
            [("20x5", 2, false, 1.16), ("20x5", 4, true, 1.08), ("20x5+", 2, false, 1.22)]
        {
            let participation = participation.parse().unwrap();
            let purpose = Purpose { participation, ..Purpose::new(Workload::Prefix, 400) };
            let proceed: OnProgress<'_> = &mut |_| ControlFlow::Continue(());
            let fit = fit_periodic(&purpose, buffers, delay, proceed).unwrap();
            let found = loss(&purpose, &fit.parameters).powi(2) * 400.0 / 252_929.865_98;
            assert!(found < ratio, "{participation} {buffers} {delay}: {found}");
        }
    }

    /// A fit that is stopped returns the best strategy so far.
    #[test]
    fn a_fit_can_be_stopped_at_every_report() {
        let participation = "4x8".parse().unwrap();
        let purpose = Purpose { participation, ..Purpose::new(Workload::Prefix, 40) };
        let fit = |reports: usize| {
            let mut left = reports;
            fit_periodic(&purpose, 2, false, &mut |_| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap()
            .value
        };
        let (first, whole) = (fit(1), fit(1000));
        assert!(whole < 0.999 * first && (2..20).map(fit).all(|value| whole <= value && value <= first));
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
