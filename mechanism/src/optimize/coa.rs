//! Optimal strategies for single participation, where every entity contributes to one step (Yuan et
//! al. 2016; Denisov et al. 2022), and for several participations.
//!
//! # Several participations
//! Participations are at a fixed distance (Choquette-Choo et al. 2023, section 3).

use super::classes::Classes;
use super::search::OptimizerProblem;
use super::{
    OnProgress, OptimizeError, OptimizerSettings, Optimum, QuadraticForm, check_participation, row_space,
    search,
};

/// Returns the strategy of sensitivity 1 with the least total squared error: `inf tr(V X⁻¹)` over X
/// with a diagonal of at most 1, for any workload.
///
/// `progress` is called at every iteration and may end the search with the best result so far. For
/// a singular V the infimum is approached, not attained, and C is close to singular.
///
/// ```
/// use hushflow_mechanism::optimize::{QuadraticForm, OptimizerSettings, coa};
/// use std::ops::ControlFlow;
///
/// let form = QuadraticForm::from_workload(&"prefix".parse()?, 2)?;
/// let optimum = coa(&form, &OptimizerSettings::default(), &mut |_| ControlFlow::Continue(()))?;
/// assert!((optimum.objective - 2.618033988749895).abs() < 1e-5); // the golden ratio, squared
/// assert!(optimum.relative_gap() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OptimizeError::Numerical`] if a factorisation fails.
pub fn coa(
    form: &QuadraticForm,
    settings: &OptimizerSettings,
    progress: OnProgress<'_>,
) -> Result<Optimum, OptimizeError> {
    let steps = form.steps();
    let classes = Classes::new(steps, 1, steps);
    let problem = OptimizerProblem::new(form, &classes)?;
    let optimum = if problem.singular {
        row_space::search(&problem, settings, progress)?
    } else {
        search::search(&problem, settings, progress)?
    };
    Optimum::new(&optimum, &problem)
}

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
    use super::super::{Stop, certificate};
    use super::*;
    use crate::reference::Congruential;
    use nalgebra::DMatrix;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::ops::ControlFlow;

    fn solved(form: &QuadraticForm, relative_gap: f64) -> Optimum {
        let settings = OptimizerSettings { relative_gap, ..OptimizerSettings::default() };
        coa(form, &settings, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn check_total(form: &QuadraticForm, total: f64, tolerance: f64) {
        let optimum = solved(form, 1e-10);
        assert!(optimum.relative_gap() <= 1e-10, "{total}: gap {}", optimum.relative_gap());
        assert!(
            (optimum.objective / total - 1.0).abs() <= tolerance,
            "{} against {total}",
            optimum.objective
        );
    }

    #[test]
    fn totals_agree_with_certified_optima() {
        let check = |text: &str, steps: usize, total: f64, tolerance: f64| {
            let form = QuadraticForm::from_workload(&text.parse().unwrap(), steps).unwrap();
            check_total(&form, total, tolerance);
        };
        check("prefix", 1, 1.0, 1e-14);
        check("prefix", 2, 2.618033988749895, 2e-10);
        check("prefix", 4, 6.8741440972, 5e-9);
        check("prefix", 32, 114.5597037911, 1e-8);
        check("prefix", 128, 683.6130256787, 1e-8);
        check("exponential:0.9", 128, 266.6352447686, 1e-8);
        check("exponential:0.99", 128, 525.3034782494, 1e-8);
        check("average", 128, 2.9424236653, 1e-8);
        check("window:10", 128, 4.5997683874, 1e-8);
        check("window:10", 8, 0.1786617741, 1e-8);
        check_total(&QuadraticForm::all_ranges(128).unwrap(), 8256.0 * 2.59899076f64.powi(2), 1e-7);
    }

    /// Six rows over seven steps, so V is singular. A small pivot comes before the last one, which
    /// rounding makes 4·10⁻¹⁴ of its entry.
    #[test]
    fn rounding_does_not_raise_the_rank() {
        let entries = [
            [1, 2, -1, 1, -2, 1, -1],
            [1, 1, -3, -2, 0, 0, 1],
            [-2, 2, 0, -1, 2, 2, 1],
            [1, 0, 1, 0, 3, -2, 0],
            [0, 0, 3, 0, 0, 0, 0],
            [1, 3, -1, 0, -3, 2, -2],
        ];
        let workload = DMatrix::from_fn(6, 7, |i, j| f64::from(entries[i][j]));
        let optimum = solved(&QuadraticForm::from_matrix(&workload).unwrap(), 1e-6);
        assert!(optimum.relative_gap() <= 1e-6, "{}", optimum.relative_gap());
        assert!((optimum.objective - 72.2115081).abs() < 1e-4, "{}", optimum.objective);
    }

    fn below(generator: &mut Congruential, limit: usize) -> usize {
        (generator.uniform() * limit as f64) as usize
    }

    fn normals(generator: &mut Congruential, rows: usize, columns: usize) -> DMatrix<f64> {
        let entries: Vec<f64> = (0..rows * columns).map(|_| generator.normal()).collect();
        DMatrix::from_row_slice(rows, columns, &entries)
    }

    fn workload(input: &Value) -> DMatrix<f64> {
        let number = |name: &str| input[name].as_f64().unwrap();
        let size = |name: &str| input[name].as_u64().unwrap() as usize;
        let mut generator = Congruential(input["seed"].as_u64().unwrap_or(0));
        match input["kind"].as_str().unwrap() {
            "prefix" => DMatrix::from_fn(size("n"), size("n"), |t, i| if i <= t { 1.0 } else { 0.0 }),
            "range" => {
                let mut matrix = DMatrix::zeros(size("m"), size("n"));
                for row in 0..size("m") {
                    let [a, b] = [0; 2].map(|_| below(&mut generator, size("n")));
                    (a.min(b)..=a.max(b)).for_each(|i| matrix[(row, i)] = 1.0);
                }
                matrix
            }
            "discrete" => {
                let mut entry =
                    || if generator.uniform() < number("p") { number("hi") } else { number("lo") };
                let entries: Vec<f64> = (0..size("m") * size("n")).map(|_| entry()).collect();
                DMatrix::from_row_slice(size("m"), size("n"), &entries)
            }
            "related" => {
                let left = normals(&mut generator, size("m"), size("s"));
                left * normals(&mut generator, size("s"), size("n"))
            }
            "marginal" => marginals(input["dims"].as_array().unwrap(), size("m"), &mut generator),
            kind => panic!("unknown kind {kind}"),
        }
    }

    fn marginals(dimensions: &[Value], rows: usize, generator: &mut Congruential) -> DMatrix<f64> {
        let sizes: Vec<usize> = dimensions.iter().map(|size| size.as_u64().unwrap() as usize).collect();
        let pairs: Vec<_> =
            (0..sizes.len()).flat_map(|a| (a + 1..sizes.len()).map(move |b| (a, b))).collect();
        let coordinate =
            |cell: usize, axis: usize| cell / sizes[axis + 1..].iter().product::<usize>() % sizes[axis];
        let mut matrix = DMatrix::zeros(rows, sizes.iter().product());
        for row in 0..rows {
            let (a, b) = pairs[below(generator, pairs.len())];
            let value = below(generator, sizes[a] * sizes[b]);
            for cell in 0..matrix.ncols() {
                let inside =
                    (coordinate(cell, a), coordinate(cell, b)) == (value / sizes[b], value % sizes[b]);
                matrix[(row, cell)] = f64::from(u8::from(inside));
            }
        }
        matrix
    }

    #[test]
    fn reference_workloads_of_every_rank_are_solved() {
        for case in &crate::reference::cases(include_str!("../../../tests/vectors/coa.json")) {
            let (id, expected) = (&case["id"], &case["expected"]);
            let number = |name: &str| expected[name].as_f64().unwrap();
            let workload = workload(&case["input"]["workload"]);
            assert!((workload.norm_squared() / number("w_frobenius2") - 1.0).abs() < 1e-9, "{id}");
            assert!((workload.sum() - number("w_sum")).abs() < 1e-9 * number("w_frobenius2"), "{id}");
            let form = QuadraticForm::from_matrix(&workload).unwrap();
            let optimum = solved(&form, 2e-8);
            assert!(optimum.relative_gap() <= 2e-8, "{id}: {}", optimum.relative_gap());
            assert!(optimum.objective >= number("f_star_lower") * (1.0 - 1e-9), "{id}");
            assert!(optimum.objective <= number("f_star_upper") * (1.0 + 3e-8), "{id}");
            certificate::verify(&optimum, &form).unwrap_or_else(|refusal| panic!("{id}: {refusal}"));
        }
    }

    #[test]
    fn both_searches_find_the_same_optimum() {
        let form = QuadraticForm::from_workload(&"adam:0.9".parse().unwrap(), 40).unwrap();
        let classes = Classes::new(40, 1, 40);
        let problem = OptimizerProblem::new(&form, &classes).unwrap();
        let settings = OptimizerSettings { relative_gap: 2e-8, ..OptimizerSettings::default() };
        let found = row_space::search(&problem, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(!problem.singular && found.progress.relative_gap() <= 2e-8);
        let other = solved(&form, 2e-8);
        assert!((found.progress.objective / other.objective - 1.0).abs() < 3e-8);
        assert!(found.progress.lower_bound < other.objective * (1.0 + 1e-12));
    }

    #[test]
    fn one_step_or_one_query_has_a_closed_form() {
        let one = solved(&QuadraticForm::from_matrix(&DMatrix::from_element(3, 1, 2.0)).unwrap(), 1e-12);
        assert_eq!(one.strategy[(0, 0)], 1.0);
        assert!((one.objective - 12.0).abs() < 1e-12);
        let row = DMatrix::from_row_slice(1, 3, &[1.0, 1.0, 0.0]);
        let total = solved(&QuadraticForm::from_matrix(&row).unwrap(), 1e-6);
        assert!(total.relative_gap() <= 1e-6 && (total.objective - 1.0).abs() < 1e-6, "{total:?}");
    }

    #[test]
    fn an_early_end_has_an_honest_gap() {
        let form = QuadraticForm::from_workload(&"prefix".parse().unwrap(), 64).unwrap();
        let exact = 282.2014210524;
        let check = |optimum: Optimum, stop: Stop| {
            assert_eq!(optimum.stop, stop);
            assert!(optimum.relative_gap() > 1e-4);
            assert!(optimum.lower_bound < exact && exact < optimum.objective);
            certificate::verify(&optimum, &form).unwrap();
        };
        let settings = OptimizerSettings { iterations: 2, ..OptimizerSettings::default() };
        check(coa(&form, &settings, &mut |_| ControlFlow::Continue(())).unwrap(), Stop::Iterations);
        let mut reports = Vec::new();
        let mut end = |progress: &super::super::OptimizerProgress| {
            reports.push(*progress);
            if progress.iteration == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        check(coa(&form, &OptimizerSettings::default(), &mut end).unwrap(), Stop::Cancelled);
        assert!(
            reports[1].lower_bound > reports[0].lower_bound && reports[1].objective <= reports[0].objective
        );
        let endless = OptimizerSettings { relative_gap: 0.0, ..OptimizerSettings::default() };
        let optimum = coa(&form, &endless, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(optimum.relative_gap() < 1e-12, "{}", optimum.relative_gap());
        assert!(optimum.iterations < 40, "{}", optimum.iterations);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_workload_has_a_certified_optimum(
            (rows, columns) in (1..9usize, 1..9usize),
            entries in prop::collection::vec(-3..4i32, 64),
            scale in -60..60i32,
        ) {
            let entry = |i: usize, j: usize| f64::from(entries[8 * i + j]) * 2f64.powi(scale);
            let workload = DMatrix::from_fn(rows, columns, entry);
            prop_assume!(workload.amax() > 0.0);
            let form = QuadraticForm::from_matrix(&workload).unwrap();
            let optimum = solved(&form, 1e-6);
            prop_assert!(optimum.relative_gap() <= 1e-6, "{}", optimum.relative_gap());
            let verified = certificate::verify(&optimum, &form);
            prop_assert!(verified.is_ok(), "{verified:?}");
            prop_assert!((optimum.column_norm - 1.0).abs() < 1e-12);
        }
    }
}

#[cfg(test)]
mod multi_epoch_tests {
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
        for case in &crate::reference::cases(include_str!("../../../tests/vectors/memf_optimal.json")) {
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
    fn searches_take_few_eigendecompositions() {
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
        for case in &crate::reference::cases(include_str!("../../../tests/vectors/memf_windows.json")) {
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
    fn workloads_without_an_optimum_are_refused() {
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
