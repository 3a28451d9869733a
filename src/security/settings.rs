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

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsIdentity {
    /// File of the certificate and those between it and the root, in PEM.
    pub(crate) certificate: PathBuf,
    /// File of the private key, in PEM.
    pub(crate) key: PathBuf,
}
