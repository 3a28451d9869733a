//! Objects of a real server that speaks S3's protocol (`moto_server` of PyPI's `moto[server]`),
//! read and written through kills and cut links.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rustls::ClientConfig;

use crate::harness::{
    Lab, Random, Stream, await_until, finish, free_hosts_of, hushflow, releases, run, stop, sums, wait,
};
use crate::parquet::write_optional;
use crate::servers::{Proxy, free_port, installed};
use crate::sinks;
use crate::tls::connect;

pub(crate) const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

pub(crate) const SECRET: &str = "hidden-secret-key";

/// A server with a bucket `logs`.
pub(crate) struct ObjectServer {
    pub(crate) port: u16,
    child: Child,
    /// The client of an encrypted server.
    tls: Option<Arc<ClientConfig>>,
}

impl ObjectServer {
    pub(crate) fn start() -> Option<Self> {
        let server = Self::begin(None, &[])?;
        server.empty();
        Some(server)
    }

    /// A server that only speaks TLS, with the certificate of these files, and without a bucket.
    pub(crate) fn encrypted(tls: Arc<ClientConfig>, certificate: &Path, key: &Path) -> Option<Self> {
        Self::begin(
            Some(tls),
            &[OsStr::new("-c"), certificate.as_os_str(), OsStr::new("-k"), key.as_os_str()],
        )
    }

    fn begin(tls: Option<Arc<ClientConfig>>, arguments: &[&OsStr]) -> Option<Self> {
        let Some(program) = installed("moto_server") else {
            let _ = writeln!(std::io::stderr(), "skipped: moto_server is not installed");
            return None;
        };
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).args(arguments).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the server starts");
        await_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(ObjectServer { port, child, tls })
    }

    /// Forgets all objects, and makes the bucket.
    pub(crate) fn empty(&self) {
        self.request("POST", "/moto-api/reset", b"");
        self.request("PUT", "/logs", b"");
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
        // The server requires a signature and accepts any.
        let signed = "AWS4-HMAC-SHA256 Credential=t/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {signed}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let mut answer = self.exchange(&[head.as_bytes(), body].concat());
        assert!(answer.starts_with(b"HTTP/1.1 2"), "{method} {path}: {}", String::from_utf8_lossy(&answer));
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
        answer.split_off(end + 4)
    }

    /// Sends a request, and returns everything up to the end of the connection.
    fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        match &self.tls {
            None => {
                let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
                stream.write_all(request).expect("the request is taken");
                stream.read_to_end(&mut answer).expect("an answer");
            }
            Some(tls) => {
                let mut stream = connect(tls, &format!("127.0.0.1:{}", self.port));
                stream.write_all(request).expect("the request is taken");
                // The server may end the connection without a closing message.
                if let Err(error) = stream.read_to_end(&mut answer) {
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
                }
            }
        }
        answer
    }

    pub(crate) fn put(&self, key: &str, body: &[u8]) {
        self.request("PUT", &format!("/logs/{key}"), body);
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stream in objects of a folder, and its exact sums.
pub(crate) struct ObjectStream {
    pub(crate) lab: Lab,
    header: String,
    rows: Vec<String>,
    pub(crate) expected: Vec<Vec<i128>>,
}

impl ObjectStream {
    pub(crate) fn new() -> Self {
        let (lab, header, rows, expected) = STREAM.laid_out();
        lab.write("secret", SECRET);
        ObjectStream { lab, header, rows, expected }
    }

    pub(crate) fn csv(&self, rows: std::ops::Range<usize>) -> Vec<u8> {
        (self.header.clone() + &self.rows[rows].concat()).into_bytes()
    }

    /// The pipeline over objects, at a port of this machine.
    fn pipeline(&self, path: &str, port: u16, fields: &str) -> PathBuf {
        self.pipeline_at(path, &format!("http://127.0.0.1:{port}"), fields, "")
    }

    /// The pipeline over objects of a store, with more fields of the source and more sections.
    pub(crate) fn pipeline_at(&self, path: &str, endpoint: &str, fields: &str, more: &str) -> PathBuf {
        let access = access(endpoint) + fields;
        let text = STREAM.pipeline(path, more).replacen("[source]", &format!("[source]\n{access}"), 1);
        self.lab.write("pipeline.toml", text)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.lab.path("state")
    }
}

/// How a source or a sink reaches a store.
pub(crate) fn access(endpoint: &str) -> String {
    format!("endpoint = '{endpoint}'\nregion = 'us-east-1'\nuser = 'hushflow'\npassword_file = 'secret'\n")
}

/// Checks that the objects of a folder hold what `tail` shows, in this number of objects.
#[track_caller]
pub(crate) fn check_tables(case: &ObjectStream, server: &ObjectServer, objects: usize) {
    let listed =
        String::from_utf8(server.request("GET", "/logs?list-type=2&prefix=out/", b"")).expect("UTF-8");
    let keys: Vec<_> = listed.split("<Key>").skip(1).filter_map(|rest| rest.split('<').next()).collect();
    assert_eq!(keys.len(), objects, "{keys:?}");
    let copies = case.lab.path("copies");
    std::fs::create_dir(&copies).expect("a folder");
    for key in keys {
        let name = key.rsplit('/').next().expect("a name");
        std::fs::write(copies.join(name), server.request("GET", &format!("/logs/{key}"), b""))
            .expect("a file");
    }
    let (found, expected) = (sinks::rows(&copies), sinks::shown(&case.state()));
    assert!(found == expected, "the objects are not what tail shows");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

#[test]
fn rows_of_objects_count_once_through_kills_and_cuts() {
    let Some(server) = ObjectServer::start() else { return };
    let case = ObjectStream::new();
    server.put("in/1%20%231%2B.csv", &case.csv(0..1000));
    server.put("in/2.csv.gz", &gzip(&case.csv(1000..2000)));
    server.put("in/.3.csv", b"hidden");
    server.put("in/more/4.csv", b"in a folder of its own");
    let proxy = Proxy::to(server.port);
    let pipeline = case.pipeline("s3://logs/in/*.csv*", proxy.port, "follow = true\n");
    let mut random = Random(7);
    for round in 0..4 {
        let mut child = run(&pipeline, &case.state(), 1).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(200 + random.below(500)));
        proxy.cut();
        if round == 1 {
            server.put("in/3.csv", &case.csv(2000..3000));
        }
        std::thread::sleep(Duration::from_millis(random.below(500)));
        let _ = child.kill();
        wait(child);
    }
    let child =
        run(&pipeline, &case.state(), 2).args(["--until-idle", "8s"]).spawn().expect("the run starts");
    // Objects that have been read may be deleted.
    await_until("rows are published", || releases(&case.state()).len() >= 28);
    server.request("DELETE", "/logs/in/1%20%231%2B.csv", b"");
    server.put("in/5.csv", &case.csv(3000..4000));
    let ended = wait(child).succeeded();
    assert!(!ended.err.contains(SECRET), "{}", ended.err);
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    finish(hushflow(["verify"]).arg(case.state())).succeeded();
}

/// Every other row is in an object of the other folder. The list of the objects stays in the state
/// directory of the first process.
#[test]
fn folders_of_objects_are_read_by_several_processes_through_kills() {
    let Some(server) = ObjectServer::start() else { return };
    let case = ObjectStream::new();
    let access = access(&format!("http://127.0.0.1:{}", server.port));
    let source = |folder: &str| {
        let path = format!("path = 's3://logs/{folder}/*.csv'\nformat = 'csv'\nfollow = true\n");
        format!("[[sources]]\nname = '{folder}'\n{path}largest_jump = '2h'\n{access}")
    };
    let text = STREAM.pipeline("x", "");
    let text = text.replace("[source]\npath = 'x'\nformat = 'csv'\n", &(source("a") + &source("b")));
    let pipeline = case.lab.write("folders.toml", text);
    let put = |name: &str, rows: &[String], last: &str| {
        for (folder, first) in [("a", 0), ("b", 1)] {
            let rows: String = rows.iter().skip(first).step_by(2).map(String::as_str).collect();
            server.put(&format!("{folder}/{name}"), (case.header.clone() + &rows + last).as_bytes());
        }
    };
    let start = |processes: usize| {
        let hosts = free_hosts_of(processes);
        let process = |process: usize| {
            let mut command = run(&pipeline, &case.state(), 1);
            command.args(["--hosts", &hosts, "--process", &process.to_string()]);
            command.spawn().expect("the process starts")
        };
        (0..processes).map(process).collect::<Vec<Child>>()
    };
    put("1.csv", &case.rows[..2000], "");
    let mut children = start(2);
    await_until("the cluster publishes", || releases(&case.state()).len() >= 10);
    children[1].kill().expect("a child can be killed");
    children.into_iter().for_each(|child| drop(wait(child)));
    let seen = releases(&case.state());
    let (_, rest) = case.rows[0].split_once(",k").expect("a key");
    let after_all = "2020-01-01T02:00:00Z";
    put("2.csv", &case.rows[2000..], &format!("{after_all},{after_all},k{rest}"));
    start(3).into_iter().for_each(|child| drop(wait(child).succeeded()));
    assert!(releases(&case.state()).starts_with(&seen));
    assert!(sums(&case.state()) == case.expected, "the sums are not those of a file");
    finish(hushflow(["verify"]).arg(case.state())).succeeded();
}

#[test]
fn an_object_that_has_changed_is_refused() {
    let Some(server) = ObjectServer::start() else { return };
    let case = ObjectStream::new();
    let pipeline = case.pipeline("s3://logs/in/*.csv", server.port, "");
    server.put("in/1.csv", &case.csv(0..1000));
    finish(&mut run(&pipeline, &case.state(), 1)).succeeded();
    let published = releases(&case.state()).len();
    assert!(published > 0);
    // The end of the input has closed all epochs that it had begun. The rest of the object is known
    // only by its length, so the next rows come in a new object.
    server.put("in/2.csv", &case.csv(1000..2000));
    finish(&mut run(&pipeline, &case.state(), 1)).succeeded();
    assert!(releases(&case.state()).len() > published);
    // Killed in the middle of an object that changes before it is read on.
    let other = case.lab.path("other");
    let mut child = run(&pipeline, &other, 1).spawn().expect("the run starts");
    await_until("rows are published", || releases(&other).len() > 2);
    let _ = child.kill();
    wait(child);
    server.put("in/2.csv", &case.csv(1001..2000));
    let ended = finish(&mut run(&pipeline, &other, 1));
    if ended.code != Some(0) {
        ended.failed(1, &["s3://logs/in/2.csv", "the object was replaced"]);
    }
    // Objects that were read to their end may be deleted.
    server.request("DELETE", "/logs/in/2.csv", b"");
    server.put("in/3.csv", &case.csv(2000..3000));
    let published = releases(&case.state()).len();
    finish(&mut run(&pipeline, &case.state(), 1)).succeeded();
    assert!(releases(&case.state()).len() > published);
    let fresh = case.lab.path("fresh");
    finish(&mut run(&case.pipeline("s3://logs/none/*.csv", server.port, ""), &fresh, 1))
        .failed(1, &["s3://logs/none/*.csv", "no object fits"]);
    finish(&mut run(&case.pipeline("s3://missing/in/*.csv", server.port, ""), &case.state(), 1))
        .failed(1, &["the last run read another stream"]);
}

#[test]
fn parquet_objects_are_read_as_files() {
    let Some(server) = ObjectServer::start() else { return };
    let lab = Lab::new();
    lab.write("secret", SECRET);
    let rows: Vec<_> = (0..9000_u32).map(|row| [Some(f64::from(row % 89) / 89.0)]).collect();
    write_optional(&lab.path("a.parquet"), &["x"], &rows);
    server.put("in/a.parquet", &std::fs::read(lab.path("a.parquet")).expect("a file"));
    let pipeline = |source: &str| {
        format!(
            "name = 'n'\nsource = {{ {source} }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
epochs = {{ records = 1000, horizon = 60 }}\nprivacy = {{ epsilon = 1, delta = 1e-6 }}\n"
        )
    };
    let local = lab.write("local.toml", pipeline("path = 'a.parquet'"));
    let stored = format!(
        "path = 's3://logs/in/a.parquet', endpoint = 'http://127.0.0.1:{}', user = 'u', password_file = 'secret'",
        server.port
    );
    let stored = lab.write("stored.toml", pipeline(&stored));
    finish(&mut run(&local, &lab.path("local"), 1)).succeeded();
    finish(&mut run(&stored, &lab.path("stored"), 1)).succeeded();
    assert_eq!(releases(&lab.path("local")).len(), 9);
    assert!(sums(&lab.path("stored")) == sums(&lab.path("local")));
}

#[test]
fn killed_runs_leave_every_estimate_in_the_objects_once() {
    let Some(server) = ObjectServer::start() else { return };
    let case = ObjectStream::new();
    let proxy = Proxy::to(server.port);
    let sink = format!(
        "[[views]]\nname = 'so far'\nworkload = 'prefix'\n[[sinks]]\npath = 's3://logs/out'\nrotate = '7 epochs'\n{}",
        access(&format!("http://127.0.0.1:{}", proxy.port))
    );
    case.lab.write("data.csv", STREAM.csv());
    let pipeline = case.lab.write("pipeline.toml", STREAM.pipeline("data.csv", &sink));
    let mut random = Random(5);
    for _ in 0..5 {
        let mut child = run(&pipeline, &case.state(), 1).spawn().expect("the run starts");
        std::thread::sleep(Duration::from_millis(random.below(400)));
        proxy.cut();
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let _ = child.kill();
        wait(child);
    }
    finish(&mut run(&pipeline, &case.state(), 1)).succeeded();
    check_tables(&case, &server, 6);
    finish(&mut run(&pipeline, &case.lab.path("another"), 1)).failed(1, &["is not of the history"]);
}

#[test]
fn a_store_that_is_away_is_named_and_never_the_secret() {
    let case = ObjectStream::new();
    let port = free_port();
    let pipeline = case.pipeline("s3://logs/in/*.csv", port, "");
    let child = run(&pipeline, &case.state(), 1).spawn().expect("the run starts");
    std::thread::sleep(Duration::from_millis(1500));
    stop(&child);
    let ended = wait(child);
    assert!(!ended.err.contains(SECRET), "{}", ended.err);
    ended.failed(5, &["s3://logs/in/*.csv: can't be reached", "refused"]);
}

/// Another attempt with the same key would be refused too.
#[test]
fn a_store_that_refuses_the_key_ends_a_run() {
    let case = ObjectStream::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a client");
            let _ = client.read(&mut [0; 4096]);
            let body = "<Error><Code>SignatureDoesNotMatch</Code></Error>";
            let _ = write!(client, "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    let ended = finish(&mut run(&case.pipeline("s3://logs/in/*.csv", port, ""), &case.state(), 1));
    assert!(!ended.err.contains(SECRET), "{}", ended.err);
    ended.failed(1, &["s3://logs/in/*.csv: the store refuses this access key: check user and password_"]);
}
