//! Tests the texts and coefficients of workloads.

use super::*;
use crate::reference::assert_read_back;
use proptest::prelude::*;

#[test]
fn texts_are_read_and_written_back() {
    let window = "window:18446744073709551615";
    for text in [
        "prefix",
        "average",
        "exponential:0.9",
        "window:10",
        window,
        "window-mean:7",
        "momentum:0.95",
        "adam:0.999",
    ] {
        assert_read_back::<Workload>(text);
    }
}

#[test]
fn the_largest_coefficient_agrees_with_the_row() {
    for text in
        ["prefix", "average", "exponential:0.9", "window:3", "window-mean:3", "momentum:0.95", "adam:0.999"]
    {
        let workload: Workload = text.parse().unwrap();
        for t in [1, 2, 7] {
            let row = (1..=t).map(|i| workload.coefficient(t, i));
            assert_eq!(workload.largest_coefficient(t), row.fold(0.0, f64::max), "{text} {t}");
        }
    }
}

#[test]
fn impossible_workloads_are_refused_with_a_remedy() {
    let check = |text: &str, hint: &str| {
        let message = text.parse::<Workload>().unwrap_err().to_string();
        let shown = text.rsplit(':').next().unwrap();
        assert!(message.contains(shown) && message.contains(hint), "{text}: {message}");
    };
    for text in ["", "sum", "prefix:3", "average:", "window", "exponential", "Prefix", " prefix"] {
        check(text, "expected `prefix`, `average`, `exponential:β`, `window:k`");
    }
    for text in ["0", "1", "-0.5", "1.5", "NaN", "inf", "half", ""] {
        for name in ["exponential", "momentum", "adam"] {
            check(&format!("{name}:{text}"), "above 0 and below 1");
        }
    }
    for text in ["0", "-1", "2.5", "ten", "", "18446744073709551616"] {
        check(&format!("window:{text}"), "at least 1");
    }
}

#[test]
fn coefficients_agree_with_the_definitions() {
    let check = |text: &str, row: [f64; 5]| {
        let workload: Workload = text.parse().unwrap();
        let found: Vec<f64> = (0..=4).map(|i| workload.coefficient(3, i)).collect();
        let close = found.iter().zip(row).all(|(found, expected)| (found - expected).abs() < 1e-15);
        assert!(close, "{text}: {found:?}");
    };
    check("prefix", [0.0, 1.0, 1.0, 1.0, 0.0]);
    check("average", [0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0]);
    check("exponential:0.5", [0.0, 0.25, 0.5, 1.0, 0.0]);
    check("window:2", [0.0, 0.0, 0.5, 0.5, 0.0]);
    check("momentum:0.5", [0.0, 1.75, 1.5, 1.0, 0.0]);
    check("adam:0.5", [0.0, 1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0, 0.0]);
}

#[test]
fn row_sums_agree_with_the_matrix() {
    let slow = ["momentum:0.99", "momentum:0.999999999"];
    let named = ["prefix", "average", "exponential:0.5", "window:3", "momentum:0.9", "adam:0.9"];
    for text in named.into_iter().chain(slow) {
        let workload: Workload = text.parse().unwrap();
        let rows = workload.matrix(20);
        for t in 0..20 {
            let sum = workload.row_sum(t as f64 + 1.0);
            assert!((sum - rows.row(t).sum()).abs() < 1e-12 * sum, "{text}: row {t}");
        }
    }
}

#[test]
fn squared_coefficients_are_sums_of_workloads() {
    let matrix = DMatrix::from_fn(9, 9, |t, i| if i <= t { (t + 2 * i) as f64 - 5.0 } else { 0.0 });
    let matrix = Workload::from_matrix("any", matrix).unwrap();
    let named = ["prefix", "average", "exponential:0.5", "window:3", "momentum:0.9", "adam:0.9"];
    for workload in named.map(|text| text.parse().unwrap()).iter().chain([&matrix]) {
        for (t, i) in (1..=9).flat_map(|t| (1..=t).map(move |i| (t, i))) {
            let terms = workload.squared_terms();
            let sum: f64 = terms.iter().map(|(weight, term)| weight * term.coefficient(t, i)).sum();
            let found = sum / workload.row_divisor(t).powi(2);
            let expected = workload.coefficient(t, i).powi(2);
            assert!((found - expected).abs() <= 1e-12, "{workload} {t} {i}: {found}, not {expected}");
        }
    }
}

proptest! {
    #[test]
    fn every_decay_survives_a_round_trip_through_text(decay in 0.0..1.0f64) {
        if let Ok(decay) = Decay::new(decay) {
            let workload = Workload::Exponential(decay);
            prop_assert_eq!(workload.to_string().parse::<Workload>(), Ok(workload));
        }
    }
}

#[test]
fn a_matrix_is_serialised_with_its_rows() {
    let matrix = DMatrix::from_row_slice(2, 2, &[0.1, 0.0, -2.5, 1e-300]);
    let workload = Workload::from_matrix("w.csv", matrix).unwrap();
    let json = serde_json::to_string(&workload).unwrap();
    assert_eq!(json, r#"{"matrix":"w.csv","rows":[[0.1],[-2.5,1e-300]]}"#);
    assert_eq!(serde_json::from_str::<Workload>(&json).unwrap(), workload);
    for rows in ["[]", "[[1],[1]]", "[[1],[1,2,3]]", "[[1,2],[1,2]]"] {
        let json = format!(r#"{{"matrix":"w","rows":{rows}}}"#);
        assert!(serde_json::from_str::<Workload>(&json).is_err(), "{rows}");
    }
}
