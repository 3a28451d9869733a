//! Lower bounds of the loss of all strategies, without a search for the best one.
//!
//! Every U of the [dual](super::dual) proves a bound: the loss is at least `T²/Σ v_π`, with `T = ‖A
//! R‖_*` and U = R Rᵀ. An error in U matters only to second order, so a simple U gives a bound
//! close to the optimum. A schema that also allows larger gaps only adds patterns, so the bound for
//! equal gaps holds for it.
//!
//! *Single participation.* R = diag(√v). With `S = (Rᵀ AᵀA R)^(1/2)` the best v has `diag S = v`.
//! From equal v, a few steps `v ← (diag S)²/v` come within 10⁻³ of it, for `momentum` 10⁻².
//!
//! *Exponential memory.* For workloads with one or two numbers of state, `diag S` takes O(n). Let
//! M = A R and y = M x + e, with independent x of variance p = 1/s² and e of variance 1. Then
//! `MᵀM (MᵀM + s² I)⁻¹` has the diagonal `1 − s² Var(x_t | y)`. A Kalman filter and smoother give
//! it as `p gᵀ J_t (I + P_t J_t)⁻¹ g`, where g is the gain of x_t, P_t the covariance of the state
//! given earlier y, and J_t the information of y_t and later y on it. All terms are positive, so no
//! digits cancel. The root follows from
//!
//! ```text
//! √λ = (2/π) ∫ e^w λ/(λ + e^(2w)) dw
//! ```
//!
//! The trapezoidal rule of step h has the relative error `2 Σ_m sech(π² m/h)`, at most
//! `4.1 e^(−π²/h)` for every λ, as the Fourier transform of sech is sech. Nodes that are left out
//! only lower the sum.
//!
//! *Windows* have too much state for this. No strategy does better in a block of steps than the
//! best one for the block alone, and the block's part of the workload does not depend on its
//! position. So n steps lose at least m times the bound of ⌊n/m⌋ steps.
//!
//! *Others*, and several participations, take eigendecompositions of n×n matrices. For several
//! participations U is that of a short horizon with as many participations: the multipliers of a
//! class are a mean of those of two classes at the same share of the gap.

use super::{
    OptimizeError, OptimizerSettings, QuadraticForm,
    algebra::dot,
    classes::Classes,
    dual::{DualPoint, start},
    search::{OptimizerProblem, search},
};
use crate::{
    participation::{Participation, ParticipationSchedule},
    workload::{Workload, WorkloadSums},
};
use libm::exp;
use std::{f64::consts::PI, ops::ControlFlow};
use thiserror::Error;

/// Longest horizon of the recursions.
const MAX_STEPS: u64 = 1 << 20;

/// Longest horizon of an eigendecomposition.
const MAX_DENSE_STEPS: u64 = 2048;

/// Longest horizon of an optimum for several participations.
const SHORT_HORIZON: usize = 256;

/// Longest block, and the longest window for which blocks lose little.
const BLOCK_STEPS: usize = 1024;
const MAX_BLOCKED_WINDOW: u64 = 64;

/// Number of values of v from eigendecompositions, which take seconds.
const DENSE_POINTS: usize = 2;

/// Share by which a bound is lowered for rounding.
const ROUNDING: f64 = 1e-9;

/// Reasons why there is no bound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BoundError {
    /// Too many steps.
    #[error("no lower bound is known beyond {limit} epochs for this workload and participation")]
    Horizon {
        /// Largest number of steps.
        limit: u64,
    },
    /// Too many participations for a short horizon.
    #[error("no lower bound is known for this number of participations")]
    Participations,
    /// The workload has no bound, or a factorisation failed.
    #[error(transparent)]
    Optimize(#[from] OptimizeError),
}

/// Returns a lower bound of the loss of every strategy, the total squared error times the squared
/// sensitivity. It takes seconds at most.
///
/// ```
/// use hushflow_mechanism::{optimize::loss_bound, participation::Participation, workload::Workload};
///
/// let bound = loss_bound(&Workload::Prefix, 512, Participation::Single)?;
/// assert!(bound > 0.999 * 3842.16 && bound <= 3842.17); // the certified optimum
/// # Ok::<(), hushflow_mechanism::optimize::BoundError>(())
/// ```
///
/// # Errors
/// [`BoundError`] if none is known.
pub fn loss_bound(
    workload: &Workload,
    horizon: u64,
    participation: Participation,
) -> Result<f64, BoundError> {
    let steps = usize::try_from(horizon).unwrap_or(usize::MAX);
    let within = |limit| if horizon <= limit { Ok(steps) } else { Err(BoundError::Horizon { limit }) };
    let bound = if !participation.is_single() {
        let steps = within(MAX_DENSE_STEPS)?;
        of_participations(workload, participation.on(steps))?
    } else if let Some(sums) = WorkloadSums::new(workload) {
        of_sums(workload, sums, within(MAX_STEPS)?)
    } else {
        match workload {
            // Smaller divisors of the first rows only raise the loss of their block.
            Workload::Window(length) | Workload::WindowMean(length)
                if length.get() <= MAX_BLOCKED_WINDOW && steps > BLOCK_STEPS =>
            {
                let blocks = steps.div_ceil(BLOCK_STEPS);
                blocks as f64 * of_matrix(&Workload::Window(*length), steps / blocks)?
            }
            _ => of_matrix(workload, within(MAX_DENSE_STEPS)?)?,
        }
    };
    Ok(bound * (1.0 - ROUNDING))
}

/// The largest bound of `points` values of v: equal entries, then steps `v ← (diag S)²/v`.
fn climb(steps: usize, points: usize, mut diagonal: impl FnMut(&[f64]) -> Vec<f64>) -> f64 {
    let (mut v, mut best) = (vec![1.0; steps], 0.0f64);
    for _ in 0..points {
        let root = diagonal(&v);
        let (trace, total) = (root.iter().sum::<f64>(), v.iter().sum::<f64>());
        best = best.max(trace * trace / total);
        v.iter_mut().zip(&root).for_each(|(v, root)| *v = root * root / *v);
    }
    best
}

fn of_sums(workload: &Workload, sums: WorkloadSums, steps: usize) -> f64 {
    let filter = Filter::new(workload, sums, steps);
    climb(steps, (MAX_STEPS as usize / steps).clamp(3, 40), |v| filter.root_diagonal(v))
}

/// Step of the trapezoidal rule in w, and the reach of its nodes beyond the eigenvalues.
const NODE_STEP: f64 = 0.5;
const NODE_REACH: f64 = 13.0;

/// A workload with one or two numbers of state.
struct Filter {
    sums: WorkloadSums,
    /// Squared factors of the rows.
    rows: Vec<f64>,
    /// Squared norms of the columns of A.
    columns: Vec<f64>,
}

impl Filter {
    fn new(workload: &Workload, sums: WorkloadSums, steps: usize) -> Self {
        let rows: Vec<f64> = (1..=steps as u64).map(|t| workload.row_divisor(t).powi(-2)).collect();
        let mut columns = rows.clone();
        if sums.summed {
            let toeplitz = workload.toeplitz_part(steps).unwrap_or_default();
            let squares = toeplitz.iter().scan(0.0, |sum, entry| {
                *sum += entry * entry;
                Some(*sum)
            });
            columns = squares.collect();
            columns.reverse();
        } else {
            (1..steps).rev().for_each(|t| columns[t - 1] += sums.decay * sums.decay * columns[t]);
        }
        Self { sums, rows, columns }
    }

    /// A lower bound of diag S, but for rounding.
    fn root_diagonal(&self, v: &[f64]) -> Vec<f64> {
        let frobenius = dot(v, &self.columns).sqrt();
        let (first, last) =
            (libm::log(frobenius / v.len() as f64) - NODE_REACH, libm::log(frobenius) + NODE_REACH);
        let nodes = ((last - first) / NODE_STEP).ceil() as usize;
        let mut diagonal = vec![0.0; v.len()];
        let mut before = vec![[0.0; 3]; v.len()];
        for node in 0..=nodes {
            let s = exp(first + node as f64 * NODE_STEP);
            let weight = 2.0 / PI * NODE_STEP * s;
            if self.sums.summed {
                self.add_momentum(v, s, weight, &mut before, &mut diagonal);
            } else {
                self.add_sum(v, s, weight, &mut before, &mut diagonal);
            }
        }
        let error = 4.1 * exp(-PI * PI / NODE_STEP);
        diagonal.iter_mut().for_each(|entry| *entry *= 1.0 - error);
        diagonal
    }

    /// One number of state: `S_t = β S_(t−1) + x_t`, `y_t = c_t S_t + e_t`.
    fn add_sum(&self, v: &[f64], s: f64, weight: f64, before: &mut [[f64; 3]], diagonal: &mut [f64]) {
        let (p, decay) = ((s * s).recip(), self.sums.decay * self.sums.decay);
        let mut after = 0.0;
        for ((&v, row), before) in v.iter().zip(&self.rows).zip(before.iter_mut()) {
            let covariance = decay * after + p * v;
            after = covariance / (1.0 + row * covariance);
            before[0] = covariance;
        }
        let mut later = 0.0;
        for t in (0..v.len()).rev() {
            let information = self.rows[t] + later;
            diagonal[t] += weight * p * v[t] * information / (1.0 + information * before[t][0]);
            later = decay * information / (1.0 + information * p * v[t]);
        }
    }

    /// Two numbers of state: `m_t = β m_(t−1) + x_t`, `S_t = S_(t−1) + m_t`, `y_t = S_t + e_t`.
    /// Symmetric matrices are held as the entries for (m, m), (m, S) and (S, S).
    fn add_momentum(&self, v: &[f64], s: f64, weight: f64, before: &mut [[f64; 3]], diagonal: &mut [f64]) {
        let (p, decay) = ((s * s).recip(), self.sums.decay);
        let mut after = [0.0; 3];
        for (&v, before) in v.iter().zip(before.iter_mut()) {
            let [mm, ms, ss] = after;
            let (mm, ms) = (decay * decay * mm, decay * ms);
            let covariance = [mm + p * v, mm + ms + p * v, mm + 2.0 * ms + ss + p * v];
            let [mm, ms, ss] = covariance;
            let share = 1.0 / (1.0 + ss);
            after = [mm - ms * ms * share, ms * share, ss * share];
            *before = covariance;
        }
        let mut later = [0.0; 3];
        for t in (0..v.len()).rev() {
            let [mm, ms, ss] = [later[0], later[1], later[2] + 1.0];
            // J g and gᵀ J g, for g = (1, 1).
            let (along, total) = ([mm + ms, ms + ss], mm + 2.0 * ms + ss);
            // gᵀ J (I + P J)⁻¹ g by Cramer's rule: gᵀ J adj(I + P J) g / det(I + P J).
            let [a, b, c] = before[t];
            let product = [[a * mm + b * ms, a * ms + b * ss], [b * mm + c * ms, b * ms + c * ss]];
            let determinant =
                1.0 + product[0][0] + product[1][1] + (a * c - b * b).max(0.0) * (mm * ss - ms * ms).max(0.0);
            let solved = [1.0 + product[1][1] - product[0][1], 1.0 + product[0][0] - product[1][0]];
            let explained = (along[0] * solved[0] + along[1] * solved[1]) / determinant;
            diagonal[t] += weight * (p * v[t] * explained).clamp(0.0, 1.0);
            let share = p * v[t] / (1.0 + p * v[t] * total);
            let reduced = [
                mm - along[0] * along[0] * share,
                ms - along[0] * along[1] * share,
                ss - along[1] * along[1] * share,
            ];
            let [mm, ms, ss] = reduced;
            later = [decay * decay * (mm + 2.0 * ms + ss), decay * (ms + ss), ss];
        }
    }
}

/// Lower bound from eigendecompositions, for single participation.
fn of_matrix(workload: &Workload, steps: usize) -> Result<f64, OptimizeError> {
    let form = QuadraticForm::from_workload(workload, steps)?;
    let classes = Classes::new(steps, 1, steps);
    let problem = OptimizerProblem::new(&form, &classes)?;
    let (mut best, mut multipliers) = (0.0f64, start(problem.form.as_ref(), &classes));
    for _ in 0..DENSE_POINTS {
        let Some(point) = DualPoint::new(problem.form.as_ref(), &classes, &multipliers, 0.0) else { break };
        best = best.max(point.bound());
        if problem.singular {
            break; // X(U) is not known along the null space
        }
        let gram = point.gram(&classes);
        multipliers = point.multipliers;
        multipliers.iter_mut().enumerate().for_each(|(i, v)| *v *= gram[(i, i)] * gram[(i, i)]);
    }
    if best > 0.0 { Ok(best * problem.scale) } else { Err(OptimizeError::Numerical) }
}

/// Lower bound from the multipliers of the optimum of a short horizon, stretched to the whole one.
fn of_participations(workload: &Workload, schedule: ParticipationSchedule) -> Result<f64, BoundError> {
    let (steps, count, gap) = (schedule.horizon(), schedule.count(), schedule.gap());
    let (members, rest) = (steps.div_ceil(gap), steps % gap);
    let short_gap = (SHORT_HORIZON / members).min(gap);
    if short_gap == 0 || rest > 0 && short_gap == 1 && gap > 1 {
        return Err(BoundError::Participations);
    }
    // The classes before the rest have one member more; both kinds must be present.
    let short_rest = match rest {
        0 => 0,
        _ if short_gap == gap => rest,
        rest => (rest * short_gap).div_euclid(gap).clamp(1, short_gap - 1),
    };
    let short_steps = if rest == 0 { members * short_gap } else { (members - 1) * short_gap + short_rest };
    let form = QuadraticForm::from_workload(workload, short_steps)?;
    let short = Classes::new(short_steps, count, short_gap);
    let problem = OptimizerProblem::new(&form, &short)?;
    if problem.singular {
        return Err(OptimizeError::Singular.into());
    }
    let settings = OptimizerSettings { relative_gap: 1e-4, ..OptimizerSettings::default() };
    let found = search(&problem, &settings, &mut |_| ControlFlow::Continue(()))?;
    if short_gap == gap {
        return Ok(found.progress.lower_bound);
    }
    let classes = Classes::new(steps, count, gap);
    let group = |class: usize, rest: usize, gap: usize| if class < rest { (0, rest) } else { (rest, gap) };
    let parts: Vec<_> = short.parts().map(|(_, part)| part).collect();
    let stretched = |class: usize| -> Vec<f64> {
        let (first, end) = group(class, rest, gap);
        let (short_first, short_end) = if class < rest { (0, short_rest) } else { (short_rest, short_gap) };
        let along = ((class - first) as f64 + 0.5) / (end - first) as f64;
        let position = along * (short_end - short_first) as f64 - 0.5;
        let position = position.clamp(0.0, (short_end - short_first - 1) as f64);
        let (left, share) = (position as usize, position.fract());
        let right = (left + 1).min(short_end - short_first - 1);
        let multipliers_of = |class: usize| &found.multipliers[parts[short_first + class].clone()];
        multipliers_of(left)
            .iter()
            .zip(multipliers_of(right))
            .map(|(a, b)| (1.0 - share) * a + share * b)
            .collect()
    };
    let multipliers: Vec<f64> = (0..gap).flat_map(stretched).collect();
    let form = QuadraticForm::from_workload(workload, steps)?;
    let problem = OptimizerProblem::new(&form, &classes)?;
    let point = DualPoint::new(problem.form.as_ref(), &classes, &multipliers, 0.0);
    Ok(point.ok_or(OptimizeError::Numerical)?.bound() * problem.scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::{algebra, multi_epoch};
    use faer::Mat;
    use proptest::prelude::*;

    const WORKLOADS: [&str; 6] =
        ["prefix", "average", "exponential:0.9", "adam:0.9", "momentum:0.9", "momentum:0.5"];

    fn bound(workload: &str, steps: u64, participation: &str) -> f64 {
        loss_bound(&workload.parse().unwrap(), steps, participation.parse().unwrap()).unwrap()
    }

    /// diag S from an eigendecomposition.
    fn dense_diagonal(workload: &Workload, v: &[f64]) -> Vec<f64> {
        let a = workload.matrix(v.len());
        let m = Mat::from_fn(v.len(), v.len(), |t, i| a[(t, i)] * v[i].sqrt());
        let eigen = algebra::eigen(algebra::gram(m.as_ref()).as_ref()).unwrap();
        let eigen = &eigen;
        let entry =
            |i: usize| (0..v.len()).map(move |a| eigen.vectors[(i, a)].powi(2) * eigen.values[a].sqrt());
        (0..v.len()).map(|i| entry(i).sum()).collect()
    }

    #[test]
    fn the_filter_agrees_with_eigenvalues() {
        for text in WORKLOADS {
            let workload: Workload = text.parse().unwrap();
            let filter = Filter::new(&workload, WorkloadSums::new(&workload).unwrap(), 60);
            for power in [0.0, 1.0, -1.5] {
                let v: Vec<f64> = (1..=60).map(|t| f64::from(t).powf(power)).collect();
                let pairs = filter.root_diagonal(&v).into_iter().zip(dense_diagonal(&workload, &v));
                for (found, expected) in pairs {
                    let ratio = found / expected;
                    assert!((1.0 - 1e-4..1.0 + 1e-9).contains(&ratio), "{text} {power}: {ratio}");
                }
            }
        }
    }

    /// The bound is below the certified optimum and close to it.
    #[test]
    fn bounds_are_below_the_optimum_and_near_it() {
        let check = |workload: &str, steps: u64, participation: &str, share: f64| {
            let form = QuadraticForm::from_workload(&workload.parse().unwrap(), steps as usize).unwrap();
            let schedule = participation.parse::<Participation>().unwrap().on(steps as usize);
            let settings = OptimizerSettings::default();
            let (count, gap) = (schedule.count(), schedule.gap());
            let optimum =
                multi_epoch(&form, count, gap, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
            let ratio = bound(workload, steps, participation) / optimum.objective;
            assert!(ratio <= 1.0 && ratio > share, "{workload} {steps} {participation}: {ratio}");
        };
        for workload in WORKLOADS.into_iter().chain(["window:10", "window-mean:10"]) {
            check(workload, 200, "1", 0.998);
        }
        check("prefix", 280, "7x40", 0.98);
        check("prefix", 290, "20x14", 0.98);
        check("prefix", 24, "4x6+", 0.999);
        check("prefix", 12, "every-step", 0.999);
    }

    #[test]
    fn blocks_of_a_window_are_a_bound() {
        let ratio = bound("window:10", 1200, "1") / of_matrix(&"window:10".parse().unwrap(), 1200).unwrap();
        assert!(ratio > 0.98 && ratio < 1.0, "{ratio}");
    }

    #[test]
    fn errors_name_the_horizon_without_a_bound() {
        let message = |workload: &str, steps, participation: &str| {
            let bound = loss_bound(&workload.parse().unwrap(), steps, participation.parse().unwrap());
            bound.unwrap_err().to_string()
        };
        assert!(message("prefix", 1 << 21, "1").contains("beyond 1048576 epochs"));
        assert!(message("prefix", 4000, "4x1000").contains("beyond 2048 epochs"));
        assert!(message("prefix", 2000, "every-step").contains("this number of participations"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Brute force: no random C of sensitivity 1 has a lower loss.
        #[test]
        fn no_strategy_is_below_the_bound(
            steps in 2usize..7,
            entries in prop::collection::vec(0.0..1.0f64, 36),
            workload in "prefix|average|window:2|exponential:0\\.7",
            participation in "1|2x2|2x1|2x2\\+|every-step",
        ) {
            let workload: Workload = workload.parse().unwrap();
            let participation: Participation = participation.parse().unwrap();
            let entry = |t: usize, i: usize| match t.cmp(&i) {
                std::cmp::Ordering::Less => 0.0,
                std::cmp::Ordering::Equal => 0.5 + entries[6 * t + i],
                std::cmp::Ordering::Greater => entries[6 * t + i],
            };
            let c = nalgebra::DMatrix::from_fn(steps, steps, entry);
            let gram = c.tr_mul(&c);
            let schedule = participation.on(steps);
            let patterns = schedule.patterns(schedule.first_steps(), 1000).unwrap();
            let sum = |pattern: &Vec<usize>| -> f64 {
                pattern.iter().flat_map(|&i| pattern.iter().map(move |&j| (i, j))).map(|at| gram[at]).sum()
            };
            let squared_sensitivity = patterns.iter().map(sum).fold(0.0, f64::max);
            let decoder = workload.matrix(steps) * c.try_inverse().unwrap();
            let bound = loss_bound(&workload, steps as u64, participation).unwrap();
            prop_assert!(squared_sensitivity * decoder.norm_squared() >= bound);
        }
    }
}
