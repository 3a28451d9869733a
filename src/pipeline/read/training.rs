//! Reads `[training]`, and checks the settings that it requires in other sections.

use std::path::Path;

use hushflow_mechanism::sampling::Sampling;
use hushflow_mechanism::strategy::MAX_HORIZON;

use super::ColumnRoles;
use crate::document::Section;
use crate::pipeline::fields::{MODELS, OPTIMISERS, ORDERS, SAMPLINGS};
use crate::pipeline::training::{ModelKind, OptimiserKind, RowOrder, Target, Training};
use crate::pipeline::{Column, Source};
use crate::strategies::schedule::LearningRates;

pub(super) fn training<'a>(
    section: &Section<'a>,
    columns: Option<&[Column]>,
    roles: &mut ColumnRoles<'a>,
) -> Option<Training> {
    let model = section.require("model", section.word("model", MODELS));
    let optimiser = section.word("optimiser", OPTIMISERS).unwrap_or(OptimiserKind::DpAdam);
    let order = section.word("order", ORDERS).unwrap_or(RowOrder::Shuffled);
    let sampling = section.word("sampling", SAMPLINGS).unwrap_or_default();
    let learning_rate = section.require("learning_rate", section.number("learning_rate"));
    let momentum = section.number("momentum").map_or(0.9, |momentum| momentum.value);
    let records = section.require("records", section.count("records"));
    let batch_size = section.require("batch_size", section.count("batch_size"));
    let passes = section.require("passes", section.count("passes"));
    let read = columns.zip(model).map(|(columns, model)| target(section, model, columns, roles));
    let records = records?.value;
    let least = records.div_ceil(MAX_HORIZON);
    let batch_size = batch_size?
        .filter(&format!("at most records = {records}"), |&size| size <= records)?
        .filter(&format!("at least {least}, for {MAX_HORIZON} steps"), |&size| size >= least)?
        .filter(
            &format!("a divisor of records = {records}, because balls-in-bins puts each row in one of the steps of a pass"),
            |&size| sampling != Sampling::BallsInBins || records.is_multiple_of(size.max(1)),
        )?
        .value;
    let most = MAX_HORIZON / (records / batch_size).max(1);
    let expected = format!("at most {most}, for {MAX_HORIZON} steps");
    let passes = passes?.filter(&expected, |&passes| passes <= most)?.value;
    let (features, target) = read??;
    Some(Training {
        model: model?,
        features,
        target,
        records,
        batch_size: u32::try_from(batch_size).ok()?,
        passes: u32::try_from(passes).ok()?,
        order,
        sampling,
        optimiser,
        learning_rate: learning_rate?.value,
        momentum,
        rates: Vec::new(),
    })
}

/// Returns the features and the target.
fn target<'a>(
    section: &Section<'a>,
    model: ModelKind,
    columns: &[Column],
    roles: &mut ColumnRoles<'a>,
) -> Option<(Vec<Column>, Option<Target>)> {
    let target = section.text("target");
    let classes = section.get("classes");
    match model {
        ModelKind::Gradients => Some((columns.to_vec(), None)),
        ModelKind::Linear => {
            let target = target?;
            let names: Vec<_> = columns.iter().map(|column| format!("{:?}", column.name)).collect();
            let expected = format!("one of [[columns]], whose bounds it needs: {}", names.join(", "));
            let target =
                target.filter(&expected, |name| columns.iter().any(|column| column.name == *name))?;
            let expected = "a target beside at least one other of [[columns]]";
            let target = target.filter(expected, |_| columns.len() > 1)?.value;
            let (own, features): (Vec<_>, Vec<_>) =
                columns.iter().cloned().partition(|column| column.name == target);
            Some((features, own.into_iter().next().map(Target::Number)))
        }
        ModelKind::Logistic | ModelKind::Softmax => {
            let target = target.inspect(|target| roles.claim(target));
            let classes = classes?;
            let (least, expected) = match model {
                ModelKind::Logistic => (2..=2, "two different classes"),
                _ => (2..=usize::MAX, "at least two different classes"),
            };
            let is_valid = |texts: &[&str]| {
                let distinct = (1..texts.len()).all(|at| !texts[..at].contains(&texts[at]));
                least.contains(&texts.len()) && distinct && texts.iter().all(|text| *text == text.trim())
            };
            let classes = classes.filter(expected, |value| {
                value.as_array().is_none_or(|array| {
                    let texts: Vec<_> = array.iter().filter_map(|text| text.get_ref().as_str()).collect();
                    texts.len() != array.len() || is_valid(&texts)
                })
            })?;
            let classes = classes.texts()?.into_iter().map(|class| class.value.into()).collect();
            Some((columns.to_vec(), Some(Target::Class { column: target?.value.into(), classes })))
        }
    }
}

/// Reports a source whose rows can't be read again for every run.
pub(super) fn check_source(root: &Section<'_>, sources: &[Source]) {
    let is_file = |source: &Source| source.input.source().files().is_some() && !source.journal;
    if sources.iter().all(is_file) {
        return;
    }
    if let Some(path) = root.peek("source").and_then(|section| section.get("path")) {
        path.report(
            "training takes every row several times, so it needs a source that can be read again as a whole: name CSV, NDJSON or \
             Parquet files that are not followed",
        );
    }
}

/// Returns the relative learning rates of all steps; empty if they can't be used, which is reported
/// elsewhere.
pub(super) fn rates(schedule: Option<&str>, base: &Path, steps: u64) -> Vec<f64> {
    let rates = schedule.and_then(|schedule| LearningRates::of_steps(schedule, base, steps).ok());
    rates.unwrap_or_default()
}
