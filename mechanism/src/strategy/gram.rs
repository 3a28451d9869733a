//! Entries of the Gram matrix CᵀC of a banded or full lower-triangular Toeplitz C, in exact
//! integers.
//!
//! With integer coefficients m_0, m_1, … (units of 2^-[`COEFFICIENT_BITS`]) two columns at a
//! distance `lag` overlap by `Σ_(j<e) m_j m_(j+lag)`, where e is the number of entries of the later
//! column: its distance from the last step. Coefficients are at most 2⁴⁰ in magnitude, so these
//! sums stay below 2¹²⁷.

use super::COEFFICIENT_BITS;

/// Maximum number of entries and lags that are summed exactly. The rest is bounded.
const EXACT_TERMS: usize = 1 << 16;

/// Like [`EXACT_TERMS`], for columns of different scales.
const EXACT_SCALED_TERMS: usize = 1 << 14;

/// Number of entries summed between two checks of whether the sum can still be a new minimum.
const BLOCK: usize = 64;

/// Squared norms of columns with 0, 1, … entries.
pub(super) fn squared_norms(coefficients: &[i64]) -> Vec<u128> {
    let squares = coefficients.iter().map(|m| u128::from(m.unsigned_abs()).pow(2));
    std::iter::once(0)
        .chain(squares.scan(0, |sum, square| {
            *sum += square;
            Some(*sum)
        }))
        .collect()
}

/// An upper bound of `−(CᵀC)_ij` for all i ≠ j and any number of steps, at least 0.
///
/// Exact for up to [`EXACT_TERMS`] coefficients, and 0 if all are at least 0.
pub(super) fn negative_overlap(coefficients: &[i64]) -> u128 {
    if coefficients.iter().all(|&m| m >= 0) { 0 } else { overlap_bound(coefficients, EXACT_TERMS) }
}

/// Sums up to `exact` entries and lags. All others, and those that cannot reach the lowest overlap
/// found, are bounded by the Cauchy–Schwarz inequality
/// `|Σ_(j≥e) m_j m_(j+lag)| ≤ ‖m_(≥e)‖ ‖m_(≥e+lag)‖`.
fn overlap_bound(coefficients: &[i64], exact: usize) -> u128 {
    let tails = tail_norms(coefficients);
    let lags = coefficients.len().min(exact);
    let beyond = -tails[0] * tails[lags];
    let lowest = |lowest, lag| lowest_overlap(&coefficients[lag..], coefficients, &tails, exact, lowest);
    (1..lags).fold(beyond, lowest).unsigned_abs()
}

/// The lowest overlap of two columns over all numbers of entries; `lowest` if that is lower.
/// `earlier` holds the coefficients of the earlier column that face the later one.
fn lowest_overlap(earlier: &[i64], later: &[i64], tails: &[i128], exact: usize, mut lowest: i128) -> i128 {
    let (lag, terms) = (later.len() - earlier.len(), earlier.len().min(exact));
    let mut sum = 0i128;
    for start in (0..terms).step_by(BLOCK) {
        if sum - tails[start] * tails[start + lag] >= lowest {
            return lowest;
        }
        let block = start..terms.min(start + BLOCK);
        for (&a, &b) in later[block.clone()].iter().zip(&earlier[block]) {
            sum += i128::from(a) * i128::from(b);
            lowest = lowest.min(sum);
        }
    }
    lowest.min(sum - tails[terms] * tails[terms + lag])
}

/// Norms of the coefficients from index 0, 1, … to the end, rounded up to integers.
fn tail_norms(coefficients: &[i64]) -> Vec<i128> {
    let reversed: Vec<i64> = coefficients.iter().rev().copied().collect();
    let root_up = |square: u128| {
        let root = square.isqrt();
        (root + u128::from(root * root < square)) as i128
    };
    squared_norms(&reversed).into_iter().rev().map(root_up).collect()
}

/// An upper bound of `−(CᵀC)_ij` for all i ≠ j, at least 0, where column i has the coefficients
/// times `scales[i]`. There is one scale per step of the horizon, and scales do not decrease.
///
/// Exact up to rounding, which is added, for up to [`EXACT_SCALED_TERMS`] coefficients; the others
/// are bounded by the Cauchy–Schwarz inequality. Two columns with fewer entries overlap less but
/// have larger scales.
pub(super) fn scaled_negative_overlap(coefficients: &[f64], scales: &[f64]) -> f64 {
    let lags = coefficients.len().min(EXACT_SCALED_TERMS);
    let mut tails: Vec<f64> = coefficients
        .iter()
        .rev()
        .scan(0.0, |sum, c| {
            *sum += c * c;
            Some(f64::sqrt(*sum))
        })
        .collect();
    tails.reverse();
    tails.push(0.0);
    // Scale of a column with 1, 2, … entries, counted from the last step.
    let scale = |entries: usize| scales.get(scales.len().saturating_sub(entries)).copied().unwrap_or(0.0);
    let beyond =
        if lags < coefficients.len() { -tails[0] * tails[lags] * scale(1) * scale(lags + 1) } else { 0.0 };
    let lowest = |lowest, lag| lowest_scaled_overlap(coefficients, lag, &tails, scales.len(), scale, lowest);
    let slack = coefficients.len() as f64 * 4.0 * f64::EPSILON * (tails[0] * scale(1)).powi(2);
    slack - (1..lags).fold(beyond, lowest)
}

/// The lowest overlap of two columns at distance `lag`, or `lowest` if that is lower.
fn lowest_scaled_overlap(
    coefficients: &[f64],
    lag: usize,
    tails: &[f64],
    steps: usize,
    scale: impl Fn(usize) -> f64,
    mut lowest: f64,
) -> f64 {
    let terms = (coefficients.len() - lag).min(EXACT_SCALED_TERMS).min(steps.saturating_sub(lag));
    let mut sum = 0.0;
    let to_come = |sum: f64, entries: usize| {
        let least = (sum - tails[entries] * tails[entries + lag]).min(0.0);
        least * scale(entries + 1) * scale(entries + 1 + lag)
    };
    for start in (0..terms).step_by(BLOCK) {
        if to_come(sum, start) >= lowest {
            return lowest;
        }
        for e in start..terms.min(start + BLOCK) {
            sum += coefficients[e] * coefficients[e + lag];
            lowest = lowest.min(sum * scale(e + 1) * scale(e + 1 + lag));
        }
    }
    lowest.min(to_come(sum, terms))
}

/// The real value of an entry of CᵀC, rounded up.
pub(super) fn round_up(entry: u128) -> f64 {
    let nearest = entry as f64;
    let above = if (nearest as u128) < entry { nearest.next_up() } else { nearest };
    above * 0.5f64.powi(2 * COEFFICIENT_BITS as i32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dense_overlap(coefficients: &[i64], steps: usize) -> i128 {
        let entry = |t: usize, i: usize| t.checked_sub(i).and_then(|lag| coefficients.get(lag)).copied();
        let column = |i| (0..steps).map(|t| entry(t, i).unwrap_or(0).into()).collect::<Vec<i128>>();
        let columns: Vec<_> = (0..steps).map(column).collect();
        let dot = |i: usize, j: usize| columns[i].iter().zip(&columns[j]).map(|(a, b)| a * b).sum::<i128>();
        (0..steps).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| -dot(i, j)).fold(0, i128::max)
    }

    fn coefficients() -> impl Strategy<Value = Vec<i64>> {
        let decaying = |(k, m): (usize, i64)| m / (k as i64 + 1);
        prop::collection::vec(-(1i64 << 40)..1 << 40, 1..200)
            .prop_map(move |all| all.into_iter().enumerate().map(decaying).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn the_overlap_is_that_of_the_dense_matrix(coefficients in coefficients(), exact in 1usize..100) {
            let steps = coefficients.len();
            let dense = dense_overlap(&coefficients, steps + 9) as u128;
            prop_assert_eq!(dense_overlap(&coefficients, steps) as u128, dense);
            prop_assert_eq!(overlap_bound(&coefficients, steps), dense);
            prop_assert_eq!(negative_overlap(&coefficients), dense);
            prop_assert!(overlap_bound(&coefficients, exact) >= dense);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn the_overlap_of_scaled_columns_is_that_of_the_dense_matrix(
            coefficients in coefficients(), growth in 0.0..0.1f64, spare in 0usize..9,
        ) {
            let c: Vec<f64> = coefficients.iter().map(|&m| m as f64 / 2f64.powi(40)).collect();
            let steps = c.len() + spare;
            let scales: Vec<f64> = (0..steps).map(|i| 1.0 + growth * i as f64).collect();
            let dot = |i: usize, j: usize| {
                let overlap: f64 = (j..steps).filter_map(|t| Some(c.get(t - i)? * c.get(t - j)?)).sum();
                scales[i] * scales[j] * overlap
            };
            let dense = (0..steps).flat_map(|j| (0..j).map(move |i| (i, j))).map(|(i, j)| -dot(i, j)).fold(0.0, f64::max);
            let found = scaled_negative_overlap(&c, &scales);
            prop_assert!(found >= dense && found <= dense + 1e-9, "{} against {}", found, dense);
        }
    }

    proptest! {
        #[test]
        fn rounding_never_goes_down(entry: u128) {
            let entry = entry >> 8;
            let real = round_up(entry) * 2f64.powi(80);
            prop_assert!(real as u128 >= entry && real <= entry as f64 * (1.0 + f64::EPSILON));
        }
    }

    #[test]
    fn a_quickly_decaying_tail_costs_little() {
        let coefficients: Vec<i64> =
            (1..1000).map(|k: i64| (1 << 40) / (k * k) * if k == 2 { -1 } else { 1 }).collect();
        let [exact, bound] = [999, 500].map(|exact| overlap_bound(&coefficients, exact) as f64);
        assert!(exact > 0.0 && bound >= exact && bound <= 1.001 * exact, "{bound} against {exact}");
    }

    #[test]
    fn rounding_up_leaves_exact_values_unchanged() {
        assert_eq!(round_up(1 << 80), 1.0);
        assert_eq!(round_up((1 << 80) + 1), 1.0f64.next_up());
        assert_eq!(round_up(0), 0.0);
    }
}
