//! A stream of NATS JetStream: a message for each line, with `epoch-line` in its header `Nats-Msg-Id`.
//!
//! The stream is for this sink alone, and is made where there is none. Each message says after which number of the stream it
//! must come, so the server refuses what is repeated, late, or of another writer; the last message says where to go on.

use serde_json::{Value, json};

use crate::broker::nats::{Connection, state};
use crate::broker::redis::{Id, parse, shown};
use crate::broker::wire::garbled;
use crate::broker::{Trouble, passing};
use crate::pipeline::ReleaseStream;
use crate::source::Control;

use super::SinkError;
use super::feed::Mark;
use super::following::{Held, Outlet, batches, numbered};

pub(super) struct JetStream {
    sink: ReleaseStream,
    connection: Option<Connection>,
    /// The last number of the stream.
    sequence: u64,
    /// The last line in it.
    last: Id,
    /// The last line of the last epoch that was written as a whole, by this sink since it began.
    done: Option<Id>,
}

impl JetStream {
    pub(super) fn new(sink: ReleaseStream) -> Self {
        JetStream { sink, connection: None, sequence: 0, last: (0, 0), done: None }
    }

    /// The last epoch of which everything is there, as far as is known.
    fn whole(&self) -> u64 {
        let (epoch, _) = self.last;
        if self.done == Some(self.last) { epoch } else { epoch.saturating_sub(1) }
    }

    fn begin(&mut self) -> Result<Held, Trouble> {
        let mut connection = Connection::open(&self.sink.broker, &Control::new())?;
        let stream = &self.sink.broker.stream;
        let facts = match connection.facts() {
            Err(Trouble::NoStream) => {
                let config = json!({ "name": stream, "subjects": [self.sink.subject], "storage": "file", "allow_direct": true });
                connection.ask(&format!("$JS.API.STREAM.CREATE.{stream}"), &config)?
            }
            facts => facts?,
        };
        // Before the last message is asked for: one that comes in between makes this number stale, and nothing is taken twice.
        self.sequence = state(&facts, "last_seq")?;
        let question = json!({ "last_by_subj": self.sink.subject });
        let found = connection.ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &question);
        self.connection = Some(connection);
        let found = match found {
            Err(Trouble::NoStream) => {
                self.last = (0, 0);
                return Ok(Held::default());
            }
            found => found?,
        };
        let (id, mark) = read(&found["message"]).ok_or_else(|| self.sink.foreign())?;
        self.last = id;
        Ok(Held { whole: self.whole(), last: Some(mark) })
    }

    fn write(&mut self, epoch: u64, lines: &[u8]) -> Result<(), Trouble> {
        let Some(connection) = &mut self.connection else { return Err(garbled().into()) };
        let (subject, inbox) = (&self.sink.subject, connection.inbox.clone());
        let last = self.last;
        let due = numbered(lines).filter(|&(number, _)| (epoch, number) > last);
        for batch in batches(due) {
            let mut messages = String::new();
            for ((number, line), sequence) in batch.iter().zip(self.sequence..) {
                let id = shown((epoch, *number));
                let head = format!(
                    "NATS/1.0\r\nNats-Msg-Id: {id}\r\nNats-Expected-Last-Sequence: {sequence}\r\n\r\n"
                );
                let (length, total) = (head.len(), head.len() + line.len());
                messages += &format!("HPUB {subject} {inbox}.taken {length} {total}\r\n{head}{line}\r\n");
            }
            connection.say(&messages)?;
            for (number, _) in batch {
                let answer = connection.answer()?;
                self.sequence += 1;
                if answer["seq"].as_u64() != Some(self.sequence) || answer["duplicate"] == json!(true) {
                    return Err(passing("the stream has a message that was not known of"));
                }
                self.last = (epoch, number);
            }
        }
        self.done = Some(self.last);
        Ok(())
    }
}

impl Outlet for JetStream {
    fn name(&self) -> String {
        crate::broker::name(&self.sink.broker)
    }

    fn open(&mut self) -> Result<Held, SinkError> {
        self.begin().map_err(|trouble| SinkError::of(&self.sink.broker, trouble))
    }

    fn append(&mut self, epoch: u64, lines: &[u8]) -> Result<(), SinkError> {
        self.write(epoch, lines).map_err(|trouble| SinkError::of(&self.sink.broker, trouble))
    }
}

/// The id of a message and what its line tells, if it is one of ours.
fn read(message: &Value) -> Option<(Id, Mark)> {
    let part = |name: &str| decode(message[name].as_str()?);
    let head = part("hdrs")?;
    let id = head.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Nats-Msg-Id:"))?;
    let id = parse(id.trim_ascii()).ok()?;
    let mark = Mark::of(&part("data")?)?;
    (id.0 == mark.epoch).then_some((id, mark))
}

/// Base64 (RFC 4648) undone.
fn decode(text: &str) -> Option<Vec<u8>> {
    let value = |byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let digits =
            group.iter().try_fold(0u32, |digits, &byte| Some(digits << 6 | u32::from(value(byte)?)))?;
        let whole = (digits << (6 * (4 - group.len()))).to_be_bytes();
        bytes.extend_from_slice(&whole[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let check =
            |text: &str, plain: &str| assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()), "{text}");
        check("", "");
        check("Zg==", "f");
        check("Zm8=", "fo");
        check("Zm9v", "foo");
        check("Zm9vYg==", "foob");
        check("Zm9vYmE=", "fooba");
        check("Zm9vYmFy", "foobar");
        assert!(decode("Zm9v!").is_none());
    }

    #[test]
    fn only_messages_of_a_sink_are_read() {
        let message = |hdrs: &str, data: &str| read(&json!({ "hdrs": hdrs, "data": data }));
        // NATS/1.0, Nats-Msg-Id: 3-7; {"epoch":3,"generation":1,"chain":"0a"}
        let head = "TkFUUy8xLjANCk5hdHMtTXNnLUlkOiAzLTcNCg0K";
        let line = "eyJlcG9jaCI6MywiZ2VuZXJhdGlvbiI6MSwiY2hhaW4iOiIwYSJ9";
        assert_eq!(message(head, line).map(|(id, mark)| (id, mark.epoch)), Some(((3, 7), 3)));
        assert!(message(head, "e30=").is_none() && message("", line).is_none());
    }
}
