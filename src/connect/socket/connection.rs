//! Connections that carry lines, from one peer at a time.
//!
//! A listening source takes the next peer when the current one disconnects, or has been quiet for a
//! while and another one is ready to send ([`listener`](super::listener)). A connecting source
//! retries with growing pauses. Keep-alive probes detect a vanished peer. None of this ends the
//! stream: it ends with the run.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::encrypted::EncryptedPeer;
use super::entry::{LONGEST, PeerAdmission, judge};
use super::listener::PeerListener;
use super::{SocketAddress, SocketSource, SocketTls};
use crate::connect::{RequestError, SourceError};
use crate::control::{Backoff, Control, POLL_INTERVAL};
use crate::key::Token;
use crate::security::Link;
use crate::tcp::{connect, keep_alive};

/// How long a peer may leave its acknowledgements unread.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a peer without a usable line keeps its turn while another one is ready.
const QUIET_PEER: Duration = Duration::from_secs(10);

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// As [`QUIET_PEER`], before the first usable line of a peer. If many are ready, each has only its
/// share of [`QUIET_PEER`].
const NEW_PEER: Duration = Duration::from_secs(1);

/// The peers of a socket, one after the other.
pub(super) struct PeerConnections {
    socket: SocketSource,
    listener: Option<PeerListener>,
    control: Control,
    peer: CurrentPeer,
    served: Instant,
    /// Whether any peer was connected.
    has_connected: bool,
    /// Failed attempts in a row.
    backoff: Backoff,
}

/// The bytes to and from a peer.
pub(super) enum PeerStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Encrypted(EncryptedPeer),
}

/// A connection to a peer. Its first bytes are checked before any are passed on.
pub(super) struct PeerConnection {
    wire: PeerStream,
    judged: bool,
    token: Option<Token>,
    /// Bytes that were read for the check and belong to the rows.
    first_bytes: Zeroizing<Vec<u8>>,
}

/// The current peer, for the thread that sends it acknowledgements.
#[derive(Clone, Default)]
pub(super) struct CurrentPeer(Arc<Mutex<Option<AcknowledgedPeer>>>);

struct AcknowledgedPeer {
    wire: PeerStream,
    /// The last number that was sent to it.
    last: Option<u64>,
}

impl PeerConnections {
    /// Begins to listen, if the socket listens.
    ///
    /// # Errors
    /// If the address can't be listened on, or the key file can't be used.
    pub(super) fn open(socket: &SocketSource, control: &Control) -> io::Result<Self> {
        let listener = socket.listens.then(|| PeerListener::open(socket, control)).transpose()?;
        if socket.expose && !socket.admits_only_some() {
            control.notice(&format!(
                "{socket}: everybody who reaches this address can write records: give the source a key or tls_client_roots"
            ));
        }
        match listener {
            Some(_) => control.await_peer(&socket.to_string()),
            None => control.await_connection(&socket.to_string()),
        }
        Ok(PeerConnections {
            socket: socket.clone(),
            listener,
            control: control.clone(),
            peer: CurrentPeer::default(),
            served: Instant::now(),
            has_connected: false,
            backoff: Backoff::default(),
        })
    }

    pub(super) fn peer(&self) -> CurrentPeer {
        self.peer.clone()
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// Whether peers receive the number of safe records.
    pub(super) fn acknowledges(&self) -> bool {
        self.socket.acknowledge
    }

    /// Waits for the next peer; `None` if the run is over, or if no peer has sent anything since
    /// `last` for too long.
    ///
    /// # Errors
    /// If the connection to a server can't be secured until a person corrects something.
    pub(super) fn next(&mut self, mut last: Instant) -> io::Result<Option<PeerConnection>> {
        let name = self.name();
        let is_first = !self.has_connected;
        while !self.control.is_over(last) {
            let connected = match &mut self.listener {
                Some(listener) => listener.serve_waiting(&self.control, &name).map(|()| listener.next()),
                None => PeerStream::to(&self.socket, &self.control)
                    .map(|wire| Some(PeerConnection::trusted(wire))),
            };
            match connected.and_then(|connection| connection.map(PeerConnection::prepared).transpose()) {
                Ok(Some(connection)) => {
                    if is_first {
                        self.control.note_attempt(&name, None);
                    }
                    self.has_connected = true;
                    if self.listener.is_some() {
                        self.backoff.reset();
                    }
                    return Ok(Some(connection));
                }
                Ok(None) => self.control.sleep(POLL_INTERVAL),
                Err(error) => {
                    let error = self.transient(error)?;
                    if is_first && self.listener.is_none() {
                        self.control.note_attempt(&name, Some(&format!("can't be reached: {error}")));
                    }
                    self.pause(Some(&error));
                    // A source that fails is not silent.
                    last = Instant::now();
                }
            }
        }
        Ok(None)
    }

    /// Records the end of a connection. If a server ends it before it `has_sent` anything useful,
    /// the next attempt follows after a pause.
    ///
    /// # Errors
    /// As [`next`](Self::next): a server may judge our certificate after the handshake.
    pub(super) fn note_end(&mut self, error: Option<io::Error>, has_sent: bool) -> io::Result<()> {
        if self.listener.is_some() {
            return Ok(());
        }
        let error = error.map(|error| self.transient(error)).transpose()?;
        match has_sent {
            true => self.backoff.reset(),
            false => self.pause(error.as_ref()),
        }
        Ok(())
    }

    /// Returns the error if another attempt may succeed.
    fn transient(&self, error: io::Error) -> io::Result<io::Error> {
        match RequestError::from(error) {
            RequestError::Transient(error) => Ok(error),
            RequestError::Insecure(error) => {
                let (path, problem) = (self.name().into(), error.to_string());
                Err(io::Error::other(SourceError::Server { path, problem }))
            }
            // An error of the transport converts to no other kind.
            _ => Ok(ErrorKind::Other.into()),
        }
    }

    /// Waits before the next attempt, and reports a problem that was not reported yet.
    fn pause(&mut self, error: Option<&io::Error>) {
        self.backoff.failed();
        if let Some(error) = error
            && !self.control.is_stopped()
            && self.backoff.is_first_report(&error.to_string())
        {
            self.control.notice(&format!("{}: {error}; trying again", self.name()));
        }
        self.control.sleep(self.backoff.pause());
    }

    /// Handles waiting connections. Returns whether the current peer must give its turn to one of
    /// them. `progress` is the time of the current peer's last usable line, or of its connection if
    /// it `is_new`.
    pub(super) fn must_give_way(&mut self, progress: Instant, is_new: bool) -> bool {
        let Some(listener) = self.listener.as_mut().filter(|_| self.served.elapsed() >= POLL_INTERVAL) else {
            return false;
        };
        self.served = Instant::now();
        // An error of the listener recurs on the next call, which reports it.
        let _ = listener.serve_waiting(&self.control, &self.socket.to_string());
        let ready = listener.ready();
        let timeout = if is_new { NEW_PEER.min(QUIET_PEER / ready.max(1)) } else { QUIET_PEER };
        ready > 0 && progress.elapsed() >= timeout
    }

    /// The socket's name for messages.
    pub(super) fn name(&self) -> String {
        self.socket.to_string()
    }
}

impl PeerStream {
    fn to(socket: &SocketSource, control: &Control) -> io::Result<Self> {
        match (&socket.address, &socket.tls) {
            (SocketAddress::Tcp(address), Some(SocketTls::Connecting(tls))) => {
                let stream = connect(address, control)?;
                stream.set_read_timeout(Some(POLL_INTERVAL))?;
                stream.set_write_timeout(Some(POLL_INTERVAL))?;
                let begun = Instant::now();
                let may_wait = || control.keep_waiting(begun, HANDSHAKE_TIMEOUT);
                let link = Link::Plain(stream).secured(tls, address, may_wait)?;
                EncryptedPeer::new(link).map(PeerStream::Encrypted)
            }
            (SocketAddress::Tcp(address), _) => connect(address, control).map(PeerStream::Tcp),
            (SocketAddress::Unix(path), _) => UnixStream::connect(path).map(PeerStream::Unix),
        }
    }

    /// Whether the peer can be written to: any handshake is over.
    fn is_ready(&self) -> bool {
        match self {
            PeerStream::Encrypted(peer) => peer.is_ready(),
            PeerStream::Tcp(_) | PeerStream::Unix(_) => true,
        }
    }

    fn another(&self) -> io::Result<Self> {
        match self {
            PeerStream::Tcp(stream) => stream.try_clone().map(PeerStream::Tcp),
            PeerStream::Unix(stream) => stream.try_clone().map(PeerStream::Unix),
            PeerStream::Encrypted(peer) => Ok(PeerStream::Encrypted(peer.clone())),
        }
    }

    fn close(&self) {
        // A peer that has already gone needs no closing.
        let _ = match self {
            PeerStream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            PeerStream::Unix(stream) => stream.shutdown(Shutdown::Both),
            PeerStream::Encrypted(peer) => peer.close(),
        };
    }

    /// Sends the peer a line.
    fn write_line(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        match self {
            PeerStream::Tcp(stream) => stream.write_all(line.as_bytes()),
            PeerStream::Unix(stream) => stream.write_all(line.as_bytes()),
            PeerStream::Encrypted(peer) => peer.send(line.as_bytes()),
        }
    }
}

impl PeerConnection {
    /// Wraps our own outgoing connection: its first bytes are rows.
    fn trusted(wire: PeerStream) -> Self {
        PeerConnection { wire, judged: true, token: None, first_bytes: Zeroizing::default() }
    }

    /// Wraps a connection from a peer.
    pub(super) fn judged(wire: PeerStream, token: Option<Token>) -> Self {
        // At full size from the start: a growing vector would leave copies behind.
        PeerConnection {
            wire,
            judged: false,
            token,
            first_bytes: Zeroizing::new(Vec::with_capacity(2 * LONGEST)),
        }
    }

    /// Sets a limit for every wait.
    fn prepared(mut self) -> io::Result<Self> {
        match &mut self.wire {
            PeerStream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(POLL_INTERVAL))?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                keep_alive(stream)?;
            }
            PeerStream::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(POLL_INTERVAL))?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
            }
            PeerStream::Encrypted(peer) => {
                peer.wait();
                keep_alive(peer.socket())?;
            }
        }
        Ok(self)
    }

    /// Whether the peer can be written to.
    pub(super) fn is_ready(&self) -> bool {
        self.wire.is_ready()
    }

    /// Checks the first bytes once they have arrived.
    ///
    /// # Errors
    /// `InvalidData` or `PermissionDenied` with the reason if the peer is refused; any other error
    /// while undecided.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        while !self.judged {
            let mut bytes = Zeroizing::new([0; LONGEST]);
            let read = self.wire.read(&mut *bytes)?;
            self.first_bytes.extend_from_slice(&bytes[..read]);
            match judge(&self.first_bytes, self.token.as_ref()) {
                PeerAdmission::Open(begin) => {
                    self.first_bytes.drain(..begin);
                    self.judged = true;
                }
                PeerAdmission::Refused(reason) => return Err(io::Error::new(ErrorKind::InvalidData, reason)),
                PeerAdmission::Undecided if read > 0 => {}
                PeerAdmission::Undecided if self.first_bytes.is_empty() || self.token.is_some() => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                // The row begins like an HTTP method and ends with the connection.
                PeerAdmission::Undecided => self.judged = true,
            }
        }
        Ok(())
    }

    /// Sends the peer the reason, and closes.
    pub(super) fn refuse(mut self, reason: &str) {
        if self.is_ready() {
            let _ = self.wire.write_line(&format!("error: {reason}"));
        }
        self.wire.close();
    }
}

impl Read for PeerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerStream::Tcp(stream) => stream.read(buffer),
            PeerStream::Unix(stream) => stream.read(buffer),
            PeerStream::Encrypted(peer) => peer.read(buffer),
        }
    }
}

impl Read for PeerConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.settle()?;
        if self.first_bytes.is_empty() {
            return self.wire.read(buffer);
        }
        let length = self.first_bytes.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.first_bytes[..length]);
        self.first_bytes.drain(..length);
        Ok(length)
    }
}

impl CurrentPeer {
    fn peer(&self) -> MutexGuard<'_, Option<AcknowledgedPeer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends this connection numbers from now on, and the first one at once.
    pub(super) fn greet(&self, connection: &PeerConnection, first: u64) {
        if let Ok(wire) = connection.wire.another() {
            *self.peer() = Some(AcknowledgedPeer { wire, last: None });
            self.send_number(first);
        }
    }

    /// Sends a number if it is greater than the last one. Disconnects a peer that does not read,
    /// because it would not know which records are safe.
    pub(super) fn send_number(&self, number: u64) {
        let mut peer = self.peer();
        let Some(AcknowledgedPeer { wire, last }) = peer.as_mut() else { return };
        if last.is_none_or(|last| number > last) {
            *last = Some(number);
            if wire.write_line(&number.to_string()).is_err() {
                wire.close();
                *peer = None;
            }
        }
    }

    /// Removes the peer after its connection has ended.
    pub(super) fn leave(&self) {
        *self.peer() = None;
    }
}
