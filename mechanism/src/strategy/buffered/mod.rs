//! Strategies that keep a few decaying sums, called buffers: constant memory for any horizon.
//!
//! ```text
//! y_t = g_t x_t + Σ_j r_j(t),        r_j(t+1) = θ_tj r_j(t) + h_tj x_t
//! ```
//!
//! With constant coefficients this is a buffered linear Toeplitz matrix, BLT (Dvijotham, McMahan,
//! Pillutla, Steinke and Thakurta, "Efficient and near-optimal noise generation for streaming
//! differential privacy", 2024). A power law, whose decays are powers of time, does the same for
//! the running average, which has no time scale of its own. `variable` has coefficients that
//! follow both ends of a horizon: the same memory at nearly the error of the best C.
//!
//! With b buffers the encoder takes 16 b bytes per coordinate, the decoder 8 b. Encoding and
//! decoding a step take 2b + 1 multiplications per coordinate each. All entries of C are at least
//! 0, so no two columns have a negative inner product. Exception: a delay line (`periodic`), which
//! also takes 16 bytes more per step of the gap.
//!
//! C is the exact real matrix of the rounded coefficients (`steps`). The encoder keeps its buffers
//! in fixed point; `encoder` bounds the effect of their rounding.
//!
//! # Parameters
//! [`BufferedParameters`] are the parameters of a buffered strategy, as stored in a log.

mod correlator;
mod encoder;
mod fit;
mod periodic;
mod rows;
mod steps;
#[cfg(test)]
mod tests;
mod variable;
mod windows;

use super::step::check_step;
use super::{
    ColumnGeometry, Correlates, Correlation, Correlator, Decoder, Encoder, Factorization, Matrix,
    MatrixError, RowNorms, RowSamples, Specification, StepError, Strategy, StrategyError, StrategyName,
    StrategyParameters,
};
use crate::workload::Workload;
use correlator::BufferedCorrelator;
pub use encoder::InverseBuffer;
use encoder::{BufferedDecoder, BufferedEncoder};
pub use fit::FitError;
pub(super) use fit::{BLT, COMB_BLT, POWER_LAW, VARIABLE_BLT, variable_buffers_fit};
pub use periodic::{PeriodicBuffer, PeriodicBuffers, PeriodicCurve};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use steps::BufferCoefficients;

/// A buffered strategy, ready to run.
///
/// ```
/// use hushflow_mechanism::strategy::{Factorization, Strategy, StrategyName};
/// use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
/// use hushflow_mechanism::workload::Workload;
///
/// let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
/// let parameters = BufferedParameters { horizon: Some(1000), buffers };
/// let strategy = Buffered::new("blt:1".parse()?, parameters)?;
/// let mut encoder = strategy.encoder(1);
/// let mut row = [0];
/// encoder.encode(&[1], &mut row)?;
/// encoder.encode(&[0], &mut row)?;
/// assert_eq!(row[0] as f64 / 2f64.powi(40), 0.5);
/// assert_eq!(strategy.decoder_row_norms(&Workload::Prefix, 1).next(), Some(1.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Buffered {
    name: StrategyName,
    parameters: Arc<BufferedParameters>,
    coefficients: BufferCoefficients,
}

impl Buffered {
    /// The strategy called `name` with these parameters.
    ///
    /// # Errors
    /// [`StrategyError::Buffers`] and [`StrategyError::Horizon`] for parameters out of their
    /// documented ranges.
    pub fn new(name: StrategyName, parameters: BufferedParameters) -> Result<Self, StrategyError> {
        parameters.check(&name)?;
        let coefficients = BufferCoefficients::new(&parameters);
        if !coefficients.are_invertible() {
            let reason = "expected every diagonal entry to be at least 2^-40 of the norm of its column";
            return Err(StrategyError::Buffers { strategy: name.to_string(), reason });
        }
        Ok(Self { name, parameters: Arc::new(parameters), coefficients })
    }

    /// The parameters it was built from.
    pub fn parameters(&self) -> &BufferedParameters {
        &self.parameters
    }

    fn within_horizon(&self, steps: u64) -> u64 {
        steps.min(self.parameters.steps())
    }

    fn check_step(&self, steps: u64, rows: [usize; 2], expected: usize) -> Result<(), StepError> {
        check_step(Some(self.parameters.steps()), steps, expected, rows)
    }
}

/// The strategy with the parameters that a fit found.
fn of_parameters(specification: &Specification<'_>) -> Result<Arc<dyn Strategy>, StrategyError> {
    let name = specification.name.clone();
    match specification.fitted {
        Some(StrategyParameters::Buffered(parameters)) => {
            Ok(Arc::new(Buffered::new(name, parameters.clone())?))
        }
        _ => Err(StrategyError::NotFitted { strategy: name.to_string() }),
    }
}

type Square<const S: usize> = [[f64; S]; S];

/// Makes an array entry by entry. Hundreds of these functions are compiled, so this one avoids the
/// code that `std::array::from_fn` has for panics.
#[inline(always)]
fn array<const N: usize>(mut entry: impl FnMut(usize) -> f64) -> [f64; N] {
    let mut entries = [0.0; N];
    for (j, value) in entries.iter_mut().enumerate() {
        *value = entry(j);
    }
    entries
}

/// Makes a matrix from its entries by row and column.
#[inline(always)]
fn square<const S: usize>(mut entry: impl FnMut(usize, usize) -> f64) -> Square<S> {
    let mut entries = [[0.0; S]; S];
    for (j, row) in entries.iter_mut().enumerate() {
        for (k, value) in row.iter_mut().enumerate() {
            *value = entry(j, k);
        }
    }
    entries
}

macro_rules! for_count {
    ($count:expr, $type:ident :: new($($argument:expr),*)) => {
        match $count {
            1 => Box::new($type::<1>::new($($argument),*)),
            2 => Box::new($type::<2>::new($($argument),*)),
            3 => Box::new($type::<3>::new($($argument),*)),
            4 => Box::new($type::<4>::new($($argument),*)),
            5 => Box::new($type::<5>::new($($argument),*)),
            6 => Box::new($type::<6>::new($($argument),*)),
            7 => Box::new($type::<7>::new($($argument),*)),
            _ => Box::new($type::<8>::new($($argument),*)),
        }
    };
}

impl Factorization for Buffered {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        self.parameters.horizon
    }

    /// A Toeplitz matrix, or for a power law a dense one of up to
    /// [`MAX_DENSE_HORIZON`](super::MAX_DENSE_HORIZON) steps.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        rows::matrix(self, self.within_horizon(steps) as usize)
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        rows::max_norm_squared(self, self.within_horizon(steps))
    }

    /// Takes O(b²) per step and constant memory, O(kb) for a window. For matrices, and for windows
    /// of a strategy with a delay line, row t takes O(tb).
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        rows::norms(self, workload, self.within_horizon(steps))
    }

    /// Takes time almost independent of the number of steps. Exceptions, which take as long as
    /// [`decoder_row_norms`](Self::decoder_row_norms): matrices, and for a power law all workloads
    /// but running sums and averages.
    fn decoder_row_samples(&self, workload: &Workload, steps: u64) -> RowSamples<'_> {
        rows::samples(self, workload, self.within_horizon(steps))
    }
}

impl Strategy for Buffered {
    fn geometry(&self) -> ColumnGeometry {
        ColumnGeometry {
            max_norm_squared: rows::largest_norm_squared_of_all_steps(self),
            // By Cauchy-Schwarz, no overlap exceeds the largest squared norm.
            negative_overlap: match &self.coefficients {
                BufferCoefficients::Periodic(periodic) if periodic.delays > 0 => periodic.largest,
                _ => 0.0,
            },
            rounding_squared: encoder::rounding_squared(self),
        }
    }

    fn encoder_bytes(&self) -> usize {
        (self.parameters.count() + self.coefficients.delays()) * size_of::<i128>()
    }

    fn multiplications(&self) -> usize {
        let count = self.parameters.count();
        2 * (1 + 2 * count + if self.coefficients.delays() > 0 { 2 + count } else { 0 })
    }

    fn input_limit(&self) -> Option<u128> {
        Some(encoder::input_limit(self))
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        for_count!(self.parameters.count(), BufferedEncoder::new(self, coordinates))
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        for_count!(self.parameters.count(), BufferedDecoder::new(self, coordinates))
    }

    fn correlates(&self) -> Option<&dyn Correlates> {
        // Only Toeplitz buffers have a diagonal of ones.
        matches!(self.parameters.buffers, Buffers::Toeplitz(_)).then_some(self)
    }
}

impl Correlates for Buffered {
    fn correlation(&self, steps: u64) -> Correlation {
        correlator::correlation(self, self.within_horizon(steps))
    }

    fn correlator(&self, coordinates: usize, coarse_bits: u32) -> Box<dyn Correlator> {
        Box::new(BufferedCorrelator::new(self, coordinates, coarse_bits))
    }
}

/// Largest number of buffers of a buffered strategy.
pub const MAX_BUFFERS: u32 = 8;

/// Maximum number of steps of a Toeplitz strategy made for an unbounded stream: one step a second
/// for 136 years.
pub const ENDLESS_TOEPLITZ_STEPS: u64 = 1 << 32;

/// Maximum number of steps of a power law made for an unbounded stream: one step a minute for 31
/// years.
pub const ENDLESS_POWER_LAW_STEPS: u64 = 1 << 24;

/// Maximum number of steps of a strategy whose coefficients vary with time: it keeps a gain for
/// every step.
pub const MAX_VARIABLE_STEPS: u64 = 1 << 20;

/// Largest number of coefficients of a curve.
const MAX_KNOTS: usize = 256;

/// Largest magnitude of a coefficient of a curve, a logarithm.
const MAX_LOGARITHM: f64 = 40.0;

const MAX_EXPONENT: f64 = 64.0;

/// All parameters needed to rebuild exactly the same C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferedParameters {
    /// Number of steps it was fitted for; `None` for an unbounded stream.
    pub horizon: Option<u64>,
    /// The buffers.
    pub buffers: Buffers,
}

/// The decay of the buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffers {
    /// `C[t,i] = Σ_j ω_j θ_j^(t−i−1)` below a diagonal of ones.
    Toeplitz(Vec<ExponentialBuffer>),
    /// `C[t,i] ∝ Σ_j w_j i^(a_j) t^(−b_j)` below a diagonal of ones, columns scaled to norm 1.
    PowerLaw(Vec<PowerLawBuffer>),
    /// `C[t,i] ∝ δ_ti + Σ_j v_j(i) Π_(i<l<t) θ_j(l)`, columns scaled to norm 1.
    Variable(Vec<VariableBuffer>),
    /// Buffers that follow the phase of a participation, perhaps with a delay line.
    Periodic(PeriodicBuffers),
}

/// A buffer of a Toeplitz strategy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExponentialBuffer {
    /// θ, the decay per step: above 0 and below 1.
    pub decay: f64,
    /// ω, the contribution to the next step: above 0, at most 1.
    pub weight: f64,
}

/// A buffer of a power law.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PowerLawBuffer {
    /// a, at least 0: growth of the weight of later steps.
    pub growth: f64,
    /// b, above 1/2 and above a: speed of decay.
    pub decay: f64,
    /// w, above 0.
    pub weight: f64,
}

/// A buffer that varies with time: coefficients of cubic B-splines over `log((t − ½)/(n + ½ − t))`,
/// with uniform knots from the first to the last step of the horizon n. All curves of a strategy
/// have the same number of coefficients, 4 to 256, each between −40 and 40.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariableBuffer {
    /// The logarithm of θ/(1 − θ), where θ is the decay per step.
    pub decay: Vec<f64>,
    /// The logarithm of v, the contribution to the next step.
    pub weight: Vec<f64>,
}

impl BufferedParameters {
    /// Maximum number of steps that the strategy can run; 0 if it needs a horizon and has none.
    pub fn steps(&self) -> u64 {
        self.horizon.unwrap_or(match self.buffers {
            Buffers::Toeplitz(_) => ENDLESS_TOEPLITZ_STEPS,
            Buffers::PowerLaw(_) => ENDLESS_POWER_LAW_STEPS,
            Buffers::Variable(_) | Buffers::Periodic(_) => 0,
        })
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        match &self.buffers {
            Buffers::Toeplitz(buffers) => buffers.len(),
            Buffers::PowerLaw(buffers) => buffers.len(),
            Buffers::Variable(buffers) => buffers.len(),
            Buffers::Periodic(periodic) => periodic.buffers.len(),
        }
    }

    /// The same parameters, rounded to numbers that fixed point represents exactly.
    #[must_use]
    pub(crate) fn rounded(mut self) -> Self {
        if let Buffers::Toeplitz(buffers) = &mut self.buffers {
            for buffer in buffers {
                buffer.decay = (buffer.decay * TWO_64).floor() / TWO_64;
                buffer.weight = (buffer.weight * TWO_40).round() / TWO_40;
            }
        }
        self
    }

    fn check(&self, name: &StrategyName) -> Result<(), StrategyError> {
        let limit = match self.buffers {
            Buffers::Toeplitz(_) => ENDLESS_TOEPLITZ_STEPS,
            Buffers::PowerLaw(_) => ENDLESS_POWER_LAW_STEPS,
            Buffers::Variable(_) => MAX_VARIABLE_STEPS,
            Buffers::Periodic(_) => super::MAX_DENSE_HORIZON,
        };
        crate::strategy::check_horizon(name, self.steps(), limit)?;
        let reason = match &self.buffers {
            _ if self.count() == 0 || self.count() > MAX_BUFFERS as usize => "expected 1 to 8 buffers",
            Buffers::Toeplitz(buffers) => match toeplitz_reason(buffers) {
                Some(reason) => reason,
                None if self.clone().rounded() == *self => return Ok(()),
                None => "expected decays in units of 2^-64 and weights in units of 2^-40",
            },
            Buffers::PowerLaw(buffers) => match power_law_reason(buffers) {
                Some(reason) => reason,
                None => return Ok(()),
            },
            Buffers::Variable(buffers) => match variable_reason(buffers) {
                Some(reason) => reason,
                None => return Ok(()),
            },
            Buffers::Periodic(periodic) => match periodic.reason() {
                Some(reason) => reason,
                None => return Ok(()),
            },
        };
        Err(StrategyError::Buffers { strategy: name.to_string(), reason })
    }
}

/// 2⁶⁴: decays are multiples of 1/2⁶⁴.
const TWO_64: f64 = 18_446_744_073_709_551_616.0;

/// 2⁴⁰: coefficients are multiples of 1/2⁴⁰.
const TWO_40: f64 = (1u64 << crate::strategy::COEFFICIENT_BITS) as f64;

/// The inverse decays too if `1 + Σ ω_j/(−1 − θ_j) > 0`: then all its poles lie in (−1, 1).
fn toeplitz_reason(buffers: &[ExponentialBuffer]) -> Option<&'static str> {
    let decays = buffers.iter().all(|b| b.decay > 0.0 && b.decay < 1.0);
    let weights = buffers.iter().all(|b| b.weight > 0.0 && b.weight <= 1.0);
    let back: f64 = buffers.iter().map(|b| b.weight / (1.0 + b.decay)).sum();
    match () {
        () if !decays => Some("expected decays above 0 and below 1"),
        () if !weights => Some("expected weights above 0, at most 1"),
        () if !buffers.is_sorted_by(|a, b| a.decay > b.decay) => Some("expected decays to fall"),
        () if back.is_nan() || back >= 1.0 => {
            Some("its inverse does not forget: expected the sum of weight/(1 + decay) below 1")
        }
        () => None,
    }
}

fn variable_reason(buffers: &[VariableBuffer]) -> Option<&'static str> {
    let knots = buffers.first().map_or(0, |buffer| buffer.decay.len());
    let mut curves = buffers.iter().flat_map(|buffer| [&buffer.decay, &buffer.weight]);
    let lengths = (4..=MAX_KNOTS).contains(&knots) && curves.clone().all(|curve| curve.len() == knots);
    match () {
        () if !lengths => Some("expected curves of 4 to 256 coefficients, all of the same number"),
        () if !curves.all(|curve| curve.iter().all(|value| value.abs() <= MAX_LOGARITHM)) => {
            Some("expected coefficients of curves between -40 and 40")
        }
        () => None,
    }
}

fn power_law_reason(buffers: &[PowerLawBuffer]) -> Option<&'static str> {
    let exponents = buffers.iter().all(|b| b.growth >= 0.0 && b.decay > b.growth.max(0.5));
    let limits = buffers.iter().all(|b| b.decay <= MAX_EXPONENT);
    let weights = buffers.iter().all(|b| b.weight > 0.0 && b.weight <= TWO_40);
    match () {
        () if !exponents => Some("expected a growth of at least 0 and a decay above it and above 1/2"),
        () if !limits => Some("expected decays of at most 64"),
        () if !weights => Some("expected weights above 0, at most 2^40"),
        () => None,
    }
}
