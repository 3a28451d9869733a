//! Why a system did not do what was asked.

use std::io;
use std::path::PathBuf;

/// Why a system did not do what was asked.
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
    /// The stream is not what it was.
    Lost {
        /// The server and its stream.
        path: PathBuf,
        /// What is different: the words behind "the stream".
        what: String,
    },
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Passing(error)
    }
}

/// What may pass, in the server's words or ours.
pub(super) fn passing(words: impl Into<String>) -> Trouble {
    Trouble::Passing(io::Error::other(words.into()))
}

/// What trying again does not mend.
pub(super) fn refusal(name: String, words: &str) -> Trouble {
    let problem: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
    Trouble::Refused { path: name.into(), problem }
}

/// Reports that a stream has lost entries, or was replaced.
pub(super) fn lost(name: String, what: String) -> Trouble {
    Trouble::Lost { path: name.into(), what }
}

/// Refuses a stream whose last entry was not written by a sink.
pub(super) fn foreign(name: String) -> Trouble {
    let problem = "the last entry was not written by a sink: name a stream that is for it alone".into();
    Trouble::Refused { path: name.into(), problem }
}
