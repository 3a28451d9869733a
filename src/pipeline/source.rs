//! What `[source]`, or each of several `[[sources]]`, says: where rows come from, how they are written, and when they are late.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hushflow_mechanism::epochs::{ClockSource, Schedule};
use serde::{Deserialize, Serialize};

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `name`: what one of several is called; empty where there is one.
    pub name: String,
    /// `path`: files, the standard input, a socket, or a stream of a broker.
    pub input: Input,
    /// `format`: by default what the file's extension says.
    pub format: Format,
    /// `journal`: whether what comes is new each time, and kept in the state directory until it is counted. Always so for a
    /// socket.
    pub journal: bool,
    /// `journal_limit`: the bytes of the journal at which whoever sends is held up.
    pub journal_limit: u64,
    /// `header`: the names of the columns where a CSV stream doesn't begin with them.
    pub header: Option<Vec<String>>,
    /// `field`: the field of an entry of Redis that holds a record as text.
    pub field: Option<String>,
    /// Where its records belong and when they are late: the pipeline's schedule with the source's own clock and lateness.
    pub schedule: Schedule,
    /// `arrival`: the column that moves its clock, if one does.
    pub arrival: Option<String>,
    /// `idle`: after how long a silence it no longer holds the other sources' clock back.
    pub idle: Option<Duration>,
    /// `largest_jump`: how far ahead of its clock a row may be that moves it, in microseconds. What comes from a network always has
    /// a limit.
    pub largest_jump: Option<i64>,
}

/// What readers of a log know of one of several sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceClock {
    /// [`Source::name`].
    pub name: String,
    /// How long an epoch stays open to it after its end, in microseconds of its clock.
    pub lateness: i64,
    /// What moves its clock.
    pub clock: ClockSource,
    /// [`Source::arrival`].
    pub arrival: Option<String>,
}

impl Source {
    /// The least `journal_limit`: a group of records always has room in it.
    pub const LEAST_JOURNAL_LIMIT: u64 = 8 << 20;
    /// The `journal_limit` of a source that names none.
    pub const JOURNAL_LIMIT: u64 = 1 << 30;

    /// Whether its rows come from a network.
    pub fn is_remote(&self) -> bool {
        matches!(self.input, Input::Socket(_) | Input::Broker(_))
    }

    /// Whether it has no end of its own: a run over it ends at the horizon, by a signal, or when nothing comes any more.
    pub fn goes_on(&self) -> bool {
        !matches!(self.input, Input::Stdin | Input::Files(_))
    }

    /// What readers of the log know of it, where it is one of several.
    pub fn public_clock(&self) -> Option<SourceClock> {
        let Schedule::ByTime(by) = &self.schedule else { return None };
        let (name, arrival) = (self.name.clone(), self.arrival.clone());
        Some(SourceClock { name, lateness: by.lateness, clock: by.clock, arrival })
    }
}

/// The bytes that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `path = "-"`: the standard input, which can't be read twice.
    Stdin,
    /// One stream made of these files, one after the other.
    Files(Vec<PathBuf>),
    /// `follow = true`: files that grow, and new ones.
    Followed(Followed),
    /// `path = "tcp://…"` and the like: lines of one peer after the other, which can't be read twice.
    Socket(Socket),
    /// `path = "redis://…"`, `"nats://…"` or `"kafka://…"`: the entries of a stream that a server keeps.
    Broker(Broker),
}

/// Files of a directory that are read as they grow, and as new ones come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The directory.
    pub directory: PathBuf,
    /// Which names in it are meant: `*` stands for any text, `?` for any one character.
    pub pattern: String,
}

impl Followed {
    /// Whether a name in the directory is meant. Hidden files are not, unless the pattern begins with a dot.
    pub fn names(&self, name: &str) -> bool {
        let hidden = name.starts_with('.') && !self.pattern.starts_with('.');
        let (pattern, name): (Vec<char>, Vec<char>) =
            (self.pattern.chars().collect(), name.chars().collect());
        !hidden && agrees(&pattern, &name)
    }
}

/// Whether `name` agrees with a pattern of `*` and `?`: on a mismatch, the last `*` takes one character more.
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

/// A connection that rows come over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Where.
    pub address: Address,
    /// Whether peers connect to it, one after the other, or it connects to a peer.
    pub listens: bool,
    /// `acknowledge`: whether the peer is told how many records are safe.
    pub acknowledge: bool,
    /// `key`: the key file whose token peers must show, of one that listens.
    pub key: Option<PathBuf>,
    /// `expose`: whether it may listen where others than this machine can reach it.
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

/// Where a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// A path in the file system.
    Unix(PathBuf),
}

/// A stream that a server keeps, from which any entry can be read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// What the server speaks.
    pub protocol: Protocol,
    /// `host:port`; of Kafka several of them, with commas between.
    pub address: String,
    /// Who we are to it.
    pub credentials: Option<Credentials>,
    /// The number of the database, of Redis.
    pub database: Option<u32>,
    /// `stream`: its name; the topic of Kafka.
    pub stream: String,
    /// `partition`: which of a topic's partitions is read; of Kafka.
    pub partition: Option<u32>,
}

/// What a server wants to know before it answers.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password or token.
    pub secret: String,
}

impl fmt::Debug for Credentials {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// What a broker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Redis: a stream of entries with named fields.
    Redis,
    /// NATS JetStream: messages of one record each.
    Nats,
    /// Kafka: messages of one record each. Needs the feature `kafka`.
    #[cfg(feature = "kafka")]
    Kafka,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a header row (RFC 4180).
    Csv,
    /// One JSON object a line, or a message.
    Ndjson,
    /// Entries with fields by name, as Redis has them.
    Fields,
    /// Parquet files.
    Parquet,
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
