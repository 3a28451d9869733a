//! Conversion of many numbers to integers and back, without a call, cast or branch per number, so
//! that compilers vectorise it.

/// The middle of [2⁵², 2⁵³], where the floats are the integers and their bits count them.
const SHIFT: f64 = 1.5 * (1u64 << 52) as f64;

/// Returns the nearest integer of a number below 2⁵¹ in magnitude, ties to even; never −0.
///
/// The addition rounds and the subtraction is exact. `f64::round_ties_even` would be a call for
/// every entry on processors without a rounding instruction.
pub(crate) fn round_ties_even(value: f64) -> f64 {
    (value + SHIFT) - SHIFT
}

/// Converts an integral float below 2⁵¹ in magnitude to `i64`. A cast would also check the range.
pub(crate) fn as_integer(value: f64) -> i64 {
    ((value + SHIFT).to_bits() as i64).wrapping_sub(SHIFT.to_bits() as i64)
}

/// Converts an integer below 2⁵¹ in magnitude to a float, exactly.
pub(crate) fn as_number(value: i64) -> f64 {
    f64::from_bits(value.wrapping_add(SHIFT.to_bits() as i64) as u64) - SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: f64 = (1u64 << 51) as f64;

    proptest! {
        #[test]
        fn both_are_what_the_library_finds(value in -LIMIT..LIMIT, exponent in -60i32..1) {
            let value = value * 2f64.powi(exponent);
            let rounded = round_ties_even(value);
            prop_assert_eq!(rounded, value.round_ties_even());
            prop_assert_eq!(as_integer(rounded), rounded as i64);
            prop_assert_eq!(as_number(rounded as i64), rounded);
        }
    }

    #[test]
    fn ties_go_to_even_and_zero_has_no_sign() {
        assert_eq!([0.5, 1.5, -0.5, -2.5].map(round_ties_even), [0.0, 2.0, 0.0, -2.0]);
        assert!(round_ties_even(-0.25).is_sign_positive());
        assert_eq!([LIMIT - 1.0, 1.0 - LIMIT].map(as_integer), [(1 << 51) - 1, 1 - (1 << 51)]);
    }
}
