//! Streams of Redis (XREAD over RESP2, `redis.io/docs/reference/protocol-spec`).
//!
//! The id of an entry is `milliseconds-number`, 64 bits each. An entry's fields are the columns, by name. The protocol is
//! read entry by entry into the row's own buffers: a value that is too long is passed over before it takes memory.

use std::io;

use super::broker::{Entries, Place, START, Trouble, lost, refusal};
use super::control::Control;
use super::error::Defect;
use super::row::{Field, RECORD_LIMIT, Row};
use super::wire::{Wire, garbled, number};
use crate::pipeline::{Broker, Credentials};

/// Entries that are asked for at once.
const BATCH: &str = "512";

/// Milliseconds that the server waits for the first of them.
const WAIT: &str = "250";

/// The most parts of an answer that is read as a whole, and how deep they may lie.
const PARTS: usize = 4096;
const DEPTH: usize = 8;

/// Answers that pass: the server is starting, or its cluster is in motion.
const PASSING: [&str; 5] = ["LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY"];

/// A connection to a stream.
pub(super) struct Redis {
    broker: Broker,
    wire: Wire,
    place: Place,
    /// Entries of the last answer that have not been read.
    left: usize,
    line: Vec<u8>,
    /// The id of an entry, the name of a field.
    name: Vec<u8>,
}

/// An answer that is not a list of entries.
enum Value {
    Text(Vec<u8>),
    List(Vec<Value>),
    Nothing,
    Error(String),
}

impl Redis {
    pub(super) fn open(broker: &Broker, control: &Control, place: Place) -> Result<Self, Trouble> {
        let wire = Wire::connect(&broker.address, control)?;
        let mut redis =
            Redis { broker: broker.clone(), wire, place, left: 0, line: Vec::new(), name: Vec::new() };
        if let Some(Credentials { user, secret }) = &broker.credentials {
            let parts: Vec<&str> =
                ["AUTH"].into_iter().chain(user.as_deref()).chain([secret.as_str()]).collect();
            redis.ask(&parts)?;
        }
        if let Some(database) = broker.database {
            redis.ask(&["SELECT", &database.to_string()])?;
        }
        redis.check()?;
        Ok(redis)
    }

    fn send(&mut self, parts: &[&str]) -> io::Result<()> {
        let mut command = format!("*{}\r\n", parts.len());
        parts.iter().for_each(|part| command.push_str(&format!("${}\r\n{part}\r\n", part.len())));
        self.wire.send(command.as_bytes())
    }

    /// Sends a command; its answer, unless that is an error.
    fn ask(&mut self, parts: &[&str]) -> Result<Value, Trouble> {
        self.send(parts)?;
        match self.value(&mut { PARTS }, DEPTH)? {
            Value::Error(words) => Err(self.refused(&words)),
            value => Ok(value),
        }
    }

    fn refused(&self, words: &str) -> Trouble {
        match PASSING.iter().any(|passing| words.starts_with(passing)) {
            true => Trouble::Passing(io::Error::other(words.to_owned())),
            false => refusal(&self.broker, words),
        }
    }

    /// Whether the stream still has what had been read of it: one that lost it would give its numbers to other entries.
    fn check(&mut self) -> Result<(), Trouble> {
        if self.place == START {
            return Ok(());
        }
        let stream = self.broker.stream.clone();
        self.send(&["XINFO", "STREAM", &stream])?;
        let facts = match self.value(&mut { PARTS }, DEPTH)? {
            Value::List(facts) => facts,
            Value::Error(words) if words.contains("no such key") => {
                return Err(lost(&self.broker, "is not there any more".into()));
            }
            Value::Error(words) => return Err(self.refused(&words)),
            _ => return Err(garbled().into()),
        };
        let is_last = |fact: &&[Value]| matches!(&fact[0], Value::Text(name) if name == b"last-generated-id");
        match facts.chunks_exact(2).find(is_last) {
            Some([_, Value::Text(last)]) if after(parse(last)?) < self.place => Err(lost(
                &self.broker,
                format!(
                    "ends with id {}, but was read up to {}",
                    String::from_utf8_lossy(last),
                    shown(before(self.place))
                ),
            )),
            Some(_) => Ok(()),
            None => Err(garbled().into()),
        }
    }

    /// An answer as a whole.
    fn value(&mut self, parts: &mut usize, depth: usize) -> io::Result<Value> {
        *parts = parts.checked_sub(1).ok_or_else(garbled)?;
        let mut line = std::mem::take(&mut self.line);
        self.wire.line(&mut line)?;
        let value = match line.split_first() {
            Some((b'+' | b':', text)) => Value::Text(text.to_vec()),
            Some((b'-', text)) => Value::Error(String::from_utf8_lossy(text).into_owned()),
            Some((b'$' | b'*', b"-1")) => Value::Nothing,
            Some((b'$', length)) => {
                let length = number::<usize>(length)?;
                let mut text = Vec::new();
                match length <= RECORD_LIMIT {
                    true => self.wire.take(length, &mut text)?,
                    false => self.wire.skip(length)?,
                }
                self.wire.skip(2)?;
                Value::Text(text)
            }
            Some((b'*', length)) if depth > 0 => {
                let length = number::<usize>(length)?;
                Value::List((0..length).map(|_| self.value(parts, depth - 1)).collect::<io::Result<_>>()?)
            }
            _ => return Err(garbled()),
        };
        self.line = line;
        Ok(value)
    }

    /// The length that a line says behind this mark; none for nothing.
    fn length(&mut self, mark: u8) -> Result<Option<usize>, Trouble> {
        self.wire.line(&mut self.line)?;
        match self.line.split_first() {
            Some((_, b"-1")) => Ok(None),
            Some((&found, length)) if found == mark => Ok(Some(number(length)?)),
            Some((b'-', words)) => Err(self.refused(&String::from_utf8_lossy(words))),
            _ => Err(garbled().into()),
        }
    }

    fn expect(&mut self, mark: u8) -> Result<usize, Trouble> {
        self.length(mark)?.ok_or_else(|| garbled().into())
    }

    /// Asks for entries; whether there are any.
    fn fetch(&mut self) -> Result<bool, Trouble> {
        let (stream, place) = (self.broker.stream.clone(), shown(before(self.place)));
        self.send(&["XREAD", "COUNT", BATCH, "BLOCK", WAIT, "STREAMS", &stream, &place])?;
        if self.length(b'*')?.is_none() {
            // Deleted and begun anew while nothing came?
            self.check()?;
            return Ok(false);
        }
        self.expect(b'*')?;
        let name = self.expect(b'$')?;
        self.wire.skip(name)?;
        self.wire.skip(2)?;
        self.left = self.expect(b'*')?;
        Ok(self.left > 0)
    }

    /// Reads the fields of an entry.
    fn fields(&mut self, row: &mut Row, wanted: &[String]) -> Result<(), Trouble> {
        let mut total: usize = 0;
        for _ in 0..self.expect(b'*')? / 2 {
            let length = self.expect(b'$')?;
            self.name.clear();
            total = total.saturating_add(length);
            match length <= RECORD_LIMIT {
                true => self.wire.take(length, &mut self.name)?,
                false => self.wire.skip(length)?,
            }
            self.wire.skip(2)?;
            let slot = wanted.iter().position(|wanted| wanted.as_bytes() == self.name);
            let length = self.expect(b'$')?;
            total = total.saturating_add(length);
            match slot {
                Some(slot) if total <= RECORD_LIMIT => {
                    let start = row.text.len();
                    self.wire.take(length, &mut row.text)?;
                    let value = Field::Text(start..row.text.len());
                    let first = std::mem::replace(&mut row.fields[slot], value);
                    if first != Field::Missing {
                        row.fields[slot] = Field::Defective(Defect::FieldTwice);
                    }
                }
                _ => self.wire.skip(length)?,
            }
            self.wire.skip(2)?;
        }
        row.defect = (total > RECORD_LIMIT).then_some(Defect::TooLong);
        Ok(())
    }
}

impl Entries for Redis {
    fn next(&mut self, row: &mut Row, wanted: &[String]) -> Result<Option<Place>, Trouble> {
        if self.left == 0 && !self.fetch()? {
            return Ok(None);
        }
        row.text.clear();
        row.fields.clear();
        row.fields.resize(wanted.len(), Field::Missing);
        self.expect(b'*')?;
        let id = self.expect(b'$')?;
        self.name.clear();
        self.wire.take(id.min(64), &mut self.name)?;
        self.wire.skip(2)?;
        let place = after(parse(&self.name)?);
        self.fields(row, wanted)?;
        self.left -= 1;
        self.place = place;
        Ok(Some(place))
    }
}

/// The id `milliseconds-number`.
fn parse(id: &[u8]) -> io::Result<Place> {
    let dash = id.iter().position(|&byte| byte == b'-').ok_or_else(garbled)?;
    Ok((number(&id[..dash])?, number(&id[dash + 1..])?))
}

fn shown((milliseconds, sequence): Place) -> String {
    format!("{milliseconds}-{sequence}")
}

/// The next id.
fn after((milliseconds, sequence): Place) -> Place {
    match sequence.checked_add(1) {
        Some(next) => (milliseconds, next),
        None => (milliseconds.saturating_add(1), 0),
    }
}

/// The id before it.
fn before((milliseconds, sequence): Place) -> Place {
    match sequence.checked_sub(1) {
        Some(last) => (milliseconds, last),
        None => (milliseconds.saturating_sub(1), u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_each_other() {
        assert_eq!(before(START), (0, 0));
        assert_eq!(after((7, u64::MAX)), (8, 0));
        assert_eq!(before((8, 0)), (7, u64::MAX));
        assert_eq!(parse(b"1526919030474-55").ok(), Some((1_526_919_030_474, 55)));
        assert!(["", "-", "5", "5-", "-5", "a-b", "1-2-3"].iter().all(|id| parse(id.as_bytes()).is_err()));
    }
}
