//! Other private covariances, for comparison.
//!
//! - **SSP**: exact noise on the upper triangle. The paper uses the sensitivity of the whole
//!   matrix, √2·d. The triangle's is d ([`sample`](super::sample)), so half the variance suffices:
//!   `ssp-tight`. Negative eigenvalues are then raised to 0.
//! - **Diagonal**: the whole budget on d entries, zeros elsewhere.
//! - **SeparateCov** (Dong, Liang & Yi 2022): half of ρ for the eigenvalues, half for a noisy
//!   matrix that gives the eigenvectors.
//! - **AdaptiveCov** (same): the better of SSP and SeparateCov, at a private clipping norm
//!   (`covariance/adaptive.rs`).
//! - **CoinPress** (Biswas et al. 2020): whitens records by the last estimate and clips them to the
//!   norm of a Gaussian, so that the next estimate needs less noise. Three steps, of ρ/8, ρ/8 and
//!   3ρ/4.

use super::adaptive::adaptive;
use super::budget::{BudgetPurpose, CovarianceBudget};
use super::estimate::{CovarianceEstimate, EntryMeasurement, PreparedSample};
use super::sample::{CovarianceSample, Noisy, add_noise, matrix_sensitivity, moments};
use super::{CovarianceError, CovarianceMethod, nearest_semidefinite};
use hushflow_mechanism::moments::{Clipper, Layout, RECORD_BITS, SecondMoment};
use nalgebra::{DMatrix, DVector, SymmetricEigen};
use rand::CryptoRng;

/// Share of a private count.
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
        // Check before spending: whether eigenvalues are needed may follow from releases, and a
        // later refusal would reveal it.
        public_count(sample)?;
    }
    let start = PreparedSample::new(sample, COUNT_SHARE * budget.left(), centre, &mut budget, rng)?;
    let covariance = match method {
        CovarianceMethod::Diagonal | CovarianceMethod::Pace => return diagonal(start, budget, rng),
        CovarianceMethod::Ssp | CovarianceMethod::SspTight => return triangle(method, start, budget, rng),
        CovarianceMethod::Separate => separate(&start, &mut budget, rng)?,
        CovarianceMethod::Adaptive => adaptive(&start, &mut budget, rng)?,
        CovarianceMethod::CoinPress => coinpress(&start, &mut budget, rng)?,
    };
    let covariance = nearest_semidefinite(&covariance).ok_or(CovarianceError::Numerical)?;
    start.estimate(&covariance, budget)
}

fn triangle<R: CryptoRng + ?Sized>(
    method: CovarianceMethod,
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let sensitivity = match method {
        CovarianceMethod::SspTight => start.sample.triangle_sensitivity(),
        _ => start.sample.matrix_sensitivity(),
    };
    let noisy = whole(&start, sensitivity, &mut budget, 1.0, rng)?;
    let layout = Layout { dimension: start.sample.dimension(), second: SecondMoment::Full };
    let measurements = layout.second_entries().zip(&noisy).map(|((column, row), noisy)| {
        let units = start.own_units(row, column) * start.unit();
        let (value, deviation) = (noisy.value as f64 * units, noisy.deviation * units);
        EntryMeasurement { row, column, value, deviation, times: 1 }
    });
    let measurements = measurements.collect();
    let covariance = nearest_semidefinite(&start.matrix(&noisy)).ok_or(CovarianceError::Numerical)?;
    Ok(CovarianceEstimate { measurements, ..start.estimate(&covariance, budget)? })
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

fn diagonal<R: CryptoRng + ?Sized>(
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let sums = start.sample.moments(SecondMoment::Diagonal)?.to_wide();
    let second = &sums[1 + start.sample.dimension()..];
    let sensitivity = start.sample.entry_sensitivity(true) * (second.len() as f64).sqrt();
    let part = (BudgetPurpose::Diagonal, budget.left());
    let noisy = add_noise(&mut budget, part, second, sensitivity, rng)?;
    let values =
        DVector::from_iterator(noisy.len(), noisy.iter().map(|noisy| noisy.value as f64 * start.unit()));
    let measurements = noisy.iter().zip(values.iter()).enumerate().map(|(place, (noisy, value))| {
        let units = start.own_units(place, place);
        let deviation = units * noisy.deviation * start.unit();
        EntryMeasurement { row: place, column: place, value: units * value, deviation, times: 1 }
    });
    let measurements = measurements.collect();
    let covariance = DMatrix::from_diagonal(&values.map(|value| value.max(0.0)));
    Ok(CovarianceEstimate { measurements, ..start.estimate(&covariance, budget)? })
}

/// Bound of what the eigenvalue search and rounding to integers add to the distance of two samples'
/// eigenvalues: backward errors of at most 16dε‖A‖_F on both sides, ‖A‖_F ≤ nR², and half a unit
/// for each value.
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
    let layout = Layout { dimension: sample.dimension(), second: SecondMoment::Full };
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
) -> Result<DMatrix<f64>, CovarianceError> {
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
    for (place, value) in order.into_iter().zip(values) {
        let direction = eigen.eigenvectors.column(place);
        covariance += direction * direction.transpose() * (value.value as f64 * start.unit()).max(0.0);
    }
    Ok(covariance)
}

/// Upper bound of the norm of d standard Gaussians, except for the tail.
pub(super) fn chi_tail(d: f64) -> f64 {
    let log = (1.0 / TAIL).ln();
    (d + 2.0 * (d * log).sqrt() + 2.0 * log).sqrt()
}

fn coinpress<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<DMatrix<f64>, CovarianceError> {
    let sample = &start.sample;
    let (size, total) = (sample.dimension(), budget.left());
    let d = size as f64;
    let radius = chi_tail(d);
    let (ratio, neighbours) = ((d / start.rows.0).sqrt(), sample.neighbours());
    let spread = 0.5 * (2.0 * ratio + ratio * ratio);
    let clipper = Clipper::unscaled(size, radius)?.counting_unusable();
    // No covariance of z ∈ [−1, 1]^d exceeds d.
    let mut whitening = DMatrix::identity(size, size) / d.sqrt();
    let mut estimate = DMatrix::identity(size, size);
    for (step, share) in COIN_SHARES.into_iter().enumerate() {
        let whitened = whiten(sample, &whitening);
        let sums = moments(&clipper, &whitened, SecondMoment::Full)?.to_wide();
        let second = &sums[1 + size..];
        let rho = if step + 1 == COIN_SHARES.len() { budget.left() } else { share * total };
        let noisy =
            add_noise(budget, (BudgetPurpose::Matrix, rho), second, matrix_sensitivity(neighbours), rng)?;
        let grid = radius / (1u64 << RECORD_BITS) as f64 / sample.grid();
        let found =
            nearest_semidefinite(&(start.matrix(&noisy) * grid * grid)).ok_or(CovarianceError::Numerical)?;
        let back = whitening.clone().try_inverse().ok_or(CovarianceError::Numerical)?;
        estimate = &back * &found * back.transpose();
        whitening = inverse_root(found + DMatrix::identity(size, size) * spread)? * whitening;
    }
    Ok((&estimate + estimate.transpose()) / 2.0)
}

/// A·z of every record; zeros for an unusable one.
fn whiten(sample: &CovarianceSample<'_>, whitening: &DMatrix<f64>) -> Vec<f64> {
    let mut whitened = Vec::with_capacity(sample.records().len());
    for record in sample.records().chunks_exact(sample.dimension()) {
        let columns = record.iter().zip(sample.centres()).zip(sample.half_widths());
        let place = columns.map(|((x, centre), width)| ((x - centre) / width).clamp(-1.0, 1.0));
        let place = DVector::from_iterator(record.len(), place);
        let usable = record.iter().all(|x| x.is_finite());
        whitened.extend((whitening * place).iter().map(|value| if usable { *value } else { 0.0 }));
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
