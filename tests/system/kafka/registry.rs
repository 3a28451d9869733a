//! A small schema registry over HTTP, with one schema, which can be away and can ask for a
//! password.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of the schema.
pub(super) const NUMBER: u32 = 258;

pub(super) struct SchemaRegistry {
    port: u16,
    is_away: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl SchemaRegistry {
    /// Begins to serve a schema. If a header line is given, requests need it.
    pub(super) fn of(schema: &str, required: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let is_away = Arc::<AtomicBool>::default();
        let requests = Arc::<AtomicUsize>::default();
        let body = serde_json::json!({ "schema": schema }).to_string();
        let (away, served) = (Arc::clone(&is_away), Arc::clone(&requests));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                served.fetch_add(1, Ordering::Relaxed);
                // A client that has gone does not read its answer.
                let _ = answer(&client, &body, required, away.load(Ordering::Relaxed));
            }
        });
        SchemaRegistry { port, is_away, requests }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/api", self.port)
    }

    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn answer(mut client: &TcpStream, body: &str, required: Option<&str>, is_away: bool) -> std::io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let headers: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let is_allowed = required.is_none_or(|line| headers.iter().any(|header| header == line));
    let (status, body) = match request.as_str() {
        _ if is_away => ("503 Service Unavailable", ""),
        _ if !is_allowed => ("401 Unauthorized", "{}"),
        request if request.starts_with(&format!("GET /api/schemas/ids/{NUMBER} ")) => ("200 OK", body),
        _ => ("404 Not Found", "{\"error_code\":40403}"),
    };
    // In two chunks.
    let (first, second) = body.split_at(body.len() / 2);
    let chunk =
        |part: &str| if part.is_empty() { String::new() } else { format!("{:x}\r\n{part}\r\n", part.len()) };
    let (first, second) = (chunk(first), chunk(second));
    write!(client, "HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n{first}{second}0\r\n\r\n")
}
