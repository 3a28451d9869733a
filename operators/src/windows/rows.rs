//! Rows that later windows contain, between epochs and between runs.
//!
//! The private log holds the kept rows of every epoch in place of sums: for each key the number of
//! rows, then the bits of their values. A checkpoint holds the rows of all kept epochs, so the next
//! run continues in the middle of a window without reading the source again. Windows of a single
//! epoch keep no rows.

use hushflow_mechanism::moments::Sums;
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// The rows of one key in the epochs that later windows contain. Private, so it has no `Debug`;
/// wiped when dropped.
#[derive(Clone)]
pub struct WindowRows {
    columns: usize,
    /// By ascending epoch.
    epochs: VecDeque<(u64, Zeroizing<Vec<f64>>)>,
}

impl WindowRows {
    /// Returns an empty collection, as before the first epoch.
    pub fn new(columns: usize) -> Self {
        WindowRows { columns: columns.max(1), epochs: VecDeque::new() }
    }

    /// Restores saved rows; `None` if they are malformed.
    pub fn restored(columns: usize, saved: &[u8]) -> Option<Self> {
        let mut rows = Self::new(columns);
        let (words, rest) = saved.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        while let Some(epoch) = words.next() {
            let number = usize::try_from(words.next()?).ok()?.checked_mul(rows.columns)?;
            // Limited to the words that exist, because a malformed number may be huge.
            let mut values = Zeroizing::new(Vec::with_capacity(number.min(words.len())));
            values.extend(words.by_ref().take(number).map(f64::from_bits));
            if values.len() < number || rows.epochs.back().is_some_and(|(last, _)| *last >= epoch) {
                return None;
            }
            rows.epochs.push_back((epoch, values));
        }
        rest.is_empty().then_some(rows)
    }

    /// Adds the kept rows of an epoch from the private log, and removes them from `sums`; `None` if
    /// they are malformed.
    pub fn replay(&mut self, epoch: u64, sums: &mut &[i128]) -> Option<()> {
        let (&number, rest) = sums.split_first()?;
        let number = usize::try_from(number).ok()?.checked_mul(self.columns)?;
        let (bits, rest) = rest.split_at_checked(number)?;
        let value = |&bits: &i128| Some(f64::from_bits(i64::try_from(bits).ok()? as u64));
        self.add(epoch, Zeroizing::new(bits.iter().map(value).collect::<Option<_>>()?));
        *sums = rest;
        Some(())
    }

    /// Returns the rows as bytes, which [`restored`](Self::restored) reads.
    pub fn save(&self) -> Zeroizing<Vec<u8>> {
        let words: usize = self.epochs.iter().map(|(_, values)| 2 + values.len()).sum();
        let mut saved = Zeroizing::new(Vec::with_capacity(8 * words));
        for (epoch, values) in &self.epochs {
            let number = (values.len() / self.columns) as u64;
            [*epoch, number].iter().for_each(|word| saved.extend_from_slice(&word.to_le_bytes()));
            values.iter().for_each(|value| saved.extend_from_slice(&value.to_bits().to_le_bytes()));
        }
        saved
    }

    /// Removes the epochs before `first`, which no later window contains.
    pub fn drop_before(&mut self, first: u64) {
        while self.epochs.front().is_some_and(|(epoch, _)| *epoch < first) {
            self.epochs.pop_front();
        }
    }

    /// Adds the rows of the next epoch.
    pub(super) fn add(&mut self, epoch: u64, values: Zeroizing<Vec<f64>>) {
        self.epochs.push_back((epoch, values));
    }

    /// Returns all rows from `first` on, in order of epochs.
    pub(super) fn since(&self, first: u64) -> Zeroizing<Vec<f64>> {
        let inside = || self.epochs.iter().filter(|(epoch, _)| *epoch >= first);
        let mut rows = Zeroizing::new(Vec::with_capacity(inside().map(|(_, values)| values.len()).sum()));
        inside().for_each(|(_, values)| rows.extend_from_slice(values));
        rows
    }

    /// Returns the rows of an epoch for the private log; nothing if no later window contains it.
    pub(super) fn kept_of(&self, epoch: u64) -> Sums {
        let Some((_, values)) = self.epochs.back().filter(|(last, _)| *last == epoch) else {
            return Sums::zero(0);
        };
        let mut private = Zeroizing::new(Vec::with_capacity(1 + values.len()));
        private.push((values.len() / self.columns) as i128);
        private.extend(values.iter().map(|value| i128::from(value.to_bits() as i64)));
        private.into()
    }
}
