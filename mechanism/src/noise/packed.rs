//! Rounds of the sampler in SIMD registers.
//!
//! For bins of a width `W = w·2^k` with 2¹⁹ ≤ w < 2²⁰ and k ≤ 32, a round takes two words, and all
//! factors have at most 32 bits:
//!
//! | word | bits | |
//! |---|---|---|
//! | first | 47 | U, which selects the bin h |
//! | | 16 | the first bits of U₁ |
//! | | 1 | the sign |
//! | second | 32 | the leading factor of j, uniform below w by Lemire's rule |
//! | | 32 | the first k of these are the rest of j |
//!
//! The bins of 64 draws are looked up one by one. Everything else is done for eight draws at a
//! time, compiled for registers of 256 bits as well (`pulp`). As in [`gaussian`](super::gaussian),
//! a round is accepted only if its words alone show that it ends, and with which result. Then it
//! equals, bit by bit, the round in that module.

use super::bins::Bins;
use pulp::{Arch, Simd, WithSimd};

/// Integer types in which noise is drawn.
pub(super) trait NoiseInteger: Copy {
    /// Returns the lower half of a draw, or all of it.
    fn lower_half(draw: i128) -> Self;
}

impl NoiseInteger for i128 {
    #[inline(always)]
    fn lower_half(draw: i128) -> i128 {
        draw
    }
}

impl NoiseInteger for i64 {
    #[inline(always)]
    fn lower_half(draw: i128) -> i64 {
        draw as i64
    }
}

/// Bits of the second word for the leading factor.
pub(super) const LEADING_BITS: u32 = 32;

/// Bits of w.
const WIDTH_BITS: u32 = 20;

/// Most bits after the leading factor.
const MOST_LOW_BITS: u32 = 64 - LEADING_BITS;

/// Number of draws whose bins are looked up together.
pub(super) const ROUNDS: usize = 64;

/// Returns whether bins `w·2^k` wide are drawn on the packed path.
pub(super) fn are_packed(w: u32, k: u32) -> bool {
    w.ilog2() + 1 == WIDTH_BITS && k <= MOST_LOW_BITS
}

/// Returns the first `low_bits` of the bits after the leading factor.
#[inline(always)]
pub(super) fn low_part(word: u64, low_bits: u32) -> u64 {
    u64::from(word as u32).wrapping_shr(MOST_LOW_BITS - low_bits)
}

/// Rounds of 64 draws.
pub(super) struct PackedRounds<'a, N> {
    pub(super) bins: &'a Bins,
    /// w.
    pub(super) leading: u64,
    /// k.
    pub(super) low_bits: u32,
    pub(super) bytes: &'a [[[u8; 8]; 2]; ROUNDS],
    pub(super) noise: &'a mut [N; ROUNDS],
}

impl<N: NoiseInteger> PackedRounds<'_, N> {
    /// Makes the rounds. Returns a bit for each, the lowest for the first: set where the round is
    /// open.
    pub(super) fn run(self) -> u64 {
        Arch::new().dispatch(self)
    }
}

impl<N: NoiseInteger> WithSimd for PackedRounds<'_, N> {
    type Output = u64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> u64 {
        let Self { bins, leading, low_bits, bytes, noise } = self;
        // One pass looks up and one computes: the second can be vectorised.
        let (mut found, mut told, mut ended) = ([0; ROUNDS], [0; ROUNDS], [0; ROUNDS]);
        for (place, [first, _]) in bytes.iter().enumerate() {
            let (bin, is_told) = bins.guess(u64::from_le_bytes(*first));
            (found[place], told[place]) = (bin, u64::from(is_told));
        }
        for place in 0..ROUNDS {
            let (draw, ends) = round(found[place], bytes[place].map(u64::from_le_bytes), leading, low_bits);
            noise[place] = N::lower_half(draw.into());
            ended[place] = (ends & told[place]).wrapping_shl(place as u32);
        }
        !ended.iter().fold(0, |all, one| all | one)
    }
}

/// Returns a draw of this bin, and 1 if it surely ends the round. Nothing overflows: h ≤ 1024, so
/// hw + j/2^k is below 2³¹.
#[inline(always)]
fn round(bin: u64, [first, second]: [u64; 2], leading: u64, low_bits: u32) -> (i64, u64) {
    let product = factors(second >> MOST_LOW_BITS, leading);
    let uniform = u64::from((product & u64::from(u32::MAX)) >= leading);
    let fraction = (second >> 48).wrapping_add(2);
    let bound = factors(fraction, (bin << 17).wrapping_add(fraction)) >> 29;
    let accepted = u64::from(((first >> 1) & 0xffff) > bound);
    let whole = factors(bin, leading).wrapping_add(product >> LEADING_BITS);
    let magnitude = whole.wrapping_shl(low_bits) | low_part(second, low_bits);
    // All ones if the draw is negative.
    let sign = (first & 1).wrapping_neg();
    let draw = (magnitude ^ sign).wrapping_sub(sign).cast_signed();
    (draw, uniform & accepted & u64::from(magnitude != 0))
}

/// Returns the product of two numbers below 2³²: one vector instruction for several of them.
#[inline(always)]
fn factors(one: u64, other: u64) -> u64 {
    u64::from(one as u32).wrapping_mul(u64::from(other as u32))
}
