//! Accumulates the sums of all keys of one epoch on one worker.
//!
//! A row of d numbers adds to d(d+3)/2 sums.
//!
//! - Few sums: a key has a block of them in floating point, which is exact for up to [`BLOCK_ROWS`]
//!   rows, and each row is added at once. A few cache lines of each of a thousand keys stay in the
//!   nearest caches.
//! - Many sums: updating them for every record would cost more memory traffic than arithmetic. So a
//!   key buffers its rows until they hold about as many numbers as its sums, and then multiplies
//!   them at once. A key with few records stays small. All keys share one workspace.
//! - Few sums and many rows of few keys: whole registers of sums take each row at once
//!   (`scattered`).

use super::clipped::NARROW_RECORDS;
use super::products::{BLOCK_ROWS, BlockProducts};
use super::products::{add_record, is_narrow};
use super::sums::{add, add_runs};
use super::{Bins, IntegerRow, Layout, MomentError, QuantisedRows, SecondMoment, Sums};
use scattered::ScatteredRows;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use zeroize::{Zeroize, Zeroizing};

mod scattered;

/// Minimum number of rows of one key that are multiplied at once. A key of wide records buffers at
/// least this many rows.
const PENDING_ROWS: usize = 32;

/// Sums quantised records, key by key.
///
/// ```
/// use hushflow_mechanism::moments::{Accumulators, Clipper, Layout, QuantisedRows, SecondMoment};
///
/// let mut rows = QuantisedRows::new(2);
/// // ζ = 2²⁰ makes the grid the integers.
/// Clipper::unscaled(2, 1048576.0)?.quantise_all(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut rows)?;
///
/// let mut accumulators = Accumulators::new(Layout::new(2, SecondMoment::Full));
/// accumulators.add(&[7, 4, 7], &rows)?;
/// let sums = accumulators.take();
/// assert_eq!(**sums[&4].to_wide(), [1, 3, 4, 9, 12, 16]);
/// assert_eq!(**sums[&7].to_wide(), [2, 6, 8, 26, 32, 40]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Accumulators {
    layout: Layout,
    /// Number of values of a record, set by the first rows added; 0 before any.
    width: usize,
    /// Index of each key in `keys`.
    places: HashMap<u32, u32, BuildHasherDefault<Scatter>>,
    keys: Vec<KeySums>,
    products: BlockProducts,
    /// Number of records added; `None` if sums were added.
    records: Option<u64>,
    /// Wiped memory of former keys, for the next ones.
    spare: Vec<KeySums>,
    /// Memory for the total of a key.
    total: Zeroizing<Vec<i128>>,
    /// Sums of the rows of a batch.
    scattered: ScatteredRows,
}

/// Maximum number of keys whose memory is kept for later ones.
const SPARE_KEYS: usize = 8;

/// Sums of a key, and rows not yet in them.
struct KeySums {
    key: u32,
    /// Empty until the first rows are added.
    sums: Zeroizing<Vec<i128>>,
    /// Wide records: the rows. Narrow ones: the sums of at most [`BLOCK_ROWS`] rows.
    pending: Zeroizing<Vec<f64>>,
}

impl KeySums {
    /// Makes a key without rows.
    fn new(key: u32) -> Self {
        Self { key, sums: Zeroizing::default(), pending: Zeroizing::default() }
    }

    fn sums(&mut self, layout: Layout) -> &mut [i128] {
        self.sums.resize(layout.coordinates(), 0);
        &mut self.sums
    }

    /// Adds narrow records one by one. There must be fewer of them than [`BLOCK_ROWS`].
    fn add_each(&mut self, rows: &[f64], width: usize, layout: Layout) {
        if self.pending.is_empty() {
            self.pending.reserve_exact(layout.second().end);
            self.pending.resize(layout.second().end, 0.0);
        } else if self.pending[Layout::COUNT] as usize + rows.len() / width > BLOCK_ROWS {
            self.sums.resize(layout.coordinates(), 0);
            add_runs(&mut self.sums, [&self.pending[..]].into_iter());
            self.pending.fill(0.0);
        }
        rows.chunks_exact(width).for_each(|row| add_record(&mut self.pending, row, layout));
    }
}

impl Accumulators {
    /// Starts without keys.
    pub fn new(layout: Layout) -> Self {
        let products = BlockProducts::new(layout);
        let (places, keys, spare) = (HashMap::default(), Vec::new(), Vec::new());
        Self {
            layout,
            width: 0,
            places,
            keys,
            products,
            records: Some(0),
            spare,
            total: Zeroizing::default(),
            scattered: ScatteredRows::default(),
        }
    }

    /// Adds a batch of rows; `keys` has the key of each. Consecutive rows of one key are fastest.
    pub fn add(&mut self, keys: &[u32], rows: &QuantisedRows) -> Result<(), MomentError> {
        self.add_rows(keys, rows, 0..rows.len())
    }

    /// As [`add`](Self::add), for some of the rows; `keys` has the keys of these.
    pub fn add_rows(
        &mut self,
        keys: &[u32],
        rows: &QuantisedRows,
        run: Range<usize>,
    ) -> Result<(), MomentError> {
        self.check_width(rows)?;
        let values = rows.values().get(run.start * self.width..run.end * self.width);
        let Some(mut rest) = values.filter(|_| keys.len() == run.len()) else {
            return Err(MomentError::Keys { keys: keys.len(), rows: run.len() });
        };
        let histograms = self.layout.bins.histograms as usize;
        if histograms == 0 && self.add_scattered(keys, rest) {
            return Ok(());
        }
        let mut bins = rows.bins().get(run.start * histograms..).unwrap_or_default();
        for run in keys.chunk_by(PartialEq::eq) {
            let (rows, after) = rest.split_at(run.len() * self.width);
            rest = after;
            self.add_run(run[0], rows);
            let (of_run, after) = bins.split_at(run.len() * histograms);
            bins = after;
            self.add_bins(run[0], of_run);
        }
        Ok(())
    }

    /// Adds rows in one pass, if this is the fastest way. Returns whether it has added them.
    fn add_scattered(&mut self, keys: &[u32], rows: &[f64]) -> bool {
        let (layout, width) = (self.layout, self.width);
        if layout.second != SecondMoment::Full || width != layout.dimension {
            return false;
        }
        let mut scattered = std::mem::take(&mut self.scattered);
        let is_added = scattered.add(keys, rows, width, |of_key| {
            let index = self.index(of_key.key);
            let count = [of_key.count as f64];
            let lower = [&count[..], of_key.first].into_iter();
            add_runs(self.keys[index].sums(layout), lower.chain(of_key.triangle()));
        });
        self.scattered = scattered;
        if is_added {
            self.records = self.records.map(|records| records + keys.len() as u64);
        }
        is_added
    }

    /// Adds a batch of rows that all belong to one key.
    pub fn add_to_key(&mut self, key: u32, rows: &QuantisedRows) -> Result<(), MomentError> {
        self.check_width(rows)?;
        if !rows.is_empty() {
            self.add_run(key, rows.values());
            self.add_bins(key, rows.bins());
        }
        Ok(())
    }

    /// Adds 1 to each of these bins of a key.
    fn add_bins(&mut self, key: u32, bins: &[u32]) {
        if self.layout.bins == Bins::NONE {
            return;
        }
        let (index, positions) = (self.index(key), self.layout.bins());
        let sums = &mut self.keys[index].sums(self.layout)[positions];
        for &bin in bins {
            if let Some(sum) = sums.get_mut(bin as usize) {
                *sum = sum.wrapping_add(1);
            }
        }
    }

    /// Adds to the number of sent records of a key, if the layout has one.
    pub fn add_sent(&mut self, key: u32, number: u64) {
        if let Some(position) = self.layout.sent() {
            self.records = None;
            let index = self.index(key);
            let sent = &mut self.keys[index].sums(self.layout)[position];
            *sent = sent.wrapping_add(number.into());
        }
    }

    /// Adds sums of other records of a key.
    pub(super) fn merge(&mut self, key: u32, sums: IntegerRow<'_>) {
        self.records = None;
        let index = self.index(key);
        add(self.keys[index].sums(self.layout), sums);
    }

    /// Returns the keys that have sums, ascending.
    pub fn keys(&self) -> Vec<u32> {
        let mut keys: Vec<u32> = self.keys.iter().map(|key| key.key).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the sums of all keys, in the order of keys, and clears them.
    pub fn take(&mut self) -> BTreeMap<u32, Sums> {
        let mut sums = Vec::with_capacity(self.keys.len());
        self.drain(|key, of_key| sums.push((key, Zeroizing::new(of_key.to_vec()).into())));
        sums.into_iter().collect()
    }

    /// Returns the keys that have sums, ascending, and their sums, end to end, and clears them. The
    /// sums are in 64 bits if that is certain to hold them for any records.
    pub fn take_row(&mut self) -> (Vec<u32>, Sums) {
        let keys = self.keys();
        let length = keys.len() * self.layout.coordinates();
        let sums = match self.records.filter(|&records| records <= NARROW_RECORDS) {
            Some(records) => {
                let mut all = Zeroizing::new(Vec::with_capacity(length));
                self.drain(|_, sums| all.extend(sums.iter().map(|&sum| sum as i64)));
                Sums::of(all, records)
            }
            None => {
                let mut all = Zeroizing::new(Vec::with_capacity(length));
                self.drain(|_, sums| all.extend_from_slice(sums));
                all.into()
            }
        };
        (keys, sums)
    }

    /// Calls `give` with every key, ascending, and its sums in the order of the layout, and clears
    /// them. Keeps the memory of a few keys.
    pub fn drain(&mut self, mut give: impl FnMut(u32, &[i128])) {
        let few = self.keys.len() <= SPARE_KEYS;
        self.records = Some(0);
        if few {
            self.places.clear();
        } else {
            (self.places, self.spare) = (HashMap::default(), Vec::new());
        }
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable_by_key(|key| key.key);
        for mut of_key in keys.drain(..) {
            let KeySums { key, sums, pending } = &mut of_key;
            let total: &mut [i128] = if sums.is_empty() {
                // Made only when needed, because it is expensive for a million columns.
                self.total.clear();
                self.total.resize(self.layout.coordinates(), 0);
                &mut self.total
            } else {
                &mut *sums
            };
            if is_narrow(self.layout) {
                add_runs(total, [&pending[..]].into_iter());
            } else {
                self.products.add_rows(pending, self.width.max(1), total);
            }
            give(*key, total);
            if few {
                // Not `Vec::zeroize`, which wipes twice, the second time byte by byte.
                sums[..].zeroize();
                pending[..].zeroize();
                sums.clear();
                pending.clear();
                self.spare.push(of_key);
            }
        }
        self.total[..].zeroize();
        self.products.wipe();
        if few {
            self.keys = keys;
        }
    }

    fn index(&mut self, key: u32) -> usize {
        let Self { places, keys, spare, .. } = self;
        let index = places.entry(key).or_insert_with(|| {
            keys.push(spare.pop().map_or_else(|| KeySums::new(key), |spare| KeySums { key, ..spare }));
            keys.len() as u32 - 1
        });
        *index as usize
    }

    fn add_run(&mut self, key: u32, rows: &[f64]) {
        let (width, layout) = (self.width, self.layout);
        self.records = self.records.map(|records| records + (rows.len() / width.max(1)) as u64);
        let enough = width * PENDING_ROWS.max(layout.second().end / layout.dimension);
        let index = self.index(key);
        let key = &mut self.keys[index];
        if rows.len() >= enough {
            return self.products.add_rows(rows, width, key.sums(layout));
        }
        if is_narrow(layout) {
            return key.add_each(rows, width, layout);
        }
        key.pending.extend_from_slice(rows);
        if key.pending.len() >= enough {
            let pending = std::mem::take(&mut key.pending);
            self.products.add_rows(&pending, width, key.sums(layout));
            key.pending = pending;
            key.pending.zeroize();
        }
    }

    fn check_width(&mut self, rows: &QuantisedRows) -> Result<(), MomentError> {
        let (found, expected) = (rows.dimension(), self.layout.dimension);
        if found != expected {
            return Err(MomentError::Dimension { found, expected });
        }
        let (found, expected) = (rows.bins().len(), rows.len() * self.layout.bins.histograms as usize);
        if found != expected {
            return Err(MomentError::Bins { found, expected });
        }
        if !rows.is_empty() {
            let (found, expected) = (rows.width(), self.width);
            if expected != 0 && found != expected {
                return Err(MomentError::Width { found, expected });
            }
            self.width = found;
        }
        Ok(())
    }
}

/// Keys are consecutive numbers or nearly so; a multiplication scatters them.
#[derive(Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The hash table uses the lowest and the highest bits.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests;
