//! Mistakes in a pipeline file that leaves `preflight` out: no run begins that would publish
//! little.

use super::{Case, END_OF_INPUT, Mistake, WARN, rows};

/// Without the line a run has the default.
const DEFAULT: (&str, &str) = ("preflight = 'stop'\n", "");

/// By default a run for which nothing is published yet stops for private mistakes too, and says
/// why, also in a pipe.
#[test]
fn by_default_no_run_begins_that_would_publish_little() {
    let (right, short) = (rows(6000, usize::MAX), rows(9000, usize::MAX));
    let mut malformed = right.clone();
    for row in (0..60).filter(|row| row % 8 > 0) {
        malformed = malformed.replace(&format!(",{}\n", 20 + row), ",old\n");
    }
    let malformed = malformed.replace('\n', ",5\n").replacen(",5\n", ",more\n", 1);
    let cases: [Case; 5] = [
        (
            &malformed,
            vec![
                ("path = 'data.csv'", "path = 'data.csv'\nmissing = 'by-column'"),
                ("[key]", "[[columns]]\nname = 'more'\nlower = 0\nupper = 9\n[key]"),
            ],
            "unreadable values",
            Some("most values of \"age\" can't be read: expected a number"),
        ),
        (&rows(9000, 0), vec![], "unlisted keys", Some("every row has a key that [key] doesn't list")),
        (
            &short,
            vec![END_OF_INPUT, ("2020-03-01", "2020-02-01"), ("horizon = 60", "horizon = 365")],
            "empty epochs",
            Some("nearly all epochs would be published without a record"),
        ),
        (&malformed, vec![], "unreadable rows", Some("most rows can't be read, in column \"age\"")),
        (&right, vec![("upper = 100", "upper = 22")], "values out of bounds", Some("most values of \"age\"")),
    ];
    for (data, replaced, kind, reason) in cases {
        let mistake = Mistake::new(data, &[&[DEFAULT], &replaced[..]].concat());
        let (code, report) = mistake.report();
        assert_eq!((code, &report["epochs_published"]), (Some(4), &0.into()), "{report}");
        assert!(report["problems"].to_string().contains(kind), "{report}");
        mistake.run(&[]).failed(1, &[reason.unwrap_or_default(), "nothing was published or spent"]);
        assert_eq!(mistake.published(), 0, "{kind}");
    }
    // Once anything is published, private facts decide nothing.
    let later = Mistake::new(&rows(9000, 5000), &[DEFAULT]);
    let (code, report) = later.report();
    assert_eq!((code, &report["problems"][0]["stops"]), (Some(4), &false.into()), "{report}");
    let ended = later.run(&[]).succeeded();
    assert!(ended.err.contains("rows after the first ones that don't count"), "{}", ended.err);
    assert_eq!(u64::from(later.published() > 30), 1);
    // What was lost is said at the end, where exact counts are shown.
    let lost = Mistake::new(&right, &[WARN, ("upper = 100", "upper = 70")]).run(&["--counters"]).succeeded();
    assert!(lost.err.contains("% of the values of \"age\" were beyond its bounds"), "{}", lost.err);
}

/// A file may well begin long before the first epoch: only the rows after its start are judged.
#[test]
fn rows_before_the_start_are_no_mistake_if_enough_come_later() {
    let start = ("2020-03-01", "2020-03-30");
    for (mistyped, clock) in
        [(false, ("", "")), (false, END_OF_INPUT), (true, ("", "")), (true, END_OF_INPUT)]
    {
        let data = rows(16_000, if mistyped { 8400 } else { usize::MAX });
        let mistake = Mistake::new(&data, &[DEFAULT, start, clock]);
        let ended = mistake.run(&[]);
        if mistyped {
            ended.failed(1, &["a key that [key] doesn't list", "nothing was published or spent"]);
        } else {
            ended.succeeded();
        }
        assert_eq!(mistake.published() > 0, !mistyped, "{clock:?}");
    }
}
