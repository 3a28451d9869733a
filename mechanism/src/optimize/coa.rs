//! Single participation: every entity contributes to one step (Yuan et al. 2016; Denisov et al.
//! 2022).

use super::{
    OnProgress, OptimizeError, OptimizerSettings, Optimum, QuadraticForm, classes::Classes, row_space,
    search, search::OptimizerProblem,
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
    let found = if problem.singular {
        row_space::search(&problem, settings, progress)?
    } else {
        search::search(&problem, settings, progress)?
    };
    Optimum::new(&found, &problem)
}

#[cfg(test)]
mod tests {
    use super::super::{Stop, certificate};
    use super::*;
    use crate::error::reference::Congruential;
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
    fn totals_are_the_certified_ones() {
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
    fn rounding_is_no_rank() {
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
        let vectors: Value = serde_json::from_str(include_str!("../../../tests/vectors/coa.json")).unwrap();
        for case in vectors["cases"].as_array().unwrap() {
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
    fn both_searches_find_the_same() {
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
    fn one_step_and_one_query() {
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
        let mut seen = Vec::new();
        let mut end = |progress: &super::super::OptimizerProgress| {
            seen.push(*progress);
            if progress.iteration == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        check(coa(&form, &OptimizerSettings::default(), &mut end).unwrap(), Stop::Cancelled);
        assert!(seen[1].lower_bound > seen[0].lower_bound && seen[1].objective <= seen[0].objective);
        let endless = OptimizerSettings { relative_gap: 0.0, ..OptimizerSettings::default() };
        let optimum = coa(&form, &endless, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(optimum.relative_gap() < 1e-12, "{}", optimum.relative_gap());
        assert!(optimum.iterations < 40, "{}", optimum.iterations);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_workload_has_a_certified_optimum(
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
