//! The first stage of the sampler: bin h ≥ 0 with probability proportional to exp(−h²/8192),
//! exactly.
//!
//! A uniform integer U of B bits is split by a table of integers `t_h = ⌊2^B·p_h⌋`, with
//! `p_h = exp(−h²/8192)/D` and D so large that Σp_h < 1:
//!
//! - U below Σt_h falls into the share of one h, which is drawn. So far h has probability
//!   `t_h/2^B`.
//! - The next 1024 values of U belong to one h < 1024 each, and repair the rounding: h is drawn
//!   with probability `2^B·p_h − t_h ∈ [0, 1)`, an exact Bernoulli trial. That adds
//!   `p_h − t_h/2^B`.
//! - One more value belongs to all h ≥ 1024 (where every t_h is 0). It draws a block b ≥ 0 with
//!   probability 2^−(b+1) and an offset o uniform in 0..1024. Then h = 1024(b+1)+o is drawn with
//!   probability `2^(B+b+11)·p_h`, which is below 1. That gives exactly p_h.
//! - In every other case U is drawn again.
//!
//! So every h ≥ 0 is drawn with probability exactly p_h in a round, and p_h/Σp in the end: no
//! truncation and no rounding. With the production value B = 47 the exact trials occur once in 2³⁷
//! draws. The tests run the same code with small B, where they are frequent.
//!
//! **The table is built at each start**, so it must be cheap: `p_{h+1} = p_h·r_h` and
//! `r_{h+1} = r_h·exp(−2/8192)`, because `(h+1)² − h² = 2h + 1`. Both are enclosed in integers of
//! 128 bits. Where the enclosure leaves more than one `t_h` possible, the exponential itself is
//! enclosed, to any precision.

use super::exponential;
use super::exponential::LazyUniform;
use num_bigint::BigUint;
use rand::CryptoRng;
use std::sync::LazyLock;

/// Number of bins that the table covers.
const COVERED: u64 = 1024;

/// Number of leading bits of U that select where the scan of the cumulative table begins.
const GUIDE_BITS: u32 = 12;

/// Number of bits of U after the leading ones that choose between the two bins of a cell.
const THRESHOLD_BITS: u32 = 16;

/// Number of leading bits of U that nearly always determine the bin.
pub(super) const DETERMINING_BITS: u32 = GUIDE_BITS + THRESHOLD_BITS;

const THRESHOLD_MASK: u32 = (1 << THRESHOLD_BITS) - 1;

/// Marks a cell in which the first 28 bits of U do not determine the bin.
const OPEN: u32 = 1 << 31;

/// Table for U of `bits` bits and the denominator D.
pub(super) struct BinTable {
    bits: u32,
    denominator: u64,
    /// `cumulative[h] = t_0 + … + t_h` for every h of the table.
    cumulative: Box<[u64; COVERED as usize]>,
    /// For each value of the leading bits of U, the h whose share contains its first U.
    guide: Box<[u16; 1 << GUIDE_BITS]>,
    /// For each value of the leading bits: h in the upper half, and in the lower half the next bits
    /// of the U with which the share of h + 1 begins.
    cells: Box<[u32; 1 << GUIDE_BITS]>,
}

/// The table of every release: D = 81 exceeds Σexp(−h²/8192) = 80.71.
pub(super) static BINS: LazyLock<BinTable> = LazyLock::new(|| BinTable::new(BinTable::RELEASE_BITS, 81));

impl BinTable {
    pub(super) const RELEASE_BITS: u32 = 47;

    pub(super) fn new(bits: u32, denominator: u64) -> Self {
        let mut sum = 0u64;
        let mut cumulative = Box::new([0; COVERED as usize]);
        let one = u128::MAX / u128::from(denominator);
        let mut weight = ExponentialBounds { low: one, high: one + 1 };
        let (mut ratio, step) = (ExponentialBounds::exponential(1), ExponentialBounds::exponential(2));
        for (h, end) in (0..COVERED).zip(cumulative.iter_mut()) {
            sum += weight.whole_part(bits).unwrap_or_else(|| whole_part(h, bits, denominator));
            *end = sum;
            weight = weight.times(ratio);
            ratio = ratio.times(step);
        }
        let shift = bits - GUIDE_BITS;
        let (ends, last) = (&cumulative[..], COVERED as usize - 1);
        let first = |g: usize| ends.partition_point(|&end| end <= (g as u64) << shift).min(last) as u16;
        let guide: Box<[u16; 1 << GUIDE_BITS]> = Box::new(std::array::from_fn(first));
        let cells = Box::new(std::array::from_fn(|g| cell(ends, guide[g], g as u64, bits)));
        assert!(sum + COVERED < 1 << bits, "the table leaves room for the exact trials");
        BinTable { bits, denominator, cumulative, guide, cells }
    }

    /// Draws a bin from `bits` uniform bits, and from more bits of the generator where needed.
    #[inline(always)]
    pub(super) fn draw<R: CryptoRng + ?Sized>(&self, uniform: u64, rng: &mut R) -> u64 {
        match self.table_entry(uniform) {
            Some(h) => h,
            None => self.draw_exactly(uniform, rng),
        }
    }

    /// Returns the h whose share contains U; `None` beyond the table. U is nearly always in the
    /// share of the guide's h or of the next one. The choice between the two has no branch that
    /// could be mispredicted.
    #[inline(always)]
    fn table_entry(&self, uniform: u64) -> Option<u64> {
        let first = usize::from(self.guide[(uniform >> (self.bits - GUIDE_BITS)) as usize]);
        let h = first + usize::from(uniform >= self.cumulative[first]);
        let rest = self.cumulative.get(h..)?;
        let further = rest.iter().position(|&end| uniform < end)?;
        Some((h + further) as u64)
    }

    /// For the table of every release, takes the leading bits of a word as U. Returns the bin of U
    /// and 1 if the first 28 bits determine it. Otherwise returns any number up to 1024, and 0.
    #[inline(always)]
    pub(super) fn guess(&self, word: u64) -> (u64, u64) {
        bin_of_cell(self.cell(word), word)
    }

    /// Returns the cell of a word whose leading bits are U.
    #[inline(always)]
    pub(super) fn cell(&self, word: u64) -> u32 {
        self.cells[(word >> (64 - GUIDE_BITS)) as usize]
    }

    #[cold]
    fn draw_exactly<R: CryptoRng + ?Sized>(&self, mut uniform: u64, rng: &mut R) -> u64 {
        loop {
            if let Some(h) = self.table_entry(uniform).or_else(|| self.repair(uniform, rng)) {
                return h;
            }
            uniform = rng.next_u64() >> (64 - self.bits);
        }
    }

    /// The exact trials for U beyond the table.
    fn repair<R: CryptoRng + ?Sized>(&self, uniform: u64, rng: &mut R) -> Option<u64> {
        let cell = uniform - self.cumulative[COVERED as usize - 1];
        let (h, exponent) = match cell {
            0..COVERED => (cell, self.bits),
            COVERED => {
                let mut block = 0;
                while rng.next_u64() & 1 == 1 {
                    block += 1;
                }
                (COVERED * (block + 1) + (rng.next_u64() >> 54), self.bits + block as u32 + 11)
            }
            _ => return None,
        };
        let whole = if cell < COVERED { whole_part(h, self.bits, self.denominator) } else { 0 };
        let remainder = |precision: u64| {
            let (low, high) = scaled_weight(h, precision + exponent as u64, self.denominator);
            let whole = BigUint::from(whole) << precision;
            (low - &whole, high - whole)
        };
        LazyUniform::beginning_with(rng.next_u64()).is_below(remainder, rng).then_some(h)
    }
}

/// Returns the cell of this value of the leading bits, whose first U is in the share of bin `h`. It
/// is open if there are not enough bits, or more bins than two.
fn cell(ends: &[u64], h: u16, leading: u64, bits: u32) -> u32 {
    let Some(rest) = (bits - GUIDE_BITS).checked_sub(THRESHOLD_BITS) else { return OPEN };
    let (start, end) = (leading << (bits - GUIDE_BITS), (leading + 1) << (bits - GUIDE_BITS));
    let share_of = |h: u16| ends.get(usize::from(h)).copied().unwrap_or(0);
    let threshold = match share_of(h) {
        // Values equal to the threshold are left open.
        own if own >= end => THRESHOLD_MASK,
        own if own > start && share_of(h + 1) >= end => ((own - start) >> rest) as u32,
        _ => return OPEN,
    };
    u32::from(h) << THRESHOLD_BITS | threshold
}

/// Returns the bin of a word in this cell, and whether it is determined: see [`BinTable::guess`].
///
/// The bins of a cell are h and perhaps h + 1, and t are the next bits of the first U of h + 1. If
/// the next bits of U are below t, U belongs to h. If they are above t, U belongs to h + 1.
#[inline(always)]
pub(super) fn bin_of_cell(cell: u32, word: u64) -> (u64, u64) {
    let (cell, mask) = (u64::from(cell), u64::from(THRESHOLD_MASK));
    let (next, threshold) = ((word >> (64 - DETERMINING_BITS)) & mask, cell & mask);
    let first = (cell & u64::from(!OPEN)) >> THRESHOLD_BITS;
    let determined = u64::from(next != threshold) & u64::from(cell < u64::from(OPEN));
    (first.wrapping_add(u64::from(next > threshold)), determined)
}

/// Bounds of a number below 1, in units of 2⁻¹²⁸.
#[derive(Clone, Copy)]
struct ExponentialBounds {
    low: u128,
    high: u128,
}

impl ExponentialBounds {
    /// Returns `exp(−numerator/8192)`, for a small numerator that is not 0.
    fn exponential(numerator: u64) -> Self {
        let (low, high) = exponential::bounds(&numerator.into(), &BigUint::from(8192u32), 128);
        let fit = |bound| u128::try_from(bound).expect("the exponential is below 1 by more than 2⁻¹⁴");
        ExponentialBounds { low: fit(low), high: fit(high) }
    }

    fn times(self, factor: Self) -> Self {
        let high = upper_half(self.high, factor.high) + 3;
        ExponentialBounds { low: upper_half(self.low, factor.low), high }
    }

    /// Returns `⌊2^bits·number⌋`, if the bounds determine it.
    fn whole_part(self, bits: u32) -> Option<u64> {
        let [low, high] = [self.low, self.high].map(|bound| bound >> (128 - bits));
        (low == high).then_some(low as u64)
    }
}

/// Returns `a·b/2¹²⁸`, or less by less than 3: the least of the four partial products is omitted,
/// and two are rounded down.
fn upper_half(a: u128, b: u128) -> u128 {
    let halves = |factor: u128| [factor >> 64, factor & u128::from(u64::MAX)];
    let ([a, a_low], [b, b_low]) = (halves(a), halves(b));
    a * b + ((a * b_low) >> 64) + ((a_low * b) >> 64)
}

/// Computes `⌊2^bits·p_h⌋` slowly, from the exponential.
fn whole_part(h: u64, bits: u32, denominator: u64) -> u64 {
    let mut guard = 64;
    loop {
        let (low, high) = scaled_weight(h, bits as u64 + guard, denominator);
        let (low, high) = (low >> guard, high >> guard);
        if low == high {
            return u64::try_from(low).expect("p_h is below 1 and bits below 64");
        }
        guard *= 2;
    }
}

/// Returns integers `(low, high)` that enclose `2^precision·exp(−h²/8192)/denominator` and are at
/// most 2 apart.
fn scaled_weight(h: u64, precision: u64, denominator: u64) -> (BigUint, BigUint) {
    let (low, high) = exponential_bounds(h, precision + 64);
    ((low / denominator) >> 64u32, ((high / denominator) >> 64u32) + 1u32)
}

/// Returns integers that enclose `2^precision·exp(−h²/8192)`.
fn exponential_bounds(h: u64, precision: u64) -> (BigUint, BigUint) {
    exponential::bounds(&(BigUint::from(h) * h), &BigUint::from(8192u32), precision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::assert_drawn_from;
    use chacha20::ChaCha20Rng;
    use num_traits::ToPrimitive;
    use rand::{Rng, SeedableRng};

    #[test]
    fn weights_are_the_exponential() {
        for h in [0u64, 1, 2, 63, 64, 65, 300, 895, 1023, 1024] {
            let (low, high) = exponential_bounds(h, 1000);
            assert!(low < high && &high - &low < BigUint::from(1u64 << 40), "h = {h}");
            let value = low.to_f64().unwrap().ln() - 1000.0 * 2f64.ln();
            let expected = -((h * h) as f64) / 8192.0;
            assert!((value - expected).abs() < 1e-12 * (1.0 - expected), "h = {h}: {value}");
        }
    }

    #[test]
    fn the_table_is_the_floor_of_the_weights() {
        let bins = &*BINS;
        let mut before = 0;
        for h in 0..COVERED as usize {
            let share = bins.cumulative[h] - before;
            before = bins.cumulative[h];
            let exact = (-((h * h) as f64) / 8192.0).exp() / 81.0 * 2f64.powi(47);
            assert!((share as f64 - exact).abs() < 1.01, "h = {h}: {share} {exact}");
        }
        assert_eq!(
            bins.cumulative[COVERED as usize - 1],
            bins.cumulative[900],
            "the far tail is left to trials"
        );
    }

    /// Checks U around every boundary, and random U. A determined bin must be that of the table.
    /// Fewer than 2 % of the random U may be left open.
    #[test]
    fn the_first_bits_determine_the_bin_of_the_table() {
        let bins = &*BINS;
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let near =
            |&end: &u64| [0, 1, 2, 1 << 19, 1 << 20, 1 << 35].map(|off| [end.wrapping_sub(off), end + off]);
        let near: Vec<u64> = bins.cumulative.iter().flat_map(near).flatten().collect();
        let random: Vec<u64> = (0..100_000).map(|_| rng.next_u64() >> 17).collect();
        let mut open = [0; 2];
        for (uniforms, open) in [near, random].iter().zip(&mut open) {
            for uniform in uniforms.iter().filter(|&uniform| uniform >> BinTable::RELEASE_BITS == 0) {
                match bins.guess(uniform << (64 - BinTable::RELEASE_BITS)) {
                    (bin, 1) => assert_eq!(bins.table_entry(*uniform), Some(bin), "{uniform:x}"),
                    (bin, _) => *open += usize::from(bin <= COVERED),
                }
            }
        }
        assert!(open[0] > 1000 && open[1] < 2000, "{open:?}");
    }

    /// The cheap table equals the one computed from the exponential.
    #[test]
    fn the_table_is_the_exponential_to_the_last_bit() {
        for (bits, denominator) in [(BinTable::RELEASE_BITS, 81), (12, 128), (14, 100), (46, 90)] {
            let bins = BinTable::new(bits, denominator);
            let mut before = 0;
            for h in 0..COVERED {
                let end = bins.cumulative[h as usize];
                assert_eq!(end - before, whole_part(h, bits, denominator), "h = {h}, {bits} bits");
                before = end;
            }
        }
    }

    /// The bounds enclose the exponential and stay within 2⁻¹⁰⁰ of each other, so they determine
    /// the whole table.
    #[test]
    fn products_enclose_the_exponential() {
        let (mut ratio, step) = (ExponentialBounds::exponential(1), ExponentialBounds::exponential(2));
        let one = u128::MAX / 81;
        let mut weight = ExponentialBounds { low: one, high: one + 1 };
        for h in 0..COVERED {
            let (low, high) = scaled_weight(h, 128, 81);
            assert!(BigUint::from(weight.low) <= high && BigUint::from(weight.high) >= low, "h = {h}");
            assert!(weight.high - weight.low < 1 << 28, "h = {h}");
            assert!(weight.whole_part(BinTable::RELEASE_BITS).is_some(), "h = {h}");
            weight = weight.times(ratio);
            ratio = ratio.times(step);
        }
    }

    /// Every branch is exact for any number of bits: a coarse table, in which 1,024 of 4,096 or of
    /// 16,384 values of U take an exact trial, gives the same distribution. The seeds are fixed.
    #[test]
    fn coarse_tables_give_the_same_distribution() {
        for (bits, denominator, seed) in [(12, 128, 1u64), (14, 100, 2)] {
            let bins = BinTable::new(bits, denominator);
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            let mut counts = [0; 300];
            for _ in 0..100_000 {
                let uniform = rng.next_u64() >> (64 - bits);
                let h = bins.draw(uniform, &mut rng) as usize;
                counts[h.min(299)] += 1;
            }
            let weight = |h: usize| (-((h * h) as f64) / 8192.0).exp();
            let total: f64 = (0..2000).map(weight).sum();
            let mut probabilities: Vec<f64> = (0..299).map(|h| weight(h) / total).collect();
            probabilities.push(1.0 - probabilities.iter().sum::<f64>());
            assert_drawn_from(&counts, &probabilities);
        }
    }

    /// A release draws h ≥ 1024 with a probability below 2⁻¹⁸⁸. When the branch for it is forced,
    /// its trial rejects, and the next value of U belongs to no bin.
    #[test]
    fn far_tail_has_its_own_cell() {
        let bins = BinTable::new(12, 128);
        let mut rng = ChaCha20Rng::seed_from_u64(4);
        let last = bins.cumulative[COVERED as usize - 1] + COVERED;
        for _ in 0..200 {
            assert_eq!(bins.repair(last, &mut rng), None, "2^-160 each");
        }
        assert_eq!(bins.repair(last + 1, &mut rng), None);
    }
}
