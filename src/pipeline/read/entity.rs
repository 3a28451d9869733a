//! Reads the section `[entity]`: the entities that are protected as a whole, and limits on their
//! contribution.

use std::num::NonZeroU32;

use hushflow_operators::EntityLimits;

use super::ColumnRoles;
use crate::document::{Field, Section};
use crate::pipeline::EntityUnit;
use crate::pipeline::fields::{SEVERAL, UNIT};

/// Reads the section, if there is one.
pub(super) fn entity<'a>(root: &Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<Option<EntityUnit>> {
    super::optional(root, "entity", |section| section_entity(section, roles))
}

/// Reads `unit` of `[privacy]` or a budget: whether entities are protected as a whole.
pub(super) fn is_of_entities(section: &Section<'_>) -> Option<bool> {
    section.word("unit", UNIT)
}

/// Reads a kind of entity.
pub(super) fn kind(section: &Section<'_>, key: &'static str) -> Option<String> {
    section
        .text(key)?
        .filter("a name that is not empty", |kind| !kind.is_empty())
        .map(|kind| kind.value.into())
}

fn section_entity<'a>(section: &Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<EntityUnit> {
    let column = section.required_text("column");
    let column = column.inspect(|column| roles.claim(column));
    let own = kind(section, "kind").or_else(|| column.as_ref().map(|column| column.value.into()));
    let within = section.get("within").and_then(Field::texts).unwrap_or_default();
    let within: Vec<String> = within.iter().map(|kind| kind.value.into()).collect();
    if own.iter().chain(&within).any(|kind| kind == "record") {
        section.report(
            "found \"record\" as a kind of entity, but this word means single records: expected a kind such as \
             kind = \"user\"",
        );
    }
    if own.as_ref().is_some_and(|own| within.contains(own)) {
        section.report("found the entity's own kind in within: expected only larger kinds");
    }
    let participations = section.require("participations", section.count("participations"));
    let min_separation = section.count("min_separation").map_or(1, |number| number.value);
    let records = section.count("records_per_epoch").and_then(|number| u32::try_from(number.value).ok());
    let repeat_policy = section.word("several", SEVERAL);
    let sent = section.count("sent_limit").and_then(|number| {
        let least = u64::from(records.unwrap_or(1));
        number.filter(&format!("a whole number from records_per_epoch = {least}"), |&most| most >= least)
    });
    let limits = EntityLimits {
        participations: participations?.value,
        min_separation,
        records_per_epoch: records.unwrap_or(1),
        repeat_policy: repeat_policy.unwrap_or_default(),
        sent_limit: sent.and_then(|number| u32::try_from(number.value).ok()).and_then(NonZeroU32::new),
    };
    Some(EntityUnit { column: column?.value.into(), kind: own?, within, limits })
}
