//! Tests files with every supported type, resumed at every position, and damaged at random from a
//! seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArrayType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::row::TimeForm;

const SCHEMA: &str = "message rows {
    REQUIRED DOUBLE double;
    OPTIONAL FLOAT float;
    OPTIONAL INT64 whole;
    REQUIRED INT32 small (INTEGER(32, false));
    REQUIRED INT32 money (DECIMAL(9, 2));
    REQUIRED FIXED_LEN_BYTE_ARRAY (3) cents (DECIMAL(6, 2));
    OPTIONAL BYTE_ARRAY name (UTF8);
    REQUIRED INT64 milli (TIMESTAMP(MILLIS, true));
    REQUIRED INT64 micro (TIMESTAMP(MICROS, true));
    REQUIRED INT64 nano (TIMESTAMP(NANOS, false));
    REQUIRED INT32 day (DATE);
    REQUIRED BOOLEAN flag;
    OPTIONAL GROUP outer { OPTIONAL DOUBLE inner; }
}";

const GROUPS: usize = 3;
const ROWS: usize = 1500;

/// Returns a value for every row except every third.
fn some<T>(value: impl Fn(usize) -> T) -> (Vec<T>, Option<Vec<i16>>) {
    let levels = (0..ROWS).map(|row| i16::from(!row.is_multiple_of(3))).collect();
    ((0..ROWS).filter(|row| !row.is_multiple_of(3)).map(value).collect(), Some(levels))
}

/// Returns a value for every row.
fn all<T>(value: impl Fn(usize) -> T) -> (Vec<T>, Option<Vec<i16>>) {
    ((0..ROWS).map(value).collect(), None)
}

pub(super) fn put<T: DataType>(
    group: &mut parquet::file::writer::SerializedRowGroupWriter<'_, Vec<u8>>,
    (values, levels): (Vec<T::T>, Option<Vec<i16>>),
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(&values, levels.as_deref(), None).unwrap();
    column.close().unwrap();
}

/// Row `row` of each group has the number `row` or a null in all columns.
fn file(codec: Compression) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = WriterProperties::builder().set_compression(codec).set_data_page_row_count_limit(700);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    for _ in 0..GROUPS {
        let mut group = writer.next_row_group().unwrap();
        let group_writer = &mut group;
        put::<DoubleType>(group_writer, all(|row| row as f64 + 0.1));
        put::<FloatType>(group_writer, some(|row| row as f32 + 0.5));
        put::<Int64Type>(group_writer, some(|row| i64::MAX - row as i64));
        put::<Int32Type>(group_writer, all(|row| -1 - row as i32));
        put::<Int32Type>(group_writer, all(|row| -(row as i32)));
        put::<FixedLenByteArrayType>(
            group_writer,
            all(|row| FixedLenByteArray::from((-(row as i32)).to_be_bytes()[1..].to_vec())),
        );
        put::<ByteArrayType>(group_writer, some(|row| format!("name {}", row % 7).as_str().into()));
        put::<Int64Type>(group_writer, all(|row| row as i64));
        put::<Int64Type>(group_writer, all(|row| row as i64));
        put::<Int64Type>(group_writer, all(|row| -(row as i64)));
        put::<Int32Type>(group_writer, all(|row| row as i32));
        put::<BoolType>(group_writer, all(|row| row % 2 == 1));
        let (values, levels) = some(|row| row as f64);
        put::<DoubleType>(
            group_writer,
            (values, levels.map(|levels| levels.iter().map(|l| l * 2).collect())),
        );
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

pub(super) fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.parquet");
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

pub(super) fn wanted(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| String::from(*name)).collect()
}

const NAMES: [&str; 13] = [
    "double",
    "float",
    "whole",
    "small",
    "money",
    "cents",
    "name",
    "milli",
    "micro",
    "nano",
    "day",
    "flag",
    "outer.inner",
];

/// A printed row, and the position after it.
type PrintedRow = ((u64, u64), String);

/// Reads from a position to the end.
fn read(path: &Path, position: (u64, u64)) -> Result<Vec<PrintedRow>, FormatError> {
    let mut rows = ParquetRows::open(path, position, &wanted(&NAMES))?;
    let (mut row, mut read) = (Row::default(), Vec::new());
    while rows.read(&mut row).map_err(|error| io_error(path, error))? == RowOutcome::Row {
        let numbers =
            (0..NAMES.len()).map(|slot| (row.number(slot).map(f64::to_bits), row.time(slot, &TimeForm::UTC)));
        read.push((rows.position(), format!("{:?}", numbers.collect::<Vec<_>>())));
    }
    Ok(read)
}

#[test]
fn every_type_has_its_meaning() {
    let (_directory, path) = written(&file(Compression::SNAPPY));
    let mut rows = ParquetRows::open(&path, (0, 1), &wanted(&NAMES)).unwrap();
    let mut row = Row::default();
    for number in 0..GROUPS * ROWS {
        assert!(matches!(rows.read(&mut row), Ok(RowOutcome::Row)));
        assert_eq!((row.defect, rows.line()), (None, 1 + number as u64));
        let n = number % ROWS;
        let there = !n.is_multiple_of(3);
        let optional = |value| if there { Ok(value) } else { Err(Defect::Missing) };
        assert_eq!(row.number(0), Ok(n as f64 + 0.1));
        assert_eq!(row.number(1), optional(n as f64 + 0.5));
        assert_eq!(
            row.text(2).ok(),
            there.then(|| (i64::MAX - n as i64).to_string()).as_ref().map(String::as_bytes)
        );
        assert_eq!(row.number(3), Ok(f64::from(u32::MAX - n as u32)));
        assert_eq!(row.number(4), Ok(-(n as f64) / 100.0 + 0.0));
        assert_eq!(row.number(5), row.number(4));
        assert_eq!(row.text(6).ok(), there.then(|| format!("name {}", n % 7)).as_ref().map(String::as_bytes));
        assert_eq!(row.time(7, &TimeForm::UTC), Ok(n as i64 * 1000));
        assert_eq!(row.time(8, &TimeForm::UTC), Ok(n as i64));
        assert_eq!(row.time(9, &TimeForm::UTC), Ok((-(n as i64)).div_euclid(1000)));
        assert_eq!(row.time(10, &TimeForm::UTC), Ok(n as i64 * 86_400_000_000));
        assert_eq!(row.number(11), Ok((n % 2) as f64));
        assert_eq!(row.number(12), optional(n as f64));
        assert_eq!(
            (row.text(0), row.time(0, &TimeForm::UTC)),
            (Err(Defect::NotAText), Err(Defect::NotATime))
        );
        assert_eq!((row.text(7), row.number(7)), (Err(Defect::NotAText), Err(Defect::NotANumber)));
    }
    assert!(matches!(rows.read(&mut row), Ok(RowOutcome::End)));
}

#[test]
fn reading_resumes_at_every_position() {
    let gzip = Compression::GZIP(Default::default());
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, gzip, Compression::LZ4_RAW] {
        let (_directory, path) = written(&file(codec));
        let whole = read(&path, (0, 1)).unwrap();
        assert_eq!(whole.len(), GROUPS * ROWS);
        for at in (0..whole.len()).step_by(431).chain([ROWS - 1, ROWS, whole.len() - 1]) {
            assert!(read(&path, whole[at].0).unwrap() == whole[at + 1..], "row {at}");
        }
        assert!(read(&path, (GROUPS as u64, 1)).unwrap().is_empty());
    }
}

#[test]
fn unreadable_files_are_reported_without_values() {
    let (_directory, path) = written(&file(Compression::SNAPPY));
    let check = |position, names: &[&str], part: &str| {
        let error = ParquetRows::open(&path, position, &wanted(names)).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    };
    check((4, 1), &["double"], "has 3 row groups, fewer than were read before");
    check((2, 9999), &["double"], "fewer rows than were read before");
    check((0, 1), &["Double"], "did you mean \"double\"?");
    for (kind, part) in [
        ("REQUIRED INT96 x", "96 bits"),
        ("REPEATED DOUBLE x", "lists"),
        ("REQUIRED INT32 x (TIME(MILLIS, true))", "times of day"),
        ("REQUIRED FIXED_LEN_BYTE_ARRAY (2) x (FLOAT16)", "another kind"),
    ] {
        let schema = Arc::new(parse_message_type(&format!("message rows {{ {kind}; }}")).unwrap());
        let writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let (_directory, path) = written(&writer.into_inner().unwrap());
        let error = ParquetRows::open(&path, (0, 1), &wanted(&["x"])).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    let (_directory, path) = written(b"a,b\n1,2\n");
    let error = read(&path, (0, 1)).err().unwrap().to_string();
    assert!(error.contains("not a Parquet file"), "{error}");
}

/// The page's bytes leave room for a larger number in its header.
#[test]
fn a_page_above_the_memory_limit_is_refused() {
    let schema = Arc::new(parse_message_type("message rows { REQUIRED DOUBLE x; }").unwrap());
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    put::<DoubleType>(&mut group, all(|row| row as f64));
    let page = usize::try_from(group.close().unwrap().column(0).data_page_offset()).unwrap();
    let mut bytes = writer.into_inner().unwrap();
    let header = header::PageHeader::read(&bytes[page..]).unwrap();
    let varint = |value: usize| {
        let bytes = (0..5).map(|at| ((2 * value) >> (7 * at)) as u8).take_while(|&byte| byte > 0);
        let mut bytes: Vec<u8> = bytes.map(|byte| byte | 0x80).collect();
        *bytes.last_mut().unwrap() &= 0x7f;
        bytes
    };
    let (before, most) = (varint(header.unpacked), varint(i32::MAX as usize));
    let grown = most.len() - before.len();
    let sizes = [&[0x15][..], &before, &[0x15], &varint(header.packed)].concat();
    assert_eq!(bytes[page + 2..][..sizes.len()], sizes);
    let end = page + header.length + header.packed;
    bytes.drain(end - grown..end);
    let sizes_in_page = [&[0x15][..], &most, &[0x15], &varint(header.packed - grown)].concat();
    bytes.splice(page + 2..page + 2 + sizes.len(), sizes_in_page);
    let (_directory, path) = written(&bytes);
    let mut rows = ParquetRows::open(&path, (0, 1), &wanted(&["x"])).unwrap();
    let error = rows.read(&mut Row::default()).unwrap_err().to_string();
    assert!(error.contains("\"x\": a page has more than 268435456 bytes"), "{error}");
}

/// Returns whether reading a damaged file panics.
fn panics(bytes: &[u8]) -> bool {
    let (_directory, path) = written(bytes);
    catch_unwind(AssertUnwindSafe(|| drop(read(&path, (0, 1))))).is_err()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_files_are_errors_or_other_rows(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..5),
        cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = file(Compression::UNCOMPRESSED);
        for (position, bit) in flips {
            let position = position.index(bytes.len());
            bytes[position] ^= 1 << bit;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        prop_assert!(!panics(&bytes));
    }
}
