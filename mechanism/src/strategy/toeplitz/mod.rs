//! Strategies that treat every step alike: `C[t,i] = m_(t−i)`, applied to the rows themselves.
//!
//! Memory: one row for every coefficient after the first, 16 bytes a coordinate in the encoder and 8 in the
//! decoder. The identity has one coefficient and so no memory; a square root has up to a coefficient for every
//! step of its horizon.

mod decoder;
mod encoder;

use super::{
    COEFFICIENT_BITS, ColumnGeometry, Decoder, Encoder, Factorization, MAX_HORIZON, Matrix, MatrixError,
    RowNorms, StepError, Strategy, StrategyName, gram, history::History,
};
use crate::{series, workload::Workload};
use decoder::ToeplitzDecoder;
use encoder::ToeplitzEncoder;
use nalgebra::DMatrix;
use std::sync::Arc;
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

    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let coefficients = self.coefficients.iter().map(|&m| real(m)).collect();
        Matrix::toeplitz(coefficients, self.within_horizon(steps))
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
    use crate::strategy::{Matrix, Strategy, build};
    use crate::workload::Workload;
    use nalgebra::DMatrix;
    use std::sync::Arc;

    const WORKLOADS: [&str; 7] =
        ["prefix", "average", "exponential:0.9", "exponential:0.1", "window:1", "window:3", "window:10"];
    const STEPS: usize = 40;

    fn strategy(name: &str, workload: &str) -> Arc<dyn Strategy> {
        build(name.parse().unwrap(), &workload.parse().unwrap(), Some(STEPS as u64)).unwrap()
    }

    /// C, column by column, by encoding the unit vectors: one coordinate for each.
    fn dense(strategy: &dyn Strategy) -> DMatrix<f64> {
        let mut encoder = strategy.encoder(STEPS);
        let mut y = vec![0; STEPS];
        DMatrix::from_row_iterator(
            STEPS,
            STEPS,
            (0..STEPS).flat_map(|t| {
                let x: Vec<i128> = (0..STEPS).map(|i| (i == t).into()).collect();
                encoder.encode(&x, &mut y).unwrap();
                y.iter().map(|&m| m as f64 / 2f64.powi(40)).collect::<Vec<_>>()
            }),
        )
    }

    fn dense_workload(workload: &Workload) -> DMatrix<f64> {
        DMatrix::from_fn(STEPS, STEPS, |t, i| workload.coefficient(t as u64 + 1, i as u64 + 1))
    }

    fn check_all(check: impl Fn(&str, &Workload, &dyn Strategy)) {
        for text in WORKLOADS {
            for name in ["identity", "square-root"] {
                check(&format!("{text} {name}"), &text.parse().unwrap(), strategy(name, text).as_ref());
            }
        }
    }

    #[test]
    fn the_square_root_squared_is_the_workload() {
        for text in WORKLOADS {
            let root = dense(strategy("square-root", text).as_ref());
            let toeplitz = dense_workload(&text.replace("average", "prefix").parse().unwrap());
            assert!((&root * &root - toeplitz).amax() < 1e-11, "{text}");
        }
    }

    #[test]
    fn decoding_is_multiplication_by_the_inverse() {
        check_all(|what, _, strategy| {
            let y = DMatrix::from_fn(STEPS, 3, |t, c| ((t * 3 + c) as f64).sin());
            let expected = dense(strategy).try_inverse().unwrap() * &y;
            let mut decoder = strategy.decoder(3);
            let mut x = [0.0; 3];
            for t in 0..STEPS {
                decoder.decode(&y.row(t).iter().copied().collect::<Vec<_>>(), &mut x).unwrap();
                for (c, x) in x.iter().enumerate() {
                    assert!((x - expected[(t, c)]).abs() < 1e-10, "{what}: step {t}, coordinate {c}");
                }
            }
        });
    }

    #[test]
    fn row_norms_are_those_of_the_dense_decoder() {
        check_all(|what, workload, strategy| {
            let decoder = dense_workload(workload) * dense(strategy).try_inverse().unwrap();
            let norms: Vec<f64> = strategy.decoder_row_norms(workload, STEPS as u64).collect();
            assert_eq!(norms.len(), STEPS);
            for (t, norm) in norms.iter().enumerate() {
                assert!((norm - decoder.row(t).norm()).abs() < 1e-10, "{what}: row {t}");
            }
        });
    }

    /// Upper bounds that are met to the last digits of the dense computation.
    #[test]
    fn the_geometry_is_that_of_the_dense_gram_matrix() {
        check_all(|what, _, strategy| {
            let c = dense(strategy);
            let gram = c.transpose() * &c;
            let geometry = strategy.geometry();
            for steps in [1, STEPS / 2, STEPS] {
                let norm = c.view((0, 0), (steps, 1)).norm_squared();
                let found = strategy.max_column_norm_squared(steps as u64);
                assert!((norm - found).abs() < 1e-14, "{what}: {steps} steps");
            }
            assert_eq!(strategy.max_column_norm_squared(STEPS as u64), geometry.max_norm_squared, "{what}");
            let matrix = Matrix::dense(c.clone()).unwrap();
            assert_eq!(
                strategy.matrix(STEPS as u64).unwrap().gram(&[0, 7, 9]),
                matrix.gram(&[0, 7, 9]),
                "{what}"
            );
            let overlap = (0..STEPS).flat_map(|j| (0..j).map(move |i| (i, j))).map(|ij| -gram[ij]);
            let overlap = overlap.fold(0.0, f64::max);
            assert!((geometry.negative_overlap - overlap).abs() < 1e-14, "{what}: {geometry:?} {overlap}");
            let positive = !what.starts_with("window") || what.ends_with("identity");
            assert!(!positive || geometry.negative_overlap == 0.0, "{what}: {geometry:?}");
        });
    }

    #[test]
    fn figures_end_with_the_horizon() {
        let root = strategy("square-root", "prefix");
        assert_eq!(root.decoder_row_norms(&Workload::Prefix, u64::MAX).count(), STEPS);
        assert_eq!(strategy("identity", "prefix").decoder_row_norms(&Workload::Prefix, 100).count(), 100);
    }
}
