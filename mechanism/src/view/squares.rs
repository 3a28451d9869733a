//! Second moments from first moments (PP): squares of decoded epoch sums, and their noise.
//!
//! Algorithm 6 of "Continual Release Moment Estimation with Differential Privacy", applied by a
//! reader of first moments. Let τ be the noise deviation of a released value, `Q = (C₁ᵀC₁)⁻¹`, and
//! `û_t = u_t + e_t` a decoded sum. The covariance of e_t and e_i is `τ²Q_ti I`, so
//!
//! ```text
//! E[û_t û_tᵀ] = u_t u_tᵀ + τ²Q_tt I
//! ```
//!
//! and `û_t û_tᵀ − τ²Q_tt I` is unbiased. τ²Q_tt is subtracted at each step, before any workload.
//! The paper writes `(C₁C₁ᵀ)⁻¹` and sums over A₂ twice; both are slips. Q_tt is the squared norm of
//! row t of C₁⁻¹.
//!
//! **What is squared.** u_t is the *sum* of a key's records in an epoch. Its square is their second
//! moment only if there is at most one record. With m records it contains about m² times the
//! squared mean.
//!
//! # Noise
//! A diagonal entry of `Σ_i A_ti (û_i û_iᵀ − τ²Q_ii I)` has the variance
//!
//! ```text
//! Σ_ij A_ti A_tj (2τ⁴Q_ij² + 4τ²Q_ij u_i u_j)
//! ```
//!
//! averaged over the diagonal. The average over off-diagonal entries is half of that.
//!
//! - The first term needs no data. With `A_ti A_tj ≤ (A_ti² + A_tj²)/2` it is at most
//!   `Σ_i A_ti² 2τ⁴ Σ_j Q_ij²`. The stated noise level uses only Q_ii² and twice Q_(i,i−1)² of the
//!   inner sum. This is exact for C = I. For a square root of running sums, Q∘Q falls as the
//!   inverse fourth power of the lag, and lags from 2 on hold 1 % of the variance.
//! - The second term depends on the data. The stated noise level uses the terms i = j, with the
//!   estimate `‖û_i‖²/d − τ²Q_ii` of the squared entries. For C = I this is exact except for the
//!   estimate. With other strategies neighbouring e_i partly cancel, so the result is too large if
//!   sums of neighbouring epochs are alike.

use super::ViewNoise;
use crate::moments::Layout;
use crate::workload::{Decay, Workload, WorkloadError, WorkloadState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whether squares of noisy sums keep the bias from the noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SquareBias {
    /// Debiased PP: the variance of the noise is subtracted from every square. Results may be
    /// negative.
    #[default]
    Removed,
    /// Plain PP: results are never negative, but too large.
    Kept,
}

/// Weight of the previous epoch in the workload that yields covariances of neighbouring epochs. Its
/// square is negligible.
pub(super) const NEIGHBOUR_WEIGHT: f64 = 1e-4;

pub(super) struct SquaredIncrements {
    /// Layout of one key, with second moments.
    layout: Layout,
    levels: Arc<ViewNoise>,
    /// τ².
    variance: f64,
    bias: SquareBias,
    increments: Vec<f64>,
    /// `A∘A` applied to both parts of the variance; the part that all keys share comes first.
    noise: Vec<(f64, WorkloadState)>,
}

impl SquaredIncrements {
    /// Squares under the workload of `levels`; `deviation` is τ in real units.
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

    /// τ²Q_tt and τ²Q_(t,t−1) of an epoch, counted from 0; `None` past the last.
    pub(super) fn of_epoch(&self, epoch: usize) -> Option<(f64, f64)> {
        let norms = self.levels.of_increments(epoch)?;
        let [alone, both] = norms.map(|norm| self.variance * norm * norm);
        // Row t of the fading workload is e_t + w·e_(t−1) + …, with variance Q_tt + 2w·Q_(t,t−1) +
        // O(w²).
        Some((alone, (both - alone) / (2.0 * NEIGHBOUR_WEIGHT)))
    }

    pub(super) fn set_bias(&mut self, bias: SquareBias) {
        self.bias = bias;
    }

    pub(super) fn bias(&self) -> SquareBias {
        self.bias
    }

    /// Adds the decoded counts and sums of an epoch, counted from 0. Returns counts, sums and
    /// squares of sums of all keys, and the noise levels of the squares under the workload, key by
    /// key.
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
            let sums = &key[layout.first()];
            increments[..1 + layout.dimension].copy_from_slice(&key[..1 + layout.dimension]);
            if let (Some(to), Some(from)) = (layout.sent(), narrow.sent()) {
                increments[to] = key[from];
            }
            increments[layout.bins()].copy_from_slice(&key[narrow.bins()]);
            for (square, (i, j)) in increments[layout.second()].iter_mut().zip(layout.second_entries()) {
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

/// An epoch plus earlier epochs weighted by powers of `weight`. Every strategy computes the row
/// norms of this workload fast, for any horizon.
pub(super) fn fading(weight: f64) -> Workload {
    Decay::new(weight).map_or(Workload::Prefix, Workload::Exponential)
}
