//! Reads the section `[ledger]`: location and budget of the ledger of the data.

use std::path::Path;

use hushflow_mechanism::accounting::adjacency::{Adjacency, Unit};
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::sensitivity::Neighbours;

use super::entity::{is_of_entities, kind};
use super::{guarantee, neighbours, optional};
use crate::document::Section;
use crate::ledger::{Budget, data_set_name};
use crate::pipeline::LedgerSettings;

/// Reads the section. `of_pipeline` are the neighbours of the pipeline and `own` is the kind of
/// entity it protects, if any; both are the defaults of the budget.
pub(super) fn ledger(
    section: &Section<'_>,
    base: &Path,
    of_pipeline: Option<Neighbours>,
    own: Option<&str>,
) -> Option<LedgerSettings> {
    let directory = section.text("directory").map(|directory| base.join(directory.value));
    let budget = optional(section, "budget", |section| budget(section, of_pipeline, own))?;
    let data_set = section.text("data_set").and_then(|name| name.map(|name| data_set_name(name)));
    let data_set = data_set.map(|name| name.value);
    Some(LedgerSettings { directory, data_set, budget })
}

fn budget(section: &Section<'_>, of_pipeline: Option<Neighbours>, own: Option<&str>) -> Option<Budget> {
    let (epsilon, delta) = guarantee(section);
    let stated = neighbours(section);
    let unit = unit(section, own);
    let number = |error| section.report(format!("{error}"));
    let epsilon = Epsilon::new(epsilon?).map_err(number).ok();
    let delta = Delta::new(delta?).map_err(number).ok();
    let neighbours = stated.or(of_pipeline)?;
    Some(Budget::new(epsilon?, delta?, Adjacency { unit: unit?, neighbours }))
}

/// Reads the unit of a budget.
fn unit(section: &Section<'_>, own: Option<&str>) -> Option<Unit> {
    let stated = kind(section, "entity");
    match (is_of_entities(section), &stated) {
        (Some(false), _) => Some(Unit::Record),
        (None, None) => Some(own.map_or(Unit::Record, |own| Unit::Entity(own.into()))),
        (_, Some(kind)) => Some(Unit::Entity(kind.clone())),
        (Some(true), None) => {
            let own = own.map(|own| Unit::Entity(own.into()));
            section.require("entity", own)
        }
    }
}
