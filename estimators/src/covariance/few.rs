//! `shrunk` for one to three columns, where a wrong clipping norm costs more than its noise saves.
//!
//! # Why few columns differ
//! The draw of a norm distinguishes about 2/√ρ records, and the noise of d unclipped columns is
//! worth d/√ρ records at the bounds ([`shrunk`](super::shrunk)). With many columns the draw is
//! fine enough. With few it is as coarse as the noise, so a drawn norm may clip records worth
//! several times the noise. Hence the draw only proposes a norm, and releases that the estimate
//! uses anyway decide whether to clip:
//!
//! 1. A twentieth of ρ draws a norm, or the bounds. Only norms that save much noise are candidates:
//!    squared norms of at most 2^(−5/d) of that of the bounds. The bounds count as eight of them.
//! 2. Three tenths measure the unclipped matrix.
//! 3. If a norm was drawn, a twentieth measures the matrix at this norm.
//! 4. The rest measures the matrix that promises the smaller error, and both measurements of it are
//!    averaged by their precision. If the correlations of step 2 are noise and no norm clips, the
//!    rest measures the diagonal alone.
//!
//! Only step 1, and step 2 or 3, whichever is not used, are spent on the choice. The correlations
//! of an unclipped matrix are multiplied by a factor that rises from 0 to 1 while their χ² exceeds
//! its mean without correlations by one to five of its deviations.
//!
//! **The decision.** Clipping moves the trace by D, which steps 2 and 3 measure with a deviation s,
//! and the covariance by at most D, or about D/√d if the columns are uncorrelated. Clipping saves
//! the difference A between the noise of both final estimates. The unclipped matrix is used if D
//! exceeds A by more than s, and D exceeds the quantile z(1 − t/d) of its noise, for the squared
//! norm t: where no record is clipped, clipping then fails with a probability of t/d at most, which
//! costs no more than the noise at t.
//!
//! # Noise of the unclipped matrix
//! Let |z_j| ≤ 1, and let the noise have the precision p on the diagonal and q ≤ 2p off it. Then
//! the cost is ρ = max(q·d², q·d(d − 1)/2 + p·d)/2, in z². *Proof.* For squares a_j, b_j ∈ [0, 1]
//! of two records, twice the cost is at most q/2·((Σa)² + (Σb)²) + (p − q/2)·Σ(a_j − b_j)², because
//! ‖vvᵀ − uuᵀ‖² ≤ ‖v‖⁴ + ‖u‖⁴. It is convex in (a, b), so all squares are 0 or 1. For k columns
//! where one of both is 1, it is convex in their split, hence at most
//! q/2·(d² + (d − k)²) + (p − q/2)·k. That is convex in k, so k = 0 or d. ∎ Both terms equal 2ρ for
//! q = 2ρ/d² and p = ρ(d + 1)/d²: `ssp-tight` has the same noise off the diagonal, and (d + 1)/2
//! times the variance on it. `diagonal` has (d + 1)/(2d) of this variance.
//!
//! # What no rule can do
//! Let c records at the bounds be all that exceeds a norm t far below them. Without them clipping
//! has an error of about t, with them of at least c, and the unclipped matrix has an error of
//! N = d/√(2ρ) in both cases. Any ρ-zCDP estimate sees the two tables at a distance of at most
//! c√(2ρ) standard deviations (group privacy), so for c ≈ N/d to 3N/d it errs with a constant
//! probability: an error near t on the first table implies one of order c on the second, whatever
//! part of ρ the choice has (Le Cam's two points). The same holds for correlations of one to three
//! deviations of their noise, between `diagonal` and the whole matrix. A tenth above the best
//! method in hindsight is thus out of reach for tables near these borders.

use super::estimate::{CovarianceEstimate, EntryMeasurement, PreparedSample};
use super::sample::{CovarianceSample, add_matrix_noise};
use super::spending::{BudgetPurpose, CovarianceBudget};
use super::{CovarianceError, baselines, nearest_semidefinite, shrinkage, shrunk};
use hushflow_mechanism::estimate::intervals::Confidence;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::noise::selection::ExponentialMechanism;
use nalgebra::DMatrix;
use rand::CryptoRng;

/// Largest number of columns.
pub(super) const MOST_COLUMNS: usize = 3;

/// Share of the budget for the first measurement of the unclipped matrix.
const UNCLIPPED_SHARE: f64 = 0.3;

/// Share of the budget for the first measurement at the drawn norm.
const CLIPPED_SHARE: f64 = 0.05;

/// Largest share of the records between one and two times the norm.
const MOST_CLIPPED: f64 = 0.05;

/// Halvings of the squared norm from the bounds to the first candidate, for one column.
const HALVINGS: u32 = 5;

/// Number of candidates that the bounds count as.
const BOUNDS_WEIGHT: f64 = 8.0;

/// Excesses of χ² from which the final correlations are more than 0, and are kept as measured.
const KEPT: (f64, f64) = (1.0, 5.0);

/// Entries of z² per record with the deviations of their noise, infinite where not measured.
struct Measured {
    values: DMatrix<f64>,
    deviations: DMatrix<f64>,
}

impl Measured {
    /// Averages two measurements by their precision.
    fn with(self, other: &Self) -> Self {
        let precision = |deviation: f64| deviation.powi(-2);
        let weight = |one: f64, other: f64| precision(one) / (precision(one) + precision(other));
        let weights = self.deviations.zip_map(&other.deviations, weight);
        let values = self.values.component_mul(&weights)
            + other.values.component_mul(&weights.map(|weight| 1.0 - weight));
        let both = |one, other| (precision(one) + precision(other)).sqrt().recip();
        Self { values, deviations: self.deviations.zip_map(&other.deviations, both) }
    }

    /// Excess of χ² of the entries off the diagonal over its mean without correlations, in its
    /// standard deviations; 0 for a single column.
    fn excess(&self) -> f64 {
        let of = |(column, row): (usize, usize)| self.values[(row, column)] / self.deviations[(row, column)];
        let number = off_diagonal(self.values.nrows()).count() as f64;
        let squares: f64 = off_diagonal(self.values.nrows()).map(of).map(|x| x * x).sum();
        (squares - number) / (2.0 * number).sqrt().max(1.0)
    }

    /// The expected error in the Frobenius norm, of the diagonal or of all entries.
    fn noise(&self, all: bool) -> f64 {
        let sum: f64 = self.deviations.diagonal().norm_squared();
        (if all { self.deviations.norm_squared() } else { sum }).sqrt()
    }

    /// The variances, shrunk by their noise.
    fn variances(&self) -> DMatrix<f64> {
        let deviation = self.deviations[(0, 0)];
        let noisy: Vec<f64> = self.values.diagonal().iter().map(|value| value / deviation).collect();
        let variances: Vec<f64> =
            shrinkage::variances(&noisy).into_iter().map(|value| value * deviation).collect();
        DMatrix::from_diagonal(&variances.into())
    }
}

/// Pairs of a smaller and a larger index.
fn off_diagonal(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).flat_map(|row| (0..row).map(move |column| (column, row)))
}

/// Deviations of the noise of the unclipped matrix, on its diagonal and off it.
fn unclipped_deviations(sample: &CovarianceSample<'_>, rho: f64) -> (f64, f64) {
    let d = sample.dimension() as f64;
    let square = sample.entry_sensitivity(true);
    (square * d / (rho * (d + 1.0)).sqrt(), square * d / (2.0 * rho).sqrt())
}

/// Deviations of the noise at a norm. A square lies between 0 and the squared norm, so a single
/// column needs half the variance of [`shrunk`].
fn clipped_deviations(sample: &CovarianceSample<'_>, rho: f64) -> (f64, f64) {
    let single = sample.trace_sensitivity() / (2.0 * rho).sqrt();
    if sample.dimension() == 1 { (single, single) } else { shrunk::deviations(sample, rho) }
}

/// Measures the matrix with this part of the budget, and the noise that it pays for.
fn whole<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    (budget, rho): (&mut CovarianceBudget, f64),
    deviations: fn(&CovarianceSample<'_>, f64) -> (f64, f64),
    rng: &mut R,
) -> Result<Measured, CovarianceError> {
    let size = start.sample.dimension();
    let sums = start.sample.moments(SecondMoment::Full)?.to_wide();
    let rho = budget.spend(BudgetPurpose::Matrix, rho)?;
    let noisy = add_matrix_noise(size, &sums[1 + size..], deviations(&start.sample, rho), rng)?;
    Ok(Measured { values: start.matrix(&noisy), deviations: start.deviations(&noisy) })
}

fn diagonal<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<Measured, CovarianceError> {
    let noisy = baselines::noisy_diagonal(start, budget, rng)?;
    let size = noisy.len();
    let unit = start.unit();
    let on = |i: usize, j: usize, of: f64, elsewhere: f64| if i == j { of * unit } else { elsewhere };
    Ok(Measured {
        values: DMatrix::from_fn(size, size, |i, j| on(i, j, noisy[i].value as f64, 0.0)),
        deviations: DMatrix::from_fn(size, size, |i, j| on(i, j, noisy[i].deviation, f64::INFINITY)),
    })
}

/// Estimates the covariance with the remaining budget.
pub(super) fn estimate<R: CryptoRng + ?Sized>(
    start: PreparedSample<'_>,
    mut budget: CovarianceBudget,
    rng: &mut R,
) -> Result<CovarianceEstimate, CovarianceError> {
    let total = budget.left();
    let drawn = draw(&start, &mut budget, rng)?;
    let first = whole(&start, (&mut budget, UNCLIPPED_SHARE * total), unclipped_deviations, rng)?;
    let correlated = first.excess() > 0.0;
    if let Some(norm) = drawn {
        let clipped = start.clipped(norm)?;
        let probe = whole(&clipped, (&mut budget, CLIPPED_SHARE * total), clipped_deviations, rng)?;
        let rest = budget.left();
        let share = norm * norm / start.sample.dimension() as f64;
        if !unclipped_is_better(&first, &probe, (share, rest / total), correlated) {
            let measured = probe.with(&whole(&clipped, (&mut budget, rest), clipped_deviations, rng)?);
            let found = match measured.values.nrows() {
                1 => measured.variances(),
                _ => shrinkage::covariance(&measured.values, measured.deviations[(0, 0)])?,
            };
            return result(clipped, &measured, &found, true, budget);
        }
    }
    let rest = budget.left();
    let second = match correlated {
        true => whole(&start, (&mut budget, rest), unclipped_deviations, rng)?,
        false => diagonal(&start, &mut budget, rng)?,
    };
    let measured = first.with(&second);
    let kept = ((measured.excess() - KEPT.0) / (KEPT.1 - KEPT.0)).clamp(0.0, 1.0);
    let off = &measured.values - DMatrix::from_diagonal(&measured.values.diagonal());
    let found =
        nearest_semidefinite(&(measured.variances() + off * kept)).ok_or(CovarianceError::Numerical)?;
    result(start, &measured, &found, correlated, budget)
}

fn result(
    start: PreparedSample<'_>,
    measured: &Measured,
    found: &DMatrix<f64>,
    twice: bool,
    budget: CovarianceBudget,
) -> Result<CovarianceEstimate, CovarianceError> {
    let times = |entry: &EntryMeasurement| if twice || entry.row == entry.column { 2 } else { 1 };
    let entries = start.measured(&measured.values, &measured.deviations).into_iter();
    let measurements = entries.map(|entry| EntryMeasurement { times: times(&entry), ..entry }).collect();
    Ok(CovarianceEstimate { measurements, ..start.estimate(found, budget)? })
}

/// Draws a clipping norm; `None` stands for the bounds. The privacy is that of [`shrunk`]: its
/// scores are a part of those there, and one has a public number added.
fn draw<R: CryptoRng + ?Sized>(
    start: &PreparedSample<'_>,
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<Option<f64>, CovarianceError> {
    let (dimension, total) = (start.sample.dimension(), budget.left());
    let wanted = shrunk::clipped_records(&start.sample, total).min(MOST_CLIPPED * start.rows.0);
    let rho = budget.spend(BudgetPurpose::Selection, shrunk::SHARE * total)?;
    let selection = ExponentialMechanism::new(rho, shrunk::SENSITIVITY)?;
    let scores = shrunk::scores(&start.sample.squared_norms()?, wanted);
    let first = (HALVINGS * shrunk::PER_HALVING) as usize / dimension;
    let bounds = scores[0] + (BOUNDS_WEIGHT.ln() / selection.weight()).round() as i128;
    let scores: Vec<i128> = std::iter::once(bounds).chain(scores[first..].iter().copied()).collect();
    let index = selection.select(&scores, rng)?;
    Ok((index > 0).then(|| shrunk::norm(dimension, first + index - 1)))
}

/// Decides between the unclipped matrix and the matrix at a squared norm of the given share of the
/// bounds', from a first measurement of both and the share of the budget that is left.
fn unclipped_is_better(
    unclipped: &Measured,
    clipped: &Measured,
    (share, rest): (f64, f64),
    correlated: bool,
) -> bool {
    let d = unclipped.values.nrows() as f64;
    let excess = (&unclipped.values - &clipped.values).trace();
    let deviation = (unclipped.deviations.diagonal().norm_squared()
        + clipped.deviations.diagonal().norm_squared())
    .sqrt();
    // The variance of the diagonal alone is (d + 1)/(2d) of that beside all entries.
    let gain = if correlated { 1.0 } else { 2.0 * d / (d + 1.0) };
    let after = |measured: &Measured, first: f64, gain: f64| {
        measured.noise(correlated) / (1.0 + gain * rest / first).sqrt()
    };
    let saved = after(unclipped, UNCLIPPED_SHARE, gain) - after(clipped, CLIPPED_SHARE, 1.0);
    let moved = if correlated { 1.0 } else { d.sqrt().recip() };
    let level = 1.0 - 2.0 * share.min(0.5);
    let quantile = Confidence { level, ..Confidence::default() }.normal_quantile();
    moved * (excess - deviation) > saved.max(0.0) && excess > quantile * deviation
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_mechanism::moments::Layout;
    use hushflow_mechanism::sensitivity::Neighbours;
    use proptest::prelude::*;

    /// Cost in ρ of replacing one record by another, for noise of the unclipped matrix with ρ = 1.
    fn cost(dimension: usize, [one, other]: [&[f64]; 2]) -> f64 {
        let bounds = vec![(-1.0, 1.0); dimension];
        let sums = |record: &[f64]| {
            let records = [record, &vec![0.0; dimension]].concat();
            let sample =
                CovarianceSample::new(&bounds, &records, Neighbours::ReplaceOneInPlace).expect("a sample");
            let sums = sample.moments(SecondMoment::Full).expect("moments").to_wide().to_vec();
            (sums, unclipped_deviations(&sample, 1.0))
        };
        let ((one, (on, off)), (other, _)) = (sums(one), sums(other));
        let layout = Layout::new(dimension, SecondMoment::Full);
        let entries = layout.second_entries().zip(layout.second());
        let of = |((i, j), index): ((usize, usize), usize)| {
            ((one[index] - other[index]) as f64 / if i == j { on } else { off }).powi(2) / 2.0
        };
        entries.map(of).sum()
    }

    proptest! {
        /// Attack: no pair of records costs more than is charged.
        #[test]
        fn no_neighbour_costs_more_than_the_unclipped_matrix_is_charged(
            dimension in 1usize..=4,
            one in prop::collection::vec(-1.2..1.2f64, 4), other in prop::collection::vec(-1.2..1.2f64, 4),
        ) {
            let found = cost(dimension, [&one[..dimension], &other[..dimension]]);
            prop_assert!(found <= 1.0, "{found}");
        }
    }

    /// Blanking a corner attains the charge, and for an even number of columns so does flipping
    /// half of its signs.
    #[test]
    fn the_charge_for_the_unclipped_matrix_is_tight() {
        for dimension in 1..=4 {
            let corner = vec![1.0; dimension];
            let mut flipped = corner.clone();
            flipped[..dimension / 2].fill(-1.0);
            let blanked = cost(dimension, [&corner, &vec![0.0; dimension]]);
            assert!(blanked > 0.9999 && blanked <= 1.0, "{dimension}: {blanked}");
            let found = cost(dimension, [&corner, &flipped]);
            assert!(dimension % 2 == 1 || (found > 0.9999 && found <= 1.0), "{dimension}: {found}");
        }
    }

    /// A mass beyond the norm that exceeds the noise decides against clipping, and none does not.
    #[test]
    fn the_decision_weighs_what_is_clipped_against_the_noise() {
        let measured = |value: f64, deviation: f64| Measured {
            values: DMatrix::from_element(1, 1, value),
            deviations: DMatrix::from_element(1, 1, deviation),
        };
        let better = |excess: f64| {
            let (unclipped, clipped) = (measured(0.5 + excess, 0.02), measured(0.5, 0.001));
            unclipped_is_better(&unclipped, &clipped, (0.01, 0.6), false)
        };
        assert!(!better(0.0) && !better(0.03) && better(0.06));
    }

    #[test]
    fn measurements_are_averaged_by_precision() {
        let one = Measured {
            values: DMatrix::from_element(2, 2, 1.0),
            deviations: DMatrix::from_element(2, 2, 1.0),
        };
        let mut deviations = DMatrix::from_element(2, 2, f64::INFINITY);
        deviations.fill_diagonal(0.5);
        let both = one.with(&Measured { values: DMatrix::from_diagonal_element(2, 2, 6.0), deviations });
        assert!((both.values[(0, 0)] - 5.0).abs() < 1e-12 && both.values[(1, 0)] == 1.0);
        assert!((both.deviations[(0, 0)] - 0.2f64.sqrt()).abs() < 1e-12 && both.deviations[(1, 0)] == 1.0);
    }
}
