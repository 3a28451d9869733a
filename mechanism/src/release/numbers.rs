//! Numbers that are released beside moments, as integers of a [`Released`](super::Released).
//!
//! An integer is written as itself. A real number is written as the 64 bits of its IEEE double, as
//! a signed integer, so it is read back exactly. A list is its length and then its items. An option
//! is 0, or 1 and then its value. A result is 0 and its value, or 1 and its error. A square matrix
//! is its size and then its rows. [`numbers!`](crate::numbers) writes structs as their fields in
//! order, and enums as a code and then the fields. A name from a list is its position there.

use nalgebra::DMatrix;

/// A value that can be released as numbers and read back exactly.
pub trait Numbers: Sized {
    /// Appends its numbers.
    fn write(&self, to: &mut Vec<i128>);

    /// Reads a value from the front of the numbers and removes it there; `None` if the numbers do
    /// not encode a value of this type.
    fn read(from: &mut &[i128]) -> Option<Self>;
}

/// Implements [`Numbers`](crate::release::Numbers).
///
/// ```
/// use hushflow_mechanism::numbers;
/// use hushflow_mechanism::release::Numbers;
///
/// const NAMES: [&str; 2] = ["one", "other"];
///
/// #[derive(Debug, PartialEq)]
/// enum Answer {
///     Missing,
///     Value { name: &'static str, value: f64 },
/// }
///
/// numbers!(enum Answer { 0 Missing, 1 Value { name: NAMES, value } });
///
/// let mut numbers = Vec::new();
/// Answer::Value { name: "other", value: 1.0 }.write(&mut numbers);
/// assert_eq!(numbers, [1, 1, 0x3ff0_0000_0000_0000]);
/// assert_eq!(Answer::read(&mut &[0][..]), Some(Answer::Missing));
/// ```
#[macro_export]
macro_rules! numbers {
    (struct $name:ident { $($field:ident $(: $names:ident)?),* }) => {
        impl $crate::release::Numbers for $name {
            fn write(&self, to: &mut Vec<i128>) {
                $($crate::numbers!(@write &self.$field, to $(, $names)?);)*
            }

            fn read(from: &mut &[i128]) -> Option<Self> {
                Some(Self { $($field: $crate::numbers!(@read from $(, $names)?)),* })
            }
        }
    };
    (enum $name:ident {
        $($code:literal $variant:ident $(($inner:ident))? $({ $($field:ident $(: $names:ident)?),* })?),*
    }) => {
        impl $crate::release::Numbers for $name {
            fn write(&self, to: &mut Vec<i128>) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),* })? => {
                        to.push($code);
                        $($crate::numbers!(@write $inner, to);)?
                        $($($crate::numbers!(@write $field, to $(, $names)?);)*)?
                    })*
                }
            }

            fn read(from: &mut &[i128]) -> Option<Self> {
                match <i128 as $crate::release::Numbers>::read(from)? {
                    $($code => {
                        $(let $inner = $crate::numbers!(@read from);)?
                        $($(let $field = $crate::numbers!(@read from $(, $names)?);)*)?
                        Some(Self::$variant $(($inner))? $({ $($field),* })?)
                    })*
                    _ => None,
                }
            }
        }
    };
    (@write $value:expr, $to:expr) => { $crate::release::Numbers::write($value, $to) };
    (@write $value:expr, $to:expr, $names:expr) => {{
        debug_assert!($names.contains($value), "{} is not a name of these", $value);
        $to.push($names.iter().take_while(|name| *name != $value).count() as i128);
    }};
    (@read $from:expr) => { $crate::release::Numbers::read($from)? };
    (@read $from:expr, $names:expr) => {
        *$names.get(<usize as $crate::release::Numbers>::read($from)?)?
    };
}

impl Numbers for i128 {
    fn write(&self, to: &mut Vec<i128>) {
        to.push(*self);
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        let (&first, rest) = from.split_first()?;
        *from = rest;
        Some(first)
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Numbers for $integer {
            fn write(&self, to: &mut Vec<i128>) {
                to.push(*self as i128);
            }

            fn read(from: &mut &[i128]) -> Option<Self> {
                Self::try_from(i128::read(from)?).ok()
            }
        }
    )*};
}

integers!(i64, u32, u64, usize);

impl Numbers for bool {
    fn write(&self, to: &mut Vec<i128>) {
        to.push((*self).into());
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        match i128::read(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Numbers for f64 {
    fn write(&self, to: &mut Vec<i128>) {
        self.to_bits().cast_signed().write(to);
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        i64::read(from).map(|bits| f64::from_bits(bits.cast_unsigned()))
    }
}

impl<T: Numbers> Numbers for Option<T> {
    fn write(&self, to: &mut Vec<i128>) {
        self.is_some().write(to);
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        Some(if bool::read(from)? { Some(T::read(from)?) } else { None })
    }
}

impl<T: Numbers, E: Numbers> Numbers for Result<T, E> {
    fn write(&self, to: &mut Vec<i128>) {
        self.is_err().write(to);
        match self {
            Ok(value) => value.write(to),
            Err(error) => error.write(to),
        }
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        Some(if bool::read(from)? { Err(E::read(from)?) } else { Ok(T::read(from)?) })
    }
}

impl<T: Numbers> Numbers for Vec<T> {
    fn write(&self, to: &mut Vec<i128>) {
        self.len().write(to);
        self.iter().for_each(|item| item.write(to));
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        (0..usize::read(from)?).map(|_| T::read(from)).collect()
    }
}

impl<A: Numbers, B: Numbers> Numbers for (A, B) {
    fn write(&self, to: &mut Vec<i128>) {
        self.0.write(to);
        self.1.write(to);
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        Some((A::read(from)?, B::read(from)?))
    }
}

impl Numbers for DMatrix<f64> {
    fn write(&self, to: &mut Vec<i128>) {
        self.nrows().write(to);
        self.row_iter().for_each(|row| row.iter().for_each(|entry| entry.write(to)));
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        let size = usize::read(from)?;
        let entries = (0..size.checked_mul(size)?).map(|_| f64::read(from)).collect::<Option<Vec<_>>>()?;
        Some(DMatrix::from_row_slice(size, size, &entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type MixedNumbers = (Vec<Option<f64>>, Result<(bool, u64), (i64, usize)>);

    proptest! {
        #[test]
        fn numbers_are_read_back_as_written(
            reals in prop::collection::vec(prop::option::of(prop::num::f64::ANY), 0..9),
            result in prop::result::maybe_err(any::<(bool, u64)>(), any::<(i64, usize)>()),
            junk in prop::collection::vec(-2..4i128, 0..12),
        ) {
            let mut numbers = Vec::new();
            (reals.clone(), result).write(&mut numbers);
            let mut rest = &numbers[..];
            let (read, of_result) = MixedNumbers::read(&mut rest).unwrap();
            let bits = |reals: &[Option<f64>]| reals.iter().map(|real| real.map(f64::to_bits)).collect::<Vec<_>>();
            prop_assert!(rest.is_empty() && bits(&read) == bits(&reals) && of_result == result);
            for end in 0..numbers.len() {
                prop_assert!(MixedNumbers::read(&mut &numbers[..end]).is_none(), "cut to {}", end);
            }
            // Arbitrary numbers are read or refused, without a panic.
            let _ = (MixedNumbers::read(&mut &junk[..]), DMatrix::read(&mut &junk[..]));
        }
    }

    #[test]
    fn matrices_are_read_row_by_row() {
        let matrix = DMatrix::from_row_slice(2, 2, &[1.0, 2.0, 3.0, -0.0]);
        let mut numbers = Vec::new();
        matrix.write(&mut numbers);
        assert_eq!((numbers[0], f64::read(&mut &numbers[2..])), (2, Some(2.0)));
        assert_eq!(DMatrix::read(&mut &numbers[..]), Some(matrix));
        assert_eq!(DMatrix::read(&mut &[i128::from(u32::MAX), 0][..]), None);
    }
}
