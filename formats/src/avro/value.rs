//! Reads values in Avro's binary encoding. Every function returns `None` for bytes that do not
//! match the schema.

use std::io::Write;

use super::schema::{AvroType, Schema, TypeNumber};
use super::schema::{FieldPlan, RecordPlan};
use crate::error::Defect;
use crate::row::{Row, RowField};

/// Maximum number of values in a record, including values without bytes, and maximum nesting depth.
const MAX_STEPS: u32 = 1 << 22;
const GREATEST_DEPTH: u32 = 64;

/// Reads the bytes of a record from the front.
pub(super) struct ValueReader<'a> {
    bytes: &'a [u8],
    steps: u32,
}

impl<'a> ValueReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        ValueReader { bytes, steps: 0 }
    }

    /// Reads a whole record into a row.
    pub(super) fn record(mut self, plan: &RecordPlan, row: &mut Row) -> Option<()> {
        self.fields(&plan.schema, &plan.fields, row)?;
        self.bytes.is_empty().then_some(())
    }

    fn fields(&mut self, schema: &Schema, fields: &[FieldPlan], row: &mut Row) -> Option<()> {
        fields.iter().try_for_each(|field| self.field(schema, field, row))
    }

    fn field(&mut self, schema: &Schema, field: &FieldPlan, row: &mut Row) -> Option<()> {
        match field {
            FieldPlan::Skip(number) => self.skip(schema, *number, 0),
            FieldPlan::Copy(number, slot) => {
                row.fields[*slot] = self.copy(schema, *number, &mut row.text)?;
                Some(())
            }
            FieldPlan::Enter(fields) => self.fields(schema, fields, row),
            FieldPlan::Choose(branches) => {
                let branch = branches.get(self.length()?)?;
                self.field(schema, branch, row)
            }
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        self.take(LENGTH)?.try_into().ok()
    }

    /// Reads an integer: seven bits a byte, the lowest first, with the sign in the lowest bit.
    fn integer(&mut self) -> Option<i64> {
        let mut coded: u64 = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            coded |= bits << shift;
            if byte < 0x80 {
                return Some((coded >> 1) as i64 ^ -((coded & 1) as i64));
            }
        }
        None
    }

    /// Reads a length or an index.
    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.integer()?).ok()
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    /// Copies a value into a field.
    fn copy(&mut self, schema: &Schema, number: TypeNumber, text: &mut Vec<u8>) -> Option<RowField> {
        let start = text.len();
        match schema.get(number) {
            AvroType::Null => return Some(RowField::Defective(Defect::Missing)),
            AvroType::Boolean => {
                let [byte] = self.array()?;
                return (byte <= 1).then_some(RowField::Number(f64::from(byte)));
            }
            AvroType::Float => return Some(RowField::Number(f32::from_le_bytes(self.array()?).into())),
            AvroType::Double => return Some(RowField::Number(f64::from_le_bytes(self.array()?))),
            AvroType::Time(nanoseconds) => {
                let nanoseconds = i128::from(self.integer()?) * i128::from(*nanoseconds);
                let time = i64::try_from(nanoseconds.div_euclid(1000)).ok();
                return Some(time.map_or(RowField::Defective(Defect::NotATime), RowField::Time));
            }
            // Written as digits, because keys and entities are texts.
            AvroType::Integer => write!(text, "{}", self.integer()?).ok()?,
            AvroType::Bytes => text.extend_from_slice(self.text()?),
            AvroType::Fixed(size) => text.extend_from_slice(self.take(*size)?),
            AvroType::Decimal { scale, size } => {
                let bytes = match size {
                    Some(size) => self.take(*size)?,
                    None => self.text()?,
                };
                let Some(value) = big_endian(bytes) else {
                    return Some(RowField::Defective(Defect::NotANumber));
                };
                write!(text, "{value}e-{scale}").ok()?;
            }
            AvroType::Enum(symbols) => text.extend_from_slice(symbols.get(self.length()?)?.as_bytes()),
            AvroType::Union(branches) => {
                let branch = *branches.get(self.length()?)?;
                // A union has no union in it.
                return match schema.get(branch) {
                    AvroType::Union(_) => None,
                    _ => self.copy(schema, branch, text),
                };
            }
            AvroType::Array(_) | AvroType::Map(_) | AvroType::Record(_) => {
                self.skip(schema, number, 0)?;
                return Some(RowField::Defective(Defect::NotScalar));
            }
        }
        Some(RowField::Text(start..text.len()))
    }

    /// Skips a value at a depth.
    fn skip(&mut self, schema: &Schema, number: TypeNumber, depth: u32) -> Option<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > GREATEST_DEPTH {
            return None;
        }
        match schema.get(number) {
            AvroType::Null => {}
            AvroType::Boolean => drop(self.take(1)?),
            AvroType::Integer | AvroType::Time(_) | AvroType::Enum(_) => drop(self.integer()?),
            AvroType::Float => drop(self.take(4)?),
            AvroType::Double => drop(self.take(8)?),
            AvroType::Bytes | AvroType::Decimal { size: None, .. } => drop(self.text()?),
            AvroType::Fixed(size) | AvroType::Decimal { size: Some(size), .. } => drop(self.take(*size)?),
            AvroType::Array(items) => self.skip_blocks(|reader| reader.skip(schema, *items, depth + 1))?,
            AvroType::Map(values) => self.skip_blocks(|reader| {
                reader.text()?;
                reader.skip(schema, *values, depth + 1)
            })?,
            AvroType::Union(branches) => {
                let branch = *branches.get(self.length()?)?;
                self.skip(schema, branch, depth + 1)?;
            }
            AvroType::Record(fields) => {
                fields.iter().try_for_each(|(_, number)| self.skip(schema, *number, depth + 1))?;
            }
        }
        Some(())
    }

    /// Skips the blocks of a list or a map: each has a count, which is negative if the block's
    /// number of bytes follows; a count of 0 ends them.
    fn skip_blocks(&mut self, mut skip: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            self.steps += 1;
            match self.integer()? {
                _ if self.steps > MAX_STEPS => return None,
                0 => return Some(()),
                count if count < 0 => {
                    let bytes = self.length()?;
                    self.take(bytes)?;
                }
                count => (0..count).try_for_each(|_| skip(self))?,
            }
        }
    }
}

/// Returns the number with these bytes, the most significant first; `None` beyond 128 bits.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let sign = if bytes.first().is_some_and(|&first| first >= 0x80) { -1 } else { 0 };
    let fits = bytes.len() <= size_of::<i128>();
    fits.then(|| bytes.iter().fold(sign, |value, &byte| value << 8 | i128::from(byte)))
}
