//! Checks numbers from which sensitivities and mechanisms are computed, and rounds upwards.

use thiserror::Error;

/// A number from which no sensitivity or mechanism can be computed.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{name} is {value:?}, expected {expected}")]
pub struct OutOfRange {
    /// The quantity.
    pub name: &'static str,
    /// The value found.
    pub value: f64,
    /// The values allowed.
    pub expected: &'static str,
}

/// Raises a number ≥ 0 by a factor of 1 + 2⁻⁴⁴, which exceeds the error of 500 roundings to
/// nearest.
pub(crate) fn rounded_up(value: f64) -> f64 {
    value * (1.0 + 256.0 * f64::EPSILON)
}

/// Returns the number if it is above 0, finite, and large enough to keep all digits of an f64.
pub(crate) fn positive(name: &'static str, value: f64) -> Result<f64, OutOfRange> {
    let expected = "a finite number above 0 (1e-307 or more)";
    if value > 0.0 && value.is_normal() { Ok(value) } else { Err(OutOfRange { name, value, expected }) }
}

pub(crate) fn at_least_one(name: &'static str, number: usize) -> Result<(), OutOfRange> {
    if number >= 1 { Ok(()) } else { Err(OutOfRange { name, value: number as f64, expected: "at least 1" }) }
}
