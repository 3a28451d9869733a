//! Why a sink can't go on. No message holds more than the public log does.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::connect::Trouble;
use crate::follow::FollowError;
use crate::http::HttpError;

/// Why a sink can't go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the server and its stream.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A server refused.
    #[error("{}: {problem}", path.display())]
    Server {
        /// The server and its stream.
        path: PathBuf,
        /// In its own words.
        problem: String,
    },
    /// An address can't be listened at.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The public log can't be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// Nobody takes what is written to standard output.
    #[error("standard output: {0}")]
    Output(#[source] io::Error),
    /// No thread can be had.
    #[error("no thread for a sink: {0}: let this user start more threads (ulimit -u)")]
    Thread(#[source] io::Error),
    /// The sink goes on from releases that the log doesn't have.
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
    /// What the outlet of this name did not do.
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
