//! Tests the example `reproduce`.

#[path = "../../examples/reproduce/main.rs"]
#[expect(dead_code, reason = "its unit tests run here; `main` does not")]
mod example;

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::Lab;
use serde_json::Value;

/// Runs the example, which `cargo test` builds.
fn reproduce(arguments: &[&str]) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_hushflow")).with_file_name("examples").join("reproduce");
    Command::new(&binary).args(arguments).output().unwrap_or_else(|error| {
        panic!(
            "{}: {error}: run `cargo build --example reproduce` first, as `cargo test` does",
            binary.display()
        )
    })
}

#[test]
#[ignore = "slow"]
fn a_figure_is_written_checked_and_reproducible_from_its_seed() {
    let lab = Lab::new();
    let run = |out: &str, seed: &str| {
        let path = lab.path(out);
        let out = path.to_str().unwrap();
        let output =
            reproduce(&["figure-1", "--quick", "--runs", "20", "--seed", seed, "--json", "--out", out]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [csv, svg] = ["csv", "svg"]
            .map(|ending| std::fs::read_to_string(path.join(format!("figure-1.{ending}"))).unwrap());
        (report, csv, svg)
    };
    let (report, csv, svg) = run("one", "1");
    let figure = &report["figures"][0];
    assert_eq!((&figure["figure"], figure["findings"].as_array().unwrap().len()), (&"figure-1".into(), 3));
    assert!(
        figure["findings"].as_array().unwrap().iter().all(|finding| finding["holds"] == true),
        "{report}"
    );
    assert!(csv.starts_with("panel,series,x,y,low,high\n") && csv.contains("\"λ-JME, runs\""));
    assert!(svg.contains("<svg") && svg.contains("α-IME"));
    let (_, same, _) = run("two", "1");
    let (_, other, _) = run("three", "2");
    assert!(csv == same && csv != other);
}

#[test]
fn figures_that_cannot_be_drawn_are_refused() {
    let lab = Lab::new();
    let refused = |arguments: &[&str], part: &str, status: i32| {
        let output = reproduce(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && message.contains(part), "{message}");
    };
    refused(&["figure-6"], "figure-7", 2);
    refused(&[], "FIGURE", 2);
    refused(&["all", "--runs", "1"], "10", 2);
    let file = lab.write("file", "");
    let out = file.to_str().unwrap();
    refused(&["figure-3", "--quick", "--runs", "10", "--out", out], "can't be written", 1);
}
