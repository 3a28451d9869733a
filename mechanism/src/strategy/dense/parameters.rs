//! The entries of a dense strategy: checked, rounded, stored as text.

use super::super::{COEFFICIENT_BITS, StrategyError, StrategyName, check_horizon};
use super::MAX_DENSE_HORIZON;
use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

const CHARACTER_BITS: u32 = 6;

/// Characters per entry in the text form: 42 bits hold every integer from −2⁴⁰ to 2⁴⁰.
const ENTRY_CHARACTERS: usize = 7;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const LARGEST: i64 = 1 << COEFFICIENT_BITS;

/// The entries of a lower-triangular C with a positive diagonal, in units of
/// 2^-[`COEFFICIENT_BITS`].
///
/// The serialised form is text: seven characters of the base-64 alphabet for each entry on and
/// below the diagonal, row by row. They encode the entry plus 2⁴¹, most significant character
/// first; 3.7 MB for 1024 steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DenseParameters {
    steps: usize,
    /// Row by row, at most [`LARGEST`] in magnitude.
    lower: Vec<i64>,
}

impl DenseParameters {
    pub(super) fn round(name: &StrategyName, c: &DMatrix<f64>) -> Result<Self, StrategyError> {
        let (rows, columns) = c.shape();
        if rows != columns {
            return Err(StrategyError::NotSquare { rows, columns });
        }
        check_horizon(name, rows as u64, MAX_DENSE_HORIZON)?;
        check_entries(c)?;
        // In two steps, so that no square leaves the range of a float.
        let largest = c.amax();
        let norm = (0..rows).map(|i| column_norm(c, i, largest)).fold(0.0, f64::max);
        let round = |entry: f64| (entry / largest / norm * LARGEST as f64).round() as i64;
        let lower = (0..rows).flat_map(|t| (0..=t).map(move |i| (t, i))).map(|position| round(c[position]));
        Self::checked(rows, lower.collect())
    }

    fn checked(steps: usize, lower: Vec<i64>) -> Result<Self, StrategyError> {
        let parameters = Self { steps, lower };
        match (0..steps).find(|&t| parameters.entry(t, t) <= 0) {
            Some(t) => Err(StrategyError::Singular { step: t + 1 }),
            None => Ok(parameters),
        }
    }

    /// Number of rows and columns.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Row t on and below the diagonal, counted from 0.
    pub(super) fn row(&self, t: usize) -> &[i64] {
        &self.lower[t * (t + 1) / 2..][..t + 1]
    }

    pub(super) fn entry(&self, t: usize, i: usize) -> i64 {
        self.row(t).get(i).copied().unwrap_or(0)
    }

    pub(super) fn all(&self) -> &[i64] {
        &self.lower
    }

    pub(super) fn is_non_negative(&self) -> bool {
        self.lower.iter().all(|&m| m >= 0)
    }

    /// Number of diagonals from the main one to the lowest that is not all 0.
    pub(super) fn bands(&self) -> usize {
        let used = |t: usize| self.row(t).iter().position(|&m| m != 0).map_or(0, |first| t - first + 1);
        (0..self.steps).map(used).max().unwrap_or(0)
    }

    /// Largest squared norm of a column of the first steps of C. At most 2¹² terms of at most 2⁸⁰.
    pub(super) fn max_squared_norm(&self, steps: usize) -> u128 {
        let mut norms = vec![0u128; steps];
        for t in 0..steps {
            let squares = self.row(t).iter().map(|m| u128::from(m.unsigned_abs()).pow(2));
            norms.iter_mut().zip(squares).for_each(|(norm, square)| *norm += square);
        }
        norms.into_iter().max().unwrap_or(0)
    }
}

fn check_entries(c: &DMatrix<f64>) -> Result<(), StrategyError> {
    let position = |(t, i): (usize, usize)| (t + 1, i + 1);
    let all = || (0..c.nrows()).flat_map(|t| (0..c.ncols()).map(move |i| (t, i)));
    if let Some((row, column)) = all().find(|&position| !c[position].is_finite()).map(position) {
        return Err(StrategyError::NotFinite { row, column });
    }
    if let Some((row, column)) = all().find(|&(t, i)| i > t && c[(t, i)] != 0.0).map(position) {
        return Err(StrategyError::NotCausal { row, column });
    }
    match (0..c.nrows()).find(|&t| c[(t, t)] <= 0.0) {
        Some(t) => Err(StrategyError::Singular { step: t + 1 }),
        None => Ok(()),
    }
}

/// Norm of a column divided by `largest`. A plain loop, for the same result on every machine.
fn column_norm(c: &DMatrix<f64>, column: usize, largest: f64) -> f64 {
    c.column(column).iter().map(|entry| (entry / largest).powi(2)).sum::<f64>().sqrt()
}

impl From<DenseParameters> for String {
    fn from(parameters: DenseParameters) -> Self {
        let characters = |m: &i64| {
            let bits = (m + 2 * LARGEST) as u64;
            (0..ENTRY_CHARACTERS as u32).rev().map(move |position| {
                char::from(ALPHABET[(bits >> (position * CHARACTER_BITS)) as usize % ALPHABET.len()])
            })
        };
        parameters.lower.iter().flat_map(characters).collect()
    }
}

impl TryFrom<String> for DenseParameters {
    type Error = StrategyError;

    fn try_from(text: String) -> Result<Self, StrategyError> {
        let unreadable = |reason| StrategyError::Parameters { reason };
        let (entries, rest) = text.as_bytes().as_chunks::<ENTRY_CHARACTERS>();
        let steps = (2 * entries.len()).isqrt();
        if !rest.is_empty() || steps == 0 || steps * (steps + 1) / 2 != entries.len() {
            return Err(unreadable("its length is not that of a lower triangle"));
        }
        let value = |&character: &u8| ALPHABET.iter().position(|&known| known == character);
        let entry = |characters: &[u8; ENTRY_CHARACTERS]| {
            let append = |bits: i64, character| Some((bits << CHARACTER_BITS) + value(character)? as i64);
            characters.iter().try_fold(0, append).map(|bits| bits - 2 * LARGEST)
        };
        let lower: Option<Vec<i64>> = entries.iter().map(entry).collect();
        let lower = lower.ok_or(unreadable("a character is not of the base-64 alphabet"))?;
        if lower.iter().any(|m| m.abs() > LARGEST) {
            return Err(unreadable("an entry is larger than 1"));
        }
        Self::checked(steps, lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rows: usize, entries: &[f64]) -> Result<DenseParameters, String> {
        let c = DMatrix::from_row_slice(rows, entries.len() / rows.max(1), entries);
        DenseParameters::round(&super::super::OPTIMAL.name(), &c).map_err(|error| error.to_string())
    }

    #[test]
    fn entries_are_scaled_and_rounded() {
        let found = round(2, &[0.6, 0.0, 0.8, 1.0]).unwrap();
        assert_eq!(found.lower, [659_706_976_666, 879_609_302_221, 1 << 40]);
        assert_eq!(round(2, &[6e200, 0.0, 8e200, 1e201]).unwrap(), found);
        assert_eq!((found.steps(), found.bands()), (2, 2));
    }

    #[test]
    fn invalid_entries_are_refused_with_their_position() {
        let check = |rows, entries: &[f64], part: &str| {
            let message = round(rows, entries).unwrap_err();
            assert!(message.contains(part), "{message}");
        };
        check(0, &[], "1 to 4096");
        check(1, &[1.0, 0.0], "1 rows and 2 columns");
        check(2, &[1.0, 0.0, f64::NAN, 1.0], "row 2, column 1");
        check(2, &[1.0, f64::INFINITY, 0.0, 1.0], "row 1, column 2");
        check(2, &[1.0, 1e-300, 0.0, 1.0], "row 1, column 2");
        check(2, &[1.0, 0.0, 0.5, 0.0], "step 2");
        check(2, &[-1.0, 0.0, 0.5, 1.0], "step 1");
        check(2, &[1.0, 0.0, 0.5, 1e-13], "step 2");
        check(1, &[0.0], "step 1");
        let large = DMatrix::identity(4097, 4097);
        let message = DenseParameters::round(&super::super::OPTIMAL.name(), &large).unwrap_err().to_string();
        assert!(message.contains("4097 steps") && message.contains("`optimal`"), "{message}");
    }

    #[test]
    fn the_text_form_stays() {
        let parameters = DenseParameters { steps: 2, lower: vec![LARGEST, -LARGEST, 1] };
        let text = String::from(parameters.clone());
        assert_eq!(text, "wAAAAAAQAAAAAAgAAAAAB");
        assert_eq!(DenseParameters::try_from(text), Ok(parameters));
    }

    #[test]
    fn damaged_text_is_refused_with_the_reason() {
        let check = |text: &str, part: &str| {
            let message = DenseParameters::try_from(text.to_string()).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("", "length");
        check("wAAAAA", "length");
        check("wAAAAAAwAAAAAA", "length");
        check("wAAAAA-", "alphabet");
        check("wAAAAAB", "larger than 1");
        check("gAAAAAA", "step 1");
    }
}
