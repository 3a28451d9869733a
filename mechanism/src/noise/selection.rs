//! The exponential mechanism, sampled exactly: selects one of many candidates, preferring high
//! scores.
//!
//! **Distribution.** Candidate r is selected with probability ∝ exp(c·s_r), for integer scores s_r
//! and a positive dyadic c.
//!
//! **Algorithm.** Draw a candidate uniformly (by rejection from the next power of two: exact).
//! Accept it with probability exp(−c(s_max − s_r)). Otherwise start again.
//!
//! **Proof.** In one round candidate r has probability exp(−c(s_max − s_r))/N ∝ exp(c·s_r). Rounds
//! are independent, so the first accepted candidate has this distribution. A candidate of the
//! highest score is always accepted, so each round accepts with probability at least 1/N. ∎
//!
//! Trials are exact (`bernoulli_exponential`) and scores are integers, so the distribution is
//! exact: no score is rounded and no tie is broken. The *time* of a selection depends on the
//! scores: on the number of scores near the highest. The time to compute scores depends on them
//! too. Use a selection only where its running time is not observed.
//!
//! **Privacy.** Let neighbours change every score by at most Δ. Then ln(P(r)/P'(r)) = c(s_r −
//! s'_r) + (the same for all r) lies in an interval of length 2cΔ. So the mechanism is 2cΔ-bounded
//! range (Durfee & Rogers 2019), and an ε-bounded-range mechanism is ε²/8-zCDP (Cesar & Rogers
//! 2021, Lemma 3.2; Rogers & Steinke 2021). So ρ-zCDP allows 2cΔ = √(8ρ), that is c = √(2ρ)/Δ,
//! which is rounded down. And P(r)/P'(r) ≤ exp(2cΔ), so ε-differential privacy allows c = ε/(2Δ).

use super::exponential::bernoulli_exponential;
use super::exponential::uniform_below;
use crate::accounting::Epsilon;
use crate::numbers;
use num_bigint::BigUint;
use rand::CryptoRng;
use thiserror::Error;

/// Relative margin by which c is rounded down.
const MARGIN: f64 = 1e-12;

/// Reasons why no selection is possible with this privacy.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SelectionError {
    /// ρ or Δ is not a positive number, or √(2ρ)/Δ is not.
    #[error(
        "a selection with rho {rho:?} and sensitivity {sensitivity} is invalid: both must be above 0, and finite"
    )]
    Weight {
        /// The given ρ.
        rho: f64,
        /// The given Δ.
        sensitivity: i128,
    },
    /// ε or Δ is not a positive number, or ε/(2Δ) is not.
    #[error(
        "a selection with epsilon {epsilon:?} and sensitivity {sensitivity} is invalid: both must be above 0, and finite"
    )]
    PureWeight {
        /// The given ε.
        epsilon: f64,
        /// The given Δ.
        sensitivity: i128,
    },
    /// There are no candidates.
    #[error("there is nothing to select from")]
    Empty,
}

numbers!(enum SelectionError { 0 Weight { rho, sensitivity }, 1 PureWeight { epsilon, sensitivity }, 2 Empty });

/// An exponential mechanism over integer scores.
///
/// ```
/// use hushflow_mechanism::noise::{NoiseSource, selection::ExponentialMechanism};
///
/// // ½-zCDP, for scores that a neighbour changes by 10 at most.
/// let selection = ExponentialMechanism::new(0.5, 10)?;
/// let mut generator = NoiseSource::System.generator(1, 0)?;
/// let chosen = selection.select(&[0, 1_000_000, 3], &mut generator)?;
/// assert_eq!(chosen, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialMechanism {
    /// c = significand·2^−exponent.
    weight: f64,
}

impl ExponentialMechanism {
    /// Builds the ρ-zCDP mechanism for scores that neighbours change by at most `sensitivity`.
    ///
    /// # Errors
    /// [`SelectionError::Weight`] unless c = √(2ρ)/Δ is a positive finite number.
    pub fn new(rho: f64, sensitivity: i128) -> Result<Self, SelectionError> {
        Self::of_weight((2.0 * rho).sqrt(), sensitivity).ok_or(SelectionError::Weight { rho, sensitivity })
    }

    /// Builds the ε-private mechanism for scores that neighbours change by at most `sensitivity`.
    ///
    /// # Errors
    /// [`SelectionError::PureWeight`] unless c = ε/(2Δ) is a positive finite number.
    pub fn pure(epsilon: Epsilon, sensitivity: i128) -> Result<Self, SelectionError> {
        let epsilon = epsilon.value();
        Self::of_weight(epsilon / 2.0, sensitivity).ok_or(SelectionError::PureWeight { epsilon, sensitivity })
    }

    /// Builds the mechanism with c = numerator/Δ, rounded down.
    fn of_weight(numerator: f64, sensitivity: i128) -> Option<Self> {
        let weight = numerator / sensitivity as f64 * (1.0 - MARGIN);
        (numerator > 0.0 && sensitivity > 0 && weight.is_normal()).then_some(Self { weight })
    }

    /// Returns c.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Returns the index of the selected score.
    ///
    /// # Errors
    /// [`SelectionError::Empty`] if there are no scores.
    pub fn select<R: CryptoRng + ?Sized>(
        &self,
        scores: &[i128],
        rng: &mut R,
    ) -> Result<usize, SelectionError> {
        let highest = *scores.iter().max().ok_or(SelectionError::Empty)?;
        loop {
            let position = uniform_below(scores.len() as u128, rng) as usize;
            if self.accepts(highest.abs_diff(scores[position]), rng) {
                return Ok(position);
            }
        }
    }

    /// Returns true with probability exp(−c·gap).
    fn accepts<R: CryptoRng + ?Sized>(&self, gap: u128, rng: &mut R) -> bool {
        gap == 0 || bernoulli_exponential(self.weight * gap as f64, || self.exponent(gap), rng)
    }

    /// Returns c·gap as a ratio of integers.
    fn exponent(&self, gap: u128) -> (BigUint, BigUint) {
        let (significand, exponent) = dyadic(self.weight);
        let numerator = BigUint::from(significand) * gap;
        match exponent {
            0.. => (numerator << exponent.unsigned_abs(), BigUint::from(1u32)),
            _ => (numerator, BigUint::from(1u32) << exponent.unsigned_abs()),
        }
    }
}

/// Returns a positive normal number as significand·2^exponent.
fn dyadic(value: f64) -> (u64, i32) {
    let bits = value.to_bits();
    ((bits & ((1 << 52) - 1)) | 1 << 52, (bits >> 52) as i32 - 1075)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::bound::Count;
    use crate::reference::{assert_drawn_from, assert_share};
    use chacha20::ChaCha20Rng;
    use num_traits::ToPrimitive;
    use rand::SeedableRng;

    /// Compares frequencies with exp(c·s). The seeds are fixed.
    fn check(rho: f64, sensitivity: i128, scores: &[i128], seed: u64) {
        let selection = ExponentialMechanism::new(rho, sensitivity).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let mut counts = vec![0; scores.len()];
        (0..200_000).for_each(|_| counts[selection.select(scores, &mut rng).unwrap()] += 1);
        let highest = *scores.iter().max().unwrap();
        let weights: Vec<f64> =
            scores.iter().map(|s| (-selection.weight() * (highest - s) as f64).exp()).collect();
        let total: f64 = weights.iter().sum();
        assert_drawn_from(&counts, &weights.iter().map(|weight| weight / total).collect::<Vec<f64>>());
    }

    #[test]
    fn frequencies_agree_with_the_exponential() {
        check(0.5, 10, &[0, 5, 10, 20, -7], 1);
        check(1e-3, 1 << 41, &[1 << 45, 1 << 44, 0, 1 << 46], 2);
        check(2.0, 3, &[4, 4, 4], 3);
        check(0.01, 7, &(0..40).map(|k| k * k / 20).collect::<Vec<i128>>(), 4);
    }

    /// The ratio for the exact trial is c·gap, for any exponent of c.
    #[test]
    fn exponents_are_exact() {
        for (rho, sensitivity, gap) in
            [(0.5, 10, 3u128), (1e-3, 1 << 41, 1 << 46), (800.0, 2, 1), (1e40, 1, 1)]
        {
            let selection = ExponentialMechanism::new(rho, sensitivity).unwrap();
            let (numerator, denominator) = selection.exponent(gap);
            let [numerator, denominator] = [numerator, denominator].map(|x| x.to_f64().unwrap());
            assert_eq!(numerator / denominator, selection.weight() * gap as f64);
        }
    }

    /// P(1)/P(0) = exp(ε·gap/(2Δ)).
    #[test]
    fn pure_selections_have_the_weight_of_their_epsilon() {
        let selection = ExponentialMechanism::pure(Epsilon::new(0.8).unwrap(), 4).unwrap();
        let mut rng = ChaCha20Rng::seed_from_u64(7);
        let mut ones = Count::default();
        (0..400_000).for_each(|_| ones.add(selection.select(&[3, 8], &mut rng).unwrap() == 1));
        let expected = 1.0 / (1.0 + (-0.5f64).exp());
        assert_share(ones, expected..=expected);
        assert!(ExponentialMechanism::pure(Epsilon::new(0.0).unwrap(), 4).is_err());
    }

    /// Attack: one score moves by the sensitivity and all others move against it. No probability
    /// changes by more than √(8ρ).
    #[test]
    fn neighbours_are_within_the_bounded_range() {
        let (rho, sensitivity) = (0.3, 1000);
        let selection = ExponentialMechanism::new(rho, sensitivity).unwrap();
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
    fn invalid_selections_are_refused() {
        for (rho, sensitivity) in
            [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (1.0, 0), (1.0, -1), (f64::INFINITY, 1)]
        {
            assert!(ExponentialMechanism::new(rho, sensitivity).is_err(), "{rho} {sensitivity}");
        }
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        assert_eq!(
            ExponentialMechanism::new(1.0, 1).unwrap().select(&[], &mut rng),
            Err(SelectionError::Empty)
        );
    }
}
