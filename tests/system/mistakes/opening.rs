//! Errors say what was spent: of sources that can't be opened, that lack a field, and in clusters.

use super::{END_OF_INPUT, Mistake, rows};
use crate::harness::{finish, run_as_two, wait};

/// A field that no row has is named, and `check` shows what the rows have instead.
#[test]
fn a_misspelt_field_is_named_with_the_nearest_one() {
    let object = |row: usize| {
        let day = 1 + row / 20;
        format!("{{\"event\":\"2020-03-{day:02}T12:00:00Z\",\"city\":\"Oslo\",\"age\":{}}}\n", row % 60)
    };
    let data = (0..400).map(object).collect::<String>();
    let form = ("path = 'data.csv'", "path = 'data.csv'\nformat = 'ndjson'");
    for (from, wrong, right) in
        [("name = 'age'", "name = 'agge'", "age"), ("time = 'event'", "time = 'evnt'", "event")]
    {
        let name = &wrong[8..wrong.len() - 1];
        let mistake = Mistake::new(&data, &[form, (from, wrong), END_OF_INPUT]);
        let (code, report) = mistake.report();
        let note = format!("no row has the field {name:?}, but ");
        let meant = format!("did you mean {right:?}?");
        assert!(
            code == Some(4) && report["notes"].to_string().contains(&note.replace('"', "\\\"")),
            "{report}"
        );
        assert!(report["notes"].to_string().contains(&meant.replace('"', "\\\"")), "{report}");
        let ended = mistake.run(&[]);
        assert!(!ended.err.contains(&meant), "{}", ended.err);
        ended.failed(1, &["every row lacks a value, in column", name, "nothing was published or spent"]);
    }
}

/// A source that can't be opened has cost nothing.
#[test]
fn a_source_that_is_not_there_costs_nothing() {
    let mistake = Mistake::new("", &[("'data.csv'", "'nowhere.csv'")]);
    mistake.run(&[]).failed(1, &["nowhere.csv", "nothing was published or spent"]);
    let data = rows(9000, usize::MAX);
    let again = Mistake::new(&data, &[]);
    again.run(&[]).succeeded();
    std::fs::remove_file(again.lab.path("data.csv")).expect("the data");
    again.run(&[]).failed(1, &["data.csv", "nothing more was published or spent"]);
}

/// So has a refusal in a cluster, whose processes end at once.
#[test]
fn a_refusal_in_a_cluster_says_what_was_spent() {
    let mistake = Mistake::new(&rows(9000, 0), &[]);
    let [mut first, mut second] = run_as_two(&mistake.pipeline, &mistake.lab.path("state"), 1);
    let second = second.spawn().expect("the second process starts");
    let refused = finish(&mut first);
    let _ = wait(second);
    refused.failed(1, &["every row has a key that [key] doesn't list", "nothing was published or spent"]);
    assert_eq!(mistake.published(), 0);
}
