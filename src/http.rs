//! A small HTTP/1.1 server for pages and server-sent events (WHATWG HTML, section 9.2): each connection has a thread of its
//! own, is answered once, and ends.
//!
//! It is strict, because a browser shares it with the whole web: only GET, without a body, with a head of at most 8 KiB that is
//! there within seconds; and a `Host` that is an address, `localhost` or the host it was told to listen at, so that no site can
//! point a name of its own at it and read along (DNS rebinding). A path is compared with what there is, never looked up in a
//! file system. Whoever takes nothing for a while is dropped, and above a number of connections the next one is turned away.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::str::from_utf8;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Bytes that a request may have.
const REQUEST_LIMIT: usize = 8 << 10;

/// Header fields that a request may have.
const FIELD_LIMIT: usize = 64;

/// How long a request may take to arrive.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// How long a client may take nothing.
const STALL_PATIENCE: Duration = Duration::from_secs(10);

/// Connections at a time.
const CONNECTION_LIMIT: usize = 64;

/// Nothing but what this server itself gives is run, styled, shown or fetched.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Why nothing can be served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address can't be listened at.
    #[error("can't listen at {address}: {source}: name a free HOST:PORT, or port 0 for any that is free")]
    Listen {
        /// What was asked for.
        address: String,
        /// Why not.
        source: io::Error,
    },
}

/// A socket that is listened at.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    /// By which it was told to listen, without the port.
    host: String,
}

/// What is asked for.
pub(crate) struct Request {
    /// Without the query.
    pub(crate) path: String,
    query: Vec<(String, String)>,
    /// The number of the last event that a client has seen which comes back.
    pub(crate) last_event: Option<u64>,
}

impl Request {
    /// The first value of this name in the query.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// What sends events, until there are no more or the client is gone.
pub(crate) type Sender = Box<dyn FnOnce(&mut Events<'_>) -> io::Result<()>>;

/// What is answered.
pub(crate) enum Answer {
    /// A document of this media type.
    Document(&'static str, Cow<'static, str>),
    /// Events, for as long as this sends them.
    Events(Sender),
    /// A status other than 200, and why.
    Refused(Status, String),
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    BadRequest = 400,
    NotFound = 404,
    MethodNotAllowed = 405,
    RequestTimeout = 408,
    MisdirectedRequest = 421,
    TooLarge = 431,
    Unavailable = 503,
}

type Refusal = (Status, String);

impl Server {
    /// Listens at `address`, `HOST:PORT`.
    ///
    /// # Errors
    /// [`HttpError::Listen`].
    pub(crate) fn bind(address: &str) -> Result<Self, HttpError> {
        let listener = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (found, listener) =
            listener.map_err(|source| HttpError::Listen { address: address.into(), source })?;
        let host = host_of(address).to_ascii_lowercase();
        Ok(Self { listener, address: found, host })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers for as long as the process lives.
    pub(crate) fn serve(self, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        let site = Arc::new((self.host, answer));
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: let some connections end.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let site = Arc::clone(&site);
            let crowded = Arc::strong_count(&site) > CONNECTION_LIMIT + 1;
            // Whoever goes away does not matter to the others, and neither does a thread that can't be had.
            let _ = thread::Builder::new().name("http".into()).spawn(move || {
                let (host, answer) = &*site;
                let _ = converse(stream, host, answer, crowded);
            });
        }
    }
}

fn converse(
    mut stream: TcpStream,
    host: &str,
    answer: &impl Fn(&Request) -> Answer,
    crowded: bool,
) -> io::Result<()> {
    stream.set_write_timeout(Some(STALL_PATIENCE))?;
    stream.set_nodelay(true)?;
    let request = match crowded {
        false => read_request(&mut stream, host)?,
        true => Err((Status::Unavailable, "too many are connected: try again later".into())),
    };
    match request.map_or_else(|(status, why)| Answer::Refused(status, why), |request| answer(&request)) {
        Answer::Document(kind, text) => document(&mut stream, "200 OK", kind, &text)?,
        Answer::Refused(status, why) => {
            document(&mut stream, status.line(), "text/plain; charset=utf-8", &format!("{why}\n"))?;
        }
        Answer::Events(send) => {
            head(&mut stream, "200 OK", "text/event-stream", "")?;
            send(&mut Events(&mut stream))?;
        }
    }
    // A close with unread bytes would tear the answer away.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let _ = stream.take(REQUEST_LIMIT as u64).read_to_end(&mut Vec::new());
    Ok(())
}

fn document(stream: &mut TcpStream, status: &str, kind: &str, text: &str) -> io::Result<()> {
    head(stream, status, kind, &format!("Content-Length: {}\r\n", text.len()))?;
    stream.write_all(text.as_bytes())
}

fn head(stream: &mut TcpStream, status: &str, kind: &str, more: &str) -> io::Result<()> {
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}{allow}Content-Security-Policy: {CONTENT_SECURITY_POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::RequestTimeout => "408 Request Timeout",
            Status::MisdirectedRequest => "421 Misdirected Request",
            Status::TooLarge => "431 Request Header Fields Too Large",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

/// A client that is sent events. It gets as many as the connection holds, and then holds up the sender, and nobody else.
pub(crate) struct Events<'a>(&'a mut dyn Write);

impl Events<'_> {
    /// One event. A client that comes back tells the `number` of the last one. It joins the lines of `data` again.
    ///
    /// # Errors
    /// If the client is gone, or has taken nothing for too long.
    pub(crate) fn send(&mut self, number: u64, data: &str) -> io::Result<()> {
        let lines: String = data.lines().map(|line| format!("data: {line}\n")).collect();
        self.0.write_all(format!("id: {number}\n{lines}\n").as_bytes())
    }

    /// An event of a kind of its own, which has no number. `data` is one line.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn tell(&mut self, kind: &str, data: &str) -> io::Result<()> {
        self.0.write_all(format!("event: {kind}\ndata: {data}\n\n").as_bytes())
    }

    /// Nothing, so that both ends see that the other is there.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn beat(&mut self) -> io::Result<()> {
        self.0.write_all(b":\n\n")
    }
}

/// Reads a request, or says what is wrong with it.
fn read_request(stream: &mut TcpStream, host: &str) -> io::Result<Result<Request, Refusal>> {
    let deadline = Instant::now() + REQUEST_PATIENCE;
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = || Ok(Err((Status::RequestTimeout, "the request did not come in time".into())));
        if left.is_zero() {
            return late();
        }
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return late();
            }
            Err(error) => return Err(error),
        }
        if let Some(read) = parse(&bytes, host) {
            return Ok(read);
        }
        if bytes.len() > REQUEST_LIMIT {
            return Ok(Err((Status::TooLarge, format!("a request has at most {REQUEST_LIMIT} bytes"))));
        }
    }
}

/// The request that these bytes begin with, once they have all of it.
fn parse(bytes: &[u8], host: &str) -> Option<Result<Request, Refusal>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELD_LIMIT];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(check(&request, host)),
        Err(httparse::Error::TooManyHeaders) => {
            Some(Err((Status::TooLarge, format!("a request has at most {FIELD_LIMIT} fields"))))
        }
        Err(_) => Some(bad("this is not HTTP/1.1")),
    }
}

fn bad<T>(why: &str) -> Result<T, Refusal> {
    Err((Status::BadRequest, why.into()))
}

fn check(request: &httparse::Request<'_, '_>, host: &str) -> Result<Request, Refusal> {
    let field = |name: &str| {
        let mut found = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let value = found.next().map(|field| from_utf8(field.value).unwrap_or_default().trim());
        if found.next().is_some() { bad("a field is there twice") } else { Ok(value) }
    };
    if request.method != Some("GET") {
        return Err((Status::MethodNotAllowed, "only GET is answered".into()));
    }
    if field("Transfer-Encoding")?.is_some() || field("Content-Length")?.is_some_and(|length| length != "0") {
        return bad("a request has no body");
    }
    let named = field("Host")?.map_or_else(|| bad("a request names its Host"), Ok)?;
    if !is_ours(named, host) {
        return Err((
            Status::MisdirectedRequest,
            "the Host is not this server: use its address, or localhost".into(),
        ));
    }
    let (path, query) =
        request.path.unwrap_or_default().split_once('?').unwrap_or((request.path.unwrap_or_default(), ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name)?, decode(value)?))
    });
    let query = pairs.collect::<Option<_>>().map_or_else(|| bad("the query is not well encoded"), Ok)?;
    let last_event = field("Last-Event-ID")?.filter(|text| !text.is_empty()).map(str::parse);
    let last_event = last_event.transpose().or_else(|_| bad("Last-Event-ID is no number of ours"))?;
    Ok(Request { path: path.into(), query, last_event })
}

/// Whether a `Host` names this server. A name that anyone may own does not.
fn is_ours(named: &str, host: &str) -> bool {
    let name = host_of(named).to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = address.map_or_else(
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
        |address| address.parse::<Ipv6Addr>().is_ok(),
    );
    is_address || name == "localhost" || name == host
}

/// `HOST:PORT` without the port.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    }
}

/// Percent-encoding and `+` undone; `None` where that gives no text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => (digit()? << 4 | digit()?) as u8,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(request: &str) -> Result<Request, Status> {
        parse(request.as_bytes(), "stats.example").expect("a whole request").map_err(|(status, _)| status)
    }

    #[test]
    fn only_plain_questions_to_this_host_are_heard() {
        let get =
            |more: &str| status_of(&format!("GET /a HTTP/1.1\r\n{more}\r\n")).map(|request| request.path);
        for host in
            ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "10.0.0.7", "stats.example:80"]
        {
            assert_eq!(get(&format!("Host: {host}\r\n")), Ok("/a".into()), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", "::1", "", "[::1"]
        {
            assert_eq!(get(&format!("Host: {host}\r\n")), Err(Status::MisdirectedRequest), "{host}");
        }
        for (fields, status) in [
            ("", Status::BadRequest),
            ("Host: localhost\r\nHost: localhost\r\n", Status::BadRequest),
            ("Host: localhost\r\nContent-Length: 3\r\n", Status::BadRequest),
            ("Host: localhost\r\nTransfer-Encoding: chunked\r\n", Status::BadRequest),
            ("Host: localhost\r\nLast-Event-ID: -1\r\n", Status::BadRequest),
            (&"X: y\r\n".repeat(FIELD_LIMIT + 1), Status::TooLarge),
        ] {
            assert_eq!(get(fields), Err(status), "{fields}");
        }
        for method in ["POST", "HEAD", "OPTIONS"] {
            let found = status_of(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            assert_eq!(found.err(), Some(Status::MethodNotAllowed), "{method}");
        }
        assert_eq!(status_of("GET /\r\n\r\n").err(), Some(Status::BadRequest));
        assert!(parse(b"GET / HTTP/1.1\r\nHost: local", "").is_none());
    }

    #[test]
    fn queries_are_decoded() {
        let request = status_of(
            "GET /e?key=a%20b%26c+d&workload=window:7&x HTTP/1.1\r\nHost: [::1]\r\nlast-event-id: 7\r\n\r\n",
        );
        let request = request.expect("a good request");
        assert_eq!(request.get("key"), Some("a b&c d"));
        assert_eq!(request.get("workload"), Some("window:7"));
        assert_eq!((request.get("x"), request.get("y")), (Some(""), None));
        assert_eq!((request.path.as_str(), request.last_event), ("/e", Some(7)));
        for broken in ["%", "%4", "%zz", "%ff"] {
            let found = status_of(&format!("GET /?k={broken} HTTP/1.1\r\nHost: [::1]\r\n\r\n"));
            assert_eq!(found.err(), Some(Status::BadRequest), "{broken}");
        }
    }
}
