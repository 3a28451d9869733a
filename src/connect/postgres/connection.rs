//! A connection to PostgreSQL (protocol 3.0, `postgresql.org/docs/current/protocol.html`): simple
//! queries, rows one by one, and `COPY` into a table.
//!
//! Only the needed part of a message is read, so its stated length takes no memory.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::section::Database;
use crate::connect::error::{RequestError, refusal, transient};
use crate::connect::wire::{ServerConnection, malformed_answer};
use crate::control::Control;
use crate::security::TlsClient;

/// Maximum time that a server may be silent while it works on a query. Keep-alive probes notice a
/// lost machine much earlier, and a stop ends any wait.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum number of bytes of a message that is not a row, and of all rows of a small answer.
const ANSWER_LIMIT: usize = 16 << 20;

/// Bytes of lines that are sent in one message.
const COPY_PART: usize = 1 << 20;

/// Classes of errors whose messages never quote values of rows: connections, transactions, logins,
/// names, syntax, resources, states, interventions.
const PLAIN_CLASSES: [&str; 10] = ["08", "25", "28", "3D", "3F", "42", "53", "54", "55", "57"];

/// Errors after which another attempt may succeed: lost connections, conflicts of transactions, a
/// full server, locks, and a server that starts, stops or cancels.
const TRANSIENT: [&str; 5] = ["08", "40", "53", "55P03", "57"];

/// Error code: no access rule admits the client.
const INVALID_AUTHORIZATION: &str = "28000";

/// Error code: the password is wrong.
const INVALID_PASSWORD: &str = "28P01";

/// Error code: two sinks write the same epoch.
const UNIQUE_VIOLATION: &str = "23505";

/// A connection after login.
pub(super) struct DatabaseConnection {
    /// Name of the database and its table for messages.
    name: String,
    /// How the connection is encrypted, and the fields of the login, for hints.
    tls: Option<TlsClient>,
    login: String,
    pub(super) wire: ServerConnection,
    /// The body of the last message that was read whole.
    pub(super) body: Vec<u8>,
}

/// A message of the server: its type, and the length of its body, which follows.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) length: usize,
}

/// A row of a small answer. Null is `None`.
pub(super) type TextRow = Vec<Option<String>>;

impl DatabaseConnection {
    pub(super) fn open(database: &Database, name: String, control: &Control) -> Result<Self, RequestError> {
        let wire = encrypted(database, &name, database.server.connect_plainly(control)?)?;
        let (tls, login) = (database.server.tls.clone(), database.server.login.hint());
        let mut connection = DatabaseConnection { name, tls, login, wire, body: Vec::new() };
        connection.log_in(database, control)?;
        connection.wire = connection.wire.with_timeout(TIMEOUT);
        Ok(connection)
    }

    /// Sends messages.
    pub(super) fn send(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), RequestError> {
        let mut bytes = BytesMut::new();
        write(&mut bytes).map_err(|error| self.refusal(&error.to_string()))?;
        Ok(self.wire.send(&bytes)?)
    }

    /// Returns the next message that is not a notice or an error. Its body follows.
    pub(super) fn message(&mut self) -> Result<Message, RequestError> {
        loop {
            let message = self.head()?;
            match message.tag {
                b'E' => {
                    self.take(message)?;
                    return Err(self.error());
                }
                b'N' | b'A' | b'S' => self.wire.skip(message.length)?,
                _ => return Ok(message),
            }
        }
    }

    fn head(&mut self) -> Result<Message, RequestError> {
        let mut head = Vec::with_capacity(5);
        self.wire.take(5, &mut head)?;
        let (&tag, length) = head.split_first().ok_or_else(malformed_answer)?;
        let length = <[u8; 4]>::try_from(length).map_err(|_| malformed_answer())?;
        let length = u32::from_be_bytes(length).checked_sub(4).ok_or_else(malformed_answer)?;
        Ok(Message { tag, length: length as usize })
    }

    /// Reads the body of a message.
    pub(super) fn take(&mut self, message: Message) -> Result<(), RequestError> {
        if message.length > ANSWER_LIMIT {
            return Err(malformed_answer().into());
        }
        self.body.clear();
        Ok(self.wire.take(message.length, &mut self.body)?)
    }

    /// Sends a query. Its answer follows.
    pub(super) fn start(&mut self, query: &str) -> Result<(), RequestError> {
        self.send(|bytes| frontend::query(query, bytes))
    }

    /// Sends a query and returns the rows of its small answer.
    pub(super) fn query(&mut self, query: &str) -> Result<Vec<TextRow>, RequestError> {
        self.start(query)?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        loop {
            let message = self.message()?;
            bytes += message.length;
            if bytes > ANSWER_LIMIT {
                return Err(malformed_answer().into());
            }
            self.take(message)?;
            match message.tag {
                b'D' => rows.push(text_row(&self.body)?),
                b'Z' => return Ok(rows),
                b'T' | b'C' | b'I' => {}
                _ => return Err(malformed_answer().into()),
            }
        }
    }

    /// Returns the types of the columns of a query without rows.
    pub(super) fn column_types(&mut self, query: &str) -> Result<Vec<i32>, RequestError> {
        self.start(query)?;
        let mut types = Vec::new();
        loop {
            let message = self.message()?;
            self.take(message)?;
            match message.tag {
                b'T' => types = column_types(&self.body)?,
                b'Z' => return Ok(types),
                _ => {}
            }
        }
    }

    pub(super) fn skip(&mut self, message: Message) -> Result<(), RequestError> {
        Ok(self.wire.skip(message.length)?)
    }

    /// Copies lines into a table, in one transaction. `copy` names the table and its columns.
    pub(super) fn copy(&mut self, copy: &str, lines: &[u8]) -> Result<(), RequestError> {
        self.start(copy)?;
        let message = self.message()?;
        if message.tag != b'G' {
            return Err(malformed_answer().into());
        }
        self.skip(message)?;
        for part in lines.chunks(COPY_PART) {
            self.send(|bytes| frontend::CopyData::new(part).map(|data| data.write(bytes)))?;
        }
        self.send(|bytes| {
            frontend::copy_done(bytes);
            Ok(())
        })?;
        loop {
            let message = self.message()?;
            self.skip(message)?;
            if message.tag == b'Z' {
                return Ok(());
            }
        }
    }

    pub(super) fn refusal(&self, words: &str) -> RequestError {
        refusal(self.name.clone(), words)
    }

    /// Returns a hint about a setting that may be wrong if the server refuses the password, or
    /// missing if it refuses a login by its access rules. The server has one code for all of these
    /// refusals, and its messages may be in any language.
    fn hint(&self, code: &str, message: &str) -> String {
        match &self.tls {
            _ if code == INVALID_PASSWORD => format!(": {}", self.login),
            _ if code != INVALID_AUTHORIZATION => String::new(),
            None if message.contains("pg_hba.conf") => {
                ": if it admits encrypted connections alone, add tls = true".into()
            }
            Some(TlsClient { identity: None, .. }) => {
                ": if it requires a client certificate, set tls_certificate and tls_key".into()
            }
            _ => format!(": {}", self.login),
        }
    }

    /// The error in the body. Details, and messages of other classes, may quote rows.
    fn error(&self) -> RequestError {
        let field = |tag: u8| {
            let fields = self.body.split(|&byte| byte == 0);
            let text = fields.filter_map(|field| field.split_first()).find(|(found, _)| **found == tag);
            text.map_or_else(String::new, |(_, text)| String::from_utf8_lossy(text).into_owned())
        };
        let (code, message) = (field(b'C'), field(b'M'));
        let words = match PLAIN_CLASSES.iter().any(|class| code.starts_with(class)) {
            true => format!("{message} ({code}){}", self.hint(&code, &message)),
            false => format!("the server reports error {code}, whose text may hold values and is not shown"),
        };
        if code == UNIQUE_VIOLATION {
            return transient("another sink has written the same epoch");
        }
        match TRANSIENT.iter().any(|code_start| code.starts_with(code_start)) {
            true => transient(words),
            false => self.refusal(&words),
        }
    }
}

/// Asks the server to encrypt the connection if the settings require it.
fn encrypted(
    database: &Database,
    name: &str,
    mut wire: ServerConnection,
) -> Result<ServerConnection, RequestError> {
    if database.server.tls.is_none() {
        return Ok(wire);
    }
    let (mut question, mut answer) = (BytesMut::new(), Vec::new());
    frontend::ssl_request(&mut question);
    wire.send(&question)?;
    wire.take(1, &mut answer)?;
    match answer[..] {
        [b'S'] => Ok(database.server.secure(wire)?),
        [b'N'] => Err(refusal(name.into(), "the server has no TLS: enable it there, or leave out tls")),
        _ => Err(malformed_answer().into()),
    }
}

/// Reads a number of two or four bytes at the start of a body, and advances.
pub(super) fn integer<const BYTES: usize>(body: &mut &[u8]) -> io::Result<i32> {
    let (bytes, rest) = body.split_first_chunk::<BYTES>().ok_or_else(malformed_answer)?;
    *body = rest;
    Ok(bytes.iter().fold(if bytes[0] > 127 { -1 } else { 0 }, |number, &byte| number << 8 | i32::from(byte)))
}

/// Reads the fields of a row.
fn text_row(mut body: &[u8]) -> io::Result<TextRow> {
    let fields = integer::<2>(&mut body)?;
    let field = |_| -> io::Result<Option<String>> {
        let Ok(length) = usize::try_from(integer::<4>(&mut body)?) else { return Ok(None) };
        let (text, rest) = body.split_at_checked(length).ok_or_else(malformed_answer)?;
        body = rest;
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    };
    (0..fields).map(field).collect()
}

/// Reads the types of the columns from a description of rows. A column is a name, six bytes for its
/// position in a table, the type, and eight bytes for its format.
fn column_types(mut body: &[u8]) -> io::Result<Vec<i32>> {
    let columns = integer::<2>(&mut body)?;
    let column = |_| -> io::Result<i32> {
        let end = body.iter().position(|&byte| byte == 0).ok_or_else(malformed_answer)?;
        body = body.get(end + 7..).ok_or_else(malformed_answer)?;
        let found = integer::<4>(&mut body)?;
        body = body.get(8..).ok_or_else(malformed_answer)?;
        Ok(found)
    };
    (0..columns).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_bytes_are_read_or_refused() {
        let row = [0, 2, 0, 0, 0, 1, b'x', 255, 255, 255, 255];
        assert_eq!(text_row(&row).ok(), Some(vec![Some("x".into()), None]));
        assert!((0..row.len()).all(|end| text_row(&row[..end]).is_err()));
        assert!(text_row(&[0, 1, 127, 255, 255, 255]).is_err());
        assert_eq!(integer::<4>(&mut &[255, 255, 255, 254][..]).ok(), Some(-2));
        assert_eq!(integer::<2>(&mut &[1, 2][..]).ok(), Some(258));
    }
}
