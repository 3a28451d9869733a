//! Writes tables as Arrow IPC files (also called Feather), and reads their metadata.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};

use super::METADATA_KEY;
use super::columns::{ColumnValues, TableColumns};

/// Encodes a table as one record batch.
pub(super) fn encode(columns: &TableColumns, metadata: String) -> Result<Vec<u8>, ArrowError> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::<ArrayRef>::new());
    for column in columns.columns() {
        let (data_type, nullable, array): (_, _, ArrayRef) = match &column.values {
            ColumnValues::Epochs(epochs) => {
                (DataType::Int64, false, Arc::new(Int64Array::from(epochs.clone())))
            }
            ColumnValues::Times(times) => {
                let array = TimestampMicrosecondArray::from(times.clone()).with_timezone("UTC");
                (DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true, Arc::new(array))
            }
            ColumnValues::Words(words) => (DataType::Utf8, true, Arc::new(StringArray::from_iter(words))),
            ColumnValues::Numbers(numbers) => {
                (DataType::Float64, true, Arc::new(Float64Array::from(numbers.clone())))
            }
        };
        fields.push(Field::new(&column.name, data_type, nullable));
        arrays.push(array);
    }
    let schema = Schema::new(fields).with_metadata(HashMap::from([(METADATA_KEY.into(), metadata)]));
    let schema = Arc::new(schema);
    let mut writer = FileWriter::try_new(Vec::new(), &schema)?;
    writer.write(&RecordBatch::try_new(schema, arrays)?)?;
    writer.finish()?;
    writer.into_inner()
}

/// Returns the metadata that hushflow stored in a file, if any.
pub(super) fn metadata(bytes: Vec<u8>) -> Result<Option<String>, ArrowError> {
    let reader = FileReader::try_new(Cursor::new(bytes), None)?;
    Ok(reader.schema().metadata().get(METADATA_KEY).cloned())
}
