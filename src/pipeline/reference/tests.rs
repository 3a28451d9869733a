//! Tests that the table, the parser, the printed page and the schema agree.

use std::path::Path;

use super::*;
use crate::pipeline::Pipeline;

mod rules;
mod schema;

const BASE: &str = "name = 'n'
source = { path = 'a.csv' }
columns = [{ name = 'x', lower = 0, upper = 1 }]
epochs = { records = 10, horizon = 3 }
privacy = { epsilon = 1, delta = 1e-6 }
";

const BY_TIME: &str = "epochs = { time = 't', arrival = 'r', start = '2013-01-01', length = '1d', horizon = 3, late = 'drop' }\n";
const TRAINED: &str =
    "privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place', clip_norm = 1 }\n";
const IN_PLACE: &str = "privacy = { epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }\n";

/// The required fields of a group with their examples, as they follow other fields.
fn required(heading: &str, group: &str) -> String {
    let section = sections().into_iter().find(|section| section.heading == heading).unwrap();
    let groups = groups(section).into_iter().filter(|(of, _)| of.as_deref() == Some(group));
    let required =
        groups.flat_map(|(_, fields)| fields).filter(|field| matches!(field.presence, Presence::Required));
    required.map(|field| format!(", {} = {}", field.key, field.example.replace(", ", ","))).collect()
}

/// Whether several kinds of servers have the field: it is tested for each of them.
fn is_shared(field: &FieldDefinition) -> bool {
    let shared = ["tls", "user", "password", "token"];
    shared.iter().any(|prefix| field.key == *prefix || field.key.starts_with(&format!("{prefix}_")))
}

/// Fields that a shared field needs, as they follow other fields.
fn companions(scheme: &str, key: &str, value: Option<&str>) -> &'static str {
    match key {
        "tls" if scheme.contains("-listen") && value == Some("true") => {
            ", tls_certificate = 'c', tls_key = 'k'"
        }
        "tls_certificate" => ", tls = true, tls_key = 'k'",
        "tls_key" => ", tls = true, tls_certificate = 'c'",
        "tls_client_roots" => ", tls = true, tls_certificate = 'c', tls_key = 'k'",
        "tls_roots" if scheme == "s3://" => "",
        "tls_roots" | "tls_server_name" => ", tls = true",
        "user" => ", password_env = 'P'",
        "password_env" | "password_file" => ", user = 'u'",
        _ => "",
    }
}

/// Returns the sections of a pipeline in which the fields of a section and a group are valid. They
/// replace those of the base. The section of these fields comes last, without its closing brace.
fn pipeline_of(section: &SectionDefinition, group: &str, key: &str, value: Option<&str>) -> Vec<String> {
    let own = |text: &str| text.to_owned();
    match (section.heading, group, key) {
        ("[source]", "", "format") => vec![own("source = { path = 'a'")],
        ("[source]", "", "journal" | "journal_limit") => {
            vec![own("source = { path = '-', format = 'csv', journal = true")]
        }
        ("[source]", "", "id" | "largest_jump") => vec![own(BY_TIME), own("source = { path = 'a.csv'")],
        ("[source]", "files", _) => vec![own("source = { path = 'a.csv'")],
        ("[source]", group, key) if group.contains("tcp") => {
            let scheme = if group == "tcp://" { group } else { "tcp-listen://" };
            let more = companions(group, key, value);
            vec![format!("source = {{ path = '{scheme}127.0.0.1:7000', format = 'csv'{more}")]
        }
        ("[source]", scheme, key) if scheme.ends_with("://") => {
            let format = if key == "field" { ", format = 'ndjson'" } else { "" };
            let more = required("[source]", scheme) + format + companions(scheme, key, value);
            let what = match (scheme, key) {
                ("postgres://", "table" | "query") => "/d'",
                ("postgres://", _) => "/d', table = 't'",
                ("s3://", _) => "ts/a.csv'",
                _ => "'",
            };
            vec![format!("source = {{ path = '{scheme}h{what}{more}")]
        }
        ("[source]", ..) => vec![own("source = { path = 'a.csv'")],
        ("[[sources]]", group, key) => {
            // Fields on which sources must agree are in both.
            let shared = match (key, value) {
                ("missing" | "malformed" | "preflight" | "id", Some(value)) => format!(", {key} = {value}"),
                _ => String::new(),
            };
            let clock = if key == "clock" { BY_TIME.replace(", late = 'drop'", "") } else { own(BY_TIME) };
            let like = SectionDefinition { heading: "[source]", ..SectionDefinition::EMPTY };
            let group = if group == "[source]" { "" } else { group };
            let last = pipeline_of(&like, group, key, value).pop().unwrap();
            let fields = last.trim_start_matches("source = { ");
            vec![
                clock,
                format!("sources = [{{ name = 'a', path = 'a.csv'{shared} }}, {{ name = 'b', {fields}"),
            ]
        }
        ("[[columns]]", _, "bounds") => vec![
            own("key = { column = 'k', values = ['EWR'] }\n"),
            own("columns = [{ name = 'x', lower = 0, upper = 1"),
        ],
        ("[[columns]]", ..) => vec![own("columns = [{ name = 'x', lower = 0, upper = 1")],
        ("[[histograms]]", _, "bins") => vec![own("histograms = [{ column = 'x'")],
        ("[[histograms]]", _, "values" | "edges") => vec![own("histograms = [{ column = 'h'")],
        ("[[histograms]]", _, "branching") => vec![own("histograms = [{ column = 'x', bins = 20")],
        ("[[histograms]]", ..) => vec![own("histograms = [{ column = 'h', edges = [0,1,2]")],
        ("[key]", _, "values_file") => vec![own("key = { column = 'k'")],
        ("[key]", ..) => vec![own("key = { column = 'k', values = ['a']")],
        ("[key.discover]", ..) => vec![own("key = { column = 'k', discover = { delta = 1e-8")],
        ("[entity]", ..) => vec![
            own("privacy = { epsilon = 1, delta = 1e-6, unit = 'entity' }\n"),
            own("entity = { column = 'user', participations = 4"),
        ],
        ("[epochs]", _, "horizon" | "records") => vec![own("epochs = { records = 10, horizon = 3")],
        ("[epochs]", _, "week_starts") => {
            vec![own(
                "epochs = { time = 't', arrival = 'r', start = '2013-01-07', length = '1 week', timezone = 'UTC', horizon = 3",
            )]
        }
        ("[epochs]", _, "clock") => {
            vec![own("epochs = { time = 't', start = '2013-01-01', length = '1d', horizon = 3")]
        }
        ("[epochs]", ..) => {
            vec![own(BY_TIME.trim_end_matches(" }\n"))]
        }
        ("[privacy]", _, "unit") if value == Some("\"entity\"") => vec![
            own("entity = { column = 'user', participations = 4 }\n"),
            own("privacy = { epsilon = 1, delta = 1e-6, unit = 'entity'"),
        ],
        ("[privacy]", _, "histogram_weight") => vec![
            own("histograms = [{ column = 'h', edges = [0,1,2] }]\n"),
            own("privacy = { epsilon = 1, delta = 1e-6"),
        ],
        ("[privacy]", ..) => vec![own("privacy = { epsilon = 1, delta = 1e-6")],
        ("[release]", group, "range") if group.contains("mean") => {
            vec![own(IN_PLACE), own("release = { method = 'tukey', scale = [1], corruption = 0.1, range = 1")]
        }
        ("[release]", group, _) if group.contains("mean") => {
            vec![own(IN_PLACE), own("release = { method = 'prime', corruption = 0.1")]
        }
        ("[release]", group, _) if group.contains("covariance") => {
            vec![own(IN_PLACE), own("release = { method = 'pace'")]
        }
        ("[release]", _, "first_moment_share") => vec![own("release = { method = 'ime'")],
        ("[release]", _, "memory_limit") => vec![own("release = { strategy = 'auto'")],
        ("[release]", ..) => vec![own("release = { method = 'jme'")],
        ("[[views]]", estimate, _) if estimate.starts_with("estimate = ") => {
            let is_alternative = (section.one_of)().iter().any(|field| field == estimate);
            let workload = if is_alternative { "" } else { ", workload = 'prefix'" };
            vec![
                own("histograms = [{ column = 'age', edges = [0,1,2] }]\n"),
                own(
                    "columns = [{ name = 'y', lower = 0, upper = 1 }, { name = 'x1', lower = 0, upper = 1 }, { name = 'x2', lower = 0, upper = 1 }]\n",
                ),
                format!("views = [{{ name = 'v'{workload}, {estimate}{}", required("[[views]]", estimate)),
            ]
        }
        ("[[views]]", _, "squares") => {
            vec![own("release.method = 'pp'\n"), own("views = [{ name = 'v', workload = 'prefix'")]
        }
        ("[[views]]", _, "missing_at_random") => vec![
            own("source = { path = 'a.csv', missing = 'by-column' }\n"),
            own("columns = [{ name = 'x', lower = 0, upper = 1 }, { name = 'y', lower = 0, upper = 1 }]\n"),
            own("views = [{ name = 'v', workload = 'prefix'"),
        ],
        ("[[views]]", _, "keys") => vec![
            own("key = { column = 'k', values = ['a'] }\n"),
            own("views = [{ name = 'v', workload = 'prefix'"),
        ],
        ("[[views]]", ..) => vec![own("views = [{ name = 'v', workload = 'prefix'")],
        ("[[sinks]]", scheme, key) if scheme.ends_with("://") => {
            let more = required("[[sinks]]", scheme) + companions(scheme, key, value);
            let rest = match scheme {
                "postgres://" => "/d",
                "s3://" => "ts/a",
                _ if scheme.contains("-listen") => ":1",
                _ => "",
            };
            vec![format!("sinks = [{{ path = '{scheme}h{rest}'{more}")]
        }
        ("[[sinks]]", ..) => vec![own("sinks = [{ path = 'out.ndjson'")],
        ("[state]", ..) => vec![own("state = { directory = 's'")],
        ("[ledger]", ..) => vec![own("ledger = { directory = 'l', data_set = 'd'")],
        ("[ledger.budget]", _, "unit") => {
            vec![own("ledger = { budget = { epsilon = 2, delta = 1e-6, entity = 'user'")]
        }
        ("[ledger.budget]", ..) => vec![own("ledger = { budget = { epsilon = 2, delta = 1e-6")],
        ("[training]", _, key) => {
            let fields = match key {
                "model" => "target = 'x'",
                "target" | "classes" => "model = 'logistic', target = 't', classes = ['a','b']",
                "momentum" => "model = 'gradients', optimiser = 'momentum'",
                _ => "model = 'gradients'",
            };
            vec![
                own(
                    "columns = [{ name = 'x', lower = 0, upper = 1 }, { name = 'y', lower = 0, upper = 1 }]\n",
                ),
                own(TRAINED),
                format!(
                    "training = {{ {fields}, records = 30000, batch_size = 10, passes = 2, learning_rate = 1"
                ),
            ]
        }
        ("[simulation]", ..) => vec![own("simulation = { seed = 1")],
        other => panic!("no pipeline for {other:?}"),
    }
}

/// The text of a pipeline with or without a field.
fn text_with(section: &SectionDefinition, group: &str, key: &str, value: Option<&str>) -> String {
    if section.heading.is_empty() {
        let line = value.map(|value| format!("{key} = {value}\n")).unwrap_or_default();
        return BASE
            .lines()
            .filter(|own| !own.starts_with(&format!("{key} =")))
            .map(|own| format!("{own}\n"))
            .collect::<String>()
            + &line;
    }
    let mut lines = pipeline_of(section, group, key, value);
    let last = lines.last_mut().unwrap();
    let (head, fields) = last.split_at(last.rfind("{ ").unwrap() + 2);
    let mut fields: Vec<String> = fields.split(", ").map(String::from).collect();
    fields.retain(|field| !field.starts_with(&format!("{key} =")));
    fields.extend(value.map(|value| format!("{key} = {value}")));
    let end = match section.heading {
        "[ledger.budget]" | "[key.discover]" => " } }\n",
        heading if heading.starts_with("[[") => " }]\n",
        _ => " }\n",
    };
    *last = format!("{head}{}{end}", fields.join(", "));
    let base = BASE.lines().filter(|own| {
        let name = own.split(" = ").next().unwrap();
        let is_replaced = lines.iter().any(|line| line.starts_with(&format!("{name} =")));
        let is_left_out = match section.heading {
            "[[sources]]" => name == "source",
            "[training]" => name == "epochs",
            _ => false,
        };
        !is_replaced && !is_left_out
    });
    base.map(|line| format!("{line}\n")).chain(lines.iter().cloned()).collect()
}

/// Whether this build reads and writes Kafka, and objects.
const KAFKA: bool = cfg!(feature = "kafka");
const OBJECTS: bool = cfg!(feature = "s3");

fn is_built(group: &str) -> bool {
    (KAFKA || group != "kafka://") && (OBJECTS || group != "s3://")
}

/// Calls `check` with every field that is not a section, its section and the kind of section.
fn every_field(mut check: impl FnMut(&SectionDefinition, &str, &FieldDefinition)) {
    for section in sections() {
        for (group, fields) in groups(section) {
            let group = group.unwrap_or_default();
            for field in fields.iter().filter(|field| field.value.section().is_none()) {
                let schemes = group.split([' ', ',']).filter(|word| word.ends_with("://"));
                let groups = if is_shared(field) { schemes.collect() } else { vec![group.as_str()] };
                for group in groups.into_iter().filter(|group| is_built(group)) {
                    check(section, group, field);
                }
            }
        }
    }
}

fn parse(text: &str) -> Result<Pipeline, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), "a\n").unwrap();
    std::fs::write(directory.path().join("offsets.csv"), "1\n").unwrap();
    let path = directory.path().join("p.toml");
    Pipeline::parse(text, &path).map_err(|error| error.to_string())
}

#[test]
fn every_example_is_valid() {
    let mut faults = Vec::new();
    every_field(|section, group, field| {
        let text = text_with(section, group, field.key, Some(field.example));
        faults.extend(parse(&text).err().map(|error| format!("{error}\n{text}")));
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn defaults_are_those_of_the_parser() {
    every_field(|section, group, field| {
        let Presence::Default(default) = field.presence else { return };
        let debug = |value| {
            let text = text_with(section, group, field.key, value);
            let read = parse(&text).unwrap_or_else(|error| panic!("{}: {error}\n{text}", field.key));
            let text = format!("{read:?}");
            // Paths hold the name of a temporary directory.
            text.split("/tmp/.tmp")
                .map(|part| part.trim_start_matches(char::is_alphanumeric))
                .collect::<String>()
        };
        assert_eq!(debug(Some(default)), debug(None), "{} {}", section.heading, field.key);
    });
}

#[test]
fn required_fields_are_required_by_the_parser() {
    every_field(|section, group, field| {
        let missing = parse(&text_with(section, group, field.key, None)).is_err();
        let text = format!("{} {group} {}", section.heading, field.key);
        match field.presence {
            Presence::Required => assert!(missing, "{text}"),
            Presence::Default(_) => assert!(!missing, "{text}"),
            Presence::Optional(_) => {}
        }
    });
}

/// Pages of the repository are generated from the table. To renew them: `hushflow reference
/// --markdown > docs/pipeline.md` and `hushflow reference --json-schema >
/// docs/pipeline.schema.json`.
#[test]
fn generated_pages_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap_or_default();
    assert!(read("pipeline.md") == markdown(), "docs/pipeline.md is old: hushflow reference --markdown");
    let schema = serde_json::to_string_pretty(&json_schema()).unwrap() + "\n";
    assert!(
        read("pipeline.schema.json") == schema,
        "docs/pipeline.schema.json is old: hushflow reference --json-schema"
    );
}

/// Checks that every block of TOML in the docs is valid within a pipeline.
#[test]
fn toml_in_the_docs_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages =
        docs.chain([root.join("README.md")]).filter(|path| path.extension().is_some_and(|end| end == "md"));
    let (mut blocks, mut problems) = (0, Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            // These are the user's configuration and a package, not pipelines.
            if block.starts_with("ledger = \"") || block.starts_with("[dependencies]") {
                continue;
            }
            blocks += 1;
            if (block.contains("kafka://") && !KAFKA) || (block.contains("s3://") && !OBJECTS) {
                continue;
            }
            let pipeline = toml::to_string(&within_pipeline(block.parse().unwrap())).unwrap();
            problems.extend(parse(&pipeline).err().map(|error| format!("{page:?}: {error}\n{pipeline}")));
        }
    }
    assert!(blocks > 20 && problems.is_empty(), "{blocks} blocks\n{}", problems.join("\n"));
}

/// Adds the sections that a block lacks. Fields outside of all sections belong to `[source]`.
fn within_pipeline(block: toml::Table) -> toml::Table {
    let mut pipeline: toml::Table = "name = 'n'
        [[columns]]
        name = 'x'
        lower = 0
        upper = 1
        [[columns]]
        name = 'y'
        lower = 0
        upper = 1
        [epochs]
        time = 't'
        arrival = 'r'
        start = '2013-01-01'
        length = '1d'
        horizon = 40
        [privacy]
        epsilon = 1
        delta = 1e-6"
        .parse()
        .unwrap();
    let table = |key: &str| block.get(key).and_then(toml::Value::as_table);
    if table("entity").is_some() {
        pipeline["privacy"].as_table_mut().unwrap().insert("unit".into(), "entity".into());
    }
    if table("training").is_some() {
        pipeline.remove("epochs");
    }
    let mut source: toml::Table = "path = 'a.csv'".parse().unwrap();
    for (key, value) in block {
        let known = super::PIPELINE.field(&key).is_some();
        match (pipeline.get_mut(&key), value) {
            (Some(toml::Value::Table(section)), toml::Value::Table(fields)) => section.extend(fields),
            (_, toml::Value::Table(fields)) if key == "source" => source.extend(fields),
            (_, value) if known => drop(pipeline.insert(key, value)),
            (_, value) => {
                source.extend([("path".to_owned(), "-".into()), ("format".into(), "csv".into())]);
                source.extend([("journal".to_owned(), true.into()), (key, value)]);
            }
        }
    }
    if !pipeline.contains_key("sources") {
        pipeline.insert("source".into(), source.into());
    }
    pipeline
}

#[test]
fn one_section_can_be_printed_by_name() {
    for name in section_names() {
        assert!(text(Some(name), 80).is_some(), "{name}");
    }
    let epochs = text(Some("epochs"), 60).unwrap();
    assert!(epochs.starts_with("[epochs]\n") && !epochs.contains("[privacy]"), "{epochs}");
    assert!(epochs.lines().all(|line| line.chars().count() <= 60), "{epochs}");
    assert!(text(Some("epoch"), 80).is_none());
}
