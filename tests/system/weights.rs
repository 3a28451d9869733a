//! Workloads from files (`matrix:PATH`): in views and `tail`, and as that of a release, whose log
//! needs no file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Lab, close, finish, hushflow, number, run, tail};

const EPOCHS: usize = 5;

/// Weights of epochs by age, a column for each epoch.
fn weights(by_age: impl Fn(usize) -> f64) -> String {
    let row = |t: usize| {
        let weight = |i: usize| if i > t { 0.0 } else { by_age(t - i) };
        (0..EPOCHS).map(|i| weight(i).to_string()).collect::<Vec<_>>().join(",") + "\n"
    };
    (0..EPOCHS).map(row).collect()
}

/// A pipeline over 500 rows in five epochs.
fn pipeline(lab: &Lab, release: &str, more: &str) -> PathBuf {
    let row = |index: usize| format!("{}\n", (index % 20) as f64 / 10.0 - 1.0);
    lab.write("data.csv", String::from("x\n") + &(0..500).map(row).collect::<String>());
    lab.write("halving.csv", weights(|age| 0.5f64.powi(age as i32)));
    lab.write("short.csv", "1,0\n1,1\n");
    let text = format!(
        "name = 'weights'
source.path = 'data.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}]
epochs = {{ records = 100, horizon = {EPOCHS} }}
privacy = {{ epsilon = 5, delta = 1e-6 }}
simulation.seed = 3
{release}
{more}"
    );
    lab.write("weights.toml", text)
}

fn lines(state: &Path, arguments: &[&str]) -> Vec<Value> {
    finish(&mut tail(state, arguments)).succeeded().json()
}

/// Checks that lines show the same moments.
fn assert_same(found: &[Value], expected: &[Value]) {
    assert_eq!((found.len(), expected.len()), (EPOCHS, EPOCHS));
    for (found, expected) in found.iter().zip(expected) {
        for field in ["count", "count_noise", "first_noise"] {
            close(field, &found[field], number(&expected[field]), 1e-9);
        }
        close("first", &found["first"][0], number(&expected["first"][0]), 1e-9);
        close("noise", &found["second_noise"][0][0], number(&expected["second_noise"][0][0]), 1e-9);
    }
}

#[test]
fn views_weigh_epochs_by_a_file() {
    let lab = Lab::new();
    let view = "[[views]]\nname = 'halving'\nworkload = 'matrix:halving.csv'\nestimate = 'moments'\n";
    let pipeline = pipeline(&lab, "", view);
    let state = lab.path("state");
    let shown = finish(hushflow(["run", "--json"]).arg(&pipeline).arg("--state").arg(&state)).succeeded();
    let expected = lines(&state, &["--view", "moments", "--workload", "exponential:0.5"]);
    assert_same(&shown.json(), &expected);
    let file = format!("matrix:{}", lab.path("halving.csv").display());
    let found = lines(&state, &["--view", "moments", "--workload", &file]);
    assert_same(&found, &expected);
    assert_eq!(found[0]["workload"], "matrix:halving.csv");

    let short = format!("matrix:{}", lab.path("short.csv").display());
    let refused = finish(&mut tail(&state, &["--workload", &short]));
    refused.failed(2, &["--workload: matrix:", "has 2 rows, expected one for each of the 5 epochs"]);
    finish(&mut tail(&state, &["--workload", "matrix:nowhere.csv"])).failed(2, &["nowhere.csv"]);
    let text = std::fs::read_to_string(&pipeline).expect("the pipeline").replace("halving.csv", "short.csv");
    lab.write("weights.toml", text);
    finish(&mut run(&pipeline, &lab.path("other"), 1))
        .failed(2, &["views[0].workload: matrix:short.csv has 2 rows"]);
}

#[test]
fn a_release_is_made_for_a_workload_from_a_file_and_read_without_it() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, "release.workload = 'matrix:halving.csv'", "");
    let state = lab.path("state");
    let plan = finish(hushflow(["plan", "--json"]).arg(&pipeline)).succeeded().out;
    assert!(plan.contains("optimal"), "{plan}");
    let shown = finish(hushflow(["run", "--json"]).arg(&pipeline).arg("--state").arg(&state)).succeeded();
    // A second run finds the same parameters, and has nothing to do.
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    // Another file is another release.
    lab.write("halving.csv", weights(|age| 0.25f64.powi(age as i32)));
    assert_ne!(finish(&mut run(&pipeline, &state, 1)).code, Some(0));

    std::fs::remove_file(lab.path("halving.csv")).expect("a file");
    std::fs::remove_file(&pipeline).expect("a file");
    let found = lines(&state, &[]);
    assert_eq!(found, shown.json());
    assert_eq!(found[4]["workload"], "matrix:halving.csv");
    assert_same(
        &lines(&state, &["--view", "moments"]),
        &lines(&state, &["--view", "moments", "--workload", "exponential:0.5"]),
    );
    finish(hushflow(["verify"]).arg(&state)).succeeded();
}

#[test]
fn momentum_cools_down_by_a_schedule() {
    let lab = Lab::new();
    let view =
        "[[views]]\nname = 'v'\nworkload = 'momentum:0.5'\nschedule = 'linear'\nestimate = 'moments'\n";
    let release = "release = { workload = 'momentum:0.5', schedule = 'linear' }";
    let pipeline = pipeline(&lab, release, view);
    let state = lab.path("state");
    let shown = finish(hushflow(["run", "--json"]).arg(&pipeline).arg("--state").arg(&state)).succeeded();
    // Epoch j has the rate 1 − 0.99 (j − ½)/5, and its momentum halves with age.
    let rate = |j: usize| 1.0 - 0.99 * (j as f64 + 0.5) / EPOCHS as f64;
    let weight = |t: usize, i: usize| (i..=t).map(|j| rate(j) * 0.5f64.powi((j - i) as i32)).sum::<f64>();
    let row = |t: usize| {
        let weights = (0..EPOCHS).map(|i| if i > t { 0.0 } else { weight(t, i) }.to_string());
        weights.collect::<Vec<_>>().join(",") + "\n"
    };
    let file = lab.write("cooled.csv", (0..EPOCHS).map(row).collect::<String>());
    let expected = lines(&state, &["--view", "moments", "--workload", &format!("matrix:{}", file.display())]);
    assert_same(&shown.json(), &expected);
    // `tail` can weigh epochs by a schedule that the pipeline does not name.
    let by_flag = ["--view", "moments", "--workload", "momentum:0.5", "--schedule", "linear"];
    assert_same(&lines(&state, &by_flag), &expected);
    finish(&mut tail(&state, &["--workload", "average", "--schedule", "linear"])).failed(2, &["--schedule"]);
    // It is the workload of the log, too.
    assert_same(&lines(&state, &["--view", "moments"]), &expected);
    assert_eq!(shown.json()[0]["workload"], "matrix:momentum:0.5 with linear");

    let text = std::fs::read_to_string(&pipeline).expect("the pipeline");
    for (from, to, problem) in [
        (
            "release = { workload = 'momentum:0.5'",
            "release = { workload = 'average'",
            "release.schedule: a schedule weighs the steps of `prefix`",
        ),
        (
            "schedule = 'linear'\nest",
            "schedule = 'steps'\nest",
            "views[0].schedule: unknown schedule `steps`",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        lab.write("weights.toml", text.replace(from, to));
        finish(&mut run(&pipeline, &lab.path("other"), 1)).failed(2, &[problem]);
    }
}

/// The forecast of a pair of strategies has the noise of its log, which stores both strategies.
#[test]
fn second_moments_have_a_strategy_of_their_own() {
    let lab = Lab::new();
    let release =
        "release = { workload = 'exponential:0.5', strategy = 'square-root', second_workload = 'prefix' }";
    let pipeline = pipeline(&lab, release, "");
    let state = lab.path("state");
    let plan = finish(hushflow(["plan", "--json"]).arg(&pipeline)).succeeded().json().remove(0);
    let forecasts = plan["strategies"].as_array().expect("strategies");
    let forecast = forecasts.iter().find(|forecast| !forecast["second_strategy"].is_null());
    let forecast = forecast.expect("the pair of the file");
    assert_eq!(forecast["second_strategy"], "square-root");
    let text = finish(hushflow(["plan"]).arg(&pipeline)).succeeded().out;
    assert!(text.contains("square-root and square-root *"), "{text}");
    // A strategy on the command line replaces the first alone.
    let mut named = hushflow(["plan", "--strategy", "identity", "--json"]);
    let named = finish(named.arg(&pipeline)).succeeded().json().remove(0);
    let names = ["strategy", "second_strategy"].map(|field| named[field].as_str());
    assert_eq!(names, [Some("identity"), Some("square-root")]);
    assert!(number(&named["last_noise"]["first"]) != number(&forecast["last_noise"]["first"]));

    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let found = lines(&state, &["--view", "moments"]);
    let [last, noise] = [&found[EPOCHS - 1], &forecast["last_noise"]];
    close("first", &last["first_noise"], number(&noise["first"]), 1e-6);
    close("second", &last["second_noise"][0][0], number(&noise["second"]), 1e-6);
    // A record that moves between epochs moves both moments, so the pair has more noise.
    let shared = forecasts
        .iter()
        .find(|other| other["strategy"] == "square-root" && other["second_strategy"].is_null());
    let shared = number(&shared.expect("the strategy alone")["last_noise"]["first"]);
    let growth = number(&noise["first"]) / shared;
    assert!(growth > 1.0 && growth < 1.25f64.sqrt() + 1e-6, "{growth}");
    finish(hushflow(["verify"]).arg(&state)).succeeded();
    // A second run finds both strategies, and another pair is another release.
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let text = std::fs::read_to_string(&pipeline).expect("the pipeline");
    lab.write("weights.toml", text.replace("'prefix'", "'average'"));
    assert_ne!(finish(&mut run(&pipeline, &state, 1)).code, Some(0));
}
