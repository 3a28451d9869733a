//! The operator of robust means on real weather: equal to the library on the same rows, on any number of workers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc;

use hushflow_estimators::mean::{Method, Question, Scale, estimate};
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_operators::timely::dataflow::operators::Inspect;
use hushflow_operators::timely::dataflow::operators::vec::ToStream;
use hushflow_operators::timely::{Config, execute};
use hushflow_operators::{Epochs, Fault, MeanSetup, Records, RobustMeans, WindowMean};

/// Temperature and wind speed, one of which is corrupt.
fn weather() -> Vec<f64> {
    let text = include_str!("../../examples/data/weather_nyc2013.csv");
    let number = |field: &str| field.parse().unwrap_or(f64::NAN);
    let fields = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    fields.flat_map(|fields| [number(fields[2]), number(fields[5])]).collect()
}

/// Every window of every key, by the operator on so many workers.
fn windows(setup: &MeanSetup, values: &[f64], workers: usize) -> Vec<WindowMean> {
    let (sender, receiver) = mpsc::channel();
    let (setup, columns) = (setup.clone(), setup.columns);
    // Key and epoch by place: three keys, of which the last has no rows; each worker reads half of each window.
    let rows: Vec<Vec<f64>> = values.chunks_exact(columns).map(<[f64]>::to_vec).collect();
    let batches: Vec<(u64, Records)> = (0..4)
        .map(|quarter| {
            let quarter_rows = &rows[quarter * 6000..(quarter + 1) * 6000];
            let epoch = 1 + quarter as u64 / 2;
            let keys = (0..6000).map(|row| row % 2).collect();
            (
                epoch,
                Records {
                    keys,
                    epochs: vec![epoch; 6000],
                    values: quarter_rows.concat(),
                    ..Records::default()
                },
            )
        })
        .collect();
    let sender = std::sync::Mutex::new(sender);
    execute(Config::process(workers), move |worker| {
        let (index, peers) = (worker.index(), worker.peers());
        let sender = sender.lock().unwrap().clone();
        let mine: Vec<Records> = batches
            .iter()
            .enumerate()
            .filter(|(place, _)| place % 2 * (peers - 1) == index)
            .map(|(_, (_, records))| records.clone())
            .collect();
        let setup = setup.clone();
        worker.dataflow::<u64, _, _>(move |scope| {
            let records = mine.to_stream(scope).container::<Vec<_>>().epochs();
            records
                .robust_mean(setup, Fault::new())
                .inspect(move |window| sender.send(window.clone()).unwrap());
        });
    })
    .unwrap();
    let mut found: Vec<WindowMean> = receiver.try_iter().collect();
    found.sort_by_key(|window| (window.epoch, window.key));
    found
}

#[test]
fn the_operator_equals_the_library_on_any_number_of_workers() {
    let values = weather();
    let question = Question {
        method: Method::PrimeHt,
        epsilon: Epsilon::new(4.0).unwrap(),
        delta: Delta::new(1e-6).unwrap(),
        corruption: 0.01,
        scale: Scale::Known(vec![18.0, 6.0]),
        range: None,
    };
    let setup = MeanSetup { question, columns: 2, keys: 3, epochs: 3, source: NoiseSource::Seeded(5) };
    let one = windows(&setup, &values, 1);
    let places: Vec<_> = one.iter().map(|window| (window.epoch, window.key, window.rows)).collect();
    let full = |epoch| [(epoch, 0, 6000), (epoch, 1, 6000), (epoch, 2, 0)];
    assert_eq!(places, [full(1), full(2), [(3, 0, 0), (3, 1, 0), (3, 2, 0)]].concat());
    let two = windows(&setup, &values, 2);
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.answer, two.answer, "{} {}", one.epoch, one.key);
        let rows: Vec<f64> = (0..12_000)
            .filter(|row| row % 2 == one.key && one.rows > 0)
            .flat_map(|row| {
                let place = ((one.epoch - 1) * 12_000) as usize + row as usize;
                values[2 * place..2 * place + 2].to_vec()
            })
            .collect();
        let mut generator = setup.source.generator(one.epoch, u64::from(one.key)).unwrap();
        let expected = estimate(&rows, 2, &setup.question, &mut generator);
        assert_eq!(one.answer, expected, "{} {}", one.epoch, one.key);
        assert_eq!(expected.is_ok(), one.rows > 0);
    }
}
