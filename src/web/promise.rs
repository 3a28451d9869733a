//! The promise of a log, in words and as JSON: who is protected, and how neighbouring streams
//! differ.

use std::num::NonZeroU32;

use hushflow_mechanism::sensitivity::Neighbours;
use serde_json::{Value, json};

use crate::pipeline::PublicParameters;
use crate::publication::MomentPublication;

/// The protected unit: single records, or entities within their limits.
pub(super) fn unit(parameters: &PublicParameters) -> Value {
    match &parameters.entity {
        None => json!({ "unit": "record" }),
        Some(entity) => json!({
            "unit": "entity",
            "column": entity.column,
            "participations": entity.limits.participations,
            "min_separation": entity.limits.min_separation,
            "records_per_epoch": entity.limits.records_per_epoch,
        }),
    }
}

pub(super) fn guarantee(publication: &MomentPublication) -> String {
    if !publication.is_private() {
        return "Nothing: the noise was drawn from a seed.".into();
    }
    let parameters = publication.parameters();
    let privacy = &parameters.privacy;
    let (what, limits) = match &parameters.entity {
        None => (of_record(privacy.neighbours).to_owned(), String::new()),
        Some(entity) => {
            let limits = &entity.limits;
            (
                of_entity(privacy.neighbours, &entity.column),
                limited(limits.participations, limits.min_separation, limits.records_per_epoch)
                    + &limits.sent_limit.map_or_else(String::new, sent),
            )
        }
    };
    format!(
        "All releases together, of every epoch and under every view, are (ε, δ) = ({}, {})-differentially private for {}: two \
         streams are hard to tell apart if they differ only in {what}.{limits}",
        privacy.epsilon,
        privacy.delta,
        parameters.adjacency()
    )
}

fn of_record(neighbours: Neighbours) -> &'static str {
    match neighbours {
        Neighbours::ReplaceOne => {
            "what one record holds: its values, its key, its event time, and whether it can be used at all"
        }
        Neighbours::ReplaceOneInPlace => {
            "the values of one record; keys, event times, and so all counts are public"
        }
        Neighbours::ZeroOut => "whether one record is blank",
    }
}

fn of_entity(neighbours: Neighbours, column: &str) -> String {
    match neighbours {
        Neighbours::ReplaceOne => format!(
            "what all records of one entity (one value of the column {column}) hold: values, keys, event times, and whether they \
             can be used at all"
        ),
        Neighbours::ReplaceOneInPlace => format!(
            "the values of all records of one entity (one value of the column {column}); whose a record is, keys, event times, \
             and so all counts are public"
        ),
        Neighbours::ZeroOut => {
            format!("whether all records of one entity (one value of the column {column}) are blank")
        }
    }
}

/// Describes k, b and m in a sentence.
fn limited(participations: u64, min_separation: u64, records: u32) -> String {
    let number = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let apart = match participations {
        1 => String::new(),
        _ => format!(", at least {} apart", number(min_separation, "epoch")),
    };
    format!(
        " An entity counts in at most {}{apart}, with at most {} in each.",
        number(participations, "epoch"),
        number(records.into(), "record")
    )
}

/// Describes M in a sentence.
fn sent(limit: NonZeroU32) -> String {
    format!(" Beside these, the number of records that it sent in each is counted, up to {limit}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_in_words() {
        assert_eq!(
            limited(4, 7, 1),
            " An entity counts in at most 4 epochs, at least 7 epochs apart, with at most 1 record in each."
        );
        assert_eq!(limited(1, 9, 3), " An entity counts in at most 1 epoch, with at most 3 records in each.");
    }
}
