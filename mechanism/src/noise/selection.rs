//! The exponential mechanism, sampled exactly: which of a few candidates has a high score.
//!
//! **What it draws.** Candidate r with probability ∝ exp(c·s_r), for integer scores s_r and a positive dyadic c.
//!
//! **How.** Draw a candidate uniformly (by rejection from the next power of two: exact); accept it with probability
//! exp(−c(s_max − s_r)), else begin again.
//!
//! **Proof.** In one round candidate r comes out with probability exp(−c(s_max − s_r))/N ∝ exp(c·s_r). Rounds are
//! independent, so the first that ends has this law. It does end: a candidate of the highest score is always accepted,
//! so a round ends it with probability 1/N at least. ∎
//!
//! The trial compares 64 bits of a uniform number with a floating-point value of exp(−x), whose error is far below the margin
//! of 10⁻⁹ that is left on both sides. Inside the margin, which happens less than once in 10⁸ trials, as many bits as it takes
//! are compared with integer bounds of exp(−x). So the distribution is exact: no score is ever rounded, no tie broken.
//! The *time* it takes depends on the scores (on how many of them are near the highest), as does that of all that computes them:
//! a selection is for a place whose clock nobody watches.
//!
//! **Privacy.** Let neighbours change every score by at most Δ. Then ln(P(r)/P'(r)) = c(s_r − s'_r) + (the same for all r)
//! ranges over an interval of length 2cΔ: the mechanism is 2cΔ-bounded range (Durfee & Rogers 2019), and an ε-bounded-range
//! mechanism is ε²/8-zCDP (Cesar & Rogers 2021, Lemma 3.2; Rogers & Steinke 2021). So ρ-zCDP allows 2cΔ = √(8ρ), that is c = √(2ρ)/Δ,
//! which is rounded down.

use super::exponential;
use super::uniform::LazyUniform;
use num_bigint::BigUint;
use rand::CryptoRng;
use thiserror::Error;

/// Relative margin by which c is rounded down.
const MARGIN: f64 = 1e-12;

/// How near to exp(−x) a uniform number may be for floating point to decide, relatively and absolutely.
const DOUBT: (f64, f64) = (1e-9, 1e-18);

/// Why nothing can be selected with this privacy.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SelectionError {
    /// ρ or Δ are no positive numbers, or their ratio is none.
    #[error(
        "a selection with rho {rho:?} and sensitivity {sensitivity} has no weight: both must be above 0, and finite"
    )]
    Weight {
        /// ρ as given.
        rho: f64,
        /// Δ as given.
        sensitivity: i128,
    },
    /// There is no candidate.
    #[error("there is nothing to select from")]
    Empty,
}

/// An exponential mechanism over integer scores.
///
/// ```
/// use hushflow_mechanism::noise::{NoiseSource, selection::Selection};
///
/// let selection = Selection::new(0.5, 10)?; // ½-zCDP, for scores that a neighbour changes by 10 at most
/// let mut generator = NoiseSource::System.generator(1, 0)?;
/// let chosen = selection.select(&[0, 1_000_000, 3], &mut generator)?;
/// assert_eq!(chosen, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// c = significand·2^−exponent.
    weight: f64,
}

impl Selection {
    /// The ρ-zCDP mechanism for scores that neighbours change by at most `sensitivity`.
    ///
    /// # Errors
    /// [`SelectionError::Weight`] unless c = √(2ρ)/Δ is a positive finite number.
    pub fn new(rho: f64, sensitivity: i128) -> Result<Self, SelectionError> {
        let weight = (2.0 * rho).sqrt() / sensitivity as f64 * (1.0 - MARGIN);
        let valid = rho > 0.0 && sensitivity > 0 && weight.is_normal();
        if valid { Ok(Self { weight }) } else { Err(SelectionError::Weight { rho, sensitivity }) }
    }

    /// c.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The place of a score.
    ///
    /// # Errors
    /// [`SelectionError::Empty`] where there is none.
    pub fn select<R: CryptoRng + ?Sized>(
        &self,
        scores: &[i128],
        rng: &mut R,
    ) -> Result<usize, SelectionError> {
        let highest = *scores.iter().max().ok_or(SelectionError::Empty)?;
        loop {
            let place = uniform_below(scores.len(), rng);
            if self.accepts(highest.abs_diff(scores[place]), rng) {
                return Ok(place);
            }
        }
    }

    /// True with probability exp(−c·gap).
    fn accepts<R: CryptoRng + ?Sized>(&self, gap: u128, rng: &mut R) -> bool {
        if gap == 0 {
            return true;
        }
        let word = rng.next_u64();
        let (uniform, probability) = (word as f64 * 0.5f64.powi(64), (-self.weight * gap as f64).exp());
        let doubt = DOUBT.0 * probability + DOUBT.1;
        if (uniform - probability).abs() > doubt {
            return uniform < probability;
        }
        self.accepts_exactly(gap, word, rng)
    }

    #[cold]
    fn accepts_exactly<R: CryptoRng + ?Sized>(&self, gap: u128, word: u64, rng: &mut R) -> bool {
        let (significand, exponent) = dyadic(self.weight);
        let numerator = BigUint::from(significand) * gap;
        let (numerator, denominator) = match exponent {
            0.. => (numerator << exponent.unsigned_abs(), BigUint::from(1u32)),
            _ => (numerator, BigUint::from(1u32) << exponent.unsigned_abs()),
        };
        let bounds = |precision| exponential::bounds(&numerator, &denominator, precision);
        LazyUniform::beginning_with(word).is_below(bounds, rng)
    }
}

/// A positive normal number as significand·2^exponent.
fn dyadic(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    ((bits & ((1 << 52) - 1)) | 1 << 52, (bits >> 52) as i32 - 1075)
}

/// Exactly uniform below `bound` ≥ 1.
fn uniform_below<R: CryptoRng + ?Sized>(bound: usize, rng: &mut R) -> usize {
    let mask = (bound as u64).next_power_of_two() - 1;
    loop {
        let draw = rng.next_u64() & mask;
        if draw < bound as u64 {
            return draw as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::SeedableRng;

    /// Frequencies against exp(c·s), chi-squared; false alarm below 1e-6 (six deviations of the normal approximation).
    fn check(rho: f64, sensitivity: i128, scores: &[i128], seed: u64) {
        let selection = Selection::new(rho, sensitivity).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let draws = 40_000;
        let mut counts = vec![0.0; scores.len()];
        (0..draws).for_each(|_| counts[selection.select(scores, &mut rng).unwrap()] += 1.0);
        let highest = *scores.iter().max().unwrap();
        let weights: Vec<f64> =
            scores.iter().map(|s| (-selection.weight() * (highest - s) as f64).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut chi_squared = 0.0;
        for (count, weight) in counts.iter().zip(&weights) {
            let expected = f64::from(draws) * weight / total;
            chi_squared += (count - expected).powi(2) / expected.max(1e-9);
        }
        let degrees = scores.len() as f64 - 1.0;
        let z = (chi_squared - degrees) / (2.0 * degrees).sqrt();
        assert!(z < 8.0, "rho {rho}, scores {scores:?}: {counts:?}");
    }

    #[test]
    fn frequencies_are_those_of_the_exponential() {
        check(0.5, 10, &[0, 5, 10, 20, -7], 1);
        check(1e-3, 1 << 41, &[1 << 45, 1 << 44, 0, 1 << 46], 2);
        check(2.0, 3, &[4, 4, 4], 3);
        check(0.01, 7, &(0..40).map(|k| k * k / 20).collect::<Vec<i128>>(), 4);
    }

    /// The exact trial, which a release meets less than once in 10⁸ trials, forced: it decides as exp does.
    #[test]
    fn the_exact_trial_is_that_of_the_exponential() {
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        for (rho, sensitivity, gap) in [(0.5, 10, 3), (1e-3, 1 << 41, 1 << 46), (800.0, 2, 1), (0.02, 1, 40)]
        {
            let selection = Selection::new(rho, sensitivity).unwrap();
            let probability = (-selection.weight() * gap as f64).exp();
            let at = |offset: f64| ((probability + offset) * 2f64.powi(64)) as u64;
            assert!(selection.accepts_exactly(gap, at(-1e-12), &mut rng));
            assert!(!selection.accepts_exactly(gap, at(1e-12), &mut rng));
            let (numerator, exponent) = dyadic(selection.weight());
            assert_eq!(numerator as f64 * 2f64.powi(exponent), selection.weight());
        }
    }

    /// Attack: a score moved by the sensitivity, all others against it, changes no probability by more than √(8ρ).
    #[test]
    fn neighbours_are_within_the_bounded_range() {
        let (rho, sensitivity) = (0.3, 1000);
        let selection = Selection::new(rho, sensitivity).unwrap();
        let probabilities = |scores: &[i128]| {
            let weights: Vec<f64> = scores.iter().map(|&s| (selection.weight() * s as f64).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights.iter().map(|weight| (weight / total).ln()).collect::<Vec<f64>>()
        };
        let (a, b) = (probabilities(&[0, 0, 0]), probabilities(&[sensitivity, -sensitivity, -sensitivity]));
        let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b - a).collect();
        let range =
            ratios.iter().fold(f64::MIN, |m, r| m.max(*r)) - ratios.iter().fold(f64::MAX, |m, r| m.min(*r));
        assert!(range <= (8.0 * rho).sqrt() && range > 0.999 * (8.0 * rho).sqrt(), "{range}");
    }

    #[test]
    fn what_has_no_weight_is_refused() {
        for (rho, sensitivity) in
            [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (1.0, 0), (1.0, -1), (f64::INFINITY, 1)]
        {
            assert!(Selection::new(rho, sensitivity).is_err(), "{rho} {sensitivity}");
        }
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        assert_eq!(Selection::new(1.0, 1).unwrap().select(&[], &mut rng), Err(SelectionError::Empty));
    }
}
