//! Streams of NATS JetStream (client protocol, `docs.nats.io/reference/reference-protocols/nats-protocol`; JetStream's
//! requests, `docs.nats.io/reference/reference-protocols/nats_api_reference`).
//!
//! A message has a sequence number in its stream. We read by a consumer of our own that is made at the number where we are,
//! wants no acknowledgements, and is forgotten by the server when we are gone. Every message tells its number, and its
//! number within the consumer: one that is not the next means that something between us was lost, and begins anew.

use std::io;

use rand::{TryRng, rngs::SysRng};
use serde_json::{Value, json};

use super::broker::{Entries, Place, START, Trouble, lost, refusal};
use super::control::Control;
use super::error::Defect;
use super::ndjson::read_object;
use super::row::{Field, RECORD_LIMIT, Row};
use super::wire::{Wire, garbled, number};
use crate::pipeline::{Broker, Credentials};

/// Messages that are asked for at once.
const BATCH: u64 = 512;

/// Nanoseconds that the server waits for them.
const WAIT: u64 = 250_000_000;

/// Nanoseconds after which the server forgets a consumer that nobody reads.
const FORGOTTEN: u64 = 60_000_000_000;

/// The most bytes of an answer about the stream.
const ANSWER_LIMIT: usize = 1 << 20;

/// A connection to a stream.
pub(super) struct Nats {
    broker: Broker,
    wire: Wire,
    place: Place,
    inbox: String,
    consumer: String,
    /// The number that the next message has within the consumer.
    expected: u64,
    /// Messages that have been asked for and may still come.
    left: u64,
    line: Vec<u8>,
    payload: Vec<u8>,
}

/// What the server sends.
enum Sent {
    /// A message: whom it is to be answered to, its status if it is one, and the length of its payload, which is next.
    Message { reply: String, status: Option<u16>, length: usize },
    /// Nothing that concerns us.
    Other,
}

impl Nats {
    pub(super) fn open(broker: &Broker, control: &Control, place: Place) -> Result<Self, Trouble> {
        let wire = Wire::connect(&broker.address, control)?;
        let mut nats = Nats {
            broker: broker.clone(),
            wire,
            place,
            inbox: inbox()?,
            consumer: String::new(),
            expected: 1,
            left: 0,
            line: Vec::new(),
            payload: Vec::new(),
        };
        nats.greet()?;
        nats.check()?;
        nats.begin()?;
        Ok(nats)
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.wire.send(text.as_bytes())
    }

    /// Says who we are, and hears that we are welcome.
    fn greet(&mut self) -> Result<(), Trouble> {
        self.wire.line(&mut self.line)?;
        if !self.line.starts_with(b"INFO ") {
            return Err(garbled().into());
        }
        let mut hello = json!({
            "verbose": false, "pedantic": false, "lang": "rust", "name": "hushflow",
            "version": env!("CARGO_PKG_VERSION"), "headers": true, "no_responders": true,
        });
        match &self.broker.credentials {
            Some(Credentials { user: Some(user), secret }) => {
                hello["user"] = user.as_str().into();
                hello["pass"] = secret.as_str().into();
            }
            Some(Credentials { user: None, secret }) => hello["auth_token"] = secret.as_str().into(),
            None => {}
        }
        let inbox = self.inbox.clone();
        self.say(&format!("CONNECT {hello}\r\nSUB {inbox}.* 1\r\nPING\r\n"))?;
        loop {
            self.wire.line(&mut self.line)?;
            if self.line == b"PONG" {
                return Ok(());
            }
            self.notice()?;
        }
    }

    /// A line of the server that is no message.
    fn notice(&mut self) -> Result<(), Trouble> {
        if self.line == b"PING" {
            self.say("PONG\r\n")?;
        } else if let Some(words) = self.line.strip_prefix(b"-ERR") {
            let words = String::from_utf8_lossy(words).into_owned();
            let lasting = ["Authorization", "Authentication", "Permissions"];
            return Err(match lasting.iter().any(|word| words.contains(word)) {
                true => refusal(&self.broker, words.trim_matches([' ', '\''])),
                false => Trouble::Passing(io::Error::other(words)),
            });
        }
        Ok(())
    }

    /// The next thing that the server sends, up to a message's payload.
    fn next_sent(&mut self) -> Result<Sent, Trouble> {
        self.wire.line(&mut self.line)?;
        let line = String::from_utf8_lossy(&self.line).into_owned();
        let mut words = line.split_ascii_whitespace();
        let kind = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let (reply, head, total) = match (kind, &words[..]) {
            ("MSG", [_, _, length]) => ("", "0", *length),
            ("MSG", [_, _, reply, length]) => (*reply, "0", *length),
            ("HMSG", [_, _, head, total]) => ("", *head, *total),
            ("HMSG", [_, _, reply, head, total]) => (*reply, *head, *total),
            _ => {
                self.notice()?;
                return Ok(Sent::Other);
            }
        };
        let (head, total): (usize, usize) = (number(head.as_bytes())?, number(total.as_bytes())?);
        let length = total.checked_sub(head).filter(|_| head <= ANSWER_LIMIT).ok_or_else(garbled)?;
        self.payload.clear();
        self.wire.take(head, &mut self.payload)?;
        Ok(Sent::Message { reply: reply.into(), status: status(&self.payload), length })
    }

    /// Reads a payload, or passes over one that is longer than `limit`; whether it was read.
    fn read_payload(&mut self, length: usize, limit: usize) -> io::Result<bool> {
        self.payload.clear();
        match length <= limit {
            true => self.wire.take(length, &mut self.payload)?,
            false => self.wire.skip(length)?,
        }
        self.wire.skip(2)?;
        Ok(length <= limit)
    }

    /// Asks JetStream; its answer, unless that is an error.
    fn ask(&mut self, subject: &str, question: &Value) -> Result<Value, Trouble> {
        let (inbox, question) = (self.inbox.clone(), question.to_string());
        self.say(&format!("PUB {subject} {inbox}.api {}\r\n{question}\r\n", question.len()))?;
        loop {
            let Sent::Message { status, length, .. } = self.next_sent()? else { continue };
            if !self.read_payload(length, ANSWER_LIMIT)? || status.is_some() {
                // Nobody answers for JetStream: it is starting, or it is off.
                return Err(Trouble::Passing(io::Error::other("JetStream is not there")));
            }
            let answer: Value = serde_json::from_slice(&self.payload).map_err(|_| garbled())?;
            let Some(error) = answer.get("error") else { return Ok(answer) };
            let words = error["description"].as_str().unwrap_or("JetStream refuses").to_owned();
            return Err(match error["code"].as_u64() {
                Some(404) if self.place != START => lost(&self.broker, "is not there any more".into()),
                Some(404 | 503) => Trouble::Passing(io::Error::other(words)),
                _ => refusal(&self.broker, &words),
            });
        }
    }

    /// Whether the stream still has what had been read of it and what comes next.
    fn check(&mut self) -> Result<(), Trouble> {
        let answer = self.ask(&format!("$JS.API.STREAM.INFO.{}", self.broker.stream), &json!({}))?;
        let state = |name: &str| answer["state"][name].as_u64().ok_or_else(garbled);
        let ((next, _), first, last) = (self.place, state("first_seq")?, state("last_seq")?);
        if self.place == START {
            return Ok(());
        }
        if last.saturating_add(1) < next {
            let what = format!("ends with message {last}, but was read up to {}", next - 1);
            return Err(lost(&self.broker, what));
        }
        if first > next {
            let what = format!("begins with message {first}, but {next} was to be read next");
            return Err(lost(&self.broker, what));
        }
        Ok(())
    }

    /// Makes a consumer that begins at the place.
    fn begin(&mut self) -> Result<(), Trouble> {
        let stream = self.broker.stream.clone();
        let question = json!({ "stream_name": stream, "config": {
            "deliver_policy": "by_start_sequence", "opt_start_seq": self.place.0.max(1),
            "ack_policy": "none", "replay_policy": "instant", "max_deliver": 1,
            "inactive_threshold": FORGOTTEN, "mem_storage": true, "num_replicas": 1,
        }});
        let answer = self.ask(&format!("$JS.API.CONSUMER.CREATE.{stream}"), &question)?;
        self.consumer = answer["name"].as_str().ok_or_else(garbled)?.into();
        Ok(())
    }

    /// Asks for messages.
    fn fetch(&mut self) -> io::Result<()> {
        let question = json!({ "batch": BATCH, "expires": WAIT }).to_string();
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.broker.stream, self.consumer);
        let inbox = self.inbox.clone();
        self.say(&format!("PUB {subject} {inbox}.next {}\r\n{question}\r\n", question.len()))?;
        self.left = BATCH;
        Ok(())
    }
}

impl Entries for Nats {
    fn next(&mut self, row: &mut Row, wanted: &[String]) -> Result<Option<Place>, Trouble> {
        loop {
            if self.left == 0 {
                self.fetch()?;
            }
            let Sent::Message { reply, status, length } = self.next_sent()? else { continue };
            if let Some(status) = status {
                self.read_payload(length, RECORD_LIMIT)?;
                return match status {
                    // No messages, or not so many in this time.
                    404 | 408 => {
                        self.left = 0;
                        Ok(None)
                    }
                    _ => {
                        Err(Trouble::Passing(io::Error::other(format!("the consumer has ended ({status})"))))
                    }
                };
            }
            let (sequence, delivered) = numbers(&reply)?;
            let whole = self.read_payload(length, RECORD_LIMIT)?;
            if delivered != self.expected || sequence < self.place.0 {
                return Err(Trouble::Passing(io::Error::other("messages were lost on the way")));
            }
            match whole {
                true => read_object(&self.payload, wanted, row),
                false => {
                    row.fields.clear();
                    row.fields.resize(wanted.len(), Field::Missing);
                    row.defect = Some(Defect::TooLong);
                }
            }
            self.left -= 1;
            self.expected += 1;
            self.place = (sequence.checked_add(1).ok_or_else(garbled)?, START.1);
            return Ok(Some(self.place));
        }
    }
}

/// A subject that nobody else listens to.
fn inbox() -> io::Result<String> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("_INBOX.{:032x}", u128::from_le_bytes(bytes)))
}

/// The status in a head such as `NATS/1.0 404 No Messages`, if there is one.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|&byte| byte == b'\r').next()?.strip_prefix(b"NATS/1.0 ")?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

/// A message's numbers in the stream and in the consumer, from where its acknowledgement would go:
/// `$JS.ACK.stream.consumer.times.stream-number.consumer-number.time.pending`, in newer servers with a domain and an account
/// before the stream.
fn numbers(reply: &str) -> io::Result<(u64, u64)> {
    let words: Vec<&str> = reply.split('.').collect();
    let first = match words.len() {
        9 => 5,
        11.. => 7,
        _ => return Err(garbled()),
    };
    if !reply.starts_with("$JS.ACK.") {
        return Err(garbled());
    }
    Ok((number(words[first].as_bytes())?, number(words[first + 1].as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_tell_their_numbers() {
        assert_eq!(numbers("$JS.ACK.s.c.1.42.7.1670.0").ok(), Some((42, 7)));
        assert_eq!(numbers("$JS.ACK.domain.account.s.c.1.42.7.1670.0.token").ok(), Some((42, 7)));
        assert!(
            ["", "$JS.ACK.s.c.1.x.7.1.0", "$JS.ACK.s", "a.b.s.c.1.42.7.1.0"]
                .iter()
                .all(|reply| numbers(reply).is_err())
        );
    }

    #[test]
    fn a_status_is_told_from_headers() {
        assert_eq!(status(b"NATS/1.0 404 No Messages\r\n\r\n"), Some(404));
        assert_eq!(status(b"NATS/1.0\r\nNats-Msg-Id: 404\r\n\r\n"), None);
        assert_eq!(status(b""), None);
    }
}
