//! Strategies: the matrices C that correlate a step's sums with those of earlier steps before the
//! noise is added.
//!
//! The C that runs *is* the mechanism. Its coefficients are integers in units of
//! 2^-[`COEFFICIENT_BITS`], so encoding integer sums is exact. Recursive strategies keep their
//! state in fixed point and state how much their rounding can add to the sensitivity.

pub mod buffered;
mod build;
#[cfg(test)]
mod conformance;
mod correlation;
mod dense;
mod fourier;
mod gram;
mod kind;
pub(crate) mod matrix;
pub(crate) mod participation;
mod samples;
mod stamped;
mod step;
mod toeplitz;
mod tree;

pub(crate) use build::check_horizon;
pub use build::{MAX_HISTORY_HORIZON, MAX_HORIZON, StrategyError, build, build_chosen, build_factorization};
pub use build::{StrategyChoice, StrategyName};
pub use correlation::{Correlates, Correlation, Correlator};
pub(crate) use correlation::{CorrelationUnits, IdentityDecoder};
pub use dense::{Dense, DenseParameters, MAX_DENSE_HORIZON};
pub use fourier::Fourier;
use kind::Specification;
pub use kind::{
    Comparison, Fit, Kind, Objective, Omission, OmissionReason, OptimisedStrategy, Purpose, Search,
    SearchError, compare, default_strategy, fit,
};
pub use matrix::{Discrepancy, MAX_COLUMNS, Matrix, MatrixError};
pub use participation::{ClaimKind, SensitivityBound, SensitivityClaim, participation_sensitivity};
pub use samples::{RowSample, RowSamples};
pub use stamped::Stamped;
pub use toeplitz::VariableBands;
pub use tree::Tree;

use crate::moments::IntegerRow;
use crate::workload::Workload;
use buffered::BufferedParameters;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

/// Fractional bits of the coefficients of every strategy.
pub const COEFFICIENT_BITS: u32 = 40;

/// All strategies, in the order in which they are listed. A new strategy takes a [`Kind`], in the
/// file of its matrices, and one line here.
pub static KINDS: &[&Kind] = &[
    &toeplitz::IDENTITY,
    &buffered::BLT,
    &buffered::VARIABLE_BLT,
    &buffered::COMB_BLT,
    &buffered::POWER_LAW,
    &toeplitz::BANDED_INVERSE_SQUARE_ROOT,
    &toeplitz::BANDED_SQUARE_ROOT,
    &dense::VARIABLE_BANDED,
    &toeplitz::SQUARE_ROOT,
    &toeplitz::LOG_PERTURBED_ROOT,
    &dense::MATRIX_SQUARE_ROOT,
    &tree::TREE_OPTIMAL_DECODER,
    &tree::TREE,
    &tree::HONAKER,
    &fourier::FFT_OPTIMAL_DECODER,
    &fourier::FFT,
    &dense::BANDED_INVERSE_FRACTIONAL_ROOT,
    &dense::BANDED_INVERSE_OPTIMAL,
    &dense::BANDED_TOEPLITZ_OPTIMAL,
    &dense::BANDED_OPTIMAL,
    &dense::OPTIMAL,
    &dense::COA,
];

/// Parameters from an optimiser or a file, as a log stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StrategyParameters {
    /// The coefficients of a Toeplitz matrix, or of its inverse, in units of
    /// 2^-[`COEFFICIENT_BITS`].
    Toeplitz(Vec<i64>),
    /// Buffers of a Toeplitz matrix or of a power law.
    Buffered(BufferedParameters),
    /// Bands whose rows and columns are scaled near both ends.
    VariableBands(VariableBands),
    /// The entries of a lower-triangular matrix.
    Dense(DenseParameters),
}

/// Error of encoding or decoding a step, or of restoring a state.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// All steps of a strategy with a fixed number of steps are used.
    #[error("the strategy ends after {horizon} steps")]
    PastHorizon {
        /// Number of steps of the strategy.
        horizon: u64,
    },
    /// A row has the wrong number of coordinates.
    #[error("a row has {found} coordinates; this state was made for {expected}")]
    Coordinates {
        /// Number of coordinates of the row.
        found: usize,
        /// Number of coordinates of the state.
        expected: usize,
    },
    /// A sum left the range of an encoder that rounds. Streams within [`Strategy::input_limit`]
    /// never cause this.
    #[error(
        "a sum left the range of 128-bit arithmetic: an epoch has more records of one key than this strategy is made for; \
         release more often, or choose a shorter horizon"
    )]
    Overflow,
    /// The saved state belongs to another strategy or number of coordinates.
    #[error("the saved state does not fit this strategy: {reason}")]
    State {
        /// The mismatch.
        reason: &'static str,
    },
}

/// Properties of C that determine the sensitivity when all moments use the same C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnGeometry {
    /// Largest squared norm of a column of C, rounded up.
    pub max_norm_squared: f64,
    /// Upper bound of `−(CᵀC)_ij` over all i ≠ j, at least 0: the largest negative overlap of two
    /// columns, in magnitude.
    pub negative_overlap: f64,
    /// Upper bound of `Σ_t (Δy_t − (CΔx)_t)²` in one coordinate, over all steps and any two
    /// streams, in the squared unit of x: the contribution of a recursive encoder's rounding. 0 for
    /// exact encoders.
    pub rounding_squared: f64,
}

impl ColumnGeometry {
    /// Geometry of a strategy whose encoder does not round.
    pub fn exact(max_norm_squared: f64, negative_overlap: f64) -> Self {
        Self { max_norm_squared, negative_overlap, rounding_squared: 0.0 }
    }
}

/// Norms of the rows of a decoder, in the order of the steps.
pub type RowNorms<'a> = Box<dyn Iterator<Item = f64> + 'a>;

/// A factorisation A = B C: the encoder C, and a decoder B that turns its noisy output into the
/// workload.
///
/// Errors and sensitivities are computed from this trait; a [`Strategy`] can also run. C has one
/// column per step. It may have more rows than columns, and need not be lower-triangular.
pub trait Factorization: Send + Sync {
    /// Name as written on the command line, for example `square-root`.
    fn name(&self) -> String;

    /// Number of steps it is defined for; `None` if unbounded.
    fn horizon(&self) -> Option<u64>;

    /// C for the first `steps` steps, in floating point, with a proven bound of its distance from
    /// the C that runs. `steps` is at most the horizon.
    ///
    /// # Errors
    /// [`MatrixError::Columns`] beyond [`MAX_COLUMNS`] steps, or beyond a lower limit if C has to
    /// be written out.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError>;

    /// Largest squared norm of a column of C for the first `steps` steps, rounded up. `steps` is at
    /// most the horizon and [`MAX_HORIZON`].
    fn max_column_norm_squared(&self, steps: u64) -> f64;

    /// Norms of the rows t = 1..`steps` of the decoder B (`A C⁻¹` if C is square): the noise in row
    /// t of the workload per unit of noise added to `C x`. `steps` is at most the horizon and
    /// [`MAX_HORIZON`].
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_>;

    /// The same row norms as weighted samples. Strategies whose norms follow from a few numbers
    /// return far fewer samples than rows.
    fn decoder_row_samples(&self, workload: &Workload, steps: u64) -> RowSamples<'_> {
        samples::all(self.decoder_row_norms(workload, steps))
    }
}

/// A causal, invertible, lower-triangular C.
///
/// ```
/// use hushflow_mechanism::strategy::build;
/// use hushflow_mechanism::workload::Workload;
///
/// let strategy = build("square-root", &Workload::Prefix, Some(100))?;
/// let (mut encoder, mut decoder) = (strategy.encoder(1), strategy.decoder(1));
/// for t in 1..=100 {
///     let (mut y, mut x) = ([0], [0.0]);
///     encoder.encode(&[t], &mut y)?; // the noise goes onto y
///     decoder.decode(&[y[0] as f64 / 2f64.powi(40)], &mut x)?;
///     assert!((x[0] - t as f64).abs() < 1e-10);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Strategy: Factorization {
    /// Geometry of C over its whole horizon.
    fn geometry(&self) -> ColumnGeometry;

    /// Bytes of raw sums that an encoder keeps per coordinate over the whole horizon. They dominate
    /// the state of a long run.
    fn encoder_bytes(&self) -> usize;

    /// Multiplications per coordinate to encode and decode a late step.
    fn multiplications(&self) -> usize {
        2 * (1 + self.encoder_bytes() / size_of::<i128>())
    }

    /// Largest magnitude of inputs for which the encoder cannot fail; `None` if it never fails, as
    /// for encoders that do not round.
    fn input_limit(&self) -> Option<u128> {
        None
    }

    /// Starts encoding `coordinates` independent streams.
    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder>;

    /// Starts decoding `coordinates` independent streams.
    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder>;

    /// The form that correlates noise by C⁻¹ ahead of the sums; `None` if this strategy has none.
    fn correlates(&self) -> Option<&dyn Correlates> {
        None
    }
}

/// Computes `(C x)_t` step by step, exactly except for the rounding that
/// [`ColumnGeometry::rounding_squared`] charges.
///
/// All sums are modulo 2¹²⁸. So an encoder that does not round never fails for any stream: an error
/// would depend on private sums. Wrapping preserves the guarantee. For integers `v_t` of any size
/// and noise `z_t` the release `v_t + z_t` has the guarantee, and `(v_t + z_t) mod 2¹²⁸` is a
/// function of it. Reduction modulo 2¹²⁸ commutes with sums and products of integers, so it may
/// happen at any point of the computation of `C x`.
///
/// Reduction does not commute with rounding. Encoders that round compute with exact integers for
/// inputs up to [`Strategy::input_limit`], and return an error for values that leave the range
/// beyond it.
pub trait Encoder: Send {
    /// Number of steps encoded so far.
    fn steps(&self) -> u64;

    /// Writes the next row of `C x`, in units of 2^-[`COEFFICIENT_BITS`] of the unit of `x`.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`], and [`StepError::Overflow`] if
    /// the strategy has a [limit](Strategy::input_limit). The state is then unchanged and `y` is
    /// unspecified.
    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError>;

    /// Adds the next row of `C x` to `y`.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn add_encoded(&mut self, x: IntegerRow<'_>, y: &mut [i128]) -> Result<(), StepError> {
        let mut encoded = Zeroizing::new(vec![0; y.len()]);
        match x {
            IntegerRow::Wide(x) => self.encode(x, &mut encoded)?,
            IntegerRow::Narrow(x) => {
                let x: Zeroizing<Vec<i128>> = Zeroizing::new(x.iter().map(|&x| x.into()).collect());
                self.encode(&x, &mut encoded)?;
            }
        }
        for (y, encoded) in y.iter_mut().zip(encoded.iter()) {
            *y = y.wrapping_add(*encoded);
        }
        Ok(())
    }

    /// The complete state, for a checkpoint. Private: it holds raw sums.
    fn save(&self) -> Vec<u8>;

    /// Restores a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`StepError::State`] if it was saved by another strategy or for another number of
    /// coordinates.
    fn restore(&mut self, state: &[u8]) -> Result<(), StepError>;
}

/// Computes `(C⁻¹ y)_t` step by step in floating point. This is post-processing.
pub trait Decoder: Send {
    /// Number of steps decoded so far.
    fn steps(&self) -> u64;

    /// Writes the next row of `C⁻¹ y`.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is then unchanged.
    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError>;
    /// Returns the state that later steps need, except the number of steps.
    fn save(&self) -> Vec<f64>;

    /// Continues after `steps` steps with the numbers that [`save`](Self::save) returned then.
    ///
    /// # Errors
    /// [`StepError::State`] if the number of steps or numbers is impossible; the state is then
    /// unchanged.
    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError>;
}
