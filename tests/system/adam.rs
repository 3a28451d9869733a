//! The view `adam`: all output forms, compared with moments under its two workloads; every kind of
//! log; invalid requests.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Lab, close, finish, hushflow, number, run, tail};

/// A pipeline over 4000 rows of two users' columns, with little noise, followed by the text `more`.
fn pipeline(lab: &Lab, settings: &str, more: &str) -> PathBuf {
    let row = |index: usize| {
        let (x, y) = ((index % 20) as f64 / 10.0 - 1.0, 3.0 + (index * 7 % 13) as f64 / 6.5);
        let x = if index.is_multiple_of(11) { String::new() } else { x.to_string() };
        format!("{},{x},{y},{}\n", ["a", "b"][index / 20 % 2], index % 900)
    };
    lab.write("data.csv", String::from("k,x,y,user\n") + &(0..4000).map(row).collect::<String>());
    let text = format!(
        "name = 'gradients'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = 0, upper = 6 }}]
epochs = {{ records = 400, horizon = 9 }}
simulation.seed = 3
{settings}
{more}"
    );
    lab.write("gradients.toml", text)
}

const KEYED: &str = "source.path = 'data.csv'
key = { column = 'k', values = ['a', 'b'] }
privacy = { epsilon = 20, delta = 1e-6, second_moments = 'diagonal' }";

const VIEW: &str = "[[views]]\nname = 'adam:0.8'\nestimate = 'adam'\nbeta1 = 0.8\nbeta2 = 0.95\nfloor = 2\n";

const FLAGS: [&str; 8] = ["--view", "adam", "--beta1", "0.8", "--beta2", "0.95", "--floor", "2"];

fn lines(state: &Path, arguments: &[&str]) -> Vec<Value> {
    finish(&mut tail(state, arguments)).succeeded().json()
}

#[test]
fn adam_is_computed_in_every_form() {
    let lab = Lab::new();
    let pipeline = pipeline(&lab, KEYED, &format!("{VIEW}[[sinks]]\npath = 'lines.ndjson'\n"));
    let state = lab.path("state");
    let mut run = hushflow(["run", "--json", "--workers", "2"]);
    let run = finish(run.arg(pipeline).arg("--state").arg(&state)).succeeded();
    assert_eq!(std::fs::read_to_string(lab.path("lines.ndjson")).expect("a sink"), run.out);
    let tailed = |arguments: &[&str]| {
        finish(hushflow(["tail"]).arg(&state).args(FLAGS).args(arguments)).succeeded().out
    };
    assert_eq!(tailed(&["--json"]), run.out);
    let found = run.json();
    let last = found[16..].to_vec();
    assert_eq!(lines(&state, &[&FLAGS[..], &["--last", "1"]].concat()), last);

    let moments = |workload| lines(&state, &["--view", "moments", "--workload", workload]);
    let (one, two) = (moments("adam:0.8"), moments("adam:0.95"));
    assert_eq!((found.len(), one.len(), two.len()), (18, 18, 18));
    for (line, (one, two)) in found.iter().zip(one.iter().zip(&two)) {
        for field in ["epoch", "key", "workload", "count", "count_noise"] {
            assert_eq!(line[field], one[field], "{field}");
        }
        assert_eq!((&line["second_workload"], &line["second_count"]), (&json!("adam:0.95"), &two["count"]));
        assert_eq!((&line["floor"], &line["stability"]), (&json!(2.0), &json!(1e-8)));
        let share = |of: &Value, field: &str, index: usize| {
            let count = number(&of["count"]);
            (1.0 - (number(&of["count_noise"]) / count).powi(2)) * number(&of[field][index]) / count
        };
        for (index, column, centre, half_width) in [(0, "x", 0.0, 1.0), (1, "y", 3.0, 3.0)] {
            let value_of = |name: &str| number(&line[name][column]);
            let m = centre + half_width * share(one, "first", index);
            close("m", &line["first_moment"][column], m, 1e-9);
            let v = centre * centre
                + 2.0 * centre * half_width * share(two, "first", index)
                + half_width * half_width * share(two, "second", index);
            close("v", &line["second_moment"][column], v, 1e-9);
            let floored = v.max(2.0 * value_of("second_moment_noise"));
            close("floored v", &line["floored_second_moment"][column], floored, 1e-9);
            close("update", &line["update"][column], m / (floored.sqrt() + 1e-8), 1e-9);
            let mean = share(one, "first", index);
            let noise = number(&one["first_noise"]).hypot(mean * number(&one["count_noise"]));
            let noise = half_width * noise / number(&one["count"]);
            close("noise of m", &line["first_moment_noise"][column], noise, 1e-9);
        }
    }
    // The truth: x is around −0.05 with the mean square 0.33, y around 3.92 with 15.7.
    for line in last {
        assert_eq!(line["quality"], "good");
        for (column, m, v) in [("x", -0.05, 0.333), ("y", 3.923, 15.74)] {
            for (name, truth) in [("first_moment", m), ("second_moment", v), ("update", m / f64::sqrt(v))] {
                let noise = number(&line[format!("{name}_noise")][column]);
                let error = number(&line[name][column]) - truth;
                assert!(error.abs() < 6.0 * noise + 0.06, "{column} {name}: {error} ± {noise}");
            }
        }
    }

    let csv = tailed(&["--format", "csv"]);
    let header = "epoch,start,key,view,count,count_noise,first_moment_x,first_moment_y,first_moment_noise_x,\
        first_moment_noise_y,second_moment_x,second_moment_y,second_moment_noise_x,second_moment_noise_y,\
        floored_second_moment_x,floored_second_moment_y,update_x,update_y,update_noise_x,update_noise_y,quality";
    assert_eq!(csv.lines().next(), Some(header));
    assert!(csv.lines().all(|line| line.split(',').count() == header.split(',').count()), "{csv}");
    let table = tailed(&["--columns", "m x,v y,update x,floored v x"]);
    for part in
        ["±: standard deviation of the noise", "weight", "m x", "v y", "update x", "floored v x", "good"]
    {
        assert!(table.contains(part), "{part:?}: {table}");
    }
    let total = lines(&state, &[&FLAGS[..], &["--total"]].concat());
    assert_eq!((total.len(), &total[8]["key"]), (9, &json!("all")));
    finish(hushflow(["tail"]).arg(&state).args(FLAGS).args(["--sample", "3"]))
        .failed(2, &["use --view gaussian"]);
}

#[test]
fn adam_is_computed_for_entities_missing_values_and_squares_of_sums() {
    for (settings, is_complete) in [
        (
            "source.path = 'data.csv'
            privacy = { epsilon = 20, delta = 1e-6, unit = 'entity' }
            entity = { column = 'user', participations = 2, sent_limit = 2 }",
            true,
        ),
        (
            "source = { path = 'data.csv', missing = 'by-column' }
            privacy = { epsilon = 20, delta = 1e-6 }",
            true,
        ),
        // One record in each epoch.
        (
            "source.path = 'data.csv'
            release = { method = 'pp' }
            privacy = { epsilon = 20, delta = 1e-6 }",
            false,
        ),
    ] {
        let lab = Lab::new();
        let pipeline = pipeline(&lab, settings, "[[views]]\nname = 'v'\nestimate = 'adam'\nfloor = 1\n");
        if !is_complete {
            let text = std::fs::read_to_string(&pipeline).expect("the pipeline");
            let text = text.replace("records = 400, horizon = 9", "records = 1, horizon = 200");
            lab.write("gradients.toml", text);
        }
        let state = lab.path("state");
        finish(&mut run(&pipeline, &state, 1)).succeeded();
        let last = lines(&state, &["--view", "adam"]).pop().expect("a last epoch");
        let (m, noise) = (number(&last["first_moment"]["y"]), number(&last["first_moment_noise"]["y"]));
        assert!(noise > 0.0 && (m - 3.92).abs() < 6.0 * noise + 1.0, "{settings}: {m} ± {noise}");
        assert!(number(&last["update_noise"]["x"]) > 0.0, "{settings}: {last}");
    }
}

#[test]
fn invalid_settings_of_adam_are_refused() {
    let refused = |settings: &str, view: &str, parts: &[&str]| {
        let lab = Lab::new();
        let pipeline = pipeline(&lab, settings, view);
        finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(lab.path("state"))).failed(2, parts);
    };
    let own = "views[0].workload: this estimate has workloads of its own: leave it out";
    refused(KEYED, &format!("{VIEW}workload = 'prefix'\n"), &[own]);
    let range = "views[0].beta1: found 1.8, expected a number above 0 and below 1";
    refused(KEYED, &VIEW.replace("0.8\nbeta2", "1.8\nbeta2"), &[range]);
    let other = VIEW.replace("'adam'", "'moments'");
    refused(
        KEYED,
        &format!("{other}workload = 'prefix'\n"),
        &["views[0].beta1: this field is for estimate = \"adam\": leave it out"],
    );
    refused(KEYED, "[[views]]\nname = 'v'\n", &["the field workload is missing"]);
    let none = KEYED.replace("'diagonal'", "'none'");
    refused(&none, VIEW, &["views[0].estimate: no second moments of records are released"]);

    let lab = Lab::new();
    let state = lab.path("state");
    finish(&mut run(&pipeline(&lab, KEYED, ""), &state, 1)).succeeded();
    let refused = |arguments: &[&str], part: &str| {
        finish(&mut tail(&state, arguments)).failed(2, &[part]);
    };
    refused(
        &["--view", "adam", "--workload", "prefix"],
        "--workload: this estimate has workloads of its own",
    );
    refused(&["--view", "adam", "--beta2", "1"], "--view adam: beta2: found 1.0, expected a number above 0");
    refused(
        &["--view", "adam", "--floor=-1"],
        "--view adam: floor: found -1.0, expected a number at least 0",
    );
    refused(&["--beta1", "0.9"], "--beta1: this is for --view adam: leave it out");
}
