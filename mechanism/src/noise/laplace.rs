//! The discrete Laplace on the integers (a two-sided geometric law), exact, for pure differential
//! privacy.
//!
//! **Distribution.** `P(x) = (1 − e^(−1/t))/(1 + e^(−1/t)) · exp(−|x|/t)`, x ∈ ℤ, for a whole scale
//! t. Added to an integer of sensitivity Δ it is (Δ/t)-private: P(x)/P(x + Δ) ≤ exp(Δ/t), with
//! nothing lost to rounding (Ghosh, Roughgarden & Sundararajan, STOC 2009).
//!
//! **Algorithm.** Write |x| = ht + j with 0 ≤ j < t. As exp(−|x|/t) = exp(−h)·exp(−j/t),
//!
//! 1. draw j uniformly in 0..t;
//! 2. accept it with probability exp(−j/t), else start again;
//! 3. let h be the number of successes in trials of probability exp(−1) before the first failure;
//! 4. draw a sign; start again at −0, so that 0 is not counted twice.
//!
//! **Proof.** One round ends with the magnitude ht + j with probability ∝ (1/t)·exp(−j/t)·exp(−h)(1
//! − e⁻¹), that is ∝ exp(−|x|/t), and each magnitude arises from one (h, j) only. The sign halves
//! it for x ≠ 0, and the rule for −0 halves it for x = 0 too. Rounds are independent, so the first
//! that ends has this distribution. All trials are exact (`bernoulli`), and j is drawn by rejection
//! from the next power of two. ∎

use super::exponential::bernoulli_exponential;
use super::exponential::uniform_below;
use num_bigint::BigUint;
use rand::CryptoRng;
use thiserror::Error;

/// Scales below this range would make the grid visible. Above it, sums would exceed 128 bits.
const SCALES: std::ops::RangeInclusive<f64> = 1.0..=(1_u128 << 100) as f64;

/// A scale that can't be drawn.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("Laplace noise of scale {0:?} grid units can't be drawn: give one between 1 and 2^100")]
pub struct LaplaceScaleError(f64);

/// An exact discrete Laplace.
///
/// ```
/// use hushflow_mechanism::noise::{DiscreteLaplace, NoiseSource};
///
/// let laplace = DiscreteLaplace::at_least(1e6)?;
/// let noise: i128 = laplace.sample(&mut NoiseSource::System.generator(1, 0)?);
/// assert!(noise.abs() < 100_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscreteLaplace {
    scale: u128,
}

impl DiscreteLaplace {
    /// Returns the noise with the least whole scale t that is at least `scale` grid units.
    ///
    /// # Errors
    /// [`LaplaceScaleError`] unless it is between 1 and 2¹⁰⁰.
    pub fn at_least(scale: f64) -> Result<Self, LaplaceScaleError> {
        if SCALES.contains(&scale) {
            Ok(Self { scale: scale.ceil() as u128 })
        } else {
            Err(LaplaceScaleError(scale))
        }
    }

    /// Returns t, in grid units.
    pub fn scale(self) -> u128 {
        self.scale
    }

    /// Returns one draw.
    pub fn sample<R: CryptoRng + ?Sized>(self, rng: &mut R) -> i128 {
        loop {
            let low = uniform_below(self.scale, rng);
            if !coin(low, self.scale, rng) {
                continue;
            }
            let mut wholes = 0u128;
            while coin(1, 1, rng) {
                wholes += 1;
            }
            // Exceeds 127 bits only with a probability below exp(−2²⁶).
            let magnitude = wholes.wrapping_mul(self.scale).wrapping_add(low) as i128;
            let negative = rng.next_u64() & 1 == 1;
            if !(negative && magnitude == 0) {
                return if negative { -magnitude } else { magnitude };
            }
        }
    }
}

/// Returns true with probability exp(−numerator/denominator).
fn coin<R: CryptoRng + ?Sized>(numerator: u128, denominator: u128, rng: &mut R) -> bool {
    let exactly = || (BigUint::from(numerator), BigUint::from(denominator));
    bernoulli_exponential(numerator as f64 / denominator as f64, exactly, rng)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::SeedableRng;

    /// Returns the probability of x at scale t.
    fn probability(x: i128, t: f64) -> f64 {
        let ratio = (-t.recip()).exp();
        (1.0 - ratio) / (1.0 + ratio) * ratio.powf(x.unsigned_abs() as f64)
    }

    /// Chi-squared of 100,000 draws against the exact probabilities, cells of at least 20 expected
    /// draws, at six standard deviations: a false alarm below 10⁻⁸ for each scale.
    #[test]
    fn small_scales_have_the_exact_probabilities() {
        for (t, seed) in [(1u32, 1u64), (2, 2), (5, 3), (13, 4)] {
            let laplace = DiscreteLaplace::at_least(f64::from(t)).unwrap();
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let draws = 100_000;
            let mut counts = std::collections::BTreeMap::new();
            for _ in 0..draws {
                *counts.entry(laplace.sample(&mut rng)).or_insert(0u32) += 1;
            }
            let reach = (0..).find(|&x| f64::from(draws) * probability(x, f64::from(t)) < 20.0).unwrap();
            let (mut chi_squared, mut degrees, mut inside, mut expected_inside) = (0.0, 0.0, 0, 0.0);
            for x in -reach + 1..reach {
                let (found, expected) =
                    (counts.get(&x).copied().unwrap_or(0), f64::from(draws) * probability(x, f64::from(t)));
                chi_squared += (f64::from(found) - expected).powi(2) / expected;
                (inside, expected_inside) = (inside + found, expected_inside + expected);
                degrees += 1.0;
            }
            let tail = f64::from(draws) - expected_inside;
            chi_squared += (f64::from(draws - inside) - tail).powi(2) / tail;
            let z = (chi_squared - degrees) / f64::sqrt(2.0 * degrees);
            assert!(z.abs() < 6.0, "t = {t}: z = {z}");
        }
    }

    /// The magnitude divided by t is nearly exponential. Its mean over 20,000 draws and the share
    /// of signs are within six standard deviations.
    #[test]
    fn large_scales_are_exponential_and_even() {
        for (t, seed) in [(2_f64.powi(40), 5u64), (2_f64.powi(99), 6)] {
            let laplace = DiscreteLaplace::at_least(t).unwrap();
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let draws: Vec<f64> = (0..20_000).map(|_| laplace.sample(&mut rng) as f64 / t).collect();
            let root = (draws.len() as f64).sqrt();
            let mean = draws.iter().map(|x| x.abs()).sum::<f64>() / draws.len() as f64;
            let sign = draws.iter().map(|x| x.signum()).sum::<f64>() / draws.len() as f64;
            assert!((mean - 1.0).abs() * root < 6.0, "mean {mean}");
            assert!(sign.abs() * root < 6.0, "sign {sign}");
        }
    }

    #[test]
    fn scales_are_rounded_up_or_refused() {
        assert_eq!(DiscreteLaplace::at_least(2.5).unwrap().scale(), 3);
        for scale in [f64::NAN, 0.0, 0.5, -3.0, f64::INFINITY, 2_f64.powi(101)] {
            assert!(DiscreteLaplace::at_least(scale).is_err(), "{scale}");
        }
    }
}
