//! Tests `hushflow covariance`: its output, its refusals, and its advantage over releasing the
//! whole matrix.

use std::fmt::Write;
use std::process::Output;

use crate::harness::{Lab, hushflow};
use serde_json::Value;

const BREAST_CANCER: &str = "examples/data/breast_cancer.csv";

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = hushflow(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn json(arguments: &[&str]) -> Value {
    let (code, out, err) = run(&[&["covariance"], arguments, &["--json"]].concat());
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn refused(arguments: &[&str], code: i32, message: &str) {
    let (found, out, err) = run(&[&["covariance"], arguments].concat());
    assert_eq!((found, out.as_str()), (Some(code), ""), "{arguments:?}: {err}");
    assert!(err.contains(message), "{arguments:?}: {err}");
}

/// Returns rows of four columns between −1 and 1, the second nearly equal to the first, and their
/// second moments.
fn sample(rows: usize) -> (String, [[f64; 4]; 4]) {
    let (mut text, mut moments) = (String::from("a,b,c,d\n"), [[0.0; 4]; 4]);
    let mut state = 12345u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    for _ in 0..rows {
        let mut row = [uniform(), uniform(), uniform(), uniform()];
        row[1] = 0.9 * row[0] + 0.1 * row[1];
        writeln!(text, "{},{},{},{}", row[0], row[1], row[2], row[3]).unwrap();
        for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
            moments[i][j] += row[i] * row[j] / rows as f64;
        }
    }
    (text, moments)
}

#[test]
fn the_report_has_the_estimate_and_its_cost() {
    let lab = Lab::new();
    let (text, moments) = sample(2000);
    let (file, dot) = (lab.write("x.csv", text), lab.path("graph.dot"));
    let (file, dot) = (file.to_str().unwrap(), dot.to_str().unwrap());
    let report = json(&[file, "--rho", "2", "--seed", "1", "--method", "pace", "--dot", dot]);
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let value = report["covariance"][i][j].as_f64().unwrap();
        assert!((value - moments[i][j]).abs() < 0.02, "({i}, {j}): {value} {}", moments[i][j]);
    }
    assert_eq!(report["rows"], 2000.0);
    assert_eq!(report["columns"], serde_json::json!(["a", "b", "c", "d"]));
    assert_eq!((&report["private"], &report["rho"]), (&Value::from(false), &Value::from(2.0)));
    assert!(report["measured"].as_array().unwrap().contains(&serde_json::json!(["a", "b"])), "{report}");
    let parts: f64 = report["parts"].as_object().unwrap().values().map(|rho| rho.as_f64().unwrap()).sum();
    assert!((parts - 2.0).abs() < 1e-7, "{report}");
    let graph = std::fs::read_to_string(dot).unwrap();
    assert!(graph.contains("\"a\" -- \"b\""), "{graph}");
    assert_eq!(
        report["covariance"],
        json(&[file, "--rho", "2", "--seed", "1", "--method", "pace"])["covariance"]
    );
    let default = json(&[file, "--rho", "2", "--seed", "1"]);
    assert_eq!((&default["method"], &default["parts"]["selection"]), (&"shrunk".into(), &0.1.into()));
    assert_eq!(json(&[file, "--rho", "2", "--seed", "1", "--rounds", "9"])["method"], "pace");
    assert_ne!(default["covariance"], json(&[file, "--rho", "2", "--seed", "2"])["covariance"]);
    let private = json(&[file, "--epsilon", "1", "--delta", "1e-6"]);
    assert_eq!(private["private"], true);
    let epsilon = private["guarantee"]["epsilon"].as_f64().unwrap();
    // The command prints the smaller of two bounds; ρ follows from the larger one, which a ledger
    // charges.
    assert!(epsilon <= 1.0 && epsilon > 0.95, "{epsilon}");
}

/// The table, JSON and CSV have the noise of each entry; pace leaves it out where it completes.
#[test]
fn each_entry_has_its_noise() {
    let lab = Lab::new();
    let file = lab.write("x.csv", sample(2000).0);
    let file = file.to_str().unwrap();
    let report = json(&[file, "--method", "ssp", "--rho", "2", "--seed", "1"]);
    let noise = |i: usize, j: usize| report["covariance_noise"][i][j].as_f64().unwrap();
    assert!(noise(0, 1) > 0.0 && noise(0, 1) == noise(1, 0) && noise(2, 2) > 0.0, "{report}");
    let (_, csv, _) =
        run(&["covariance", file, "--method", "ssp", "--rho", "2", "--seed", "1", "--format", "csv"]);
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (11, "column_a,column_b,covariance,noise,lower,upper"));
    let of = |field: &str| report[field][0][1].clone();
    let ends = of("covariance_interval");
    assert_eq!(
        lines[2],
        format!("a,b,{},{},{},{}", of("covariance"), of("covariance_noise"), ends[0], ends[1])
    );
    let (lower, upper) = (ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap());
    assert!((upper - lower - 2.0 * 1.959964 * noise(0, 1)).abs() < 1e-6 * noise(0, 1), "{report}");
    assert_eq!(report["clip_norm"], 2.0);
    let (_, table, _) = run(&["covariance", file, "--method", "ssp", "--rho", "2", "--seed", "1"]);
    assert!(table.contains("of the rows clipped to their bounds") && table.contains(" to "), "{table}");
    // Rows far within their bounds are clipped to a norm, which the table states.
    let wide = ["--bounds", "-1000:1000", "--rho", "2", "--seed", "1"];
    let (_, table, _) = run(&[&["covariance", file], &wide[..]].concat());
    assert!(table.contains("of the rows clipped to norm 0.0"), "{table}");
    assert!(json(&[&[file], &wide[..]].concat())["clip_norm"].as_f64().unwrap() < 0.1, "{table}");
    let pace = json(&[file, "--rho", "2", "--rounds", "1", "--seed", "1"]);
    let entries: Vec<_> = (0..4).flat_map(|i| (0..i).map(move |j| (i, j))).collect();
    let measured = entries.iter().filter(|(i, j)| !pace["covariance_noise"][i][j].is_null()).count();
    assert_eq!(measured as u64, pace["measured_pairs"].as_u64().unwrap());
    assert!(measured < entries.len());
}

#[test]
fn every_method_and_relation_gives_a_matrix_or_its_reason() {
    let lab = Lab::new();
    let file = lab.write("x.csv", sample(200).0);
    let file = file.to_str().unwrap();
    for method in ["shrunk", "pace", "ssp", "ssp-tight", "diagonal", "adaptive", "separate", "coinpress"] {
        let report = json(&[file, "--method", method, "--rho", "1"]);
        assert_eq!(
            (report["method"].as_str(), report["covariance"].as_array().unwrap().len()),
            (Some(method), 4)
        );
    }
    let report = json(&[file, "--neighbours", "zero-out", "--rho", "1", "--centre"]);
    assert!(report["rows_noise"].as_f64().unwrap() > 0.0 && report["mean"].as_array().unwrap().len() == 4);
    let message = "this method needs a public number of records";
    let ledger = lab.path("ledger");
    for method in ["separate", "adaptive"] {
        let zero_out = [file, "--neighbours", "zero-out", "--rho", "1", "--method", method];
        let to = ["--data-set", "sample", "--ledger", ledger.to_str().unwrap()];
        refused(&[&zero_out[..], &to].concat(), 2, message);
    }
    assert!(!ledger.exists(), "public numbers alone decided it: it costs nothing");
    let (code, out, _) = run(&["covariance", file, "--rho", "1", "--seed", "3"]);
    assert!(code == Some(0) && out.contains("NOT private") && out.contains("1-zCDP"), "{out}");
}

/// Projections of the same noisy entries: `raw` leaves them unchanged, `nearest` is the default.
#[test]
fn projections_are_chosen_by_name() {
    let lab = Lab::new();
    let file = lab.write("x.csv", sample(200).0);
    let report_of = |method: &str, projection: &[&str]| {
        json(
            &[&[file.to_str().unwrap(), "--method", method, "--rho", "1e-4", "--seed", "2"], projection]
                .concat(),
        )
    };
    for method in ["ssp", "ssp-tight", "diagonal"] {
        let raw = report_of(method, &["--projection", "raw"]);
        assert_eq!(raw["projection"], "raw");
        let entry = |found: &Value, i: usize, j: usize| found["covariance"][i][j].as_f64().unwrap();
        for measured in raw["measurements"].as_array().unwrap() {
            let index = |end: usize| "abcd".find(measured["columns"][end].as_str().unwrap()).unwrap();
            let (found, value) = (entry(&raw, index(0), index(1)), measured["value"].as_f64().unwrap());
            assert!((found - value).abs() <= 1e-12 * value.abs(), "{found} {value}");
        }
        let [default, nearest] = [report_of(method, &[]), report_of(method, &["--projection", "nearest"])];
        for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
            assert!((entry(&default, i, j) - entry(&nearest, i, j)).abs() < 1e-9, "{method}");
        }
        let floor = report_of(method, &["--projection", "floor"]);
        let trace = |found: &Value| (0..4).map(|i| entry(found, i, i)).sum::<f64>();
        assert!(trace(&raw) <= trace(&nearest) && trace(&nearest) < trace(&floor), "{method}");
        assert_eq!(raw["measurements"], floor["measurements"]);
    }
    let file = file.to_str().unwrap();
    for method in ["pace", "adaptive", "coinpress"] {
        refused(
            &[file, "--rho", "1", "--method", method, "--projection", "floor"],
            2,
            "--projection is for methods that measure",
        );
    }
    refused(&[file, "--rho", "1", "--projection", "ceiling"], 2, "expected \"floor\"");
}

#[test]
fn bad_input_is_reported_by_position_without_values() {
    let lab = Lab::new();
    let write = |name: &str, text: &str| lab.write(name, text).to_str().unwrap().to_owned();
    let good = write("good.csv", "a,b\n0.5,0.25\n-0.5,1\n0.1,7\n");
    for rho in ["0", "-1", "nan", "inf"] {
        refused(&[&good, "--rho", rho], 2, "rho");
    }
    refused(&[&good], 2, "expected --rho, or --epsilon and --delta");
    refused(&[&good, "--rho", "1", "--bounds", "1:1"], 2, "column \"a\" is bounded by 1 and 1");
    refused(&[&good, "--rho", "1", "--bounds", "-1:1,nan:1"], 2, "column \"b\" is bounded by NaN and 1");
    refused(&[&good, "--epsilon", "0", "--delta", "1e-6"], 2, "epsilon is 0");
    refused(&[&good, "--epsilon", "1e6", "--delta", "1e-6"], 2, "give a smaller epsilon");
    refused(&[&good, "--rho", "1", "--columns", "a,a"], 1, "column \"a\" is asked for twice");
    refused(&[&good, "--rho", "1", "--method", "ssp", "--rounds", "4"], 2, "--rounds is for pace");
    refused(
        &[&good, "--rho", "1", "--method", "ssp", "--diagonal-share", "0.5"],
        2,
        "--diagonal-share is for pace",
    );
    refused(&[&good, "--rho", "1", "--rounds", "0"], 2, "0 is not in 1..");
    refused(&[&good, "--rho", "1", "--centre", "-0.5"], 2, "share of the budget for centring is -0.5");
    refused(&[&good, "--rho", "1", "--bounds", "0:1,0:1,0:1"], 2, "found 3 pairs of --bounds for 2 columns");
    refused(&[&good, "--rho", "1", "--bounds", "zero:1"], 2, "expected two numbers with a colon");
    refused(
        &[&good, "--rho", "1", "--columns", "a,z"],
        1,
        "none of the 2 columns that line 1 names is \"z\"",
    );
    refused(&[&good, "--rho", "1", "--centre", "1.5"], 2, "share of the budget for centring is 1.5");
    refused(&["nowhere.csv", "--rho", "1"], 1, "nowhere.csv: can't be read");
    refused(&[&write("one.csv", "a\n1\n"), "--rho", "1"], 2, "found 1 records, expected at least 2");
    let text = write("text.csv", "a,b\n1,2\n3,secret\n");
    refused(&[&text, "--rho", "1"], 1, "text.csv:3: column \"b\": expected a number");
    let missing = write("missing.csv", "a,b\n0.1,0.2\n0.3,\n0.4,nan\n0.5,0.5\n");
    refused(&[&missing, "--rho", "1"], 1, "missing.csv:3: column \"b\": the value is missing");
    assert_eq!(json(&[&missing, "--rho", "1", "--missing", "skip"])["rows"], 2.0);
    assert_eq!(json(&[&missing, "--rho", "1", "--missing", "centre"])["rows"], 4.0);
    let ledger = lab.path("ledger").display().to_string();
    let charged = [&missing, "--rho", "1", "--data-set", "sample", "--ledger", &ledger];
    let message = "--missing skip leaves rows out";
    refused(&[&charged[..], &["--missing", "skip"]].concat(), 2, message);
    assert!(!lab.path("ledger").exists(), "what is refused costs nothing");
    json(&[&charged[..], &["--missing", "centre"]].concat());
    let outside = json(&[&good, "--rho", "1e6", "--count-clipped", "0.5"]);
    assert!((outside["clipped"].as_f64().unwrap() - 1.0).abs() < 0.01, "{outside}");
    assert_eq!(outside["parts"]["clipped"], 5e5);
    refused(&[&good, "--rho", "1", "--count-clipped", "1"], 2, "number of clipped records is 1");
    let single = write("single.csv", "a\n0.5\n0.25\n");
    assert_eq!(json(&[&single, "--rho", "1"])["covariance"].as_array().unwrap().len(), 1);
    json(&[&write("constant.csv", "a,b\n1,0\n1,0\n1,0\n"), "--rho", "1"]);
}

/// Two covariances of ρ and a mean in one ledger: μ² adds up, even with selected entries. A full
/// budget refuses further output, and nothing is written.
#[test]
fn a_ledger_adds_up_covariances_and_means() {
    let lab = Lab::new();
    let (file, ledger, dot) = (lab.write("x.csv", sample(4000).0), lab.path("ledger"), lab.path("graph.dot"));
    let [file, ledger, dot] = [&file, &ledger, &dot].map(|path| path.to_str().unwrap());
    let charged = ["--ledger", ledger, "--data-set", "sample"];
    json(&[&[file, "--rho", "0.01"], &charged[..]].concat());
    json(&[&[file, "--rho", "0.01", "--method", "ssp-tight"], &charged[..]].concat());
    let mean = ["mean", file, "--scale", "0.6", "--epsilon", "1", "--delta", "1e-6", "--corruption", "0.01"];
    assert_eq!(run(&[&mean[..], &charged].concat()).0, Some(0));
    let account = || {
        let (code, out, err) = run(&["ledger", ledger, "--json"]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let report = account();
    let entry = |index: usize, field: &str| report["entries"][index][field].as_f64().unwrap();
    let squared: Vec<f64> = (0..3).map(|index| entry(index, "mu").powi(2)).collect();
    // 0.05 of ρ goes to a selection, which counts π; the rest counts 2.
    assert!((squared[0] / (0.01 * (1.9 + 0.05 * std::f64::consts::PI)) - 1.0).abs() < 1e-8, "{report}");
    assert!((squared[1] / 0.02 - 1.0).abs() < 1e-9, "{report}");
    assert!((0..2).all(|index| (entry(index, "rho") - 0.01).abs() < 1e-15), "{report}");
    let all = report["composition"]["mu"].as_f64().unwrap().powi(2);
    assert!((all / squared.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{report}");
    let epsilon = report["composition"]["epsilon"].as_f64().unwrap();
    let budget = format!("{},1e-6", epsilon + 0.01);
    assert_eq!(run(&["ledger", ledger, "--budget", &budget]).0, Some(0));
    refused(&[&[file, "--rho", "0.01", "--dot", dot], &charged[..]].concat(), 1, "3 entries have spent");
    assert!(!std::path::Path::new(dot).exists(), "an unpaid estimate is not written");
    assert_eq!(account()["entries"].as_array().unwrap().len(), 3);
}

/// With a small budget, measuring a few entries accurately beats measuring all of them badly, on
/// real data.
#[test]
fn pace_beats_the_whole_matrix_on_breast_cancer() {
    let lab = Lab::new();
    let text = std::fs::read_to_string(BREAST_CANCER).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').take(30).collect();
    let mut rows: Vec<Vec<f64>> =
        lines.map(|line| line.split(',').take(30).map(|field| field.parse().unwrap()).collect()).collect();
    for column in 0..30 {
        let mean = rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64;
        let largest = rows.iter().map(|row| (row[column] - mean).abs()).fold(0.0, f64::max);
        rows.iter_mut().for_each(|row| row[column] = (row[column] - mean) / largest);
    }
    let mut scaled = names.join(",") + "\n";
    for row in &rows {
        scaled += &(row.iter().map(f64::to_string).collect::<Vec<_>>().join(",") + "\n");
    }
    let file = lab.write("scaled.csv", scaled);
    let error = |method: &str, rho: &str, seed: u32| {
        let seed = seed.to_string();
        let report = json(&[file.to_str().unwrap(), "--method", method, "--rho", rho, "--seed", &seed]);
        let mut squared = 0.0;
        for (i, j) in (0..30).flat_map(|i| (0..30).map(move |j| (i, j))) {
            let truth = rows.iter().map(|row| row[i] * row[j]).sum::<f64>() / rows.len() as f64;
            squared += (report["covariance"][i][j].as_f64().unwrap() - truth).powi(2);
        }
        squared.sqrt()
    };
    for rho in ["0.001", "0.1", "1"] {
        let [pace, ssp] =
            ["pace", "ssp"].map(|method| (0..3).map(|seed| error(method, rho, seed)).sum::<f64>());
        assert!(pace < 0.7 * ssp, "rho {rho}: {pace} {ssp}");
    }
}

/// y is a third of a plus a half of b minus a fifth, with bounds whose middles are not 0.
#[test]
fn a_column_is_predicted_from_the_others() {
    let lab = Lab::new();
    let mut text = String::from("a,y,b\n");
    for row in 0..20_000 {
        let (a, b) = (f64::from(row % 101) / 50.5, f64::from(row % 97) / 24.25 - 1.0);
        writeln!(text, "{a},{},{b}", 1.0 + (a - 1.0) / 3.0 + (b - 1.0) / 2.0).unwrap();
    }
    let file = lab.write("x.csv", text);
    let file = file.to_str().unwrap();
    let bounds = ["--bounds", "0:2,-1:3,-1:3", "--target", "y"];
    for (method, seed) in [("ssp", "1"), ("ssp", "2"), ("pace", "1"), ("coinpress", "1")] {
        let arguments = [&[file, "--rho", "2", "--method", method, "--seed", seed], &bounds[..]].concat();
        let report = json(&arguments);
        let number = |value: &Value| value.as_f64().unwrap();
        let slopes = ["a", "b"].map(|name| number(&report["coefficients"][name]));
        assert!(
            (slopes[0] - 1.0 / 3.0).abs() < 0.03 && (slopes[1] - 0.5).abs() < 0.03,
            "{method}: {slopes:?}"
        );
        assert!((number(&report["intercept"]) - (1.0 - slopes[0] - slopes[1])).abs() < 1e-12);
        let parts: f64 = report["parts"].as_object().unwrap().values().map(number).sum();
        assert!((parts - 2.0).abs() < 1e-6, "{method}: {parts}");
        assert_eq!((report["target"].as_str(), report["private"].as_bool()), (Some("y"), Some(false)));
    }
    let (_, shown, _) = run(&[&["covariance", file, "--rho", "2", "--method", "ssp"], &bounds[..]].concat());
    assert!(shown.contains("y by") && shown.contains("(intercept)") && shown.contains("2-zCDP"), "{shown}");
    let ledger = lab.path("ledger");
    let paid =
        [&[file, "--rho", "2", "--data-set", "sample", "--ledger", ledger.to_str().unwrap()], &bounds[..]]
            .concat();
    json(&paid);
    let (_, entries, _) = run(&["ledger", ledger.to_str().unwrap(), "--json"]);
    assert!(entries.contains("\"pipeline\":\"regression\""), "{entries}");
    let asked = |more: &[&'static str]| [&[file, "--rho", "2"], more].concat();
    refused(&asked(&["--target", "z"]), 2, "not one of the used columns");
    refused(&asked(&["--columns", "y", "--target", "y"]), 2, "at least one other column");
    refused(&asked(&["--target", "y", "--centre"]), 2, "cannot be used with");
    refused(&asked(&["--target", "y", "--neighbours", "zero-out"]), 2, "public number of records");
}
