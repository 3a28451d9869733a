//! Exact sums of a run of coordinates, in 64 bits where they are known to fit, shared instead of copied.

use super::MomentError;
use crate::strategy::Row;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Exact sums of a run of coordinates. Private: they are wiped when the last that shares them is dropped.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "OwnSums", from = "OwnSums")]
pub struct RunSums(Sums);

#[derive(Clone)]
enum Sums {
    /// A run of sums of which all are in 64 bits.
    Narrow {
        all: Arc<Zeroizing<Vec<i64>>>,
        run: Range<usize>,
    },
    Wide(Zeroizing<Vec<i128>>),
}

/// Sums on their way to another process.
#[derive(Serialize, Deserialize)]
enum OwnSums {
    Narrow(Zeroizing<Vec<i64>>),
    Wide(Zeroizing<Vec<i128>>),
}

impl RunSums {
    /// A run of these sums, which it shares.
    pub(super) fn narrow(all: Arc<Zeroizing<Vec<i64>>>, run: Range<usize>) -> Self {
        let end = run.end.min(all.len());
        Self(Sums::Narrow { run: run.start.min(end)..end, all })
    }

    /// The sums of no records.
    pub fn zero(coordinates: usize) -> Self {
        Zeroizing::new(vec![0i64; coordinates]).into()
    }

    /// Number of sums.
    pub fn len(&self) -> usize {
        self.row().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sums.
    pub fn row(&self) -> Row<'_> {
        match &self.0 {
            Sums::Narrow { all, run } => Row::Narrow(&all[run.clone()]),
            Sums::Wide(sums) => Row::Wide(sums),
        }
    }

    /// The same sums without a copy: `None` unless they are in 64 bits.
    pub fn shared(&self) -> Option<Self> {
        matches!(self.0, Sums::Narrow { .. }).then(|| self.clone())
    }

    /// The sums in 128 bits.
    pub fn to_wide(&self) -> Zeroizing<Vec<i128>> {
        match self.row() {
            Row::Narrow(sums) => Zeroizing::new(sums.iter().map(|&sum| sum.into()).collect()),
            Row::Wide(sums) => Zeroizing::new(sums.to_vec()),
        }
    }

    /// The memory of these sums, if it is in 64 bits and nobody shares it.
    fn into_room(self) -> Option<Zeroizing<Vec<i64>>> {
        match self.0 {
            Sums::Narrow { all, .. } => Arc::into_inner(all),
            Sums::Wide(_) => None,
        }
    }

    /// These and others, the first of which belongs to the place `offset` of these; in the memory of `room` where it serves.
    ///
    /// # Errors
    /// [`MomentError::Overflow`].
    pub fn plus(self, offset: usize, others: &Self, room: Option<Self>) -> Result<Self, MomentError> {
        if let (Row::Narrow(these), Row::Narrow(those)) = (self.row(), others.row())
            && (offset, these.len()) == (0, those.len())
            && let Some(sums) = sum(these, those, room.and_then(Self::into_room).unwrap_or_default())
        {
            return Ok(sums.into());
        }
        let mut sums = match self.0 {
            Sums::Wide(sums) => sums,
            Sums::Narrow { .. } => self.to_wide(),
        };
        let others = others.to_wide();
        for (sum, other) in sums.get_mut(offset..).unwrap_or_default().iter_mut().zip(others.iter()) {
            *sum = sum.checked_add(*other).ok_or(MomentError::Overflow)?;
        }
        Ok(sums.into())
    }
}

/// `None` if one leaves 64 bits.
fn sum(these: &[i64], those: &[i64], mut sums: Zeroizing<Vec<i64>>) -> Option<Zeroizing<Vec<i64>>> {
    if sums.capacity() < these.len() {
        sums = Zeroizing::new(Vec::with_capacity(these.len()));
    }
    sums.clear();
    // The sign bit tells whether a total has another sign than both of what it is the total of.
    let mut overflows = 0;
    sums.extend(these.iter().zip(those).map(|(&this, &that)| {
        let total = this.wrapping_add(that);
        overflows |= (this ^ total) & (that ^ total);
        total
    }));
    (overflows >= 0).then_some(sums)
}

impl From<Zeroizing<Vec<i64>>> for RunSums {
    fn from(sums: Zeroizing<Vec<i64>>) -> Self {
        let run = 0..sums.len();
        Self(Sums::Narrow { all: Arc::new(sums), run })
    }
}

impl From<Zeroizing<Vec<i128>>> for RunSums {
    fn from(sums: Zeroizing<Vec<i128>>) -> Self {
        Self(Sums::Wide(sums))
    }
}

impl From<RunSums> for OwnSums {
    fn from(sums: RunSums) -> Self {
        match sums.0 {
            Sums::Narrow { all, run } => OwnSums::Narrow(Zeroizing::new(all[run].to_vec())),
            Sums::Wide(sums) => OwnSums::Wide(sums),
        }
    }
}

impl From<OwnSums> for RunSums {
    fn from(sums: OwnSums) -> Self {
        match sums {
            OwnSums::Narrow(sums) => sums.into(),
            OwnSums::Wide(sums) => sums.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrow(sums: &[i64]) -> RunSums {
        Zeroizing::new(sums.to_vec()).into()
    }

    fn wide(sums: &[i128]) -> RunSums {
        Zeroizing::new(sums.to_vec()).into()
    }

    #[test]
    fn sums_add_up_in_any_width() {
        let check = |one: RunSums, offset, other: RunSums, expected: &[i128]| {
            assert_eq!(*one.plus(offset, &other, None).unwrap().to_wide(), expected);
        };
        check(narrow(&[1, -2, 3]), 0, narrow(&[4, 5, 6]), &[5, 3, 9]);
        check(narrow(&[1, 2, 3]), 1, narrow(&[4, 5]), &[1, 6, 8]);
        check(RunSums::zero(3), 2, wide(&[7]), &[0, 0, 7]);
        check(wide(&[1 << 90, 0]), 0, narrow(&[1, 2]), &[(1 << 90) + 1, 2]);
        check(narrow(&[i64::MAX, 0]), 0, narrow(&[1, 1]), &[1 << 63, 1]);
        check(narrow(&[1]), 5, narrow(&[1]), &[1]);
        assert_eq!(wide(&[i128::MAX]).plus(0, &narrow(&[1]), None).err(), Some(MomentError::Overflow));
        for room in [narrow(&[7; 9]), narrow(&[7]), wide(&[7; 9])] {
            let sums = narrow(&[1, 2]).plus(0, &narrow(&[3, 4]), Some(room)).unwrap();
            assert_eq!(*sums.to_wide(), [4, 6]);
        }
    }

    #[test]
    fn a_run_of_shared_sums_is_what_it_says() {
        let all = Arc::new(Zeroizing::new(vec![1, 2, 3, 4]));
        let run = RunSums::narrow(all.clone(), 1..3);
        assert_eq!((*run.to_wide()).clone(), [2, 3]);
        assert_eq!(*RunSums::from(OwnSums::from(run)).to_wide(), [2, 3]);
        assert!(RunSums::narrow(all, 3..9).len() == 1);
    }
}
