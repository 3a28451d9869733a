//! Correlates noise by C⁻¹, in floating point. The head of `strategy/correlation.rs` has the
//! privacy proof.
//!
//! ```text
//! u_t = z_t − ⌊Σ_j r_j(t)⌉,        r_j(t+1) = θ_j r_j(t) + h_j ⌊u_t⌉
//! ```
//!
//! The brackets round to the nearest unit, which is that of the grid or coarser. This is the
//! decoder's recursion, applied to noise instead of the release.
//!
//! *Rounding.* Let |u| ≤ M and `E_j = min(n, 1/(1 − θ_j))`, so that r_j stays within
//! `ρ_j = h_j E_j M` up to rounding. A step of the recursion rounds four times, θ included: by at
//! most `2⁻⁵³ (2θ_j ρ_j + h_j M + ρ_j) ≤ 2⁻⁵¹ ρ_j`. Errors decay as values do, so r_j is off by at
//! most `2⁻⁵¹ ρ_j E_j`, plus at most `½ h_j E_j` units for the rounding of u. Adding b buffers
//! rounds b − 1 times, by at most `2⁻⁵³ Σ ρ_j` each, and the sum is rounded to the nearest unit.
//! With a margin for second-order terms, R errs by no more than
//!
//! ```text
//! ½ (1 + Σ_j h_j E_j) units + M · 2⁻⁵⁰ Σ_j h_j E_j (E_j + b).
//! ```
//!
//! All operations are single IEEE operations in the same order on every processor, on eight
//! coordinates at a time.
//!
//! A saved correlator is its header followed by its buffers, 8 bytes per coordinate.

use super::{Buffered, steps::RealStep};
use crate::moments::rows::{as_integer, as_number};
use crate::registers::{self, in_widest};
use crate::strategy::step::{Identification, refused};
use crate::strategy::{Correlation, Correlator, Factorization, StepError};
use crate::workload::Workload;
use std::num::NonZeroU64;
use zeroize::Zeroizing;

/// Differs from the version of any encoder.
const STATE_VERSION: u64 = 1 << 32;

const LANES: usize = 8;

/// A buffer of neighbouring coordinates.
type Lanes = [f64; LANES];

pub(super) struct BufferedCorrelator {
    strategy: Buffered,
    steps: u64,
    coordinates: usize,
    coarse_bits: u32,
    /// For each block of coordinates all buffers, one after the other. The last block is filled up
    /// with zeros.
    buffers: Zeroizing<Vec<Lanes>>,
}

impl BufferedCorrelator {
    pub(super) fn new(strategy: &Buffered, coordinates: usize, coarse_bits: u32) -> Self {
        let number = strategy.parameters.count() * coordinates.div_ceil(LANES);
        let buffers = Zeroizing::new(vec![[0.0; LANES]; number]);
        Self { strategy: strategy.clone(), steps: 0, coordinates, coarse_bits, buffers }
    }

    /// Number of buffers of a coordinate.
    fn count(&self) -> usize {
        self.strategy.parameters.count()
    }

    /// Returns the block and the lane of a buffer of a coordinate.
    fn index(&self, buffer: usize, coordinate: usize) -> (usize, usize) {
        (coordinate / LANES * self.count() + buffer, coordinate % LANES)
    }

    fn identification(&self) -> Identification {
        Identification {
            version: STATE_VERSION | u64::from(self.coarse_bits),
            fingerprint: self.strategy.fingerprint(),
            coordinates: self.coordinates,
            horizon: Some(self.strategy.parameters.steps()),
        }
    }
}

impl Correlator for BufferedCorrelator {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn correlate(&mut self, noise: &mut [i64]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps, [noise.len(); 2], self.coordinates)?;
        self.steps += 1;
        let step = self.strategy.coefficients.step(self.steps).real();
        let (count, coarse_bits) = (self.count(), self.coarse_bits);
        in_widest(Correlate { step, count, coarse_bits, noise, buffers: &mut self.buffers });
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        let mut state = self.identification().header(self.steps, 8 * self.count() * self.coordinates);
        for buffer in 0..self.count() {
            for coordinate in 0..self.coordinates {
                let (index, lane) = self.index(buffer, coordinate);
                state.extend(self.buffers[index][lane].to_le_bytes());
            }
        }
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rest) = self.identification().read(state)?;
        if rest.len() != 8 * self.count() * self.coordinates {
            return Err(refused("its length does not fit its number of coordinates"));
        }
        let values = rest.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        if !values.clone().all(f64::is_finite) {
            return Err(refused("a buffer is not finite"));
        }
        for (number, value) in values.enumerate() {
            let (index, lane) = self.index(number / self.coordinates, number % self.coordinates);
            self.buffers[index][lane] = value;
        }
        self.steps = steps;
        Ok(())
    }
}

struct Correlate<'a> {
    step: RealStep,
    count: usize,
    coarse_bits: u32,
    noise: &'a mut [i64],
    buffers: &'a mut [Lanes],
}

impl registers::Lanes for Correlate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // The grid's own units are the common case. Without shifts they are faster.
        match self.coarse_bits {
            0 => self.in_units(0),
            coarse_bits => self.in_units(coarse_bits),
        }
    }
}

impl Correlate<'_> {
    #[inline(always)]
    fn in_units(self, coarse_bits: u32) {
        let (whole, rest) = self.noise.as_chunks_mut();
        let mut blocks = self.buffers.chunks_exact_mut(self.count);
        for (noise, buffers) in whole.iter_mut().zip(&mut blocks) {
            correlate_block(&self.step, coarse_bits, noise, buffers);
        }
        if let Some(buffers) = blocks.next() {
            let mut filled = [0; LANES];
            filled[..rest.len()].copy_from_slice(rest);
            correlate_block(&self.step, coarse_bits, &mut filled, buffers);
            rest.copy_from_slice(&filled[..rest.len()]);
        }
    }
}

#[inline(always)]
fn correlate_block(step: &RealStep, coarse_bits: u32, noise: &mut [i64; LANES], buffers: &mut [Lanes]) {
    let half = (1 << coarse_bits) >> 1;
    let (mut sums, mut real) = ([0.0; LANES], [0.0; LANES]);
    for buffer in &*buffers {
        for lane in 0..LANES {
            sums[lane] += buffer[lane];
        }
    }
    for lane in 0..LANES {
        noise[lane] = noise[lane].wrapping_sub(as_integer(sums[lane]) << coarse_bits);
        real[lane] = as_number(noise[lane].wrapping_add(half) >> coarse_bits);
    }
    for (position, buffer) in buffers.iter_mut().enumerate() {
        let (decay, input) = (step.decays[position], step.inputs[position]);
        let before: Lanes = *buffer;
        for lane in 0..LANES {
            buffer[lane] = decay * before[lane] + input * real[lane];
        }
    }
}

/// Row norm and error bounds of a strategy whose diagonal is one.
pub(super) fn correlation(strategy: &Buffered, steps: u64) -> Correlation {
    let coefficients = strategy.coefficients.step(1).real();
    let number = strategy.parameters.count() as f64;
    let (mut inputs, mut growth) = (0.0, 0.0);
    for (input, decay) in coefficients.inputs.iter().zip(coefficients.decays) {
        let kept = (steps as f64).min(1.0 / (1.0 - decay));
        inputs += input * kept;
        growth += input * kept * (kept + number);
    }
    // A window of one step is the identity.
    let norms = strategy.decoder_row_norms(&Workload::Window(NonZeroU64::MIN), steps);
    let margin = 1.0 + 0.5f64.powi(20);
    let row_norm = norms.fold(1.0, f64::max) * margin;
    Correlation { row_norm, units: 0.5 * (1.0 + inputs) * margin, growth: growth * 0.5f64.powi(50) * margin }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::buffered::{BufferedParameters, Buffers, ExponentialBuffer};
    use crate::strategy::{COEFFICIENT_BITS, Correlates, Strategy};
    use proptest::prelude::*;

    const STEPS: u64 = 150;

    /// One full block and a partial one.
    const COORDINATES: usize = LANES + 3;

    fn strategy(buffers: &[(f64, f64)]) -> Buffered {
        let buffer = |&(decay, weight): &(f64, f64)| ExponentialBuffer { decay, weight };
        let mut buffers: Vec<_> = buffers.iter().map(buffer).collect();
        buffers.sort_by(|a, b| b.decay.total_cmp(&a.decay));
        let parameters = BufferedParameters { horizon: Some(STEPS), buffers: Buffers::Toeplitz(buffers) };
        Buffered::new(format!("blt:{}", parameters.count()).parse().unwrap(), parameters.rounded()).unwrap()
    }

    /// `R_t − L_t(u)` in units of the grid. Because z = u + R, it equals z − C u, and the encoder
    /// multiplies by C.
    fn errors(strategy: &Buffered, coarse_bits: u32, rows: &[Vec<i64>]) -> (Vec<f64>, f64) {
        let mut correlator = strategy.correlator(COORDINATES, coarse_bits);
        let mut encoder = strategy.encoder(COORDINATES);
        let (mut errors, mut largest) = (Vec::new(), 0f64);
        for z in rows {
            let mut u = z.clone();
            correlator.correlate(&mut u).unwrap();
            let wide: Vec<i128> = u.iter().map(|&u| u.into()).collect();
            let mut encoded = vec![0; COORDINATES];
            encoder.encode(&wide, &mut encoded).unwrap();
            let left = z.iter().zip(&encoded).map(|(&z, c)| (i128::from(z) << COEFFICIENT_BITS) - c);
            errors.extend(left.map(|left| left as f64 * 0.5f64.powi(COEFFICIENT_BITS as i32)));
            largest = u.iter().fold(largest, |largest, u| largest.max(u.unsigned_abs() as f64));
        }
        (errors, largest)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Tests unlikely paths too: u is as large as the range allows, and has one sign for
        /// several steps.
        #[test]
        fn rounding_stays_within_its_bound(
            buffers in prop::collection::vec((0.01f64..0.9999, 0.001f64..0.1), 1..9),
            coarse_bits in 0u32..12,
            signs in prop::collection::vec(any::<bool>(), STEPS as usize),
            magnitude in 12u32..49,
        ) {
            let strategy = strategy(&buffers);
            let run = |t: usize| if signs[t / 20] { 1i64 } else { -1 };
            let z = |t: usize, position: usize| run(t) * ((1 << (magnitude + coarse_bits)) - 97 * (t * position) as i64);
            let rows: Vec<Vec<i64>> = (0..STEPS as usize).map(|t| (0..COORDINATES).map(|i| z(t, i)).collect()).collect();
            let (errors, largest) = errors(&strategy, coarse_bits, &rows);
            let bound = strategy.correlates().unwrap().correlation(STEPS);
            let unit = 2f64.powi(coarse_bits as i32);
            prop_assert!(largest < 2f64.powi(51) * unit);
            let bound = bound.units * unit + bound.growth * largest + 1e-3;
            let worst = errors.iter().fold(0f64, |worst, error| worst.max(error.abs()));
            prop_assert!(worst <= bound, "{worst} of {bound}");
        }

        #[test]
        fn a_restored_correlator_continues_like_the_original(
            buffers in prop::collection::vec((0.01f64..0.9999, 0.001f64..0.1), 1..9),
            z in prop::collection::vec(-1i64 << 45..1 << 45, COORDINATES),
        ) {
            let strategy = strategy(&buffers);
            let [mut whole, mut restored] = [(); 2].map(|()| strategy.correlator(COORDINATES, 3));
            for _ in 0..5 {
                whole.correlate(&mut z.clone()).unwrap();
            }
            restored.restore(&whole.save()).unwrap();
            prop_assert_eq!(restored.steps(), 5);
            let [mut one, mut other] = [z.clone(), z];
            whole.correlate(&mut one).unwrap();
            restored.correlate(&mut other).unwrap();
            prop_assert_eq!(one, other);
            prop_assert_eq!(whole.save(), restored.save());
        }
    }

    #[test]
    fn noise_out_of_range_is_refused_and_changes_nothing() {
        let strategy = strategy(&[(0.9, 0.2), (0.5, 0.1)]);
        let mut correlator = strategy.correlator(2, 0);
        let wrong = Err(StepError::Coordinates { found: 3, expected: 2 });
        assert_eq!(correlator.correlate(&mut [0; 3]), wrong);
        for _ in 0..STEPS {
            correlator.correlate(&mut [1 << 44; 2]).unwrap();
        }
        let saved = correlator.save();
        let ended = Err(StepError::PastHorizon { horizon: STEPS });
        assert_eq!(correlator.correlate(&mut [0; 2]), ended);
        let not_finite = [&saved[..saved.len() - 8], &f64::NAN.to_le_bytes()].concat();
        let encoder = strategy.encoder(2).save();
        let longer = [&saved[..], &[0]].concat();
        for state in [&saved[..saved.len() - 1], &longer, &not_finite, &encoder, &[]] {
            assert!(matches!(correlator.restore(state), Err(StepError::State { .. })));
        }
        assert_eq!(correlator.save(), saved);
        assert!(strategy.correlator(2, 1).restore(&saved).is_err(), "in other units");
        assert!(strategy.correlator(1, 0).restore(&saved).is_err());
        assert!(strategy.encoder(2).restore(&saved).is_err());
    }
}
