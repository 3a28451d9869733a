//! What anybody sends to a port at which pages, events or metrics are served.

use hushflow::metrics::Metrics;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Sends the input in two parts, cut where its first byte says, and reads the answer: there is none, or it is one of HTTP, and the
/// server serves the next one who asks.
pub fn run(input: &[u8]) {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    let address = *SERVER
        .get_or_init(|| Arc::new(Metrics::default()).serve("127.0.0.1:0", false).expect("a free port"));
    let [cut, sent @ ..] = input else { return };
    let parts = sent.split_at(sent.len().min(usize::from(*cut)));
    let answer = exchange(address, &[parts.0, parts.1]);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
    assert!(
        !answer.starts_with(b"HTTP/1.1 200")
            || sent.starts_with(b"GET ")
            || sent.starts_with(b"\r\n")
            || sent.starts_with(b"\n")
    );
    let asked = exchange(address, &[b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"]);
    assert!(asked.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&asked));
}

/// What comes back until the server closes the connection. It may do so before it has taken everything.
fn exchange(address: SocketAddr, parts: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let sent = parts.iter().try_for_each(|part| stream.write_all(part));
    let _ = sent.and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(error.kind() != std::io::ErrorKind::WouldBlock, "the server has not answered in time");
    }
    answer
}
