//! A mock schema registry over HTTP with one schema. It can be unavailable, and can require a
//! header such as a password.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Identifier of the schema.
pub(super) const SCHEMA_ID: u32 = 258;

pub(super) struct SchemaRegistry {
    port: u16,
    is_unavailable: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl SchemaRegistry {
    /// Starts to serve `schema`. Requests without the header line `required` are answered with
    /// status 401.
    pub(super) fn serve(schema: &str, required: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let is_unavailable = Arc::<AtomicBool>::default();
        let requests = Arc::<AtomicUsize>::default();
        let body = serde_json::json!({ "schema": schema }).to_string();
        let (unavailable, request_count) = (Arc::clone(&is_unavailable), Arc::clone(&requests));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                request_count.fetch_add(1, Ordering::Relaxed);
                // Ignore errors: the client may have disconnected.
                let _ = respond(&client, &body, required, unavailable.load(Ordering::Relaxed));
            }
        });
        SchemaRegistry { port, is_unavailable, requests }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/api", self.port)
    }

    pub(super) fn set_unavailable(&self, is_unavailable: bool) {
        self.is_unavailable.store(is_unavailable, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn respond(
    mut client: &TcpStream,
    body: &str,
    required: Option<&str>,
    is_unavailable: bool,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let headers: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let is_allowed = required.is_none_or(|line| headers.iter().any(|header| header == line));
    let (status, body) = match request.as_str() {
        _ if is_unavailable => ("503 Service Unavailable", ""),
        _ if !is_allowed => ("401 Unauthorized", "{}"),
        request if request.starts_with(&format!("GET /api/schemas/ids/{SCHEMA_ID} ")) => ("200 OK", body),
        _ => ("404 Not Found", "{\"error_code\":40403}"),
    };
    // Send the body in two chunks, to test chunked transfer encoding.
    let (first, second) = body.split_at(body.len() / 2);
    let chunk =
        |part: &str| if part.is_empty() { String::new() } else { format!("{:x}\r\n{part}\r\n", part.len()) };
    let (first, second) = (chunk(first), chunk(second));
    write!(client, "HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n{first}{second}0\r\n\r\n")
}
