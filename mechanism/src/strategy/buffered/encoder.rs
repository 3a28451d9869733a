//! Encodes: computes `C x` in fixed point.
//!
//! Buffers are integers in units of 2^-F, F at least 40. Multiplying one by a decay `θ = a 2⁻⁶⁴`
//! rounds to the nearest unit; adding `h x` is exact. The step's result is exact in units of 2^-F
//! and rounded to 2⁻⁴⁰.
//!
//! *Rounding.* Take two streams and one coordinate. The difference of the buffers follows the
//! recursion of C up to the error of each multiplication: at most half a unit per stream, so at
//! most 1 in the difference. Errors of buffer j decay as its values do. After t steps their sum E_j
//! is at most `Σ_(s≤t) Π_(s≤l<t) θ_lj` units. With a constant decay that is at most
//! `min(n, 1/(1 − θ_j))`. With `θ_lj ≤ (l/(l+1))^(b_j)` it is at most
//! `Σ_(s≤t) (s/t)^(b_j) ≤ t/(b_j + 1) + 1`. Rounding the result errs by half a unit of 2⁻⁴⁰ per
//! stream, unless F = 40. So over n steps
//!
//! ```text
//! Σ_t (Δy_t − (CΔx)_t)² ≤ n (2⁻⁴⁰ + 2^-F Σ_j E_j)².
//! ```
//!
//! F is the smallest from 40 to 60 for which this is at most 2⁻²⁸ squared units of x, or 60 if none
//! is. The sensitivity of a count then grows by less than one part in ten thousand. The
//! sensitivities of sums of records, whose units are finer, grow much less. More bits would reduce
//! the range: sums must stay below 2^(127−F).
//!
//! *Delay line.* Its numbers have the same units. A buffer rounds a second product, with the number
//! of its phase, and inherits the error of that number (`periodic`).
//!
//! *Range.* Inputs up to X leave at most `E_j (X h_j 2^F + 1)` units in buffer j. So all sums are
//! below 2¹²⁵ if `2 Σ_j E_j (X h_j 2^F + 1)` and `X 2^F` are: [`input_limit`] is the largest such
//! X.
//!
//! A saved encoder is its header, the bounds of the buffers' magnitudes, and the buffers,
//! coordinate by coordinate, 16 bytes each. With a delay line, the same follows for its numbers:
//! a bound for each phase, and phase by phase the numbers of all coordinates.
//!
//! # Inverse
//! This file also has the decoder C⁻¹. If C is Toeplitz, C⁻¹ has the same form.
//!
//! C is the series `1 + Σ ω_j z/(1 − θ_j z)`, which with λ = 1/z is the function
//! `q(λ) = 1 + Σ ω_j/(λ − θ_j)`. All ω are positive, so q decreases between any two poles and has
//! one zero there, and one below the last pole: the poles θ̂_j of the inverse lie between those of
//! C. The weights of the inverse are the residues of 1/q, `ω̂_j = 1/q′(θ̂_j)`, all negative.
//! Computations use the complements 1 − θ, which keep their digits if θ is near 1.

use super::steps::{BufferCoefficients, BufferStep};
use super::{Buffered, Buffers, Decoder, ExponentialBuffer, StepError, array};
use crate::registers::{Lanes, in_widest};
use crate::strategy::step::{Identification, fingerprint, refused, sums, wrong_length};
use crate::strategy::{COEFFICIENT_BITS, Encoder, IntegerRow};
use zeroize::Zeroizing;

const STATE_VERSION: u64 = 1;

/// Maximum squared deviation, unless more than [`MAX_BITS`] would be needed.
const ACCEPTED: f64 = 1.0 / (1u64 << 28) as f64;

/// Maximum number of fractional bits of a buffer: inputs of at most 1 then fit a 64-bit integer.
const MAX_BITS: u32 = 60;

pub(super) struct BufferedEncoder<const B: usize> {
    strategy: Buffered,
    /// F − 40.
    extra_bits: u32,
    steps: u64,
    /// Upper bound of the magnitudes in each buffer.
    magnitudes: Zeroizing<[u128; B]>,
    buffers: Zeroizing<Vec<[i128; B]>>,
    /// Upper bound of the magnitudes of each phase of the delay line; empty without one.
    delay_magnitudes: Zeroizing<Vec<u128>>,
    /// The numbers of all coordinates, phase by phase.
    delays: Zeroizing<Vec<i128>>,
}

impl<const B: usize> BufferedEncoder<B> {
    pub(super) fn new(strategy: &Buffered, coordinates: usize) -> Self {
        Self {
            strategy: strategy.clone(),
            extra_bits: fraction_bits(strategy) - COEFFICIENT_BITS,
            steps: 0,
            magnitudes: Zeroizing::new([0; B]),
            buffers: Zeroizing::new(vec![[0; B]; coordinates]),
            delay_magnitudes: Zeroizing::new(vec![0; strategy.coefficients.delays()]),
            delays: Zeroizing::new(vec![0; strategy.coefficients.delays() * coordinates]),
        }
    }

    /// The phase of the next step in the delay line, if there is one.
    fn phase(&self) -> Option<usize> {
        let delays = self.delay_magnitudes.len();
        (delays > 0).then(|| (self.steps % delays as u64) as usize)
    }

    /// Bounds of the buffers after a step with values up to `largest`; `None` if a sum could leave
    /// the range. Within these bounds no operation needs its own check. The last bound is that of
    /// the phase in the delay line.
    fn next_magnitudes(&self, step: &BufferStep, largest: u128) -> Option<([u128; B], u128)> {
        let limit = i128::MAX as u128 >> 2;
        let delayed = self.phase().map(|phase| self.delay_magnitudes[phase]);
        let mut next = [0; B];
        for (j, next) in next.iter_mut().enumerate() {
            let input = u128::from(step.inputs[j].unsigned_abs()) << self.extra_bits;
            *next = largest.checked_mul(input)?.checked_add(scaled_up(self.magnitudes[j], step.decays[j]))?;
            if let Some(delayed) = delayed {
                *next = next.checked_add(scaled_up(delayed, step.delay.weights[j]))?;
            }
        }
        let mut line = 0;
        if let Some(delayed) = delayed {
            let input = u128::from(step.delay.input.unsigned_abs()) << self.extra_bits;
            line = largest.checked_mul(input)?.checked_add(scaled_up(delayed, step.delay.decay))?;
        }
        let all = next.iter().chain(self.magnitudes.iter()).chain(&delayed).chain([&line]);
        let total = all.into_iter().try_fold(0u128, |sum, m| sum.checked_add(*m))?;
        let now = largest.checked_mul(u128::from(step.gain.unsigned_abs()))?;
        (total <= limit && now <= limit).then_some((next, line))
    }

    fn identification(&self) -> Identification {
        Identification {
            version: STATE_VERSION,
            fingerprint: self.strategy.fingerprint(),
            coordinates: self.buffers.len(),
            horizon: Some(self.strategy.parameters.steps()),
        }
    }
}

impl<const B: usize> Encoder for BufferedEncoder<B> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        y.fill(0);
        self.add_encoded(IntegerRow::Wide(x), y)
    }

    fn add_encoded(&mut self, x: IntegerRow<'_>, y: &mut [i128]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps, [x.len(), y.len()], self.buffers.len())?;
        let step = self.strategy.coefficients.step(self.steps + 1);
        let largest = match x {
            IntegerRow::Narrow(x) => x.iter().fold(0, |bits, x| bits | x.unsigned_abs()).into(),
            IntegerRow::Wide(x) => x.iter().fold(0, |bits, x| bits | x.unsigned_abs()),
        };
        let (magnitudes, line) = self.next_magnitudes(&step, largest).ok_or(StepError::Overflow)?;
        let (phase, coordinates) = (self.phase(), self.buffers.len());
        let (extra, buffers) = (self.extra_bits, &mut self.buffers[..]);
        match phase {
            Some(phase) => {
                let delays = &mut self.delays[phase * coordinates..][..coordinates];
                match x {
                    IntegerRow::Narrow(x) => take_delayed_step(&step, extra, buffers, delays, x, y),
                    IntegerRow::Wide(x) => take_delayed_step(&step, extra, buffers, delays, x, y),
                }
                self.delay_magnitudes[phase] = line;
            }
            None => match x {
                IntegerRow::Narrow(x) => in_widest(TakeStep { step: &step, extra, buffers, x, y }),
                IntegerRow::Wide(x) => in_widest(TakeStep { step: &step, extra, buffers, x, y }),
            },
        }
        *self.magnitudes = magnitudes;
        self.steps += 1;
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        let numbers = (B + self.delay_magnitudes.len()) * (1 + self.buffers.len());
        let mut state = self.identification().header(self.steps, 16 * numbers);
        state.extend(self.magnitudes.iter().flat_map(|m| m.to_le_bytes()));
        state.extend(self.buffers.iter().flatten().flat_map(|r| r.to_le_bytes()));
        state.extend(self.delay_magnitudes.iter().flat_map(|m| m.to_le_bytes()));
        state.extend(self.delays.iter().flat_map(|d| d.to_le_bytes()));
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rest) = self.identification().read(state)?;
        let values = sums(rest)?;
        let (coordinates, delays) = (self.buffers.len(), self.delay_magnitudes.len());
        if values.len() != (B + delays) * (1 + coordinates) {
            return Err(refused("its length does not fit its number of coordinates"));
        }
        let (values, lines) = values.split_at(B * (1 + coordinates));
        let (line_bounds, lines) = lines.split_at(delays);
        let line_bounds = Zeroizing::new(line_bounds.iter().map(|m| m.cast_unsigned()).collect::<Vec<_>>());
        let mut phases = lines.chunks(coordinates.max(1)).zip(line_bounds.iter());
        if !phases.all(|(line, bound)| line.iter().all(|d| d.unsigned_abs() <= *bound)) {
            return Err(refused("a number of the delay line is beyond its bound"));
        }
        let (bounds, buffers) = values.as_chunks::<B>().0.split_at(1);
        let magnitudes = Zeroizing::new(bounds[0].map(i128::cast_unsigned));
        let bounded = |contents: &[i128; B]| {
            contents.iter().zip(*magnitudes).all(|(r, bound)| r.unsigned_abs() <= bound)
        };
        if !buffers.iter().all(bounded) {
            return Err(refused("a buffer is beyond its bound"));
        }
        self.buffers.copy_from_slice(buffers);
        self.delays.copy_from_slice(lines);
        self.delay_magnitudes.copy_from_slice(&line_bounds);
        (self.steps, self.magnitudes) = (steps, magnitudes);
        Ok(())
    }
}

/// A step of all coordinates. Additions to `y` are modulo 2¹²⁸. No other operation overflows, by
/// [`BufferedEncoder::next_magnitudes`]. For 64-bit `x` a product takes a single instruction.
struct TakeStep<'a, const B: usize, X> {
    step: &'a BufferStep,
    extra: u32,
    buffers: &'a mut [[i128; B]],
    x: &'a [X],
    y: &'a mut [i128],
}

impl<const B: usize, X: Copy + Into<i128>> Lanes for TakeStep<'_, B, X> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        take_step(self.step, self.extra, self.buffers, self.x, self.y);
    }
}

#[inline(always)]
fn take_step<const B: usize, X: Copy + Into<i128>>(
    step: &BufferStep,
    extra_bits: u32,
    buffers: &mut [[i128; B]],
    x: &[X],
    y: &mut [i128],
) {
    let (mut inputs, mut decays) = ([0; B], [0; B]);
    for j in 0..B {
        (inputs[j], decays[j]) = (step.inputs[j] << extra_bits, step.decays[j]);
    }
    let half = (1 << extra_bits) >> 1;
    for ((r, &x), y) in buffers.iter_mut().zip(x).zip(y) {
        let (x, mut sum): (i128, i128) = (x.into(), half);
        for j in 0..B {
            sum = sum.wrapping_add(r[j]);
            r[j] = scaled(r[j], decays[j]).wrapping_add(x.wrapping_mul(i128::from(inputs[j])));
        }
        let encoded = x.wrapping_mul(i128::from(step.gain)).wrapping_add(sum >> extra_bits);
        *y = y.wrapping_add(encoded);
    }
}

/// A step of all coordinates with the numbers of its phase in the delay line.
fn take_delayed_step<const B: usize, X: Copy + Into<i128>>(
    step: &BufferStep,
    extra_bits: u32,
    buffers: &mut [[i128; B]],
    delays: &mut [i128],
    x: &[X],
    y: &mut [i128],
) {
    let half = (1 << extra_bits) >> 1;
    let line_input = i128::from(step.delay.input << extra_bits);
    for (((r, d), &x), y) in buffers.iter_mut().zip(delays).zip(x).zip(y) {
        let (x, mut sum): (i128, i128) = (x.into(), half - *d);
        for (j, r) in r.iter_mut().enumerate() {
            sum = sum.wrapping_add(*r);
            let kept = scaled(*r, step.decays[j]).wrapping_sub(scaled(*d, step.delay.weights[j]));
            *r = kept.wrapping_add(x.wrapping_mul(i128::from(step.inputs[j] << extra_bits)));
        }
        *d = scaled(*d, step.delay.decay).wrapping_add(x.wrapping_mul(line_input));
        let encoded = x.wrapping_mul(i128::from(step.gain)).wrapping_add(sum >> extra_bits);
        *y = y.wrapping_add(encoded);
    }
}

/// `value · decay 2⁻⁶⁴`, rounded to the nearest integer, halves up: two products of words.
#[inline(always)]
fn scaled(value: i128, decay: u64) -> i128 {
    let low = u128::from(value as u64) * u128::from(decay) + (1 << 63);
    ((value >> 64) * i128::from(decay)).wrapping_add((low >> 64) as i128)
}

/// Upper bound of the magnitude of [`scaled`] for values up to a magnitude.
fn scaled_up(magnitude: u128, decay: u64) -> u128 {
    let low = u128::from(magnitude as u64) * u128::from(decay);
    (magnitude >> 64) * u128::from(decay) + (low >> 64) + 1
}

/// `n (2⁻⁴⁰ + 2^-F Σ_j E_j)²`, rounded up.
pub(super) fn rounding_squared(strategy: &Buffered) -> f64 {
    deviation_squared(strategy, fraction_bits(strategy))
}

/// F.
fn fraction_bits(strategy: &Buffered) -> u32 {
    let enough = |bits: &u32| deviation_squared(strategy, *bits) <= ACCEPTED;
    (COEFFICIENT_BITS..MAX_BITS).find(enough).unwrap_or(MAX_BITS)
}

/// The E_j, and upper bounds of the h_j.
fn kept_and_inputs(strategy: &Buffered) -> Vec<(f64, f64)> {
    let steps = strategy.parameters.steps() as f64;
    if let BufferCoefficients::Variable(variable) = &strategy.coefficients {
        return variable.kept.iter().take(strategy.parameters.count()).map(|kept| (*kept, 1.0)).collect();
    }
    if let BufferCoefficients::Periodic(periodic) = &strategy.coefficients {
        return periodic.kept.iter().map(|kept| (*kept, 1.0)).collect();
    }
    match &strategy.parameters.buffers {
        Buffers::Toeplitz(buffers) => {
            buffers.iter().map(|b| (steps.min(1.0 / (1.0 - b.decay)), b.weight)).collect()
        }
        Buffers::PowerLaw(buffers) => buffers.iter().map(|b| (steps / (b.decay + 1.0) + 1.0, 1.0)).collect(),
        Buffers::Variable(_) | Buffers::Periodic(_) => Vec::new(),
    }
}

/// X, rounded down.
pub(super) fn input_limit(strategy: &Buffered) -> u128 {
    let grid = 2f64.powi(fraction_bits(strategy) as i32);
    let buffers = kept_and_inputs(strategy);
    let (least, each) = buffers
        .iter()
        .fold((0.0, 1.0), |(least, each), (kept, input)| (least + kept * 1.001, each + kept * 1.001 * input));
    ((2f64.powi(124) - least) / (grid * each) * 0.999) as u128
}

fn deviation_squared(strategy: &Buffered, bits: u32) -> f64 {
    let steps = strategy.parameters.steps() as f64;
    let kept: f64 = kept_and_inputs(strategy).iter().map(|(kept, _)| kept).sum();
    let result = if bits > COEFFICIENT_BITS { 0.5f64.powi(COEFFICIENT_BITS as i32) } else { 0.0 };
    let step = result + kept * 0.5f64.powi(bits as i32);
    // Fewer than 20 operations, all on positive numbers.
    steps * step * step * (1.0 + 64.0 * f64::EPSILON)
}

impl Buffered {
    pub(super) fn fingerprint(&self) -> u64 {
        let numbers: Vec<u64> = match &self.parameters.buffers {
            Buffers::Toeplitz(buffers) => {
                buffers.iter().flat_map(|b| [b.decay, b.weight].map(f64::to_bits)).collect()
            }
            Buffers::PowerLaw(buffers) => {
                buffers.iter().flat_map(|b| [b.growth, b.decay, b.weight].map(f64::to_bits)).collect()
            }
            Buffers::Variable(buffers) => {
                let numbers = buffers.iter().flat_map(|b| b.decay.iter().chain(&b.weight));
                numbers.map(|number| number.to_bits()).collect()
            }
            Buffers::Periodic(periodic) => {
                let sizes = periodic.curves().map(|curve| curve.phases.len() as u64);
                let numbers = periodic.curves().flat_map(|curve| curve.ends.iter().chain(&curve.phases));
                let shape = [periodic.gap.into(), periodic.delay.is_some().into()];
                shape.into_iter().chain(sizes).chain(numbers.map(|number| number.to_bits())).collect()
            }
        };
        let family: u64 = match self.coefficients {
            BufferCoefficients::Constant(_) => 0,
            BufferCoefficients::PowerLaw { .. } => 1,
            BufferCoefficients::Variable(_) => 2,
            BufferCoefficients::Periodic(_) => 3,
        };
        let bytes = [family, self.parameters.horizon.unwrap_or(0)].into_iter().chain(numbers);
        fingerprint(bytes.flat_map(u64::to_le_bytes))
    }
}

/// A buffer of the inverse: `C⁻¹[t,i] = Σ_j ω̂_j θ̂_j^(t−i−1)` below a diagonal of ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InverseBuffer {
    /// θ̂, above −1 and below 1.
    pub decay: f64,
    /// ω̂, below 0.
    pub weight: f64,
    /// 1 − θ̂, to full precision.
    pub complement: f64,
}

impl Buffered {
    /// C⁻¹ in the form of C, slowest buffer first; `None` unless C is Toeplitz.
    pub fn inverse(&self) -> Option<Vec<InverseBuffer>> {
        match &self.parameters.buffers {
            Buffers::Toeplitz(buffers) => Some(inverse(buffers)),
            Buffers::PowerLaw(_) | Buffers::Variable(_) | Buffers::Periodic(_) => None,
        }
    }
}

fn inverse(buffers: &[ExponentialBuffer]) -> Vec<InverseBuffer> {
    let slope = |pole: f64| -> f64 {
        buffers.iter().map(|b| (b.weight, 1.0 - b.decay - pole)).map(|(w, d)| w / (d * d)).sum()
    };
    let poles = inverse_complements(buffers).into_iter();
    poles
        .map(|pole| InverseBuffer { decay: 1.0 - pole, weight: -1.0 / slope(pole), complement: pole })
        .collect()
}

pub(super) fn complements(buffers: &[ExponentialBuffer]) -> Vec<f64> {
    buffers.iter().map(|b| 1.0 - b.decay).collect()
}

/// All 1 − θ̂_j, by bisection to the last digit.
pub(super) fn inverse_complements(buffers: &[ExponentialBuffer]) -> Vec<f64> {
    let complements = complements(buffers);
    let weights: f64 = buffers.iter().map(|b| b.weight).sum();
    let last = complements.last().map(|last| last + 2.0 * weights);
    let ends = complements[1..].iter().copied().chain(last);
    let value =
        |at: f64| 1.0 + buffers.iter().zip(&complements).map(|(b, c)| b.weight / (c - at)).sum::<f64>();
    let root = |(mut low, mut high): (f64, f64)| loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        *(if value(middle) < 0.0 { &mut low } else { &mut high }) = middle;
    };
    complements.iter().copied().zip(ends).map(root).collect()
}

/// Inverts the recursion: `x_t = (y_t − Σ_j r_j)/g_t`, with the encoder's coefficients and number
/// of buffers.
pub(super) struct BufferedDecoder<const B: usize> {
    strategy: Buffered,
    steps: u64,
    buffers: Vec<[f64; B]>,
    /// The numbers of all coordinates, phase by phase.
    delays: Vec<f64>,
}

impl<const B: usize> BufferedDecoder<B> {
    pub(super) fn new(strategy: &Buffered, coordinates: usize) -> Self {
        let delays = vec![0.0; strategy.coefficients.delays() * coordinates];
        Self { strategy: strategy.clone(), steps: 0, buffers: vec![[0.0; B]; coordinates], delays }
    }
}

impl<const B: usize> Decoder for BufferedDecoder<B> {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps, [y.len(), x.len()], self.buffers.len())?;
        self.steps += 1;
        let step = self.strategy.coefficients.step(self.steps).real();
        let (inputs, decays): ([f64; B], [f64; B]) = (array(|j| step.inputs[j]), array(|j| step.decays[j]));
        let scale = 1.0 / step.gain;
        let (phase, coordinates) = (self.strategy.coefficients.delays(), self.buffers.len());
        let phase = (self.steps - 1).checked_rem(phase as u64).unwrap_or(0) as usize;
        let mut delays = self.delays.get_mut(phase * coordinates..).unwrap_or_default().iter_mut();
        for ((r, &y), x) in self.buffers.iter_mut().zip(y).zip(x) {
            let line = delays.next();
            let delayed = line.as_ref().map_or(0.0, |line| **line);
            *x = (y - r.iter().sum::<f64>() + delayed) * scale;
            for j in 0..B {
                r[j] = decays[j] * r[j] + inputs[j] * *x - step.delay.weights[j] * delayed;
            }
            if let Some(line) = line {
                *line = step.delay.decay * delayed + step.delay.input * *x;
            }
        }
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        [self.buffers.as_flattened(), &self.delays].concat()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        let (buffers, delays) = (self.buffers.as_flattened_mut(), &mut self.delays);
        let within = self.strategy.parameters.horizon.is_none_or(|horizon| steps <= horizon);
        if !within || state.len() != buffers.len() + delays.len() {
            return Err(wrong_length());
        }
        let (of_buffers, of_delays) = state.split_at(buffers.len());
        buffers.copy_from_slice(of_buffers);
        delays.copy_from_slice(of_delays);
        self.steps = steps;
        Ok(())
    }
}
