//! `hushflow health`: asks a run or a page whether it is alive or ready. Images without a shell
//! need no other program for their health check.

use std::io::{self, ErrorKind, Read, Write, stdout};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::Args;

use super::{CliError, run};

/// Longest answer that is read.
const ANSWER_LIMIT: usize = 16 << 10;

/// Arguments of `hushflow health`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 if the process answers that it is alive or ready, 1 if not or if it doesn't answer in time.

Examples:
  hushflow health                          (a run with --metrics 127.0.0.1:9100)
  hushflow health --ready 127.0.0.1:8080   (a page)")]
pub(crate) struct HealthArguments {
    /// HOST:PORT of --metrics or --web
    #[arg(default_value = "127.0.0.1:9100", value_name = "ADDR")]
    address: String,
    /// Ask whether an epoch came within its deadline, not only whether the process is alive
    #[arg(long)]
    ready: bool,
    /// How long to wait for the answer
    #[arg(long, default_value = "3s", value_name = "DURATION", value_parser = run::patience)]
    patience: Duration,
}

/// Prints the answer, and fails unless it is a good one.
pub(crate) fn execute(arguments: &HealthArguments) -> Result<(), CliError> {
    let HealthArguments { address, ready, patience } = arguments;
    let path = if *ready { "/readyz" } else { "/healthz" };
    let (is_good, answer) = ask(address, path, *patience)
        .map_err(|error| CliError::failed(format!("http://{address}{path}: {error}")))?;
    if is_good {
        return Ok(writeln!(stdout(), "{answer}")?);
    }
    Err(CliError::failed(format!("http://{address}{path}: {answer}")))
}

/// Returns whether the status is 200, and the first line of the answer.
fn ask(address: &str, path: &str, patience: Duration) -> io::Result<(bool, String)> {
    let deadline = Instant::now() + patience;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(ErrorKind::TimedOut, "no answer in time")),
        left => Ok(left),
    };
    let mut found = Err(io::Error::new(ErrorKind::NotFound, "the host has no address"));
    for place in address.to_socket_addrs()? {
        found = TcpStream::connect_timeout(&place, left()?);
        if found.is_ok() {
            break;
        }
    }
    let mut stream = found?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_LIMIT {
        let mut piece = [0; 1024];
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
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
