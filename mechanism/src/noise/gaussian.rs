//! The sampler of every release: the discrete Gaussian on the integers, exact and fast.
//!
//! **Distribution.** `P(x) ∝ exp(−x²/(2σ²))`, x ∈ ℤ, for σ = 64·W with an integer bin width W.
//!
//! **Algorithm.** Write |x| = hW + j with 0 ≤ j < W. As σ = 64W,
//!
//! ```text
//! exp(−x²/(2σ²)) = exp(−h²/8192) · exp(−e),    e = j(2hW + j)/(8192 W²) = f(2h + f)/8192,  f = j/W
//! ```
//!
//! 1. Draw h with probability ∝ exp(−h²/8192) (`bins`: exact).
//! 2. Draw j uniformly in 0..W (Lemire's multiplication with rejection: exact). For wide bins the
//!    lower k bits of j are separate uniform bits. Those of packed rounds begin with the bits of
//!    step 1 that did not determine h (`packed`).
//! 3. Accept with probability exp(−e) (below: exact). Otherwise start again.
//! 4. Draw a sign. Start again at −0, so that 0 is not counted twice.
//!
//! **Proof.** In one round the magnitude hW + j has probability ∝ exp(−h²/8192)·(1/W)·exp(−e), that
//! is ∝ exp(−x²/(2σ²)), and each magnitude arises from one (h, j) only. The sign halves it for x ≠
//! 0, and the rule for −0 halves it for x = 0 too. Rounds are independent, so the first accepted
//! one has this distribution. ∎
//!
//! **Step 3** is von Neumann's. With U₀ = e and U₁, U₂, … uniform, let n be the first with Uₙ >
//! Uₙ₋₁ (U₁ ≥ e for n = 1). P(n > m) = eᵐ/m!, so P(n odd) = Σₘ (−e)ᵐ/m! = exp(−e), for e ≤ 1. Here
//! e is at most 0.13 for h ≤ 512, and below 1 for h < 4095. Beyond that (probability 2^−2954)
//! exp(−e) is the product of exp(−e/m) over m trials. U₁ ≥ e is decided by 16 bits in 98.6 % of all
//! cases and by 64 bits in all but 2⁻⁴⁰ of the rest. The remaining cases use as many bits as
//! needed, in integers. No comparison is ever rounded.
//!
//! **In blocks.** [`DiscreteGaussian::fill`] makes 64 rounds at a time without a branch, assuming
//! that each is the common case. It accepts a round only if
//!
//! 1. the first 28 bits of U determine its bin;
//! 2. the remainder of Lemire's product is at least the bound, so his rule accepts the word;
//! 3. h ≤ 1024, so that one trial decides, and the first 16 bits of U₁ exceed every e that the
//!    leading bits of j allow;
//! 4. x ≠ 0.
//!
//! Then the round above gives the same x from the same words, and needs no further bit. Every
//! other round is made as above, from its words, in the order of the draws. So each x equals that
//! of rounds made one after another, even for a seeded generator. ∎
//!
//! **Cost.** A round in the common case takes 96 bits if it is packed and W < 2³⁸, two 64-bit words
//! for other W < 2⁵⁸ and three above, drawn for many rounds at a time, and three multiplications.
//! It has no division, and no round uses floating point. The time depends on the noise only, and
//! the noise is drawn before the sums of its epoch are read.

use super::bins::{BINS, BinTable};
use super::exponential::LazyUniform;
use super::packed::{
    LEADING_BITS, NoiseInteger, PACKED_WORDS, PackedRounds, ROUNDS, SPARE_BITS, are_packed, low_part,
    shorter_words, words,
};
use super::scale::NoiseScale;
use crate::registers::in_widest;
use bytemuck::{cast_slice, cast_slice_mut};
use num_bigint::BigUint;
use rand::CryptoRng;
use zeroize::Zeroize;

/// Bins at least this wide are drawn in two parts. Narrower ones take one word, and a second word
/// in fewer than one of 64 cases.
const WIDE: u128 = 1 << 58;

/// Minimum number of draws for which a part of a block is faster than draws one by one.
const FEW_ROUNDS: usize = 4;

/// Number of blocks per refill on the packed path.
const BLOCKS: usize = 8;

/// An exact discrete Gaussian of the given scale.
///
/// ```
/// use hushflow_mechanism::noise::{DiscreteGaussian, NoiseScale, NoiseSource};
///
/// let gaussian = DiscreteGaussian::new(NoiseScale::at_least(1e12)?);
/// let mut generator = NoiseSource::System.generator(1, 0)?;
/// let mut noise = [0i128; 4];
/// gaussian.fill(&mut generator, &mut noise);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DiscreteGaussian {
    scale: NoiseScale,
    /// W if it is narrow. For wide bins, the leading factor w of W = w·2^k, with 2³¹ ≤ w < 2³².
    leading: u64,
    /// Bits of the lower part of j; 0 if the bin is narrow.
    low_bits: u32,
    /// Whether rounds are packed: see `packed`.
    is_packed: bool,
    bins: &'static BinTable,
}

/// Below this bin e < (2h + 1)/8192 ≤ 1, and exp(−e) takes a single trial.
const SINGLE_TRIAL: u64 = 4095;

/// A position within a bin.
struct BinPosition {
    bin: u64,
    offset: u128,
    /// Upper bound of f, in units of 2⁻¹⁶.
    fraction: u64,
}

impl DiscreteGaussian {
    /// Builds the sampler of this scale. [`NoiseScale`] holds exactly the scales that the proof
    /// covers.
    pub fn new(scale: NoiseScale) -> Self {
        let width = scale.bin_width();
        let is_packed = are_packed(scale.significand(), scale.exponent());
        let (leading, low_bits) = match u64::try_from(width) {
            _ if is_packed => (u64::from(scale.significand()), scale.exponent()),
            Ok(narrow) if width < WIDE => (narrow, 0),
            // The leading factor uses all of its 32 bits: the bound of f in `round` needs w ≥ 2³¹.
            _ => {
                let shift = scale.significand().leading_zeros();
                (u64::from(scale.significand() << shift), scale.exponent() - shift)
            }
        };
        DiscreteGaussian { scale, leading, low_bits, is_packed, bins: &BINS }
    }

    /// Returns its scale: σ on the grid.
    pub fn scale(&self) -> NoiseScale {
        self.scale
    }

    /// Fills the slice with independent draws.
    pub fn fill<R: CryptoRng + ?Sized>(&self, rng: &mut R, noise: &mut [i128]) {
        self.fill_as(rng, noise);
    }

    /// As [`fill`](Self::fill), in 64 bits: gives the lower halves, which are the whole draws
    /// unless one is beyond 2⁶³.
    pub(crate) fn fill_narrow<R: CryptoRng + ?Sized>(&self, rng: &mut R, noise: &mut [i64]) {
        self.fill_as(rng, noise);
    }

    fn fill_as<R: CryptoRng + ?Sized, N: NoiseInteger>(&self, rng: &mut R, noise: &mut [N]) {
        match self.low_bits {
            0..=SPARE_BITS if self.is_packed => self.fill_packed::<{ PACKED_WORDS[0] }, R, N>(rng, noise),
            _ if self.is_packed => self.fill_packed::<{ PACKED_WORDS[1] }, R, N>(rng, noise),
            0 => self.fill_by_rounds::<2, R, N>(rng, noise),
            _ => self.fill_by_rounds::<3, R, N>(rng, noise),
        }
    }

    /// Returns one draw.
    pub fn sample<R: CryptoRng + ?Sized>(&self, rng: &mut R) -> i128 {
        if self.is_packed || self.low_bits == 0 { self.draw::<2, R>(rng) } else { self.draw::<3, R>(rng) }
    }

    /// Makes a round for every draw, and more for rejected rounds: first
    /// [`plain_round`](Self::plain_round) for all, then full rounds for those that are still open.
    fn fill_by_rounds<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        rng: &mut R,
        noise: &mut [N],
    ) {
        let mut drawn = [[0u64; WORDS]; ROUNDS];
        let used = noise.len().min(ROUNDS);
        for noise in noise.chunks_mut(ROUNDS) {
            let drawn = drawn[..noise.len()].as_flattened_mut();
            rng.fill_bytes(cast_slice_mut(drawn));
            let (bytes, _) = cast_slice::<u64, [u8; 8]>(drawn).as_chunks::<WORDS>();
            let open = self.plain_rounds(bytes, noise);
            self.end_rounds(open, |position| words(&bytes[position]), noise, rng);
        }
        // Wipes only the words that were used: a run may be a single coordinate.
        drawn[..used].as_flattened_mut().zeroize();
    }

    /// As [`fill_by_rounds`](Self::fill_by_rounds) for packed rounds. The last draws take a block
    /// that is not full; a few are made one by one.
    fn fill_packed<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        rng: &mut R,
        noise: &mut [N],
    ) {
        let (blocks, rest) = noise.as_chunks_mut();
        if !blocks.is_empty() {
            self.fill_blocks::<WORDS, R, N>(rng, blocks);
        }
        if rest.len() < FEW_ROUNDS {
            rest.iter_mut().for_each(|noise| *noise = N::lower_half(self.draw::<2, R>(rng)));
        } else {
            self.fill_part::<WORDS, R, N>(rng, rest);
        }
    }

    /// Fills less than a block.
    fn fill_part<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        rng: &mut R,
        noise: &mut [N],
    ) {
        let (mut words, mut block) = ([0u64; WORDS], [N::lower_half(0); ROUNDS]);
        let used = noise.len();
        rng.fill_bytes(cast_slice_mut(&mut words[..used]));
        let shorter = cast_slice_mut::<u64, u8>(&mut words[ROUNDS..]).chunks_mut(4 * ROUNDS);
        shorter.for_each(|words| rng.fill_bytes(&mut words[..4 * used]));
        let (bytes, _) = cast_slice::<u64, [u8; 8]>(&words).as_chunks::<WORDS>();
        bytes.iter().for_each(|bytes| self.fill_block(rng, bytes, &mut block, used));
        noise.copy_from_slice(&block[..used]);
        words[..used].zeroize();
        words[ROUNDS..].zeroize();
        block.zeroize();
    }

    fn fill_blocks<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        rng: &mut R,
        blocks: &mut [[N; ROUNDS]],
    ) {
        let mut words = [[0u64; WORDS]; BLOCKS];
        for blocks in blocks.chunks_mut(BLOCKS) {
            let words = words[..blocks.len()].as_flattened_mut();
            rng.fill_bytes(cast_slice_mut(words));
            let (bytes, _) = cast_slice::<u64, [u8; 8]>(words).as_chunks();
            blocks
                .iter_mut()
                .zip(bytes)
                .for_each(|(block, bytes)| self.fill_block::<WORDS, R, N>(rng, bytes, block, ROUNDS));
        }
        words.as_flattened_mut().zeroize();
    }

    /// Makes the first `used` rounds of a block, one at least. The rest is unspecified.
    fn fill_block<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        rng: &mut R,
        bytes: &[[u8; 8]; WORDS],
        noise: &mut [N; ROUNDS],
        used: usize,
    ) {
        let (bins, leading, low_bits) = (self.bins, self.leading, self.low_bits);
        let open = in_widest(PackedRounds { bins, leading, low_bits, bytes, noise: &mut *noise });
        let words_of = |position: usize| {
            let shorter = shorter_words(bytes);
            let word = |words: &[[u8; 4]; ROUNDS]| u64::from(u32::from_le_bytes(words[position]));
            let [second, third] = [word(&shorter[0]), shorter.get(1).map_or(0, word)];
            [u64::from_le_bytes(bytes[position]), second << LEADING_BITS | third]
        };
        self.end_rounds(open & u64::MAX >> (ROUNDS - used), words_of, noise, rng);
    }

    /// Completes the open rounds from their words, and adds rounds if these are rejected.
    #[inline(always)]
    fn end_rounds<const WORDS: usize, R: CryptoRng + ?Sized, N: NoiseInteger>(
        &self,
        mut open: u64,
        words: impl Fn(usize) -> [u64; WORDS],
        noise: &mut [N],
        rng: &mut R,
    ) {
        while open != 0 {
            let position = open.trailing_zeros() as usize;
            let round = self.round(words(position), rng);
            noise[position] = N::lower_half(round.unwrap_or_else(|| self.draw::<WORDS, R>(rng)));
            open &= open - 1;
        }
    }

    /// Makes plain rounds of at most 64 draws. Returns a bit for each, the lowest for the first:
    /// set if the round is open.
    fn plain_rounds<const WORDS: usize, N: NoiseInteger>(
        &self,
        bytes: &[[[u8; 8]; WORDS]],
        noise: &mut [N],
    ) -> u64 {
        let mut open = 0;
        for (x, bytes) in noise.iter_mut().zip(bytes) {
            let (value, ended) = self.plain_round(words(bytes));
            *x = N::lower_half(value);
            open = open >> 1 | u64::from(!ended) << 63;
        }
        open >> (ROUNDS - noise.len())
    }

    /// Returns the result of [`round`](Self::round) and true if its words alone show the common
    /// case of every step; otherwise any value and false. No operation overflows. h ≤ 1024, so hW +
    /// j < 2⁶⁹ if the bin is narrow. Otherwise hw + j < 2⁴³ before it is shifted by at most 64
    /// bits.
    #[inline(always)]
    fn plain_round<const WORDS: usize>(&self, words: [u64; WORDS]) -> (i128, bool) {
        let (bin, certain) = self.bins.guess(words[0]);
        let product = u128::from(words[1]) * u128::from(self.leading);
        // ⌊product/2⁶⁴⌋ is uniform below the leading factor unless the remainder is small: see
        // `uniform_below`.
        let uniform = product as u64 >= self.leading;
        let accepted = squeezed(bin, (words[1] >> 48) + 2, (words[0] >> 1) & 0xffff);
        let leading = u128::from(bin) * u128::from(self.leading) + (product >> 64);
        let magnitude = match words.get(2) {
            None => leading,
            // A 128-bit shift by 1 to 64, as one shift for each half.
            Some(low) => {
                let [leading, shift] = [leading as u64, u64::from(self.low_bits)];
                let high = u128::from(leading >> (64 - shift)) << 64;
                high | u128::from(leading << (shift - 1) << 1 | low >> (64 - shift))
            }
        } as i128;
        let sign = -i128::from(words[0] & 1);
        ((magnitude ^ sign).wrapping_sub(sign), (certain == 1) & uniform & accepted & (magnitude != 0))
    }

    #[inline(never)]
    fn draw<const WORDS: usize, R: CryptoRng + ?Sized>(&self, rng: &mut R) -> i128 {
        loop {
            let words = std::array::from_fn(|_| rng.next_u64());
            if let Some(x) = self.round::<WORDS, R>(words, rng) {
                return x;
            }
        }
    }

    /// Makes a round with these uniform words, and more of the generator if needed.
    #[inline(always)]
    fn round<const WORDS: usize, R: CryptoRng + ?Sized>(
        &self,
        words: [u64; WORDS],
        rng: &mut R,
    ) -> Option<i128> {
        let negative = words[0] & 1;
        let squeeze = (words[0] >> 1) & 0xffff;
        let bin = self.bins.draw(words[0] >> (64 - BinTable::RELEASE_BITS), rng);
        let (word, leading) = if self.is_packed {
            uniform_below::<LEADING_BITS, R>(self.leading, words[1], rng)
        } else {
            uniform_below::<64, R>(self.leading, words[1], rng)
        };
        let low = match words.get(2) {
            Some(low) => low >> (64 - self.low_bits),
            None if self.is_packed => self.low_part([words[0], words[1]], rng),
            None => 0,
        };
        let offset = u128::from(leading) << self.low_bits | u128::from(low);
        // f < word/2⁶⁴ + 2⁻¹⁹ (wide bins: 2⁻³¹, narrow ones: 0) < (⌊word/2⁴⁸⌋ + 2)/2¹⁶.
        let position = BinPosition { bin, offset, fraction: (word >> 48) + 2 };
        if !(surely_accepted(&position, squeeze) || self.accepted(&position, squeeze, rng)) {
            return None;
        }
        // Bins from 2³¹ on would exceed 127 bits. Their probability is below exp(−2⁴⁸).
        let start = (u128::from(bin) * u128::from(self.leading)) << self.low_bits;
        let magnitude = start.wrapping_add(offset) as i128;
        if magnitude == 0 && negative == 1 {
            return None;
        }
        let sign = -i128::from(negative);
        Some((magnitude ^ sign).wrapping_sub(sign))
    }

    /// Returns the bits of j after the leading factor, of a packed round with these words. The
    /// second holds the word of the leading factor in its upper half, and the third in its lower.
    fn low_part<R: CryptoRng + ?Sized>(&self, [first, second]: [u64; 2], rng: &mut R) -> u64 {
        match self.bins.guess(first) {
            (_, 1) => low_part(first, u64::from(second as u32), self.low_bits),
            _ => rng.next_u64() & ((1 << self.low_bits) - 1),
        }
    }

    /// Decides step 3 if 16 bits of U₁ do not.
    #[cold]
    fn accepted<R: CryptoRng + ?Sized>(&self, position: &BinPosition, squeeze: u64, rng: &mut R) -> bool {
        let mut first = Some(LazyUniform::beginning_with(squeeze << 48 | rng.next_u64() >> 16));
        let trials = if position.bin < SINGLE_TRIAL { 1 } else { 1 + (2 * position.bin + 1) / 8192 };
        (0..trials).all(|_| {
            let uniform = first.take().unwrap_or_else(|| LazyUniform::beginning_with(rng.next_u64()));
            self.bernoulli_exponential(position, trials, uniform, rng)
        })
    }

    /// Returns true with probability exp(−e/trials), by von Neumann's sequence beginning with
    /// `previous`.
    fn bernoulli_exponential<R: CryptoRng + ?Sized>(
        &self,
        position: &BinPosition,
        trials: u64,
        mut previous: LazyUniform,
        rng: &mut R,
    ) -> bool {
        let (low, high) = self.exponent_bounds(position, trials);
        let word = previous.first_word();
        let below = if u128::from(word) < low {
            true
        } else if u128::from(word) >= high {
            false
        } else {
            previous.is_below(|precision| self.exponent_exactly(position, trials, precision), rng)
        };
        if !below {
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

    /// Returns integers that enclose 2⁶⁴·e/trials, from 48 bits of f.
    fn exponent_bounds(&self, position: &BinPosition, trials: u64) -> (u128, u128) {
        // W' < 2⁵⁸ are the leading bits of W, and j' those of j. f lies in [j', j'+1)/W', and is
        // j'/W' if nothing was cut.
        let cut = self.low_bits.saturating_sub(16);
        let width = self.scale.bin_width() >> cut;
        let offset = position.offset >> cut;
        let low = (offset << 48) / width;
        let high = if cut == 0 { low } else { ((offset + 1) << 48) / width } + 1;
        let twice_bin = u128::from(2 * position.bin) << 48;
        // f(2h + f) in units of 2⁻⁹⁶, and e in units of 2⁻⁶⁴: a shift by 96 + 13 − 64.
        let exponent = |f: u128| (f * (twice_bin + f)) >> 45;
        (exponent(low) / u128::from(trials), exponent(high) / u128::from(trials) + 1)
    }

    /// Returns integers that enclose 2^precision·e/trials and are 1 apart.
    fn exponent_exactly(&self, position: &BinPosition, trials: u64, precision: u64) -> (BigUint, BigUint) {
        let width = BigUint::from(self.scale.bin_width());
        let offset = BigUint::from(position.offset);
        let numerator = (&offset * (&width * (2 * position.bin) + &offset)) << precision;
        let low = numerator / (&width * &width * 8192u32 * trials);
        let high = &low + 1u32;
        (low, high)
    }
}

/// Returns whether one trial is enough and U₁ ≥ e for every U₁ that begins with these 16 bits.
#[inline(always)]
fn surely_accepted(position: &BinPosition, squeeze: u64) -> bool {
    position.bin < SINGLE_TRIAL && squeezed(position.bin, position.fraction, squeeze)
}

/// As [`surely_accepted`], for bins that take a single trial. With f in units of 2⁻¹⁶, e is below
/// `f(2h·2¹⁶ + f)/2⁴⁵`. So in units of 2⁻¹⁶ e is below the shifted value plus one. All values are
/// below 2⁶⁴, because h < 2¹² and f ≤ 2¹⁶ + 1.
#[inline(always)]
fn squeezed(bin: u64, fraction: u64, squeeze: u64) -> bool {
    squeeze > fraction.wrapping_mul((bin << 17).wrapping_add(fraction)) >> 29
}

/// Returns an exactly uniform integer below `bound`, from the leading bits of a word, and that
/// word: `word`, or the first of the generator that is accepted (Lemire 2019).
#[inline(always)]
fn uniform_below<const BITS: u32, R: CryptoRng + ?Sized>(
    bound: u64,
    mut word: u64,
    rng: &mut R,
) -> (u64, u64) {
    let range = 1u128 << BITS;
    loop {
        let product = u128::from(word >> (64 - BITS)) * u128::from(bound);
        let low = product & (range - 1);
        if low >= u128::from(bound) || low >= (range - u128::from(bound)) % u128::from(bound) {
            return (word, (product >> BITS) as u64);
        }
        word = rng.next_u64();
    }
}

#[cfg(test)]
mod tests;
