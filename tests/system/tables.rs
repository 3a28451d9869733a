//! Tables in files: every estimate once, as `tail --format csv` shows it, after any kill. The tests
//! of the Python package read such files by pyarrow.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::harness::{self, Random, finish, run, wait};
use crate::sinks::case;

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the sink's folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    // A killed run may leave a file under its hidden name.
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names.iter().map(|name| folder.join(name)).collect()
}

/// Returns the header and the rows of all files as CSV.
pub(crate) fn rows(folder: &Path) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for path in files(folder) {
        let reader = SerializedFileReader::new(fs::File::open(&path).expect("a file")).expect("Parquet");
        let columns = reader.metadata().file_metadata().schema().get_fields();
        let header: Vec<String> = columns.iter().map(|column| column.name().into()).collect();
        if found.is_empty() {
            found.push(header.clone());
        }
        assert_eq!(found[0], header, "files have the same columns");
        for row in reader.get_row_iter(None).expect("rows") {
            let row = row.expect("a row");
            let text = |field: &Field| match field {
                Field::Null => String::new(),
                Field::Long(number) => number.to_string(),
                Field::Double(number) => number.to_string(),
                Field::Str(text) => text.clone(),
                Field::TimestampMicros(time) => {
                    jiff::Timestamp::from_microsecond(*time).expect("a time").to_string()
                }
                other => panic!("{other:?}"),
            };
            found.push(row.get_column_iter().map(|(_, field)| text(field)).collect());
        }
    }
    found
}

/// Returns the same as `tail` shows it.
pub(crate) fn shown(state: &Path) -> Vec<Vec<String>> {
    let shown = finish(harness::hushflow(["tail", "--format", "csv"]).arg(state)).succeeded().out;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(shown.as_bytes());
    let rows = reader.records().map(|row| row.expect("a row").iter().map(String::from).collect());
    rows.collect()
}

#[test]
fn killed_runs_leave_every_estimate_in_the_files_once() {
    let (lab, pipeline, state) = case("[[sinks]]\npath = 'out'\nformat = 'parquet'\nrotate = '7 epochs'\n");
    let mut random = Random(3);
    for _ in 0..6 {
        let mut child = run(&pipeline, &state, 1).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let _ = child.kill();
        wait(child);
    }
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let (found, expected) = (rows(&lab.path("out")), shown(&state));
    assert_eq!(expected.len(), 1 + 40 * 7);
    assert_eq!(found[0], expected[0]);
    assert!(found == expected, "the files are not what tail shows");
    let files = files(&lab.path("out"));
    assert_eq!(files.len(), 6);
    assert!(files[5].ends_with("epochs-0000000036-0000000042.parquet"), "{files:?}");
    // Another history must not continue in the same files.
    let before = fs::read(&files[5]).expect("a file");
    finish(&mut run(&pipeline, &lab.path("other"), 1)).failed(1, &["is not of the history"]);
    assert!(fs::read(&files[5]).expect("a file") == before);
}
