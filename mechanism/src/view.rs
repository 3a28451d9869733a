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
            row_norms: strategy.decoder_row_norms(workload, horizon),
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
