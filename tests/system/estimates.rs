//! Estimates on the command line, on real flights: intervals, flags, projections, and invalid
//! requests.

use std::path::{Path, PathBuf};

use crate::harness::{Lab, finish, hushflow, run, tail};
use serde_json::{Value, json};

/// The pipeline of the flights with seeded noise and these settings of its view.
fn pipeline(lab: &Lab, settings: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(examples.join("flights.toml")).expect("the example");
    let path = format!("path = \"{}", examples.join("data").display());
    let estimate = format!("estimate = \"gaussian\"\n{settings}");
    let text = text.replace("path = \"data", &path).replace("estimate = \"gaussian\"", &estimate);
    lab.write("flights.toml", text + "\n[simulation]\nseed = 7\n")
}

/// A state directory with a month of flights.
pub(crate) fn flights(lab: &Lab) -> PathBuf {
    let state = lab.path("state");
    finish(&mut run(&pipeline(lab, ""), &state, 1)).succeeded();
    state
}

/// Returns the lines of JFK.
fn lines(state: &Path, arguments: &[&str]) -> Vec<Value> {
    finish(tail(state, arguments).args(["--key", "JFK"])).succeeded().json()
}

pub(crate) fn last(state: &Path, arguments: &[&str]) -> Value {
    lines(state, arguments).pop().expect("a month has a last day")
}

fn width(interval: &Value) -> f64 {
    interval[1].as_f64().expect("an end") - interval[0].as_f64().expect("an end")
}

#[test]
fn intervals_are_as_wide_as_what_they_promise() {
    let lab = Lab::new();
    let state = flights(&lab);
    let delay = |line: &Value| line["mean_interval"]["dep_delay"].clone();
    let plain = last(&state, &[]);
    let promised = ["level", "about", "joint"].map(|field| plain[field].clone());
    assert_eq!(promised, [json!(0.95), json!("records"), json!(false)]);
    let (mean, noise) = (&plain["mean"]["dep_delay"], &plain["mean_noise"]["dep_delay"]);
    let deviations = width(&delay(&plain)) / noise.as_f64().expect("a number");
    assert!((deviations / 3.92 - 1.0).abs() < 0.01, "{deviations}: the count is known well");
    assert!(delay(&plain)[0].as_f64() < mean.as_f64() && mean.as_f64() < delay(&plain)[1].as_f64());
    for (place, interval) in [("mean_interval", "dep_delay"), ("standard_deviation_interval", "arr_delay")] {
        let of = |arguments: &[&str]| width(&last(&state, arguments)[place][interval]);
        assert!(of(&[]) < of(&["--level", "0.99"]), "{place}");
        assert!(of(&[]) < of(&["--joint"]), "{place}");
        assert!(of(&[]) < of(&["--population"]), "{place}");
    }
    let variance = &plain["covariance_interval"][0][0];
    let deviation = &plain["standard_deviation_interval"]["dep_delay"];
    assert!((variance[0].as_f64().unwrap().sqrt() - deviation[0].as_f64().unwrap()).abs() < 1e-9);
}

#[test]
fn every_line_says_whether_it_shows_the_data() {
    let lab = Lab::new();
    let state = flights(&lab);
    let (first, last) = (lines(&state, &["--workload", "window:1"]), last(&state, &[]));
    assert_eq!(last["quality"], "good");
    assert!(last["correlation"][0][1].as_f64().is_some_and(|x| x > 0.5), "{last}");
    let noisy: Vec<_> = first.iter().filter(|line| line["quality"] != "good").collect();
    assert!(noisy.len() > 20, "a day alone is mostly noise");
    for line in noisy {
        assert!(
            ["noise-dominated", "too-few-records"].contains(&line["quality"].as_str().unwrap()),
            "{line}"
        );
        assert_eq!(line["mean_interval"]["dep_delay"].is_null(), line["quality"] == "too-few-records");
    }
    let table = finish(hushflow(["tail", "--key", "JFK"]).arg(&state)).succeeded().out;
    assert!(
        table.starts_with(
            "±: reach of a 95 % confidence interval for the records themselves, each by itself\n"
        )
    );
    assert!(table.trim_end().ends_with("  good"), "{table}");
    let csv = finish(hushflow(["tail", "--format", "csv"]).arg(&state)).succeeded().out;
    let header = csv.lines().next().expect("a header");
    assert!(header.contains(",quality,mean_lower_dep_delay,"), "{header}");
    let fields = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| fields(line) == fields(header)), "{csv}");
}

#[test]
fn the_projection_is_chosen_by_name() {
    let lab = Lab::new();
    let state = flights(&lab);
    let covariance = |projection: &str| {
        let line = last(&state, &["--workload", "window:5", "--covariance", projection]);
        assert_eq!(line["projection"], projection);
        (line["covariance"].clone(), line["covariance_interval"].clone())
    };
    let (raw, interval) = covariance("raw");
    let (shrunk, same) = covariance("shrink");
    assert_eq!(interval, same, "intervals are made before any projection");
    let entry = |matrix: &Value| matrix[0][1].as_f64().expect("a number").abs();
    assert!(entry(&shrunk) < entry(&raw));
}

#[test]
fn a_pipeline_says_what_its_views_promise() {
    let lab = Lab::new();
    let settings = "covariance = \"shrink\"\nlevel = 0.9\njoint = true\npopulation = true";
    let pipeline = pipeline(&lab, settings);
    let mut run = hushflow(["run", "--json"]);
    let lines = finish(run.arg(pipeline).arg("--state").arg(lab.path("state"))).succeeded().json();
    let line = lines.last().expect("a month has a last day");
    let found = ["projection", "level", "joint", "about"].map(|field| line[field].clone());
    assert_eq!(found, [json!("shrink"), json!(0.9), json!(true), json!("population")]);
}

#[test]
fn what_can_not_be_promised_is_refused() {
    let refused = |arguments: &[&str], part: &str| {
        finish(hushflow(["tail", "nowhere"]).args(arguments)).failed(2, &[part]);
    };
    refused(&["--level", "1"], "above 0 and below 1");
    refused(&["--level", "nan"], "above 0 and below 1");
    refused(&["--covariance", "ceiling"], "expected \"floor\", \"nearest\", \"shrink\" or \"raw\"");
}
