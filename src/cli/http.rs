//! HTTP arguments of a command: its certificate, and its host names.

use std::path::PathBuf;

use clap::Args;
use hushflow::metrics::HttpEndpoint;
use hushflow::security::TlsServer;

use super::CliError;
use super::output::warn;

/// Arguments of pages and metrics.
#[derive(Debug, Args)]
pub(crate) struct HttpArguments {
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
    /// Also answer requests for this host name, such as stats.example.org, which a proxy or a
    /// service of a cluster passes on. May be repeated. Requests for other names are refused, so
    /// that another web site can't read the page through a name that it controls
    #[arg(long, value_name = "NAME", value_parser = HttpEndpoint::host_name)]
    served_as: Vec<String>,
}

impl HttpArguments {
    /// Returns the endpoint if `address` is given; `flag` names the flag of the address.
    ///
    /// # Errors
    /// If a certificate or a name is given and nothing is served.
    pub(crate) fn endpoint(
        &self,
        address: Option<&str>,
        flag: &str,
    ) -> Result<Option<HttpEndpoint>, CliError> {
        let Some(address) = address else {
            let unused = [
                (self.tls_certificate.is_some(), "--tls-certificate"),
                (!self.served_as.is_empty(), "--served-as"),
            ];
            return match unused.into_iter().find(|(is_given, _)| *is_given) {
                None => Ok(None),
                Some((_, own)) => {
                    Err(CliError::usage(format!("{own} is for what {flag} serves: add {flag}")))
                }
            };
        };
        let files = self.tls_certificate.clone().zip(self.tls_key.clone());
        let tls = files.map(|(certificate, key)| {
            TlsServer::new(certificate, key, self.tls_client_roots.clone())
                .on_warning(|warning| warn(&with_flags(warning)))
        });
        Ok(Some(HttpEndpoint::at(address).with_tls(tls).named(self.served_as.clone())))
    }
}

/// Names the flags in a message about the fields of a pipeline file.
pub(super) fn with_flags(message: &str) -> String {
    // No field name is a part of another one.
    ["tls_roots", "tls_client_roots", "tls_certificate", "tls_key", "tls_server_name"]
        .iter()
        .fold(message.into(), |message: String, field| {
            message.replace(field, &format!("--{}", field.replace('_', "-")))
        })
}
