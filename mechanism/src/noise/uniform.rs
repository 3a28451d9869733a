//! Uniform real numbers on [0, 1) whose bits are drawn only as far as a comparison needs them, and
//! uniform integers.
//!
//! A comparison of two uniform reals, or of one with a rational number, is decided exactly: while
//! the bits drawn so far leave it open, 64 more are drawn. It ends with probability one, and after
//! the first word in all but 2⁻⁴⁰ of the cases.

use num_bigint::BigUint;
use rand::CryptoRng;
use std::cmp::Ordering;

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

    fn word<R: CryptoRng + ?Sized>(&mut self, place: usize, rng: &mut R) -> u64 {
        while self.more.len() < place {
            self.more.push(rng.next_u64());
        }
        if place == 0 { self.first } else { self.more[place - 1] }
    }

    /// Returns whether this number exceeds the other. Both are extended as far as needed.
    pub(super) fn exceeds<R: CryptoRng + ?Sized>(&mut self, other: &mut Self, rng: &mut R) -> bool {
        let mut place = 0;
        loop {
            match self.word(place, rng).cmp(&other.word(place, rng)) {
                Ordering::Greater => return true,
                Ordering::Less => return false,
                Ordering::Equal => place += 1,
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
        let mut place = 0;
        loop {
            let (low, high) = bounds(64 * (place as u64 + 1));
            if prefix < low {
                return true;
            }
            if prefix >= high {
                return false;
            }
            place += 1;
            prefix = (prefix << 64u32) + self.word(place, rng);
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

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use rand::SeedableRng;

    #[test]
    fn comparison_with_a_rational_is_decided_at_the_last_bit() {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        // One third begins with 0x5555…: the first word leaves the comparison open.
        let third = |p: u64| {
            let scaled = BigUint::from(1u32) << p;
            (&scaled / 3u32, scaled / 3u32 + 1u32)
        };
        let mut below = 0;
        for _ in 0..1000 {
            below += LazyUniform::beginning_with(0x5555_5555_5555_5555).is_below(third, &mut rng) as u32;
        }
        // Given these first bits, the rest is below with probability one third; ±6 standard
        // deviations.
        assert!((244..=423).contains(&below), "{below}");
        assert!(LazyUniform::beginning_with(0x5555_5555_5555_5554).is_below(third, &mut rng));
        assert!(!LazyUniform::beginning_with(0x5555_5555_5555_5556).is_below(third, &mut rng));
    }

    #[test]
    fn equal_words_are_decided_by_later_ones() {
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let mut greater = 0;
        for _ in 0..1000 {
            let mut a = LazyUniform::beginning_with(7);
            let mut b = LazyUniform::beginning_with(7);
            let first = a.exceeds(&mut b, &mut rng);
            assert_eq!(first, !b.exceeds(&mut a, &mut rng), "the order is kept once drawn");
            greater += first as u32;
        }
        // Binomial(1000, 1/2), ±6 standard deviations.
        assert!((405..=595).contains(&greater), "{greater}");
    }
}
