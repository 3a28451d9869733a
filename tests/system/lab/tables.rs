//! Compares all strategies and the one of the pipeline file, as a table and as a plot.

use super::{hush, json};
use crate::harness::{Lab, number};

/// Width of a terminal in columns.
const SCREEN: usize = 132;

/// Returns the names of a comparison, in order.
fn names(lab: &Lab, purpose: &str) -> Vec<String> {
    let report = json(lab, &format!("plan {purpose}"));
    let strategies = report["strategies"].as_array().expect("a list");
    let rmse = |index: usize| number(&strategies[index]["rmse"]);
    assert!((1..strategies.len()).all(|next| rmse(next - 1) <= rmse(next)), "{purpose}: the best is first");
    strategies.iter().map(|report| report["strategy"].as_str().expect("a name").into()).collect()
}

#[test]
#[ignore = "slow"]
fn tables_fit_a_screen_and_list_all_strategies() {
    let lab = Lab::new();
    let budget = "--epsilon 1 --delta 1e-6 --records-per-epoch 50";
    for purpose in [
        "--workload prefix --horizon 30".into(),
        format!("--workload exponential:0.9 --horizon 64 {budget}"),
        format!("--workload momentum:0.999 --horizon 100 --participation 5x20 {budget}"),
        format!("--workload prefix --horizon 1000000 {budget}"),
        "--workload prefix --horizon 1".into(),
    ] {
        let names = names(&lab, &purpose);
        assert!(names.iter().any(|name| name == "identity" || name.starts_with("blt")), "{names:?}");
        let table = hush(&lab, &format!("plan {purpose}")).succeeded().out;
        let rows = table.lines().skip_while(|line| !line.starts_with("strategy ")).skip(1);
        let listed: Vec<_> = rows.map_while(|row| row.split_whitespace().next()).collect();
        assert_eq!(listed, names, "{table}");
        assert!(table.lines().count() <= 44, "{table}");
        let wide = table.lines().find(|line| line.chars().count() > SCREEN || line.trim_end() != *line);
        assert_eq!(wide, None, "{table}");
    }
}

/// Every strategy of the table is compared, or left out with a reason.
#[test]
#[ignore = "slow"]
fn a_comparison_names_omitted_strategies_with_the_reason() {
    let lab = Lab::new();
    let purpose = "-w prefix -n 600 --participation 6x100";
    let report = json(&lab, &format!("plan {purpose}"));
    let omissions = report["omissions"].as_array().expect("a list");
    let reason = |name: &str| {
        let omission = omissions.iter().find(|omission| omission["strategy"] == name);
        omission.unwrap_or_else(|| panic!("{name} is not named: {report}"))["reason"].clone()
    };
    assert_eq!([reason("optimal"), reason("banded-optimal:100")], ["time", "time"]);
    assert_eq!(reason("power-law:b"), "no-form");
    let all: Vec<&str> = ["strategies", "omissions"]
        .iter()
        .flat_map(|list| report[list].as_array().expect("a list"))
        .filter_map(|entry| entry["strategy"].as_str())
        .collect();
    for kind in hushflow::mechanism::strategy::KINDS {
        let word = kind.usage();
        let word = word.split(':').next().expect("a name");
        assert!(all.iter().any(|name| name.split(':').next() == Some(word)), "{word}: {all:?}");
    }
    for strategy in report["strategies"].as_array().expect("a list") {
        assert!(number(&strategy["loss_excess"]) > 0.0, "{strategy}");
        assert!(number(&strategy["loss"]) > number(&strategy["loss_lower_bound"]), "{strategy}");
    }
    let table = hush(&lab, &format!("plan {purpose}")).succeeded().out;
    let parts =
        ["Left out, as they take long", "--all", "hushflow optimize --method optimal", "power-law:b (for"];
    parts.iter().for_each(|part| assert!(table.contains(part), "no {part}: {table}"));
    hush(&lab, "plan -w prefix -n 4097 -s fft").failed(2, &["4097 steps", "at most 4096"]);
}

/// With equal rates the workload is prefix sums.
#[test]
fn a_schedule_weights_the_steps() {
    let lab = Lab::new();
    let loss = |line: &str| number(&json(&lab, &format!("plan -w prefix -n 40 -s optimal {line}"))["loss"]);
    let (plain, equal, cosine) = (loss(""), loss("--schedule constant"), loss("--schedule cosine:4"));
    assert!((equal / plain - 1.0).abs() < 1e-6 && cosine < 0.9 * plain, "{plain} {equal} {cosine}");
    let report = json(&lab, "optimize --method optimal -w prefix -n 40 --schedule cosine:4");
    assert!((number(&report["objective"]) / cosine - 1.0).abs() < 1e-6, "{report}");
    hush(&lab, "plan -w average -n 40 --schedule cosine").failed(2, &["--schedule", "`average`"]);
    hush(&lab, "plan -w prefix -n 40 --schedule steps").failed(2, &["--schedule", "cosine:W"]);
}

#[test]
fn all_compares_slow_strategies_too() {
    let lab = Lab::new();
    let compared = |line: &str| {
        let report = json(&lab, line);
        let list = report["strategies"].as_array().expect("a list").clone();
        list.iter().any(|entry| entry["strategy"] == "banded-optimal:10")
    };
    let purpose = "plan -w prefix -n 130 --participation 13x10";
    assert!(!compared(purpose) && compared(&format!("{purpose} --all")));
}

#[test]
fn the_strategy_of_a_file_is_marked() {
    let lab = Lab::new();
    json(&lab, "optimize --method coa --workload prefix --horizon 32 -o best.json");
    let example = include_str!("../../../examples/flights.toml");
    let check = |from: &str, to: &str, marked: &str| {
        assert!(example.contains(from), "{from}");
        lab.write("pipeline.toml", example.replacen(from, to, 1));
        let table = hush(&lab, "plan pipeline.toml").succeeded().out;
        let rows: Vec<_> = table.lines().filter(|line| line.contains(" * ")).collect();
        assert!(rows.len() == 1 && rows[0].starts_with(&format!("{marked} * ")), "{marked}: {table}");
        assert!(table.contains("*: the strategy of the file"), "{table}");
    };
    let named = "strategy = \"square-root\"";
    check(named, named, "square-root");
    check(named, "", "variable-blt:4");
    check(named, "strategy = \"blt:7\"", "blt:7");
    check(named, "strategy = \"auto\"", "optimal");
    check(named, "strategy = \"auto\"\nmemory_limit = 0", "identity");
    check(named, "strategy = \"file:best.json\"", "coa");
}

#[test]
fn a_plot_has_a_line_for_each_strategy() {
    let lab = Lab::new();
    let purpose = "--workload prefix --horizon 30";
    let names = names(&lab, purpose);
    hush(&lab, &format!("plan {purpose} --plot all.svg")).succeeded();
    let svg = std::fs::read_to_string(lab.path("all.svg")).expect("a plot");
    assert!(svg.starts_with("<svg") && svg.contains("prefix over 30 epochs"), "{svg}");
    // More than nine curves can't be distinguished.
    names[..9].iter().for_each(|name| assert!(svg.contains(name), "{name} is not named"));
    let lines = svg.matches("<polyline").count();
    hush(&lab, &format!("plan {purpose} --strategy blt:1 --plot one.svg")).succeeded();
    let one = std::fs::read_to_string(lab.path("one.svg")).expect("a plot");
    assert!(one.contains("blt:1") && !one.contains("identity"));
    // Each curve has a line and its legend entry.
    assert_eq!(lines - one.matches("<polyline").count(), 2 * 8);
    hush(&lab, &format!("plan {purpose} --plot nowhere/all.svg"))
        .failed(2, &["nowhere/all.svg", "can't be written"]);
}
