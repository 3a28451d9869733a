//! Sockets with TLS: peers that connect to a listening source, and a peer that a source connects
//! to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::{certificates, connect};
use crate::harness::{Lab, Stream, await_until, run, sums, wait};
use crate::servers::free_port;

const STREAM: Stream = Stream { rows: 2000, epochs: 20 };

const LISTENING: &str =
    "tls = true\ntls_certificate = 'server.pem'\ntls_key = 'server.key'\ntls_client_roots = 'ca.pem'";

struct EncryptedStream {
    lab: Lab,
    header: String,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
}

impl EncryptedStream {
    fn new() -> Self {
        let (lab, header, rows, expected) = STREAM.laid_out();
        EncryptedStream { lab, header, rows, expected }
    }

    fn start(&self, path: &str, fields: &str, arguments: &[&str]) -> Child {
        let text = STREAM.pipeline(path, "").replacen("[source]", &format!("[source]\n{fields}"), 1);
        let pipeline = self.lab.write("pipeline.toml", text);
        run(&pipeline, &self.lab.path("state"), 2).args(arguments).spawn().unwrap()
    }

    fn check(&self, run: Child) -> String {
        let ended = wait(run).succeeded();
        assert!(sums(&self.lab.path("state")) == self.expected, "the sums are not those of the file");
        ended.err
    }
}

#[test]
fn peers_with_a_certificate_send_and_others_neither_send_nor_block() {
    let case = EncryptedStream::new();
    let authority = certificates(&case.lab);
    let address = format!("127.0.0.1:{}", free_port());
    let fields = format!("acknowledge = true\n{LISTENING}");
    let run = case.start(&format!("tcp-listen://{address}"), &fields, &["--until-idle", "2s"]);
    await_until("the run listens", || TcpStream::connect(&address).is_ok());
    // A silent connection, one that stops in its handshake, plain text, and HTTP.
    let silent = TcpStream::connect(&address).unwrap();
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap();
    let plain = ["event,arrival,key,a,b,c,d,e\n", "GET / HTTP/1.1\r\n\r\n"].map(|text| {
        let mut plain = TcpStream::connect(&address).unwrap();
        plain.write_all(text.as_bytes()).unwrap();
        plain
    });
    for (name, config) in [
        ("none", authority.client(&case.lab, None)),
        ("strange", authority.client(&case.lab, Some("strange"))),
    ] {
        let mut refused = connect(&config, &address);
        let written = refused.write_all(case.header.as_bytes()).and_then(|()| refused.flush());
        let read = written.and_then(|()| refused.read(&mut [0; 64]));
        assert!(!matches!(read, Ok(1..)), "{name}: {read:?}");
    }
    let config = authority.client(&case.lab, Some("client"));
    let mut safe = 0;
    while safe < 2000 {
        let mut peer = BufReader::new(connect(&config, &address));
        let mut line = String::new();
        // The handshake begins with the first number, which this peer waits for.
        peer.read_line(&mut line).unwrap();
        let first: usize = line.trim().parse().unwrap();
        assert!(first >= safe, "only {first} of {safe} acknowledged rows are kept");
        let end = 2000.min(first + 600);
        let text = case.header.clone() + &case.rows[first..end].concat() + "2020-01-01T0";
        peer.get_mut().write_all(text.as_bytes()).unwrap();
        peer.get_mut().flush().unwrap();
        while safe < end {
            line.clear();
            peer.read_line(&mut line).unwrap();
            safe = line.trim().parse().unwrap();
        }
        // The peer leaves without closing the TLS session, in the middle of a row.
        peer.get_mut().sock.shutdown(std::net::Shutdown::Both).unwrap();
    }
    let errors = case.check(run);
    assert!(errors.contains("refused"), "{errors}");
    drop((silent, half, plain));
}

/// A server's end of TLS with a certificate of this name. With roots it requires a certificate of
/// the client.
fn server(lab: &Lab, name: &str, client_roots: Option<&str>) -> Arc<ServerConfig> {
    let file = |name: &str| lab.path(&format!("{name}.pem"));
    let chain = CertificateDer::pem_file_iter(file(name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(lab.path(&format!("{name}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match client_roots {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(file(name)).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    Arc::new(builder.with_single_cert(chain.map(Result::unwrap).collect(), key).unwrap())
}

/// Serves the text to the next peer, and returns whether it has taken all of it. The connection
/// stays open until the peer ends it, if it is `silent` after the text.
fn serve(listener: &TcpListener, config: Arc<ServerConfig>, text: &str, silent: bool) -> bool {
    let (socket, _) = listener.accept().unwrap();
    let mut peer = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
    let is_taken = peer.write_all(text.as_bytes()).and_then(|()| peer.flush()).is_ok();
    if is_taken && !silent {
        peer.conn.send_close_notify();
        let _ = peer.flush();
    }
    let _ = peer.read(&mut [0]);
    is_taken
}

#[test]
fn a_source_checks_the_server_it_connects_to_and_ends_where_only_a_person_can_help() {
    let case = EncryptedStream::new();
    certificates(&case.lab);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = case.header.clone() + &case.rows.concat();
    let path = format!("tcp://{address}");
    let trusting = "tls = true\ntls_roots = 'ca.pem'";
    let certified =
        |name: &str| format!("{trusting}\ntls_certificate = '{name}.pem'\ntls_key = '{name}.key'");
    // Name of the server, roots for its clients, fields of the source, and expected error.
    let cases = [
        ("strange", None, trusting.to_owned(), "signed by a trusted root: name the root with tls_roots"),
        ("elsewhere", None, trusting.to_owned(), "elsewhere.example"),
        ("expired", None, trusting.to_owned(), "has expired or is not valid yet"),
        ("server", None, "tls = true\ntls_roots = 'gone.pem'".to_owned(), "gone.pem"),
        ("server", Some("ca"), trusting.to_owned(), "it requires a client certificate: set tls_certificate"),
        (
            "server",
            Some("ca"),
            certified("strange"),
            "it refuses our certificate: it does not trust the root",
        ),
        ("server", Some("ca"), certified("outdated"), "it refuses our certificate: it has expired"),
    ];
    for (name, roots, fields, part) in &cases {
        for acknowledge in ["", "\nacknowledge = true"] {
            let run = case.start(&path, &format!("{fields}{acknowledge}"), &[]);
            serve(&listener, server(&case.lab, name, *roots), "", true);
            let ended = wait(run);
            assert!(!ended.err.contains("trying again"), "{}", ended.err);
            ended.failed(1, &[&path, part]);
        }
    }
    // Servers that disappear, do not use TLS, or end without an error message are tried again, and
    // the rows count once. The last connection is silent.
    let config = server(&case.lab, "server", Some("ca"));
    let run = case.start(&path, &certified("client"), &["--until-idle", "1s"]);
    drop(listener.accept().unwrap());
    listener.accept().unwrap().0.write_all(b"event,arrival,key\n").unwrap();
    serve(&listener, Arc::clone(&config), "", false);
    assert!(serve(&listener, Arc::clone(&config), &text, false));
    serve(&listener, config, "", true);
    let errors = case.check(run);
    let notices = ["does not speak TLS", "ended the connection"];
    assert!(notices.iter().all(|part| errors.matches(part).count() <= 1), "{errors}");
}
