//! Parquet files: a killed and resumed run reaches the sums of the same rows as CSV.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Lab, Random, Stream, expected_sums, finish, run, sums, wait};
use hushflow::time::parse_time;
use parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

const STREAM: Stream = Stream { rows: 20_000, epochs: 40 };

const SCHEMA: &str = "message rows {
    REQUIRED INT64 event (TIMESTAMP(MICROS, true));
    REQUIRED INT64 arrival (TIMESTAMP(MICROS, true));
    REQUIRED BYTE_ARRAY key (UTF8);
    REQUIRED DOUBLE a; REQUIRED DOUBLE b; REQUIRED DOUBLE c; REQUIRED DOUBLE d; REQUIRED DOUBLE e;
}";

fn put<T: DataType>(group: &mut SerializedRowGroupWriter<'_, File>, values: &[T::T]) {
    let mut column = group.next_column().expect("a column").expect("a column more");
    column.typed::<T>().write_batch(values, None, None).expect("values are written");
    column.close().expect("a column is closed");
}

/// Writes rows of CSV as a file with row groups of `group` rows.
pub(crate) fn write(path: &Path, rows: &[Vec<&str>], group: usize) {
    write_with(WriterProperties::default(), path, rows, group);
}

fn write_with(properties: WriterProperties, path: &Path, rows: &[Vec<&str>], group: usize) {
    let schema = Arc::new(parse_message_type(SCHEMA).expect("a schema"));
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("a writer");
    for rows in rows.chunks(group) {
        let mut group = writer.next_row_group().expect("a row group");
        for column in 0..2 {
            let times: Vec<i64> = rows.iter().map(|row| parse_time(row[column]).expect("a time")).collect();
            put::<Int64Type>(&mut group, &times);
        }
        put::<ByteArrayType>(&mut group, &rows.iter().map(|row| row[2].into()).collect::<Vec<_>>());
        for column in 3..8 {
            let values: Vec<f64> = rows.iter().map(|row| row[column].parse().expect("a number")).collect();
            put::<DoubleType>(&mut group, &values);
        }
        group.close().expect("a row group is closed");
    }
    writer.close().expect("a file is closed");
}

/// Writes columns of numbers, with nulls for missing values.
pub(crate) fn write_optional<const COLUMNS: usize>(
    path: &Path,
    names: &[&str; COLUMNS],
    rows: &[[Option<f64>; COLUMNS]],
) {
    let fields: String = names.iter().map(|name| format!("OPTIONAL DOUBLE {name};")).collect();
    let schema = parse_message_type(&format!("message rows {{ {fields} }}")).expect("a schema");
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::default()).expect("a writer");
    for rows in rows.chunks(1000) {
        let mut group = writer.next_row_group().expect("a row group");
        for at in 0..COLUMNS {
            let mut column = group.next_column().expect("a column").expect("a column more");
            let values: Vec<f64> = rows.iter().filter_map(|row| row[at]).collect();
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(row[at].is_some())).collect();
            let typed = column.typed::<DoubleType>();
            typed.write_batch(&values, Some(&levels), None).expect("values are written");
            column.close().expect("a column is closed");
        }
        group.close().expect("a row group is closed");
    }
    writer.close().expect("a file is closed");
}

#[test]
fn killed_runs_over_parquet_count_every_row_once() {
    let lab = Lab::new();
    let text = STREAM.csv();
    lab.write("data.csv", &text);
    let expected = expected_sums(&lab.write("csv.toml", STREAM.pipeline("data.csv", "")));
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let (first, second) = rows.split_at(7777);
    write(&lab.path("a.parquet"), first, 1000);
    write(&lab.path("b.parquet"), second, 3000);
    let list = STREAM.pipeline("x", "").replace("path = 'x'", "path = ['a.parquet', 'b.parquet']");
    let pipeline = lab.write("parquet.toml", list.replace("format = 'csv'\n", ""));
    let (state, mut random) = (lab.path("state"), Random(8));
    for _ in 0..8 {
        let mut child = run(&pipeline, &state, 2).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let _ = child.kill();
        wait(child);
    }
    finish(&mut run(&pipeline, &state, 2)).succeeded();
    assert!(sums(&state) == expected, "the sums are not those of CSV");
    // Positions in Parquet are invalid in CSV.
    let other = lab.write("csv.toml", STREAM.pipeline("data.csv", ""));
    finish(&mut run(&other, &state, 1)).failed(1, &[]);
    lab.write("a.parquet", "no longer");
    finish(&mut run(&pipeline, &lab.path("new"), 1)).failed(1, &["a.parquet", "not a Parquet file"]);
}

/// With a changed page header, the error names the file, also if the decoder panics.
#[test]
fn a_damaged_page_is_an_error_that_names_its_file() {
    let lab = Lab::new();
    let text = STREAM.csv();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).take(100).map(|line| line.split(',').collect()).collect();
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    write_with(properties.build(), &lab.path("a.parquet"), &rows, 100);
    let intact = std::fs::read(lab.path("a.parquet")).expect("a file");
    let reader =
        SerializedFileReader::new(File::open(lab.path("a.parquet")).expect("a file")).expect("a file");
    let pipeline = STREAM.pipeline("a.parquet", "").replace("'csv'", "'parquet'");
    let pipeline = lab.write("pipeline.toml", pipeline);
    // Keys are texts: the page has their number, and the lengths before them.
    let page = reader.metadata().row_group(0).column(2).data_page_offset() as usize;
    let key = page + intact[page..].windows(2).position(|bytes| bytes[0] == b'k').expect("a key");
    let number =
        page + intact[page..].windows(3).position(|bytes| bytes == [0x15, 0xc8, 1]).expect("100 rows");
    for (at, byte) in [(key - 4, 0xff), (key - 1, 0x7f), (number + 2, 0x7f), (number + 1, 0xca)] {
        let mut bytes = intact.clone();
        bytes[at] = byte;
        lab.write("a.parquet", bytes);
        let parts = ["a.parquet", "can't be decoded", "damaged"];
        finish(&mut run(&pipeline, &lab.path(&format!("state-{at}")), 1)).failed(1, &parts);
    }
}
