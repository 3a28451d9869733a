//! Fuzzes bytes from the network: servers of brokers, peers in a cluster, and HTTP clients.

use hushflow::control::Control;
use hushflow::metrics::{HttpEndpoint, Metrics};
use hushflow::pipeline::Pipeline;
use hushflow::runtime::link::{
    CallerHandshake, EncryptedLink, GREETING, Greeting, HandshakeAnswer, LinkSession, SHORT_FRAME, answer,
};
use hushflow::source::{ResumePoint, SourceEvent, SourceReader};
use hushflow::state::Position;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Reads from a Redis or JetStream server that sends the input. The reader must end or return an
/// error, and each record of a batch must have one value.
///
/// The first byte of the input selects the broker (1) and whether earlier rows were read (2).
pub(crate) fn brokers(input: &[u8]) {
    let [which, sent @ ..] = input else { return };
    let (scheme, format) = if which & 1 == 0 { ("redis", "fields") } else { ("nats", "ndjson") };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound port");
    let text = format!(
        "name = 'n'
source = {{ path = '{scheme}://{address}', format = '{format}', stream = 's' }}
columns = [{{ name = 'x', lower = 0, upper = 1 }}]
epochs = {{ records = 2, horizon = 20 }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release.strategy = 'identity'
"
    );
    let pipeline = Pipeline::parse(&text, Path::new("pipeline.toml")).expect("a pipeline");
    let offset = if which & 2 == 0 { 0 } else { 3 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Ok((peer, _)) = listener.accept() {
                // The reader may close the connection first.
                let _ = serve(peer, sent);
            }
        });
        let position = Position::new(0, offset);
        read_events(&pipeline, ResumePoint { position, ..ResumePoint::START });
        // Lets the server end if no reader has connected.
        drop(TcpStream::connect(address));
    });
}

fn serve(mut peer: TcpStream, sent: &[u8]) -> io::Result<u64> {
    peer.write_all(sent)?;
    peer.shutdown(Shutdown::Write)?;
    io::copy(&mut peer, &mut io::sink())
}

/// Reads until the server has closed the connection for the first time.
fn read_events(pipeline: &Pipeline, from: ResumePoint) {
    let control = Control::new();
    let stop = control.stop_flag();
    let control = control.on_notice(move |_| stop.store(true, Ordering::Relaxed));
    let mut reader = match SourceReader::controlled((pipeline, &pipeline.sources[0]), &control, from, 0) {
        Ok(reader) => reader,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    loop {
        match reader.next_event() {
            Ok(SourceEvent::Batch(batch)) => assert_eq!(batch.records.values.len(), batch.len()),
            Ok(SourceEvent::Mark(_)) => {}
            Ok(SourceEvent::End) => return,
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}

/// Maximum number of bytes that are sent: more would fill the socket's buffer and block.
const LARGEST: usize = 1 << 16;

/// Sends bytes from an unknown peer to a process of a cluster: greetings, answers, confirmations
/// and frames. None may be accepted as coming from a process with the key.
///
/// The first byte of the input selects which of these it is.
pub(crate) fn greeting(input: &[u8]) {
    let [which, sent @ ..] = input else { return };
    match which % 4 {
        0 => assert!(answer(None, &padded::<GREETING>(sent), |caller| *caller).is_err()),
        1 => confirm(sent),
        2 => {
            let (call, _) = CallerHandshake::begin(None, &greeting_of(&[])).expect("entropy");
            assert!(call.answered(&padded::<GREETING>(sent)).is_err());
        }
        _ => frames(sent),
    }
}

/// Returns the first bytes, padded with zeros.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    let length = bytes.len().min(N);
    padded[..length].copy_from_slice(&bytes[..length]);
    padded
}

fn greeting_of(bytes: &[u8]) -> Greeting {
    let bytes = padded::<48>(bytes);
    let number = |index: usize| u32::from_le_bytes(padded(&bytes[4 * index..]));
    Greeting {
        process: number(0),
        to: number(1),
        processes: number(2),
        workers: number(3),
        pipeline: padded(&bytes[16..]),
    }
}

/// Returns the sessions of two processes that exchange greetings with these numbers.
fn sessions(sent: &[u8]) -> [LinkSession; 2] {
    let own = greeting_of(sent);
    let (call, hello) = CallerHandshake::begin(None, &own).expect("entropy");
    let HandshakeAnswer { caller, answer: back, session: called } =
        answer(None, &hello, |caller| *caller).expect("a greeting");
    let (found, calling) = call.answered(&back).expect("an answer");
    assert!(caller == own && found == own);
    [calling, called]
}

/// A greeting with any numbers arrives unchanged; a confirmation of any bytes is refused.
fn confirm(sent: &[u8]) {
    let [_, mut called] = sessions(sent);
    assert!(called.open(&padded::<SHORT_FRAME>(sent.get(48..).unwrap_or_default())).is_err());
}

/// An unknown peer writes to a link after a valid frame: only that frame is read.
fn frames(sent: &[u8]) {
    let sent = &sent[..sent.len().min(LARGEST)];
    let [calling, called] = sessions(&[]);
    let (near, far) = UnixStream::pair().expect("two ends");
    let mut wire = near.try_clone().expect("a handle");
    EncryptedLink::new(near, calling).and_then(|mut link| link.write_all(b"ours")).expect("room");
    wire.write_all(sent).and_then(|()| wire.shutdown(Shutdown::Write)).expect("room");
    let mut received = Vec::new();
    let ended = EncryptedLink::new(far, called).expect("a link").read_to_end(&mut received);
    assert!(ended.is_err() && received == b"ours", "{} bytes were taken", received.len());
}

/// Sends a request to a server of pages, events or metrics, in two parts. The answer is empty or
/// HTTP, and the server serves the next client.
///
/// The first byte of the input is the length of the first part.
pub(crate) fn http(input: &[u8]) {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    let address = *SERVER.get_or_init(|| {
        let url =
            Arc::new(Metrics::default()).serve(&HttpEndpoint::at("127.0.0.1:0"), false).expect("a free port");
        url["http://".len()..].trim_end_matches("/metrics").parse().expect("an address")
    });
    let [cut, sent @ ..] = input else { return };
    let parts = sent.split_at(sent.len().min(usize::from(*cut)));
    let answer = exchange(address, &[parts.0, parts.1]);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
    assert!(
        !answer.starts_with(b"HTTP/1.1 200")
            || sent.starts_with(b"GET ")
            || sent.starts_with(b"HEAD ")
            || sent.starts_with(b"\r\n")
            || sent.starts_with(b"\n")
    );
    let next = exchange(address, &[b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"]);
    assert!(next.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&next));
}

/// Returns all bytes until the server closes the connection, which may be before it has read all
/// parts.
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
