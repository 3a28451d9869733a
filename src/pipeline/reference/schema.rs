//! The JSON schema of the pipeline file, for editors.

use serde_json::{Map, Value, json};

use super::super::fields::{MAX_BINS, PIPELINE};
use super::{groups, presence};
use crate::document::LARGEST_WHOLE;
use crate::document::definition::{
    FieldDefinition, FieldType, GroupTest, Presence, Range, SectionDefinition,
};
use crate::document::rules::{Rule, address};

/// Returns the JSON schema of the TOML of a pipeline file (draft 2020-12).
pub fn json_schema() -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hushflow pipeline file",
    });
    if let (Some(schema), Value::Object(section)) = (schema.as_object_mut(), section(&PIPELINE)) {
        schema.extend(section);
    }
    schema
}

/// Returns the schema of a table. Fields that only some of these tables have are allowed in all.
fn section(definition: &SectionDefinition) -> Value {
    let mut properties = Map::new();
    for field in groups(definition).into_iter().flat_map(|(_, fields)| fields) {
        if !properties.contains_key(field.key) {
            properties.insert(field.key.into(), property(field));
        }
    }
    let required = definition.fields.iter().filter(|field| matches!(field.presence, Presence::Required));
    let required: Vec<&str> = required.map(|field| field.key).collect();
    let mut schema = json!({ "type": "object", "description": definition.about, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let rules = definition.rules.iter().map(Rule::schema).chain(group_rules(definition));
    let rules: Vec<Value> = rules.collect();
    if !rules.is_empty() {
        schema["allOf"] = json!(rules);
    }
    let one_of: Vec<Value> = (definition.one_of)().iter().map(|field| alternative(field)).collect();
    if !one_of.is_empty() {
        schema["oneOf"] = json!(one_of);
    }
    schema["additionalProperties"] = json!(false);
    schema
}

/// Returns the rules for fields that only some of these tables have or must have.
fn group_rules(definition: &SectionDefinition) -> Vec<Value> {
    let groups = (definition.groups)();
    let mut rules = Vec::new();
    // Fields that the same tables have share a rule.
    let mut shared: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for key in definition.keys() {
        if definition.fields.iter().any(|field| field.key == key) {
            continue;
        }
        let with = groups.iter().filter(|group| group.fields.iter().any(|field| field.key == key));
        // `None` if a group does not say which tables have it.
        let tests: Option<Vec<Value>> = with.map(|group| test(&group.only)).collect();
        if let Some(tests) = tests {
            let has = json!({ "required": [key] });
            match shared.iter_mut().find(|(_, others)| *others == tests) {
                Some((fields, _)) => fields.push(has),
                None => shared.push((vec![has], tests)),
            }
        }
    }
    let rule = |(fields, tests)| json!({ "if": { "anyOf": fields }, "then": { "anyOf": tests } });
    rules.extend(shared.into_iter().map(rule));
    for group in &groups {
        let required = group.fields.iter().filter(|field| matches!(field.presence, Presence::Required));
        let required: Vec<&str> = required.map(|field| field.key).collect();
        if let (Some(test), false) = (test(&group.only), required.is_empty()) {
            rules.push(json!({ "if": test, "then": { "required": required } }));
        }
    }
    rules
}

/// Returns the schema of the tables that have a group of fields, if another field decides.
fn test(only: &GroupTest) -> Option<Value> {
    match only {
        GroupTest::Any => None,
        GroupTest::Word { key, words, is_default } => {
            let mut schema = json!({ "properties": { *key: { "enum": words } } });
            if !is_default {
                schema["required"] = json!([key]);
            }
            Some(schema)
        }
        GroupTest::Scheme(schemes) => {
            Some(json!({ "required": ["path"], "properties": { "path": address(schemes) } }))
        }
    }
}

/// Returns the schema of tables with a field, or with one value of a field: `field = value`.
fn alternative(field: &str) -> Value {
    match field.split_once(" = ") {
        None => json!({ "required": [field] }),
        Some((key, value)) => {
            json!({ "required": [key], "properties": { key: { "enum": [toml_value(value)] } } })
        }
    }
}

fn property(field: &FieldDefinition) -> Value {
    let mut schema = value(field.value);
    if field.value.section().is_none() {
        let mut description = field.about.to_owned();
        if let Presence::Optional(_) = field.presence {
            description += &format!(" Without it: {}.", presence(field));
        }
        if !field.privacy.is_empty() {
            description += &format!(" Privacy: {}", field.privacy);
        }
        schema["description"] = description.into();
        schema["examples"] = json!([toml_value(field.example)]);
    }
    if let Presence::Default(default) = field.presence {
        schema["default"] = toml_value(default);
    }
    schema
}

/// Converts a TOML value to JSON.
pub(super) fn toml_value(text: &str) -> Value {
    let table: toml::Table = format!("value = {text}").parse().expect("examples of the table are TOML");
    json!(table["value"])
}

fn value(field: FieldType) -> Value {
    let text = || json!({ "type": "string", "minLength": 1 });
    match field {
        FieldType::Text => text(),
        FieldType::Pattern(_, pattern) => json!({ "type": "string", "pattern": pattern }),
        FieldType::Duration { .. } => json!({ "type": "string", "pattern": DURATION }),
        FieldType::Forms(forms) => {
            let patterns: Vec<String> = forms().iter().map(|form| pattern(&form.usage)).collect();
            json!({ "type": "string", "pattern": format!("^({})$", patterns.join("|")) })
        }
        FieldType::Words(words) => {
            json!({ "enum": words().into_iter().map(|form| form.usage).collect::<Vec<_>>() })
        }
        FieldType::Number(range) => number(range),
        FieldType::Count { least, most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most.min(LARGEST_WHOLE as u64) })
        }
        FieldType::Flag => json!({ "type": "boolean" }),
        FieldType::Texts => json!({ "anyOf": [text(), { "type": "array", "minItems": 1, "items": text() }] }),
        FieldType::Numbers => {
            json!({ "type": "array", "minItems": 1, "items": { "type": "number", "exclusiveMinimum": 0 } })
        }
        FieldType::Shares => {
            json!({ "type": "array", "minItems": 1, "items": number(Range::SHARE) })
        }
        FieldType::Edges => {
            let number = json!({ "type": "number" });
            json!({ "type": "array", "minItems": 3, "maxItems": MAX_BINS + 1, "items": number })
        }
        FieldType::BoundsByKey => {
            let pair =
                json!({ "type": "array", "minItems": 2, "maxItems": 2, "items": { "type": "number" } });
            json!({ "type": "object", "additionalProperties": pair })
        }
        FieldType::Either(types) => {
            json!({ "anyOf": types.iter().map(|value| self::value(*value)).collect::<Vec<_>>() })
        }
        // JSON has no dates. Editors pass a date without quotes as a string, libraries as another
        // type.
        FieldType::Time => {
            json!({ "not": { "type": ["array", "boolean", "null", "number", "object"] }, "pattern": TIME })
        }
        FieldType::Section(inner) => section(inner),
        FieldType::Sections(inner) => json!({ "type": "array", "minItems": 1, "items": section(inner) }),
    }
}

/// Returns a pattern for a form such as `blt:b`. A letter after the colon stands for a whole
/// number, a Greek letter for any number.
fn pattern(usage: &str) -> String {
    match usage.split_once([':', '…']) {
        Some((word, "PATH")) => format!("{word}:.+"),
        Some((word, "")) => format!("{word}.+"),
        Some((word, parameter)) if parameter.is_ascii() => format!("{word}:[0-9]+"),
        Some((word, _)) => format!("{word}:[-+.0-9eE]+"),
        None => usage.into(),
    }
}

/// A pattern that all durations match: a number with its unit, or a unit alone.
const DURATION: &str =
    "^(.*[0-9].*|[A-Za-z]*(second|sec|minute|min|hour|hr|day|week|wk|month|mo|year|yr)s?)$";

/// A pattern that all dates and times match.
const TIME: &str = "^[-+]?[0-9]{4}.*$";

fn number(range: Range) -> Value {
    let mut schema = json!({ "type": "number" });
    match range.from {
        Some((least, true)) => schema["exclusiveMinimum"] = json!(least),
        Some((least, false)) => schema["minimum"] = json!(least),
        None => {}
    }
    if let Some(below) = range.below {
        schema["exclusiveMaximum"] = json!(below);
    }
    schema
}
