//! Connections to servers that keep streams: what sources read from and sinks write to share.
//!
//! No general client is used: one would bring an asynchronous runtime, or buffers of whole answers, into the process that
//! holds raw rows. A [`Wire`](wire::Wire) reads lines and lengths with limits to both, and waits for nobody for ever. Kafka's
//! protocol is too large for that: its client is librdkafka, where the feature `kafka` asks for it.

pub(crate) mod id;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod redis;
pub(crate) mod wire;

use std::io;
use std::path::PathBuf;

use crate::pipeline::{Broker, Protocol};

/// Why a server did not do what was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may be over after another attempt.
    Passing(io::Error),
    /// The server refuses, in its own words: they are about the stream, not about records.
    Refused {
        /// The server and its stream.
        path: PathBuf,
        problem: String,
    },
    /// The stream is not there.
    NoStream,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Passing(error)
    }
}

/// What may pass, in the server's words or ours.
pub(crate) fn passing(words: impl Into<String>) -> Trouble {
    Trouble::Passing(io::Error::other(words.into()))
}

/// What trying again does not mend.
fn refusal(broker: &Broker, words: &str) -> Trouble {
    let problem: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
    Trouble::Refused { path: PathBuf::from(name(broker)), problem }
}

/// A stream in messages.
pub(crate) fn name(broker: &Broker) -> String {
    let scheme = match broker.protocol {
        Protocol::Redis => "redis",
        Protocol::Nats => "nats",
        #[cfg(feature = "kafka")]
        Protocol::Kafka => "kafka",
    };
    let partition = broker.partition.map_or_else(String::new, |partition| format!(" {partition}"));
    format!("{scheme}://{} {}{partition}", broker.address, broker.stream)
}
