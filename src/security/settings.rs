//! TLS settings of connections, for either end.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// TLS settings of a connection to a server.
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

/// TLS settings of the connections that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServer {
    /// `tls_certificate` and `tls_key`: the server's certificate.
    pub(crate) identity: TlsIdentity,
    /// `tls_client_roots`: the file of the roots that sign the certificates of clients, in PEM.
    /// With it, a client needs a certificate.
    pub(crate) client_roots: Option<PathBuf>,
    pub(crate) warnings: WarningListener,
}

/// Shows a warning to a person.
type Listener = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives warnings about a certificate, and keeps the last one. It is ignored when settings are
/// compared.
#[derive(Clone, Default)]
pub(crate) struct WarningListener(Option<Listener>, Arc<Mutex<Option<String>>>);

impl TlsServer {
    /// Secures connections with a certificate and its key, both in PEM files. With roots, a client
    /// needs a certificate that one of them has signed.
    pub fn new(certificate: PathBuf, key: PathBuf, client_roots: Option<PathBuf>) -> Self {
        let (identity, warnings) = (TlsIdentity { certificate, key }, WarningListener::default());
        TlsServer { identity, client_roots, warnings }
    }

    /// Calls `listener` with a warning if the certificate is not valid yet, is about to expire, has
    /// expired, or has been replaced by files that can't be used: at the start, and at later
    /// connections.
    pub fn on_warning(self, listener: impl Fn(&str) + Send + Sync + 'static) -> Self {
        TlsServer { warnings: WarningListener(Some(Arc::new(listener)), Arc::default()), ..self }
    }
}

#[cfg(feature = "tls")]
impl WarningListener {
    /// Passes on a warning that differs from the last one.
    pub(super) fn report_warning(&self, warning: Option<String>) {
        let mut last = self.1.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let (Some(listener), Some(text)) = (&self.0, &warning)
            && warning != *last
        {
            listener(text);
        }
        *last = warning;
    }
}

impl fmt::Debug for WarningListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WarningListener")
    }
}

impl PartialEq for WarningListener {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WarningListener {}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsIdentity {
    /// File of the certificate and the intermediate ones up to the root, in PEM.
    pub(crate) certificate: PathBuf,
    /// File of the private key, in PEM.
    pub(crate) key: PathBuf,
}
