//! Released integers, in one canonical form: what leaves the private side.
//!
//! Equal integers are indistinguishable: in memory, in serialised form and as real numbers. They
//! take 64 bits if all of a shard fit, and 128 otherwise. So the width is a function of the
//! released integers alone. It is chosen after the noise is added, so it reveals nothing about the
//! sums or how they were accumulated.

use crate::moments::Row;
use serde::{Deserialize, Serialize};

/// Released values of a shard. They are safe to publish.
///
/// Only a [`ReleaseShard`](super::ReleaseShard) creates new ones. Earlier releases are read back as
/// integers:
///
/// ```
/// use hushflow_mechanism::release::ReleasedValues;
///
/// let [log, copy] = [vec![1i128, -2], vec![1, -2]].map(ReleasedValues::released_before);
/// assert_eq!(log, copy);
/// ```
///
/// The form cannot be chosen:
///
/// ```compile_fail
/// use hushflow_mechanism::release::ReleasedValues;
///
/// let wide = ReleasedValues::Wide(vec![1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Form")]
pub struct ReleasedValues(Form);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Form {
    Narrow(Vec<i64>),
    /// At least one value does not.
    Wide(Vec<i128>),
}

impl ReleasedValues {
    /// Values of an earlier release, from a log or another process.
    pub fn released_before(values: Vec<i128>) -> Self {
        if values.iter().all(|&value| i64::try_from(value).is_ok()) {
            Self::narrow(values.into_iter().map(|value| value as i64).collect())
        } else {
            Self(Form::Wide(values))
        }
    }

    pub(super) fn narrow(values: Vec<i64>) -> Self {
        Self(Form::Narrow(values))
    }

    /// All values.
    pub fn row(&self) -> Row<'_> {
        match &self.0 {
            Form::Narrow(values) => Row::Narrow(values),
            Form::Wide(values) => Row::Wide(values),
        }
    }

    /// All values, in 128 bits.
    pub fn into_wide(self) -> Vec<i128> {
        match self.0 {
            Form::Narrow(values) => values.into_iter().map(i128::from).collect(),
            Form::Wide(values) => values,
        }
    }

    /// The values' memory, if they are in 64 bits.
    pub(super) fn narrow_room(self) -> Vec<i64> {
        match self.0 {
            Form::Narrow(room) => room,
            Form::Wide(_) => Vec::new(),
        }
    }

    /// The values' memory, if they are in 128 bits.
    pub(super) fn wide_room(self) -> Vec<i128> {
        match self.0 {
            Form::Narrow(_) => Vec::new(),
            Form::Wide(room) => room,
        }
    }
}

impl Default for ReleasedValues {
    fn default() -> Self {
        Self::narrow(Vec::new())
    }
}

impl From<Form> for ReleasedValues {
    /// Bytes from elsewhere may hold narrow values in 128 bits.
    fn from(form: Form) -> Self {
        match form {
            Form::Narrow(values) => Self::narrow(values),
            Form::Wide(values) => Self::released_before(values),
        }
    }
}

/// Released integers as real numbers, in multiples of `unit`.
pub(crate) fn in_real_units(integers: Row<'_>, unit: f64, reals: &mut [f64]) {
    match integers {
        Row::Narrow(integers) => {
            reals.iter_mut().zip(integers).for_each(|(real, &integer)| *real = integer as f64 * unit);
        }
        Row::Wide(integers) => {
            reals.iter_mut().zip(integers).for_each(|(real, &integer)| *real = to_real(integer) * unit);
        }
    }
}

/// The nearest real number, ties to even: equals `integer as f64`, but faster. Below 2¹⁰⁴ the high
/// bits and the lowest 52 are exact real numbers, and their sum rounds once.
pub(crate) fn to_real(integer: i128) -> f64 {
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

    fn bytes(values: &ReleasedValues) -> Vec<u8> {
        serde_json::to_vec(values).unwrap()
    }

    proptest! {
        #[test]
        fn a_real_number_is_the_nearest(integer in any::<i128>(), shift in 0u32..128, off in -3i128..4) {
            for integer in [integer >> shift, (1i128 << (shift % 127)) + off, -(1i128 << (shift % 127)) - off] {
                prop_assert_eq!(to_real(integer).to_bits(), (integer as f64).to_bits());
                if let Ok(narrow) = i64::try_from(integer) {
                    prop_assert_eq!(to_real(integer).to_bits(), (narrow as f64).to_bits());
                }
            }
        }
    }

    #[test]
    fn equal_integers_are_equal_in_every_respect() {
        for bits in 60..66 {
            for off in [-1, 0, 1] {
                let values = vec![-(1i128 << bits) + off, 7, (1 << bits) + off];
                let one = ReleasedValues::released_before(values.clone());
                let fits = values.iter().all(|&value| i64::try_from(value).is_ok());
                assert_eq!(matches!(one.row(), Row::Narrow(_)), fits);
                let forged = ReleasedValues(Form::Wide(values.clone()));
                let other: ReleasedValues = serde_json::from_slice(&bytes(&forged)).unwrap();
                assert_eq!(one, other);
                assert_eq!(bytes(&one), bytes(&other));
                assert_eq!(one.into_wide(), values);
            }
        }
    }
}
