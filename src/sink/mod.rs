//! Sinks: where a pipeline's releases go beside the public log. Everything here may be seen by anyone.
//!
//! Each [follows](Following) the public log on a thread of its own: files, streams that a server
//! keeps, server-sent events, and standard output.

mod error;
mod event_stream;
mod events;
mod following;

pub use crate::connect::standard::StandardOutput;
pub use error::SinkError;
pub(crate) use event_stream::{Backlog, EventStream};
pub use following::{Following, Log};
