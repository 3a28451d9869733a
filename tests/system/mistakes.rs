//! Plants mistakes in a pipeline or its source, each with standard error in a pipe, and checks the
//! releases, the exit status and the output. Whatever a run with `preflight = "stop"` refuses,
//! `hushflow check` reports.

mod by_default;
mod many_sources;
mod middle;
mod opening;
mod times;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Ended, Lab, PRIVATE_LOG, cut, finish, frames, hushflow, run};

/// A row every five minutes from 2020-03-01: event, arrival an hour later, key and value. From row
/// `misspelt` on, keys are in lower case.
fn rows(rows: usize, misspelt: usize) -> String {
    let time = |minutes: usize| {
        let (day, hour, minute) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
        let (month, day) = if day < 31 { (3, day + 1) } else { (4, day - 30) };
        format!("2020-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z")
    };
    let row = |row: usize| {
        let city = ["Oslo", "Rome", "Paris"][row % 3];
        let city = if row < misspelt { city.to_owned() } else { city.to_lowercase() };
        format!("{},{},{city},{}\n", time(5 * row), time(5 * row + 60), 20 + row % 60)
    };
    "event,arrival,city,age\n".to_owned() + &(0..rows).map(row).collect::<String>()
}

const PIPELINE: &str = "name = 'people'
[source]
path = 'data.csv'
preflight = 'stop'
[[columns]]
name = 'age'
lower = 0
upper = 100
[key]
column = 'city'
values = ['Oslo', 'Paris', 'Rome']
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-03-01'
length = '1d'
horizon = 60
[privacy]
epsilon = 1
delta = 1e-6
[release]
strategy = 'square-root'
[simulation]
seed = 7
";

struct Mistake {
    lab: Lab,
    pipeline: PathBuf,
}

impl Mistake {
    fn new(data: &str, replaced: &[(&str, &str)]) -> Self {
        let lab = Lab::new();
        lab.write("data.csv", data);
        let mut text = PIPELINE.to_owned();
        for (from, to) in replaced {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let pipeline = lab.write("p.toml", text);
        Mistake { lab, pipeline }
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let ended = finish(run(&self.pipeline, &self.lab.path("state"), 1).args(arguments));
        for raw in ["oslo", "rome", "paris"] {
            assert!(!ended.err.contains(raw), "a value of a row is in a message: {}", ended.err);
        }
        ended
    }

    /// Number of published epochs.
    fn published(&self) -> u64 {
        published(&self.lab.path("state"))
    }

    /// Exit status and kinds of problems of `hushflow check`.
    fn check(&self) -> (Option<i32>, String) {
        let (code, report) = self.report();
        (code, format!("{} {} {}", report["problems"], report["notes"], report["fault"]))
    }

    /// Exit status and report of `hushflow check`.
    fn report(&self) -> (Option<i32>, Value) {
        let ended = finish(hushflow(["check", "--json"]).arg(&self.pipeline));
        (ended.code, ended.json().remove(0))
    }
}

/// Number of epochs that a state directory has published.
fn published(state: &Path) -> u64 {
    frames(&state.join("public.log")).iter().map(|frame| frame.epoch).max().unwrap_or(0)
}

/// Data, changes to the pipeline, what `check` reports, and the reason for which a run with
/// `preflight = "stop"` stops, if it does.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a str, Option<&'a str>);

/// The default: private mistakes stop no run.
const DEFAULT: (&str, &str) = ("preflight = 'stop'\n", "");

/// Begins a line about private rows, wherever standard error ends.
const WARNING: &str = "warning: private, for the operator: among the ";

const END_OF_INPUT: (&str, &str) = ("arrival = 'arrival'", "clock = 'end-of-input'");

#[test]
fn a_run_refuses_what_check_reports() {
    let (right, short) = (rows(12_000, usize::MAX), rows(9000, usize::MAX));
    let (from_first, header) = (rows(9000, 0), rows(0, 0));
    let cases: [Case; 8] = [
        (&right, vec![("2020-03-01", "2019-03-01")], "further ahead", Some("further ahead of start")),
        // A month early: 32 of 365 epochs hold records.
        (
            &short,
            vec![END_OF_INPUT, ("2020-03-01", "2020-02-01"), ("horizon = 60", "horizon = 365")],
            "empty epochs",
            Some("nearly all epochs would be published without a record"),
        ),
        (&from_first, vec![], "unlisted keys", Some("every row has a key that [key] doesn't list")),
        (
            &right,
            vec![("'Rome'", "'Romme'")],
            "key without rows",
            Some("no row has the listed key \"Romme\""),
        ),
        // 74 % of the rows.
        (
            &right,
            vec![END_OF_INPUT, ("2020-03-01", "2020-04-01")],
            "before the start",
            Some("most rows come before the first epoch"),
        ),
        (&header, vec![], "no rows", None),
        (&right, vec![], "", None),
        (
            &right,
            vec![("time = 'event'", "time = 'arrival'"), ("arrival = 'arrival'", "arrival = 'event'")],
            "swapped clock",
            Some("time and arrival may be swapped"),
        ),
    ];
    for (data, replaced, kind, reason) in cases {
        let mistake = Mistake::new(data, &replaced);
        let (code, report) = mistake.check();
        assert!(report.contains(kind), "{replaced:?}: {report}");
        assert_eq!(code, Some(if kind.is_empty() { 0 } else { 4 }), "{replaced:?}: {report}");
        assert_eq!(report.starts_with("[]"), kind.is_empty(), "{replaced:?}: {report}");
        let ended = mistake.run(&[]);
        if let Some(reason) = reason {
            ended.failed(1, &[reason]);
            assert_eq!(mistake.published(), 0, "{replaced:?}");
            let release = &mistake.report().1["release"];
            assert_eq!(release, "A run would stop before it publishes or spends anything.", "{replaced:?}");
            let spent = finish(hushflow(["ledger"]).arg(mistake.lab.path("state")));
            assert!(spent.code == Some(1) || !spent.out.contains("people"), "{replaced:?}: {}", spent.out);
            // By default a run stops for public reasons alone, and warns of private ones.
            let default = Mistake::new(data, &[&[DEFAULT], &replaced[..]].concat());
            let ended = default.run(&[]);
            if kind == "further ahead" {
                ended.failed(1, &[reason, "nothing was published or spent"]);
            } else {
                warned(&ended.succeeded(), reason);
                assert!(default.published() > 0, "{replaced:?}");
            }
        } else {
            let ended = ended.succeeded();
            assert_eq!(mistake.published() > 0, kind.is_empty(), "{replaced:?}: {}", ended.err);
            let release = mistake.report().1["release"].to_string();
            let word =
                if kind.is_empty() { "and spend once" } else { "publish nothing, because there is no row" };
            assert!(release.contains(word), "{release}");
            // Nothing was published, so there is no guarantee to state and nothing to read again.
            for part in ["differentially private", "NOT PRIVATE", "hushflow tail"] {
                assert!(kind.is_empty() || !ended.err.contains(part), "{}", ended.err);
            }
            assert_eq!(ended.err.contains("The source has no row"), !kind.is_empty(), "{}", ended.err);
        }
    }
    let swapped = [("time = 'event'", "time = 'arrival'"), ("arrival = 'arrival'", "arrival = 'event'")];
    let (_, report) = Mistake::new(&right, &swapped).check();
    assert!(report.contains("the two columns may be swapped"), "{report}");
}

/// Checks that the operator was warned of this reason, and of the word that would have stopped the
/// run.
fn warned(ended: &Ended, reason: &str) {
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.starts_with(WARNING)).collect();
    let of_reason = lines.iter().filter(|line| line.contains(reason)).count();
    assert_eq!(of_reason, 1, "{reason}, once: {}", ended.err);
    let remedy = "preflight = \"stop\" in [source] would have stopped this run before it spent anything";
    assert!(lines.iter().all(|line| line.contains(remedy)), "{}", ended.err);
}

/// By default a private mistake is a warning without a count, also in a pipe. Exact counts are
/// shown by request only.
#[test]
fn private_mistakes_are_warned_of_in_a_pipe_too() {
    for (data, replaced, reason) in [
        (rows(9000, 0), ("", ""), "every row has a key that [key] doesn't list"),
        (rows(9000, usize::MAX), ("'Rome'", "'Romme'"), "no row has the listed key \"Romme\""),
    ] {
        let run = |preflight, arguments: &[&str]| {
            Mistake::new(&data, &[replaced, preflight]).run(arguments).succeeded()
        };
        let piped = run(DEFAULT, &[]);
        warned(&piped, reason);
        assert!(!piped.err.contains("rows read"), "{}", piped.err);
        let shown = run(DEFAULT, &["--counters"]);
        warned(&shown, reason);
        assert!(shown.err.contains("rows read"), "{}", shown.err);
        let silent = run(("'stop'", "'off'"), &["--counters"]);
        assert!(!silent.err.contains("warning: private"), "{}", silent.err);
        // Everyone sees that nothing was counted.
        let is_empty = replaced.0.is_empty();
        let err = piped.err;
        assert_eq!(err.contains("the published counts can't be told from zero: "), is_empty, "{err}");
    }
}

/// By default a run stops for public facts alone: arrivals outside of the epochs are public, event
/// times are not.
#[test]
fn most_arrivals_outside_of_the_epochs_stop_a_first_run() {
    let late_start = ("2020-03-01", "2020-04-01");
    let early_start = [
        ("2020-03-01", "2020-02-20"),
        ("horizon = 60", "horizon = 10\nallowed_lateness = '90d'"),
        ("path = 'data.csv'", "path = 'data.csv'\nlargest_jump = '300d'"),
    ];
    let data = rows(12_000, usize::MAX);
    for (replaced, reason) in [
        (&[late_start][..], "by the public clock, most rows come before the first epoch"),
        (&early_start, "by the public clock, most rows come after the last epoch"),
    ] {
        let mistake = Mistake::new(&data, &[&[DEFAULT], replaced].concat());
        assert_eq!(mistake.check().0, Some(4));
        mistake.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
        assert_eq!(mistake.published(), 0);
    }
    // Without arrivals the same rows are private.
    let mistake = Mistake::new(&data, &[DEFAULT, late_start, END_OF_INPUT]);
    mistake.run(&[]).succeeded();
    assert_eq!(mistake.published(), 60);
}

/// Epochs that the clock had closed before a jump are published, whatever the number of workers.
#[test]
fn a_refused_jump_leaves_a_number_of_epochs_that_depends_on_the_rows() {
    let jump = |data: String| {
        let line = "2021-09-01T00:00:00Z,2021-09-01T00:00:00Z,Oslo,30\n";
        data + &line.repeat(150)
    };
    let data = rows(9000, usize::MAX);
    let mistake = Mistake::new(&jump(data.clone()), &[]);
    let (code, report) = mistake.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"leaping clock\""), "{report}");
    let half = |odd: usize| {
        let mut lines = data.lines().map(|line| format!("{line}\n"));
        lines.next().into_iter().chain(lines.skip(odd).step_by(2)).collect::<String>()
    };
    let many_sources = "[[sources]]\nname = 'a'\npath = 'data.csv'\npreflight = 'stop'\n\
                   [[sources]]\nname = 'b'\npath = 'b.csv'\npreflight = 'stop'\n";
    for round in 0..3 {
        for workers in [1, 3] {
            let state = mistake.lab.path(&format!("state-{round}-{workers}"));
            finish(&mut run(&mistake.pipeline, &state, workers)).failed(1, &["largest_jump allows"]);
            let published = frames(&state.join("public.log")).len();
            // The last row arrives on the first of April at 06:55, so March is closed.
            assert_eq!(published, 31 + 1, "thirty-one days and the header");
            let lab = Lab::new();
            lab.write("data.csv", jump(half(0)));
            lab.write("b.csv", half(1));
            let text = PIPELINE.replace("[source]\npath = 'data.csv'\npreflight = 'stop'\n", many_sources);
            let pipeline = lab.write("p.toml", text);
            let state = lab.path("state");
            finish(&mut run(&pipeline, &state, workers)).failed(1, &["largest_jump allows"]);
            assert_eq!(frames(&state.join("public.log")).len(), published);
        }
    }
}

/// Damage far into a packed standard input ends the run with what was published before it.
#[test]
fn damage_in_standard_input_is_reported_with_the_published_epochs() {
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;
    let mistake = Mistake::new("", &[("'data.csv'", "'-'\nformat = 'csv'")]);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(rows(12_000, usize::MAX).as_bytes()).expect("memory");
    let mut packed = encoder.finish().expect("memory");
    let middle = packed.len() * 3 / 4;
    packed[middle..].fill(0xff);
    let data = mistake.lab.write("packed.gz", packed);
    let input = std::fs::File::open(data).expect("the data");
    let ended = finish(run(&mistake.pipeline, &mistake.lab.path("state"), 1).stdin(input));
    let published = mistake.published();
    assert!(published > 10, "{published}: {}", ended.err);
    ended.failed(1, &["gzip", &format!("the epochs up to {published} are published, and no later one")]);
}

/// A fifth of the rows has a listed key in lower case, while every listed key has rows.
#[test]
fn a_key_in_two_spellings_is_a_problem_of_check_and_stops_no_run() {
    let data = rows(9000, usize::MAX);
    let spelt = data.lines().enumerate().map(|(row, line)| match row % 5 {
        4 => line.replace("Oslo", "oslo").replace("Rome", "rome").replace("Paris", "paris") + "\n",
        _ => format!("{line}\n"),
    });
    let mistake = Mistake::new(&spelt.collect::<String>(), &[]);
    let (code, report) = mistake.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"misspelt keys\""), "{report}");
    mistake.run(&[]).succeeded();
    assert_eq!(mistake.published(), 32);
}

/// Keys that are misspelt from row 5000 on stop the run before their epochs are published, and so
/// they do after a restart and after a kill.
#[test]
fn a_source_that_turns_bad_keeps_the_rest_of_its_epochs() {
    let mistake = Mistake::new(&rows(12_000, 5000), &[]);
    assert!(mistake.check().1.contains("unlisted keys"));
    let stopped = || {
        mistake.run(&[]).failed(1, &["a key that [key] doesn't list", "are published, and no later one"]);
        mistake.published()
    };
    // Row 5000 is of epoch 18, which closes with row 5173.
    let published = stopped();
    assert!((17..=20).contains(&published), "{published}");
    assert_eq!(stopped(), published, "a resumed run stops at once");
    let (_, report) = mistake.report();
    assert_eq!(report["epochs_published"], published);
    let release = format!("A run would publish {published} of 60 epochs for 3 keys and stop.");
    assert!(
        report["release"].as_str().is_some_and(|text| text.starts_with(&release)),
        "{}",
        report["release"]
    );
    for log in [PRIVATE_LOG, "public.log"] {
        let log = mistake.lab.path("state").join(log);
        let end =
            frames(&log).iter().filter(|frame| (1..=12).contains(&frame.epoch)).map(|frame| frame.end).max();
        cut(&log, end.expect("twelve epochs"));
    }
    let again = finish(&mut run(&mistake.pipeline, &mistake.lab.path("state"), 1));
    again.failed(1, &["a key that [key] doesn't list", "are published, and no later one"]);
    assert!((16..=20).contains(&mistake.published()));
    // The operator can continue.
    let text = std::fs::read_to_string(&mistake.pipeline).expect("the pipeline");
    mistake.lab.write("p.toml", text.replace(DEFAULT.0, DEFAULT.1));
    mistake.run(&[]).succeeded();
    assert_eq!(mistake.published(), 42);
}

/// A source that is corrected after a stop is judged by the rows that are read, though rows of
/// epochs that were published before the stop did not count.
#[test]
fn a_repaired_source_resumes_where_the_run_stopped() {
    let mistake = Mistake::new(&rows(15_000, 10_656), &[]);
    mistake.run(&[]).failed(1, &["a key that [key] doesn't list"]);
    // Row 10,656 is the first one of epoch 38.
    let published = mistake.published();
    assert!((39..=42).contains(&published), "{published}");
    // Rows of epochs that are published have been read: they must stay.
    let (bad, good) = (rows(15_000, 10_656), rows(15_000, usize::MAX));
    mistake.lab.write("data.csv", &good);
    mistake.run(&[]).failed(1, &["has changed before the position where the last run stopped"]);
    let read = 1 + 288 * published as usize;
    let corrected = bad.split_inclusive('\n').take(read).chain(good.split_inclusive('\n').skip(read));
    mistake.lab.write("data.csv", corrected.collect::<String>());
    mistake.run(&[]).succeeded();
    assert_eq!(mistake.published(), 53);
}

fn newest_first(data: &str) -> String {
    let (header, lines) = data.split_once('\n').expect("a header");
    lines.lines().rev().fold(format!("{header}\n"), |text, line| text + line + "\n")
}

/// Rows that wait for the end of the input may come newest first, more of them than the first check
/// sees.
#[test]
fn rows_that_wait_for_the_end_of_the_input_come_in_any_order() {
    let data = newest_first(&rows(9000, usize::MAX));
    let right = Mistake::new(&data, &[END_OF_INPUT]);
    right.run(&[]).succeeded();
    assert_eq!(right.published(), 60);
    let early =
        Mistake::new(&data, &[END_OF_INPUT, ("2020-03-01", "2020-01-20"), ("horizon = 60", "horizon = 120")]);
    early.run(&[]).failed(1, &["many epochs before the first record"]);
    assert_eq!(early.published(), 0);
}

/// Rows in reverse order, or files in the wrong one, close epochs at once: by arrivals, which are
/// public, so no run begins.
#[test]
fn a_falling_clock_stops_a_first_run() {
    let data = rows(2000, usize::MAX);
    let (header, lines) = data.split_once('\n').expect("a header");
    let reason = "by the public clock, most rows are of epochs that rows before them have closed";
    let mistake = Mistake::new(&newest_first(&data), &[DEFAULT]);
    let (code, report) = mistake.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"falling clock\""), "{report}");
    mistake.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
    // Its first row is further ahead than a clock may jump, but the file is the same mistake.
    let long = Mistake::new(&newest_first(&rows(12_000, usize::MAX)), &[DEFAULT]);
    assert!(long.check().1.contains("\"kind\":\"falling clock\""));
    long.run(&[]).failed(1, &["newest rows first", "nothing was published or spent"]);
    let files = |first: usize, end: usize| {
        let mistake = Mistake::new("", &[DEFAULT, ("'data.csv'", "['late.csv', 'early.csv']")]);
        for (name, part) in [("early.csv", 0..first), ("late.csv", first..end)] {
            let rows = lines.lines().skip(part.start).take(part.len()).map(|line| format!("{line}\n"));
            mistake.lab.write(name, format!("{header}\n{}", rows.collect::<String>()));
        }
        mistake
    };
    let most = files(1500, 2000);
    most.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
    // Fewer rows, all in a row, are as bad.
    let fewer = files(700, 2000);
    let (code, report) = fewer.check();
    assert!(code == Some(4) && report.contains("in one part of the source, by the public clock"), "{report}");
    fewer.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
    // A run goes on if they are few, and warns if the open epoch would hold most of them.
    let few = files(150, 6 * 288 + 20);
    let (code, report) = few.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"falling clock\""), "{report}");
    assert!(few.run(&[]).succeeded().err.contains("by the public clock, the latest rows"));
    // A late row is not a falling clock.
    let delayed = Mistake::new(
        &data,
        &[DEFAULT, ("'event'", "'arrival'"), ("arrival = 'arrival'", "arrival = 'event'")],
    );
    assert!(!delayed.check().1.contains("falling clock"));
}

/// In a pipe, a run says where private problems of later rows are shown, whatever the rows hold.
#[test]
fn a_run_in_a_pipe_names_where_private_problems_are_shown() {
    let note = "are not reported here: hushflow check";
    for data in [rows(3000, 0), rows(3000, usize::MAX)] {
        let mistake = Mistake::new(&data, &[DEFAULT]);
        let ended = mistake.run(&[]).succeeded();
        assert!(ended.err.contains(note), "{}", ended.err);
        assert!(!mistake.run(&[]).succeeded().err.contains(note), "a run that resumes");
        let shown = Mistake::new(&data, &[DEFAULT]).run(&["--counters"]).succeeded();
        assert!(!shown.err.contains(note), "{}", shown.err);
    }
    let silent = Mistake::new(&rows(3000, usize::MAX), &[("'stop'", "'off'")]).run(&[]).succeeded();
    assert!(!silent.err.contains(note), "{}", silent.err);
}

/// A request that no noise, strategy or bounds can fulfil is reported with its position in the
/// file.
#[test]
fn problems_that_prevent_publication_are_reported_with_their_line() {
    let strategy = "strategy = 'square-root'";
    for (from, to, place) in [
        ("epsilon = 1", "epsilon = 1000", "p.toml:19:11: privacy: epsilon is too large"),
        ("delta = 1e-6", "delta = 1e-6\nclip_norm = 1e300", "p.toml:18:1: privacy: clip_norm"),
        (strategy, "strategy = 'file:nowhere.csv'", "p.toml:22:12: release: "),
        (strategy, "strategy = 'honaker'", "p.toml:22:12: release: the strategy `honaker`"),
    ] {
        let mistake = Mistake::new("", &[(from, to)]);
        let check = finish(hushflow(["check"]).arg(&mistake.pipeline));
        assert!(check.code == Some(2) && check.err.contains(place), "{to}: {}", check.err);
        mistake.run(&[]).failed(2, &[place]);
    }
    let empty = Mistake::new("", &[("[[columns]]\nname = 'age'\nlower = 0\nupper = 100\n", "")]);
    let text = std::fs::read_to_string(&empty.pipeline).expect("the pipeline");
    empty.lab.write("p.toml", format!("columns = []\n{text}"));
    empty.run(&[]).failed(2, &["p.toml:1:11: columns: found [], expected at least one column"]);
}
