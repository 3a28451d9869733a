//! Request parser. It is strict, because any website can make a browser send requests here.
//!
//! It accepts only GET and HEAD without a body, a head of at most [`REQUEST_LIMIT`] bytes, and a
//! `Host` that is an address, `localhost`, the host that the server listens at or a name that its
//! operator has listed. So no site can point its own name at the server and read its answers (DNS
//! rebinding). Paths are compared with existing ones and never looked up in a file system.

use std::net::{IpAddr, Ipv6Addr};
use std::str::from_utf8;

pub(super) const REQUEST_LIMIT: usize = 8 << 10;

const FIELD_LIMIT: usize = 64;

pub(crate) struct HttpRequest {
    /// The path, without the query.
    pub(crate) path: String,
    query: Vec<(String, String)>,
    /// Number of the last event that a returning client has seen.
    pub(crate) last_event: Option<u64>,
    /// Whether the client requests only the head of the answer.
    pub(super) head_only: bool,
}

impl HttpRequest {
    /// Returns the first value of this name in the query.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns all values of this name in the query, in order.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpStatus {
    BadRequest = 400,
    NotFound = 404,
    MethodNotAllowed = 405,
    RequestTimeout = 408,
    MisdirectedRequest = 421,
    TooLarge = 431,
    Unavailable = 503,
}

pub(super) type HttpRefusal = (HttpStatus, String);

impl HttpStatus {
    pub(super) fn line(self) -> &'static str {
        match self {
            HttpStatus::BadRequest => "400 Bad Request",
            HttpStatus::NotFound => "404 Not Found",
            HttpStatus::MethodNotAllowed => "405 Method Not Allowed",
            HttpStatus::RequestTimeout => "408 Request Timeout",
            HttpStatus::MisdirectedRequest => "421 Misdirected Request",
            HttpStatus::TooLarge => "431 Request Header Fields Too Large",
            HttpStatus::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Parses the request at the start of these bytes, or returns `None` if it is incomplete.
pub(super) fn parse(bytes: &[u8], hosts: &[String]) -> Option<Result<HttpRequest, HttpRefusal>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELD_LIMIT];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(check(&request, hosts)),
        Err(httparse::Error::TooManyHeaders) => {
            Some(Err((HttpStatus::TooLarge, format!("a request has at most {FIELD_LIMIT} fields"))))
        }
        Err(_) => Some(bad("this is not HTTP/1.1")),
    }
}

fn bad<T>(why: &str) -> Result<T, HttpRefusal> {
    Err((HttpStatus::BadRequest, why.into()))
}

fn check(request: &httparse::Request<'_, '_>, hosts: &[String]) -> Result<HttpRequest, HttpRefusal> {
    let field = |name: &str| {
        let mut found = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let value = found.next().map(|field| from_utf8(field.value).unwrap_or_default().trim());
        if found.next().is_some() { bad("a field is there twice") } else { Ok(value) }
    };
    let method = request.method.unwrap_or_default();
    if !matches!(method, "GET" | "HEAD") {
        return Err((HttpStatus::MethodNotAllowed, "only GET and HEAD are answered".into()));
    }
    if field("Transfer-Encoding")?.is_some() || field("Content-Length")?.is_some_and(|length| length != "0") {
        return bad("a request has no body");
    }
    let named = field("Host")?.map_or_else(|| bad("a request names its Host"), Ok)?;
    if !is_ours(named, hosts) {
        return Err((
            HttpStatus::MisdirectedRequest,
            "the Host is not this server: use its address or localhost, or list the name with --served-as or in the sink's served_as"
                .into(),
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
    let last_event = last_event.transpose().or_else(|_| bad("Last-Event-ID is not a number of ours"))?;
    Ok(HttpRequest { path: path.into(), query, last_event, head_only: method == "HEAD" })
}

/// Whether a `Host` names this server. A name that anyone can register does not, unless it is
/// listed.
fn is_ours(named: &str, hosts: &[String]) -> bool {
    let name = host_of(named).to_ascii_lowercase();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = address.map_or_else(
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
        |address| address.parse::<Ipv6Addr>().is_ok(),
    );
    is_address || name == "localhost" || hosts.contains(&name)
}

/// Returns the host of `HOST:PORT`.
pub(super) fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => address,
    }
}

/// Decodes percent-encoding and `+`. Returns `None` if the result is not UTF-8.
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

    fn status_of(request: &str) -> Result<HttpRequest, HttpStatus> {
        parse(request.as_bytes(), &["127.0.0.9".into(), "stats.example".into()])
            .expect("a whole request")
            .map_err(|(status, _)| status)
    }

    #[test]
    fn only_plain_requests_to_this_host_are_accepted() {
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
            assert_eq!(get(&format!("Host: {host}\r\n")), Err(HttpStatus::MisdirectedRequest), "{host}");
        }
        for (fields, status) in [
            ("", HttpStatus::BadRequest),
            ("Host: localhost\r\nHost: localhost\r\n", HttpStatus::BadRequest),
            ("Host: localhost\r\nContent-Length: 3\r\n", HttpStatus::BadRequest),
            ("Host: localhost\r\nTransfer-Encoding: chunked\r\n", HttpStatus::BadRequest),
            ("Host: localhost\r\nLast-Event-ID: -1\r\n", HttpStatus::BadRequest),
            (&"X: y\r\n".repeat(FIELD_LIMIT + 1), HttpStatus::TooLarge),
        ] {
            assert_eq!(get(fields), Err(status), "{fields}");
        }
        for method in ["POST", "PUT", "OPTIONS"] {
            let found = status_of(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            assert_eq!(found.err(), Some(HttpStatus::MethodNotAllowed), "{method}");
        }
        assert_eq!(status_of("GET /\r\n\r\n").err(), Some(HttpStatus::BadRequest));
        assert!(parse(b"GET / HTTP/1.1\r\nHost: local", &[]).is_none());
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
        let twice = status_of("GET /?k=a&l=b&k=c HTTP/1.1\r\nHost: [::1]\r\n\r\n").expect("a good request");
        assert_eq!(twice.all("k").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((request.path.as_str(), request.last_event), ("/e", Some(7)));
        for broken in ["%", "%4", "%zz", "%ff"] {
            let found = status_of(&format!("GET /?k={broken} HTTP/1.1\r\nHost: [::1]\r\n\r\n"));
            assert_eq!(found.err(), Some(HttpStatus::BadRequest), "{broken}");
        }
    }
}
