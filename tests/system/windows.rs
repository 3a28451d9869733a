//! Tests pipelines that release estimates of windows. The estimates equal those of the commands on
//! the same rows and do not depend on the number of workers or on crashes. Each window is released
//! once, and all windows cost a single charge.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::harness::{
    Lab, await_until, close, finish, hushflow, logs, releases, run, run_as_two, tail, wait,
};
use serde_json::{Map, Value};

pub(crate) const WEATHER: &str = "examples/data/weather_nyc2013.csv";
const FLIGHTS: &str = "examples/data/flights_jan2013.csv";
const STATIONS: [&str; 3] = ["EWR", "JFK", "LGA"];

/// Lines of the section `[release]` of a pipeline file.
pub(crate) const MEAN: &str = "method = 'prime-ht'\ncorruption = 0.01\nscale = [18, 6]\n";
pub(crate) const COVARIANCE: &str = "method = 'pace'\ncentre = 0.1\n";

/// A seeded pipeline over weather with this release, in windows of `days` days.
pub(crate) fn weather(lab: &Lab, data: &str, days: u32, release: &str, more: &str) -> PathBuf {
    let data = std::path::absolute(data).unwrap();
    let text = format!(
        "name = 'weather'
[source]
path = '{}'
[[columns]]
name = 'temp'
lower = -20
upper = 120
[[columns]]
name = 'wind_speed'
lower = 0
upper = 60
[key]
column = 'station'
values = ['EWR', 'JFK', 'LGA']
[epochs]
time = 'event_time'
clock = 'event-time'
start = '2013-01-01T05:00:00Z'
length = '{days}d'
horizon = {}
[privacy]
neighbours = 'replace-one-in-place'
epsilon = 2
delta = 1e-6
[release]
{release}
[simulation]
seed = 5
{more}",
        data.display(),
        365 / days,
    );
    lab.write(&format!("{}-{days}.toml", release.len() + more.len()), text)
}

pub(crate) fn lines(state: &Path) -> Vec<Value> {
    finish(&mut tail(state, &[])).succeeded().json()
}

/// Returns the results without the fields that differ between runs.
fn found(state: &Path) -> Vec<Map<String, Value>> {
    let without = |line: Value| {
        let mut line = line.as_object().unwrap().clone();
        line.remove("generation");
        line.remove("chain");
        line
    };
    lines(state).into_iter().map(without).collect()
}

/// The rows of a file with its header, of one key and between two times.
pub(crate) fn window(data: &str, key: &str, from: &str, to: &str) -> String {
    let text = std::fs::read_to_string(data).unwrap();
    let mut lines = text.lines();
    let header = lines.next().unwrap().to_owned() + "\n";
    let inside =
        |line: &&str| (from..to).contains(&&line[..from.len()]) && line.contains(&format!(",{key},"));
    lines.filter(inside).fold(header, |text, line| text + line + "\n")
}

/// The first window of the first key has the command's noise; both use the same rows.
#[test]
fn windows_agree_with_the_batch_commands() {
    let lab = Lab::new();
    let rows = lab.write("ewr.csv", window(WEATHER, "EWR", "2013-01-01T05", "2013-04-02T05"));
    let rows = rows.to_str().unwrap();
    let of_command = |arguments: &[&str]| {
        finish(hushflow(arguments).args(["--epsilon", "2", "--delta", "1e-6", "--seed", "5", "--json"]))
            .succeeded()
            .json()
            .remove(0)
    };
    let check = |release: &str, expected: Value, fields: &[&str]| {
        let state = lab.path(&release[..16].replace('\'', ""));
        finish(&mut run(&weather(&lab, WEATHER, 91, release, ""), &state, 1)).succeeded();
        let line = lines(&state).remove(0);
        assert_eq!((&line["epoch"], &line["key"]), (&Value::from(1), &Value::from("EWR")));
        for field in fields {
            assert!(!expected[*field].is_null(), "{field} {expected}");
            assert_eq!(line[*field], expected[*field], "{field} {line} {expected}");
        }
    };
    let columns = ["--columns", "temp,wind_speed"];
    let mean = ["mean", rows, "--method", "prime-ht", "--scale", "18,6", "--corruption", "0.01"];
    check(
        MEAN,
        of_command(&[&mean[..], &columns].concat()),
        &["rows", "mean", "noise", "kept", "parts", "spent"],
    );
    let bounds = ["--bounds=-20:120,0:60", "--centre", "0.1", "--missing", "centre"];
    let covariance = [&["covariance", rows, "--method", "pace"][..], &columns, &bounds].concat();
    check(
        COVARIANCE,
        of_command(&covariance),
        &["rows", "mean", "covariance", "measurements", "parts", "rounds"],
    );
}

#[test]
fn workers_processes_and_keys_without_records_change_nothing() {
    let lab = Lab::new();
    // Scales are estimated from pairs of rows, so they change with the order.
    for release in [MEAN, COVARIANCE, "method = 'gaussian'\ncorruption = 0.01\n"] {
        let pipeline = weather(&lab, WEATHER, 91, release, "");
        let states = ["one", "two", "cluster"].map(|name| lab.path(&format!("{name}{}", release.len())));
        finish(&mut run(&pipeline, &states[0], 1)).succeeded();
        finish(&mut run(&pipeline, &states[1], 2)).succeeded();
        let processes = run_as_two(&pipeline, &states[2], 2).map(|mut process| process.spawn().unwrap());
        for process in processes {
            wait(process).succeeded();
        }
        let expected = found(&states[0]);
        assert_eq!(expected.len(), 12);
        let epochs_and_keys: Vec<(u64, &str)> = expected
            .iter()
            .map(|line| (line["epoch"].as_u64().unwrap(), line["key"].as_str().unwrap()))
            .collect();
        assert!(
            epochs_and_keys.iter().copied().eq((1..=4).flat_map(|epoch| STATIONS.map(|key| (epoch, key))))
        );
        for state in &states[1..] {
            assert_eq!(found(state), expected);
            // All bytes are equal, including the generation.
            assert_eq!(
                std::fs::read(state.join("public.log")).unwrap(),
                std::fs::read(states[0].join("public.log")).unwrap()
            );
        }
        finish(&mut hushflow(["verify".as_ref(), states[2].as_os_str()])).succeeded();
    }
}

/// The corrupt reading of 1048 mph is in the first quarter at EWR. The bounds of the pipeline are
/// so wide that they do not clip it.
#[test]
fn a_corrupt_reading_moves_no_window() {
    let lab = Lab::new();
    let corrected = std::fs::read_to_string(WEATHER).unwrap().replace("1048.36", "10.36");
    let corrected = lab.write("corrected.csv", corrected);
    let found = [("read", WEATHER), ("corrected", corrected.to_str().unwrap())].map(|(name, data)| {
        let text = std::fs::read_to_string(weather(&lab, data, 91, MEAN, "")).unwrap();
        let pipeline = lab.write("wide.toml", text.replace("upper = 60", "upper = 2000"));
        let state = lab.path(name);
        finish(&mut run(&pipeline, &state, 1)).succeeded();
        lines(&state)
    });
    assert_ne!(found[0][0]["chain"], found[1][0]["chain"], "the pipelines read other data");
    for (with, without) in found[0].iter().zip(&found[1]) {
        for index in 0..2 {
            let [with, without] =
                [with, without].map(|line| line["mean"][index].as_f64().unwrap_or_else(|| panic!("{line}")));
            assert!((with - without).abs() < [1.8, 0.6][index], "{with} {without}");
        }
        let wind = with["mean"][1].as_f64().unwrap();
        assert!((6.0..15.0).contains(&wind), "{with}");
    }
}

/// Kills a run repeatedly after its first windows. Published windows stay equal byte by byte, and
/// in the end every window is present, as without a kill.
#[test]
fn a_killed_run_resumes_and_publishes_each_window_once() {
    let lab = Lab::new();
    let whole = lab.path("whole");
    // With real noise, an epoch drawn twice would differ in its bytes; a seed lets all windows be
    // compared with those of an undisturbed run.
    let pipeline = weather(&lab, WEATHER, 5, COVARIANCE, "");
    let sink = lab.path("whole.ndjson");
    let text = std::fs::read_to_string(&pipeline).unwrap();
    let with_sink = lab.write("sink.toml", format!("{text}[[sinks]]\npath = '{}'\n", sink.display()));
    finish(&mut run(&with_sink, &whole, 1)).succeeded();
    let sunk = std::fs::read_to_string(&sink).unwrap();
    assert_eq!(sunk, finish(&mut tail(&whole, &[])).succeeded().out, "the sink has what tail shows");
    assert!(logs(&whole).contains(&"private-000002.log".into()), "a checkpoint began a segment");
    let private = std::fs::read_to_string(&pipeline).unwrap().replace("[simulation]\nseed = 5\n", "");
    for (name, pipeline) in [("seeded", pipeline.clone()), ("private", lab.write("private.toml", private))] {
        let state = lab.path(name);
        let (mut seen, mut kills) = (Vec::new(), 0);
        loop {
            let mut child = run(&pipeline, &state, 1 + kills % 2).spawn().unwrap();
            let before = seen.len();
            await_until("windows are published", || {
                releases(&state).len() > before + 7 || child.try_wait().unwrap().is_some()
            });
            child.kill().unwrap();
            let ended = wait(child);
            let now = releases(&state);
            assert_eq!(now[..before], seen[..], "{name}: what was published does not change");
            seen = now;
            if ended.code == Some(0) {
                break;
            }
            kills += 1;
        }
        assert!(kills > 0, "it was killed");
        assert_eq!(seen.len(), 73);
        if name == "seeded" {
            assert_eq!(found(&state), found(&whole));
        }
        finish(&mut hushflow(["verify".as_ref(), state.as_os_str()])).succeeded();
    }
}

/// Flights in windows of counted records, from a standard input that can't be read again.
#[test]
fn a_journaled_input_resumes_within_a_window() {
    let lab = Lab::new();
    let text = std::fs::read_to_string(FLIGHTS).unwrap();
    let pipeline = |path: &str, journal: &str| {
        format!(
            "name = 'flights'
[source]
path = '{path}'
format = 'csv'
{journal}
[[columns]]
name = 'dep_delay'
lower = -60
upper = 600
[[columns]]
name = 'air_time'
lower = 0
upper = 700
[key]
column = 'origin'
values = ['EWR', 'JFK', 'LGA', 'nowhere']
[epochs]
records = 6000
horizon = 4
[privacy]
neighbours = 'replace-one-in-place'
epsilon = 4
delta = 1e-6
[release]
method = 'ssp-tight'
[simulation]
seed = 3
"
        )
    };
    let of_file =
        lab.write("file.toml", pipeline(std::path::absolute(FLIGHTS).unwrap().to_str().unwrap(), ""));
    let whole = lab.path("whole");
    finish(&mut run(&of_file, &whole, 2)).succeeded();
    let journaled = lab.write("journaled.toml", pipeline("-", "journal = true"));
    let state = lab.path("state");
    // The first session is killed within the second window, once the journal holds all rows that
    // were sent.
    let cut = text.match_indices('\n').nth(9000).unwrap().0 + 1;
    let safe = lab.path("safe");
    let mut first = run(&journaled, &state, 1);
    let mut first = first.arg("--acknowledge").arg(&safe).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = first.stdin.take().unwrap();
    input.write_all(&text.as_bytes()[..cut]).unwrap();
    await_until("nine thousand rows are safe, and a window is published", || {
        let acknowledged = std::fs::read_to_string(&safe).unwrap_or_default();
        acknowledged.lines().last() == Some("9000") && releases(&state).len() == 1
    });
    first.kill().unwrap();
    wait(first);
    let header = text.lines().next().unwrap().to_owned() + "\n";
    let rest = std::fs::File::open(lab.write("input.csv", header + &text[cut..])).unwrap();
    finish(run(&journaled, &state, 2).stdin(rest)).succeeded();
    let (found, expected) = (found(&state), found(&whole));
    assert_eq!(found.len(), 16);
    assert!(
        expected.iter().all(|line| (line["key"] == "nowhere") == line.contains_key("refusal")),
        "{expected:?}"
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}

#[test]
fn the_ledger_is_charged_once_for_all_windows() {
    let lab = Lab::new();
    let ledger = lab.path("ledger");
    let more = format!(
        "[ledger]\ndirectory = '{}'\ndata_set = 'stream'\nbudget = {{ epsilon = 2.2, delta = 2e-6 }}\n",
        ledger.display()
    );
    let real = |release: &str| {
        let pipeline = weather(&lab, WEATHER, 91, release, &more);
        let text = std::fs::read_to_string(&pipeline).unwrap().replace("[simulation]\nseed = 5\n", "");
        lab.write(&format!("real{}.toml", release.len()), text)
    };
    let account = || {
        finish(&mut hushflow(["ledger".as_ref(), ledger.as_os_str(), "--json".as_ref()]))
            .succeeded()
            .json()
            .remove(0)
    };
    let state = lab.path("mean");
    for _ in 0..2 {
        finish(&mut run(&real(MEAN), &state, 1)).succeeded();
    }
    let report = account();
    assert_eq!(report["entries"].as_array().unwrap().len(), 1, "{report}");
    let entry = &report["entries"][0];
    assert_eq!((&entry["method"], &entry["epochs"]), (&Value::from("prime-ht"), &Value::from(4)));
    // The value of one Gaussian mechanism of (2, 1e-6), whatever the number of windows.
    close("μ of all windows", &entry["mu"], 0.453, 0.02);
    // A pipeline that estimates a covariance has the same μ, whatever share of it pays for
    // selections. Both pipelines together exceed the budget.
    let refused = finish(&mut run(&real(COVARIANCE), &lab.path("covariance"), 1));
    refused.failed(1, &["the budget of this data set", "1 entry has spent"]);
    assert!(releases(&lab.path("covariance")).is_empty());
    let entry = finish(&mut hushflow(["verify".as_ref(), state.as_os_str(), "--json".as_ref()]))
        .succeeded()
        .json()
        .remove(0);
    assert_eq!(
        (&entry["ok"], &entry["private"], &entry["ledger_entry"]),
        (&true.into(), &true.into(), &1.into())
    );
}

#[test]
fn impossible_settings_of_windows_are_refused_with_line_and_column() {
    let lab = Lab::new();
    let check = |change: (&str, &str), message: &str| {
        let text = std::fs::read_to_string(weather(&lab, WEATHER, 91, MEAN, "")).unwrap();
        let changed = text.replace(change.0, change.1);
        assert_ne!(text, changed, "{change:?}");
        let pipeline = lab.write("bad.toml", changed);
        let ended = finish(&mut run(&pipeline, &lab.path("bad"), 1));
        assert!(ended.code == Some(2) && ended.err.contains(message), "{change:?}: {}", ended.err);
        assert!(!lab.path("bad").exists(), "nothing was begun");
    };
    check(("corruption = 0.01", "corruption = 0.5"), "at least 0 and below 0.5");
    check(("corruption = 0.01\n", ""), "the field corruption is missing");
    check(("epsilon = 2", "epsilon = 0"), "expected a number above 0");
    check(("delta = 1e-6", "delta = 0"), "delta");
    check(("scale = [18, 6]", "scale = [18]"), "a list of 2 numbers above 0");
    check(("scale = [18, 6]", "scale = [18, 0]"), "a list of 2 numbers above 0");
    check(("prime-ht", "tukey"), "needs range");
    check(
        (
            "'prime-ht'\ncorruption = 0.01\nscale = [18, 6]",
            "'resilience'\ncorruption = 0.01\nscale = 'whiten'",
        ),
        "needs scale",
    );
    check(("scale = [18, 6]", "scale = 'whitened'"), "\"auto\", \"whiten\" or a list of 2 numbers");
    check(("scale = [18, 6]", "scale = [1e-320, 6]"), "a list of 2 numbers above 0");
    check(("scale = [18, 6]", "scale = [18, 6]\nrange = 5"), "range is for tukey and resilience");
    check(("prime-ht", "prime-hut"), "\"prime-hut\", expected \"jme\" or");
    check(("prime-ht", "prime-hut"), "or \"prime-ht\" or");
    let resilience = "'resilience'\ncorruption = 0.2";
    check(("'prime-ht'\ncorruption = 0.01", resilience), "above 0 and below 1/6");
    check(("upper = 60", "upper = 0"), "a number above lower");
    check(("neighbours = 'replace-one-in-place'\n", "neighbours = 'zero-out'\n"), "replace-one-in-place");
    check(
        ("method = 'prime-ht'\n", "method = 'prime-ht'\nworkload = 'average'\n"),
        "is for methods that release moments",
    );
    check(("[release]", "clip_norm = 1\n[release]"), "this is for moments");
    check(
        ("[simulation]", "[[views]]\nname = 'v'\nworkload = 'average'\n[simulation]"),
        "this is for moments",
    );
    check(
        ("method = 'prime-ht'\ncorruption = 0.01\nscale = [18, 6]", "method = 'pace'\ncentre = 1.5"),
        "a number above 0 and below 1",
    );
}

/// Runs a pipeline with these rows in one window; returns the release.
fn window_of(lab: &Lab, rows: &str, release: &str, neighbours: &str) -> Value {
    let header: Vec<&str> = rows.lines().next().unwrap().split(',').collect();
    let mut columns = String::new();
    for name in &header {
        let _ = write!(columns, "[[columns]]\nname = '{name}'\nlower = -1\nupper = 1\n");
    }
    let data = lab.write("rows.csv", rows);
    let text = format!(
        "name = 'w'\nsource.path = '{}'\n{columns}[epochs]\nrecords = 100000\nhorizon = 1\n[privacy]\nepsilon = 1\ndelta = 1e-6\n\
         neighbours = '{neighbours}'\n[release]\n{release}\n[simulation]\nseed = 1\n",
        data.display()
    );
    let state = lab.path(&format!("state{}", releases_made(lab)));
    finish(&mut run(&lab.write("w.toml", text), &state, 1)).succeeded();
    lines(&state).remove(0)
}

fn releases_made(lab: &Lab) -> usize {
    (0..).find(|number| !lab.path(&format!("state{number}")).exists()).unwrap()
}

/// Constant columns, fewer rows than columns, one row, values outside the bounds, NaN, one column:
/// each release is an estimate or a typed reason, and no run fails.
#[test]
fn windows_without_an_estimate_are_released_as_such() {
    let lab = Lab::new();
    let rows = |header: &str, row: &dyn Fn(usize) -> String, number: usize| {
        (0..number).fold(header.to_owned() + "\n", |text, index| text + &row(index) + "\n")
    };
    let in_place = "replace-one-in-place";
    let refused = |found: &Value, message: &str| {
        let refusal = found["refusal"]["message"].as_str().unwrap_or_else(|| panic!("{found}"));
        assert!(refusal.contains(message), "{refusal}");
    };
    let covariance = |text: &str, neighbours: &str| window_of(&lab, text, "method = 'pace'", neighbours);
    let mean = |text: &str| {
        window_of(&lab, text, "method = 'prime-ht'\ncorruption = 0.01\nscale = [0.5, 0.5]", in_place)
    };
    // One row.
    let one = rows("a,b", &|_| "0.5,0.5".into(), 1);
    refused(&covariance(&one, in_place), "found 1 records, expected at least 2");
    refused(&mean(&one), "1 rows are too few");
    assert!(
        covariance(&one, "zero-out")["rows_noise"].as_f64().unwrap() > 0.0,
        "a private number of rows is never reported exactly"
    );
    // Constant columns, and columns in which no value is usable.
    for row in ["0.5,0", "nan,", "7e300,-7e300"] {
        let constant = rows("a,b", &|_| row.into(), 20_000);
        assert_eq!(covariance(&constant, in_place)["rows"], 20_000.0, "{row}");
        let found = mean(&constant);
        assert!(found["mean"][0].is_number() || found["refusal"]["reason"].is_string(), "{row}: {found}");
        assert_eq!(found["rows"], 20_000, "{row}: a row that can't be used counts");
    }
    // Fewer rows than columns, and one column.
    let wide: Vec<String> = (0..30).map(|column| format!("c{column}")).collect();
    let few = rows(&wide.join(","), &|index| vec![format!("0.{index}"); 30].join(","), 5);
    assert_eq!(covariance(&few, in_place)["covariance"].as_array().unwrap().len(), 30);
    let single = rows("a", &|index| format!("{}", (index % 100) as f64 / 100.0), 20_000);
    assert_eq!(covariance(&single, in_place)["measured_pairs"], 0);
    let found =
        window_of(&lab, &single, "method = 'tukey'\ncorruption = 0.1\nscale = [0.3]\nrange = 5", in_place);
    close("the median", &found["mean"][0], 0.5, 0.1);
    // Outside the bounds: a covariance clips, and a mean needs no bounds.
    let outside = rows("a,b", &|index| format!("{},3", if index % 2 == 0 { 9 } else { -9 }), 20_000);
    let found = covariance(&outside, in_place);
    close("clipped", &found["covariance"][0][0], 1.0, 0.05);
    close("clipped", &found["covariance"][1][1], 1.0, 0.05);
}

#[test]
fn moment_options_are_refused_for_windows() {
    let lab = Lab::new();
    let (pipeline, state) = (weather(&lab, WEATHER, 91, MEAN, ""), lab.path("state"));
    let shown =
        finish(hushflow(["run".as_ref(), pipeline.as_os_str(), "--state".as_ref()]).arg(&state)).succeeded();
    assert!(shown.out.contains("mean wind_speed") && shown.out.contains("EWR"), "{}", shown.out);
    assert!(shown.err.contains("4 epochs published") && shown.err.contains("NOT PRIVATE"), "{}", shown.err);
    let table = finish(hushflow(["tail".as_ref(), state.as_os_str()]).args(["--key", "JFK", "--since", "2"]))
        .succeeded();
    assert_eq!(table.out.lines().filter(|line| line.contains("JFK")).count(), 3, "{}", table.out);
    for flag in [&["--total"][..], &["--view", "moments"]] {
        finish(hushflow(["tail".as_ref(), state.as_os_str()]).args(flag))
            .failed(2, &["estimates of windows (prime-ht)"]);
    }
}

#[test]
fn the_example_runs() {
    let lab = Lab::new();
    let state = lab.path("state");
    finish(&mut run(Path::new("examples/weather_prime.toml"), &state, 1)).succeeded();
    let found = lines(&state);
    assert_eq!(found.len(), 12);
    for line in &found {
        let wind = line["mean"][1].as_f64().unwrap_or_else(|| panic!("{line}"));
        assert!((6.0..15.0).contains(&wind) && line["private"] == true, "{line}");
    }
    let planned =
        finish(&mut hushflow(["plan", "examples/weather_prime.toml", "--json"])).succeeded().json().remove(0);
    assert_eq!((&planned["estimator"], &planned["windows"]), (&Value::from("prime-ht"), &Value::from(12)));
    close("μ", &planned["mu"], 0.453, 0.02);
}
