//! Records with missing values have an indicator for each value.
//!
//! A record with values in some of its d columns becomes a vector of 2d entries,
//!
//! ```text
//! w = (y, e)     y_j = x_j, e_j = +½   where column j has a value,
//!                y_j = 0,   e_j = −½   where it has none,
//! ```
//!
//! in centred and scaled units. Its moments are those of any vector, so accumulators, encoders and
//! noise treat it like one. With n = Σ 1 they determine the moments of each column and of each pair
//! over the rows that have them, `m_j = e_j + ½`:
//!
//! ```text
//! N_j  = Σ m_j         = ½n + Σ e_j                              Σ m_j x_j     = Σ y_j
//! N_ij = Σ m_i m_j     = ¼n + ½Σ e_i + ½Σ e_j + Σ e_i e_j        Σ m_j x_j²    = Σ y_j²
//! U_ij = Σ m_i m_j x_i = ½Σ y_i + Σ y_i e_j                      Σ m_i m_j x_i x_j = Σ y_i y_j
//! ```
//!
//! # Theorem
//! Let `‖y‖ ≤ ζ` and scale e by α = ζ/√d. Then `‖w‖ ≤ ζ√(5/4)`, whichever values are missing. So
//! for every neighbour relation, strategy, participation and method, the joint sensitivity of the
//! counts and moments of w is at most the one that [`sensitivity`](crate::sensitivity) and its
//! submodules prove for vectors of 2d columns and the clip norm ζ√(5/4).
//!
//! *Proof.* `‖w‖² = ‖y‖² + α²Σ e_j² = ‖y‖² + ζ²/4`. Those theorems hold for any two records of a
//! ball, and w is one of them. ∎
//!
//! In integers: the ball has squared norm 2⁴⁰, the values get ⌊⅘·2⁴⁰⌋ of it, and an indicator is
//! ±h with h = ⌊2²⁰/√(5d)⌋, so d·h² ≤ ⅕·2⁴⁰. Both parts are tested or fixed in integers, so the
//! bound has no rounding error. h is read back exactly: `Σ e_j` is the integer sum divided by 2h.
//!
//! # Why ±½ and not 0 or 1
//! The moments determine each other for any constant that is subtracted from the indicators. One
//! half makes `Σ e_j²` least, a quarter of the norm that 1 would have. It also makes the noise of
//! U_ij and N_ij least, because their large part is in n and Σ y, which are released with less
//! noise. Likewise x is centred in its bounds, so a missing value is no further from a present one
//! than two present values are from each other.
//!
//! # Price
//! If no value is missing, the noise of Σ x_j rises by a factor of √(5/4) and that of Σ x_i x_j by
//! a factor of 5/4, because the clip norm rises. The noise of N_j replaces that of n; a mean
//! depends on it in proportion to its distance from the middle of the bounds (`docs/estimates.md`).
//!
//! A row without any value is not a record and adds nothing, so a blanked record is also blank for
//! [`ZeroOut`](crate::sensitivity::Neighbours::ZeroOut). If counts are public, such a row counts as
//! a record whose values are all missing.

use super::clip::{BALL, Clipper, UNIT, clip_to};
use super::{QuantisedRows, RecordError};

/// (‖w‖/ζ)² for a record of norm ζ.
pub(super) const NORM_SQUARED: f64 = 1.25;

/// Largest integer squared norm of the values of a row: ⌊⅘·2⁴⁰⌋.
const VALUES: f64 = 879_609_302_220.0;

/// Returns h, the integer for +½.
pub(super) fn height(columns: usize) -> f64 {
    let least_integer = |height: f64| 5.0 * columns as f64 * height * height <= BALL;
    let height = (UNIT / (5.0 * columns as f64).sqrt()).floor();
    // Rounding to nearest may have reached the next integer.
    if least_integer(height) { height } else { height - 1.0 }
}

/// Appends a record of values, NaN where missing, and its indicators. `Err` if it has no value,
/// unless such a record `counts`.
pub(super) fn quantise(
    clipper: &Clipper,
    record: &[f64],
    rows: &mut QuantisedRows,
    counts: bool,
) -> Result<(), RecordError> {
    let columns = record.len();
    if !counts && record.iter().all(|value| !value.is_finite()) {
        return Err(RecordError::NotFinite);
    }
    let height = height(columns);
    let values = clipper.scaled(record).map(|value| if value.is_finite() { value } else { 0.0 });
    let indicators = record.iter().map(|value| if value.is_finite() { height } else { -height });
    let row = rows.push(values.chain(indicators), false)?;
    // The values were made finite above.
    let clipped = clip_to(&mut row[..columns], clipper.clip_norm(), (VALUES / BALL).sqrt(), VALUES);
    debug_assert!(clipped.is_some(), "finite values");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::RECORD_BITS;
    use proptest::prelude::*;

    fn quantised(clipper: &Clipper, record: &[f64]) -> Option<Vec<i128>> {
        let mut rows = QuantisedRows::new(clipper.width());
        clipper.quantise(record, &mut rows).ok()?;
        assert_eq!(rows.len(), 1);
        Some(rows.values().iter().map(|&value| value as i128).collect())
    }

    fn clipper(columns: usize, clip_norm: f64) -> Clipper {
        let clip_norm = Clipper::norm_with_indicators(clip_norm);
        Clipper::new(&vec![(-1.0, 3.0); columns], clip_norm).unwrap().with_indicators().unwrap()
    }

    #[test]
    fn a_row_is_its_values_and_their_indicators() {
        // 2²⁰/√10 = 331588.1 for an indicator, and for a value of 1.
        let row = quantised(&clipper(2, 2f64.sqrt()), &[3.0, f64::NAN]).unwrap();
        assert_eq!(row, [663_178, 0, 331_588, -331_588]);
        let row = quantised(&clipper(2, 2f64.sqrt()), &[1.0, -1.0]).unwrap();
        assert_eq!(row, [0, -663_178, 331_588, 331_588]);
    }

    #[test]
    fn a_row_without_values_counts_only_where_counts_are_public() {
        let missing = [f64::NAN, f64::INFINITY];
        assert_eq!(quantised(&clipper(2, 1.0), &missing), None);
        let row = quantised(&clipper(2, 1.0).counting_unusable(), &missing).unwrap();
        assert_eq!(row, [0, 0, -331_588, -331_588]);
    }

    #[test]
    fn records_are_not_clipped_with_their_squares() {
        assert!(clipper(2, 1.0).jointly(0.5).is_err());
        assert!(Clipper::unscaled(2, 1.0).unwrap().jointly(0.5).unwrap().with_indicators().is_err());
    }

    proptest! {
        /// Tests the bound of the theorem, in integers, and that indicators higher by one unit
        /// would exceed their share.
        #[test]
        fn rows_stay_in_the_ball(
            columns in 1usize..40,
            values in prop::collection::vec(prop_oneof![-2.0..4.0f64, prop::num::f64::ANY], 40),
            clip_norm in 0.01..9.0f64,
        ) {
            for clip_norm in [clip_norm, (columns as f64).sqrt()] {
                let clipper = clipper(columns, clip_norm);
                let Some(row) = quantised(&clipper, &values[..columns]) else { continue };
                let norm = row.iter().map(|q| q * q).sum::<i128>();
                prop_assert!(norm <= 1 << (2 * RECORD_BITS), "{}", norm);
                let height = height(columns) as i128;
                prop_assert!(5 * columns as i128 * (height + 1).pow(2) > 1 << (2 * RECORD_BITS));
                for (value, q) in values.iter().zip(&row[columns..]) {
                    prop_assert_eq!(*q, if value.is_finite() { height } else { -height });
                }
            }
        }
    }
}
