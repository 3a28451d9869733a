//! Integer moments of quantised records: count, Σx and Σxxᵀ, exact and independent of order.
//!
//! 1. A [`Clipper`] turns a record into a row of [`QuantisedRows`]: integers q ≈ z·2²⁰/ζ of squared
//!    norm at most 2⁴⁰. The rows also hold the bin of each histogram ([`Histogram`]) into which the
//!    record falls.
//! 2. [`Accumulators`] add the rows of each key and epoch into [`Sums`].
//! 3. Sums of several workers are merged.
//!
//! Long records of one key take a shorter path, [`ClippedSums`]. One unit of Σq is ζ·2⁻²⁰, one unit
//! of Σqqᵀ is ζ²·2⁻⁴⁰.

mod accumulate;
mod bins;
mod clip;
mod clipped;
mod indicators;
mod jointly;
mod products;
pub(crate) mod rows;
mod sums;

pub use accumulate::Accumulators;
pub use bins::{Bins, Histogram, HistogramError};
pub use clip::{ClipError, Clipper};
pub use clipped::{ClippedSums, ClippedSumsError};
pub use products::squared_norm;
pub use rows::{IntegerRow, QuantisedRows, RecordError, wipe};
pub use sums::{MomentError, Sums};

use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::ops::Range;

/// Bits of the record grid: a record of norm ζ has integer norm 2²⁰.
pub const RECORD_BITS: u32 = 20;

/// The second moments in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecondMoment {
    /// All of Σxxᵀ; the upper triangle is stored, row by row.
    Full,
    /// Only Σ x∘x.
    Diagonal,
    /// No second moments: counts and Σx alone.
    None,
}

/// Positions of the count, the first and the second moments of one key in a flat vector of
/// coordinates: `[count | Σx (d) | Σxxᵀ packed (d(d+1)/2), or Σx∘x (d), or empty | sent or empty |
/// bins, histogram by histogram, or empty]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Number of columns d, at least 1.
    pub dimension: usize,
    /// The second moments that follow the first.
    pub second: SecondMoment,
    /// M, if the number of records that entities sent is a coordinate: an entity adds at most M to
    /// it in an epoch.
    pub sent: Option<NonZeroU32>,
    /// The bins of histograms.
    #[serde(default)]
    pub bins: Bins,
}

impl Layout {
    /// Position of the count.
    pub const COUNT: usize = 0;

    /// Returns the layout of the moments of `dimension` columns alone.
    pub const fn new(dimension: usize, second: SecondMoment) -> Self {
        Self { dimension, second, sent: None, bins: Bins::NONE }
    }

    /// Returns the number of coordinates of one key.
    pub fn coordinates(&self) -> usize {
        self.bins().end
    }

    /// Returns the number of second-moment coordinates.
    pub fn second_len(&self) -> usize {
        match self.second {
            SecondMoment::Full => self.dimension * (self.dimension + 1) / 2,
            SecondMoment::Diagonal => self.dimension,
            SecondMoment::None => 0,
        }
    }

    /// Returns the positions of Σx.
    pub fn first(&self) -> Range<usize> {
        1..1 + self.dimension
    }

    /// Returns the positions of the second moments.
    pub fn second(&self) -> Range<usize> {
        1 + self.dimension..1 + self.dimension + self.second_len()
    }

    /// Returns the position of the number of sent records.
    pub fn sent(&self) -> Option<usize> {
        self.sent.map(|_| self.second().end)
    }

    /// Returns the positions of the bins of all histograms.
    pub fn bins(&self) -> Range<usize> {
        let start = self.second().end + usize::from(self.sent.is_some());
        start..start + self.bins.number as usize
    }

    /// Returns the layout of count and first moments of the same records.
    pub fn without_second(&self) -> Self {
        Self { second: SecondMoment::None, ..*self }
    }

    /// Returns row and column `(i, j)`, `i ≤ j`, of each second-moment position, in their order.
    pub fn second_entries(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (dimension, second) = (self.dimension, self.second);
        (0..dimension).flat_map(move |i| {
            let end = match second {
                SecondMoment::Full => dimension,
                SecondMoment::Diagonal => i + 1,
                SecondMoment::None => i,
            };
            (i..end).map(move |j| (i, j))
        })
    }
}
