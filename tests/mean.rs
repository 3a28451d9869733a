//! `hushflow mean` and the operator, driven as a user drives them, on real weather with a corrupt reading.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod harness;

use std::path::Path;
use std::process::Output;
use std::sync::mpsc;

use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::mechanism::mean::{Method, Question, Scale, estimate};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::operators::timely::dataflow::operators::Inspect;
use hushflow::operators::timely::dataflow::operators::vec::ToStream;
use hushflow::operators::{Fault, MeanSetup, Records, RobustMeans, WindowMean};
use hushflow::source::table::{MissingRows, Table};
use serde_json::Value;

use harness::hushflow;

const WEATHER: &str = "examples/data/weather_nyc2013.csv";
const COLUMNS: &str = "temp,humid,wind_speed,pressure";

/// Medians of the columns; clean means are within a few units.
const EXPECTED: [(f64, f64); 4] = [(55.3, 3.0), (62.5, 4.0), (10.2, 1.0), (1017.9, 2.0)];

fn run(line: &str) -> Output {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    hushflow(&arguments).output().unwrap()
}

fn json(line: &str) -> Value {
    let Output { status, stdout, stderr } = run(&format!("{line} --json"));
    assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn means(found: &Value) -> Vec<f64> {
    found["mean"]
        .as_array()
        .unwrap_or_else(|| panic!("{found}"))
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

#[test]
fn a_corrupt_reading_moves_no_mean() {
    for method in ["prime-ht", "gaussian", "balloon", "auto"] {
        let line = format!(
            "mean {WEATHER} --columns {COLUMNS} --method {method} --epsilon 2 --delta 1e-6 --corruption 0.01 --seed 1"
        );
        let found = json(&line);
        for (mean, (expected, off)) in means(&found).iter().zip(EXPECTED) {
            assert!((mean - expected).abs() < off, "{method}: {found}");
        }
        assert_eq!(found["private"], false);
        assert_eq!(found["rows"], 26115);
        assert!(found["spent"].as_f64().unwrap() <= 2.0);
        assert!(found["parts"].as_array().unwrap().iter().any(|part| part["step"] == "scale"));
    }
}

/// The same seed with and without the corrupt reading: the means differ by less than a hundredth of a scale.
#[test]
fn without_the_reading_the_mean_is_the_same() {
    let text = std::fs::read_to_string(WEATHER).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mended = directory.path().join("mended.csv");
    std::fs::write(&mended, text.replace("1048.36", "10.36")).unwrap();
    let line = |path: &str| {
        format!(
            "mean {path} --columns wind_speed --scale 5 --method prime-ht --epsilon 2 --delta 1e-6 --corruption 0.01 --seed 7"
        )
    };
    let [with, without] = [WEATHER, mended.to_str().unwrap()].map(|path| means(&json(&line(path)))[0]);
    assert!((with - without).abs() < 0.05, "{with} {without}");
}

#[test]
fn bad_use_is_refused_with_a_reason() {
    let check = |flags: &str, expected: &str| {
        let Output { status, stderr, .. } = run(&format!("mean {WEATHER} --columns temp {flags}"));
        let message = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{flags}: {message}");
        assert!(message.contains(expected), "{flags}: {message}");
    };
    check("--epsilon 1 --delta 1e-6 --corruption 0.5", "below 1/2");
    check("--epsilon 0 --delta 1e-6 --corruption 0.1", "epsilon is 0");
    check("--epsilon 1 --delta 0 --corruption 0.1", "delta is 0");
    check("--epsilon 1e-5 --delta 1e-6 --corruption 0.1", "too few");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 1,2", "2 numbers for 1 columns");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 0", "above 0");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --scale 10 --method tukey", "needs a range");
    check("--epsilon 1 --delta 1e-6 --corruption 0.1 --missing reject", "--missing");
}

#[test]
fn a_ledger_is_charged_before_anything_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let line = format!(
        "mean {WEATHER} --columns temp --scale 18 --epsilon 1 --delta 1e-6 --corruption 0.01 --ledger {}",
        ledger.display()
    );
    means(&json(&line));
    means(&json(&line));
    let found = json(&format!("ledger {} --delta 1e-6", ledger.display()));
    assert_eq!(found["entries"].as_array().unwrap().len(), 2, "{found}");
}

/// Every window of every key, by the operator on so many workers.
fn windows(setup: &MeanSetup, table: &Table, workers: usize) -> Vec<WindowMean> {
    use hushflow::operators::timely::{Config, execute};
    let (sender, receiver) = mpsc::channel();
    let (setup, columns) = (setup.clone(), setup.columns);
    // Key and epoch by place: three keys, of which the last has no rows; each worker reads half of each window.
    let rows: Vec<Vec<f64>> = table.values().chunks_exact(columns).map(<[f64]>::to_vec).collect();
    let batches: Vec<(u64, Records)> = (0..4)
        .map(|quarter| {
            let quarter_rows = &rows[quarter * 6000..(quarter + 1) * 6000];
            let epoch = 1 + quarter as u64 / 2;
            let keys = (0..6000).map(|row| row % 2).collect();
            (epoch, Records { keys, epochs: vec![epoch; 6000], values: quarter_rows.concat() })
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
            use hushflow::operators::Epochs;
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
    let columns = ["temp", "wind_speed"].map(String::from);
    let table = Table::read(Path::new(WEATHER), Some(&columns), MissingRows::Keep).unwrap();
    let question = Question {
        method: Method::PrimeHt,
        epsilon: Epsilon::new(4.0).unwrap(),
        delta: Delta::new(1e-6).unwrap(),
        corruption: 0.01,
        scale: Scale::Known(vec![18.0, 6.0]),
        range: None,
    };
    let setup = MeanSetup { question, columns: 2, keys: 3, epochs: 3, source: NoiseSource::Seeded(5) };
    let one = windows(&setup, &table, 1);
    let places: Vec<_> = one.iter().map(|window| (window.epoch, window.key, window.rows)).collect();
    let full = |epoch| [(epoch, 0, 6000), (epoch, 1, 6000), (epoch, 2, 0)];
    assert_eq!(places, [full(1), full(2), [(3, 0, 0), (3, 1, 0), (3, 2, 0)]].concat());
    let two = windows(&setup, &table, 2);
    for (one, two) in one.iter().zip(&two) {
        assert_eq!(one.answer, two.answer, "{} {}", one.epoch, one.key);
        let rows: Vec<f64> = (0..12_000)
            .filter(|row| row % 2 == one.key && one.rows > 0)
            .flat_map(|row| {
                let place = ((one.epoch - 1) * 12_000) as usize + row as usize;
                table.values()[2 * place..2 * place + 2].to_vec()
            })
            .collect();
        let mut generator = setup.source.generator(one.epoch, u64::from(one.key)).unwrap();
        let expected = estimate(&rows, 2, &setup.question, &mut generator).map_err(|error| error.to_string());
        assert_eq!(one.answer, expected, "{} {}", one.epoch, one.key);
        assert_eq!(expected.is_ok(), one.rows > 0);
    }
}
