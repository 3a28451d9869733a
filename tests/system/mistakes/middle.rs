//! Sources that turn bad in their middle: shares of all rows hide it.

use std::io::Write;
use std::process::Stdio;

use super::{DEFAULT, END_OF_INPUT, Mistake, warned};
use crate::harness::{self, await_until, wait};

/// Changes a line.
type LineFault<'f> = &'f dyn Fn(&str) -> String;

/// A row of a sensor: event, arrival, key and value.
type Row = (String, String, &'static str, String);

/// Changes a row.
type Spoil = fn(&mut Row);

/// Midday of a day from 2020-03-01 on, later for later rows of a day.
fn time(day: usize, row: usize) -> String {
    const MONTHS: [usize; 11] = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31];
    let (mut day, mut month) = (day, 0);
    while day >= MONTHS[month] {
        day -= MONTHS[month];
        month += 1;
    }
    let (year, month) = if month < 10 { (2020, month + 3) } else { (2021, month - 9) };
    format!("{year}-{month:02}-{:02}T12:{:02}:{:02}Z", day + 1, row / 60, row % 60)
}

/// `per_day` rows in each of `days` days; `spoil` may change those of a day.
fn sensor(days: usize, per_day: usize, spoil: impl Fn(usize, &mut Row)) -> String {
    let mut text = "event,arrival,city,age\n".to_owned();
    for (day, row) in (0..days).flat_map(|day| (0..per_day).map(move |row| (day, row))) {
        let mut fields =
            (time(day, row), time(day, row), ["Oslo", "Rome", "Paris"][row % 3], (20 + row % 60).to_string());
        spoil(day, &mut fields);
        let (event, arrival, city, age) = fields;
        text += &format!("{event},{arrival},{city},{age}\n");
    }
    text
}

/// Times long ago are late by the clock, and before the first epoch where there is none.
const LATE: &str = "most rows come after their epoch has closed";

/// A mistake, and the words for it.
const FAULTS: [(Spoil, &str); 6] = [
    (|row| row.2 = "Bergen", "row has a key that [key] doesn't list"),
    (|row| row.0 = "1970-01-01T00:00:00Z".into(), LATE),
    (|row| row.3 = "broken".into(), "most rows can't be read"),
    (|row| row.3.clear(), "most rows lack a value"),
    (|row| row.3 = "4000".into(), "most values of \"age\" are above upper = 100"),
    (|row| row.3 = "-4".into(), "most values of \"age\" are below lower = 0"),
];

/// Half of 60 days with 20 rows each are bad. All of them are among the first rows.
#[test]
fn a_small_source_that_turns_bad_publishes_nothing() {
    for (fault, words) in FAULTS {
        let data = sensor(60, 20, |day, row| {
            if day >= 35 {
                fault(row)
            }
        });
        for clock in [&[][..], &[END_OF_INPUT]] {
            let words = match (words, clock.len()) {
                (LATE, 1) => "most rows come before the first epoch",
                _ => words,
            };
            let mistake = Mistake::new(&data, clock);
            let (code, report) = mistake.report();
            let message = report["problems"][0]["message"].as_str().unwrap_or_default().to_owned();
            assert!(code == Some(4) && message.contains(words), "{report}");
            assert_eq!(report["epochs_published"], 0);
            mistake
                .run(&[])
                .failed(1, &["in one part of the source, ", words, "nothing was published or spent"]);
            assert_eq!(mistake.published(), 0);
            // Without the operator's word it is private, and changes nothing.
            let default = Mistake::new(&data, &[clock, &[DEFAULT]].concat());
            warned(&default.run(&[]).succeeded(), words);
            assert!(default.published() > 0, "{words}");
        }
    }
}

/// After the first 4096 rows, 20 a day: at most a fiftieth of the epochs so far is published empty,
/// and a second run publishes no more.
#[test]
fn a_small_source_that_turns_bad_later_stops_within_a_few_epochs() {
    for (fault, words) in FAULTS {
        let data = sensor(300, 20, |day, row| {
            if day >= 250 {
                fault(row)
            }
        });
        let mistake = Mistake::new(&data, &[("horizon = 60", "horizon = 330")]);
        let (code, report) = mistake.report();
        mistake.run(&[]).failed(1, &[words, "are published, and no later one"]);
        let published = mistake.published();
        assert!((250..=255).contains(&published), "{published}: {words}");
        assert_eq!((code, &report["epochs_published"]), (Some(4), &published.into()));
        mistake.run(&[]).failed(1, &[words]);
        assert_eq!(mistake.published(), published);
    }
}

/// An outage of less than a quarter of the first rows stops no run, early or late.
#[test]
fn a_short_gap_stops_nothing() {
    for (days, gap) in [(60, 20..22), (60, 58..60), (60, 20..33), (300, 250..252)] {
        let data = sensor(days, 20, |day, row| {
            if gap.contains(&day) {
                row.3.clear()
            }
        });
        let mistake = Mistake::new(&data, &[("horizon = 60", "horizon = 330")]);
        mistake.run(&[]).succeeded();
        assert_eq!(mistake.published(), days as u64);
    }
}

/// Rows of a pipe without values are no reason to stop after as many rows as happened to come
/// before the first epoch closed.
#[test]
fn when_a_live_source_pauses_decides_nothing() {
    let data = sensor(30, 20, |day, row| {
        if (3..9).contains(&day) {
            row.3.clear()
        }
    });
    let mistake = Mistake::new("", &[("'data.csv'", "'-'\nformat = 'csv'")]);
    let mut child = harness::run(&mistake.pipeline, &mistake.lab.path("state"), 1)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let pause = 1 + 20 * 15;
    let lines: Vec<String> = data.lines().map(|line| format!("{line}\n")).collect();
    input.write_all(lines[..pause].concat().as_bytes()).expect("rows");
    await_until("the first check is over", || mistake.published() > 5);
    input.write_all(lines[pause..].concat().as_bytes()).expect("rows");
    drop(input);
    wait(child).succeeded();
    assert_eq!(mistake.published(), 30);
}

/// With counts by column, rows without any value count for nothing.
#[test]
fn rows_without_any_value_are_found_by_column_too() {
    let by_column = ("preflight = 'stop'", "preflight = 'stop'\nmissing = 'by-column'");
    let second = ("[key]", "[[columns]]\nname = 'weight'\nlower = 0\nupper = 100\n[key]");
    let add = |empty: bool| {
        let data = sensor(60, 20, |day, row| {
            if day >= 35 {
                row.3.clear()
            }
        });
        let mut lines = data.lines();
        let header = format!("{},weight\n", lines.next().expect("a header"));
        let weight = |line: &str| if empty && line.ends_with(',') { "" } else { "70" };
        header + &lines.map(|line| format!("{line},{}\n", weight(line))).collect::<String>()
    };
    Mistake::new(&add(true), &[by_column, second]).run(&[]).failed(1, &["lack a value"]);
    Mistake::new(&add(false), &[by_column, second]).run(&[]).succeeded();
}

/// From day `from` on the clock is twenty days behind: a public fact.
fn falling(from: usize) -> String {
    let mut text = sensor(from, 100, |_, _| {});
    let later = sensor(120, 100, |_, _| {});
    let start = 1 + 100 * (from - 20);
    text.extend(later.lines().skip(start).map(|line| format!("{line}\n")));
    text
}

#[test]
fn a_clock_that_falls_back_in_the_middle_stops_a_run_or_is_reported() {
    let reason = "by the public clock, most rows are of epochs that rows before them have closed";
    let long = ("horizon = 60", "horizon = 130");
    let mistake = Mistake::new(&falling(70), &[long]);
    let (code, report) = mistake.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"falling clock\""), "{report}");
    mistake.run(&[]).failed(1, &[reason, "are published, and no later one"]);
    assert_eq!(mistake.published(), 69, "the open epoch would hold 2000 rows of others");
    let warn = [long, DEFAULT];
    let default = Mistake::new(&falling(70), &warn);
    let ended = default.run(&[]).succeeded();
    assert!(ended.err.contains("by the public clock, the latest rows are of epochs"), "{}", ended.err);
    assert_eq!(default.published(), 120);
    // The same if it falls to before the first epoch.
    let year = |line: &str| line.replace("2020-", "2019-");
    let lines = sensor(120, 100, |_, _| {});
    let to_before =
        lines.lines().enumerate().map(|(row, line)| if row > 7000 { year(line) } else { line.into() } + "\n");
    let before = Mistake::new(&to_before.collect::<String>(), &warn);
    let ended = before.run(&[]).succeeded();
    assert!(ended.err.contains("by the public clock, the latest rows are of epochs"), "{}", ended.err);
    // Among the first rows it stops a run whatever the operator has agreed to.
    let early = Mistake::new(&falling(25), &warn);
    early.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
    assert_eq!(early.published(), 0);
}

#[test]
fn a_start_ten_days_late_is_a_problem_of_check() {
    let late = Mistake::new(&sensor(60, 20, |_, _| {}), &[("2020-03-01", "2020-03-11")]);
    let (code, report) = late.check();
    assert!(
        code == Some(4) && report.contains("more than one row in twenty come before the first"),
        "{report}"
    );
    late.run(&[]).succeeded();
    let slightly = Mistake::new(&sensor(60, 20, |_, _| {}), &[("2020-03-01", "2020-03-03")]);
    let (code, report) = slightly.check();
    assert!(code == Some(0) && report.contains("3.3 % of the rows come before the first epoch"), "{report}");
}

/// Three entities count in two of sixty epochs.
#[test]
fn limits_that_leave_out_most_records_are_reported_by_a_run() {
    let data = sensor(60, 20, |_, _| {});
    let entity = [
        ("[privacy]", "[entity]\ncolumn = 'city'\nparticipations = 2\n[privacy]\nunit = 'entity'"),
        ("[key]\ncolumn = 'city'\nvalues = ['Oslo', 'Paris', 'Rome']\n", ""),
    ];
    let words = "the limits of entities leave out most records";
    let mistake = Mistake::new(&data, &entity);
    let (code, report) = mistake.report();
    assert_eq!((code, &report["problems"][0]["kind"]), (Some(4), &"entity limits".into()));
    assert_eq!(report["problems"][0]["stops"], true);
    mistake.run(&[]).failed(1, &[words, "nothing was published or spent"]);
    warned(&Mistake::new(&data, &[&entity[..], &[DEFAULT]].concat()).run(&[]).succeeded(), words);
}

/// Three entities count in the first 250 of 300 epochs. Then nothing counts, and the run stops as
/// it does for other faults. So does one that is started again, which has their histories.
#[test]
fn limits_that_leave_out_all_later_records_stop_a_run() {
    let data = sensor(300, 20, |_, _| {});
    let entity = [
        ("horizon = 60", "horizon = 330"),
        (
            "[privacy]",
            "[entity]\ncolumn = 'city'\nparticipations = 250\nrecords_per_epoch = 7\n[privacy]\nunit = 'entity'",
        ),
        ("[key]\ncolumn = 'city'\nvalues = ['Oslo', 'Paris', 'Rome']\n", ""),
    ];
    let words = "the limits of entities leave out most records";
    let mistake = Mistake::new(&data, &entity);
    let (code, report) = mistake.report();
    mistake.run(&[]).failed(1, &["among the latest rows, ", words, "are published, and no later one"]);
    let published = mistake.published();
    assert!((250..=255).contains(&published), "{published}");
    assert_eq!((code, &report["epochs_published"]), (Some(4), &published.into()));
    mistake.run(&[]).failed(1, &[words]);
    assert_eq!(mistake.published(), published);
    // A sixth of all records: without the operator's word a run goes on and says nothing.
    let default = Mistake::new(&data, &[&entity[..], &[DEFAULT]].concat());
    assert!(!default.run(&["--counters"]).succeeded().err.contains(words));
    assert_eq!(default.published(), 300);
}

/// `check` notes where a few values in a row are beyond a bound.
#[test]
fn a_short_stretch_of_clipped_values_is_noted_with_its_place() {
    let data = sensor(60, 20, |day, row| {
        if (30..33).contains(&day) {
            row.3 = "4000".into()
        }
    });
    let mistake = Mistake::new(&data, &[]);
    let (code, report) = mistake.check();
    let note = "most values of \\\"age\\\" in the rows 601 to 660 are above its bounds";
    assert!(code == Some(0) && report.contains(note), "{report}");
    mistake.run(&[]).succeeded();
    assert_eq!(mistake.published(), 60);
}

/// Neighbouring streams on either side of a private threshold give the same releases and, apart
/// from lines for the operator, the same output without the operator's word, whatever the public
/// clock does: falls back for a quarter of the rows, for a few, or not at all.
#[test]
fn without_the_operators_word_a_private_threshold_decides_nothing() {
    let unlisted =
        |line: &str| line.replace("Oslo", "Bergen").replace("Rome", "Bergen").replace("Paris", "Bergen");
    let clipped = |line: &str| format!("{}000", line);
    let world = |fallen: usize, bad: usize, spoil: &dyn Fn(&str) -> String, kind: &str| {
        let mut lines: Vec<String> = sensor(60, 20, |_, _| {}).lines().map(String::from).collect();
        let again = lines[1..1 + fallen].to_vec();
        lines.extend(again);
        for line in &mut lines[401..401 + bad] {
            *line = spoil(line);
        }
        let mistake = Mistake::new(&(lines.join("\n") + "\n"), &[DEFAULT]);
        let problems = mistake.report().1["problems"].to_string();
        let ended = mistake.run(&[]);
        let place = mistake.lab.path("").display().to_string();
        let public = ended.err.lines().filter(|line| !line.starts_with(super::WARNING));
        let public: String = public.map(|line| line.replace(&place, "") + "\n").collect();
        (problems.contains(kind), ended.code, public, mistake.published())
    };
    for (fallen, code, published) in [(0, 0, 60), (110, 0, 60), (400, 1, 0)] {
        // Blocks of twenty that are a quarter of all rows; the last one needs eleven bad rows.
        let blocks = (1200usize + fallen).div_ceil(80);
        let threshold = 20 * (blocks - 1) + 11;
        let faults: [(LineFault<'_>, &str); 2] =
            [(&unlisted, "unlisted keys"), (&clipped, "values out of bounds")];
        for (spoil, kind) in faults {
            let [below, above] = [threshold - 1, threshold].map(|bad| world(fallen, bad, spoil, kind));
            assert_eq!(below.1, Some(code), "{}", below.2);
            assert_eq!(below.3, published);
            assert_eq!((below.1, &below.2, below.3), (above.1, &above.2, above.3), "{fallen}");
            if fallen == 0 {
                assert_eq!((below.0, above.0), (false, true), "the threshold of {kind} lies between them");
            }
        }
    }
}
