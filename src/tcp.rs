//! TCP connections with a time limit for connecting, and keep-alive probes for silent peers.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Time limit for an attempt to connect to one address.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Silence after which a connection is probed.
const QUIET: Duration = Duration::from_secs(10);

/// Time between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// Connects to the first of several addresses that answers within [`CONNECT_PATIENCE`].
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

/// Detects a vanished peer after 19 seconds of silence, whether nothing is sent or data is not
/// acknowledged.
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
