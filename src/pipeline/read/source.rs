//! Section `[source]`, or one of `[[sources]]`: the scheme of the path selects the kind of input.

use std::path::{Path, PathBuf};

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use super::size::journal_limit;
use super::socket::{SocketFlags, check_socket, socket};
use super::sources::Clocked;
use crate::connect::{StreamSource, Text, refuse_source_fields, schemes_with_fields};
use crate::document::Section;
use crate::pipeline::{Followed, Format, Input, RowPolicies, RowPolicy, Source};

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
    };
    let input = input(section, &paths, &flags, base);
    let scheme = paths.iter().find_map(|path| path.value.split_once("://")).map(|(scheme, _)| scheme);
    refuse_source_fields(section, scheme);
    let input = input?;
    let header = header(section);
    let format = format.or_else(|| format_of(section, &paths, &input))?;
    let journal = flags.journal.unwrap_or(false) || matches!(input, Input::Socket(_));
    let journal_limit = journal_limit(section, journal);
    let Clocked { schedule, arrival, idle, largest_jump } = clocked?;
    let name = name.into();
    let mut source =
        Source { name, input, format, journal, journal_limit, header, schedule, arrival, idle, largest_jump };
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
}

fn input(section: &Section<'_>, paths: &[Text<'_>], flags: &Flags, base: &Path) -> Option<Input> {
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
            return match StreamSource::read(section, path, (scheme, rest)) {
                Some(stream) => stream.map(Input::Stream),
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

const ALONE: &str = "a socket or a broker must be the only path, as path = \"tcp://host:port\"";

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
    let formats = match &source.input {
        Input::Stream(stream) => Some(stream.stream().formats()),
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
    if (source.journal || formats.is_some())
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
    let fields =
        format!("fields are for {}: choose format = \"csv\" or format = \"ndjson\"", schemes_with_fields());
    let expected = match &formats {
        Some(formats) => (formats.allowed.contains(&source.format), formats.expected),
        None if source.format == Format::Parquet => (
            matches!(source.input, Input::Files(_)),
            "Parquet files must be complete: name files in path, and leave follow out",
        ),
        None => (source.format != Format::Fields, fields.as_str()),
    };
    if formats.is_some() && source.format == Format::Csv && source.header.is_none() {
        report(
            "format",
            "CSV lines from a broker have no header: name the columns, as header = [\"key\", \"x\"]",
        );
    }
    if !expected.0 {
        report(if section.get("format").is_some() { "format" } else { "path" }, expected.1);
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

/// Returns the default format of the input, or the one on which the extensions of all paths agree.
fn format_of(section: &Section<'_>, paths: &[Text<'_>], input: &Input) -> Option<Format> {
    if let Input::Stream(stream) = input {
        return Some(stream.stream().formats().usual);
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
    fn a_parquet_file_is_whole() {
        assert!(parse("path = 'a.parquet', follow = true").is_err());
        assert!(parse("path = '-', format = 'parquet'").is_err());
        assert_eq!(
            parse("path = ['a.parquet', 'b.parquet']").map(|source| source.format),
            Ok(Format::Parquet)
        );
    }
}
