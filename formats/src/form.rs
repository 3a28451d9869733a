//! Parses the entries of a broker's stream: named fields, or a text that is one record.

use std::io::Cursor;
use std::path::Path;

use super::ByteStream;
use super::Format;
use super::avro::{AvroRecords, SchemaError};
use super::csv::CsvRows;
use super::error::{Defect, FormatError};
use super::ndjson::read_object;
use super::row::{FileRows, Row, RowField, RowOutcome};

/// The format of the rows of a source, and the columns to read.
#[derive(Clone, Debug)]
pub struct RowLayout {
    /// How a row is written.
    pub format: Format,
    /// The header row of a CSV stream that has none of its own.
    pub header: Option<Vec<u8>>,
    /// The columns of a row.
    pub wanted: Vec<String>,
}

/// Reads the wanted columns of an entry.
pub struct EntryParser {
    /// The columns of a row.
    wanted: Vec<String>,
    text: EntryFormat,
}

enum EntryFormat {
    /// Entries have named fields and no text.
    None,
    Object,
    Line(Box<CsvRows>),
    Avro(AvroRecords),
}

impl EntryParser {
    /// # Errors
    /// [`FormatError::NoColumn`] if the pipeline's own header lacks a column.
    pub fn new(shape: &RowLayout, name: &Path) -> Result<Self, FormatError> {
        let text = match (shape.format, &shape.header) {
            (Format::Csv(delimiter), Some(header)) => {
                let header = ByteStream::new(Cursor::new(header.clone()), 0);
                EntryFormat::Line(Box::new(CsvRows::open(header, name, delimiter, &shape.wanted)?))
            }
            (Format::Fields, _) => EntryFormat::None,
            (Format::Avro, _) => EntryFormat::Avro(AvroRecords::default()),
            _ => EntryFormat::Object,
        };
        Ok(EntryParser { wanted: shape.wanted.clone(), text })
    }

    /// The columns of a row.
    pub fn wanted(&self) -> &[String] {
        &self.wanted
    }

    /// Reads a record into a row.
    pub fn read(&mut self, text: &[u8], row: &mut Row) {
        match &mut self.text {
            EntryFormat::Line(rows) => rows.read_alone(text, row),
            EntryFormat::Avro(records) => records.read(text, &self.wanted, row),
            _ => read_object(text, &self.wanted, row),
        }
    }

    /// Whether records have schemas that must be learnt.
    pub fn has_schemas(&self) -> bool {
        matches!(self.text, EntryFormat::Avro(_))
    }

    /// Returns the number of the schema that must be learnt before this record is read.
    pub fn unknown_schema(&self, text: &[u8]) -> Option<u32> {
        match &self.text {
            EntryFormat::Avro(records) => records.unknown_schema(text),
            _ => None,
        }
    }

    /// Learns a schema: its text, after those that it refers to; empty if there is no such schema.
    ///
    /// # Errors
    /// [`SchemaError`]: the reason why its records can't be used.
    pub fn learn(&mut self, number: u32, texts: &[String]) -> Result<(), SchemaError> {
        match &mut self.text {
            EntryFormat::Avro(records) => records.learn(number, texts, &self.wanted),
            _ => Ok(()),
        }
    }

    /// Makes the row of an entry that can't be used.
    pub fn refuse(&self, defect: Defect, row: &mut Row) {
        row.fields.clear();
        row.fields.resize(self.wanted.len(), RowField::Missing);
        row.defect = Some(defect);
    }
}

impl CsvRows {
    /// Reads a text that is one record.
    fn read_alone(&mut self, text: &[u8], row: &mut Row) {
        self.begin(ByteStream::new(Cursor::new(text.to_vec()), 0));
        let read = FileRows::read(self, row);
        let whole = matches!(read, Ok(RowOutcome::Row)) && self.is_at_end();
        if !whole {
            row.defect = Some(Defect::FieldCount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_record() {
        let form = |format, wanted: &str| {
            let header = (format == Format::COMMAS).then(|| b"a,b\n".to_vec());
            EntryParser::new(&RowLayout { format, header, wanted: vec![wanted.into()] }, "s".as_ref())
        };
        let (mut csv, mut json) = (form(Format::COMMAS, "b").unwrap(), form(Format::Ndjson, "b").unwrap());
        let mut row = Row::default();
        let mut check = |form: &mut EntryParser, text: &str, expected: Result<f64, Defect>| {
            form.read(text.as_bytes(), &mut row);
            let found = row.defect.map_or_else(|| row.number(0), Err);
            assert_eq!(found, expected, "{text:?}");
        };
        for _ in 0..2 {
            check(&mut csv, "1,2", Ok(2.0));
            check(&mut csv, "1,\"3\"\r\n", Ok(3.0));
            check(&mut csv, "1,2\n3,4\n", Err(Defect::FieldCount));
            check(&mut csv, "1", Err(Defect::FieldCount));
            check(&mut csv, "", Err(Defect::FieldCount));
            check(&mut csv, "1,\"2", Ok(2.0));
            check(&mut csv, "1,", Err(Defect::Missing));
            check(&mut json, "{\"b\": 4}", Ok(4.0));
            check(&mut json, "1,2", Err(Defect::NotAnObject));
        }
        assert!(form(Format::COMMAS, "c").is_err());
    }
}
