//! Records as integers, their exact moments, and the sensitivity of each statistic.
//!
//! A record x is mapped to z ∈ [−1, 1]^d by its public bounds and rounded to integers q ≈ z/g on
//! the grid g = √d·2⁻²⁰. In integers, its squared norm is at most 2⁴⁰ and its entries are at most Q
//! = ⌊2²⁰/√d⌋ + 1: z/g is at most 2²⁰/√d before rounding, and rounding is monotone. Statistics and
//! noise are integers, so rounding does not affect sensitivities.
//!
//! # What one record changes
//! Neighbours differ in one record: u replaces v. For zero-out, u = 0 (a blank is the centre of the
//! bounds). The number of records is public for replace-one. For zero-out the number is private,
//! and a record counts 1 or 0.
//!
//! | statistic | replace one | zero out | proof |
//! |---|---|---|---|
//! | records, and those outside the bounds | 1 | 1 | |
//! | Σ q_j | 2Q | Q | |
//! | Σ q_j² | Q² | Q² | both squares lie in [0, Q²]: half the paper's value |
//! | Σ q_j q_k | 2Q² | Q² | both products lie in [−Q², Q²] |
//! | all Σ q_j q_k, Frobenius | √2·R² | R² | ‖vvᵀ−uuᵀ‖² = ‖v‖⁴ + ‖u‖⁴ − 2(v·u)² ≤ 2R⁴, R = 2²⁰ |
//! | the upper triangle | dQ² | √(d(d+1)/2)·Q² | below |
//! | Σ ‖q‖² | R² | R² | both lie in [0, R²] |
//! | ordered eigenvalues of Σ qqᵀ | √2·R² | R² | at most the Frobenius norm (Hoffman–Wielandt) |
//!
//! **The upper triangle.** Its squared norm is ½(‖vvᵀ−uuᵀ‖²_F + Σ_j (v_j² − u_j²)²) ≤ ½((Σp)² +
//! (Σr)² + Σ(p_j−r_j)²) for the squares p_j, r_j ∈ [0, Q²] of v and u. This is convex in (p, r), so
//! it is largest where all are 0 or Q². With a columns where both are Q², b where only p is and c
//! where only r is, it is ½((a+b)² + (a+c)² + b + c)·Q⁴. For given a + b + c = d that is at most
//! d²Q⁴ (a = d: d²; b + c = k: at most ½(d² + (d−k)² + k) ≤ d²). Zero-out: ½((Σp)² + Σp²) ≤ ½(d² +
//! d)Q⁴. ∎

use std::borrow::Cow;

use super::CovarianceError;
use super::estimate::check_share;
use super::spending::{BudgetPurpose, CovarianceBudget};
use hushflow_mechanism::moments::{
    Accumulators, Clipper, Layout, QuantisedRows, RECORD_BITS, SecondMoment, Sums,
};
use hushflow_mechanism::noise::{DiscreteGaussian, NoiseScale};
use hushflow_mechanism::sensitivity::Neighbours;
use nalgebra::DVector;
use rand::CryptoRng;

/// Number of records quantised at a time.
const BATCH: usize = 4096;

/// Relative margin by which deviations are raised.
const MARGIN: f64 = 1e-12;

/// 2²⁰: the largest integer norm of a record.
const RADIUS: f64 = (1u64 << RECORD_BITS) as f64;

/// Records between public bounds, with the neighbour relation. Private, so it has no `Debug`.
#[derive(Clone)]
pub struct CovarianceSample<'a> {
    records: Cow<'a, [f64]>,
    clipper: Clipper,
    neighbours: Neighbours,
}

/// A statistic with noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noisy {
    /// The statistic with its noise, on the grid.
    pub value: i128,
    /// Standard deviation of the noise, on the grid.
    pub deviation: f64,
}

impl<'a> CovarianceSample<'a> {
    /// Makes a sample of records, row after row, with one column per element of `bounds`. Values
    /// outside are clipped. A record with a value that is not finite counts as the centre of the
    /// bounds.
    ///
    /// # Errors
    /// [`CovarianceError`] for bounds that span no interval, values that form no rows, fewer than
    /// two records if their number is public, and neighbours without a proof.
    pub fn new(
        bounds: &[(f64, f64)],
        records: &'a [f64],
        neighbours: Neighbours,
    ) -> Result<Self, CovarianceError> {
        if neighbours == Neighbours::ReplaceOne {
            return Err(CovarianceError::Neighbours(neighbours));
        }
        let clipper = Clipper::new(bounds, (bounds.len() as f64).sqrt())?.counting_unusable();
        let sample = Self { records: records.into(), clipper, neighbours };
        let found = sample.rows();
        if neighbours.counts_are_public() && found < 2 {
            return Err(CovarianceError::TooFew { found });
        }
        Ok(sample)
    }

    /// Number of columns d.
    pub fn dimension(&self) -> usize {
        self.clipper.dimension()
    }

    /// The neighbour relation of the guarantee.
    pub fn neighbours(&self) -> Neighbours {
        self.neighbours
    }

    /// Number of records: public only if counts are.
    pub(super) fn rows(&self) -> usize {
        self.records.len() / self.dimension()
    }

    /// Returns the noisy number of records with a value outside the bounds, and its deviation.
    /// Takes a share of the rest of the budget. One record changes the number by at most 1, and a
    /// blank one is within the bounds.
    ///
    /// # Errors
    /// [`CovarianceError::Share`], and errors of the noise.
    pub fn count_clipped<R: CryptoRng + ?Sized>(
        &self,
        share: f64,
        budget: &mut CovarianceBudget,
        rng: &mut R,
    ) -> Result<(f64, f64), CovarianceError> {
        check_share("the number of clipped records", share)?;
        let outside = |record: &&[f64]| {
            let mut columns = record.iter().zip(self.centres()).zip(self.half_widths());
            let beyond =
                |((x, centre), width): ((&f64, &f64), &f64)| (x - centre).abs() > width * (1.0 + MARGIN);
            record.iter().all(|x| x.is_finite()) && columns.any(beyond)
        };
        let clipped = self.records.chunks_exact(self.dimension()).filter(outside).count();
        noisy_count(clipped, (BudgetPurpose::Clipped, share * budget.left()), budget, rng)
    }

    /// All records, before clipping.
    pub(super) fn records(&self) -> &[f64] {
        &self.records
    }

    /// Half the width of each column's bounds.
    pub fn half_widths(&self) -> &[f64] {
        self.clipper.half_widths()
    }

    /// Middle of each column's bounds.
    pub fn centres(&self) -> &[f64] {
        self.clipper.centres()
    }

    /// Moves the bounds so that their middle is the given z, and widens them to contain the current
    /// bounds.
    pub(super) fn centred(&self, middle: &DVector<f64>) -> Result<Self, CovarianceError> {
        let columns = self.centres().iter().zip(self.half_widths()).zip(middle.iter());
        let bounds: Vec<(f64, f64)> = columns
            .map(|((centre, half_width), z)| {
                let (centre, half_width) = (centre + half_width * z, half_width * (1.0 + z.abs()));
                (centre - half_width, centre + half_width)
            })
            .collect();
        let clipper =
            Clipper::new(&bounds, (bounds.len() as f64).sqrt()).map_err(|_| CovarianceError::Numerical)?;
        let records = self.within_bounds().into();
        Ok(Self { records, clipper: clipper.counting_unusable(), neighbours: self.neighbours })
    }

    /// Returns the records with values outside the bounds moved to these. Wider bounds would let
    /// them through.
    fn within_bounds(&self) -> Vec<f64> {
        let columns = self.centres().iter().zip(self.half_widths());
        let bounds: Vec<(f64, f64)> =
            columns.map(|(centre, width)| (centre - width, centre + width)).collect();
        let clip = |(x, &(lower, upper)): (&f64, &(f64, f64))| match x.is_finite() {
            true => x.clamp(lower, upper),
            false => *x,
        };
        self.records.iter().zip(bounds.iter().cycle()).map(clip).collect()
    }

    /// Clips the records to this norm of z, on a grid that is finer by the same factor.
    pub(super) fn clipped(&self, norm: f64) -> Result<Self, CovarianceError> {
        let columns = self.centres().iter().zip(self.half_widths());
        let bounds: Vec<(f64, f64)> =
            columns.map(|(centre, width)| (centre - width, centre + width)).collect();
        let clipper = Clipper::new(&bounds, norm).map_err(|_| CovarianceError::Numerical)?;
        Ok(Self { clipper: clipper.counting_unusable(), ..self.clone() })
    }

    /// ‖q‖² of every record, at most 2⁴⁰.
    pub(super) fn squared_norms(&self) -> Result<Vec<i128>, CovarianceError> {
        let dimension = self.dimension();
        let (mut norms, mut rows) = (Vec::with_capacity(self.rows()), QuantisedRows::new(dimension));
        for batch in self.records.chunks(BATCH * dimension) {
            rows.clear();
            self.clipper.quantise_all(batch, &mut rows)?;
            let norm = |row: &[f64]| row.iter().map(|q| (*q as i128).pow(2)).sum::<i128>();
            norms.extend(rows.values().chunks_exact(dimension).map(norm));
        }
        Ok(norms)
    }

    /// Exact count, Σq and Σqqᵀ.
    pub(super) fn moments(&self, second: SecondMoment) -> Result<Sums, CovarianceError> {
        moments(&self.clipper, &self.records, second)
    }

    /// Norm of z to which records are clipped.
    pub fn clip_norm(&self) -> f64 {
        self.clipper.clip_norm()
    }

    /// g: one unit of q in z.
    pub fn grid(&self) -> f64 {
        self.clip_norm() / RADIUS
    }

    fn largest_entry(&self) -> f64 {
        (RADIUS / self.clipper.clip_norm()).floor() + 1.0
    }

    fn either(&self, replace: f64, zero_out: f64) -> f64 {
        if self.neighbours == Neighbours::ZeroOut { zero_out } else { replace }
    }

    /// Sensitivity of Σ q_j.
    pub(super) fn first_sensitivity(&self) -> f64 {
        self.either(2.0, 1.0) * self.largest_entry()
    }

    /// Sensitivity of Σ q_j q_k.
    pub fn entry_sensitivity(&self, diagonal: bool) -> f64 {
        let square = self.largest_entry() * self.largest_entry();
        if diagonal { square } else { self.either(2.0, 1.0) * square }
    }

    /// Sensitivity of Σ ‖q‖².
    pub(super) fn trace_sensitivity(&self) -> f64 {
        RADIUS * RADIUS
    }

    /// Sensitivity of all d² entries, in the Frobenius norm, and of the ordered eigenvalues.
    pub fn matrix_sensitivity(&self) -> f64 {
        matrix_sensitivity(self.neighbours)
    }

    /// Sensitivity of the d(d+1)/2 distinct entries, in the Euclidean norm.
    pub fn triangle_sensitivity(&self) -> f64 {
        let (d, square) = (self.dimension() as f64, self.largest_entry() * self.largest_entry());
        self.either(d, (d * (d + 1.0) / 2.0).sqrt()) * square * (1.0 + MARGIN)
    }
}

/// Sensitivity of all entries of Σ qqᵀ in the Frobenius norm, for q of norm at most 2²⁰.
pub(super) fn matrix_sensitivity(neighbours: Neighbours) -> f64 {
    let factor = if neighbours == Neighbours::ZeroOut { 1.0 } else { 2f64.sqrt() };
    factor * RADIUS * RADIUS * (1.0 + MARGIN)
}

/// Returns the exact moments of clipped records.
pub(super) fn moments(
    clipper: &Clipper,
    records: &[f64],
    second: SecondMoment,
) -> Result<Sums, CovarianceError> {
    let dimension = clipper.dimension();
    let layout = Layout::new(dimension, second);
    let mut accumulators = Accumulators::new(layout);
    let mut rows = QuantisedRows::new(dimension);
    for batch in records.chunks(BATCH * dimension) {
        rows.clear();
        clipper.quantise_all(batch, &mut rows)?;
        accumulators.add_to_key(0, &rows)?;
    }
    Ok(accumulators.take().remove(&0).unwrap_or_else(|| Sums::zero(layout.coordinates())))
}

/// Adds exact noise to integers that one record changes by at most `sensitivity` in the Euclidean
/// norm: ρ-zCDP.
///
/// Discrete Gaussian noise of parameter σ on integers is Δ²/(2σ²)-zCDP (Canonne, Kamath & Steinke
/// 2020, Theorem 4 and its multivariate form), so σ = Δ/√(2ρ), rounded up.
pub(super) fn add_noise<R: CryptoRng + ?Sized>(
    budget: &mut CovarianceBudget,
    (part, rho): (BudgetPurpose, f64),
    values: &[i128],
    sensitivity: f64,
    rng: &mut R,
) -> Result<Vec<Noisy>, CovarianceError> {
    let rho = budget.spend(part, rho)?;
    let gaussian =
        DiscreteGaussian::new(NoiseScale::at_least(sensitivity / (2.0 * rho).sqrt() * (1.0 + MARGIN))?);
    let deviation = gaussian.scale().sigma();
    let mut noise = vec![0; values.len()];
    gaussian.fill(rng, &mut noise);
    // Sums and noise are below 2^126 with overwhelming probability; wrapping is a bijection in any
    // case.
    let noisy = values
        .iter()
        .zip(&noise)
        .map(|(value, noise)| Noisy { value: value.wrapping_add(*noise), deviation });
    Ok(noisy.collect())
}

/// Adds exact noise to the distinct entries of Σ qqᵀ, in the order of [`Layout::second_entries`],
/// of these deviations on the diagonal and off it, for which the caller has paid.
pub(super) fn add_matrix_noise<R: CryptoRng + ?Sized>(
    dimension: usize,
    values: &[i128],
    deviations: (f64, f64),
    rng: &mut R,
) -> Result<Vec<Noisy>, CovarianceError> {
    let on = DiscreteGaussian::new(NoiseScale::at_least(deviations.0 * (1.0 + MARGIN))?);
    let off = DiscreteGaussian::new(NoiseScale::at_least(deviations.1 * (1.0 + MARGIN))?);
    let layout = Layout::new(dimension, SecondMoment::Full);
    let noisy = layout.second_entries().zip(values).map(|((i, j), value)| {
        let gaussian = if i == j { &on } else { &off };
        let mut noise = [0];
        gaussian.fill(rng, &mut noise);
        Noisy { value: value.wrapping_add(noise[0]), deviation: gaussian.scale().sigma() }
    });
    Ok(noisy.collect())
}

/// Applies [`add_noise`] to one integer.
pub(super) fn measure<R: CryptoRng + ?Sized>(
    budget: &mut CovarianceBudget,
    part: (BudgetPurpose, f64),
    value: i128,
    sensitivity: f64,
    rng: &mut R,
) -> Result<Noisy, CovarianceError> {
    Ok(add_noise(budget, part, &[value], sensitivity, rng)?[0])
}

/// Returns the count by which sums are divided, and its deviation. The count is either public, or
/// private and at least 1.
pub(super) fn count<R: CryptoRng + ?Sized>(
    sample: &CovarianceSample<'_>,
    budget: &mut CovarianceBudget,
    rho: f64,
    rng: &mut R,
) -> Result<(f64, f64), CovarianceError> {
    if sample.neighbours().counts_are_public() {
        return Ok((sample.rows() as f64, 0.0));
    }
    let (count, deviation) = noisy_count(sample.rows(), (BudgetPurpose::Count, rho), budget, rng)?;
    Ok((count.max(1.0), deviation))
}

/// Returns a number of records with noise, and its deviation. One record changes the number by at
/// most 1.
fn noisy_count<R: CryptoRng + ?Sized>(
    records: usize,
    part: (BudgetPurpose, f64),
    budget: &mut CovarianceBudget,
    rng: &mut R,
) -> Result<(f64, f64), CovarianceError> {
    // Units of 2⁻⁴⁰ records: the noise needs a fine grid.
    let unit = 1i128 << 40;
    let noisy = measure(budget, part, records as i128 * unit, unit as f64, rng)?;
    Ok((noisy.value as f64 / unit as f64, noisy.deviation / unit as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use hushflow_mechanism::accounting::Rho;
    use proptest::prelude::*;
    use rand::SeedableRng;

    const BOUNDS: [(f64, f64); 3] = [(-1.0, 1.0), (0.0, 10.0), (-5.0, 20.0)];

    fn sums(records: &[f64], neighbours: Neighbours) -> Vec<i128> {
        let sample = CovarianceSample::new(&BOUNDS, records, neighbours).expect("a sample");
        sample.moments(SecondMoment::Full).expect("moments").to_wide().to_vec()
    }

    /// Norms of the difference of two samples' statistics, divided by their sensitivities.
    fn ratios(one: &[f64], other: &[f64], neighbours: Neighbours) -> Vec<f64> {
        let sample = CovarianceSample::new(&BOUNDS, one, neighbours).expect("a sample");
        let layout = Layout::new(3, SecondMoment::Full);
        let difference: Vec<f64> =
            sums(one, neighbours).iter().zip(sums(other, neighbours)).map(|(a, b)| (a - b) as f64).collect();
        let (first, second) = (&difference[layout.first()], &difference[layout.second()]);
        let mut ratios: Vec<f64> = first.iter().map(|x| x.abs() / sample.first_sensitivity()).collect();
        let (mut triangle, mut frobenius, mut trace) = (0.0, 0.0, 0.0);
        for ((j, k), x) in layout.second_entries().zip(second) {
            ratios.push(x.abs() / sample.entry_sensitivity(j == k));
            triangle += x * x;
            frobenius += x * x * if j == k { 1.0 } else { 2.0 };
            trace += if j == k { *x } else { 0.0 };
        }
        ratios.push(triangle.sqrt() / sample.triangle_sensitivity());
        ratios.push(frobenius.sqrt() / sample.matrix_sensitivity());
        ratios.push(trace.abs() / sample.trace_sensitivity());
        ratios
    }

    proptest! {
        /// Attack: whichever record replaces another or the centre, no statistic moves by more than
        /// its sensitivity.
        #[test]
        fn no_neighbour_moves_a_statistic_by_more_than_its_sensitivity(
            rest in prop::collection::vec(-30.0..30.0f64, 6),
            v in prop::collection::vec(-30.0..30.0f64, 3),
            u in prop::collection::vec(-30.0..30.0f64, 3),
        ) {
            let with = |record: &[f64]| [&rest[..], record].concat();
            let centre = [0.0, 5.0, 7.5];
            for ratio in ratios(&with(&v), &with(&u), Neighbours::ReplaceOneInPlace) {
                prop_assert!(ratio <= 1.0, "{ratio}");
            }
            for ratio in ratios(&with(&v), &with(&centre), Neighbours::ZeroOut) {
                prop_assert!(ratio <= 1.0, "{ratio}");
            }
        }
    }

    #[test]
    fn corners_reach_the_sensitivities() {
        let rest = [0.0, 5.0, 7.5];
        let corner = |signs: [f64; 3]| {
            let corner = |(sign, (low, high)): (f64, (f64, f64))| if sign > 0.0 { high } else { low };
            signs.into_iter().zip(BOUNDS).map(corner).collect::<Vec<f64>>()
        };
        let with = |record: Vec<f64>| [&rest[..], &record].concat();
        let (one, other) = (with(corner([1.0, 1.0, 1.0])), with(corner([1.0, 1.0, -1.0])));
        let found = ratios(&one, &other, Neighbours::ReplaceOneInPlace);
        // Σq_3, Σq_1q_3 and Σq_2q_3 change sign.
        assert!([2, 5, 7].iter().all(|&index| found[index] > 0.99999), "{found:?}");
        let found = ratios(&one, &with(rest.to_vec()), Neighbours::ZeroOut);
        assert!(found.iter().all(|ratio| *ratio > 0.99999), "{found:?}");
    }

    /// Two of four records are outside, one of them in two columns; a third is unusable.
    #[test]
    fn clipped_records_are_counted_once_each() {
        let records = [2.0, 11.0, 0.0, 0.0, 10.0, 20.0, 0.5, -1e300, 0.0, f64::INFINITY, 99.0, 0.0];
        for neighbours in [Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut] {
            let sample = CovarianceSample::new(&BOUNDS, &records, neighbours).expect("a sample");
            let mut budget = CovarianceBudget::new(Rho::new(1e6).expect("a budget"));
            let mut rng = ChaCha20Rng::seed_from_u64(1);
            let (found, deviation) = sample.count_clipped(0.5, &mut budget, &mut rng).expect("a count");
            assert!((found - 2.0).abs() < 6.0 * deviation && deviation < 2e-3, "{found} {deviation}");
            assert_eq!(budget.by_kind(), [(BudgetPurpose::Clipped, 5e5)]);
            assert!(sample.count_clipped(1.0, &mut budget, &mut rng).is_err());
        }
    }

    #[test]
    fn a_record_that_cannot_be_used_is_the_centre_of_the_bounds() {
        let nan = sums(&[0.5, 1.0, 2.0, f64::NAN, 1.0, 1.0], Neighbours::ReplaceOneInPlace);
        let centre = sums(&[0.5, 1.0, 2.0, 0.0, 5.0, 7.5], Neighbours::ReplaceOneInPlace);
        assert_eq!(nan, centre);
    }

    #[test]
    fn invalid_samples_are_refused() {
        let make = |bounds: &[(f64, f64)], records: &[f64], neighbours| {
            CovarianceSample::new(bounds, records, neighbours).err().expect("an error").to_string()
        };
        let found = make(&BOUNDS, &[0.0; 3], Neighbours::ReplaceOneInPlace);
        assert_eq!(found, "found 1 records, expected at least 2: a covariance takes more than one");
        assert!(make(&[(1.0, 1.0)], &[0.0; 3], Neighbours::ZeroOut).contains("is bounded by 1 and 1"));
        assert!(make(&[], &[], Neighbours::ZeroOut).contains("no columns"));
        assert!(make(&BOUNDS, &[0.0; 6], Neighbours::ReplaceOne).contains("replace-one neighbours"));
    }

    #[test]
    fn noise_has_the_reported_deviation() {
        let mut budget = CovarianceBudget::new(Rho::new(2.0).unwrap());
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let sensitivity = 2f64.powi(40);
        let noisy = add_noise(&mut budget, (BudgetPurpose::Matrix, 2.0), &[7; 20_000], sensitivity, &mut rng)
            .unwrap();
        let deviation = noisy[0].deviation;
        assert!(deviation >= sensitivity / 2.0 && deviation < sensitivity / 2.0 * 1.000001);
        let relative: Vec<f64> = noisy.iter().map(|noisy| (noisy.value - 7) as f64 / deviation).collect();
        let count = relative.len() as f64;
        let mean = relative.iter().sum::<f64>() / count;
        let variance = relative.iter().map(|x| x * x).sum::<f64>() / count;
        assert!(mean.abs() < 6.0 / count.sqrt() && (variance - 1.0).abs() < 6.0 * (2.0 / count).sqrt());
    }
}
