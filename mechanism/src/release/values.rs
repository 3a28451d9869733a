//! Released integers, in one canonical form: the only data that leaves the private side.
//!
//! Equal integers are indistinguishable: in memory, in serialised form and as real numbers. They
//! take 64 bits if all of a shard fit, and 128 otherwise. So the width is a function of the
//! released integers alone. It is chosen after the noise is added, so it reveals nothing about the
//! sums or how they were accumulated.

use crate::moments::IntegerRow;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

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
    form: ReleasedStorage,
    /// Receives the memory on drop.
    room: Option<NoiseBuffer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
pub(super) struct NoiseBuffer(Arc<Mutex<ReleasedStorage>>);

impl NoiseBuffer {
    pub(super) fn take_narrow(&self) -> Vec<i64> {
        match self.exchange(ReleasedStorage::default()) {
            ReleasedStorage::Narrow(room) => room,
            ReleasedStorage::Wide(_) => Vec::new(),
        }
    }

    pub(super) fn take_wide(&self) -> Vec<i128> {
        match self.exchange(ReleasedStorage::default()) {
            ReleasedStorage::Narrow(_) => Vec::new(),
            ReleasedStorage::Wide(room) => room,
        }
    }

    fn exchange(&self, form: ReleasedStorage) -> ReleasedStorage {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), form)
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

    /// Returns the memory to `room` on drop.
    pub(super) fn back_to(mut self, room: &NoiseBuffer) -> Self {
        self.room = Some(room.clone());
        self
    }

    /// All values.
    pub fn row(&self) -> IntegerRow<'_> {
        match &self.form {
            ReleasedStorage::Narrow(values) => IntegerRow::Narrow(values),
            ReleasedStorage::Wide(values) => IntegerRow::Wide(values),
        }
    }

    /// All values, in 128 bits.
    pub fn into_wide(mut self) -> Vec<i128> {
        match std::mem::take(&mut self.form) {
            ReleasedStorage::Narrow(values) => values.into_iter().map(i128::from).collect(),
            ReleasedStorage::Wide(values) => values,
        }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.exchange(std::mem::take(&mut self.form));
        }
    }
}

impl From<ReleasedStorage> for Released {
    /// Chooses the width: bytes from outside may hold narrow values in 128 bits.
    fn from(form: ReleasedStorage) -> Self {
        let form = match form {
            ReleasedStorage::Wide(values) if values.iter().all(|&value| i64::try_from(value).is_ok()) => {
                ReleasedStorage::Narrow(values.into_iter().map(|value| value as i64).collect())
            }
            form => form,
        };
        Released { form, room: None }
    }
}

impl Serialize for Released {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.form.serialize(serializer)
    }
}

impl fmt::Debug for Released {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.row().iter()).finish()
    }
}

impl PartialEq for Released {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

impl Eq for Released {}

/// Writes released integers as real numbers, in multiples of `unit`. Both have the same length.
pub fn in_real_units(integers: IntegerRow<'_>, unit: f64, reals: &mut [f64]) {
    match integers {
        IntegerRow::Narrow(integers) => {
            reals.iter_mut().zip(integers).for_each(|(real, &integer)| *real = integer as f64 * unit);
        }
        IntegerRow::Wide(integers) => {
            reals.iter_mut().zip(integers).for_each(|(real, &integer)| *real = to_real(integer) * unit);
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
                let forged = Released { form: ReleasedStorage::Wide(values.clone()), room: None };
                let other: Released = serde_json::from_slice(&bytes(&forged)).unwrap();
                assert_eq!(one, other);
                assert_eq!(bytes(&one), bytes(&other));
                assert_eq!(one.into_wide(), values);
            }
        }
    }

    #[test]
    fn memory_of_released_values_is_reused_after_drop() {
        let room = NoiseBuffer::default();
        let values = Released::released_before(vec![1, 2, 3]).back_to(&room);
        assert!(room.take_narrow().is_empty());
        drop(values);
        assert_eq!(room.take_narrow(), [1, 2, 3]);
        drop(Released::released_before(vec![1 << 90]).back_to(&room));
        assert!(room.take_narrow().is_empty(), "of another width");
    }
}
