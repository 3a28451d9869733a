//! Several participations at a fixed distance (Choquette-Choo et al. 2023, section 3).

use super::{
    OptimizeError, Optimum, Progress, QuadraticForm, Settings, check_participation, classes::Classes, coa,
    search, search::Problem,
};
use std::ops::ControlFlow;

/// The strategy of sensitivity 1 under (k, b)-participation with the least total squared error among those whose
/// columns are orthogonal within a residue class mod b.
///
/// An entity contributes to at most `count` = k steps, each `gap` = b after the one before, and n ≤ k·b, so that
/// the steps of an entity are a residue class. With `X_ij = 0` between different steps of a class the squared
/// sensitivity is the largest sum of X_ii over a class, for contributions of any dimension and sign. Where
/// [`Certificate::largest_overlap`](super::Certificate::largest_overlap) is at most 1, which it was in every
/// instance looked at, no strategy with non-negative `X_ij` within the classes is better either (the paper's
/// Eq. (36)); where X is non-negative throughout, none that is (its Eq. (35)). Entries between different classes may
/// turn slightly negative, which costs no privacy.
///
/// # Errors
/// [`OptimizeError::Participation`], [`OptimizeError::Horizon`] for n > k·b, where patterns may begin at any step
/// and other pairs of steps and other sums are constrained, [`OptimizeError::Singular`] for a workload with linearly
/// dependent columns and k > 1, and [`OptimizeError::Numerical`].
pub fn multi_epoch(
    form: &QuadraticForm,
    count: usize,
    gap: usize,
    settings: &Settings,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Optimum, OptimizeError> {
    let steps = form.steps();
    check_participation(steps, count, gap)?;
    if gap >= steps {
        return coa(form, settings, progress);
    }
    let classes = Classes::new(steps, gap);
    let problem = Problem::new(form, &classes)?;
    if problem.singular {
        return Err(OptimizeError::Singular);
    }
    Optimum::new(&search::search(&problem, settings, progress)?, &problem, gap)
}

#[cfg(test)]
mod tests {
    use super::super::certificate;
    use super::*;
    use nalgebra::DMatrix;
    use serde_json::Value;

    fn solved(form: &QuadraticForm, count: usize, gap: usize, relative_gap: f64) -> Optimum {
        let settings = Settings { relative_gap, ..Settings::default() };
        multi_epoch(form, count, gap, &settings, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn form(input: &Value) -> QuadraticForm {
        let text = match input["workload"].as_str().unwrap() {
            "exp" => format!("exponential:{}", input["param"]),
            "momentum" => format!("momentum:{}", input["param"]),
            name => name.into(),
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
        let settings = Settings::default();
        let single = coa(&form, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        for (count, gap) in [(1, 20), (1, 33), (7, 20)] {
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

    #[test]
    fn patterns_that_do_not_cover_the_horizon_are_refused() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 21).unwrap();
        let refused = |count, gap| {
            let settings = Settings::default();
            multi_epoch(&form, count, gap, &settings, &mut |_| ControlFlow::Continue(())).unwrap_err()
        };
        assert_eq!(refused(4, 5), OptimizeError::Horizon { steps: 21, count: 4, gap: 5 });
        assert!(refused(4, 5).to_string().contains("at least 5 participations"));
        let pair = QuadraticForm::from_matrix(&DMatrix::from_element(1, 4, 1.0)).unwrap();
        let settings = Settings::default();
        let singular = multi_epoch(&pair, 2, 2, &settings, &mut |_| ControlFlow::Continue(()));
        assert_eq!(singular.unwrap_err(), OptimizeError::Singular);
        for (count, gap) in [(0, 5), (5, 0)] {
            assert_eq!(refused(count, gap), OptimizeError::Participation { count, gap });
        }
    }
}
