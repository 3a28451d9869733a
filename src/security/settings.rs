//! TLS settings of connections to servers.

use std::path::PathBuf;

/// How to secure a connection to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsClient {
    /// `tls_roots`: the file of the roots to trust, in PEM; by default those of the system.
    pub(crate) roots: Option<PathBuf>,
    /// `tls_certificate` and `tls_key`: our own certificate.
    pub(crate) identity: Option<TlsIdentity>,
    /// `tls_server_name`: the name in the server's certificate; by default the host.
    pub(crate) server_name: Option<String>,
}

impl TlsClient {
    /// Trusts the roots of a PEM file, or those of the system, and presents a certificate with its
    /// key, if they are given. The server's certificate must have the name, by default its host.
    pub fn new(
        roots: Option<PathBuf>,
        identity: Option<(PathBuf, PathBuf)>,
        server_name: Option<String>,
    ) -> Self {
        let identity = identity.map(|(certificate, key)| TlsIdentity { certificate, key });
        TlsClient { roots, identity, server_name }
    }
}

/// How to secure the connections that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServer {
    /// `tls_certificate` and `tls_key`: the server's certificate.
    pub(crate) identity: TlsIdentity,
    /// `tls_client_roots`: the file of the roots that sign the certificates of clients, in PEM.
    /// With it, a client needs a certificate.
    pub(crate) client_roots: Option<PathBuf>,
}

impl TlsServer {
    /// Secures connections with a certificate and its key, both in PEM files. With roots, a client
    /// needs a certificate that one of them has signed.
    pub fn new(certificate: PathBuf, key: PathBuf, client_roots: Option<PathBuf>) -> Self {
        TlsServer { identity: TlsIdentity { certificate, key }, client_roots }
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsIdentity {
    /// File of the certificate and those between it and the root, in PEM.
    pub(crate) certificate: PathBuf,
    /// File of the private key, in PEM.
    pub(crate) key: PathBuf,
}
