//! The worst signs of contributions for one pattern with overlaps of both signs, and how much
//! vectors can add.

use crate::{sensitivity::rounded_up, strategy::matrix::OVERLAP_ERROR};
use nalgebra::DMatrix;

/// Most sign patterns that are tried for one sensitivity.
pub(super) const MAX_CORNERS: usize = 1 << 22;

/// Longest pattern whose signs are all tried.
const MAX_STEPS: usize = 16;

/// Returns signs s with `s_i s_j X_ij ≥ 0` for all i, j, if there are any. Entries within their
/// rounding error of 0 have no sign.
///
/// Signs spread along the entries that have one: each entry fixes one sign by another. The first
/// sign of a connected part is arbitrary.
pub(super) fn balancing(gram: &DMatrix<f64>) -> Option<Vec<f64>> {
    let steps = gram.nrows();
    let sign = |i: usize, j: usize| {
        let error = 2.0 * OVERLAP_ERROR * (gram[(i, i)] * gram[(j, j)]).sqrt();
        if gram[(i, j)].abs() <= error { 0.0 } else { gram[(i, j)].signum() }
    };
    let mut signs = vec![0.0; steps];
    for first in 0..steps {
        if signs[first] != 0.0 {
            continue;
        }
        signs[first] = 1.0;
        let mut open = vec![first];
        while let Some(i) = open.pop() {
            for j in 0..steps {
                let wanted = signs[i] * sign(i, j);
                if wanted != 0.0 && signs[j] == 0.0 {
                    signs[j] = wanted;
                    open.push(j);
                } else if wanted * signs[j] < 0.0 {
                    return None;
                }
            }
        }
    }
    Some(signs)
}

/// Returns `max_s sᵀX s` over signs s, and the signs, by trying all of them. The first sign is +,
/// and each trial differs from the last in one index (Gray code). `None` for long patterns and when
/// `corners` are used up.
pub(super) fn maximum(gram: &DMatrix<f64>, corners: &mut usize) -> Option<(f64, Vec<f64>)> {
    let steps = gram.nrows();
    let tried = 1 << (steps.clamp(1, MAX_STEPS) - 1);
    if steps > MAX_STEPS || tried > *corners {
        return None;
    }
    *corners -= tried;
    let mut signs = vec![1.0; steps];
    let mut products: Vec<f64> = gram.column_iter().map(|column| column.sum()).collect();
    let mut value = gram.sum();
    let mut best = (value, signs.clone());
    for code in 1..tried {
        let turned = code.trailing_zeros() as usize + 1;
        value += 4.0 * (gram[(turned, turned)] - signs[turned] * products[turned]);
        signs[turned] = -signs[turned];
        let step = 2.0 * signs[turned];
        products.iter_mut().zip(gram.column(turned).iter()).for_each(|(sum, overlap)| *sum += step * overlap);
        if value > best.0 {
            best = (value, signs.clone());
        }
    }
    // Recomputed, without the roundings of the incremental updates.
    let s = nalgebra::DVector::from_vec(best.1);
    Some((s.dot(&(gram * &s)), s.as_slice().to_vec()))
}

/// Longest pattern whose overlaps are decomposed.
const MAX_DECOMPOSED: usize = 256;

/// Returns `k·λ_max(X)`, rounded up; `None` for long patterns.
///
/// Computed eigenvalues and vectors are not trusted: with `X = QΛQᵀ + R` for any Q,
/// `λ_max(X) ≤ λ_max(Λ)·‖Q‖₂² + ‖R‖_F` and `‖Q‖₂² ≤ 1 + ‖QᵀQ − I‖_F`.
pub(super) fn spectral(gram: &DMatrix<f64>) -> Option<f64> {
    let steps = gram.nrows();
    if steps > MAX_DECOMPOSED {
        return None;
    }
    let eigen = gram.clone().symmetric_eigen();
    let basis = &eigen.eigenvectors;
    let rest = gram - basis * DMatrix::from_diagonal(&eigen.eigenvalues) * basis.transpose();
    let skew = (basis.transpose() * basis - DMatrix::identity(steps, steps)).norm();
    let rounding = 256.0 * f64::EPSILON * steps as f64 * gram.trace();
    Some(rounded_up(steps as f64 * (eigen.eigenvalues.max() * (1.0 + skew) + rest.norm() + rounding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gram(rows: usize, seed: u64) -> DMatrix<f64> {
        let entry = |i: usize, j: usize| {
            ((i as u64 * 7919 + j as u64 * 104_729 + seed * 31) * 2_654_435_761 % 1000) as f64 / 500.0 - 1.0
        };
        let c = DMatrix::from_fn(rows + 2, rows, entry);
        c.transpose() * c
    }

    #[test]
    fn all_signs_are_tried() {
        for (steps, seed) in [(1, 1), (2, 2), (3, 3), (5, 4), (8, 5)] {
            let gram = gram(steps, seed);
            let sign = |mask: usize, i: usize| if mask >> i & 1 == 1 { -1.0 } else { 1.0 };
            let value = |mask: usize| -> f64 {
                let pairs = (0..steps).flat_map(|i| (0..steps).map(move |j| (i, j)));
                pairs.map(|(i, j)| sign(mask, i) * sign(mask, j) * gram[(i, j)]).sum()
            };
            let largest = (0..1 << steps).map(value).fold(0.0, f64::max);
            let (found, signs) = maximum(&gram, &mut MAX_CORNERS.clone()).unwrap();
            assert!((found - largest).abs() < 1e-12 * largest, "{steps}: {found}, {largest}");
            let mask = (0..steps).filter(|&i| signs[i] < 0.0).map(|i| 1 << i).sum();
            assert!((value(mask) - largest).abs() < 1e-12 * largest);
        }
        assert_eq!(maximum(&gram(4, 1), &mut 7), None);
        assert_eq!(maximum(&gram(17, 1), &mut MAX_CORNERS.clone()), None);
    }

    #[test]
    fn signs_are_found_where_there_are_any() {
        for seed in 0..40 {
            let gram = gram(4, seed);
            let (largest, _) = maximum(&gram, &mut MAX_CORNERS.clone()).unwrap();
            let absolute: f64 = gram.iter().map(|overlap| overlap.abs()).sum();
            assert_eq!(balancing(&gram).is_some(), absolute - largest < 1e-9, "{seed}");
        }
        let noise = DMatrix::from_row_slice(3, 3, &[1.0, 0.5, 1e-16, 0.5, 1.0, -1e-16, 1e-16, -1e-16, 1.0]);
        assert_eq!(balancing(&noise), Some(vec![1.0, 1.0, 1.0]));
    }

    #[test]
    fn the_spectral_bound_is_close_and_never_below() {
        for seed in 0..20 {
            let gram = gram(6, seed);
            let exact = 6.0 * gram.symmetric_eigenvalues().max();
            let found = spectral(&gram).unwrap();
            assert!(found >= exact && found <= exact * (1.0 + 1e-10));
        }
    }
}
