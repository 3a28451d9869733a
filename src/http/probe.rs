//! Asks a server of this module whether it is alive or ready.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::security::{Link, TlsClient};

/// Longest answer that is read.
const ANSWER_LIMIT: usize = 16 << 10;

/// Longest wait for one step of a connection.
const STEP_TIMEOUT: Duration = Duration::from_millis(100);

/// Sends a request for `path` to `address`, `HOST:PORT`, with TLS if it is given. Returns whether
/// the status is 200, and the first line of the answer.
///
/// # Errors
/// If the server can't be reached, does not answer in HTTP within `timeout`, or has another
/// certificate than expected.
pub fn ask(
    address: &str,
    tls: Option<&TlsClient>,
    path: &str,
    timeout: Duration,
) -> io::Result<(bool, String)> {
    let deadline = Instant::now() + timeout;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")),
        left => Ok(left),
    };
    let mut found = Err(io::Error::new(ErrorKind::NotFound, "the host has no address"));
    for resolved in address.to_socket_addrs()? {
        found = TcpStream::connect_timeout(&resolved, left()?);
        if found.is_ok() {
            break;
        }
    }
    let stream = found?;
    stream.set_write_timeout(Some(left()?))?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    let mut link = Link::Plain(stream);
    if let Some(tls) = tls {
        link = link.secured(tls, address, || left().map(drop))?;
    }
    write!(link, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    link.flush()?;
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_LIMIT {
        let mut piece = [0; 1024];
        left()?;
        match link.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    read_answer(&bytes).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP"))
}

/// Reads the status and the first line of the body, without control characters.
fn read_answer(bytes: &[u8]) -> Option<(bool, String)> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = head.parse(bytes).ok()? else { return None };
    let body = String::from_utf8_lossy(&bytes[length..]);
    let line = body.lines().next().unwrap_or_default().replace(char::is_control, " ");
    Some((head.code == Some(200), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let read = |text: &str| read_answer(text.as_bytes());
        assert_eq!(read("HTTP/1.1 200 OK\r\nA: b\r\n\r\nalive\n"), Some((true, "alive".into())));
        let late = read("HTTP/1.1 503 Service Unavailable\r\n\r\nno epoch\u{1b}[2J\nmore");
        assert_eq!(late, Some((false, "no epoch [2J".into())));
        assert_eq!(read("HTTP/1.1 200 OK\r\n"), None);
        assert_eq!(read("\u{16}\u{3}\u{1}"), None);
        assert_eq!(read(""), None);
    }
}
