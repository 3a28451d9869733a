//! Rounds of the sampler in SIMD registers: packed rounds.
//!
//! For bins of a width `W = w·2^k` with 2¹⁹ ≤ w < 2²⁰ and k ≤ 32, all factors have at most 32
//! bits. A round takes 96 bits if k ≤ 19, and 128 otherwise:
//!
//! | word | bits | |
//! |---|---|---|
//! | first | 47 | U, which selects the bin h: its first 28 bits nearly always determine h |
//! | | 16 | the first bits of U₁ |
//! | | 1 | the sign |
//! | second | 32 | the leading factor of j, uniform below w by Lemire's rule |
//! | third | 32 | taken only if k > 19 |
//!
//! The other k bits of j are the first of these: the last 19 bits of U, then the third word. That
//! is for a bin that the first 28 bits of U determine: they leave the last 19 bits uniform and
//! independent of h. If h takes more bits of U, the k bits of j come from the generator.
//!
//! Several draws are made at a time, in the widest [`registers`](crate::registers). As in
//! [`gaussian`](super::gaussian), a round is accepted only if its words alone show that it ends,
//! and with which result. Then it equals, bit by bit, the round in that module.

use super::bins::{BinTable, DETERMINING_BITS, bin_of_cell};
use crate::registers::Lanes;
use zeroize::Zeroize;

/// Integer types in which noise is drawn.
pub(super) trait NoiseInteger: Copy + Zeroize {
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

/// Bits of the leading factor.
pub(super) const LEADING_BITS: u32 = 32;

/// Bits of w.
const WIDTH_BITS: u32 = 20;

/// Maximum number of bits after the leading factor.
const MAX_LOW_BITS: u32 = 32;

/// Number of the last bits of U, which rarely determine the bin. If at most as many bits follow the
/// leading factor, a round takes no third word.
pub(super) const SPARE_BITS: u32 = BinTable::RELEASE_BITS - DETERMINING_BITS;

/// Number of draws whose bins are looked up together.
pub(super) const ROUNDS: usize = 64;

/// Returns whether bins `w·2^k` wide are drawn on the packed path.
pub(super) fn are_packed(w: u32, k: u32) -> bool {
    w.ilog2() + 1 == WIDTH_BITS && k <= MAX_LOW_BITS
}

/// Returns the bits of j after the leading factor, for a bin that the first 28 bits determine.
#[inline(always)]
pub(super) fn low_part(first: u64, third: u64, low_bits: u32) -> u64 {
    let spare = (first >> (64 - BinTable::RELEASE_BITS)) & ((1 << SPARE_BITS) - 1);
    (spare << 32 | third).wrapping_shr(SPARE_BITS + 32 - low_bits)
}

/// Number of 64-bit words that 64 packed rounds take, without third words and with them.
pub(super) const PACKED_WORDS: [usize; 2] = [ROUNDS * 3 / 2, ROUNDS * 2];

/// Returns the shorter words of 64 packed rounds, which follow their first words: all second ones,
/// then all third ones, if there are any.
#[inline(always)]
pub(super) fn shorter_words<const WORDS: usize>(bytes: &[[u8; 8]; WORDS]) -> &[[[u8; 4]; ROUNDS]] {
    let (words, _) = bytes[ROUNDS..].as_flattened().as_chunks();
    words.as_chunks().0
}

/// Rounds of 64 draws.
pub(super) struct PackedRounds<'a, N, const WORDS: usize> {
    pub(super) bins: &'a BinTable,
    /// w.
    pub(super) leading: u64,
    /// k.
    pub(super) low_bits: u32,
    pub(super) bytes: &'a [[u8; 8]; WORDS],
    pub(super) noise: &'a mut [N; ROUNDS],
}

/// Returns a bit for each round, the lowest for the first: set where the round is open.
impl<N: NoiseInteger, const WORDS: usize> Lanes for PackedRounds<'_, N, WORDS> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let Self { bins, leading, low_bits, bytes, noise } = self;
        // One pass looks up and one computes: not every processor can look up several at a time.
        let (mut cells, mut ended) = ([0; ROUNDS], [0; ROUNDS]);
        for position in 0..ROUNDS {
            cells[position] = bins.cell(u64::from_le_bytes(bytes[position]));
        }
        let shorter = shorter_words(bytes);
        let (seconds, thirds) = (&shorter[0], &shorter[shorter.len() - 1]);
        for position in 0..ROUNDS {
            let first = u64::from_le_bytes(bytes[position]);
            let second = u64::from(u32::from_le_bytes(seconds[position]));
            let third =
                if WORDS == PACKED_WORDS[1] { u32::from_le_bytes(thirds[position]).into() } else { 0 };
            let (bin, is_certain) = bin_of_cell(cells[position], first);
            let (draw, ends) = round(bin, [first, second, third], leading, low_bits);
            noise[position] = N::lower_half(draw.into());
            ended[position] = (ends & is_certain).wrapping_shl(position as u32);
        }
        !ended.iter().fold(0, |all, one| all | one)
    }
}

/// Returns words from their bytes.
///
/// It is a loop over positions, because the closures of `array::map` and `Iterator::zip` may be
/// compiled as calls into another codegen unit, and a loop with calls is not vectorised.
#[inline(always)]
pub(super) fn words<const WORDS: usize>(bytes: &[[u8; 8]; WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for position in 0..WORDS {
        words[position] = u64::from_le_bytes(bytes[position]);
    }
    words
}

/// Returns a draw of this bin, which the first 28 bits determine, and 1 if it surely ends the
/// round. Nothing overflows: h ≤ 1024, so hw + j/2^k is below 2³¹.
#[inline(always)]
fn round(bin: u64, [first, second, third]: [u64; 3], leading: u64, low_bits: u32) -> (i64, u64) {
    let product = factors(second, leading);
    let uniform = u64::from((product & u64::from(u32::MAX)) >= leading);
    let fraction = (second >> 16).wrapping_add(2);
    let bound = factors(fraction, (bin << 17).wrapping_add(fraction)) >> 29;
    let accepted = u64::from(((first >> 1) & 0xffff) > bound);
    let whole = factors(bin, leading).wrapping_add(product >> LEADING_BITS);
    let magnitude = whole.wrapping_shl(low_bits) | low_part(first, third, low_bits);
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
