//! Clips a record together with its square: (x, √τ·xxᵀ) is scaled to norm ζ as a whole.
//!
//! In units of ζ, with ν = τζ², a record of norm ρ keeps the share `f = min(1, 1/(ρ√(1 + νρ²)))`.
//! It adds f·x to first moments and f·xxᵀ to second ones. The second is the square of √f·x, so two
//! integer rows describe the record:
//!
//! ```text
//! q ≈ 2²⁰·f·x           ‖f·x‖        = fρ              = 1/√(1+s²)     once f < 1, with s = √ν·ρ
//! p ≈ 2²⁰·√f·ν^¼·x      ‖√f·ν^¼·x‖²  = f√ν·ρ²          = s/√(1+s²)     once f < 1
//! ```
//!
//! and `‖f·x‖² + ν‖f·xxᵀ‖² ≤ 1` is `‖q‖² + ‖p‖⁴·2⁻⁴⁰ ≤ 2⁴⁰`, which is tested on the integers.
//! Second moments are sums of p pᵀ, whose unit is ζ²/√ν instead of ζ².
//!
//! Entries are rounded to the nearest integer. If the rounded rows are outside the ball, steps of
//! the longer row lead back into it.

use super::clip::{BALL, UNIT, radius_and_norm, shrink_into_ball};
use super::products::squared_norm;
use super::rows::round_ties_even;

/// From this s on, s² + 1 is s² in floating point.
const LONG: f64 = (1u64 << 30) as f64;

/// Quantises a record, of which `rows` holds two copies, to q and p. `None` if a value is not
/// finite.
pub(super) fn quantise_jointly(rows: &mut [f64], clip_norm: f64, weight: f64) -> Option<()> {
    let (first, second) = rows.split_at_mut(rows.len() / 2);
    let (radius, norm) = radius_and_norm(first, clip_norm)?;
    second.copy_from_slice(first);
    for (row, scale) in [&mut *first, &mut *second].into_iter().zip(scales(radius, norm, weight)) {
        row.iter_mut().for_each(|value| *value = round_ties_even(*value * scale));
        shrink_into_ball(row, BALL);
    }
    let [shorter, longer] = [&first, &second].map(|row| squared_norm(row));
    if shorter < longer {
        shrink_into_ball(second, room_for_second(shorter));
    } else {
        shrink_into_ball(first, room_for_first(longer));
    }
    Some(())
}

/// Returns the factors that take a row of this norm to q and to p, in a ball of this radius.
fn scales(radius: f64, norm: f64, weight: f64) -> [f64; 2] {
    let (length, root) = (norm / radius, weight.sqrt());
    let s = root * length;
    let hypotenuse = if s < LONG { (1.0 + s * s).sqrt() } else { s };
    if length * hypotenuse <= 1.0 {
        return [UNIT / radius, UNIT / radius * root.sqrt()];
    }
    let sine = if s < LONG { s / hypotenuse } else { 1.0 };
    [UNIT / hypotenuse / norm, UNIT * sine.sqrt() / norm]
}

/// Returns the largest ‖q‖² allowed beside p of this ‖p‖², both at most 2⁴⁰.
fn room_for_first(second: f64) -> f64 {
    let ball = BALL as u128;
    (ball - (second as u128).pow(2).div_ceil(ball).min(ball)) as f64
}

/// Returns the largest ‖p‖² allowed beside q of this ‖q‖², both at most 2⁴⁰.
fn room_for_second(first: f64) -> f64 {
    let ball = BALL as u128;
    ((ball - (first as u128).min(ball)) * ball).isqrt() as f64
}

#[cfg(test)]
mod tests {
    use super::super::{Clipper, QuantisedRows};
    use super::*;
    use proptest::prelude::*;

    fn quantised(clip_norm: f64, weight: f64, record: &[f64]) -> [Vec<f64>; 2] {
        let clipper = Clipper::unscaled(record.len(), clip_norm).unwrap().jointly(weight).unwrap();
        let mut rows = QuantisedRows::new(record.len());
        clipper.quantise(record, &mut rows).unwrap();
        assert_eq!((rows.len(), rows.width()), (1, 2 * record.len()));
        let (first, second) = rows.values().split_at(record.len());
        [first.to_vec(), second.to_vec()]
    }

    fn in_ball([first, second]: &[Vec<f64>; 2]) -> bool {
        let squared = |row: &[f64]| row.iter().map(|&value| (value as i128).pow(2)).sum::<i128>();
        squared(first) * (1 << 40) + squared(second).pow(2) <= 1 << 80
    }

    #[test]
    fn short_records_keep_their_length_and_long_ones_lose_both_moments_alike() {
        // ν = 4: a record of norm ½ has ½² + 4·½⁴ = ½, at most 1.
        let [first, second] = quantised(2.0, 4.0, &[1.0, 0.0]);
        assert_eq!(first, [524288.0, 0.0]);
        assert_eq!(second, [(524288.0 * 2_f64.sqrt()).round(), 0.0]);
        // A record of norm ζ has 1 + 4 = 5, more than 1: the share is 1/√5.
        let [first, second] = quantised(2.0, 4.0, &[0.0, -2.0]);
        let share = 0.2_f64.sqrt();
        assert!((first[1] + UNIT * share).abs() <= 1.0, "{first:?}");
        assert!((second[1] + UNIT * (2.0 * share).sqrt()).abs() <= 1.0, "{second:?}");
    }

    #[test]
    fn extreme_sizes_end_on_the_sphere() {
        for (clip_norm, weight, record) in [
            (1.0, 0.5, [1e200, 0.0]),
            (1.0, 0.5, [f64::MAX, f64::MAX]),
            (5e-324, 0.5, [1.0, 1.0]),
            (1.0, 1e300, [1.0, 0.0]),
            (1.0, 1e-300, [3.0, 4.0]),
            (1e-200, 1.0, [1e-200, 0.0]),
        ] {
            let rows = quantised(clip_norm, weight, &record);
            let longest = rows.iter().map(|row| squared_norm(row)).fold(0.0, f64::max);
            assert!(in_ball(&rows) && longest > 0.6 * BALL, "{clip_norm} {weight} {record:?}: {rows:?}");
        }
        assert_eq!(quantised(1.0, 0.5, &[0.0, -0.0]), [vec![0.0; 2], vec![0.0; 2]]);
        assert_eq!(quantised(f64::MAX, 0.5, &[1e200, 1.0]), [vec![0.0; 2], vec![0.0; 2]]);
    }

    #[test]
    fn values_that_are_not_finite_are_dropped_or_count_as_the_centre() {
        let clipper = Clipper::unscaled(2, 1.0).unwrap().jointly(0.5).unwrap();
        let records = [0.25, 0.0, f64::NAN, 1.0, 0.0, 0.25];
        let mut rows = QuantisedRows::new(2);
        assert_eq!(clipper.quantise_all(&records, &mut rows), Ok(vec![1]));
        assert_eq!((rows.len(), rows.values()[0], rows.values()[5]), (2, 262144.0, 262144.0));
        rows.clear();
        assert_eq!(clipper.counting_unusable().quantise_all(&records, &mut rows), Ok(vec![]));
        assert_eq!(rows.values()[4..8], [0.0; 4]);
    }

    proptest! {
        #[test]
        fn every_finite_record_ends_in_the_ball(
            record in prop::collection::vec(prop::num::f64::ANY, 1..30),
            clip_norm in 1e-300..1e300f64,
            exponent in -300.0..300.0f64,
        ) {
            let clipper = Clipper::unscaled(record.len(), clip_norm).unwrap();
            let clipper = clipper.jointly(10_f64.powf(exponent)).unwrap();
            let mut rows = QuantisedRows::new(record.len());
            let quantised = clipper.quantise(&record, &mut rows);
            prop_assert_eq!(quantised.is_ok(), record.iter().all(|value| value.is_finite()));
            if quantised.is_ok() {
                let (first, second) = rows.values().split_at(record.len());
                prop_assert!(in_ball(&[first.to_vec(), second.to_vec()]));
            }
        }

        #[test]
        fn sampled_rows_are_near_the_rows_they_represent(
            record in prop::collection::vec(-1.0..1.0f64, 1..60),
            clip_norm in 0.1..10.0f64,
            weight in 0.01..100.0f64,
        ) {
            let length = record.iter().map(|x| x * x).sum::<f64>().sqrt() / clip_norm;
            let share = (1.0 / length.hypot(weight.sqrt() * length * length)).min(1.0);
            let scales = [share, share.sqrt() * weight.powf(0.25)];
            for (row, scale) in quantised(clip_norm, weight, &record).iter().zip(scales) {
                for (&value, &integer) in record.iter().zip(row) {
                    prop_assert!((value * scale / clip_norm * UNIT - integer).abs() <= 4.0);
                }
            }
        }
    }
}
