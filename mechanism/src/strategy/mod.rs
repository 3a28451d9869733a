//! Strategies C: how a step's sums are correlated with the steps before it prior to the noise.
//!
//! The C that runs *is* the mechanism: its coefficients are integers in units of 2^-[`COEFFICIENT_BITS`], so
//! that encoding integer sums is exact. Recursive strategies keep their state in fixed point instead, and say what its
//! rounding can add to the sensitivity.

pub mod buffered;
mod build;
mod chosen;
#[cfg(test)]
mod conformance;
mod correlation;
mod dense;
mod discrepancy;
mod fourier;
mod gram;
mod history;
pub(crate) mod matrix;
mod name;
mod samples;
mod stamped;
mod step;
mod toeplitz;
mod tree;

pub(crate) use build::check_horizon;
pub use build::{MAX_HISTORY_HORIZON, MAX_HORIZON, StrategyError, build, build_chosen, build_factorization};
pub use chosen::{Chosen, Fitted};
pub use correlation::{Correlates, Correlation, Correlator};
pub(crate) use correlation::{CorrelationUnits, Decoded};
pub use dense::{
    BandedOptimum, Dense, DenseParameters, MAX_BANDED_OPTIMAL_HORIZON, MAX_DENSE_HORIZON, banded_optimal,
    matrix_square_root, optimal_banded_toeplitz,
};
pub use discrepancy::Discrepancy;
pub use fourier::{Fourier, fft_optimal_decoder};
pub use matrix::{MAX_COLUMNS, Matrix, MatrixError};
pub use name::{MAX_BANDS, MAX_BUFFERS, StrategyName};
pub use samples::{RowSample, RowSamples};
pub use stamped::Stamped;
pub use toeplitz::toeplitz_units;
pub use tree::{Tree, TreeDecoder, TreeEncoder, tree_optimal_decoder};

use crate::moments::Row;
use crate::workload::Workload;
use thiserror::Error;
use zeroize::Zeroizing;

/// Bits after the binary point of the coefficients of every strategy.
pub const COEFFICIENT_BITS: u32 = 40;

/// Why a step could not be encoded or decoded, or a state not restored.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// The strategy is defined for a given number of steps, and all are used.
    #[error("the strategy ends after {horizon} steps")]
    PastHorizon {
        /// Number of steps of the strategy.
        horizon: u64,
    },
    /// A row does not have the number of coordinates it was started for.
    #[error("a row has {found} coordinates; this state was made for {expected}")]
    Coordinates {
        /// Number of coordinates of the row.
        found: usize,
        /// Number of coordinates of the state.
        expected: usize,
    },
    /// A sum left the range of an encoder that rounds. No stream within [`Strategy::input_limit`] gets there.
    #[error(
        "a sum left the range of 128-bit arithmetic: an epoch has more records of one key than this strategy is made for; \
         release more often, or choose a shorter horizon"
    )]
    Overflow,
    /// The saved state is not one of this strategy and number of coordinates.
    #[error("the saved state does not fit this strategy: {reason}")]
    State {
        /// What does not fit.
        reason: &'static str,
    },
}

/// What a sensitivity needs to know of C when all moments go through the same C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnGeometry {
    /// Largest squared norm of a column of C, rounded up.
    pub max_norm_squared: f64,
    /// Upper bound of `−(CᵀC)_ij` over all i ≠ j, at least 0: how far two columns point away from each other.
    pub negative_overlap: f64,
    /// Upper bound of `Σ_t (Δy_t − (CΔx)_t)²` in one coordinate, for any two streams and all steps together, in the
    /// squared unit of x: what the rounding of a recursive encoder can add. 0 where encoding is exact.
    pub rounding_squared: f64,
}

impl ColumnGeometry {
    /// That of a strategy whose encoder makes no rounding errors.
    pub fn exact(max_norm_squared: f64, negative_overlap: f64) -> Self {
        Self { max_norm_squared, negative_overlap, rounding_squared: 0.0 }
    }
}

/// Norms of the rows of a decoder, first step first.
pub type RowNorms<'a> = Box<dyn Iterator<Item = f64> + 'a>;

/// A factorisation A = B C: an encoder C whose noisy output a decoder B turns into the workload.
///
/// This is what errors and sensitivities are computed from; a [`Strategy`] can run as well. C has a column for every
/// step. It may have more rows than columns, and need not be lower-triangular.
pub trait Factorization: Send + Sync {
    /// As on the command line, for example `square-root`.
    fn name(&self) -> String;

    /// Number of steps it is defined for; `None` when it may go on for ever.
    fn horizon(&self) -> Option<u64>;

    /// C for the first `steps` steps, in floating point, with a proven bound of how far the C that runs is from it. No
    /// more than the horizon.
    ///
    /// # Errors
    /// [`MatrixError::Columns`] beyond [`MAX_COLUMNS`] steps, or fewer where C has to be written out.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError>;

    /// Largest squared norm of a column of C for the first `steps` steps, rounded up. No more than the horizon, or than
    /// [`MAX_HORIZON`].
    fn max_column_norm_squared(&self, steps: u64) -> f64;

    /// Norms of the rows t = 1..`steps` of the decoder B, `A C⁻¹` where C is square: the noise in row t of the workload
    /// per unit of the noise added to `C x`. No more than the horizon, or than [`MAX_HORIZON`].
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_>;

    /// The same rows in a form to sum over: few samples in place of many rows, where the norms follow from a few numbers.
    fn decoder_row_samples(&self, workload: &Workload, steps: u64) -> RowSamples<'_> {
        samples::all(self.decoder_row_norms(workload, steps))
    }
}

/// A causal, invertible, lower-triangular C.
///
/// ```
/// use hushflow_mechanism::strategy::{StrategyName, build};
/// use hushflow_mechanism::workload::Workload;
///
/// let strategy = build(StrategyName::SquareRoot, &Workload::Prefix, Some(100))?;
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
    /// What a sensitivity needs to know of C over its whole horizon.
    fn geometry(&self) -> ColumnGeometry;

    /// Bytes of raw sums that an encoder keeps for a coordinate over the whole horizon: what makes the state of a
    /// long run large.
    fn encoder_bytes(&self) -> usize;

    /// Multiplications of encoding and decoding a coordinate of a late step.
    fn multiplications(&self) -> usize {
        2 * (1 + self.encoder_bytes() / size_of::<i128>())
    }

    /// The largest magnitude of inputs for which the encoder is sure to work; `None` where it works for all, as those do that make
    /// no rounding errors.
    fn input_limit(&self) -> Option<u128> {
        None
    }

    /// Starts encoding `coordinates` independent streams.
    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder>;

    /// Starts decoding `coordinates` independent streams.
    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder>;

    /// How noise is correlated by C⁻¹ ahead of the sums; `None` where it can't be.
    fn correlates(&self) -> Option<&dyn Correlates> {
        None
    }
}

/// Computes `(C x)_t` step by step, exactly but for what [`ColumnGeometry::rounding_squared`] charges.
///
/// All sums are modulo 2¹²⁸, so no stream makes an encoder without rounding errors fail: an error would depend on private sums.
/// That is private too. With integers `v_t` of any size and noise `z_t` the release `v_t + z_t` has the guarantee, and
/// `(v_t + z_t) mod 2¹²⁸` is a function of it. Reduction modulo 2¹²⁸ commutes with sums and products of integers, so it may
/// happen at any place on the way to `C x`.
///
/// It does not commute with rounding. Encoders that round are exact integers for inputs up to [`Strategy::input_limit`] and
/// refuse what leaves the range beyond it.
pub trait Encoder: Send {
    /// Number of steps encoded so far.
    fn steps(&self) -> u64;

    /// Writes the next row of `C x`, in units of 2^-[`COEFFICIENT_BITS`] of the unit of `x`.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`], and [`StepError::Overflow`] where the strategy has a
    /// [limit](Strategy::input_limit); the state is unchanged then, and what is in `y` means nothing.
    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError>;

    /// Adds the next row of `C x` to `y`.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    fn add_encoded(&mut self, x: Row<'_>, y: &mut [i128]) -> Result<(), StepError> {
        let mut encoded = Zeroizing::new(vec![0; y.len()]);
        match x {
            Row::Wide(x) => self.encode(x, &mut encoded)?,
            Row::Narrow(x) => {
                let x: Zeroizing<Vec<i128>> = Zeroizing::new(x.iter().map(|&x| x.into()).collect());
                self.encode(&x, &mut encoded)?;
            }
        }
        for (y, encoded) in y.iter_mut().zip(encoded.iter()) {
            *y = y.wrapping_add(*encoded);
        }
        Ok(())
    }

    /// All state, for a checkpoint. It holds raw sums: private.
    fn save(&self) -> Vec<u8>;

    /// Takes over a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`StepError::State`] if it was saved by another strategy or for another number of coordinates.
    fn restore(&mut self, state: &[u8]) -> Result<(), StepError>;
}

/// Computes `(C⁻¹ y)_t` step by step, in floating point: post-processing.
pub trait Decoder: Send {
    /// Number of steps decoded so far.
    fn steps(&self) -> u64;

    /// Writes the next row of `C⁻¹ y`.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is unchanged then.
    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError>;
}
