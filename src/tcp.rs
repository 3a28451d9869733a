//! TCP connections with a time limit for connecting, and keep-alive probes for silent peers.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::control::{Control, is_ready};

/// Time limit for an attempt to connect to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Silence after which a connection is probed.
const QUIET: Duration = Duration::from_secs(10);

/// Time between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// Connects to the first of several addresses that answers within [`CONNECT_TIMEOUT`].
///
/// # Errors
/// `Interrupted` if `control` gives up first; else the error of the last address.
pub(crate) fn connect(address: &str, control: &Control) -> io::Result<TcpStream> {
    let mut refused = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match connect_to(&address, control) {
            Err(error) if error.kind() != ErrorKind::Interrupted => refused = error,
            connected => return connected,
        }
    }
    Err(refused)
}

fn connect_to(address: &SocketAddr, control: &Control) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // The attempt must not block: a stop does not interrupt the system's own timeout.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let begun = Instant::now();
    while !is_ready(socket.as_fd(), PollFlags::OUT)? {
        control.keep_waiting(begun, CONNECT_TIMEOUT)?;
    }
    sockopt::socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Detects a vanished peer after 19 seconds of silence, whether nothing is sent or data is not
/// acknowledged.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, QUIET)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    let timeout = QUIET + PROBES * PROBE_INTERVAL;
    sockopt::set_tcp_user_timeout(socket, timeout.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    /// A listener with a full queue does not answer, like a firewall that drops packets.
    #[test]
    fn a_stop_ends_an_unanswered_connection_attempt() {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&socket, 0).unwrap();
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr().unwrap().to_string();
        let control = Control::new();
        let _queued = connect(&address, &control).unwrap();
        let stop = std::thread::spawn({
            let control = control.clone();
            move || {
                std::thread::sleep(Duration::from_millis(100));
                control.stop();
            }
        });
        let begun = Instant::now();
        let attempt = connect(&address, &control);
        assert!(attempt.is_err_and(|error| error.kind() == ErrorKind::Interrupted));
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        stop.join().unwrap();
    }

    #[test]
    fn a_refused_connection_fails_at_once() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let attempt = connect(&address.to_string(), &Control::new());
        assert!(attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused));
    }
}
