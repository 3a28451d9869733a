//! A borrowed run of integers, wide or narrow.

/// A row of integers, in 64 bits where all of them are known to fit.
#[derive(Clone, Copy)]
pub enum Row<'a> {
    /// In 64 bits.
    Narrow(&'a [i64]),
    /// In 128 bits.
    Wide(&'a [i128]),
}

impl<'a> From<&'a [i64]> for Row<'a> {
    fn from(row: &'a [i64]) -> Self {
        Row::Narrow(row)
    }
}

impl<'a> From<&'a [i128]> for Row<'a> {
    fn from(row: &'a [i128]) -> Self {
        Row::Wide(row)
    }
}

impl<'a> Row<'a> {
    /// Returns a run of the integers.
    #[must_use]
    pub fn run(self, run: std::ops::Range<usize>) -> Row<'a> {
        match self {
            Row::Narrow(row) => Row::Narrow(&row[run]),
            Row::Wide(row) => Row::Wide(&row[run]),
        }
    }

    /// Returns all integers.
    pub fn iter(self) -> impl Iterator<Item = i128> + Clone + 'a {
        // One of the two is empty.
        let (narrow, wide): (&[i64], &[i128]) = match self {
            Row::Narrow(row) => (row, &[]),
            Row::Wide(row) => (&[], row),
        };
        narrow.iter().map(|&value| i128::from(value)).chain(wide.iter().copied())
    }

    /// Returns the number of integers.
    pub fn len(&self) -> usize {
        match self {
            Row::Narrow(row) => row.len(),
            Row::Wide(row) => row.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
