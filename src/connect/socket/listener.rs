//! A listening socket: decides which connections wait, which are refused, and which one sends next.
//!
//! One peer sends at a time. The others wait here; a waiting connection takes no thread and never
//! blocks. The next peer must have sent first bytes that were accepted ([`entry`](super::entry)),
//! so a silent connection displaces no other peer. A source that acknowledges and has no key is the
//! exception: its peers wait for the first number before they send. The more connections wait, the
//! sooner the current peer must send its first line, so that all get their turn.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::connection::{PeerConnection, PeerStream};
use super::encrypted::EncryptedPeer;
use super::{SocketAddress, SocketSource, SocketTls};
use crate::control::Control;
use crate::key::{SharedKey, Token};
use crate::security::{Link, TlsAcceptor};

/// Maximum number of waiting connections. They also take at most one in this many of the process's
/// file descriptors (or four, if that is more), so that the log, the ledger and the sinks get the
/// rest.
const WAITING: usize = 64;
const DESCRIPTORS_EACH: usize = 16;

/// How long a connection may take for its handshake, and to show the token of a source with a key.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);

const FULL: &str = "too many connections wait already";
const TOO_LATE: &str = "it has not shown the token of this source in time";

const NO_HANDSHAKE: &str = "its TLS handshake has taken too long";

const EXPOSED: &str = "others than this machine can reach this address: add expose = true to the source if they may, and best a \
    key too";

/// The listening end of a socket.
pub(super) struct PeerListener {
    listener: BoundListener,
    token: Option<Token>,
    tls: Option<TlsAcceptor>,
    /// Whether peers wait for the first acknowledgement before they send.
    speaks_first: bool,
    waiting: Vec<WaitingPeer>,
    /// Maximum number of waiting connections.
    waiting_limit: usize,
    refused: u64,
}

enum BoundListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

struct WaitingPeer {
    connection: PeerConnection,
    since: Instant,
    ready: bool,
}

impl PeerListener {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the address can't be listened on, if other machines can reach it and must not, or if the
    /// key file can't be used.
    pub(super) fn open(socket: &SocketSource, control: &Control) -> io::Result<Self> {
        let token = socket.key.as_deref().map(SharedKey::load).transpose().map_err(io::Error::other)?;
        let token = token.as_ref().map(SharedKey::token);
        let speaks_first = socket.acknowledge && token.is_none();
        let tls = match &socket.tls {
            Some(SocketTls::Listening(tls)) => {
                let (listener, name) = (control.clone(), socket.to_string());
                let warn = move |warning: &str| listener.notice(&format!("{name}: {warning}"));
                Some(TlsAcceptor::new(&tls.clone().on_warning(warn))?)
            }
            _ => None,
        };
        let listener = BoundListener::open(&socket.address, socket.expose)?;
        let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| limit.try_into().ok());
        let waiting_limit = (descriptors.unwrap_or(usize::MAX) / DESCRIPTORS_EACH).clamp(4, WAITING);
        Ok(PeerListener {
            listener,
            token,
            tls,
            speaks_first,
            waiting: Vec::new(),
            waiting_limit,
            refused: 0,
        })
    }

    /// Accepts new connections, reads the first bytes of those that wait, and refuses some of them.
    ///
    /// # Errors
    /// If the listener fails. Waiting connections are read anyway.
    pub(super) fn serve_waiting(&mut self, control: &Control, name: &str) -> io::Result<()> {
        let accepted = self.accept(control, name);
        for mut waiting in std::mem::take(&mut self.waiting) {
            let refusal = match waiting.connection.settle() {
                Ok(()) => {
                    waiting.ready = true;
                    None
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::PermissionDenied) =>
                {
                    Some(error.to_string())
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    let is_secured = waiting.connection.is_ready();
                    waiting.ready = self.speaks_first && is_secured;
                    let late = waiting.since.elapsed() >= TOKEN_TIMEOUT;
                    match (is_secured, self.token.is_some()) {
                        (false, _) if late => Some(NO_HANDSHAKE.into()),
                        (true, true) if late => Some(TOO_LATE.into()),
                        _ => None,
                    }
                }
                // The peer has disconnected.
                Err(_) => continue,
            };
            match refusal {
                None => self.waiting.push(waiting),
                Some(reason) => self.refuse(waiting.connection, &reason, control, name),
            }
        }
        accepted
    }

    fn refuse(&mut self, connection: PeerConnection, reason: &str, control: &Control, name: &str) {
        self.refused += 1;
        // Prevents a client from filling a log by connecting.
        if self.refused.is_power_of_two() {
            let refused = self.refused;
            control.notice(&format!("{name}: {refused} connections were refused; the last because {reason}"));
        }
        connection.refuse(reason);
    }

    fn accept(&mut self, control: &Control, name: &str) -> io::Result<()> {
        for _ in 0..WAITING {
            let wire = match self.listener.accept(self.tls.as_ref()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                accepted => accepted?,
            };
            let connection = PeerConnection::judged(wire, self.token.clone());
            let ready = self.speaks_first && connection.is_ready();
            self.waiting.push(WaitingPeer { connection, since: Instant::now(), ready });
            if self.waiting.len() > self.waiting_limit {
                // Refuse the oldest connection that has sent nothing, or else the newest.
                let quiet = self.waiting.iter().position(|waiting| !waiting.ready);
                let surplus = self.waiting.remove(quiet.unwrap_or(self.waiting_limit));
                self.refuse(surplus.connection, FULL, control, name);
            }
        }
        Ok(())
    }

    /// The number of connections that are ready to send.
    pub(super) fn ready(&self) -> u32 {
        self.waiting.iter().map(|waiting| u32::from(waiting.ready)).sum()
    }

    /// Returns the connection that sends next.
    pub(super) fn next(&mut self) -> Option<PeerConnection> {
        let first = self.waiting.iter().position(|waiting| waiting.ready)?;
        Some(self.waiting.remove(first).connection)
    }
}

impl BoundListener {
    fn open(address: &SocketAddress, expose: bool) -> io::Result<Self> {
        match address {
            SocketAddress::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                if !expose && !listener.local_addr()?.ip().is_loopback() {
                    return Err(io::Error::new(ErrorKind::PermissionDenied, EXPOSED));
                }
                listener.set_nonblocking(true)?;
                Ok(BoundListener::Tcp(listener))
            }
            SocketAddress::Unix(path) => {
                remove_left_behind(path)?;
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(BoundListener::Unix(listener))
            }
        }
    }

    /// Accepts the next connection without blocking.
    fn accept(&self, tls: Option<&TlsAcceptor>) -> io::Result<PeerStream> {
        match self {
            BoundListener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                match tls {
                    Some(tls) => EncryptedPeer::new(Link::accepted(stream, tls)?).map(PeerStream::Encrypted),
                    None => Ok(PeerStream::Tcp(stream)),
                }
            }
            BoundListener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(PeerStream::Unix(stream))
            }
        }
    }
}

/// Removes the socket file of a run that has died: no process answers on it. Never removes a file
/// of another kind.
fn remove_left_behind(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused =
        || UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && refused() { fs::remove_file(path) } else { Ok(()) }
}
