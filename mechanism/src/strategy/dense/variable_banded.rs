//! Fits the scales of bands that vary near both ends of the stream.
//!
//! All columns have norm 1. With no more bands than steps between participations they are
//! orthogonal within every pattern, so the sensitivity to k participations is √k, also for larger
//! gaps. The fit for a single participation is then the one for several.
//!
//! The coefficients are those of the square root of the workload, damped: `m_d ∝ r_d e^(−λ d)`. Far
//! from both ends, the best λ brings the loss within 10⁻⁴ of that of the best Toeplitz C with as
//! many bands. So a fit has one variable for λ, and a few for the curves of the row factors.
//!
//! A window of any length behaves like one of a few epochs, and a long stream differs from a
//! shorter one only by equal rows between its ends. So a fit uses a short stream of short windows,
//! whose middle rows have the weight of all middle rows of the long stream. It evaluates n × n
//! matrices for the length n of the short stream, so it takes the same few seconds at any horizon.

use super::banded::{BandedObjective, descend};
use super::root::refusal;
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    strategy::{
        Factorization, Fit, Kind, MAX_DENSE_HORIZON, Objective, OptimisedStrategy, Purpose, StrategyError,
        StrategyName, StrategyParameters,
        toeplitz::{
            self, MAX_LOGARITHM, MAX_REACH, MAX_SCALED_BANDS, MAX_SCALED_HORIZON, Toeplitz, VariableBands,
            check_root, workload_root,
        },
    },
    workload::Workload,
};
use libm::{exp, log};
use nalgebra::DMatrix;
use std::num::NonZeroU64;

/// `variable-banded:b`: b bands with scaled rows and columns.
pub(in crate::strategy) static VARIABLE_BANDED: Kind = Kind {
    number: Some(("bands", MAX_SCALED_BANDS)),
    horizon: MAX_SCALED_HORIZON,
    compared: |kind, purpose| {
        if purpose.gap().is_none() || is_window(&purpose.workload) {
            return Ok(vec![bands_for_window(purpose)?.always()]);
        }
        if purpose.horizon > MAX_OTHER_STEPS {
            return Err("beyond 512 epochs it is for windows");
        }
        purpose.if_toeplitz([kind.numbered(purpose.bands_apart()).always()])
    },
    fit: Fit::Parameters {
        search: |name, purpose, progress| {
            let bands = fit(name, purpose, progress)?;
            let objective = value(name, purpose, &bands)?;
            let fitted = StrategyParameters::VariableBands(bands);
            Ok(OptimisedStrategy { fitted, objective, lower_bound: None, class_bound: None })
        },
        objective: true,
    },
    strategy: Some(toeplitz::of_variable_bands),
    ..Kind::new("variable-banded", "b bands that vary near both ends, fitted: for windows, near the best C")
};

/// Returns a sufficient number of bands for a window: three for each of its epochs, and one more,
/// but not more than the columns of one entity can have without overlaps.
///
/// # Errors
/// Returns the purposes for which there are such bands if this one is not among them.
pub(in crate::strategy) fn bands_for_window(purpose: &Purpose) -> Result<StrategyName, &'static str> {
    let (Workload::Window(length) | Workload::WindowMean(length)) = &purpose.workload else {
        return Err("for windows");
    };
    let bands = length.get().min(purpose.horizon).saturating_mul(3).saturating_add(1);
    let gap = purpose.gap();
    match u32::try_from(bands.min(gap.unwrap_or(u64::MAX))) {
        // The sensitivity to several participations is computed from the matrix, entry by entry.
        _ if gap.is_some() && purpose.horizon > MAX_DENSE_HORIZON => {
            Err("for several participations, at most 4096 epochs")
        }
        _ if purpose.horizon > MAX_SCALED_HORIZON => Err("for at most 2^24 epochs"),
        Ok(bands) if bands <= MAX_SCALED_BANDS => Ok(VARIABLE_BANDED.numbered(bands)),
        _ => Err("the window needs more than 1024 bands"),
    }
}

/// Number of coefficients of a curve.
const KNOTS: usize = 6;

/// Length of a scaled end, in windows.
const REACH: u64 = 8;

/// Longest stream that is fitted directly, and longest stream for workloads other than windows.
const DIRECT_STEPS: u64 = 256;
const MAX_OTHER_STEPS: u64 = 512;

/// Length of the window that represents longer ones, and the longest stream of a fit, in windows:
/// two ends, and a middle that is far from both.
const SHORT_WINDOW: u64 = 12;
const MAX_WINDOWS: u64 = 20;

/// Largest number of windows that the short stream represents. A larger number would distort λ: the
/// middle of a stream of [`MAX_WINDOWS`] windows differs a little from that of a long one.
const MAX_REPRESENTED: u64 = 60;

const ITERATIONS: usize = 150;

/// Weight of a penalty that keeps curves small if the loss does not determine them.
const RIDGE: f64 = 1e-6;

/// λ times the length of the window, at the start.
const DAMPING: f64 = 0.08;

/// Exponents of the norms that approximate the maximum of the errors, one after the other.
const MAXIMUM_EXPONENTS: [f64; 3] = [4.0, 16.0, 64.0];

fn fit(
    name: &StrategyName,
    purpose: &Purpose,
    progress: OnProgress<'_>,
) -> Result<VariableBands, StrategyError> {
    let Purpose { workload, horizon, .. } = purpose;
    let limit = if is_window(workload) { MAX_SCALED_HORIZON } else { MAX_OTHER_STEPS };
    drop(refusal(name, workload, *horizon, limit)?);
    let bands = u64::from(name.number().get()).min(*horizon);
    check_root(name, workload, bands)?;
    let short = ShortStream::new(workload, *horizon, bands);
    let objective: &[f64] = match purpose.objective {
        Objective::Rmse => &[1.0],
        Objective::MaxError => &MAXIMUM_EXPONENTS,
    };
    let mut variables = vec![0.0; 1 + 2 * KNOTS];
    variables[0] = log(DAMPING);
    for (&exponent, iteration) in objective.iter().zip(1..) {
        let loss = short.loss(exponent);
        variables = descend(variables, ITERATIONS, |variables| loss.evaluate(variables));
        let reached = exp(0.5 * loss.evaluate(&variables).0);
        let reached = OptimizerProgress { iteration, objective: reached, ..OptimizerProgress::default() };
        if progress(&reached).is_break() {
            break;
        }
    }
    let scale = scale(workload, *horizon);
    let limited =
        |curve: &[f64]| curve.iter().map(|value| value.clamp(-MAX_LOGARITHM, MAX_LOGARITHM)).collect();
    Ok(VariableBands {
        horizon: *horizon,
        coefficients: toeplitz::units(&damped(workload, bands as usize, exp(variables[0]) / scale as f64)),
        reach: reach(scale),
        start: limited(&variables[1..=KNOTS]),
        end: limited(&variables[1 + KNOTS..]),
    })
}

fn is_window(workload: &Workload) -> bool {
    matches!(workload, Workload::Window(_) | Workload::WindowMean(_))
}

/// The memory of the workload within the horizon.
fn scale(workload: &Workload, horizon: u64) -> u64 {
    match workload {
        Workload::Window(length) | Workload::WindowMean(length) => length.get().min(horizon),
        _ => horizon,
    }
}

fn reach(scale: u64) -> u64 {
    (REACH * scale).min(MAX_REACH)
}

/// The root of the workload, divided by its first coefficient and damped; at most 1 in magnitude.
fn damped(workload: &Workload, bands: usize, damping: f64) -> Vec<f64> {
    let root = workload_root(workload, bands);
    let largest = root.iter().fold(0.0, |largest: f64, r| largest.max(r.abs()));
    root.iter().enumerate().map(|(lag, r)| r / largest * exp(-damping * lag as f64)).collect()
}

/// Returns the objective of the strategy that runs.
fn value(name: &StrategyName, purpose: &Purpose, bands: &VariableBands) -> Result<f64, StrategyError> {
    let strategy = Toeplitz::scaled_bands(name.clone(), bands)?;
    let samples = strategy.decoder_row_samples(&purpose.workload, purpose.horizon);
    Ok(match purpose.objective {
        Objective::Rmse => {
            let squares = samples.map(|sample| sample.weight * sample.norm * sample.norm);
            (squares.sum::<f64>() / purpose.horizon as f64).sqrt()
        }
        Objective::MaxError => samples.map(|sample| sample.norm).fold(0.0, f64::max),
    })
}

/// A short stream that represents the stream of the fit.
struct ShortStream {
    workload: Workload,
    steps: u64,
    bands: u64,
    /// Length of a scaled end.
    reach: u64,
    /// Rows of the long stream for every row in the middle of this one.
    middle: f64,
}

impl ShortStream {
    fn new(workload: &Workload, horizon: u64, bands: u64) -> Self {
        let scale = scale(workload, horizon);
        if horizon <= DIRECT_STEPS || !is_window(workload) {
            let (workload, reach) = (workload.clone(), reach(scale));
            return Self { workload, steps: horizon, bands, reach, middle: 1.0 };
        }
        let window = scale.min(SHORT_WINDOW);
        let short = NonZeroU64::new(window).unwrap_or(NonZeroU64::MIN);
        let ratio = window as f64 / scale as f64;
        let long = (horizon as f64 * ratio).min((MAX_REPRESENTED * window) as f64);
        let steps = (long.round() as u64).min(MAX_WINDOWS * window);
        Self {
            workload: match workload {
                Workload::WindowMean(_) => Workload::WindowMean(short),
                _ => Workload::Window(short),
            },
            steps,
            reach: ((reach(scale) as f64 * ratio).round() as u64).max(1),
            bands: (((bands - 1) as f64 * ratio).round() as u64 + 1).min(steps),
            middle: 1.0 + (long - steps as f64).max(0.0) / window as f64,
        }
    }

    fn loss(&self, exponent: f64) -> ShortLoss {
        let scale = scale(&self.workload, self.steps);
        let first = (self.steps - scale) / 2;
        let weight = self.middle.powf(0.5 / exponent);
        let rows = DMatrix::from_fn(self.steps as usize, self.steps as usize, |t, i| {
            let middle = (first..first + scale).contains(&(t as u64));
            let entry = self.workload.coefficient(t as u64 + 1, i as u64 + 1);
            if middle { weight * entry } else { entry }
        });
        let curves = VariableBands {
            horizon: self.steps,
            coefficients: Vec::new(),
            reach: self.reach,
            start: Vec::new(),
            end: Vec::new(),
        };
        ShortLoss {
            objective: BandedObjective::new(&rows, self.bands as usize).with_exponent(exponent),
            root: damped(&self.workload, self.bands as usize, 0.0),
            scale: scale as f64,
            shares: (0..self.steps).map(|t| curves.shares(KNOTS, t)).collect(),
        }
    }
}

/// The loss as a function of log λ and both curves.
struct ShortLoss {
    objective: BandedObjective,
    root: Vec<f64>,
    scale: f64,
    /// For each distance from an end: the first spline that is not 0 there, and the values of four
    /// splines from it on.
    shares: Vec<(usize, [f64; 4])>,
}

impl ShortLoss {
    fn evaluate(&self, variables: &[f64]) -> (f64, Vec<f64>) {
        let damping = exp(variables[0]) / self.scale;
        let (start, end) = variables[1..].split_at(KNOTS);
        let steps = self.shares.len();
        let curve = |values: &[f64], (first, shares): &(usize, [f64; 4])| -> f64 {
            shares.iter().zip(values.get(*first..).unwrap_or(&[])).map(|(share, value)| share * value).sum()
        };
        let row = |t: usize| exp(curve(start, &self.shares[t]) + curve(end, &self.shares[steps - 1 - t]));
        let rows: Vec<f64> = (0..steps).map(row).collect();
        let lags: Vec<f64> =
            self.root.iter().enumerate().map(|(lag, r)| r * exp(-damping * lag as f64)).collect();
        let entries: Vec<f64> = self.objective.positions().map(|(t, i)| rows[t] * lags[t - i]).collect();
        let (value, slopes) = self.objective.evaluate(&entries);
        let ridge: f64 = variables[1..].iter().map(|value| RIDGE * value * value).sum();
        let mut gradient: Vec<f64> = variables.iter().map(|value| 2.0 * RIDGE * value).collect();
        gradient[0] = 0.0;
        let mut by_row = vec![0.0; steps];
        for (((t, i), entry), slope) in self.objective.positions().zip(&entries).zip(&slopes) {
            by_row[t] += slope * entry;
            gradient[0] -= slope * entry * damping * (t - i) as f64;
        }
        let (by_start, by_end) = gradient[1..].split_at_mut(KNOTS);
        for (t, slope) in by_row.iter().enumerate() {
            for (by_curve, (first, shares)) in
                [(&mut *by_start, &self.shares[t]), (&mut *by_end, &self.shares[steps - 1 - t])]
            {
                let near = by_curve.get_mut(*first..).unwrap_or_default();
                near.iter_mut().zip(shares).for_each(|(by, share)| *by += share * slope);
            }
        }
        (value + ridge, gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        optimize::loss_bound,
        participation::Participation,
        sensitivity::{ClaimKind, participation_sensitivity},
    };
    use std::ops::ControlFlow;

    fn fitted(workload: &str, horizon: u64, bands: u32, objective: Objective) -> (VariableBands, f64) {
        let purpose = Purpose { objective, ..Purpose::new(workload.parse().unwrap(), horizon) };
        let name = VARIABLE_BANDED.numbered(bands);
        let bands = fit(&name, &purpose, &mut |_: &_| ControlFlow::Continue(())).unwrap();
        let value = value(&name, &purpose, &bands).unwrap();
        (bands, value)
    }

    /// Compares fits with certified optima of the total squared error: for ends that are short
    /// relative to the window, for the window itself, and for shorter windows that represent it.
    #[test]
    fn three_windows_of_bands_reach_the_optimum() {
        let cases = [
            (2, 96, 38.733548317168385),
            (7, 96, 6.041112458107606),
            (10, 96, 3.4174061893497196),
            (30, 96, 0.5283955186484943),
            (30, 365, 2.201783301910843),
            (100, 365, 0.2661459113774678),
            (10, 512, 18.794416745847066),
            (100, 1000, 0.7830975456348334),
        ];
        for (window, steps, optimum) in cases {
            let (bands, value) = fitted(&format!("window:{window}"), steps, 3 * window + 1, Objective::Rmse);
            let ratio = value * value * steps as f64 / optimum;
            assert!((0.9999..1.0035).contains(&ratio), "window:{window}, {steps} steps: {ratio}");
            assert!(serde_json::to_string(&bands).unwrap().len() < 1000 + 14 * bands.coefficients.len());
        }
    }

    /// The loss per step of the best C tends to the square of the mean of |a(e^(iφ))| over φ, where
    /// a is the series of the workload.
    #[test]
    fn long_streams_reach_the_limit_of_the_optimum() {
        for (window, limit) in [(10, 0.036969813392421995), (30, 0.006229934238001308)] {
            for steps in [100_000, 10_000_000] {
                let (_, value) = fitted(&format!("window:{window}"), steps, 3 * window + 1, Objective::Rmse);
                let ratio = value * value / limit;
                assert!((0.99..1.003).contains(&ratio), "window:{window}, {steps} steps: {ratio}");
            }
        }
    }

    #[test]
    fn a_fit_for_the_largest_error_makes_it_smaller() {
        let largest = |objective| {
            let (bands, _) = fitted("window:5", 64, 16, objective);
            let purpose =
                Purpose { objective: Objective::MaxError, ..Purpose::new("window:5".parse().unwrap(), 64) };
            value(&VARIABLE_BANDED.name(), &purpose, &bands).unwrap()
        };
        let [by_mean, by_largest] = [Objective::Rmse, Objective::MaxError].map(largest);
        assert!(by_largest < 0.995 * by_mean, "{by_largest} against {by_mean}");
    }

    #[test]
    fn gradient_agrees_with_differences() {
        for (workload, horizon, exponent) in
            [("window:3", 300, 1.0), ("window:4", 20, 4.0), ("prefix", 9, 1.0)]
        {
            let loss = ShortStream::new(&workload.parse().unwrap(), horizon, 7).loss(exponent);
            let point: Vec<f64> = (0..=2 * KNOTS).map(|j| 0.3 * libm::sin(j as f64) - 0.2).collect();
            let gradient = loss.evaluate(&point).1;
            for (position, slope) in gradient.iter().enumerate() {
                let at = |shift: f64| {
                    let mut point = point.clone();
                    point[position] += shift;
                    loss.evaluate(&point).0
                };
                let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((difference - slope).abs() < 1e-6, "{workload}, {position}: {difference} {slope}");
            }
        }
    }

    /// Bands that end before the next participation: their columns are orthogonal within patterns.
    #[test]
    fn bands_within_the_gap_come_near_the_optimum_of_several_participations() {
        for (workload, steps, participation, most) in [
            ("window:10", 200, "5x10+", 1.03),
            ("window:10", 200, "5x20", 1.01),
            ("window:7", 100, "10x7+", 1.06),
            ("prefix", 64, "4x16+", 1.11),
        ] {
            let participation: Participation = participation.parse().unwrap();
            let purpose = Purpose { participation, ..Purpose::new(workload.parse().unwrap(), steps) };
            let compared = crate::strategy::compare(&purpose, false).strategies;
            let name =
                compared.into_iter().find(|name| name.to_string().starts_with("variable-banded")).unwrap();
            let bands = fit(&name, &purpose, &mut |_: &_| ControlFlow::Continue(())).unwrap();
            let matrix = Toeplitz::scaled_bands(name.clone(), &bands).unwrap().matrix(steps).unwrap();
            let claim = participation_sensitivity(&matrix, participation, 2).unwrap();
            let count = participation.on(steps as usize).count() as f64;
            assert!(
                claim.kind == ClaimKind::Exact && (claim.squared / count - 1.0).abs() < 1e-6,
                "{claim:?}"
            );
            let loss = claim.squared * value(&name, &purpose, &bands).unwrap().powi(2) * steps as f64;
            let ratio = loss / loss_bound(&purpose.workload, steps, participation).unwrap();
            assert!((1.0..most).contains(&ratio), "{workload}, {participation}: {ratio}");
        }
    }

    #[test]
    fn other_workloads_are_fitted_for_short_streams_only() {
        let (_, banded) = fitted("exponential:0.9", 64, 16, Objective::Rmse);
        let root = crate::strategy::build("banded-square-root:16", &"exponential:0.9".parse().unwrap(), None);
        let root = root.unwrap();
        let workload = "exponential:0.9".parse().unwrap();
        let squares: f64 = root.decoder_row_norms(&workload, 64).map(|norm| norm * norm).sum();
        assert!(banded * banded * 64.0 < squares * root.max_column_norm_squared(64));
        let purpose = Purpose::new(workload, MAX_OTHER_STEPS + 1);
        let refused = fit(&VARIABLE_BANDED.numbered(4), &purpose, &mut |_: &_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(StrategyError::Horizon { .. })), "{refused:?}");
    }
}
