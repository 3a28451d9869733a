//! TLS settings of connections to servers.

use std::path::PathBuf;

/// How to secure a connection to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsClient {
    /// `tls_roots`: the file of the roots to trust, in PEM; by default those of the system.
    pub(crate) roots: Option<PathBuf>,
    /// `tls_certificate` and `tls_key`: our own certificate.
    pub(crate) identity: Option<TlsIdentity>,
    /// `tls_server_name`: the name in the server's certificate; by default the host.
    pub(crate) server_name: Option<String>,
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
