//! Section `[source]`, or one of `[[sources]]`: the scheme of the path selects the kind of input.

use std::path::Path;

use hushflow_mechanism::epochs::{ClockSource, Schedule};

use super::size::journal_limit;
use super::sources::SourceTiming;
use crate::connect::{Input, Journaling, RecordFormat};
use crate::document::Section;
use crate::pipeline::fields::{MISSING_POLICIES, ROW_POLICIES};
use crate::pipeline::{MissingPolicy, RowPolicies, RowPolicy, Source};

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
    let wants_journal = section.flag("journal");
    let input = Input::read(section, &paths, base)?;
    let RecordFormat { format, header } = RecordFormat::read(section, &paths, &input)?;
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

/// Reports fields that don't apply to the kind of source.
fn check(section: &Section<'_>, wants_journal: Option<bool>, source: &Source, rows: RowPolicies) {
    let report = |key, message: &str| section.refuse(key, message);
    match (wants_journal, source.input.source().journaling()) {
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
    if (source.journal || source.input.source().formats().are_messages)
        && (rows.missing == MissingPolicy::Reject || rows.malformed == RowPolicy::Reject)
    {
        let field = if section.has("journal") { "journal" } else { "path" };
        report(
            field,
            "a row in a journal or on a broker can't be corrected, so rows must not be rejected: set missing and malformed to \"skip\"",
        );
    }
}

#[cfg(test)]
mod tests {
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
    fn fields_are_where_they_belong() {
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
    fn a_network_source_advances_the_clock_by_a_tenth_of_the_horizon() {
        let jump = |source: &str, horizon: u64, clock: &str| {
            let text = format!(
                "{BASE}\nsource = {{ {source} }}\nepochs = {{ time = 't', start = '2020-01-01', length = '1s', horizon = {horizon}, {clock} }}"
            );
            Pipeline::parse(&text, "p.toml".as_ref()).map(|pipeline| pipeline.sources[0].largest_jump).ok()
        };
        let seconds = |seconds: i64| Some(Some(1_000_000 * seconds));
        let socket = "path = 'tcp-listen://localhost:7000', format = 'csv'";
        assert_eq!(jump(socket, 1000, "arrival = 'a'"), seconds(100));
        assert_eq!(jump("path = 'redis://h', stream = 's'", 1000, "arrival = 'a'"), seconds(100));
        assert_eq!(jump(socket, 50, "arrival = 'a'"), seconds(10));
        assert_eq!(jump(&format!("{socket}, largest_jump = '1d'"), 1000, "arrival = 'a'"), seconds(86_400));
        assert_eq!(jump("path = 'a.csv'", 1000, "arrival = 'a'"), Some(None));
        assert_eq!(jump(socket, 1000, "clock = 'end-of-input'"), Some(None));
    }
}
