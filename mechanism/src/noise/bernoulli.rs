//! A coin that falls with probability exp(−ratio), for any ratio of integers: exact, by von Neumann's sequence.
//!
//! For a ratio e ≤ 1, with U₀ = e and U₁, U₂, … uniform, let n be the first with Uₙ > Uₙ₋₁. Then P(n > m) = eᵐ/m!, so
//! P(n odd) = Σₘ (−e)ᵐ/m! = exp(−e). A larger ratio is ⌊e⌋ such coins of ratio 1 and one of what remains, all of which
//! must fall. Comparisons are in integers and draw as many bits as it takes (`uniform`); none is rounded.

use super::uniform::LazyUniform;
use num_bigint::BigUint;
use rand::CryptoRng;

/// True with probability exp(−numerator/denominator). The denominator is positive.
pub fn bernoulli_exponential<R: CryptoRng + ?Sized>(
    numerator: &BigUint,
    denominator: &BigUint,
    rng: &mut R,
) -> bool {
    let one = BigUint::from(1u32);
    let mut rest = numerator.clone();
    while rest > *denominator {
        if !below_one(&one, &one, rng) {
            return false;
        }
        rest -= denominator;
    }
    below_one(&rest, denominator, rng)
}

/// The same for a ratio of at most 1.
fn below_one<R: CryptoRng + ?Sized>(numerator: &BigUint, denominator: &BigUint, rng: &mut R) -> bool {
    let mut previous = LazyUniform::beginning_with(rng.next_u64());
    let bounds = |precision: u64| {
        let low = (numerator << precision) / denominator;
        let high = &low + 1u32;
        (low, high)
    };
    if !previous.is_below(bounds, rng) {
        return true;
    }
    let mut odd = false;
    loop {
        let mut next = LazyUniform::beginning_with(rng.next_u64());
        if next.exceeds(&mut previous, rng) {
            return odd;
        }
        previous = next;
        odd = !odd;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::SeedableRng;

    /// Binomial(100000, e^−ratio) within six standard deviations: a false alarm of 2·10⁻⁹ each.
    #[test]
    fn coins_fall_as_often_as_they_should() {
        let check = |numerator: u32, denominator: u32, seed| {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let [numerator_, denominator_] = [numerator, denominator].map(BigUint::from);
            let draws = 100_000;
            let falls =
                (0..draws).filter(|_| bernoulli_exponential(&numerator_, &denominator_, &mut rng)).count();
            let probability = (-f64::from(numerator) / f64::from(denominator)).exp();
            let deviation = (probability * (1.0 - probability) / f64::from(draws)).sqrt();
            let z = (falls as f64 / f64::from(draws) - probability) / deviation.max(1e-12);
            assert!(z.abs() < 6.0, "exp(-{numerator}/{denominator}): z = {z}");
        };
        check(1, 3, 1);
        check(1, 1, 2);
        check(7, 2, 3);
        check(1, 1000, 4);
        check(0, 5, 5);
    }
}
