//! TLS on a TCP connection (rustls), step by step.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error as TlsError, InvalidMessage,
    ServerConfig, ServerConnection,
};

use super::certificates::{CLIENT_ROOTS, ROOTS, in_words};
use super::{SecurityError, TlsClient, TlsProblem};

/// Maximum reads of the data that a server sent before it ended a connection, in which tickets may
/// precede an alert.
const LAST_READS: u32 = 16;

/// An encrypted connection.
pub(crate) struct TlsStream {
    connection: Connection,
    socket: TcpStream,
    /// The peer's address, for messages.
    peer: String,
    /// The field that names the roots of its certificate.
    roots: &'static str,
    /// Whether this end presents a certificate if it is asked for one.
    is_certified: bool,
    /// Whether the peer has sent anything after the handshake.
    has_answered: bool,
}

impl TlsStream {
    /// Begins a connection to the server at `address`, `host:port`.
    pub(super) fn to(socket: TcpStream, tls: &TlsClient, address: &str) -> io::Result<Self> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = tls.server_name(host)?;
        let connection = ClientConnection::new(tls.config()?, name).map_err(io::Error::other)?;
        Ok(TlsStream {
            connection: connection.into(),
            socket,
            peer: address.into(),
            roots: ROOTS,
            is_certified: tls.identity.is_some(),
            has_answered: false,
        })
    }

    /// Begins a connection that a client at `peer` has opened.
    pub(super) fn from_client(
        socket: TcpStream,
        config: Arc<ServerConfig>,
        peer: String,
    ) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(TlsStream {
            connection: connection.into(),
            socket,
            peer,
            roots: CLIENT_ROOTS,
            is_certified: true,
            has_answered: false,
        })
    }

    /// Whether the handshake is over, and the peer's certificate accepted.
    pub(super) fn is_ready(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Tells the peer that no more bytes will come.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush()
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends and receives the messages of the handshake. An error of `may_wait` ends it.
    pub(super) fn handshake(&mut self, mut may_wait: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        while self.connection.is_handshaking() {
            let step = match self.connection.wants_write() {
                true => self.write_some(),
                false => self.receive().map(drop),
            };
            match step {
                Err(error) if is_early(&error) => {}
                step => step?,
            }
            may_wait().map_err(|error| match error.kind() {
                ErrorKind::TimedOut => self.failed(TlsProblem::TooSlow),
                _ => error,
            })?;
        }
        Ok(())
    }

    fn write_some(&mut self) -> io::Result<()> {
        self.connection.write_tls(&mut self.socket).map(drop)
    }

    /// Reads the available bytes of the socket, once. Returns their number.
    fn receive(&mut self) -> io::Result<usize> {
        let read = self.connection.read_tls(&mut self.socket)?;
        let was_handshaking = self.connection.is_handshaking();
        if let Err(error) = self.connection.process_new_packets() {
            // Tells the peer why, if it still listens.
            let _ = self.write_some();
            return Err(self.failed(explained(error, self.roots, self.is_certified)));
        }
        if read == 0 && was_handshaking { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
    }

    fn failed(&self, problem: TlsProblem) -> io::Error {
        SecurityError::Peer { peer: self.peer.clone(), problem }.into()
    }

    /// Explains the end of a connection before the first answer. In TLS 1.3 a server judges our
    /// certificate after our handshake, so a write may fail while its alert waits to be read.
    fn judged(&mut self, error: io::Error) -> io::Error {
        let is_end = matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
                | ErrorKind::UnexpectedEof
        );
        let is_client = matches!(self.connection, Connection::Client(_));
        if !is_end || !is_client || self.has_answered || self.connection.is_handshaking() {
            let is_cut = error.kind() == ErrorKind::UnexpectedEof;
            return if is_cut { io::Error::new(error.kind(), "the connection was cut") } else { error };
        }
        self.alert().unwrap_or_else(|| self.failed(TlsProblem::EndedEarly))
    }

    /// Reads the data that the server sent before it ended the connection. Returns the alert in it,
    /// explained.
    fn alert(&mut self) -> Option<io::Error> {
        for _ in 0..LAST_READS {
            match self.receive() {
                Ok(1..) => {}
                Ok(0) => return None,
                Err(error) => {
                    let is_explained = error.get_ref().is_some_and(|inner| inner.is::<SecurityError>());
                    return is_explained.then_some(error);
                }
            }
        }
        None
    }

    fn read_once(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.flush_all()?;
        match self.connection.reader().read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        self.receive()?;
        self.connection.reader().read(buffer)
    }

    fn flush_all(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.write_some()?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    /// `UnexpectedEof` if the connection ends without the peer's notice, as when it is cut.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_once(buffer).map_err(|error| self.judged(error))?;
        self.has_answered |= read > 0;
        Ok(read)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let written = self.connection.writer().write(bytes)?;
        // The bytes are accepted. The next step returns the same error again.
        let _ = self.flush();
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_all().map_err(|error| self.judged(error))
    }
}

/// Explains an error in terms of settings that a person can change. `roots` is the field that names
/// the roots of the peer's certificate; this end `is_certified` if it has one too.
fn explained(error: TlsError, roots: &'static str, is_certified: bool) -> TlsProblem {
    match error {
        TlsError::InvalidCertificate(problem) => match problem {
            CertificateError::UnknownIssuer => TlsProblem::UnknownRoot { roots },
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => TlsProblem::Expired,
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                TlsProblem::NoName
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names: Vec<_> = presented.iter().map(|name| bare_name(name)).collect();
                TlsProblem::WrongName { names: names.join(", ").chars().take(200).collect() }
            }
            CertificateError::NotValidForName => TlsProblem::WrongName { names: "other names".into() },
            CertificateError::BadEncoding => TlsProblem::Certificate("it is damaged".into()),
            CertificateError::BadSignature => {
                TlsProblem::Certificate("the key of its issuer has not signed it".into())
            }
            // The certificate library has no variant for these problems, only a name.
            CertificateError::Other(other) => match other.to_string().as_str() {
                "UnsupportedCertVersion" => TlsProblem::Version,
                "CaUsedAsEndEntity" => TlsProblem::Authority { roots },
                name => TlsProblem::Certificate(in_words(name)),
            },
            other => TlsProblem::Certificate(in_words(&other.to_string())),
        },
        TlsError::NoCertificatesPresented => TlsProblem::NoCertificate { roots },
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => TlsProblem::CertificateRequired,
        // The message of older servers.
        TlsError::AlertReceived(AlertDescription::BadCertificate | AlertDescription::HandshakeFailure)
            if !is_certified =>
        {
            TlsProblem::CertificateRequired
        }
        TlsError::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied),
        ) => TlsProblem::Refused(refusal(alert)),
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => TlsProblem::NotTls,
        other => TlsProblem::Protocol(in_words(&other.to_string())),
    }
}

/// Returns the name in a name of the library, such as `DnsName("host.example")`.
fn bare_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Explains an error of another client of this library, which presents no certificate and checks
/// that of its peer for the host of the address alone.
#[cfg(feature = "s3")]
pub(crate) fn tls_problem(error: TlsError) -> TlsProblem {
    match explained(error, ROOTS, false) {
        TlsProblem::WrongName { names } => {
            TlsProblem::Certificate(format!("it is for {names}: connect by such a name"))
        }
        TlsProblem::CertificateRequired => TlsProblem::CertificateUnsupported,
        other => other,
    }
}

/// Explains why a peer refuses our certificate.
fn refusal(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => {
            "it does not trust the root that signed it: let it trust that root, or present a certificate of a root that it trusts"
        }
        AlertDescription::CertificateExpired => {
            "it has expired, or is not valid yet by the clock there: renew it"
        }
        AlertDescription::CertificateRevoked => "it was revoked: issue another one",
        AlertDescription::UnsupportedCertificate => {
            "it is of a kind that is not accepted there: issue one of version 3"
        }
        AlertDescription::AccessDenied => "it is valid, but its name is not admitted there",
        _ => {
            "it is not valid there: check its dates, its name, its root, and that it may be used for this end of a connection"
        }
    }
}

/// Whether an error only means that nothing has arrived, or that nothing could be sent, in time.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
