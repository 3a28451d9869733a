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
fn intervals_are_as_wide_as_their_level_requires() {
    let lab = Lab::new();
    let state = flights(&lab);
    let delay = |line: &Value| line["mean_interval"]["dep_delay"].clone();
    let plain = last(&state, &[]);
    let promised = ["level", "about", "joint"].map(|field| plain[field].clone());
    assert_eq!(promised, [json!(0.95), json!("counted-records"), json!(false)]);
    let (mean, noise) = (&plain["mean"]["dep_delay"], &plain["mean_noise"]["dep_delay"]);
    let deviations = width(&delay(&plain)) / noise.as_f64().expect("a number");
    assert!((deviations / 3.92 - 1.0).abs() < 0.01, "{deviations}: the count is known well");
    assert!(delay(&plain)[0].as_f64() < mean.as_f64() && mean.as_f64() < delay(&plain)[1].as_f64());
    for (field, column) in [("mean_interval", "dep_delay"), ("standard_deviation_interval", "arr_delay")] {
        let width_with = |arguments: &[&str]| width(&last(&state, arguments)[field][column]);
        assert!(width_with(&[]) < width_with(&["--level", "0.99"]), "{field}");
        assert!(width_with(&[]) < width_with(&["--joint"]), "{field}");
        assert!(width_with(&[]) < width_with(&["--population"]), "{field}");
    }
    let variance = &plain["covariance_interval"][0][0];
    let deviation = &plain["standard_deviation_interval"]["dep_delay"];
    assert!((variance[0].as_f64().unwrap().sqrt() - deviation[0].as_f64().unwrap()).abs() < 1e-9);
}

/// Of keys without records, about half of the released counts are below 0: all of 28 are above with
/// probability 4·10⁻⁹. No line shows a count outside of its interval; moments are as released.
#[test]
fn counts_lie_in_their_intervals() {
    let lab = Lab::new();
    let row =
        |row: u32| format!("u{},a,{},{}\n", row % 40, row % 10, if row.is_multiple_of(3) { "" } else { "5" });
    lab.write("few.csv", "who,kind,x,y\n".to_owned() + &(0..400).map(row).collect::<String>());
    let pipeline = lab.write(
        "few.toml",
        "name = 'few'
        source = { path = 'few.csv', missing = 'by-column' }
        columns = [{ name = 'x', lower = 0, upper = 9 }, { name = 'y', lower = 0, upper = 9 }]
        key = { column = 'kind', values = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'] }
        entity = { column = 'who', participations = 4, sent_limit = 3 }
        epochs = { records = 100, horizon = 4 }
        privacy = { unit = 'entity', epsilon = 0.5, delta = 1e-6 }
        simulation.seed = 3",
    );
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let shown = |arguments: &[&str]| finish(&mut tail(&state, arguments)).succeeded().json();
    let within = |count: &Value, interval: &Value| {
        let [count, lower, upper] = [count, &interval[0], &interval[1]].map(|number| number.as_f64());
        let (count, upper) = (count.expect("a count"), upper.unwrap_or(f64::INFINITY));
        assert!(lower.expect("an end") <= count && count <= upper, "{count} is not in {interval}");
    };
    let lines = shown(&[]);
    assert_eq!(lines.len(), 32);
    for line in &lines {
        within(&line["count"], &line["count_interval"]);
        within(&line["sent"], &line["sent_interval"]);
        for column in ["x", "y"] {
            within(&line["column_count"][column], &line["column_count_interval"][column]);
        }
    }
    // CSV, and so sinks, have the same counts.
    let csv = finish(hushflow(["tail", "--format", "csv"]).arg(&state)).succeeded().out;
    let counts = csv.lines().skip(1).map(|line| line.split(',').nth(4).and_then(|count| count.parse().ok()));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        lines.iter().map(|line| line["count"].as_f64()).collect::<Vec<_>>()
    );
    let moments = shown(&["--view", "moments"]);
    assert!(moments.iter().any(|line| line["count"].as_f64().expect("a count") < 0.0));
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
    assert!(table.starts_with(
        "±: half-width of the 95 % confidence interval for the records that counted, each on its own (a to b: its ends); \
         -: hidden by noise\n"
    ));
    assert!(table.trim_end().ends_with("  good"), "{table}");
    let csv = finish(hushflow(["tail", "--format", "csv"]).arg(&state)).succeeded().out;
    let header = csv.lines().next().expect("a header");
    assert!(header.contains(",mean_dep_delay,mean_noise_dep_delay,mean_lower_dep_delay,"), "{header}");
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
fn a_pipeline_sets_the_intervals_of_its_views() {
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
fn impossible_intervals_are_refused() {
    let refused = |arguments: &[&str], part: &str| {
        finish(hushflow(["tail", "nowhere"]).args(arguments)).failed(2, &[part]);
    };
    refused(&["--level", "1"], "above 0 and below 1");
    refused(&["--level", "nan"], "above 0 and below 1");
    refused(&["--covariance", "ceiling"], "expected \"floor\", \"nearest\", \"shrink\" or \"raw\"");
}

/// A pipeline over 4000 records of y = 3 + 2 x1 − x2 with little noise, followed by the text
/// `more`.
fn line(lab: &Lab, second_moments: &str, more: &str) -> PathBuf {
    let row = |index: usize| {
        let (x1, x2) = ((index % 20) as f64 / 10.0 - 1.0, (index * 7 % 13) as f64 / 6.5 - 1.0);
        format!("{x1},{},{x2}\n", 3.0 + 2.0 * x1 - x2)
    };
    lab.write("data.csv", String::from("x1,y,x2\n") + &(0..4000).map(row).collect::<String>());
    let text = format!(
        "name = 'line'
source.path = 'data.csv'
epochs = {{ records = 400, horizon = 10 }}
privacy = {{ epsilon = 20, delta = 1e-6, second_moments = '{second_moments}' }}
simulation.seed = 3
columns = [{{ name = 'x1', lower = -1, upper = 1 }}, {{ name = 'y', lower = 0, upper = 6 }},
  {{ name = 'x2', lower = -2, upper = 2 }}]
{more}"
    );
    lab.write("line.toml", text)
}

const LINE: &str = "[[views]]\nname = 'so far'\nworkload = 'prefix'\nestimate = 'regression'\ntarget = 'y'\n\
    on = ['x1', 'x2']\n";

#[test]
fn known_coefficients_are_estimated_in_every_form() {
    let lab = Lab::new();
    let pipeline = line(&lab, "full", &format!("{LINE}[[sinks]]\npath = 'lines.ndjson'\n"));
    let state = lab.path("state");
    let run = finish(hushflow(["run", "--json"]).arg(pipeline).arg("--state").arg(&state)).succeeded();
    let last = run.json().pop().expect("ten epochs");
    assert_eq!(
        (&last["quality"], &last["target"], &last["ridge"]),
        (&json!("good"), &json!("y"), &json!(0.0))
    );
    for (name, value, [found, noise, interval]) in [
        ("intercept", 3.0, ["intercept", "intercept_noise", "intercept_interval"].map(|field| &last[field])),
        ("x1", 2.0, ["", "_noise", "_interval"].map(|field| &last[format!("coefficients{field}")]["x1"])),
        ("x2", -1.0, ["", "_noise", "_interval"].map(|field| &last[format!("coefficients{field}")]["x2"])),
    ] {
        let [found, noise] = [found, noise].map(|number| number.as_f64().expect("a number"));
        assert!(noise < 0.1 && (found - value).abs() < 6.0 * noise, "{name}: {found} ± {noise}");
        assert!((width(interval) / noise / 3.92 - 1.0).abs() < 0.02, "{name}: {interval}");
    }
    let sunk = std::fs::read_to_string(lab.path("lines.ndjson")).expect("a sink");
    assert_eq!(sunk, run.out);
    let tailed = |arguments: &[&str]| {
        finish(&mut tail_as(&state, &[&["--regress", "y ~ x1+x2"], arguments].concat())).succeeded().out
    };
    assert_eq!(tailed(&["--json"]), run.out);
    let csv = tailed(&["--format", "csv"]);
    let header = "epoch,start,key,view,count,count_noise,intercept,intercept_noise,intercept_lower,intercept_upper,\
        coefficient_x1,coefficient_noise_x1,coefficient_lower_x1,coefficient_upper_x1,coefficient_x2,\
        coefficient_noise_x2,coefficient_lower_x2,coefficient_upper_x2,ridge,residual_variance,\
        residual_variance_noise,quality";
    assert_eq!(csv.lines().next(), Some(header));
    assert!(csv.lines().all(|line| line.split(',').count() == header.split(',').count()), "{csv}");
    let table = tailed(&[]);
    for part in ["±: half-width of the 95 %", "y at 0", "coef x1", "coef x2", "residual sd", "  good"] {
        assert!(table.contains(part), "{part:?}: {table}");
    }
    let refused = finish(&mut tail_as(&state, &["--regress", "y~x1", "--sample", "3"]));
    refused.failed(2, &["--sample", "use --view gaussian"]);
}

fn tail_as(state: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = hushflow(["tail"]);
    command.arg(state).args(arguments);
    command
}

#[test]
fn a_regression_without_a_solution_is_refused() {
    let refused = |second_moments: &str, view: &str, parts: &[&str]| {
        let lab = Lab::new();
        let pipeline = line(&lab, second_moments, view);
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(lab.path("state"))).failed(2, parts);
    };
    refused("diagonal", LINE, &["line.toml:11:12: views[0].estimate:", "second moments of pairs of columns"]);
    refused(
        "full",
        &LINE.replace("'x2'", "'x9'"),
        &["line.toml:13:13: views[0].on[1]: there is no column \"x9\": expected one of x1, y, x2"],
    );
    refused("full", &LINE.replace("'x2'", "'y'"), &["line.toml:13:13: views[0].on[1]: \"y\" is the target"]);
    refused(
        "full",
        &LINE.replace("target", "about"),
        &["the field target is missing", "views[0].about: unknown field"],
    );
    refused(
        "full",
        &LINE.replace("regression", "moments"),
        &[
            "views[0].target: this field is for estimate = \"regression\": leave it out",
            "views[0].on: this field",
        ],
    );
    let lab = Lab::new();
    let state = lab.path("state");
    finish(&mut run(&line(&lab, "diagonal", ""), &state, 1)).succeeded();
    finish(&mut tail_as(&state, &["--regress", "y~x1"])).failed(
        2,
        &["--regress y~x1: this log has no second moments of pairs of columns", "choose --view moments"],
    );
    let full = Lab::new();
    let state = full.path("state");
    finish(&mut run(&line(&full, "full", ""), &state, 1)).succeeded();
    let refused = |formula: &str, part: &str| {
        finish(&mut tail_as(&state, &["--regress", formula])).failed(2, &["--regress ", part]);
    };
    refused("y~x9", "on[0]: there is no column \"x9\": expected one of x1, y, x2");
    refused("y~x1+y", "on[1]: \"y\" is the target: leave it out");
    refused("y", "expected TARGET~COLUMN+COLUMN");
    finish(&mut tail_as(&state, &["--regress", "y~x1", "--view", "moments"]))
        .failed(2, &["cannot be used with"]);
}
