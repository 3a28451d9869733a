//! Systems that sources read from and sinks write to: one folder and one line of [`SYSTEMS`] for each.
//!
//! The folder of a system holds its part of the pipeline file (scheme, fields, checks, messages),
//! its connection, its reader, its writer and the tag of its positions. No other room names a
//! system: the pipeline, the reader of sources, the sinks and the private log ask the table.
//!
//! **Connections.** No general client is used: one would bring an asynchronous runtime, or buffers
//! of whole answers, into the process that holds raw rows. A [`Wire`](wire::Wire) reads lines and
//! lengths with limits to both, and no wait has no end. Kafka's protocol is too large for that: its
//! client is librdkafka, behind the feature `kafka`.

pub(crate) mod entries;
#[cfg(test)]
mod fake;
mod id;
mod kafka;
mod nats;
mod redis;
mod server;
mod trouble;
mod wire;
pub(crate) mod writer;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::document::{Field, Section};
use crate::format::Format;
use entries::Reads;
use writer::Writes;

pub(crate) use server::has_port;
pub(crate) use trouble::Trouble;

/// Tags of positions in files and in the journal, beside those of [`SYSTEMS`]. They are in the
/// private log.
pub(crate) mod tag {
    /// Files that the pipeline lists, or the standard input.
    pub(crate) const FILES: u8 = 0;
    /// The ingest journal.
    pub(crate) const JOURNAL: u8 = 1;
    /// Files that are followed, by their numbers in the list.
    pub(crate) const FOLLOWED: u8 = 2;
    /// Row groups of the Parquet files that the pipeline lists.
    pub(crate) const PARQUET: u8 = 5;
}

/// All systems.
static SYSTEMS: &[System] = &[redis::SYSTEM, nats::SYSTEM, kafka::SYSTEM];

/// A text of the pipeline file.
pub(crate) type Text<'a> = Field<'a, &'a str>;

/// A kind of server or device that keeps streams of entries.
pub(crate) struct System {
    /// What a path to it begins with, before `://`.
    scheme: &'static str,
    /// The shortest usual path, in messages.
    path: &'static str,
    /// A path with everything that it may hold, in messages.
    full_path: &'static str,
    /// Whether an entry may have fields by name.
    has_fields: bool,
    /// The kind of its positions in the private log, different from every other tag.
    tag: u8,
    /// Its own fields of `[source]`.
    source_fields: &'static [Own],
    /// Reads a source, if it can be one.
    source: Option<Read<dyn Reads>>,
    /// Its own fields of `[[sinks]]`.
    sink_fields: &'static [Own],
    /// Reads a sink, if it can be one.
    sink: Option<Read<dyn Writes>>,
}

/// Reads what a section says of a stream whose path goes on like this after the scheme. A function
/// that gives none has reported why.
type Read<T> = fn(&Section<'_>, &Text<'_>, &str) -> Option<Arc<T>>;

/// A field that only some systems have.
struct Own {
    key: &'static str,
    /// What is reported where another source or sink has it; `{}` stands for the schemes that may
    /// have it.
    elsewhere: &'static str,
}

/// The name of a stream.
const STREAM: Own = Own { key: "stream", elsewhere: "the name of a stream is for {}: leave it out" };

/// The formats of a source's entries.
pub(crate) struct Formats {
    /// Where the pipeline names none.
    pub(crate) usual: Format,
    pub(crate) allowed: &'static [Format],
    /// What is reported of another format.
    pub(crate) expected: &'static str,
}

impl Formats {
    /// Each entry is a text that holds one record.
    const MESSAGES: Formats = Formats {
        usual: Format::Ndjson,
        allowed: &[Format::Csv, Format::Ndjson],
        expected: "a message is text: use format = \"ndjson\" or format = \"csv\"",
    };
}

/// A stream that is read: any entry can be read again.
#[derive(Clone)]
pub struct StreamSource {
    tag: u8,
    stream: Arc<dyn Reads>,
}

/// A stream that releases are written to, of one JSON line in each entry.
#[derive(Clone)]
pub struct StreamSink(Arc<dyn Writes>);

impl StreamSource {
    /// Reads the source whose path is `scheme://rest`; the outer nothing says that no source has
    /// this scheme.
    pub(crate) fn read(
        section: &Section<'_>,
        path: &Text<'_>,
        (scheme, rest): (&str, &str),
    ) -> Option<Option<Self>> {
        let system = SYSTEMS.iter().find(|system| system.scheme == scheme)?;
        Some(system.source?(section, path, rest).map(|stream| StreamSource { tag: system.tag, stream }))
    }

    /// How its entries are read.
    pub(crate) fn stream(&self) -> &dyn Reads {
        &*self.stream
    }

    /// The tag of its positions: their kind in the low byte, and above it 24 bits of a hash of
    /// which stream it is. The server's address is not part of it, because a server may move.
    pub(crate) fn tag(&self) -> u32 {
        let digest = Sha256::digest(self.stream.identity());
        let [a, b, c, ..] = *digest.first_chunk::<4>().expect("a digest has 32 bytes");
        u32::from_le_bytes([a, b, c, 0]) << u8::BITS | u32::from(self.tag)
    }
}

impl StreamSink {
    /// Reads the sink whose path is `scheme://rest`; the outer nothing says that no sink has this
    /// scheme.
    pub(crate) fn read(
        section: &Section<'_>,
        path: &Text<'_>,
        (scheme, rest): (&str, &str),
    ) -> Option<Option<Self>> {
        let system = SYSTEMS.iter().find(|system| system.scheme == scheme)?;
        Some(system.sink?(section, path, rest).map(StreamSink))
    }

    /// How its entries are written.
    pub(crate) fn stream(&self) -> &dyn Writes {
        &*self.0
    }
}

impl PartialEq for StreamSource {
    fn eq(&self, other: &Self) -> bool {
        (*self.stream).equals(&*other.stream as &dyn Any)
    }
}

impl PartialEq for StreamSink {
    fn eq(&self, other: &Self) -> bool {
        (*self.0).equals(&*other.0 as &dyn Any)
    }
}

impl Eq for StreamSource {}

impl Eq for StreamSink {}

impl fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl fmt::Debug for StreamSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Equality of values whose type is not known.
pub(crate) trait Equal: Any {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> Equal for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>() == Some(self)
    }
}

/// Reports the fields of `[source]` that only other systems have than the one of this scheme, if
/// there is one.
pub(crate) fn refuse_source_fields(section: &Section<'_>, scheme: Option<&str>) {
    refuse(section, scheme, |system| system.source_fields);
}

/// Reports the fields of a sink in the same way.
pub(crate) fn refuse_sink_fields(section: &Section<'_>, scheme: Option<&str>) {
    refuse(section, scheme, |system| system.sink_fields);
}

fn refuse(section: &Section<'_>, scheme: Option<&str>, fields: impl Fn(&System) -> &'static [Own]) {
    let mut refused: Vec<&str> = Vec::new();
    for own in SYSTEMS.iter().flat_map(&fields) {
        let has = |system: &&System| fields(system).iter().any(|field| field.key == own.key);
        let owners: Vec<&'static System> = SYSTEMS.iter().filter(has).collect();
        // Asked for in any case: a field that nobody asks for is reported as unknown.
        let field = section.get(own.key);
        let is_own = owners.iter().any(|system| Some(system.scheme) == scheme);
        if let Some(field) = field.filter(|_| !is_own && !refused.contains(&own.key)) {
            refused.push(own.key);
            field.report(own.elsewhere.replace("{}", &schemes(owners.into_iter())));
        }
    }
}

/// The systems whose entries may have fields, in messages.
pub(crate) fn schemes_with_fields() -> String {
    schemes(SYSTEMS.iter().filter(|system| system.has_fields))
}

fn schemes(systems: impl Iterator<Item = &'static System>) -> String {
    listed(systems.map(|system| format!("{}://", system.scheme)), "and")
}

/// The paths of systems that can be a source, in messages.
pub(crate) fn source_paths() -> impl Iterator<Item = String> {
    SYSTEMS.iter().filter(|system| system.source.is_some()).map(|system| system.path.into())
}

/// The paths of systems that can be a sink, in messages.
pub(crate) fn sink_paths() -> impl Iterator<Item = String> {
    SYSTEMS.iter().filter(|system| system.sink.is_some()).map(|system| system.path.into())
}

/// Reports a path that can't be understood. Not as it was found: it may hold a password.
fn report_path(path: &Text<'_>) {
    path.report(format!("expected {}", listed(SYSTEMS.iter().map(|system| system.full_path.into()), "or")));
}

/// `a, b and c`.
pub(crate) fn listed(words: impl Iterator<Item = String>, last: &str) -> String {
    let mut words: Vec<String> = words.collect();
    let end = words.pop().unwrap_or_default();
    if words.is_empty() { end } else { format!("{} {last} {end}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_and_every_scheme_is_of_one_system() {
        let mut tags = vec![tag::FILES, tag::JOURNAL, tag::FOLLOWED, tag::PARQUET];
        tags.extend(SYSTEMS.iter().map(|system| system.tag));
        tags.sort_unstable();
        assert!(tags.windows(2).all(|pair| pair[0] != pair[1]), "{tags:?}");
        let mut schemes: Vec<&str> = SYSTEMS.iter().map(|system| system.scheme).collect();
        schemes.sort_unstable();
        assert!(schemes.windows(2).all(|pair| pair[0] != pair[1]), "{schemes:?}");
        assert!(SYSTEMS.iter().all(|system| system.path.starts_with(system.scheme)));
    }

    #[test]
    fn words_are_listed() {
        let check = |words: &[&str], expected| {
            assert_eq!(listed(words.iter().map(|&word| word.into()), "and"), expected);
        };
        check(&["a"], "a");
        check(&["a", "b"], "a and b");
        check(&["a", "b", "c"], "a, b and c");
    }
}
