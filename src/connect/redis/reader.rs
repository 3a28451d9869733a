//! Reads Redis streams with XREAD.
//!
//! The id of an entry is `milliseconds-number`, 64 bits each. Either an entry's fields are the
//! columns, by name, or one field holds a record as text. Entries are parsed one by one into the
//! row's own buffers: a value that is too long is skipped without taking memory.

use super::RedisSource;
use super::connection::{RedisConnection, RedisValue, fact};
use crate::connect::entries::Entries;
use crate::state::Position;

use crate::connect::error::{RequestError, lost};
use crate::connect::wire::{EntryId, format_id, malformed_answer, parse_id};
use crate::control::Control;
use crate::format::Defect;
use crate::format::form::EntryParser;
use crate::format::row::{RECORD_LIMIT, Row, RowField};

/// Number of entries requested at once.
const BATCH: &str = "512";

/// Milliseconds that the server waits for the first entry.
const WAIT: &str = "250";

/// Smallest possible entry id: that of [`Position::START`].
const FIRST: EntryId = (0, 1);

/// A connection that reads a stream.
pub(super) struct RedisReader {
    connection: RedisConnection,
    /// The field that holds a record as text, if one does.
    field: Option<String>,
    /// Smallest possible id of the next entry.
    next: EntryId,
    /// Number of unread entries of the last answer.
    left: usize,
    /// Buffer for the id of an entry or the name of a field.
    name: Vec<u8>,
}

impl RedisReader {
    pub(super) fn open(
        source: &RedisSource,
        control: &Control,
        position: Position,
    ) -> Result<Self, RequestError> {
        let connection = RedisConnection::open(&source.stream, control)?;
        let field = source.field.clone();
        let next = (position.offset, position.row);
        let mut reader = RedisReader { connection, field, next, left: 0, name: Vec::new() };
        reader.check()?;
        Ok(reader)
    }

    /// Checks that the stream exists, and that its last id is not below that of the last entry that
    /// was read. A stream that lost entries would reuse their ids.
    fn check(&mut self) -> Result<(), RequestError> {
        if self.next == FIRST {
            return Ok(());
        }
        let facts = match self.connection.facts() {
            Err(RequestError::NoStream) => {
                return Err(lost(self.connection.stream.name(), "no longer exists".into()));
            }
            facts => facts?,
        };
        match fact(&facts, "last-generated-id") {
            Some(RedisValue::Text(last)) if after(parse_id(last)?) < self.next => Err(lost(
                self.connection.stream.name(),
                format!(
                    "ends with id {}, before the last entry that was read",
                    String::from_utf8_lossy(last)
                ),
            )),
            Some(_) => Ok(()),
            None => Err(malformed_answer().into()),
        }
    }

    /// Requests entries. Returns whether there are any.
    fn fetch(&mut self) -> Result<bool, RequestError> {
        let (stream, last) = (self.connection.stream.stream.clone(), format_id(before(self.next)));
        self.connection.send(&["XREAD", "COUNT", BATCH, "BLOCK", WAIT, "STREAMS", &stream, &last])?;
        if self.connection.length(b'*')?.is_none() {
            // The stream may have been deleted and recreated in the meantime.
            self.check()?;
            return Ok(false);
        }
        self.connection.expect(b'*')?;
        let name = self.connection.expect(b'$')?;
        self.connection.wire.skip(name)?;
        self.connection.wire.skip(2)?;
        self.left = self.connection.expect(b'*')?;
        Ok(self.left > 0)
    }
}

impl Entries for RedisReader {
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError> {
        if self.left == 0 && !self.fetch()? {
            return Ok(None);
        }
        row.text.clear();
        row.fields.clear();
        let wanted = match &self.field {
            Some(field) => std::slice::from_ref(field),
            None => form.wanted(),
        };
        row.fields.resize(wanted.len(), RowField::Missing);
        self.connection.expect(b'*')?;
        let id = self.connection.expect(b'$')?;
        self.name.clear();
        self.connection.wire.take(id.min(64), &mut self.name)?;
        self.connection.wire.skip(2)?;
        let next = after(parse_id(&self.name)?);
        fields((&mut self.connection, &mut self.name), row, wanted)?;
        if self.field.is_some() {
            match (row.defect, row.text(0).map(<[u8]>::to_vec)) {
                (None, Ok(text)) => form.read(&text, row),
                (defect, text) => form.refuse(defect.or(text.err()).unwrap_or(Defect::Missing), row),
            }
        }
        self.left -= 1;
        self.next = next;
        Ok(Some(Position { part: 0, offset: next.0, row: next.1 }))
    }

    fn has_buffered_row(&self) -> bool {
        self.connection.wire.has_more()
    }
}

/// Reads the fields of an entry; `name` is a buffer for their names.
fn fields(
    (connection, name): (&mut RedisConnection, &mut Vec<u8>),
    row: &mut Row,
    wanted: &[String],
) -> Result<(), RequestError> {
    let mut total: usize = 0;
    for _ in 0..connection.expect(b'*')? / 2 {
        let length = connection.expect(b'$')?;
        name.clear();
        total = total.saturating_add(length);
        match length <= RECORD_LIMIT {
            true => connection.wire.take(length, name)?,
            false => connection.wire.skip(length)?,
        }
        connection.wire.skip(2)?;
        let slot = wanted.iter().position(|wanted| wanted.as_bytes() == name.as_slice());
        let length = connection.expect(b'$')?;
        total = total.saturating_add(length);
        match slot {
            Some(slot) if total <= RECORD_LIMIT => {
                let start = row.text.len();
                connection.wire.take(length, &mut row.text)?;
                let value = RowField::Text(start..row.text.len());
                let first = std::mem::replace(&mut row.fields[slot], value);
                if first != RowField::Missing {
                    row.fields[slot] = RowField::Defective(Defect::FieldTwice);
                }
            }
            _ => connection.wire.skip(length)?,
        }
        connection.wire.skip(2)?;
    }
    row.defect = (total > RECORD_LIMIT).then_some(Defect::TooLong);
    Ok(())
}

/// Returns the next id.
fn after((milliseconds, sequence): EntryId) -> EntryId {
    match sequence.checked_add(1) {
        Some(next) => (milliseconds, next),
        None => (milliseconds.saturating_add(1), 0),
    }
}

/// Returns the previous id.
fn before((milliseconds, sequence): EntryId) -> EntryId {
    match sequence.checked_sub(1) {
        Some(last) => (milliseconds, last),
        None => (milliseconds.saturating_sub(1), u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BrokerServer, RedisStream};
    use super::*;
    use crate::connect::fake::{form, serve};
    use crate::format::Format;

    /// Reads a value, a name and a row that are too long, a valid row, and a value that never ends.
    #[test]
    fn lengths_stated_by_a_server_take_no_memory() {
        let entry = |id: u8, fields: &str| format!("*2\r\n$3\r\n{id}-0\r\n{fields}");
        let long = "7".repeat(3 * RECORD_LIMIT);
        let many = format!("$1\r\nx\r\n$9\r\n{:9}\r\n", 1).repeat(RECORD_LIMIT / 9 + 1);
        let entries = [
            entry(1, &format!("*2\r\n$1\r\nx\r\n${}\r\n{long}\r\n", long.len())),
            entry(2, &format!("*2\r\n${}\r\n{long}\r\n$1\r\n7\r\n", long.len())),
            entry(3, &format!("*{}\r\n{many}", 2 * (RECORD_LIMIT / 9 + 1))),
            entry(4, "*2\r\n$1\r\nx\r\n$1\r\n5\r\n"),
            entry(5, "*2\r\n$1\r\nx\r\n$2147483647\r\n"),
        ];
        let answer = format!("*1\r\n*2\r\n$1\r\ns\r\n*5\r\n{}", entries.concat());
        let (address, server) = serve(vec![(None, answer)], true);
        let at = BrokerServer { address, ..BrokerServer::default() };
        let stream = RedisStream { server: at, database: None, stream: "s".into() };
        let source = RedisSource { stream, field: None };
        let control = Control::new();
        let mut redis = RedisReader::open(&source, &control, Position::START).ok().unwrap();
        let (mut row, mut form) = (Row::default(), form(Format::Fields));
        for expected in [Some(Defect::TooLong), Some(Defect::TooLong), Some(Defect::TooLong), None] {
            assert!(matches!(redis.next(&mut row, &mut form), Ok(Some(_))));
            assert_eq!(row.defect, expected);
        }
        assert_eq!(row.number(0), Ok(5.0));
        let stop = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            control.stop();
        });
        assert!(
            matches!(redis.next(&mut row, &mut form), Err(RequestError::Transient(_))),
            "the run is stopped"
        );
        let capacity = row.text.capacity() + redis.name.capacity();
        assert!(capacity <= 4 * RECORD_LIMIT, "{capacity} bytes are held");
        drop(redis);
        stop.join().unwrap();
        server.join().unwrap();
    }

    #[test]
    fn ids_follow_each_other() {
        assert_eq!(before(FIRST), (0, 0));
        assert_eq!(after((7, u64::MAX)), (8, 0));
        assert_eq!(before((8, 0)), (7, u64::MAX));
    }
}
