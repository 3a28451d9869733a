//! Views: any workload over the released values, with the exact noise level of every number.
//!
//! Everything here is post-processing of what is private already, so there may be any number of views, at no
//! cost of privacy, also of a log that was written long ago. The increments `x̂ = C⁻¹y` have the noise C⁻¹Z, so the
//! view `A x̂` has noise `(AC⁻¹Z)_t`, whose standard deviation at epoch t is that of one coordinate of Z times
//! `‖(AC⁻¹)_t‖`.

use crate::estimate::debias::{MomentNoise, NoisyMoments};
use crate::estimate::density::{Density, DensityError};
use crate::jme::JointMechanism;
use crate::moments::Layout;
use crate::strategy::{Decoder, StepError, Strategy};
use crate::workload::{Workload, WorkloadError, WorkloadState};
use thiserror::Error;

/// Why a view can't take a release.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The release has another number of coordinates.
    #[error("the release has {found} values, expected {expected}: it belongs to another pipeline")]
    Length {
        /// Values in the release.
        found: usize,
        /// Values of this view's pipeline.
        expected: usize,
    },
    /// The view was made for fewer epochs.
    #[error("the view ends at epoch {horizon}")]
    PastHorizon {
        /// The last epoch.
        horizon: u64,
    },
    /// The strategy can't decode the step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The workload can't take the step.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Weighted private moments of one key at one epoch, in centred and scaled coordinates.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Index of the key.
    pub key: u32,
    /// `Σ_i A[t,i]·(count_i | Σx | Σxxᵀ)`, in the order of the layout.
    pub coordinates: Vec<f64>,
    /// Places of the coordinates.
    pub layout: Layout,
    /// Exact noise levels, the same for all keys.
    pub noise: MomentNoise,
}

impl Moments {
    /// The weighted count.
    pub fn count(&self) -> f64 {
        self.coordinates[Layout::COUNT]
    }

    /// Weighted Σx, one entry a column.
    pub fn first(&self) -> &[f64] {
        &self.coordinates[self.layout.first()]
    }

    /// Weighted Σxxᵀ in the order of [`Layout::second_entries`].
    pub fn second(&self) -> &[f64] {
        &self.coordinates[self.layout.second()]
    }

    /// The Gaussian density of these moments, debiased.
    ///
    /// # Errors
    /// [`DensityError`], foremost where the count is lost in its noise.
    pub fn density(&self) -> Result<Density, DensityError> {
        NoisyMoments { layout: self.layout, coordinates: &self.coordinates, noise: self.noise }.density()
    }
}

/// A workload over the released values of all keys.
pub struct View {
    layout: Layout,
    /// Real value of one unit of each coordinate of a key.
    units: Vec<f64>,
    /// Noise of one release, before decoding.
    noise: MomentNoise,
    row_norms: Vec<f64>,
    decoder: Box<dyn Decoder>,
    workload: WorkloadState,
    released: Vec<f64>,
    increments: Vec<f64>,
}

impl View {
    /// The view of `workload` over releases of `mechanism` through `strategy`, for `horizon` epochs.
    pub fn new(
        mechanism: &JointMechanism,
        strategy: &dyn Strategy,
        workload: &Workload,
        keys: u32,
        horizon: u64,
    ) -> Self {
        let layout = mechanism.parameters().layout;
        let coordinates = keys as usize * layout.coordinates();
        let deviation = |coordinate: usize| mechanism.noise()[coordinate].standard_deviation();
        View {
            layout,
            units: mechanism.noise().iter().map(|noise| noise.unit).collect(),
            noise: MomentNoise {
                count: deviation(Layout::COUNT),
                first: deviation(layout.first().start),
                second: deviation(layout.second().start),
            },
            row_norms: strategy.decoder_row_norms(workload, horizon).collect(),
            decoder: strategy.decoder(coordinates),
            workload: workload.state(coordinates),
            released: vec![0.0; coordinates],
            increments: vec![0.0; coordinates],
        }
    }

    /// The epoch that comes next; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.decoder.steps() + 1
    }

    /// Takes the release of the next epoch and gives the view of it, key by key.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn push(&mut self, values: &[i128]) -> Result<impl Iterator<Item = Moments> + '_, ViewError> {
        if values.len() != self.released.len() {
            return Err(ViewError::Length { found: values.len(), expected: self.released.len() });
        }
        let epoch = self.next_epoch();
        let norm = *self
            .row_norms
            .get(epoch as usize - 1)
            .ok_or(ViewError::PastHorizon { horizon: self.row_norms.len() as u64 })?;
        let units = self.units.iter().cycle();
        for ((real, &integer), &unit) in self.released.iter_mut().zip(values).zip(units) {
            *real = integer as f64 * unit;
        }
        self.decoder.decode(&self.released, &mut self.increments)?;
        let view = self.workload.push(&self.increments)?;
        let noise = MomentNoise {
            count: self.noise.count * norm,
            first: self.noise.first * norm,
            second: self.noise.second * norm,
        };
        let layout = self.layout;
        Ok(view.chunks_exact(layout.coordinates()).zip(0..).map(move |(moments, key)| Moments {
            epoch,
            key,
            coordinates: moments.to_vec(),
            layout,
            noise,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jme::JointParameters;
    use crate::moments::SecondMoment;
    use crate::sensitivity::Neighbours;
    use crate::strategy::{COEFFICIENT_BITS, StrategyName, build};

    const LAYOUT: Layout = Layout { dimension: 1, second: SecondMoment::Full };

    fn mechanism(strategy: &dyn Strategy) -> JointMechanism {
        JointMechanism::new(JointParameters {
            layout: LAYOUT,
            neighbours: Neighbours::ReplaceOne,
            clip_norm: 2.0,
            noise_multiplier: 1.0,
            geometry: strategy.geometry(),
            second_moment_weight: None,
            count_weight: None,
        })
        .unwrap()
    }

    /// Without noise a view gives the weighted sums themselves, in real units, for every strategy and workload.
    #[test]
    fn a_view_undoes_strategy_and_units() {
        for (name, workload) in [
            (StrategyName::Identity, Workload::Average),
            (StrategyName::SquareRoot, Workload::Prefix),
            (StrategyName::SquareRoot, "exponential:0.5".parse().unwrap()),
            (StrategyName::SquareRoot, "window:2".parse().unwrap()),
        ] {
            let (keys, horizon) = (2, 6);
            let strategy = build(name, &workload, Some(horizon)).unwrap();
            let mechanism = mechanism(strategy.as_ref());
            let mut encoder = strategy.encoder(6);
            let mut view = View::new(&mechanism, strategy.as_ref(), &workload, keys, horizon);
            for epoch in 1..=horizon {
                // Counts t and 2t; a record of the largest norm is 2²⁰ and its square 2⁴⁰ on the grid.
                let (t, unit, square) = (epoch as i128, 1i128 << 20, 1i128 << 40);
                let sums = [t, t * unit, -t * square, 2 * t, 3 * unit, square];
                let mut values = [0; 6];
                encoder.encode(&sums, &mut values).unwrap();
                let moments: Vec<Moments> = view.push(&values).unwrap().collect();
                let weighted = |f: &dyn Fn(f64) -> f64| {
                    (1..=epoch).map(|i| workload.coefficient(epoch, i) * f(i as f64)).sum::<f64>()
                };
                let expected = [
                    [weighted(&|i| i), weighted(&|i| 2.0 * i), weighted(&|i| -4.0 * i)],
                    [weighted(&|i| 2.0 * i), weighted(&|_| 6.0), weighted(&|_| 4.0)],
                ];
                for (key, (found, expected)) in moments.iter().zip(expected).enumerate() {
                    assert_eq!((found.epoch, found.key as usize), (epoch, key));
                    for (found, expected) in found.coordinates.iter().zip(expected) {
                        assert!((found - expected).abs() < 1e-9, "{workload} {epoch}: {found} {expected}");
                    }
                }
                assert_eq!((moments[0].count(), moments[0].first().len()), (moments[0].coordinates[0], 1));
            }
            let past = view.push(&[0; 6]).err();
            assert!(matches!(past, Some(ViewError::PastHorizon { horizon: 6 })), "{past:?}");
        }
    }

    #[test]
    fn noise_levels_are_those_of_the_theorem() {
        let strategy = build(StrategyName::Identity, &Workload::Prefix, Some(9)).unwrap();
        let mut view = View::new(&mechanism(strategy.as_ref()), strategy.as_ref(), &Workload::Prefix, 1, 9);
        for epoch in 1..=9u32 {
            let noise = view.push(&[0; 3]).unwrap().next().unwrap().noise;
            let root = f64::from(epoch).sqrt();
            // 2ζσ√t, ζ√2 times that, and √2/ζ times that: at ν = c = 1/2.
            let expected = [4.0 * root, 8.0 * 2f64.sqrt() * root, 4.0 / 2f64.sqrt() * root];
            for (found, expected) in [noise.first, noise.second, noise.count].into_iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-8, "{found} {expected}");
            }
        }
    }

    #[test]
    fn releases_of_another_length_are_refused() {
        let strategy = build(StrategyName::Identity, &Workload::Prefix, Some(9)).unwrap();
        let mut view = View::new(&mechanism(strategy.as_ref()), strategy.as_ref(), &Workload::Prefix, 1, 9);
        let error = view.push(&[1 << COEFFICIENT_BITS; 4]).err();
        assert!(matches!(error, Some(ViewError::Length { found: 4, expected: 3 })), "{error:?}");
    }
}
