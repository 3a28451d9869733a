//! The section `[ledger]`: where what is spent on the same data is kept, and what may be spent of it.

use std::path::Path;

use hushflow_mechanism::accounting::adjacency::{Adjacency, Unit};
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::sensitivity::Neighbours;

use super::entity::unit;
use super::{guarantee, neighbours, required};
use crate::ledger::Budget;
use crate::pipeline::LedgerSettings;
use crate::pipeline::document::Section;

/// `of_pipeline`: the neighbours of the pipeline, and `of_entities`: whether it protects entities, which the budget does
/// alike unless it says otherwise.
pub(super) fn ledger(
    section: &Section<'_>,
    base: &Path,
    of_pipeline: Option<Neighbours>,
    of_entities: bool,
) -> Option<LedgerSettings> {
    let directory = section.text("directory").map(|directory| base.join(directory.value));
    let budget = match section.get("budget") {
        Some(_) => Some(required(section, "budget", |section| budget(section, of_pipeline, of_entities))?),
        None => None,
    };
    if directory.is_none() && section.get("directory").is_none() && budget.is_none() {
        section.report(
            "nothing is said here: add directory = \"ledger\" or budget = { epsilon = 2, delta = 1e-6 }",
        );
    }
    Some(LedgerSettings { directory, budget })
}

fn budget(section: &Section<'_>, of_pipeline: Option<Neighbours>, of_entities: bool) -> Option<Budget> {
    let (epsilon, delta) = guarantee(section);
    let own = neighbours(section);
    let unit = unit(section).unwrap_or(if of_entities { Unit::Entity } else { Unit::Record });
    let number = |error| section.report(format!("{error}"));
    let epsilon = Epsilon::new(epsilon?).map_err(number).ok();
    let delta = Delta::new(delta?).map_err(number).ok();
    let neighbours = own.or(of_pipeline)?;
    Some(Budget::new(epsilon?, delta?, Adjacency { unit, neighbours }))
}
