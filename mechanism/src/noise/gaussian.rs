//! The sampler of every release: the discrete Gaussian on the integers, exact and fast.
//!
//! **What it draws.** `P(x) ∝ exp(−x²/(2σ²))`, x ∈ ℤ, for σ = 64·W with an integer bin width W.
//!
//! **How.** Write |x| = hW + j with 0 ≤ j < W. As σ = 64W,
//!
//! ```text
//! exp(−x²/(2σ²)) = exp(−h²/8192) · exp(−e),    e = j(2hW + j)/(8192 W²) = f(2h + f)/8192,  f = j/W
//! ```
//!
//! 1. draw h with probability ∝ exp(−h²/8192) (`bins`: exact);
//! 2. draw j uniformly in 0..W (Lemire's multiplication with rejection: exact; for wide bins the lower k bits of
//!    j are uniform bits of their own);
//! 3. accept with probability exp(−e) (below: exact), else begin again;
//! 4. draw a sign; begin again at −0, so that 0 is not counted twice.
//!
//! **Proof.** In one round the magnitude hW + j comes out with probability ∝ exp(−h²/8192)·(1/W)·exp(−e), that
//! is ∝ exp(−x²/(2σ²)), and each magnitude arises from one (h, j) only. The sign halves it for x ≠ 0, and
//! the rule for −0 halves it for x = 0 too. Rounds are independent, so the first that ends has this law. ∎
//!
//! **Step 3** is von Neumann's: with U₀ = e and U₁, U₂, … uniform, let n be the first with Uₙ > Uₙ₋₁ (U₁ ≥ e for
//! n = 1). P(n > m) = eᵐ/m!, so P(n odd) = Σₘ (−e)ᵐ/m! = exp(−e), for e ≤ 1. Here e is at most 0.13 for h ≤ 512,
//! and below 1 for h < 4095; beyond that (probability 2^−2954) exp(−e) is the product of exp(−e/m) over m trials. U₁ ≥ e is
//! decided by 16 bits in 98.6 % of all cases, by 64 bits in all but 2⁻⁴⁰ of the rest, and by as many
//! as it takes, in integers, in what remains. No comparison is ever rounded.
//!
//! **Cost.** Two 64-bit words for W < 2⁵⁸ and three above, drawn for many rounds at a time; two multiplications, no
//! division, no floating point. Time depends on the noise only, which is drawn before the sums of its epoch are looked at.

use super::bins::{BINS, Bins};
use super::scale::NoiseScale;
use super::uniform::LazyUniform;
use num_bigint::BigUint;
use rand::CryptoRng;
use zeroize::Zeroizing;

/// Bins at least this wide are drawn in two parts. Narrower ones take a word, and another one in less than one of 64 cases.
const WIDE: u128 = 1 << 58;

/// Rounds whose words are drawn together.
const ROUNDS: usize = 64;

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
    /// W where it is narrow; for wide bins the leading factor w of W = w·2^k, with 2³¹ ≤ w < 2³².
    leading: u64,
    /// Bits of the lower part of j; 0 where the bin is narrow.
    low_bits: u32,
    bins: &'static Bins,
}

/// Below this bin e < (2h + 1)/8192 ≤ 1, and exp(−e) takes a single trial.
const SINGLE_TRIAL: u64 = 4095;

/// A place within a bin.
struct Place {
    bin: u64,
    offset: u128,
    /// Upper bound of f, in units of 2⁻¹⁶.
    fraction: u64,
}

impl DiscreteGaussian {
    /// The sampler of this scale. [`NoiseScale`] holds just the scales that the proof covers.
    pub fn new(scale: NoiseScale) -> Self {
        let width = scale.bin_width();
        let (leading, low_bits) = match u64::try_from(width) {
            Ok(narrow) if width < WIDE => (narrow, 0),
            // The leading factor takes all of its 32 bits: the bound of f in `draw_place` needs w ≥ 2³¹.
            _ => {
                let shift = scale.significand().leading_zeros();
                (u64::from(scale.significand() << shift), scale.exponent() - shift)
            }
        };
        DiscreteGaussian { scale, leading, low_bits, bins: &BINS }
    }

    /// Its scale: σ on the grid.
    pub fn scale(&self) -> NoiseScale {
        self.scale
    }

    /// Fills the slice with independent draws.
    pub fn fill<R: CryptoRng + ?Sized>(&self, rng: &mut R, noise: &mut [i128]) {
        match self.low_bits {
            0 => self.fill_by_rounds::<2, R>(rng, noise),
            _ => self.fill_by_rounds::<3, R>(rng, noise),
        }
    }

    /// One draw.
    pub fn sample<R: CryptoRng + ?Sized>(&self, rng: &mut R) -> i128 {
        if self.low_bits == 0 { self.draw::<2, R>(rng) } else { self.draw::<3, R>(rng) }
    }

    /// A round for every draw, and more for those that it does not end.
    fn fill_by_rounds<const WORDS: usize, R: CryptoRng + ?Sized>(&self, rng: &mut R, noise: &mut [i128]) {
        let mut bytes = Zeroizing::new([[[0u8; 8]; WORDS]; ROUNDS]);
        for noise in noise.chunks_mut(ROUNDS) {
            let bytes = &mut bytes[..noise.len()];
            rng.fill_bytes(bytes.as_flattened_mut().as_flattened_mut());
            for (x, bytes) in noise.iter_mut().zip(bytes.iter()) {
                let round = self.round(bytes.map(u64::from_le_bytes), rng);
                *x = round.unwrap_or_else(|| self.draw::<WORDS, R>(rng));
            }
        }
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

    /// A round with these uniform words, and more of the generator where they do not suffice.
    #[inline(always)]
    fn round<const WORDS: usize, R: CryptoRng + ?Sized>(
        &self,
        words: [u64; WORDS],
        rng: &mut R,
    ) -> Option<i128> {
        let negative = words[0] & 1;
        let squeeze = (words[0] >> 1) & 0xffff;
        let bin = self.bins.draw(words[0] >> (64 - Bins::RELEASE_BITS), rng);
        let (word, leading) = uniform_below(self.leading, words[1], rng);
        let low = words.get(2).map_or(0, |word| word >> (64 - self.low_bits));
        let offset = u128::from(leading) << self.low_bits | u128::from(low);
        // f < word/2⁶⁴ + 2⁻³¹ (narrow bins: f ≤ word/2⁶⁴) < (⌊word/2⁴⁸⌋ + 2)/2¹⁶.
        let place = Place { bin, offset, fraction: (word >> 48) + 2 };
        if !(surely_accepted(&place, squeeze) || self.accepted(&place, squeeze, rng)) {
            return None;
        }
        // Bins that would take it beyond 127 bits, from 2³¹ on, have a probability below exp(−2⁴⁸).
        let start = (u128::from(bin) * u128::from(self.leading)) << self.low_bits;
        let magnitude = start.wrapping_add(offset) as i128;
        if magnitude == 0 && negative == 1 {
            return None;
        }
        let sign = -i128::from(negative);
        Some((magnitude ^ sign).wrapping_sub(sign))
    }

    /// Step 3 where 16 bits of U₁ do not decide it.
    #[cold]
    fn accepted<R: CryptoRng + ?Sized>(&self, place: &Place, squeeze: u64, rng: &mut R) -> bool {
        let mut first = Some(LazyUniform::beginning_with(squeeze << 48 | rng.next_u64() >> 16));
        let trials = if place.bin < SINGLE_TRIAL { 1 } else { 1 + (2 * place.bin + 1) / 8192 };
        (0..trials).all(|_| {
            let uniform = first.take().unwrap_or_else(|| LazyUniform::beginning_with(rng.next_u64()));
            self.bernoulli_exponential(place, trials, uniform, rng)
        })
    }

    /// True with probability exp(−e/trials), by von Neumann's sequence beginning with `previous`.
    fn bernoulli_exponential<R: CryptoRng + ?Sized>(
        &self,
        place: &Place,
        trials: u64,
        mut previous: LazyUniform,
        rng: &mut R,
    ) -> bool {
        let (low, high) = self.exponent_bounds(place, trials);
        let word = previous.first_word();
        let below = if u128::from(word) < low {
            true
        } else if u128::from(word) >= high {
            false
        } else {
            previous.is_below(|precision| self.exponent_exactly(place, trials, precision), rng)
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

    /// Integers that enclose 2⁶⁴·e/trials, from 48 bits of f.
    fn exponent_bounds(&self, place: &Place, trials: u64) -> (u128, u128) {
        // W' < 2⁵⁸ are its leading bits, j' those of j: f lies in [j', j'+1)/W', and is j'/W' if nothing was cut.
        let cut = self.low_bits.saturating_sub(16);
        let width = self.scale.bin_width() >> cut;
        let offset = place.offset >> cut;
        let low = (offset << 48) / width;
        let high = if cut == 0 { low } else { ((offset + 1) << 48) / width } + 1;
        let twice_bin = u128::from(2 * place.bin) << 48;
        // f(2h + f) in units of 2⁻⁹⁶, e in units of 2⁻⁶⁴: a shift by 96 + 13 − 64.
        let exponent = |f: u128| (f * (twice_bin + f)) >> 45;
        (exponent(low) / u128::from(trials), exponent(high) / u128::from(trials) + 1)
    }

    /// Integers that enclose 2^precision·e/trials and are 1 apart.
    fn exponent_exactly(&self, place: &Place, trials: u64, precision: u64) -> (BigUint, BigUint) {
        let width = BigUint::from(self.scale.bin_width());
        let offset = BigUint::from(place.offset);
        let numerator = (&offset * (&width * (2 * place.bin) + &offset)) << precision;
        let low = numerator / (&width * &width * 8192u32 * trials);
        let high = &low + 1u32;
        (low, high)
    }
}

/// Whether one trial is enough and U₁ ≥ e for every U₁ that begins with these 16 bits.
#[inline]
fn surely_accepted(place: &Place, squeeze: u64) -> bool {
    if place.bin >= SINGLE_TRIAL {
        return false;
    }
    let f = place.fraction;
    // e < f(2h·2¹⁶ + f)/2⁴⁵, so in units of 2⁻¹⁶ below the shifted value plus one.
    squeeze > (f * (((2 * place.bin) << 16) + f)) >> 29
}

/// An exactly uniform integer below `bound`, with the word it was made of: this one, or the first of the generator that can
/// be taken (Lemire 2019).
#[inline(always)]
fn uniform_below<R: CryptoRng + ?Sized>(bound: u64, mut word: u64, rng: &mut R) -> (u64, u64) {
    loop {
        let product = u128::from(word) * u128::from(bound);
        let low = product as u64;
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (word, (product >> 64) as u64);
        }
        word = rng.next_u64();
    }
}
