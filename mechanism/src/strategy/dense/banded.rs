//! The best C with b bands, for the squared error summed over all steps and single participation.
//!
//! A lower-triangular C has b bands exactly if `X = CᵀC` has, and `‖AC⁻¹‖² = tr(V X⁻¹)` with
//! `V = AᵀA` is convex in X, so there is one optimum. [`descend`] approaches it in the entries of
//! C, with columns scaled to norm 1. Its variables are scaled by `√(Y_tt (X⁻¹)_ii)`, `Y = BᵀB`,
//! like the second derivative.
//!
//! # Lower bound
//!
//! Take any U ⪰ 0 that is 0 within the bands off the diagonal. A feasible X is 0 outside the bands
//! and at most 1 on the diagonal, so `⟨U, X⟩ ≤ tr U`. And `tr(V X⁻¹) + ⟨U, X⟩ ≥ 2 T` with
//! `T = ‖A U^(1/2)‖_*` for all X ≻ 0. With the best scale of U, `tr(V X⁻¹) ≥ T²/tr U`: a bound for
//! every banded C. At the optimum `U = X⁻¹VX⁻¹` is such a U and attains it. At the end of the
//! descent, this U is cut and shifted to satisfy both conditions.
//!
//! # Descent
//! Limited-memory descent (L-BFGS; Nocedal and Wright, Numerical Optimization, 2006, algorithms 7.4
//! and 7.5), for smooth functions of many variables. Plain loops visit the same points on every
//! machine if the function returns the same values.

use super::Dense;
use super::root::{lower_square_root, rooted_workload};
use crate::strategy::toeplitz::MAX_BANDS;
use crate::strategy::{
    Factorization, Fit, Kind, Objective, OptimisedStrategy, Strategy, StrategyError, StrategyParameters,
};
use crate::workload::Workload;
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Mat, Par, Side};
use nalgebra::DMatrix;
use std::collections::VecDeque;
use std::num::NonZeroU32;

/// Longest horizon of the best banded strategy: an iteration takes about n³ operations.
const MAX_BANDED_OPTIMAL_HORIZON: u64 = 2048;

/// Longest horizon for which the descent takes only seconds.
const COMPARED_STEPS: u64 = 128;

const ITERATIONS: usize = 500;

/// `banded-optimal:b`: the best C with b bands, for a workload with a positive diagonal.
pub(in crate::strategy) static BANDED_OPTIMAL: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    horizon: MAX_BANDED_OPTIMAL_HORIZON,
    compared: |kind, purpose| Ok(vec![kind.numbered(purpose.bands_apart()).up_to(COMPARED_STEPS)]),
    fit: Fit::Parameters {
        search: |name, purpose, _| {
            let best = banded_optimal(name.number(), &purpose.workload, purpose.horizon)?;
            let bounded = purpose.objective == Objective::Rmse && purpose.participation.is_single();
            Ok(OptimisedStrategy {
                fitted: StrategyParameters::Dense(best.strategy.parameters().clone()),
                objective: best.objective,
                lower_bound: None,
                class_bound: bounded.then(|| (best.lower_bound / purpose.horizon as f64).sqrt()),
            })
        },
        objective: false,
    },
    strategy: Some(super::of_parameters),
    ..Kind::new("banded-optimal", "the optimum with b bands")
};

/// The best banded strategy found, and a bound of its distance from the optimum.
struct BandedOptimum {
    /// C itself. It is stored, because on another machine a descent may end with other last digits.
    strategy: Dense,
    /// Squared norm of the longest column of C times `‖AC⁻¹‖²`.
    objective: f64,
    /// Lower bound of the objective over all C with the same number of bands.
    lower_bound: f64,
}

fn banded_optimal(
    bands: NonZeroU32,
    workload: &Workload,
    horizon: u64,
) -> Result<BandedOptimum, StrategyError> {
    let name = BANDED_OPTIMAL.numbered(bands.get());
    let a = rooted_workload(&name, workload, horizon, MAX_BANDED_OPTIMAL_HORIZON)?;
    let problem = BandedObjective::new(&a, bands.get() as usize);
    let start = problem.entries(&lower_square_root(&a));
    let scales = problem.scales(&start);
    let scaled: Vec<f64> = start.iter().zip(&scales).map(|(entry, scale)| entry * scale).collect();
    let end = descend(scaled, ITERATIONS, |point| {
        let (value, gradient) = problem.evaluate(&unscale(point, &scales));
        (value, unscale(&gradient, &scales))
    });
    let c = problem.normalized(&unscale(&end, &scales)).0;
    // The descent can flip the sign of a row, which leaves CᵀC unchanged.
    let upright = |t: usize, i: usize| c[(t, i)] * c[(t, t)].signum();
    let strategy = Dense::new(name, &DMatrix::from_fn(a.nrows(), a.ncols(), upright))?;
    let squares = strategy.decoder_row_norms(workload, horizon).map(|norm| norm * norm);
    let objective = squares.sum::<f64>() * strategy.geometry().max_norm_squared;
    Ok(BandedOptimum { strategy, objective, lower_bound: problem.lower_bound(&c) })
}

fn unscale(point: &[f64], scales: &[f64]) -> Vec<f64> {
    point.iter().zip(scales).map(|(x, scale)| x / scale).collect()
}

/// `‖AC⁻¹‖²` as a function of the entries within the bands, row by row. For exponents above 1:
/// `(Σ_t ‖row t of AC⁻¹‖^(2 exponent))^(1/exponent)`.
pub(super) struct BandedObjective {
    /// Aᵀ.
    transposed: Mat<f64>,
    bands: usize,
    exponent: f64,
}

impl BandedObjective {
    pub(super) fn new(a: &DMatrix<f64>, bands: usize) -> Self {
        Self { transposed: Mat::from_fn(a.ncols(), a.nrows(), |i, t| a[(t, i)]), bands, exponent: 1.0 }
    }

    pub(super) fn with_exponent(self, exponent: f64) -> Self {
        Self { exponent, ..self }
    }

    fn steps(&self) -> usize {
        self.transposed.nrows()
    }

    pub(super) fn positions(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let bands = self.bands;
        (0..self.steps()).flat_map(move |t| ((t + 1).saturating_sub(bands)..=t).map(move |i| (t, i)))
    }

    fn entries(&self, c: &DMatrix<f64>) -> Vec<f64> {
        self.positions().map(|position| c[position]).collect()
    }

    /// C with columns of norm 1, and the norms before scaling.
    fn normalized(&self, entries: &[f64]) -> (Mat<f64>, Vec<f64>) {
        let mut c = Mat::zeros(self.steps(), self.steps());
        self.positions().zip(entries).for_each(|(position, &entry)| c[position] = entry);
        let norms: Vec<f64> = c.col_iter().map(|column| column.norm_l2()).collect();
        self.positions().for_each(|position| c[position] /= norms[position.1]);
        (c, norms)
    }

    /// Bᵀ for `B = AC⁻¹`.
    fn transposed_decoder(&self, c: &Mat<f64>) -> Mat<f64> {
        let mut decoder = self.transposed.clone();
        solve_upper_triangular_in_place(c.transpose(), decoder.as_mut(), Par::Seq);
        decoder
    }

    /// `Y = BᵀB`.
    fn decoder_gram(&self, c: &Mat<f64>) -> Mat<f64> {
        let decoder = self.transposed_decoder(c);
        &decoder * decoder.transpose()
    }

    /// The logarithm of the objective and its gradient: the gradient of the square is `−2 Y C⁻ᵀ`,
    /// without the part that would change column norms. For other exponents Y is made of weighted
    /// rows.
    pub(super) fn evaluate(&self, entries: &[f64]) -> (f64, Vec<f64>) {
        let (c, norms) = self.normalized(entries);
        let mut decoder = self.transposed_decoder(&c);
        let squares: Vec<f64> = decoder.col_iter().map(|row| row.squared_norm_l2()).collect();
        let largest = squares.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let power = |square: &f64, exponent: f64| libm::pow(square / largest, exponent);
        let sum: f64 = squares.iter().map(|square| power(square, self.exponent)).sum();
        for (mut row, square) in decoder.col_iter_mut().zip(&squares) {
            row *= faer::Scale((power(square, self.exponent - 1.0) / (sum * largest)).sqrt());
        }
        let mut solved = &decoder * decoder.transpose();
        solve_lower_triangular_in_place(c.as_ref(), solved.as_mut(), Par::Seq);
        let slope = |(t, i): (usize, usize)| -2.0 * solved[(i, t)];
        let mut along = vec![0.0; norms.len()];
        self.positions().for_each(|position| along[position.1] += slope(position) * c[position]);
        let tangential = |position: (usize, usize)| {
            (slope(position) - along[position.1] * c[position]) / norms[position.1]
        };
        let value = libm::log(largest) + libm::log(sum) / self.exponent;
        (value, self.positions().map(tangential).collect())
    }

    /// `√(Y_tt (X⁻¹)_ii)` for every entry.
    fn scales(&self, entries: &[f64]) -> Vec<f64> {
        let c = self.normalized(entries).0;
        let gram = self.decoder_gram(&c);
        let inverse = super::squared_row_norms(Mat::identity(self.steps(), self.steps()), &c);
        self.positions().map(|(t, i)| (gram[(t, t)] * inverse[i]).sqrt()).collect()
    }

    /// The bound of the dual, lowered by a share `n ε` for rounding.
    fn lower_bound(&self, c: &Mat<f64>) -> f64 {
        let steps = self.steps();
        let mut half = self.decoder_gram(c);
        solve_lower_triangular_in_place(c.as_ref(), half.as_mut(), Par::Seq);
        let mut dual = half.transpose().to_owned();
        solve_lower_triangular_in_place(c.as_ref(), dual.as_mut(), Par::Seq);
        let kept = |t: usize, i: usize| t == i || t.abs_diff(i) >= self.bands;
        let mut dual =
            Mat::from_fn(
                steps,
                steps,
                |t, i| {
                    if kept(t, i) { (dual[(t, i)] + dual[(i, t)]) / 2.0 } else { 0.0 }
                },
            );
        let mut shift = f64::EPSILON * dual.norm_max() + f64::MIN_POSITIVE;
        while shift.is_finite() {
            if let Ok(factor) = dual.llt(Side::Lower) {
                let trace = dual.diagonal().column_vector().sum();
                let values = (self.transposed.transpose() * factor.L()).singular_values();
                let nuclear = values.map_or(0.0, |values| values.iter().sum::<f64>());
                return nuclear * nuclear / trace * (1.0 - steps as f64 * f64::EPSILON);
            }
            (0..steps).for_each(|t| dual[(t, t)] += shift);
            shift *= 8.0;
        }
        0.0
    }
}

const MEMORY: usize = 20;

/// The descent stops when a quadratic model predicts no larger gain than this.
const TOLERANCE: f64 = 1e-13;

/// Minimum gain of a step, as a share of the gain that the slope predicts.
const SUFFICIENT: f64 = 1e-4;

const HALVINGS: usize = 40;

/// A step and the change of the gradient along it.
type CurvaturePair = (Vec<f64>, Vec<f64>);

/// Descends from `start` until no gain is predicted, no step reduces the value, or `iterations` are
/// done. `evaluate` returns the value and the gradient.
pub(super) fn descend(
    start: Vec<f64>,
    iterations: usize,
    mut evaluate: impl FnMut(&[f64]) -> (f64, Vec<f64>),
) -> Vec<f64> {
    let (mut point, mut memory) = (start, VecDeque::new());
    let (mut value, mut gradient) = evaluate(&point);
    for _ in 0..iterations {
        let direction = direction(&memory, &gradient);
        let slope = dot(&direction, &gradient);
        if slope.is_nan() || -slope <= 2.0 * TOLERANCE {
            return point;
        }
        let mut candidates = (0..HALVINGS).map(|halving| {
            let length = 0.5f64.powi(halving as i32);
            let candidate: Vec<f64> = point.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            let (value, gradient) = evaluate(&candidate);
            (length, candidate, value, gradient)
        });
        let gains = |(length, _, found, _): &(f64, Vec<f64>, f64, Vec<f64>)| {
            *found <= value + SUFFICIENT * length * slope
        };
        let Some((_, next, next_value, next_gradient)) = candidates.find(gains) else {
            return point;
        };
        remember(&mut memory, difference(&next, &point), difference(&next_gradient, &gradient));
        (point, value, gradient) = (next, next_value, next_gradient);
    }
    point
}

/// Skips pairs along which the gradient does not grow: with them the model would not be convex.
fn remember(memory: &mut VecDeque<CurvaturePair>, step: Vec<f64>, change: Vec<f64>) {
    if dot(&step, &change) > f64::EPSILON * dot(&change, &change) {
        memory.push_front((step, change));
        memory.truncate(MEMORY);
    }
}

/// Minus the gradient times the approximate inverse Hessian from memory.
fn direction(memory: &VecDeque<CurvaturePair>, gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(memory.len());
    for (step, change) in memory {
        let weight = dot(step, &direction) / dot(step, change);
        add(&mut direction, -weight, change);
        weights.push(weight);
    }
    let scale = memory.front().map_or_else(
        || 1.0 / dot(gradient, gradient).sqrt().max(1.0),
        |(step, change)| dot(step, change) / dot(change, change),
    );
    direction.iter_mut().for_each(|d| *d *= scale);
    for ((step, change), weight) in memory.iter().zip(weights).rev() {
        let correction = weight - dot(change, &direction) / dot(step, change);
        add(&mut direction, correction, step);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], factor: f64, terms: &[f64]) {
    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += factor * term);
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::conformance;

    fn best(bands: u32, workload: &str, steps: u64) -> BandedOptimum {
        banded_optimal(NonZeroU32::new(bands).unwrap(), &workload.parse().unwrap(), steps).unwrap()
    }

    /// Compares with another implementation, and with the certified optimum for all bands.
    #[test]
    fn optima_are_certified_and_agree_with_known_values() {
        let check = |bands, workload, steps, expected: f64| {
            let best = best(bands, workload, steps);
            let gap = best.objective / best.lower_bound - 1.0;
            assert!((-1e-10..1e-8).contains(&gap), "{bands} {workload} {steps}: {gap}");
            let error = (best.objective / expected - 1.0).abs();
            assert!(error < 1e-8, "{bands} {workload} {steps}: {} against {expected}", best.objective);
        };
        check(4, "prefix", 32, 189.5719040777);
        check(8, "prefix", 128, 1473.3593213987);
        check(128, "prefix", 128, 683.6130247734);
        check(1000, "prefix", 64, 282.2014218116);
        check(8, "average", 128, 3.0699207962);
        check(128, "exponential:0.9", 128, 266.6352447686);
        check(32, "average", 32, 2.7434770794);
        check(128, "window:10", 128, 4.5997683874);
        check(1, "prefix", 16, 136.0);
        check(2, "prefix", 1, 1.0);
    }

    #[test]
    fn gradient_agrees_with_differences() {
        let a = "momentum:0.8".parse::<Workload>().unwrap().matrix(9);
        let problem = BandedObjective::new(&a, 4);
        let start: Vec<f64> = problem.positions().map(|(t, i)| 1.0 / (t + 2 * (t - i) + 1) as f64).collect();
        let gradient = problem.evaluate(&start).1;
        for position in 0..start.len() {
            let at = |shift: f64| {
                let mut point = start.clone();
                point[position] += shift;
                problem.evaluate(&point).0
            };
            let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!((slope - gradient[position]).abs() < 1e-7, "{position}: {slope} {}", gradient[position]);
        }
    }

    #[test]
    fn the_bound_holds_everywhere() {
        let a = Workload::Prefix.matrix(32);
        let problem = BandedObjective::new(&a, 4);
        for power in [0.0, 0.3, 2.0] {
            let entries: Vec<f64> =
                problem.positions().map(|(t, i)| ((t - i + 1) as f64).powf(-power)).collect();
            let bound = problem.lower_bound(&problem.normalized(&entries).0);
            assert!(bound < 189.5719040778 && bound > 1.0, "{power}: {bound}");
        }
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        let strategy = best(4, "prefix", 20).strategy;
        assert_eq!(strategy.encoder_bytes(), 3 * 16);
        conformance::check(&strategy, &Workload::Prefix, 20);
    }

    #[test]
    fn descent_reaches_the_minimum_of_a_curved_valley() {
        let valley = |x: &[f64]| {
            let mut gradient = vec![0.0; x.len()];
            let mut value = 0.0;
            for i in 0..x.len() - 1 {
                let (bend, rest) = (x[i + 1] - x[i] * x[i], 1.0 - x[i]);
                value += 100.0 * bend * bend + rest * rest;
                gradient[i] -= 400.0 * x[i] * bend + 2.0 * rest;
                gradient[i + 1] += 200.0 * bend;
            }
            (value, gradient)
        };
        let end = descend(vec![-1.2; 30], 500, valley);
        assert!(end.iter().all(|x| (x - 1.0).abs() < 1e-5), "{end:?}");
    }

    #[test]
    fn descent_with_few_steps_returns_its_best_point() {
        let square = |x: &[f64]| (x[0] * x[0], vec![2.0 * x[0]]);
        assert_eq!(descend(vec![3.0], 0, square), [3.0]);
        assert_eq!(descend(vec![0.0], 9, square), [0.0]);
    }
}
