//! The part of a file that a run has read must stay unchanged: a resumed run refuses a file whose
//! earlier rows have moved, which would count rows twice, and reads one that has only grown.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::harness::{Lab, finish, releases, run};
use crate::parquet::write_optional;

/// Rows of a CSV file, with values of `digits` digits.
fn rows(numbers: std::ops::Range<u32>, digits: usize) -> String {
    let row = |number: u32| format!("{:.digits$}\n", f64::from(number % 97) / 97.0);
    format!("x\n{}", numbers.map(row).collect::<String>())
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

/// Publishes the files of a list, changes them, and runs again. `reason` is part of the error of
/// the second run; without one it publishes more epochs.
fn check(paths: [&str; 2], first: &dyn Fn(&Lab), change: &dyn Fn(&Lab), reason: Option<&str>) {
    let lab = Lab::new();
    let state = lab.path("state");
    let pipeline = |path: &str| {
        let text = format!(
            "name = 'n'
source = {{ path = {path} }}
columns = [{{ name = 'x', lower = 0, upper = 1 }}]
epochs = {{ records = 100, horizon = 60 }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
"
        );
        lab.write("pipeline.toml", text)
    };
    first(&lab);
    finish(&mut run(&pipeline(paths[0]), &state, 1)).succeeded();
    let published = releases(&state);
    change(&lab);
    let ended = finish(&mut run(&pipeline(paths[1]), &state, 1));
    match reason {
        Some(reason) => {
            ended.failed(1, &[reason, "the file has changed before the position where the last run stopped"]);
            assert!(releases(&state) == published, "{paths:?}");
        }
        None => {
            ended.succeeded();
            assert!(releases(&state).len() > published.len(), "{paths:?}");
        }
    }
}

#[test]
fn a_file_whose_earlier_rows_have_moved_is_refused() {
    let (one, list) = (["'a.csv'", "'a.csv'"], "['a.csv', 'b.csv']");
    let begin = |lab: &Lab| drop(lab.write("a.csv", rows(0..1000, 5)));
    let with_text = |text: String| move |lab: &Lab| drop(lab.write("a.csv", &text));
    check(one, &begin, &with_text(rows(0..2000, 5)), None);
    check(one, &begin, &with_text(rows(0..2000, 6)), Some("a.csv"));
    // A row more at the beginning, a row less, and another file.
    let inserted = rows(0..2000, 5).replacen("x\n", "x\n0.50000\n", 1);
    check(one, &begin, &with_text(inserted), Some("a.csv"));
    check(one, &begin, &with_text(rows(1..2000, 5)), Some("a.csv"));
    check(one, &begin, &with_text(rows(5..2000, 5)), Some("a.csv"));
    // Changes to the files before the current one.
    let second = |lab: &Lab| drop(lab.write("b.csv", rows(0..2000, 4)));
    check(["'a.csv'", list], &begin, &second, None);
    check(["'a.csv'", "['b.csv', 'a.csv']"], &begin, &second, Some("b.csv"));
}

#[test]
fn a_packed_file_that_has_read_rows_is_refused_if_it_changes() {
    let one = ["'a.csv.gz'", "'a.csv.gz'"];
    let with_packed_text = |text: String| move |lab: &Lab| drop(lab.write("a.csv.gz", gzip(&text)));
    check(one, &with_packed_text(rows(0..1000, 5)), &with_packed_text(rows(0..2000, 6)), Some("a.csv.gz"));
    let more = |lab: &Lab| drop(lab.write("b.csv", rows(0..1000, 5)));
    check(["'a.csv.gz'", "['a.csv.gz', 'b.csv']"], &with_packed_text(rows(0..1000, 5)), &more, None);
}

#[test]
fn a_parquet_file_that_has_read_rows_is_refused_if_it_changes() {
    let with_rows = |count: u32| {
        move |lab: &Lab| {
            let rows: Vec<_> = (0..count).map(|row| [Some(f64::from(row % 89) / 89.0)]).collect();
            write_optional(&lab.path("a.parquet"), &["x"], &rows);
        }
    };
    check(["'a.parquet'", "'a.parquet'"], &with_rows(1000), &with_rows(3000), Some("a.parquet"));
    let more = |lab: &Lab| {
        let rows: Vec<_> = (0..1000_u32).map(|row| [Some(f64::from(row % 83) / 83.0)]).collect();
        write_optional(&lab.path("b.parquet"), &["x"], &rows);
    };
    check(["'a.parquet'", "['a.parquet', 'b.parquet']"], &with_rows(1000), &more, None);
}
