//! Released integers, in one canonical form: the only data that leaves the private side.
//!
//! Equal integers are indistinguishable: in memory, in serialised form and as real numbers. They
//! take 64 bits if all integers that were released together fit, and 128 otherwise. So the width is
//! a function of the released integers alone. It is chosen after the noise is added, so it reveals
//! nothing about the sums or the way in which they were accumulated.

use crate::moments::IntegerRow;
use crate::registers::{Lanes, in_widest};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Released integers. They are safe to publish.
///
/// Only a [`ReleaseShard`](super::ReleaseShard) creates new ones. Earlier releases are read back as
/// integers:
///
/// ```
/// use hushflow_mechanism::release::Released;
///
/// let [log, copy] = [vec![1i128, -2], vec![1, -2]].map(Released::released_before);
/// assert_eq!(log, copy);
/// ```
///
/// The form cannot be chosen:
///
/// ```compile_fail
/// use hushflow_mechanism::release::Released;
///
/// let wide = Released::Wide(vec![1]);
/// ```
#[derive(Clone, Deserialize)]
#[serde(from = "ReleasedStorage")]
pub struct Released {
    values: Arc<ReleasedBuffer>,
    /// Range of `values` that this run holds.
    run: Range<usize>,
}

/// Integers that were released together.
struct ReleasedBuffer {
    form: ReleasedStorage,
    /// Receives the memory on drop.
    buffer: Option<NoiseBuffer>,
}

#[derive(Deserialize)]
enum ReleasedStorage {
    Narrow(Vec<i64>),
    /// At least one value does not fit 64 bits.
    Wide(Vec<i128>),
}

impl Default for ReleasedStorage {
    fn default() -> Self {
        ReleasedStorage::Narrow(Vec::new())
    }
}

/// A shard's memory for noise: allocating it for every epoch would cost more than the work on it.
/// Its contents are public.
#[derive(Clone, Default)]
pub(super) struct NoiseBuffer(Arc<Mutex<(Vec<i64>, Vec<i128>)>>);

impl NoiseBuffer {
    pub(super) fn take_narrow(&self) -> Vec<i64> {
        std::mem::take(&mut self.buffer().0)
    }

    pub(super) fn take_wide(&self) -> Vec<i128> {
        std::mem::take(&mut self.buffer().1)
    }

    fn give(&self, form: ReleasedStorage) {
        match form {
            ReleasedStorage::Narrow(values) => self.buffer().0 = values,
            ReleasedStorage::Wide(values) => self.buffer().1 = values,
        }
    }

    fn buffer(&self) -> MutexGuard<'_, (Vec<i64>, Vec<i128>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Released {
    /// Values of an earlier release, from a log or another process.
    pub fn released_before(values: Vec<i128>) -> Self {
        ReleasedStorage::Wide(values).into()
    }

    pub(super) fn narrow(values: Vec<i64>) -> Self {
        ReleasedStorage::Narrow(values).into()
    }

    /// As [`released_before`](Self::released_before), for new values, in the memory of `buffer`.
    /// Memory that is not needed returns to `buffer`.
    pub(super) fn into_buffer(values: Vec<i128>, buffer: &NoiseBuffer) -> Self {
        let mut narrow = buffer.take_narrow();
        let form = if narrow_into(&values, &mut narrow) {
            buffer.give(ReleasedStorage::Wide(values));
            ReleasedStorage::Narrow(narrow)
        } else {
            ReleasedStorage::Wide(values)
        };
        Self::of_form(form)
    }

    fn of_form(form: ReleasedStorage) -> Self {
        let run = match &form {
            ReleasedStorage::Narrow(values) => 0..values.len(),
            ReleasedStorage::Wide(values) => 0..values.len(),
        };
        Self { values: Arc::new(ReleasedBuffer { form, buffer: None }), run }
    }

    /// Returns the memory to `buffer` on drop.
    pub(super) fn returning_to(mut self, buffer: &NoiseBuffer) -> Self {
        if let Some(values) = Arc::get_mut(&mut self.values) {
            values.buffer = Some(buffer.clone());
        }
        self
    }

    /// All values.
    pub fn row(&self) -> IntegerRow<'_> {
        match &self.values.form {
            ReleasedStorage::Narrow(values) => IntegerRow::Narrow(&values[self.run.clone()]),
            ReleasedStorage::Wide(values) => IntegerRow::Wide(&values[self.run.clone()]),
        }
    }

    /// Returns a run of the values without copying them. The run is cut to the existing values.
    #[must_use]
    pub fn part(&self, run: Range<usize>) -> Self {
        let [start, end] = [run.start, run.end].map(|value| (self.run.start + value).min(self.run.end));
        Released { values: Arc::clone(&self.values), run: start..end.max(start) }
    }

    /// All values, in 128 bits.
    pub fn into_wide(mut self) -> Vec<i128> {
        let whole = self.run.len();
        match Arc::get_mut(&mut self.values).map(|values| &mut values.form) {
            Some(ReleasedStorage::Wide(values)) if values.len() == whole => std::mem::take(values),
            _ => self.row().iter().collect(),
        }
    }
}

impl Drop for ReleasedBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = &self.buffer {
            buffer.give(std::mem::take(&mut self.form));
        }
    }
}

impl From<ReleasedStorage> for Released {
    /// Chooses the width: bytes from outside may hold narrow values in 128 bits.
    fn from(form: ReleasedStorage) -> Self {
        let form = match form {
            ReleasedStorage::Wide(values) => match narrowed(&values) {
                Some(values) => ReleasedStorage::Narrow(values),
                None => ReleasedStorage::Wide(values),
            },
            form => form,
        };
        Self::of_form(form)
    }
}

/// Returns the same integers in 64 bits if all fit.
fn narrowed(values: &[i128]) -> Option<Vec<i64>> {
    let mut narrow = Vec::new();
    narrow_into(values, &mut narrow).then_some(narrow)
}

/// Writes the same integers in 64 bits, and returns whether all fit.
fn narrow_into(values: &[i128], narrow: &mut Vec<i64>) -> bool {
    narrow.clear();
    narrow.extend(values.iter().map(|&value| value as i64));
    // All values at once, without a branch for each.
    values.iter().fold(0, |beyond, &value| beyond | ((value >> 64) as i64 ^ (value as i64 >> 63))) == 0
}

/// A borrowed [`ReleasedStorage`].
#[derive(Serialize)]
enum ReleasedRow<'a> {
    Narrow(Cow<'a, [i64]>),
    Wide(&'a [i128]),
}

impl Serialize for Released {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = match self.row() {
            IntegerRow::Narrow(values) => ReleasedRow::Narrow(Cow::Borrowed(values)),
            // The rest of the buffer may hold the values that did not fit.
            IntegerRow::Wide(values) => match narrowed(values) {
                Some(values) => ReleasedRow::Narrow(Cow::Owned(values)),
                None => ReleasedRow::Wide(values),
            },
        };
        row.serialize(serializer)
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.row().iter()).finish()
    }
}

impl PartialEq for Released {
    fn eq(&self, other: &Self) -> bool {
        self.row().iter().eq(other.row().iter())
    }
}

impl Eq for Released {}

/// Writes released integers as real numbers, in multiples of `unit`. Both have the same length.
pub fn in_real_units(integers: IntegerRow<'_>, unit: f64, reals: &mut [f64]) {
    match integers {
        IntegerRow::Narrow(integers) => in_widest(InRealUnits { integers, unit, reals }),
        IntegerRow::Wide(integers) => {
            reals.iter_mut().zip(integers).for_each(|(real, &integer)| *real = to_real(integer) * unit);
        }
    }
}

struct InRealUnits<'a> {
    integers: &'a [i64],
    unit: f64,
    reals: &'a mut [f64],
}

impl Lanes for InRealUnits<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (real, &integer) in self.reals.iter_mut().zip(self.integers) {
            *real = narrow_to_real(integer) * self.unit;
        }
    }
}

/// The nearest real number, ties to even: equals `integer as f64`, but faster. Below 2¹⁰⁴ the high
/// bits and the lowest 52 are exact real numbers, and their sum rounds once.
pub fn to_real(integer: i128) -> f64 {
    const LOW_BITS: u32 = 52;
    if integer.unsigned_abs() >> (2 * LOW_BITS) == 0 {
        let low = integer as u64 & ((1 << LOW_BITS) - 1);
        (integer >> LOW_BITS) as i64 as f64 * (1u64 << LOW_BITS) as f64 + low as i64 as f64
    } else {
        integer as f64
    }
}

/// The nearest real number, ties to even: equals `integer as f64`, in operations that vectorise.
///
/// The bits of `high` are those of 2⁸⁴ + 2⁶³ + 2³²h, where h is the signed upper half, and those of
/// `low` of 2⁵² + l. Their difference to the constant is exact, and the sum rounds once.
#[inline(always)]
fn narrow_to_real(integer: i64) -> f64 {
    let bits = integer.cast_unsigned();
    let high = f64::from_bits((bits >> 32) ^ 0x4530_0000_8000_0000);
    let low = f64::from_bits((bits & 0xffff_ffff) | 0x4330_0000_0000_0000);
    let offset = f64::from_bits(0x4530_0000_8010_0000);
    (high - offset) + low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(values: &Released) -> Vec<u8> {
        serde_json::to_vec(values).unwrap()
    }

    proptest! {
        #[test]
        fn real_coefficients_are_nearest_integers(integer in any::<i128>(), shift in 0u32..128, off in -3i128..4) {
            for integer in [integer >> shift, (1i128 << (shift % 127)) + off, -(1i128 << (shift % 127)) - off] {
                prop_assert_eq!(to_real(integer).to_bits(), (integer as f64).to_bits());
                if let Ok(narrow) = i64::try_from(integer) {
                    prop_assert_eq!(to_real(integer).to_bits(), (narrow as f64).to_bits());
                    prop_assert_eq!(narrow_to_real(narrow).to_bits(), (narrow as f64).to_bits());
                }
            }
        }
    }

    #[test]
    fn equal_integers_have_one_form() {
        for bits in 60..66 {
            for off in [-1, 0, 1] {
                let values = vec![-(1i128 << bits) + off, 7, (1 << bits) + off];
                let one = Released::released_before(values.clone());
                let fits = values.iter().all(|&value| i64::try_from(value).is_ok());
                assert_eq!(matches!(one.row(), IntegerRow::Narrow(_)), fits);
                // In one buffer with a value that does not fit.
                let all = [&values[..], &[i128::MAX]].concat();
                let part = Released::released_before(all).part(0..3);
                assert!(part == one && bytes(&part) == bytes(&one));
                let forged = format!("{{\"Wide\": {values:?}}}");
                let other: Released = serde_json::from_str(&forged).unwrap();
                assert_eq!(one, other);
                assert_eq!(bytes(&one), bytes(&other));
                assert_eq!(one.into_wide(), values);
            }
        }
    }

    #[test]
    fn memory_of_released_values_is_reused_after_drop() {
        let buffer = NoiseBuffer::default();
        let values = Released::released_before(vec![1, 2, 3]).returning_to(&buffer);
        assert!(buffer.take_narrow().is_empty());
        drop(values);
        assert_eq!(buffer.take_narrow(), [1, 2, 3]);
        drop(Released::released_before(vec![1 << 90]).returning_to(&buffer));
        assert!(buffer.take_narrow().is_empty(), "of another width");
        assert_eq!(buffer.take_wide(), [1 << 90]);
        let narrow = Released::into_buffer(vec![7, -8], &buffer).returning_to(&buffer);
        assert_eq!(buffer.take_wide(), [7, -8]);
        drop(narrow);
        assert_eq!(buffer.take_narrow(), [7, -8]);
    }
}
