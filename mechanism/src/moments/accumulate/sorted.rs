//! Sorts the rows of a batch by key, so that those of a key are multiplied together.
//!
//! A counting sort: it takes two passes over the keys and copies each row once. That is much less
//! than what it saves, if a key has many rows: the search for its sums, and their traffic.

use super::PENDING_ROWS;
use crate::moments::wipe;
use std::ops::Range;

/// Rows by key, wiped when dropped.
#[derive(Default)]
pub(super) struct SortedRows {
    width: usize,
    values: Vec<f64>,
    /// The end of the rows of each key, from 0.
    ends: Vec<usize>,
}

impl SortedRows {
    /// Sorts rows of `width` values; `keys` has the key of each. Returns false, and has no rows, if
    /// another way is faster: keys have few rows, or are mostly sorted.
    pub(super) fn sort(&mut self, keys: &[u32], rows: &[f64], width: usize) -> bool {
        self.ends.clear();
        let number = keys.iter().fold(0, |most, &key| most.max(key)) as usize + 1;
        let changes = keys.iter().zip(keys.get(1..).unwrap_or_default()).filter(|(key, next)| key != next);
        if number.saturating_mul(PENDING_ROWS) > keys.len() || changes.count() * PENDING_ROWS < keys.len() {
            return false;
        }
        self.width = width;
        let length = rows.len().max(self.values.len());
        if length > self.values.capacity() {
            // Growing would leave a copy in freed memory.
            self.wipe();
            self.values.reserve_exact(length);
        }
        self.values.resize(length, 0.0);
        self.ends.resize(number + 1, 0);
        // First the number of rows of the key before, then the start of its own rows, which ends up
        // as their end.
        keys.iter().for_each(|&key| self.ends[key as usize + 1] += 1);
        self.ends.iter_mut().fold(0, |sum, start| {
            *start += sum;
            *start
        });
        // Rows of a known length are moved without a call.
        let (ends, sorted) = (&mut self.ends[..], &mut self.values[..]);
        match width {
            2 => scatter(keys, rows.as_chunks::<2>().0, ends, sorted.as_chunks_mut().0),
            4 => scatter(keys, rows.as_chunks::<4>().0, ends, sorted.as_chunks_mut().0),
            8 => scatter(keys, rows.as_chunks::<8>().0, ends, sorted.as_chunks_mut().0),
            _ => {
                for (&key, row) in keys.iter().zip(rows.chunks_exact(width)) {
                    let position = &mut ends[key as usize];
                    sorted[*position * width..][..width].copy_from_slice(row);
                    *position += 1;
                }
            }
        }
        self.ends.truncate(number);
        true
    }

    /// The keys that have rows, ascending, and their rows.
    pub(super) fn runs(&self) -> impl Iterator<Item = (u32, &[f64])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let runs = starts.zip(&self.ends).map(|(start, &end)| Range { start, end }).enumerate();
        runs.filter(|(_, run)| !run.is_empty())
            .map(|(key, run)| (key as u32, &self.values[run.start * self.width..run.end * self.width]))
    }
}

/// Copies each row to the place of its key, which moves on.
fn scatter<const D: usize>(keys: &[u32], rows: &[[f64; D]], places: &mut [usize], sorted: &mut [[f64; D]]) {
    for (&key, row) in keys.iter().zip(rows) {
        let place = &mut places[key as usize];
        sorted[*place] = *row;
        *place += 1;
    }
}

impl SortedRows {
    /// Wipes the rows, and keeps the memory.
    pub(super) fn wipe(&mut self) {
        wipe(&mut self.values);
        self.values.clear();
        self.ends.clear();
    }
}

impl Drop for SortedRows {
    fn drop(&mut self) {
        self.wipe();
    }
}
