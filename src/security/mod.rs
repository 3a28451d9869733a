//! Secrets by reference, and TLS settings.
//!
//! A pipeline file names secrets and certificates. It never holds them, so it can be shared, and
//! state, logs and messages that quote it reveal nothing. Secrets and certificates are read for
//! each connection, so a rotated one is used by the next connection, without a restart.
//!
//! The modules of connections and of HTTP use it.

#[cfg(feature = "tls")]
mod acceptor;
#[cfg(feature = "tls")]
mod certificates;
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "only TLS fails in these ways"))]
mod error;
mod secret;
#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "only TLS looks at the dates of certificates"))]
mod settings;
mod stream;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

#[cfg(feature = "tls")]
pub(crate) use acceptor::{TlsAcceptor, failed_renewals};
pub(crate) use error::SecurityError;
#[cfg(feature = "tls")]
pub(crate) use error::TlsProblem;
pub(crate) use secret::{SecretFields, SecretReference, WarnedOnce};
pub(crate) use settings::TlsIdentity;
pub use settings::{TlsClient, TlsServer};
pub(crate) use stream::Link;
#[cfg(feature = "s3")]
pub(crate) use tls::tls_problem;
#[cfg(not(feature = "tls"))]
pub(crate) use tls::{TlsAcceptor, failed_renewals};
