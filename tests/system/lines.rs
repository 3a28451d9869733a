//! Lines of `run` and `tail`: of several views, of totals over keys, and with local times.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Lab, Stream, close, finish, hushflow, number, run, tail};

#[test]
fn a_total_is_the_sum_of_its_keys() {
    let lab = Lab::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights.toml")).expect("the example");
    let text = text.replace("data/", &format!("{}/data/", directory.display()));
    let state = lab.path("state");
    finish(&mut run(&lab.write("pipeline.toml", text), &state, 1)).succeeded();
    let lines = |more: &[&str]| {
        finish(&mut tail(&state, &[&["--view", "moments"], more].concat())).succeeded().json()
    };
    let (keys, totals) = (lines(&[]), lines(&["--total"]));
    assert_eq!((keys.len(), totals.len()), (3 * 32, 32));
    for (keys, total) in keys.chunks(3).zip(&totals) {
        assert_eq!((&total["key"], &total["epoch"]), (&"all".into(), &keys[0]["epoch"]));
        let sum = |of: &dyn Fn(&serde_json::Value) -> f64| keys.iter().map(of).sum::<f64>();
        close("count", &total["count"], sum(&|line| number(&line["count"])), 1e-12);
        for at in [0, 1] {
            close("first", &total["first"][at], sum(&|line| number(&line["first"][at])), 1e-12);
            close("second", &total["second"][0][at], sum(&|line| number(&line["second"][0][at])), 1e-12);
        }
        let root = 3_f64.sqrt();
        close("noise of the count", &total["count_noise"], root * number(&keys[0]["count_noise"]), 1e-12);
        close("noise", &total["first_noise"], root * number(&keys[0]["first_noise"]), 1e-12);
    }
    assert_eq!(lines(&["--total", "--since", "32"]).len(), 1);
    finish(&mut tail(&state, &["--total", "--key", "JFK"])).failed(2, &["--total", "--key"]);
    finish(&mut tail(&state, &["--total"])).succeeded();
}

#[test]
fn a_view_of_totals_agrees_with_tail() {
    let lab = Lab::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(directory.join("flights.toml")).expect("the example");
    let text = text.replace("data/", &format!("{}/data/", directory.display()));
    let view = "[[views]]\nname = 'total'\nworkload = 'window:7'\nestimate = 'moments'\nkeys = 'total'\n";
    let sink = "[[sinks]]\npath = 'total.ndjson'\n";
    let text = text.replace("[[views]]", &format!("{sink}\n{view}\n[[views]]"));
    let (pipeline, state) = (lab.write("pipeline.toml", &text), lab.path("state"));
    let mut ran = hushflow(["run", "--json", "--workers", "2"]);
    let ran = finish(ran.arg(&pipeline).arg("--state").arg(&state)).succeeded().json();
    let tailed = finish(&mut tail(&state, &["--total", "--view", "moments", "--workload", "window:7"]));
    let tailed = tailed.succeeded().json();
    let written = std::fs::read_to_string(lab.path("total.ndjson")).expect("the sink");
    let sunk: Vec<serde_json::Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    for lines in [&ran, &sunk] {
        let total: Vec<_> = lines.iter().filter(|line| line["view"] == "total").collect();
        assert_eq!((lines.len(), total.len(), tailed.len()), (4 * 32, 32, 32));
        for (line, expected) in total.into_iter().zip(&tailed) {
            for field in ["key", "epoch", "count", "count_noise", "first", "first_noise", "second"] {
                assert_eq!(line[field], expected[field], "{field}");
            }
        }
    }
    let squares = text.replace("[release]", "[release]\nmethod = 'pp'");
    let refused = finish(&mut run(&lab.write("pp.toml", squares), &lab.path("pp"), 1));
    refused.failed(2, &["keys", "squares of the sums of each key"]);
}

/// The output is far larger than a buffer, so separate buffers for each view would cut lines.
#[test]
fn lines_of_several_views_do_not_cut_each_other() {
    let lab = Lab::new();
    let stream = Stream { rows: 1_000, epochs: 10 };
    lab.write("data.csv", stream.csv());
    let names = ["prefix", "average", "window:3"];
    let views = names
        .map(|name| format!("\n[[views]]\nname = '{name}'\nworkload = '{name}'\nestimate = 'moments'\n"));
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", &views.concat()));
    let mut run = hushflow(["run", "--json"]);
    let lines = finish(run.arg(pipeline).arg("--state").arg(lab.path("state"))).succeeded().json();
    let of_view = |name: &str| lines.iter().filter(|line| line["view"] == name).count();
    assert!(of_view("prefix") >= 7 * 9, "every key at every epoch");
    assert_eq!(names.map(of_view), [lines.len() / 3; 3]);
}

const PIPELINE: &str = "name = 'n'
columns = [{ name = 'x', lower = 0, upper = 1 }]
source = { path = 'data.csv' }
privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place', second_moments = 'none' }
release = { strategy = 'identity' }
views = [{ name = 'days', workload = 'window:1', estimate = 'moments' }]

[epochs]
time = 't'
clock = 'event-time'
start = '2013-11-02'
length = '1 day'
timezone = 'America/New_York'
horizon = 3
";

/// Counts are public here, so they show the epoch of every record. The third of November has 25
/// hours in New York; half past one occurs twice.
const DATA: &str = "t,x
2013-11-02 00:00,0.5
2013-11-02T23:59:59,0.5
2013-11-03T00:00,0.5
2013-11-03T01:30:00,0.5
2013-11-03T06:30:00Z,0.5
2013-11-03T23:59:59-05:00,0.5
2013-11-04T05:00:00Z,0.5
";

#[test]
fn days_follow_local_time_across_daylight_saving() {
    let lab = Lab::new();
    lab.write("data.csv", DATA);
    let pipeline = lab.write("pipeline.toml", PIPELINE);
    let state = lab.path("state");
    let mut command = hushflow(["run", "--json"]);
    let lines = finish(command.arg(&pipeline).arg("--state").arg(&state)).succeeded().json();
    let starts: Vec<&Value> = lines.iter().map(|line| &line["start"]).collect();
    assert_eq!(
        starts,
        ["2013-11-02T00:00:00-04:00", "2013-11-03T00:00:00-04:00", "2013-11-04T00:00:00-05:00"]
    );
    let counts: Vec<f64> = lines.iter().map(|line| line["count"].as_f64().unwrap()).collect();
    assert_eq!(counts, [2.0, 4.0, 1.0]);
    let table = finish(hushflow(["tail"]).arg(&state)).succeeded();
    assert!(table.out.contains("2013-11-04T00:00-05:00"), "{}", table.out);
    // A run with the same boundaries resumes; others are refused.
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let other = PIPELINE.replace("America/New_York", "America/Chicago");
    let other = lab.write("other.toml", other);
    finish(&mut run(&other, &state, 1))
        .failed(1, &["timezone is \"America/Chicago\"", "epoch 1 begins at 2013-11-02T00:00:00-05:00"]);
}
