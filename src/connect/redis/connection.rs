//! A connection to Redis (RESP2, `redis.io/docs/reference/protocol-spec`).

use std::io;

use super::RedisStream;
use crate::connect::error::{RequestError, refusal, transient};
use crate::connect::security::Login;
use crate::connect::wire::{ServerConnection, malformed_answer, number};
use crate::control::Control;

/// Maximum number of parts of an answer that is read as a whole, and their maximum depth.
const PARTS: usize = 4096;
const DEPTH: usize = 8;

/// Maximum total size in bytes of the texts of such an answer. Texts beyond it are skipped and read
/// as empty.
const TEXT: usize = 16 << 20;

/// Temporary errors: the server is starting, its cluster is reconfiguring, or replicas are missing.
const TRANSIENT: [&str; 6] = ["LOADING", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "NOREPLICAS"];

/// Error codes that may answer a login, besides [`TRANSIENT`].
const LOGIN_ERRORS: [&str; 4] = ["WRONGPASS", "NOPERM", "NOAUTH", "ERR"];

/// A connection after login and selection of the database.
pub(super) struct RedisConnection {
    pub(super) stream: RedisStream,
    pub(super) wire: ServerConnection,
    line: Vec<u8>,
}

/// Remaining allowance of an answer.
struct AnswerAllowance {
    parts: usize,
    bytes: usize,
}

/// A whole answer.
pub(super) enum RedisValue {
    Text(Vec<u8>),
    List(Vec<RedisValue>),
    Nothing,
    Error(String),
}

impl RedisConnection {
    pub(super) fn open(stream: &RedisStream, control: &Control) -> Result<Self, RequestError> {
        let wire = stream.server.connect(control)?;
        let mut connection = RedisConnection { stream: stream.clone(), wire, line: Vec::new() };
        if let Login { user, password: Some(password) } = &stream.server.login {
            let password = password.read(control)?;
            stream.server.warn_of_exposure(&connection.wire, "password", &stream.name());
            let parts = ["AUTH"].into_iter().chain(user.as_deref()).chain([password.text()]);
            connection.log_in(&parts.collect::<Vec<_>>())?;
        }
        if let Some(database) = stream.database {
            connection.ask(&["SELECT", &database.to_string()])?;
        }
        Ok(connection)
    }

    fn log_in(&mut self, parts: &[&str]) -> Result<(), RequestError> {
        self.send(parts)?;
        match self.value(&mut AnswerAllowance { parts: PARTS, bytes: TEXT }, DEPTH)? {
            RedisValue::Error(words) => {
                let words = without_credentials(&words);
                Err(self.refused(&format!("{words}: {}", self.stream.server.login.hint())))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn send(&mut self, parts: &[&str]) -> io::Result<()> {
        let mut command = Vec::new();
        write_command(&mut command, parts);
        self.wire.send(&command)
    }

    /// Sends a command. Returns its answer, unless that is an error.
    pub(super) fn ask(&mut self, parts: &[&str]) -> Result<RedisValue, RequestError> {
        self.send(parts)?;
        self.answer()
    }

    /// Returns the next answer, unless it is an error.
    pub(super) fn answer(&mut self) -> Result<RedisValue, RequestError> {
        match self.value(&mut AnswerAllowance { parts: PARTS, bytes: TEXT }, DEPTH)? {
            RedisValue::Error(words) => Err(self.refused(&words)),
            value => Ok(value),
        }
    }

    /// Checks that an answer within another is not an error.
    pub(super) fn accepted(&self, answer: &RedisValue) -> Result<(), RequestError> {
        match answer {
            RedisValue::Error(words) => Err(self.refused(words)),
            _ => Ok(()),
        }
    }

    /// Returns the facts about the stream (`XINFO STREAM`), alternating names and values.
    pub(super) fn facts(&mut self) -> Result<Vec<RedisValue>, RequestError> {
        let stream = self.stream.stream.clone();
        self.send(&["XINFO", "STREAM", &stream])?;
        match self.value(&mut AnswerAllowance { parts: PARTS, bytes: TEXT }, DEPTH)? {
            RedisValue::List(facts) => Ok(facts),
            RedisValue::Error(words) if words.contains("no such key") => Err(RequestError::NoStream),
            RedisValue::Error(words) => Err(self.refused(&words)),
            _ => Err(malformed_answer().into()),
        }
    }

    /// Asks for the stream, which may not be there yet, and whether the user may add an entry: the
    /// server checks rights when it queues a command. The end of the connection discards the
    /// transaction.
    pub(super) fn probe(mut self) -> Result<(), RequestError> {
        match self.facts() {
            Err(RequestError::NoStream) => {}
            facts => drop(facts?),
        }
        let stream = self.stream.stream.clone();
        self.ask(&["MULTI"])?;
        self.ask(&["XADD", &stream, "*", "", ""]).map(drop)
    }

    fn refused(&self, words: &str) -> RequestError {
        if words.starts_with("NOAUTH") {
            let words = format!("{}: {}", words.trim_end_matches('.'), self.stream.server.login.hint());
            return refusal(self.stream.name(), &words);
        }
        if words.starts_with("NOPERM") {
            let words = format!("{words}: give the user this right (ACL SETUSER)");
            return refusal(self.stream.name(), &words);
        }
        match TRANSIENT.iter().any(|code_start| words.starts_with(code_start)) {
            true => transient(words),
            false => refusal(self.stream.name(), words),
        }
    }

    fn value(&mut self, left: &mut AnswerAllowance, depth: usize) -> io::Result<RedisValue> {
        left.parts = left.parts.checked_sub(1).ok_or_else(malformed_answer)?;
        let mut line = std::mem::take(&mut self.line);
        self.wire.line(&mut line)?;
        left.bytes = left.bytes.saturating_sub(line.len());
        let value = match line.split_first() {
            Some((b'+' | b':', text)) => RedisValue::Text(text.to_vec()),
            Some((b'-', text)) => RedisValue::Error(String::from_utf8_lossy(text).into_owned()),
            Some((b'$' | b'*', b"-1")) => RedisValue::Nothing,
            Some((b'$', length)) => {
                let length = number::<usize>(length)?;
                let mut text = Vec::new();
                match left.bytes.checked_sub(length) {
                    Some(bytes) => {
                        left.bytes = bytes;
                        self.wire.take(length, &mut text)?;
                    }
                    None => self.wire.skip(length)?,
                }
                self.wire.skip(2)?;
                RedisValue::Text(text)
            }
            Some((b'*', length)) if depth > 0 => {
                let length = number::<usize>(length)?;
                RedisValue::List((0..length).map(|_| self.value(left, depth - 1)).collect::<io::Result<_>>()?)
            }
            _ => return Err(malformed_answer()),
        };
        self.line = line;
        Ok(value)
    }

    /// Reads the length that follows this mark. Returns `None` for a null.
    pub(super) fn length(&mut self, mark: u8) -> Result<Option<usize>, RequestError> {
        self.wire.line(&mut self.line)?;
        match self.line.split_first() {
            Some((_, b"-1")) => Ok(None),
            Some((&found, length)) if found == mark => Ok(Some(number(length)?)),
            Some((b'-', words)) => Err(self.refused(&String::from_utf8_lossy(words))),
            _ => Err(malformed_answer().into()),
        }
    }

    pub(super) fn expect(&mut self, mark: u8) -> Result<usize, RequestError> {
        self.length(mark)?.ok_or_else(|| malformed_answer().into())
    }
}

/// Explains a refused AUTH by the error's code alone, because some servers repeat the password in
/// the error's text.
fn without_credentials(words: &str) -> String {
    let code = words.split(' ').next().unwrap_or_default();
    let known = TRANSIENT.iter().chain(&LOGIN_ERRORS).find(|known| **known == code);
    match known {
        Some(&"WRONGPASS") => "WRONGPASS: the user or the password is wrong, or the user is disabled".into(),
        // "Called without any password configured" has no code of its own.
        Some(&"ERR") => "ERR: it refuses AUTH: it may have set no password, or lack the command".into(),
        Some(code) => format!("{code}: it refuses AUTH"),
        None => "it refuses AUTH in words that may repeat the password and are not shown".into(),
    }
}

/// Returns the value of a named fact.
pub(super) fn fact<'a>(facts: &'a [RedisValue], name: &str) -> Option<&'a RedisValue> {
    let is_it =
        |fact: &&[RedisValue]| matches!(&fact[0], RedisValue::Text(found) if found == name.as_bytes());
    facts.chunks_exact(2).find(is_it).map(|fact| &fact[1])
}

/// Appends a command to a buffer.
pub(super) fn write_command(bytes: &mut Vec<u8>, parts: &[&str]) {
    bytes.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener, UdpSocket};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::connect::wire::BrokerServer;
    use crate::security::{SecretFields, SecretReference};

    /// An address of this machine that is not a loopback one. No packet is sent.
    fn network_address() -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    }

    #[test]
    fn a_password_that_leaves_the_machine_unencrypted_is_warned_of_once() {
        let warnings = |host: IpAddr| {
            let listener = TcpListener::bind((host, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let fields = SecretFields { variable: "password_env", file: "password_file" };
            let password = Some(SecretReference::variable("PATH", fields));
            let login = Login { user: None, password };
            let server = BrokerServer { address: address.to_string(), login, ..BrokerServer::default() };
            let stream = RedisStream { server, database: None, stream: "s".into() };
            let notices = Arc::new(Mutex::new(Vec::new()));
            let heard = Arc::clone(&notices);
            let control = Control::new().on_notice(move |text| heard.lock().unwrap().push(text.to_owned()));
            for _ in 0..2 {
                let server = listener.try_clone().unwrap();
                let server = std::thread::spawn(move || drop(server.accept()));
                assert!(RedisConnection::open(&stream, &control).is_err(), "the server ends the connection");
                server.join().unwrap();
            }
            std::mem::take(&mut *notices.lock().unwrap())
        };
        assert!(warnings(IpAddr::from([127, 0, 0, 1])).is_empty());
        if let Some(host) = network_address() {
            let found = warnings(host);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("the password goes over the network unencrypted"), "{found:?}");
        }
    }

    #[test]
    fn answers_to_a_login_are_not_repeated() {
        for (words, start) in [
            ("ERR unknown command 'AUTH', with args beginning with: 'u' 'secret'", "ERR: it refuses AUTH"),
            ("WRONGPASS invalid username-password pair: secret", "WRONGPASS: the user or the password"),
            ("LOADING secret", "LOADING: it refuses AUTH"),
            ("secret", "it refuses AUTH in words"),
            ("", "it refuses AUTH in words"),
        ] {
            let told = without_credentials(words);
            assert!(told.starts_with(start) && !told.contains("secret"), "{told}");
        }
    }
}
