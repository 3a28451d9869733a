//! Reads the rows of an NDJSON file: one JSON object per line. The field `b` of an object in the
//! field `a` has the name `a.b`, unless a field has that name itself.

use std::fmt;
use std::io::{self, BufRead, Read};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::Defect;
use super::row::{FileRows, RECORD_LIMIT, Row, RowField, RowOutcome};
use super::{BYTE_ORDER_MARK, ByteStream};

/// An NDJSON file.
pub struct NdjsonRows {
    stream: ByteStream,
    wanted: Vec<String>,
    text: Vec<u8>,
    /// The number of the last line read.
    line: u64,
}

impl NdjsonRows {
    /// Continues in `stream`, whose first line is `line`.
    pub fn open(stream: ByteStream, line: u64, wanted: &[String]) -> Self {
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

    fn has_buffered_row(&self) -> bool {
        self.stream.holds_line()
    }
}

/// Number of rows that are searched for column names.
const NAMED_ROWS: usize = 1000;

/// Returns the names of the fields in the first rows, in their order.
pub fn names_of(stream: ByteStream) -> io::Result<Vec<String>> {
    let mut rows = NdjsonRows::open(stream, 1, &[]);
    let mut names: Vec<String> = Vec::new();
    for _ in 0..NAMED_ROWS {
        if rows.read_line()? != RowOutcome::Row {
            break;
        }
        add_names("", serde_json::from_slice(&rows.text).unwrap_or_default(), &mut names);
    }
    // An object that some rows lack is represented only by the names of its fields.
    let is_object =
        |name: &String| names.iter().any(|other| inside(other, name).is_some_and(|rest| !rest.is_empty()));
    let objects: Vec<_> = names.iter().map(is_object).collect();
    Ok(names.into_iter().zip(objects).filter_map(|(name, is_object)| (!is_object).then_some(name)).collect())
}

/// Adds the names of the fields of an object, which begin with `path`, and of the objects in it.
fn add_names(path: &str, object: serde_json::Map<String, serde_json::Value>, names: &mut Vec<String>) {
    for (name, value) in object {
        let name = format!("{path}{name}");
        match value {
            serde_json::Value::Object(inner) => add_names(&(name + "."), inner, names),
            _ if names.contains(&name) => {}
            _ => names.push(name),
        }
    }
}

/// Returns the name of a field within the object that `object` names.
fn inside<'a>(name: &'a str, object: &str) -> Option<&'a str> {
    name.strip_prefix(object)?.strip_prefix('.')
}

/// Reads one object into a row.
pub fn read_object(text: &[u8], wanted: &[String], row: &mut Row) {
    row.text.clear();
    row.fields.clear();
    row.fields.resize(wanted.len(), RowField::Missing);
    let mut json = serde_json::Deserializer::from_slice(text);
    let object = RowVisitor { wanted, path: "", row }.deserialize(&mut json).and_then(|()| json.end());
    row.defect = object.is_err().then_some(Defect::NotAnObject);
}

/// Copies the wanted fields of an object into a row and skips the others.
struct RowVisitor<'a, 'r> {
    wanted: &'a [String],
    /// Prefix of the names of this object's fields.
    path: &'a str,
    row: &'r mut Row,
}

impl<'de> DeserializeSeed<'de> for RowVisitor<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (wanted, row) = (self.wanted, self.row);
        while let Some(found) = map.next_key_seed(WantedName { wanted, path: self.path })? {
            match found {
                WantedField::None => drop(map.next_value::<IgnoredAny>()?),
                WantedField::Inside(path) => {
                    let value = map.next_value::<&RawValue>()?.get();
                    if value.starts_with('{') {
                        let inner = RowVisitor { wanted, path, row: &mut *row };
                        let read = inner.deserialize(&mut serde_json::Deserializer::from_str(value));
                        read.map_err(A::Error::custom)?;
                    }
                }
                WantedField::At(slot) => {
                    let value = map.next_value::<&RawValue>()?.get();
                    let first = std::mem::replace(&mut row.fields[slot], RowField::Missing);
                    row.fields[slot] = match first {
                        RowField::Missing => field(value, &mut row.text),
                        _ => RowField::Defective(Defect::FieldTwice),
                    };
                }
            }
        }
        Ok(())
    }
}

/// Use of a field of an object.
enum WantedField<'a> {
    /// It is the wanted one at this index.
    At(usize),
    /// It may be an object that holds wanted ones, whose names begin with this.
    Inside(&'a str),
    /// It is not wanted.
    None,
}

/// Finds the name of a field, in an object with this path, among the wanted ones.
struct WantedName<'a> {
    wanted: &'a [String],
    path: &'a str,
}

impl<'de, 'a> DeserializeSeed<'de> for WantedName<'a> {
    type Value = WantedField<'a>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WantedField<'a>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for WantedName<'a> {
    type Value = WantedField<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<WantedField<'a>, E> {
        let within = |wanted: &'a String| wanted.strip_prefix(self.path);
        if let Some(slot) = self.wanted.iter().position(|wanted| within(wanted) == Some(name)) {
            return Ok(WantedField::At(slot));
        }
        let path = self.wanted.iter().find_map(|wanted| {
            let rest = inside(within(wanted)?, name)?;
            Some(&wanted[..wanted.len() - rest.len()])
        });
        Ok(path.map_or(WantedField::None, WantedField::Inside))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str, wanted: &[&str]) -> Vec<Result<String, Defect>> {
        let (wanted, mut row) = (wanted.iter().map(ToString::to_string).collect::<Vec<_>>(), Row::default());
        read_object(line.as_bytes(), &wanted, &mut row);
        let text = |slot| row.text(slot).map(|text| String::from_utf8_lossy(text).into_owned());
        (0..wanted.len()).map(text).collect()
    }

    #[test]
    fn fields_of_inner_objects_have_dotted_names() {
        let wanted = ["geo.country", "ms", "a.b.c", "geo.city"];
        let line = r#"{"a":{"b":{"c":7}},"geo":{"x":{"country":"x"},"country":"NO","city":null},"ms":1.5}"#;
        let missing = Err(Defect::Missing);
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(texts(line, &wanted), [ok("NO"), ok("1.5"), ok("7"), missing.clone()]);
        let flat = r#"{"geo.country":"SE","geo":"none","a":{"b":3,"b.c":4},"ms":[1]}"#;
        assert_eq!(texts(flat, &wanted), [ok("SE"), Err(Defect::NotScalar), ok("4"), missing]);
        let twice = r#"{"geo":{"country":"NO"},"geo.country":"SE"}"#;
        assert_eq!(texts(twice, &["geo.country"]), [Err(Defect::FieldTwice)]);
    }
}
