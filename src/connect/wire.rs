//! A connection to a server that speaks in lines and length-prefixed bytes. No wait outlasts the
//! run or a limit, usually [`SILENCE`]. Paths name servers as `host[:port]`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::SystemSection;
use super::security::{Login, tls_client};
use crate::control::{Control, POLL_INTERVAL};
use crate::document::Section;
use crate::security::{Link, TlsClient, WarnedOnce};
use crate::tcp::{connect, keep_alive};

/// Usual maximum silence of a server that should answer; after that it counts as lost.
const SILENCE: Duration = Duration::from_secs(5);

/// First byte of an alert of TLS, which a server that requires it may answer.
const TLS_ALERT: u8 = 0x15;

/// Maximum length of a line in bytes.
const LINE_LIMIT: usize = 1 << 16;

pub(crate) struct ServerConnection {
    link: Link,
    control: Control,
    /// Maximum silence of a server that should answer.
    timeout: Duration,
    /// Whether the server has sent anything.
    has_answered: bool,
    bytes: Zeroizing<Vec<u8>>,
    /// Bytes read but not consumed: `bytes[at..end]`.
    at: usize,
    end: usize,
}

impl ServerConnection {
    /// Connects, without TLS yet.
    fn connect(address: &str, control: &Control) -> io::Result<Self> {
        let link = Link::Plain(connect(address, control)?);
        let socket = link.socket();
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        keep_alive(socket)?;
        let bytes = Zeroizing::new(vec![0; LINE_LIMIT]);
        let (control, timeout) = (control.clone(), SILENCE);
        Ok(ServerConnection { link, control, timeout, has_answered: false, bytes, at: 0, end: 0 })
    }

    /// Encrypts the connection to the server at `address` from now on.
    ///
    /// # Errors
    /// If the handshake fails or takes longer than [`SILENCE`], or if the server has sent bytes
    /// that were not read yet: they would count as encrypted.
    fn secured(self, tls: &TlsClient, address: &str) -> io::Result<Self> {
        if self.has_more() {
            return Err(malformed_answer());
        }
        let begun = Instant::now();
        let link = self.link.secured(tls, address, || self.control.keep_waiting(begun, SILENCE))?;
        Ok(ServerConnection { link, ..self })
    }

    /// Waits longer for an answer.
    #[cfg(feature = "postgres")]
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        ServerConnection { timeout, ..self }
    }

    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut begun = Instant::now();
        while !bytes.is_empty() {
            match self.link.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => (bytes, begun) = (&bytes[written..], Instant::now()),
                Err(error) => self.wait_after(error, begun).map_err(|error| self.ended(error))?,
            }
        }
        while let Err(error) = self.link.flush() {
            self.wait_after(error, begun).map_err(|error| self.ended(error))?;
        }
        Ok(())
    }

    /// Succeeds if waiting may continue after this error; the wait began at `begun`.
    fn wait_after(&self, error: io::Error, begun: Instant) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                self.control.keep_waiting(begun, self.timeout)
            }
            _ => Err(error),
        }
    }

    /// Waits for more bytes, if none are left.
    fn fill(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            match self.link.read(&mut self.bytes) {
                Ok(0) => return Err(self.ended(ErrorKind::UnexpectedEof.into())),
                Ok(_) if !self.has_answered && self.is_plain() && self.bytes[0] == TLS_ALERT => {
                    return Err(self.ended(ErrorKind::ConnectionReset.into()));
                }
                Ok(read) => {
                    (self.at, self.end, self.has_answered) = (0, read, true);
                    return Ok(());
                }
                Err(error) => self.wait_after(error, begun).map_err(|error| self.ended(error))?,
            }
        }
    }

    fn is_plain(&self) -> bool {
        matches!(self.link, Link::Plain(_))
    }

    /// Whether data is sent unencrypted to an address that is not a loopback one.
    fn is_exposed(&self) -> bool {
        let is_loopback = |peer: SocketAddr| peer.ip().to_canonical().is_loopback();
        self.is_plain() && !self.link.socket().peer_addr().is_ok_and(is_loopback)
    }

    /// Explains the end of a plain connection on which the server has not sent anything: a server
    /// that requires TLS ends it so.
    fn ended(&self, error: io::Error) -> io::Error {
        let is_end = matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
        );
        if !is_end || self.has_answered || !self.is_plain() {
            return error;
        }
        io::Error::new(
            error.kind(),
            "the server ended the connection without an answer: if it requires TLS, add tls = true",
        )
    }

    /// Returns the bytes received but not consumed: at least one.
    fn buffered(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end {
            self.fill()?;
        }
        Ok(&self.bytes[self.at..self.end])
    }

    /// Whether received bytes are left.
    pub(crate) fn has_more(&self) -> bool {
        self.at < self.end
    }

    /// Returns the next byte, if it was received.
    #[cfg(feature = "postgres")]
    pub(crate) fn next_byte(&self) -> Option<u8> {
        self.bytes[self.at..self.end].first().copied()
    }

    /// Reads the next line into `line`, without its end.
    pub(crate) fn line(&mut self, line: &mut Vec<u8>) -> io::Result<()> {
        line.clear();
        loop {
            let buffered = self.buffered()?;
            let end = buffered.iter().position(|&byte| byte == b'\n');
            let count = end.map_or(buffered.len(), |end| end + 1);
            line.extend_from_slice(&buffered[..count]);
            self.at += count;
            if end.is_some() {
                let content = line.trim_ascii_end().len();
                line.truncate(content);
                return Ok(());
            }
            if line.len() > LINE_LIMIT {
                return Err(malformed_answer());
            }
        }
    }

    /// Appends the next `count` bytes to `bytes`.
    pub(crate) fn take(&mut self, count: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.pass(count, |part| bytes.extend_from_slice(part))
    }

    /// Skips the next `count` bytes.
    pub(crate) fn skip(&mut self, count: usize) -> io::Result<()> {
        self.pass(count, |_| ())
    }

    fn pass(&mut self, mut count: usize, mut consume: impl FnMut(&[u8])) -> io::Result<()> {
        let begun = Instant::now();
        while count > 0 {
            // A server may state any length and send forever.
            if count > LINE_LIMIT {
                self.control.keep_waiting(begun, Duration::MAX)?;
            }
            let buffered = self.buffered()?;
            let part = &buffered[..count.min(buffered.len())];
            consume(part);
            let read = part.len();
            self.at += read;
            count -= read;
        }
        Ok(())
    }
}

/// Error for an answer that can't be parsed.
pub(crate) fn malformed_answer() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server's answer can't be understood")
}

/// Parses a decimal number.
pub(crate) fn number<T: std::str::FromStr>(text: &[u8]) -> io::Result<T> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(malformed_answer)
}

/// An ordered id of two numbers, written `7-0`. For Redis entries it is `milliseconds-number`. For
/// lines that a sink writes to any server it is `epoch-line`.
pub(super) type EntryId = (u64, u64);

/// Parses an id of two numbers.
pub(super) fn parse_id(id: &[u8]) -> io::Result<EntryId> {
    let dash = id.iter().position(|&byte| byte == b'-').ok_or_else(malformed_answer)?;
    Ok((number(&id[..dash])?, number(&id[dash + 1..])?))
}

pub(super) fn format_id((first, second): EntryId) -> String {
    format!("{first}-{second}")
}

/// A server, and how to connect to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BrokerServer {
    /// `host:port`, or several of them separated by commas.
    pub(super) address: String,
    pub(super) tls: Option<TlsClient>,
    pub(super) login: Login,
    pub(super) is_warned: WarnedOnce,
}

impl BrokerServer {
    /// Reads the server of a section, with the given default port, and the part of the path after a
    /// slash. `None` if the path can't be parsed.
    pub(super) fn read<'a>(settings: &SystemSection<'_, 'a>, port: u16) -> Option<(Self, &'a str)> {
        let (tls, login) = (tls_client(settings), Login::with_password(settings));
        let (address, behind) = address_of(settings.rest, port)?;
        Some((BrokerServer { address, tls, login, is_warned: WarnedOnce::default() }, behind))
    }

    /// Connects, and encrypts the connection if it is to be.
    pub(super) fn connect(&self, control: &Control) -> io::Result<ServerConnection> {
        self.secure(ServerConnection::connect(&self.address, control)?)
    }

    /// Connects, without TLS yet: the server speaks first.
    pub(super) fn connect_plainly(&self, control: &Control) -> io::Result<ServerConnection> {
        ServerConnection::connect(&self.address, control)
    }

    /// Warns once, before a `secret` is sent, that it can be read on the way. `name` is that of
    /// the stream.
    pub(super) fn warn_of_exposure(&self, connection: &ServerConnection, secret: &str, name: &str) {
        if connection.is_exposed() && self.is_warned.is_first() {
            connection.control.notice(&format!(
                "{name}: the {secret} goes over the network unencrypted, so others on the way can read it: enable TLS at the server, \
                 and add tls = true"
            ));
        }
    }

    /// Encrypts the connection from now on, if it is to be.
    pub(super) fn secure(&self, connection: ServerConnection) -> io::Result<ServerConnection> {
        match &self.tls {
            Some(tls) => connection.secured(tls, &self.address),
            None => Ok(connection),
        }
    }
}

/// Splits the part after `scheme://` into `host:port`, with the given default port, and the part
/// after a slash. `None` if it can't be parsed.
pub(super) fn address_of(rest: &str, port: u16) -> Option<(String, &str)> {
    let (host, behind) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if has_port(host) { host.into() } else { format!("{host}:{port}") };
    // An invalid port, but not an IPv6 address.
    let has_invalid_port = !has_port(host) && host.contains(':') && !host.ends_with(']');
    (has_port(&address) && !has_invalid_port).then_some((address, behind))
}

/// Whether an address ends with a port.
pub(crate) fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads `stream`: the name of a stream, without blanks and characters that the system forbids.
pub(super) fn stream(section: &Section<'_>, forbidden: &str) -> Option<String> {
    let stream = section.required_text("stream")?;
    let is_forbidden = |c: char| c.is_whitespace() || c.is_control() || forbidden.contains(c);
    if stream.value.contains(is_forbidden) || stream.value.is_empty() {
        stream.report(format!("found {:?}, expected the name of a stream", stream.value));
        return None;
    }
    Some(stream.value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_two_numbers() {
        assert_eq!(parse_id(b"1526919030474-55").ok(), Some((1_526_919_030_474, 55)));
        assert!(["", "-", "5", "5-", "-5", "a-b", "1-2-3"].iter().all(|id| parse_id(id.as_bytes()).is_err()));
        assert_eq!(format_id((7, 0)), "7-0");
    }
}
