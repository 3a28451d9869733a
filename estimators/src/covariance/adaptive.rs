//! AdaptiveCov: the better of SSP and SeparateCov, for records clipped to a private norm (Dong,
//! Liang & Yi 2022).
//!
//! Noise is proportional to the square of the largest norm that a record may have. If most records
//! are much shorter than the bounds allow, clipping the few long ones costs less than the extra
//! noise. As in the paper, an eighth of ρ estimates the trace, an eighth selects the clipping norm,
//! and three quarters estimate the covariance.
//!
//! **The norm.** Candidates are √d·2^−j of z. Clipping at r removes Σ(‖x‖² − r²)₊/n from the trace
//! and moves the covariance by at most that in the Frobenius norm. For either estimator, the noise
//! at r has its own bound. The exponential mechanism draws the candidate with the least sum of the
//! two, in one exact draw. (The paper runs the sparse vector technique over the same sums.)
//!
//! **Privacy of the draw.** In integers, norms ‖q‖² lie in [0, R²]. A candidate's score is −Σ(‖q‖²
//! − t)₊ minus a function of public numbers. Let a record of squared norm a replace one of b ≤ a (b
//! = 0 if it was blank). Then (a − t)₊ − (b − t)₊ is in [0, R²] for every t: *all scores move in
//! the same direction*, by at most R². So log-ratios of probabilities lie in an interval of length
//! c·R², not 2c·R², as if the scores had the sensitivity R²/2. ∎

use super::CovarianceError;
use super::budget::{BudgetPurpose, CovarianceBudget};
use super::estimate::PreparedSample;
use super::rivals::{TAIL, chi_tail, separate, whole};
use super::sample::measure;
use hushflow_mechanism::moments::{RECORD_BITS, SecondMoment};
use hushflow_mechanism::noise::selection::Selection;
use nalgebra::DMatrix;
use rand::CryptoRng;

/// Share of the budget for the trace, and for the clipping norm.
pub(super) const SHARE: f64 = 0.125;

/// Number of halvings of the norm. Below the last one a record is no larger than the rounding of
/// its entries.
const HALVINGS: u32 = RECORD_BITS - 2;

pub(super) fn adaptive<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<DMatrix<f64>, CovarianceError> {
    let (dimension, total) = (start.sample.dimension() as f64, budget.left());
    let trace = trace(start, (budget, SHARE * total), rng)?;
    let bounds = ErrorBounds { d: dimension, rows: start.rows.0, rho: (1.0 - 2.0 * SHARE) * total, trace };
    let rho = budget.spend(BudgetPurpose::Selection, SHARE * total)?;
    let norms = start.sample.squared_norms()?;
    let scores: Vec<i128> = (0..=HALVINGS).map(|halvings| score(&norms, halvings, &bounds)).collect();
    let halvings = Selection::new(rho, 1 << (2 * RECORD_BITS - 1))?.select(&scores, rng)? as i32;
    let clipped = start.clipped(dimension.sqrt() * 0.5f64.powi(halvings))?;
    if bounds.separate(halvings) < bounds.whole(halvings) {
        separate(&clipped, budget, rng)
    } else {
        let sensitivity = clipped.sample.matrix_sensitivity();
        Ok(clipped.matrix(&whole(&clipped, sensitivity, budget, 1.0, rng)?))
    }
}

/// Returns an upper bound of the trace, except for the tail, for records z/√d, which have norm at
/// most 1, as in the paper.
fn trace<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    (budget, rho): (&mut CovarianceBudget, f64),
    rng: &mut R,
) -> Result<f64, CovarianceError> {
    let sums = start.sample.moments(SecondMoment::Diagonal)?.to_wide();
    let trace = sums[1 + start.sample.dimension()..].iter().sum();
    let noisy = measure(budget, (BudgetPurpose::Trace, rho), trace, start.sample.trace_sensitivity(), rng)?;
    let tail = noisy.deviation * (2.0 * (8.0 / TAIL).ln()).sqrt();
    Ok(((noisy.value as f64 + tail) * start.unit() / start.sample.dimension() as f64).clamp(1e-16, 1.0))
}

/// Returns the negative integer score of a norm: the loss by clipping plus the bound of the noise.
fn score(norms: &[i128], halvings: u32, bounds: &ErrorBounds) -> i128 {
    let threshold = 1i128 << (2 * (RECORD_BITS - halvings));
    let lost: i128 = norms.iter().map(|norm| (norm - threshold).max(0)).sum();
    let noise = bounds.whole(halvings as i32).min(bounds.separate(halvings as i32));
    let in_integers = noise * bounds.rows * (1u64 << (2 * RECORD_BITS)) as f64;
    -lost.saturating_add(in_integers as i128)
}

/// Bounds of the Frobenius errors for records of norm at most 2^−halvings.
struct ErrorBounds {
    d: f64,
    rows: f64,
    rho: f64,
    trace: f64,
}

impl ErrorBounds {
    fn whole(&self, halvings: i32) -> f64 {
        let log = (2.0 / TAIL).ln();
        let norm =
            self.d * self.d + 2.0 * (self.d * log).sqrt() * (1.0 + (2.0 * (self.d - 1.0)).sqrt()) + 6.0 * log;
        norm.sqrt() / (self.rho.sqrt() * self.rows) * 0.25f64.powi(halvings)
    }

    /// Infinite for a single column: SeparateCov does not apply.
    fn separate(&self, halvings: i32) -> f64 {
        let theta = (self.d.ln() / self.d).powf(0.3).min(0.5);
        let spectral = (1.0 + theta)
            * (2.0 * self.d.sqrt() + 6.0 * self.d.ln().sqrt() / (1.0 + theta).ln().sqrt())
            + (2.0 * (2.0 / TAIL).ln()).sqrt();
        let directions =
            2f64.powf(1.25) * (self.trace / self.rows).sqrt() / self.rho.powf(0.25) * spectral.sqrt() / 6.0;
        let values = 2f64.sqrt() * chi_tail(self.d) / self.rho.sqrt() / self.rows;
        if self.d > 1.0 {
            directions * 0.5f64.powi(halvings) + values * 0.25f64.powi(halvings)
        } else {
            f64::INFINITY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Attack: whichever norm replaces another, no two scores move apart by more than the draw
        /// hides.
        #[test]
        fn scores_of_neighbours_move_together(
            rest in prop::collection::vec(0i128..=1 << 40, 0..9), one in 0i128..=1 << 40, other in 0i128..=1 << 40,
        ) {
            let bounds = ErrorBounds { d: 7.0, rows: 10.0, rho: 0.1, trace: 0.3 };
            let moved = |halvings: u32| {
                let of = |norm: i128| score(&[&rest[..], &[norm]].concat(), halvings, &bounds);
                of(one) - of(other)
            };
            let moves: Vec<i128> = (0..=HALVINGS).map(moved).collect();
            let (least, most) = (moves.iter().min().expect("one"), moves.iter().max().expect("one"));
            prop_assert!(most - least <= 1 << 40, "{moves:?}");
            prop_assert!(*least >= 0 || *most <= 0, "all move the same way: {moves:?}");
        }
    }
}
