//! Objects of a store that speaks TLS.

use super::{Authority, certificates};
use crate::harness::{Random, finish, run, stop, sums, wait};
use crate::s3::{ObjectServer, ObjectStream, SECRET, access, check_tables};
use crate::servers::Proxy;

const PATH: &str = "s3://logs/in/*.csv";

const ROOTS: &str = "tls_roots = 'ca.pem'\n";

/// An empty store with the certificate of this name.
fn store(case: &ObjectStream, authority: &Authority, name: &str) -> Option<ObjectServer> {
    let file = |end: &str| case.lab.path(&format!("{name}.{end}"));
    ObjectServer::encrypted(authority.client(&case.lab, None), &file("pem"), &file("key"))
}

#[test]
fn encrypted_objects_are_read_and_written_once_through_cuts() {
    let case = ObjectStream::new();
    let authority = certificates(&case.lab);
    let Some(server) = store(&case, &authority, "server") else { return };
    server.empty();
    server.put("in/1.csv", &case.csv(0..2000));
    server.put("in/2.csv", &case.csv(2000..4000));
    let proxy = Proxy::to(server.port);
    let endpoint = format!("https://127.0.0.1:{}", proxy.port);
    let sink = format!(
        "[[views]]\nname = 'so far'\nworkload = 'prefix'\n[[sinks]]\npath = 's3://logs/out'\nrotate = '7 epochs'\n{}{ROOTS}",
        access(&endpoint)
    );
    let pipeline = case.pipeline_at(PATH, &endpoint, ROOTS, &sink);
    let mut random = Random(3);
    for _ in 0..4 {
        let mut child = run(&pipeline, &case.state(), 1).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100 + random.below(500)));
        proxy.cut();
        std::thread::sleep(std::time::Duration::from_millis(random.below(400)));
        let _ = child.kill();
        wait(child);
    }
    let ended = finish(&mut run(&pipeline, &case.state(), 2)).succeeded();
    assert!(!ended.err.contains(SECRET), "{}", ended.err);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    check_tables(&case, &server, 6);
}

#[test]
fn wrong_certificates_of_a_store_are_reported() {
    let case = ObjectStream::new();
    let authority = certificates(&case.lab);
    let fails = |endpoint: &str, fields: &str, parts: &[&str]| {
        let pipeline = case.pipeline_at(PATH, endpoint, fields, "");
        let ended = finish(&mut run(&pipeline, &case.state(), 1));
        assert!(!ended.err.contains(SECRET), "{}", ended.err);
        ended.failed(1, parts);
    };
    for (name, part) in
        [("expired", "expired"), ("elsewhere", "is for elsewhere.example: connect by such a name")]
    {
        let Some(server) = store(&case, &authority, name) else { return };
        fails(&format!("https://127.0.0.1:{}", server.port), ROOTS, &[part]);
    }
    let Some(server) = store(&case, &authority, "server") else { return };
    let endpoint = format!("https://127.0.0.1:{}", server.port);
    let untrusted = ["signed by a trusted root", "tls_roots"];
    fails(&endpoint, "tls_roots = 'stranger.pem'\n", &untrusted);
    fails(&endpoint, "", &untrusted);
    fails(&endpoint, "tls_roots = 'missing.pem'\n", &["missing.pem", "tls_roots", "can't be read"]);
    fails(&endpoint, "tls_roots = 'secret'\n", &["tls_roots", "certificate"]);
    // Only one end uses encryption: the run keeps trying.
    let plain = ObjectServer::start().unwrap();
    for endpoint in [format!("http://127.0.0.1:{}", server.port), format!("https://127.0.0.1:{}", plain.port)]
    {
        let child = run(&case.pipeline_at(PATH, &endpoint, ROOTS, ""), &case.state(), 1).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        stop(&child);
        let ended = wait(child);
        assert!(!ended.err.contains(SECRET) && ended.err.contains("s3://logs/in"), "{}", ended.err);
        assert_eq!(ended.code, Some(5), "{}", ended.err);
    }
}
