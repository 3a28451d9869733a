//! Reasons why a connection can't be secured. No message holds a secret.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Reasons why a secret, a certificate or a peer is refused. A connection reports one inside an
/// [`io::Error`].
#[derive(Debug, Error)]
pub(crate) enum SecurityError {
    /// The name of the variable is not repeated: it may be a secret written in the wrong field.
    #[error(
        "{field} names an environment variable that is not set, or is not UTF-8: set it, or use {field_of_file}"
    )]
    Variable { field: &'static str, field_of_file: &'static str },
    #[error("the file {} of {field} can't be read: {source}", path.display())]
    File { field: &'static str, path: PathBuf, source: io::Error },
    #[error("{field} names the file {}, which can't be read: {source}: it holds the secret", path.display())]
    SecretFile { field: &'static str, path: PathBuf, source: io::Error },
    /// The name of a missing file is not repeated: it may be a secret written in the wrong field.
    #[error(
        "{field} names a file that can't be read: {source}: it holds the secret, and the field its path, which is not shown here \
         because it may be the secret"
    )]
    HiddenFile { field: &'static str, source: io::Error },
    #[error("{subject} is unusable: expected {expected}")]
    Form { subject: String, expected: &'static str },
    #[error("the file {} of {field} holds no {expected} in PEM (-----BEGIN …-----)", path.display())]
    Pem { field: &'static str, path: PathBuf, expected: &'static str },
    #[error("{fields} don't fit together: {problem}")]
    Identity { fields: &'static str, problem: String },
    #[error("this system has no trusted roots: install its CA certificates, or name a file with tls_roots")]
    NoRoots,
    #[error("{name:?} is not a host name that a certificate can be checked against: set tls_server_name")]
    ServerName { name: String },
    #[error("this build has no TLS: cargo build --features tls")]
    Without,
    #[error("TLS with {peer} failed: {problem}")]
    Peer { peer: String, problem: TlsProblem },
}

/// Failure between two peers.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TlsProblem {
    #[error("its certificate is not signed by a trusted root: name the root with {roots}")]
    UnknownRoot { roots: &'static str },
    #[error("it presents no certificate, but {roots} requires one")]
    NoCertificate { roots: &'static str },
    #[error("its certificate is for {names}: connect by such a name, or set tls_server_name")]
    WrongName { names: String },
    #[error(
        "its certificate names no host in subjectAltName, and no other part of it counts: issue it with subjectAltName = DNS:HOST or \
         IP:ADDRESS"
    )]
    NoName,
    #[error("its certificate has expired or is not valid yet: renew it, or correct the clock")]
    Expired,
    #[error(
        "its certificate is of X.509 version 1, which says nothing about its use: issue one of version 3, with subjectAltName"
    )]
    Version,
    #[error(
        "its certificate is that of an authority (CA:TRUE), which no server may present: issue the server a certificate of its own, \
         or a self-signed one with basicConstraints = CA:FALSE, and name its root with {roots}"
    )]
    Authority { roots: &'static str },
    #[error("its certificate can't be used: {0}")]
    Certificate(String),
    #[error("it requires a client certificate: set tls_certificate and tls_key")]
    CertificateRequired,
    #[cfg(feature = "s3")]
    #[error("it requires a client certificate, which is not supported here: let it admit access keys alone")]
    CertificateUnsupported,
    #[error("it refuses our certificate: {0}")]
    Refused(&'static str),
    #[error(
        "it ended the connection after the handshake: if it requires a client certificate, check tls_certificate and tls_key"
    )]
    EndedEarly,
    #[error("the handshake has not ended in time: does it speak TLS?")]
    TooSlow,
    #[error("it does not speak TLS: enable TLS there, or disable it here")]
    NotTls,
    #[error("{0}")]
    Protocol(String),
}

impl SecurityError {
    /// Whether another attempt fails too, until a person corrects something. Garbage and broken
    /// handshakes may come from any machine on the route, so they don't end a run.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(
            self,
            SecurityError::Peer {
                problem: TlsProblem::NotTls
                    | TlsProblem::TooSlow
                    | TlsProblem::EndedEarly
                    | TlsProblem::Protocol(_),
                ..
            }
        )
    }
}

impl From<SecurityError> for io::Error {
    fn from(error: SecurityError) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    }
}
