//! The reference of the pipeline file, printed from the table of fields that the parser uses: as
//! text, as Markdown and as a JSON schema. It includes a glossary of words and letters in tables
//! and JSON.

mod markdown;
mod schema;
#[cfg(test)]
mod tests;
mod text;

use super::fields::PIPELINE;
use crate::document::definition::{FieldDefinition, FieldType, Presence, SectionDefinition, ValueForm};

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

/// Fields of a section, by title. Fields that every such section has are without a title.
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

/// States whether a field is required, its default, or the behaviour without it.
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

/// Returns the words of a field, unless an earlier field of its group has the same.
fn new_words(fields: &[FieldDefinition], at: usize) -> Vec<ValueForm> {
    let own = words(fields[at].value);
    let usages = |forms: &[ValueForm]| forms.iter().map(|form| form.usage.clone()).collect::<Vec<_>>();
    let is_same = |earlier: &FieldDefinition| usages(&words(earlier.value)) == usages(&own);
    if fields[..at].iter().any(is_same) { Vec::new() } else { own }
}

fn words(value: FieldType) -> Vec<ValueForm> {
    match value {
        FieldType::Words(words) => {
            words().into_iter().map(|form| ValueForm { usage: format!("{:?}", form.usage), ..form }).collect()
        }
        FieldType::Forms(forms) => forms(),
        FieldType::Either(types) => types.iter().flat_map(|value| words(*value)).collect(),
        _ => Vec::new(),
    }
}

/// A term and its meaning.
const TERMS: &[(&str, &str)] = &[
    (
        "epoch",
        "A step of the release: an interval of time, or a number of rows. Every epoch is released, also an empty one.",
    ),
    ("t", "The number of an epoch, from 1."),
    ("x", "What an epoch releases: the count, the sums and the sums of products of its records, with noise."),
    (
        "workload",
        "How a view weighs epochs: a sum of x over epochs, and a divisor. Means and covariances are ratios of such sums, so \
         the divisor cancels in them; it shows in the weight.",
    ),
    (
        "records, weight",
        "The count of a line under its workload: the number of records so far under `prefix`, titled *records* (or *means*, where `several = \"average\"` makes the records of an entity one); otherwise the \
         weighted number, titled *weight*. Under `window:7`, a weight of 100 means 100 records an epoch.",
    ),
    (
        "ramp",
        "Under `window:k` a count or sum is divided by k from the first epoch on, so it is too small before epoch k. With 100 \
         records an epoch, `window:7` shows a weight of 14.3 at epoch 1, 28.6 at epoch 2 and 100 from epoch 7 on; \
         `window-mean:7` shows 100 at every epoch. Means, variances and correlations are ratios of such sums, so both show \
         the same ones, without a ramp.",
    ),
    (
        "±",
        "The half-width of the confidence interval, at 95 % unless the view sets another `level`. In views of `adam` and in plans \
         for windows it is the standard deviation of the noise: the line beside the table says so.",
    ),
    (
        "quality",
        "Whether a line shows the data or its noise: `good`, `noise-dominated`, `too-few-records`, `no-second-moments`, \
         `out-of-range`, and for lines by column `if-missing-at-random`, `different-rows` or `not-missing-at-random`. See estimates.md.",
    ),
    (
        "chain",
        "A hash of the whole log up to a release, shortened to 16 digits in lines. Readers with the same chain have the same \
         history.",
    ),
    ("generation", "The number of the run that drew the noise, from 1: it grows with every start."),
    ("ε, δ", "The guarantee: smaller is more private."),
    ("σ", "Noise multiplier: the standard deviation of the noise for a sensitivity of 1."),
    ("ζ", "`clip_norm`: the largest norm of a record, with the bounds scaled to [−1, 1]."),
    ("λ", "`second_moment_weight`."),
    ("d", "The number of columns."),
    (
        "k, b, m, M",
        "The limits of an entity: `participations`, `min_separation`, `records_per_epoch` and `sent_limit`. In `window:k`, k is the \
         number of epochs.",
    ),
    ("β", "The decay of a workload per epoch."),
    (
        "A, C",
        "The workload and the strategy as matrices: C shapes the noise so that the error of A is small.",
    ),
];
