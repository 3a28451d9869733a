//! The mechanism as defined, in dense matrices: workloads A, strategies C, decoders B = AC⁻¹, and
//! the resulting noise levels. Shares no code with the tested program, except the noise multiplier
//! σ.
//!
//! With `X = CᵀC`, `α = max X_ii` and `g = max(0, −min X_ij)`, one record moves the release, in
//! units of the clip norm ζ and in squared norm, by at most
//!
//! ```text
//! replace-one            max(r_d(ν)·α, 2K(α + g))     K = 1 + ν + c   (count of weight c = ½)
//! replace-one-in-place   r_d(ν)·α                                        (counts are public)
//! zero-out               K·α
//! ```
//!
//! for JME (with A for α; other methods: the tables of `docs/privacy.md`, Algorithms 4 to 6 of the
//! paper with α-IME's share ½). Let s be the root of that times ζ. The noise of C's output is then
//! sσ for first moments, sσζ/√ν for second moments, 1/√2 of this off the diagonal, and sσ/(ζ√c) for
//! counts: Theorem 3.3 of "Continual Release Moment Estimation with Differential Privacy" with
//! every ζ in its place, and the count beside it.

use nalgebra::DMatrix;

use super::experiment::ExperimentCase;

/// Returns A for a workload of the command line, with steps from 0.
pub(crate) fn workload(name: &str, epochs: usize) -> DMatrix<f64> {
    let weight = |t: usize, i: usize| match name.split_once(':') {
        None if name == "average" => 1.0 / (t + 1) as f64,
        Some(("exponential", decay)) => decay.parse::<f64>().expect("a decay").powi((t - i) as i32),
        Some((_, length)) => {
            let length: usize = length.parse().expect("a window's length");
            if t - i < length { 1.0 / length as f64 } else { 0.0 }
        }
        None => 1.0,
    };
    DMatrix::from_fn(epochs, epochs, |t, i| if i <= t { weight(t, i) } else { 0.0 })
}

/// Returns C for the workload that it is made for; the square root for averages is that for prefix
/// sums.
pub(crate) fn strategy(name: &str, made_for: &str, epochs: usize) -> DMatrix<f64> {
    match name {
        "identity" => DMatrix::identity(epochs, epochs),
        _ if made_for == "average" => lower_square_root(&workload("prefix", epochs)),
        _ => lower_square_root(&workload(made_for, epochs)),
    }
}

/// Returns the lower-triangular square root, computed diagonal by diagonal (Björck & Hammarling
/// 1983).
fn lower_square_root(matrix: &DMatrix<f64>) -> DMatrix<f64> {
    let size = matrix.nrows();
    let mut root = DMatrix::zeros(size, size);
    for lag in 0..size {
        for t in lag..size {
            let i = t - lag;
            let between: f64 = (i + 1..t).map(|k| root[(t, k)] * root[(k, i)]).sum();
            root[(t, i)] = match lag {
                0 => matrix[(t, t)].sqrt(),
                _ => (matrix[(t, i)] - between) / (root[(t, t)] + root[(i, i)]),
            };
        }
    }
    root
}

/// B = AC⁻¹: one row of B times the noise of C's output is the noise of one row of A's view.
pub(crate) fn decoder(workload: &DMatrix<f64>, strategy: &DMatrix<f64>) -> DMatrix<f64> {
    workload * strategy.clone().try_inverse().expect("a strategy has no zero on its diagonal")
}

/// ν of jointly clipped records.
pub(crate) const JOINT_WEIGHT: f64 = 0.5;

/// Standard deviations of the noise of C's output, for the coordinates of one key in order; 0 if
/// exact.
pub(crate) fn levels(case: &ExperimentCase, noise_multiplier: f64, strategy: &DMatrix<f64>) -> Vec<f64> {
    let (zeta, in_place) = (case.clip_norm, case.neighbours == "replace-one-in-place");
    let [count, first, second] = relative_levels(case, strategy).map(|level| level * noise_multiplier);
    let [count, first, second] = [if in_place { 0.0 } else { count }, first * zeta, second * zeta * zeta];
    let second =
        case.second_entries().into_iter().map(|(i, j)| if i == j { second } else { second / 2f64.sqrt() });
    std::iter::once(count).chain(vec![first; case.dimension]).chain(second).collect()
}

/// The levels of count, first and second moments, for σ = ζ = 1.
fn relative_levels(case: &ExperimentCase, strategy: &DMatrix<f64>) -> [f64; 3] {
    let gram = strategy.transpose() * strategy;
    let longest = gram.diagonal().max();
    let overlap = (-gram.min()).max(0.0);
    // For (count, x) with a count of weight 1.
    let first = match case.neighbours {
        "zero-out" => 1.5 * longest,
        "replace-one-in-place" => 4.0 * longest,
        _ => 4.0 * (longest + overlap),
    };
    let free_count = if case.neighbours == "zero-out" { 0.5_f64 } else { 1.0 };
    let levels =
        |squared: f64, count: f64, nu: f64| [(squared / count).sqrt(), squared.sqrt(), (squared / nu).sqrt()];
    match case.method {
        "pp" => levels(first, free_count, 1.0),
        "joint-clip" => levels(first, free_count, JOINT_WEIGHT),
        "ime" => {
            let second = match case.neighbours {
                "zero-out" => longest,
                "replace-one-in-place" if case.dimension == 1 => longest,
                "replace-one-in-place" => 2.0 * longest,
                _ => 2.0 * (longest + overlap),
            };
            levels(2.0 * first, free_count, first / second)
        }
        "cs" => {
            let (nu, squared) = match case.neighbours {
                "zero-out" => (0.5, 2.0 * longest),
                "replace-one-in-place" => (0.5, 6.0 * longest),
                _ => (0.5, 6.0 * (longest + overlap)),
            };
            levels(squared, if case.neighbours == "zero-out" { 0.5 } else { 1.5 }, nu)
        }
        _ => {
            let in_place = case.neighbours == "replace-one-in-place";
            let free = if in_place && case.dimension == 1 { 1.0 / 0.360_679_774_997_896_96 } else { 0.5 };
            let nu = case.second_moment_weight.map_or(free, |lambda| lambda * case.clip_norm.powi(2));
            levels(joint(case, nu, longest, overlap), 0.5, nu)
        }
    }
}

/// For JME. r_d is defined for ν up to its free threshold and, from two columns on, beyond it.
fn joint(case: &ExperimentCase, nu: f64, longest: f64, overlap: f64) -> f64 {
    let in_place = if case.dimension == 1 || nu <= 0.5 { 4.0 } else { 2.0 + 2.0 * nu + 1.0 / (2.0 * nu) };
    match case.neighbours {
        "zero-out" => (1.5 + nu) * longest,
        "replace-one-in-place" => in_place * longest,
        _ => (in_place * longest).max(2.0 * (1.5 + nu) * (longest + overlap)),
    }
}
