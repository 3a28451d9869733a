//! Expected errors of the methods, computed without data.
//!
//! | item | error of | source |
//! |---|---|---|
//! | [`ExpectedError`] | a workload under a strategy, one coordinate, noise multiplier 1 | |
//! | [`additive`] | moments with own noise: JME, IME, CS | Thms 3.3, 4.1, 4.2, Algorithms 1, 3–5 |
//! | [`post_processing`] | squared noisy first moments: PP | Lemmas 3.8, 4.4, C.1, C.4, Cor. 3.9 |
//!
//! [`post_processing`] also finds the noise level above which JME is better than PP (Table 2).
//!
//! The source is "Continual Release Moment Estimation with Differential Privacy" (Kalinin, Upadhyay
//! & Lampert 2025), with corrections: the formulas here hold for every clip norm ζ, workload A and
//! strategy C.
//!
//! # Setting
//! There is one record x_t, `‖x_t‖ ≤ ζ`, in each of n epochs. The targets are `A X` and `A(X•X)`,
//! whose row t is `Σ_i A_ti x_i x_iᵀ` or its diagonal. An error is the expected squared distance
//! between the estimates and the targets. It is summed over all n steps and all entries (`d`, `d²`
//! or d of them), in real units: ζ² for first, ζ⁴ for second moments.
//!
//! # Two numbers called σ
//! The paper writes σ for both
//!
//! - the **noise multiplier**: noise divided by sensitivity, which (ε, δ) determines; in Theorem
//!   3.3 and eq. (9);
//! - the **noise deviation** divided by `‖C‖`, for ζ = 1: the noise that is added to an entry of
//!   `C X`, sensitivity included; in Lemma 3.8, eqs. (10), (13), (14), Theorems 4.1 and 4.2, and in
//!   all comparisons.
//!
//! A noise deviation τ is `2ζσ‖C‖` for the noise multiplier σ, where `‖C‖` is the largest column
//! norm of C. At ζ = 1 and C = I it is twice the noise multiplier. Here arguments are called
//! `noise_multiplier` or `noise_deviation`, and no formula takes both.
//!
//! # Workloads
//! Expected errors of a workload under a strategy, computed exactly and without data.
//!
//! The release `C x + σ s z` with sensitivity s decodes to `A x + σ s B z`, `B = A C⁻¹`: row t of
//! the workload has an error of standard deviation `σ s ‖B_t‖` in every coordinate. All figures
//! here are for the noise multiplier σ = 1 and records of norm at most 1 that are added or removed
//! once. So s is the largest column norm of C, unless another sensitivity is given.

pub mod additive;
mod increments;
pub mod post_processing;

use crate::strategy::{Factorization, MAX_HORIZON, Objective, RowSample, StrategyError, check_horizon};
use crate::workload::Workload;
pub use additive::{
    InPlaceRelease, NoiseDeviations, SecondEntries, joint_covariance_error, post_processed_covariance_error,
};
pub use post_processing::{Better, Bounds, MethodComparison, PostProcessing, SquaredNoiseError};
use serde::{Deserialize, Serialize};

/// Errors of n steps, per coordinate, in the unit of the records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedError {
    /// Largest column norm of C for single participation, rounded up.
    pub sensitivity: f64,
    /// `‖A C⁻¹‖_F`.
    pub frobenius: f64,
    /// Largest row norm of `A C⁻¹`.
    pub max_row: f64,
    /// Norm of the first row of `A C⁻¹`.
    pub first_row: f64,
    /// Norm of the last row of `A C⁻¹`.
    pub last_row: f64,
    /// `sensitivity² · frobenius²`: the sum over the steps of the variance of the error.
    pub loss: f64,
    /// `√(loss / n)`: the root mean squared error over the steps.
    pub rmse: f64,
    /// `sensitivity · max_row`: the largest standard deviation of the error of a step.
    pub max_error: f64,
}

impl ExpectedError {
    /// Returns the errors of a workload over `steps` steps of a strategy.
    ///
    /// ```
    /// use hushflow_mechanism::error::ExpectedError;
    /// use hushflow_mechanism::strategy::build;
    /// use hushflow_mechanism::workload::Workload;
    ///
    /// let strategy = build("square-root", &Workload::Prefix, Some(2000))?;
    /// let error = ExpectedError::new(&Workload::Prefix, strategy.as_ref(), 2000)?;
    /// assert!((error.rmse - 3.32296).abs() < 1e-5);
    /// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
    /// ```
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] when `steps` is 0, beyond the horizon of the strategy or beyond
    /// [`MAX_HORIZON`].
    pub fn new(workload: &Workload, strategy: &dyn Factorization, steps: u64) -> Result<Self, StrategyError> {
        check_horizon(&strategy.name(), steps, strategy.horizon().unwrap_or(MAX_HORIZON))?;
        let sensitivity = square_root_up(strategy.max_column_norm_squared(steps));
        Ok(Self::of_samples(sensitivity, strategy.decoder_row_samples(workload, steps)))
    }

    /// Returns the error that an objective minimises.
    pub fn of(&self, objective: Objective) -> f64 {
        match objective {
            Objective::Rmse => self.rmse,
            Objective::MaxError => self.max_error,
        }
    }

    /// Returns the errors for a sensitivity, of one or several participations, and samples of the
    /// rows of a decoder, first step first.
    pub fn of_samples(sensitivity: f64, rows: impl Iterator<Item = RowSample>) -> Self {
        let (mut steps, mut squares, mut max_row, mut first_row, mut last_row) = (0.0, 0.0, 0.0, None, 0.0);
        for RowSample { step, weight, norm } in rows {
            steps = step;
            squares += weight * norm * norm;
            max_row = f64::max(max_row, norm);
            first_row.get_or_insert(norm);
            last_row = norm;
        }
        let (frobenius, first_row) = (f64::sqrt(squares), first_row.unwrap_or(0.0));
        let loss = (sensitivity * frobenius).powi(2);
        let (rmse, max_error) = ((loss / steps).sqrt(), sensitivity * max_row);
        Self { sensitivity, frobenius, max_row, first_row, last_row, loss, rmse, max_error }
    }
}

/// Returns the square root, rounded up: the fused operation gives the sign of `root² − square`
/// exactly.
fn square_root_up(square: f64) -> f64 {
    let root = square.sqrt();
    if root.mul_add(root, -square) < 0.0 { root.next_up() } else { root }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::build;

    fn expected_error(workload: &str, name: &str, n: u64) -> ExpectedError {
        let workload = workload.parse().unwrap();
        let strategy = build(name, &workload, Some(n)).unwrap();
        ExpectedError::new(&workload, strategy.as_ref(), n).unwrap()
    }

    fn check(name: &str, found: f64, expected: f64, relative: f64) {
        assert!((found - expected).abs() <= relative * expected, "{name}: {found} against {expected}");
    }

    #[test]
    fn errors_agree_with_the_reference() {
        let mut checked = 0;
        for case in &crate::reference::cases(include_str!("../../../tests/vectors/factorization_errors.json"))
        {
            let (input, expected) = (&case["input"], &case["expected"]);
            let name = match input["factorization"].as_str() {
                Some("identity") => "identity",
                Some("sqrt") => "square-root",
                Some("banded_sqrt_4") => "banded-square-root:4",
                Some("banded_sqrt_16") => "banded-square-root:16",
                Some("banded_sqrt_64") => "banded-square-root:64",
                _ => continue,
            };
            let workload = match input["workload"].as_str().unwrap() {
                "exp" => format!("exponential:{}", input["param"]),
                other if input["param"].is_null() => other.to_string(),
                other => format!("{other}:{}", input["param"]),
            };
            let found = expected_error(&workload, name, input["n"].as_u64().unwrap());
            let value = |field: &str| expected[field].as_f64().unwrap();
            check(&workload, found.sensitivity, value("c_norm_1to2"), 1e-10);
            check(&workload, found.frobenius, value("b_frobenius"), 1e-10);
            check(&workload, found.max_row, value("b_max_row"), 1e-10);
            check(&workload, found.rmse, value("rmse"), 1e-10);
            check(&workload, found.max_error, value("max_error"), 1e-10);
            checked += 1;
        }
        assert_eq!(checked, 49);
    }

    /// Losses at n = 512, computed independently. So are the roots and bands in the tests below.
    #[test]
    fn published_losses_are_met() {
        let rows = [
            ("average", 512, "identity", 6.8165165345),
            ("average", 512, "square-root", 5.9949621778),
            ("exponential:0.9", 512, "identity", 2672.2991689751),
            ("exponential:0.9", 512, "square-root", 1077.4217516597),
            ("exponential:0.99", 512, "square-root", 2305.0478156713),
            ("window:10", 512, "identity", 50.75),
            ("window:10", 512, "square-root", 18.8453634702),
            ("average", 512, "normalized-square-root", 5.9887203362),
            ("exponential:0.9", 512, "normalized-square-root", 1076.1731905988),
            ("exponential:0.99", 512, "normalized-square-root", 2282.0468229731),
            ("window:10", 512, "normalized-square-root", 18.8105113143),
        ];
        for (workload, n, name, loss) in rows {
            check(workload, expected_error(workload, name, n).loss, loss, 1e-10);
        }
    }

    #[test]
    fn published_roots_of_losses_are_met() {
        let roots = [
            ("square-root", 1, 1.0, 1.0),
            ("square-root", 2, 1.1858541225631423, 1.25),
            ("square-root", 100, 2.370658207297161, 2.53135211263557),
            ("square-root", 2000, 3.322963415567399, 3.4856784633373334),
            ("square-root", 4096, 3.5512926841697747, 3.7138836274412825),
            ("square-root", 100_000, 4.569033526986918, 4.730953051832177),
            ("normalized-square-root", 64, 2.1277017443554, 2.2117689433624),
            ("normalized-square-root", 256, 2.5572645123040, 2.6449607415737),
            ("normalized-square-root", 512, 2.7739411206507, 2.8626138004729),
            ("normalized-square-root", 1024, 2.9913565672200, 3.0807440719941),
            ("normalized-square-root", 2048, 3.2093008628138, 3.2992452912950),
        ];
        for (name, n, mean, max) in roots {
            let found = expected_error("prefix", name, n);
            check("root mean loss", found.rmse, mean, 1e-10);
            check("root max loss", found.max_error, max, 1e-10);
        }
    }

    #[test]
    fn published_tables_of_bands_are_met() {
        let banded = [
            (2, [16.890170, 23.863035], [13.108521, 18.502252]),
            (4, [12.669612, 17.877526], [9.109325, 12.807071]),
            (8, [9.536374, 13.415316], [6.688647, 9.318383]),
            (16, [7.218390, 10.083727], [5.097235, 6.966216]),
            (32, [5.538869, 7.622258], [4.063545, 5.358513]),
            (64, [4.376495, 5.849140], [3.448175, 4.302886]),
            (128, [3.639590, 4.633213], [3.146565, 3.676982]),
        ];
        for (bands, plain, inverse) in banded {
            for (name, [mean, max]) in
                [("banded-square-root", plain), ("banded-inverse-square-root", inverse)]
            {
                let found = expected_error("prefix", &format!("{name}:{bands}"), 1024);
                check(name, found.rmse, mean, 2e-7);
                check(name, found.max_error, max, 2e-7);
            }
        }
        check("identity", expected_error("prefix", "identity", 1024).rmse, 22.638462845343543, 1e-14);
    }

    #[test]
    fn the_sensitivity_of_a_part_of_the_horizon_uses_its_own_columns() {
        let strategy = build("square-root", &Workload::Prefix, Some(100)).unwrap();
        let part = ExpectedError::new(&Workload::Prefix, strategy.as_ref(), 2).unwrap();
        assert_eq!(part, expected_error("prefix", "square-root", 2));
        for found in [0, 101] {
            let error = ExpectedError::new(&Workload::Prefix, strategy.as_ref(), found).unwrap_err();
            let strategy = "square-root".to_string();
            assert_eq!(error, StrategyError::Horizon { strategy, found, limit: 100 });
        }
    }

    #[test]
    fn square_roots_are_rounded_up() {
        for square in [0.0, 1.0, 4.0] {
            assert_eq!(square_root_up(square), square.sqrt());
        }
        for square in [2.0, 3.0, 5.0, 0.1, 1.0f64.next_up()] {
            let root = square_root_up(square);
            assert!(root.mul_add(root, -square) >= 0.0, "{square}");
            assert!(root.next_down().mul_add(root.next_down(), -square) < 0.0, "{square}");
        }
    }
}
