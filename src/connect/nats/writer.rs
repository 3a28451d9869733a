//! Writes to a NATS JetStream stream: one message per line, with `epoch-line` in its header
//! `Nats-Msg-Id`.
//!
//! Only this sink uses the stream, and creates it if it is missing. Each message states the
//! stream's expected last number, so the server refuses lines that are repeated, late, or from
//! another writer. The last message is the position to resume from.

use base64::prelude::{BASE64_STANDARD as BASE64, Engine};
use serde_json::{Value, json};

use super::NatsStream;
use super::connection::{NatsConnection, state};

use crate::connect::error::{RequestError, foreign, transient};
use crate::connect::wire::{format_id, malformed_answer, parse_id};
use crate::connect::writer::{EntryId, EpochStamp, ServerWriter};
use crate::control::Control;

pub(super) struct NatsWriter {
    stream: NatsStream,
    subject: String,
    control: Control,
    connection: Option<NatsConnection>,
    /// Last sequence number of the stream.
    sequence: u64,
}

impl NatsWriter {
    pub(super) fn new(stream: &NatsStream, subject: &str, control: &Control) -> Self {
        let (stream, subject, control) = (stream.clone(), subject.into(), control.clone());
        NatsWriter { stream, subject, control, connection: None, sequence: 0 }
    }
}

impl ServerWriter for NatsWriter {
    fn open(&mut self) -> Result<(EntryId, Option<EpochStamp>), RequestError> {
        let connection = self.connection.insert(NatsConnection::open(&self.stream, &self.control)?);
        let stream = &self.stream.stream;
        let facts = match connection.facts() {
            Err(RequestError::NoStream) => {
                let config = json!({ "name": stream, "subjects": [self.subject], "storage": "file", "allow_direct": true });
                connection.ask(&format!("$JS.API.STREAM.CREATE.{stream}"), &config)?
            }
            facts => facts?,
        };
        // Read this number before the last message. If another message arrives in between, the
        // number is stale, and the server refuses the next lines instead of storing any twice.
        self.sequence = state(&facts, "last_seq")?;
        let question = json!({ "last_by_subj": self.subject });
        let message = match connection.ask(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &question) {
            Err(RequestError::NoStream) => return Ok(((0, 0), None)),
            message => message?,
        };
        let (id, mark) = read(&message["message"]).ok_or_else(|| foreign(self.stream.name()))?;
        Ok((id, Some(mark)))
    }

    fn send(
        &mut self,
        lines: &[(EntryId, &str)],
        acknowledge: &mut dyn FnMut(EntryId),
    ) -> Result<(), RequestError> {
        let Some(connection) = &mut self.connection else { return Err(malformed_answer().into()) };
        let (subject, inbox) = (&self.subject, &connection.inbox);
        let mut messages = String::new();
        for (&(id, line), sequence) in lines.iter().zip(self.sequence..) {
            let id = format_id(id);
            let head =
                format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\nNats-Expected-Last-Sequence: {sequence}\r\n\r\n");
            let (length, total) = (head.len(), head.len() + line.len());
            messages += &format!("HPUB {subject} {inbox}.taken {length} {total}\r\n{head}{line}\r\n");
        }
        connection.write_text(&messages)?;
        for &(id, _) in lines {
            let answer = connection.answer()?;
            self.sequence += 1;
            if answer["seq"].as_u64() != Some(self.sequence) || answer["duplicate"] == json!(true) {
                return Err(transient("the stream has a message that was not known of"));
            }
            acknowledge(id);
        }
        Ok(())
    }
}

/// Returns the id of a message and the stamp of its line, if a sink wrote it.
fn read(message: &Value) -> Option<(EntryId, EpochStamp)> {
    let part = |name: &str| BASE64.decode(message[name].as_str()?).ok();
    let head = part("hdrs")?;
    let id = head.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Nats-Msg-Id:"))?;
    let id = parse_id(id.trim_ascii()).ok()?;
    let mark = EpochStamp::of(&part("data")?)?;
    (id.0 == mark.epoch).then_some((id, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

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
