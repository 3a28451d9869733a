//! `hushflow query` over neighbouring files: streams that differ in the presence of one record.
//!
//! Both worlds draw the same noise from a seed. Everything public must be identical but the
//! answers. The noise itself is judged by many draws: the answers of a workload of full rank are
//! the counts plus Gaussian noise of a covariance S, and a record in cell i moves them by the
//! distance √(eᵢᵀ S⁻¹ eᵢ), whose square must be at most 2ρ.

use nalgebra::{DMatrix, DVector};
use serde_json::Value;

use crate::harness::{Ended, Lab, finish, hushflow};

const CELLS: usize = 4;

/// A record in each of the cells, and one beyond each bound.
const RECORDS: [&str; CELLS + 2] = ["0.1", "0.3", "0.6", "0.9", "-1e300", "1e300"];

/// Writes the records as rows, and as counts of cells.
fn files(lab: &Lab, name: &str, records: &[&str]) -> [String; 2] {
    let mut counts = [0; CELLS];
    for record in records {
        let value: f64 = record.parse().expect("a number");
        counts[((value.clamp(0.0, 1.0) * CELLS as f64) as usize).min(CELLS - 1)] += 1;
    }
    let lines = |header: &str, lines: Vec<String>| format!("{header}\n{}\n", lines.join("\n"));
    let rows = lines("x", records.iter().map(|record| (*record).to_owned()).collect());
    let cells = lines("n", counts.iter().map(ToString::to_string).collect());
    // Both worlds have the same names, in directories of their own.
    std::fs::create_dir_all(lab.path(name)).expect("a directory");
    lab.write(&format!("{name}/rows.csv"), rows);
    lab.write(&format!("{name}/cells.csv"), cells);
    ["rows.csv", "cells.csv"].map(String::from)
}

fn query(lab: &Lab, name: &str, arguments: &[&str]) -> Ended {
    finish(hushflow([&["query"], arguments].concat()).current_dir(lab.path(name)))
}

/// Public facts beside the answers: a line of JSON without them.
fn outline(line: &str) -> String {
    let mut line: Value = serde_json::from_str(line).expect("a JSON line");
    line["cells"] = Value::Null;
    for answer in line["answers"].as_array_mut().expect("answers") {
        answer["answer"] = Value::Null;
    }
    line.to_string()
}

const OF_ROWS: &[&str] = &["--column", "x", "--bounds", "0:1", "--cells", "4"];
const OF_COUNTS: &[&str] = &["--counts", "n"];

#[test]
fn neighbouring_files_are_alike_but_for_the_answers() {
    let lab = Lab::new();
    let stream: Vec<&str> = RECORDS.iter().cycle().take(40).copied().collect();
    for (case, removed) in RECORDS.iter().enumerate() {
        let one = files(&lab, "one", &stream);
        let index = stream.iter().position(|record| record == removed).expect("a record");
        files(&lab, "other", &[&stream[..index], &stream[index + 1..]].concat());
        for ((file, shape), workload) in one
            .iter()
            .zip([OF_ROWS, OF_COUNTS])
            .flat_map(|of| ["cells", "prefix", "all-range"].map(|workload| (of, workload)))
        {
            let seed = case.to_string();
            let asked =
                [&[file, "--workload", workload, "--rho", "0.1", "--seed", &seed, "--json"], shape].concat();
            let [mine, theirs] = ["one", "other"].map(|name| query(&lab, name, &asked).succeeded());
            assert_eq!(mine.err, theirs.err, "{asked:?}");
            assert_eq!(outline(&mine.out), outline(&theirs.out), "{asked:?}");
            assert_ne!(mine.out, theirs.out, "the record is counted: {asked:?}");
        }
    }
    // With fresh noise, and a ledger: what is charged is alike too.
    let charged = ["one", "other"].map(|name| {
        let asked =
            ["rows.csv", "--workload", "prefix", "--rho", "0.1", "--ledger", "ledger", "--data-set", "d"];
        let ended = query(&lab, name, &[&asked[..], OF_ROWS].concat()).succeeded();
        let ledger = finish(hushflow(["ledger", "--json"]).arg(lab.path(name).join("ledger")));
        let mut entry = ledger.succeeded().json().remove(0)["entries"][0].clone();
        for field in ["identity", "started"] {
            entry[field] = Value::Null;
        }
        (ended.err, entry.to_string())
    });
    assert_eq!(charged[0], charged[1]);
}

/// Draws per workload, and the deviations beyond which a share of 1e-7 of normal draws lies.
const DRAWS: usize = 400;
const FAR: f64 = 5.2;

/// False alarms: at most 1e-6 (8 bounds, each at 1e-7 by the approximation of Wilson and Hilferty).
#[test]
#[ignore = "slow"]
fn the_noise_of_queries_hides_a_record_as_charged() {
    let lab = Lab::new();
    files(&lab, "one", &RECORDS);
    let rho = 0.125;
    for workload in ["prefix", "all-range"] {
        let draws: Vec<DVector<f64>> = (0..DRAWS)
            .map(|seed| {
                let seed = seed.to_string();
                let asked =
                    ["cells.csv", "--workload", workload, "--rho", "0.125", "--seed", &seed, "--json"];
                let line = query(&lab, "one", &[&asked[..], OF_COUNTS].concat()).succeeded().json().remove(0);
                let cells = line["cells"].as_array().expect("cells").iter();
                DVector::from_iterator(CELLS, cells.map(|cell| cell.as_f64().expect("a number")))
            })
            .collect();
        let mean = draws.iter().sum::<DVector<f64>>() / DRAWS as f64;
        let spread = |draw: &DVector<f64>| (draw - &mean) * (draw - &mean).transpose();
        let sum = draws.iter().map(spread).fold(DMatrix::zeros(CELLS, CELLS), |sum, term| sum + term);
        let inverse = sum.try_inverse().expect("noise in every direction");
        // The part of cell i that the other cells don't determine is χ² with these degrees of
        // freedom, times the square of the noise that hides a record there.
        let degrees = (DRAWS - CELLS) as f64;
        let third = |sign: f64| 1.0 - 2.0 / (9.0 * degrees) + sign * FAR * (2.0 / (9.0 * degrees)).sqrt();
        let [least, most] = [-1.0, 1.0].map(|sign| degrees * third(sign).powi(3));
        let found: Vec<_> = (0..CELLS).map(|cell| 2.0 * rho / inverse[(cell, cell)]).collect();
        assert!(found.iter().all(|found| *found >= least), "{workload}: {found:?}, not {least}");
        // The strategy spends the whole budget on some cell.
        assert!(found.iter().any(|found| *found <= most), "{workload}: {found:?}, not {most}");
    }
}
