//! The histograms of a pipeline: of which column, and with which bins.
//!
//! Records carry the values of `[[columns]]`, and after them those of columns that only histograms
//! use: a number, or the position of a category in its list.

use std::borrow::Cow;

use hushflow_mechanism::estimate::histogram::tree_levels;
use hushflow_mechanism::moments::{Histogram as BinnedValue, HistogramError};
use serde::{Deserialize, Serialize};

/// A histogram of a column: how many records fall into each bin. A record whose value is missing,
/// can't be read or is not listed falls into none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Name of the column in the source.
    pub column: String,
    /// Its bins.
    #[serde(flatten)]
    pub bins: HistogramBins,
    /// Number of neighbouring bins that are counted together too, and of these groups, and so on;
    /// `None` for the bins alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branching: Option<u32>,
}

/// The bins of a histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HistogramBins {
    /// Public edges of the bins of a number, ascending. Values beyond the outer ones fall into the
    /// nearest bin.
    Edges(Vec<f64>),
    /// Public values of a text, one bin for each.
    Values(Vec<String>),
}

impl Histogram {
    /// Returns the number of bins.
    pub fn number(&self) -> usize {
        match &self.bins {
            HistogramBins::Edges(edges) => edges.len().saturating_sub(1),
            HistogramBins::Values(values) => values.len(),
        }
    }

    /// Returns the number of bins a group has, if there are groups.
    pub fn branching(&self) -> Option<usize> {
        self.branching.map(|branching| branching as usize)
    }

    /// Returns the numbers of counts of each level: of the bins, and of groups of them.
    pub fn levels(&self) -> Vec<usize> {
        tree_levels(self.number(), self.branching())
    }

    /// Returns whether it is of a number, so that it has quantiles.
    pub fn is_numeric(&self) -> bool {
        matches!(self.bins, HistogramBins::Edges(_))
    }

    /// Edges of the bins of a value as records carry it.
    fn edges(&self) -> Cow<'_, [f64]> {
        match &self.bins {
            HistogramBins::Edges(edges) => edges.into(),
            HistogramBins::Values(values) => (0..=values.len()).map(|edge| edge as f64).collect(),
        }
    }
}

/// Returns the columns that only histograms use, in the order in which records carry them.
pub(crate) fn extra_columns<'a>(
    histograms: &'a [Histogram],
    columns: &'a [&str],
) -> impl Iterator<Item = &'a Histogram> {
    histograms.iter().filter(|histogram| !columns.contains(&histogram.column.as_str()))
}

/// Returns the histograms of the values of a record, whose first ones are those of `columns`.
///
/// # Errors
/// [`HistogramError`] for edges that bound no bins.
pub(crate) fn of_records(
    histograms: &[Histogram],
    columns: &[&str],
) -> Result<Vec<BinnedValue>, HistogramError> {
    let mut extra = columns.len()..;
    let position = |histogram: &Histogram| {
        let own = columns.iter().position(|column| *column == histogram.column);
        own.or_else(|| extra.next()).unwrap_or(usize::MAX)
    };
    let positions: Vec<usize> = histograms.iter().map(position).collect();
    let of = |(histogram, position): (&Histogram, usize)| {
        let mut edges = histogram.edges().into_owned();
        let levels = histogram.levels();
        let grouped = levels.into_iter().enumerate().map(move |(level, _)| {
            if let Some(branching) = histogram.branching().filter(|_| level > 0) {
                let last = edges.len() - 1;
                let kept = |(edge, value): (usize, &f64)| {
                    (edge.is_multiple_of(branching) || edge == last).then_some(*value)
                };
                edges = edges.iter().enumerate().filter_map(kept).collect();
            }
            BinnedValue::new(position, edges.clone())
        });
        grouped.collect::<Vec<_>>()
    };
    histograms.iter().zip(positions).flat_map(of).collect()
}
