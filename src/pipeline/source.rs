//! `[source]` or `[[sources]]`: where rows come from, their format, and when they are late.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use serde::{Deserialize, Serialize};

use crate::connect::StreamSource;
use crate::format::Format;

/// A source of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `name`: name of one of several sources; empty for a single source.
    pub name: String,
    /// `path`: files, standard input, a socket, or a stream on a broker.
    pub input: Input,
    /// `format`: by default from the file extension.
    pub format: Format,
    /// `journal`: whether the input can't be read again, so that records are kept in a journal in
    /// the state directory until they are counted. Always true for a socket.
    pub journal: bool,
    /// `journal_limit`: size of the journal in bytes at which senders are blocked.
    pub journal_limit: u64,
    /// `header`: column names of a CSV stream without a header line.
    pub header: Option<Vec<String>>,
    /// The schedule of the pipeline with the clock and lateness of this source.
    pub schedule: Schedule,
    /// `arrival`: column that advances the clock of this source, if any.
    pub arrival: Option<String>,
    /// `idle`: time without records after which this source stops holding back the clock of the
    /// others.
    pub idle: Option<Duration>,
    /// `largest_jump`: the furthest, in microseconds, that one row may advance the clock. Network
    /// sources always have a limit.
    pub largest_jump: Option<i64>,
}

/// Public parameters of one of several sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceClock {
    /// [`Source::name`].
    pub name: String,
    /// How long an epoch stays open for this source after its end, in microseconds of its clock.
    pub lateness: i64,
    /// What advances its clock.
    pub clock: ClockSource,
    /// [`Source::arrival`].
    pub arrival: Option<String>,
}

impl Source {
    /// Smallest `journal_limit`: a group of records always fits.
    pub const LEAST_JOURNAL_LIMIT: u64 = 8 << 20;
    /// Default of `journal_limit`.
    pub const JOURNAL_LIMIT: u64 = 1 << 30;

    /// Whether rows come from a network.
    pub fn is_remote(&self) -> bool {
        matches!(self.input, Input::Socket(_) | Input::Stream(_))
    }

    /// Whether the source has no end: its run ends at the horizon, by a signal, or by
    /// `--until-idle`.
    pub fn goes_on(&self) -> bool {
        !matches!(self.input, Input::Stdin | Input::Files(_))
    }

    /// Returns its public parameters where it is one of several sources.
    pub fn public_clock(&self) -> Option<SourceClock> {
        let Schedule::ByTime(by) = &self.schedule else { return None };
        let (name, arrival) = (self.name.clone(), self.arrival.clone());
        Some(SourceClock { name, lateness: by.lateness, clock: by.clock, arrival })
    }
}

/// The input of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `path = "-"`: standard input, which can't be read twice.
    Stdin,
    /// These files, read one after the other as one stream.
    Files(Vec<PathBuf>),
    /// `follow = true`: growing and new files.
    Followed(Followed),
    /// `path = "tcp://…"` and the like: lines from one peer after the other, which can't be read
    /// twice.
    Socket(Socket),
    /// `path = "redis://…"` and the like: entries of a stream on a server.
    Stream(StreamSource),
}

/// Files of a directory that are read as they grow and as new ones appear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The directory.
    pub directory: PathBuf,
    /// Pattern of file names: `*` matches any text, `?` any one character.
    pub pattern: String,
}

impl Followed {
    /// Whether a file name matches. Hidden files match only if the pattern begins with a dot.
    pub fn names(&self, name: &str) -> bool {
        let hidden = name.starts_with('.') && !self.pattern.starts_with('.');
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.pattern.chars().collect(), name.chars().collect());
        !hidden && agrees(&pattern, &name)
    }
}

/// Whether `name` matches a pattern of `*` and `?`. On a mismatch, the last `*` takes one more
/// character.
fn agrees(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                None => return false,
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// A socket that rows arrive on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Address of the socket.
    pub address: Address,
    /// Whether the source listens for peers, one after the other, instead of connecting to one.
    pub listens: bool,
    /// `acknowledge`: whether the number of journaled records is sent back to the peer.
    pub acknowledge: bool,
    /// `key`: for a listening socket, the key file whose token peers must send.
    pub key: Option<PathBuf>,
    /// `expose`: whether it may listen on an address that other machines can reach.
    pub expose: bool,
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listens = if self.listens { "-listen" } else { "" };
        match &self.address {
            Address::Tcp(address) => write!(f, "tcp{listens}://{address}"),
            Address::Unix(path) => write!(f, "unix{listens}://{}", path.display()),
        }
    }
}

/// Address of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// A path in the file system.
    Unix(PathBuf),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_names() {
        let check = |pattern: &str, name, expected| {
            let followed = Followed { directory: PathBuf::new(), pattern: pattern.into() };
            assert_eq!(followed.names(name), expected, "{pattern} {name}");
        };
        check("*.csv", "a.csv", true);
        check("*.csv", "a.csv.tmp", false);
        check("*.csv", ".a.csv", false);
        check(".*", ".a", true);
        check("a*b?c*", "axxbbyc", true);
        check("a*b?c*", "axxbyyc", false);
        check("a.csv", "a.csv", true);
        check("a.csv", "a_csv", false);
        check("*", "", true);
        check("?", "", false);
    }
}
