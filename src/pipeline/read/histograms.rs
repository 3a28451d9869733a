//! Reads `[[histograms]]`.

use std::collections::{HashMap, HashSet};

use super::{ColumnRoles, PADDED, is_padded};
use crate::document::Section;
use crate::histogram::{Histogram, HistogramBins, even_edges};
use crate::pipeline::Column;
use crate::pipeline::fields::MAX_BINS;

/// Prefixes of a column's name in the names of the fields of its bins.
const PARTS: [&str; 4] = ["", "noise_", "lower_", "upper_"];

pub(super) fn histograms<'a>(
    root: &Section<'a>,
    columns: Option<&[Column]>,
    roles: &mut ColumnRoles<'a>,
) -> Option<Vec<Histogram>> {
    let columns = columns.unwrap_or_default();
    let (mut columns_seen, mut bin_names) = (HashSet::new(), HashMap::new());
    let sections = root.sections("histograms").into_iter();
    let read = sections.map(|section| {
        let histogram = histogram(&section, columns, &mut columns_seen, roles);
        if let Some(histogram) = &histogram {
            name_bins(&section, histogram, columns, &mut bin_names);
        }
        section.finish(histogram.is_some());
        histogram
    });
    let read: Vec<_> = read.collect();
    read.into_iter().collect()
}

fn histogram<'a>(
    section: &Section<'a>,
    columns: &[Column],
    columns_seen: &mut HashSet<&'a str>,
    roles: &mut ColumnRoles<'a>,
) -> Option<Histogram> {
    let name = section.required_text("column");
    let column = name.as_ref().and_then(|name| columns.iter().find(|column| column.name == name.value));
    if let Some(name) = &name {
        if !columns_seen.insert(name.value) {
            name.report(format!("the column {:?} has two histograms: keep one", name.value));
        } else if column.is_none() {
            roles.claim(name);
        }
    }
    let bins = match ["edges", "bins", "values"].map(|kind| section.has(kind)) {
        [true, false, false] => edges(section, column),
        [false, true, false] => bins(section, column),
        [false, false, true] => values(section, column),
        [false, false, false] => {
            section.report("no bins: add edges = [0, 10, 20], or bins = 20, or values = [\"a\", \"b\"]");
            None
        }
        _ => {
            section.report("found more than one of edges, bins and values: keep one of them");
            None
        }
    };
    let branching = section.count("branching");
    let histogram = Histogram { column: name?.value.into(), bins: bins?, branching: None };
    let Some(branching) = branching else { return Some(histogram) };
    // A rule of the section refuses `branching` together with `values`.
    let all = histogram.number();
    let expected = format!("fewer than the {all} bins, since one group of all bins adds nothing");
    let is_below = |branching: &u64| *branching < all as u64 || !histogram.is_numeric();
    let branching = branching.filter(&expected, is_below)?.value;
    Some(Histogram { branching: u32::try_from(branching).ok(), ..histogram })
}

fn edges(section: &Section<'_>, column: Option<&Column>) -> Option<HistogramBins> {
    let edges = section.get("edges")?;
    if column.is_some_and(|column| !column.bounds.is_empty()) {
        edges.report(
            "keys have bounds of their own in this column, so its edges have no common unit: give bins = 20, \
             which splits the bounds of each key",
        );
        return None;
    }
    let expected = "at least three ascending numbers, such as [0, 10, 20]";
    let edges = edges
        .numbers(expected)?
        .filter(expected, |edges| edges.len() > 2 && edges.windows(2).all(|pair| pair[0] < pair[1]))?;
    let edges = edges.map(|edges| at_most(edges.len() as u64 - 1, "edges").map(|()| edges.clone()))?;
    Some(HistogramBins::Edges(edges.value))
}

fn bins(section: &Section<'_>, column: Option<&Column>) -> Option<HistogramBins> {
    let bins = section.count("bins")?;
    let Some(column) = column else {
        bins.report("only one of [[columns]] has bounds to split: give the edges of another column");
        return None;
    };
    let Column { lower, upper, .. } = column;
    let edges = bins.map(|&bins| {
        let edges = even_edges(*lower, *upper, bins as usize);
        let ascend = edges.windows(2).all(|pair| pair[0] < pair[1]);
        let close = || {
            format!(
                "the bounds {lower} and {upper} are too close for {bins} bins between different numbers: \
                 give fewer bins, or bounds farther apart"
            )
        };
        if ascend { Ok(edges) } else { Err(close()) }
    })?;
    Some(HistogramBins::Edges(edges.value))
}

fn values(section: &Section<'_>, column: Option<&Column>) -> Option<HistogramBins> {
    let field = section.get("values")?;
    if let Some(column) = column {
        field.report(format!("the column {:?} is a number: give edges or bins", column.name));
        return None;
    }
    let values = field.texts()?;
    if let Err(problem) = at_most(values.len() as u64, "values") {
        values[0].report(problem);
        return None;
    }
    let mut seen = HashSet::new();
    for value in &values {
        if !seen.insert(value.value) {
            value.report(format!("the value {:?} is listed twice: remove one", value.value));
        } else if value.value.is_empty() {
            value.report("an empty text is a missing value, which falls into no bin: remove it");
        } else if is_padded(value.value) {
            value.report(format!("the value {:?} {PADDED}", value.value));
        }
    }
    Some(HistogramBins::Values(values.iter().map(|value| value.value.into()).collect()))
}

fn at_most(bins: u64, of: &str) -> Result<(), String> {
    if bins <= MAX_BINS {
        return Ok(());
    }
    Err(format!("found {bins} bins, expected at most {MAX_BINS}: give fewer {of}"))
}

/// Reports a bin whose fields are named like those of a bin before it: `pay` with `user_c`, and
/// `pay_user` with `c`.
fn name_bins(
    section: &Section<'_>,
    histogram: &Histogram,
    columns: &[Column],
    names: &mut HashMap<String, String>,
) {
    let Some(field) = section.text("column") else { return };
    let own = columns.iter().find(|column| column.name == histogram.column);
    let labels = histogram.labels(own.is_some_and(|column| !column.bounds.is_empty()));
    // The names of charts have a blank between column and label.
    let titles = |label: &str| {
        let fields = PARTS.map(|part| format!("{part}{}_{label}", histogram.column));
        fields.into_iter().chain([format!("{} {label}", histogram.column)])
    };
    let own: Vec<String> = labels.iter().flat_map(|label| titles(label)).collect();
    if let Some((name, other)) = own.iter().find_map(|name| Some((name, names.get(name)?))) {
        field.report(format!(
            "a bin would have the same name, {name:?}, as one of the column {other:?}: rename a column or a value"
        ));
    }
    names.extend(own.into_iter().map(|name| (name, histogram.column.clone())));
}
