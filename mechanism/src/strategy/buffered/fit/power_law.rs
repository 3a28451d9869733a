//! Power laws for the running average.
//!
//! The running average and its best strategies look the same at every time scale, so their entries
//! have the form `i^a t^(−b)` instead of θ^(t−i). The error of the running average has a finite sum
//! over all steps, most of it from the first few dozen. So a fit to the first [`FITTED_STEPS`]
//! serves every longer stream.

use super::{
    BufferedFit, FitError, TOLERANCE, check_buffers,
    descent::DualNumber,
    descent::{DescentPoint, minimize},
};
use crate::{
    optimize::{OnProgress, OptimizerProgress},
    strategy::{
        Factorization, Fit, Kind, OptimisedStrategy, SearchError,
        buffered::{
            self, Buffered, BufferedParameters, Buffers, ENDLESS_POWER_LAW_STEPS, MAX_BUFFERS,
            PowerLawBuffer, steps::column_norm_squared,
        },
    },
    workload::Workload,
};
use libm::{exp, log, log1p};

const FITTED_STEPS: u64 = 512;

/// Growth, decay and weight of 8 buffers.
type Exponents = DualNumber<24>;

/// `power-law:b`: b buffers that decay as powers of time.
pub(in crate::strategy) static POWER_LAW: Kind = Kind {
    number: Some(("buffers", MAX_BUFFERS)),
    compared: |kind, purpose| match purpose.workload {
        Workload::Average => Ok([1, 2].map(|buffers| kind.numbered(buffers).always()).into()),
        _ => Err("for `average`"),
    },
    fit: Fit::Parameters {
        search: |name, purpose, progress| {
            fit_power_law(&purpose.workload, None, name.number().get(), progress)
                .map(OptimisedStrategy::from)
                .map_err(|source| SearchError::Fit { strategy: name.to_string(), source })
        },
        objective: false,
    },
    strategy: Some(buffered::of_parameters),
    ..Kind::new("power-law", "b buffers for the running average, fitted")
};

/// Fits a power law with up to `buffers` buffers to the running average, with or without a horizon.
///
/// Sensitivity is that of records that take part once. The value is the root of the mean squared
/// error over the first 512 steps, or over the horizon if that is shorter.
///
/// # Errors
/// [`FitError::Buffers`], [`FitError::Horizon`], and [`FitError::Workload`] for every workload but
/// the average.
pub(super) fn fit_power_law(
    workload: &Workload,
    horizon: Option<u64>,
    buffers: u32,
    progress: OnProgress<'_>,
) -> Result<BufferedFit, FitError> {
    check_buffers(buffers)?;
    let workload_name = workload.to_string();
    if *workload != Workload::Average {
        let reason = "a power law is fitted to `average` alone";
        return Err(FitError::Workload { workload: workload_name, reason });
    }
    let limit = ENDLESS_POWER_LAW_STEPS;
    if let Some(found) = horizon.filter(|steps| !(1..=limit).contains(steps)) {
        return Err(FitError::Horizon { workload: workload_name, found, limit });
    }
    let (parameters, value) = grow(horizon, buffers as usize, progress);
    Ok(BufferedFit { parameters, value, lower_bound: None })
}

fn grow(horizon: Option<u64>, buffers: usize, progress: OnProgress<'_>) -> (BufferedParameters, f64) {
    let function = |variables: &[f64]| log_loss(variables, horizon);
    let (mut variables, mut iteration): (Vec<f64>, _) = (Vec::new(), 0);
    let mut best: Option<(BufferedParameters, f64)> = None;
    'counts: for _ in 0..buffers {
        let mut lowest: Option<DescentPoint> = None;
        for start in starts(&variables) {
            let end = minimize(&function, &start, 200, TOLERANCE);
            if let Some(found) = as_it_runs(&end.variables, horizon)
                && best.as_ref().is_none_or(|(_, value)| found.1 < *value)
            {
                best = Some(found);
            }
            if lowest.as_ref().is_none_or(|lowest| end.value < lowest.value) {
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
        variables = lowest.map(|point| point.variables).unwrap_or_default();
    }
    best.unwrap_or_else(|| {
        let buffers = Buffers::PowerLaw(vec![PowerLawBuffer { growth: 1.0, decay: 1.5, weight: 1e-12 }]);
        (BufferedParameters { horizon, buffers }, f64::INFINITY)
    })
}

/// Returns starts with one more buffer, which grows slower than, faster than, or between the
/// existing ones.
fn starts(variables: &[f64]) -> Vec<Vec<f64>> {
    let mut growths: Vec<f64> = variables.iter().step_by(3).copied().collect();
    growths.sort_by(f64::total_cmp);
    let mut positions: Vec<f64> = growths.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
    positions.push(growths.first().map_or(0.0, |slowest| slowest - 1.5));
    positions.push(growths.last().map_or(0.5, |fastest| fastest + 1.5));
    let extended = |position: f64| variables.iter().copied().chain([position, log(0.45), log(0.3)]).collect();
    positions.into_iter().map(extended).collect()
}

fn buffers_of(variables: &[f64]) -> Vec<PowerLawBuffer> {
    let buffer = |[growth, gap, weight]: &[f64; 3]| {
        let growth = exp(*growth);
        PowerLawBuffer { growth, decay: growth + exp(*gap), weight: exp(*weight) }
    };
    variables.as_chunks::<3>().0.iter().map(buffer).collect()
}

/// Returns the strategy that runs and its value; `None` if the variables are invalid.
fn as_it_runs(variables: &[f64], horizon: Option<u64>) -> Option<(BufferedParameters, f64)> {
    let parameters = BufferedParameters { horizon, buffers: Buffers::PowerLaw(buffers_of(variables)) };
    let strategy = Buffered::new(POWER_LAW.name(), parameters.clone()).ok()?;
    let steps = fitted_steps(horizon);
    let rows = strategy.decoder_row_norms(&Workload::Average, steps);
    let total: f64 = rows.map(|row| row * row).sum();
    Some((parameters, (total / steps as f64).sqrt()))
}

fn fitted_steps(horizon: Option<u64>) -> u64 {
    horizon.map_or(FITTED_STEPS, |steps| steps.min(FITTED_STEPS))
}

/// Logarithm of the summed squared errors of columns of norm 1, and its gradient.
fn log_loss(variables: &[f64], horizon: Option<u64>) -> (f64, Vec<f64>) {
    let buffers = buffers_of(variables);
    if buffers.iter().any(|b| b.decay <= 0.5 || b.decay > 64.0) {
        return (f64::INFINITY, vec![0.0; variables.len()]);
    }
    let mut noise = NoiseCovariance::new(buffers.len());
    let mut total = Exponents::constant(0.0);
    for t in 1..=fitted_steps(horizon) {
        let variance = noise.advance(&buffers, horizon, t);
        total = total + variance * Exponents::constant(1.0 / (t as f64 * t as f64));
    }
    let loss = total.log();
    let chain = |(j, buffer): (usize, &PowerLawBuffer)| {
        let [by_growth, by_decay, by_weight] = std::array::from_fn(|part| loss.slopes[3 * j + part]);
        let gap = buffer.decay - buffer.growth;
        [(by_growth + by_decay) * buffer.growth, by_decay * gap, by_weight * buffer.weight]
    };
    (loss.value, buffers.iter().enumerate().flat_map(chain).collect())
}

/// The covariance of the buffers and the running sum when the noise of every step has unit
/// variance, with derivatives.
struct NoiseCovariance {
    covariance: Vec<Vec<Exponents>>,
}

impl NoiseCovariance {
    fn new(buffers: usize) -> Self {
        Self { covariance: vec![vec![Exponents::constant(0.0); buffers + 1]; buffers + 1] }
    }

    /// Advances by step t. Returns the variance of the running sum after it. The increment is
    /// `N_t z` with `z = y − Σ r`.
    fn advance(&mut self, buffers: &[PowerLawBuffer], horizon: Option<u64>, t: u64) -> Exponents {
        let count = buffers.len();
        let zero = Exponents::constant(0.0);
        let sum = |row: &[Exponents]| row[..count].iter().fold(zero, |sum, &entry| sum - entry);
        let overlap: Vec<_> = self.covariance.iter().map(|row| sum(row)).collect();
        let variance = sum(&overlap) + Exponents::constant(1.0);
        let (decays, inputs) = coefficients(buffers, horizon, t);
        for j in 0..=count {
            for k in 0..=j {
                let kept = self.covariance[j][k] * decays[j] * decays[k];
                let crossed = decays[j] * overlap[j] * inputs[k] + inputs[j] * overlap[k] * decays[k];
                let entry = kept + crossed + inputs[j] * inputs[k] * variance;
                self.covariance[j][k] = entry;
                self.covariance[k][j] = entry;
            }
        }
        self.covariance[count][count]
    }
}

/// Factors of the buffers' and the running sum's own values, and of z.
fn coefficients(
    buffers: &[PowerLawBuffer],
    horizon: Option<u64>,
    t: u64,
) -> (Vec<Exponents>, Vec<Exponents>) {
    let time = t as f64;
    let decay = |(j, b): (usize, &PowerLawBuffer)| {
        let rate = log1p(1.0 / time);
        let value = exp(-b.decay * rate);
        Exponents::variable(0.0, 3 * j + 1).map(value, -rate * value)
    };
    let input = |(j, b): (usize, &PowerLawBuffer)| {
        let [now, next] = [time, time + 1.0].map(log);
        let part = exp(b.growth * now - b.decay * next);
        let slopes = [(b.weight * part * now), (-b.weight * part * next), part];
        let parts =
            slopes.into_iter().enumerate().map(|(k, slope)| (Exponents::variable(0.0, 3 * j + k), slope));
        Exponents::compose(b.weight * part, parts)
    };
    let mut decays: Vec<_> = buffers.iter().enumerate().map(decay).collect();
    let mut inputs: Vec<_> = buffers.iter().enumerate().map(input).collect();
    decays.push(Exponents::constant(1.0));
    inputs.push(norm(buffers, horizon, t));
    (decays, inputs)
}

/// N_t with its derivatives.
fn norm(buffers: &[PowerLawBuffer], horizon: Option<u64>, t: u64) -> Exponents {
    let (square, slopes) = column_norm_squared(buffers, horizon, t);
    let parts = slopes.iter().flatten().enumerate().map(|(j, &slope)| (Exponents::variable(0.0, j), slope));
    let square = Exponents::compose(square, parts);
    let root = square.value.sqrt();
    square.map(root, 0.5 / root)
}
