//! Converts a TOML document to a [`Pipeline`], with one function per section. A function that
//! returns `None` has reported the reason.

mod entity;
mod epochs;
mod estimator;
mod histograms;
mod ledger;
mod release;
mod source;
mod sources;
#[cfg(test)]
mod tests;
mod training;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::noise::{NoiseSource, Offsets};
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::StrategyName;
use hushflow_mechanism::windows::WindowSpan;
use hushflow_mechanism::workload::Workload;

use super::fields::{NEIGHBOURS, PIPELINE, SECOND_MOMENTS};
use super::{
    Column, EntityUnit, KeyColumn, KeyDiscovery, MissingPolicy, Pipeline, Privacy, Sink, Training, of_records,
};
use crate::document::{Document, Field, PipelineProblem, Section};
use crate::estimates::{LogFacts, views};
use crate::state::{StateSettings, SumRetention};
use crate::time::parse_duration;
use crate::whole::{SETTINGS, read_text};
use release::ReleaseSection;

pub(super) fn pipeline(text: &str, path: &Path) -> Result<Pipeline, Vec<PipelineProblem>> {
    let document = Document::new(text);
    let parsed = document.parse();
    let base = path.parent().unwrap_or(Path::new(""));
    let pipeline = parsed.as_ref().and_then(|table| root(&Section::root(&document, table, &PIPELINE), base));
    let problems = document.into_problems();
    pipeline.filter(|_| problems.is_empty()).ok_or(problems)
}

fn root(section: &Section<'_>, base: &Path) -> Option<Pipeline> {
    let name = section.required_text("name").map(|name| name.value.into());
    let mut roles = ColumnRoles::default();
    let columns = columns(section, &mut roles);
    let key = optional(section, "key", |section| key(section, base, &mut roles));
    if let (Some(columns), Some(key)) = (&columns, &key) {
        key_bounds(section, columns, key.as_ref());
    }
    let histograms = histograms::histograms(section, columns.as_deref(), &mut roles);
    let entity = entity::entity(section, &mut roles);
    let dimension = columns.as_ref().map_or(1, Vec::len);
    let named = estimator::named(section);
    let estimator = named.map(|named| {
        required(section, "release", |section| {
            let estimator = estimator::estimator(section, named, dimension);
            let window = estimator::window(section);
            Some((estimator?, window?))
        })
    });
    let training =
        optional(section, "training", |section| training::training(section, columns.as_deref(), &mut roles));
    let default_workload =
        || training.as_ref().and_then(Option::as_ref).map(Training::workload).unwrap_or_default();
    let release = match named {
        Some(_) => Some(Some(ReleaseSection::new(Some(StrategyName::default()), Workload::default()))),
        None => optional(section, "release", |section| release::release(section, base, &default_workload())),
    };
    let unnamed = || ReleaseSection::new(None, default_workload());
    let release = release.map(|release| release.unwrap_or_else(unnamed));
    let release = release.map(|mut release| {
        if let Some(Some(training)) = &training {
            release.method = training.method();
            if !training.sampling.is_public() {
                // The identity: it amplifies best (docs/training.md#batches).
                release = release.by_default(StrategyName::default());
            }
        }
        release
    });
    let method = release.as_ref().map(|release| release.method).unwrap_or_default();
    let privacy = required(section, "privacy", |section| privacy(section, dimension));
    let neighbours = privacy.map(|privacy| privacy.neighbours);
    let epochs = match &training {
        Some(Some(training)) => Some(training.epochs()),
        Some(None) => section.section("epochs").and_then(|section| {
            let epochs = epochs::epochs(&section, &mut roles);
            section.finish(epochs.is_some());
            epochs
        }),
        None => None,
    };
    let sources = sources::sources(section, base, epochs.as_ref(), &mut roles);
    if let (Some(Some(_)), Some(sources)) = (&training, &sources) {
        training::check_source(section, &sources.sources);
    }
    let second_moments = privacy.map_or(SecondMoment::Full, |privacy| privacy.second_moments);
    let log = LogFacts {
        columns: columns.as_ref().map(|columns| columns.iter().map(|column| column.name.as_str()).collect()),
        second_moments: of_records(method, second_moments, epochs.as_ref()),
        method,
        keyed: key.as_ref().is_some_and(Option::is_some),
        key_bounds: columns
            .as_ref()
            .is_some_and(|columns| columns.iter().any(|column| !column.bounds.is_empty())),
        by_column: sources.as_ref().is_none_or(|sources| sources.rows.missing == MissingPolicy::ByColumn),
        histograms: histograms.as_deref().unwrap_or_default(),
        epochs: epochs.as_ref().map_or(0, |epochs| epochs.schedule.horizon()),
    };
    let released = release::weighted(section, base, release.as_ref(), &log);
    let schedule = release.as_ref().and_then(|release| release.schedule.as_deref());
    let training = training.map(|training| {
        training
            .map(|training| Training { rates: training::rates(schedule, base, training.steps()), ..training })
    });
    let views = if named.is_some() { Some(Vec::new()) } else { views(section, base, &released, &log) };
    let sinks = sinks(section, base);
    let state = optional(section, "state", |section| state(section, base));
    let ledger = optional(section, "ledger", |section| {
        let kind = entity.as_ref().and_then(|entity| Some(entity.as_ref()?.kind.as_str()));
        ledger::ledger(section, base, neighbours, kind)
    });
    let noise = optional(section, "simulation", |section| simulation(section, base));
    section.finish(true);
    let sources::SourceSections { sources, rows, preflight, id } = sources?;
    let (state_directory, state) = state?.unwrap_or_default();
    let (estimator, window) = match estimator {
        Some(estimator) => estimator.map(|(estimator, window)| (Some(estimator), window))?,
        None => (None, WindowSpan::default()),
    };
    let (entity, epochs) = (entity?, epochs?);
    let (release, training) = (release?, training?);
    let strategy_files = release.files.clone();
    let participation = match &training {
        Some(training) => training.participation(training.passes),
        None => entity.as_ref().map_or(Participation::Single, EntityUnit::participation),
    };
    let release = release.finish(released, participation, epochs.schedule.horizon());
    Some(Pipeline {
        name: name?,
        sources,
        rows,
        preflight,
        id,
        columns: columns?,
        histograms: histograms?,
        key: key?,
        entity,
        epochs,
        privacy: match &training {
            Some(_) => Privacy { second_moments: SecondMoment::Diagonal, ..privacy? },
            None => privacy?,
        },
        training,
        release,
        estimator,
        window,
        strategy_files,
        views: views?,
        sinks: sinks?,
        state_directory,
        state,
        ledger: ledger?.unwrap_or_default(),
        noise: noise?.unwrap_or(NoiseSource::System),
    })
}

fn sinks(root: &Section<'_>, base: &Path) -> Option<Vec<Sink>> {
    let sinks: Vec<Option<Sink>> = root
        .sections("sinks")
        .iter()
        .map(|section| {
            let sink = Sink::read(section, base);
            section.finish(sink.is_some());
            sink
        })
        .collect();
    let sinks: Vec<Sink> = sinks.into_iter().collect::<Option<_>>()?;
    let mut destinations = HashSet::new();
    if !sinks
        .iter()
        .filter_map(|sink| sink.target().destination())
        .all(|destination| destinations.insert(destination))
    {
        root.report("two [[sinks]] have the same path: give each its own");
    }
    Some(sinks)
}

/// Reads the noise of a simulation.
fn simulation(section: &Section<'_>, base: &Path) -> Option<NoiseSource> {
    let seed = section.require("seed", section.count("seed")).map(|seed| seed.value);
    let Some(file) = section.text("offsets") else { return seed.map(NoiseSource::Seeded) };
    let offsets = file.map(|name| read_offsets(&base.join(name)))?.value;
    Some(NoiseSource::Shifted { seed: seed?, offsets: offsets.leaked() })
}

fn read_offsets(path: &Path) -> Result<Offsets, String> {
    let at = path.display();
    let text = read_text(path, SETTINGS).map_err(|error| format!("{at} can't be read: {error}"))?;
    text.parse().map_err(|error| format!("{at}: {error}"))
}

/// Reads a required section and reports unread fields.
fn required<'a, T>(
    parent: &Section<'a>,
    key: &'static str,
    read: impl FnOnce(&Section<'a>) -> Option<T>,
) -> Option<T> {
    let section = parent.require(key, parent.section(key))?;
    let value = read(&section);
    section.finish(value.is_some());
    value
}

/// Reads an optional section; `Some(None)` if it is absent.
fn optional<'a, T>(
    parent: &Section<'a>,
    key: &'static str,
    read: impl FnOnce(&Section<'a>) -> Option<T>,
) -> Option<Option<T>> {
    match parent.get(key) {
        None => Some(None),
        Some(_) => required(parent, key, read).map(Some),
    }
}

/// Columns that already have a role: each column has at most one.
#[derive(Default)]
struct ColumnRoles<'a>(HashSet<&'a str>);

impl<'a> ColumnRoles<'a> {
    fn claim(&mut self, column: &Field<'a, &'a str>) {
        if !self.0.insert(column.value) {
            column.report(format!("the column {:?} is named twice: each column has one role", column.value));
        }
    }
}

fn columns<'a>(root: &Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<Vec<Column>> {
    let sections = root.sections("columns");
    if sections.is_empty() {
        root.require::<()>("columns", None);
        // The list is empty; `get` has reported a value of another type.
        if let Some(columns) = root.get("columns") {
            columns.filter(
                "at least one column, as a section [[columns]] with name, lower and upper",
                |value| value.as_array().is_none_or(|columns| !columns.is_empty()),
            );
        }
        return None;
    }
    let columns: Vec<_> = sections.into_iter().map(|section| column(section, roles)).collect();
    columns.into_iter().collect()
}

fn column<'a>(section: Section<'a>, roles: &mut ColumnRoles<'a>) -> Option<Column> {
    let name = section.required_text("name").inspect(|name| roles.claim(name));
    let has_bounds = section.has("bounds");
    let (lower, upper) = (section.number("lower"), section.number("upper"));
    let bounds = match section.get("bounds") {
        None => Some(BTreeMap::new()),
        Some(_) => section.section("bounds").and_then(|section| bounds_of_keys(&section)),
    };
    let for_other_keys = ["lower", "upper"].iter().any(|end| section.has(end));
    let (lower, upper) = match has_bounds && !for_other_keys {
        true => (None, None),
        false => (lower, upper),
    };
    section.finish(true);
    if has_bounds && !for_other_keys {
        // Every key has its own bounds, which `key_bounds` checks. The column's bounds contain
        // them all.
        let (name, bounds) = (name?.value.into(), bounds?);
        let all = bounds.values().copied().reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let (lower, upper) = all.unwrap_or((-1.0, 1.0));
        return Some(Column { name, lower, upper, bounds });
    }
    let (lower, upper) = (lower?.value, upper?);
    let upper = upper.filter(&format!("a number above lower = {lower}"), |&upper| upper > lower)?;
    let upper = upper.filter(FINITE_DISTANCE, |upper| (upper - lower).is_finite())?.value;
    Some(Column { name: name?.value.into(), lower, upper, bounds: bounds? })
}

const FINITE_DISTANCE: &str = "bounds whose distance is a finite number";

/// Reads `[columns.bounds]`: lower and upper bound by key.
fn bounds_of_keys(section: &Section<'_>) -> Option<BTreeMap<String, (f64, f64)>> {
    let expected = "a lower and an upper bound, such as [0, 500]";
    let bounds = section.entries().into_iter().map(|(key, field)| {
        let pair = field.numbers(expected)?.filter(expected, |pair| pair.len() == 2 && pair[0] < pair[1])?;
        let pair = pair.filter(FINITE_DISTANCE, |pair| (pair[1] - pair[0]).is_finite())?.value;
        Some((key.to_owned(), (pair[0], pair[1])))
    });
    let bounds: Vec<Option<_>> = bounds.collect();
    bounds.into_iter().collect()
}

/// Reports bounds of keys that the pipeline does not list, and listed keys without bounds.
fn key_bounds(root: &Section<'_>, columns: &[Column], key: Option<&KeyColumn>) {
    for (column, section) in columns.iter().zip(root.sections("columns")) {
        let (Some(bounds), Some(key)) = (section.get("bounds"), key) else { continue };
        let mut lacking = key.values.iter().filter(|name| !column.bounds.contains_key(*name));
        if !section.has("lower")
            && let Some(name) = lacking.next()
        {
            bounds.report(format!(
                "the key {name:?} has no bounds: add for example {name} = [0, 60], or lower and upper for the keys \
                 that are not listed"
            ));
        }
        for unknown in column.bounds.keys().filter(|name| !key.values.contains(name)) {
            let expected = key.values.join(", ");
            bounds.report(format!("there is no key {unknown:?} in [key] values: expected one of {expected}"));
        }
    }
}

fn key<'a>(section: &Section<'a>, base: &Path, roles: &mut ColumnRoles<'a>) -> Option<KeyColumn> {
    let column = section.required_text("column");
    let column = column.inspect(|column| roles.claim(column));
    if section.has("discover") {
        for listed in ["values", "values_file"].into_iter().filter_map(|key| section.get(key)) {
            listed.report("keys are discovered: leave out the list, or leave out discover");
        }
        let discover = required(section, "discover", discovery);
        return Some(KeyColumn {
            column: column?.value.into(),
            values: Vec::new(),
            discover: Some(discover?),
        });
    }
    let values = match (section.get("values"), section.text("values_file")) {
        (Some(values), None) => key_values(values.texts()?),
        (None, Some(file)) => file.map(|name| read_key_values(&base.join(name)))?.value,
        (None, None) => {
            section.report(
                "no keys: add values = [\"…\"], or values_file = \"keys.txt\" with one key per line, or discover = \
                 { delta = 1e-8 } to find them",
            );
            return None;
        }
        (Some(_), Some(file)) => {
            file.report("found values and values_file: keep one of them");
            return None;
        }
    };
    Some(KeyColumn { column: column?.value.into(), values, discover: None })
}

/// Reads `[key] discover`.
fn discovery(section: &Section<'_>) -> Option<KeyDiscovery> {
    let delta = section.require("delta", section.number("delta"));
    let share = section.number("share").map_or(0.1, |share| share.value);
    let most = section.count("most").map_or(1000, |most| most.value as u32);
    let at_least = section.count("at_least").map_or(1, |least| least.value);
    let threshold = section.count("threshold").map(|threshold| threshold.value);
    let (texts, slots) = Default::default();
    Some(KeyDiscovery { delta: delta?.value, share, most, at_least, threshold, texts, slots })
}

fn key_values(fields: Vec<Field<'_, &str>>) -> Vec<String> {
    let mut seen = HashSet::new();
    for twice in fields.iter().filter(|field| !seen.insert(field.value)) {
        twice.report(format!("the key {:?} is listed twice: remove one", twice.value));
    }
    for padded in fields.iter().filter(|field| is_padded(field.value)) {
        padded.report(format!("the key {:?} {PADDED}", padded.value));
    }
    fields.iter().map(|field| field.value.into()).collect()
}

/// Whether the key begins or ends with a blank. No row has such a key: blanks around values are
/// trimmed.
fn is_padded(key: &str) -> bool {
    key.trim_ascii() != key
}

const PADDED: &str = "begins or ends with a blank; blanks around values in rows are ignored, so no row would match: remove \
    the blank";

/// Reads one key per line and skips empty lines.
fn read_key_values(path: &Path) -> Result<Vec<String>, String> {
    let at = path.display();
    let text = read_text(path, SETTINGS).map_err(|error| format!("{at} can't be read: {error}"))?;
    let mut seen = HashSet::new();
    let mut values = Vec::new();
    for (index, value) in text.lines().enumerate().filter(|(_, value)| !value.is_empty()) {
        if !seen.insert(value) {
            return Err(format!("{at}:{}: the key {value:?} is listed twice: remove one", index + 1));
        }
        if is_padded(value) {
            return Err(format!("{at}:{}: the key {value:?} {PADDED}", index + 1));
        }
        values.push(value.into());
    }
    if values.is_empty() { Err(format!("{at} holds no key: expected one per line")) } else { Ok(values) }
}

fn privacy(section: &Section<'_>, dimension: usize) -> Option<Privacy> {
    let (epsilon, delta) = guarantee(section);
    let neighbours = neighbours(section);
    // Marks the field as read; `entity` checks that it agrees with [entity].
    entity::is_of_entities(section);
    let second_moments = section.word("second_moments", SECOND_MOMENTS);
    let clip_norm = section.number("clip_norm").map(|norm| norm.value);
    let second_moment_weight = section.number("second_moment_weight").map(|weight| weight.value);
    let histogram_weight = section.number("histogram_weight").map(|weight| weight.value);
    Some(Privacy {
        epsilon: epsilon?,
        delta: delta?,
        neighbours: neighbours.unwrap_or(Neighbours::ReplaceOne),
        clip_norm: clip_norm.unwrap_or((dimension as f64).sqrt()),
        second_moment_weight,
        second_moments: second_moments.unwrap_or(SecondMoment::Full),
        histogram_weight,
    })
}

/// Reads ε and δ.
fn guarantee(section: &Section<'_>) -> (Option<f64>, Option<f64>) {
    let epsilon = section.require("epsilon", section.number("epsilon"));
    let delta = section.require("delta", section.number("delta"));
    (epsilon.map(|epsilon| epsilon.value), delta.map(|delta| delta.value))
}

fn neighbours(section: &Section<'_>) -> Option<Neighbours> {
    section.word("neighbours", NEIGHBOURS)
}

/// Reads the state directory and its settings.
fn state(section: &Section<'_>, base: &Path) -> Option<(Option<PathBuf>, StateSettings)> {
    let path = |key| section.text(key).map(|path| base.join(path.value));
    let keep = section.form("keep", keep).unwrap_or_default();
    Some((path("directory"), StateSettings { keep, anchor: path("anchor"), public: path("public") }))
}

fn keep(text: &str) -> Option<SumRetention> {
    let epochs = text.strip_suffix("epochs").or(text.strip_suffix("epoch"));
    match epochs {
        _ if text == "all" => Some(SumRetention::All),
        Some(number) => number.trim().parse().ok().map(SumRetention::Epochs),
        None => parse_duration(text)
            .and_then(|micros| u64::try_from(micros).ok())
            .map(|micros| SumRetention::Seconds(micros.div_ceil(1_000_000))),
    }
}
