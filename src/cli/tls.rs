//! Arguments that encrypt what a command serves by HTTP.

use std::path::PathBuf;

use clap::Args;
use hushflow::security::TlsServer;

use super::CliError;
use super::output::warn;

/// The certificate of pages and metrics.
#[derive(Debug, Args)]
pub(crate) struct TlsArguments {
    /// Serve HTTPS with this certificate, and those between it and its root, in PEM. A renewed
    /// file is used by the next connection
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Serve only clients with a certificate that one of these roots has signed, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_roots: Option<PathBuf>,
}

impl TlsArguments {
    /// Returns the settings, if a certificate is named. `is_served` says whether the command serves
    /// anything, which it does by `flag`.
    ///
    /// # Errors
    /// If a certificate is named and nothing is served.
    pub(crate) fn server(&self, is_served: bool, flag: &str) -> Result<Option<TlsServer>, CliError> {
        let Some((certificate, key)) = self.tls_certificate.clone().zip(self.tls_key.clone()) else {
            return Ok(None);
        };
        if !is_served {
            return Err(CliError::usage(format!("--tls-certificate is for what {flag} serves: add {flag}")));
        }
        let server = TlsServer::new(certificate, key, self.tls_client_roots.clone());
        if let Some(warning) = server.warning() {
            warn(&with_flags(&warning));
        }
        Ok(Some(server))
    }
}

/// Names the flags in a message about the fields of a pipeline file.
pub(super) fn with_flags(message: &str) -> String {
    // No name is a part of another one.
    ["tls_roots", "tls_client_roots", "tls_certificate", "tls_key", "tls_server_name"]
        .iter()
        .fold(message.into(), |message: String, field| {
            message.replace(field, &format!("--{}", field.replace('_', "-")))
        })
}
