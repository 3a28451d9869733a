//! `hushflow health`: asks a run or a page whether it is alive or ready. Container images without a
//! shell can use it as their health check.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hushflow::probe::ask;
use hushflow::security::TlsClient;

use super::http::with_flags;
use super::{CliError, run};

/// Arguments of `hushflow health`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 if the process answers that it is alive or ready, 1 if not or if it doesn't answer in time.

Examples:
  hushflow health                          (a run with --metrics 127.0.0.1:9100)
  hushflow health --ready 127.0.0.1:8080   (a page)
  hushflow health https://127.0.0.1:8443 --tls-roots ca.pem --tls-server-name page.example.org")]
pub(crate) struct HealthArguments {
    /// HOST:PORT of --metrics or --web, or https://HOST:PORT
    #[arg(default_value = "127.0.0.1:9100", value_name = "ADDR")]
    address: String,
    /// Ask whether an epoch came within its deadline, not only whether the process is alive
    #[arg(long)]
    ready: bool,
    /// How long to wait for the answer
    #[arg(long, default_value = "3s", value_name = "DURATION", value_parser = run::timeout)]
    timeout: Duration,
    /// Trust these roots alone, in PEM, instead of those of this machine
    #[arg(long, value_name = "FILE")]
    tls_roots: Option<PathBuf>,
    /// Present this certificate, in PEM, to a server with --tls-client-roots
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Name that the server's certificate must have, instead of HOST
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
}

/// Prints the answer, and fails unless it is a good one.
pub(crate) fn execute(arguments: &HealthArguments) -> Result<(), CliError> {
    let path = if arguments.ready { "/readyz" } else { "/healthz" };
    let (address, tls) = match arguments.address.strip_prefix("https://") {
        Some(address) => (address, Some(arguments.tls())),
        None => (arguments.address.strip_prefix("http://").unwrap_or(&arguments.address), None),
    };
    if tls.is_none() && arguments.tls() != TlsClient::default() {
        return Err(CliError::usage("the flags of TLS are for https://HOST:PORT"));
    }
    let address = address.trim_end_matches('/');
    if address.contains(['@', '/', '?', '#']) {
        return Err(CliError::usage(
            "expected HOST:PORT or https://HOST:PORT, without a user, a secret or a path",
        ));
    }
    let url = format!("{}://{address}{path}", if tls.is_some() { "https" } else { "http" });
    let (is_good, answer) = ask(address, tls.as_ref(), path, arguments.timeout)
        .map_err(|error| CliError::failed(format!("{url}: {}", with_flags(&error.to_string()))))?;
    if is_good {
        return Ok(writeln!(stdout(), "{answer}")?);
    }
    let answer = if answer.is_empty() { "refused, without a reason" } else { &answer };
    Err(CliError::failed(format!("{url}: {answer}")))
}

impl HealthArguments {
    fn tls(&self) -> TlsClient {
        let identity = self.tls_certificate.clone().zip(self.tls_key.clone());
        TlsClient::new(self.tls_roots.clone(), identity, self.tls_server_name.clone())
    }
}
