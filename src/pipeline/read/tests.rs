//! Tests of valid and invalid pipeline files.

use super::super::PipelineError;
use super::super::fields::{NO_CLOCK, PRIVATE_EVENT_TIME};
use super::*;
use crate::pipeline::{EntityUnit, Format, MissingPolicy, RowPolicies, RowPolicy, SourceClock};
use hushflow_mechanism::epochs::{ClockSource, CountSchedule, LatePolicy, Schedule, TimeSchedule};
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{EntityLimits, RepeatPolicy};

const BY_COUNT: &str = "name = 'n'
source.path = 'a.csv'
columns = [{ name = 'x', lower = 0, upper = 1 }]
epochs = { records = 10, horizon = 3 }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'identity'
";

fn parse(text: &str) -> Result<Pipeline, String> {
    let path = Path::new("dir/p.toml");
    Pipeline::parse(text, path).map_err(|error| error.to_string())
}

#[test]
fn the_example_is_read() {
    let pipeline = parse(Pipeline::EXAMPLE).unwrap();
    assert_eq!(pipeline.sources[0].input.to_string(), "dir/flights_jan2013.csv");
    assert_eq!(pipeline.sources[0].format, Format::COMMAS);
    assert_eq!(pipeline.columns.len(), 2);
    assert_eq!(pipeline.key.as_ref().map(|key| key.values.len()), Some(3));
    let hour = 3_600_000_000;
    let schedule = TimeSchedule {
        start: 1_357_016_400_000_000,
        length: 24 * hour,
        lateness: 6 * hour,
        horizon: 32,
        late: LatePolicy::Fold,
        clock: ClockSource::Arrival,
        calendar: None,
    };
    assert_eq!(pipeline.epochs.schedule, Schedule::ByTime(schedule));
    assert_eq!(pipeline.epochs.arrival.as_deref(), Some("recorded_at"));
    assert_eq!(pipeline.privacy.neighbours, Neighbours::ReplaceOne);
    assert_eq!((pipeline.state_directory, pipeline.noise), (None, NoiseSource::System));
}

#[test]
fn short_files_get_defaults() {
    let pipeline = parse(BY_COUNT).unwrap();
    let schedule = CountSchedule { records_per_epoch: 10, horizon: 3 };
    assert_eq!(pipeline.epochs.schedule, Schedule::ByCount(schedule));
    assert_eq!(pipeline.privacy.clip_norm, 1.0);
    assert_eq!(pipeline.release.workload, Workload::Prefix);
    assert_eq!(pipeline.views.len(), 1);
    assert_eq!(pipeline.rows, RowPolicies { missing: MissingPolicy::Skip, malformed: RowPolicy::Skip });
}

#[test]
fn a_field_that_is_read_twice_is_reported_once() {
    let text = BY_COUNT.replace(
        "records = 10,",
        "time = 't', clock = 'end-of-input', start = '2013-01-01', length = 86400,",
    );
    let errors = parse(&text).unwrap_err();
    assert_eq!(errors.matches("epochs.length: found 86400, expected").count(), 1, "{errors}");
}

#[test]
fn offsets_of_a_simulation_are_read_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let parsed = |offsets: &str| {
        std::fs::write(directory.path().join("offsets.csv"), offsets).unwrap();
        let text = format!("{BY_COUNT}[simulation]\nseed = 3\noffsets = 'offsets.csv'\n");
        Pipeline::parse(&text, &directory.path().join("p.toml")).map_err(|error| error.to_string())
    };
    let offsets = Offsets::new(vec![vec![1, -2], vec![], vec![1 << 100]]).leaked();
    let noise = parsed("1,-2\n\n1267650600228229401496703205376\n").unwrap().noise;
    assert_eq!(noise, NoiseSource::Shifted { seed: 3, offsets });
    assert!(!noise.is_private());
    let error = parsed("1\n2,0.5\n").unwrap_err();
    assert!(error.contains("offsets.csv: line 2, column 2 holds \"0.5\": expected an integer"), "{error}");
    let error = parse(&format!("{BY_COUNT}[simulation]\nseed = 3\noffsets = 'missing.csv'\n")).unwrap_err();
    assert!(error.contains("missing.csv can't be read"), "{error}");
    let error = parse(&format!("{BY_COUNT}[simulation]\noffsets = 'missing.csv'\n")).unwrap_err();
    assert!(error.contains("seed = 42"), "{error}");
    let estimator = BY_COUNT.replace("release.strategy = 'identity'", "release = { method = 'pace' }");
    let error = parse(&format!("{estimator}[simulation]\nseed = 3\noffsets = 'missing.csv'\n")).unwrap_err();
    assert!(error.contains("this method releases no sums"), "{error}");
}

#[test]
fn retention_is_parsed() {
    let state = |text: &str| parse(&format!("{BY_COUNT}\n[state]\n{text}"));
    let check = |text: &str, keep| {
        assert_eq!(
            state(&format!("keep = {text:?}")).map(|pipeline| pipeline.state.keep),
            Ok(keep),
            "{text}"
        );
    };
    check("all", SumRetention::All);
    check("1 epoch", SumRetention::Epochs(1));
    check("100 epochs", SumRetention::Epochs(100));
    check("30 days", SumRetention::Seconds(30 * 86_400));
    check("36h", SumRetention::Seconds(36 * 3600));
    for wrong in ["'none'", "'epochs'", "'-1 epochs'", "'100'", "'-1 day'", "'1 month'", "''", "100", "1.5"] {
        let problems = state(&format!("keep = {wrong}")).err().unwrap_or_default();
        assert!(problems.contains("state.keep: found") && problems.contains("\"30 days\""), "{problems}");
    }
    let pipeline = state("anchor = \"../anchors\"\npublic = \"public\"").unwrap();
    assert_eq!(
        pipeline.state,
        StateSettings {
            anchor: Some("dir/../anchors".into()),
            public: Some("dir/public".into()),
            ..StateSettings::default()
        }
    );
    assert_eq!(pipeline.state_directory, None, "it may be named on the command line");
}

#[test]
fn public_parameters_are_the_same_after_json() {
    for text in [Pipeline::EXAMPLE, BY_COUNT] {
        let parameters = parse(text).unwrap().public_parameters();
        let json = serde_json::to_string(&parameters).unwrap();
        assert_eq!(serde_json::from_str::<super::super::PublicParameters>(&json).unwrap(), parameters);
        assert!(!json.contains(".csv"), "paths are not public parameters: {json}");
    }
}

/// Replaces `from` in the example and expects exactly this message.
fn check(from: &str, to: &str, message: &str) {
    assert!(Pipeline::EXAMPLE.contains(from), "the example holds {from}");
    let text = Pipeline::EXAMPLE.replacen(from, to, 1);
    assert_eq!(parse(&text).err().unwrap_or_default(), message, "{from} -> {to}");
}

#[test]
fn all_faults_are_reported_at_once() {
    let syntax = parse("name = flights\n[source]\npath = \"a.csv\n").unwrap_err();
    let quotes = "dir/p.toml:1:8: invalid boolean, expected `false`; text needs quotes";
    assert_eq!(syntax, format!("{quotes}\ndir/p.toml:3:14: invalid basic string, expected `\"`"));
    let items = Pipeline::EXAMPLE.replace("[\"EWR\", \"JFK\", \"LGA\"]", "[\"EWR\", 3, 4]");
    assert_eq!(parse(&items).unwrap_err().lines().count(), 2);
    let twice = Pipeline::EXAMPLE.replace("[\"EWR\", \"JFK\", \"LGA\"]", "[\"EWR\", \"EWR\", \"EWR\"]");
    assert_eq!(parse(&twice).unwrap_err().matches("listed twice").count(), 2);
}

#[test]
fn problems_name_position_and_remedy() {
    check(
        "name = \"flights\"\n",
        "",
        "dir/p.toml:1:1: the field name is missing: add for example name = \"flights\" (name of the releases in tables, on pages and in ledgers)",
    );
    check(
        "upper = 240",
        "upper = -60",
        "dir/p.toml:10:9: columns[0].upper: found -60, expected a number above lower = -60",
    );
    check(
        "upper = 240",
        "upper = nan",
        "dir/p.toml:10:9: columns[0].upper: found nan, expected a finite number",
    );
    check(
        "upper = 240",
        "upper = \"240\"",
        "dir/p.toml:10:9: columns[0].upper: found \"240\", expected a finite number",
    );
    check(
        "horizon = 32",
        "horizon = 0",
        "dir/p.toml:27:11: epochs.horizon: found 0, expected a whole number from 1",
    );
    check(
        "horizon = 32",
        "horizont = 32",
        "dir/p.toml:21:1: epochs: the field horizon is missing: add for example horizon = 365 (number of epochs, after which a run ends)\ndir/p.toml:27:1: epochs.horizont: unknown field: did you mean horizon?",
    );
    check(
        "horizon = 32",
        "horizon = 32\nsecond_moment_weight = 0.5",
        "dir/p.toml:28:1: epochs.second_moment_weight: unknown field: it belongs to [privacy]",
    );
    check(
        "epsilon = 1.0",
        "epsilon = 0",
        "dir/p.toml:30:11: privacy.epsilon: found 0, expected a number above 0",
    );
    check(
        "delta = 1e-6",
        "delta = 1.0",
        "dir/p.toml:31:9: privacy.delta: found 1.0, expected a number above 0 and below 1",
    );
    check(
        "length = \"1d\"",
        "length = \"0s\"",
        "dir/p.toml:25:10: epochs.length: found \"0s\", expected a duration such as \"1d\", \"6h 30m\" or \"15min\" (months and years vary)",
    );
    check(
        "workload = \"average\"",
        "workload = \"window:0\"",
        "dir/p.toml:39:12: views[0].workload: the length of a window is `0`; expected a whole number of epochs, at least 1, for example `window:10`",
    );
    check(
        "estimate = \"gaussian\"",
        "estimate = \"guess\"",
        "dir/p.toml:40:12: views[0].estimate: found \"guess\", expected \"gaussian\" or \"moments\" or \"adam\" or \"regression\" or \"pca\" or \"histogram\" or \"quantiles\"",
    );
    check(
        "name = \"distance\"",
        "name = \"dep_delay\"",
        "dir/p.toml:13:8: columns[1].name: the column \"dep_delay\" is named twice: each column has one role",
    );
    check(
        "values = [\"EWR\", \"JFK\", \"LGA\"]",
        "values = []",
        "dir/p.toml:19:10: key.values: found [], expected a list that is not empty",
    );
    check(
        "\"JFK\"",
        "\"EWR\"",
        "dir/p.toml:19:18: key.values[1]: the key \"EWR\" is listed twice: remove one",
    );
    check(
        "\"JFK\"",
        "\" JFK\"",
        "dir/p.toml:19:18: key.values[1]: the key \" JFK\" begins or ends with a blank; blanks around values in rows are \
         ignored, so no row would match: remove the blank",
    );
    check("\"JFK\"", "7", "dir/p.toml:19:18: key.values[1]: found 7, expected a text in quotes");
    check(
        "time = \"event_time\"",
        "records = 5",
        "dir/p.toml:23:11: epochs.arrival: found beside records: epochs are defined by records or by time, remove one\ndir/p.toml:24:9: epochs.start: found beside records: epochs are defined by records or by time, remove one\ndir/p.toml:25:10: epochs.length: found beside records: epochs are defined by records or by time, remove one\ndir/p.toml:26:20: epochs.allowed_lateness: found beside records: epochs are defined by records or by time, remove one",
    );
    check(
        "arrival = \"recorded_at\"",
        "clock = \"event-time\"",
        &format!("dir/p.toml:23:9: epochs.clock: {PRIVATE_EVENT_TIME}"),
    );
    check(
        "arrival = \"recorded_at\"",
        "clock = \"end-of-input\"",
        "dir/p.toml:26:20: epochs.allowed_lateness: with clock = \"end-of-input\", no record is late: remove this field",
    );
    check("arrival = \"recorded_at\"", "", &format!("dir/p.toml:21:1: epochs: {NO_CLOCK}"));
    check(
        "path = \"flights_jan2013.csv\"",
        "path = \"-\"",
        "dir/p.toml:5:8: source.path: the extension does not determine the format: add format = \"csv\", \"ndjson\" or \"parquet\"",
    );
    check(
        "path = \"flights_jan2013.csv\"",
        "path = [\"a.csv\", \"-\"]",
        "dir/p.toml:5:18: source.path[1]: found \"-\" among files: standard input must be the only path, as path = \"-\"",
    );
    check("[release]", "[release", "dir/p.toml:33:9: unclosed table, expected `]`");
}

#[test]
fn all_problems_are_reported_at_once() {
    let PipelineError::Invalid { problems, .. } = Pipeline::parse("", Path::new("p.toml")).unwrap_err()
    else {
        panic!("an empty file can be read");
    };
    let missing = ["name", "source", "columns", "privacy", "epochs"];
    assert_eq!(problems.len(), missing.len());
    for field in missing {
        assert!(problems.iter().any(|problem| problem.message.contains(field)), "{field}");
    }
}

#[test]
fn event_times_drive_the_clock_only_where_they_are_public() {
    let text = Pipeline::EXAMPLE.replace("arrival = \"recorded_at\"", "clock = \"event-time\"");
    let in_place = text.replace("delta = 1e-6", "delta = 1e-6\nneighbours = \"replace-one-in-place\"");
    assert!(parse(&in_place).is_ok());
    assert!(parse(&text).is_err());
    let blank = text.replace("delta = 1e-6", "delta = 1e-6\nneighbours = \"zero-out\"");
    assert!(parse(&blank).is_err());
}

#[test]
fn entities_are_protected_if_both_sections_agree() {
    let entity = "entity = { column = 'who', participations = 4 }\n";
    let parsed = |text: String| parse(&text);
    let of_entities = BY_COUNT.replace("privacy = {", "privacy = { unit = 'entity',");
    let pipeline = parsed(format!("{of_entities}{entity}")).unwrap();
    let limits = EntityLimits {
        participations: 4,
        min_separation: 1,
        records_per_epoch: 1,
        repeat_policy: RepeatPolicy::Keep,
        sent_limit: None,
    };
    assert_eq!(
        pipeline.entity,
        Some(EntityUnit { column: "who".into(), kind: "who".into(), within: vec![], limits })
    );
    let parameters = pipeline.public_parameters();
    let as_json = |parameters: &super::super::PublicParameters| {
        let json = serde_json::to_string(parameters).unwrap();
        assert_eq!(serde_json::from_str::<super::super::PublicParameters>(&json).unwrap(), *parameters);
        json
    };
    assert!(!as_json(&parameters).contains("sent"), "headers without the limit do not change");
    assert_eq!(parameters.participation().to_string(), "4x1+");
    let with_sent = entity.replace("= 4", "= 4, records_per_epoch = 3, sent_limit = 3");
    let parameters = parsed(format!("{of_entities}{with_sent}")).unwrap().public_parameters();
    assert!(as_json(&parameters).contains("\"sent_limit\":3"));
    let refused = |text: String, part: &str| {
        let problems = parse(&text).err().unwrap_or_default();
        assert!(problems.contains(part), "{problems}");
    };
    refused(of_entities.clone(), "needs a section [entity]");
    refused(format!("{BY_COUNT}{entity}"), "needs unit = \"entity\" in [privacy]");
    refused(format!("{of_entities}{}", entity.replace("'who'", "'x'")), "named twice");
    refused(format!("{of_entities}{}", entity.replace("= 4", "= 0")), "a whole number from 1");
    let too_few = with_sent.replace("sent_limit = 3", "sent_limit = 2");
    refused(format!("{of_entities}{too_few}"), "from records_per_epoch = 3");
    refused(BY_COUNT.replace("privacy = {", "privacy = { unit = 'user',"), "\"record\" or \"entity\"");
}

#[test]
fn keys_come_from_a_file_too() {
    let check = |content: &str, expected: Result<usize, &str>| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("keys.txt"), content).unwrap();
        let text = format!("{BY_COUNT}key = {{ column = 'k', values_file = 'keys.txt' }}");
        let found = Pipeline::parse(&text, &directory.path().join("p.toml"));
        match expected {
            Ok(count) => assert_eq!(found.unwrap().key.unwrap().values.len(), count),
            Err(part) => assert!(found.unwrap_err().to_string().contains(part)),
        }
    };
    check("a\r\n\nb\n", Ok(2));
    check(&(0..100_000).map(|key| format!("{key}\n")).collect::<String>(), Ok(100_000));
    check("a\nb\na\n", Err("keys.txt:3: the key \"a\" is listed twice"));
    check("a\nb \n", Err("keys.txt:2: the key \"b \" begins or ends with a blank"));
    check("\n", Err("holds no key"));
}

#[test]
fn missing_pipeline_files_are_reported() {
    let error = Pipeline::load(Path::new("/nowhere/p.toml")).unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/p.toml: the pipeline file can't be read"));
}

#[test]
fn each_source_may_have_its_own_clock() {
    let text = "name = 'n'
columns = [{ name = 'x', lower = 0, upper = 1 }]
epochs = { time = 't', arrival = 'r', start = '2013-01-01', length = '1d', horizon = 3, allowed_lateness = '1h' }
privacy = { epsilon = 1, delta = 1e-6 }
sources = [{ name = 'a', path = 'a.csv' },
  { name = 'b', path = 'b.ndjson', arrival = 's', allowed_lateness = '2h', idle = '30s', largest_jump = '6h' },
  { name = 'c', path = 'c.csv', arrival = 's', clock = 'end-of-input' }, { name = 'd', path = 'd.csv', clock = 'end-of-input' }]";
    let both = "arrival and clock: only one can advance the clock";
    assert!(parse(text).is_err_and(|error| error.contains(both)));
    let text = text.replace("arrival = 's', clock = 'end-of-input'", "arrival = 's'");
    let pipeline = parse(&text).unwrap();
    let hour = 3_600_000_000;
    let clock = |name: &str, lateness, clock, arrival: Option<&str>| SourceClock {
        name: name.into(),
        lateness,
        clock,
        arrival: arrival.map(String::from),
    };
    let clocks = [
        clock("a", hour, ClockSource::Arrival, Some("r")),
        clock("b", 2 * hour, ClockSource::Arrival, Some("s")),
        clock("c", hour, ClockSource::Arrival, Some("s")),
        clock("d", 0, ClockSource::EndOfInput, None),
    ];
    let parameters = pipeline.public_parameters();
    assert_eq!(parameters.sources, clocks);
    let json = serde_json::to_string(&parameters).unwrap();
    assert!(!json.contains("idle") && !json.contains("jump"), "these may change from run to run");
    let b = &pipeline.sources[1];
    assert_eq!((b.idle, b.largest_jump), (Some(std::time::Duration::from_secs(30)), Some(6 * hour)));
    let one = serde_json::to_string(&parse(BY_COUNT).unwrap().public_parameters()).unwrap();
    assert!(!one.contains("sources") && !one.contains("\"id\""), "absent for a single source");
}

#[test]
fn epochs_of_a_time_zone_follow_its_calendar() {
    let epochs = |fields: &str| {
        parse(&BY_COUNT.replace(
            "epochs = { records = 10, horizon = 3 }",
            &format!("epochs = {{ time = 't', clock = 'end-of-input', {fields} }}"),
        ))
        .map(|pipeline| pipeline.epochs.schedule)
    };
    let zone = "timezone = 'America/New_York', horizon = 3";
    let Ok(Schedule::ByTime(by)) = epochs(&format!("start = '2013-03-09', length = '1 day', {zone}")) else {
        panic!("a schedule by time");
    };
    let calendar = by.calendar.as_ref().unwrap();
    let lengths: Vec<_> = calendar.runs.iter().map(|run| run.length / 3_600_000_000).collect();
    assert_eq!((calendar.time_zone.as_str(), &lengths[..]), ("America/New_York", &[24, 23, 24][..]));
    assert_eq!(by.start, 1_362_805_200_000_000);
    let refused = |fields: &str, part: &str| {
        let problems = epochs(fields).err().unwrap_or_default();
        assert!(problems.contains(part), "{fields}: {problems}");
    };
    let gotham = "start = '2013-03-09', length = '1 day', horizon = 3, timezone = 'America/Gotham'";
    refused(gotham, "found \"America/Gotham\", expected a name of the time zone database");
    refused(&format!("start = '2013-03-09', length = '1 month 1 day', {zone}"), "expected days, weeks");
    refused("start = '2013-03-09', length = '1 month', horizon = 3", "months and years vary");
    let tuesday = format!("start = '2013-01-01', length = '1 week', week_starts = 'monday', {zone}");
    refused(
        &tuesday,
        "found a Tuesday, expected a Monday, on which weeks start by week_starts: choose another date, or week_starts = \"tuesday\"",
    );
    refused(&tuesday.replace("1 week", "1 day"), "epochs are not weeks");
    refused("start = '2013-01-01', length = '1w', week_starts = 'monday', horizon = 3", "add timezone");
    assert!(epochs(&tuesday.replace("2013-01-01", "2013-01-07")).is_ok());
}

#[test]
fn histograms_are_read_or_refused() {
    let parsed = |fields: &str| parse(&format!("{BY_COUNT}[[histograms]]\n{fields}"));
    let number = |fields: &str| parsed(fields).map(|pipeline| pipeline.histograms[0].number());
    assert_eq!(number("column = 'x'\nbins = 65_536"), Ok(65_536));
    assert_eq!(number("column = 'x'\nbins = 4\nbranching = 3"), Ok(4));
    let listed = |count: usize| (0..count).map(|number| format!("'{number}',")).collect::<String>();
    assert_eq!(number(&format!("column = 't'\nvalues = [{}]", listed(65_536))), Ok(65_536));
    let refused = |fields: &str, expected: &str| {
        let problems = parsed(fields).err().unwrap_or_default();
        assert!(problems.starts_with("dir/p.toml:") && problems.contains(expected), "{expected}: {problems}");
        assert!(expected.starts_with("no bins") || !problems.contains("no bins"), "{problems}");
    };
    refused("column = 'x'", "no bins: add edges");
    for bins in ["1", "0", "-4", "2.5", "'4'", "65_537"] {
        refused(&format!("column = 'x'\nbins = {bins}"), "expected a whole number from 2 to 65536");
    }
    refused(
        "column = 'x'\nbins = 4\nbranching = 4",
        "10:13: histograms[0].branching: found 4, expected fewer",
    );
    let many = |count: usize| (0..count).map(|edge| format!("{edge},")).collect::<String>();
    let edges = |count| format!("column = 'e'\nedges = [{}]", many(count));
    assert_eq!(number(&edges(65_537)), Ok(65_536));
    refused(&edges(65_538), "65537 bins, expected at most 65536: give fewer edges");
    refused(&edges(2), "at least three ascending numbers");
    let values = format!("column = 't'\nvalues = [{}]", listed(65_537));
    refused(&values, "expected at most 65536: give fewer values");
    refused("column = 't'\nvalues = ['a ']", "blanks around values in rows");
    refused("column = 't'\nvalues = ['a', '']", "values[1]");
    let close = BY_COUNT.replace("upper = 1", "upper = 1e-323");
    let error = parse(&format!("{close}[[histograms]]\ncolumn = 'x'\nbins = 20")).unwrap_err();
    assert!(error.contains("9:8: histograms[0].bins: the bounds") && error.contains("fewer bins"), "{error}");
}

/// Two bins, or a bin and a part of another, never have fields of one name.
#[test]
fn bins_with_colliding_names_are_refused() {
    let parsed = |one: [&str; 2], other: [&str; 2]| {
        let section = |[column, value]: [&str; 2]| {
            format!("[[histograms]]\ncolumn = '{column}'\nvalues = ['{value}']\n")
        };
        parse(&format!("{BY_COUNT}{}{}", section(one), section(other)))
    };
    assert!(parsed(["pay", "card"], ["user", "card"]).is_ok());
    for (one, other) in [
        (["pay", "user_c"], ["pay_user", "c"]),
        (["pay", "c"], ["noise_pay", "c"]),
        (["pay", "user c"], ["pay user", "c"]),
    ] {
        let error = parsed(one, other).unwrap_err();
        assert!(error.contains("11:10: histograms[1].column: a bin would have the same name"), "{error}");
    }
    let view = "[[histograms]]\ncolumn = 'x'\nbins = 4\n[[views]]\nname = 'v'\nworkload = 'prefix'
estimate = 'quantiles'\nquantiles = ";
    assert!(parse(&format!("{BY_COUNT}{view}[0.5, 0.9]")).is_ok());
    let error = parse(&format!("{BY_COUNT}{view}[0.5, 0.9, 0.50]")).unwrap_err();
    assert!(error.contains("14:13: views[0].quantiles: the quantile 0.5 is listed twice"), "{error}");
}
