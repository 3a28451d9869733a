//! Section `[source]`, or one of `[[sources]]`: the scheme of the path selects the kind of input.

use std::path::Path;

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use super::size::journal_limit;
use super::sources::SourceTiming;
use crate::connect::{Input, Journaling, TextField, schemes_with_fields};
use crate::document::Section;
use crate::pipeline::{Format, RowPolicies, RowPolicy, Source};

/// Reads a source with this name and its row policies.
pub(super) fn source(
    section: &Section<'_>,
    base: &Path,
    name: &str,
    clocked: Option<SourceTiming>,
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
    let wants_journal = section.flag("journal");
    let input = Input::read(section, &paths, base)?;
    let header = header(section);
    let format = format.or_else(|| format_of(section, &paths, &input))?;
    let journal = wants_journal.unwrap_or(false) || input.source().journaling() == Journaling::Always;
    let journal_limit = journal_limit(section, journal);
    let SourceTiming { schedule, arrival, idle, largest_jump } = clocked?;
    let name = name.into();
    let mut source =
        Source { name, input, format, journal, journal_limit, header, schedule, arrival, idle, largest_jump };
    if source.is_remote() {
        source.largest_jump = largest_jump.or(usual_jump(&source.schedule));
    }
    check(section, wants_journal, &source, rows);
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

fn header(section: &Section<'_>) -> Option<Vec<String>> {
    Some(section.get("header")?.texts()?.iter().map(|name| name.value.into()).collect())
}

/// Reports fields that don't apply to the kind of source.
fn check(section: &Section<'_>, wants_journal: Option<bool>, source: &Source, rows: RowPolicies) {
    let report = |key, message: &str| {
        if let Some(field) = section.get(key) {
            field.report(message);
        }
    };
    let (formats, journaling) = (source.input.source().formats(), source.input.source().journaling());
    match (wants_journal, journaling) {
        (Some(true), Journaling::Never) => report(
            "journal",
            "a journal is for standard input (path = \"-\") and sockets, because files and brokers can be read again: \
             leave it out",
        ),
        (Some(false), Journaling::Always) => report(
            "journal",
            "records from a socket can't be read again, so they are always journaled: leave it out",
        ),
        _ => {}
    }
    if (source.journal || formats.are_messages)
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
    if formats.are_messages && source.format == Format::Csv && source.header.is_none() {
        report(
            "format",
            "CSV lines from a broker have no header: name the columns, as header = [\"key\", \"x\"]",
        );
    }
    if !formats.allowed.contains(&source.format) {
        let expected = match formats.expected {
            Some(expected) => expected.into(),
            None if source.format == Format::Parquet => {
                "Parquet files must be complete: name files in path, and leave follow out".into()
            }
            None => {
                let fields = schemes_with_fields();
                format!("fields are for {fields}: choose format = \"csv\" or format = \"ndjson\"")
            }
        };
        report(if section.get("format").is_some() { "format" } else { "path" }, &expected);
    }
}

/// Returns the default format of the input, or the one on which the extensions of all paths agree.
fn format_of(section: &Section<'_>, paths: &[TextField<'_>], input: &Input) -> Option<Format> {
    if let Some(usual) = input.source().formats().usual {
        return Some(usual);
    }
    let of = |path: &TextField<'_>| match Path::new(path.value).extension()?.to_str()? {
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
    use crate::pipeline::Pipeline;

    #[test]
    fn fields_are_where_they_belong() {
        let refused = |source: &str| {
            let text = format!(
                "name = 'n'\nsource = {{ {source} }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
                privacy = {{ epsilon = 1, delta = 1e-6 }}\nepochs = {{ records = 2, horizon = 9 }}"
            );
            Pipeline::parse(&text, "dir/p.toml".as_ref()).unwrap_err().to_string()
        };
        for (source, part) in [
            ("path = 'a.csv', idle = '3s'", "one of several [[sources]]"),
            ("path = 'a.csv', arrival = 'x'", "belong in [epochs]"),
            ("path = 'a.csv', format = 'fields'", "fields are for redis://"),
            ("path = 'a', header = ['x']", "the extension does not determine the format"),
        ] {
            assert!(refused(source).contains(part), "{source}");
        }
        let unknown = refused("path = 'a.csv', zzzzzzzzz = 1");
        assert_eq!(unknown.matches("largest_jump").count(), 1, "each once: {unknown}");
    }
}
