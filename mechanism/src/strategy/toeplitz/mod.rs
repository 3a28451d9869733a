//! Strategies that treat every step alike: `C[t,i] = m_(t−i)`, applied to the rows themselves.
//!
//! Memory: one row for every coefficient after the first, 16 bytes a coordinate in the encoder and 8 in the
//! decoder. The identity has one coefficient and so no memory; a square root has up to a coefficient for every
//! step of its horizon.

mod decoder;
mod encoder;

use super::{
    COEFFICIENT_BITS, ColumnGeometry, Decoder, Encoder, Factorization, MAX_HORIZON, Matrix, RowNorms,
    StepError, Strategy, StrategyName, gram, history::History,
};
use crate::{series, workload::Workload};
use decoder::ToeplitzDecoder;
use encoder::ToeplitzEncoder;
use nalgebra::DMatrix;
use std::{iter, sync::Arc};
use zeroize::Zeroize;

/// A lower-triangular Toeplitz C with integer coefficients.
#[derive(Clone)]
pub(super) struct Toeplitz {
    name: StrategyName,
    /// In units of 2^-[`COEFFICIENT_BITS`], at most 2⁴⁰ in magnitude; the first is positive, the last not 0.
    coefficients: Arc<[i64]>,
    horizon: Option<u64>,
}

impl Toeplitz {
    /// Rounds a series to the nearest coefficients that are exact. They must be at most 1 in magnitude and the
    /// first at least 2^-[`COEFFICIENT_BITS`].
    pub(super) fn new(name: StrategyName, series: &[f64], horizon: Option<u64>) -> Self {
        let mut coefficients: Vec<i64> = series.iter().map(|c| (c / real(1)).round() as i64).collect();
        let used = coefficients.iter().rposition(|&m| m != 0).map_or(0, |last| last + 1);
        coefficients.truncate(used);
        Self { name, coefficients: coefficients.into(), horizon }
    }

    fn history<T: Copy + Zeroize>(&self, coordinates: usize) -> History<T> {
        History::new(coordinates, self.kept())
    }

    /// Number of rows kept.
    fn kept(&self) -> usize {
        self.coefficients.len() - 1
    }

    /// Whether the next step can be taken, with rows of these lengths, after what is in `history`.
    fn check_step<T: Copy + Zeroize>(&self, history: &History<T>, rows: [usize; 2]) -> Result<(), StepError> {
        if let Some(horizon) = self.horizon.filter(|&horizon| history.steps() >= horizon) {
            return Err(StepError::PastHorizon { horizon });
        }
        let expected = history.coordinates();
        match rows.into_iter().find(|&found| found != expected) {
            Some(found) => Err(StepError::Coordinates { found, expected }),
            None => Ok(()),
        }
    }

    fn within_horizon(&self, steps: u64) -> usize {
        steps.min(self.horizon.unwrap_or(MAX_HORIZON)) as usize
    }
}

/// The real value of a coefficient; exact.
fn real(coefficient: i64) -> f64 {
    coefficient as f64 * 0.5f64.powi(COEFFICIENT_BITS as i32)
}

impl Factorization for Toeplitz {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        self.horizon
    }

    fn matrix(&self, steps: u64) -> Matrix {
        let coefficients = self.coefficients.iter().map(|&m| real(m)).chain(iter::repeat(0.0));
        Matrix::Toeplitz(coefficients.take(self.within_horizon(steps)).collect())
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        let used = self.within_horizon(steps).min(self.coefficients.len());
        gram::round_up(gram::squared_norms(&self.coefficients[..used])[used])
    }

    /// For `A = D⁻¹T` with the row divisors D, row t of B holds the first t coefficients of `T C⁻¹`, divided. For any
    /// other A, row by row.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let terms = self.within_horizon(steps);
        let coefficients: Vec<f64> = self.coefficients.iter().map(|&m| real(m)).collect();
        let Some(toeplitz) = workload.toeplitz_part(terms) else {
            let inverse = series::quotient(&[1.0], &coefficients, terms);
            let inverse = DMatrix::from_fn(terms, terms, |t, i| if t < i { 0.0 } else { inverse[t - i] });
            let decoder = workload.matrix(terms) * inverse;
            return Box::new((0..terms).map(move |t| decoder.row(t).norm()));
        };
        let decoder = series::quotient(&toeplitz, &coefficients, terms);
        let squared_norms = decoder.into_iter().scan(0.0, |sum, b| {
            *sum += b * b;
            Some(*sum)
        });
        let divisors: Vec<f64> = (1..=terms as u64).map(|t| workload.row_divisor(t)).collect();
        Box::new(squared_norms.zip(divisors).map(|(square, divisor)| square.sqrt() / divisor))
    }
}

impl Strategy for Toeplitz {
    fn geometry(&self) -> ColumnGeometry {
        let norms = gram::squared_norms(&self.coefficients);
        ColumnGeometry::exact(
            gram::round_up(norms[self.coefficients.len()]),
            gram::round_up(gram::negative_overlap(&self.coefficients)),
        )
    }

    fn encoder_bytes(&self) -> usize {
        self.kept() * size_of::<i128>()
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
    use std::sync::Arc;

    const WORKLOADS: [&str; 9] = [
        "prefix",
        "average",
        "exponential:0.9",
        "exponential:0.1",
        "window:1",
        "window:3",
        "window:10",
        "momentum:0.9",
        "adam:0.9",
    ];
    const STEPS: usize = 40;

    fn strategy(name: &str, workload: &str) -> Arc<dyn Strategy> {
        build(name.parse().unwrap(), &workload.parse().unwrap(), Some(STEPS as u64)).unwrap()
    }

    #[test]
    fn streaming_is_the_matrix() {
        for text in WORKLOADS {
            for name in ["identity", "square-root"] {
                conformance::check(strategy(name, text).as_ref(), &text.parse().unwrap(), STEPS);
            }
        }
    }

    #[test]
    fn the_square_root_squared_is_the_workload() {
        for text in WORKLOADS {
            let root = conformance::dense(strategy("square-root", text).matrix(STEPS as u64));
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
