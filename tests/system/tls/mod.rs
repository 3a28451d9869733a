//! Tests encrypted connections to real servers and from real clients: right and wrong
//! certificates, passwords and keys, cut links, silent clients, renewed files. No record counts
//! twice, every refusal explains the remedy, and no secret appears in any output.

mod brokers;
mod logins;
#[cfg(feature = "s3")]
mod objects;
mod sockets;
mod web;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::Lab;

/// An authority, whose certificate is `NAME.pem` in the lab.
pub(crate) struct Authority {
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(lab: &Lab, name: &'static str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        lab.write(&format!("{name}.pem"), parameters.self_signed(&key).unwrap().pem());
        Authority { name, issuer: Issuer::new(parameters, key) }
    }

    /// Writes `NAME.pem` and `NAME.key`: a certificate for a host, from the year 2020 on.
    pub(crate) fn issue(&self, lab: &Lab, name: &str, host: &str, last_year: i32) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec![host.into()]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        lab.write(&format!("{name}.pem"), certificate.pem());
        lab.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// Writes `NAME.pem` and `NAME.key`: a certificate that `change` makes unsuitable for a server.
    fn issue_unsuitable(&self, lab: &Lab, name: &str, change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        change(&mut parameters);
        lab.write(&format!("{name}.pem"), parameters.signed_by(&key, &self.issuer).unwrap().pem());
        lab.write(&format!("{name}.key"), key.serialize_pem());
    }

    /// A client that trusts this authority, with a certificate of this name if it has one.
    fn client(&self, lab: &Lab, certificate: Option<&str>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_file(lab.path(&format!("{}.pem", self.name))).unwrap();
        roots.add(root).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        Arc::new(match certificate {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = CertificateDer::pem_file_iter(lab.path(&format!("{name}.pem"))).unwrap();
                let key = PrivateKeyDer::from_pem_file(lab.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
            }
        })
    }
}

pub(crate) const LATER: i32 = 2200;

/// A lab with the certificates of most tests: of a server, of a client, and unsuitable ones.
pub(crate) fn certificates(lab: &Lab) -> Authority {
    let authority = Authority::new(lab, "ca");
    authority.issue(lab, "server", "127.0.0.1", LATER);
    authority.issue(lab, "renewed", "127.0.0.1", LATER);
    authority.issue(lab, "elsewhere", "elsewhere.example", LATER);
    authority.issue(lab, "expired", "127.0.0.1", 2021);
    authority.issue(lab, "client", "client.example", LATER);
    authority.issue(lab, "outdated", "client.example", 2021);
    Authority::new(lab, "stranger").issue(lab, "strange", "client.example", LATER);
    authority
}

/// A self-signed certificate of X.509 version 1 until the year 2191 (`openssl x509 -req -signkey`
/// with OpenSSL 3.0, which writes no extensions by default), and its key.
const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBJDCBywIUSAVCtfW2nsy+TIyGuDc53OBe2ZswCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyNzEwNTQwM1oYDzIxOTEwMzA3MTA1NDAz
WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AARWxS+s5LlBc/EOD/9MJSLA27HtJ9jv817lH5PlLLlEOUuw9Nx7QbxEMtucSe1Q
ceEpw+NGkXQATcJ54kKv0qesMAoGCCqGSM49BAMCA0gAMEUCIQCWpmZqHBtrPr3B
8BwlC28zZK4qHt/lkhFozmWRzkNYZgIgPdvyWQoKG9Spy3rUxl9L9TX7lWy754GO
dd/cvScCO30=
-----END CERTIFICATE-----
";
const VERSION_1_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZYUPIYHGcTOPeOuc
BRNiLm8rGZ4FNFFwTWjxfq6rtMahRANCAARWxS+s5LlBc/EOD/9MJSLA27HtJ9jv
817lH5PlLLlEOUuw9Nx7QbxEMtucSe1QceEpw+NGkXQATcJ54kKv0qes
-----END PRIVATE KEY-----
";

/// The path of a file as text.
fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

pub(crate) type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// Connects to a port. The handshake is made by the first read or write.
pub(crate) fn connect(config: &Arc<ClientConfig>, address: &str) -> TlsClient {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), socket)
}

/// Sends a request for a path, and returns the answer. An error is that of the handshake.
fn get(config: &Arc<ClientConfig>, address: &str, path: &str) -> std::io::Result<String> {
    let mut client = connect(config, address);
    write!(client, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer)
}
