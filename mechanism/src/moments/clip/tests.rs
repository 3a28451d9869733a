//! Tests clipping: the integers of records, extreme sizes, and the ball.

use super::*;
use proptest::prelude::*;

fn quantised(clipper: &Clipper, record: &[f64]) -> Vec<f64> {
    let mut rows = QuantisedRows::new(record.len());
    clipper.quantise(record, &mut rows).unwrap();
    rows.values().to_vec()
}

/// Computed in integers, independently of the code under test.
fn in_ball(row: &[f64]) -> bool {
    row.iter().map(|&value| i128::from(value as i64).pow(2)).sum::<i128>() <= 1 << (2 * RECORD_BITS)
}

fn check(clipper: Result<Clipper, ClipError>, cases: &[(&[f64], &[f64])]) {
    for &(record, expected) in cases {
        assert_eq!(quantised(&clipper.clone().unwrap(), record), expected, "{record:?}");
    }
}

#[test]
fn records_are_scaled_clipped_and_rounded() {
    check(
        Clipper::new(&[(0.0, 10.0)], 1.0),
        &[(&[10.0], &[1048576.0]), (&[0.0], &[-1048576.0]), (&[99.0], &[1048576.0]), (&[5.0], &[0.0])],
    );
    // A ball that holds the whole cube clips nothing.
    check(Clipper::new(&[(-1.0, 1.0); 2], 4.0), &[(&[1.0, -1.0], &[262144.0, -262144.0])]);
    // A tiny ball keeps the direction: 2²⁰/√2 = 741455.2.
    check(Clipper::new(&[(-1.0, 1.0); 2], 1e-300), &[(&[1.0, -0.5e-200], &[1048576.0, 0.0])]);
    check(Clipper::new(&[(-1.0, 1.0); 2], 5e-324), &[(&[1.0, 1.0], &[741455.0; 2]), (&[0.0; 2], &[0.0; 2])]);
    check(Clipper::unscaled(2, f64::MAX), &[(&[f64::MAX, 0.0], &[1048576.0, 0.0]), (&[1e300; 2], &[0.0; 2])]);
    // Bounds whose distance overflows.
    check(Clipper::new(&[(-1e308, 1.5e308)], 1.0), &[(&[f64::MIN], &[-1048576.0]), (&[2.5e307], &[0.0])]);
}

#[test]
fn extreme_sizes_are_clipped_like_others() {
    // (3, 4)/5 · 2²⁰ = (629145.6, 838860.8) rounds outward; the second column is stepped back.
    let inside: &[f64] = &[629146.0, 838860.0];
    for (clip_norm, size) in [(1.0, 1.0), (1e-200, 1e-200), (1.0, 4e307), (5e-324, 1e-300), (1e-310, 1e-308)]
    {
        let clipper = Clipper::unscaled(2, clip_norm);
        check(clipper, &[(&[3.0 * size, 4.0 * size], inside)]);
    }
    check(Clipper::unscaled(1, 1e-310), &[(&[1e-310], &[1048576.0]), (&[-5e-311], &[-524288.0])]);
}

#[test]
fn negative_zero_becomes_zero() {
    for record in [[-0.0, 1.0], [-1e-30, 1.0], [-0.0, -0.0]] {
        let row = quantised(&Clipper::unscaled(2, 1.0).unwrap(), &record);
        assert!(row[0].is_sign_positive() && row[0] == 0.0, "{record:?}");
    }
}

#[test]
fn impossible_clippers_are_refused() {
    for (lower, upper) in [
        (1.0, 1.0),
        (2.0, 1.0),
        (0.0, f64::NAN),
        (f64::NEG_INFINITY, 0.0),
        (0.0, f64::INFINITY),
        (0.0, 5e-324),
        (1.0, 1.0 + f64::EPSILON),
    ] {
        let refused = Clipper::new(&[(0.0, 1.0), (lower, upper)], 1.0).unwrap_err();
        assert!(matches!(refused, ClipError::Bounds { column: 1, .. }), "{lower} {upper}: {refused}");
    }
    for clip_norm in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Clipper::unscaled(1, clip_norm), Err(ClipError::ClipNorm(_))), "{clip_norm}");
    }
    assert_eq!(Clipper::new(&[], 1.0), Err(ClipError::NoColumns));
    assert_eq!(Clipper::unscaled(0, 1.0), Err(ClipError::NoColumns));
}

#[test]
fn records_with_non_finite_values_contribute_nothing() {
    for clipper in [Clipper::new(&[(-1.0, 1.0); 9], 1.0).unwrap(), Clipper::unscaled(9, 1.0).unwrap()] {
        for position in 0..9 {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut records = [0.5; 27];
                records[9 + position] = bad;
                let (mut rows, mut expected) = (QuantisedRows::new(9), QuantisedRows::new(9));
                assert_eq!(clipper.quantise_all(&records, &mut rows), Ok(vec![1]));
                assert_eq!(clipper.quantise_all(&[0.5; 18], &mut expected), Ok(vec![]));
                assert!(rows.values() == expected.values() && rows.len() == 2);
            }
        }
    }
}

#[test]
fn records_that_are_not_finite_are_left_out_or_count_as_the_centre() {
    let clipper = Clipper::new(&[(0.0, 10.0), (-1.0, 1.0)], 1.0).unwrap();
    let records = [f64::NAN, 1.0, 5.0, 0.5, 10.0, f64::INFINITY];
    let mut rows = QuantisedRows::new(2);
    assert_eq!(clipper.quantise_all(&records, &mut rows), Ok(vec![0, 2]));
    assert_eq!(rows.values(), [0.0, 524288.0]);
    rows.clear();
    assert_eq!(clipper.counting_unusable().quantise_all(&records, &mut rows), Ok(vec![]));
    assert_eq!(rows.values(), [0.0, 0.0, 0.0, 524288.0, 0.0, 0.0]);
}

#[test]
fn rows_of_another_length_are_refused() {
    let clipper = Clipper::unscaled(3, 1.0).unwrap();
    let (mut rows, mut narrow) = (QuantisedRows::new(3), QuantisedRows::new(2));
    let length = |found, dimension| RecordError::Length { found, dimension };
    assert_eq!(clipper.quantise(&[1.0; 2], &mut rows), Err(length(2, 3)));
    assert_eq!(clipper.quantise(&[1.0; 3], &mut narrow), Err(length(3, 2)));
    assert_eq!(clipper.quantise_all(&[1.0; 7], &mut rows), Err(length(7, 3)));
    assert_eq!(clipper.quantise_all(&[1.0; 6], &mut narrow), Err(length(6, 2)));
    assert!(rows.is_empty() && narrow.is_empty() && QuantisedRows::new(0).is_empty());
}

/// Entries that all round away from zero exceed the ball most: by about √d · 2²⁰ in the squared
/// norm.
#[test]
fn the_worst_overshoot_ends_in_the_ball() {
    for dimension in 1..1500 {
        let entry = (UNIT / (dimension as f64).sqrt()).floor() + 1.0;
        let mut row = vec![entry; dimension];
        shrink_into_ball(&mut row, BALL);
        assert!(in_ball(&row) && row.iter().all(|value| entry - value <= 1.0), "{dimension}");
    }
}

#[test]
fn integers_in_the_ball_stay_as_they_are() {
    let clipper = Clipper::unscaled(3, UNIT).unwrap();
    for record in [[1048576.0, 0.0, 0.0], [-1.0, 2.0, 3.0], [349525.0, -699050.0, 699050.0]] {
        assert_eq!(quantised(&clipper, &record), record);
    }
}

proptest! {
    #[test]
    fn every_finite_record_ends_in_the_ball(
        record in prop::collection::vec(prop::num::f64::ANY, 1..40),
        clip_norm in prop::num::f64::POSITIVE | prop::num::f64::SUBNORMAL,
    ) {
        let clip_norm = clip_norm.abs().min(f64::MAX);
        for clipper in [
            Clipper::unscaled(record.len(), clip_norm),
            Clipper::new(&vec![(-1e3, 1.0); record.len()], clip_norm),
        ] {
            let mut rows = QuantisedRows::new(record.len());
            let quantised = clipper.unwrap().quantise(&record, &mut rows);
            prop_assert_eq!(quantised.is_ok(), record.iter().all(|value| value.is_finite()));
            prop_assert!(rows.values().iter().all(|value| value.fract() == 0.0) && in_ball(rows.values()));
        }
    }

    /// Records taken together become the same integers as one by one, to the last bit.
    #[test]
    fn many_records_equal_one_after_another(
        dimension in 1..12usize,
        values in prop::collection::vec(prop_oneof![9 => -2.0..2.0f64, 1 => prop::num::f64::ANY], 12 * 40),
        exponents in prop::collection::vec(prop_oneof![6 => 0i32..1, 1 => -1000..1000], 40),
        clip_norm in 0.1..3.0f64,
        ordinary in 0..40usize,
    ) {
        let records: Vec<f64> = values
            .chunks(12)
            .zip(&exponents)
            .enumerate()
            .flat_map(|(number, (record, &exponent))| {
                record[..dimension].iter().map(move |&value| match value {
                    // A run without anything special.
                    value if number >= ordinary && !(-2.0..2.0).contains(&value) => 0.25,
                    value if number >= ordinary => value,
                    value => value * 2f64.powi(exponent),
                })
            })
            .collect();
        let bounds = vec![(-1.0, 1.5); dimension];
        for clipper in [Clipper::unscaled(dimension, clip_norm), Clipper::new(&bounds, clip_norm)] {
            for clipper in [clipper.clone().unwrap(), clipper.unwrap().counting_unusable()] {
                let [mut together, mut expected] = [(); 2].map(|()| QuantisedRows::new(dimension));
                let left_out = clipper.quantise_all(&records, &mut together).unwrap();
                let one = |record: &[f64]| clipper.quantise(record, &mut expected).is_err();
                let refused: Vec<bool> = records.chunks(dimension).map(one).collect();
                prop_assert_eq!(left_out, (0..40).filter(|&row| refused[row]).collect::<Vec<_>>());
                let bits = |rows: &QuantisedRows| {
                    rows.values().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
                };
                prop_assert_eq!(bits(&together), bits(&expected));
            }
        }
    }

    #[test]
    fn records_are_rounded_to_the_nearest_grid_point(
        record in prop::collection::vec(-1.0..1.0f64, 1..200),
        clip_norm in 0.01..20.0f64,
    ) {
        let clipper = Clipper::new(&vec![(-1.0, 1.0); record.len()], clip_norm).unwrap();
        let norm = record.iter().map(|value| value * value).sum::<f64>().sqrt();
        let scale = UNIT / norm.max(clip_norm);
        // Near the sphere an entry may be stepped back by one.
        let distance = if norm < clip_norm * (1.0 - 1e-4) { 0.5 } else { 1.5 };
        for (value, integer) in record.iter().zip(quantised(&clipper, &record)) {
            prop_assert!((value * scale - integer).abs() <= distance + 1e-6);
        }
    }
}
