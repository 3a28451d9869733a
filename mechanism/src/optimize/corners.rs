//! Optimal strategies for a few steps under the weaker constraints of Choquette-Choo et al. 2023,
//! Eqs. (34) to (36).
//!
//! They bound `uᵀ X u ≤ 1` for sign vectors u on the steps of each pattern of (k, b)-participation,
//! and may require non-negative entries. This is a convex program with linear constraints, solved
//! by the logarithmic barrier and Newton's method in the n(n+1)/2 entries of X. At the barrier's
//! optimum the constraints' reciprocal slacks are multipliers, which prove the lower bound.

use super::{OptimizeError, QuadraticForm};
use nalgebra::{Cholesky, DMatrix, DVector, SymmetricEigen};

/// Maximum number of steps: with more, the matrices of Newton's method are too large.
pub const MAX_STEPS: usize = 16;

/// Growth factor of the barrier's weight each time its optimum is reached.
const WEIGHT_GROWTH: f64 = 8.0;

const NEWTON_STEPS: usize = 50;

/// The set of contributions for which the sensitivity is bounded, and the allowed X.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corners {
    /// Eq. (34): every choice of signs. Exact for scalar contributions.
    Signed,
    /// Eq. (36): equal contributions, and `X_ij ≥ 0` within a pattern. Exact in every dimension.
    NonNegativeInPattern,
    /// Eq. (35): equal contributions, and X ≥ 0.
    NonNegative,
}

/// A feasible X and a lower bound of the objective.
#[derive(Clone, Debug, PartialEq)]
pub struct CornerOptimum {
    /// X.
    pub gram: DMatrix<f64>,
    /// tr(V X⁻¹).
    pub objective: f64,
    /// Lower bound of the objective over all feasible X.
    pub lower_bound: f64,
}

/// Returns the least tr(V X⁻¹) under (k, b)-participation and the given constraints, to the given
/// gap; for at most [`MAX_STEPS`] steps.
///
/// # Errors
/// As for [`multi_epoch`](super::multi_epoch()), and [`OptimizeError::TooManySteps`].
pub fn optimum(
    form: &QuadraticForm,
    count: usize,
    gap: usize,
    corners: Corners,
    relative_gap: f64,
) -> Result<CornerOptimum, OptimizeError> {
    let steps = form.steps();
    if steps > MAX_STEPS {
        return Err(OptimizeError::TooManySteps { found: steps, limit: MAX_STEPS });
    }
    super::check_participation(count, gap)?;
    let scale = form.matrix().trace() / steps as f64;
    let scaled = form.matrix() / scale;
    let program = Program { form: &scaled, constraints: constraints(steps, count, gap, corners) };
    let mut weight = 1.0;
    let mut point = program.interior_point(count.min(steps.div_ceil(gap)));
    let mut best: Option<CornerOptimum> = None;
    loop {
        point = program.centre(point, weight).ok_or(OptimizeError::Numerical)?;
        let found = program.certified(&point, weight, scale).ok_or(OptimizeError::Numerical)?;
        let gap = super::relative_gap(found.objective, found.lower_bound);
        let better =
            best.as_ref().is_none_or(|best| gap < super::relative_gap(best.objective, best.lower_bound));
        match best {
            Some(best) if !better => return Ok(best),
            _ if gap <= relative_gap => return Ok(found),
            _ => best = Some(found),
        }
        weight *= WEIGHT_GROWTH;
    }
}

/// ⟨A, X⟩ ≤ limit.
struct Constraint {
    coefficients: DMatrix<f64>,
    limit: f64,
}

fn constraints(steps: usize, count: usize, gap: usize, corners: Corners) -> Vec<Constraint> {
    let pattern = |start: usize| (start..steps).step_by(gap).take(count).collect::<Vec<_>>();
    let last = steps.saturating_sub((count - 1).saturating_mul(gap));
    let patterns = (0..last.max(gap.min(steps))).map(pattern);
    let signs = |members: usize| if corners == Corners::Signed { 1 << (members - 1) } else { 1 };
    let corner = |members: &[usize], signs: usize| {
        let mut u = DVector::zeros(steps);
        for (position, &step) in members.iter().enumerate() {
            u[step] = if signs >> position & 1 == 1 { -1.0 } else { 1.0 };
        }
        Constraint { coefficients: &u * u.transpose(), limit: 1.0 }
    };
    let bounds =
        patterns.flat_map(|members| (0..signs(members.len())).map(move |signs| corner(&members, signs)));
    let pairs = (0..steps).flat_map(|i| (0..i).map(move |j| (i, j)));
    let non_negative = pairs.filter(|(i, j)| match corners {
        Corners::Signed => false,
        Corners::NonNegativeInPattern => (i - j) % gap == 0 && (i - j) / gap < count,
        Corners::NonNegative => true,
    });
    bounds.chain(non_negative.map(|pair| non_negative_entry(steps, pair))).collect()
}

fn non_negative_entry(steps: usize, (i, j): (usize, usize)) -> Constraint {
    let mut coefficients = DMatrix::zeros(steps, steps);
    (coefficients[(i, j)], coefficients[(j, i)]) = (-1.0, -1.0);
    Constraint { coefficients, limit: 0.0 }
}

struct Program<'a> {
    form: &'a DMatrix<f64>,
    constraints: Vec<Constraint>,
}

impl Program<'_> {
    /// A point at half of the limit for patterns of this many steps, with small positive entries
    /// everywhere.
    fn interior_point(&self, members: usize) -> DMatrix<f64> {
        let (steps, members) = (self.form.nrows(), members as f64);
        let off_diagonal = 0.1 / (members * steps as f64);
        DMatrix::from_fn(steps, steps, |i, j| if i == j { 0.5 / members } else { off_diagonal })
    }

    fn slacks(&self, x: &DMatrix<f64>) -> Vec<f64> {
        self.constraints.iter().map(|constraint| constraint.limit - constraint.coefficients.dot(x)).collect()
    }

    /// `weight · tr(V X⁻¹) − Σ log slack`; infinite outside.
    fn barrier(&self, x: &DMatrix<f64>, weight: f64) -> f64 {
        let slacks = self.slacks(x);
        match Cholesky::new(x.clone()) {
            Some(factor) if slacks.iter().all(|&slack| slack > 0.0) => {
                weight * factor.inverse().dot(self.form) - slacks.iter().map(|slack| slack.ln()).sum::<f64>()
            }
            _ => f64::INFINITY,
        }
    }

    fn centre(&self, mut x: DMatrix<f64>, weight: f64) -> Option<DMatrix<f64>> {
        for _ in 0..NEWTON_STEPS {
            let (direction, decrement) = self.newton_step(&x, weight)?;
            if decrement < 1e-18 {
                break;
            }
            let here = self.barrier(&x, weight);
            let lengths = (0..60).map(|halvings| 0.5f64.powi(halvings));
            let enough = |&length: &f64| {
                self.barrier(&(&x + length * &direction), weight) <= here - 1e-4 * length * decrement
            };
            match lengths.into_iter().find(enough) {
                Some(length) => x += length * direction,
                None => break,
            }
        }
        Some(x)
    }

    /// Returns the direction of Newton's step and its decrement, computed in the basis of symmetric
    /// matrices with one pair of entries each.
    fn newton_step(&self, x: &DMatrix<f64>, weight: f64) -> Option<(DMatrix<f64>, f64)> {
        let inverse = Cholesky::new(x.clone())?.inverse();
        let product = &inverse * self.form * &inverse;
        let reciprocals: Vec<f64> = self.slacks(x).iter().map(|slack| slack.recip()).collect();
        let basis = basis(x.nrows());
        let mut slope = -weight * &product;
        for (constraint, reciprocal) in self.constraints.iter().zip(&reciprocals) {
            slope += *reciprocal * &constraint.coefficients;
        }
        let image = |direction: &DMatrix<f64>| {
            let half = weight * (&inverse * direction * &product);
            let mut image = &half + half.transpose();
            for (constraint, reciprocal) in self.constraints.iter().zip(&reciprocals) {
                let rate = constraint.coefficients.dot(direction) * reciprocal * reciprocal;
                image += rate * &constraint.coefficients;
            }
            image
        };
        let images: Vec<DMatrix<f64>> = basis.iter().map(image).collect();
        let hessian = DMatrix::from_fn(basis.len(), basis.len(), |p, q| basis[p].dot(&images[q]));
        let gradient = DVector::from_fn(basis.len(), |p, _| basis[p].dot(&slope));
        let step = -Cholesky::new(hessian)?.solve(&gradient);
        let decrement = -step.dot(&gradient);
        let direction = basis.iter().zip(&step).fold(x * 0.0, |sum, (e, length)| sum + *length * e);
        Some((direction, decrement))
    }

    /// Multipliers 1/(weight · slack) give U = Σ λ A, and the bound
    /// `(tr(U^(1/2) V U^(1/2))^(1/2))² / Σ λ·limit`.
    fn certified(&self, x: &DMatrix<f64>, weight: f64, scale: f64) -> Option<CornerOptimum> {
        let slacks = self.slacks(x);
        let mut sum = x * 0.0;
        let mut limits = 0.0;
        for (constraint, slack) in self.constraints.iter().zip(&slacks) {
            sum += &constraint.coefficients / (weight * slack);
            limits += constraint.limit / (weight * slack);
        }
        let root = Cholesky::new(sum)?.unpack();
        let eigen = SymmetricEigen::try_new(root.tr_mul(&(self.form * &root)), f64::EPSILON, 10_000)?;
        let nuclear: f64 = eigen.eigenvalues.iter().map(|value| value.max(0.0).sqrt()).sum();
        let objective = Cholesky::new(x.clone())?.inverse().dot(self.form);
        let lower_bound = scale * nuclear.powi(2) / limits;
        Some(CornerOptimum { gram: x.clone(), objective: scale * objective, lower_bound })
    }
}

/// E_ii, and E_ij + E_ji for i > j.
fn basis(n: usize) -> Vec<DMatrix<f64>> {
    let element = |(i, j): (usize, usize)| {
        let mut element = DMatrix::zeros(n, n);
        (element[(i, j)], element[(j, i)]) = (1.0, 1.0);
        element
    };
    (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optima_agree_with_table_6_to_all_printed_digits() {
        for case in &crate::reference::cases(include_str!("../../../tests/vectors/memf_table6.json")) {
            let (id, input, expected) = (&case["id"], &case["input"], &case["expected"]);
            let [steps, count, gap] = ["n", "k", "b"].map(|name| input[name].as_u64().unwrap() as usize);
            let text = match input["workload"].as_str().unwrap() {
                "exp" => format!("exponential:{}", input["param"]),
                "momentum" => format!("momentum:{}", input["param"]),
                name => name.into(),
            };
            let corners = match input["constraints"].as_str().unwrap() {
                "eq34" => Corners::Signed,
                "eq36" => Corners::NonNegativeInPattern,
                _ => Corners::NonNegative,
            };
            let form = QuadraticForm::from_workload(&text.parse().unwrap(), steps).unwrap();
            let found = optimum(&form, count, gap, corners, 1e-9).unwrap();
            assert!(found.objective / found.lower_bound - 1.0 < 1e-9, "{id}");
            assert!((found.objective / expected["loss"].as_f64().unwrap() - 1.0).abs() < 1e-7, "{id}");
            assert!((found.gram.min() - expected["min_x"].as_f64().unwrap()).abs() < 1e-4, "{id}");
            if let Some(printed) = expected["paper_error"].as_f64() {
                assert_eq!((found.objective.sqrt() * 1e3).round() / 1e3, printed, "{id}");
            }
        }
    }

    #[test]
    fn large_instances_are_refused() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 17).unwrap();
        let refused = optimum(&form, 17, 1, Corners::Signed, 1e-6);
        assert_eq!(refused, Err(OptimizeError::TooManySteps { found: 17, limit: 16 }));
    }
}
