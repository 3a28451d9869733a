//! Connections that lines come over: one peer at a time, again and again.
//!
//! Whoever listens takes the next peer when the last one has gone. Whoever connects tries again, with pauses that grow.
//! A peer that is gone without a word is found out by the system's probes. None of this ends the stream: it ends with
//! the run.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::control::{Backoff, Control, GLANCE};
use crate::pipeline::{Address, Socket};

/// How long a peer may leave what it is told unread.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// How long an attempt to connect may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// A connection that nothing has come over for so long is probed …
const QUIET: Duration = Duration::from_secs(10);
/// … so often at these intervals.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// Peers, one after the other.
pub(crate) struct Connections {
    socket: Socket,
    listener: Option<Listener>,
    control: Control,
    peer: Peer,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection to a peer.
pub(super) enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The peer that is connected now, as whoever tells it something sees it.
#[derive(Clone, Default)]
pub(crate) struct Peer(Arc<Mutex<Option<Told>>>);

struct Told {
    connection: Connection,
    /// The last number it was told.
    last: Option<u64>,
}

impl Connections {
    /// Begins to listen where the socket listens.
    ///
    /// # Errors
    /// Where the address can't be listened on.
    pub(crate) fn open(socket: &Socket, control: &Control) -> io::Result<Self> {
        let listener = socket.listens.then(|| Listener::open(&socket.address)).transpose()?;
        Ok(Connections { socket: socket.clone(), listener, control: control.clone(), peer: Peer::default() })
    }

    /// Whoever is connected.
    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Whether peers are told how many records are safe.
    pub(super) fn acknowledges(&self) -> bool {
        self.socket.acknowledge
    }

    /// Waits for the next peer; none when the run is over, or has been silent since `last` for too long.
    pub(super) fn next(&mut self, mut last: Instant) -> Option<Connection> {
        let mut backoff = Backoff::default();
        while !self.control.is_over(last) {
            let connected = match &self.listener {
                Some(listener) => listener.accept(),
                None => Connection::to(&self.socket.address),
            };
            match connected.and_then(Connection::prepared) {
                Ok(connection) => return Some(connection),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.control.sleep(GLANCE),
                Err(error) => {
                    if backoff.failed() {
                        self.control.notice(&format!("{}: {error}; trying again", self.name()));
                    }
                    self.control.sleep(backoff.pause());
                    // A source that fails is not one that is silent.
                    last = Instant::now();
                }
            }
        }
        None
    }

    /// The socket in messages.
    pub(super) fn name(&self) -> String {
        self.socket.to_string()
    }
}

impl Listener {
    fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Address::Unix(path) => {
                remove_left_behind(path)?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener))
            }
        }
    }

    fn accept(&self) -> io::Result<Connection> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Connection::Tcp(stream))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Connection::Unix(stream))
            }
        }
    }
}

/// Takes away the socket of a run that is dead: nobody answers there. Nothing but a socket is ever taken away.
fn remove_left_behind(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && refused() { fs::remove_file(path) } else { Ok(()) }
}

impl Connection {
    fn to(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => connect(address).map(Connection::Tcp),
            Address::Unix(path) => UnixStream::connect(path).map(Connection::Unix),
        }
    }

    /// With limits to every wait.
    fn prepared(self) -> io::Result<Self> {
        match &self {
            Connection::Tcp(stream) => {
                stream.set_read_timeout(Some(GLANCE))?;
                stream.set_write_timeout(Some(WRITE_PATIENCE))?;
                keep_alive(stream)?;
            }
            Connection::Unix(stream) => {
                stream.set_read_timeout(Some(GLANCE))?;
                stream.set_write_timeout(Some(WRITE_PATIENCE))?;
            }
        }
        Ok(self)
    }

    fn another(&self) -> io::Result<Self> {
        match self {
            Connection::Tcp(stream) => stream.try_clone().map(Connection::Tcp),
            Connection::Unix(stream) => stream.try_clone().map(Connection::Unix),
        }
    }

    fn close(&self) {
        // One that is gone already needs no closing.
        let _ = match self {
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Tells the peer something, if it listens.
    fn say(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        match self {
            Connection::Tcp(stream) => stream.write_all(line.as_bytes()),
            Connection::Unix(stream) => stream.write_all(line.as_bytes()),
        }
    }

    /// Tells the peer why, and ends.
    pub(super) fn refuse(mut self, reason: &str) {
        let _ = self.say(&format!("error: {reason}"));
        self.close();
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Tcp(stream) => stream.read(buffer),
            Connection::Unix(stream) => stream.read(buffer),
        }
    }
}

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

/// A peer that has gone without a word is found out, by 19 seconds of silence: whether nothing is sent, or what is sent is
/// not acknowledged.
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

impl Peer {
    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this connection is told numbers, the first of them at once.
    pub(super) fn greet(&self, connection: &Connection, first: u64) {
        if let Ok(connection) = connection.another() {
            *self.told() = Some(Told { connection, last: None });
            self.tell(first);
        }
    }

    /// Tells a number, if it is greater than the last one. A peer that does not listen is let go: it would not know what
    /// is safe.
    pub(crate) fn tell(&self, number: u64) {
        let mut told = self.told();
        let Some(Told { connection, last }) = told.as_mut() else { return };
        if last.is_none_or(|last| number > last) {
            *last = Some(number);
            if connection.say(&number.to_string()).is_err() {
                connection.close();
                *told = None;
            }
        }
    }

    /// The connection has ended.
    pub(super) fn leave(&self) {
        *self.told() = None;
    }
}
