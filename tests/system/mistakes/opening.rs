//! Sources that can't be opened, or that lack a field.

use super::{END_OF_INPUT, Mistake, rows};

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
