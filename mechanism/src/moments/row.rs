//! A borrowed run of integers, wide or narrow.

/// A row of integers, in 64 bits where all of them are known to fit.
#[derive(Clone, Copy)]
pub enum IntegerRow<'a> {
    /// In 64 bits.
    Narrow(&'a [i64]),
    /// In 128 bits.
    Wide(&'a [i128]),
}

impl<'a> From<&'a [i64]> for IntegerRow<'a> {
    fn from(row: &'a [i64]) -> Self {
        IntegerRow::Narrow(row)
    }
}

impl<'a> From<&'a [i128]> for IntegerRow<'a> {
    fn from(row: &'a [i128]) -> Self {
        IntegerRow::Wide(row)
    }
}

impl<'a> IntegerRow<'a> {
    /// Returns a run of the integers.
    #[must_use]
    pub fn run(self, run: std::ops::Range<usize>) -> IntegerRow<'a> {
        match self {
            IntegerRow::Narrow(row) => IntegerRow::Narrow(&row[run]),
            IntegerRow::Wide(row) => IntegerRow::Wide(&row[run]),
        }
    }

    /// Returns all integers.
    pub fn iter(self) -> impl Iterator<Item = i128> + Clone + 'a {
        // One of the two is empty.
        let (narrow, wide): (&[i64], &[i128]) = match self {
            IntegerRow::Narrow(row) => (row, &[]),
            IntegerRow::Wide(row) => (&[], row),
        };
        narrow.iter().map(|&value| i128::from(value)).chain(wide.iter().copied())
    }

    /// Returns the number of integers.
    pub fn len(&self) -> usize {
        match self {
            IntegerRow::Narrow(row) => row.len(),
            IntegerRow::Wide(row) => row.len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
