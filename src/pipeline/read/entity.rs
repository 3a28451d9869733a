//! The section `[entity]`: whose records are protected as a whole, and how much of the stream they may be.

use hushflow_mechanism::accounting::adjacency::Unit;
use hushflow_operators::{EntityLimits, Several};

use super::Roles;
use crate::pipeline::EntityUnit;
use crate::pipeline::document::Section;

/// The section, if there is one, where `[privacy] unit` says the same.
pub(super) fn entity<'a>(root: &Section<'a>, roles: &mut Roles<'a>) -> Option<Option<EntityUnit>> {
    let unit = root.peek("privacy").and_then(|privacy| unit(&privacy));
    let entity = super::optional(root, "entity", |section| section_entity(section, roles))?;
    match (unit, &entity) {
        (Some(Unit::Entity), None) => {
            root.report(
                "unit = \"entity\" needs a section [entity] with column = \"user\" and participations = 10",
            );
            None
        }
        (Some(Unit::Record), Some(_)) | (None, Some(_)) => {
            let section = root.peek("entity");
            section.as_ref().unwrap_or(root).report("a section [entity] needs unit = \"entity\" in [privacy]: what is protected must be said there");
            None
        }
        _ => Some(entity),
    }
}

/// What `[privacy]` or a budget says is protected as a whole.
pub(super) fn unit(section: &Section<'_>) -> Option<Unit> {
    section.word("unit", &[("record", Unit::Record), ("entity", Unit::Entity)])
}

fn section_entity<'a>(section: &Section<'a>, roles: &mut Roles<'a>) -> Option<EntityUnit> {
    let column = section.require("column", section.text("column"), "column = \"user\"");
    let column = column.inspect(|column| roles.claim(column));
    let participations = section.require(
        "participations",
        section.count("participations", 1),
        "participations = 10, the most epochs in which an entity counts",
    );
    let number = |key| section.count(key, 1).map_or(1, |number| number.value);
    let min_separation = number("min_separation");
    let records = section.count("records_per_epoch", 1);
    let records = records.and_then(|field| {
        field.map(|&records| u32::try_from(records).map_err(|_| "expected a whole number below 2^32".into()))
    });
    let several = section.word("several", &[("keep", Several::Keep), ("average", Several::Average)]);
    let limits = EntityLimits {
        participations: participations?.value,
        min_separation,
        records_per_epoch: records.map_or(1, |records| records.value),
        several: several.unwrap_or_default(),
    };
    Some(EntityUnit { column: column?.value.into(), limits })
}
