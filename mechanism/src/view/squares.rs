//! Second moments made of first ones (PP): squares of decoded epoch sums, and how far to trust them.
//!
//! Algorithm 6 of "Continual Release Moment Estimation with Differential Privacy", by whoever reads a release of first
//! moments. With the noise deviation τ of a released value, `Q = (C₁ᵀC₁)⁻¹` and a decoded sum `û_t = u_t + e_t`, the
//! covariance of e_t and e_i is `τ²Q_ti I`, so
//!
//! ```text
//! E[û_t û_tᵀ] = u_t u_tᵀ + τ²Q_tt I
//! ```
//!
//! and `û_t û_tᵀ − τ²Q_tt I` has no bias. τ²Q_tt is taken off step by step, under whatever workload follows; the paper's
//! `(C₁C₁ᵀ)⁻¹` and its sum over A₂ taken twice are slips. Q_tt is the squared norm of row t of C₁⁻¹.
//!
//! **What they are squares of.** u_t is the *sum* of a key's records in an epoch. Its square is their second moment only if
//! there is one record, or none. With m records it has about m² times a squared mean in it.
//!
//! # Noise
//! An entry on the diagonal of `Σ_i A_ti (û_i û_iᵀ − τ²Q_ii I)` has the variance
//!
//! ```text
//! Σ_ij A_ti A_tj (2τ⁴Q_ij² + 4τ²Q_ij u_i u_j)
//! ```
//!
//! averaged over the diagonal; off it, averaged likewise, it is half of that. The first part needs no data. With
//! `A_ti A_tj ≤ (A_ti² + A_tj²)/2` it is at most `Σ_i A_ti² 2τ⁴ Σ_j Q_ij²`, of which Q_ii² and twice Q_(i,i−1)² are
//! taken: exact for C = I, and Q∘Q falls as the inverse fourth power of the lag for a square root of running sums, where lags
//! from 2 on hold 1 % of the variance. Of the second part, which depends on the data, the terms i = j are taken, with the
//! estimate `‖û_i‖²/d − τ²Q_ii` of the squared entries: exact but for the estimate if C = I. Other strategies make
//! neighbouring e_i cancel, so where sums of neighbouring epochs are alike it says too much.

use super::noise::ViewNoise;
use crate::moments::Layout;
use crate::workload::{Decay, Workload, WorkloadError, WorkloadState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whether squares of noisy sums keep the bias that the noise gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SquareBias {
    /// Debiased PP: the variance of the noise is taken off every square. They may be negative.
    #[default]
    Removed,
    /// PP as it is: they are never negative, and too large.
    Kept,
}

/// Weight of the epoch before in the workload that tells covariances of neighbouring epochs: its square can be neglected.
pub(super) const NEIGHBOUR_WEIGHT: f64 = 1e-4;

/// From decoded sums to their squares, for all keys.
pub(super) struct Squares {
    /// Of one key, with second moments.
    layout: Layout,
    levels: Arc<ViewNoise>,
    /// τ².
    variance: f64,
    bias: SquareBias,
    increments: Vec<f64>,
    /// `A∘A` applied to both parts of the variance, the one that all keys share in front.
    noise: Vec<(f64, WorkloadState)>,
}

impl Squares {
    /// Under the workload that `levels` are about; `deviation` is τ in real units.
    pub(super) fn new(layout: Layout, levels: Arc<ViewNoise>, deviation: f64, keys: u32) -> Self {
        let terms = levels.workload().squared_terms().into_iter();
        Self {
            layout,
            variance: deviation * deviation,
            bias: SquareBias::Removed,
            increments: vec![0.0; keys as usize * layout.coordinates()],
            noise: terms.map(|(weight, term)| (weight, term.state(1 + keys as usize))).collect(),
            levels,
        }
    }

    /// τ²Q_tt and τ²Q_(t,t−1) of an epoch, counted from 0; none past the last.
    pub(super) fn of_epoch(&self, epoch: usize) -> Option<(f64, f64)> {
        let norms = self.levels.of_increments(epoch)?;
        let [alone, both] = norms.map(|norm| self.variance * norm * norm);
        // Row t of the fading workload is e_t + w·e_(t−1) + …, of variance Q_tt + 2w·Q_(t,t−1) + O(w²).
        Some((alone, (both - alone) / (2.0 * NEIGHBOUR_WEIGHT)))
    }

    pub(super) fn set_bias(&mut self, bias: SquareBias) {
        self.bias = bias;
    }

    pub(super) fn bias(&self) -> SquareBias {
        self.bias
    }

    /// Counts, sums and squares of the sums of all keys, from the counts and sums that were decoded for an epoch, counted
    /// from 0; and the noise levels of the squares under the workload, key by key.
    pub(super) fn push(
        &mut self,
        epoch: usize,
        decoded: &[f64],
    ) -> Result<(&[f64], Vec<f64>), WorkloadError> {
        let (layout, narrow) = (self.layout, self.layout.without_second());
        let horizon = self.levels.horizon();
        let (variance, covariance) = self.of_epoch(epoch).ok_or(WorkloadError::PastHorizon { horizon })?;
        let removed = if self.bias == SquareBias::Removed { variance } else { 0.0 };
        let mut variances = vec![2.0 * variance * variance + 4.0 * covariance * covariance];
        let keys = decoded.chunks_exact(narrow.coordinates());
        for (key, increments) in keys.zip(self.increments.chunks_exact_mut(layout.coordinates())) {
            let (known, squares) = increments.split_at_mut(narrow.coordinates());
            known.copy_from_slice(key);
            let sums = &key[layout.first()];
            for (square, (i, j)) in squares.iter_mut().zip(layout.second_entries()) {
                *square = sums[i] * sums[j] - if i == j { removed } else { 0.0 };
            }
            let mean_square = sums.iter().map(|sum| sum * sum).sum::<f64>() / layout.dimension as f64;
            variances.push(4.0 * variance * (mean_square - variance));
        }
        let noise = self.noise_levels(epoch, &variances)?;
        Ok((&self.increments, noise))
    }

    fn noise_levels(&mut self, epoch: usize, variances: &[f64]) -> Result<Vec<f64>, WorkloadError> {
        let mut sums = vec![0.0; variances.len()];
        for (weight, state) in &mut self.noise {
            let terms = state.push(variances)?;
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += *weight * term);
        }
        let divisor = self.levels.workload().row_divisor(epoch as u64 + 1);
        let (shared, keys) = sums.split_first().unwrap_or((&0.0, &[]));
        Ok(keys.iter().map(|own| (shared.max(0.0) + own.max(0.0)).sqrt() / divisor).collect())
    }
}

/// The epoch itself, and the epochs before with powers of a small weight: every strategy tells row norms of this workload
/// fast, for any horizon.
pub(super) fn fading(weight: f64) -> Workload {
    Decay::new(weight).map_or(Workload::Prefix, Workload::Exponential)
}
