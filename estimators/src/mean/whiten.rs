//! Correlated columns: private directions and their scales, in which clean records have nearly the
//! identity as covariance.
//!
//! Whitening by the covariance of all records would hide the outliers: they raise that covariance.
//! So directions and scales are found separately, both by statistics that a share of records cannot
//! move far, however far away these are:
//!
//! 1. scales of columns, by medians of distances (`range`);
//! 2. **directions**: the eigenvectors of K = Σ uuᵀ, u = (x − y)/‖x − y‖ over pairs of records. For
//!    an elliptical distribution the expectation of uuᵀ has the eigenvectors of its covariance,
//!    whatever its tails (Tyler 1987; Visuri, Koivunen & Oja 2000: the spatial Kendall's τ);
//! 3. scales along these, by medians again.
//!
//! Steps 2 and 3 run twice. The ratio of scales magnifies errors of the first directions; in the
//! coordinates of the first pass the scales are nearly equal.
//!
//! *Privacy.* Pairs are those of `range`: a replaced record changes one u. `release` makes K of
//! unit vectors, rounded to integers, with sensitivity √½·‖uuᵀ − vvᵀ‖ ≤ 1. The rotation and its
//! scales follow from releases and map each record by itself to new coordinates, on which all
//! proofs hold. The cost appears as the parts `scale`, `directions` and `directed scale`; later
//! steps divide the rest.

use super::budget::MeanBudget;
use super::release::{ClippedRecords, ClippingBall, in_parallel};
use super::weights::spectrum;
use super::{EstimationStop, MeanError, MeanEstimate, Shares, Tails, range, release};
use hushflow_mechanism::noise::NoiseGenerator;
use nalgebra::{DMatrix, DMatrixView};

const PASSES: usize = 2;

/// Rows that one worker rotates at a time.
const ROWS_PER_TASK: usize = 1 << 12;

pub(super) struct WhiteningBasis {
    pub(super) rows: Vec<f64>,
    pub(super) scales: Vec<f64>,
    /// Maps new coordinates to columns.
    back: DMatrix<f64>,
}

/// Spends a share of the budget on directions and scales; later shares are of the rest.
pub(super) fn whiten(
    rows: &[f64],
    dimension: usize,
    tails: Tails,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<WhiteningBasis, EstimationStop> {
    let part = ("scale", Shares::SCALE);
    let scales = range::estimate(rows, dimension, part, Tails::SubGaussian, budget, rng)?;
    let mut basis =
        WhiteningBasis { rows: rows.to_vec(), scales, back: DMatrix::identity(dimension, dimension) };
    for pass in 1..=PASSES {
        let directions = directions(&basis, budget, rng)?;
        basis.rotate(&directions);
        let tails = if pass == PASSES { tails } else { Tails::SubGaussian };
        let part = ("directed scale", Shares::DIRECTED / PASSES as f64);
        basis.scales = range::estimate(&basis.rows, dimension, part, tails, budget, rng)?;
    }
    budget.divide_rest();
    Ok(basis)
}

fn directions(
    table: &WhiteningBasis,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<DMatrix<f64>, MeanError> {
    let dimension = table.scales.len();
    let mut units = Vec::with_capacity(table.rows.len() / 2);
    for (a, b) in range::pairs(&table.rows, dimension) {
        units.extend(unit_difference(a, b, &table.scales));
    }
    let ball = ClippingBall { centre: vec![0.0; dimension], radius: 1.0 };
    let kept = ClippedRecords::new(&units, &vec![1.0; dimension], &ball)?;
    let share = Shares::DIRECTIONS / PASSES as f64 * budget.whole();
    let second = release::second_moments(&kept, ("directions", share), budget, rng)?;
    let eigen = spectrum(second.as_ref()).ok_or(MeanError::Spectrum)?;
    Ok(DMatrix::from_fn(dimension, dimension, |i, j| eigen.vectors[(i, j)]))
}

/// Returns the unit vector from one scaled row to another; zeros if they are equal or not finite.
fn unit_difference(a: &[f64], b: &[f64], scales: &[f64]) -> Vec<f64> {
    let difference: Vec<f64> =
        a.iter().zip(b).zip(scales).map(|((a, b), scale)| (a / 2.0 - b / 2.0) / scale).collect();
    // Divide by the largest first, so that squares do not overflow.
    let largest = difference.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let norm = difference.iter().map(|value| (value / largest).powi(2)).sum::<f64>().sqrt();
    let unit = difference.iter().map(|value| value / largest / norm);
    if (norm * largest).is_finite() && largest > 0.0 { unit.collect() } else { vec![0.0; scales.len()] }
}

impl WhiteningBasis {
    fn rotate(&mut self, directions: &DMatrix<f64>) {
        let dimension = self.scales.len();
        let to_directions =
            DMatrix::from_fn(dimension, dimension, |i, j| directions[(j, i)] / self.scales[j]);
        let chunks: Vec<&[f64]> = self.rows.chunks(ROWS_PER_TASK * dimension).collect();
        let rotate = |rows: &&[f64]| {
            // Row-major records are the columns of a d × n matrix.
            let rows = DMatrixView::from_slice(rows, dimension, rows.len() / dimension);
            (&to_directions * rows).as_slice().to_vec()
        };
        self.rows = in_parallel(&chunks, rotate).concat();
        let scaled = DMatrix::from_fn(dimension, dimension, |i, j| self.scales[i] * directions[(i, j)]);
        self.back = &self.back * scaled;
    }

    /// Maps an estimate from these coordinates to those of the columns.
    pub(super) fn back(&self, estimate: MeanEstimate) -> MeanEstimate {
        let along = |column: usize, values: &[f64]| -> Vec<f64> {
            self.back.row(column).iter().zip(values).map(|(entry, value)| entry * value).collect()
        };
        let columns = 0..self.scales.len();
        let mean = columns.clone().map(|column| along(column, &estimate.mean).iter().sum()).collect();
        let norm = |column| along(column, &estimate.noise).iter().map(|x| x * x).sum::<f64>().sqrt();
        MeanEstimate { mean, noise: columns.map(norm).collect(), ..estimate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unit_differences_have_norm_one_at_most(
            a in prop::collection::vec(prop_oneof![-1e3f64..1e3, Just(f64::NAN), Just(f64::MAX), Just(1e-310)], 3),
            b in prop::collection::vec(prop_oneof![-1e3f64..1e3, Just(f64::INFINITY), Just(f64::MIN)], 3),
        ) {
            let unit = unit_difference(&a, &b, &[1.0, 1e-3, 1e5]);
            let norm = unit.iter().map(|x| x * x).sum::<f64>();
            prop_assert!(norm == 0.0 || (norm - 1.0).abs() < 1e-12, "{unit:?}");
        }
    }

    proptest! {
        /// Attack: whichever record replaces another, K moves by at most its charge, in integers,
        /// and one row of the rotated table changes.
        #[test]
        fn a_replaced_record_moves_one_direction_and_one_row(
            rows in prop::collection::vec(prop::collection::vec(-9.0f64..9.0, 2), 2..9),
            other in prop::collection::vec(-1e9f64..1e9, 2),
            position in any::<prop::sample::Index>(),
        ) {
            let position = position.index(rows.len());
            let mut replaced = rows.clone();
            replaced[position] = other;
            let scales = [0.5, 3.0];
            let ball = ClippingBall { centre: vec![0.0; 2], radius: 1.0 };
            let worlds = [&rows, &replaced].map(|rows| {
                let rows = rows.concat();
                let units: Vec<f64> =
                    range::pairs(&rows, 2).flat_map(|(a, b)| unit_difference(a, b, &scales)).collect();
                let kept = ClippedRecords::new(&units, &[1.0; 2], &ball).expect("records");
                let mut table = WhiteningBasis { rows, scales: scales.to_vec(), back: DMatrix::identity(2, 2) };
                table.rotate(&DMatrix::from_row_slice(2, 2, &[0.6, -0.8, 0.8, 0.6]));
                (kept.moments(hushflow_mechanism::moments::SecondMoment::Full).expect("sums").to_wide(), table.rows)
            });
            let unit = 0.5_f64.powi(40);
            let moved = |entry: usize| ((worlds[0].0[entry] - worlds[1].0[entry]) as f64 * unit).powi(2);
            // After the count and two sums: xx, xy, yy.
            prop_assert!((moved(3) + moved(5)) / 2.0 + moved(4) <= 1.0);
            let [one, other] = [0, 1].map(|world| worlds[world].1.chunks(2));
            let differ: Vec<usize> =
                one.zip(other).enumerate().filter(|(_, (a, b))| a != b).map(|(row, _)| row).collect();
            prop_assert!(differ.is_empty() || differ == [position]);
        }
    }

    #[test]
    fn rotations_are_undone() {
        let rows = vec![3.0, -40.0, 0.5, 10.0, 7.0, 1e3];
        let mut table =
            WhiteningBasis { rows: rows.clone(), scales: vec![0.5, 20.0], back: DMatrix::identity(2, 2) };
        let turned = |angle: f64| {
            DMatrix::from_row_slice(2, 2, &[angle.cos(), -angle.sin(), angle.sin(), angle.cos()])
        };
        table.rotate(&turned(0.3));
        table.scales = vec![0.1, 3.0];
        table.rotate(&turned(-1.1));
        for (row, turned) in rows.chunks(2).zip(table.rows.chunks(2)) {
            let found =
                MeanEstimate { mean: turned.to_vec(), noise: vec![1.0; 2], kept: None, converged: true };
            let back = table.back(found).mean;
            assert!(back.iter().zip(row).all(|(a, b)| (a - b).abs() < 1e-9), "{back:?} {row:?}");
        }
    }
}
