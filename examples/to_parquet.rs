//! Writes the flights of the examples to a Parquet file, with times as timestamps and delays as
//! numbers or nulls.
//!
//! ```sh
//! cargo run --release --example to_parquet -- flights.parquet
//! cargo run --release -- run examples/parquet.toml
//! ```

use std::env;
use std::error::Error;
use std::fs::File;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");

const SCHEMA: &str = "message flights {
    REQUIRED INT64 event_time (TIMESTAMP(MICROS, true));
    REQUIRED INT64 recorded_at (TIMESTAMP(MICROS, true));
    REQUIRED BYTE_ARRAY origin (UTF8);
    OPTIONAL DOUBLE dep_delay;
    OPTIONAL DOUBLE arr_delay;
}";

/// Number of rows in a row group.
const GROUP: usize = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("name the file to write")?;
    let mut reader = csv::Reader::from_path(FLIGHTS)?;
    let header = reader.headers()?.clone();
    let index = |name: &str| header.iter().position(|found| found == name).ok_or("a column is missing");
    let [event, arrival, origin, departure, landing] = [
        index("event_time")?,
        index("recorded_at")?,
        index("origin")?,
        index("dep_delay")?,
        index("arr_delay")?,
    ];
    let rows = reader.into_records().collect::<Result<Vec<_>, _>>()?;

    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(File::create(&path)?, schema, Arc::new(properties))?;
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        for column in [event, arrival] {
            let times = rows.iter().map(|row| Ok(row[column].parse::<jiff::Timestamp>()?.as_microsecond()));
            let times = times.collect::<Result<Vec<i64>, jiff::Error>>()?;
            let mut column = group.next_column()?.ok_or("a column")?;
            column.typed::<Int64Type>().write_batch(&times, None, None)?;
            column.close()?;
        }
        let names: Vec<_> = rows.iter().map(|row| row[origin].into()).collect();
        let mut column = group.next_column()?.ok_or("a column")?;
        column.typed::<ByteArrayType>().write_batch(&names, None, None)?;
        column.close()?;
        for column in [departure, landing] {
            let delays: Vec<Option<f64>> = rows.iter().map(|row| row[column].parse().ok()).collect();
            // A null has no value; its definition level is 0.
            let levels: Vec<i16> = delays.iter().map(|delay| i16::from(delay.is_some())).collect();
            let values: Vec<f64> = delays.into_iter().flatten().collect();
            let mut column = group.next_column()?.ok_or("a column")?;
            column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            column.close()?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}
