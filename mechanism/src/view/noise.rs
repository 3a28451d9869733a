//! Noise levels of the epochs of a view, computed on demand.
//!
//! A level is the norm of a row of a decoder. A horizon of ten million epochs has as many levels,
//! but a view of the first thousand epochs needs only the first thousand. So levels are computed in
//! stretches, each twice as long as all before it, and shared by all views of one workload. Row t
//! does not depend on how many rows are computed with it, because strategies are causal.

use super::squares::{NEIGHBOUR_WEIGHT, fading};
use crate::mechanism::{MatrixMechanism, Strategies};
use crate::workload::Workload;
use std::sync::{Mutex, PoisonError};

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
/// #     layout: Layout { dimension: 1, second: SecondMoment::Full },
/// #     neighbours: Neighbours::ReplaceOneInPlace,
/// #     clip_norm: 1.0,
/// #     noise_multiplier: 1.0,
/// #     second_moment_weight: None,
/// #     count_weight: None,
/// # };
/// let horizon = 10_000_000;
/// let strategy = build("identity", &Workload::Prefix, Some(horizon))?;
/// let mechanism = MatrixMechanism::new(parameters, strategy)?;
/// let noise = std::sync::Arc::new(ViewNoise::new(&mechanism, &Workload::Prefix, horizon));
/// let views = [(); 100].map(|()| View::sharing(&mechanism, &noise, 1));
/// assert_eq!(noise.found(), 0, "nothing has been asked for");
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
    pub fn found(&self) -> usize {
        self.first.lock().len()
    }

    /// Levels of first and second moments at an epoch, counted from 0; `None` past the last.
    pub(super) fn at(&self, epoch: usize) -> Option<(f64, f64)> {
        let first = self.first.at(epoch)?;
        Some((first, self.second.as_ref().and_then(|second| second.at(epoch)).unwrap_or(first)))
    }

    /// Levels of the increment at an epoch, counted from 0, and of the increment plus
    /// [`NEIGHBOUR_WEIGHT`] times the previous one.
    pub(super) fn of_increments(&self, epoch: usize) -> Option<[f64; 2]> {
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
