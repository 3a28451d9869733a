//! The last rows of a stream: the memory of a Toeplitz strategy.

use zeroize::{Zeroize, Zeroizing};

/// The newest rows of a stream, up to a fixed number, wiped from memory when dropped.
///
/// Rows are stored in a ring, which grows until it holds `kept` rows.
pub(super) struct History<T: Copy + Zeroize> {
    coordinates: usize,
    kept: usize,
    steps: u64,
    rows: Zeroizing<Vec<T>>,
}

impl<T: Copy + Zeroize> History<T> {
    pub(super) fn new(coordinates: usize, kept: usize) -> Self {
        Self { coordinates, kept, steps: 0, rows: Zeroizing::new(Vec::new()) }
    }

    /// This history after `steps` rows, with `rows` as the ring's content; `None` if the number of
    /// values does not match.
    pub(super) fn replaced(&self, steps: u64, rows: Zeroizing<Vec<T>>) -> Option<Self> {
        let (coordinates, kept) = (self.coordinates, self.kept);
        let fits = held(steps, kept).checked_mul(coordinates) == Some(rows.len());
        fits.then_some(Self { coordinates, kept, steps, rows })
    }

    /// Raises the number of rows kept. No row may have been dropped yet.
    pub(super) fn keep(&mut self, kept: usize) {
        self.kept = kept;
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn coordinates(&self) -> usize {
        self.coordinates
    }

    pub(super) fn values(&self) -> &[T] {
        &self.rows
    }

    pub(super) fn newest_first(&self) -> impl Iterator<Item = &[T]> {
        let next = self.next();
        let places = (0..next).rev().chain((next..held(self.steps, self.kept)).rev());
        places.map(|place| &self.rows[place * self.coordinates..][..self.coordinates])
    }

    /// Adds a row of `coordinates` values; drops the oldest if `kept` rows are held.
    pub(super) fn push(&mut self, row: &[T]) {
        if self.kept > 0 {
            let start = self.next() * self.coordinates;
            match self.rows.get_mut(start..start + self.coordinates) {
                Some(place) => place.copy_from_slice(row),
                None => self.append(row),
            }
        }
        self.steps += 1;
    }

    /// Ring position of the next row; while the ring grows, the number of rows held.
    fn next(&self) -> usize {
        self.steps.checked_rem(self.kept as u64).unwrap_or(0) as usize
    }

    /// Grows by hand: a vector that grows by itself would leave a copy of its values in freed
    /// memory.
    fn append(&mut self, row: &[T]) {
        if self.rows.len() + row.len() > self.rows.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(2 * (self.rows.len() + row.len())));
            larger.extend_from_slice(&self.rows);
            self.rows = larger;
        }
        self.rows.extend_from_slice(row);
    }
}

fn held(steps: u64, kept: usize) -> usize {
    steps.min(kept as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_rows_are_kept() {
        for kept in 0..5 {
            for coordinates in 0..3 {
                let mut history = History::new(coordinates, kept);
                for step in 0..12i128 {
                    let expected: Vec<_> = (0..step).rev().take(kept).map(|s| vec![s; coordinates]).collect();
                    assert_eq!(history.newest_first().collect::<Vec<_>>(), expected);
                    assert_eq!(history.steps(), step as u64);
                    history.push(&vec![step; coordinates]);
                }
            }
        }
    }
}
