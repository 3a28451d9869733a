//! A small HTTP/1.1 server for pages and server-sent events (WHATWG HTML, section 9.2). Each
//! connection has a thread, is answered once, and ends.
//!
//! Any client may connect, so resources are bounded: the number of connections and their
//! descriptors ([`slots`]), memory (a request has at most 8 KiB), and time. Readers beyond the
//! limit are refused, and silent connections make room for others. Every step (a request, an
//! answer, each event) has a deadline that received bytes do not extend. Existing small servers
//! bound neither connections nor time, so this one is written here.

pub mod probe;
mod request;
mod slots;

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::security::{Link, TlsAcceptor, TlsServer};
use request::{HttpRefusal, REQUEST_LIMIT, host_of, parse};
pub(crate) use request::{HttpRequest, HttpStatus};
pub(crate) use slots::ComputeTurn;
use slots::{ArrivalSlot, ConnectionSlots, yield_to_others};

/// Time for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Paths that are answered while readers have all connections.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Answer to a client for which there is no connection.
const BUSY: &str = "too many are connected: try again later";

/// Time for a client to read a document or one event.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time to read the bytes that a client still sends after its answer.
const LAST_TIMEOUT: Duration = Duration::from_millis(200);

/// How often a handshake checks its deadline.
const HANDSHAKE_STEP: Duration = Duration::from_secs(1);

/// First byte of every TLS connection; no HTTP request begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// Pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The media type of short answers for people.
pub(crate) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Allows only content from this server.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Reasons why a server can't start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HttpError {
    /// Cannot listen at the address.
    #[error("can't listen at {address}: {source}: name a free HOST:PORT, or port 0 for any that is free")]
    Listen {
        /// The requested address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Connections can't be encrypted.
    #[error("can't serve {address} with TLS: {source}")]
    Security {
        /// The requested address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Cannot start a thread.
    #[error("can't serve {address}: {source}: let this user start more threads (ulimit -u)")]
    Thread {
        /// The address of the server.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// Address of a server, its certificate, and its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) tls: Option<TlsServer>,
    /// Names for which requests are answered, besides addresses, `localhost` and the host of
    /// `address`.
    pub(crate) names: Vec<String>,
}

impl HttpEndpoint {
    /// Serves at `address`, `HOST:PORT`, unencrypted.
    pub fn at(address: impl Into<String>) -> Self {
        HttpEndpoint { address: address.into(), ..Self::default() }
    }

    /// Encrypts connections, if there are settings for it.
    #[must_use]
    pub fn with_tls(self, tls: Option<TlsServer>) -> Self {
        HttpEndpoint { tls, ..self }
    }

    /// Answers requests for these names too, as a proxy passes them on.
    #[must_use]
    pub fn named(self, names: Vec<String>) -> Self {
        HttpEndpoint { names, ..self }
    }

    /// Parses a name for [`named`](Self::named).
    ///
    /// # Errors
    /// The expected form, if `text` has a scheme, a port or a path.
    pub fn host_name(text: &str) -> Result<String, &'static str> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        match text.chars().all(is_name) && !text.is_empty() {
            true => Ok(text.into()),
            false => {
                Err("expected the name of a host without scheme, port and path, such as stats.example.org")
            }
        }
    }
}

pub(crate) struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    site: Site,
}

/// State shared by all connections of a server.
struct Site {
    /// The host of the requested address, without the port, and the other names, in small letters.
    hosts: Vec<String>,
    tls: Option<TlsAcceptor>,
}

/// Sends events until there are no more or the client is gone.
pub(crate) type EventSender = Box<dyn FnOnce(&mut EventWriter<'_>) -> io::Result<()>>;

pub(crate) enum HttpAnswer {
    /// A document of this media type.
    Document(&'static str, Cow<'static, str>),
    /// Events, until the sender returns.
    Events(EventSender),
    /// A status other than 200, and the reason.
    Refused(HttpStatus, String),
}

impl HttpServer {
    /// Listens at an address.
    ///
    /// # Errors
    /// [`HttpError::Listen`], [`HttpError::Security`].
    pub(crate) fn bind(endpoint: &HttpEndpoint) -> Result<Self, HttpError> {
        let HttpEndpoint { address, tls, names } = endpoint;
        let tls = tls.as_ref().map(TlsAcceptor::new).transpose();
        let tls =
            tls.map_err(|source| HttpError::Security { address: address.clone(), source: source.into() })?;
        let listener =
            TcpListener::bind(address.as_str()).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (found, listener) =
            listener.map_err(|source| HttpError::Listen { address: address.clone(), source })?;
        let hosts = [address].into_iter().chain(names).map(|name| host_of(name).to_ascii_lowercase());
        Ok(Self { listener, address: found, site: Site { hosts: hosts.collect(), tls } })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address for browsers, without a slash at the end.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.site.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers requests for the life of the process.
    ///
    /// # Errors
    /// [`HttpError::Thread`].
    pub(crate) fn serve(
        self,
        answer: impl Fn(&HttpRequest) -> HttpAnswer + Send + Sync + 'static,
    ) -> Result<(), HttpError> {
        let HttpServer { listener, address, site } = self;
        let slots = ConnectionSlots::of_this_process();
        let accept = move || accept(&listener, &Arc::new((site, slots, answer)));
        let started = thread::Builder::new().name("http".into()).spawn(accept);
        started.map(drop).map_err(|source| HttpError::Thread { address, source })
    }
}

/// Starts a thread for each connection.
fn accept<A>(listener: &TcpListener, shared: &Arc<(Site, ConnectionSlots, A)>) -> !
where
    A: Fn(&HttpRequest) -> HttpAnswer + Send + Sync + 'static,
{
    yield_to_others();
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Most likely out of descriptors: wait for connections to end.
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let Some(arrival) = shared.1.arrive(&stream) else {
            if shared.0.tls.is_none() {
                refuse(stream);
            }
            continue;
        };
        let shared = Arc::clone(shared);
        let converse = move || {
            let (site, slots, answer) = &*shared;
            // One client's disconnect does not affect the others.
            let _ = converse(stream, (slots, arrival), site, answer);
        };
        // If the thread cannot start, the connection is closed.
        let _ = thread::Builder::new().name("http".into()).spawn(converse);
    }
}

/// Refuses a connection without blocking.
fn refuse(stream: TcpStream) {
    let mut answer = Vec::new();
    let refused = format!("{BUSY}\n");
    let _ = stream
        .set_nonblocking(true)
        .and_then(|()| document(&mut answer, HttpStatus::Unavailable.line(), PLAIN_TEXT, &refused, false))
        .and_then(|()| (&stream).write_all(&answer))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        // Closing with unread bytes would discard the answer.
        .and_then(|()| (&stream).read(&mut [0; 1024]));
}

/// A connection with a deadline for each step, however slowly the client sends or reads.
struct HttpConnection {
    link: Link,
    deadline: Instant,
}

impl HttpConnection {
    fn within(&mut self, timeout: Duration) -> &mut Self {
        self.deadline = Instant::now() + timeout;
        self
    }

    /// Ends the answer. Closing with unread bytes would discard it.
    fn finish(mut self) -> io::Result<()> {
        self.step(Link::close_writing)?;
        self.within(LAST_TIMEOUT);
        let _ = io::copy(&mut self.take(REQUEST_LIMIT as u64), &mut io::sink());
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Repeats a step of the connection until it has an effect, or its time is up.
    fn step<T>(&mut self, mut step: impl FnMut(&mut Link) -> io::Result<T>) -> io::Result<T> {
        loop {
            // An encrypted connection may have to write before it can read, and the reverse.
            let left = Some(self.left()?);
            self.link.socket().set_read_timeout(left)?;
            self.link.socket().set_write_timeout(left)?;
            match step(&mut self.link) {
                Err(error) if is_early(&error) => {}
                done => return done,
            }
        }
    }
}

impl Read for HttpConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.step(|link| link.read(buffer))
    }
}

impl Write for HttpConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.step(|link| link.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.step(Link::flush)
    }
}

/// Whether an error only means that nothing was ready in time.
fn is_early(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Makes the handshake, if connections are encrypted. Returns `None` for a client that does not
/// speak TLS. Such a client gets an answer that explains how to connect.
fn secured(stream: TcpStream, tls: Option<&TlsAcceptor>) -> io::Result<Option<Link>> {
    let Some(acceptor) = tls else { return Ok(Some(Link::Plain(stream))) };
    let deadline = Instant::now() + REQUEST_TIMEOUT;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut first = [0];
    if stream.peek(&mut first)? == 1 && first[0] != TLS_HANDSHAKE {
        let mut connection = HttpConnection { link: Link::Plain(stream), deadline };
        let answer = "this port speaks HTTPS: use https://\n";
        document(&mut connection, HttpStatus::BadRequest.line(), PLAIN_TEXT, answer, false)?;
        connection.finish()?;
        return Ok(None);
    }
    stream.set_read_timeout(Some(HANDSHAKE_STEP))?;
    stream.set_write_timeout(Some(HANDSHAKE_STEP))?;
    let mut link = Link::accepted(stream, acceptor)?;
    link.handshake(|| match Instant::now() < deadline {
        true => Ok(()),
        false => Err(io::ErrorKind::TimedOut.into()),
    })?;
    Ok(Some(link))
}

fn converse(
    stream: TcpStream,
    (slots, arrival): (&ConnectionSlots, ArrivalSlot),
    site: &Site,
    answer: &impl Fn(&HttpRequest) -> HttpAnswer,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(link) = secured(stream, site.tls.as_ref())? else { return Ok(()) };
    let mut connection = HttpConnection { link, deadline: Instant::now() };
    let request = read_request(connection.within(REQUEST_TIMEOUT), &site.hosts)?;
    arrival.note_request();
    let head_only = request.as_ref().is_ok_and(|request| request.head_only);
    let is_probe = request.as_ref().is_ok_and(|request| PROBES.contains(&request.path.as_str()));
    let reader = if is_probe { None } else { slots.take_reader() };
    let answer = match request {
        Err((status, why)) => HttpAnswer::Refused(status, why),
        Ok(_) if reader.is_none() && !is_probe => HttpAnswer::Refused(HttpStatus::Unavailable, BUSY.into()),
        Ok(request) => answer(&request),
    };
    // A reader leaves its place to others. A refusal and the answer to a probe are short.
    let _arrival = Some(arrival).filter(|_| reader.is_none());
    connection.within(ANSWER_TIMEOUT);
    match answer {
        HttpAnswer::Document(kind, text) => document(&mut connection, "200 OK", kind, &text, head_only)?,
        HttpAnswer::Refused(status, why) => {
            document(&mut connection, status.line(), PLAIN_TEXT, &format!("{why}\n"), head_only)?;
        }
        HttpAnswer::Events(send) => {
            head(&mut connection, "200 OK", "text/event-stream", "")?;
            if !head_only {
                send(&mut EventWriter(&mut connection))?;
            }
        }
    }
    connection.finish()
}

fn document(out: &mut impl Write, status: &str, kind: &str, text: &str, head_only: bool) -> io::Result<()> {
    head(out, status, kind, &format!("Content-Length: {}\r\n", text.len()))?;
    if !head_only {
        out.write_all(text.as_bytes())?;
    }
    out.flush()
}

fn head(out: &mut impl Write, status: &str, kind: &str, more: &str) -> io::Result<()> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}{allow}Content-Security-Policy: {CONTENT_SECURITY_POLICY}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    out.write_all(head.as_bytes())
}

/// A client that receives events. A slow one blocks only its own sender.
pub(crate) struct EventWriter<'a>(&'a mut HttpConnection);

impl EventWriter<'_> {
    /// Sends an event. A returning client names the `number` of its last event. The client joins
    /// the lines of `data` again.
    ///
    /// # Errors
    /// If the client is gone or did not read the event in time.
    pub(crate) fn send(&mut self, number: u64, data: &str) -> io::Result<()> {
        let lines: String = data.lines().map(|line| format!("data: {line}\n")).collect();
        self.write(&format!("id: {number}\n{lines}\n"))
    }

    /// Sends an event of its own kind, without a number. `data` is one line.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_event(&mut self, kind: &str, data: &str) -> io::Result<()> {
        self.write(&format!("event: {kind}\ndata: {data}\n\n"))
    }

    /// Sends an empty comment, so that both ends notice a lost connection.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn beat(&mut self) -> io::Result<()> {
        self.write(":\n\n")
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let connection = self.0.within(ANSWER_TIMEOUT);
        connection.write_all(text.as_bytes())?;
        connection.flush()
    }
}

fn read_request(
    connection: &mut HttpConnection,
    hosts: &[String],
) -> io::Result<Result<HttpRequest, HttpRefusal>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let mut piece = [0; 1024];
        match connection.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(Err((HttpStatus::RequestTimeout, "the request did not come in time".into())));
            }
            Err(error) => return Err(error),
        }
        if let Some(read) = parse(&bytes, hosts) {
            return Ok(read);
        }
        if bytes.len() > REQUEST_LIMIT {
            return Ok(Err((HttpStatus::TooLarge, format!("a request has at most {REQUEST_LIMIT} bytes"))));
        }
    }
}
