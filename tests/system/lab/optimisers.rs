//! Tests `optimize`: objectives against reference optima, lower bounds, and files for other
//! commands.

use std::fmt::Write;

use serde_json::Value;

use super::{hush, json, kept};
use crate::harness::{Lab, cases, close, number, workload};

const COA: &str = include_str!("../../vectors/coa.json");
const MULTI_EPOCH: &str = include_str!("../../vectors/memf_optimal.json");
const OVERLAPPING: &str = include_str!("../../vectors/memf_windows.json");
const BUFFERED: &str = include_str!("../../vectors/blt_optimised.json");

/// Checks that a certified objective lies between these bounds of the optimum, with the allowed gap
/// of 10⁻⁶.
#[track_caller]
fn check_certified(line: &str, found: &Value, lower: f64, upper: f64) {
    let figure = |name: &str| number(&found[name]);
    assert!(figure("objective") >= lower * (1.0 - 1e-7), "{line}: {found} is below {lower}");
    assert!(figure("objective") <= upper * (1.0 + 1e-6), "{line}: {found} is above {upper}");
    assert!(figure("lower_bound") <= upper * (1.0 + 1e-9), "{line}: {found} is not a bound of {upper}");
    assert!(figure("objective") / figure("lower_bound") - 1.0 <= 1e-6, "{line}: {found}");
    assert!((0.0..=1e-6).contains(&figure("relative_gap")), "{line}: {found}");
    assert_eq!([&found["converged"], &found["certified"]], [true, true], "{line}: {found}");
    let trace = found["trace"].as_array().expect("a trace");
    assert_eq!(trace.last().expect("an iteration")["objective"], found["objective"], "{line}");
}

/// The generator of the reference numbers.
struct ReferenceGenerator(u64);

impl ReferenceGenerator {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 / 2f64.powi(53) * bound as f64) as usize
    }
}

/// A matrix file with ones from the first to the last step of each pair.
fn ranges(steps: usize, queries: impl IntoIterator<Item = (usize, usize)>) -> String {
    queries.into_iter().fold(String::new(), |mut text, (a, b)| {
        let ones = a.min(b)..=a.max(b);
        let row: Vec<_> = (0..steps).map(|step| if ones.contains(&step) { "1" } else { "0" }).collect();
        let _ = writeln!(text, "{}", row.join(","));
        text
    })
}

#[test]
fn coa_finds_the_reference_optima_of_prefixes_and_of_matrices_without_full_rank() {
    let lab = Lab::new();
    let mut checked = Vec::new();
    for case in cases(COA) {
        let (input, expected) = (&case["input"]["workload"], &case["expected"]);
        let n = number(&input["n"].as_u64().unwrap_or(0).into()) as usize;
        let line = match input["kind"].as_str().expect("a kind") {
            "prefix" => format!("optimize --method coa --workload prefix --horizon {n}"),
            "range" if n <= 64 => {
                let mut random = ReferenceGenerator(input["seed"].as_u64().expect("a seed"));
                let queries = input["m"].as_u64().expect("a number of queries");
                let queries = (0..queries).map(|_| (random.below(n as u64), random.below(n as u64)));
                let text = ranges(n, queries);
                assert_eq!(
                    text.matches('1').count() as f64,
                    number(&expected["w_sum"]),
                    "the workload is the paper's"
                );
                lab.write("ranges.csv", text);
                "optimize --method coa --workload matrix:ranges.csv".into()
            }
            _ => continue,
        };
        let report = json(&lab, &line);
        check_certified(&line, &report, number(&expected["f_star_lower"]), number(&expected["f_star_upper"]));
        checked.push(format!("{n}: {}", expected["rank"]));
    }
    assert_eq!(checked, ["64: 64", "256: 256", "32: 30", "64: 64", "64: 16"]);
}

#[test]
fn coa_finds_the_optimum_of_all_ranges() {
    let lab = Lab::new();
    let all = |n: usize| (0..n).flat_map(move |a| (a..n).map(move |b| (a, b)));
    lab.write("ranges.csv", ranges(32, all(32)));
    let named = json(&lab, "optimize --method coa --workload all-range --horizon 32");
    let listed = json(&lab, "optimize --method coa --workload matrix:ranges.csv");
    check_certified("named", &named, number(&listed["lower_bound"]), number(&listed["objective"]));
    close("rmse", &named["rmse"], number(&listed["rmse"]), 1e-6);
    // Root mean squared errors of an independent solver, with its certificate.
    let report = json(&lab, "optimize --method coa --workload all-range --horizon 128");
    let square = |rmse: f64| rmse * rmse * 64.0 * 129.0;
    check_certified("all-range", &report, square(2.598_990_722_3), square(2.598_990_811_5));
}

#[test]
fn multi_epoch_finds_the_reference_optima() {
    let lab = Lab::new();
    let cases = cases(MULTI_EPOCH);
    for case in &cases {
        let (input, expected) = (&case["input"], &case["expected"]);
        let purpose = format!(
            "--workload {} --horizon {} --participation {}x{}",
            workload(input),
            input["n"],
            input["k"],
            input["b"],
        );
        let line = format!("optimize --method multi-epoch {purpose} --output best.json");
        let report = json(&lab, &line);
        let bound = |name: &str| number(&expected[format!("loss_class_restricted_{name}")]);
        check_certified(&line, &report, bound("lower"), bound("upper"));
        let planned = json(&lab, &format!("plan {purpose} --strategy file:best.json"));
        close(&line, &planned["loss"], number(&report["objective"]), 1e-9);
    }
    assert_eq!(cases.len(), 5);
}

/// The horizon is longer than the participations, so patterns may begin at any step.
#[test]
fn multi_epoch_finds_the_reference_optima_of_overlapping_patterns() {
    let lab = Lab::new();
    let cases = cases(OVERLAPPING);
    for case in &cases {
        let (input, loss) = (&case["input"], number(&case["expected"]["loss"]));
        let (workload, n) = (workload(input), &input["n"]);
        let purpose = format!("-w {workload} -n {n} --participation {}x{}", input["k"], input["b"]);
        let report = json(&lab, &format!("optimize --method multi-epoch {purpose} -o best.json"));
        check_certified(&purpose, &report, loss, loss);
        let planned = json(&lab, &format!("plan {purpose} --strategy file:best.json"));
        close(&purpose, &planned["loss"], number(&report["objective"]), 1e-9);
    }
    assert_eq!(cases.len(), 9);
    let purpose = "-w prefix -n 64 --participation 4x4";
    let report = json(&lab, &format!("optimize --method multi-epoch {purpose}"));
    // Between the bounds of a prototype in numpy.
    check_certified(purpose, &report, 1_958.109_611_011, 1_958.109_611_023);
    let planned = json(&lab, &format!("plan {purpose} --strategy optimal"));
    close(purpose, &planned["loss"], 1_958.109_611_02, 1e-6);
}

#[test]
fn blt_reaches_the_reference_levels() {
    let lab = Lab::new();
    let mut checked = 0;
    for case in cases(BUFFERED) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let n = number(&input["n"]);
        if n > 1e5 {
            continue;
        }
        let objective = input["objective"].as_str().expect("an objective");
        let purpose = format!("--workload prefix --horizon {n} --objective {objective}");
        let line = format!("optimize --method blt --buffers {} {purpose} -o best.json", input["buffers"]);
        let report = json(&lab, &line);
        let value = |figure: &Value| match objective {
            "max" => number(figure),
            _ => (number(figure) / n).sqrt(),
        };
        let reached = value(&report["objective"]);
        assert!(reached <= 1.01 * number(&expected["reached"]), "{line}: {report}");
        // All Toeplitz strategies, including the square root, are at or above the bound. The bound
        // of the mean square is slow for long streams.
        let root = number(&expected["sqrt_reference"]);
        assert_eq!(report["lower_bound"].is_f64(), objective == "max" || n <= 1e3, "{line}");
        if report["lower_bound"].is_f64() {
            let bound = value(&report["lower_bound"]);
            assert!((0.98 * root..=root).contains(&bound) && bound <= reached, "{line}: {report} for {root}");
        }
        let planned = json(&lab, &format!("plan {purpose} --moments none --strategy file:best.json"));
        close(&line, &planned["rmse"], number(&report["rmse"]), 1e-9);
        close(&line, &planned["max_error"], number(&report["max_error"]), 1e-9);
        checked += 1;
    }
    assert_eq!(checked, 10);
}

#[test]
fn found_strategies_are_saved_and_reused() {
    let lab = Lab::new();
    let report = json(&lab, "optimize --method coa --workload window:7 --horizon 40 -o best.json");
    let loss = number(&report["objective"]);
    assert_eq!(kept(&lab), 1);
    let plan = |workload: &str, n: u64, strategy: &str| {
        json(&lab, &format!("plan --workload {workload} --horizon {n} --strategy {strategy}"))
    };
    for strategy in ["coa", "file:best.json"] {
        let planned = plan("window:7", 40, strategy);
        assert_eq!(planned["strategy"], "coa", "plan names the strategy of the file");
        close(strategy, &planned["loss"], loss, 1e-9);
    }
    assert_eq!(kept(&lab), 1, "nothing is searched again");
    plan("window:7", 41, "coa");
    assert_eq!(kept(&lab), 2);
    // The same C is valid for fewer steps and for other workloads.
    assert!(number(&plan("window:7", 20, "file:best.json")["loss"]) < loss);
    assert_eq!(plan("prefix", 40, "file:best.json")["workload"], "prefix");
    let report = json(&lab, "optimize --method banded-inverse-optimal:4 -w prefix -n 40 -o inverse.json");
    close("inverse", &plan("prefix", 40, "file:inverse.json")["loss"], number(&report["objective"]), 1e-6);
    lab.write("c.csv", "1,0,0\n0.5,1,0\n0.25,0.5,1\n");
    let written = plan("prefix", 3, "file:c.csv");
    // ‖Ce₁‖² = 21/16; AC⁻¹ has the rows (1), (½, 1), (½, ½, 1).
    close("matrix file", &written["loss"], 21.0 / 16.0 * 3.75, 1e-9);
}

#[test]
fn an_unfinished_search_is_reported_and_not_saved() {
    let lab = Lab::new();
    let line = "optimize --method coa --workload prefix --horizon 40 --iterations 1";
    let ended = hush(&lab, line).succeeded();
    assert!(ended.out.contains("The target gap was not reached."), "{}", ended.out);
    let report = json(&lab, line);
    assert_eq!(report["converged"], false);
    assert!(number(&report["lower_bound"]) < number(&report["objective"]));
    assert_eq!(kept(&lab), 0);
    let planned = json(&lab, "plan --workload prefix --horizon 40 --strategy coa");
    assert!(number(&planned["loss"]) < number(&report["objective"]));
    assert!(number(&planned["loss"]) >= number(&report["lower_bound"]));
}
