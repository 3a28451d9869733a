//! A second opinion: feasibility, value and bound of an optimum, computed anew from X and the multipliers.
//!
//! Nothing here is shared with the optimisers, down to the library that factors the matrices. That tr(V X⁻¹) is the
//! value and X feasible is a matter of looking. The bound is weak duality: every feasible X has
//! `⟨U, X⟩ ≤ Σ_c max_i U_ii` for a positive definite U = R Rᵀ that is block-diagonal over the classes, and
//! `tr(V X⁻¹) ⟨U, X⟩ ≥ (tr(Rᵀ V R)^(1/2))²` for every X, by the Cauchy–Schwarz inequality.

use super::{Optimum, QuadraticForm};
use nalgebra::{Cholesky, DMatrix, SymmetricEigen};
use thiserror::Error;

/// By how much a value and a claim of it may differ, relatively, and a constraint be missed.
const ROUNDING: f64 = 1e-8;
const SLACK: f64 = 1e-12;

/// Multipliers U of the constraints, which prove a lower bound by weak duality.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// Steps between two members of a class: n for single participation.
    pub gap: usize,
    /// For the class of each step before `gap`: a symmetric positive definite matrix with a constant diagonal, for
    /// its members in their order.
    pub multipliers: Vec<DMatrix<f64>>,
}

impl Certificate {
    /// Largest `U_ij / U_ii` over different members i, j of a class. While it is at most 1, `U_ii − U_ij` are
    /// multipliers of `X_ij ≥ 0`: the bound then holds for all X that are non-negative within the classes too.
    pub fn largest_overlap(&self) -> f64 {
        let overlap = |block: &DMatrix<f64>| {
            let scaled = DMatrix::from_fn(block.nrows(), block.ncols(), |i, j| {
                if i == j { 0.0 } else { block[(i, j)] / block[(i, i)] }
            });
            scaled.iter().copied().fold(0.0, f64::max)
        };
        self.multipliers.iter().map(overlap).fold(0.0, f64::max)
    }
}

/// What a check of an optimum found by its own computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verified {
    /// tr(V X⁻¹).
    pub objective: f64,
    /// What the multipliers prove.
    pub lower_bound: f64,
}

/// What is wrong with an optimum.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// Matrices and multipliers are not of one problem.
    #[error("the certificate is for other sizes than the workload of {steps} steps")]
    Sizes {
        /// Number of steps of the workload.
        steps: usize,
    },
    /// A matrix is not what it must be.
    #[error("{matrix} is not {expected}")]
    Shape {
        /// Which matrix.
        matrix: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The strategy is more sensitive than 1.
    #[error(
        "the members of the class of step {class} have a squared sensitivity of {found}; expected at most 1"
    )]
    Infeasible {
        /// First step of the class, from 1.
        class: usize,
        /// What X gives.
        found: f64,
    },
    /// A number differs from its claim.
    #[error("the {what} is {found}; {claimed} was claimed")]
    Claim {
        /// Which number.
        what: &'static str,
        /// What the check found.
        found: f64,
        /// What was claimed.
        claimed: f64,
    },
}

/// Checks that X is feasible and belongs to C, and that objective and lower bound are what is claimed, to 10⁻⁸.
///
/// Takes O(n³), about ten seconds for 2048 steps.
///
/// # Errors
/// A [`Refusal`] that names the first thing wrong.
pub fn verify(optimum: &Optimum, form: &QuadraticForm) -> Result<Verified, Refusal> {
    check_sizes(optimum, form.steps())?;
    check_feasible(&optimum.gram, optimum.certificate.gap)?;
    check_strategy(&optimum.strategy, &optimum.gram)?;
    let objective = value(&optimum.gram, form.matrix())?;
    let lower_bound = bound(&optimum.certificate, form.matrix())?;
    let too_low = optimum.objective < objective * (1.0 - ROUNDING) || !optimum.objective.is_finite();
    let too_high = optimum.lower_bound > lower_bound * (1.0 + ROUNDING) || optimum.lower_bound.is_nan();
    if too_low {
        Err(Refusal::Claim { what: "objective", found: objective, claimed: optimum.objective })
    } else if too_high {
        Err(Refusal::Claim { what: "lower bound", found: lower_bound, claimed: optimum.lower_bound })
    } else {
        Ok(Verified { objective, lower_bound })
    }
}

fn check_sizes(optimum: &Optimum, steps: usize) -> Result<(), Refusal> {
    let Certificate { gap, multipliers } = &optimum.certificate;
    let fits = (1..=steps).contains(gap)
        && multipliers.len() == *gap
        && multipliers
            .iter()
            .enumerate()
            .all(|(class, block)| block.shape() == square((steps - class).div_ceil(*gap)))
        && optimum.gram.shape() == square(steps)
        && optimum.strategy.shape() == square(steps);
    if fits { Ok(()) } else { Err(Refusal::Sizes { steps }) }
}

fn square(n: usize) -> (usize, usize) {
    (n, n)
}

fn check_feasible(gram: &DMatrix<f64>, gap: usize) -> Result<(), Refusal> {
    for class in 0..gap {
        let members = || (class..gram.nrows()).step_by(gap);
        if members().any(|i| members().any(|j| i != j && gram[(i, j)] != 0.0)) {
            return Err(Refusal::Shape { matrix: "X", expected: "zero between the members of a class" });
        }
        let found: f64 = members().map(|i| gram[(i, i)]).sum();
        if found.is_nan() || found > 1.0 + SLACK {
            return Err(Refusal::Infeasible { class: class + 1, found });
        }
    }
    Ok(())
}

fn check_strategy(strategy: &DMatrix<f64>, gram: &DMatrix<f64>) -> Result<(), Refusal> {
    if *strategy != strategy.lower_triangle() {
        return Err(Refusal::Shape { matrix: "C", expected: "lower triangular" });
    }
    let difference = (strategy.tr_mul(strategy) - gram).amax();
    if difference.is_nan() || difference > SLACK {
        return Err(Refusal::Shape { matrix: "CᵀC", expected: "X" });
    }
    Ok(())
}

fn definite(matrix: &DMatrix<f64>, name: &'static str) -> Result<Cholesky<f64, nalgebra::Dyn>, Refusal> {
    let refusal = Refusal::Shape { matrix: name, expected: "symmetric and positive definite" };
    let symmetric = (matrix - matrix.transpose()).amax() <= SLACK * matrix.amax();
    Some(matrix.clone()).filter(|_| symmetric).and_then(Cholesky::new).ok_or(refusal)
}

/// tr(V X⁻¹) = tr(L⁻¹ V L⁻ᵀ).
fn value(gram: &DMatrix<f64>, form: &DMatrix<f64>) -> Result<f64, Refusal> {
    let factor = definite(gram, "X")?.unpack();
    let half = factor.solve_lower_triangular(form).unwrap_or_default();
    Ok(factor.solve_lower_triangular(&half.transpose()).unwrap_or_default().trace())
}

/// `(tr(Rᵀ V R)^(1/2))² / Σ_c max_i U_ii`.
fn bound(certificate: &Certificate, form: &DMatrix<f64>) -> Result<f64, Refusal> {
    let mut root = DMatrix::zeros(form.nrows(), form.nrows());
    let mut weight = 0.0;
    for (class, block) in certificate.multipliers.iter().enumerate() {
        let factor = definite(block, "U")?.unpack();
        let step = |member: usize| class + member * certificate.gap;
        for (i, j) in (0..block.nrows()).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            root[(step(i), step(j))] = factor[(i, j)];
        }
        weight += block.diagonal().max();
    }
    let seen = root.tr_mul(&(form * &root));
    let failed =
        Refusal::Shape { matrix: "Rᵀ V R", expected: "a matrix whose eigenvalues can be computed" };
    let eigenvalues =
        SymmetricEigen::try_new(seen, f64::EPSILON, 100 * form.nrows()).ok_or(failed)?.eigenvalues;
    let rounding = form.nrows() as f64 * f64::EPSILON * eigenvalues.amax();
    let nuclear: f64 = eigenvalues.iter().filter(|value| **value >= rounding).map(|value| value.sqrt()).sum();
    Ok(nuclear.powi(2) / weight)
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, coa, multi_epoch};
    use super::*;
    use crate::workload::Workload;
    use std::ops::ControlFlow;

    fn both() -> [(Optimum, QuadraticForm); 2] {
        let form = QuadraticForm::from_workload(&Workload::Prefix, 12).unwrap();
        let settings = Settings { relative_gap: 1e-9, ..Settings::default() };
        let single = coa(&form, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        let multi = multi_epoch(&form, 3, 4, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        [(single, form.clone()), (multi, form)]
    }

    #[test]
    fn an_optimum_passes_with_its_own_numbers() {
        for (optimum, form) in both() {
            let verified = verify(&optimum, &form).unwrap();
            assert!((verified.objective / optimum.objective - 1.0).abs() < 1e-12);
            assert!((verified.lower_bound / optimum.lower_bound - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn every_damage_is_found() {
        let check = |hint: &str, damage: &dyn Fn(&mut Optimum)| {
            for (mut optimum, form) in both() {
                damage(&mut optimum);
                let message = verify(&optimum, &form).unwrap_err().to_string();
                assert!(message.contains(hint), "{message}");
            }
        };
        check("X is not symmetric and positive definite", &|optimum| {
            optimum.gram.fill(0.0);
            optimum.strategy.fill(0.0);
        });
        check("zero between the members", &|optimum| {
            optimum.certificate.gap = 1;
            optimum.certificate.multipliers = vec![DMatrix::identity(12, 12)];
        });
        check("squared sensitivity of 1.0", &|optimum| optimum.gram[(5, 5)] += 1e-6);
        check("squared sensitivity of NaN", &|optimum| optimum.gram[(5, 5)] = f64::NAN);
        check("CᵀC is not X", &|optimum| optimum.gram[(5, 6)] += 1e-6);
        check("CᵀC is not X", &|optimum| optimum.strategy[(5, 5)] *= 1.0 + 1e-6);
        check("lower triangular", &|optimum| optimum.strategy[(0, 1)] = 1e-3);
        check("U is not symmetric", &|optimum| optimum.certificate.multipliers[1][(0, 0)] *= -1.0);
        check("other sizes", &|optimum| drop(optimum.certificate.multipliers.pop()));
        check("other sizes", &|optimum| optimum.certificate.gap = 0);
        check("the objective is", &|optimum| optimum.objective *= 1.0 - 1e-6);
        check("the objective is", &|optimum| optimum.objective = f64::NAN);
        check("the lower bound is", &|optimum| optimum.lower_bound *= 1.0 + 1e-6);
        check("the lower bound is", &|optimum| optimum.lower_bound = f64::NAN);
        check("the lower bound is", &|optimum| optimum.certificate.multipliers[1] *= 1.1);
    }

    #[test]
    fn no_bound_is_above_the_value_of_any_feasible_strategy() {
        for (optimum, form) in both() {
            let members = optimum.certificate.multipliers[0].nrows() as f64;
            let identity = DMatrix::identity(12, 12) / members;
            assert!(value(&identity, form.matrix()).unwrap() > optimum.lower_bound);
        }
    }
}
