//! Tests damaged files: bytes changed in footers, page headers, levels, dictionaries and values, in
//! every encoding. Each gives an error or other rows, never a panic and never more memory than the
//! file's own sizes account for.
//!
//! `HUSHFLOW_PARQUET_CASES=n` runs n cases instead of 4,000.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{
    BoolType, ByteArrayType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type,
};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::tests::{put, wanted, written};
use super::*;

const SCHEMA: &str = "message rows {
    OPTIONAL DOUBLE double;
    REQUIRED FLOAT float;
    OPTIONAL INT64 whole;
    REQUIRED INT32 small;
    REQUIRED FIXED_LEN_BYTE_ARRAY (3) cents (DECIMAL(6, 2));
    OPTIONAL BYTE_ARRAY name (UTF8);
    REQUIRED BYTE_ARRAY word (UTF8);
    OPTIONAL BOOLEAN flag;
}";

const NAMES: [&str; 8] = ["double", "float", "whole", "small", "cents", "name", "word", "flag"];

/// Rows of a row group.
const ROWS: usize = 40;

/// Makes a small file of two row groups and several pages, with choice number `kind` of version,
/// codec and encodings.
fn file(kind: usize) -> Vec<u8> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::GZIP(Default::default()),
    ];
    let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
    let mut properties = WriterProperties::builder()
        .set_compression(codecs[if kind < 6 { 0 } else { kind % 4 }])
        .set_writer_version(versions[kind % 2])
        .set_data_page_row_count_limit(15)
        .set_write_batch_size(5)
        .set_dictionary_enabled(kind.is_multiple_of(3));
    let split = Encoding::BYTE_STREAM_SPLIT;
    let (whole, text) = match kind % 3 {
        1 => (Encoding::DELTA_BINARY_PACKED, Encoding::DELTA_BYTE_ARRAY),
        _ => (Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY),
    };
    if kind % 3 == 1 {
        for name in ["double", "float", "cents"] {
            properties = properties.set_column_encoding(name.into(), split);
        }
    }
    if !kind.is_multiple_of(3) {
        for (name, encoding) in
            [("whole", whole), ("small", whole), ("name", text), ("word", Encoding::PLAIN)]
        {
            properties = properties.set_column_encoding(name.into(), encoding);
        }
        properties = properties.set_column_encoding("flag".into(), Encoding::RLE);
    }
    let schema = std::sync::Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, std::sync::Arc::new(properties.build())).unwrap();
    let levels = || Some((0..ROWS).map(|row| i16::from(row % 5 > 0)).collect::<Vec<_>>());
    let there = || (0..ROWS).filter(|row| row % 5 > 0);
    let text = |row: usize| format!("name {}", row % 7).as_str().into();
    for _ in 0..2 {
        let mut group = writer.next_row_group().unwrap();
        put::<DoubleType>(&mut group, (there().map(|row| row as f64).collect(), levels()));
        put::<FloatType>(&mut group, ((0..ROWS).map(|row| row as f32).collect(), None));
        put::<Int64Type>(&mut group, (there().map(|row| 7 * row as i64).collect(), levels()));
        put::<Int32Type>(&mut group, ((0..ROWS).map(|row| row as i32 % 9).collect(), None));
        let cents = |row: usize| FixedLenByteArray::from((row as u32).to_be_bytes()[1..].to_vec());
        put::<FixedLenByteArrayType>(&mut group, ((0..ROWS).map(cents).collect(), None));
        put::<ByteArrayType>(&mut group, (there().map(text).collect(), levels()));
        put::<ByteArrayType>(&mut group, ((0..ROWS).map(text).collect(), None));
        put::<BoolType>(&mut group, (there().map(|row| row % 2 == 1).collect(), levels()));
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Reads all rows; returns the error's message, if any.
fn read(path: &Path) -> Option<String> {
    let rows = ParquetRows::open(path, (0, 1), &wanted(&NAMES));
    let mut rows = match rows {
        Ok(rows) => rows,
        Err(error) => return Some(error.to_string()),
    };
    let mut row = Row::default();
    loop {
        match rows.read(&mut row) {
            Ok(RowOutcome::End) => return None,
            Ok(_) => {}
            Err(error) => return Some(io_error(path, error).to_string()),
        }
    }
}

/// A generator of pseudorandom numbers, the same in every run.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    /// Changes a few bytes, every other time in the footer.
    fn damage(&mut self, bytes: &mut [u8]) {
        let length = bytes.len();
        let footer = 8 + u32::from_le_bytes(*bytes[length - 8..].first_chunk().unwrap()) as usize;
        for _ in 0..1 + self.below(3) {
            let at = match self.below(2) {
                0 => length - 1 - self.below(footer),
                _ => self.below(length),
            };
            bytes[at] = match self.below(4) {
                0 => bytes[at] ^ 1 << self.below(8),
                1 => [0, 1, 0x7f, 0x80, 0xfe, 0xff][self.below(6)],
                2 => bytes[at].wrapping_add([1, 2, 0xff, 0xfe][self.below(4)]),
                _ => self.below(256) as u8,
            };
        }
        if self.below(20) == 0 {
            let (from, to, count) = (self.below(length - 16), self.below(length - 16), self.below(16));
            bytes.copy_within(from..from + count, to);
        }
    }
}

#[test]
fn undamaged_files_are_read() {
    for kind in 0..12 {
        let (_directory, path) = written(&file(kind));
        assert_eq!(read(&path), None, "kind {kind}");
    }
}

#[test]
fn damaged_bytes_are_errors_or_other_rows() {
    let cases = std::env::var("HUSHFLOW_PARQUET_CASES").ok().and_then(|cases| cases.parse().ok());
    let files: Vec<_> = (0..12).map(file).collect();
    let (_directory, path) = written(&files[0]);
    let mut panicked = std::collections::BTreeMap::<String, (u64, u32)>::new();
    for case in 0..cases.unwrap_or(4000_u64) {
        let mut arbitrary = RandomNumbers(case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bytes = files[case as usize % files.len()].clone();
        arbitrary.damage(&mut bytes);
        // Overwriting a file would wait until it is on disk.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let began = std::time::Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| read(&path)));
        if began.elapsed().as_secs() > 1 {
            panicked.entry("slow".into()).or_insert((case, 0u32)).1 += 1;
        }
        match outcome {
            Ok(None) => {}
            Ok(Some(message)) => assert!(message.contains("rows.parquet"), "case {case}: {message}"),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).into()));
                panicked.entry(text.unwrap_or_default()).or_insert((case, 0)).1 += 1;
            }
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
}
