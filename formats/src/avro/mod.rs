//! Records in Avro, one per message, prefixed with the number of their schema in a registry.
//!
//! A message is the byte 0, the number of its schema as four bytes, and the record in Avro's binary
//! encoding, without a header. The writer's schema gives the fields; the pipeline's columns are
//! looked up in it by name, members of a record as `outer.inner`. So no other schema is needed, and
//! a column that a schema lacks is missing in its records.
//!
//! The crate `apache-avro` would build a tree of every record. A few bytes could make it allocate
//! long lists or recurse deeply. Here a record is scanned once: wanted values are copied, all
//! others are skipped, and steps and depth are bounded. This module does no I/O: the reader of the
//! messages fetches schemas.

mod schema;
mod value;

use std::collections::HashMap;

use super::error::Defect;
use super::row::{Row, RowField};
use schema::RecordPlan;
use value::ValueReader;

pub use schema::SchemaError;

/// Largest number of schemas that are kept.
const MAX_SCHEMAS: usize = 1024;

/// Splits a message of a schema registry into the number of its schema and its content.
pub fn framed(message: &[u8]) -> Option<(u32, &[u8])> {
    let (&[magic, a, b, c, d], content) = message.split_first_chunk()?;
    (magic == 0).then_some((u32::from_be_bytes([a, b, c, d]), content))
}

/// Reads the wanted columns of records whose schemas are known.
#[derive(Default)]
pub struct AvroRecords {
    /// How to read the records of a schema; `None` if it can't be used.
    plans: HashMap<u32, Option<RecordPlan>>,
}

impl AvroRecords {
    /// Returns the number of a message's schema if it has not been learnt yet.
    pub fn unknown_schema(&self, message: &[u8]) -> Option<u32> {
        let (number, _) = framed(message)?;
        (!self.plans.contains_key(&number)).then_some(number)
    }

    /// Learns a schema: its text, after those of the schemas that it refers to. Without any text,
    /// records with this number are unusable.
    ///
    /// # Errors
    /// Reason why it can't be used. Records with this number are then unusable.
    pub fn learn(&mut self, number: u32, texts: &[String], wanted: &[String]) -> Result<(), SchemaError> {
        if self.plans.len() >= MAX_SCHEMAS {
            self.plans.clear();
        }
        let plan = if texts.is_empty() { Ok(None) } else { RecordPlan::parse(texts, wanted).map(Some) };
        let (plan, problem) = plan.map_or_else(|problem| (None, Err(problem)), |plan| (plan, Ok(())));
        self.plans.insert(number, plan);
        problem
    }

    /// Reads a message into a row.
    pub fn read(&self, message: &[u8], wanted: &[String], row: &mut Row) {
        row.text.clear();
        row.fields.clear();
        row.fields.resize(wanted.len(), RowField::Missing);
        let read = framed(message).and_then(|(number, content)| {
            let plan = self.plans.get(&number)?.as_ref()?;
            ValueReader::new(content).record(plan, row)
        });
        row.defect = read.is_none().then_some(Defect::NotARecord);
    }
}

#[cfg(test)]
mod tests;
