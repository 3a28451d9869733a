//! `hushflow check`, and the check of the first rows of a run: planted mistakes are found before
//! anything is published or spent, and neither shows anything of the rows to readers.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Ended, Lab, finish, hushflow, run, sums};
use crate::servers::{Client, Server, free_port, installed};

/// Hourly rows of 40 days from 2020-03-01: event, arrival an hour later, key, and two values whose
/// ranges do not meet.
fn rows() -> String {
    let mut text = String::from("event,arrival,city,age,height\n");
    for hour in 0..40 * 24 {
        let time = |hour: u32| {
            let (day, month) = (hour / 24, if hour < 31 * 24 { 3 } else { 4 });
            format!("2020-{month:02}-{:02}T{:02}:00:00Z", day % 31 + 1, hour % 24)
        };
        let city = ["Oslo", "Rome", "Paris"][hour as usize % 3];
        text += &format!("{},{},{city},{},{}\n", time(hour), time(hour + 1), 20 + hour % 60, 150 + hour % 40);
    }
    text
}

/// The pipeline over `data.csv`.
const RIGHT: &str = "name = 'people'
[source]
path = 'data.csv'
[[columns]]
name = 'age'
lower = 0
upper = 100
[[columns]]
name = 'height'
lower = 120
upper = 220
[key]
column = 'city'
values = ['Oslo', 'Paris', 'Rome']
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-03-01'
length = '1d'
allowed_lateness = '2h'
horizon = 60
[privacy]
epsilon = 1
delta = 1e-6
[release]
strategy = 'square-root'
";

struct Case {
    lab: Lab,
    pipeline: PathBuf,
}

impl Case {
    /// The right pipeline with one text replaced.
    fn new(from: &str, to: &str) -> Self {
        Self::over(&rows(), from, to)
    }

    fn over(data: &str, from: &str, to: &str) -> Self {
        let lab = Lab::new();
        lab.write("data.csv", data);
        assert!(RIGHT.contains(from), "{from}");
        let pipeline = lab.write("p.toml", RIGHT.replace(from, to));
        Case { lab, pipeline }
    }

    fn check(&self) -> Ended {
        let ended = finish(hushflow(["check", "--json"]).arg(&self.pipeline));
        assert_eq!(
            std::fs::read_dir(self.lab.path(".")).expect("a directory").count(),
            2,
            "it writes nothing"
        );
        ended
    }

    fn run(&self) -> Ended {
        finish(&mut run(&self.pipeline, &self.lab.path("state"), 1))
    }

    /// Runs with private output on standard error.
    fn run_openly(&self) -> Ended {
        finish(run(&self.pipeline, &self.lab.path("state"), 1).arg("--counters"))
    }
}

fn kinds(report: &Value) -> Vec<&str> {
    report["problems"]
        .as_array()
        .expect("problems")
        .iter()
        .filter_map(|problem| problem["kind"].as_str())
        .collect()
}

#[test]
fn check_and_run_count_the_same_rows() {
    let case = Case::new("[release]", "[state]\nkeep = 'all'\n[release]");
    let report = case.check().succeeded().json().remove(0);
    assert_eq!(report["private"], true);
    assert_eq!((&report["rows"], &report["outcomes"]["records"]), (&960.into(), &960.into()));
    assert_eq!((kinds(&report).len(), &report["is_whole"]), (0, &true.into()));
    case.run().succeeded();
    let counted: Vec<i128> =
        sums(&case.lab.path("state")).iter().flat_map(|epoch| [epoch[0], epoch[6], epoch[12]]).collect();
    let checked = report["epochs"].as_array().expect("epochs").iter().flat_map(|epoch| {
        ["Oslo", "Paris", "Rome"].map(|key| i128::from(epoch["records"][key].as_u64().expect("a count")))
    });
    assert_eq!(counted[..120], checked.collect::<Vec<_>>());
    assert_eq!(report["epochs_published"], (counted.len() / 3) as u64);
}

/// Mistakes that public facts show: a run stops before it publishes or spends anything.
#[test]
fn a_wrong_clock_stops_a_run_before_it_spends() {
    for (from, to, part) in [
        ("start = '2020-03-01'", "start = '2019-03-01'", "further ahead of start in [epochs]"),
        ("start = '2020-03-01'", "start = '2021-03-01'", "comes before the first epoch"),
        (
            "arrival = 'arrival'",
            "arrival = 'age'",
            "its column \"age\" does not hold a date or an RFC 3339 time, but numbers",
        ),
        ("length = '1d'", "length = '1s'", "further ahead"),
        (
            "length = '1d'\nallowed_lateness = '2h'\nhorizon = 60",
            "length = '1min'\nhorizon = 60000",
            "no row arrived in nearly all",
        ),
    ] {
        // Times that are numbers can't be an arrival and a value at once.
        let unread =
            if to.ends_with("'age'") { "[[columns]]\nname = 'age'\nlower = 0\nupper = 100\n" } else { "" };
        let case = Case::new(from, to);
        case.lab.write("p.toml", RIGHT.replace(from, to).replace(unread, ""));
        let report = case.check();
        assert_eq!(report.code, Some(4), "{to}: {}", report.out);
        case.run().failed(1, &[part]);
        let state = case.lab.path("state");
        let spent = finish(hushflow(["ledger"]).arg(&state));
        assert!(spent.code == Some(1) || !spent.out.contains("people"), "{to}: {}", spent.out);
        // The same directory serves the corrected pipeline, but no other one after a release.
        let check = || finish(hushflow(["check"]).arg(&case.pipeline).arg("--state").arg(&state));
        case.lab.write("p.toml", RIGHT);
        check().succeeded();
        case.run().succeeded();
        case.lab.write("p.toml", RIGHT.replace("upper = 100", "upper = 101"));
        let other = check();
        assert!(
            other.code == Some(4) && other.out.contains("releases with other parameters"),
            "{}",
            other.out
        );
    }
}

/// Mistakes that only private rows show: a run continues and marks its reports as private, unless
/// the operator has agreed that it may stop.
#[test]
fn private_mistakes_stop_a_run_only_by_consent() {
    let swapped = (
        "name = 'age'\nlower = 0\nupper = 100\n[[columns]]\nname = 'height'",
        "name = 'height'\nlower = 0\nupper = 100\n[[columns]]\nname = 'age'",
    );
    for (from, to, kind) in [
        ("'Oslo', 'Paris', 'Rome'", "'oslo', 'paris ville', 'roma'", "unlisted keys"),
        (swapped.0, swapped.1, "values out of bounds"),
        ("lower = 120\nupper = 220", "lower = 1.2\nupper = 2.2", "values out of bounds"),
        ("arrival = 'arrival'\n", "clock = 'end-of-input'\n", ""),
    ] {
        let mut text = RIGHT.replace(from, to);
        if kind.is_empty() {
            text = text.replace("allowed_lateness = '2h'\n", "").replace("2020-03-01", "2019-03-01");
        }
        let kind = if kind.is_empty() { "after the horizon" } else { kind };
        let case = Case::new("", "");
        case.lab.write("p.toml", &text);
        let report = case.check();
        assert_eq!(report.code, Some(4), "{to}");
        assert!(kinds(&report.json()[0]).contains(&kind), "{to}: {}", report.out);
        let stopping = Case::new("", "");
        stopping.lab.write("p.toml", text.replace("[source]", "[source]\npreflight = 'stop'"));
        stopping.run().failed(1, &["among the first rows", "nothing was published or spent"]);
        assert!(!finish(hushflow(["tail"]).arg(stopping.lab.path("state"))).out.contains("Oslo"));
        // By default the run goes on and warns of it.
        let ended = case.run().succeeded();
        let marked = ended.err.lines().filter(|line| line.starts_with("warning: private, for the operator:"));
        assert!(marked.count() > 0, "{}", ended.err);
        let silent = Case::new("", "");
        silent.lab.write("p.toml", text.replace("[source]", "[source]\npreflight = 'off'"));
        assert!(!silent.run_openly().succeeded().err.contains("among the first rows"));
    }
}

#[test]
fn a_misspelt_key_is_answered_with_the_listed_one() {
    let case = Case::new("'Oslo', 'Paris', 'Rome'", "'oslo', 'paris ville', 'Romme'");
    let ended = case.run_openly().succeeded();
    assert!(ended.err.contains("every row has a key that [key] doesn't list"), "{}", ended.err);
    assert!(ended.err.contains("\"oslo\"") || ended.err.contains("\"Romme\""), "{}", ended.err);
    for raw in ["Oslo", "Paris", "Rome"] {
        assert!(!ended.err.contains(raw), "a value of a row is in a message: {}", ended.err);
    }
    // The operator's own screen shows them, and says that they are private.
    let screen = finish(hushflow(["check"]).arg(&case.pipeline));
    assert!(screen.out.starts_with("PRIVATE") && screen.out.contains("not listed: Paris"), "{}", screen.out);
}

#[test]
fn unreadable_files_and_times_are_explained() {
    let semicolons = Case::over(&rows().replace(',', ";"), "", "");
    finish(hushflow(["check"]).arg(&semicolons.pipeline))
        .failed(1, &["another delimiter, such as [source] delimiter"]);
    let numbers = rows().lines().enumerate().fold(String::new(), |text, (line, row)| match line {
        0 => format!("{row}\n"),
        _ => text + &format!("1583020800000,{}\n", row.split_once(',').expect("fields").1),
    });
    let report = Case::over(&numbers, "", "").check();
    assert_eq!(report.code, Some(4));
    assert!(report.out.contains("time_format = \\\"seconds\\\""), "{}", report.out);
    let local = Case::over(&rows().replace('Z', ""), "", "").check().succeeded();
    assert!(local.out.contains("without an offset from UTC are read as UTC"), "{}", local.out);
}

#[test]
fn a_weekend_is_bridged_and_a_wrong_year_is_not_believed() {
    let data = rows();
    let gap: String = data
        .lines()
        .enumerate()
        .filter(|(line, _)| !(200..272).contains(line))
        .map(|(_, row)| format!("{row}\n"))
        .collect();
    let check = |data: &str, records: u64, leaping: u64| {
        let report = Case::over(data, "", "").check().succeeded().json().remove(0);
        let outcomes = &report["outcomes"];
        assert_eq!((&outcomes["records"], &outcomes["clock_jump"]), (&records.into(), &leaping.into()));
    };
    check(&gap, 960 - 72, 0);
    let row = data.lines().nth(300).expect("a row");
    check(&data.replace(row, &row.replace("2020-", "2021-")), 959, 1);
}

/// Rows whose clock leaps at the end of a file count once a larger jump is allowed.
#[test]
fn rows_after_a_long_gap_are_read_again() {
    let (mut first, rest) = (String::new(), rows());
    let lines: Vec<&str> = rest.lines().collect();
    for line in lines[..100].iter().chain(&lines[900..950]) {
        first += &format!("{line}\n");
    }
    let case = Case::over(&first, "[release]", "[state]\nkeep = 'all'\n[release]");
    case.run().succeeded();
    let counted = |case: &Case| -> i128 {
        sums(&case.lab.path("state")).iter().map(|epoch| epoch[0] + epoch[6] + epoch[12]).sum()
    };
    assert_eq!(counted(&case), 99);
    let text = std::fs::read_to_string(&case.pipeline).expect("the pipeline");
    case.lab.write("p.toml", text.replace("[source]", "[source]\nlargest_jump = '60d'"));
    case.run().succeeded();
    assert_eq!(counted(&case), 149);
}

#[test]
fn sources_that_cannot_be_read_again_are_limited_or_refused() {
    let socket = Case::new("path = 'data.csv'", "path = 'tcp-listen://127.0.0.1:0'\nformat = 'csv'");
    finish(hushflow(["check"]).arg(&socket.pipeline)).failed(2, &["a socket can't be checked"]);
    let piped = Case::new("path = 'data.csv'", "path = '-'\nformat = 'csv'");
    let mut command = hushflow(["check", "--json", "--rows", "100"]);
    let mut child =
        command.arg(&piped.pipeline).stdin(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("its input");
    // More rows than it reads: it does not wait for the end.
    input.write_all(rows().as_bytes()).expect("rows are read");
    let report = crate::harness::wait(child).succeeded().json().remove(0);
    drop(input);
    assert_eq!((&report["rows"], &report["is_whole"]), (&100.into(), &false.into()));
    let lab = Lab::new();
    std::fs::create_dir(lab.path("log")).expect("a directory");
    lab.write("log/1.csv", rows());
    let followed = RIGHT.replace("path = 'data.csv'", "path = 'log'\nformat = 'csv'\nfollow = true");
    let path = lab.write("p.toml", &followed);
    let report = finish(hushflow(["check", "--json"]).arg(&path)).succeeded().json().remove(0);
    assert_eq!(report["rows"], 960);
    lab.write(
        "p.toml",
        followed
            .replace("arrival = 'arrival'\n", "clock = 'end-of-input'\n")
            .replace("allowed_lateness = '2h'\n", ""),
    );
    let report = finish(hushflow(["check", "--json"]).arg(&path));
    assert_eq!((report.code, kinds(&report.json()[0])), (Some(4), vec!["no epoch closes"]));
    finish(&mut run(&path, &lab.path("state"), 1))
        .failed(2, &["no epoch would ever be published", "--until-idle"]);
}

#[test]
fn check_reports_a_charge_that_the_ledger_refuses() {
    let budget = |lab: &Lab, epsilon: &str| {
        let ledger = format!(
            "[ledger]\ndirectory = 'ledger'\ndata_set = 'people'\nbudget = {{ epsilon = {epsilon}, delta = 1e-6 }}\n[release]"
        );
        lab.write("p.toml", RIGHT.replace("[release]", &ledger))
    };
    let lab = Lab::new();
    lab.write("data.csv", rows());
    let check = |path: &Path| finish(hushflow(["check", "--json"]).arg(path));
    check(&budget(&lab, "1")).succeeded();
    let report = check(&budget(&lab, "0.5"));
    assert_eq!((report.code, kinds(&report.json()[0])), (Some(4), vec!["ledger"]));
    assert!(!lab.path("ledger").exists());
}

/// Each sink is tried, and nothing is written to it.
#[test]
fn sinks_are_tried_and_nothing_is_written_to_them() {
    let servers = Lab::new();
    let [redis, nats] = ["redis-server", "nats-server"].map(installed);
    let redis = redis.map(|program| {
        Server::redis_with(program, &servers.path(""), &["--requirepass hidden-password".into()])
    });
    let nats = nats.map(|program| Server::nats(program, &servers.path("nats")));
    let check = |sinks: &str, password: &str| {
        let views = "views = [{ name = 'v', workload = 'prefix' }]";
        let case = Case::new("name = 'people'", &format!("name = 'people'\n{views}\nsinks = [{sinks}]"));
        let mut command = hushflow(["check", "--json"]);
        let ended = finish(command.arg(&case.pipeline).env("SECRET_OF_SINK", password));
        let names = std::fs::read_dir(case.lab.path(".")).expect("a directory");
        assert_eq!(names.count(), 2, "it writes nothing");
        assert!(!format!("{}{}", ended.out, ended.err).contains("hidden-"), "{}", ended.err);
        ended
    };
    let file = "{ path = 'out/new/releases.ndjson', rotate = '10 epochs' }";
    let ended = check(file, "").succeeded();
    assert!(ended.err.contains("each sink was tried, and nothing was written to it"), "{}", ended.err);
    let nobody = free_port();
    let ended = check(&format!("{file}, {{ path = 'redis://127.0.0.1:{nobody}', stream = 's' }}"), "");
    let report = ended.json().remove(0);
    assert_eq!(kinds(&report), ["unusable sink"], "{report}");
    assert!(
        report["problems"][0]["message"].to_string().contains(&format!("redis://127.0.0.1:{nobody} s: "))
    );
    ended.failed(4, &["a run would publish, but not to every sink"]);
    if let Some(server) = &redis {
        let sink = format!(
            "{{ path = 'redis://127.0.0.1:{}', stream = 's', password_env = 'SECRET_OF_SINK' }}",
            server.port
        );
        let ended = check(&sink, "hidden-mistake");
        let report = ended.json().remove(0);
        assert!(report["problems"][0]["message"].to_string().contains("see password_env"), "{report}");
        ended.failed(4, &["not to every sink"]);
        check(&sink, "hidden-password").succeeded();
        let mut client = Client::new(server.port);
        assert_eq!(client.redis(&["AUTH", "hidden-password"]), "+OK");
        assert_eq!(client.redis(&["DBSIZE"]), ":0");
    }
    if let Some(server) = &nats {
        check(&format!("{{ path = 'nats://127.0.0.1:{}', stream = 's' }}", server.port), "").succeeded();
        let found = Client::nats(server.port).nats_ask("$JS.API.STREAM.INFO.s", "", "");
        assert!(found.contains("stream not found"), "{found}");
    }
}
