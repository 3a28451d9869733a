//! Tables as Parquet files. The column writer writes them, because reading Parquet needs it anyway:
//! the writer of Arrow arrays would add all of Arrow to the build.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::METADATA_KEY;
use super::columns::{ColumnValues, TableColumn, TableColumns};

/// Encodes a table, in one row group.
pub(super) fn encode(columns: &TableColumns, metadata: String) -> Result<Vec<u8>, ParquetError> {
    let fields = columns.columns().iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("estimates").with_fields(fields).build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_key_value_metadata(Some(vec![KeyValue::new(METADATA_KEY.into(), metadata)]))
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for column in columns.columns() {
        match &column.values {
            ColumnValues::Epochs(epochs) => {
                write_column::<Int64Type>(&mut group, epochs.iter().map(|&epoch| Some(epoch)), false)?;
            }
            ColumnValues::Times(times) => {
                write_column::<Int64Type>(&mut group, times.iter().copied(), true)?;
            }
            ColumnValues::Words(words) => {
                let words = words.iter().map(|word| word.as_deref().map(ByteArray::from));
                write_column::<ByteArrayType>(&mut group, words, true)?;
            }
            ColumnValues::Numbers(numbers) => {
                write_column::<DoubleType>(&mut group, numbers.iter().copied(), true)?;
            }
        }
    }
    group.close()?;
    writer.into_inner()
}

fn field(column: &TableColumn) -> Result<TypePtr, ParquetError> {
    let time = LogicalType::timestamp(true, TimeUnit::MICROS);
    let (physical, logical, repetition) = match &column.values {
        ColumnValues::Epochs(_) => (PhysicalType::INT64, None, Repetition::REQUIRED),
        ColumnValues::Times(_) => (PhysicalType::INT64, Some(time), Repetition::OPTIONAL),
        ColumnValues::Words(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String), Repetition::OPTIONAL),
        ColumnValues::Numbers(_) => (PhysicalType::DOUBLE, None, Repetition::OPTIONAL),
    };
    let builder = Type::primitive_type_builder(&column.name, physical);
    builder.with_logical_type(logical).with_repetition(repetition).build().map(Arc::new)
}

/// Writes the values of a column; a null is a level of 0.
fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: impl Iterator<Item = Option<T::T>> + Clone,
    optional: bool,
) -> Result<(), ParquetError> {
    let levels: Vec<i16> = values.clone().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<T::T> = values.flatten().collect();
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("there is no such column".into()));
    };
    column.typed::<T>().write_batch(&values, optional.then_some(levels.as_slice()), None)?;
    column.close()
}

/// Returns our metadata in a file.
pub(super) fn metadata(bytes: Vec<u8>) -> Result<Option<String>, ParquetError> {
    let reader = SerializedFileReader::new(Bytes::from(bytes))?;
    let found = reader.metadata().file_metadata().key_value_metadata();
    let ours = found.into_iter().flatten().find(|pair| pair.key == METADATA_KEY);
    Ok(ours.and_then(|pair| pair.value.clone()))
}
