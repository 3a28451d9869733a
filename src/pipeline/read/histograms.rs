//! Reads `[[histograms]]`.

use std::collections::HashSet;

use super::{ColumnRoles, PADDED, is_padded};
use crate::document::Section;
use crate::histogram::{Histogram, HistogramBins};
use crate::pipeline::Column;

pub(super) fn histograms<'a>(
    root: &Section<'a>,
    columns: Option<&[Column]>,
    roles: &mut ColumnRoles<'a>,
) -> Option<Vec<Histogram>> {
    let mut names = HashSet::new();
    let sections = root.sections("histograms").into_iter();
    let read = sections.map(|section| {
        let histogram = histogram(&section, columns.unwrap_or_default(), &mut names, roles);
        section.finish(histogram.is_some());
        histogram
    });
    let read: Vec<_> = read.collect();
    read.into_iter().collect()
}

fn histogram<'a>(
    section: &Section<'a>,
    columns: &[Column],
    names: &mut HashSet<&'a str>,
    roles: &mut ColumnRoles<'a>,
) -> Option<Histogram> {
    let name = section.required_text("column");
    let column = name.as_ref().and_then(|name| columns.iter().find(|column| column.name == name.value));
    if let Some(name) = &name {
        if !names.insert(name.value) {
            name.report(format!("the column {:?} has two histograms: keep one", name.value));
        } else if column.is_none() {
            roles.claim(name);
        }
    }
    section.get("branching");
    let (edges, bins, values) = (section.get("edges"), section.count("bins"), section.get("values"));
    let bins = match (edges, bins, values) {
        (Some(edges), None, None) => {
            if column.is_some_and(|column| !column.bounds.is_empty()) {
                edges.report(
                    "keys have bounds of their own in this column, so its edges have no common unit: give bins = 20, \
                     which splits the bounds of each key",
                );
                return None;
            }
            let expected = "at least three ascending numbers, such as [0, 10, 20]";
            let edges = edges.numbers(expected)?.filter(expected, |edges| {
                edges.len() > 2 && edges.windows(2).all(|pair| pair[0] < pair[1])
            })?;
            HistogramBins::Edges(edges.value)
        }
        (None, Some(bins), None) => match column {
            Some(column) => HistogramBins::Edges(even(column.lower, column.upper, bins.value)),
            None => {
                bins.report("only one of [[columns]] has bounds to split: give the edges of another column");
                return None;
            }
        },
        (None, None, Some(values)) => {
            if let Some(column) = column {
                values.report(format!("the column {:?} is a number: give edges or bins", column.name));
                return None;
            }
            let mut seen = HashSet::new();
            let values = values.texts()?;
            for value in &values {
                if !seen.insert(value.value) {
                    value.report(format!("the value {:?} is listed twice: remove one", value.value));
                } else if is_padded(value.value) {
                    value.report(format!("the value {:?} {PADDED}", value.value));
                }
            }
            HistogramBins::Values(values.iter().map(|value| value.value.into()).collect())
        }
        (None, None, None) => {
            section.report("no bins: add edges = [0, 10, 20], or bins = 20, or values = [\"a\", \"b\"]");
            return None;
        }
        (Some(_), ..) | (_, Some(_), Some(_)) => {
            section.report("found more than one of edges, bins and values: keep one of them");
            return None;
        }
    };
    let branching = section.count("branching").and_then(|number| u32::try_from(number.value).ok());
    Some(Histogram { column: name?.value.into(), bins, branching })
}

/// Returns the edges of bins of equal width.
fn even(lower: f64, upper: f64, bins: u64) -> Vec<f64> {
    let share = |edge: u64| edge as f64 / bins as f64;
    (0..=bins).map(|edge| lower * (1.0 - share(edge)) + upper * share(edge)).collect()
}
