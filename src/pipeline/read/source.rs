//! Section `[source]`, or one of `[[sources]]`: the scheme of the path selects the kind of input.

use std::path::Path;
use std::time::Duration;

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use crate::connect::{Input, Journaling, RecordFormat};
use crate::document::Section;
use crate::pipeline::fields::{MISSING_POLICIES, ROW_POLICIES};
use crate::pipeline::{MissingPolicy, RowPolicies, RowPolicy, Source};

/// The clock of a source, with `[epochs]` as default.
pub(super) struct SourceTiming {
    pub(super) schedule: Schedule,
    pub(super) arrival: Option<String>,
    pub(super) idle: Option<Duration>,
    pub(super) largest_jump: Option<i64>,
}

/// Reads a source with this name and its row policies.
pub(super) fn source(
    section: &Section<'_>,
    base: &Path,
    name: &str,
    clocked: Option<SourceTiming>,
) -> Option<(Source, RowPolicies)> {
    let missing = section.word("missing", MISSING_POLICIES).unwrap_or(MissingPolicy::Skip);
    let malformed = section.word("malformed", ROW_POLICIES).unwrap_or(RowPolicy::Skip);
    let rows = RowPolicies { missing, malformed };
    let paths = section.require("path", section.get("path"))?.texts()?;
    let journal = section.flag("journal").unwrap_or(false);
    let input = Input::read(section, &paths, base)?;
    let RecordFormat { format, header, time_format } = RecordFormat::read(section, &paths, &input)?;
    let journal = journal || input.source().journaling() == Journaling::Always;
    let journal_limit = journal_limit(section);
    let SourceTiming { schedule, arrival, idle, largest_jump } = clocked?;
    let name = name.into();
    let largest_jump = largest_jump.or(default_jump(&schedule));
    let source = Source {
        name,
        input,
        format,
        journal,
        journal_limit,
        header,
        time_format,
        schedule,
        arrival,
        idle,
        largest_jump,
    };
    Some((source, rows))
}

const DAY: i64 = 86_400_000_000;

/// Default of `largest_jump`: a long weekend or a tenth of the horizon, whichever is more, but at
/// most half a year and half the horizon, and at least ten epochs. So it allows a stop over a
/// weekend, but not a wrong year in `start` or in a row.
fn default_jump(schedule: &Schedule) -> Option<i64> {
    match schedule {
        Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput => {
            let epochs = |epochs: u64| by.length.saturating_mul(i64::try_from(epochs).unwrap_or(i64::MAX));
            let jump = epochs(by.horizon / 10).clamp(4 * DAY, 180 * DAY).min(epochs(by.horizon / 2));
            Some(jump.max(epochs(10)))
        }
        _ => None,
    }
}

/// Units and their number of bytes.
const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads the limit of the journal of a source.
pub(super) fn journal_limit(section: &Section<'_>) -> u64 {
    let is_enough = |size: &u64| *size >= Source::LEAST_JOURNAL_LIMIT;
    let size = section.form("journal_limit", |text| parse(text).filter(is_enough));
    size.unwrap_or(Source::JOURNAL_LIMIT)
}

/// Returns the bytes of a size such as `512 MiB` or `2GB`.
fn parse(text: &str) -> Option<u64> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = (text[..unit].parse::<u64>().ok()?, text[unit..].trim_start());
    let (_, bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;

    const BASE: &str = "name = 'n'\ncolumns = [{ name = 'x', lower = 0, upper = 1 }]\n\
        privacy = { epsilon = 1, delta = 1e-6 }";

    fn refused(source: &str, sinks: &str) -> String {
        let text = format!(
            "{BASE}\nsource = {{ {source} }}\nepochs = {{ records = 2, horizon = 9 }}\nsinks = [{sinks}]"
        );
        Pipeline::parse(&text, "dir/p.toml".as_ref()).unwrap_err().to_string()
    }

    #[test]
    fn misplaced_fields_are_refused() {
        for (source, part) in [
            ("path = 'a.csv', idle = '3s'", "one of several [[sources]]"),
            ("path = 'a.csv', arrival = 'x'", "belong in [epochs]"),
            ("path = 'a.csv', format = 'fields'", "fields are for redis://"),
            ("path = 'a.csv', stream = 's'", "for redis://, nats:// and kafka://: leave it out"),
            ("path = 'a', header = ['x']", "the extension does not determine the format"),
            ("path = 'a.csv', journal = true", "a journal is for standard input"),
            ("path = 'tcp://localhost:1', format = 'csv', journal = false", "always journaled"),
            ("path = 'redis://h', stream = 's', missing = 'reject'", "can't be corrected"),
        ] {
            let refused = refused(source, "");
            assert!(refused.contains(part), "{source}: {refused}");
        }
        let unknown = refused("path = 'a.csv', zzzzzzzzz = 1", "");
        assert_eq!(unknown.matches("stream").count(), 1, "each once: {unknown}");
    }

    #[test]
    fn two_sinks_with_the_same_path_are_refused() {
        let refused = refused("path = 'a.csv'", "{ path = 'a.ndjson' }, { path = 'a.ndjson' }");
        assert!(refused.contains("same path"), "{refused}");
    }

    #[test]
    fn the_default_jump_allows_a_weekend_but_not_a_year() {
        let jump = |source: &str, horizon: u64, clock: &str| {
            let text = format!(
                "name = 'n'\nsource = {{ {source} }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
                privacy = {{ epsilon = 1, delta = 1e-6 }}
                epochs = {{ time = 't', start = '2020-01-01', length = '1h', horizon = {horizon}, {clock} }}"
            );
            Pipeline::parse(&text, "p.toml".as_ref()).map(|pipeline| pipeline.sources[0].largest_jump).ok()
        };
        let hours = |hours: i64| Some(Some(3_600_000_000 * hours));
        let socket = "path = 'tcp-listen://localhost:7000', format = 'csv'";
        for source in [socket, "path = 'redis://h', stream = 's'", "path = 'a.csv'"] {
            assert_eq!(jump(source, 100_000, "arrival = 'a'"), hours(180 * 24));
            assert_eq!(jump(source, 8760, "arrival = 'a'"), hours(876));
            assert_eq!(jump(source, 700, "arrival = 'a'"), hours(4 * 24));
            assert_eq!(jump(source, 50, "arrival = 'a'"), hours(25));
            assert_eq!(jump(source, 12, "arrival = 'a'"), hours(10));
        }
        assert_eq!(jump(&format!("{socket}, largest_jump = '1d'"), 1000, "arrival = 'a'"), hours(24));
        assert_eq!(jump(socket, 1000, "clock = 'end-of-input'"), Some(None));
    }

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        let check = |text, expected| assert_eq!(parse(text), expected, "{text:?}");
        check("1 GiB", Some(1 << 30));
        check("8MiB", Some(8 << 20));
        check("2 GB", Some(2_000_000_000));
        check("10 kB", Some(10_000));
        for odd in ["", "8", "MiB", "-1 MiB", "1.5 GiB", "8 mib", "99999999 TiB", "8 MiB more"] {
            check(odd, None);
        }
    }
}
