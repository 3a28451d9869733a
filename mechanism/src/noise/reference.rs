//! A second, independent exact sampler of the discrete Gaussian. Slow and simple; used only by
//! tests to check the first.
//!
//! Implements Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy",
//! Algorithms 1 to 3, with rational arithmetic on integers of any size. Proposals are discrete
//! Laplace of scale t = ⌊σ⌋ + 1, accepted with probability `exp(−(|y| − σ²/t)²/(2σ²))`.

use num_bigint::BigUint;
use rand::CryptoRng;

/// Returns one draw of the discrete Gaussian with integer parameter σ ≥ 1.
///
/// Takes microseconds and allocates; a release uses [`super::DiscreteGaussian`].
pub fn sample<R: CryptoRng + ?Sized>(sigma: u64, rng: &mut R) -> i128 {
    let t = u128::from(sigma) + 1;
    let variance = BigUint::from(sigma) * sigma;
    loop {
        let y = discrete_laplace(t, rng);
        // (|y| − σ²/t)²/(2σ²) = (|y|·t − σ²)²/(2σ²t²)
        let scaled = BigUint::from(y.unsigned_abs()) * t;
        let distance = if scaled > variance { scaled - &variance } else { &variance - scaled };
        if bernoulli_exponential(&distance * &distance, &variance * (t * 2) * t, rng) {
            return y;
        }
    }
}

/// Draws y with P(y) ∝ exp(−|y|/t).
fn discrete_laplace<R: CryptoRng + ?Sized>(t: u128, rng: &mut R) -> i128 {
    loop {
        let u = uniform_below(t, rng);
        if !bernoulli_exponential(BigUint::from(u), BigUint::from(t), rng) {
            continue;
        }
        let mut wholes = 0u128;
        while bernoulli_exponential(BigUint::from(1u32), BigUint::from(1u32), rng) {
            wholes += 1;
        }
        let magnitude = (u + t * wholes) as i128;
        let negative = rng.next_u64() & 1 == 1;
        if !(negative && magnitude == 0) {
            return if negative { -magnitude } else { magnitude };
        }
    }
}

/// Returns true with probability exp(−numerator/denominator), for any ratio ≥ 0.
fn bernoulli_exponential<R: CryptoRng + ?Sized>(
    mut numerator: BigUint,
    denominator: BigUint,
    rng: &mut R,
) -> bool {
    while numerator > denominator {
        if !bernoulli_exponential(BigUint::from(1u32), BigUint::from(1u32), rng) {
            return false;
        }
        numerator -= &denominator;
    }
    let mut k = 1u32;
    while bernoulli(&numerator, &(&denominator * k), rng) {
        k += 1;
    }
    k % 2 == 1
}

/// Returns true with probability numerator/denominator ≤ 1, bit by bit.
fn bernoulli<R: CryptoRng + ?Sized>(numerator: &BigUint, denominator: &BigUint, rng: &mut R) -> bool {
    let mut remainder = numerator.clone();
    if remainder >= *denominator {
        return true;
    }
    loop {
        for uniform in bits(rng.next_u64()) {
            remainder <<= 1u32;
            let digit = remainder >= *denominator;
            if digit {
                remainder -= denominator;
            }
            if uniform != digit {
                return digit;
            }
        }
    }
}

fn bits(word: u64) -> impl Iterator<Item = bool> {
    (0..64).map(move |position| word >> position & 1 == 1)
}

/// Draws uniformly below `bound`, by rejection from the next power of two.
fn uniform_below<R: CryptoRng + ?Sized>(bound: u128, rng: &mut R) -> u128 {
    let mask = bound.next_power_of_two() - 1;
    loop {
        let draw = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())) & mask;
        if draw < bound {
            return draw;
        }
    }
}
