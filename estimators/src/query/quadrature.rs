//! λ^(−1/2) as a sum of fractions: Σ ω/(λ + t) with positive ω and t (Zolotarev; Hale, Higham &
//! Trefethen 2008, method 3). The error falls by a constant factor with each term.

use std::f64::consts::PI;

/// Target of the relative error.
const ACCURACY: f64 = 1e-12;

/// Points of the check for each term, and the factor that covers the space between them.
const POINTS: usize = 32;
const BETWEEN: f64 = 2.0;

/// Steps of the arithmetic-geometric mean: each doubles the number of correct digits.
const HALVINGS: usize = 16;

/// The sum, for λ of an interval.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Quadrature {
    /// t of each term.
    pub(super) shifts: Vec<f64>,
    /// ω of each term.
    pub(super) weights: Vec<f64>,
    interval: (f64, f64),
}

impl Quadrature {
    /// The sum for λ from `least` to `most`, both positive.
    pub(super) fn inverse_root(least: f64, most: f64) -> Self {
        let ratio = (most / least).max(1.0);
        let terms = (-ACCURACY.ln() * (ratio.ln() + 3.0) / (2.0 * PI * PI)).ceil();
        let quarter = PI / 2.0 / means(1.0, ratio.recip().sqrt()).0;
        let term = |index: usize| {
            let (cotangent, dn) = jacobi(quarter * (index as f64 + 0.5) / terms, ratio.recip());
            let secant = 1.0 + cotangent.powi(-2);
            (least / cotangent.powi(2), 2.0 * quarter * least.sqrt() / (PI * terms) * dn * secant)
        };
        let (shifts, weights) = (0..terms as usize).map(term).unzip();
        Self { shifts, weights, interval: (least, most) }
    }

    /// Largest relative error in the interval, measured on a fine grid and doubled.
    pub(super) fn error(&self) -> f64 {
        let (least, most) = self.interval;
        let points = POINTS * self.shifts.len();
        let error = |index: usize| {
            let value = least * (most / least).powf(index as f64 / points as f64);
            let terms = self.shifts.iter().zip(&self.weights);
            (terms.map(|(shift, weight)| weight / (value + shift)).sum::<f64>() * value.sqrt() - 1.0).abs()
        };
        BETWEEN * (0..=points).map(error).fold(0.0, f64::max)
    }
}

/// Returns the arithmetic-geometric mean, and all pairs of means on the way.
fn means(mut arithmetic: f64, mut geometric: f64) -> (f64, Vec<(f64, f64)>) {
    let mut pairs = Vec::new();
    for _ in 0..HALVINGS {
        pairs.push((arithmetic, geometric));
        (arithmetic, geometric) = (f64::midpoint(arithmetic, geometric), (arithmetic * geometric).sqrt());
    }
    (arithmetic, pairs)
}

/// Returns cn/sn and dn of Jacobi at `at` > 0, for the complementary parameter 1 − k², by
/// descending Landen transformations (Bulirsch 1965).
fn jacobi(at: f64, complementary: f64) -> (f64, f64) {
    let (mean, pairs) = means(1.0, complementary.sqrt());
    let mut ratio = mean / (at * mean).tan();
    let (mut dn, mut after) = (1.0, mean);
    for (arithmetic, geometric) in pairs.into_iter().rev() {
        let product = ratio * ratio / after;
        ratio *= dn;
        dn = (geometric + product) / (arithmetic + product);
        after = arithmetic;
    }
    (ratio, dn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_within_its_stated_accuracy() {
        for (least, most) in [(1.0, 1.0), (0.3, 1.7), (1e-3, 1e3), (1e-9, 4.0), (2.0, 1e13)] {
            let sum = Quadrature::inverse_root(least, most);
            assert!(sum.error() < 20.0 * ACCURACY, "{least} {most}: {}", sum.error());
            assert!(sum.shifts.len() < 60 && sum.weights.iter().all(|weight| *weight > 0.0));
        }
    }

    /// Values at 1 for k² = 0.5: sn = 0.803002, cn = 0.595977, dn = 0.823161 (SciPy's `ellipj`).
    #[test]
    fn jacobi_functions_agree_with_tables() {
        let (cotangent, dn) = jacobi(1.0, 0.5);
        assert!((cotangent - 0.595_976_6 / 0.803_001_8).abs() < 1e-6, "{cotangent}");
        assert!((dn - 0.823_161_1).abs() < 1e-6, "{dn}");
    }
}
