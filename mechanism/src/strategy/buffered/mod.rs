//! Strategies that keep a few decaying sums, called buffers: constant memory for any horizon.
//!
//! ```text
//! y_t = g_t x_t + Σ_j r_j(t),        r_j(t+1) = θ_tj r_j(t) + h_tj x_t
//! ```
//!
//! With constant coefficients this is a buffered linear Toeplitz matrix, BLT (Dvijotham, McMahan,
//! Pillutla, Steinke and Thakurta, "Efficient and near-optimal noise generation for streaming
//! differential privacy", 2024). A power law, whose decays are powers of time, does the same for
//! the running average, which looks alike at every time scale.
//!
//! With b buffers the encoder takes 16 b bytes per coordinate, the decoder 8 b. A step takes b
//! multiplications per coordinate. All entries of C are at least 0, so no two columns point away
//! from each other.
//!
//! C is the exact real matrix of the rounded coefficients (`steps`). The encoder keeps its buffers
//! in fixed point; `encoder` bounds the effect of their rounding.

mod columns;
mod correlator;
mod encoder;
mod fit;
mod inverse;
mod parameters;
mod rows;
mod steps;

pub use fit::FitError;
pub(super) use fit::{BLT, POWER_LAW};
pub use inverse::InverseBuffer;
pub use parameters::{
    BufferedParameters, Buffers, ENDLESS_POWER_LAW_STEPS, ENDLESS_TOEPLITZ_STEPS, ExponentialBuffer,
    MAX_BUFFERS, PowerLawBuffer,
};

use super::{
    ColumnGeometry, Correlates, Correlation, Correlator, Decoder, Encoder, Factorization, Matrix,
    MatrixError, RowNorms, RowSamples, Specification, StepError, Strategy, StrategyError, StrategyName,
    StrategyParameters, step::check_step,
};
use crate::workload::Workload;
use correlator::BufferedCorrelator;
use encoder::BufferedEncoder;
use inverse::BufferedDecoder;
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
fn of_parameters(made: &Specification<'_>) -> Result<Arc<dyn Strategy>, StrategyError> {
    let name = made.name.clone();
    match made.fitted {
        Some(StrategyParameters::Buffered(parameters)) => {
            Ok(Arc::new(Buffered::new(name, parameters.clone())?))
        }
        _ => Err(StrategyError::NotFitted { strategy: name.to_string() }),
    }
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
        columns::matrix(self, self.within_horizon(steps) as usize)
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        columns::max_norm_squared(self, self.within_horizon(steps))
    }

    /// Takes O(b²) per step and constant memory, O(k) for a window of a Toeplitz strategy. For
    /// matrices, and for windows of a power law, row t takes O(tb).
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
            max_norm_squared: columns::lasting_norm_squared(self),
            negative_overlap: 0.0,
            rounding_squared: encoder::rounding_squared(&self.parameters),
        }
    }

    fn encoder_bytes(&self) -> usize {
        self.parameters.count() * size_of::<i128>()
    }

    fn multiplications(&self) -> usize {
        2 * (1 + 2 * self.parameters.count())
    }

    fn input_limit(&self) -> Option<u128> {
        Some(encoder::input_limit(&self.parameters))
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        for_count!(self.parameters.count(), BufferedEncoder::new(self, coordinates))
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        for_count!(self.parameters.count(), BufferedDecoder::new(self, coordinates))
    }

    fn correlates(&self) -> Option<&dyn Correlates> {
        // The diagonal of a power law is not one.
        matches!(self.parameters.buffers, Buffers::Toeplitz(_)).then_some(self)
    }
}

impl Correlates for Buffered {
    fn correlation(&self, steps: u64) -> Correlation {
        correlator::correlation(self, self.within_horizon(steps))
    }

    fn correlator(&self, coordinates: usize, coarse_bits: u32) -> Box<dyn Correlator> {
        for_count!(self.parameters.count(), BufferedCorrelator::new(self, coordinates, coarse_bits))
    }
}

#[cfg(test)]
mod tests;
