//! Sums of long records, such as gradients, that are added as they are clipped: no row is stored.
//!
//! A record goes through memory twice: once for its norm, and once to be rounded, measured and
//! added. The second pass takes a few columns of all records at a time, several records side by
//! side (`products`), so that sums stay in the cache. It begins with the last columns, which the
//! first pass has left in the cache. The integers are those of [`Clipper::quantise`]. Whether a
//! record lies in the ball is known when all its columns have been added. A correction is then
//! subtracted from the sums, if necessary, before they can be read.
//!
//! Sums of up to [`NARROW_RECORDS`] records are kept in 64 bits: `|Σq| ≤ Σ|q|² ≤ 2²²·2⁴⁰`. The
//! recipient borrows these sums without a copy. Their memory is overwritten when all borrowers have
//! returned them. The width of sums depends on the layout and the number of records alone, never on
//! values. A record that is not finite or of extreme size goes through a row of its own (the long
//! path), and joins the same sums.

use super::clip::{BALL, step_back};
use super::products::BLOCK_ROWS;
use super::products::{SUMS, add_records, squared_norms};
use super::rows::round_ties_even;
use super::{
    Accumulators, Clipper, IntegerRow, Layout, MomentError, QuantisedRows, RecordError, SecondMoment, Sums,
};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Number of columns per pass: their sums stay in the second-level cache between records, and runs
/// are long enough for the prefetcher.
const COLUMNS: usize = 16384;

/// Number of records per block, for which sums must have room.
const BLOCK_RECORDS: usize = BLOCK_ROWS / 4;

/// Number of records whose sums certainly fit 64 bits.
pub(super) const NARROW_RECORDS: u64 = 1 << 22;

/// Reasons why records can't be clipped and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClippedSumsError {
    /// The records can't be clipped.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The records can't be added.
    #[error(transparent)]
    Moment(#[from] MomentError),
}

/// Sums the records of one key as a [`Clipper`] quantises them.
///
/// ```
/// use hushflow_mechanism::moments::{ClippedSums, Clipper, Layout, SecondMoment};
/// use std::sync::Arc;
///
/// let layout = Layout::new(2, SecondMoment::Diagonal);
/// let clipper = Clipper::unscaled(2, 1.0)?.counting_unusable();
/// let mut sums = ClippedSums::new(Arc::new(clipper), layout);
/// assert_eq!(sums.add(&[0.5f32, -0.25, f32::NAN, 0.0])?, 1);
/// let unit = 1 << 20;
/// let runs = sums.take([0..3, 3..5]);
/// assert_eq!(**runs[0].to_wide(), [2, unit / 2, -unit / 4]); // what can't be used counts as zero
/// assert_eq!(**runs[1].to_wide(), [unit * unit / 4, unit * unit / 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ClippedSums {
    clipper: Arc<Clipper>,
    layout: Layout,
    /// Whether the count is 0 for any number of records.
    hides_count: bool,
    /// Count, first and second moments of the records on the short path since the last spill; empty
    /// while they are lent.
    narrow: Zeroizing<Vec<i64>>,
    lent: Option<Arc<Zeroizing<Vec<i64>>>>,
    /// Whether all of `narrow` except the count holds old values of lent sums and must be
    /// overwritten.
    stale: bool,
    /// Records on the short path.
    records: Vec<NarrowRecord>,
    /// Squared norms of all records of a block, if any can take the short path.
    norms: Zeroizing<Vec<f64>>,
    /// Full second moments, and sums beyond 64 bits.
    wide: Accumulators,
    /// A record on the long path, and the rows of those in a block.
    record: Zeroizing<Vec<f64>>,
    rows: QuantisedRows,
}

/// A record on the short path, which only has to be scaled and rounded.
struct NarrowRecord {
    position: usize,
    scale: f64,
    /// Squared norm of its integers so far.
    squared_norm: f64,
}

impl ClippedSums {
    /// Starts with the sums of no records.
    pub fn new(clipper: Arc<Clipper>, layout: Layout) -> Self {
        Self {
            narrow: Zeroizing::new(vec![0; layout.coordinates()]),
            lent: None,
            stale: false,
            records: Vec::new(),
            norms: Zeroizing::default(),
            wide: Accumulators::new(layout),
            record: Zeroizing::default(),
            rows: QuantisedRows::new(layout.dimension),
            hides_count: false,
            clipper,
            layout,
        }
    }

    /// Returns the same sums with a count of 0, for records whose number is private.
    #[must_use]
    pub fn hiding_count(self) -> Self {
        Self { hides_count: true, ..self }
    }

    /// Clips whole records, row-major, and adds them. Returns the number of records with a value
    /// that is not finite: these are left out, or count as the centre with
    /// [`Clipper::counting_unusable`].
    ///
    /// # Errors
    /// [`ClippedSumsError`]. The sums are then void, unless the values don't divide into records.
    pub fn add<V: Copy + Into<f64>>(&mut self, records: &[V]) -> Result<u64, ClippedSumsError> {
        let dimension = self.layout.dimension;
        if !records.len().is_multiple_of(dimension) || self.clipper.dimension() != dimension {
            return Err(RecordError::Length { found: records.len(), dimension }.into());
        }
        self.begin();
        let blocks = records.chunks(BLOCK_RECORDS * dimension);
        blocks.map(|block| self.add_block(block)).sum()
    }

    /// Returns the sums of these runs of coordinates, in the order of the layout, and clears them.
    pub fn take(&mut self, runs: impl IntoIterator<Item = Range<usize>>) -> Vec<Sums> {
        self.begin();
        self.wipe();
        let mut wide = self.wide.take().remove(&0);
        if self.layout.second == SecondMoment::Full {
            let no_records = || Zeroizing::new(vec![0; self.layout.coordinates()]);
            wide.get_or_insert_with(|| no_records().into());
        }
        let records = self.narrow[Layout::COUNT] as u64;
        if self.hides_count {
            self.narrow[Layout::COUNT] = 0;
        }
        let hidden = self.hides_count;
        let all = self.lent.insert(Arc::new(std::mem::take(&mut self.narrow)));
        let run = |run: Range<usize>| {
            let narrow = Sums::narrow(all.clone(), run.clone(), records);
            match &wide {
                None => narrow,
                Some(wide) => {
                    let begins_with_count = run.start == Layout::COUNT;
                    let mut wide = Zeroizing::new(wide.row().run(run).iter().collect::<Vec<_>>());
                    if let Some(count) = wide.first_mut().filter(|_| hidden && begins_with_count) {
                        *count = 0;
                    }
                    Sums::from(wide).plus(0, &narrow, None)
                }
            }
        };
        runs.into_iter().map(run).collect()
    }

    /// Makes room for new sums if the last ones were lent. Reuses their memory if it was returned.
    fn begin(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.narrow = Arc::into_inner(lent).unwrap_or_default();
            self.narrow.resize(self.layout.coordinates(), 0);
            self.narrow[Layout::COUNT] = 0;
            self.stale = true;
        }
    }

    /// Zeroes stale sums that no record has overwritten.
    fn wipe(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.narrow[self.layout.first().start..].fill(0);
        }
    }

    fn add_block<V: Copy + Into<f64>>(&mut self, block: &[V]) -> Result<u64, ClippedSumsError> {
        let dimension = self.layout.dimension;
        self.records.clear();
        self.norms.clear();
        if self.layout.second != SecondMoment::Full && self.clipper.is_plain() {
            squared_norms(block, dimension, &mut self.norms);
        }
        self.rows.clear();
        let mut unusable = 0;
        for (position, record) in block.chunks_exact(dimension).enumerate() {
            match self.norms.get(position).and_then(|&squared| self.clipper.plain_scale(record, squared)) {
                Some(scale) => self.records.push(NarrowRecord { position, scale, squared_norm: 0.0 }),
                None => unusable += u64::from(!self.quantise_into_row(record)?),
            }
        }
        if self.layout.second == SecondMoment::Full {
            self.wide.add_to_key(0, &self.rows)?;
            return Ok(unusable);
        }
        self.make_room();
        self.narrow[Layout::COUNT] += (self.records.len() + self.rows.len()) as i64;
        if self.records.is_empty() {
            self.wipe();
        }
        for start in (0..dimension).step_by(COLUMNS).rev() {
            self.add_columns(block, start..dimension.min(start + COLUMNS));
        }
        self.stale = false;
        self.add_rows();
        for record in self.records.iter().filter(|record| record.squared_norm > BALL) {
            let values = &block[record.position * dimension..][..dimension];
            let (first, second) = self.narrow[self.layout.first().start..].split_at_mut(dimension);
            // One round is enough, so no entry is visited twice.
            step_back(record.squared_norm - BALL, dimension, |position| {
                let entry = round_ties_even(values[position].into() * record.scale);
                if entry != 0.0 {
                    first[position] -= entry.signum() as i64;
                    second
                        .get_mut(position)
                        .into_iter()
                        .for_each(|sum| *sum -= (2.0 * entry.abs() - 1.0) as i64);
                }
                entry
            });
        }
        Ok(unusable)
    }

    /// Adds some columns of all records on the short path.
    fn add_columns<V: Copy + Into<f64>>(&mut self, block: &[V], columns: Range<usize>) {
        let dimension = self.layout.dimension;
        let (first, second) = self.narrow[self.layout.first().start..].split_at_mut(dimension);
        let (first, second) = (&mut first[columns.clone()], second.get_mut(columns.clone()));
        let mut sums = ColumnSums { first, second: second.unwrap_or_default(), are_stale: self.stale };
        let values = |record: &NarrowRecord| &block[record.position * dimension..][columns.clone()];
        let (groups, rest) = self.records.as_chunks_mut::<SUMS>();
        let (halves, rest) = rest.as_chunks_mut::<{ SUMS / 2 }>();
        groups.iter_mut().for_each(|group| sums.add(group, values));
        halves.iter_mut().for_each(|group| sums.add(group, values));
        rest.iter_mut().for_each(|record| sums.add(std::array::from_mut(record), values));
    }

    /// Quantises any record into a row. Returns whether all its values are finite.
    fn quantise_into_row<V: Copy + Into<f64>>(&mut self, record: &[V]) -> Result<bool, RecordError> {
        self.record.clear();
        self.record.extend(record.iter().map(|&value| value.into()));
        match self.clipper.quantise(&self.record, &mut self.rows) {
            Err(RecordError::NotFinite) => {}
            quantised => quantised?,
        }
        Ok(self.record.iter().all(|value| value.is_finite()))
    }

    /// Adds the rows of records on the long path: integers whose squares are at most 2⁴⁰.
    fn add_rows(&mut self) {
        let (dimension, width) = (self.layout.dimension, self.rows.width());
        let (first, second) = self.narrow[self.layout.first().start..].split_at_mut(dimension);
        for row in self.rows.values().chunks_exact(width) {
            first.iter_mut().zip(row).for_each(|(sum, q)| *sum += *q as i64);
            second.iter_mut().zip(&row[width - dimension..]).for_each(|(sum, q)| *sum += (q * q) as i64);
        }
    }

    /// Spills narrow sums if they may not have room for another block.
    fn make_room(&mut self) {
        if self.narrow[Layout::COUNT] as u64 + BLOCK_RECORDS as u64 > NARROW_RECORDS {
            self.wide.merge(0, IntegerRow::Narrow(&self.narrow));
            self.narrow.fill(0);
        }
    }
}

/// Sums of some columns. There are no second ones without second moments.
struct ColumnSums<'a> {
    first: &'a mut [i64],
    second: &'a mut [i64],
    are_stale: bool,
}

impl ColumnSums<'_> {
    /// Adds columns of a few records, and their contributions to the records' norms.
    fn add<'a, V: Copy + Into<f64> + 'a, const R: usize>(
        &mut self,
        group: &mut [NarrowRecord; R],
        values: impl Fn(&NarrowRecord) -> &'a [V],
    ) {
        let (records, scales) = (group.each_ref().map(values), group.each_ref().map(|record| record.scale));
        let squares = add_records(records, scales, self.first, self.second, self.are_stale);
        self.are_stale = false;
        group.iter_mut().zip(squares).for_each(|(record, squares)| record.squared_norm += squares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the sums of the same records, computed from rows.
    fn by_rows(clipper: &Clipper, layout: Layout, records: &[f64]) -> Vec<i128> {
        let mut rows = QuantisedRows::new(layout.dimension);
        clipper.quantise_all(records, &mut rows).unwrap();
        let mut accumulators = Accumulators::new(layout);
        accumulators.add_to_key(0, &rows).unwrap();
        let sums = accumulators.take();
        sums.get(&0).map_or(vec![0; layout.coordinates()], |sums| sums.row().iter().collect())
    }

    fn taken(sums: &mut ClippedSums) -> Vec<i128> {
        let end = sums.layout.coordinates();
        sums.take([0..end / 3, end / 3..end]).iter().flat_map(|run| run.to_wide().to_vec()).collect()
    }

    fn check(clipper: &Clipper, layout: Layout, records: &[f64]) {
        let mut sums = ClippedSums::new(Arc::new(clipper.clone()), layout);
        for _ in 0..2 {
            let (one, other) = records.split_at(records.len() / layout.dimension / 2 * layout.dimension);
            let unusable = sums.add(one).unwrap() + sums.add(other).unwrap();
            let finite = |record: &[f64]| record.iter().all(|value| value.is_finite());
            let expected = records.chunks(layout.dimension).filter(|record| !finite(record)).count();
            assert_eq!(unusable, expected as u64);
            assert_eq!(taken(&mut sums), by_rows(clipper, layout, records), "{layout:?}");
        }
        assert!(taken(&mut sums).iter().all(|sum| *sum == 0), "nothing stays");
    }

    proptest! {
        #[test]
        fn sums_are_those_of_rows(
            dimension in 1usize..30,
            numbers in prop::collection::vec(-1.0..1.0f64, 40 * 30),
            sizes in prop::collection::vec(prop::num::f64::ANY, 20),
            clip_norm in 0.1..10.0f64,
        ) {
            let sizes = sizes.into_iter().chain([0.0, -0.0, 1e-300, 1e300, 1.0]).chain([3.0; 15]);
            let records: Vec<f64> = sizes
                .zip(numbers.chunks_exact(30))
                .flat_map(|(size, record)| record[..dimension].iter().map(move |x| x * size))
                .collect();
            let unscaled = Clipper::unscaled(dimension, clip_norm).unwrap();
            let bounded = Clipper::new(&vec![(-1.0, 2.0); dimension], clip_norm).unwrap();
            for second in [SecondMoment::Full, SecondMoment::Diagonal, SecondMoment::None] {
                let layout = Layout::new(dimension, second);
                check(&unscaled, layout, &records);
                check(&unscaled.clone().counting_unusable(), layout, &records);
                check(&unscaled.clone().jointly(0.5).unwrap(), layout, &records);
                check(&bounded, layout, &records);
            }
        }
    }

    /// Entries that all round away from zero overshoot most, and columns beyond the first block are
    /// stepped back too.
    #[test]
    fn long_records_end_in_the_ball() {
        for dimension in [COLUMNS - 1, COLUMNS, 2 * COLUMNS + 13] {
            let layout = Layout::new(dimension, SecondMoment::Diagonal);
            let entry = (1048576.0 / (dimension as f64).sqrt()).floor() + 0.6;
            let records = [vec![entry; dimension], vec![-entry; dimension], vec![0.01; dimension]].concat();
            check(&Clipper::unscaled(dimension, 1048576.0).unwrap(), layout, &records);
        }
    }

    #[test]
    fn single_precision_values_are_converted_exactly() {
        let clipper = Clipper::unscaled(3, 1.0).unwrap();
        let layout = Layout::new(3, SecondMoment::Diagonal);
        let records = [0.1f32, -3e38, 1e-40, 0.3, 0.2, -0.7];
        let mut sums = ClippedSums::new(Arc::new(clipper.clone()), layout);
        sums.add(&records).unwrap();
        assert_eq!(taken(&mut sums), by_rows(&clipper, layout, &records.map(f64::from)));
    }

    /// Sums that are still borrowed are not overwritten.
    #[test]
    fn shared_sums_are_copied_before_a_change() {
        let layout = Layout::new(1, SecondMoment::None);
        let mut sums = ClippedSums::new(Arc::new(Clipper::unscaled(1, 1.0).unwrap()), layout);
        sums.add(&[1.0]).unwrap();
        let rows = sums.take(std::iter::once(0..2));
        sums.add(&[-1.0, -1.0]).unwrap();
        assert_eq!(taken(&mut sums), [2, -2 << 20]);
        assert_eq!(**rows[0].to_wide(), [1, 1 << 20]);
    }

    /// Adds one record more than fits 64 bits.
    #[test]
    fn sums_of_many_records_are_exact() {
        let layout = Layout::new(1, SecondMoment::Diagonal);
        let mut sums = ClippedSums::new(Arc::new(Clipper::unscaled(1, 1.0).unwrap()), layout);
        sums.add(&vec![-1.0f32; NARROW_RECORDS as usize + 1]).unwrap();
        let count = NARROW_RECORDS as i128 + 1;
        assert_eq!(taken(&mut sums), [count, -count << 20, count << 40]);
    }

    /// The width is the same for all values, and without records, so it reveals nothing.
    #[test]
    fn the_width_of_sums_does_not_depend_on_values() {
        let odd = [0.5, 0.0, 1e-308, 5e-324, 1e160, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for second in [SecondMoment::Full, SecondMoment::Diagonal, SecondMoment::None] {
            let layout = Layout::new(2, second);
            for clipper in
                [Clipper::unscaled(2, 1.0).unwrap(), Clipper::unscaled(2, 1.0).unwrap().counting_unusable()]
            {
                let mut sums = ClippedSums::new(Arc::new(clipper), layout);
                let mut is_narrow = |records: &[f64]| {
                    sums.add(records).unwrap();
                    let runs = sums.take(std::iter::once(0..layout.coordinates()));
                    matches!(runs[0].row(), IntegerRow::Narrow(_))
                };
                let expected = second != SecondMoment::Full;
                assert_eq!(is_narrow(&[]), expected);
                odd.iter().for_each(|&value| assert_eq!(is_narrow(&[0.5, value, 0.1, 0.2]), expected));
            }
        }
    }

    #[test]
    fn records_of_another_length_are_refused() {
        let layout = Layout::new(3, SecondMoment::None);
        let mut sums = ClippedSums::new(Arc::new(Clipper::unscaled(3, 1.0).unwrap()), layout);
        let refused = sums.add(&[1.0; 4]);
        assert_eq!(refused, Err(RecordError::Length { found: 4, dimension: 3 }.into()));
        sums.add(&[1.0; 0]).unwrap();
        assert!(taken(&mut sums).iter().all(|sum| *sum == 0));
    }

    #[test]
    fn a_hidden_count_is_zero_and_nothing_else_changes() {
        for second in [SecondMoment::Diagonal, SecondMoment::Full] {
            let layout = Layout::new(2, second);
            let clipper = Arc::new(Clipper::unscaled(2, 1.0).unwrap());
            let mut plain = ClippedSums::new(clipper.clone(), layout);
            let mut hiding = ClippedSums::new(clipper, layout).hiding_count();
            for _ in 0..2 {
                let records = [0.5, 0.1, -0.2, 0.3, 0.0, 0.7];
                let [mut expected, found] = [&mut plain, &mut hiding].map(|sums| {
                    sums.add(&records).unwrap();
                    taken(sums)
                });
                assert_eq!(std::mem::take(&mut expected[Layout::COUNT]), 3);
                assert_eq!(found, expected);
            }
        }
    }
}
