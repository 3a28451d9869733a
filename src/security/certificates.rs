//! Certificates and keys in PEM files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore};

use super::{SecurityError, TlsClient, TlsIdentity, TlsServer};

pub(super) const ROOTS: &str = "tls_roots";
pub(super) const CLIENT_ROOTS: &str = "tls_client_roots";
const CERTIFICATE: &str = "tls_certificate";
const KEY: &str = "tls_key";

/// A certificate is reported as about to expire in the last tenth of its lifetime, but at most 14
/// days before its end. Automatic renewal usually comes earlier.
const LAST_PART: u32 = 10;
const LAST_DAYS: Duration = Duration::from_secs(14 * 86_400);

/// A second after the last one that a certificate can name, in the year 9999.
const FAR_FUTURE: u64 = 1 << 40;

/// The cryptography of all connections. It is stated with each configuration, because a process
/// that embeds this library may have installed another one as its default.
pub(super) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl TlsClient {
    /// Reads the files, and returns the configuration of a connection.
    ///
    /// # Errors
    /// If a file can't be read or used.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, SecurityError> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(unfit)?;
        let builder = builder.with_root_certificates(match &self.roots {
            Some(path) => roots(ROOTS, path)?,
            None => system_roots()?,
        });
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = identity.load()?;
                builder.with_client_auth_cert(chain, key).map_err(unfit)?
            }
        };
        Ok(Arc::new(config))
    }

    /// Returns the name that the certificate of the server at `host` must have.
    ///
    /// # Errors
    /// If it is neither a host name nor an IP address.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, SecurityError> {
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned()).map_err(|_| SecurityError::ServerName { name: name.into() })
    }
}

impl TlsServer {
    /// Returns a warning about the dates of the certificate at the time `now`. A file that can't be
    /// read is reported where it is used.
    pub(super) fn warning(&self, now: UnixTime) -> Option<String> {
        let (chain, _) = self.identity.load().ok()?;
        let (begin, end) = validity(&chain)?;
        let time = |at: UnixTime| {
            let second = i64::try_from(at.as_secs()).ok()?;
            jiff::Timestamp::from_second(second).ok().map(|time| time.to_string())
        };
        let lifetime = Duration::from_secs(end.as_secs().saturating_sub(begin.as_secs()));
        let left = Duration::from_secs(end.as_secs().saturating_sub(now.as_secs()));
        let remedy = "renew the file, which the next connection reads";
        let problem = if now < begin {
            format!("is not valid before {} by the clock of this machine, so clients refuse it", time(begin)?)
        } else if now > end {
            format!("has expired on {}, so clients refuse it: {remedy}", time(end)?)
        } else if left < (lifetime / LAST_PART).min(LAST_DAYS) {
            format!("expires on {}, and clients refuse it from then on: {remedy}", time(end)?)
        } else {
            return None;
        };
        Some(format!("the certificate {} of tls_certificate {problem}", self.identity.certificate.display()))
    }
}

/// Returns the times from which and until which a certificate is valid. The certificate library
/// names them in its errors for a time before the first and for a time after the second.
fn validity(chain: &[CertificateDer<'static>]) -> Option<(UnixTime, UnixTime)> {
    let (certificate, others) = chain.split_first()?;
    // The dates are judged before any root or name, so the certificate is its own root here.
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain.iter().cloned());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().ok()?;
    let name = ServerName::try_from("localhost").ok()?;
    let judge = |second: u64| {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(second));
        verifier.verify_server_cert(certificate, others, &name, &[], time).err()
    };
    let begin = match judge(0) {
        Some(TlsError::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
            not_before
        }
        _ => UnixTime::since_unix_epoch(Duration::ZERO),
    };
    match judge(FAR_FUTURE) {
        Some(TlsError::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some((begin, not_after))
        }
        _ => None,
    }
}

impl TlsIdentity {
    /// Reads the chain of certificates and the key.
    pub(super) fn load(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), SecurityError> {
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.map_err(|error| problem(KEY, &self.key, "private key", error))?;
        Ok((certificates(CERTIFICATE, &self.certificate)?, key))
    }
}

pub(super) fn unfit(error: rustls::Error) -> SecurityError {
    SecurityError::Identity { fields: "tls_certificate and tls_key", problem: in_words(&error.to_string()) }
}

/// Reads the roots in a file.
pub(super) fn roots(field: &'static str, path: &Path) -> Result<RootCertStore, SecurityError> {
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(certificates(field, path)?);
    match usable {
        0 => Err(SecurityError::Pem { field, path: path.into(), expected: "usable certificate" }),
        _ => Ok(store),
    }
}

fn system_roots() -> Result<RootCertStore, SecurityError> {
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if usable == 0 { Err(SecurityError::NoRoots) } else { Ok(store) }
}

fn certificates(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let failed = |error| problem(field, path, "certificate", error);
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(failed)?;
    if found.is_empty() { Err(failed(PemError::NoItemsFound)) } else { Ok(found) }
}

/// Names the file. The bytes that the parser found are left out, because they may be part of a key.
fn problem(field: &'static str, path: &Path, expected: &'static str, error: PemError) -> SecurityError {
    let path = path.to_owned();
    match error {
        PemError::Io(source) => SecurityError::File { field, path, source },
        _ => SecurityError::Pem { field, path, expected },
    }
}

/// Replaces Rust's names in a message of the library by words: `NoCipherSuitesInCommon` by `no
/// cipher suites in common`.
pub(super) fn in_words(message: &str) -> String {
    let is_name = |word: &str| {
        word.len() > 1
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && word[1..].bytes().any(|byte| byte.is_ascii_uppercase())
            && word.bytes().any(|byte| byte.is_ascii_lowercase())
    };
    let split = |word: &str| {
        let mut words = String::new();
        for c in word.chars() {
            if c.is_ascii_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.push(c.to_ascii_lowercase());
        }
        words
    };
    // A name may end where its values begin.
    let words = message.split(' ').map(|word| {
        let end = word.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(word.len());
        let (name, rest) = word.split_at(end);
        if is_name(name) { split(name) + rest } else { word.into() }
    });
    words.collect::<Vec<_>>().join(" ")
}
