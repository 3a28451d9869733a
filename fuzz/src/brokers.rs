//! What a server of a broker says: Redis or JetStream. Whatever it is, a reader ends with an answer, and what it took for rows
//! has their form.

use hushflow::control::Control;
use hushflow::pipeline::Pipeline;
use hushflow::source::{Event, Position, Resume, SourceReader};
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;

/// The first byte of an input says which broker (1) and whether something had been read before (2).
pub fn run(input: &[u8]) {
    let [which, says @ ..] = input else { return };
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
                // A reader that has heard enough hangs up.
                let _ = serve(peer, says);
            }
        });
        let position = Position { offset, ..Position::START };
        read(&pipeline, Resume { position, ..Resume::START });
        // The server waits for somebody, also where nobody came.
        drop(TcpStream::connect(address));
    });
}

fn serve(mut peer: TcpStream, says: &[u8]) -> io::Result<u64> {
    peer.write_all(says)?;
    peer.shutdown(Shutdown::Write)?;
    io::copy(&mut peer, &mut io::sink())
}

/// Reads until the server is gone for the first time.
fn read(pipeline: &Pipeline, from: Resume) {
    let control = Control::new();
    let stop = control.stop_flag();
    let control = control.on_notice(move |_| stop.store(true, Ordering::Relaxed));
    let mut reader = match SourceReader::controlled((pipeline, &pipeline.sources[0]), &control, from, 0) {
        Ok(reader) => reader,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    loop {
        match reader.next_event() {
            Ok(Event::Batch(batch)) => assert_eq!(batch.records.values.len(), batch.len()),
            Ok(Event::Mark(_)) => {}
            Ok(Event::End) => return,
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}
