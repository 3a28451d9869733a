//! Compares fits with published levels, with the strategies that run, and with lower bounds for all
//! Toeplitz strategies.

use super::power_law::fit_power_law;
use super::*;
use crate::strategy::{
    Factorization as _,
    buffered::{Buffered, ENDLESS_POWER_LAW_STEPS},
};
use std::ops::ControlFlow;

fn fit(workload: &str, horizon: Option<u64>, objective: Objective, buffers: u32) -> BufferedFit {
    let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
    fit_blt(&workload.parse().unwrap(), horizon, None, objective, buffers, progress).unwrap()
}

fn power_law(horizon: Option<u64>, buffers: u32) -> BufferedFit {
    fit_power_law(&Workload::Average, horizon, buffers, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// The strategy of a fit, as `build` makes it.
fn strategy(fit: &BufferedFit) -> Buffered {
    Buffered::new(BLT.name(), fit.parameters.clone()).unwrap()
}

#[test]
fn fits_reach_published_levels() {
    for case in &crate::reference::cases(include_str!("../../../../../tests/vectors/blt_optimised.json")) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let objective = if input["objective"] == "max" { Objective::MaxError } else { Objective::Rmse };
        let buffers = input["buffers"].as_u64().unwrap() as u32;
        let found = fit("prefix", input["n"].as_u64(), objective, buffers).value;
        let reached = expected["reached"].as_f64().unwrap();
        assert!(found <= 1.000_001 * reached, "{}: {found} above {reached}", case["id"]);
        assert!(found >= 0.999 * reached, "{}: {found} far below {reached}", case["id"]);
    }
}

/// More buffers are never worse, and five are near the optimum. `root` is the largest error of the
/// square root, which is the optimum.
#[test]
fn more_buffers_are_never_worse() {
    for (steps, root) in [
        (1_000, 3.265_003_080_672_424_4),
        (10_000, 3.998_010_291_062_370_5),
        (100_000, 4.730_953_051_832_177),
        (1_000_000, 5.463_889_366_908_726_5),
        (10_000_000, 6.196_825_037_406_169),
    ] {
        let fits: Vec<BufferedFit> =
            (1..=6).map(|buffers| fit("prefix", Some(steps), Objective::MaxError, buffers)).collect();
        assert!(fits.is_sorted_by(|one, other| one.value >= other.value), "{steps}: {fits:?}");
        let bound = fits[0].lower_bound.unwrap();
        assert!(bound <= root && bound > root - 1e-6, "{steps}: {bound} {root}");
        assert!(fits.iter().all(|fit| fit.value >= bound));
        assert!(steps > 1_000_000 || fits[4].value < 1.0042 * root, "{steps}: {}", fits[4].value);
    }
}

/// The reported value is the error of the strategy that runs, to the accuracy of the sums over
/// lags.
#[test]
fn values_equal_the_errors_of_the_running_strategy() {
    let check = |workload: &str, horizon: Option<u64>, objective| {
        let found = fit(workload, horizon, objective, 3);
        let (strategy, steps) = (strategy(&found), horizon.unwrap_or(100_000));
        let rows: Vec<f64> = strategy.decoder_row_norms(&workload.parse().unwrap(), steps).collect();
        let last = strategy.parameters().steps();
        let squares = match objective {
            Objective::Rmse if horizon.is_some() => {
                rows.iter().map(|row| row * row).sum::<f64>() / steps as f64
            }
            _ => rows[rows.len() - 1].powi(2), // no row of a Toeplitz strategy is longer
        };
        let value = (strategy.max_column_norm_squared(last) * squares).sqrt();
        assert!(
            (found.value - value).abs() < 1e-6 * value,
            "{workload} {horizon:?}: {} {value}",
            found.value
        );
        assert!(found.lower_bound.is_none_or(|bound| bound <= value), "{workload}: {found:?}");
    };
    for workload in ["prefix", "exponential:0.99", "momentum:0.95", "window:30"] {
        for steps in [1, 2, 1000] {
            check(workload, Some(steps), Objective::Rmse);
            check(workload, Some(steps), Objective::MaxError);
        }
    }
    for workload in ["average", "adam:0.99"] {
        check(workload, Some(3000), Objective::Rmse);
    }
    check("exponential:0.9", None, Objective::MaxError);
    check("adam:0.99", None, Objective::Rmse);
}

#[test]
fn fits_are_near_the_lower_bound() {
    for (workload, objective, gap) in [
        ("prefix", Objective::Rmse, 1e-3),
        ("exponential:0.99", Objective::Rmse, 1e-3),
        ("exponential:0.99", Objective::MaxError, 1e-3),
        ("momentum:0.95", Objective::MaxError, 1e-2),
    ] {
        let found = fit(workload, Some(1000), objective, 5);
        let bound = found.lower_bound.unwrap();
        assert!(bound <= found.value && found.value < (1.0 + gap) * bound, "{workload}: {found:?}");
    }
}

/// The fit of a workload given entry by entry equals that of the same workload by name.
#[test]
fn matrices_are_fitted_by_their_structure() {
    for (name, objective) in [
        ("prefix", Objective::Rmse),
        ("prefix", Objective::MaxError),
        ("average", Objective::Rmse),
        ("window:7", Objective::MaxError),
    ] {
        let workload: Workload = name.parse().unwrap();
        let matrix = Workload::from_matrix("w", workload.matrix(60)).unwrap();
        let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
        let found = fit_blt(&matrix, Some(60), None, objective, 2, progress).unwrap().value;
        let expected = fit(name, Some(60), objective, 2).value;
        assert!((found - expected).abs() < 1e-7 * expected, "{name}: {found} {expected}");
    }
}

/// Twenty epochs of a hundred steps: two buffers beat the square root by a factor of two in squared
/// error.
#[test]
fn several_participations_are_fitted() {
    let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
    let repetition = Some(Repetition { count: 20, gap: 100 });
    let found = fit_blt(&Workload::Prefix, Some(2000), repetition, Objective::Rmse, 2, progress).unwrap();
    let total = found.value * found.value * 2000.0;
    assert!((total - 913_697.1).abs() < 1.0, "{total}");
}

#[test]
fn fits_are_repeatable_and_can_be_cancelled() {
    assert_eq!(fit("prefix", Some(500), Objective::Rmse, 3), fit("prefix", Some(500), Objective::Rmse, 3));
    let mut reports = Vec::new();
    let stop = &mut |progress: &OptimizerProgress| {
        reports.push(*progress);
        if reports.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let found = fit_blt(&Workload::Prefix, Some(500), None, Objective::Rmse, 8, stop).unwrap();
    assert_eq!((reports.len(), found.value), (3, reports[2].objective));
}

/// Compares total squared errors of the running average with the certified optimum.
#[test]
fn power_laws_come_near_the_optimum_of_the_average() {
    for (steps, optimum, gap) in
        [(8, 2.278_966_076, 1e-3), (32, 2.743_477_079_4, 2e-3), (512, 3.016_951_465_4, 3e-3)]
    {
        let total = power_law(Some(steps), 2).value.powi(2) * steps as f64;
        assert!(total >= optimum && total < (1.0 + gap) * optimum, "{steps}: {total} {optimum}");
    }
    let [one, endless] = [power_law(Some(512), 1), power_law(None, 2)];
    assert!(one.value.powi(2) * 512.0 < 3.069_8, "{one:?}");
    assert!(endless.value.powi(2) * 512.0 < 1.005 * 3.016_951_465_4, "{endless:?}");
    assert_eq!(strategy(&endless).max_column_norm_squared(ENDLESS_POWER_LAW_STEPS), 1.0);
}

#[test]
fn one_power_law_serves_all_lengths() {
    let strategy = strategy(&power_law(None, 2));
    let optima = [(8, 2.278_966_076), (32, 2.743_477_079_4), (128, 2.942_423_665_3), (256, 2.989_081_968)];
    let rows: Vec<f64> = strategy.decoder_row_norms(&Workload::Average, 20_000).collect();
    let total = |steps: usize| rows[..steps].iter().map(|row| row * row).sum::<f64>();
    for (steps, optimum) in optima {
        assert!(total(steps) >= optimum && total(steps) < 1.08 * optimum, "{steps}: {}", total(steps));
    }
    assert!(total(20_000) < 3.08, "{}", total(20_000));
}

#[test]
fn impossible_fits_are_refused() {
    let check = |workload: &str, horizon, repetition, objective, buffers, part: &str| {
        let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
        let workload = workload.parse().unwrap();
        let error = fit_blt(&workload, horizon, repetition, objective, buffers, progress).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check("prefix", Some(9), None, Objective::Rmse, 0, "1 to 8");
    check("prefix", Some(9), None, Objective::Rmse, 9, "1 to 8");
    check("prefix", Some(0), None, Objective::Rmse, 2, "1 to 4294967296");
    check("prefix", None, None, Objective::Rmse, 2, "need a horizon");
    check("average", None, None, Objective::Rmse, 2, "need a horizon");
    check("average", Some(9), None, Objective::MaxError, 2, "first step");
    let never = Some(Repetition { count: 0, gap: 1 });
    check("prefix", Some(9), never, Objective::Rmse, 2, "at least 1");
    let always = Some(Repetition { count: 1 << 20, gap: 1 });
    check("prefix", Some(1 << 20), always, Objective::Rmse, 2, "4096");
    let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
    let error = fit_power_law(&Workload::Prefix, None, 2, progress).unwrap_err();
    assert!(error.to_string().contains("`average` alone"), "{error}");
}

/// The optimum that ignores repeated participation has growing coefficients and is not a valid
/// strategy. According to another program, the optimum with one buffer is 45.496234 at θ = 0.96301
/// and θ̂ = 0.
#[test]
fn fits_for_several_participations_keep_coefficients_from_growing() {
    let repetition = Some(Repetition { count: 5, gap: 50 });
    let values: Vec<f64> = (1..=4)
        .map(|buffers| {
            let progress = &mut |_: &OptimizerProgress| ControlFlow::Continue(());
            let workload = "momentum:0.9".parse().unwrap();
            fit_blt(&workload, Some(250), repetition, Objective::Rmse, buffers, progress).unwrap().value
        })
        .collect();
    assert!(values[0] < 45.4963 && values.is_sorted_by(|one, other| one >= other), "{values:?}");
}

/// The longest horizons, and the bound of the mean square at a million steps. Takes minutes, so it
/// runs only if `HUSHFLOW_LONG_TESTS` is set.
#[test]
fn long_fits_are_near_the_lower_bound() {
    if std::env::var_os("HUSHFLOW_LONG_TESTS").is_none() {
        return;
    }
    for steps in [10_000_000, 100_000_000] {
        let fits: Vec<BufferedFit> =
            (1..=8).map(|buffers| fit("prefix", Some(steps), Objective::MaxError, buffers)).collect();
        assert!(fits.is_sorted_by(|one, other| one.value >= other.value), "{steps}: {fits:?}");
        assert!(fits[7].value < 1.0011 * fits[7].lower_bound.unwrap(), "{steps}: {fits:?}");
    }
    let found = fit("prefix", Some(1_000_000), Objective::Rmse, 8);
    let bound = toeplitz_lower_bound(&Workload::Prefix, Objective::Rmse, &found.parameters).unwrap();
    assert!(bound <= found.value && found.value < 1.005 * bound, "{} {bound}", found.value);
}
