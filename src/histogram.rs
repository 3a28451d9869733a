//! The histograms of a pipeline: their columns and bins.
//!
//! Records carry the values of `[[columns]]`, and after them those of columns that only histograms
//! use: a number, or the position of a category in its list.

use std::borrow::Cow;

use hushflow_mechanism::estimate::histogram::tree_levels;
use hushflow_mechanism::moments::{Histogram as BinnedValue, HistogramError};
use serde::{Deserialize, Serialize};

/// A histogram of a column: how many records fall into each bin. A record whose value is missing,
/// can't be read or is not listed falls into no bin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Name of the column in the source.
    pub column: String,
    /// Its bins.
    #[serde(flatten)]
    pub bins: HistogramBins,
    /// Number of neighbouring bins that are also counted together as a group, of neighbouring
    /// groups that form a larger group, and so on; `None` if only the bins are counted.
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

    /// Returns the number of bins of a group, if there are groups.
    pub fn branching(&self) -> Option<usize> {
        self.branching.map(|branching| branching as usize)
    }

    /// Returns the numbers of counts of each level: of the bins, and of groups of them.
    pub fn levels(&self) -> Vec<usize> {
        tree_levels(self.number(), self.branching())
    }

    /// Returns whether its column is numeric, so that it has quantiles.
    pub fn is_numeric(&self) -> bool {
        matches!(self.bins, HistogramBins::Edges(_))
    }

    /// Returns the names of its bins, each once: ranges, values, or `1/4` and so on where each key
    /// has edges of its own.
    pub(crate) fn labels(&self, by_key: bool) -> Vec<String> {
        match &self.bins {
            HistogramBins::Values(values) => values.clone(),
            HistogramBins::Edges(edges) if by_key => {
                (1..edges.len()).map(|bin| format!("{bin}/{}", edges.len() - 1)).collect()
            }
            HistogramBins::Edges(edges) => {
                edge_names(edges).windows(2).map(|pair| format!("{}..{}", pair[0], pair[1])).collect()
            }
        }
    }

    /// Edges of the bins of a value as records carry it.
    fn edges(&self) -> Cow<'_, [f64]> {
        match &self.bins {
            HistogramBins::Edges(edges) => edges.into(),
            HistogramBins::Values(values) => (0..=values.len()).map(|edge| edge as f64).collect(),
        }
    }
}

/// Returns the edges of bins of equal width. Each is rounded once, so that edges that are short
/// decimals are the numbers that a reader would write.
pub(crate) fn even_edges(lower: f64, upper: f64, bins: usize) -> Vec<f64> {
    let all = bins as f64;
    let edge = |edge: usize| {
        let sum = lower * (bins - edge) as f64 + upper * edge as f64;
        match edge {
            0 => lower,
            _ if edge == bins => upper,
            _ if sum.is_finite() => sum / all,
            // The products leave the range of floating point.
            _ => lower / all * (bins - edge) as f64 + upper / all * edge as f64,
        }
    };
    (0..=bins).map(edge).collect()
}

/// Formats edges without digits that come from rounding, but with enough to tell neighbours apart.
fn edge_names(edges: &[f64]) -> Vec<String> {
    let rounded = |digits: usize| {
        let name = |edge: &f64| format!("{edge:.digits$e}").parse().unwrap_or(*edge).to_string();
        edges.iter().map(name).collect::<Vec<_>>()
    };
    let mut names = (9..=16).map(rounded);
    let apart = names.find(|names| names.windows(2).all(|pair| pair[0] != pair[1]));
    apart.unwrap_or_else(|| edges.iter().map(f64::to_string).collect())
}

/// Returns the columns that only histograms use, in the order in which records carry them.
pub(crate) fn extra_columns<'a>(
    histograms: &'a [Histogram],
    columns: &'a [&str],
) -> impl Iterator<Item = &'a Histogram> {
    histograms.iter().filter(|histogram| !columns.contains(&histogram.column.as_str()))
}

/// Returns the histograms of a record. The first values of the record are those of `columns`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_edges_are_what_a_reader_would_write() {
        let edges = even_edges(0.0, 100.0, 25);
        assert!(edges.iter().enumerate().all(|(index, &edge)| edge == (4 * index) as f64), "{edges:?}");
        assert_eq!(even_edges(-2.0, 2.0, 5), [-2.0, -1.2, -0.4, 0.4, 1.2, 2.0]);
        let wide = even_edges(-8e307, 8e307, 4);
        assert!(wide.windows(2).all(|pair| pair[0] < pair[1]) && wide[2] == 0.0, "{wide:?}");
    }

    #[test]
    fn names_tell_edges_apart() {
        let labels = |edges: &[f64], by_key| {
            let bins = HistogramBins::Edges(edges.to_vec());
            Histogram { column: "x".into(), bins, branching: None }.labels(by_key)
        };
        assert_eq!(labels(&[0.1 + 0.2, 1.0, 2.5], false), ["0.3..1", "1..2.5"]);
        assert_eq!(labels(&[1.0, 1.0 + 1e-12, 2.0], false), ["1..1.000000000001", "1.000000000001..2"]);
        let next = 1_f64.next_up();
        assert_eq!(labels(&[1.0, next, 2.0], false)[0], format!("1..{next}"));
        assert_eq!(labels(&[0.0, 1.0, 2.0], true), ["1/2", "2/2"]);
    }
}
