//! The listening end of TLS: its certificate, and the roots of its clients.

use std::io;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;

use super::certificates::{CLIENT_ROOTS, provider, roots, unfit};
use super::tls::TlsStream;
use super::{SecurityError, TlsServer};

/// Accepts encrypted connections. Its files are read again when they have changed, so a renewed
/// certificate is used by the next connection.
pub(crate) struct TlsAcceptor {
    settings: TlsServer,
    current: Mutex<CurrentFiles>,
}

/// How often the dates of the certificate are checked, while there are connections.
const DATES_INTERVAL: Duration = Duration::from_secs(60);

/// Changed files that could not be used, of all acceptors of this process.
static FAILED_RENEWALS: AtomicU64 = AtomicU64::new(0);

/// Returns how often changed files could not be used, so that the last certificate stayed in use.
pub(crate) fn failed_renewals() -> u64 {
    FAILED_RENEWALS.load(Ordering::Relaxed)
}

/// The files in use.
struct CurrentFiles {
    versions: FileVersions,
    config: Arc<ServerConfig>,
    /// The last files that could not be used, since the last ones that could.
    refused: Option<FileVersions>,
    /// Time of the last check of the dates.
    dates: Instant,
}

/// Device, inode, size, and time of change of each file or of its permissions; `None` for a file
/// that can't be examined.
type FileVersions = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl TlsAcceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// If they can't be read or used.
    pub(crate) fn new(settings: &TlsServer) -> Result<Self, SecurityError> {
        let (versions, config) = (versions(settings), config(settings)?);
        settings.warnings.report_warning(settings.warning(UnixTime::now()));
        let current = CurrentFiles { versions, config, refused: None, dates: Instant::now() };
        let current = Mutex::new(current);
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
        let is_changed = versions != current.versions;
        if is_changed {
            match config(&self.settings) {
                Ok(config) => (current.versions, current.config, current.refused) = (versions, config, None),
                // They may be replaced one after the other: the next connection tries again.
                Err(problem) => {
                    self.refuse(&mut current.refused, versions, &problem);
                    return Arc::clone(&current.config);
                }
            }
        }
        if is_changed || current.dates.elapsed() >= DATES_INTERVAL {
            current.dates = Instant::now();
            self.settings.warnings.report_warning(self.settings.warning(UnixTime::now()));
        }
        Arc::clone(&current.config)
    }

    /// Counts and reports changed files that can't be used, once for each change.
    fn refuse(&self, refused: &mut Option<FileVersions>, versions: FileVersions, problem: &SecurityError) {
        if refused.as_ref() == Some(&versions) {
            return;
        }
        FAILED_RENEWALS.fetch_add(1, Ordering::Relaxed);
        let warning = format!(
            "the certificate {} of tls_certificate was not renewed, because its new files can't be used, and the last one stays in \
             use: {problem}",
            self.settings.identity.certificate.display()
        );
        self.settings.warnings.report_warning(Some(warning));
        *refused = Some(versions);
    }
}

fn versions(settings: &TlsServer) -> FileVersions {
    let version = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate for the year 2030 causes three warnings, once each: before it is valid, in its
    /// last days, and after it has expired.
    #[test]
    fn the_dates_of_a_certificate_are_warned_of_while_it_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["localhost".into()]).unwrap();
        (parameters.not_before, parameters.not_after) =
            (date_time_ymd(2030, 1, 1), date_time_ymd(2031, 1, 1));
        std::fs::write(path("c.pem"), parameters.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(path("c.key"), key.serialize_pem()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let settings = TlsServer::new(path("c.pem"), path("c.key"), None)
            .on_warning(move |warning| listener.lock().unwrap().push(warning.to_owned()));
        let at = |day: u64| {
            let begin = 1_893_456_000; // 2030-01-01T00:00:00Z
            let now = UnixTime::since_unix_epoch(Duration::from_secs(begin + day * 86_400 - 86_400));
            (0..2).for_each(|_| settings.warnings.report_warning(settings.warning(now)));
            std::mem::take(&mut *heard.lock().unwrap())
        };
        let check = |found: Vec<String>, expected: &[&str]| {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(found, part)| found.contains(part)), "{found:?}");
        };
        check(at(0), &["c.pem of tls_certificate is not valid before 2030-01-01T00:00:00Z"]);
        check(at(300), &[]);
        check(at(355), &["expires on 2031-01-01T00:00:00Z"]);
        check(at(367), &["has expired on 2031-01-01T00:00:00Z, so clients refuse it"]);
        check(at(367), &[]);
    }

    #[test]
    fn changed_files_that_cannot_be_used_are_reported_once_and_change_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let issue = || {
            let key = KeyPair::generate().unwrap();
            let mut parameters = CertificateParams::new(vec!["localhost".into()]).unwrap();
            parameters.not_after = date_time_ymd(2200, 1, 1);
            (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let (certificate, key) = issue();
        std::fs::write(path("c.pem"), &certificate).unwrap();
        std::fs::write(path("c.key"), &key).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let settings = TlsServer::new(path("c.pem"), path("c.key"), None)
            .on_warning(move |warning| listener.lock().unwrap().push(warning.to_owned()));
        let acceptor = TlsAcceptor::new(&settings).unwrap();
        let (first, counted) = (acceptor.config(), failed_renewals());
        let check = |expected: &[&str]| {
            let found = [acceptor.config(), acceptor.config()];
            let heard = std::mem::take(&mut *heard.lock().unwrap());
            assert_eq!(heard.len(), expected.len(), "{heard:?}");
            assert!(heard.iter().zip(expected).all(|(heard, part)| heard.contains(part)), "{heard:?}");
            assert!(heard.iter().all(|warning| warning.contains("the last one stays in use")), "{heard:?}");
            found.iter().all(|config| Arc::ptr_eq(config, &first))
        };
        assert!(check(&[]));
        let (renewed, renewed_key) = issue();
        std::fs::write(path("c.key"), &renewed_key).unwrap();
        assert!(check(&["tls_certificate and tls_key don't fit together"]));
        std::fs::remove_file(path("c.pem")).unwrap();
        assert!(check(&["c.pem of tls_certificate can't be read"]));
        std::fs::write(path("c.pem"), "nonsense").unwrap();
        assert!(check(&["holds no certificate in PEM"]));
        assert!(failed_renewals() >= counted + 3);
        std::fs::write(path("c.pem"), &renewed).unwrap();
        assert!(!check(&[]), "the renewed certificate is used");
    }
}
