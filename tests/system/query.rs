//! Tests `hushflow query`: answers, guarantee, ledger, and refusals.

use std::fmt::Write;
use std::process::Output;

use crate::harness::{Lab, hushflow};
use serde_json::Value;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = hushflow([&["query"], arguments].concat()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = run(&[arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn refused(arguments: &[&str], message: &str) {
    let (code, out, err) = run(arguments);
    assert!(code.is_some_and(|code| code > 0) && out.is_empty(), "{arguments:?}: {out}");
    assert!(err.contains(message), "{arguments:?}: {err}");
}

/// Values 0 to 7. Value v occurs 10·v times.
fn values() -> String {
    let mut text = String::from("x\n");
    for value in 0..8 {
        (0..10 * value).for_each(|_| writeln!(text, "{value}.5").unwrap());
    }
    text
}

/// With little noise the answers are the exact ones; both forms of the histogram agree.
#[test]
fn ranges_are_answered_from_values_and_from_counts() {
    let lab = Lab::new();
    let counts: String = (0..8).map(|value| format!("{}\n", 10 * value)).collect();
    let (rows, cells) = (lab.write("rows.csv", values()), lab.write("cells.csv", format!("n\n{counts}")));
    let [rows, cells] = [&rows, &cells].map(|path| path.to_str().unwrap());
    let asked = ["--workload", "all-range", "--rho", "1e6", "--seed", "1"];
    let of_rows = json(&[&[rows, "--column", "x", "--bounds", "0:8", "--cells", "8"], &asked[..]].concat());
    let of_cells = json(&[&[cells, "--counts", "n"], &asked[..]].concat());
    assert_eq!(of_rows["answers"], of_cells["answers"]);
    assert_eq!(of_rows["answers"].as_array().unwrap().len(), 36);
    let range = &of_rows["answers"][1];
    assert_eq!(range["query"], "1-2");
    assert!((range["answer"].as_f64().unwrap() - 10.0).abs() < 0.1, "{range}");
    assert!(of_rows["gap"].as_f64().unwrap() < 1e-5 && of_rows["private"] == false);
    let (_, text, _) = run(&[&[cells, "--counts", "n"], &asked[..]].concat());
    assert!(text.contains("zero-out") && text.contains("NOT private"), "{text}");
    let (_, csv, _) = run(&[&[cells, "--counts", "n", "--format", "csv"], &asked[..]].concat());
    assert!(csv.starts_with("query,answer,noise\n1,"), "{csv}");
}

#[test]
fn marginals_and_matrices_are_charged_to_a_ledger() {
    let lab = Lab::new();
    let cells = lab.write("cells.csv", "n\n5\n6\n7\n8\n9\n10\n");
    let matrix = lab.write("matrix.csv", "1,1,1,0,0,0\n0,0,0,1,1,1\n1,0,0,-1,0,0\n");
    let ledger = lab.path("ledger");
    let [cells, matrix, ledger] = [&cells, &matrix, &ledger].map(|path| path.to_str().unwrap());
    let matrix = format!("matrix:{matrix}");
    let base =
        [cells, "--counts", "n", "--epsilon", "1", "--delta", "1e-6", "--data-set", "d", "--ledger", ledger];
    let marginals = json(&[&base[..], &["--workload", "marginals:1", "--sizes", "2,3"]].concat());
    let names: Vec<_> = marginals["answers"].as_array().unwrap().iter().map(|row| &row["query"]).collect();
    assert_eq!(names, ["1=1", "1=2", "2=1", "2=2", "2=3"]);
    let queries = json(&[&base[..], &["--workload", &matrix]].concat());
    assert_eq!(queries["guarantee"]["epsilon"], 1.0);
    let Output { stdout, .. } = hushflow(["ledger", ledger, "--json"]).output().unwrap();
    let account: Value = serde_json::from_slice::<Value>(&stdout).unwrap();
    let account = if account.is_array() { account[0].clone() } else { account };
    assert_eq!(account["entries"].as_array().unwrap().len(), 2);
    assert_eq!(account["entries"][0]["neighbours"], "zero-out");
    let other = json(&[cells, "--counts", "n", "--workload", &matrix, "--compare"]);
    let bound = other["lower_bound"].as_f64().unwrap();
    for strategy in other["strategies"].as_array().unwrap() {
        assert!(strategy["squared_error"].as_f64().unwrap() >= bound * (1.0 - 1e-9), "{strategy}");
    }
}

#[test]
fn refusals_say_what_to_change() {
    let lab = Lab::new();
    let cells = lab.write("cells.csv", "n\n5\n6.5\n");
    let cells = cells.to_str().unwrap();
    let base = [cells, "--counts", "n", "--rho", "1", "--workload"];
    refused(&[&base[..], &["cells"]].concat(), "the count of cell 2 is not a whole number");
    refused(&[cells, "--workload", "tree", "--compare"], "expected cells, prefix, all-range");
    refused(&[&base[..], &["cells", "--sizes", "2,1"]].concat(), "--sizes is for marginals:K");
    refused(&[cells, "--workload", "cells", "--rho", "1"], "expected --counts COLUMN");
    refused(&[cells, "--workload", "prefix", "--compare"], "--cells is missing");
    refused(
        &[
            cells,
            "--workload",
            "all-range",
            "--cells",
            "10000",
            "--column",
            "n",
            "--bounds",
            "0:1",
            "--compare",
        ],
        "10000 cells: expected at most 8192",
    );
    let whole = lab.write("whole.csv", "n\n5\n6\n");
    refused(
        &[whole.to_str().unwrap(), "--counts", "n", "--workload", "cells"],
        "say how much privacy to spend",
    );
}
