//! Square roots of whole workloads, including row divisors.

use super::{Dense, MAX_DENSE_HORIZON};
use crate::{
    strategy::{Kind, StrategyError, StrategyName, check_horizon, kind::SHORT},
    workload::Workload,
};
use nalgebra::DMatrix;
use std::sync::Arc;

/// `matrix-square-root`: `C = A^(1/2)`, lower-triangular like A, so that `A = C C`.
pub(in crate::strategy) static MATRIX_SQUARE_ROOT: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    normalized: Some(MAX_DENSE_HORIZON),
    compared: |kind, purpose| match purpose.workload {
        Workload::Average | Workload::Adam(_) | Workload::WindowMean(_) | Workload::Matrix(_) => {
            let names = [kind.name()].into_iter().chain(kind.name().normalized());
            Ok(names.map(|name| name.up_to(SHORT)).collect())
        }
        _ => Err("here it is `square-root`"),
    },
    strategy: Some(|specification| {
        Ok(Arc::new(matrix_square_root(specification.name, specification.workload, specification.steps()?)?))
    }),
    ..Kind::new("matrix-square-root", "the square root of the whole workload, dense")
};

/// The root, with columns scaled to norm 1 if the name says so.
fn matrix_square_root(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
) -> Result<Dense, StrategyError> {
    let workload_rows = rooted_workload(name, workload, horizon, MAX_DENSE_HORIZON)?;
    let mut root = lower_square_root(&workload_rows);
    if name.is_normalized() {
        normalize_columns(&mut root);
    }
    Dense::new(name.clone(), &root)
}

/// Checks the horizon against its limit and the workload's rows. Returns the error that refuses the
/// workload, as a function of another reason.
pub(super) fn refusal(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
    limit: u64,
) -> Result<impl Fn(&'static str) -> StrategyError, StrategyError> {
    check_horizon(name, horizon, limit)?;
    let refused = |reason| StrategyError::Workload {
        strategy: name.to_string(),
        workload: workload.to_string(),
        reason,
    };
    if workload.horizon().is_some_and(|rows| rows < horizon) {
        return Err(refused("it has fewer rows than the horizon"));
    }
    Ok(refused)
}

/// A for a horizon of at most `limit` steps, if it has a square root.
pub(super) fn rooted_workload(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
    limit: u64,
) -> Result<DMatrix<f64>, StrategyError> {
    let refused = refusal(name, workload, horizon, limit)?;
    let rows = workload.matrix(horizon as usize);
    if rows.diagonal().iter().any(|&entry| entry <= 0.0) {
        return Err(refused("its diagonal is not positive"));
    }
    Ok(rows)
}

/// The root R of a lower-triangular A by `R_ij = (A_ij − Σ_(j<k<i) R_ik R_kj) / (R_ii + R_jj)`
/// (Björck and Hammarling, 1983), row by row and from the diagonal to the left; n³/3 operations.
/// Whole rows are subtracted at once, in the same order on every machine.
pub(super) fn lower_square_root(a: &DMatrix<f64>) -> DMatrix<f64> {
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(a.nrows());
    for i in 0..a.nrows() {
        let mut row: Vec<f64> = (0..=i).map(|j| a[(i, j)]).collect();
        row[i] = row[i].sqrt();
        for j in (0..i).rev() {
            let (left, right) = row.split_at_mut(j);
            right[0] /= right[i - j] + rows[j][j];
            let factor = right[0];
            left.iter_mut().zip(&rows[j]).for_each(|(entry, earlier)| *entry -= factor * earlier);
        }
        rows.push(row);
    }
    DMatrix::from_fn(a.nrows(), a.ncols(), |i, j| rows[i].get(j).copied().unwrap_or(0.0))
}

/// Scales columns to norm 1. Plain sums, for the same result on every machine.
fn normalize_columns(c: &mut DMatrix<f64>) {
    for mut column in c.column_iter_mut() {
        let norm = column.iter().map(|entry| entry * entry).sum::<f64>().sqrt();
        column.iter_mut().for_each(|entry| *entry /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Factorization, Strategy, conformance};

    fn root(name: &str, workload: &str, steps: u64) -> Result<Dense, StrategyError> {
        matrix_square_root(&name.parse().unwrap(), &workload.parse().unwrap(), steps)
    }

    fn loss(strategy: &Dense, workload: &Workload) -> f64 {
        let rows = strategy.decoder_row_norms(workload, MAX_DENSE_HORIZON);
        rows.map(|norm| norm * norm).sum::<f64>() * strategy.geometry().max_norm_squared
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for workload in
            ["prefix", "average", "exponential:0.9", "window:5", "window-mean:5", "momentum:0.95", "adam:0.9"]
        {
            for name in ["matrix-square-root", "normalized-matrix-square-root"] {
                for steps in [1, 2, 24] {
                    let strategy = root(name, workload, steps).unwrap();
                    conformance::check(&strategy, &workload.parse().unwrap(), steps as usize);
                }
            }
        }
    }

    #[test]
    fn the_squared_root_is_the_workload() {
        for text in [
            "prefix",
            "average",
            "exponential:0.99",
            "window:10",
            "window-mean:10",
            "momentum:0.9",
            "adam:0.999",
        ] {
            for steps in [1, 2, 3, 100, 500] {
                let a = text.parse::<Workload>().unwrap().matrix(steps);
                let root = lower_square_root(&a);
                let error = (&root * &root - &a).amax();
                assert!(error <= 1e-13 * a.amax(), "{text} {steps}: {error}");
            }
        }
    }

    #[test]
    fn losses_agree_with_known_values() {
        let check = |workload: &str, steps, plain: f64, normalized: f64| {
            let names = ["matrix-square-root", "normalized-matrix-square-root"];
            for (name, expected) in names.into_iter().zip([plain, normalized]) {
                let found = loss(&root(name, workload, steps).unwrap(), &workload.parse().unwrap());
                assert!(
                    (found / expected - 1.0).abs() < 1e-9,
                    "{name} {workload} {steps}: {found} {expected}"
                );
            }
        };
        check("average", 8, 3.7655740378, 2.3083726370);
        check("average", 32, 6.5583740473, 2.7663342304);
        check("average", 128, 10.0739119309, 2.9599870309);
        check("average", 512, 14.3009589485, 3.0320471321);
        check("exponential:0.9", 512, 1077.4217516597, 1076.1731905988);
        check("exponential:0.99", 512, 2305.0478156713, 2282.0468229731);
        check("window:10", 512, 18.8453634702, 18.8105113143);
    }

    #[test]
    fn errors_of_toeplitz_roots_agree_with_the_reference() {
        let mut checked = 0;
        for case in
            &crate::reference::cases(include_str!("../../../../tests/vectors/factorization_errors.json"))
        {
            let (input, expected) = (&case["input"], &case["expected"]);
            let name = match input["workload"].as_str().unwrap() {
                "average" | "adam" => continue,
                "exp" => "exponential",
                name => name,
            };
            if input["factorization"] != "sqrt" {
                continue;
            }
            let text =
                if input["param"].is_null() { name.into() } else { format!("{name}:{}", input["param"]) };
            let steps = input["n"].as_u64().unwrap();
            let found = loss(&root("matrix-square-root", &text, steps).unwrap(), &text.parse().unwrap());
            let expected = expected["rmse"].as_f64().unwrap();
            assert!(
                ((found / steps as f64).sqrt() / expected - 1.0).abs() < 1e-10,
                "{text} {steps}: {found}"
            );
            checked += 1;
        }
        assert!(checked >= 8);
    }

    #[test]
    fn workloads_without_a_root_are_refused() {
        let half = DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 1.0, 0.0]);
        let half = Workload::from_matrix("half", half).unwrap();
        let message = |horizon| {
            matrix_square_root(&MATRIX_SQUARE_ROOT.name(), &half, horizon).err().unwrap().to_string()
        };
        assert!(message(2).contains("diagonal is not positive"));
        assert!(message(3).contains("fewer rows"));
        assert!(message(0).contains("1 to 4096"));
        assert!(root("matrix-square-root", "prefix", 4097).is_err());
    }
}
