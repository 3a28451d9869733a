//! Reads the rows of an NDJSON file: one JSON object per line.

use std::fmt;
use std::io::{self, BufRead, Read};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::Defect;
use super::row::{FileRows, RECORD_LIMIT, Row, RowField, RowOutcome};
use super::{BYTE_ORDER_MARK, ByteStream};

/// An NDJSON file.
pub(crate) struct NdjsonRows {
    stream: ByteStream,
    wanted: Vec<String>,
    text: Vec<u8>,
    /// The number of the last line read.
    line: u64,
}

impl NdjsonRows {
    /// Continues in `stream`, whose first line is `line`.
    pub(crate) fn open(stream: ByteStream, line: u64, wanted: &[String]) -> Self {
        NdjsonRows { stream, wanted: wanted.into(), text: Vec::new(), line: line - 1 }
    }

    /// Reads the next line that is not blank.
    fn read_line(&mut self) -> io::Result<RowOutcome> {
        loop {
            self.text.clear();
            let limit = RECORD_LIMIT as u64 + 1;
            let first = self.stream.offset() == 0;
            let read = self.stream.by_ref().take(limit).read_until(b'\n', &mut self.text)?;
            self.line += 1;
            if first && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            if read == 0 {
                return Ok(RowOutcome::End);
            }
            if read > RECORD_LIMIT {
                return Ok(RowOutcome::TooLong);
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(RowOutcome::Row);
            }
        }
    }
}

impl FileRows for NdjsonRows {
    fn read(&mut self, row: &mut Row) -> io::Result<RowOutcome> {
        let outcome = self.read_line()?;
        if outcome != RowOutcome::Row {
            return Ok(outcome);
        }
        read_object(&self.text, &self.wanted, row);
        Ok(outcome)
    }

    fn position(&self) -> (u64, u64) {
        (self.stream.offset(), self.line + 1)
    }

    fn line(&self) -> u64 {
        self.line
    }

    fn is_at_hand(&self) -> bool {
        self.stream.holds_line()
    }
}

/// Number of rows that are searched for column names.
const NAMED_ROWS: usize = 1000;

/// Returns the names of the fields in the first rows, in their order.
pub(crate) fn names_of(stream: ByteStream) -> io::Result<Vec<String>> {
    let mut rows = NdjsonRows::open(stream, 1, &[]);
    let mut names: Vec<String> = Vec::new();
    for _ in 0..NAMED_ROWS {
        if rows.read_line()? != RowOutcome::Row {
            break;
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&rows.text).unwrap_or_default();
        for name in object.into_iter().map(|(name, _)| name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// Reads one object into a row.
pub(crate) fn read_object(text: &[u8], wanted: &[String], row: &mut Row) {
    row.text.clear();
    row.fields.clear();
    row.fields.resize(wanted.len(), RowField::Missing);
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = RowVisitor { wanted, row }.deserialize(&mut json).and_then(|()| json.end());
    row.defect = object.is_err().then_some(Defect::NotAnObject);
}

/// Copies the wanted fields of an object into a row and skips the others.
struct RowVisitor<'a> {
    wanted: &'a [String],
    row: &'a mut Row,
}

impl<'de> DeserializeSeed<'de> for RowVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(slot) = map.next_key_seed(FieldIndex(self.wanted))? {
            match slot {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(slot) => {
                    let value = map.next_value::<&RawValue>()?.get();
                    let first = std::mem::replace(&mut self.row.fields[slot], RowField::Missing);
                    self.row.fields[slot] = match first {
                        RowField::Missing => field(value, &mut self.row.text),
                        _ => RowField::Defective(Defect::FieldTwice),
                    };
                }
            }
        }
        Ok(())
    }
}

/// Index of a field's name among the wanted ones.
struct FieldIndex<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for FieldIndex<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldIndex<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|wanted| wanted == name))
    }
}

/// Reads a JSON value as a field: strings without quotes and escapes, numbers as written.
fn field(json: &str, text: &mut Vec<u8>) -> RowField {
    let start = text.len();
    match json.as_bytes() {
        b"null" => return RowField::Defective(Defect::Missing),
        [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => text.extend_from_slice(inner),
        [b'"', ..] => match serde_json::from_str::<String>(json) {
            Ok(unescaped) => text.extend_from_slice(unescaped.as_bytes()),
            Err(_) => return RowField::Defective(Defect::NotScalar),
        },
        [b'-' | b'0'..=b'9', ..] => text.extend_from_slice(json.as_bytes()),
        _ => return RowField::Defective(Defect::NotScalar),
    }
    RowField::Text(start..text.len())
}
