//! Interprets the columns of a Parquet file by their types in the schema.

use std::path::Path;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescriptor;

use crate::error::FormatError;
use crate::spelling::misspelt;

/// How to interpret numbers and bytes of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnMeaning {
    Number,
    Unsigned,
    /// Whole numbers of 10^-scale.
    Decimal(i32),
    /// Times, as multiples of this number of nanoseconds.
    Time(i64),
    Text,
}

/// Returns the index and the meaning of a column.
pub(super) fn find(
    file: &ParquetMetaData,
    path: &Path,
    name: &str,
) -> Result<(usize, ColumnMeaning), FormatError> {
    let schema = file.file_metadata().schema_descr();
    let columns = schema.columns();
    let names = columns.iter().map(|column| column.path().string());
    let mut found = names.clone().enumerate().filter(|(_, found)| found == name);
    let Some((number, _)) = found.next() else {
        let names: Vec<String> = names.collect();
        let meant = misspelt(name, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let hint = meant.map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default();
        let problem = format!("none of its {} columns is {name:?}{hint}", names.len());
        return Err(FormatError::Parquet { path: path.into(), problem });
    };
    if found.next().is_some() {
        return Err(FormatError::ColumnTwice { path: path.into(), column: name.into() });
    }
    let refused = |kind: &str| FormatError::Parquet {
        path: path.into(),
        problem: format!(
            "column {name:?} holds {kind}: expected numbers, booleans, texts, dates or timestamps"
        ),
    };
    meaning(&columns[number]).map(|meaning| (number, meaning)).map_err(refused)
}

/// Returns the meaning of a column, or the name of its unusable type.
fn meaning(column: &ColumnDescriptor) -> Result<ColumnMeaning, &'static str> {
    if column.max_rep_level() > 0 {
        return Err("lists");
    }
    let day = 86_400_000_000_000;
    let logical = match column.logical_type_ref() {
        Some(logical) => match logical {
            LogicalType::Decimal(decimal) => Some(ColumnMeaning::Decimal(decimal.scale)),
            LogicalType::Timestamp(timestamp) => Some(ColumnMeaning::Time(match timestamp.unit {
                TimeUnit::MILLIS => 1_000_000,
                TimeUnit::MICROS => 1000,
                TimeUnit::NANOS => 1,
            })),
            LogicalType::Date => Some(ColumnMeaning::Time(day)),
            LogicalType::Integer(integer) if !integer.is_signed => Some(ColumnMeaning::Unsigned),
            LogicalType::Integer(_) | LogicalType::String | LogicalType::Enum | LogicalType::Json => None,
            LogicalType::Time(_) => return Err("times of day"),
            LogicalType::Unknown => None,
            _ => return Err("values of another kind"),
        },
        None => match column.converted_type() {
            ConvertedType::DECIMAL => Some(ColumnMeaning::Decimal(column.type_scale())),
            ConvertedType::TIMESTAMP_MILLIS => Some(ColumnMeaning::Time(1_000_000)),
            ConvertedType::TIMESTAMP_MICROS => Some(ColumnMeaning::Time(1000)),
            ConvertedType::DATE => Some(ColumnMeaning::Time(day)),
            ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64 => Some(ColumnMeaning::Unsigned),
            ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS | ConvertedType::INTERVAL => {
                return Err("times of day");
            }
            _ => None,
        },
    };
    match column.physical_type() {
        Type::INT96 => {
            Err("timestamps of 96 bits, which are no longer written: write them as 64-bit timestamps")
        }
        Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => Ok(logical.unwrap_or(ColumnMeaning::Text)),
        _ => Ok(logical.unwrap_or(ColumnMeaning::Number)),
    }
}
