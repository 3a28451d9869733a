//! Sinks: destinations of a pipeline's releases other than the public log. All of them are public.
//!
//! Each sink follows the public log on [its own thread](SinkThread). Sinks are files, streams on
//! servers, server-sent events, and standard output. No error message holds more than the log does.

mod events;
mod thread;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::connect::{EpochStamp, RequestError};
use crate::estimates::EstimateRecord;
use crate::follow::{EpochEstimates, FollowError, Follower, Subject, open_log};
use crate::http::HttpError;
use crate::lines::{LineWriter, OutputFormat, records};
use crate::pipeline::Sink;
use crate::state::StateError;

pub use crate::connect::standard::StandardOutput;
use crate::control::Control;
pub(crate) use events::{Backlog, EventStream, last_seen};
pub use thread::{SinkThread, TakenAddress};

/// The input of a sink: a public log, and the publication and views to follow.
#[derive(Clone)]
pub struct SinkInput {
    /// Directory of the log, which may not have been started yet.
    pub directory: PathBuf,
    /// The publication and views.
    pub subject: Arc<Subject>,
}

/// Reads a log epoch by epoch from the first, as lines or as records.
struct EpochReader<C> {
    follower: Follower,
    encode: Encode<C>,
}

/// Turns the estimates of an epoch into the content that a sink writes.
type Encode<C> = Box<dyn FnMut(&EpochEstimates) -> C + Send>;

/// Output of a sink for an epoch.
struct EpochContent<C> {
    mark: EpochStamp,
    /// The lines or records of all views and keys.
    content: C,
}

/// Writes lines, each with its line end.
fn as_lines(subject: &Subject, format: OutputFormat) -> Encode<Vec<u8>> {
    let mut writer = LineWriter::new(subject, format);
    Box::new(move |epoch| {
        let mut lines = Vec::new();
        writer.write(epoch, &mut lines).expect("memory takes every line");
        lines
    })
}

/// Makes the records of a table.
fn as_records(subject: &Arc<Subject>) -> Encode<Vec<EstimateRecord>> {
    let subject = Arc::clone(subject);
    Box::new(move |epoch| records(&subject, epoch))
}

impl<C> EpochReader<C> {
    /// Opens the log; `None` if no run has created it yet. Empty `keys` mean all.
    fn open(input: &SinkInput, encode: Encode<C>, keys: &[u32]) -> Result<Option<Self>, StateError> {
        let Some(reader) = open_log(&input.directory)? else { return Ok(None) };
        Ok(Some(EpochReader { follower: Follower::new(reader, &input.subject, keys), encode }))
    }

    /// Returns the last epoch that was read.
    fn last(&self) -> u64 {
        self.follower.last()
    }

    /// Returns the next epoch if it has been published, without content if it is not
    /// [selected](Follower::next).
    fn next(
        &mut self,
        select: impl FnOnce(u64, bool) -> bool,
    ) -> Result<Option<EpochContent<C>>, FollowError> {
        let Some(epoch) = self.follower.next(select)? else { return Ok(None) };
        let (generation, chain) = (epoch.stamp.generation, epoch.stamp.chain.short());
        let mark = EpochStamp { epoch: epoch.number, generation, chain };
        Ok(Some(EpochContent { mark, content: (self.encode)(&epoch) }))
    }
}

/// Connects to a sink of a pipeline and logs in, as a run does, or looks at its files. Writes
/// nothing.
///
/// # Errors
/// If a run could not write to it now.
pub fn probe(sink: &Sink, control: &Control) -> Result<(), SinkError> {
    let target = sink.target();
    target.probe(control).map_err(|error| SinkError::of(&target.name(), error))
}

/// Reasons why a sink can't continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// An error of the operating system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the server and its stream.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A server refused a request.
    #[error("{}: {problem}", path.display())]
    Server {
        /// The server and its stream.
        path: PathBuf,
        /// The reason, in the server's words if it gave one.
        problem: String,
    },
    /// The address can't be listened on.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The public log can't be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// Standard output has no reader.
    #[error("standard output: {0}")]
    Output(#[source] io::Error),
    /// No thread can be started.
    #[error("no thread for a sink: {0}: let this user start more threads (ulimit -u)")]
    Thread(#[source] io::Error),
    /// The sink holds releases of another history than the log's.
    #[error(
        "{name}: its epoch {epoch} is not of the history in the state directory: name another destination for the sink, \
         or restore the directory"
    )]
    OtherHistory {
        /// The sink.
        name: String,
        /// The last epoch in it.
        epoch: u64,
    },
    /// The sink has releases that the log doesn't have.
    #[error(
        "{name}: it holds epoch {epoch}, but the log ends at epoch {end}: name another destination for the sink, or restore the \
         state directory"
    )]
    Ahead {
        /// The sink.
        name: String,
        /// The last epoch in it.
        epoch: u64,
        /// The last epoch of the log.
        end: u64,
    },
}

impl SinkError {
    /// Converts a problem with the outlet of this name.
    fn of(name: &str, error: RequestError) -> Self {
        match error {
            RequestError::Gone(source) => SinkError::Output(source),
            RequestError::Transient(source) => SinkError::Io { path: name.into(), source },
            RequestError::Refused { path, problem } => SinkError::Server { path, problem },
            RequestError::Insecure(error) => {
                SinkError::Server { path: name.into(), problem: error.to_string() }
            }
            RequestError::NoStream => {
                SinkError::Server { path: name.into(), problem: "the stream was deleted".into() }
            }
            RequestError::Lost { path, loss } => {
                SinkError::Server { path, problem: format!("the stream {loss}") }
            }
        }
    }
}
