//! The listening end of TLS: its certificate, and the roots of its clients.

use std::io;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use super::certificates::{CLIENT_ROOTS, provider, roots, unfit};
use super::tls::TlsStream;
use super::{SecurityError, TlsServer};

/// Accepts encrypted connections. Its files are read again when they have changed, so a renewed
/// certificate is used by the next connection.
pub(crate) struct TlsAcceptor {
    settings: TlsServer,
    current: Mutex<(FileVersions, Arc<ServerConfig>)>,
}

/// Device, inode, size, and time of change of each file; `None` for one that can't be looked at.
type FileVersions = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl TlsAcceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// If they can't be read or used.
    pub(crate) fn new(settings: &TlsServer) -> Result<Self, SecurityError> {
        let versions = versions(settings);
        let current = Mutex::new((versions, config(settings)?));
        Ok(TlsAcceptor { settings: settings.clone(), current })
    }

    /// Begins an encrypted connection with a client at `peer`. Reads and writes make its handshake.
    ///
    /// # Errors
    /// If no connection can be set up.
    pub(super) fn accept(&self, socket: TcpStream, peer: String) -> io::Result<TlsStream> {
        TlsStream::from_client(socket, self.config(), peer)
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = versions(&self.settings);
        if versions != current.0
            // Files that are being replaced, and don't fit together yet: the last ones still hold.
            && let Ok(config) = config(&self.settings)
        {
            *current = (versions, config);
        }
        Arc::clone(&current.1)
    }
}

fn versions(settings: &TlsServer) -> FileVersions {
    let version = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
    };
    let identity = &settings.identity;
    let files = [&identity.certificate, &identity.key].into_iter().chain(&settings.client_roots);
    files.map(version).collect()
}

fn config(settings: &TlsServer) -> Result<Arc<ServerConfig>, SecurityError> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(unfit)?;
    let builder = match &settings.client_roots {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(CLIENT_ROOTS, path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = verifier.build().map_err(|error| SecurityError::Identity {
                fields: CLIENT_ROOTS,
                problem: error.to_string(),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = settings.identity.load()?;
    Ok(Arc::new(builder.with_single_cert(chain, key).map_err(unfit)?))
}
