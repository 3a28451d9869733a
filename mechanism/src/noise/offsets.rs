//! Integers that a simulation adds to seeded noise.
//!
//! With the noise `z' = z + C(x − x')`, the sums `x'` are released as the same integers as `x` with
//! the noise z. Two such runs have the same output, so any other difference between the runs
//! depends on the sums.

use std::str::FromStr;
use thiserror::Error;

/// One integer per epoch and coordinate, all keys end to end. Missing integers are zero.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offsets(Vec<Vec<i128>>);

impl Offsets {
    /// Takes offsets by epoch, beginning with epoch 1, and by coordinate.
    pub fn new(epochs: Vec<Vec<i128>>) -> Self {
        Self(epochs)
    }

    /// Keeps the offsets as long as the process lives, so that a
    /// [`NoiseSource`](super::NoiseSource) stays a plain value.
    pub fn leaked(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Returns the offsets of an epoch, from this coordinate on.
    pub(super) fn from(&self, epoch: u64, coordinate: u64) -> &[i128] {
        let row = usize::try_from(epoch).ok().and_then(|epoch| self.0.get(epoch.checked_sub(1)?));
        let rest = usize::try_from(coordinate).ok().and_then(|first| row?.get(first..));
        rest.unwrap_or_default()
    }
}

/// A field that is not an integer.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column} holds {found:?}: expected an integer of at most 128 bits, such as -12")]
pub struct OffsetsError {
    line: usize,
    column: usize,
    found: String,
}

/// Parses one line per epoch, with integers separated by commas. An empty line has none.
impl FromStr for Offsets {
    type Err = OffsetsError;

    fn from_str(text: &str) -> Result<Self, OffsetsError> {
        let number = |line: usize, (column, field): (usize, &str)| {
            let found = || field.chars().take(40).collect();
            field.trim().parse().map_err(|_| OffsetsError { line, column: column + 1, found: found() })
        };
        let row = |(line, text): (usize, &str)| match text.trim() {
            "" => Ok(Vec::new()),
            text => text.split(',').enumerate().map(|field| number(line + 1, field)).collect(),
        };
        text.lines().enumerate().map(row).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_zero() {
        let offsets: Offsets = "1, -2,3\n\n-170141183460469231731687303715884105728\n".parse().unwrap();
        assert_eq!(offsets, Offsets(vec![vec![1, -2, 3], vec![], vec![i128::MIN]]));
        assert_eq!(offsets.from(1, 1), [-2, 3]);
        for (epoch, coordinate) in [(0, 0), (1, 3), (1, 4), (2, 0), (4, 0), (u64::MAX, u64::MAX)] {
            assert!(offsets.from(epoch, coordinate).is_empty());
        }
    }

    #[test]
    fn an_error_names_line_and_column() {
        let error = "1,2\n3,x4\n".parse::<Offsets>().unwrap_err();
        assert!(
            error.to_string().starts_with("line 2, column 2 holds \"x4\": expected an integer"),
            "{error}"
        );
        assert!("1,\n".parse::<Offsets>().is_err() && "1.5".parse::<Offsets>().is_err());
    }
}
