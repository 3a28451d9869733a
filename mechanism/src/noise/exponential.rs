//! Exact Bernoulli trials of probability exp(−x), for a rational x ≥ 0, at the cost of one
//! floating-point exponential.
//!
//! A trial succeeds if a uniform number U is below exp(−x). A trial compares 64 bits of U with a
//! floating-point value of exp(−x), with a margin far above the error of that value. Inside the
//! margin, which happens less than once in 10⁸ trials, it compares as many bits as needed with
//! integers that enclose exp(−x) ([`bounds`]). So no trial is rounded.
//!
//! # Uniform numbers
//! Uniform real numbers on [0, 1) whose bits are drawn only as far as a comparison needs them, and
//! uniform integers.
//!
//! A comparison of two uniform reals, or of one with a rational number, is decided exactly: while
//! the bits drawn so far leave it open, 64 more are drawn. It ends with probability one, and after
//! the first word in all but 2⁻⁴⁰ of the cases.
//!
//! # Discrete Laplace
//! The discrete Laplace on the integers (a two-sided geometric law), exact, for pure differential
//! privacy.
//!
//! **Distribution.** `P(x) = (1 − e^(−1/t))/(1 + e^(−1/t)) · exp(−|x|/t)`, x ∈ ℤ, for an integer
//! scale t. Added to an integer of sensitivity Δ it is (Δ/t)-private: P(x)/P(x + Δ) ≤ exp(Δ/t),
//! with nothing lost to rounding (Ghosh, Roughgarden & Sundararajan, STOC 2009).
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
//! that ends has this distribution. All trials are exact (`bernoulli_exponential`), and j is drawn
//! by rejection from the next power of two. ∎

use super::scale::NoiseScaleError;
use num_bigint::BigUint;
use rand::CryptoRng;
use std::cmp::Ordering;

/// Relative and absolute margin around exp(−x) within which floating point does not decide. A
/// relative error of 10⁻¹² in x moves exp(−x) by less than a twentieth of the relative margin for x
/// up to 42. For larger x, exp(−x) is below the absolute margin.
const DOUBT: (f64, f64) = (1e-9, 1e-18);

/// Returns true with probability exp(−numerator/denominator). `exactly` gives the ratio, and
/// `ratio` agrees with it up to a relative error of 10⁻¹². The denominator is positive.
pub(super) fn bernoulli_exponential<R: CryptoRng + ?Sized>(
    ratio: f64,
    exactly: impl Fn() -> (BigUint, BigUint),
    rng: &mut R,
) -> bool {
    let word = rng.next_u64();
    let (uniform, probability) = (word as f64 * 0.5f64.powi(64), libm::exp(-ratio));
    let doubt = DOUBT.0 * probability + DOUBT.1;
    if (uniform - probability).abs() > doubt {
        return uniform < probability;
    }
    is_below_exponential(word, exactly(), rng)
}

/// Returns whether the uniform number that begins with this word is below
/// exp(−numerator/denominator).
#[cold]
fn is_below_exponential<R: CryptoRng + ?Sized>(
    word: u64,
    (numerator, denominator): (BigUint, BigUint),
    rng: &mut R,
) -> bool {
    let enclosing = |precision| bounds(&numerator, &denominator, precision);
    LazyUniform::beginning_with(word).is_below(enclosing, rng)
}

/// Returns integers that enclose `2^precision·exp(−numerator/denominator)`, with a distance far
/// below 2⁶⁴.
///
/// With a = numerator/denominator, exp(a) = Σaⁿ/n! has positive terms only, so rounding every term
/// down and up encloses it. After n ≥ 2a terms the rest is at most the last term. The relative
/// width is below (terms+2)²·2^−working. Where a is at least the precision, 0 and 1 enclose the
/// result, and no terms are computed.
pub(super) fn bounds(numerator: &BigUint, denominator: &BigUint, precision: u64) -> (BigUint, BigUint) {
    if *numerator >= denominator * precision {
        return (BigUint::ZERO, BigUint::from(1u32));
    }
    let working = precision + 64;
    let one = BigUint::from(1u32) << working;
    let (mut low_term, mut high_term) = (one.clone(), one.clone());
    let (mut low, mut high) = (one.clone(), one);
    let twice = numerator * 2u32;
    let (mut n, mut divisor) = (0u64, BigUint::ZERO);
    while divisor < twice || high_term > BigUint::from(1u32) {
        n += 1;
        divisor = denominator * n;
        low_term = low_term * numerator / &divisor;
        high_term = (high_term * numerator + &divisor - 1u32) / &divisor;
        low += &low_term;
        high += &high_term;
    }
    high += high_term;
    let scaled = BigUint::from(1u32) << (precision + working);
    (&scaled / high, scaled / low + 1u32)
}

/// A uniform real number, known to `64·(1 + more.len())` bits.
pub(super) struct LazyUniform {
    first: u64,
    more: Vec<u64>,
}

impl LazyUniform {
    /// Returns a uniform number that begins with these 64 uniform bits.
    pub(super) fn beginning_with(first: u64) -> Self {
        LazyUniform { first, more: Vec::new() }
    }

    pub(super) fn first_word(&self) -> u64 {
        self.first
    }

    fn word<R: CryptoRng + ?Sized>(&mut self, position: usize, rng: &mut R) -> u64 {
        while self.more.len() < position {
            self.more.push(rng.next_u64());
        }
        if position == 0 { self.first } else { self.more[position - 1] }
    }

    /// Returns whether this number exceeds the other. Both are extended as far as needed.
    pub(super) fn exceeds<R: CryptoRng + ?Sized>(&mut self, other: &mut Self, rng: &mut R) -> bool {
        let mut position = 0;
        loop {
            match self.word(position, rng).cmp(&other.word(position, rng)) {
                Ordering::Greater => return true,
                Ordering::Less => return false,
                Ordering::Equal => position += 1,
            }
        }
    }

    /// Returns whether this number is below the real number that `bounds(p)` encloses. `bounds(p)`
    /// returns integers `(low, high)` with `low ≤ 2^p·value ≤ high` whose distance stays bounded as
    /// p grows.
    pub(super) fn is_below<R, F>(&mut self, bounds: F, rng: &mut R) -> bool
    where
        R: CryptoRng + ?Sized,
        F: Fn(u64) -> (BigUint, BigUint),
    {
        let mut prefix = BigUint::from(self.first);
        let mut position = 0;
        loop {
            let (low, high) = bounds(64 * (position as u64 + 1));
            if prefix < low {
                return true;
            }
            if prefix >= high {
                return false;
            }
            position += 1;
            prefix = (prefix << 64u32) + self.word(position, rng);
        }
    }
}

/// Returns an exactly uniform integer below `bound` ≥ 1, by rejection from the next power of two:
/// one word for a draw, two beyond 2⁶⁴.
pub(super) fn uniform_below<R: CryptoRng + ?Sized>(bound: u128, rng: &mut R) -> u128 {
    let mask = bound.next_power_of_two() - 1;
    loop {
        let high = if mask > u128::from(u64::MAX) { u128::from(rng.next_u64()) << 64 } else { 0 };
        let draw = (high | u128::from(rng.next_u64())) & mask;
        if draw < bound {
            return draw;
        }
    }
}

/// Scales below this range would make the grid visible. Above it, sums would exceed 128 bits.
const SCALES: std::ops::RangeInclusive<f64> = 1.0..=(1_u128 << 100) as f64;

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
    /// Returns the noise with the least integer scale t that is at least `scale` grid units.
    ///
    /// # Errors
    /// [`NoiseScaleError::Laplace`] unless `scale` is between 1 and 2¹⁰⁰.
    pub fn at_least(scale: f64) -> Result<Self, NoiseScaleError> {
        if SCALES.contains(&scale) {
            Ok(Self { scale: scale.ceil() as u128 })
        } else {
            Err(NoiseScaleError::Laplace { scale })
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
    use crate::audit::bound::Count;
    use crate::reference::{assert_drawn_from, assert_share};
    use chacha20::ChaCha20Rng;
    use rand::{Rng, SeedableRng};

    /// Coins fall with probability e^−ratio. The exact comparison is also tested alone, with a
    /// hundredth of the trials. The seeds are fixed.
    #[test]
    fn coins_have_their_exact_probability() {
        let check = |numerator: u32, denominator: u32, seed| {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let exactly = || (BigUint::from(numerator), BigUint::from(denominator));
            let ratio = f64::from(numerator) / f64::from(denominator);
            let probability = (-ratio).exp();
            let (mut found, mut found_exactly) = (Count::default(), Count::default());
            (0..100_000).for_each(|_| found.add(bernoulli_exponential(ratio, exactly, &mut rng)));
            let words: Vec<u64> = (0..1000).map(|_| rng.next_u64()).collect();
            words.iter().for_each(|&word| found_exactly.add(is_below_exponential(word, exactly(), &mut rng)));
            for found in [found, found_exactly] {
                assert_share(found, probability..=probability);
            }
        };
        check(1, 3, 1);
        check(1, 1, 2);
        check(7, 2, 3);
        check(1, 1000, 4);
        check(0, 5, 5);
    }

    /// Just outside the margin, floating point and the exact comparison agree.
    #[test]
    fn both_comparisons_agree_at_the_margin() {
        let mut rng = ChaCha20Rng::seed_from_u64(6);
        for (numerator, denominator) in [(3u64, 10u64), (1, 1 << 41), (65, 2), (40_000, 1001)] {
            let probability = (-(numerator as f64) / denominator as f64).exp();
            let exactly = || (BigUint::from(numerator), BigUint::from(denominator));
            let at = |offset: f64| ((probability * (1.0 + offset)) * 2f64.powi(64)) as u64;
            assert!(is_below_exponential(at(-1e-9).saturating_sub(2), exactly(), &mut rng));
            assert!(!is_below_exponential(at(1e-9).saturating_add(2), exactly(), &mut rng));
        }
    }

    /// For huge ratios the exact comparison ends at once.
    #[test]
    fn huge_exponents_fail_at_once() {
        let mut rng = ChaCha20Rng::seed_from_u64(7);
        let huge = (BigUint::from(1u32) << 1000, BigUint::from(1u32));
        assert!(!is_below_exponential(0, huge, &mut rng));
    }

    #[test]
    fn comparison_with_a_rational_is_decided_at_the_last_bit() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        // One third begins with 0x5555…: the first word leaves the comparison open.
        let third = |p: u64| {
            let scaled = BigUint::from(1u32) << p;
            (&scaled / 3u32, scaled / 3u32 + 1u32)
        };
        let mut below = Count::default();
        for _ in 0..1000 {
            below.add(LazyUniform::beginning_with(0x5555_5555_5555_5555).is_below(third, &mut rng));
        }
        // Given these first bits, the rest is below with probability one third.
        assert_share(below, 1.0 / 3.0..=1.0 / 3.0);
        assert!(LazyUniform::beginning_with(0x5555_5555_5555_5554).is_below(third, &mut rng));
        assert!(!LazyUniform::beginning_with(0x5555_5555_5555_5556).is_below(third, &mut rng));
    }

    #[test]
    fn equal_words_are_decided_by_later_ones() {
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let mut greater = Count::default();
        for _ in 0..1000 {
            let mut a = LazyUniform::beginning_with(7);
            let mut b = LazyUniform::beginning_with(7);
            let first = a.exceeds(&mut b, &mut rng);
            assert_eq!(first, !b.exceeds(&mut a, &mut rng), "the order is kept once drawn");
            greater.add(first);
        }
        assert_share(greater, 0.5..=0.5);
    }

    /// Returns the probability of x at scale t.
    fn probability(x: i128, t: f64) -> f64 {
        let ratio = (-t.recip()).exp();
        (1.0 - ratio) / (1.0 + ratio) * ratio.powf(x.unsigned_abs() as f64)
    }

    /// Counts a million draws. The last cell holds all that are farther from 0.
    #[test]
    fn small_scales_have_the_exact_probabilities() {
        for (t, seed) in [(1u32, 1u64), (2, 2), (5, 3), (13, 4)] {
            let laplace = DiscreteLaplace::at_least(f64::from(t)).unwrap();
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let reach = 8 * i128::from(t);
            let mut probabilities: Vec<f64> =
                (-reach..=reach).map(|x| probability(x, f64::from(t))).collect();
            let mut counts = vec![0; probabilities.len() + 1];
            probabilities.push(1.0 - probabilities.iter().sum::<f64>());
            for _ in 0..1_000_000 {
                let at = usize::try_from(laplace.sample(&mut rng) + reach).unwrap_or(usize::MAX);
                counts[at.min(probabilities.len() - 1)] += 1;
            }
            assert_drawn_from(&counts, &probabilities);
        }
    }

    /// The magnitude divided by t is nearly exponential, and its sign a fair coin. The mean of n
    /// magnitudes is above `1 + 2√(x/n)` or below `1 − 2√(x/n)` with a probability below `2e^(−x)`
    /// for x ≤ n/8 (Cramér and Chernoff): below 10⁻⁸ for x = 20. The seeds are fixed.
    #[test]
    fn large_scales_are_exponential_and_symmetric() {
        for (t, seed) in [(2_f64.powi(40), 5u64), (2_f64.powi(99), 6)] {
            let laplace = DiscreteLaplace::at_least(t).unwrap();
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let draws: Vec<f64> = (0..20_000).map(|_| laplace.sample(&mut rng) as f64 / t).collect();
            let number = draws.len() as f64;
            let mean = draws.iter().map(|x| x.abs()).sum::<f64>() / number;
            assert!((mean - 1.0).abs() < 2.0 * (20.0 / number).sqrt(), "mean {mean}");
            let mut positive = Count::default();
            draws.iter().for_each(|&x| positive.add(x > 0.0));
            assert_share(positive, 0.5..=0.5);
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
