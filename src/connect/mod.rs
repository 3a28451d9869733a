//! Systems that sources read from and sinks write to. Each is one folder and one line of
//! [`SYSTEMS`].
//!
//! The folder of a system holds its part of the pipeline file (scheme, fields, checks, messages),
//! its reader, its writer and the tag of its positions. No other module names a system: the
//! pipeline, the source reader, the runs and the sinks use the table.
//!
//! A source implements [`SourceConfig`]: it opens an [`Origin`], which delivers bytes or rows from
//! a [`Position`] on. A source that can't be read again is copied into the [`journal`], which is an
//! origin too. [`crate::format`] cuts bytes of any origin into rows. A sink implements
//! [`SinkConfig`]: it opens an [`Outlet`].
//!
//! **Security.** [`security`] reads the fields for secrets and TLS that systems share. A path never
//! holds a secret.
//!
//! **Connections.** Redis and NATS have clients of our own, of about 750 and 900 lines with their
//! tests, on a [`ServerConnection`](wire::ServerConnection) that reads lines and lengths, limits
//! both, and never waits forever. The general clients were compared:
//!
//! | | redis 1.8 (synchronous) | async-nats 0.51 |
//! |---|---|---|
//! | lines, crates | 43,600, 61 | 26,700, 123, tokio among them |
//! | data that a server makes us hold | an answer of any length | 65,536 messages of any length |
//! | stop of a run during an answer | after the read timeout | by a runtime's cancellation |
//! | TLS, users, keys | as here | as here |
//! | more than here | cluster, sentinel | reconnection to another server of a cluster |
//!
//! Bounded memory in the process that holds raw rows decides. Redis Cluster and Sentinel are left
//! out: name the server that holds the stream, or a proxy in front of it. Kafka's protocol is too
//! large for a client of our own: its client is librdkafka, behind the feature `kafka`.

mod entries;
mod error;
mod events;
#[cfg(test)]
mod fake;
mod files;
mod formats;
pub(crate) mod journal;
mod kafka;
mod nats;
mod origin;
mod postgres;
mod redis;
mod s3;
mod security;
mod socket;
pub(crate) mod standard;
mod wire;
mod writer;

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::document::definition::{FieldDefinition, FieldGroup, FieldType, GroupTest, SectionDefinition};
use crate::document::{Field, Section};
use crate::format::Format;

pub use error::SourceError;
pub(crate) use error::{RequestError, io_error};
pub(crate) use formats::{AllowedFormats, DELIMITER, FORMAT, HEADER, RecordFormat, TIME_FORMAT};
pub(crate) use origin::{
    CommitListener, FileCut, FileList, HeaderlessFile, Journaling, MAX_PARTITIONS, OpenFile, Origin,
    OriginRequest, Partitions, ReadExtent, ReadPart, SourceConfig,
};
use security::{SecurityOffer, quotable, refuse_secret};
pub(crate) use writer::{EpochStamp, Outlet, OutletContent, SinkConfig, SinkTarget};

static SYSTEMS: &[System] = &[
    files::SYSTEM,
    standard::SYSTEM,
    socket::SYSTEM,
    redis::SYSTEM,
    nats::SYSTEM,
    kafka::SYSTEM,
    postgres::SYSTEM,
    s3::SYSTEM,
    events::SYSTEM,
];

/// A text field of the pipeline file.
pub(crate) type TextField<'a> = Field<'a, &'a str>;

/// A kind of server, device or location that records come from or releases go to.
pub(crate) struct System {
    /// Schemes of its paths, before `://`; empty for file paths.
    schemes: &'static [&'static str],
    /// Examples of its shortest paths, for messages.
    path: &'static str,
    /// A broker path with all optional parts, for messages.
    full_path: &'static str,
    /// Whether an entry may have named fields.
    has_fields: bool,
    /// Whether its records can be read only once, and so are kept in a journal.
    journaling: Journaling,
    /// Tags of its positions in the private log, different from those of every other system.
    tags: &'static [PositionTag],
    /// Fields of `[source]` that belong to it.
    source_fields: &'static [FieldDefinition],
    /// Reads a source, if it can be one.
    source: Option<SectionReader<dyn SourceConfig>>,
    /// Fields of `[[sinks]]` that belong to it.
    sink_fields: &'static [FieldDefinition],
    /// Reads a sink, if it can be one.
    sink: Option<SectionReader<dyn SinkConfig>>,
    /// Fields of [`security`] that both its sources and sinks have.
    security: &'static [SecurityOffer],
}

impl System {
    /// An empty system, to be filled in.
    const NONE: System = System {
        schemes: &[],
        path: "",
        full_path: "",
        has_fields: false,
        journaling: Journaling::Never,
        tags: &[],
        source_fields: &[],
        source: None,
        sink_fields: &[],
        sink: None,
        security: &[],
    };
}

/// The tag of a system's positions in the private log.
#[derive(Clone, Copy)]
struct PositionTag {
    number: u8,
    parts: PositionParts,
}

/// Meaning of [`Position::part`](crate::state::Position).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PositionParts {
    /// Files in the order of the pipeline file, or no parts.
    InOrder,
    /// Files of a list in the state directory.
    Listed,
    /// Partitions, each with a position of its own.
    Partitions,
}

impl PositionParts {
    /// Returns the meaning of parts in positions with this tag.
    pub(crate) fn of(tag: u32) -> Self {
        let number = tag & u32::from(u8::MAX);
        let mut tags = SYSTEMS.iter().flat_map(|system| system.tags);
        let own = tags.find(|own| u32::from(own.number) == number);
        own.map_or(PositionParts::InOrder, |own| own.parts)
    }

    const fn tag(self, number: u8) -> PositionTag {
        PositionTag { number, parts: self }
    }
}

/// Reads the section of a source or sink. A function that returns `None` has reported the reason.
type SectionReader<T> = fn(&SystemSection<'_, '_>) -> Option<Arc<T>>;

/// Reports that this build has no client of a system. The feature that adds it has the name of the
/// scheme.
#[cfg(not(all(feature = "kafka", feature = "postgres", feature = "s3")))]
fn without_client<T: ?Sized>(settings: &SystemSection<'_, '_>) -> Option<Arc<T>> {
    let scheme = settings.scheme;
    settings.path.report(format!("built without {scheme}://: cargo build --features {scheme}"));
    None
}

/// The part of a section that locates its source or sink.
struct SystemSection<'a, 's> {
    section: &'s Section<'a>,
    /// `path`, and all paths if there are several files.
    path: &'s TextField<'a>,
    paths: &'s [TextField<'a>],
    /// The part of the path before `://`, and the part after it.
    scheme: &'s str,
    rest: &'s str,
    /// Base directory of relative paths.
    base: &'s Path,
}

/// `path` of a source.
pub(crate) const SOURCE_PATH: FieldDefinition = FieldDefinition::required(
    "path",
    FieldType::Texts,
    "\"data.csv\"",
    "File or files relative to the pipeline file, \"-\" for standard input, or the address of a socket or broker.",
);

/// A pattern of a number and its unit.
pub(crate) const SIZE: &str = "^[0-9].*[A-Za-z]$";

/// The name of a stream.
const STREAM: FieldDefinition =
    FieldDefinition::required("stream", FieldType::Text, "\"flights\"", "Name of the stream or topic.");

pub(crate) static SINK: SectionDefinition = SectionDefinition {
    heading: "[[sinks]]",
    about: "A file, stream or address that receives the lines of all views. All output of a sink is public.",
    fields: &[FieldDefinition::required(
        "path",
        FieldType::Text,
        "\"out/releases.ndjson\"",
        "File relative to the pipeline file, or the address of a broker or of server-sent events.",
    )],
    groups: || groups(|system| (system.sink.is_some(), system.sink_fields)),
    ..SectionDefinition::EMPTY
};

/// Returns the fields of `[source]` that belong to single systems.
pub(crate) fn source_groups() -> Vec<FieldGroup> {
    groups(|system| (system.source.is_some(), system.source_fields))
}

/// Returns the schemes of sources that may have a journal.
pub(crate) fn journaled() -> Vec<&'static str> {
    source_schemes(|system| system.journaling != Journaling::Never)
}

/// Returns the schemes of sources that always have a journal.
pub(crate) fn always_journaled() -> Vec<&'static str> {
    source_schemes(|system| system.journaling == Journaling::Always)
}

/// Returns the schemes of sources whose rows can never be corrected: sockets, and brokers.
pub(crate) fn never_corrected() -> Vec<&'static str> {
    source_schemes(|system| system.journaling == Journaling::Always || !system.full_path.is_empty())
}

fn source_schemes(is_one: impl Fn(&System) -> bool) -> Vec<&'static str> {
    let systems = SYSTEMS.iter().filter(|system| system.source.is_some() && is_one(system));
    systems.flat_map(|system| system.schemes).copied().collect()
}

fn groups(fields: impl Fn(&System) -> (bool, &'static [FieldDefinition])) -> Vec<FieldGroup> {
    let shared = security::FIELDS.iter().filter_map(|&shared| {
        let systems = SYSTEMS.iter().filter(|system| fields(system).0);
        let offers = systems.flat_map(|system| system.security);
        let schemes =
            offers.filter(|(fields, _)| fields[0].key == shared[0].key).flat_map(|(_, schemes)| *schemes);
        let schemes: Vec<&'static str> = schemes.copied().collect();
        let of = listed(schemes.iter().map(|scheme| format!("{scheme}://")), "and");
        (!schemes.is_empty()).then_some(FieldGroup { of, only: GroupTest::Scheme(schemes), fields: shared })
    });
    let group = |system: &'static System| {
        let (is_offered, fields) = fields(system);
        let of = match system.schemes {
            [""] => "files".into(),
            ["-"] => "standard input".into(),
            _ => schemes(std::iter::once(system)),
        };
        let only = match system.schemes {
            ["" | "-"] => GroupTest::Any,
            schemes => GroupTest::Scheme(schemes.to_vec()),
        };
        (is_offered && !fields.is_empty()).then_some(FieldGroup { of, only, fields })
    };
    SYSTEMS.iter().filter_map(group).chain(shared).collect()
}

/// The input of a source.
#[derive(Clone)]
pub struct Input {
    system: &'static System,
    source: Arc<dyn SourceConfig>,
}

/// A destination of releases.
#[derive(Clone)]
pub struct Sink(Arc<dyn SinkConfig>);

impl Input {
    /// Reads `path` of `[source]`, and the fields that belong to its kind of source.
    pub(crate) fn read(section: &Section<'_>, paths: &[TextField<'_>], base: &Path) -> Option<Self> {
        if paths.iter().any(refuse_secret) {
            return None;
        }
        let other = paths.iter().find(|path| path.value == "-");
        let other = other.or(paths.iter().find(|path| !parts(path.value).0.is_empty()));
        let path = other.unwrap_or(&paths[0]);
        let (scheme, rest) = parts(path.value);
        let system =
            SYSTEMS.iter().find(|system| system.source.is_some() && system.schemes.contains(&scheme));
        if other.is_some() && paths.len() > 1 {
            path.report(match scheme {
                "-" => {
                    "found \"-\" among files: standard input must be the only path, as path = \"-\"".into()
                }
                _ => format!("found {} among files: {ALONE}", quotable(path.value)),
            });
            return None;
        }
        let Some(system) = system else {
            report_source(path);
            return None;
        };
        let source = system.source?(&SystemSection { section, path, paths, scheme, rest, base })?;
        Some(Input { system, source })
    }

    /// Returns its kind and capabilities.
    pub(crate) fn source(&self) -> &dyn SourceConfig {
        &*self.source
    }

    /// The tag of its positions. The low byte is their kind. The 24 bits above it are a hash of the
    /// stream's identity, if it is a stream. The server's address is not part of the tag, because a
    /// server may move.
    pub(crate) fn tag(&self, format: Format) -> u32 {
        let kind = u32::from(self.system.tags[self.source.kind(format)].number);
        let Some(identity) = self.source.identity() else { return kind };
        let digest = Sha256::digest(identity);
        let [a, b, c, ..] = *digest.first_chunk::<4>().expect("a digest has 32 bytes");
        u32::from_le_bytes([a, b, c, 0]) << u8::BITS | kind
    }
}

impl Sink {
    /// Reads the section of a sink.
    pub(crate) fn read(section: &Section<'_>, base: &Path) -> Option<Self> {
        let path = section.required_text("path");
        let (scheme, rest) = path.as_ref().map_or(("", ""), |path| parts(path.value));
        let system = SYSTEMS.iter().find(|system| system.sink.is_some() && system.schemes.contains(&scheme));
        let path = &path?;
        if refuse_secret(path) {
            return None;
        }
        let Some(system) = system else {
            report_sink(path);
            return None;
        };
        let paths = std::slice::from_ref(path);
        system.sink?(&SystemSection { section, path, paths, scheme, rest, base }).map(Sink)
    }

    /// Returns its kind and capabilities.
    pub(crate) fn target(&self) -> &dyn SinkConfig {
        &*self.0
    }
}

impl fmt::Display for Input {
    /// Formats its name for messages, without a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source.name())
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        self.source.equals(&*other.source as &dyn Any)
    }
}

impl Eq for Input {}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Sink {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&*other.0 as &dyn Any)
    }
}

impl Eq for Sink {}

/// Equality of values of unknown type.
pub(crate) trait DynamicEq: Any {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + PartialEq> DynamicEq for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>() == Some(self)
    }
}

/// Splits a path into scheme and rest.
fn parts(path: &str) -> (&str, &str) {
    match path {
        "-" => ("-", ""),
        path => path.split_once("://").unwrap_or(("", path)),
    }
}

/// Lists the systems whose entries may have fields, for messages.
fn schemes_with_fields() -> String {
    schemes(SYSTEMS.iter().filter(|system| system.has_fields))
}

fn schemes(systems: impl Iterator<Item = &'static System>) -> String {
    listed(systems.flat_map(|system| system.schemes).map(|scheme| format!("{scheme}://")), "and")
}

const ALONE: &str = "a socket or a broker must be the only path, as path = \"tcp://host:port\"";

/// Reports a path that is not a valid source.
fn report_source(path: &TextField<'_>) {
    let others = SYSTEMS.iter().filter(|system| system.source.is_some() && !system.path.is_empty());
    path.report(format!(
        "found {}, expected a file, or {}",
        quotable(path.value),
        listed(others.map(|system| system.path.into()), "or")
    ));
}

/// Reports a path that is not a valid sink.
fn report_sink(path: &TextField<'_>) {
    let others = SYSTEMS.iter().filter(|system| system.sink.is_some() && !system.path.is_empty());
    let others = listed(others.map(|system| system.path.into()), "or");
    path.report(format!(
        "found {}, expected a file such as \"out/releases.ndjson\", or {others}",
        quotable(path.value)
    ));
}

/// Reports a broker path that can't be parsed.
fn report_broker(path: &TextField<'_>) {
    let forms = SYSTEMS.iter().map(|system| system.full_path).filter(|form| !form.is_empty());
    path.report(format!(
        "found {}, expected {}",
        quotable(path.value),
        listed(forms.map(String::from), "or")
    ));
}

/// `a, b and c`.
fn listed(words: impl Iterator<Item = String>, last: &str) -> String {
    let mut words: Vec<String> = words.collect();
    let end = words.pop().unwrap_or_default();
    if words.is_empty() { end } else { format!("{} {last} {end}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_and_every_scheme_is_of_one_system() {
        // Standard input has the tag of files: its position is the clock alone.
        let tagged = SYSTEMS.iter().filter(|system| !system.schemes.contains(&"-"));
        let mut tags: Vec<u8> = tagged.flat_map(|system| system.tags).map(|tag| tag.number).collect();
        tags.push(journal::TAG);
        tags.sort_unstable();
        assert!(tags.windows(2).all(|pair| pair[0] != pair[1]), "{tags:?}");
        let mut schemes: Vec<&str> = SYSTEMS.iter().flat_map(|system| system.schemes).copied().collect();
        schemes.sort_unstable();
        assert!(schemes.windows(2).all(|pair| pair[0] != pair[1]), "{schemes:?}");
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

    #[test]
    fn unknown_paths_list_the_known_ones() {
        let check = |refused: String, parts: [&str; 3]| {
            assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        };
        let source = fake::source_of("path = 'ftp://h', format = 'csv'").unwrap_err();
        check(
            source,
            ["found \"ftp://…\", expected a file, or tcp://host:port, ", ", nats://host:port", " or "],
        );
        let sink = fake::sink_of("path = 'ftp://h'").unwrap_err();
        check(sink, ["expected a file such as", "nats://host:port, ", " or http-listen://address:port"]);
        let refused = fake::source_of("path = ['a.csv', 'tcp://localhost:1'], format = 'csv'").unwrap_err();
        assert!(refused.contains("must be the only path"), "{refused}");
        let refused = fake::source_of("path = ['a.csv', '-']").unwrap_err();
        assert!(refused.contains("standard input must be the only path"), "{refused}");
    }
}
