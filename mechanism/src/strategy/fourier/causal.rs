//! The Fourier encoder in causal square form: the lower-triangular C with the same CᵀC, a Toeplitz
//! matrix.
//!
//! Let `T = LLᵀ` be a Toeplitz matrix with Cholesky factor L. Reversing rows and columns of T gives
//! T again, so `C[t,i] = L[n−1−i, n−1−t]` is lower-triangular with `CᵀC = T`. The Schur algorithm
//! (Schur, 1917; Kailath, Vieira and Morf, 1978) computes the columns of L in turn, in O(n) each:
//! two vectors generate T, and each column takes a hyperbolic rotation of them.

use super::{Fourier, gram, reciprocals};
use crate::strategy::{Dense, Kind, MAX_DENSE_HORIZON, StrategyError};
use nalgebra::DMatrix;
use std::sync::Arc;

/// `fft-optimal-decoder`, which can run; [`Fourier`] computes errors for longer horizons.
pub(in crate::strategy) static FFT_OPTIMAL_DECODER: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    compared: Kind::if_short,
    strategy: Some(|made| Ok(Arc::new(fft_optimal_decoder(made.steps()?)?))),
    factorization: Some(|horizon| Ok(Arc::new(Fourier::optimal(horizon)?))),
    ..Kind::new("fft-optimal-decoder", "the encoder of `fft` with the best decoder, in causal form")
};

fn fft_optimal_decoder(horizon: u64) -> Result<Dense, StrategyError> {
    Dense::new(FFT_OPTIMAL_DECODER.name(), &causal_form(&gram(&reciprocals(horizon as usize))))
}

/// The lower-triangular C with `(CᵀC)_ij = gram_|i−j|`. Plain loops, for the same result on every
/// machine.
fn causal_form(gram: &[f64]) -> DMatrix<f64> {
    let n = gram.len();
    let mut c = DMatrix::zeros(n, n);
    let mut leading: Vec<f64> = gram.iter().map(|entry| entry / gram[0].sqrt()).collect();
    let mut trailing = leading[1..].to_vec();
    for t in (0..n).rev() {
        leading.iter().enumerate().for_each(|(lag, &entry)| c[(t, t - lag)] = entry);
        if t > 0 {
            leading.pop();
            let reflection = trailing[0] / leading[0];
            let norm = ((1.0 - reflection) * (1.0 + reflection)).sqrt();
            for (a, b) in leading.iter_mut().zip(&mut trailing) {
                (*a, *b) = ((*a - reflection * *b) / norm, (*b - reflection * *a) / norm);
            }
            trailing.remove(0);
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Factorization, Strategy, conformance};

    #[test]
    fn the_square_form_has_the_gram_matrix() {
        for n in [1, 2, 3, 10, 300] {
            let gram = gram(&reciprocals(n));
            let c = causal_form(&gram);
            let expected = DMatrix::from_fn(n, n, |i, j| gram[i.abs_diff(j)]);
            assert!((c.transpose() * c - expected).amax() < 1e-12, "{n}");
        }
    }

    #[test]
    fn streaming_is_the_matrix() {
        for (workload, steps) in [("prefix", 1), ("prefix", 20), ("window:3", 16), ("average", 13)] {
            let strategy = fft_optimal_decoder(steps).unwrap();
            conformance::check(&strategy, &workload.parse().unwrap(), steps as usize);
        }
    }

    #[test]
    fn it_is_judged_as_the_closed_forms_say() {
        for workload in ["prefix", "average", "exponential:0.99", "window:30", "momentum:0.9"] {
            for n in [100, 1000] {
                let workload = workload.parse().unwrap();
                let strategy = fft_optimal_decoder(n).unwrap();
                let fourier = Fourier::optimal(n).unwrap();
                let scale =
                    (fourier.max_column_norm_squared(n) / strategy.geometry().max_norm_squared).sqrt();
                let pairs =
                    strategy.decoder_row_norms(&workload, n).zip(fourier.decoder_row_norms(&workload, n));
                for (t, (found, expected)) in pairs.enumerate() {
                    let ratio = found / scale / expected;
                    assert!((ratio - 1.0).abs() < 1e-10, "{workload} {n}: row {t}: {ratio}");
                }
            }
        }
    }
}
