//! Whole series through the Fourier encoder and its decoders by fast transforms, in O(n log n)
//! without a matrix.
//!
//! With S the circulant root, of 2n rows, and C its first n columns:
//!
//! - encoding multiplies the spectrum by that of S: 2n numbers from n increments;
//! - `fft` decodes by S again; the first n rows are the decoder;
//! - `fft-optimal-decoder` decodes by `A (CᵀC)⁻¹ Cᵀ`: the first n rows of Sᵀ, then the inverse of
//!   the Gram matrix, then running sums. The Gram matrix is Toeplitz plus a matrix of rank one (see
//!   the module above).
//!
//! Decoding is linear, so decoded noise is the noise of the decoded sums.

use super::{Fourier, StrategyError};
use crate::series::fourier::{convolve_circularly, spectrum};
use nalgebra::Complex;
use std::f64::consts::PI;

impl Fourier {
    /// Encodes the increments x of n steps to the 2n numbers C x.
    ///
    /// # Errors
    /// [`StrategyError::Length`] for another number of increments.
    pub fn encode(&self, increments: &[f64]) -> Result<Vec<f64>, StrategyError> {
        let n = self.reciprocals.len();
        self.check_length(increments.len(), n)?;
        Ok(convolve_circularly(increments, 2 * n, |frequency| self.root(frequency)))
    }

    /// Decodes 2n encoded numbers y to the running sums B y.
    ///
    /// ```
    /// use hushflow_mechanism::strategy::Fourier;
    ///
    /// let fourier = Fourier::optimal(100_000)?;
    /// let sums = fourier.decode(&fourier.encode(&vec![1.0; 100_000])?)?;
    /// assert!((sums[99_999] - 100_000.0).abs() < 1e-3);
    /// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
    /// ```
    ///
    /// # Errors
    /// [`StrategyError::Length`] for another number of encoded numbers.
    pub fn decode(&self, encoded: &[f64]) -> Result<Vec<f64>, StrategyError> {
        let n = self.reciprocals.len();
        self.check_length(encoded.len(), 2 * n)?;
        if !self.optimal {
            let mut sums = convolve_circularly(encoded, 2 * n, |frequency| self.root(frequency));
            sums.truncate(n);
            return Ok(sums);
        }
        let mut projected = convolve_circularly(encoded, 2 * n, |frequency| self.root(frequency).conj());
        projected.truncate(n);
        let mut sum = 0.0;
        Ok(self.solve_gram(&projected).into_iter().map(|increment| (sum += increment, sum).1).collect())
    }

    fn solve_gram(&self, right: &[f64]) -> Vec<f64> {
        let (n, q) = (right.len(), &self.reciprocals);
        // Embeds the Toeplitz part in a circulant matrix of 2n rows, whose first column is
        // symmetric.
        let inverse = self.inverse();
        let mut column = vec![0.0; 2 * n];
        for (k, &entry) in inverse.iter().enumerate() {
            column[k] = entry;
            column[(2 * n - k) % (2 * n)] = entry;
        }
        let spectrum = spectrum(&column, 2 * n);
        let toeplitz = convolve_circularly(right, 2 * n, |frequency| Complex::from(spectrum[frequency].re));
        let inner: f64 = q.iter().zip(right).map(|(q, right)| q * right).sum();
        let correction = 2.0 * inner / (1.0 + self.total);
        toeplitz.into_iter().zip(q).map(|(toeplitz, q)| toeplitz - correction * q).collect()
    }

    /// The eigenvalue of S at a frequency of at most n.
    fn root(&self, frequency: usize) -> Complex<f64> {
        let n = self.reciprocals.len();
        match frequency {
            0 => Complex::from((n as f64).sqrt()),
            even if even % 2 == 0 => Complex::from(0.0),
            odd => {
                let magnitude = (self.reciprocals[odd / 2] * n as f64).sqrt();
                Complex::from_polar(magnitude, PI * (odd as f64 / (4 * n) as f64 - 0.25))
            }
        }
    }

    fn check_length(&self, found: usize, expected: usize) -> Result<(), StrategyError> {
        if found == expected { Ok(()) } else { Err(StrategyError::Length { found, expected }) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Factorization;
    use super::*;
    use crate::workload::Workload;
    use nalgebra::DVector;

    fn fourier(optimal: bool, n: usize) -> Fourier {
        Fourier::with_decoder(n as u64, optimal).unwrap()
    }

    fn wave(length: usize) -> Vec<f64> {
        (0..length).map(|i| ((3 * i * i + i) as f64).sin()).collect()
    }

    #[test]
    fn transforms_are_the_dense_matrices() {
        for n in [1, 2, 3, 8, 25] {
            let plain = fourier(false, n);
            let c = plain.matrix(n as u64).unwrap().entries();
            let (increments, encoded) = (wave(n), DVector::from(wave(2 * n)));
            let found = DVector::from(plain.encode(&increments).unwrap());
            assert!((found - &c * DVector::from(increments)).amax() < 1e-13, "{n}");
            let root = plain.circulant_root();
            let own = nalgebra::DMatrix::from_fn(n, 2 * n, |t, k| root[(t + 2 * n - k) % (2 * n)]);
            let best = Workload::Prefix.matrix(n) * c.pseudo_inverse(1e-12).unwrap();
            for (optimal, decoder) in [(false, own), (true, best)] {
                let found = DVector::from(fourier(optimal, n).decode(encoded.as_slice()).unwrap());
                assert!((found - decoder * &encoded).amax() < 1e-12, "{n}");
            }
        }
    }

    #[test]
    fn long_series_return_as_running_sums() {
        let increments = wave(100_000);
        for optimal in [false, true] {
            let fourier = fourier(optimal, increments.len());
            let found = fourier.decode(&fourier.encode(&increments).unwrap()).unwrap();
            let mut sum = 0.0;
            for (found, increment) in found.iter().zip(&increments) {
                sum += increment;
                assert!((found - sum).abs() < 1e-8, "{found} against {sum}");
            }
        }
    }

    #[test]
    fn another_number_of_steps_is_refused() {
        let fourier = fourier(false, 4);
        let refused = |found, expected| Err(StrategyError::Length { found, expected });
        assert_eq!(fourier.encode(&[0.0; 5]), refused(5, 4));
        assert_eq!(fourier.decode(&[0.0; 4]), refused(4, 8));
    }
}
