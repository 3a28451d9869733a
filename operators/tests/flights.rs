//! Both operators of windows over a month of real flights, with keys, on one to three workers: equal to the estimators on the same rows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, mpsc};

use hushflow_estimators::covariance::{self, Budget, Sample};
use hushflow_estimators::mean::{self, Question, Scale};
use hushflow_mechanism::accounting::{Delta, Epsilon, Rho};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_operators::timely::dataflow::StreamVec;
use hushflow_operators::timely::dataflow::operators::Inspect;
use hushflow_operators::timely::dataflow::operators::vec::ToStream;
use hushflow_operators::timely::{Config, execute};
use hushflow_operators::{
    AdaptiveCovariance, CovarianceSetup, Epochs, Fault, MeanSetup, Records, RobustMeans,
};

const FLIGHTS: &str = include_str!("../../examples/data/flights_jan2013.csv");
const COLUMNS: [&str; 3] = ["dep_delay", "air_time", "distance"];
const KEYS: [&str; 4] = ["EWR", "JFK", "LGA", "nowhere"];
const SOURCE: NoiseSource = NoiseSource::Seeded(21);

/// Days of an epoch: 31 days are four epochs, and a fifth has no flights.
const DAYS: u64 = 8;
const EPOCHS: u64 = 5;

/// All flights in their order, in batches: key, epoch, and values, of which those of cancelled flights are missing.
fn flights() -> Vec<Records> {
    let mut lines = FLIGHTS.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| header.iter().position(|column| *column == name).unwrap();
    let (time, origin, columns) = (place("event_time"), place("origin"), COLUMNS.map(place));
    // The last evening in New York is the next month elsewhere.
    let day = |time: &str| if time.starts_with("2013-01-") { time[8..10].parse().unwrap() } else { 31u64 };
    let lines: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let batch = |(number, lines): (usize, &[Vec<&str>])| Records {
        keys: lines
            .iter()
            .map(|line| KEYS.iter().position(|key| *key == line[origin]).unwrap() as u32)
            .collect(),
        epochs: lines.iter().map(|line| 1 + (day(line[time]) - 1) / DAYS).collect(),
        values: lines
            .iter()
            .flat_map(|line| columns.map(|column| line[column].parse().unwrap_or(f64::NAN)))
            .collect(),
        places: (0..lines.len()).map(|row| (1000 * number + row) as u64).collect(),
        ..Records::default()
    };
    lines.chunks(1000).enumerate().map(batch).collect()
}

/// The rows of a window, one after the other.
fn rows(batches: &[Records], epoch: u64, key: u32) -> Vec<f64> {
    let of_batch = |batch: &Records| {
        let windows = batch.epochs.iter().zip(&batch.keys).zip(batch.values.chunks(COLUMNS.len()));
        windows
            .filter(|(window, _)| *window == (&epoch, &key))
            .flat_map(|(_, row)| row.to_vec())
            .collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).collect()
}

/// What an operator gives for the flights, dealt to workers in turn.
fn run<T: Clone + Send + 'static>(
    workers: usize,
    operator: impl for<'scope> Fn(StreamVec<'scope, u64, Records>) -> StreamVec<'scope, u64, T>
    + Clone
    + Send
    + Sync
    + 'static,
) -> Vec<T> {
    let (sender, receiver) = mpsc::channel();
    let (sender, batches) = (Mutex::new(sender), flights());
    let guards = execute(Config::process(workers), move |worker| {
        let (index, peers) = (worker.index(), worker.peers());
        let seen = sender.lock().unwrap().clone();
        let mine: Vec<Records> = batches.iter().skip(index).step_by(peers).cloned().collect();
        let operator = operator.clone();
        worker.dataflow::<u64, _, _>(move |scope| {
            let records = mine.to_stream(scope).container::<Vec<_>>().epochs();
            operator(records).inspect(move |window| seen.send(window.clone()).unwrap());
        });
    })
    .unwrap();
    drop(guards);
    receiver.iter().collect()
}

fn windows() -> impl Iterator<Item = (u64, u32)> {
    (1..=EPOCHS).flat_map(|epoch| (0..KEYS.len() as u32).map(move |key| (epoch, key)))
}

#[test]
fn covariances_of_windows_are_those_of_their_rows() {
    let setup = CovarianceSetup {
        method: covariance::Method::Pace,
        centre: Some(0.1),
        rho: Rho::new(1.0).unwrap(),
        neighbours: Neighbours::ReplaceOneInPlace,
        bounds: vec![(-60.0, 600.0), (0.0, 700.0), (0.0, 5000.0)],
        keys: KEYS.len() as u32,
        horizon: EPOCHS,
        source: SOURCE,
    };
    let batches = flights();
    let expected: Vec<_> = windows()
        .map(|(epoch, key)| {
            let rows = rows(&batches, epoch, key);
            let sample = Sample::new(&setup.bounds, &rows, setup.neighbours);
            let mut generator = SOURCE.generator(epoch, u64::from(key)).unwrap();
            let estimate =
                |sample| setup.method.estimate(&sample, setup.centre, Budget::new(setup.rho), &mut generator);
            (epoch, key, sample.and_then(estimate))
        })
        .collect();
    assert_eq!(expected.iter().filter(|window| window.2.is_ok()).count(), 12, "three airports, four epochs");
    for workers in 1..=3 {
        let setup = setup.clone();
        let found = run(workers, move |records| records.adaptive_covariance(setup.clone(), Fault::new()));
        let mut found: Vec<_> =
            found.into_iter().map(|window| (window.epoch, window.key, window.estimate)).collect();
        found.sort_by_key(|window| (window.0, window.1));
        assert_eq!(found, expected, "{workers} workers");
    }
}

#[test]
fn means_of_windows_are_those_of_their_rows() {
    let batches = flights();
    // Scales are estimated from pairs of rows, so the order of rows counts.
    for (method, scale) in [
        (mean::Method::PrimeHt, Scale::Known(vec![40.0, 90.0, 700.0])),
        (mean::Method::Gaussian, Scale::Estimated),
        (mean::Method::PrimeHt, Scale::Whitened),
    ] {
        let question = Question {
            method,
            epsilon: Epsilon::new(8.0).unwrap(),
            delta: Delta::new(1e-5).unwrap(),
            corruption: 0.02,
            scale,
            range: None,
        };
        let expected: Vec<_> = windows()
            .map(|(epoch, key)| {
                let rows = rows(&batches, epoch, key);
                let mut generator = SOURCE.generator(epoch, u64::from(key)).unwrap();
                let answer = mean::estimate(&rows, COLUMNS.len(), &question, &mut generator);
                (epoch, key, rows.len() / COLUMNS.len(), answer)
            })
            .collect();
        let answered = |window: &&(u64, u32, usize, Result<mean::Answer, mean::MeanError>)| {
            window.3.as_ref().is_ok_and(|answer| answer.outcome.is_ok())
        };
        assert_eq!(expected.iter().filter(answered).count(), 12, "{method}: {expected:?}");
        for workers in 1..=3 {
            let setup = MeanSetup {
                question: question.clone(),
                columns: COLUMNS.len(),
                keys: KEYS.len() as u32,
                epochs: EPOCHS,
                source: SOURCE,
            };
            let found = run(workers, move |records| records.robust_mean(setup.clone(), Fault::new()));
            let mut found: Vec<_> = found
                .into_iter()
                .map(|window| (window.epoch, window.key, window.rows, window.answer))
                .collect();
            found.sort_by_key(|window| (window.0, window.1));
            assert_eq!(found, expected, "{method}, {workers} workers");
        }
    }
}
