//! Tests mistakes in the clock, in the epochs and in the form of times.

use super::{DEFAULT, Mistake, newest_first, rows};
use crate::harness::{Lab, finish, hushflow, run};

/// The jump that an error advises lets the rows pass, however far they are ahead. The error names
/// the first of these rows, how many there are, and what was published.
#[test]
fn the_advised_jump_is_long_enough() {
    let ahead = |year: u32, rows: usize| {
        let at = |row: usize| format!("{year}-09-01T{:02}:{:02}:00Z", row / 60, row % 60);
        (0..rows).map(|row| format!("{},{},Oslo,30\n", at(row), at(row))).collect::<String>()
    };
    let header = rows(0, 0);
    let cases = [
        (
            rows(9000, usize::MAX) + &ahead(2024, 150),
            "data.csv:9002: many rows in a row are",
            "up to 31 are published",
            31,
        ),
        (
            header.clone() + &ahead(2026, 120),
            "data.csv:2: many rows in a row are",
            "nothing was published or spent",
            0,
        ),
        (
            header.clone() + &ahead(2026, 3),
            "data.csv:2: the last rows are",
            "nothing was published or spent",
            0,
        ),
        (header + &ahead(2026, 1), "data.csv:2: a row is", "nothing was published or spent", 0),
    ];
    for (data, found, spent, published) in cases {
        let mistake = Mistake::new(&data, &[DEFAULT, ("horizon = 60", "horizon = 4000")]);
        let ended = mistake.run(&[]);
        let advice =
            ended.err.split("such as largest_jump = \"").nth(1).and_then(|rest| rest.split('"').next());
        let advice = advice.unwrap_or_else(|| panic!("{}", ended.err)).to_owned();
        ended.failed(1, &[found, "[source] largest_jump allows", spent]);
        assert_eq!(mistake.published(), published);
        let text = std::fs::read_to_string(&mistake.pipeline).expect("the pipeline");
        let jump = |jump: &str| {
            text.replace(
                "path = 'data.csv'",
                &format!("path = 'data.csv'\nlargest_jump = '{jump}'\npreflight = 'off'"),
            )
        };
        mistake.lab.write("p.toml", jump(&advice));
        mistake.run(&[]).succeeded();
        assert!(mistake.published() > published + 1000);
    }
}

/// Every epoch stays open for longer than the file lasts, so the end of the input closes them all.
#[test]
fn a_lateness_longer_than_the_data_is_no_mistake() {
    let data = rows(2 * 288, usize::MAX);
    let hourly = [("length = '1d'\nhorizon = 60", "length = '1h'\nhorizon = 60\nallowed_lateness = '7d'")];
    let sound = Mistake::new(&data, &hourly);
    let (code, report) = sound.check();
    assert!(code == Some(0) && report.starts_with("[]"), "{report}");
    sound.run(&[]).succeeded();
    assert_eq!(sound.published(), 49);
    // An idle clock is one all the same.
    let minutes =
        [("length = '1d'\nhorizon = 60", "length = '1s'\nhorizon = 200000\nallowed_lateness = '1h'")];
    let idle = Mistake::new(
        &data,
        &[&minutes[..], &[("path = 'data.csv'", "path = 'data.csv'\nlargest_jump = '9d'")]].concat(),
    );
    idle.run(&[]).failed(1, &["no row arrived in nearly all", "nothing was published or spent"]);
}

/// Rows after the last epoch are counted, although a run stops reading there: `check` and the look
/// at the first rows name the horizon that they need.
#[test]
fn a_horizon_that_is_too_short_is_named_with_the_right_one() {
    // The last row arrives on the 14th, and on the 32nd day.
    for (number, horizon, days, stops) in [(3888, 3, 14, true), (9000, 12, 32, false), (9000, 31, 32, false)]
    {
        let horizon = format!("horizon = {horizon}");
        let mistake = Mistake::new(&rows(number, usize::MAX), &[("horizon = 60", horizon.as_str()), DEFAULT]);
        let (code, report) = mistake.report();
        let notes = report["notes"].to_string();
        assert!(notes.contains(&format!("horizon = {days} in [epochs] holds all rows")), "{notes}");
        assert_eq!(report["rows"], number);
        let kinds = report["problems"].to_string();
        let is_problem = horizon != "horizon = 31";
        assert_eq!(
            (code, kinds.contains("after the horizon")),
            (Some(if is_problem { 4 } else { 0 }), is_problem)
        );
        let ended = mistake.run(&[]);
        if stops {
            ended.failed(
                1,
                &["by the public clock, most rows come after the last epoch", "these rows need horizon = 14"],
            );
            assert_eq!(mistake.published(), 0);
        } else {
            assert!(ended.succeeded().err.contains("The source goes on after the last epoch"));
        }
    }
    // Nothing follows the last epoch.
    let whole = Mistake::new(&rows(9000, usize::MAX), &[("horizon = 60", "horizon = 32")]);
    let (code, report) = whole.report();
    assert!(code == Some(0) && !report["notes"].to_string().contains("holds all rows"), "{report}");
    assert!(!whole.run(&[]).succeeded().err.contains("goes on after the last epoch"));
}

/// The same rows with times as numbers since 1970.
fn in_units(data: &str, units: i64) -> String {
    let mut lines = data.lines();
    let header = lines.next().expect("a header");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let times = [0, 1].map(|at| {
            let micros = hushflow::time::parse_time(fields[at]).expect("a time");
            (micros / 1_000_000 * units).to_string()
        });
        format!("{},{}\n", times.join(","), fields[2..].join(","))
    };
    format!("{header}\n{}", lines.map(line).collect::<String>())
}

/// Seconds that are read as milliseconds are of January 1970, and milliseconds as seconds of a
/// year that no calendar has. Messages doubt the unit.
#[test]
fn times_in_another_unit_are_doubted() {
    let data = rows(2000, usize::MAX);
    let form = |unit: &str| format!("path = 'data.csv'\ntime_format = '{unit}'");
    for (units, form, part) in [
        (1, form("milliseconds"), "or times are not in milliseconds, as time_format in [source] says"),
        (1000, form("seconds"), "does not hold a time of our days in seconds since 1970"),
        (
            1000,
            "path = 'data.csv'".into(),
            "but numbers: if they are seconds since 1970, add time_format = \"seconds\"",
        ),
    ] {
        let mistake = Mistake::new(&in_units(&data, units), &[("path = 'data.csv'", form.as_str())]);
        let (code, report) = mistake.report();
        assert!(
            code == Some(4) && report["fault"].as_str().is_some_and(|fault| fault.contains(part)),
            "{report}"
        );
        mistake.run(&[]).failed(1, &[part, "nothing was published or spent"]);
    }
    let right = Mistake::new(&in_units(&data, 1000), &[("path = 'data.csv'", form("milliseconds").as_str())]);
    right.run(&[]).succeeded();
}

/// `init` finds clocks in parts of a second by their numbers, whatever their names.
#[test]
fn clocks_in_milliseconds_are_no_columns() {
    let lab = Lab::new();
    let data = in_units(&rows(3000, usize::MAX), 1000).replacen("event,arrival", "tick,received", 1);
    lab.write("ticks.csv", data);
    let init =
        |flags: &[&str]| finish(hushflow(["init", "ticks.csv"]).args(flags).current_dir(lab.path(".")));
    let proposed = init(&["--yes"]);
    assert!(!proposed.err.contains("--columns tick"), "{}", proposed.err);
    proposed.failed(2, &["--columns age:", "--time tick", "--arrival received", "--start 2020-03-01"]);
    let flags = ["--columns", "age:0:120", "--time", "tick", "--start", "2020-03-01", "--epoch", "1d"];
    let flags = [&flags[..], &["--horizon", "11", "--epsilon", "1", "--delta", "1e-6"]].concat();
    let made = init(&flags).succeeded().err;
    assert!(made.contains("times of \"tick\" are read as milliseconds since 1970\n"), "{made}");
    let twice = init(&[&flags[..], &["--arrival", "tick", "--output", "t.toml"]].concat());
    twice.failed(
        2,
        &["--arrival: \"tick\" is the time of the event, which is private", "leave --arrival out"],
    );
    let wrong = init(&[&flags[..], &["--time-format", "microseconds", "--output", "w.toml"]].concat());
    assert!(wrong.err.contains("and lie before 1980: another unit may be right"), "{}", wrong.err);
}

/// Local times that a zone skips are of another zone.
#[test]
fn skipped_local_times_are_noted() {
    let local = rows(6000, usize::MAX).replace("00Z", "00");
    let noted = |zone: &str| {
        let zone = format!("timezone = '{zone}'\nlength = '1d'");
        let (_, report) = Mistake::new(&local, &[("length = '1d'", zone.as_str())]).report();
        report["notes"].to_string().contains("a local time that the time zone skips as clocks go forward")
    };
    assert!(noted("America/New_York"));
    // Without summer time, and with one that began after the last row.
    assert!(!noted("Africa/Lagos") && !noted("Europe/Berlin"));
}

/// A reversed file whose first rows alone are far ahead is called reversed, not a leap.
#[test]
fn a_reversed_file_is_never_called_a_leap() {
    let data = newest_first(&rows(4 * 288, usize::MAX));
    let jump = ("path = 'data.csv'", "path = 'data.csv'\nlargest_jump = '90h'");
    let ended = Mistake::new(&data, &[jump]).run(&[]);
    assert!(!ended.err.contains("if the time is right, stop the run"), "{}", ended.err);
    ended.failed(1, &["if the newest rows come first, sort them", "nothing was published or spent"]);
}

/// The place of a horizon that no calendar can have is its own.
#[test]
fn a_horizon_beyond_the_calendar_is_reported_at_its_line() {
    let zone = ("length = '1d'\nhorizon = 60", "length = '1d'\ntimezone = 'UTC'\nhorizon = 9999999");
    let mistake = Mistake::new("", &[zone]);
    let message =
        "p.toml:18:11: epochs.horizon: found 9999999, expected at most 1048576 epochs with a timezone";
    finish(hushflow(["check"]).arg(&mistake.pipeline)).failed(2, &[message]);
    finish(&mut run(&mistake.pipeline, &mistake.lab.path("state"), 1)).failed(2, &[message]);
}
