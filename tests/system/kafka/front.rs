//! A server in front of the cluster, with features that the cluster lacks: topics that get more
//! partitions, encryption, and users with passwords. Clients see only the address of this server.
//!
//! It passes one request and its answer at a time on each connection, as a server may.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::secure::{Login, Users};

/// Numbers of requests.
const METADATA: u16 = 3;
const FIND_COORDINATOR: u16 = 10;
const SASL_HANDSHAKE: u16 = 17;
const API_VERSIONS: u16 = 18;
const SASL_AUTHENTICATE: u16 = 36;

/// The first versions of metadata and of coordinators with compact lengths.
const COMPACT: u16 = 9;
const COMPACT_COORDINATOR: u16 = 3;

/// Either end of a connection.
pub(super) trait Wire: Read + Write + Send {}

impl<W: Read + Write + Send> Wire for W {}

/// Makes the wire of a connection.
pub(super) type Accept = Box<dyn Fn(TcpStream) -> io::Result<Box<dyn Wire>> + Send + Sync>;

pub(super) struct Front {
    port: u16,
    shown: Arc<AtomicU32>,
}

/// State shared by the connections of a front.
struct FrontSettings {
    broker: String,
    port: u16,
    shown: Arc<AtomicU32>,
    users: Option<Users>,
    accept: Accept,
}

impl Front {
    /// Shows the first partitions of each topic of a cluster with one broker.
    pub(super) fn showing(broker: String, shown: u32) -> Self {
        Front::begin(broker, shown, None, Box::new(|stream| Ok(Box::new(stream))))
    }

    /// Starts a server that only admits these users.
    pub(super) fn of_users(broker: String, users: Users, accept: Accept) -> Self {
        Front::begin(broker, u32::MAX, Some(users), accept)
    }

    fn begin(broker: String, shown: u32, users: Option<Users>, accept: Accept) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shown = Arc::new(AtomicU32::new(shown));
        let settings = Arc::new(FrontSettings { broker, port, shown: Arc::clone(&shown), users, accept });
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let settings = Arc::clone(&settings);
                std::thread::spawn(move || settings.serve(client));
            }
        });
        Front { port, shown }
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn show(&self, partitions: u32) {
        self.shown.store(partitions, Ordering::Relaxed);
    }
}

impl FrontSettings {
    fn serve(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut client = (self.accept)(client)?;
        let mut server = TcpStream::connect(&self.broker)?;
        server.set_nodelay(true)?;
        let mut login = self.users.map(Login::new);
        loop {
            let request = message(&mut client)?;
            let [kind, version] = [0, 2].map(|at| u16::from_be_bytes([request[at], request[at + 1]]));
            let number = &request[4..8];
            // After the name of the client, which is not compact here.
            let body = || &request[10 + usize::from(u16::from_be_bytes([request[8], request[9]]))..];
            let answer = match (kind, &mut login) {
                (SASL_HANDSHAKE, Some(login)) => [number, &login.handshake(body())].concat(),
                (SASL_AUTHENTICATE, Some(login)) => [number, &login.authenticate(body())].concat(),
                (API_VERSIONS, login) => {
                    let answer = pass(&mut server, &request)?;
                    if login.is_some() { with_login(answer) } else { answer }
                }
                (_, Some(login)) if !login.is_admitted() => return Ok(()),
                (METADATA, _) => {
                    assert!(version >= COMPACT, "the client asks for metadata in an old way");
                    let answer = pass(&mut server, &request)?;
                    let (bytes, copy) = (&answer[..], answer[..4].to_vec());
                    let shown = self.shown.load(Ordering::Relaxed);
                    MetadataAnswer { bytes, at: 4, copy }.edited(version, self.port, shown)
                }
                (FIND_COORDINATOR, _) => {
                    let mut answer = pass(&mut server, &request)?;
                    // The port comes last, or before the end of a compact answer.
                    let end = answer.len() - usize::from(version >= COMPACT_COORDINATOR);
                    answer[end - 4..end].copy_from_slice(&u32::from(self.port).to_be_bytes());
                    answer
                }
                _ => pass(&mut server, &request)?,
            };
            send(&mut client, &answer)?;
        }
    }
}

/// Reads a message with its length before it.
fn message(wire: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    wire.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    wire.read_exact(&mut message)?;
    Ok(message)
}

fn send(wire: &mut impl Write, message: &[u8]) -> io::Result<()> {
    wire.write_all(&[&(message.len() as u32).to_be_bytes(), message].concat())?;
    wire.flush()
}

fn pass(server: &mut TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    send(server, request)?;
    message(server)
}

/// Adds the requests of a login to the versions that a broker knows.
fn with_login(mut answer: Vec<u8>) -> Vec<u8> {
    let has_failed = answer[4..6] != [0, 0];
    if !has_failed {
        let count = u32::from_be_bytes(answer[6..10].try_into().expect("four bytes")) + 2;
        answer[6..10].copy_from_slice(&count.to_be_bytes());
        let known = [[SASL_HANDSHAKE, 1, 1], [SASL_AUTHENTICATE, 0, 0]];
        let known = known.as_flattened().iter().flat_map(|number| number.to_be_bytes());
        answer.splice(10..10, known);
    }
    answer
}

/// An answer that is copied with changes. All lists and texts are short.
struct MetadataAnswer<'a> {
    bytes: &'a [u8],
    at: usize,
    copy: Vec<u8>,
}

impl MetadataAnswer<'_> {
    fn pass(&mut self, count: usize) {
        self.copy.extend_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
    }

    /// Copies a length, and returns it.
    fn length(&mut self) -> usize {
        let length = self.bytes[self.at];
        assert!(length < 0x80, "a long list");
        self.pass(1);
        usize::from(length).saturating_sub(1)
    }

    fn text(&mut self) {
        let length = self.length();
        self.pass(length);
    }

    /// Copies the tags after the fields: there are none here.
    fn tags(&mut self) {
        assert_eq!(self.length(), 0);
    }

    fn edited(mut self, version: u16, port: u16, shown: u32) -> Vec<u8> {
        self.tags();
        self.pass(4);
        for _ in 0..self.length() {
            self.pass(4);
            self.text();
            self.at += 4;
            self.copy.extend_from_slice(&u32::from(port).to_be_bytes());
            self.text();
            self.tags();
        }
        self.text();
        self.pass(4);
        for _ in 0..self.length() {
            self.pass(2);
            self.text();
            self.pass(if version >= 10 { 16 } else { 0 } + 1);
            let count = self.copy.len();
            let partitions = self.length();
            self.copy[count] = partitions.min(shown as usize) as u8 + 1;
            for partition in 0..partitions {
                let kept = self.copy.len();
                self.pass(2 + 4 + 4 + 4);
                for _ in 0..3 {
                    let replicas = self.length();
                    self.pass(4 * replicas);
                }
                self.tags();
                if partition >= shown as usize {
                    self.copy.truncate(kept);
                }
            }
            self.pass(4);
            self.tags();
        }
        self.copy.extend_from_slice(&self.bytes[self.at..]);
        self.copy
    }
}
