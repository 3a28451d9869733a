//! Epochs of a time zone's calendar, through the command line: local times in the data, local dates
//! in the lines, and boundaries that hold for the life of a log.

use serde_json::Value;

use crate::harness::{Lab, finish, hushflow, run};

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
