//! Reads NATS JetStream streams.
//!
//! A message has a sequence number in its stream. The reader creates its own consumer, which starts
//! at the position and needs no acknowledgements. The server deletes it after the reader has gone.
//! Every message states its number in the stream and its number within the consumer. If the latter
//! is not the expected one, a message was lost in transit, and the reader starts again.

use std::io;

use serde_json::json;

use super::NatsSource;
use super::connection::{NatsConnection, ServerMessage, state};
use crate::connect::entries::Entries;
use crate::connect::error::{RequestError, lost};
use crate::connect::wire::{malformed_answer, number};
use crate::control::Control;
use crate::format::Defect;
use crate::format::form::EntryParser;
use crate::format::row::{RECORD_LIMIT, Row};
use crate::state::Position;

/// Number of messages requested at once.
const BATCH: u64 = 512;

/// Nanoseconds that the server waits until it has these messages.
const WAIT: u64 = 250_000_000;

/// Nanoseconds after which the server deletes an unused consumer.
const FORGOTTEN: u64 = 60_000_000_000;

/// A connection to a stream.
pub(super) struct NatsReader {
    connection: NatsConnection,
    position: Position,
    consumer: String,
    /// Number within the consumer that the next message must have.
    expected: u64,
    /// Number of requested messages that may still come.
    left: u64,
    /// The subject to read, if not all.
    subject: Option<String>,
}

impl NatsReader {
    pub(super) fn open(
        source: &NatsSource,
        control: &Control,
        position: Position,
    ) -> Result<Self, RequestError> {
        let connection = NatsConnection::open(&source.stream, control)?;
        let (consumer, subject) = (String::new(), source.subject.clone());
        let mut reader = NatsReader { connection, position, consumer, expected: 1, left: 0, subject };
        reader.check()?;
        reader.begin()?;
        Ok(reader)
    }

    /// Sends a request to JetStream. A missing stream may appear later, unless we have read from
    /// it.
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut NatsConnection) -> Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        match question(&mut self.connection) {
            Err(RequestError::NoStream) if self.position != Position::START => {
                Err(lost(self.connection.stream.name(), "no longer exists".into()))
            }
            answer => answer,
        }
    }

    /// Checks that the stream does not end before the last message that was read, or begin after
    /// the next one. The number of the next message of a subject is unknown, because messages of
    /// other subjects may be missing.
    fn check(&mut self) -> Result<(), RequestError> {
        let facts = self.ask(NatsConnection::facts)?;
        let next = self.position.offset;
        let (first, last) = (state(&facts, "first_seq")?, state(&facts, "last_seq")?);
        if self.position == Position::START {
            return Ok(());
        }
        if last.saturating_add(1) < next {
            let loss = format!("ends with message {last}, before the last message that was read");
            return Err(lost(self.connection.stream.name(), loss));
        }
        if first > next && self.subject.is_none() {
            let loss = format!("begins with message {first}, after the one to be read next");
            return Err(lost(self.connection.stream.name(), loss));
        }
        Ok(())
    }

    /// Creates a consumer that begins at the position.
    fn begin(&mut self) -> Result<(), RequestError> {
        let stream = self.connection.stream.stream.clone();
        let mut question = json!({ "stream_name": stream, "config": {
            "deliver_policy": "by_start_sequence", "opt_start_seq": self.position.offset.max(1),
            "ack_policy": "none", "replay_policy": "instant", "max_deliver": 1,
            "inactive_threshold": FORGOTTEN, "mem_storage": true, "num_replicas": 1,
        }});
        if let Some(subject) = &self.subject {
            question["config"]["filter_subject"] = json!(subject);
        }
        let subject = format!("$JS.API.CONSUMER.CREATE.{stream}");
        let answer = self.ask(|connection| connection.ask(&subject, &question))?;
        self.consumer = answer["name"].as_str().ok_or_else(malformed_answer)?.into();
        Ok(())
    }

    /// Requests messages.
    fn fetch(&mut self) -> io::Result<()> {
        let question = json!({ "batch": BATCH, "expires": WAIT }).to_string();
        let connection = &mut self.connection;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", connection.stream.stream, self.consumer);
        let inbox = connection.inbox.clone();
        connection.write_text(&format!("PUB {subject} {inbox}.next {}\r\n{question}\r\n", question.len()))?;
        self.left = BATCH;
        Ok(())
    }
}

impl Entries for NatsReader {
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError> {
        loop {
            if self.left == 0 {
                self.fetch()?;
            }
            let ServerMessage::Message { reply, status, length } = self.connection.next_sent()? else {
                continue;
            };
            if let Some(status) = status {
                self.connection.read_payload(length, RECORD_LIMIT)?;
                return match status {
                    // No messages, or fewer than requested in this time.
                    404 | 408 => {
                        self.left = 0;
                        Ok(None)
                    }
                    _ => Err(RequestError::Transient(io::Error::other(format!(
                        "the consumer has ended ({status})"
                    )))),
                };
            }
            let (sequence, delivered) = numbers(&reply)?;
            let whole = self.connection.read_payload(length, RECORD_LIMIT)?;
            if delivered != self.expected || sequence < self.position.offset {
                return Err(RequestError::Transient(io::Error::other("messages were lost on the way")));
            }
            match whole {
                true => form.read(&self.connection.payload, row),
                false => form.refuse(Defect::TooLong, row),
            }
            self.left -= 1;
            self.expected += 1;
            self.position.offset = sequence.checked_add(1).ok_or_else(malformed_answer)?;
            return Ok(Some(self.position));
        }
    }

    fn has_buffered_row(&self) -> bool {
        self.connection.wire.has_more()
    }
}

/// Parses a message's numbers in the stream and in the consumer from its acknowledgement subject:
/// `$JS.ACK.stream.consumer.times.stream-number.consumer-number.time.pending`. Newer servers add a
/// domain and an account before the stream.
fn numbers(reply: &str) -> io::Result<(u64, u64)> {
    let words: Vec<&str> = reply.split('.').collect();
    let first = match words.len() {
        9 => 5,
        11.. => 7,
        _ => return Err(malformed_answer()),
    };
    if !reply.starts_with("$JS.ACK.") {
        return Err(malformed_answer());
    }
    Ok((number(words[first].as_bytes())?, number(words[first + 1].as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::super::{BrokerServer, NatsLogin, NatsStream};
    use super::*;
    use crate::connect::fake::{form, serve};
    use crate::format::Format;

    /// Tests a message and a header that are too long, a valid message, and one that never ends.
    #[test]
    fn lengths_stated_by_a_server_take_no_memory() {
        let long = "7".repeat(3 * RECORD_LIMIT);
        let to = |number| format!("_ 1 $JS.ACK.s.c.1.{number}.{number}.0.0");
        let head = format!("NATS/1.0\r\nx: {long}\r\n\r\n");
        let messages = [
            format!("MSG {} {}\r\n{long}\r\n", to(1), long.len()),
            format!("HMSG {} {} {}\r\n{head}{{\"x\": 4}}\r\n", to(2), head.len(), head.len() + 8),
            format!("MSG {} 8\r\n{{\"x\": 5}}\r\n", to(3)),
            format!("MSG {} 2147483647\r\n", to(4)),
        ];
        let answer = |text: &str| format!("MSG _ 1 {}\r\n{text}\r\n", text.len());
        let facts = answer("{\"state\": {\"first_seq\": 1, \"last_seq\": 9}}");
        let script = vec![
            (None, "INFO {}\r\n".into()),
            (Some("PING\r\n"), "PONG\r\n".into()),
            (Some("STREAM.INFO"), facts),
            (Some("CONSUMER.CREATE"), answer("{\"name\": \"c\"}")),
            (Some("MSG.NEXT"), messages.concat()),
        ];
        let (address, server) = serve(script, true);
        let server_at = BrokerServer { address, ..BrokerServer::default() };
        let stream = NatsStream { server: server_at, login: NatsLogin::default(), stream: "s".into() };
        let stream = NatsSource { stream, subject: None };
        let control = Control::new();
        let mut nats = NatsReader::open(&stream, &control, Position::START).ok().unwrap();
        let (mut row, mut form) = (Row::default(), form(Format::Ndjson));
        for expected in [Err(Defect::TooLong), Ok(4.0), Ok(5.0)] {
            assert!(matches!(nats.next(&mut row, &mut form), Ok(Some(_))));
            assert_eq!(row.defect.map_or_else(|| row.number(0), Err), expected);
        }
        let stop = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            control.stop();
        });
        assert!(
            matches!(nats.next(&mut row, &mut form), Err(RequestError::Transient(_))),
            "the run is stopped"
        );
        let capacity = row.text.capacity() + nats.connection.payload.capacity();
        assert!(capacity <= 4 * RECORD_LIMIT, "{capacity} bytes are held");
        drop(nats);
        stop.join().unwrap();
        server.join().unwrap();
    }

    #[test]
    fn messages_contain_their_numbers() {
        assert_eq!(numbers("$JS.ACK.s.c.1.42.7.1670.0").ok(), Some((42, 7)));
        assert_eq!(numbers("$JS.ACK.domain.account.s.c.1.42.7.1670.0.token").ok(), Some((42, 7)));
        assert!(
            ["", "$JS.ACK.s.c.1.x.7.1.0", "$JS.ACK.s", "a.b.s.c.1.42.7.1.0"]
                .iter()
                .all(|reply| numbers(reply).is_err())
        );
    }
}
