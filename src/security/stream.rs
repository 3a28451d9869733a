//! A TCP connection, encrypted or not.
//!
//! A read or write makes one step, within the time limit of the socket. Without progress it returns
//! `WouldBlock` or `TimedOut`, as a plain socket does. So the time limits of the caller also apply
//! to a peer that sends one byte at a time, in a handshake or later.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::tls::TlsStream;
use super::{TlsAcceptor, TlsClient};

/// A connection.
pub(crate) enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Link {
    /// The socket, to set its limits.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Link::Plain(socket) => socket,
            Link::Tls(stream) => stream.socket(),
        }
    }

    /// Begins an encrypted connection that a client has opened. Reads and writes make its handshake
    /// on the way, or [`handshake`](Self::handshake) does.
    ///
    /// # Errors
    /// If no connection can be set up.
    pub(crate) fn accepted(socket: TcpStream, acceptor: &TlsAcceptor) -> io::Result<Link> {
        // A peer that has gone already has no address.
        let peer = socket.peer_addr().map_or_else(|_| "a peer".into(), |address| address.to_string());
        Ok(Link::Tls(Box::new(acceptor.accept(socket, peer)?)))
    }

    /// Makes the handshake. `may_wait` is called after every step, and ends it with an error.
    ///
    /// # Errors
    /// If the handshake fails, or `may_wait` does.
    pub(crate) fn handshake(&mut self, may_wait: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match self {
            Link::Plain(_) => Ok(()),
            Link::Tls(stream) => stream.handshake(may_wait),
        }
    }

    /// Whether bytes can be sent: any handshake is over.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Link::Plain(_) => true,
            Link::Tls(stream) => stream.is_ready(),
        }
    }

    /// Tells the peer that no more bytes will come.
    ///
    /// # Errors
    /// If the notice can't be sent.
    pub(crate) fn close_writing(&mut self) -> io::Result<()> {
        if let Link::Tls(stream) = self {
            stream.close()?;
        }
        self.socket().shutdown(Shutdown::Write)
    }

    /// Encrypts a connection from now on. `may_wait` is called after every step of the handshake,
    /// and ends it with an error.
    ///
    /// # Errors
    /// If the settings can't be used, the handshake fails, or `may_wait` does.
    pub(crate) fn secured(
        self,
        tls: &TlsClient,
        address: &str,
        may_wait: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Link> {
        let Link::Plain(socket) = self else { return Ok(self) };
        let mut stream = Box::new(TlsStream::to(socket, tls, address)?);
        stream.handshake(may_wait)?;
        Ok(Link::Tls(stream))
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Link::Plain(socket) => socket.read(buffer),
            Link::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Link::Plain(socket) => socket.write(bytes),
            Link::Tls(stream) => stream.write(bytes),
        }
    }

    /// Sends the bytes that [`write`](Self::write) has accepted. Without it, an encrypted
    /// connection may hold them back.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Link::Plain(socket) => socket.flush(),
            Link::Tls(stream) => stream.flush(),
        }
    }
}
