//! The privacy guarantee of a log, in words and as JSON: who is protected, and how neighbouring
//! streams differ.

use std::num::NonZeroU32;

use hushflow_mechanism::sensitivity::Neighbours;
use serde_json::{Value, json};

use crate::pipeline::{PublicParameters, Training};

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

/// States the guarantee in one sentence, for readers who do not know differential privacy. It is
/// the definition, P(conclusion) ≤ e^ε P'(conclusion) + δ, with ε and δ rounded up.
pub(super) fn in_plain_words(parameters: &PublicParameters, is_private: bool) -> String {
    if !is_private {
        return "These numbers protect nobody: their noise was drawn from a known seed.".into();
    }
    let privacy = &parameters.privacy;
    let whose = match &parameters.entity {
        None => "any one record".to_owned(),
        Some(entity) => format!("all records of any one entity (one value of the column {})", entity.column),
    };
    let change = match privacy.neighbours {
        Neighbours::ReplaceOne => {
            "held anything else (other values, another key, another time, or nothing usable)"
        }
        Neighbours::ReplaceOneInPlace => "held other values under the same keys and times",
        Neighbours::ZeroOut => "been blank",
    };
    let is_sampled = |training: &Training| !training.sampling.is_public();
    let known = match parameters.training.as_ref().is_some_and(is_sampled) {
        true => "whatever else they know but the rows that each step drew",
        false => "whatever else they know",
    };
    format!(
        "Had {whose} {change}, the probability that anyone draws a given conclusion from everything published here, now or \
         later and {known}, would differ by at most a factor of {}, plus {}.",
        factor(privacy.epsilon),
        chance(privacy.delta)
    )
}

/// e^ε in three significant digits, rounded up.
fn factor(epsilon: f64) -> String {
    let exponent = (epsilon / std::f64::consts::LN_10).floor();
    if exponent >= 15.0 {
        return format!("10^{}", exponent + 1.0);
    }
    // e^ε = mantissa · 10^(exponent − 2), and a little more for the rounding of both.
    let mantissa = ((epsilon - exponent * std::f64::consts::LN_10).exp() * 100.0 * (1.0 + 1e-12)).ceil();
    match exponent as i32 {
        0 => format!("{}", mantissa / 100.0),
        1 => format!("{}", mantissa / 10.0),
        more => grouped(mantissa as u64 * 10u64.pow(more.unsigned_abs() - 2)),
    }
}

/// Formats a probability as `1 in N`, with N rounded down.
fn chance(delta: f64) -> String {
    match (1.0 / delta * (1.0 + 1e-12)).floor() {
        most if most < 1e15 => format!("1 in {}", grouped(most as u64)),
        most => format!("1 in 10^{}", most.log10().floor()),
    }
}

/// A number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn guarantee(parameters: &PublicParameters, is_private: bool) -> String {
    if !is_private {
        return "Nothing: the noise was drawn from a seed.".into();
    }
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
    fn factors_and_chances_are_rounded_against_the_publisher() {
        for (epsilon, text) in [
            (0.1, "1.11"),
            (1.0, "2.72"),
            (4.0, "54.6"),
            (5.0, "149"),
            (8.0, "2,990"),
            (20.0, "486,000,000"),
            (1000.0, "10^435"),
        ] {
            assert_eq!(factor(epsilon), text, "{epsilon}");
        }
        for (delta, text) in
            [(1e-6, "1 in 1,000,000"), (3e-5, "1 in 33,333"), (0.3, "1 in 3"), (1e-20, "1 in 10^20")]
        {
            assert_eq!(chance(delta), text, "{delta}");
        }
    }

    #[test]
    fn limits_are_written_in_words() {
        assert_eq!(
            limited(4, 7, 1),
            " An entity counts in at most 4 epochs, at least 7 epochs apart, with at most 1 record in each."
        );
        assert_eq!(limited(1, 9, 3), " An entity counts in at most 1 epoch, with at most 3 records in each.");
    }
}
