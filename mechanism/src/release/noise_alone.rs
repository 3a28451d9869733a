//! The noise of a release without its sums: rows of `C⁻¹z`, for training code that adds them to its
//! own clipped sums.
//!
//! z is the exact discrete Gaussian of a release, drawn once for each step, in order, from fresh
//! entropy. If the strategy correlates noise in integers, so does the stream. Otherwise the rows
//! are decoded in floating point. The training code adds the noise in floating point, which the
//! guarantee for integers in [`release`](super) does not cover.

use super::{ReleaseError, values::in_real_units};
use crate::mechanism::{
    CoordinateNoise, MatrixMechanism, MechanismError, Method, MomentParameters, Strategies,
};
use crate::moments::{IntegerRow, Layout, SecondMoment};
use crate::noise::{DiscreteGaussian, NoiseSource};
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::{Correlator, Decoder, StepError, Strategy};
use crate::workload::Workload;
use std::num::{NonZeroU64, NonZeroUsize};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// Number of coordinates that are drawn together: few enough for the draws to stay in the cache
/// until the row is computed from them.
const PART: usize = 1 << 13;

/// Largest σ in grid units whose draws are taken in 64 bits. A draw that does not fit is 128
/// deviations out: a discrete Gaussian is σ²-sub-Gaussian, so that happens with probability below
/// 2⁻¹¹⁰⁰⁰.
const WIDEST_NARROW: f64 = (1u64 << 56) as f64;

/// c of a private count that is never read. The count raises the noise of the first moments by half
/// of this share.
pub const UNREAD_COUNT: f64 = 1.0 / (1 << 20) as f64;

/// Correlated noise, step by step.
///
/// ```
/// use hushflow_mechanism::noise::NoiseSource;
/// use hushflow_mechanism::participation::Participation;
/// use hushflow_mechanism::release::{NoiseStream, NoiseStreamParameters};
/// use hushflow_mechanism::sensitivity::Neighbours;
/// use hushflow_mechanism::strategy::build;
/// use hushflow_mechanism::workload::Workload;
/// use std::num::NonZeroUsize;
///
/// let parameters = NoiseStreamParameters {
///     dimension: 3,
///     clip_norm: 1.0,
///     noise_multiplier: 2.0,
///     neighbours: Neighbours::ZeroOut,
///     participation: Participation::Single,
///     horizon: 10,
///     threads: NonZeroUsize::MIN,
/// };
/// let strategy = build("square-root", &Workload::Prefix, Some(10))?;
/// let mut stream = NoiseStream::new(parameters, strategy, NoiseSource::System)?;
/// let mut noise = [0.0; 3];
/// stream.draw(1, &mut noise)?;
/// assert!(stream.draw(1, &mut noise).is_err(), "a step is drawn once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct NoiseStream {
    mechanism: MatrixMechanism,
    source: NoiseSource,
    threads: NonZeroUsize,
    steps: u64,
    parts: Vec<Part>,
}

/// A run of coordinates.
struct Part {
    /// Its number, from which its draws get a separate nonce.
    number: u64,
    gaussian: DiscreteGaussian,
    unit: f64,
    form: RowForm,
}

/// Computation of a row of `C⁻¹z` from z.
enum RowForm {
    Correlated(Box<dyn Correlator>),
    Decoded(Box<dyn Decoder>),
}

/// Memory of one thread.
#[derive(Default)]
struct DrawBuffer {
    narrow: Vec<i64>,
    wide: Vec<i128>,
    real: Vec<f64>,
}

/// Parameters of the use of the noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseStreamParameters {
    /// Number of coordinates, at least 1.
    pub dimension: usize,
    /// ζ: the largest norm of a record.
    pub clip_norm: f64,
    /// σ: deviation of z divided by the sensitivity.
    pub noise_multiplier: f64,
    /// [`Neighbours::ZeroOut`], or [`Neighbours::ReplaceOneInPlace`] for twice the noise.
    pub neighbours: Neighbours,
    /// Steps of one record or entity.
    pub participation: Participation,
    /// Number of steps.
    pub horizon: u64,
    /// Number of threads that draw. The noise of a seed does not depend on it.
    pub threads: NonZeroUsize,
}

impl NoiseStream {
    /// Starts before the first step.
    ///
    /// # Errors
    /// [`MechanismError`] for numbers out of range.
    pub fn new(
        parameters: NoiseStreamParameters,
        strategy: Arc<dyn Strategy>,
        source: NoiseSource,
    ) -> Result<Self, MechanismError> {
        let NoiseStreamParameters { dimension, clip_norm, participation, horizon, neighbours, .. } =
            parameters;
        // The method pp releases first moments alone.
        let layout = Layout::new(dimension, SecondMoment::Diagonal);
        let moments = MomentParameters {
            method: Method::Pp,
            layout,
            neighbours,
            clip_norm,
            noise_multiplier: parameters.noise_multiplier,
            second_moment_weight: None,
            count_weight: (!neighbours.counts_are_public()).then(|| UNREAD_COUNT.sqrt() * clip_norm),
            bin_weight: None,
        };
        let made =
            |strategies| MatrixMechanism::with_participation(moments, strategies, participation, horizon);
        let encoded = Strategies::shared(strategy);
        // If the strategy allows it, noise is correlated in integers, which needs no decoding.
        let mechanism = match made(encoded.clone().correlated()) {
            Err(
                MechanismError::Correlation
                | MechanismError::GridRounding { .. }
                | MechanismError::CorrelationRange { .. },
            ) => made(encoded)?,
            mechanism => mechanism?,
        };
        let CoordinateNoise { unit, scale, coarse_bits, .. } = noise_of(&mechanism);
        let gaussian = DiscreteGaussian::new(scale.ok_or(MechanismError::Correlation)?);
        let strategy = mechanism.strategies().first();
        let part = |number: usize| {
            let length = PART.min(dimension - number * PART);
            let form = match strategy.correlates().filter(|_| mechanism.is_correlated()) {
                Some(correlates) => RowForm::Correlated(correlates.correlator(length, coarse_bits.into())),
                None => RowForm::Decoded(strategy.decoder(length)),
            };
            Part { number: number as u64, gaussian: gaussian.clone(), unit, form }
        };
        let parts = (0..dimension.div_ceil(PART)).map(part).collect();
        Ok(Self { source, threads: parameters.threads, steps: 0, parts, mechanism })
    }

    /// Number of coordinates.
    pub fn dimension(&self) -> usize {
        self.mechanism.layout().dimension
    }

    /// Number of steps.
    pub fn horizon(&self) -> u64 {
        self.mechanism.horizon().unwrap_or(u64::MAX)
    }

    /// The next step; the first is 1.
    pub fn next_step(&self) -> u64 {
        self.steps + 1
    }

    /// Largest distance of the sums of neighbours, in the unit of the clip norm.
    pub fn sensitivity(&self) -> f64 {
        self.mechanism.moments().sensitivity()
    }

    /// Standard deviations of the noise of each step in one coordinate, in the unit of the clip
    /// norm.
    pub fn standard_deviations(&self) -> impl Iterator<Item = f64> + '_ {
        let independent = noise_of(&self.mechanism).standard_deviation();
        let increments = Workload::Window(NonZeroU64::MIN);
        let norms = self.mechanism.strategies().first().decoder_row_norms(&increments, self.horizon());
        norms.map(move |norm| independent * norm)
    }

    /// Draws the noise of a step.
    ///
    /// # Errors
    /// [`ReleaseError`] for an array of another length, for any step but the next, and beyond the
    /// horizon: nothing is drawn. Without entropy, `noise` is unspecified, and the stream must not
    /// be used afterwards.
    pub fn draw(&mut self, step: u64, noise: &mut [f64]) -> Result<(), ReleaseError> {
        let (found, expected) = (noise.len(), self.dimension());
        if found != expected {
            return Err(StepError::Coordinates { found, expected }.into());
        }
        if step != self.next_step() {
            return Err(ReleaseError::OutOfOrder { found: step, expected: self.next_step() });
        }
        if let Some(horizon) = self.mechanism.horizon().filter(|&horizon| step > horizon) {
            return Err(StepError::PastHorizon { horizon }.into());
        }
        self.steps = step;
        let source = self.source;
        let share = self.parts.len().div_ceil(self.threads.get());
        let mut shares = self.parts.chunks_mut(share).zip(noise.chunks_mut(share * PART));
        let own = shares.next();
        thread::scope(|scope| {
            let others: Vec<_> = shares
                .map(|(parts, rows)| scope.spawn(move || draw_parts(parts, rows, source, step)))
                .collect();
            let own = own.map_or(Ok(()), |(parts, rows)| draw_parts(parts, rows, source, step));
            let joined =
                others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.fold(own, Result::and)
        })
    }
}

/// Noise of every coordinate.
fn noise_of(mechanism: &MatrixMechanism) -> CoordinateNoise {
    mechanism.moments().noise()[Layout::COUNT + 1]
}

/// Draws the rows of some parts.
fn draw_parts(
    parts: &mut [Part],
    rows: &mut [f64],
    source: NoiseSource,
    step: u64,
) -> Result<(), ReleaseError> {
    let mut buffer = DrawBuffer::default();
    parts
        .iter_mut()
        .zip(rows.chunks_mut(PART))
        .try_for_each(|(part, row)| part.draw(row, source, step, &mut buffer))
}

impl Part {
    fn draw(
        &mut self,
        row: &mut [f64],
        source: NoiseSource,
        step: u64,
        buffer: &mut DrawBuffer,
    ) -> Result<(), ReleaseError> {
        let mut generator = source.generator(step, self.number)?;
        let DrawBuffer { narrow, wide, real } = buffer;
        narrow.resize(row.len(), 0);
        match &mut self.form {
            RowForm::Correlated(correlator) => {
                self.gaussian.fill_narrow(&mut generator, narrow);
                correlator.correlate(narrow)?;
                in_real_units(IntegerRow::Narrow(narrow), self.unit, row);
            }
            RowForm::Decoded(decoder) => {
                real.resize(row.len(), 0.0);
                if self.gaussian.scale().sigma() <= WIDEST_NARROW {
                    self.gaussian.fill_narrow(&mut generator, narrow);
                    in_real_units(IntegerRow::Narrow(narrow), self.unit, real);
                } else {
                    wide.resize(row.len(), 0);
                    self.gaussian.fill(&mut generator, wide);
                    in_real_units(IntegerRow::Wide(wide), self.unit, real);
                }
                decoder.decode(real, row)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
    use crate::strategy::build;

    const STEPS: u64 = 6;

    fn parameters(dimension: usize) -> NoiseStreamParameters {
        NoiseStreamParameters {
            dimension,
            clip_norm: 0.5,
            noise_multiplier: 3.0,
            neighbours: Neighbours::ZeroOut,
            participation: "2x3".parse().unwrap(),
            horizon: STEPS,
            threads: NonZeroUsize::new(3).unwrap(),
        }
    }

    fn strategies() -> [Arc<dyn Strategy>; 2] {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
        let buffered = Buffered::new("blt:1".parse().unwrap(), fitted).unwrap();
        [Arc::new(buffered), build("square-root", &Workload::Prefix, Some(STEPS)).unwrap()]
    }

    /// C times the noise must be white, with the stated deviation. In each of 6 steps, the mean
    /// square of 40 000 numbers must be within 7 deviations of 1: a false alarm of less than 1e-10
    /// for each strategy. The seed is fixed.
    #[test]
    fn the_strategy_makes_the_noise_white() {
        let dimension = 40_000;
        for (strategy, correlated) in strategies().into_iter().zip([true, false]) {
            let matrix = strategy.matrix(STEPS).unwrap().entries();
            let mut stream =
                NoiseStream::new(parameters(dimension), strategy, NoiseSource::Seeded(7)).unwrap();
            assert_eq!(stream.mechanism.is_correlated(), correlated);
            let mut rows = vec![vec![0.0; dimension]; STEPS as usize];
            for (step, row) in (1..).zip(&mut rows) {
                stream.draw(step, row).unwrap();
            }
            let expected = 3.0 * stream.sensitivity();
            for t in 0..STEPS as usize {
                let entry = |i: usize| (0..=t).map(|s| matrix[(t, s)] * rows[s][i]).sum::<f64>() / expected;
                let mean_square = (0..dimension).map(|i| entry(i).powi(2)).sum::<f64>() / dimension as f64;
                assert!((mean_square - 1.0).abs() < 7.0 * (2.0 / dimension as f64).sqrt(), "{mean_square}");
            }
            let inverse = matrix.try_inverse().unwrap();
            for (t, deviation) in stream.standard_deviations().enumerate() {
                let row = inverse.row(t).norm() * expected;
                // Scales are rounded up by less than one part in 2¹⁹.
                assert!((-1e-9..2e-6).contains(&(deviation / row - 1.0)), "{deviation} against {row}");
            }
        }
    }

    #[test]
    fn threads_do_not_change_the_noise_of_a_seed() {
        let dimension = 3 * PART + 5;
        for strategy in strategies() {
            let drawn = [1, 2, 7].map(|threads| {
                let threads = NonZeroUsize::new(threads).unwrap();
                let parameters = NoiseStreamParameters { threads, ..parameters(dimension) };
                let mut stream =
                    NoiseStream::new(parameters, strategy.clone(), NoiseSource::Seeded(7)).unwrap();
                let mut rows = vec![vec![0.0; dimension]; 2];
                (1..).zip(&mut rows).try_for_each(|(step, row)| stream.draw(step, row)).unwrap();
                rows
            });
            assert!(drawn[0] == drawn[1] && drawn[0] == drawn[2]);
            // The draws of different parts differ.
            assert_ne!(drawn[0][0][..5], drawn[0][0][PART..PART + 5]);
        }
    }

    #[test]
    fn every_step_is_drawn_once_and_in_order() {
        for strategy in strategies() {
            let mut stream = NoiseStream::new(parameters(2), strategy, NoiseSource::System).unwrap();
            let mut noise = [0.0; 2];
            assert!(stream.draw(2, &mut noise).is_err());
            assert!(stream.draw(1, &mut noise[..1]).is_err());
            for step in 1..=STEPS {
                assert_eq!(stream.next_step(), step);
                stream.draw(step, &mut noise).unwrap();
                assert!(stream.draw(step, &mut noise).is_err());
            }
            assert!(stream.draw(STEPS + 1, &mut noise).is_err());
        }
    }

    #[test]
    fn replaced_records_have_twice_the_noise_of_blanked_ones() {
        for strategy in strategies() {
            let [blanked, replaced] =
                [Neighbours::ZeroOut, Neighbours::ReplaceOneInPlace].map(|neighbours| {
                    let parameters = NoiseStreamParameters { neighbours, ..parameters(1) };
                    NoiseStream::new(parameters, strategy.clone(), NoiseSource::System).unwrap().sensitivity()
                });
            assert!((replaced / blanked - 2.0).abs() < 1e-5, "{replaced} {blanked}");
        }
    }
}
