//! Rows of a stream that a server keeps.
//!
//! The place of every entry is the server's own number of it, and it is our own log that remembers how far we are: with each
//! committed epoch, as an offset in a file. So nothing is acknowledged to the server, nothing is ever redelivered, and
//! a run that begins again reads from the recorded number: each entry counts once. What one server numbers twice is two
//! entries; a publisher that may repeat itself uses the server's own means (ids of messages, ids of entries).
//!
//! Entries are read one by one as they are wanted, so a pipeline that is behind holds up the server's connection and takes
//! no memory. A server that is away is tried again until it is back; that is never an end.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use super::error::SourceError;
#[cfg(feature = "kafka")]
use super::kafka::Kafka;
use super::nats::Nats;
use super::redis::Redis;
use crate::broker::{self, name};
use crate::control::{Backoff, Control};
use crate::format::form::Form;
use crate::format::row::{Outcome, Row, Rows};
use crate::pipeline::{Broker, Protocol};

/// The least number that the next entry may have, in two parts as in a [`Position`](super::Position).
pub(super) type Place = (u64, u64);

/// Before the first entry.
pub(super) const START: Place = (0, 1);

/// Why no entry came.
pub(super) enum Trouble {
    /// It may be over after another attempt.
    Passing(io::Error),
    Lasting(SourceError),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Passing(error)
    }
}

impl From<broker::Trouble> for Trouble {
    fn from(trouble: broker::Trouble) -> Self {
        match trouble {
            broker::Trouble::Passing(error) => Trouble::Passing(error),
            broker::Trouble::Refused { path, problem } => {
                Trouble::Lasting(SourceError::Server { path, problem })
            }
            broker::Trouble::NoStream => Trouble::Passing(io::Error::other("the stream is not there")),
        }
    }
}

/// A connection over which entries come, in their order.
pub(super) trait Entries: Send {
    /// Reads the next entry into `row`, and gives the place behind it; none if there has been none for a moment.
    fn next(&mut self, row: &mut Row, form: &mut Form) -> Result<Option<Place>, Trouble>;

    /// Whether there is one that needs not be waited for. False is always safe.
    fn is_at_hand(&self) -> bool;
}

/// The rows of a stream.
pub(super) struct BrokerRows {
    broker: Broker,
    control: Control,
    form: Form,
    place: Place,
    entries: Option<Box<dyn Entries>>,
    backoff: Backoff,
    /// When something came last, or the server was away.
    last: Instant,
}

impl BrokerRows {
    pub(super) fn new(broker: &Broker, control: &Control, place: Place, form: Form) -> Self {
        BrokerRows {
            broker: broker.clone(),
            control: control.clone(),
            form,
            place,
            entries: None,
            backoff: Backoff::default(),
            last: Instant::now(),
        }
    }

    fn connect(&self) -> Result<Box<dyn Entries>, Trouble> {
        Ok(match self.broker.protocol {
            Protocol::Redis => Box::new(Redis::open(&self.broker, &self.control, self.place)?),
            Protocol::Nats => Box::new(Nats::open(&self.broker, &self.control, self.place)?),
            #[cfg(feature = "kafka")]
            Protocol::Kafka => Box::new(Kafka::open(&self.broker, &self.control, self.place)?),
        })
    }

    fn next(&mut self, row: &mut Row) -> Result<Option<Place>, Trouble> {
        if self.entries.is_none() {
            self.entries = Some(self.connect()?);
            self.last = Instant::now();
        }
        self.entries.as_mut().map_or(Ok(None), |entries| entries.next(row, &mut self.form))
    }

    /// Lets the connection go, and waits before the next attempt.
    fn pause(&mut self, error: &io::Error) {
        self.entries = None;
        if self.backoff.failed() && !self.control.is_stopped() {
            self.control.notice(&format!("{}: {error}; trying again", name(&self.broker)));
        }
        self.control.sleep(self.backoff.pause());
        self.last = Instant::now();
    }
}

impl Rows for BrokerRows {
    fn read(&mut self, row: &mut Row) -> io::Result<Outcome> {
        while !self.control.is_over(self.last) {
            match self.next(row) {
                Ok(Some(place)) => {
                    (self.place, self.last) = (place, Instant::now());
                    self.backoff.reset();
                    return Ok(Outcome::Row);
                }
                Ok(None) => self.backoff.reset(),
                Err(Trouble::Passing(error)) => self.pause(&error),
                Err(Trouble::Lasting(error)) => return Err(io::Error::other(error)),
            }
        }
        Ok(Outcome::End)
    }

    fn place(&self) -> (u64, u64) {
        self.place
    }

    fn line(&self) -> u64 {
        self.place.0
    }

    fn is_at_hand(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| entries.is_at_hand())
    }
}

/// The error of a stream that is not what it was.
pub(super) fn lost(broker: &Broker, what: String) -> Trouble {
    Trouble::Lasting(SourceError::Lost { path: PathBuf::from(name(broker)), what })
}

/// Servers that say what a test wants.
#[cfg(test)]
pub(super) mod fake {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};

    use crate::format::form::Form;
    use crate::pipeline::{Broker, Format, Protocol};

    /// A server for one client. Each answer waits for a line that has a word in it, if there is one. The last answer may
    /// go on without an end.
    pub(in super::super) fn serve(
        protocol: Protocol,
        script: Vec<(Option<&'static str>, String)>,
        goes_on: bool,
    ) -> (Broker, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let broker = Broker {
            protocol,
            address,
            credentials: None,
            database: None,
            stream: "s".into(),
            partition: None,
        };
        let server = spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = BufReader::new(stream.try_clone().unwrap());
            for (word, answer) in script {
                let mut line = String::new();
                while word.is_some_and(|word| !line.contains(word)) {
                    line.clear();
                    assert!(asked.read_line(&mut line).unwrap() > 0, "the client is gone before {word:?}");
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
            let more = vec![b'7'; if goes_on { 1 << 20 } else { 0 }];
            while !more.is_empty() && stream.write_all(&more).is_ok() {}
        });
        (broker, server)
    }

    fn form_of(format: Format) -> Form {
        Form::new(format, None, None, &["x".into()], "s".as_ref()).unwrap()
    }

    /// Column `x` is a field of an entry.
    pub(in super::super) fn form() -> Form {
        form_of(Format::Fields)
    }

    /// Column `x` is a field of an object in JSON.
    pub(in super::super) fn json_form() -> Form {
        form_of(Format::Ndjson)
    }
}
