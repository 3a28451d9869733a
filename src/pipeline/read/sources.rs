//! Reads the sections `[source]` and `[[sources]]`: the clock of each source, and the fields that
//! must be the same for all.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use hushflow_mechanism::epochs::{ClockSource, LatePolicy, Schedule, TimeSchedule};

use super::epochs::clock;
use super::source::{SourceTiming, source};
use super::{ColumnRoles, required};
use crate::connect::Journaling;
use crate::document::Section;
use crate::pipeline::fields::{LATE_DUPLICATES, PREFLIGHTS, UNMOVED};
use crate::pipeline::{Epochs, Preflight, RowPolicies, Source};

/// The sources of a pipeline.
pub(super) struct SourceSections {
    pub(super) sources: Vec<Source>,
    pub(super) rows: RowPolicies,
    pub(super) preflight: Preflight,
    pub(super) id: Option<String>,
}

/// A source and the settings of its rows.
struct SourceSection {
    source: Source,
    rows: RowPolicies,
    preflight: Preflight,
    id: Option<String>,
}

pub(super) fn sources<'a>(
    root: &Section<'a>,
    base: &Path,
    epochs: Option<&Epochs>,
    roles: &mut ColumnRoles<'a>,
) -> Option<SourceSections> {
    let Some(field) = root.get("sources") else {
        let SourceSection { source, rows, preflight, id } = required(root, "source", |section| {
            for key in ["name", "arrival", "clock", "allowed_lateness", "idle"] {
                section.refuse(key, ALONE);
            }
            let id = id(section, roles, true);
            let clocked = epochs.map(|epochs| jumping(section, epochs));
            let preflight = preflight(section);
            let read = source(section, base, "", clocked);
            read.map(|(source, rows)| SourceSection { source, rows, preflight, id })
        })?;
        return Some(SourceSections { sources: vec![source], rows, preflight, id });
    };
    if root.has("source") {
        root.get("source");
        field.report("found [source] and [[sources]]: keep [source] for one, [[sources]] for several");
        return None;
    }
    let sections = root.sections("sources");
    let mut reader = SourcesReader { base, epochs, names: HashSet::new(), arrivals: HashSet::new() };
    reader.arrivals.extend(epochs.and_then(|epochs| epochs.arrival.clone()));
    let read: Vec<_> = sections.iter().map(|section| reader.read(section, roles)).collect();
    let read: Vec<_> = read.into_iter().collect::<Option<_>>()?;
    agree(&sections, &read);
    let (rows, preflight, id) = read.first().map(|first| (first.rows, first.preflight, first.id.clone()))?;
    let sources = read.into_iter().map(|read| read.source).collect();
    Some(SourceSections { sources, rows, preflight, id })
}

const ALONE: &str = "this field is for one of several [[sources]]: with a single source, arrival, clock and allowed_lateness belong \
    in [epochs], and the source has no name and no idle";

/// Reports fields on which the sources don't agree.
fn agree(sections: &[Section<'_>], read: &[SourceSection]) {
    let journals: Vec<usize> = (0..read.len()).filter(|&at| read[at].source.journal).collect();
    if let Some(&second) = journals.get(1) {
        sections[second].report(
            "this is the second source that can't be read again, and a state directory has only one journal: use files or \
             brokers for all but one, or give this source its own pipeline",
        );
    }
    // Standard input can be used by one source only.
    let piped = |at: &usize| read[*at].source.input.source().journaling() == Journaling::IfWanted;
    if let Some(second) = (0..read.len()).filter(piped).nth(1) {
        sections[second].report("there is only one standard input: use it for one source");
    }
    for (section, SourceSection { rows, preflight, id, .. }) in sections.iter().zip(read).skip(1) {
        if (*rows, *preflight, id) != (read[0].rows, read[0].preflight, &read[0].id) {
            section.report(
                "missing, malformed, preflight and id must be the same for all sources: write them alike",
            );
        }
    }
}

fn preflight(section: &Section<'_>) -> Preflight {
    section.word("preflight", PREFLIGHTS).unwrap_or_default()
}

/// State while reading several sources.
struct SourcesReader<'e> {
    base: &'e Path,
    epochs: Option<&'e Epochs>,
    names: HashSet<String>,
    /// Columns that advance a clock; sources may share them.
    arrivals: HashSet<String>,
}

impl SourcesReader<'_> {
    fn read<'a>(&mut self, section: &Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<SourceSection> {
        let name = section.required_text("name");
        if let Some(name) = name.as_ref().filter(|name| !self.names.insert(name.value.into())) {
            name.report(format!("the source {:?} is named twice: change one name", name.value));
        }
        let clocked = self.epochs.and_then(|epochs| self.clocked(section, epochs, roles));
        let id = id(section, roles, self.names.len() == 1);
        if section.has("id")
            && matches!(self.epochs.map(|epochs| &epochs.schedule), Some(Schedule::ByTime(by)) if is_folding(by))
        {
            section.refuse("id", LATE_DUPLICATES);
        }
        let preflight = preflight(section);
        let read = source(section, self.base, name.map_or("", |name| name.value), clocked);
        section.finish(read.is_some());
        let (source, rows) = read?;
        Some(SourceSection { source, rows, preflight, id })
    }

    /// Reads the clock of a source, which may differ from that of `[epochs]`.
    fn clocked<'a>(
        &mut self,
        section: &Section<'a>,
        epochs: &Epochs,
        roles: &mut ColumnRoles<'a>,
    ) -> Option<SourceTiming> {
        let arrivals = &mut self.arrivals;
        let own = clock(section, &mut |arrival| {
            if arrivals.insert(arrival.value.into()) {
                roles.claim(arrival);
            }
        });
        let lateness = section.duration("allowed_lateness");
        let idle = section.duration("idle").and_then(|micros| u64::try_from(micros).ok());
        let mut epochs = epochs.clone();
        if let Schedule::ByTime(by) = &mut epochs.schedule {
            by.lateness = lateness.unwrap_or(by.lateness);
            (by.clock, epochs.arrival) = own.unwrap_or((by.clock, epochs.arrival));
            if by.clock == ClockSource::EndOfInput {
                by.lateness = 0;
            }
        }
        let moved = matches!(&epochs.schedule, Schedule::ByTime(by) if by.clock != ClockSource::EndOfInput);
        if !moved {
            section.refuse("largest_jump", UNMOVED);
        }
        Some(SourceTiming { idle: idle.map(Duration::from_micros), ..jumping(section, &epochs) })
    }
}

/// Returns the clock of `[epochs]` with the `largest_jump` of the source.
fn jumping(section: &Section<'_>, epochs: &Epochs) -> SourceTiming {
    let largest_jump = section.duration("largest_jump");
    let (schedule, arrival) = (epochs.schedule.clone(), epochs.arrival.clone());
    SourceTiming { schedule, arrival, idle: None, largest_jump }
}

/// Whether late records join a later epoch.
fn is_folding(by: &TimeSchedule) -> bool {
    by.late == LatePolicy::Fold && by.clock != ClockSource::EndOfInput
}

/// Reads the column that identifies duplicates. `first` is true for the first source that names it.
fn id<'a>(section: &Section<'a>, roles: &mut ColumnRoles<'a>, first: bool) -> Option<String> {
    let field = section.text("id")?;
    if first {
        roles.claim(&field);
    }
    Some(field.value.into())
}
