//! Compares the figures of `plan` with reference numbers and with each other.

use serde_json::Value;

use super::{hush, json};
use crate::harness::{Lab, cases, close, number, workload};

const FACTORIZATION_ERRORS: &str = include_str!("../../vectors/factorization_errors.json");
const PARTICIPATION_LOSSES: &str = include_str!("../../vectors/memf_table1.json");

/// One strategy for each form of strategy name.
const STRATEGIES: [&str; 28] = [
    "optimal",
    "coa",
    "auto",
    "identity",
    "square-root",
    "banded-square-root:5",
    "banded-inverse-square-root:5",
    "matrix-square-root",
    "log-perturbed-root",
    "normalized-square-root",
    "normalized-banded-square-root:5",
    "normalized-banded-inverse-square-root:5",
    "normalized-matrix-square-root",
    "blt:1",
    "blt:3",
    "variable-blt:2",
    "variable-banded:4",
    "power-law:1",
    "tree",
    "honaker",
    "tree-optimal-decoder",
    "fft",
    "fft-optimal-decoder",
    "banded-optimal:5",
    "banded-toeplitz-optimal:5",
    "banded-inverse-fractional-root:4",
    "banded-inverse-optimal:2",
    "normalized-banded-inverse-optimal:5",
];

/// Returns whether the strategy exists for the workload.
fn applies(strategy: &str, workload: &str) -> bool {
    match strategy {
        "power-law:1" => workload == "average",
        "variable-blt:2" => !workload.starts_with("window") && !workload.starts_with("matrix"),
        "log-perturbed-root" => ["prefix", "average"].contains(&workload),
        _ => true,
    }
}

/// Checks that the figures are consistent, and that none is below the certified bound.
fn check_consistent(line: &str, found: &Value, bound: f64) {
    let figure = |name: &str| number(&found[name]);
    let (n, sensitivity, frobenius) = (figure("horizon"), figure("sensitivity"), figure("frobenius"));
    close(line, &found["loss"], (sensitivity * frobenius).powi(2), 1e-14);
    close(line, &found["rmse"], sensitivity * frobenius / n.sqrt(), 1e-14);
    close(line, &found["max_error"], sensitivity * figure("max_row"), 1e-14);
    assert!(figure("rmse") <= figure("max_error") * (1.0 + 1e-12), "{line}: {found}");
    assert!(figure("loss") >= bound, "{line} is below the certified bound {bound}: {found}");
    assert_eq!(found["sensitivity_kind"], "exact", "{line}");
    // Replacing a record of norm 1 has at least twice the effect of adding one, and more if the
    // record may move.
    assert!(figure("joint_sensitivity") >= 2.0 * sensitivity * (1.0 - 1e-12), "{line}: {found}");
    let runs = !["tree", "honaker", "fft"].contains(&found["strategy"].as_str().expect("a name"));
    assert_eq!([&found["runs"], &found["memory_per_coordinate"].is_u64().into()], [runs, runs], "{line}");
}

#[test]
#[ignore = "slow"]
fn every_strategy_has_consistent_figures_for_every_workload() {
    let lab = Lab::new();
    let workloads = [
        ("prefix", 64),
        ("average", 33),
        ("exponential:0.9", 48),
        ("window:5", 40),
        ("momentum:0.9", 24),
        ("adam:0.9", 31),
    ];
    for (workload, n) in workloads {
        let mut bound = 0.0;
        for strategy in STRATEGIES {
            let line = format!("plan --workload {workload} --horizon {n} --strategy {strategy}");
            if applies(strategy, workload) {
                let report = json(&lab, &line);
                check_consistent(&line, &report, bound);
                bound = report["loss_lower_bound"].as_f64().unwrap_or(bound);
            } else {
                hush(&lab, &line).failed(2, &["`average`", workload]);
            }
        }
        assert!(bound > 0.0, "the optimum of {workload} comes with a bound");
    }
}

/// Converts the reference numbers' name of a factorisation to the command line's.
fn strategy(name: &str) -> String {
    match name {
        "identity" => "identity".into(),
        "sqrt" => "square-root".into(),
        "optimal_dense" => "optimal".into(),
        "tree_online" => "honaker".into(),
        "tree_full" => "tree-optimal-decoder".into(),
        other => {
            format!("banded-square-root:{}", other.strip_prefix("banded_sqrt_").expect("a number of bands"))
        }
    }
}

#[test]
fn errors_agree_with_the_reference() {
    let lab = Lab::new();
    let cases = cases(FACTORIZATION_ERRORS);
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let (n, workload) = (&input["n"], workload(input));
        let strategy = strategy(input["factorization"].as_str().expect("a name"));
        let line = format!("plan --workload {workload} --horizon {n} --strategy {strategy}");
        let report = json(&lab, &line);
        // The objective of an optimum is accurate to the gap, its matrix only to the root of the
        // gap.
        let (whole, row) = if strategy == "optimal" { (1e-8, 1e-4) } else { (1e-10, 1e-10) };
        close(&line, &report["rmse"], number(&expected["rmse"]), whole);
        close(&line, &report["loss"], number(&expected["rmse"]).powi(2) * number(n), 2.0 * whole);
        close(&line, &report["max_error"], number(&expected["max_error"]), row);
        // A causal form has another scale: the factors belong to its encoder.
        if strategy != "tree-optimal-decoder" {
            close(&line, &report["sensitivity"], number(&expected["c_norm_1to2"]), whole);
            close(&line, &report["frobenius"], number(&expected["b_frobenius"]), whole);
            close(&line, &report["max_row"], number(&expected["b_max_row"]), row);
        }
        let named =
            [&report["workload"], &report["strategy"], &report["participation"], &report["neighbours"]];
        assert_eq!(named, [&workload, &strategy, "1", "replace-one"]);
        assert_eq!((&report["noise_multiplier"], &report["horizon"]), (&Value::Null, n));
    }
    assert_eq!(cases.len(), 76);
}

/// Table 1 of "Multi-Epoch Matrix Factorization Mechanisms", prefix sums over 2000 steps. The paper
/// bounds the sensitivity of the Fourier mechanism by its Theorem 2.1; ours may be smaller.
#[test]
fn losses_under_participation_agree_with_table_1() {
    let lab = Lab::new();
    let mut checked = 0;
    for case in cases(PARTICIPATION_LOSSES) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let strategy = match input["mechanism"].as_str().expect("a name") {
            "honaker_online" => "honaker",
            "honaker_optimal_decoder" => "tree-optimal-decoder",
            "fft" => "fft",
            "fft_optimal_decoder" => "fft-optimal-decoder",
            _ => continue,
        };
        let line = format!(
            "plan --workload prefix --horizon 2000 --moments none --participation {}x{} --stamps {} --strategy {strategy}",
            input["k"], input["b"], input["stamps"],
        );
        let report = json(&lab, &line);
        let loss = number(&expected["loss"]);
        if strategy.starts_with("fft") {
            let least = expected["loss_with_exact_sensitivity"].as_f64().unwrap_or(0.98 * loss);
            let range = least * (1.0 - 1e-8)..=loss * (1.0 + 1e-8);
            assert!(range.contains(&number(&report["loss"])), "{line}: {report}, not {range:?}");
        } else {
            close(&line, &report["loss"], loss, 1e-8);
            assert_eq!(report["sensitivity_kind"], "exact", "{line}");
        }
        if ["honaker", "fft"].contains(&strategy) {
            close(&line, &report["frobenius"], number(&expected["b_frobenius2"]).sqrt(), 1e-8);
        }
        checked += 1;
    }
    assert_eq!(checked, 10);
}
