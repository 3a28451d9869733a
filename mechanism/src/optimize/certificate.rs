//! Independent verification of an optimum: recomputes feasibility, value and bound from X and the
//! multipliers.
//!
//! This file shares no code with the optimisers, not even the library that factors matrices. The
//! value tr(V X⁻¹) and the feasibility of X are checked directly. The bound is weak duality. Let U
//! be block-diagonal over the classes, 0 between steps that share no pattern, and v ≥ 0 with
//! `U_ij ≤ c Σ_(π ∋ i,j) v_π` for some c. Then every X with non-negative entries and sums of at
//! most 1 over every pattern has `⟨U, X⟩ ≤ c Σ v_π`. For an X with zeros between the steps of each
//! pattern, a bound on the diagonal of U suffices. For U = R Rᵀ, `tr(V X⁻¹) ⟨U, X⟩ ≥ (tr(Rᵀ V
//! R)^(1/2))²` for every X, by the Cauchy–Schwarz inequality.

use super::{Optimum, QuadraticForm, classes::Classes};
use nalgebra::{Cholesky, DMatrix, SymmetricEigen};
use thiserror::Error;

/// Maximum relative difference between a value and its claim. For a singular workload X is nearly
/// singular, up to a share of 10⁻⁸ of the identity, and two computations of tr(V X⁻¹) differ by
/// some 10⁻⁸ through rounding.
const ROUNDING: f64 = 1e-7;

/// Maximum violation of a constraint.
const SLACK: f64 = 1e-12;

/// Multipliers of the constraints, which prove a lower bound by weak duality.
///
/// A class holds the steps of one residue mod `gap`. A pattern is `count` consecutive members of a
/// class, or all of a smaller class. If every class is one pattern, X has zeros between its
/// members. Otherwise the bound is for all X that are non-negative within patterns.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// Maximum number of members of a pattern: 1 for single participation.
    pub count: usize,
    /// Steps between two members of a class: n for single participation.
    pub gap: usize,
    /// U: for the class of each step before `gap`, a symmetric positive definite matrix over its
    /// members in order.
    pub multipliers: Vec<DMatrix<f64>>,
    /// v: for each class a multiplier of each pattern, in the order of their first steps.
    pub patterns: Vec<Vec<f64>>,
}

impl Certificate {
    pub(super) fn new(classes: &Classes, multipliers: &[f64]) -> Self {
        let patterns =
            classes.parts().map(|(patterns, part)| multipliers[part][..patterns.number()].to_vec());
        Self {
            count: classes.count(),
            gap: classes.gap(),
            multipliers: Classes::dense(&classes.matrices(multipliers)),
            patterns: patterns.collect(),
        }
    }

    /// Returns the largest `U_ij / Σ_(π ∋ i,j) v_π` over different steps i, j that share a pattern.
    /// If it is at most 1, the rest of that sum are multipliers of `X_ij ≥ 0`: then the bound also
    /// holds for all X that are non-negative within the patterns. For overlapping patterns it is at
    /// most 1, except for rounding.
    pub fn largest_overlap(&self) -> f64 {
        self.largest_ratio(|i, j| i != j)
    }

    /// Largest `U_ij / Σ_(π ∋ i,j) v_π` over these pairs of members that share a pattern, 0 if all
    /// are negative.
    fn largest_ratio(&self, included: impl Fn(usize, usize) -> bool) -> f64 {
        let ratio = |(block, v): (&DMatrix<f64>, &Vec<f64>)| {
            let pairs = (0..block.nrows()).flat_map(|i| (0..=i).map(move |j| (i, j)));
            let included = pairs.filter(|&(i, j)| included(i, j) && i - j < self.count);
            included.map(|(i, j)| block[(i, j)] / self.shared(v, i, j)).fold(0.0, f64::max)
        };
        self.multipliers.iter().zip(&self.patterns).map(ratio).fold(0.0, f64::max)
    }

    /// `Σ_(π ∋ i,j) v_π` for members i ≥ j.
    fn shared(&self, v: &[f64], i: usize, j: usize) -> f64 {
        let first = (i + 1).saturating_sub(self.count);
        v.iter().take(j + 1).skip(first).sum()
    }

    fn is_disjoint(&self) -> bool {
        self.patterns.iter().all(|patterns| patterns.len() == 1)
    }
}

/// Results of an independent check of an optimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VerifiedBounds {
    /// tr(V X⁻¹).
    pub objective: f64,
    /// The lower bound that the multipliers prove.
    pub lower_bound: f64,
}

/// Reasons why an optimum is refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CertificateError {
    /// Matrices and multipliers belong to different problems.
    #[error("the certificate is for other sizes than the workload of {steps} steps")]
    Sizes {
        /// Number of steps of the workload.
        steps: usize,
    },
    /// A matrix lacks a required property.
    #[error("{matrix} is not {expected}")]
    Shape {
        /// Name of the matrix.
        matrix: &'static str,
        /// The required property.
        expected: &'static str,
    },
    /// The sensitivity of the strategy exceeds 1.
    #[error(
        "the pattern that begins with step {first} has a squared sensitivity of {found}; expected at most 1"
    )]
    Infeasible {
        /// First step of the pattern, from 1.
        first: usize,
        /// Its squared sensitivity by X.
        found: f64,
    },
    /// A number differs from its claim.
    #[error("the {what} is {found}; {claimed} was claimed")]
    Claim {
        /// Name of the number.
        what: &'static str,
        /// The recomputed number.
        found: f64,
        /// The claimed number.
        claimed: f64,
    },
}

/// Checks that X is feasible and belongs to C, that the claimed objective is not too low, and that
/// the claimed lower bound is not too high, to a relative 10⁻⁷.
///
/// Takes O(n³), about ten seconds for 2048 steps.
///
/// # Errors
/// A [`CertificateError`] with the first mismatch.
pub fn verify(optimum: &Optimum, form: &QuadraticForm) -> Result<VerifiedBounds, CertificateError> {
    check_sizes(optimum, form.steps())?;
    check_feasible(&optimum.gram, &optimum.certificate)?;
    check_strategy(&optimum.strategy, &optimum.gram)?;
    let objective = value(&optimum.gram, form.matrix())?;
    let lower_bound = bound(&optimum.certificate, form.matrix())?;
    let too_low = optimum.objective < objective * (1.0 - ROUNDING) || !optimum.objective.is_finite();
    let too_high = optimum.lower_bound > lower_bound * (1.0 + ROUNDING) || optimum.lower_bound.is_nan();
    if too_low {
        Err(CertificateError::Claim { what: "objective", found: objective, claimed: optimum.objective })
    } else if too_high {
        Err(CertificateError::Claim { what: "lower bound", found: lower_bound, claimed: optimum.lower_bound })
    } else {
        Ok(VerifiedBounds { objective, lower_bound })
    }
}

fn check_sizes(optimum: &Optimum, steps: usize) -> Result<(), CertificateError> {
    let Certificate { count, gap, multipliers, patterns } = &optimum.certificate;
    let members = |class: usize| (steps - class).div_ceil(*gap);
    let fits = (1..=steps).contains(gap)
        && *count >= 1
        && multipliers.len() == *gap
        && patterns.len() == *gap
        && multipliers.iter().enumerate().all(|(class, block)| block.shape() == square(members(class)))
        && patterns.iter().enumerate().all(|(class, v)| v.len() == members(class).saturating_sub(*count) + 1)
        && optimum.gram.shape() == square(steps)
        && optimum.strategy.shape() == square(steps);
    if fits { Ok(()) } else { Err(CertificateError::Sizes { steps }) }
}

fn square(n: usize) -> (usize, usize) {
    (n, n)
}

fn check_feasible(gram: &DMatrix<f64>, certificate: &Certificate) -> Result<(), CertificateError> {
    let &Certificate { count, gap, .. } = certificate;
    let (sound, expected): (fn(f64) -> bool, _) = if certificate.is_disjoint() {
        (|entry| entry == 0.0, "zero between the members of a class")
    } else {
        (|entry| entry >= 0.0, "without negative entries between the steps of a pattern")
    };
    for (class, v) in certificate.patterns.iter().enumerate() {
        for first in (class..).step_by(gap).take(v.len()) {
            let members = || (first..gram.nrows()).step_by(gap).take(count);
            let entries = || members().flat_map(|i| members().map(move |j| (i, j)));
            if entries().any(|(i, j)| i != j && !sound(gram[(i, j)])) {
                return Err(CertificateError::Shape { matrix: "X", expected });
            }
            let found: f64 = entries().map(|entry| gram[entry]).sum();
            if found.is_nan() || found > 1.0 + SLACK {
                return Err(CertificateError::Infeasible { first: first + 1, found });
            }
        }
    }
    Ok(())
}

fn check_strategy(strategy: &DMatrix<f64>, gram: &DMatrix<f64>) -> Result<(), CertificateError> {
    if *strategy != strategy.lower_triangle() {
        return Err(CertificateError::Shape { matrix: "C", expected: "lower triangular" });
    }
    let difference = (strategy.tr_mul(strategy) - gram).amax();
    if difference.is_nan() || difference > SLACK {
        return Err(CertificateError::Shape { matrix: "CᵀC", expected: "X" });
    }
    Ok(())
}

fn definite(
    matrix: &DMatrix<f64>,
    name: &'static str,
) -> Result<Cholesky<f64, nalgebra::Dyn>, CertificateError> {
    let refusal = CertificateError::Shape { matrix: name, expected: "symmetric and positive definite" };
    let symmetric = (matrix - matrix.transpose()).amax() <= SLACK * matrix.amax();
    Some(matrix.clone()).filter(|_| symmetric).and_then(Cholesky::new).ok_or(refusal)
}

/// tr(V X⁻¹) = tr(L⁻¹ V L⁻ᵀ).
fn value(gram: &DMatrix<f64>, form: &DMatrix<f64>) -> Result<f64, CertificateError> {
    let factor = definite(gram, "X")?.unpack();
    let half = factor.solve_lower_triangular(form).unwrap_or_default();
    Ok(factor.solve_lower_triangular(&half.transpose()).unwrap_or_default().trace())
}

/// `(tr(Rᵀ V R)^(1/2))² / (c Σ v_π)`.
fn bound(certificate: &Certificate, form: &DMatrix<f64>) -> Result<f64, CertificateError> {
    let &Certificate { count, gap, .. } = certificate;
    let mut root = DMatrix::zeros(form.nrows(), form.nrows());
    for (class, block) in certificate.multipliers.iter().enumerate() {
        let factor = definite(block, "U")?.unpack();
        let step = |member: usize| class + member * gap;
        for (i, j) in (0..block.nrows()).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            if i - j >= count && block[(i, j)] != 0.0 {
                return Err(CertificateError::Shape {
                    matrix: "U",
                    expected: "zero between steps that share no pattern",
                });
            }
            root[(step(i), step(j))] = factor[(i, j)];
        }
    }
    let total: f64 = certificate.patterns.iter().flatten().sum();
    if certificate.patterns.iter().flatten().any(|v| *v < 0.0) || !total.is_finite() {
        return Err(CertificateError::Shape { matrix: "v", expected: "without negative entries" });
    }
    let disjoint = certificate.is_disjoint();
    let weight = total * certificate.largest_ratio(|i, j| i == j || !disjoint);
    let transformed = root.tr_mul(&(form * &root));
    let failed = CertificateError::Shape {
        matrix: "Rᵀ V R",
        expected: "a matrix whose eigenvalues can be computed",
    };
    let eigenvalues =
        SymmetricEigen::try_new(transformed, f64::EPSILON, 100 * form.nrows()).ok_or(failed)?.eigenvalues;
    let rounding = form.nrows() as f64 * f64::EPSILON * eigenvalues.amax();
    let nuclear: f64 = eigenvalues.iter().filter(|value| **value >= rounding).map(|value| value.sqrt()).sum();
    Ok(nuclear.powi(2) / weight)
}

#[cfg(test)]
mod tests {
    use super::super::{OptimizerSettings, coa, multi_epoch};
    use super::*;
    use crate::workload::Workload;
    use std::ops::ControlFlow;

    /// Single participation, disjoint patterns, overlapping patterns.
    fn all() -> [(Optimum, QuadraticForm); 3] {
        let form = QuadraticForm::from_workload(&Workload::Prefix, 12).unwrap();
        let settings = OptimizerSettings { relative_gap: 1e-9, ..OptimizerSettings::default() };
        let single = coa(&form, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        let multi = multi_epoch(&form, 3, 4, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        let overlapping = multi_epoch(&form, 2, 4, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        [(single, form.clone()), (multi, form.clone()), (overlapping, form)]
    }

    fn overlapping() -> Optimum {
        let [_, _, (overlapping, _)] = all();
        overlapping
    }

    #[test]
    fn an_optimum_passes_with_its_own_numbers() {
        for (optimum, form) in all() {
            let verified = verify(&optimum, &form).unwrap();
            assert!((verified.objective / optimum.objective - 1.0).abs() < 1e-12);
            assert!((verified.lower_bound / optimum.lower_bound - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn damaged_certificates_are_refused() {
        let check = |hint: &str, damage: &dyn Fn(&mut Optimum)| {
            for (mut optimum, form) in all() {
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
            let multipliers = vec![DMatrix::identity(12, 12)];
            optimum.certificate = Certificate { count: 12, gap: 1, multipliers, patterns: vec![vec![1.0]] };
        });
        check("without negative entries between", &|optimum| {
            optimum.gram[(4, 0)] = -1e-9;
            optimum.certificate = overlapping().certificate;
        });
        check("share no pattern", &|optimum| {
            *optimum = overlapping();
            optimum.certificate.multipliers[0][(0, 2)] = 1e-9;
            optimum.certificate.multipliers[0][(2, 0)] = 1e-9;
        });
        check("v is not", &|optimum| optimum.certificate.patterns[1][0] = -1.0);
        check("squared sensitivity of 1.0", &|optimum| optimum.gram[(5, 5)] += 1e-6);
        check("squared sensitivity of NaN", &|optimum| optimum.gram[(5, 5)] = f64::NAN);
        check("CᵀC is not X", &|optimum| optimum.gram[(5, 6)] += 1e-6);
        check("CᵀC is not X", &|optimum| optimum.strategy[(5, 5)] *= 1.0 + 1e-6);
        check("lower triangular", &|optimum| optimum.strategy[(0, 1)] = 1e-3);
        check("U is not symmetric", &|optimum| optimum.certificate.multipliers[1][(0, 0)] *= -1.0);
        check("other sizes", &|optimum| drop(optimum.certificate.multipliers.pop()));
        check("other sizes", &|optimum| optimum.certificate.gap = 0);
        check("other sizes", &|optimum| optimum.certificate.count = 0);
        check("other sizes", &|optimum| optimum.certificate.patterns[0].clear());
        check("the objective is", &|optimum| optimum.objective *= 1.0 - 1e-6);
        check("the objective is", &|optimum| optimum.objective = f64::NAN);
        check("the lower bound is", &|optimum| optimum.lower_bound *= 1.0 + 1e-6);
        check("the lower bound is", &|optimum| optimum.lower_bound = f64::NAN);
        check("the lower bound is", &|optimum| optimum.certificate.multipliers[1] *= 1.1);
        check("the lower bound is", &|optimum| optimum.certificate.patterns[1][0] *= 0.9);
        check("the lower bound is", &|optimum| {
            *optimum = overlapping();
            let pair = &mut optimum.certificate.multipliers[0];
            (pair[(0, 1)], pair[(1, 0)]) = (1.01 * pair[(0, 0)], 1.01 * pair[(0, 0)]);
        });
    }

    #[test]
    fn no_bound_is_above_the_value_of_any_feasible_strategy() {
        for (optimum, form) in all() {
            let identity = DMatrix::identity(12, 12) / optimum.certificate.count as f64;
            assert!(value(&identity, form.matrix()).unwrap() > optimum.lower_bound);
        }
    }
}
