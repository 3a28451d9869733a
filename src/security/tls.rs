//! TLS on a TCP connection (rustls), step by step.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error as TlsError, InvalidMessage,
};

use super::certificates::ROOTS;
use super::{SecurityError, TlsClient, TlsProblem};

/// An encrypted connection.
pub(crate) struct TlsStream {
    connection: Connection,
    socket: TcpStream,
    /// The peer's address, for messages.
    peer: String,
}

impl TlsStream {
    /// Begins a connection to the server at `address`, `host:port`.
    pub(super) fn to(socket: TcpStream, tls: &TlsClient, address: &str) -> io::Result<Self> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = tls.server_name(host)?;
        let connection = ClientConnection::new(tls.config()?, name).map_err(io::Error::other)?;
        Ok(TlsStream { connection: connection.into(), socket, peer: address.into() })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends and receives what belongs to the handshake. An error of `may_wait` ends it.
    pub(super) fn handshake(&mut self, mut may_wait: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        while self.connection.is_handshaking() {
            let step = if self.connection.wants_write() { self.write_some() } else { self.receive() };
            match step {
                Err(error) if is_early(&error) => {}
                step => step?,
            }
            may_wait()?;
        }
        Ok(())
    }

    fn write_some(&mut self) -> io::Result<()> {
        self.connection.write_tls(&mut self.socket).map(drop)
    }

    /// Reads what the socket has, once.
    fn receive(&mut self) -> io::Result<()> {
        let read = self.connection.read_tls(&mut self.socket)?;
        let was_handshaking = self.connection.is_handshaking();
        if let Err(error) = self.connection.process_new_packets() {
            // Tells the peer why, if it still listens.
            let _ = self.write_some();
            let error = SecurityError::Peer { peer: self.peer.clone(), problem: explained(error) };
            return Err(error.into());
        }
        if read == 0 && was_handshaking { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Read for TlsStream {
    /// `UnexpectedEof` if the connection ends without the peer's notice, as when it is cut.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.connection.wants_write() {
            self.write_some()?;
        }
        match self.connection.reader().read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        self.receive()?;
        self.connection.reader().read(buffer)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let written = self.connection.writer().write(bytes)?;
        // These bytes are taken: an error comes again with the next step.
        let _ = self.flush();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.write_some()?;
        }
        Ok(())
    }
}

/// Whether an error only means that nothing has arrived, or that nothing could be sent, in time.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Explains an error in terms of what a person can change.
fn explained(error: TlsError) -> TlsProblem {
    match error {
        TlsError::InvalidCertificate(problem) => match problem {
            CertificateError::UnknownIssuer => TlsProblem::UnknownRoot { roots: ROOTS },
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsProblem::Expired,
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names = if presented.is_empty() { "no name".into() } else { presented.join(", ") };
                TlsProblem::WrongName { names: names.chars().take(200).collect() }
            }
            CertificateError::NotValidForName => TlsProblem::WrongName { names: "other names".into() },
            other => TlsProblem::Certificate(other.to_string()),
        },
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => TlsProblem::CertificateRequired,
        TlsError::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied),
        ) => TlsProblem::Refused(format!("{alert:?}")),
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => TlsProblem::NotTls,
        other => TlsProblem::Protocol(other.to_string()),
    }
}
