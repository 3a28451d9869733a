//! Toeplitz strategies, `C[t,i] = m_(t−i)`, and those with scaled columns, `m_(t−i) s_i`, or rows
//! and columns: see `variable`.
//!
//! | name | memory of the encoder, rows of 16 bytes per coordinate | horizon |
//! |---|---|---|
//! | `identity` | none | none |
//! | `square-root` | all rows; fewer if coefficients of a decaying workload round to 0 | needed |
//! | `banded-square-root:b` | b − 1 | none |
//! | `banded-inverse-square-root:b` | b − 1 | needed |
//! | `variable-banded:b` | b − 1 | needed |
//! | `log-perturbed-root` | all rows | none |
//! | `normalized-…` | as without normalisation | needed |
//!
//! Decoders keep numbers of 8 bytes, half as much. The coefficients are integers in units of
//! 2^-[`COEFFICIENT_BITS`], and encoding is exact, except for the banded inverse: see [`inverse`].
//!
//! *Normalised.* Every column of C is divided by its norm, which depends on the number of steps
//! left. The strategy is `C[t,i] = round(m_(t−i) s_i)` in the same units, with `s_i = 1/‖c_(<n−i)‖`
//! in floating point. The product of an integer up to 2⁴⁰ and s is rounded once before it is
//! rounded to an integer, the same on every machine. An entry is off by at most
//! `(1/2 + 2^−12) 2^−40`, so a column of L entries has a norm within `(1/2 + 2^−12) √L 2^−40` of 1.
//! The charge is about `1 + √n 2^−41`.
//!
//! *Sliding windows.* The root of a window of length k decreases like a periodic `t^(−3/2)`. So
//! `banded-square-root:b` with b a multiple of k, at least 2k, is almost as good as the whole root,
//! with memory O(k). The table has the root mean loss over 4096 steps relative to the whole root,
//! which at k = 10 is within 0.2% of the optimum:
//!
//! | k | b = k | k + 1 | 2k | 4k |
//! |---|---|---|---|---|
//! | 10 | 1.0484 | 1.0110 | 1.0058 | 1.0010 |
//! | 100 | 1.0717 | 1.0337 | 1.0078 | 1.0012 |
//!
//! The banded inverse is worse (1.10 at b = 2k), and with k + 1 bands its C grows exponentially.
//!
//! With a horizon, `variable-banded:3k+1` is better: its coefficients fall slightly faster than
//! those of the root, and its rows are scaled near the ends. Loss over the certified optimum of all
//! C:
//!
//! | window | n = 96 | 512 | 1000 |
//! |---|---|---|---|
//! | 10 | 1.0019 | 1.0022 | 1.0022 |
//! | 30 | 1.0031 | 1.0026 | |
//! | 100 | | 1.0027 | 1.0029 |

mod inverse;
mod kinds;
mod log_perturbed;
mod root;
mod rows;
mod stream;
mod variable;

pub(super) use kinds::{
    BANDED_INVERSE_SQUARE_ROOT, BANDED_SQUARE_ROOT, IDENTITY, MAX_BANDS, MAX_INVERSE_HORIZON,
    MAX_NORMALIZED_HORIZON, SQUARE_ROOT, banded_for_window, of_inverse, of_parameters, units,
};
pub(super) use log_perturbed::LOG_PERTURBED_ROOT;
pub(super) use root::{check as check_root, root as workload_root};
pub use variable::VariableBands;
pub(super) use variable::{
    MAX_LOGARITHM, MAX_REACH, MAX_SCALED_BANDS, MAX_SCALED_HORIZON, of_variable_bands,
};

use super::{
    COEFFICIENT_BITS, ColumnGeometry, Decoder, Discrepancy, Encoder, Factorization, MAX_HISTORY_HORIZON,
    MAX_HORIZON, Matrix, MatrixError, RowNorms, RowSamples, Strategy, StrategyName, gram, samples,
    step::{self, History},
};
use crate::{series, workload::Workload};
use std::sync::Arc;
use stream::{ToeplitzDecoder, ToeplitzEncoder};
use variable::Scaling;
use zeroize::Zeroize;

/// Number of coefficients computed first for an unbounded stream.
const FIRST_TERMS: usize = 1 << 10;

/// A lower-triangular Toeplitz C with integer coefficients and optional scales.
#[derive(Clone)]
pub(super) struct Toeplitz {
    name: StrategyName,
    /// In units of 2^-[`COEFFICIENT_BITS`], at most 2⁴⁰ in magnitude; the first is positive, the
    /// last not 0.
    coefficients: Arc<[i64]>,
    scales: Option<Scales>,
    horizon: Option<u64>,
    /// For an unbounded stream: the coefficients for any number of steps.
    endless: Option<UnboundedCoefficients>,
    fingerprint: u64,
}

#[derive(Clone)]
enum Scales {
    /// Column factors from the first step to the horizon, not decreasing.
    Columns(Arc<[f64]>),
    RowsAndColumns(Arc<Scaling>),
}

#[derive(Clone, Copy)]
struct UnboundedCoefficients {
    coefficients: fn(usize) -> Vec<i64>,
    /// Upper bound of the squared norm of a column over any number of steps. No coefficient is
    /// negative.
    squared_norm: f64,
}

impl Toeplitz {
    /// Rounds a series to the nearest exact coefficients. They must be at most 1 in magnitude and
    /// the first at least 2^-[`COEFFICIENT_BITS`].
    fn new(name: StrategyName, series: &[f64], horizon: Option<u64>) -> Self {
        let mut coefficients = units(series);
        let used = coefficients.iter().rposition(|&m| m != 0).map_or(0, |last| last + 1);
        coefficients.truncate(used);
        let fingerprint = fingerprint(horizon, &coefficients);
        Self { horizon, fingerprint, ..Self::exact(name, coefficients) }
    }

    fn endless(name: StrategyName, endless: UnboundedCoefficients) -> Self {
        let coefficients = (endless.coefficients)(FIRST_TERMS);
        let fingerprint = fingerprint(None, &coefficients);
        Self { endless: Some(endless), fingerprint, ..Self::exact(name, coefficients) }
    }

    fn exact(name: StrategyName, coefficients: Vec<i64>) -> Self {
        let coefficients = coefficients.into();
        Self { name, coefficients, scales: None, horizon: None, endless: None, fingerprint: 0 }
    }

    /// With columns of norm 1 over the horizon of `steps` steps.
    fn normalized(self, steps: u64) -> Self {
        let norms = gram::squared_norms(&self.coefficients);
        let scale = |left: usize| 1.0 / (norms[left.min(norms.len() - 1)] as f64).sqrt() / real(1);
        let scales: Vec<f64> = (1..=steps as usize).rev().map(scale).collect();
        let bytes = self.fingerprint.to_le_bytes().into_iter().chain(*b"normalized");
        let fingerprint = step::fingerprint(bytes.chain(steps.to_le_bytes()));
        Self { scales: Some(Scales::Columns(scales.into())), horizon: Some(steps), fingerprint, ..self }
    }

    fn history<T: Copy + Zeroize>(&self, coordinates: usize) -> History<T> {
        History::new(coordinates, self.kept())
    }

    fn kept(&self) -> usize {
        self.coefficients.len() - 1
    }

    /// Entries of row t of C, counted from 0, from the diagonal to the left, in units of
    /// 2^-[`COEFFICIENT_BITS`].
    fn row(&self, t: u64) -> impl Iterator<Item = i64> {
        let terms = self.coefficients.iter().zip((0..=t).rev());
        terms.map(move |(&m, column)| match &self.scales {
            None => m,
            Some(Scales::Columns(scales)) => scaled(m, scales[column as usize]),
            Some(Scales::RowsAndColumns(scaling)) => scaling.entry(m, t, column),
        })
    }

    /// The same strategy with coefficients for more than `steps` steps, if it is unbounded and
    /// lacks them.
    fn longer(&self, steps: u64) -> Option<Self> {
        let endless = self.endless.filter(|_| steps as usize >= self.kept())?;
        let coefficients = (endless.coefficients)((steps as usize + 2).next_power_of_two());
        Some(Self { coefficients: coefficients.into(), ..self.clone() })
    }

    /// Coefficients for a number of steps, without those that are 0 at the end.
    fn coefficients(&self, steps: usize) -> Arc<[i64]> {
        let longer = steps.checked_sub(1).and_then(|last| self.longer(last as u64));
        longer.map_or(self.coefficients.clone(), |longer| longer.coefficients)
    }

    fn real_coefficients(&self, steps: usize) -> Vec<f64> {
        let coefficients = self.coefficients(steps);
        coefficients.iter().take(steps).map(|&m| real(m)).collect()
    }

    fn within_horizon(&self, steps: u64) -> usize {
        steps.min(self.horizon.unwrap_or(MAX_HORIZON)) as usize
    }

    /// Upper bound of the norm that rounding the entries of scaled columns adds to a column.
    fn rounding(&self) -> f64 {
        (0.5 + 0.5f64.powi(12)) * (self.coefficients.len() as f64).sqrt() * real(1)
    }

    /// Largest squared norm of a scaled column over the first `steps` steps, rounded up. Column i
    /// has the norm `s_i ‖c_(<steps−i)‖`, up to rounding.
    fn scaled_column_norm_squared(&self, scales: &[f64], steps: usize) -> f64 {
        let norms = gram::squared_norms(&self.coefficients);
        let square = |left: usize| gram::round_up(norms[left.min(norms.len() - 1)]);
        let column = |(i, scale): (usize, &f64)| scale * square(steps - i).sqrt();
        let norm = scales[..steps].iter().enumerate().map(column).fold(0.0, f64::max);
        (norm + self.rounding()).powi(2) * (1.0 + 1e-15)
    }

    /// Upper bound of `−(CᵀC)_ij` over all i ≠ j. Each column of a pair has norm 1 and is off by at
    /// most [`rounding`](Self::rounding).
    fn scaled_overlap(&self, scales: &[f64]) -> f64 {
        if self.coefficients.iter().all(|&m| m >= 0) {
            return 0.0;
        }
        let overlap = gram::scaled_negative_overlap(&self.real_coefficients(scales.len()), scales);
        overlap + 3.0 * self.rounding()
    }
}

fn fingerprint(horizon: Option<u64>, coefficients: &[i64]) -> u64 {
    let horizon = horizon.unwrap_or(0).to_le_bytes();
    step::fingerprint(horizon.into_iter().chain(coefficients.iter().flat_map(|m| m.to_le_bytes())))
}

fn real(coefficient: i64) -> f64 {
    coefficient as f64 * 0.5f64.powi(COEFFICIENT_BITS as i32)
}

fn scaled(coefficient: i64, scale: f64) -> i64 {
    (coefficient as f64 * scale).round() as i64
}

impl Factorization for Toeplitz {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        self.horizon
    }

    /// For scaled columns, the matrix before its entries are rounded; the rounding is its
    /// discrepancy.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let steps = self.within_horizon(steps);
        let coefficients = self.real_coefficients(steps);
        match &self.scales {
            None => Matrix::toeplitz(coefficients, steps),
            Some(Scales::RowsAndColumns(scaling)) => scaling.matrix(&self.coefficients, steps),
            Some(Scales::Columns(scales)) => {
                let discrepancy = Discrepancy { column: self.rounding(), ..Discrepancy::NONE };
                let matrix = Matrix::scaled_toeplitz(coefficients, scales[..steps].to_vec())?;
                Ok(matrix.with_discrepancy(discrepancy))
            }
        }
    }

    /// For an unbounded strategy, the norm over all steps, because that norm is charged.
    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        let steps = self.within_horizon(steps);
        match (&self.scales, self.endless) {
            (Some(Scales::Columns(scales)), _) => self.scaled_column_norm_squared(scales, steps),
            (Some(Scales::RowsAndColumns(scaling)), _) => {
                scaling.max_column_norm_squared(&self.coefficients, steps as u64)
            }
            (None, Some(endless)) => endless.squared_norm,
            (None, None) => {
                let used = steps.min(self.coefficients.len());
                gram::round_up(gram::squared_norms(&self.coefficients[..used])[used])
            }
        }
    }

    /// Takes `n log n` time for Toeplitz workloads with row divisors, n² for scaled columns. With
    /// scaled rows, the time of a row is the number of steps until the inverse has faded.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        let coefficients = self.real_coefficients(steps);
        match &self.scales {
            None => rows::of_toeplitz(workload, &coefficients, steps),
            Some(Scales::Columns(scales)) => {
                let inverse = series::fast::quotient(&[1.0], &coefficients, steps);
                rows::of_scaled(workload, &inverse, &scales[..steps], None)
            }
            Some(Scales::RowsAndColumns(scaling)) => {
                scaling.decoder_row_norms(workload, &coefficients, steps as u64)
            }
        }
    }

    /// If C has bands and no scales, time and memory depend on the number of bands, not on the
    /// number of steps. With scaled rows this holds for windows only.
    fn decoder_row_samples(&self, workload: &Workload, steps: u64) -> RowSamples<'_> {
        let within = self.within_horizon(steps);
        let coefficients = self.real_coefficients(within);
        let fewer = match &self.scales {
            None if self.endless.is_none() => rows::banded_samples(workload, &coefficients, within),
            Some(Scales::RowsAndColumns(scaling)) => {
                scaling.decoder_row_samples(workload, &coefficients, within as u64)
            }
            _ => None,
        };
        match fewer {
            Some(samples) => Box::new(samples.into_iter()),
            None => samples::all(self.decoder_row_norms(workload, steps)),
        }
    }
}

impl Strategy for Toeplitz {
    fn geometry(&self) -> ColumnGeometry {
        let norm = self.max_column_norm_squared(MAX_HORIZON);
        let overlap = match &self.scales {
            Some(Scales::Columns(scales)) => self.scaled_overlap(scales),
            Some(Scales::RowsAndColumns(scaling)) => scaling.negative_overlap(),
            None => gram::round_up(gram::negative_overlap(&self.coefficients)),
        };
        ColumnGeometry::exact(norm, overlap)
    }

    /// An unbounded strategy that keeps all rows reports [`MAX_HISTORY_HORIZON`] steps.
    fn encoder_bytes(&self) -> usize {
        let kept = if self.endless.is_some() { MAX_HISTORY_HORIZON as usize } else { self.kept() };
        kept * size_of::<i128>()
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        Box::new(ToeplitzEncoder::new(self, coordinates))
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        Box::new(ToeplitzDecoder::new(self, coordinates))
    }
}

#[cfg(test)]
mod tests {
    use crate::strategy::{Strategy, build, conformance};
    use crate::workload::Workload;
    use nalgebra::DMatrix;
    use std::sync::Arc;

    const WORKLOADS: [&str; 11] = [
        "prefix",
        "average",
        "exponential:0.9",
        "exponential:0.1",
        "window:1",
        "window:3",
        "window-mean:3",
        "window:10",
        "window-mean:10",
        "momentum:0.9",
        "adam:0.9",
    ];
    const NAMES: [&str; 11] = [
        "identity",
        "square-root",
        "normalized-square-root",
        "banded-square-root:1",
        "banded-square-root:5",
        "banded-square-root:90",
        "normalized-banded-square-root:7",
        "banded-inverse-square-root:1",
        "banded-inverse-square-root:6",
        "banded-inverse-square-root:90",
        "normalized-banded-inverse-square-root:6",
    ];
    const STEPS: usize = 40;

    fn strategy(name: &str, workload: &str) -> Arc<dyn Strategy> {
        build(name, &workload.parse().unwrap(), Some(STEPS as u64)).unwrap()
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for text in WORKLOADS {
            for name in NAMES {
                conformance::check(strategy(name, text).as_ref(), &text.parse().unwrap(), STEPS);
            }
        }
        for text in ["prefix", "average"] {
            conformance::check(strategy("log-perturbed-root", text).as_ref(), &text.parse().unwrap(), STEPS);
        }
    }

    #[test]
    fn streaming_agrees_with_the_matrix_for_other_workloads() {
        let toeplitz =
            DMatrix::from_fn(STEPS, STEPS, |t, i| if i > t { 0.0 } else { 2.0 - (t - i) as f64 / 9.0 });
        let dense = DMatrix::from_fn(STEPS, STEPS, |t, i| if i > t { 0.0 } else { 1.0 + (t * i % 7) as f64 });
        let [toeplitz, dense] = [toeplitz, dense].map(|rows| Workload::from_matrix("w", rows).unwrap());
        for name in NAMES {
            conformance::check(strategy(name, "window:7").as_ref(), &dense, STEPS);
            conformance::check(strategy(name, "prefix").as_ref(), &toeplitz, STEPS);
            let root = build(name, &toeplitz, Some(STEPS as u64)).unwrap();
            conformance::check(root.as_ref(), &toeplitz, STEPS);
            conformance::check(root.as_ref(), &Workload::Average, STEPS);
        }
    }

    #[test]
    fn the_square_root_squared_is_the_workload() {
        for text in WORKLOADS {
            let root = strategy("square-root", text).matrix(STEPS as u64).unwrap().entries();
            let workload: Workload = text.parse().unwrap();
            let toeplitz = workload.toeplitz_part(STEPS).unwrap();
            let squared = &root * &root;
            assert!((0..STEPS).all(|t| (squared[(t, 0)] - toeplitz[t]).abs() < 1e-11), "{text}");
        }
    }

    #[test]
    fn figures_end_with_the_horizon() {
        let root = strategy("square-root", "prefix");
        assert_eq!(root.decoder_row_norms(&Workload::Prefix, u64::MAX).count(), STEPS);
        assert_eq!(strategy("identity", "prefix").decoder_row_norms(&Workload::Prefix, 100).count(), 100);
    }
}
