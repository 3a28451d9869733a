//! One shard's noise, correlated before the sums are added: `w_t = K x_t + u_t`, where `u = C⁻¹ z`
//! up to rounding. `strategy/correlation.rs` has the derivation and the proof.
//!
//! The state holds only noise, no sums.
//!
//! # Encoded sums
//! One shard's sums, encoded and added to independent noise: `y_t = (C x)_t + z_t`, or the same
//! [rounded](crate::mechanism::Strategies::rounded) to a coarser grid.

use super::{ReleaseError, Released};
use crate::mechanism::{CoordinateNoise, MatrixMechanism, MomentEncoder};
use crate::moments::IntegerRow;
use crate::noise::{DiscreteGaussian, NoiseGenerator};
use crate::registers::{Lanes, in_widest};
use crate::strategy::{COEFFICIENT_BITS, Correlator, StepError};
use std::ops::Range;
use zeroize::Zeroizing;

pub(super) struct CorrelatedNoise {
    runs: Vec<CoordinateRun>,
    steps: u64,
}

/// Consecutive coordinates with equal noise and the same strategy.
struct CoordinateRun {
    length: usize,
    /// K = 2^`sum_bits`.
    sum_bits: u8,
    noise: RunNoise,
}

enum RunNoise {
    /// The coordinates are public and exact.
    None,
    Correlated(DiscreteGaussian, Box<dyn Correlator>),
    /// The strategy claims to correlate but returned no correlator. Nothing may be released.
    Missing,
}

impl CorrelatedNoise {
    pub(super) fn new(mechanism: &MatrixMechanism, range: Range<u64>) -> Self {
        let (noise, layout) = (mechanism.moments().noise(), mechanism.layout());
        let kind = |coordinate: u64| {
            let position = (coordinate % noise.len() as u64) as usize;
            (noise[position], layout.second().contains(&position))
        };
        let mut kinds: Vec<(_, usize)> = Vec::new();
        for kind in range.map(kind) {
            match kinds.last_mut() {
                Some((last, length)) if *last == kind => *length += 1,
                _ => kinds.push((kind, 1)),
            }
        }
        let strategies = mechanism.strategies();
        let run = |((noise, is_second), length): ((CoordinateNoise, bool), usize)| {
            let strategy = if is_second { strategies.second() } else { strategies.first() };
            let noise_of_run = match (noise.scale, strategy.correlates()) {
                (None, _) => RunNoise::None,
                (Some(scale), Some(strategy)) => RunNoise::Correlated(
                    DiscreteGaussian::new(scale),
                    strategy.correlator(length, noise.coarse_bits.into()),
                ),
                (Some(_), None) => RunNoise::Missing,
            };
            CoordinateRun { length, sum_bits: noise.sum_bits, noise: noise_of_run }
        };
        Self { runs: kinds.into_iter().map(run).collect(), steps: 0 }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Draws the independent noise of a step. The state does not change, so the draw may be
    /// discarded.
    pub(super) fn draw(&self, generator: &mut NoiseGenerator, noise: &mut [i64]) {
        let mut rest = noise;
        for run in &self.runs {
            let (own, after) = rest.split_at_mut(run.length);
            match &run.noise {
                RunNoise::Correlated(gaussian, _) => gaussian.fill_narrow(generator, own),
                RunNoise::None | RunNoise::Missing => own.fill(0),
            }
            rest = after;
        }
    }

    /// Correlates the noise of steps of this width, then adds the sums to it modulo 2¹²⁸, as
    /// [`Encoder`](crate::strategy::Encoder) does and for the same reasons. If a step fails,
    /// `noise` is wiped, with the values made from it.
    ///
    /// All sums of one width take the same operations, and sums of either width give the same
    /// values. Except for the width of the sums, the operations depend only on public data and the
    /// released values.
    pub(super) fn release<'s>(
        &mut self,
        mut noise: Zeroizing<Vec<i64>>,
        width: usize,
        steps: impl Iterator<Item = IntegerRow<'s>>,
    ) -> Result<Released, ReleaseError> {
        // Values in 128 bits, once some don't fit 64.
        let mut wide: Option<Vec<i128>> = None;
        for (step, sums) in steps.enumerate() {
            let (before, after) = noise.split_at_mut(step * width);
            let own = &mut after[..width];
            let are_narrow = self.add_step(own, sums)?;
            if !are_narrow {
                wide.get_or_insert_with(|| before.iter().map(|&value| value.into()).collect());
            }
            if let Some(wide) = &mut wide {
                // `own` holds the low halves of the values, so subtracting the sums recovers the
                // noise.
                let bits = self.runs.iter().flat_map(|run| std::iter::repeat_n(run.sum_bits, run.length));
                wide.extend(sums.iter().zip(&*own).zip(bits).map(|((sum, &low), bits)| {
                    let scaled = sum.wrapping_shl(bits.into());
                    scaled.wrapping_add(low.wrapping_sub(scaled as i64).into())
                }));
            }
        }
        Ok(match wide {
            None => Released::narrow(std::mem::take(&mut *noise)),
            Some(values) => Released::released_before(values),
        })
    }

    /// Correlates the noise of a step and adds the sums to it. Returns whether all values fit 64
    /// bits; if not, `noise` holds their low halves.
    fn add_step(&mut self, noise: &mut [i64], sums: IntegerRow<'_>) -> Result<bool, ReleaseError> {
        if sums.len() != noise.len() {
            return Err(StepError::Coordinates { found: sums.len(), expected: noise.len() }.into());
        }
        let mut rest = &mut *noise;
        for run in &mut self.runs {
            let (own, after) = rest.split_at_mut(run.length);
            match &mut run.noise {
                RunNoise::None => {}
                RunNoise::Correlated(_, correlator) => correlator.correlate(own)?,
                RunNoise::Missing => {
                    return Err(StepError::State { reason: "its strategy correlates no noise" }.into());
                }
            }
            rest = after;
        }
        self.steps += 1;
        Ok(self.add(noise, sums))
    }

    /// Adds sums to noise in place. Returns whether all values fit 64 bits; if not, `noise` holds
    /// their low halves.
    fn add(&self, noise: &mut [i64], sums: IntegerRow<'_>) -> bool {
        let (mut rest, mut start, mut beyond) = (noise, 0, 0);
        for run in &self.runs {
            let (noise, after) = rest.split_at_mut(run.length);
            let bits = run.sum_bits.into();
            beyond |= match sums.run(start..start + run.length) {
                IntegerRow::Narrow(sums) => in_widest(AddNarrow { noise, sums, bits }),
                IntegerRow::Wide(sums) => add_each(noise, sums, bits, sum_of_wide),
            };
            (rest, start) = (after, start + run.length);
        }
        beyond == 0
    }

    /// The complete state: the number of steps, then for each run with noise the length of its
    /// correlator's state and that state. Private.
    pub(super) fn save(&self) -> Zeroizing<Vec<u8>> {
        let states: Vec<_> = self.correlators().map(|correlator| Zeroizing::new(correlator.save())).collect();
        // Growing would leave copies of noise in freed memory.
        let length = 8 + states.iter().map(|state| 8 + state.len()).sum::<usize>();
        let mut all = Zeroizing::new(Vec::with_capacity(length));
        all.extend(self.steps.to_le_bytes());
        for state in states {
            all.extend((state.len() as u64).to_le_bytes());
            all.extend(&state[..]);
        }
        all
    }

    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let refused = || StepError::State { reason: "it is not one of correlated noise" };
        let (steps, mut rest) = word(state).ok_or_else(refused)?;
        for run in &mut self.runs {
            let RunNoise::Correlated(_, correlator) = &mut run.noise else { continue };
            let (length, states) = word(rest).ok_or_else(refused)?;
            let length = usize::try_from(length).ok().and_then(|length| states.split_at_checked(length));
            let (own, after) = length.ok_or_else(refused)?;
            correlator.restore(own)?;
            if correlator.steps() != steps {
                return Err(refused());
            }
            rest = after;
        }
        self.steps = steps;
        if rest.is_empty() { Ok(()) } else { Err(refused()) }
    }

    fn correlators(&self) -> impl Iterator<Item = &dyn Correlator> {
        self.runs.iter().filter_map(|run| match &run.noise {
            RunNoise::Correlated(_, correlator) => Some(correlator.as_ref()),
            RunNoise::None | RunNoise::Missing => None,
        })
    }
}

/// Adds sums in units of 2^`bits` to noise. Returns 0 if all values fit 64 bits; otherwise `noise`
/// holds their low halves.
#[inline(always)]
fn add_each<X: Copy>(
    noise: &mut [i64],
    sums: &[X],
    bits: u32,
    value: impl Fn(i64, X, u32) -> (i64, i64),
) -> i64 {
    let mut beyond = 0;
    for (u, &sum) in noise.iter_mut().zip(sums) {
        let (low, high) = value(*u, sum, bits);
        beyond |= high ^ (low >> 63);
        *u = low;
    }
    beyond
}

struct AddNarrow<'a> {
    noise: &'a mut [i64],
    sums: &'a [i64],
    bits: u32,
}

impl Lanes for AddNarrow<'_> {
    type Output = i64;

    #[inline(always)]
    fn run(self) -> i64 {
        add_each(self.noise, self.sums, self.bits, sum_of_narrow)
    }
}

/// Low and high half of `u + sum·2^bits`, `bits` at most 63. Uses only 64-bit operations, which
/// vectorise.
#[inline(always)]
fn sum_of_narrow(u: i64, sum: i64, bits: u32) -> (i64, i64) {
    let (low, high) = (sum << bits, sum >> (63 - bits) >> 1);
    let total = low.wrapping_add(u);
    let carry = ((low & u) | ((low | u) & !total)).cast_unsigned() >> 63;
    (total, high.wrapping_add(u >> 63).wrapping_add(carry.cast_signed()))
}

fn sum_of_wide(u: i64, sum: i128, bits: u32) -> (i64, i64) {
    let total = sum.wrapping_shl(bits).wrapping_add(u.into());
    (total as i64, (total >> 64) as i64)
}

fn word(state: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = state.split_first_chunk()?;
    Some((u64::from_le_bytes(*word), rest))
}

pub(super) struct EncodedSums {
    encoder: MomentEncoder,
    runs: Vec<EncodedRun>,
}

/// Consecutive coordinates with equal noise.
struct EncodedRun {
    length: usize,
    /// `None` if coordinates are public and exact.
    sampler: Option<DiscreteGaussian>,
    /// s: one unit of the grid is 2^s units of encoded sums.
    rounded_bits: u32,
}

impl EncodedSums {
    pub(super) fn new(mechanism: &MatrixMechanism, range: Range<u64>) -> Self {
        let noise = mechanism.moments().noise();
        let runs = runs(range.clone().map(|c| noise[(c % noise.len() as u64) as usize]));
        Self { encoder: mechanism.strategies().encoder(mechanism.layout(), range), runs }
    }

    pub(super) fn steps(&self) -> u64 {
        self.encoder.steps()
    }

    pub(super) fn draw(&self, generator: &mut NoiseGenerator, noise: &mut [i128]) {
        for (run, noise) in self.runs_of(noise) {
            match &run.sampler {
                Some(gaussian) => gaussian.fill(generator, noise),
                None => noise.fill(0),
            }
        }
    }

    /// Adds encoded sums to the noise of a step. All arithmetic is modulo 2¹²⁸. Rounding drops the
    /// last s bits of a sum, so its arithmetic is modulo 2^(128 − s).
    pub(super) fn add(&mut self, sums: IntegerRow<'_>, noise: &mut [i128]) -> Result<(), StepError> {
        for (run, noise) in self.runs_of(noise).filter(|(run, _)| run.rounded_bits > 0) {
            noise.iter_mut().for_each(|value| *value <<= run.rounded_bits);
        }
        self.encoder.add_encoded(sums, noise)?;
        for (run, values) in self.runs_of(noise).filter(|(run, _)| run.rounded_bits > 0) {
            let (bits, half) = (run.rounded_bits, 1 << (run.rounded_bits - 1));
            values.iter_mut().for_each(|value| *value = value.wrapping_add(half) >> bits);
        }
        Ok(())
    }

    fn runs_of<'a>(&self, mut row: &'a mut [i128]) -> impl Iterator<Item = (&EncodedRun, &'a mut [i128])> {
        self.runs.iter().map_while(move |run| Some((run, row.split_off_mut(..run.length)?)))
    }

    pub(super) fn replay(&mut self, sums: &[i128]) -> Result<(), StepError> {
        let mut encoded = Zeroizing::new(vec![0; sums.len()]);
        self.encoder.encode(sums, &mut encoded)
    }

    pub(super) fn save(&self) -> Zeroizing<Vec<u8>> {
        self.encoder.save()
    }

    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        self.encoder.restore(state)
    }
}

fn runs(noise: impl Iterator<Item = CoordinateNoise>) -> Vec<EncodedRun> {
    let mut runs: Vec<EncodedRun> = Vec::new();
    for CoordinateNoise { scale, sum_bits, .. } in noise {
        let rounded_bits = COEFFICIENT_BITS - u32::from(sum_bits);
        let is_equal = |run: &&mut EncodedRun| {
            run.sampler.as_ref().map(DiscreteGaussian::scale) == scale && run.rounded_bits == rounded_bits
        };
        match runs.last_mut().filter(is_equal) {
            Some(run) => run.length += 1,
            None => {
                runs.push(EncodedRun { length: 1, sampler: scale.map(DiscreteGaussian::new), rounded_bits })
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halves_add_up_to_128_bits(u in any::<i64>(), sum in any::<i64>(), shift in 0u32..64, bits in 0u32..64) {
            for u in [u, u >> shift, i64::MIN, i64::MAX, 0] {
                for sum in [sum, sum >> shift, i64::MIN, i64::MAX, 0] {
                    prop_assert_eq!(sum_of_narrow(u, sum, bits), sum_of_wide(u, sum.into(), bits));
                }
            }
        }
    }
}
