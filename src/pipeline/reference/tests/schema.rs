//! Tests that the schema and the parser accept and refuse the same files.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

#[test]
fn the_schema_knows_every_example_and_default() {
    let schema = json_schema();
    every_field(|section, group, field| {
        for value in [
            Some(field.example),
            Some(match field.presence {
                Presence::Default(value) => value,
                _ => field.example,
            }),
        ] {
            let text = text_with(section, group, field.key, value);
            assert_eq!(faults(&schema, &text), Vec::<String>::new(), "{text}");
        }
    });
}

/// Returns the faults that a schema finds in a pipeline file.
pub(super) fn faults(schema: &Value, text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap();
    let mut faults = Vec::new();
    validate(schema, &json(table.into()), "", &mut faults);
    faults
}

/// Converts a TOML value to JSON. Dates become strings, as in editors.
fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(json).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(key, value)| (key, json(value))).collect(),
        value => serde_json::to_value(value).unwrap(),
    }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    }
}

/// Checks a value by the keywords that the schema uses.
fn validate(schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let is_valid = |schema: &Value| {
        let mut found = Vec::new();
        validate(schema, value, at, &mut found);
        found.is_empty()
    };
    let number = value.as_f64().unwrap_or(f64::NAN);
    for (keyword, rule) in schema.as_object().unwrap() {
        let bound = rule.as_f64().unwrap_or(f64::NAN);
        let valid = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" | "examples" => true,
            "type" => match rule {
                Value::Array(names) => names.iter().any(|name| is_of_type(value, name)),
                name => is_of_type(value, name),
            },
            "not" => !is_valid(rule),
            "if" => !is_valid(rule) || is_valid(&schema["then"]),
            "then" => true,
            "allOf" => rule.as_array().unwrap().iter().all(is_valid),
            "contains" => value.as_array().is_none_or(|items| {
                items.iter().any(|item| {
                    let mut found = Vec::new();
                    validate(rule, item, at, &mut found);
                    found.is_empty()
                })
            }),
            "enum" => rule.as_array().unwrap().contains(value),
            "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
            "minItems" => value.as_array().is_none_or(|items| items.len() as f64 >= bound),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as f64 <= bound),
            "pattern" => {
                let pattern = regex_lite::Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => number.is_nan() || number >= bound,
            "maximum" => number.is_nan() || number <= bound,
            "exclusiveMinimum" => number.is_nan() || number > bound,
            "exclusiveMaximum" => number.is_nan() || number < bound,
            "anyOf" => rule.as_array().unwrap().iter().any(is_valid),
            "oneOf" => rule.as_array().unwrap().iter().filter(|rule| is_valid(rule)).count() == 1,
            "required" => {
                rule.as_array().unwrap().iter().all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    validate(rule, item, &format!("{at}[{index}]"), faults);
                }
                true
            }
            "properties" | "additionalProperties" if rule.is_object() => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    let rule = if keyword == "properties" { rule.get(key) } else { Some(rule) };
                    rule.into_iter().for_each(|rule| validate(rule, inner, &format!("{at}.{key}"), faults));
                }
                true
            }
            "additionalProperties" => {
                let known = |key: &String| schema["properties"].get(key).is_some();
                value.as_object().is_none_or(|fields| fields.keys().all(known))
            }
            other => panic!("keyword {other}"),
        };
        if !valid {
            faults.push(format!("{at}: {keyword}"));
        }
    }
}

/// Values of all types, for fields of another type or range.
const INVALID_VALUES: [&str; 14] = [
    "true",
    "-1",
    "0",
    "1.5",
    "1e300",
    "5000000000",
    "inf",
    "'nonsense'",
    "''",
    "[]",
    "[true]",
    "['']",
    "{ a = 1 }",
    "2013-01-01",
];

/// Rules that no schema can express, with the fields to which they apply. Only the parser refuses
/// these values.
const PARSER_RULES: [(&str, &[&str]); 7] = [
    ("the extension of a file names its format, unless a field does", &["path"]),
    ("upper is above lower", &["lower", "upper"]),
    ("the file exists", &["values_file", "offsets"]),
    ("the database of time zones has the name", &["timezone"]),
    ("the column is listed", &["target", "on", "column"]),
    ("there are as many columns", &["components"]),
    // Editors pass a date without quotes as a string.
    (
        "a date without quotes is not a string",
        &["largest_jump", "allowed_lateness", "idle", "length", "keep"],
    ),
];

/// Returns the rule by which only the parser may refuse a value of a field.
fn rule(field: &FieldDefinition, value: &str) -> Option<&'static str> {
    let is_date = value == "2013-01-01";
    let of_texts = is_date && matches!(field.value, FieldType::Text | FieldType::Texts);
    let own = PARSER_RULES.iter().find(|(_, fields)| fields.contains(&field.key));
    let dates =
        PARSER_RULES.last().filter(|(_, fields)| is_date && (of_texts || fields.contains(&field.key)));
    dates.or(own).map(|(rule, _)| *rule)
}

/// The schema refuses a pipeline with one invalid field if and only if the parser does, except for
/// the [rules](PARSER_RULES) above.
#[test]
fn parser_and_schema_agree_on_invalid_fields() {
    let schema = json_schema();
    let mut differing = Vec::new();
    let (mut compared, mut applied) = (0, BTreeSet::new());
    every_field(|section, group, field| {
        let mut compare = |text: &str, what: &str, rule: Option<&'static str>| {
            compared += 1;
            let (parsed, found) = (parse(text), faults(&schema, text));
            if parsed.is_ok() == found.is_empty() {
                return;
            }
            if let (Some(rule), true) = (rule, parsed.is_err()) {
                applied.insert(rule);
            } else {
                let parsed = parsed.err().unwrap_or_default();
                differing
                    .push(format!("{} {group} {what}: parser {parsed:?}, schema {found:?}", section.heading));
            }
        };
        for value in INVALID_VALUES {
            let text = text_with(section, group, field.key, Some(value));
            let what = format!("{} = {value}", field.key);
            compare(&text, &what, rule(field, value));
        }
        compare(&text_with(section, group, "nonsense", Some("1")), "nonsense = 1", None);
        let is_alternative = (section.one_of)().iter().any(|own| own == field.key);
        if group.is_empty() && (is_alternative || matches!(field.presence, Presence::Required)) {
            compare(&text_with(section, group, field.key, None), &format!("no {}", field.key), None);
        }
    });
    assert!(compared > 1000, "{compared}");
    assert_eq!(applied.len(), PARSER_RULES.len(), "every rule is needed: {applied:?}");
    assert!(differing.is_empty(), "{} of {compared}:\n{}", differing.len(), differing.join("\n"));
}

#[test]
fn the_schema_accepts_the_examples_and_rejects_mistakes() {
    let schema = json_schema();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let examples: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let examples: Vec<_> =
        examples.iter().filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    assert!(examples.len() >= 10);
    for path in examples {
        assert_eq!(
            faults(&schema, &std::fs::read_to_string(path).unwrap()),
            Vec::<String>::new(),
            "{path:?}"
        );
    }
    let check = |from: &str, to: &str, fault: &str| {
        assert!(Pipeline::EXAMPLE.contains(from), "{from}");
        let text = Pipeline::EXAMPLE.replacen(from, to, 1);
        assert!(parse(&text).is_err(), "the parser refuses {to}");
        assert!(
            faults(&schema, &text).iter().any(|found| found == fault),
            "{to}: {:?}",
            faults(&schema, &text)
        );
    };
    for (from, to) in [
        ("horizon = 32", "horizon = 32.0"),
        ("start = \"2013-01-01T05:00:00Z\"", "start = 2013-01-01T05:00:00Z"),
        ("start = \"2013-01-01T05:00:00Z\"", "start = 2013-01-01"),
        ("start = \"2013-01-01T05:00:00Z\"", "start = \"2013-01-01 05:00\""),
    ] {
        assert!(Pipeline::EXAMPLE.contains(from), "{from}");
        let text = Pipeline::EXAMPLE.replacen(from, to, 1);
        assert_eq!((parse(&text).err(), faults(&schema, &text)), (None, Vec::new()), "{to}");
    }
    check("start = \"2013-01-01T05:00:00Z\"", "start = 2013", ".epochs.start: not");
    check("horizon = 32", "horizont = 32", ".epochs: required");
    check("horizon = 32", "horizon = 32\nhorizont = 32", ".epochs: additionalProperties");
    check("horizon = 32", "horizon = 0", ".epochs.horizon: minimum");
    check("horizon = 32", "horizon = 1.5", ".epochs.horizon: type");
    check("lower = -60", "lower = '-60'", ".columns[0].lower: type");
    check("epsilon = 1.0", "epsilon = 0", ".privacy.epsilon: exclusiveMinimum");
    check("delta = 1e-6", "delta = 1.0", ".privacy.delta: exclusiveMaximum");
    check("estimate = \"gaussian\"", "estimate = \"guess\"", ".views[0].estimate: enum");
    check("workload = \"average\"", "workload = \"mean\"", ".views[0].workload: pattern");
    check("[\"EWR\", \"JFK\", \"LGA\"]", "[]", ".key.values: anyOf");
    check("name = \"flights\"\n", "", ": required");
    check("arrival = \"recorded_at\"", "arrival = \"recorded_at\"\nrecords = 5", ".epochs: oneOf");
    check("[source]\npath = \"flights_jan2013.csv\"", "[[sinks]]\npath = 'a.ndjson'", ": oneOf");
}
