//! Bins of histograms: each record adds 1 to at most one bin of each histogram.
//!
//! A value beyond the outer edges falls into the nearest bin, as moments clip it to the bounds. A
//! missing value (not finite) falls into no bin. Categories are numbered from 0, so their edges are
//! the integers.

use serde::{Deserialize, Serialize};

/// The number of histograms and of their bins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bins {
    /// H, the number of histograms. A record adds 1 to at most one bin of each.
    pub histograms: u32,
    /// The number of bins of all histograms together.
    pub number: u32,
}

impl Bins {
    /// No histogram.
    pub const NONE: Self = Self { histograms: 0, number: 0 };

    /// Returns the bins of some histograms.
    pub fn of(histograms: &[Histogram]) -> Self {
        Self { histograms: histograms.len() as u32, number: histograms.iter().map(Histogram::bins).sum() }
    }
}

/// The bins of one histogram.
///
/// ```
/// use hushflow_mechanism::moments::Histogram;
///
/// let histogram = Histogram::new(0, vec![0.0, 1.0, 5.0])?;
/// let bins = [-7.0, 0.5, 1.0, 99.0, f64::NAN].map(|value| histogram.bin(value));
/// assert_eq!(bins, [Some(0), Some(0), Some(1), Some(1), None]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    column: usize,
    edges: Vec<f64>,
}

/// Edges that do not define bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the edges of a histogram must be ascending finite numbers, at least two, and at most 2^20")]
pub struct HistogramError;

impl Histogram {
    /// Builds a histogram of value number `column` of a record, from 0, with these `edges`. A value
    /// belongs to the last bin whose lower edge is at most the value.
    ///
    /// # Errors
    /// [`HistogramError`] unless the edges are finite and ascending, at least 2 and at most 2²⁰.
    pub fn new(column: usize, edges: Vec<f64>) -> Result<Self, HistogramError> {
        let ascend = edges.windows(2).all(|pair| pair[0] < pair[1]);
        let is_valid =
            ascend && (2..=1 << 20).contains(&edges.len()) && edges.iter().all(|edge| edge.is_finite());
        if is_valid { Ok(Self { column, edges }) } else { Err(HistogramError) }
    }

    /// Returns the position of the histogram's value in a record, from 0.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the edges. There is one more than bins.
    pub fn edges(&self) -> &[f64] {
        &self.edges
    }

    /// Returns the number of bins, at least 1.
    pub fn bins(&self) -> u32 {
        self.edges.len() as u32 - 1
    }

    /// Returns the bin of a value; `None` if it is not finite.
    pub fn bin(&self, value: f64) -> Option<u32> {
        let inner = &self.edges[1..self.edges.len() - 1];
        value.is_finite().then(|| inner.partition_point(|&edge| edge <= value) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Accumulators, Clipper, Layout, QuantisedRows, SecondMoment};
    use super::*;

    #[test]
    fn edges_ascend_and_are_finite() {
        for edges in [vec![], vec![1.0], vec![0.0, 2.0, 1.0], vec![0.0, 1.0, f64::NAN]] {
            assert_eq!(Histogram::new(0, edges), Err(HistogramError));
        }
        let histogram = Histogram::new(3, vec![0.0, 1.0, 2.0]).unwrap();
        let clipper = Clipper::unscaled(2, 1.0).unwrap().with_histograms(vec![histogram]);
        assert_eq!((clipper.dimension(), clipper.record_width()), (2, 4));
    }

    /// The bins of a key come after its moments, for full second moments and for diagonal ones with
    /// joint clipping.
    #[test]
    fn bins_are_counted_beside_the_moments_of_a_key() {
        let histograms = || {
            let of = |column, edges: &[f64]| Histogram::new(column, edges.to_vec()).unwrap();
            vec![of(0, &[-1.0, 0.0, 1.0]), of(1, &[0.0, 1.0, 2.0, 3.0])]
        };
        let records = [0.5, 2.0, -0.5, f64::NAN, f64::NAN, 1.0, -9.0, 7.0];
        for (second, joint) in [(SecondMoment::Full, false), (SecondMoment::Diagonal, true)] {
            let clipper = Clipper::unscaled(1, 1.0).unwrap();
            let clipper = if joint { clipper.jointly(0.5).unwrap() } else { clipper };
            let clipper = clipper.with_histograms(histograms());
            let layout = Layout { bins: Bins::of(clipper.histograms()), ..Layout::new(1, second) };
            for (clipper, expected) in [
                (clipper.clone(), [[1, 0, 1, 0, 0, 1], [2, 2, 0, 0, 0, 1]]),
                (clipper.counting_unusable(), [[2, 0, 1, 0, 0, 1], [2, 2, 0, 0, 0, 1]]),
            ] {
                let mut rows = QuantisedRows::new(1);
                let left_out = clipper.quantise_all(&records, &mut rows).unwrap();
                let keys: Vec<u32> = (0..4_u32)
                    .filter(|row| !left_out.contains(&(*row as usize)))
                    .map(|row| [4, 7, 4, 7][row as usize])
                    .collect();
                let mut sums = Accumulators::new(layout);
                sums.add(&keys, &rows).unwrap();
                let sums = sums.take();
                for (key, expected) in [4, 7].into_iter().zip(expected) {
                    let sums = sums[&key].to_wide();
                    let found = [&sums[..1], &sums[layout.bins()]].concat();
                    assert_eq!(found, expected, "{key} {joint}");
                }
                let without = Layout::new(1, second);
                assert!(Accumulators::new(without).add(&keys, &rows).is_err());
            }
        }
    }
}
