//! An encrypted connection to a peer, which one thread reads while another writes to it.
//!
//! TLS has one state for both directions, so both threads lock it. The socket is non-blocking.
//! Threads wait for it without the lock. The exception is a writer: it may hold the lock while it
//! waits until the peer reads its acknowledgements, up to a time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::PollFlags;

use super::connection::WRITE_TIMEOUT;
use crate::control::is_ready;
use crate::security::Link;

/// One of the handles of a connection.
#[derive(Clone)]
pub(super) struct EncryptedPeer {
    /// Another handle of the socket, to wait for it without the lock.
    socket: Arc<TcpStream>,
    link: Arc<Mutex<Link>>,
    /// Whether a read waits briefly for bytes.
    waits: bool,
}

impl EncryptedPeer {
    pub(super) fn new(link: Link) -> io::Result<Self> {
        let socket = link.socket().try_clone()?;
        socket.set_nonblocking(true)?;
        Ok(EncryptedPeer { socket: Arc::new(socket), link: Arc::new(Mutex::new(link)), waits: false })
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes later reads wait.
    pub(super) fn wait(&mut self) {
        self.waits = true;
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the handshake is over.
    pub(super) fn is_ready(&self) -> bool {
        self.link().is_ready()
    }

    /// Sends all bytes, if the peer reads them in time.
    pub(super) fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut link = self.link();
        let begun = Instant::now();
        loop {
            let step = match bytes {
                [] => link.flush().map(|()| 0),
                bytes => link.write(bytes),
            };
            match step {
                Ok(0) => return Ok(()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < WRITE_TIMEOUT => {
                    is_ready(self.socket.as_fd(), PollFlags::OUT)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the connection.
    pub(super) fn close(&self) -> io::Result<()> {
        // A peer that ignores the end is disconnected anyway.
        let _ = self.link().close_writing();
        self.socket.shutdown(Shutdown::Both)
    }
}

impl Read for EncryptedPeer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.link().read(buffer);
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock && self.waits => {
                is_ready(self.socket.as_fd(), PollFlags::IN)?;
                self.link().read(buffer)
            }
            read => read,
        }
    }
}
