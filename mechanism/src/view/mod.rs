//! Views: any workload over the released values, with the noise level of every number.
//!
//! Views are post-processing of released values. Any number of views costs no privacy, including
//! views of an old log. The increments `x̂ = C⁻¹y` have the noise C⁻¹Z, so the view `A x̂` has the
//! noise `(AC⁻¹Z)_t`. Its standard deviation at epoch t is that of one coordinate of Z times
//! `‖(AC⁻¹)_t‖`. If only first moments are released (PP), second moments are squares of decoded
//! increments, and their noise levels are estimates: see `squares`.
//!
//! # Noise
//! [`ViewNoise`] holds the noise levels of the epochs of a view, computed on demand.
//!
//! A level is the norm of a row of a decoder. A horizon of ten million epochs has as many levels,
//! but a view of the first thousand epochs needs only the first thousand. So levels are computed in
//! stretches, each as long as all before it together, and shared by all views of one workload. Row
//! t does not depend on how many rows are computed with it, because strategies are causal.

mod correlation;
mod squares;
#[cfg(test)]
mod tests;

use crate::estimate::debias::{MomentNoise, NoisyMoments};
use crate::estimate::density::{Density, DensityError};
use crate::mechanism::{MatrixMechanism, MomentDecoder, Strategies};
use crate::moments::Layout;
use crate::release::to_real;
use crate::strategy::StepError;
use crate::workload::{Workload, WorkloadError, WorkloadState};
pub use correlation::noise_correlations;
pub use squares::SquareBias;
use squares::{NEIGHBOUR_WEIGHT, SquaredIncrements, fading};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Error of adding a release to a view.
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
    /// The epoch is past the end of the view.
    #[error("the view ends at epoch {horizon}")]
    PastHorizon {
        /// The last epoch.
        horizon: u64,
    },
    /// The strategy cannot decode the step.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The workload cannot take the step.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

/// Source of second moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondMomentSource {
    /// Released second moments of records; or there are no second moments.
    Released,
    /// Squares of the sums of a key's records in an epoch. They equal second moments of records
    /// only if the epoch has at most one record of the key.
    EpochSums(SquareBias),
}

/// Weighted private moments of one key at one epoch, in centred and scaled coordinates.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Index of the key.
    pub key: u32,
    /// `Σ_i A[t,i]·(count_i | Σx | Σxxᵀ)`, in the order of the layout; for
    /// [`SecondMomentSource::EpochSums`] the last is `(Σx)(Σx)ᵀ`.
    pub coordinates: Vec<f64>,
    /// Positions of the coordinates.
    pub layout: Layout,
    /// Noise levels. They are exact and the same for all keys, except that those of squares of
    /// epoch sums are estimates.
    pub noise: MomentNoise,
    /// Source of the second moments.
    pub source: SecondMomentSource,
    /// Noise level of the number of sent records; 0 where that is exact or not released.
    pub sent_noise: f64,
    /// Noise level of each bin of histograms; 0 without histograms.
    pub bin_noise: f64,
}

impl Moments {
    /// Weighted count.
    pub fn count(&self) -> f64 {
        self.coordinates[Layout::COUNT]
    }

    /// Weighted number of the records that entities sent, and the standard deviation of its noise;
    /// `None` where it is not released.
    pub fn sent(&self) -> Option<(f64, f64)> {
        Some((self.coordinates[self.layout.sent()?], self.sent_noise))
    }

    /// Weighted numbers of records in the bins of all histograms, histogram by histogram.
    pub fn bins(&self) -> &[f64] {
        &self.coordinates[self.layout.bins()]
    }

    /// Weighted Σx, one entry per column.
    pub fn first(&self) -> &[f64] {
        &self.coordinates[self.layout.first()]
    }

    /// Weighted Σxxᵀ in the order of [`Layout::second_entries`].
    pub fn second(&self) -> &[f64] {
        &self.coordinates[self.layout.second()]
    }

    /// The debiased Gaussian density of these moments. The caller must ensure that the second
    /// moments are those of records (see [`source`](Self::source)).
    ///
    /// # Errors
    /// [`DensityError`], most often because the count is small compared with its noise.
    pub fn density(&self) -> Result<Density, DensityError> {
        self.noisy().density()
    }

    /// The moments in the form that all estimates take.
    pub fn noisy(&self) -> NoisyMoments<'_> {
        NoisyMoments { layout: self.layout, coordinates: &self.coordinates, noise: self.noise }
    }
}

/// A workload over the released values of all keys.
pub struct View {
    /// Layout of one key in the view.
    layout: Layout,
    /// Real value of one unit of each released coordinate of a key.
    units: Vec<f64>,
    /// Noise of one release, before decoding. `count_and_bin` is that of the number of sent records
    /// and of a bin.
    noise: MomentNoise,
    count_and_bin: [f64; 2],
    levels: Arc<ViewNoise>,
    decoder: MomentDecoder,
    squares: Option<SquaredIncrements>,
    workload: WorkloadState,
    released: Vec<f64>,
    decoded: Vec<f64>,
}

impl View {
    /// The view of `workload` over releases of `mechanism`, for `horizon` epochs. Squares of epoch
    /// sums are debiased.
    pub fn new(mechanism: &MatrixMechanism, workload: &Workload, keys: u32, horizon: u64) -> Self {
        Self::sharing(mechanism, &Arc::new(ViewNoise::new(mechanism, workload, horizon)), keys)
    }

    /// The view for `levels`, which may be shared with other views. They must be made for this
    /// `mechanism`.
    pub fn sharing(mechanism: &MatrixMechanism, levels: &Arc<ViewNoise>, keys: u32) -> Self {
        let (released, layout) = (mechanism.layout(), mechanism.moments().parameters().layout);
        let noise = mechanism.moments().noise();
        let deviation = |position: usize| noise.get(position).map_or(0.0, |noise| noise.standard_deviation());
        let first = deviation(layout.first().start);
        let squares =
            (layout != released).then(|| SquaredIncrements::new(layout, Arc::clone(levels), first, keys));
        let coordinates = keys as usize * released.coordinates();
        View {
            layout,
            units: noise.iter().map(|noise| noise.unit).collect(),
            noise: MomentNoise {
                count: deviation(Layout::COUNT),
                first,
                second: released.second().next().map_or(0.0, deviation),
            },
            count_and_bin: [released.sent(), released.bins().next()].map(|at| at.map_or(0.0, deviation)),
            decoder: mechanism.decoder(keys),
            squares,
            workload: levels.workload().state(keys as usize * layout.coordinates()),
            levels: Arc::clone(levels),
            released: vec![0.0; coordinates],
            decoded: vec![0.0; coordinates],
        }
    }

    /// The same view, with or without the bias of squares of noisy sums. No effect if second
    /// moments are released.
    pub fn with_square_bias(mut self, bias: SquareBias) -> Self {
        if let Some(squares) = &mut self.squares {
            squares.set_bias(bias);
        }
        self
    }

    /// The next epoch; the first is 1.
    pub fn next_epoch(&self) -> u64 {
        self.decoder.steps() + 1
    }

    /// Adds the release of the next epoch and returns the view of it, key by key.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn push(&mut self, values: &[i128]) -> Result<impl Iterator<Item = Moments> + '_, ViewError> {
        if values.len() != self.released.len() {
            return Err(ViewError::Length { found: values.len(), expected: self.released.len() });
        }
        let epoch = self.next_epoch();
        let (noise, [sent_noise, bin_noise]) = self.noise_of(epoch as usize - 1)?;
        let units = self.units.iter().cycle();
        for ((real, &integer), &unit) in self.released.iter_mut().zip(values).zip(units) {
            *real = to_real(integer) * unit;
        }
        self.decoder.decode(&self.released, &mut self.decoded)?;
        let (increments, levels, source) = match &mut self.squares {
            None => (&self.decoded[..], Vec::new(), SecondMomentSource::Released),
            Some(squares) => {
                let source = SecondMomentSource::EpochSums(squares.bias());
                let (increments, levels) = squares.push(epoch as usize - 1, &self.decoded)?;
                (increments, levels, source)
            }
        };
        let view = self.workload.push(increments)?;
        let layout = self.layout;
        Ok(view.chunks_exact(layout.coordinates()).zip(0..).map(move |(moments, key)| Moments {
            epoch,
            key,
            coordinates: moments.to_vec(),
            layout,
            noise: MomentNoise { second: levels.get(key as usize).copied().unwrap_or(noise.second), ..noise },
            source,
            sent_noise,
            bin_noise,
        }))
    }

    fn noise_of(&self, epoch: usize) -> Result<(MomentNoise, [f64; 2]), ViewError> {
        let past = ViewError::PastHorizon { horizon: self.levels.horizon() };
        let (first, second) = self.levels.at(epoch).ok_or(past)?;
        let noise = MomentNoise {
            count: self.noise.count * first,
            first: self.noise.first * first,
            second: self.noise.second * second,
        };
        Ok((noise, self.count_and_bin.map(|noise| noise * first)))
    }
}

const FIRST_STRETCH: u64 = 4096;

/// Noise levels of a workload over releases, per unit of the noise of one release.
///
/// ```
/// # use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters};
/// # use hushflow_mechanism::moments::{Layout, SecondMoment};
/// # use hushflow_mechanism::sensitivity::Neighbours;
/// # use hushflow_mechanism::strategy::build;
/// # use hushflow_mechanism::view::{View, ViewNoise};
/// # use hushflow_mechanism::workload::Workload;
/// # let parameters = MomentParameters {
/// #     method: Method::Jme,
/// #     layout: Layout::new(1, SecondMoment::Full),
/// #     neighbours: Neighbours::ReplaceOneInPlace,
/// #     clip_norm: 1.0,
/// #     noise_multiplier: 1.0,
/// #     second_moment_weight: None,
/// #     count_weight: None,
/// #     bin_weight: None,
/// # };
/// let horizon = 10_000_000;
/// let strategy = build("identity", &Workload::Prefix, Some(horizon))?;
/// let mechanism = MatrixMechanism::new(parameters, strategy)?;
/// let noise = std::sync::Arc::new(ViewNoise::new(&mechanism, &Workload::Prefix, horizon));
/// let views = [(); 100].map(|()| View::sharing(&mechanism, &noise, 1));
/// assert_eq!(noise.computed(), 0, "nothing has been asked for");
/// # drop(views);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ViewNoise {
    workload: Workload,
    horizon: u64,
    first: RowNormCache,
    /// `None` if all moments use one strategy.
    second: Option<RowNormCache>,
    /// Levels of an epoch alone, and of an epoch plus a small multiple of the previous one, for
    /// squares of epoch sums.
    increments: Option<[RowNormCache; 2]>,
}

impl ViewNoise {
    /// Levels of `workload` over releases of `mechanism`, for `horizon` epochs.
    pub fn new(mechanism: &MatrixMechanism, workload: &Workload, horizon: u64) -> Self {
        let strategies = mechanism.strategies();
        let levels = |of, workload: &Workload| RowNormCache::new(strategies, of, workload, horizon);
        let squared = mechanism.layout() != mechanism.moments().parameters().layout;
        Self {
            workload: workload.clone(),
            horizon,
            first: levels(DecoderMoment::First, workload),
            second: (!strategies.are_one()).then(|| levels(DecoderMoment::Second, workload)),
            increments: squared.then(|| {
                [f64::MIN_POSITIVE, NEIGHBOUR_WEIGHT]
                    .map(|weight| levels(DecoderMoment::First, &fading(weight)))
            }),
        }
    }

    /// The workload.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// The last epoch.
    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    /// Number of epochs whose levels have been computed.
    pub fn computed(&self) -> usize {
        self.first.lock().len()
    }

    /// Levels of first and second moments at an epoch, counted from 0; `None` past the last.
    fn at(&self, epoch: usize) -> Option<(f64, f64)> {
        let first = self.first.at(epoch)?;
        Some((first, self.second.as_ref().and_then(|second| second.at(epoch)).unwrap_or(first)))
    }

    /// Levels of the increment at an epoch, counted from 0, and of the increment plus
    /// [`NEIGHBOUR_WEIGHT`] times the previous one.
    fn of_increments(&self, epoch: usize) -> Option<[f64; 2]> {
        let [alone, both] = self.increments.as_ref()?;
        Some([alone.at(epoch)?, both.at(epoch)?])
    }
}

#[derive(Clone, Copy)]
enum DecoderMoment {
    First,
    Second,
}

/// Row norms of one decoder, computed from the first row on.
struct RowNormCache {
    strategies: Strategies,
    of: DecoderMoment,
    workload: Workload,
    horizon: u64,
    found: Mutex<Vec<f64>>,
}

impl RowNormCache {
    fn new(strategies: &Strategies, of: DecoderMoment, workload: &Workload, horizon: u64) -> Self {
        let (strategies, workload) = (strategies.clone(), workload.clone());
        Self { strategies, of, workload, horizon, found: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<f64>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, epoch: usize) -> Option<f64> {
        let mut found = self.lock();
        while found.len() <= epoch && (found.len() as u64) < self.horizon {
            let known = found.len();
            let wanted = FIRST_STRETCH.max(2 * known as u64).min(self.horizon);
            let strategy = match self.of {
                DecoderMoment::First => self.strategies.first(),
                DecoderMoment::Second => self.strategies.second(),
            };
            found.extend(strategy.decoder_row_norms(&self.workload, wanted).skip(known));
            if found.len() == known {
                // The strategy or the workload ends before the horizon.
                break;
            }
        }
        found.get(epoch).copied()
    }
}
