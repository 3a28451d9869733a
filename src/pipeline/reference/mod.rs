//! The reference of the pipeline file, printed from the table of fields that the parser
//! reads by: as text, as Markdown and as a JSON schema.

mod glossary;
mod markdown;
mod schema;
#[cfg(test)]
mod tests;
mod text;

use super::fields::PIPELINE;
use crate::document::definition::{FieldDefinition, FieldType, Form, Presence, SectionDefinition};

pub use markdown::markdown;
pub use schema::json_schema;
pub use text::{section_names, text};

/// Returns the whole file and its sections, those inside others after them.
fn sections() -> Vec<&'static SectionDefinition> {
    fn add(section: &'static SectionDefinition, all: &mut Vec<&'static SectionDefinition>) {
        all.push(section);
        section.fields.iter().filter_map(|field| field.value.section()).for_each(|inner| add(inner, all));
    }
    let mut all = Vec::new();
    add(&PIPELINE, &mut all);
    all
}

/// Fields of a section with a title: none for those that every such section has.
fn groups(section: &SectionDefinition) -> Vec<(Option<String>, &'static [FieldDefinition])> {
    let groups = (section.groups)().into_iter().map(|group| (Some(group.of), group.fields));
    std::iter::once((None, section.fields)).chain(groups).filter(|(_, fields)| !fields.is_empty()).collect()
}

/// The groups to print: without those that another section prints.
fn printed_groups(section: &SectionDefinition) -> Vec<(Option<String>, &'static [FieldDefinition])> {
    let all = groups(section);
    let is_heading = |of: &Option<String>| of.as_ref().is_some_and(|of| of.starts_with('['));
    if all.iter().any(|(of, _)| is_heading(of)) { all.into_iter().take(1).collect() } else { all }
}

/// States whether a field is required, its default, or what holds without it.
fn presence(field: &FieldDefinition) -> String {
    match field.presence {
        Presence::Required => "required".into(),
        Presence::Default(value) => format!("`{value}`"),
        Presence::Optional(without) => without.into(),
    }
}

/// Describes the type of a field in a few words; its words or forms are listed separately.
fn type_of(value: FieldType) -> String {
    match value {
        FieldType::Words(_) => "word".into(),
        FieldType::Forms(_) => "text".into(),
        FieldType::Text => "text".into(),
        FieldType::Texts => "text, or a list of texts".into(),
        FieldType::Either(types) => {
            types.iter().map(|value| type_of(*value)).collect::<Vec<_>>().join(", or ")
        }
        FieldType::Duration { .. } => "duration".into(),
        FieldType::Sections(_) => "tables".into(),
        value => value.expected().trim_start_matches("a ").into(),
    }
}

/// Returns the words or forms of a type.
fn words(value: FieldType) -> Vec<Form> {
    match value {
        FieldType::Words(words) => {
            words().into_iter().map(|form| Form { usage: format!("{:?}", form.usage), ..form }).collect()
        }
        FieldType::Forms(forms) => forms(),
        FieldType::Either(types) => types.iter().flat_map(|value| words(*value)).collect(),
        _ => Vec::new(),
    }
}
