//! Section `[source]`, or one of `[[sources]]`: the scheme of the path selects the kind of input.

use std::path::{Path, PathBuf};

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use super::size::journal_limit;
use super::socket::{SocketFlags, check_socket, socket};
use super::sources::Clocked;
use crate::document::{Field, Section};
use crate::pipeline::{
    Broker, Credentials, Followed, Format, Input, Protocol, RowPolicies, RowPolicy, Source,
};

pub(super) type Text<'a> = Field<'a, &'a str>;

/// Reads a source with this name and its row policies.
pub(super) fn source(
    section: &Section<'_>,
    base: &Path,
    name: &str,
    clocked: Option<Clocked>,
) -> Option<(Source, RowPolicies)> {
    let words = [("skip", RowPolicy::Skip), ("reject", RowPolicy::Reject)];
    let policy = |key| section.word(key, &words).unwrap_or(RowPolicy::Skip);
    let rows = RowPolicies { missing: policy("missing"), malformed: policy("malformed") };
    let formats = [
        ("csv", Format::Csv),
        ("ndjson", Format::Ndjson),
        ("fields", Format::Fields),
        ("parquet", Format::Parquet),
    ];
    let format = section.word("format", &formats);
    let paths = section.require("path", section.get("path"), "path = \"data.csv\"")?.texts()?;
    let flags = Flags {
        journal: section.flag("journal"),
        follow: section.flag("follow").unwrap_or(false),
        socket: SocketFlags::of(section, base),
        partition: partition(section),
    };
    let input = input(section, &paths, &flags, base)?;
    let header = header(section);
    let field = section.text("field").map(|field| field.value.into());
    let format = format.or_else(|| format_of(section, &paths, &input))?;
    let journal = flags.journal.unwrap_or(false) || matches!(input, Input::Socket(_));
    let journal_limit = journal_limit(section, journal);
    let Clocked { schedule, arrival, idle, largest_jump } = clocked?;
    let name = name.into();
    let mut source = Source {
        name,
        input,
        format,
        journal,
        journal_limit,
        header,
        field,
        schedule,
        arrival,
        idle,
        largest_jump,
    };
    if source.is_remote() {
        source.largest_jump = largest_jump.or(usual_jump(&source.schedule));
    }
    check(section, &flags, &source, rows);
    Some((source, rows))
}

/// Default of `largest_jump` for network sources: ten epochs, or a tenth of the horizon if that is
/// more.
fn usual_jump(schedule: &Schedule) -> Option<i64> {
    match schedule {
        Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput => {
            let epochs = i64::try_from(by.horizon / 10).unwrap_or(i64::MAX).max(10);
            Some(by.length.saturating_mul(epochs))
        }
        _ => None,
    }
}

/// Short fields of the section.
struct Flags {
    journal: Option<bool>,
    follow: bool,
    socket: SocketFlags,
    /// An inner `None` is an absent field; an outer one has been reported.
    partition: Option<Option<u32>>,
}

fn partition(section: &Section<'_>) -> Option<Option<u32>> {
    if section.get("partition").is_none() {
        return Some(None);
    }
    let number = section.count("partition", 0)?;
    let number = number.map(|&n| u32::try_from(n).map_err(|_| "expected a number below 2^32".into()))?;
    Some(Some(number.value))
}

fn input(section: &Section<'_>, paths: &[Text<'_>], flags: &Flags, base: &Path) -> Option<Input> {
    let stream = section.text("stream");
    let alone = |path: &Text<'_>| {
        (paths.len() == 1).then_some(()).or_else(|| {
            path.report(format!("found {:?} among files: {}", path.value, ALONE));
            None
        })
    };
    if let Some(path) = paths.iter().find(|path| path.value == "-" && paths.len() > 1) {
        path.report("found \"-\" among files: standard input must be the only path, as path = \"-\"");
        return None;
    }
    for path in paths {
        if let Some((scheme, rest)) = path.value.split_once("://") {
            alone(path)?;
            return match protocol(scheme) {
                Some(Ok(protocol)) => {
                    let broker = broker(section, path, stream.as_ref(), protocol, rest)?;
                    Some(Input::Broker(Broker { partition: flags.partition?, ..broker }))
                }
                Some(Err(problem)) => {
                    path.report(problem);
                    None
                }
                None => socket(path, scheme, rest, &flags.socket, base),
            };
        }
    }
    match paths {
        [path] if path.value == "-" => Some(Input::Stdin),
        [path] if flags.follow => followed(path, base),
        paths if flags.follow => {
            paths[1].report("only one directory or pattern can be followed, such as path = \"log/*.csv\"");
            None
        }
        paths => files(paths, base),
    }
}

/// Reads paths of files, which need not exist yet.
fn files(paths: &[Text<'_>], base: &Path) -> Option<Input> {
    let is_followed = |path: &&Text<'_>| {
        let full = base.join(path.value);
        full.is_dir() || (path.value.contains(['*', '?']) && !full.exists())
    };
    match paths.iter().find(is_followed) {
        None => Some(Input::Files(paths.iter().map(|path| base.join(path.value)).collect())),
        Some(path) => {
            path.report(
                "a directory or a pattern must be followed: add follow = true (and end the run by --until-idle or a signal)",
            );
            None
        }
    }
}

/// Returns the protocol of a scheme, or why this build does not support it.
pub(super) fn protocol(scheme: &str) -> Option<Result<Protocol, &'static str>> {
    match scheme {
        "redis" => Some(Ok(Protocol::Redis)),
        "nats" => Some(Ok(Protocol::Nats)),
        #[cfg(feature = "kafka")]
        "kafka" => Some(Ok(Protocol::Kafka)),
        #[cfg(not(feature = "kafka"))]
        "kafka" => Some(Err("built without Kafka: cargo build --features kafka")),
        _ => None,
    }
}

const ALONE: &str = "a socket or a broker must be the only path, as path = \"tcp://host:port\"";

pub(super) fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Reads the broker named by the rest of a path.
pub(super) fn broker<'a>(
    section: &Section<'a>,
    path: &Text<'a>,
    stream: Option<&Text<'a>>,
    protocol: Protocol,
    rest: &str,
) -> Option<Broker> {
    let (forbidden, port, numbered) = match protocol {
        Protocol::Redis => ("", 6379, true),
        Protocol::Nats => (".*>/\\", 4222, false),
        #[cfg(feature = "kafka")]
        Protocol::Kafka => (",:*?/\\\"'", 9092, false),
    };
    let stream = section.require("stream", stream, "stream = \"flights\"");
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || forbidden.contains(c);
    let stream = stream.and_then(|stream| match stream.value.contains(is_odd) || stream.value.is_empty() {
        true => {
            stream.report(format!("found {:?}, expected the name of a stream", stream.value));
            None
        }
        false => Some(stream.value),
    });
    let (credentials, place) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((credentials, place)) => {
            let (user, secret) = match credentials.split_once(':') {
                Some((user, secret)) => (Some(user).filter(|user| !user.is_empty()), secret),
                None => (None, credentials),
            };
            (Some(Credentials { user: user.map(String::from), secret: secret.into() }), place)
        }
    };
    let (place, database) = match place.split_once('/') {
        Some((place, "")) => (place, Some(None)),
        Some((place, number)) => (place, number.parse().ok().filter(|_| numbered).map(Some)),
        None => (place, Some(None)),
    };
    let address = if has_port(place) { place.into() } else { format!("{place}:{port}") };
    // An invalid port, as opposed to an IPv6 address.
    let odd_port = !has_port(place) && place.contains(':') && !place.ends_with(']');
    let Some(database) = database.filter(|_| has_port(&address) && !odd_port) else {
        // Don't print the path: it may hold a password.
        path.report(
            "expected redis://[user:password@]host[:port][/database], nats://[user:password@]host[:port] or \
             kafka://host[:port]",
        );
        return None;
    };
    #[cfg(feature = "kafka")]
    if protocol == Protocol::Kafka && credentials.is_some() {
        path.report("passwords are not supported for Kafka, because the connection is not encrypted: use kafka://host:port");
        return None;
    }
    Some(Broker { protocol, address, credentials, database, stream: stream?.into(), partition: None })
}

/// Reads a followed path: a directory, a pattern of names in one, or a single file.
fn followed(path: &Text<'_>, base: &Path) -> Option<Input> {
    let full = base.join(path.value);
    if full.is_dir() {
        return Some(Input::Followed(Followed { directory: full, pattern: "*".into() }));
    }
    let pattern = full.file_name().and_then(|name| name.to_str()).map(String::from);
    let directory = full.parent().map(|directory| match directory.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => directory.into(),
    });
    match (pattern, directory) {
        (Some(pattern), Some(directory)) if !directory.to_string_lossy().contains(['*', '?']) => {
            Some(Input::Followed(Followed { directory, pattern }))
        }
        _ => {
            path.report("expected a directory, or a pattern of names in one such as \"log/*.csv\"");
            None
        }
    }
}

fn header(section: &Section<'_>) -> Option<Vec<String>> {
    Some(section.get("header")?.texts()?.iter().map(|name| name.value.into()).collect())
}

/// Reports fields that don't apply to the kind of source.
fn check(section: &Section<'_>, flags: &Flags, source: &Source, rows: RowPolicies) {
    let report = |key, message: &str| {
        if let Some(field) = section.get(key) {
            field.report(message);
        }
    };
    let broker = match &source.input {
        Input::Broker(broker) => Some(broker.protocol),
        _ => None,
    };
    let socket = matches!(source.input, Input::Socket(_));
    if flags.journal == Some(true) && !socket && source.input != Input::Stdin {
        report(
            "journal",
            "a journal is for standard input (path = \"-\") and sockets, because files and brokers can be read again: \
             leave it out",
        );
    }
    if flags.journal == Some(false) && socket {
        report(
            "journal",
            "records from a socket can't be read again, so they are always journaled: leave it out",
        );
    }
    if (source.journal || broker.is_some())
        && (rows.missing, rows.malformed) != (RowPolicy::Skip, RowPolicy::Skip)
    {
        let field = if section.get("journal").is_some() { "journal" } else { "path" };
        report(
            field,
            "a row in a journal or on a broker can't be corrected, so rows must not be rejected: set missing and malformed to \"skip\"",
        );
    }
    if source.header.is_some() && source.format != Format::Csv {
        report("header", "column names are only for format = \"csv\": leave it out");
    }
    let text = matches!(source.format, Format::Csv | Format::Ndjson);
    let expected = match broker {
        Some(Protocol::Redis) if source.field.is_some() => {
            (text, "the field holds text: use format = \"csv\" or format = \"ndjson\"")
        }
        Some(Protocol::Redis) => (
            source.format == Format::Fields,
            "Redis entries have fields: use format = \"fields\", or name a text field with field = \"…\"",
        ),
        Some(_) => (text, "a message is text: use format = \"ndjson\" or format = \"csv\""),
        None if source.format == Format::Parquet => (
            matches!(source.input, Input::Files(_)),
            "Parquet files must be complete: name files in path, and leave follow out",
        ),
        None => (
            source.format != Format::Fields,
            "fields are for redis://: choose format = \"csv\" or format = \"ndjson\"",
        ),
    };
    if broker.is_some() && source.format == Format::Csv && source.header.is_none() {
        report(
            "format",
            "CSV lines from a broker have no header: name the columns, as header = [\"key\", \"x\"]",
        );
    }
    if broker != Some(Protocol::Redis) {
        report("field", "the name of a field is for redis://: leave it out");
    }
    if !expected.0 {
        report(if section.get("format").is_some() { "format" } else { "path" }, expected.1);
    }
    if broker.is_none() {
        report("stream", "the name of a stream is for redis://, nats:// and kafka://: leave it out");
    }
    if !has_partitions(&source.input) {
        report("partition", "the number of a partition is for kafka://: leave it out");
    }
    if !socket {
        report(
            "acknowledge",
            "only sockets send acknowledgements back: leave it out, or see run --acknowledge",
        );
    }
    check_socket(section, &source.input);
    if flags.follow && !matches!(source.input, Input::Followed(_)) {
        report("follow", "only files need follow; other sources have no end: leave it out");
    }
}

/// Whether the input has numbered partitions.
fn has_partitions(input: &Input) -> bool {
    match input {
        #[cfg(feature = "kafka")]
        Input::Broker(broker) => broker.protocol == Protocol::Kafka,
        _ => false,
    }
}

/// Returns the default format of the input, or the one on which the extensions of all paths agree.
fn format_of(section: &Section<'_>, paths: &[Text<'_>], input: &Input) -> Option<Format> {
    if let Input::Broker(broker) = input {
        return Some(match broker.protocol {
            Protocol::Redis if section.get("field").is_some() => Format::Ndjson,
            Protocol::Redis => Format::Fields,
            _ => Format::Ndjson,
        });
    }
    let of = |path: &Text<'_>| match Path::new(path.value).extension()?.to_str()? {
        "csv" => Some(Format::Csv),
        "ndjson" | "jsonl" => Some(Format::Ndjson),
        "parquet" => Some(Format::Parquet),
        _ => None,
    };
    let format = of(&paths[0]);
    let odd = paths.iter().find(|path| format.is_none() || of(path) != format);
    match odd {
        None => format,
        Some(path) if section.get("format").is_none() => {
            path.report("the extension does not determine the format: add format = \"csv\", \"ndjson\" or \"parquet\"");
            None
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Address, Pipeline, Socket};

    fn parse(source: &str) -> Result<Source, String> {
        let text = format!(
            "name = 'n'\nsource = {{ {source} }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
            privacy = {{ epsilon = 1, delta = 1e-6 }}\nepochs = {{ records = 2, horizon = 9 }}"
        );
        let pipeline = Pipeline::parse(&text, "dir/p.toml".as_ref());
        pipeline.map(|mut pipeline| pipeline.sources.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_input_has_its_form() {
        let socket = |address, listens| {
            Some(Input::Socket(Socket { address, listens, acknowledge: false, key: None, expose: false }))
        };
        let check = |source: &str, expected: Option<Input>| {
            assert_eq!(parse(source).ok().map(|source| source.input), expected, "{source}");
        };
        check("path = ['a.csv', 'b.csv']", Some(Input::Files(vec!["dir/a.csv".into(), "dir/b.csv".into()])));
        let tcp = || Address::Tcp("localhost:7000".into());
        check("path = 'tcp://localhost:7000', format = 'csv'", socket(tcp(), false));
        check("path = 'tcp-listen://localhost:7000', format = 'csv'", socket(tcp(), true));
        check("path = 'unix:///run/x', format = 'csv'", socket(Address::Unix("/run/x".into()), false));
        check("path = 'unix-listen://x', format = 'csv'", socket(Address::Unix("dir/x".into()), true));
        check("path = 'tcp://:7000', format = 'csv'", None);
        check("path = 'tcp://localhost:99999', format = 'csv'", None);
        check("path = 'unix://', format = 'csv'", None);
        check("path = 'tcp://localhost:1'", None);
        check("path = ['a.csv', 'tcp://localhost:1'], format = 'csv'", None);
        let pattern = Followed { directory: "dir/log".into(), pattern: "*.csv".into() };
        check("path = 'log/*.csv', follow = true", Some(Input::Followed(pattern)));
        check("path = '*/a.csv', follow = true", None);
        check("path = ['a.csv', 'b.csv'], follow = true", None);
        check("path = 'log/*.csv'", None);
        check("path = '/', format = 'csv'", None);
        for (source, part) in [
            ("path = 'log/*.csv'", "add follow = true"),
            ("path = '/', format = 'csv'", "add follow = true"),
            ("path = 'a.csv', idle = '3s'", "one of several [[sources]]"),
            ("path = 'a.csv', arrival = 'x'", "belong in [epochs]"),
        ] {
            assert!(parse(source).is_err_and(|error| error.contains(part)), "{source}");
        }
        let unknown = parse("path = 'a.csv', zzzzzzzzz = 1").unwrap_err();
        assert_eq!(unknown.matches("largest_jump").count(), 1, "each once: {unknown}");
    }

    #[test]
    fn brokers_have_defaults_and_no_secret_is_shown() {
        let broker = |protocol, address: &str, credentials, database| Broker {
            protocol,
            address: address.into(),
            credentials,
            database,
            stream: "s".into(),
            partition: None,
        };
        let check = |path: &str, expected: Option<Broker>| {
            let found = parse(&format!("path = '{path}', stream = 's'"));
            assert!(!format!("{found:?}").contains("hidden"), "{found:?}");
            assert_eq!(found.ok().map(|source| source.input), expected.map(Input::Broker), "{path}");
        };
        let secret =
            |user: Option<&str>| Some(Credentials { user: user.map(String::from), secret: "hidden".into() });
        check("redis://h", Some(broker(Protocol::Redis, "h:6379", None, None)));
        check("redis://h:1/", Some(broker(Protocol::Redis, "h:1", None, None)));
        check("redis://[::1]", Some(broker(Protocol::Redis, "[::1]:6379", None, None)));
        check("redis://:hidden@h:99999", None);
        check("nats://h:", None);
        check("redis://:hidden@h/3", Some(broker(Protocol::Redis, "h:6379", secret(None), Some(3))));
        check("nats://u:hidden@h:1", Some(broker(Protocol::Nats, "h:1", secret(Some("u")), None)));
        check("nats://hidden@h", Some(broker(Protocol::Nats, "h:4222", secret(None), None)));
        check("redis://:hidden@h/x", None);
        check("nats://hidden@h/3", None);
        check("nats://hidden@", None);
        let stream = "stream = 's'";
        let partition = parse(&format!("path = 'nats://h', {stream}, partition = 0"));
        assert!(partition.is_err_and(|error| error.contains("kafka://")));
        #[cfg(not(feature = "kafka"))]
        assert!(
            parse(&format!("path = 'kafka://h', {stream}")).is_err_and(|error| error.contains("--features"))
        );
        #[cfg(feature = "kafka")]
        {
            let kafka = |address| broker(Protocol::Kafka, address, None, None);
            check("kafka://h", Some(kafka("h:9092")));
            check("kafka://h:1,i:2", Some(kafka("h:1,i:2")));
            check("kafka://u:hidden@h", None);
            check("kafka://h/0", None);
            let chosen =
                parse(&format!("path = 'kafka://h', {stream}, partition = 3")).map(|source| source.input);
            let expected = Input::Broker(Broker { partition: Some(3), ..kafka("h:9092") });
            assert_eq!(chosen, Ok(expected));
            assert!(parse(&format!("path = 'kafka://h', {stream}, partition = -1")).is_err());
            assert!(parse(&format!("path = 'kafka://h', {stream}, format = 'fields'")).is_err());
        }
        assert!(parse("path = 'redis://h'").is_err_and(|error| error.contains("stream")));
        assert!(parse("path = 'nats://h', stream = 'a.b'").is_err());
        assert!(parse("path = 'nats://h', stream = 's', format = 'csv'").is_err());
        assert!(parse("path = 'nats://h', stream = 's', format = 'csv', header = ['x']").is_ok());
        assert!(parse("path = 'nats://h', stream = 's', field = 'x'").is_err());
        assert!(parse("path = 'redis://h', stream = 's', format = 'ndjson'").is_err());
        let line = parse("path = 'redis://h', stream = 's', field = 'line'");
        assert_eq!(
            line.map(|source| (source.format, source.field)),
            Ok((Format::Ndjson, Some("line".into())))
        );
        assert!(parse("path = 'a.parquet', follow = true").is_err());
        assert!(parse("path = '-', format = 'parquet'").is_err());
        assert_eq!(
            parse("path = ['a.parquet', 'b.parquet']").map(|source| source.format),
            Ok(Format::Parquet)
        );
        assert!(parse("path = 'redis://h', stream = 's', missing = 'reject'").is_err());
    }
}
