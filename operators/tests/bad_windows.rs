//! Windows of bad records through both operators: an estimate or a reason, which is what the window says, and never a fault.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc;

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{Method, Question, Scale};
use hushflow_mechanism::accounting::{Delta, Epsilon, Rho};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_operators::timely::dataflow::operators::Inspect;
use hushflow_operators::timely::dataflow::operators::vec::ToStream;
use hushflow_operators::timely::example;
use hushflow_operators::{
    AdaptiveCovariance, CovarianceSetup, Epochs, Fault, MeanSetup, Records, RobustMeans, WindowCovariance,
    WindowMean,
};

fn question(columns: usize, corruption: f64, epsilon: f64) -> Question {
    Question {
        method: Method::PrimeHt,
        epsilon: Epsilon::new(epsilon).unwrap(),
        delta: Delta::new(1e-6).unwrap(),
        corruption,
        scale: Scale::Known(vec![0.5; columns]),
        range: None,
    }
}

fn records(values: &[f64], columns: usize) -> Records {
    let rows = values.len() / columns;
    Records { keys: vec![0; rows], epochs: vec![1; rows], values: values.to_vec(), ..Records::default() }
}

/// What the only window of these rows says, and whether the fault was raised.
fn mean(values: &[f64], columns: usize, question: Question) -> (Option<WindowMean>, bool) {
    let (sender, receiver) = mpsc::channel();
    let fault = Fault::new();
    let (batch, raised) = (records(values, columns), fault.clone());
    let setup = MeanSetup { question, columns, keys: 1, epochs: 1, source: NoiseSource::Seeded(1) };
    example(move |scope| {
        let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
        records.robust_mean(setup, fault).inspect(move |window| sender.send(window.clone()).unwrap());
    });
    (receiver.try_iter().next(), raised.is_raised())
}

fn covariance(values: &[f64], columns: usize, neighbours: Neighbours) -> (Option<WindowCovariance>, bool) {
    let (sender, receiver) = mpsc::channel();
    let fault = Fault::new();
    let (batch, raised) = (records(values, columns), fault.clone());
    let setup = CovarianceSetup {
        method: covariance::Method::Pace,
        centre: None,
        rho: Rho::new(1.0).unwrap(),
        neighbours,
        bounds: vec![(-1.0, 1.0); columns],
        keys: 1,
        horizon: 1,
        source: NoiseSource::Seeded(1),
    };
    example(move |scope| {
        let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
        records.adaptive_covariance(setup, fault).inspect(move |window| sender.send(window.clone()).unwrap());
    });
    (receiver.try_iter().next(), raised.is_raised())
}

#[test]
fn bad_records_have_a_mean_or_a_reason() {
    let said = |values: &[f64], columns: usize| {
        let (window, raised) = mean(values, columns, question(columns, 0.01, 1.0));
        assert!(!raised, "a window is no fault");
        window.unwrap()
    };
    // Constant columns, values that are none, and values far away.
    for value in [0.5, f64::NAN, f64::INFINITY, 1e300] {
        let window = said(&[value; 40_000], 2);
        assert_eq!((window.rows, window.answer.is_ok()), (20_000, true), "{value}: {window:?}");
    }
    let constant = said(&[0.5; 40_000], 2).answer.unwrap().outcome.unwrap();
    assert!(constant.mean.iter().all(|mean| (mean - 0.5).abs() < 0.1), "{constant:?}");
    // One row, none, and fewer than columns.
    for (values, columns) in [(vec![0.5; 2], 2), (vec![], 2), (vec![0.1; 150], 30)] {
        assert!(said(&values, columns).answer.is_err(), "{} of {columns}", values.len());
    }
    assert!(said(&[], 1).answer.unwrap_err().to_string().contains("there are no rows"));
    assert!(said(&[0.5; 20_000], 1).answer.is_ok(), "one column");
    for (corruption, epsilon, message) in
        [(0.5, 1.0, "below 1/2"), (f64::NAN, 1.0, "below 1/2"), (0.01, 0.0, "epsilon is 0")]
    {
        let (window, raised) = mean(&[0.5; 200], 1, question(1, corruption, epsilon));
        let reason = window.unwrap().answer.unwrap_err().to_string();
        assert!(reason.contains(message) && !raised, "{reason}");
    }
}

#[test]
fn bad_records_have_a_covariance_or_a_reason() {
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};
    let said = |values: &[f64], columns: usize, neighbours| {
        let (window, raised) = covariance(values, columns, neighbours);
        assert!(!raised, "a window is no fault");
        window.unwrap().estimate
    };
    for value in [0.5, f64::NAN, f64::NEG_INFINITY, 1e300] {
        let found = said(&[value; 20_000], 2, ReplaceOneInPlace).unwrap();
        let expected = if value.is_finite() { value.min(1.0) * value.min(1.0) } else { 0.0 };
        assert!((found.covariance[(0, 0)] - expected).abs() < 0.05, "{value}: {}", found.covariance);
    }
    assert!(said(&[0.5; 2], 2, ReplaceOneInPlace).is_err(), "one row");
    assert!(said(&[0.5; 2], 2, ZeroOut).is_ok(), "one row, of which nobody knows");
    assert!(said(&[], 2, ZeroOut).is_ok(), "none, of which nobody knows");
    assert_eq!(
        said(&[0.1; 150], 30, ReplaceOneInPlace).unwrap().covariance.nrows(),
        30,
        "fewer rows than columns"
    );
    assert_eq!(said(&[0.1; 150], 1, ReplaceOneInPlace).unwrap().measured_pairs(), 0, "one column");
    assert!(said(&[0.1; 150], 1, ReplaceOne).is_err(), "a record that moves to another window");
}
