//! TCP connections of our own: made within a time, and given up when the peer has gone without a word.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// How long an attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// A connection that nothing has come over for so long is probed …
const QUIET: Duration = Duration::from_secs(10);

/// … so often at these intervals.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// Connects within a time, to the first address of several that answers.
pub(crate) fn connect(address: &str) -> io::Result<TcpStream> {
    let mut refused = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// A peer that has gone without a word is found out, by 19 seconds of silence: whether nothing is
/// sent, or what is sent is not acknowledged.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, QUIET)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    let patience = QUIET + PROBES * PROBE_INTERVAL;
    sockopt::set_tcp_user_timeout(socket, patience.as_millis() as u32)?;
    Ok(())
}
