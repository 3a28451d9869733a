//! The noise of a release without its sums: rows of `C⁻¹z`, for trainers that add them to clipped
//! sums of their own.
//!
//! z is the exact discrete Gaussian of [`ReleaseShard`], whose sums are all zero here. So a step is
//! drawn once, in order, from fresh entropy. What a trainer adds in floating point is up to the
//! trainer: the guarantee of integers in [`release`](super) does not cover it.

use super::{ReleaseError, ReleaseShard, Shards, values::in_real_units};
use crate::mechanism::{MatrixMechanism, MechanismError, Method, MomentParameters, Strategies};
use crate::moments::{IntegerRow, Layout, SecondMoment};
use crate::noise::NoiseSource;
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::{Decoder, Strategy};
use crate::workload::Workload;
use std::num::NonZeroU64;
use std::sync::Arc;

/// c of a private count that is never read: it costs half of this share of the noise.
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
///
/// let parameters = NoiseStreamParameters {
///     dimension: 3,
///     clip_norm: 1.0,
///     noise_multiplier: 2.0,
///     neighbours: Neighbours::ZeroOut,
///     participation: Participation::Single,
///     horizon: 10,
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
    shards: Vec<(ReleaseShard, Box<dyn Decoder>)>,
    zeros: Vec<i64>,
    released: Vec<f64>,
    decoded: Vec<f64>,
}

/// What the noise is for.
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
        let layout = Layout { dimension, second: SecondMoment::Diagonal, sent: None };
        let moments = MomentParameters {
            method: Method::Pp,
            layout,
            neighbours,
            clip_norm,
            noise_multiplier: parameters.noise_multiplier,
            second_moment_weight: None,
            count_weight: (!neighbours.counts_are_public()).then(|| UNREAD_COUNT.sqrt() * clip_norm),
        };
        let made =
            |strategies| MatrixMechanism::with_participation(moments, strategies, participation, horizon);
        let encoded = Strategies::shared(strategy);
        // Noise that is correlated in integers needs no decoding, where the strategy allows it.
        let mechanism = match made(encoded.clone().correlated()) {
            Err(
                MechanismError::Correlation
                | MechanismError::CorrelationError { .. }
                | MechanismError::CorrelationRange { .. },
            ) => made(encoded)?,
            mechanism => mechanism?,
        };
        let cut = Shards::at_least(1, mechanism.layout(), 1);
        let shard = |number| {
            let machine = ReleaseShard::new(number, cut, &mechanism, source);
            let decoder = mechanism.first_decoder(machine.coordinates());
            (machine, decoder)
        };
        let shards: Vec<_> = (0..cut.number()).map(shard).collect();
        let widest = shards.iter().map(|(machine, _)| machine.coordinates()).max().unwrap_or(0);
        let [released, decoded] = [(); 2].map(|()| vec![0.0; widest]);
        Ok(Self { shards, zeros: vec![0; widest], released, decoded, mechanism })
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
        self.shards.last().map_or(1, |(machine, _)| machine.next_epoch())
    }

    /// Largest distance of the sums of neighbours, in the unit of the clip norm.
    pub fn sensitivity(&self) -> f64 {
        self.mechanism.moments().sensitivity()
    }

    /// Standard deviations of the noise of each step in one coordinate, in the unit of the clip
    /// norm.
    pub fn standard_deviations(&self) -> impl Iterator<Item = f64> + '_ {
        let independent = self.mechanism.moments().noise()[Layout::COUNT + 1].standard_deviation();
        let increments = Workload::Window(NonZeroU64::MIN);
        let norms = self.mechanism.strategies().first().decoder_row_norms(&increments, self.horizon());
        norms.map(move |norm| independent * norm)
    }

    /// Draws the noise of a step.
    ///
    /// # Errors
    /// [`ReleaseError`] for any step but the next and beyond the horizon: nothing is drawn. Without
    /// entropy and for an array of another length `noise` is unspecified, and the stream must not
    /// be used afterwards.
    pub fn draw(&mut self, step: u64, noise: &mut [f64]) -> Result<(), ReleaseError> {
        let layout = self.mechanism.layout();
        if noise.len() != layout.dimension {
            let (found, expected) = (noise.len(), layout.dimension);
            return Err(crate::strategy::StepError::Coordinates { found, expected }.into());
        }
        let unit = self.mechanism.moments().noise()[Layout::COUNT + 1].unit;
        // The first coordinate is the count, which is never read.
        let (mut rest, mut unread) = (noise, layout.first().start);
        for (machine, decoder) in &mut self.shards {
            let length = machine.coordinates();
            let row = machine.release_row(step, IntegerRow::Narrow(&self.zeros[..length]))?;
            let (released, decoded) = (&mut self.released[..length], &mut self.decoded[..length]);
            in_real_units(row.row(), unit, released);
            decoder.decode(released, decoded)?;
            let read = &decoded[unread.min(length)..];
            let (own, after) = rest.split_at_mut(read.len());
            own.copy_from_slice(read);
            (rest, unread) = (after, unread.saturating_sub(length));
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
        }
    }

    fn strategies() -> [Arc<dyn Strategy>; 2] {
        let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
        let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
        let buffered = Buffered::new("blt:1".parse().unwrap(), fitted).unwrap();
        [Arc::new(buffered), build("square-root", &Workload::Prefix, Some(STEPS)).unwrap()]
    }

    /// C times the noise is white, with the deviation that is promised: chi-square of 6 × 40 000
    /// numbers within 7 deviations, a false alarm of less than 1e-11 for each strategy; the seed is
    /// fixed.
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
