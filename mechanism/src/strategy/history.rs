//! The last rows of a stream: the memory of a Toeplitz strategy.

use zeroize::{Zeroize, Zeroizing};

/// The newest rows of a stream, up to a fixed number of them, wiped from memory when dropped.
///
/// Rows lie one after the other in a ring, which grows until it holds `kept` rows.
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

    /// The same history after `steps` rows, its ring holding `rows`; `None` if that is not the number of values it
    /// would hold.
    pub(super) fn replaced(&self, steps: u64, rows: Zeroizing<Vec<T>>) -> Option<Self> {
        let (coordinates, kept) = (self.coordinates, self.kept);
        let fits = held(steps, kept).checked_mul(coordinates) == Some(rows.len());
        fits.then_some(Self { coordinates, kept, steps, rows })
    }

    /// Keeps more rows from now on. None may have given way yet.
    pub(super) fn keep(&mut self, kept: usize) {
        self.kept = kept;
    }

    /// Number of rows pushed so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Number of values in a row.
    pub(super) fn coordinates(&self) -> usize {
        self.coordinates
    }

    /// All values held, in the order of the ring.
    pub(super) fn values(&self) -> &[T] {
        &self.rows
    }

    /// The rows held, newest first.
    pub(super) fn newest_first(&self) -> impl Iterator<Item = &[T]> {
        let next = self.next();
        let places = (0..next).rev().chain((next..held(self.steps, self.kept)).rev());
        places.map(|place| &self.rows[place * self.coordinates..][..self.coordinates])
    }

    /// Takes in a row of `coordinates` values; the oldest gives way when `kept` are held.
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

    /// Place in the ring of the next row; the number of rows held while the ring still grows.
    fn next(&self) -> usize {
        self.steps.checked_rem(self.kept as u64).unwrap_or(0) as usize
    }

    /// A vector that grows by itself would leave a copy of its values behind in freed memory.
    fn append(&mut self, row: &[T]) {
        if self.rows.len() + row.len() > self.rows.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity(2 * (self.rows.len() + row.len())));
            larger.extend_from_slice(&self.rows);
            self.rows = larger;
        }
        self.rows.extend_from_slice(row);
    }
}

/// Number of rows held after `steps` rows when `kept` are kept.
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
