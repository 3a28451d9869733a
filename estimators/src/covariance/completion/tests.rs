//! Compares completions with slow reference methods, closed forms and the optimality conditions.

use super::interior::{MeasuredEntry, PathPoint, follow};
use super::*;
use chacha20::ChaCha8Rng;
use nalgebra::SymmetricEigen;
use rand::{Rng, SeedableRng};

fn uniform(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn normal(random: &mut ChaCha8Rng) -> f64 {
    (-2.0 * (1.0 - uniform(random)).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
}

fn covariance(size: usize, random: &mut ChaCha8Rng) -> DMatrix<f64> {
    let loadings = DMatrix::from_fn(size, 3, |_, _| 0.2 * normal(random));
    &loadings * loadings.transpose() + DMatrix::identity(size, size) * 0.01
}

fn some_pairs(size: usize, count: usize, random: &mut ChaCha8Rng) -> Vec<(usize, usize)> {
    let mut index = || (random.next_u64() % size as u64) as usize;
    let mut pairs = std::collections::BTreeSet::new();
    while pairs.len() < count {
        let (a, b) = (index(), index());
        if a != b {
            pairs.insert((a.max(b), a.min(b)));
        }
    }
    pairs.into_iter().collect()
}

fn completed(
    truth: &DMatrix<f64>,
    pairs: &[(usize, usize)],
    deviation: f64,
    random: &mut ChaCha8Rng,
) -> Completion {
    let mut noisy = |value: f64| value + deviation * normal(random);
    let precision = deviation.max(1e-3).powi(-2);
    let diagonal: Vec<_> = truth.diagonal().iter().map(|&value| (noisy(value), precision)).collect();
    let mut completion = Completion::of_diagonal(&diagonal);
    for &(row, column) in pairs {
        completion.measure(row, column, noisy(truth[(row, column)]), precision);
    }
    completion.finish();
    completion
}

/// Largest relative violation of the optimality conditions: the fit, both cones, complementarity.
/// The sparsity is exact.
fn optimality_gap(completion: &Completion) -> f64 {
    let (w, m) = (completion.matrix(), completion.multiplier());
    let mut off_pattern = m.clone();
    let mut fit = 0.0f64;
    let mut objective = 0.0;
    for MeasuredEntry { row, column, value, precision } in completion.entries() {
        let shift = m[(row, column)] * if row == column { 1.0 } else { 2.0 } / precision;
        fit = fit.max((w[(row, column)] - value - shift).abs() / w.amax());
        objective += precision * (w[(row, column)] - value).powi(2) / 2.0;
        (off_pattern[(row, column)], off_pattern[(column, row)]) = (0.0, 0.0);
    }
    assert_eq!(off_pattern.amax(), 0.0, "the precision is sparse");
    let negative =
        |matrix: &DMatrix<f64>| -SymmetricEigen::new(matrix.clone()).eigenvalues.min() / matrix.amax();
    // ⟨W, M⟩ is the duality gap, in units of the log-likelihood.
    let gap = (&w * &m).trace().abs() / (1.0 + objective);
    fit.max(negative(&w)).max(negative(&m)).max(gap)
}

/// Reference: iterative proportional scaling, pair by pair (Speed & Kiiveri 1986).
fn scaled(values: &DMatrix<f64>, pairs: &[(usize, usize)]) -> DMatrix<f64> {
    let mut precision = DMatrix::from_diagonal(&values.diagonal().map(f64::recip));
    for _ in 0..3000 {
        for &(a, b) in pairs {
            let fitted = precision.clone().try_inverse().unwrap();
            let part = |m: &DMatrix<f64>| {
                DMatrix::from_row_slice(2, 2, &[m[(a, a)], m[(a, b)], m[(b, a)], m[(b, b)]])
                    .try_inverse()
                    .unwrap()
            };
            let change = part(values) - part(&fitted);
            for (i, row) in [a, b].into_iter().enumerate() {
                for (j, column) in [a, b].into_iter().enumerate() {
                    precision[(row, column)] += change[(i, j)];
                }
            }
        }
    }
    precision.try_inverse().unwrap()
}

#[test]
fn well_posed_completions_equal_proportional_scaling() {
    let pairs = [(1, 0), (2, 1), (3, 2), (4, 3), (4, 0), (2, 0)];
    for seed in 0..6 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let truth = covariance(5, &mut random) + DMatrix::identity(5, 5) * 0.05;
        let found = completed(&truth, &pairs, 0.0, &mut random).matrix();
        let error = (found - scaled(&truth, &pairs)).amax() / truth.amax();
        assert!(error < 1e-8, "seed {seed}: {error:e}");
    }
}

#[test]
fn in_a_chain_covariances_are_products() {
    let truth = DMatrix::from_row_slice(3, 3, &[1.0, 0.5, 0.0, 0.5, 2.0, -0.8, 0.0, -0.8, 1.5]);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let found = completed(&truth, &[(1, 0), (2, 1)], 0.0, &mut random).matrix();
    assert!((found[(2, 0)] - 0.5 * -0.8 / 2.0).abs() < 1e-9, "{found}");
}

/// Reference: projected gradients with Nesterov's momentum.
fn projected(entries: &[MeasuredEntry], size: usize) -> DMatrix<f64> {
    let step = 0.9 / entries.iter().map(|entry| entry.precision).fold(0.0, f64::max);
    let mut w = DMatrix::identity(size, size) * 0.1;
    let (mut ahead, mut momentum) = (w.clone(), 1.0f64);
    for _ in 0..30_000 {
        let mut moved = ahead.clone();
        for &MeasuredEntry { row: i, column: j, value, precision } in entries {
            let slope = step * precision * (ahead[(i, j)] - value) * if i == j { 1.0 } else { 0.5 };
            moved[(i, j)] -= slope;
            moved[(j, i)] -= if i == j { 0.0 } else { slope };
        }
        let next = crate::covariance::nearest_semidefinite(&moved).unwrap();
        let later = (1.0 + (1.0 + 4.0 * momentum * momentum).sqrt()) / 2.0;
        ahead = &next + (&next - &w) * ((momentum - 1.0) / later);
        (w, momentum) = (next, later);
    }
    w
}

/// Without a positive definite fit, the measured entries of the limit are the unique nearest
/// entries of a semidefinite matrix (Appendix B.2).
#[test]
fn ill_posed_completions_fit_as_well_as_any() {
    let pairs = [(1, 0), (2, 1), (3, 2), (3, 0)];
    for seed in 0..6 {
        let mut random = ChaCha8Rng::seed_from_u64(100 + seed);
        let truth = covariance(4, &mut random);
        let completion = completed(&truth, &pairs, 0.1, &mut random);
        let entries: Vec<_> = completion.entries().collect();
        let (found, expected) = (completion.matrix(), projected(&entries, 4));
        for MeasuredEntry { row: i, column: j, .. } in entries {
            let error = (found[(i, j)] - expected[(i, j)]).abs();
            assert!(error < 3e-6, "seed {seed}, ({i}, {j}): {} {}", found[(i, j)], expected[(i, j)]);
        }
    }
}

#[test]
fn impossible_measurements_end_at_the_boundary() {
    let mut completion = Completion::of_diagonal(&[(1.0, 1e4), (1.0, 1e4), (-0.5, 1e4)]);
    assert!(completion.covariance(2, 2) > 0.0 && completion.covariance(2, 2) < 1e-7);
    // The fit is singular, [[a, a], [a, a]]; [[1, 3], [3, 1]] is measured with equal precisions.
    // 2·(a−1)² + (a−3)² is least where 2·(a−1) + (a−3) = 0.
    completion.measure(1, 0, 3.0, 1e4);
    completion.finish();
    let (a, b) = (completion.covariance(0, 0), completion.covariance(1, 0));
    assert!((a - 5.0 / 3.0).abs() < 1e-8 && (a - b).abs() < 1e-8, "{a} {b}");
    assert_eq!(completion.covariance(2, 0), 0.0);
    assert!(completion.covariance(2, 2) < 1e-9);
}

#[test]
fn the_limit_is_approached() {
    let entries = [(0, 0, 1.0), (1, 1, 1.0), (2, 2, 1.0), (1, 0, 0.9), (2, 1, 0.9)]
        .map(|(row, column, value)| MeasuredEntry { row, column, value, precision: 1e4 });
    let strained =
        [&entries[..], &[MeasuredEntry { row: 2, column: 0, value: -0.9, precision: 1e4 }]].concat();
    for entries in [&entries[..], &strained] {
        let solved = |target| {
            let single = PathPoint::single(1.0, 1e4, WARM);
            follow(entries, PathPoint::block_diagonal(&[&single, &single, &single]), target, REMEMBERED)
                .end
                .covariance
        };
        let limit = solved(1e-12);
        let distance = |target| (solved(target) - &limit).norm_max();
        assert!(
            distance(1e-4) < 1e-3 && distance(1e-6) < 1e-5 && distance(1e-8) < 1e-7 && distance(1e-10) < 1e-9
        );
    }
}

#[test]
fn completions_are_optimal() {
    for (size, count, deviation, seed) in
        [(12, 20, 0.002, 1), (12, 20, 0.1, 2), (30, 60, 0.01, 3), (30, 25, 0.05, 4), (8, 28, 0.3, 5)]
    {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let truth = covariance(size, &mut random);
        let pairs = some_pairs(size, count, &mut random);
        let completion = completed(&truth, &pairs, deviation, &mut random);
        let missing = optimality_gap(&completion);
        assert!(missing <= 1e-8, "{size} {count} {deviation}: {missing:e}");
    }
}

/// Splitting into connected components changes only the time: solving the same entries together
/// gives the same matrix.
#[test]
fn components_are_solved_like_the_whole() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let truth = covariance(9, &mut random);
    let pairs = [(4, 0), (8, 4), (8, 0), (5, 1), (6, 2), (6, 5), (7, 3)];
    let completion = completed(&truth, &pairs, 0.02, &mut random);
    assert_eq!(completion.components.iter().filter(|component| !component.columns.is_empty()).count(), 3);
    let local = completion.entries();
    let entries: Vec<MeasuredEntry> = local.collect();
    let singles: Vec<PathPoint> = (0..9).map(|j| PathPoint::single(truth[(j, j)], 1e4, WARM)).collect();
    let start = PathPoint::block_diagonal(&singles.iter().collect::<Vec<_>>());
    let whole = follow(&entries, start, FINAL, REMEMBERED).end.covariance;
    let matrix = completion.matrix();
    for (i, j) in (0..9).flat_map(|i| (0..9).map(move |j| (i, j))) {
        assert!((whole[(i, j)] - matrix[(i, j)]).abs() < 1e-8, "({i}, {j})");
    }
}

#[test]
fn all_entries_of_many_columns() {
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let truth = covariance(57, &mut random);
    let positions = (0..57).flat_map(|row| (0..=row).map(move |column| (row, column)));
    let entries: Vec<MeasuredEntry> = positions
        .map(|(row, column)| MeasuredEntry { row, column, value: truth[(row, column)], precision: 1e6 })
        .collect();
    let singles: Vec<PathPoint> = (0..57).map(|j| PathPoint::single(truth[(j, j)], 1e6, WARM)).collect();
    let start = PathPoint::block_diagonal(&singles.iter().collect::<Vec<_>>());
    let found = follow(&entries, start, 1e-8, REMEMBERED).end.covariance;
    let error = entries.iter().map(|e| (found[(e.row, e.column)] - e.value).abs()).fold(0.0, f64::max);
    assert!(error < 1e-6, "{error:e}");
}
