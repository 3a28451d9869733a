//! Other private covariances, for comparison.
//!
//! - **SSP**: exact noise on the upper triangle. The paper uses the sensitivity of the whole
//!   matrix, √2·d. The triangle's is d ([`sample`](super::sample)), so half the variance suffices:
//!   `ssp-tight`. Negative eigenvalues are then raised to 0.
//! - **Diagonal**: the whole budget on the d diagonal entries; all other entries are 0.
//! - **SeparateCov** (Dong, Liang & Yi 2022): half of ρ for the eigenvalues, half for a noisy
//!   matrix that gives the eigenvectors.
//! - **AdaptiveCov** (the same paper): the better of SSP and SeparateCov, at a private clipping
//!   norm (below).
//! - **CoinPress** (Biswas et al. 2020): whitens records by the last estimate and clips them to the
//!   norm of a Gaussian, so that the next estimate needs less noise. Three steps, of ρ/8, ρ/8 and
//!   3ρ/4.
//!
//! # AdaptiveCov
//! This is the better of SSP and SeparateCov, for records clipped to a private norm (Dong, Liang &
//! Yi 2022).
//!
//! Noise is proportional to the square of the largest norm that a record may have. If most records
//! are much shorter than the bounds allow, clipping the few long ones costs less than the extra
//! noise. As in the paper, an eighth of ρ estimates the trace, an eighth selects the clipping norm,
//! and three quarters estimate the covariance.
//!
//! **The norm.** Candidates for the norm of z are √d·2^−j. Clipping at r removes Σ(‖x‖² − r²)₊/n
//! from the trace and moves the covariance by at most that in the Frobenius norm. For either
//! estimator, the noise at r has its own bound. The exponential mechanism draws the candidate with
//! the least sum of the two, in one exact draw. (The paper runs the sparse vector technique over
//! the same sums.)
//!
//! **Privacy of the draw.** In integers, squared norms ‖q‖² lie in [0, R²]. A candidate's score is
//! −Σ(‖q‖² − t)₊ minus a function of public numbers. Let a record of squared norm a replace one of
//! b ≤ a (b = 0 if it was blank). Then (a − t)₊ − (b − t)₊ is in [0, R²] for every t: *all scores
//! move in the same direction*, by at most R². So log-ratios of probabilities lie in an interval of
//! length c·R², not 2c·R², as if the scores had the sensitivity R²/2. ∎

use super::estimate::{CovarianceEstimate, EntryMeasurement, PreparedSample};
use super::sample::{CovarianceSample, Noisy, add_noise, matrix_sensitivity, measure, moments};
use super::shrunk;
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, CovarianceMethod, nearest_semidefinite};
use hushflow_mechanism::moments::{Clipper, Layout, RECORD_BITS, SecondMoment};
use hushflow_mechanism::noise::selection::ExponentialMechanism;
use nalgebra::{DMatrix, DVector, SymmetricEigen};
use rand::CryptoRng;

/// Share of the budget for a private count.
const COUNT_SHARE: f64 = 0.05;

/// Failure probability of the tail bounds of AdaptiveCov and CoinPress.
pub(super) const TAIL: f64 = 0.1;

/// Shares of the steps of CoinPress.
const COIN_SHARES: [f64; 3] = [0.125, 0.125, 0.75];

pub(super) fn estimate<R: CryptoRng + ?Sized>(
    method: CovarianceMethod,
    sample: &CovarianceSample<'_>,
    centre: Option<f64>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    if matches!(method, CovarianceMethod::Separate | CovarianceMethod::Adaptive) {
        // Check before spending. Releases may decide whether eigenvalues are needed, and a later
        // refusal would reveal that decision.
        public_count(sample)?;
    }
    let start = PreparedSample::new(sample, COUNT_SHARE * budget.left(), centre, &mut budget, rng)?;
    if method == CovarianceMethod::Shrunk {
        return shrunk::estimate(start, budget, rng);
    }
    let MatrixEstimate { covariance, deviations, clip_norm } = match method {
        CovarianceMethod::Diagonal | CovarianceMethod::Pace | CovarianceMethod::Shrunk => {
            return diagonal(start, budget, rng);
        }
        CovarianceMethod::Ssp => triangle(&start, start.sample.matrix_sensitivity(), &mut budget, rng)?,
        CovarianceMethod::SspTight => {
            triangle(&start, start.sample.triangle_sensitivity(), &mut budget, rng)?
        }
        CovarianceMethod::Separate => separate(&start, &mut budget, rng)?,
        CovarianceMethod::Adaptive => adaptive(&start, &mut budget, rng)?,
        CovarianceMethod::CoinPress => coinpress(&start, &mut budget, rng)?,
    };
    let measurements =
        deviations.map_or_else(Vec::new, |deviations| start.measured(&covariance, &deviations));
    let covariance = nearest_semidefinite(&covariance).ok_or(CovarianceError::Numerical)?;
    Ok(CovarianceEstimate { measurements, clip_norm, ..start.estimate(&covariance, budget)? })
}

/// An estimate of z² per record, before its last projection.
pub(super) struct MatrixEstimate {
    pub(super) covariance: DMatrix<f64>,
    /// Standard deviations of the noise of its entries, where they are known.
    deviations: Option<DMatrix<f64>>,
    /// Norm to which the records of these entries were clipped, where it is known.
    clip_norm: Option<f64>,
}

fn triangle<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    sensitivity: f64,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<MatrixEstimate, CovarianceError> {
    let noisy = whole(start, sensitivity, budget, 1.0, rng)?;
    Ok(MatrixEstimate {
        covariance: start.matrix(&noisy),
        deviations: Some(start.deviations(&noisy)),
        clip_norm: Some(start.sample.clip_norm()),
    })
}

pub(super) fn whole<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    sensitivity: f64,
    budget: &mut CovarianceBudget,
    share: f64,
    rng: &mut R,
) -> Result<Vec<Noisy>, CovarianceError> {
    let sums = start.sample.moments(SecondMoment::Full)?.to_wide();
    let second = &sums[1 + start.sample.dimension()..];
    let part = (BudgetPurpose::Matrix, share * budget.left());
    add_noise(budget, part, second, sensitivity, rng)
}

/// Measures the diagonal with the rest of the budget.
pub(super) fn noisy_diagonal<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<Vec<Noisy>, CovarianceError> {
    let sums = start.sample.moments(SecondMoment::Diagonal)?.to_wide();
    let second = &sums[1 + start.sample.dimension()..];
    let sensitivity = start.sample.entry_sensitivity(true) * (second.len() as f64).sqrt();
    add_noise(budget, (BudgetPurpose::Diagonal, budget.left()), second, sensitivity, rng)
}

pub(super) fn diagonal<R: CryptoRng + ?Sized>(
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let noisy = noisy_diagonal(&start, &mut budget, rng)?;
    let values =
        DVector::from_iterator(noisy.len(), noisy.iter().map(|noisy| noisy.value as f64 * start.unit()));
    let measurements = noisy.iter().zip(values.iter()).enumerate().map(|(position, (noisy, value))| {
        let units = start.own_units(position, position);
        let deviation = units * noisy.deviation * start.unit();
        EntryMeasurement { row: position, column: position, value: units * value, deviation, times: 1 }
    });
    let measurements = measurements.collect();
    let covariance = DMatrix::from_diagonal(&values.map(|value| value.max(0.0)));
    Ok(CovarianceEstimate { measurements, ..start.estimate(&covariance, budget)? })
}

/// Bound of the error that the eigenvalue search and rounding to integers add to the distance
/// between the eigenvalues of two samples: backward errors of at most 16dε‖A‖_F on both sides,
/// ‖A‖_F ≤ nR², and half a unit for each value.
pub(super) fn eigenvalue_slack(sample: &CovarianceSample<'_>) -> f64 {
    let (d, rows) = (sample.dimension() as f64, sample.rows() as f64);
    let largest = rows * (1u64 << (2 * RECORD_BITS)) as f64;
    d.sqrt() + 32.0 * d * f64::EPSILON * largest
}

fn public_count(sample: &CovarianceSample<'_>) -> Result<(), CovarianceError> {
    if sample.neighbours().counts_are_public() { Ok(()) } else { Err(CovarianceError::PublicCount) }
}

/// Returns the eigenvalues of the exact second moments on their grid, largest first. Requires a
/// public count, which bounds the error of the search.
pub(super) fn eigenvalues(sample: &CovarianceSample<'_>) -> Result<Vec<i128>, CovarianceError> {
    public_count(sample)?;
    let layout = Layout::new(sample.dimension(), SecondMoment::Full);
    let sums = sample.moments(layout.second)?.to_wide();
    let mut matrix = DMatrix::zeros(sample.dimension(), sample.dimension());
    for ((i, j), &sum) in layout.second_entries().zip(&sums[layout.second()]) {
        (matrix[(i, j)], matrix[(j, i)]) = (sum as f64, sum as f64);
    }
    // Entries are always in range, so the search ends for all records.
    let eigen = SymmetricEigen::new(matrix);
    let mut values: Vec<i128> = eigen.eigenvalues.iter().map(|value| value.round() as i128).collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    Ok(values)
}

pub(super) fn separate<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<MatrixEstimate, CovarianceError> {
    let exact = eigenvalues(&start.sample)?;
    let noisy = whole(start, start.sample.matrix_sensitivity(), budget, 0.5, rng)?;
    let sensitivity = start.sample.matrix_sensitivity() + eigenvalue_slack(&start.sample);
    let part = (BudgetPurpose::Eigenvalues, budget.left());
    let values = add_noise(budget, part, &exact, sensitivity, rng)?;
    let eigen = SymmetricEigen::try_new(start.matrix(&noisy), f64::EPSILON, 100 * exact.len() + 100)
        .ok_or(CovarianceError::Numerical)?;
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
    let mut covariance = DMatrix::zeros(exact.len(), exact.len());
    for (position, value) in order.into_iter().zip(values) {
        let direction = eigen.eigenvectors.column(position);
        covariance += direction * direction.transpose() * (value.value as f64 * start.unit()).max(0.0);
    }
    Ok(MatrixEstimate { covariance, deviations: None, clip_norm: None })
}

/// Upper bound of the norm of d standard Gaussians, except with probability [`TAIL`].
pub(super) fn chi_tail(d: f64) -> f64 {
    let log = (1.0 / TAIL).ln();
    (d + 2.0 * (d * log).sqrt() + 2.0 * log).sqrt()
}

fn coinpress<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<MatrixEstimate, CovarianceError> {
    let sample = &start.sample;
    let (size, total) = (sample.dimension(), budget.left());
    let d = size as f64;
    let radius = chi_tail(d);
    let (ratio, neighbours) = ((d / start.rows.0).sqrt(), sample.neighbours());
    let spread = 0.5 * (2.0 * ratio + ratio * ratio);
    let clipper = Clipper::unscaled(size, radius)?.counting_unusable();
    // No covariance of z ∈ [−1, 1]^d exceeds d.
    let mut whitening = DMatrix::identity(size, size) / d.sqrt();
    let mut estimate =
        MatrixEstimate { covariance: DMatrix::identity(size, size), deviations: None, clip_norm: None };
    for (step, share) in COIN_SHARES.into_iter().enumerate() {
        let whitened = whiten(sample, &whitening);
        let sums = moments(&clipper, &whitened, SecondMoment::Full)?.to_wide();
        let second = &sums[1 + size..];
        let rho = if step + 1 == COIN_SHARES.len() { budget.left() } else { share * total };
        let noisy =
            add_noise(budget, (BudgetPurpose::Matrix, rho), second, matrix_sensitivity(neighbours), rng)?;
        let grid = radius / (1u64 << RECORD_BITS) as f64 / sample.grid();
        let measured = start.matrix(&noisy) * grid * grid;
        let found = nearest_semidefinite(&measured).ok_or(CovarianceError::Numerical)?;
        let back = whitening.clone().try_inverse().ok_or(CovarianceError::Numerical)?;
        let deviations = start.deviations(&noisy) * grid * grid;
        estimate = MatrixEstimate {
            covariance: &back * &found * back.transpose(),
            deviations: Some(transformed(&back, &deviations)),
            clip_norm: None,
        };
        whitening = inverse_root(found + DMatrix::identity(size, size) * spread)? * whitening;
    }
    let covariance = (&estimate.covariance + estimate.covariance.transpose()) / 2.0;
    Ok(MatrixEstimate { covariance, ..estimate })
}

/// Standard deviations of the entries of B·N·Bᵀ, for a symmetric N whose upper triangle has
/// independent entries with these deviations. B is released before N, so it is not part of the
/// noise: N_kl moves entry (i, j) by b_ik b_jl + b_il b_jk, and N_kk by b_ik b_jk.
fn transformed(back: &DMatrix<f64>, deviations: &DMatrix<f64>) -> DMatrix<f64> {
    let size = back.nrows();
    DMatrix::from_fn(size, size, |i, j| {
        let weight = |k: usize, l: usize| match k == l {
            true => back[(i, k)] * back[(j, k)],
            false => back[(i, k)] * back[(j, l)] + back[(i, l)] * back[(j, k)],
        };
        let pairs = (0..size).flat_map(|k| (k..size).map(move |l| (k, l)));
        pairs.map(|(k, l)| (weight(k, l) * deviations[(k, l)]).powi(2)).sum::<f64>().sqrt()
    })
}

/// A·z of every record; zeros for an unusable one.
fn whiten(sample: &CovarianceSample<'_>, whitening: &DMatrix<f64>) -> Vec<f64> {
    let mut whitened = Vec::with_capacity(sample.records().len());
    for record in sample.records().chunks_exact(sample.dimension()) {
        let columns = record.iter().zip(sample.centres()).zip(sample.half_widths());
        let position = columns.map(|((x, centre), width)| ((x - centre) / width).clamp(-1.0, 1.0));
        let position = DVector::from_iterator(record.len(), position);
        let usable = record.iter().all(|x| x.is_finite());
        whitened.extend((whitening * position).iter().map(|value| if usable { *value } else { 0.0 }));
    }
    whitened
}

/// U^(−1/2) of a positive definite matrix.
fn inverse_root(matrix: DMatrix<f64>) -> Result<DMatrix<f64>, CovarianceError> {
    let iterations = 100 * matrix.nrows() + 100;
    let eigen =
        SymmetricEigen::try_new(matrix, f64::EPSILON, iterations).ok_or(CovarianceError::Numerical)?;
    let roots = DMatrix::from_diagonal(&eigen.eigenvalues.map(|value| value.max(1e-300).sqrt().recip()));
    Ok(&eigen.eigenvectors * roots * eigen.eigenvectors.transpose())
}

/// Share of the budget for the trace, and equally for the clipping norm.
pub(super) const SHARE: f64 = 0.125;

/// Number of halvings of the norm. Below the last one a record is no larger than the rounding of
/// its entries.
const HALVINGS: u32 = RECORD_BITS - 2;

pub(super) fn adaptive<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<MatrixEstimate, CovarianceError> {
    let (dimension, total) = (start.sample.dimension() as f64, budget.left());
    let trace = trace(start, (budget, SHARE * total), rng)?;
    let bounds = ErrorBounds { d: dimension, rows: start.rows.0, rho: (1.0 - 2.0 * SHARE) * total, trace };
    let rho = budget.spend(BudgetPurpose::Selection, SHARE * total)?;
    let norms = start.sample.squared_norms()?;
    let scores: Vec<i128> = (0..=HALVINGS).map(|halvings| score(&norms, halvings, &bounds)).collect();
    let halvings = ExponentialMechanism::new(rho, 1 << (2 * RECORD_BITS - 1))?.select(&scores, rng)? as i32;
    let clipped = start.clipped(dimension.sqrt() * 0.5f64.powi(halvings))?;
    if bounds.separate(halvings) < bounds.whole(halvings) {
        separate(&clipped, budget, rng)
    } else {
        triangle(&clipped, clipped.sample.matrix_sensitivity(), budget, rng)
    }
}

/// Returns an upper bound of the trace, except with probability [`TAIL`], for records z/√d, which
/// have norm at most 1, as in the paper.
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
        /// Attack: if one norm replaces another, no two scores move apart by more than the draw
        /// allows for.
        #[test]
        fn scores_of_neighbours_move_in_one_direction(
            rest in prop::collection::vec(0i128..=1 << 40, 0..9), one in 0i128..=1 << 40, other in 0i128..=1 << 40,
        ) {
            let bounds = ErrorBounds { d: 7.0, rows: 10.0, rho: 0.1, trace: 0.3 };
            let moved = |halvings: u32| {
                let score_with = |norm: i128| score(&[&rest[..], &[norm]].concat(), halvings, &bounds);
                score_with(one) - score_with(other)
            };
            let moves: Vec<i128> = (0..=HALVINGS).map(moved).collect();
            let (least, most) = (moves.iter().min().expect("one"), moves.iter().max().expect("one"));
            prop_assert!(most - least <= 1 << 40, "{moves:?}");
            prop_assert!(*least >= 0 || *most <= 0, "all move the same way: {moves:?}");
        }
    }
}
