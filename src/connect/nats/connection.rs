//! A connection to NATS (client protocol,
//! `docs.nats.io/reference/reference-protocols/nats-protocol`), and requests to its JetStream
//! (`docs.nats.io/reference/reference-protocols/nats_api_reference`).

use std::io;

use rand::{TryRng, rngs::SysRng};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::NatsStream;
use crate::connect::error::{RequestError, refusal, transient};
use crate::connect::wire::{ServerConnection, malformed_answer, number};
use crate::control::Control;

/// Maximum size of an answer in bytes.
const ANSWER_LIMIT: usize = 16 << 20;

/// Bytes kept of a message's header: its first line states the status. The rest is skipped.
const HEAD_KEPT: usize = 1 << 10;

/// Error code for a publisher that expected another last sequence number.
const WRONG_LAST_SEQUENCE: u64 = 10_071;

/// Errors with which a server may answer a greeting.
const GREETING_ERRORS: [&str; 8] = [
    "Authorization Violation",
    "Authentication Timeout",
    "User Authentication Expired",
    "User Authentication Revoked",
    "Account Authentication Expired",
    "Secure Connection - TLS Required",
    "Maximum Connections Exceeded",
    "Maximum Account Active Connections Exceeded",
];

/// A connection after the greeting, with its own subject for answers.
pub(super) struct NatsConnection {
    pub(super) stream: NatsStream,
    pub(super) wire: ServerConnection,
    pub(super) inbox: String,
    line: Vec<u8>,
    /// The last header or payload.
    pub(super) payload: Vec<u8>,
}

pub(super) enum ServerMessage {
    /// A message: its reply subject, its status if it has one, and the length of its payload, which
    /// follows.
    Message { reply: String, status: Option<u16>, length: usize },
    /// Nothing of interest.
    Other,
}

impl NatsConnection {
    pub(super) fn open(stream: &NatsStream, control: &Control) -> Result<Self, RequestError> {
        let mut wire = stream.server.connect_plainly(control)?;
        let mut line = Vec::new();
        wire.line(&mut line)?;
        let info = line.strip_prefix(b"INFO ").ok_or_else(malformed_answer)?;
        let info: Value = serde_json::from_slice(info).map_err(|_| malformed_answer())?;
        if stream.server.tls.is_none() && info["tls_required"] == json!(true) {
            return Err(refusal(stream.name(), "the server requires TLS: add tls = true"));
        }
        if stream.server.tls.is_some()
            && info["tls_required"] != json!(true)
            && info["tls_available"] != json!(true)
        {
            return Err(refusal(stream.name(), "the server has no TLS: enable it there, or leave out tls"));
        }
        let wire = stream.server.secure(wire)?;
        let mut connection =
            NatsConnection { stream: stream.clone(), wire, inbox: inbox()?, line, payload: vec![] };
        connection.greet(info["nonce"].as_str(), control)?;
        Ok(connection)
    }

    pub(super) fn write_text(&mut self, text: &str) -> io::Result<()> {
        self.wire.send(text.as_bytes())
    }

    /// Sends our credentials and waits until the server accepts them.
    fn greet(&mut self, nonce: Option<&str>, control: &Control) -> Result<(), RequestError> {
        let mut hello = json!({
            "verbose": false, "pedantic": false, "lang": "rust", "name": "hushflow",
            "version": env!("CARGO_PKG_VERSION"), "headers": true, "no_responders": true,
        });
        let NatsStream { server, login, .. } = &self.stream;
        login.add_to(&mut hello, &server.login, nonce, control)?;
        if let Some(secret) = login.sent(&server.login) {
            server.warn_of_exposure(&self.wire, secret, &self.stream.name());
        }
        let inbox = self.inbox.clone();
        let greeting = Zeroizing::new(format!("CONNECT {hello}\r\nSUB {inbox}.* 1\r\nPING\r\n"));
        self.write_text(&greeting)?;
        loop {
            self.wire.line(&mut self.line)?;
            if self.line == b"PONG" {
                return Ok(());
            }
            if let Some(words) = self.line.strip_prefix(b"-ERR") {
                return Err(self.failure(without_credentials(&String::from_utf8_lossy(words))));
            }
            self.notice()?;
        }
    }

    /// Handles a line that is not a message.
    fn notice(&mut self) -> Result<(), RequestError> {
        if self.line == b"PING" {
            self.write_text("PONG\r\n")?;
        } else if let Some(words) = self.line.strip_prefix(b"-ERR") {
            return Err(self.failure(&String::from_utf8_lossy(words)));
        }
        Ok(())
    }

    /// The failure that the server states in these words.
    fn failure(&self, words: &str) -> RequestError {
        let is_one_of = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        let words = words.trim_matches([' ', '\'']);
        if is_one_of(&["Authorization", "Authentication"]) {
            let hint = self.stream.login.hint(&self.stream.server.login);
            return refusal(self.stream.name(), &format!("{words}: {hint}"));
        }
        match is_one_of(&["Permissions", "Maximum Payload"]) {
            true => refusal(self.stream.name(), words),
            false => transient(words),
        }
    }

    /// Reads the next message of the server, up to its payload.
    pub(super) fn next_sent(&mut self) -> Result<ServerMessage, RequestError> {
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
                return Ok(ServerMessage::Other);
            }
        };
        let (head, total): (usize, usize) = (number(head.as_bytes())?, number(total.as_bytes())?);
        let length = total.checked_sub(head).ok_or_else(malformed_answer)?;
        let kept = head.min(HEAD_KEPT);
        self.payload.clear();
        self.wire.take(kept, &mut self.payload)?;
        self.wire.skip(head - kept)?;
        Ok(ServerMessage::Message { reply: reply.into(), status: status(&self.payload), length })
    }

    /// Reads a payload, or skips one that is longer than `limit`. Returns whether it was read.
    pub(super) fn read_payload(&mut self, length: usize, limit: usize) -> io::Result<bool> {
        self.payload.clear();
        match length <= limit {
            true => self.wire.take(length, &mut self.payload)?,
            false => self.wire.skip(length)?,
        }
        self.wire.skip(2)?;
        Ok(length <= limit)
    }

    /// Sends a request to JetStream. Returns its answer, unless that is an error.
    pub(super) fn ask(&mut self, subject: &str, question: &Value) -> Result<Value, RequestError> {
        let (inbox, question) = (self.inbox.clone(), question.to_string());
        self.write_text(&format!("PUB {subject} {inbox}.api {}\r\n{question}\r\n", question.len()))?;
        self.answer()
    }

    /// Returns the next answer of JetStream, unless it is an error.
    pub(super) fn answer(&mut self) -> Result<Value, RequestError> {
        loop {
            let ServerMessage::Message { status, length, .. } = self.next_sent()? else { continue };
            if !self.read_payload(length, ANSWER_LIMIT)? || status.is_some() {
                // JetStream is starting, or it is disabled.
                return Err(transient("JetStream does not answer"));
            }
            let answer: Value = serde_json::from_slice(&self.payload).map_err(|_| malformed_answer())?;
            let Some(error) = answer.get("error") else { return Ok(answer) };
            let words = error["description"].as_str().unwrap_or("JetStream refuses").to_owned();
            return Err(match (error["code"].as_u64(), error["err_code"].as_u64()) {
                (Some(404), _) => RequestError::NoStream,
                (Some(503), _) | (_, Some(WRONG_LAST_SEQUENCE)) => transient(words),
                _ => refusal(self.stream.name(), &words),
            });
        }
    }

    /// Returns the facts about the stream.
    pub(super) fn facts(&mut self) -> Result<Value, RequestError> {
        self.ask(&format!("$JS.API.STREAM.INFO.{}", self.stream.stream), &json!({}))
    }
}

/// Returns the error of a greeting if it is a known one. Other texts may repeat credentials.
fn without_credentials(words: &str) -> &'static str {
    let words = words.trim_matches([' ', '\'']);
    let known = GREETING_ERRORS.into_iter().find(|known| known.eq_ignore_ascii_case(words));
    known.unwrap_or("it refuses CONNECT (its answer may repeat credentials and is not shown)")
}

/// Returns a number from a stream's state.
pub(super) fn state(facts: &Value, name: &str) -> io::Result<u64> {
    facts["state"][name].as_u64().ok_or_else(malformed_answer)
}

/// Returns a unique subject for replies.
fn inbox() -> io::Result<String> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("_INBOX.{:032x}", u128::from_le_bytes(bytes)))
}

/// Parses the status of a header such as `NATS/1.0 404 No Messages`, if it has one.
fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|&byte| byte == b'\r').next()?.strip_prefix(b"NATS/1.0 ")?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_a_greeting_are_not_repeated() {
        assert_eq!(without_credentials(" 'Authorization Violation'"), "Authorization Violation");
        assert_eq!(without_credentials(" 'authentication timeout'"), "Authentication Timeout");
        for words in [" 'Unknown: {\"pass\":\"secret\"}'", "Authorization Violation secret", ""] {
            assert!(without_credentials(words).starts_with("it refuses CONNECT"), "{words}");
        }
    }

    #[test]
    fn a_status_is_read_from_headers() {
        assert_eq!(status(b"NATS/1.0 404 No Messages\r\n\r\n"), Some(404));
        assert_eq!(status(b"NATS/1.0\r\nNats-Msg-Id: 404\r\n\r\n"), None);
        assert_eq!(status(b""), None);
    }
}
