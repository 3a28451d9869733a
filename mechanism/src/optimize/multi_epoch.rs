//! Several participations at a fixed distance (Choquette-Choo et al. 2023, section 3).

use super::{
    OnProgress, OptimizeError, OptimizerSettings, Optimum, QuadraticForm, check_participation,
    classes::Classes, coa, search, search::OptimizerProblem,
};

/// Returns the strategy of sensitivity 1 under (k, b)-participation with the least total squared
/// error, among those with a simple sensitivity under the schema.
///
/// An entity contributes to at most `count` = k steps, each `gap` = b after the one before: to a
/// pattern of k consecutive members of a residue class mod b, or to some of its steps.
///
/// - For n ≤ k·b a pattern is a whole class. With `X_ij = 0` between different steps of a class the
///   squared sensitivity is the largest sum of X_ii over a class, for contributions of any
///   dimension and sign. The optimum is over these X. If
///   [`Certificate::largest_overlap`](super::Certificate::largest_overlap) is at most 1, as in
///   every tested instance, no strategy with non-negative `X_ij` within the classes is better
///   either (the paper's Eq. (36)).
/// - For n > k·b patterns overlap, and such zeros cost up to 2% of the error. The optimum is over
///   all X with `X_ij ≥ 0` within patterns (Eq. (36) again), where the squared sensitivity is the
///   largest sum of X_ij over a pattern, in every dimension. Members of a class that share no
///   pattern are unconstrained, like steps of different classes.
///
/// If X is non-negative throughout, it is optimal among all such X (Eq. (35)). Entries outside of
/// patterns may be slightly negative, which costs no privacy.
///
/// # Errors
/// [`OptimizeError::Participation`], [`OptimizeError::Singular`] for a workload with linearly
/// dependent columns and k > 1, and [`OptimizeError::Numerical`].
pub fn multi_epoch(
    form: &QuadraticForm,
    count: usize,
    gap: usize,
    settings: &OptimizerSettings,
    progress: OnProgress<'_>,
) -> Result<Optimum, OptimizeError> {
    let steps = form.steps();
    check_participation(count, gap)?;
    if count == 1 || gap >= steps {
        return coa(form, settings, progress);
    }
    let classes = Classes::new(steps, count, gap);
    let problem = OptimizerProblem::new(form, &classes)?;
    if problem.singular {
        return Err(OptimizeError::Singular);
    }
    Optimum::new(&search::search(&problem, settings, progress)?, &problem)
}

#[cfg(test)]
mod tests {
    use super::super::{
        certificate,
        corners::{self, Corners},
    };
    use super::*;
    use nalgebra::DMatrix;
    use serde_json::Value;
    use std::ops::ControlFlow;

    fn solved(form: &QuadraticForm, count: usize, gap: usize, relative_gap: f64) -> Optimum {
        let settings = OptimizerSettings { relative_gap, ..OptimizerSettings::default() };
        multi_epoch(form, count, gap, &settings, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn form(input: &Value) -> QuadraticForm {
        let text = match input["workload"].as_str().unwrap() {
            name if input["param"].is_null() => name.into(),
            "exp" => format!("exponential:{}", input["param"]),
            name => format!("{name}:{}", input["param"]),
        };
        QuadraticForm::from_workload(&text.parse().unwrap(), input["n"].as_u64().unwrap() as usize).unwrap()
    }

    #[test]
    fn reference_optima_are_reached_and_certified() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/memf_optimal.json")).unwrap();
        for case in vectors["cases"].as_array().unwrap() {
            let (id, input, expected) = (&case["id"], &case["input"], &case["expected"]);
            let number = |name: &str| expected[name].as_f64().unwrap();
            let [count, gap] = ["k", "b"].map(|name| input[name].as_u64().unwrap() as usize);
            let form = form(input);
            let optimum = solved(&form, count, gap, 1e-10);
            assert!(optimum.relative_gap() <= 1e-10, "{id}: {}", optimum.relative_gap());
            assert!((optimum.objective / number("loss_class_restricted_upper") - 1.0).abs() < 1e-9, "{id}");
            assert!((optimum.gram.min() - number("min_x")).abs() < 3e-7, "{id}: {}", optimum.gram.min());
            let overlap = optimum.certificate.largest_overlap();
            assert!((overlap - number("max_offdiag_ratio_of_dual_block")).abs() < 1e-4, "{id}: {overlap}");
            certificate::verify(&optimum, &form).unwrap();
        }
    }

    #[test]
    fn few_eigendecompositions() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 64).unwrap();
        let optimum = solved(&form, 16, 4, 1e-6);
        assert!(optimum.eigendecompositions <= 12, "{}", optimum.eigendecompositions);
    }

    #[test]
    fn one_participation_is_single_participation() {
        let form = QuadraticForm::from_workload(&"average".parse().unwrap(), 20).unwrap();
        let settings = OptimizerSettings::default();
        let single = coa(&form, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        for (count, gap) in [(1, 20), (1, 33), (7, 20), (1, 5), (1, 1)] {
            assert_eq!(solved(&form, count, gap, 1e-6), single);
        }
    }

    /// X is diagonal then, and the optimum `(Σ √V_ii)²`.
    #[test]
    fn every_step_participation_has_a_closed_form() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 12).unwrap();
        let total = form.matrix().diagonal().map(f64::sqrt).sum().powi(2);
        let optimum = solved(&form, 12, 1, 1e-9);
        assert!((optimum.objective / total - 1.0).abs() < 1e-9);
        assert!(optimum.relative_gap() <= 1e-9);
    }

    #[test]
    fn classes_may_differ_in_length() {
        let form = QuadraticForm::from_workload(&"exponential:0.8".parse().unwrap(), 11).unwrap();
        let optimum = solved(&form, 3, 4, 1e-9);
        assert!(optimum.relative_gap() <= 1e-9);
        certificate::verify(&optimum, &form).unwrap();
    }

    /// The largest sum of CᵀC over a pattern, of absolute values.
    fn squared_sensitivity(optimum: &Optimum, count: usize, gap: usize) -> f64 {
        let steps = optimum.gram.nrows();
        let gram = optimum.strategy.tr_mul(&optimum.strategy);
        let sum = |first: usize| {
            let members = || (first..steps).step_by(gap).take(count);
            members().flat_map(|i| members().map(move |j| (i, j))).map(|entry| gram[entry].abs()).sum::<f64>()
        };
        (0..steps).map(sum).fold(0.0, f64::max)
    }

    #[test]
    fn overlapping_patterns_agree_with_an_independent_solver() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/vectors/memf_windows.json")).unwrap();
        for case in vectors["cases"].as_array().unwrap() {
            let (id, input) = (&case["id"], &case["input"]);
            let number = |name: &str| case["expected"][name].as_f64().unwrap();
            let [count, gap] = ["k", "b"].map(|name| input[name].as_u64().unwrap() as usize);
            let form = form(input);
            let optimum = solved(&form, count, gap, 1e-9);
            assert!(optimum.relative_gap() <= 1e-9, "{id}: {}", optimum.relative_gap());
            assert!((optimum.objective / number("loss") - 1.0).abs() < 1e-8, "{id}: {}", optimum.objective);
            assert!(optimum.objective < number("loss_without_overlap") * (1.0 + 1e-8), "{id}");
            assert!(optimum.certificate.largest_overlap() < 1.0 + 1e-9, "{id}");
            assert!((squared_sensitivity(&optimum, count, gap) - 1.0).abs() < 1e-12, "{id}");
            certificate::verify(&optimum, &form).unwrap();
        }
    }

    #[test]
    fn overlapping_patterns_agree_with_a_primal_method() {
        let form = QuadraticForm::from_workload(&"adam:0.8".parse().unwrap(), 10).unwrap();
        let optimum = solved(&form, 3, 2, 1e-9);
        let corners = corners::optimum(&form, 3, 2, Corners::NonNegativeInPattern, 1e-8).unwrap();
        assert!((optimum.objective / corners.objective - 1.0).abs() < 2e-8);
        assert!(corners.lower_bound <= optimum.objective && optimum.lower_bound <= corners.objective);
    }

    #[test]
    fn overlapping_patterns_take_few_eigendecompositions() {
        let check = |workload: &str, steps: usize, (count, gap): (usize, usize), limit: usize| {
            let form = QuadraticForm::from_workload(&workload.parse().unwrap(), steps).unwrap();
            let optimum = solved(&form, count, gap, 1e-6);
            assert!(optimum.relative_gap() <= 1e-6, "{workload} {count}x{gap}: {}", optimum.relative_gap());
            assert!(optimum.eigendecompositions <= limit, "{workload}: {}", optimum.eigendecompositions);
            assert!((squared_sensitivity(&optimum, count, gap) - 1.0).abs() < 1e-12, "{workload}");
            certificate::verify(&optimum, &form).unwrap();
            optimum.objective
        };
        let total = check("prefix", 64, (4, 4), 16);
        assert!((total / 1958.109611 - 1.0).abs() < 1e-6, "{total}");
        check("average", 65, (4, 16), 30);
        check("momentum:0.9", 60, (4, 5), 24);
        check("window:8", 50, (4, 5), 16);
        check("prefix", 40, (4, 1), 24);
    }

    #[test]
    fn more_participations_never_have_a_smaller_error() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 18).unwrap();
        let totals: Vec<f64> = (1..8).map(|count| solved(&form, count, 3, 1e-8).objective).collect();
        assert!(totals.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 2e-8)), "{totals:?}");
    }

    #[test]
    fn what_has_no_optimum_is_refused() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 21).unwrap();
        let refused = |count, gap| {
            let settings = OptimizerSettings::default();
            multi_epoch(&form, count, gap, &settings, &mut |_| ControlFlow::Continue(())).unwrap_err()
        };
        let pair = QuadraticForm::from_matrix(&DMatrix::from_element(1, 4, 1.0)).unwrap();
        let settings = OptimizerSettings::default();
        let singular = multi_epoch(&pair, 2, 2, &settings, &mut |_| ControlFlow::Continue(()));
        assert_eq!(singular.unwrap_err(), OptimizeError::Singular);
        for (count, gap) in [(0, 5), (5, 0)] {
            assert_eq!(refused(count, gap), OptimizeError::Participation { count, gap });
        }
    }
}
