//! An epoch per record: whole runs of the binary on a file, with the state in memory and on a disk.
//!
//! `cargo bench --bench epochs`. Columns of numbers in [−1, 1], full second moments, a prefix.
//! `HUSHFLOW_ROUNDS` sets how often all are measured in turn; the fastest counts. The baseline
//! parses the same file in one thread, adds floating-point noise to the same sums, and keeps
//! neither a log nor the noise of any other epoch: it is not private.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, StandardNormal};
use tempfile::TempDir;

/// Numbers of columns, each with a number of epochs.
const CASES: [(usize, usize); 3] = [(1, 1_000_000), (10, 200_000), (100, 10_000)];

const STRATEGIES: [&str; 3] = ["identity", "variable-blt:4", "blt:4"];

fn main() {
    // `cargo test --all-targets` starts benchmarks, too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let rounds = std::env::var("HUSHFLOW_ROUNDS").map_or(3, |text| text.parse().expect("a number"));
    println!(
        "{:>4} {:<14} {:<7} {:>7} {:>10} {:>6}",
        "d", "strategy", "state", "workers", "epochs/s", "ratio"
    );
    for (dimension, epochs) in CASES {
        let directory = tempfile::tempdir().expect("there is room");
        fs::write(directory.path().join("data.csv"), rows(dimension, epochs)).expect("there is room");
        let fastest = |mut run: Box<dyn FnMut() -> Duration>| {
            let least = (0..rounds).map(|_| run()).min().unwrap_or_default();
            epochs as f64 / least.as_secs_f64()
        };
        let data = directory.path().join("data.csv");
        let baseline = fastest(Box::new(move || baseline(&data, dimension)));
        println!("{dimension:>4} {:<14} {:<7} {:>7} {baseline:>10.0} {:>6.2}", "baseline", "none", 1, 1.0);
        for strategy in STRATEGIES {
            for (name, folder) in [("memory", "/dev/shm"), ("disk", env!("CARGO_TARGET_TMPDIR"))] {
                for workers in [1, 2] {
                    let pipeline = pipeline(dimension, epochs, strategy);
                    let file = directory.path().join("pipeline.toml");
                    let speed = fastest(Box::new(move || {
                        fs::write(&file, &pipeline).expect("there is room");
                        whole_run(&file, folder, workers)
                    }));
                    let ratio = speed / baseline;
                    println!(
                        "{dimension:>4} {strategy:<14} {name:<7} {workers:>7} {speed:>10.0} {ratio:>6.2}"
                    );
                }
            }
        }
    }
}

fn rows(dimension: usize, epochs: usize) -> String {
    let names: Vec<String> = (0..dimension).map(|column| format!("x{column}")).collect();
    let mut rows = names.join(",");
    for row in 0..epochs {
        for column in 0..dimension {
            let separator = if column == 0 { '\n' } else { ',' };
            let _ = write!(rows, "{separator}{:.4}", ((row + column * 17) as f64).sin());
        }
    }
    rows + "\n"
}

fn pipeline(dimension: usize, epochs: usize, strategy: &str) -> String {
    let column = |column| format!("{{ name = 'x{column}', lower = -1, upper = 1 }}");
    let columns: Vec<String> = (0..dimension).map(column).collect();
    format!(
        "name = 'epochs'\nsource.path = 'data.csv'\ncolumns = [{}]\n\
         epochs = {{ records = 1, horizon = {epochs} }}\nprivacy = {{ epsilon = 1, delta = 1e-6 }}\n\
         release = {{ strategy = '{strategy}', workload = 'prefix' }}\n",
        columns.join(", ")
    )
}

/// Runs a pipeline file in a new state directory inside `folder`.
fn whole_run(pipeline: &Path, folder: &str, workers: usize) -> Duration {
    let directory = TempDir::new_in(folder).expect("there is room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
    command.arg("run").arg(pipeline).arg("--state").arg(directory.path().join("state"));
    command.args(["--quiet", "--workers", &workers.to_string()]).stdin(Stdio::null());
    command.env("HOME", directory.path());
    let begin = Instant::now();
    let status = command.status().expect("the binary starts");
    assert!(status.success(), "{status}");
    begin.elapsed()
}

/// Sums of every row with floating-point noise.
fn baseline(data: &Path, dimension: usize) -> Duration {
    let begin = Instant::now();
    let mut reader = csv::Reader::from_path(data).expect("the file is there");
    let (mut record, mut generator) = (csv::ByteRecord::new(), SmallRng::seed_from_u64(1));
    let (mut row, mut sums) = (vec![0.0; dimension], Vec::new());
    while reader.read_byte_record(&mut record).expect("a row") {
        for (value, field) in row.iter_mut().zip(&record) {
            *value = str::from_utf8(field).expect("text").parse::<f64>().expect("a number");
        }
        sums.clear();
        sums.push(1.0);
        sums.extend_from_slice(&row);
        for (i, &x) in row.iter().enumerate() {
            sums.extend(row[i..].iter().map(|y| x * y));
        }
        for sum in &mut sums {
            let noise: f64 = StandardNormal.sample(&mut generator);
            *sum += 100.0 * noise;
        }
        black_box(&sums);
    }
    begin.elapsed()
}
