//! Turns a record into integers: centre, scale, clip to the ζ-ball, round to the grid ζ·2⁻²⁰.
//!
//! A [`Clipper`] bounds what a record contributes to everything downstream. Its output, a row of
//! [`QuantisedRows`], has an *integer* squared norm of at most 2⁴⁰, tested on the integers
//! themselves. So the bound ‖x‖₂ ≤ ζ on every record holds exactly, with no allowance for rounding.
//! (`jointly` clips a record together with its square.)
//!
//! Every step is one IEEE operation in a fixed order: no fused multiply-add, and no library
//! function but the square root, which IEEE rounds correctly. So the same record gives the same
//! integers on every machine.

use super::indicators::{self, NORM_SQUARED};
use super::jointly::quantise_jointly;
use super::products::squared_norm;
use super::rows::{round_ties_even, wipe};
use super::{Histogram, QuantisedRows, RECORD_BITS, RecordError};
use crate::numbers;

mod together;

/// Integer norm of a record of norm ζ.
pub(super) const UNIT: f64 = (1u64 << RECORD_BITS) as f64;

/// Largest integer squared norm of a quantised record, 2⁴⁰.
pub(super) const BALL: f64 = UNIT * UNIT;

/// Squared norms that neither overflowed nor lost accuracy to underflow.
const FAITHFUL: std::ops::RangeInclusive<f64> = 1e-270..=1e270;

/// Reasons why a [`Clipper`] can't be made.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ClipError {
    /// A record without columns has no moments.
    #[error("a record has no columns: name at least one")]
    NoColumns,
    /// ζ is not a positive finite number.
    #[error("the clip norm is {0}: give a finite number above 0")]
    ClipNorm(f64),
    /// The weight of the second moments is not a positive finite number.
    #[error("the relative weight of jointly clipped second moments is {0}: give a finite number above 0")]
    JointWeight(f64),
    /// Records with missing values can't be clipped together with their squares.
    #[error(
        "records with indicators of missing values can't be clipped together with their squares: \
         choose one of the two"
    )]
    JointIndicators,
    /// The bounds of a column don't form an interval.
    #[error(
        "column {column} is bounded by {lower} and {upper}: give two finite numbers, the smaller first, \
         far enough apart for a number to lie between them"
    )]
    Bounds {
        /// Index of the column, from 0.
        column: usize,
        /// The given lower bound.
        lower: f64,
        /// The given upper bound.
        upper: f64,
    },
}

numbers!(enum ClipError { 0 NoColumns, 1 ClipNorm(norm), 2 JointWeight(weight), 3 Bounds { column, lower, upper }, 4 JointIndicators });

/// Maps records into the ζ-ball and rounds them to its grid.
///
/// A record x becomes z with `z_j = (x_j − centre_j) / half_width_j`, clamped to the public bounds
/// (−1 ≤ z_j ≤ 1). Then z is scaled down to norm ζ if it is longer, and rounded to integers
/// `q ≈ z · 2²⁰/ζ`. A mean of z is read back as `centre_j + half_width_j · z_j`.
///
/// ```
/// use hushflow_mechanism::moments::{Clipper, QuantisedRows};
///
/// let clipper = Clipper::new(&[(0.0, 10.0), (-1.0, 1.0)], 1.0)?;
/// let mut rows = QuantisedRows::new(2);
/// clipper.quantise(&[7.5, 0.25], &mut rows)?;
/// assert_eq!(rows.values(), [524288.0, 262144.0]); // 1/2 and 1/4, in units of 2⁻²⁰
/// assert!(clipper.quantise(&[f64::NAN, 0.0], &mut rows).is_err());
/// assert_eq!(rows.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Clipper {
    clip_norm: f64,
    centres: Vec<f64>,
    half_widths: Vec<f64>,
    /// Reciprocals of the half widths.
    scales: Vec<f64>,
    /// Largest |z_j|: 1 between public bounds, infinite without bounds.
    limit: f64,
    /// Whether records with a value that is not finite count.
    counts_unusable: bool,
    /// ν = τζ² if a record and its square are clipped together.
    joint_weight: Option<f64>,
    /// Whether a row holds an indicator beside each value.
    indicates: bool,
    /// The histograms to whose bins records are assigned.
    histograms: Vec<Histogram>,
    /// Number of values after those of the d columns, which only histograms use.
    extra: usize,
}

impl Clipper {
    /// Builds a clipper for columns between public `bounds` (lower, upper), one pair per column,
    /// and the norm ζ = `clip_norm` in the scaled coordinates. From ζ = √d on, nothing between the
    /// bounds is clipped.
    pub fn new(bounds: &[(f64, f64)], clip_norm: f64) -> Result<Self, ClipError> {
        let columns: Vec<_> = bounds
            .iter()
            .enumerate()
            .map(|(column, &(lower, upper))| {
                centre_and_half_width(lower, upper).ok_or(ClipError::Bounds { column, lower, upper })
            })
            .collect::<Result<_, _>>()?;
        let (centres, half_widths) = columns.into_iter().unzip();
        Self::from_columns(centres, half_widths, 1.0, clip_norm)
    }

    /// Builds a clipper for vectors that are already centred, such as gradients: z = x, with no
    /// bounds on columns.
    pub fn unscaled(dimension: usize, clip_norm: f64) -> Result<Self, ClipError> {
        Self::from_columns(vec![0.0; dimension], vec![1.0; dimension], f64::INFINITY, clip_norm)
    }

    fn from_columns(
        centres: Vec<f64>,
        half_widths: Vec<f64>,
        limit: f64,
        clip_norm: f64,
    ) -> Result<Self, ClipError> {
        if centres.is_empty() {
            return Err(ClipError::NoColumns);
        }
        if !(clip_norm > 0.0 && clip_norm.is_finite()) {
            return Err(ClipError::ClipNorm(clip_norm));
        }
        let scales = half_widths.iter().map(|width| width.recip()).collect();
        Ok(Self {
            clip_norm,
            centres,
            half_widths,
            scales,
            limit,
            counts_unusable: false,
            joint_weight: None,
            indicates: false,
            histograms: Vec::new(),
            extra: 0,
        })
    }

    /// Returns the same clipper, except that a record with a value that is not finite becomes the
    /// centre, the zero row, instead of an error. Needed where counts are public
    /// ([`Neighbours::counts_are_public`](crate::sensitivity::Neighbours::counts_are_public)): a
    /// count that depends on whether a record's values are usable would reveal that.
    pub fn counting_unusable(self) -> Self {
        Self { counts_unusable: true, ..self }
    }

    /// Returns the same clipper, except that (x, √τ·xxᵀ) as a whole is clipped to norm ζ, with ν =
    /// τζ² above 0, as in the [`JointClip`](crate::mechanism::Method::JointClip) method. A
    /// quantised row then holds the integers q ≈ f·x, which sum to first moments, and p ≈ √f·τ^¼·x,
    /// whose squares sum to second moments. `‖q‖² + ‖p‖⁴ ≤ 1` in units of 2²⁰ is tested on
    /// integers.
    ///
    /// # Errors
    /// [`ClipError::JointWeight`] unless ν is a positive finite number and not subnormal,
    /// [`ClipError::JointIndicators`] for a clipper with indicators.
    pub fn jointly(self, relative_second_moment_weight: f64) -> Result<Self, ClipError> {
        if self.indicates {
            Err(ClipError::JointIndicators)
        } else if relative_second_moment_weight.is_normal() && relative_second_moment_weight > 0.0 {
            Ok(Self { joint_weight: Some(relative_second_moment_weight), ..self })
        } else {
            Err(ClipError::JointWeight(relative_second_moment_weight))
        }
    }

    /// Returns the same clipper, except that single values may be missing (not finite): a row holds
    /// the values, and then an indicator of each. ζ bounds values and indicators together, so
    /// values are clipped to norm ζ√(4/5): see
    /// [`norm_with_indicators`](Self::norm_with_indicators). The theorem is at the head of
    /// `moments/indicators.rs`.
    ///
    /// ```
    /// use hushflow_mechanism::moments::{Clipper, QuantisedRows};
    ///
    /// let clip_norm = Clipper::norm_with_indicators(2f64.sqrt());
    /// let clipper = Clipper::new(&[(0.0, 10.0); 2], clip_norm)?.with_indicators()?;
    /// let mut rows = QuantisedRows::new(clipper.width());
    /// clipper.quantise(&[7.5, f64::NAN], &mut rows)?;
    /// assert_eq!(rows.values(), [331589.0, 0.0, 331588.0, -331588.0]); // ½, none; ½, −½
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ClipError::JointIndicators`] for a clipper that clips records with their squares.
    pub fn with_indicators(self) -> Result<Self, ClipError> {
        match self.joint_weight {
            Some(_) => Err(ClipError::JointIndicators),
            None => Ok(Self { indicates: true, ..self }),
        }
    }

    /// Returns the same clipper, except that each record is also assigned to a bin of each of these
    /// histograms. A record may have values after those of the d columns, only for histograms;
    /// they are never clipped, and may be missing (not finite). The theorem is at the head of
    /// `mechanism/bins.rs`.
    pub fn with_histograms(self, histograms: Vec<Histogram>) -> Self {
        let width = histograms.iter().map(|histogram| histogram.column() + 1).max().unwrap_or(0);
        let extra = width.saturating_sub(self.dimension());
        Self { histograms, extra, ..self }
    }

    /// Returns the histograms.
    pub fn histograms(&self) -> &[Histogram] {
        &self.histograms
    }

    /// Returns the number of values of a record: d, and those that are only for histograms.
    pub fn record_width(&self) -> usize {
        self.dimension() + self.extra
    }

    /// Returns the norm of a row whose values have this norm and whose indicators have half of it:
    /// ζ√(5/4).
    pub fn norm_with_indicators(clip_norm: f64) -> f64 {
        clip_norm * NORM_SQUARED.sqrt()
    }

    /// Returns the number of columns d.
    pub fn dimension(&self) -> usize {
        self.centres.len()
    }

    /// Returns the distance between the indicators of a present and a missing value in a quantised
    /// row, in the unit of the values; `None` without indicators.
    pub fn indicator_step(&self) -> Option<f64> {
        self.indicates.then(|| 2.0 * indicators::height(self.dimension()) / UNIT * self.clip_norm)
    }

    /// Returns the number of entries of a quantised row: d, or 2d [with
    /// indicators](Self::with_indicators).
    pub fn width(&self) -> usize {
        self.dimension() * if self.indicates { 2 } else { 1 }
    }

    /// Returns ζ, which includes the indicators of a row. One unit of a quantised row is ζ·2⁻²⁰.
    pub fn clip_norm(&self) -> f64 {
        self.clip_norm
    }

    /// Returns the middle of each column's bounds, where z = 0. As a record, it quantises to the
    /// zero row.
    pub fn centres(&self) -> &[f64] {
        &self.centres
    }

    /// Returns half the width of each column's bounds: the length of z = 1 in the column's own
    /// unit.
    pub fn half_widths(&self) -> &[f64] {
        &self.half_widths
    }

    /// Returns whether records only have to be scaled and rounded: columns have no bounds, and
    /// squares are not clipped jointly.
    pub(super) fn is_plain(&self) -> bool {
        self.limit.is_infinite() && self.is_simple()
    }

    /// Returns the factor that brings a record of this squared norm onto the grid. `None` unless
    /// the clipper [is plain](Self::is_plain) and the record is not of extreme size.
    pub(super) fn plain_scale<V: Copy + Into<f64>>(&self, record: &[V], squared: f64) -> Option<f64> {
        let zero = squared == 0.0 && record.iter().all(|&value| value.into() == 0.0);
        let faithful = FAITHFUL.contains(&squared).then(|| UNIT / self.clip_norm.max(squared.sqrt()));
        if zero { Some(0.0) } else { faithful }
    }

    /// Appends one record to `rows`, which stay unchanged on error.
    pub fn quantise(&self, record: &[f64], rows: &mut QuantisedRows) -> Result<(), RecordError> {
        if record.len() != self.record_width() || rows.dimension() != self.width() {
            return Err(self.other_length(record.len(), rows));
        }
        let is_usable = self.quantise_columns(&record[..self.dimension()], rows)?;
        let bins = self.histograms.iter().scan(0, |start, histogram| {
            let bin = histogram.bin(record[histogram.column()]).filter(|_| is_usable);
            let bin = bin.map_or(QuantisedRows::NO_BIN, |bin| *start + bin);
            *start += histogram.bins();
            Some(bin)
        });
        rows.push_bins(bins);
        Ok(())
    }

    /// Appends the columns of one record to `rows`. Returns whether they could be used: false for a
    /// record that counts as the centre.
    fn quantise_columns(&self, record: &[f64], rows: &mut QuantisedRows) -> Result<bool, RecordError> {
        if self.indicates {
            return indicators::quantise(self, record, rows, self.counts_unusable).map(|()| true);
        }
        let row = rows.push(self.scaled(record), self.joint_weight.is_some())?;
        let quantised = match self.joint_weight {
            None => quantise_in_place(row, self.clip_norm),
            Some(weight) => quantise_jointly(row, self.clip_norm, weight),
        };
        match quantised {
            Some(()) => Ok(true),
            None if self.counts_unusable => {
                row.fill(0.0);
                Ok(false)
            }
            None => {
                rows.pop();
                Err(RecordError::NotFinite)
            }
        }
    }

    fn other_length(&self, found: usize, rows: &QuantisedRows) -> RecordError {
        let dimension = rows.dimension() * self.dimension() / self.width() + self.extra;
        RecordError::Length { found, dimension }
    }

    /// The values of a record in centred and scaled units, between their bounds; NaN unless finite.
    pub(super) fn scaled(&self, record: &[f64]) -> impl Iterator<Item = f64> {
        let columns = self.centres.iter().zip(&self.scales);
        record.iter().zip(columns).map(|(&value, (&centre, &scale))| scaled(value, centre, scale, self.limit))
    }

    /// Appends many records, row-major, to `rows`. Returns the indices of those left out because a
    /// value is not finite.
    ///
    /// With [`counting_unusable`](Self::counting_unusable) none is left out.
    pub fn quantise_all(&self, records: &[f64], rows: &mut QuantisedRows) -> Result<Vec<usize>, RecordError> {
        let width = self.record_width();
        if !records.len().is_multiple_of(width) || rows.dimension() != self.width() {
            return Err(self.other_length(records.len(), rows));
        }
        if self.is_simple() {
            let values = rows.push_all()?;
            let start = values.len();
            values.extend_from_slice(records);
            return Ok(together::quantise_rows(self, values, start));
        }
        rows.reserve(records.len() / width, self.joint_weight.is_some());
        let mut left_out = Vec::new();
        for (position, record) in records.chunks_exact(width).enumerate() {
            match self.quantise(record, rows) {
                Err(RecordError::NotFinite) => left_out.push(position),
                quantised => quantised?,
            }
        }
        Ok(left_out)
    }

    /// As [`quantise_all`](Self::quantise_all), in the memory of the records, which is wiped in the
    /// end.
    pub fn quantise_taken(&self, mut records: Vec<f64>) -> Result<(QuantisedRows, Vec<usize>), RecordError> {
        if self.is_simple() && records.len().is_multiple_of(self.width()) {
            let left_out = together::quantise_rows(self, &mut records, 0);
            return Ok((QuantisedRows::of_values(self.width(), records), left_out));
        }
        let mut rows = QuantisedRows::new(self.width());
        let left_out = self.quantise_all(&records, &mut rows);
        wipe(&mut records);
        Ok((rows, left_out?))
    }

    /// Returns whether a record becomes one row of its columns and nothing else.
    fn is_simple(&self) -> bool {
        self.joint_weight.is_none() && !self.indicates && self.histograms.is_empty()
    }
}

/// Returns a value in centred and scaled units, between its bounds; NaN unless finite.
#[inline(always)]
fn scaled(value: f64, centre: f64, scale: f64, limit: f64) -> f64 {
    // `max` and `min` turn NaN, and an infinite value, into one of the bounds. But 0 · value is
    // then NaN, and so is the sum. `clamp` would have a branch.
    ((value - centre) * scale).max(-limit).min(limit) + 0.0 * value
}

/// Returns the middle and half width of an interval, if a number lies strictly between its ends.
fn centre_and_half_width(lower: f64, upper: f64) -> Option<(f64, f64)> {
    // Halved first, because upper − lower may overflow.
    let (centre, half_width) = (lower / 2.0 + upper / 2.0, upper / 2.0 - lower / 2.0);
    let separate = lower < centre && centre < upper && half_width.is_normal();
    (lower.is_finite() && upper.is_finite() && separate).then_some((centre, half_width))
}

/// Clips z to the ζ-ball and rounds it to integers in units of ζ·2⁻²⁰. `None` if a value is not
/// finite.
fn quantise_in_place(row: &mut [f64], clip_norm: f64) -> Option<()> {
    clip_to(row, clip_norm, 1.0, BALL)
}

/// Clips z to a `share` of ζ and rounds it to integers in units of ζ·2⁻²⁰, with a squared norm of
/// at most `limit`, which is about share²·2⁴⁰. `None` if a value is not finite.
pub(super) fn clip_to(row: &mut [f64], clip_norm: f64, share: f64, limit: f64) -> Option<()> {
    let (radius, norm) = radius_and_norm(row, clip_norm * share)?;
    let scale = UNIT * share / radius.max(norm);
    row.iter_mut().for_each(|value| *value = round_ties_even(*value * scale));
    shrink_into_ball(row, limit);
    Some(())
}

/// Returns ζ and the norm of a row, both in the row's unit, which changes if the row is of extreme
/// size. `None` if a value is not finite.
pub(super) fn radius_and_norm(row: &mut [f64], clip_norm: f64) -> Option<(f64, f64)> {
    let squared = squared_norm(row);
    if FAITHFUL.contains(&squared) { Some((clip_norm, squared.sqrt())) } else { normalise(row, clip_norm) }
}

/// Divides a row of extreme size by its largest entry. Returns ζ and the row's norm in that unit.
fn normalise(row: &mut [f64], clip_norm: f64) -> Option<(f64, f64)> {
    if !row.iter().all(|value| value.is_finite()) {
        return None;
    }
    let largest = row.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if largest == 0.0 {
        return Some((f64::INFINITY, 0.0));
    }
    row.iter_mut().for_each(|value| *value /= largest);
    // ζ/largest may overflow, and the row is then not clipped and rounds to zero. Or it may
    // underflow, and then only the norm decides.
    Some((clip_norm / largest, squared_norm(row).sqrt()))
}

/// Steps integer entries towards zero, one unit at a time, until their squared norm is at most
/// `limit`, which is at least 0.
///
/// The test is exact: terms are nonnegative, so every partial sum is at most the whole, and below
/// 2⁵³ sums of integers don't round. The loop ends because each step shortens an entry. For a limit
/// of 2⁴⁰ one round is enough: it leaves `|q_j| ≤ |v_j| − 1/2` for every entry v_j that did not
/// round to 0. Hence `Σq² ≤ Σv² − Σ|v_j|/2 ≤ 2⁴⁰ + (rounding of ‖v‖²) − 2¹⁹`, and no entry ends
/// further than 3/2 from v_j. The column of the first step depends on the excess, so that no single
/// column pays for all records.
pub(super) fn shrink_into_ball(row: &mut [f64], limit: f64) {
    step_back(squared_norm(row) - limit, row.len(), |position| {
        let entry = row[position];
        row[position] -= if entry == 0.0 { 0.0 } else { entry.signum() };
        entry
    });
}

/// Steps entries towards zero until an excess of their squared norm is gone. `step` steps the entry
/// at an index, unless it is 0, and returns its old value.
pub(super) fn step_back(mut excess: f64, columns: usize, mut step: impl FnMut(usize) -> f64) {
    if excess <= 0.0 {
        return;
    }
    let start = excess as usize % columns;
    for position in (start..columns).chain((0..columns).cycle()) {
        let entry = step(position).abs();
        excess -= if entry == 0.0 { 0.0 } else { 2.0 * entry - 1.0 };
        if excess <= 0.0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
