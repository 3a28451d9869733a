//! Errors of sinks. No message holds more than the public log does.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::connect::Trouble;
use crate::follow::FollowError;
use crate::http::HttpError;

/// Why a sink can't continue.
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
        /// The reason, in the server's words.
        problem: String,
    },
    /// The address can't be listened on.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The public log can't be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// Nobody reads standard output.
    #[error("standard output: {0}")]
    Output(#[source] io::Error),
    /// No thread can be started.
    #[error("no thread for a sink: {0}: let this user start more threads (ulimit -u)")]
    Thread(#[source] io::Error),
    /// The sink holds releases of another history than the log's.
    #[error(
        "{name}: epoch {epoch} that it holds is not of the history in the state directory: let the sink have a new place, \
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
        "{name}: it holds epoch {epoch}, but the log ends at epoch {end}: let the sink have a new place, or restore the \
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
    pub(super) fn of(name: &str, trouble: Trouble) -> Self {
        match trouble {
            Trouble::Gone(source) => SinkError::Output(source),
            Trouble::Passing(source) => SinkError::Io { path: name.into(), source },
            Trouble::Refused { path, problem } => SinkError::Server { path, problem },
            Trouble::NoStream => {
                SinkError::Server { path: name.into(), problem: "the stream is gone".into() }
            }
            Trouble::Lost { path, what } => SinkError::Server { path, problem: format!("the stream {what}") },
        }
    }
}
