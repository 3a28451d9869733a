//! Users and encryption, by a front of the test cluster that checks both: TLS of another library
//! than the client's, and the server's side of each login.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::KafkaStream;
use super::front::{Accept, Front};
use super::login::{PASSWORD, USER, Users};
use crate::harness::{Ended, finish, run, sums};
use crate::servers::installed;

fn plain() -> Accept {
    Box::new(|stream| Ok(Box::new(stream)))
}

/// Makes the key and the certificate of a server at this address, which is its own root.
fn certificate(directory: &Path, name: &str) -> Option<()> {
    let mut command = Command::new(installed("openssl")?);
    command.current_dir(directory).args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9"]);
    command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem"), "-subj", "/CN=test"]);
    command.args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]);
    command.output().ok().filter(|made| made.status.success()).map(|_| ())
}

fn encrypted(directory: &Path, name: &str) -> Accept {
    let file = |end| directory.join(format!("{name}.{end}"));
    let certificate = CertificateDer::from_pem_file(file("pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file("key")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).expect("they fit together"));
    Box::new(move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
        Ok(Box::new(StreamOwned::new(connection, stream)))
    })
}

/// Runs with more fields, and a password in the environment.
fn read(case: &KafkaStream, front: &Front, more: &str, password: &str) -> Ended {
    let pipeline = case.pipeline_at(&front.address(), "parts", more);
    let mut run = run(&pipeline, &case.state(), 1);
    finish(run.args(["--until-idle", "1500ms"]).env("KAFKA_PASSWORD", password))
}

#[test]
fn users_prove_their_passwords() {
    for (users, name) in [(Users::Scram256, "scram-sha-256"), (Users::Scram512, "scram-sha-512")] {
        let case = KafkaStream::new();
        case.spread("parts", 0, case.rows.len());
        let front = Front::of_users(case.cluster.address(), users, plain());
        let more = format!("user = '{USER}'\npassword_env = 'KAFKA_PASSWORD'\nsasl = '{name}'");
        read(&case, &front, &more, "wrong secret")
            .failed(1, &["kafka://", "refuses the user or the password"]);
        let other =
            more.replace(name, if users == Users::Scram256 { "scram-sha-512" } else { "scram-sha-256" });
        read(&case, &front, &other, PASSWORD).failed(1, &["does not offer this mechanism"]);
        let ended = read(&case, &front, &more, PASSWORD).succeeded();
        assert!(!ended.err.contains("secret"), "{}", ended.err);
        assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    }
}

#[test]
fn connections_are_encrypted_and_servers_checked() {
    let case = KafkaStream::new();
    case.spread("parts", 0, case.rows.len());
    let directory = case.lab.path("");
    if certificate(&directory, "server").and(certificate(&directory, "other")).is_none() {
        return super::skipped("openssl");
    }
    fs::write(case.lab.path("password"), format!("{PASSWORD}\n")).expect("a file");
    let accept = encrypted(&directory, "server");
    let front = Front::of_users(case.cluster.address(), Users::Plain, accept);
    let more = format!("user = '{USER}'\npassword_file = 'password'\nsasl = 'plain'\ntls = true\n");
    let with = |roots: &str| format!("{more}tls_roots = '{roots}.pem'");
    read(&case, &front, &with("other"), "").failed(1, &["kafka://", "TLS failed", "certificate"]);
    // The certificates of the machine.
    read(&case, &front, &more, "").failed(1, &["TLS failed", "certificate"]);
    read(&case, &front, &with("server"), "").succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}
