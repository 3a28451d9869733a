//! Users and encryption, checked by a proxy of the test cluster. It has TLS from another library
//! than the client, and the server's side of each login, PLAIN (RFC 4616) and SCRAM (RFC 5802), for
//! one user.

use std::fs;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use sha2::{Digest, Sha256, Sha512};

use super::KafkaStream;
use super::front::{Accept, Front};
use crate::harness::{Ended, Lab, finish, run, sums};
use crate::tls::certificates;

fn plain() -> Accept {
    Box::new(|stream| Ok(Box::new(stream)))
}

/// Presents a certificate of this name, and demands one of the client.
fn encrypted(lab: &Lab, name: &str) -> Accept {
    let file = |name: &str| lab.path(name);
    let certificate = |name: &str| CertificateDer::from_pem_file(file(name)).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).expect("a root");
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_client_cert_verifier(clients.build().expect("a verifier"));
    let config = config.with_single_cert(vec![certificate(&format!("{name}.pem"))], key);
    let config = Arc::new(config.expect("they fit together"));
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
        read(&case, &front, &more, "wrong secret").failed(
            1,
            &["kafka://", "refuses the user or the password: see user and password_env, and sasl"],
        );
        let other =
            more.replace(name, if users == Users::Scram256 { "scram-sha-512" } else { "scram-sha-256" });
        read(&case, &front, &other, PASSWORD).failed(1, &["does not offer this mechanism"]);
        let ended = read(&case, &front, &more, PASSWORD).succeeded();
        assert!(!ended.err.contains("secret"), "{}", ended.err);
        assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    }
}

/// Tests that the error messages are those of the other systems.
#[test]
fn connections_are_encrypted_and_certificates_checked() {
    let case = KafkaStream::new();
    case.spread("parts", 0, case.rows.len());
    certificates(&case.lab);
    fs::write(case.lab.path("password"), format!("{PASSWORD}\n")).expect("a file");
    let front = |name| Front::of_users(case.cluster.address(), Users::Plain, encrypted(&case.lab, name));
    let more = format!("user = '{USER}'\npassword_file = 'password'\nsasl = 'plain'\ntls = true\n");
    let roots = format!("{more}tls_roots = 'ca.pem'\n");
    let with = |name: &str| format!("{roots}tls_certificate = '{name}.pem'\ntls_key = '{name}.key'");
    let client = with("client");
    let server = front("server");
    for (front, more, part) in [
        (&front("expired"), &client, "has expired or is not valid yet"),
        (&front("elsewhere"), &client, "it is for elsewhere.example: name the server so in path"),
        (&server, &client.replace("ca.pem", "stranger.pem"), "not signed by a trusted root"),
        // The roots of the machine do not contain this root.
        (&server, &more, "not signed by a trusted root: name the root with tls_roots"),
        (&server, &roots, "requires a client certificate: set tls_certificate and tls_key"),
        (&server, &with("strange"), "does not trust the root that signed it"),
        (&server, &client.replace("client.key", "server.key"), "don't fit together"),
        (
            &server,
            &client.replace("client.pem", "nowhere.pem"),
            "nowhere.pem of tls_certificate can't be read",
        ),
    ] {
        let ended = read(&case, front, more, "");
        assert!(!ended.err.contains(PASSWORD), "{}", ended.err);
        ended.failed(1, &["kafka://", part, "nothing was published or spent"]);
    }
    read(&case, &server, &client, "").succeeded();
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
}

pub(super) const USER: &str = "reader";
pub(super) const PASSWORD: &str = "secret, of 7 words = %!";

const SALT: &[u8] = b"salt of this server";
const ROUNDS: u32 = 4096;

/// Allowed ways to log in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    Plain,
    Scram256,
    Scram512,
}

impl Users {
    pub(super) fn name(self) -> &'static str {
        match self {
            Users::Plain => "PLAIN",
            Users::Scram256 => "SCRAM-SHA-256",
            Users::Scram512 => "SCRAM-SHA-512",
        }
    }
}

/// A login in progress.
pub(super) struct Login {
    users: Users,
    /// The client's first message without the prefix `n,,`, and the server's first message.
    first: Option<(String, String)>,
    is_admitted: bool,
}

impl Login {
    pub(super) fn new(users: Users) -> Self {
        Login { users, first: None, is_admitted: false }
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Answers the choice of a mechanism.
    pub(super) fn handshake(&mut self, body: &[u8]) -> Vec<u8> {
        let name = self.users.name();
        let error: u16 = if body[2..] == *name.as_bytes() { 0 } else { 33 };
        let known = [&1_u32.to_be_bytes()[..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat();
        [&error.to_be_bytes()[..], &known].concat()
    }

    /// Answers a message of the mechanism.
    pub(super) fn authenticate(&mut self, body: &[u8]) -> Vec<u8> {
        let message = String::from_utf8_lossy(&body[4..]).into_owned();
        let answer = match self.users {
            Users::Plain => (message == format!("\0{USER}\0{PASSWORD}")).then(String::new),
            Users::Scram256 => self.scram::<Sha256>(64, &message),
            Users::Scram512 => self.scram::<Sha512>(128, &message),
        };
        self.is_admitted = answer.is_some() && (self.users == Users::Plain || message.contains(",p="));
        let (error, words) = if answer.is_some() { (0_u16, "") } else { (58, "wrong user or password") };
        let answer = answer.unwrap_or_default();
        [
            &error.to_be_bytes()[..],
            &(words.len() as u16).to_be_bytes(),
            words.as_bytes(),
            &(answer.len() as u32).to_be_bytes(),
            answer.as_bytes(),
        ]
        .concat()
    }

    /// Answers a message of SCRAM; `None` if it does not prove the password.
    fn scram<D: Digest>(&mut self, block: usize, message: &str) -> Option<String> {
        let Some((client, server)) = &self.first else {
            let bare = message.strip_prefix("n,,")?;
            let nonce = bare.strip_prefix(&format!("n={USER},r="))?;
            let server = format!("r={nonce}and ours,s={},i={ROUNDS}", STANDARD.encode(SALT));
            self.first = Some((bare.into(), server.clone()));
            return Some(server);
        };
        let (end, proof) = message.split_once(",p=")?;
        let signed = format!("{client},{server},{end}");
        let hmac = |key: &[u8], text: &[u8]| hmac::<D>(block, key, text);
        // PBKDF2 with one block.
        let mut round = hmac(PASSWORD.as_bytes(), &[SALT, &[0, 0, 0, 1]].concat());
        let mut salted = round.clone();
        for _ in 1..ROUNDS {
            round = hmac(PASSWORD.as_bytes(), &round);
            salted.iter_mut().zip(&round).for_each(|(sum, byte)| *sum ^= byte);
        }
        let stored = D::digest(hmac(&salted, b"Client Key")).to_vec();
        let proof = STANDARD.decode(proof).ok()?;
        let key: Vec<u8> =
            proof.iter().zip(hmac(&stored, signed.as_bytes())).map(|(own, byte)| own ^ byte).collect();
        let signature = hmac(&hmac(&salted, b"Server Key"), signed.as_bytes());
        (D::digest(key).to_vec() == stored).then(|| format!("v={}", STANDARD.encode(signature)))
    }
}

/// HMAC (RFC 2104) with a key that is not longer than a block of the hash.
fn hmac<D: Digest>(block: usize, key: &[u8], text: &[u8]) -> Vec<u8> {
    let pad =
        |with: u8| -> Vec<u8> { (0..block).map(|at| key.get(at).copied().unwrap_or(0) ^ with).collect() };
    let inner = D::digest([&pad(0x36)[..], text].concat());
    D::digest([&pad(0x5c)[..], &inner].concat()).to_vec()
}
