//! Replacement for TLS in builds without it: no connection is encrypted.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::{SecurityError, TlsClient, TlsServer};

/// The listening end of TLS. The type has no values, because this build has no TLS.
pub(crate) enum TlsAcceptor {}

/// No certificate is ever renewed.
pub(crate) fn failed_renewals() -> u64 {
    0
}

impl TlsAcceptor {
    pub(crate) fn new(_: &TlsServer) -> Result<Self, SecurityError> {
        Err(SecurityError::Without)
    }

    pub(super) fn accept(&self, _: TcpStream, _: String) -> io::Result<TlsStream> {
        match *self {}
    }
}

/// An encrypted connection. The type has no values, because this build has no TLS.
pub(crate) enum TlsStream {}

impl TlsStream {
    pub(super) fn to(_: TcpStream, _: &TlsClient, _: &str) -> io::Result<Self> {
        Err(SecurityError::Without.into())
    }

    pub(super) fn handshake(&mut self, _: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn is_ready(&self) -> bool {
        match *self {}
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn socket(&self) -> &TcpStream {
        match *self {}
    }
}

impl Read for TlsStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for TlsStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}
