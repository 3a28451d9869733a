//! One shard's sums, encoded and added to independent noise: `y_t = (C x)_t + z_t`.

use super::values::NoiseBuffer;
use crate::mechanism::{MatrixMechanism, MomentEncoder};
use crate::moments::IntegerRow;
use crate::noise::{DiscreteGaussian, NoiseGenerator, NoiseScale};
use crate::strategy::StepError;
use std::ops::Range;
use zeroize::Zeroizing;

pub(super) struct EncodedSums {
    encoder: MomentEncoder,
    /// Samplers of runs of coordinates with equal noise, with the lengths of the runs.
    samplers: Vec<(Option<DiscreteGaussian>, usize)>,
}

impl EncodedSums {
    pub(super) fn new(mechanism: &MatrixMechanism, range: Range<u64>) -> Self {
        let noise = mechanism.moments().noise();
        let samplers = samplers(range.clone().map(|c| noise[(c % noise.len() as u64) as usize].scale));
        Self { encoder: mechanism.strategies().encoder(mechanism.layout(), range), samplers }
    }

    pub(super) fn steps(&self) -> u64 {
        self.encoder.steps()
    }

    pub(super) fn draw(&self, generator: &mut NoiseGenerator, room: &NoiseBuffer) -> Zeroizing<Vec<i128>> {
        let mut noise = Zeroizing::new(room.take_wide());
        noise.resize(self.samplers.iter().map(|(_, length)| length).sum(), 0);
        let mut rest = &mut noise[..];
        for (sampler, length) in &self.samplers {
            let (run, after) = rest.split_at_mut(*length);
            match sampler {
                Some(gaussian) => gaussian.fill(generator, run),
                None => run.fill(0),
            }
            rest = after;
        }
        noise
    }

    pub(super) fn add(&mut self, sums: IntegerRow<'_>, noise: &mut [i128]) -> Result<(), StepError> {
        self.encoder.add_encoded(sums, noise)
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

fn samplers(scales: impl Iterator<Item = Option<NoiseScale>>) -> Vec<(Option<DiscreteGaussian>, usize)> {
    let mut samplers: Vec<(Option<DiscreteGaussian>, usize)> = Vec::new();
    for scale in scales {
        match samplers.last_mut() {
            Some((last, length)) if last.as_ref().map(DiscreteGaussian::scale) == scale => *length += 1,
            _ => samplers.push((scale.map(DiscreteGaussian::new), 1)),
        }
    }
    samplers
}
