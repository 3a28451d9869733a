//! Maximises the dual for a definite V, from the starting point to the certificate.
//!
//! Every point gives a lower bound and, rescaled to satisfy the constraints exactly, a feasible X.
//! The search keeps the best of each. It ends when they meet, when rounding stops the dual, or on
//! cancellation.
//!
//! *Non-negative multipliers.* If patterns overlap, some are slack at the optimum and some pairs
//! have X_ij > 0: their multipliers are 0 there. A primal-dual interior-point method maximises the
//! dual plus `μ Σ log θ` over all multipliers θ, for decreasing μ. At each maximum X(U) is
//! feasible, and the gap is μ times the number of constraints. Newton's method treats every slack
//! `σ = μ/θ` as a separate variable: the curvature of the logarithm is then σ/θ, and a step stays
//! good while μ falls.

use super::{
    OnProgress, OptimizeError, OptimizerProgress, OptimizerSettings, QuadraticForm, Stop,
    algebra::{self, plus},
    classes::Classes,
    dual::{self, AscentDirection, DualPoint},
};
use faer::{Mat, MatRef};

/// Minimum gain of an Armijo step, as a fraction of the slope's prediction.
pub(super) const SUFFICIENT_RISE: f64 = 1e-4;

/// Maximum share of the distance to the boundary of definiteness that a step covers. Near the
/// boundary, rounding is larger than the smallest eigenvalues.
const WAY_TO_BOUNDARY: f64 = 0.9;

/// Halvings of a step before it is abandoned.
pub(super) const HALVINGS: i32 = 40;

/// Iterations without a reduction of the gap by a hundredth before the search stops because of
/// rounding.
const PATIENCE: usize = 20;

/// V on steps sorted by class, divided by its mean diagonal entry.
pub(super) struct OptimizerProblem<'a> {
    pub(super) form: Mat<f64>,
    /// M with V = M Mᵀ; lower triangular unless V is singular.
    pub(super) root: Mat<f64>,
    pub(super) singular: bool,
    pub(super) scale: f64,
    pub(super) classes: &'a Classes,
}

impl<'a> OptimizerProblem<'a> {
    pub(super) fn new(form: &QuadraticForm, classes: &'a Classes) -> Result<Self, OptimizeError> {
        let scale = form.matrix().trace() / form.steps() as f64;
        let form = faer::Scale(scale.recip()) * classes.sorted(algebra::view(form.matrix()));
        let rounding = 4.0 * form.nrows() as f64 * f64::EPSILON;
        // A pivot is a difference. It is less exact if earlier pivots are small.
        let sound = |root: &Mat<f64>| {
            let pivots = (0..form.nrows()).map(|i| root[(i, i)].powi(2) / form[(i, i)]);
            let least = pivots
                .clone()
                .scan(1.0, |least: &mut f64, pivot| Some(std::mem::replace(least, least.min(pivot))));
            pivots.zip(least).all(|(pivot, least)| pivot * least > rounding)
        };
        let definite = algebra::cholesky(form.as_ref()).filter(sound);
        let singular = definite.is_none();
        let root = definite.or_else(|| row_space(form.as_ref())).ok_or(OptimizeError::Numerical)?;
        Ok(Self { form, root, singular, scale, classes })
    }

    /// tr(V X⁻¹) = ‖L⁻¹ M‖² for X = L Lᵀ; `None` unless X is positive definite.
    pub(super) fn value(&self, gram: &Mat<f64>) -> Option<f64> {
        let lower = algebra::cholesky(gram.as_ref())?;
        let value = algebra::solve_lower(lower.as_ref(), self.root.as_ref()).squared_norm_l2();
        value.is_finite().then_some(value)
    }
}

/// M of full column rank with V = M Mᵀ.
fn row_space(form: MatRef<'_, f64>) -> Option<Mat<f64>> {
    let algebra::Eigen { values, vectors } = algebra::eigen(form)?;
    let rounding = 4.0 * form.nrows() as f64 * f64::EPSILON * values.last()?;
    let kept: Vec<usize> = (0..values.len()).filter(|&a| values[a] > rounding).collect();
    Some(Mat::from_fn(form.nrows(), kept.len(), |i, a| vectors[(i, kept[a])] * values[kept[a]].sqrt()))
}

pub(super) struct OptimizerResult {
    pub(super) gram: Mat<f64>,
    /// v and w.
    pub(super) multipliers: Vec<f64>,
    pub(super) progress: OptimizerProgress,
    pub(super) stop: Stop,
}

/// The best bound and the best feasible X so far, with the progress callback.
pub(super) struct OptimizerRecord<'a> {
    found: OptimizerResult,
    scale: f64,
    settings: &'a OptimizerSettings,
    callback: OnProgress<'a>,
    /// The gap at its last notable reduction, and the iterations since.
    shrunk: (f64, usize),
}

impl<'a> OptimizerRecord<'a> {
    pub(super) fn new(
        problem: &OptimizerProblem<'_>,
        settings: &'a OptimizerSettings,
        callback: OnProgress<'a>,
    ) -> Result<Self, OptimizeError> {
        let gram = problem.classes.identity();
        let objective = problem.scale * problem.value(&gram).ok_or(OptimizeError::Numerical)?;
        let multipliers = dual::start(problem.form.as_ref(), problem.classes);
        let progress = OptimizerProgress { objective, ..OptimizerProgress::default() };
        let found = OptimizerResult { gram, multipliers, progress, stop: Stop::Rounding };
        Ok(Self { found, scale: problem.scale, settings, callback, shrunk: (f64::INFINITY, 0) })
    }

    pub(super) fn raise(&mut self, bound: f64, multipliers: &[f64]) {
        if bound * self.scale > self.found.progress.lower_bound {
            self.found.progress.lower_bound = bound * self.scale;
            self.found.multipliers = multipliers.to_vec();
        }
    }

    pub(super) fn lower(&mut self, objective: f64, gram: Mat<f64>) {
        if objective * self.scale < self.found.progress.objective {
            self.found.progress.objective = objective * self.scale;
            self.found.gram = gram;
        }
    }

    pub(super) fn count(&mut self, eigendecompositions: usize, conjugate_gradient_steps: usize) {
        self.found.progress.eigendecompositions += eigendecompositions;
        self.found.progress.conjugate_gradient_steps += conjugate_gradient_steps;
    }

    pub(super) fn verdict(&mut self) -> Option<Stop> {
        let progress = &mut self.found.progress;
        progress.iteration += 1;
        let cancelled = (self.callback)(progress).is_break();
        let gap = progress.relative_gap();
        self.shrunk = if gap < 0.99 * self.shrunk.0 { (gap, 0) } else { (self.shrunk.0, self.shrunk.1 + 1) };
        if gap <= self.settings.relative_gap {
            Some(Stop::Gap)
        } else if cancelled {
            Some(Stop::Cancelled)
        } else if progress.iteration >= self.settings.iterations {
            Some(Stop::Iterations)
        } else {
            (self.shrunk.1 >= PATIENCE).then_some(Stop::Rounding)
        }
    }

    pub(super) fn close(self, stop: Stop) -> OptimizerResult {
        OptimizerResult { stop, ..self.found }
    }
}

/// Climbs from [`dual::start`]. V must not be singular.
pub(super) fn search(
    problem: &OptimizerProblem<'_>,
    settings: &OptimizerSettings,
    callback: OnProgress<'_>,
) -> Result<OptimizerResult, OptimizeError> {
    let mut record = OptimizerRecord::new(problem, settings, callback)?;
    let start = dual::start(problem.form.as_ref(), problem.classes);
    let mut point = evaluate(problem, &start, 0.0, &mut record).ok_or(OptimizeError::Numerical)?;
    let mut interior = problem.classes.overlap().then(|| Interior::new(&point.multipliers, point.bound()));
    loop {
        let gram = point.gram(problem.classes);
        record.raise(point.bound(), &point.multipliers);
        let feasible = problem.classes.feasible(&gram);
        if let Some(objective) = problem.value(&feasible) {
            record.lower(objective, feasible);
        }
        if let Some(stop) = record.verdict() {
            return Ok(record.close(stop));
        }
        let target = settings.relative_gap;
        let direction = point.newton_direction(&gram, problem.classes, target, interior.as_ref());
        record.count(0, direction.conjugate_gradient_steps);
        let Some((next, length)) = climb(problem, &point, &direction, interior.as_ref(), &mut record) else {
            return Ok(record.close(Stop::Rounding));
        };
        if let Some(interior) = &mut interior {
            interior.advance(&point.multipliers, &direction.ascent, length, &next.multipliers);
        }
        point = next;
    }
}

/// Armijo's rule: tries the lengths 1, ½, ¼, … times the longest step with positive multipliers,
/// and takes the first that gains enough.
fn climb(
    problem: &OptimizerProblem<'_>,
    from: &DualPoint,
    direction: &AscentDirection,
    interior: Option<&Interior>,
    record: &mut OptimizerRecord<'_>,
) -> Option<(DualPoint, f64)> {
    let ascent = &direction.ascent;
    let longest = interior.map_or(1.0, |_| longest(&from.multipliers, ascent));
    let weight = interior.map_or(0.0, |interior| interior.weight * ascent.len() as f64);
    (0..HALVINGS).map(|halvings| longest * 0.5f64.powi(halvings)).find_map(|length| {
        let beyond = plus(&from.multipliers, length / WAY_TO_BOUNDARY, ascent);
        if problem.classes.matrices(&beyond).iter().any(|block| algebra::cholesky(block.as_ref()).is_none()) {
            return None;
        }
        let trial = plus(&from.multipliers, length, ascent);
        let enough = from.value(interior) + SUFFICIENT_RISE * length * direction.rise;
        evaluate(problem, &trial, weight, record)
            .filter(|next| next.value(interior) >= enough)
            .map(|next| (next, length))
    })
}

fn evaluate(
    problem: &OptimizerProblem<'_>,
    multipliers: &[f64],
    weight: f64,
    record: &mut OptimizerRecord<'_>,
) -> Option<DualPoint> {
    let point = DualPoint::new(problem.form.as_ref(), problem.classes, multipliers, weight)?;
    record.count(1, 0);
    Some(point)
}

/// First μ times the number of multipliers, relative to the bound.
const FIRST_GAP: f64 = 0.01;

/// Factor from the mean of σ θ to the next μ, if the steps of multipliers and slacks were longer
/// than half.
const DECREASE: f64 = 0.1;

/// Maximum share of the distance to a zero multiplier or slack that a step covers.
const WAY_TO_ZERO: f64 = 0.95;

/// Slacks stay within this factor of μ/θ.
const SPREAD: f64 = 1e3;

pub(super) struct Interior {
    /// μ.
    pub(super) weight: f64,
    /// σ.
    slacks: Vec<f64>,
}

impl Interior {
    /// Starts on the central path, without the curvature of the dual.
    pub(super) fn new(multipliers: &[f64], bound: f64) -> Self {
        let weight = FIRST_GAP * bound / multipliers.len() as f64;
        Self { weight, slacks: multipliers.iter().map(|theta| weight / theta).collect() }
    }

    /// `μ Σ log θ`.
    pub(super) fn value(&self, multipliers: &[f64]) -> f64 {
        self.weight * multipliers.iter().map(|theta| theta.ln()).sum::<f64>()
    }

    /// μ/θ.
    pub(super) fn gradient(&self, multipliers: &[f64]) -> Vec<f64> {
        multipliers.iter().map(|theta| self.weight / theta).collect()
    }

    /// σ/θ.
    pub(super) fn stiffness(&self, multipliers: &[f64]) -> Vec<f64> {
        self.slacks.iter().zip(multipliers).map(|(slack, theta)| slack / theta).collect()
    }

    /// Takes Newton's step of the slacks, after a step of the multipliers along `ascent` of this
    /// `length`. Sets the next μ.
    pub(super) fn advance(&mut self, from: &[f64], ascent: &[f64], length: f64, to: &[f64]) {
        let change =
            |((slack, theta), step): ((&f64, &f64), &f64)| self.weight / theta - slack - slack / theta * step;
        let change: Vec<f64> = self.slacks.iter().zip(from).zip(ascent).map(change).collect();
        let slack_length = longest(&self.slacks, &change);
        self.slacks.iter_mut().zip(change).for_each(|(slack, change)| *slack += slack_length * change);
        let mean =
            self.slacks.iter().zip(to).map(|(slack, theta)| slack * theta).sum::<f64>() / to.len() as f64;
        if length.min(slack_length) > 0.5 {
            self.weight = DECREASE * mean;
        }
        for (slack, theta) in self.slacks.iter_mut().zip(to) {
            *slack = slack.max(self.weight / (SPREAD * theta)).min(SPREAD * mean / theta);
        }
    }
}

/// Largest share of a step, at most 1, after which positive numbers stay well above 0.
pub(super) fn longest(from: &[f64], step: &[f64]) -> f64 {
    let shrinking = from.iter().zip(step).filter(|(_, step)| **step < 0.0);
    shrinking.map(|(from, step)| -WAY_TO_ZERO * from / step).fold(1.0, f64::min)
}
