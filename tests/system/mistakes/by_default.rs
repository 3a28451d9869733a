//! Mistakes that only private rows show, in a pipeline file that leaves `preflight` out, and in one
//! with the operator's word.

use super::{Case, DEFAULT, END_OF_INPUT, Mistake, rows, warned};

/// By default a run goes on and warns of them, also in a pipe. By the operator's word it stops
/// before it spends anything.
#[test]
fn private_mistakes_are_warned_of_by_default_and_stop_a_run_by_a_word() {
    let right = rows(6000, usize::MAX);
    let mut malformed = right.clone();
    for row in (0..60).filter(|row| row % 8 > 0) {
        malformed = malformed.replace(&format!(",{}\n", 20 + row), ",old\n");
    }
    let malformed = malformed.replace('\n', ",5\n").replacen(",5\n", ",more\n", 1);
    let by_column = |preflight| {
        let source = match preflight {
            "" => "path = 'data.csv'\nmissing = 'by-column'\n",
            _ => "path = 'data.csv'\nmissing = 'by-column'\npreflight = 'stop'\n",
        };
        vec![
            ("path = 'data.csv'\npreflight = 'stop'\n", source),
            ("[key]", "[[columns]]\nname = 'more'\nlower = 0\nupper = 9\n[key]"),
        ]
    };
    let cases: [(bool, Case); 3] = [
        (
            true,
            (
                &malformed,
                vec![],
                "unreadable values",
                Some("most values of \"age\" can't be read: expected a number"),
            ),
        ),
        (false, (&malformed, vec![], "unreadable rows", Some("most rows can't be read, in column \"age\""))),
        (
            false,
            (
                &right,
                vec![("upper = 100", "upper = 22")],
                "values out of bounds",
                Some("most values of \"age\""),
            ),
        ),
    ];
    for (is_by_column, (data, replaced, kind, reason)) in cases {
        let reason = reason.unwrap_or_default();
        let of = |preflight| match (is_by_column, preflight) {
            (true, _) => by_column(preflight),
            (false, "") => [&[DEFAULT], &replaced[..]].concat(),
            (false, _) => replaced.clone(),
        };
        let stopping = Mistake::new(data, &of("stop"));
        let (code, report) = stopping.report();
        assert_eq!((code, &report["epochs_published"]), (Some(4), &0.into()), "{report}");
        assert!(report["problems"].to_string().contains(kind), "{report}");
        stopping.run(&[]).failed(1, &[reason, "nothing was published or spent"]);
        assert_eq!(stopping.published(), 0, "{kind}");
        let default = Mistake::new(data, &of(""));
        let (code, report) = default.report();
        assert_eq!((code, &report["problems"][0]["stops"]), (Some(4), &false.into()), "{report}");
        warned(&default.run(&[]).succeeded(), reason);
        assert!(default.published() > 10, "{kind}");
    }
    // Where the neighbour relation makes keys and counts public, they stop a run without a word.
    let in_place = ("delta = 1e-6", "delta = 1e-6\nneighbours = 'replace-one-in-place'");
    let public = Mistake::new(&rows(9000, 0), &[DEFAULT, in_place]);
    public
        .run(&[])
        .failed(1, &["every row has a key", "preflight = \"off\"", "nothing was published or spent"]);
    assert_eq!(public.published(), 0);
    // Of later rows only a note says where they are shown, whatever they hold.
    let later = Mistake::new(&rows(9000, 5000), &[DEFAULT]);
    let ended = later.run(&[]).succeeded();
    assert!(ended.err.contains("rows after the first ones that don't count"), "{}", ended.err);
    assert!(later.published() > 30);
    // What was lost is said at the end, where exact counts are shown.
    let lost = Mistake::new(&right, &[DEFAULT, ("upper = 100", "upper = 70")]);
    let lost = lost.run(&["--counters"]).succeeded();
    assert!(lost.err.contains("% of the values of \"age\" were beyond its bounds"), "{}", lost.err);
}

/// A file may well begin long before the first epoch: only the rows after its start are judged. If
/// the clock is public, a message for everyone says that most rows come before the start.
#[test]
fn rows_before_the_start_are_no_mistake_if_enough_come_later() {
    let start = ("2020-03-01", "2020-03-30");
    let told = "by the public clock, most rows so far come before the first epoch and don't count";
    for (mistyped, clock) in
        [(false, ("", "")), (false, END_OF_INPUT), (true, ("", "")), (true, END_OF_INPUT)]
    {
        let data = rows(16_000, if mistyped { 8400 } else { usize::MAX });
        let mistake = Mistake::new(&data, &[start, clock]);
        let ended = mistake.run(&[]);
        if mistyped {
            ended.failed(1, &["a key that [key] doesn't list", "nothing was published or spent"]);
        } else {
            assert_eq!(ended.succeeded().err.contains(told), clock.0.is_empty());
        }
        assert_eq!(mistake.published() > 0, !mistyped, "{clock:?}");
    }
}
