//! The statistic of a trial: the linear one that separates the two worlds best.
//!
//! The adversary sees y = v + Z, where v is one of two known vectors. If Z has independent
//! coordinates of deviation σ_q, as claimed, the most powerful test projects y on the difference
//! d = v⁰ − v¹ in units of the noise (Neyman & Pearson), and
//!
//! ```text
//! T = Σ_q (y − v¹)_q d_q/σ_q² / ‖d/σ‖      N(‖d/σ‖, 1) in the one world, N(0, 1) in the other
//! ```
//!
//! A broken release need not have such noise. If noise is drawn again after a restart, it is the
//! same in two epochs, and their difference has none. So the covariance of the noise is learned
//! first, from separate trials, and the direction is Σ̂⁻¹d (Fisher's linear discriminant). The
//! bound from the other trials is valid for any learned direction, because the statistic is fixed
//! before they are drawn. For honest noise learning costs a share of about `FEATURES/trials` of μ.
//!
//! Releases of more than [`FEATURES`] coordinates are cut into that many runs of coordinates, and
//! each is projected on its part of d.

use crate::mechanism::CoordinateNoise;
use nalgebra::{Cholesky, DMatrix, DVector};

/// Number of features of a trial.
pub(super) const FEATURES: usize = 32;

/// Keeps a singular covariance invertible, as a share of its trace.
const RIDGE: f64 = 1e-9;

/// A linear function of the published values of a trial, epochs end to end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statistic {
    origin: Vec<i128>,
    weights: Vec<f64>,
    /// Whether a coordinate has noise.
    is_noisy: Vec<bool>,
}

impl Statistic {
    pub(super) fn of(&self, published: &[i128]) -> f64 {
        self.terms(published).sum()
    }

    fn terms(&self, published: &[i128]) -> impl Iterator<Item = f64> {
        let terms = published.iter().zip(&self.origin).zip(&self.weights);
        terms.map(|((y, origin), weight)| y.wrapping_sub(*origin) as f64 * weight)
    }

    /// Returns the values that have noise.
    pub(super) fn noisy(&self, published: &[i128]) -> impl Iterator<Item = i128> {
        published.iter().zip(&self.is_noisy).filter(|(_, noisy)| **noisy).map(|(value, _)| *value)
    }
}

/// The properties of a canary that are known before any noise is drawn.
pub(super) struct CanaryWorlds {
    /// v¹.
    pub(super) origin: Vec<i128>,
    /// v⁰ − v¹.
    pub(super) difference: Vec<i128>,
    /// Claimed reciprocal deviations in grid units; 0 where a coordinate is public.
    precisions: Vec<f64>,
}

impl CanaryWorlds {
    /// Takes the noise of one epoch of one trial, which repeats.
    pub(super) fn new(worlds: [Vec<i128>; 2], noise: &[CoordinateNoise]) -> Self {
        let [one, origin] = worlds;
        let difference = one.iter().zip(&origin).map(|(a, b)| a.wrapping_sub(*b)).collect();
        let precision = |noise: &CoordinateNoise| noise.scale.map_or(0.0, |scale| scale.sigma().recip());
        let precisions = noise.iter().map(precision).cycle().take(origin.len()).collect();
        Self { origin, difference, precisions }
    }

    /// Returns d/σ.
    fn in_noise_units(&self) -> Vec<f64> {
        self.difference.iter().zip(&self.precisions).map(|(&d, precision)| d as f64 * precision).collect()
    }

    fn statistic(&self, weights_in_noise_units: &[f64]) -> Statistic {
        let weights = weights_in_noise_units.iter().zip(&self.precisions).map(|(w, precision)| w * precision);
        let is_noisy = self.precisions.iter().map(|&precision| precision > 0.0).collect();
        Statistic { origin: self.origin.clone(), weights: weights.collect(), is_noisy }
    }

    /// Returns the features whose covariance is learned.
    pub(super) fn features(&self) -> Features {
        let direction = self.in_noise_units();
        let length = direction.len().div_ceil(FEATURES).max(1);
        let weights: Vec<f64> = direction.chunks(length).flat_map(|run| normalised(run.to_vec())).collect();
        Features { statistic: self.statistic(&weights), length }
    }

    /// Returns v⁰.
    pub(super) fn moved(&self) -> Vec<i128> {
        let values = self.origin.iter().zip(&self.difference);
        values.map(|(origin, difference)| origin.wrapping_add(*difference)).collect()
    }
}

/// Statistics of runs of `length` coordinates each.
pub(super) struct Features {
    statistic: Statistic,
    length: usize,
}

impl Features {
    pub(super) fn number(&self) -> usize {
        self.statistic.weights.len().div_ceil(self.length)
    }

    pub(super) fn of(&self, published: &[i128]) -> DVector<f64> {
        let mut values = DVector::zeros(self.number());
        for (place, term) in self.statistic.terms(published).enumerate() {
            values[place / self.length] += term;
        }
        values
    }

    /// Returns a linear combination of them.
    pub(super) fn combined(&self, combination: &DVector<f64>) -> Statistic {
        let weights = self.statistic.weights.iter().enumerate();
        let weights = weights.map(|(place, weight)| weight * combination[place / self.length]);
        Statistic { weights: weights.collect(), ..self.statistic.clone() }
    }
}

/// Returns a vector of norm 1 in the same direction, or the first axis for a zero vector.
fn normalised(mut vector: Vec<f64>) -> Vec<f64> {
    let norm = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|value| *value /= norm);
    } else if let Some(first) = vector.first_mut() {
        *first = 1.0;
    }
    vector
}

/// Covariance of the features' noise, where each world is centred on its own mean.
pub(super) struct Covariance {
    counts: [f64; 2],
    sums: [DVector<f64>; 2],
    products: DMatrix<f64>,
}

impl Covariance {
    pub(super) fn new(features: usize) -> Self {
        let zero = || DVector::zeros(features);
        Self { counts: [0.0; 2], sums: [zero(), zero()], products: DMatrix::zeros(features, features) }
    }

    pub(super) fn add(&mut self, world: usize, features: &DVector<f64>) {
        self.counts[world] += 1.0;
        self.sums[world] += features;
        self.products.ger(1.0, features, features, 1.0);
    }

    /// Returns Σ̂⁻¹d, or d if the inverse does not exist.
    pub(super) fn whitened(&self, difference: DVector<f64>) -> DVector<f64> {
        let mut covariance = self.products.clone();
        for (count, sum) in self.counts.iter().zip(&self.sums) {
            covariance.ger(-1.0 / count.max(1.0), sum, sum, 1.0);
        }
        let ridge = RIDGE * covariance.trace().max(f64::MIN_POSITIVE);
        covariance += DMatrix::identity(difference.len(), difference.len()) * ridge;
        Cholesky::new(covariance).map_or(difference.clone(), |factors| factors.solve(&difference))
    }
}
