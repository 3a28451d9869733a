//! Sinks: destinations of a pipeline's releases besides the public log. Everything here is public.
//!
//! Each sink [follows](Following) the public log on its own thread. Sinks are files, streams on
//! servers, server-sent events, and standard output.

mod error;
mod event_stream;
mod events;
mod following;

pub use crate::connect::standard::StandardOutput;
pub use error::SinkError;
pub(crate) use event_stream::{Backlog, EventStream};
pub use following::{Following, Log};
