//! The cost of durability: commits of a thousand keys, one by one and in groups, and whole runs.
//! The state is on a disk, that of the build directory, or in memory (`/dev/shm`), where a sync is
//! free.
//!
//! `cargo bench --bench durability`

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divan::counter::ItemsCount;
use hushflow::pipeline::Pipeline;
use hushflow::publication::Publication;
use hushflow::runtime::{RunOptions, run};
use hushflow::state::{EpochFrame, PublicHeader, Store};
use tempfile::TempDir;

const KEYS: usize = 1000;
const DIMENSION: usize = 8;

/// Count, sums and products of a key.
const COORDINATES: usize = 1 + DIMENSION + DIMENSION * (DIMENSION + 1) / 2;

fn main() {
    divan::main();
}

/// Where the state is stored.
#[derive(Clone, Copy, Debug)]
enum StateMedium {
    Disk,
    Memory,
}

impl StateMedium {
    fn directory(self) -> TempDir {
        let folder = match self {
            StateMedium::Disk => Path::new(env!("CARGO_TARGET_TMPDIR")),
            StateMedium::Memory => Path::new("/dev/shm"),
        };
        tempfile::tempdir_in(folder).expect("there is room")
    }
}

/// Sixty-four epochs, this many with one sync.
#[divan::bench(args = [(StateMedium::Disk, 1), (StateMedium::Disk, 8), (StateMedium::Disk, 64), (StateMedium::Memory, 1)], sample_count = 10, sample_size = 1)]
fn commits(bencher: divan::Bencher<'_, '_>, (medium, group): (StateMedium, u64)) {
    const EPOCHS: u64 = 64;
    let header = PublicHeader { parameters: b"{}".to_vec(), private: true };
    let sums: Vec<i128> = (0..(KEYS * COORDINATES) as i128).map(|i| (i * i) << 20).collect();
    bencher.counter(ItemsCount::new(EPOCHS)).with_inputs(|| medium.directory()).bench_refs(|directory| {
        let (mut store, _) = Store::open(directory.path().join("state"), &header).expect("a new state");
        for first in (1..=EPOCHS).step_by(group as usize) {
            let frame = |epoch| EpochFrame {
                epoch,
                positions: vec![],
                sums: sums.clone().into(),
                values: sums.clone(),
                admitted: None,
            };
            let frames: Vec<EpochFrame> = (first..first + group).map(frame).collect();
            store.commit(&frames).expect("the disk works");
        }
    });
}

/// A stream of 1000 keys and eight columns, 200 epochs of 2000 records, from the file to the public
/// log.
#[divan::bench(args = [StateMedium::Disk, StateMedium::Memory], sample_count = 10, sample_size = 1)]
fn epochs_of_a_thousand_keys(bencher: divan::Bencher<'_, '_>, medium: StateMedium) {
    const EPOCHS: usize = 200;
    let data = StateMedium::Memory.directory();
    let mut rows = String::from("key,a,b,c,d,e,f,g,h\n");
    for row in 0..EPOCHS * 2000 {
        let _ = write!(rows, "k{}", row * 7 % KEYS);
        for column in 0..DIMENSION {
            let _ = write!(rows, ",{:.3}", ((row + column) as f64).sin());
        }
        rows.push('\n');
    }
    std::fs::write(data.path().join("data.csv"), rows).expect("there is room");
    let keys: Vec<String> = (0..KEYS).map(|key| format!("'k{key}'")).collect();
    let columns: String =
        ('a'..='h').map(|name| format!("[[columns]]\nname = '{name}'\nlower = -1\nupper = 1\n")).collect();
    let text = format!(
        "name = 'keys'\nsource.path = 'data.csv'\nepochs = {{ records = 2000, horizon = {EPOCHS} }}\n\
         key = {{ column = 'key', values = [{}] }}\nprivacy = {{ epsilon = 1, delta = 1e-6 }}\n\
         release.strategy = 'square-root'\n{columns}",
        keys.join(", ")
    );
    let pipeline = Pipeline::parse(&text, &data.path().join("bench.toml")).expect("the pipeline is valid");
    bencher
        .counter(ItemsCount::new(EPOCHS))
        .with_inputs(|| medium.directory())
        .bench_refs(|directory| publish(&pipeline, directory.path().join("state")));
}

/// The flights of January, a hundred times over, so that the cost of starting a run hardly counts.
#[divan::bench(args = [StateMedium::Disk, StateMedium::Memory], sample_count = 10, sample_size = 1)]
fn records(bencher: divan::Bencher<'_, '_>, medium: StateMedium) {
    const COPIES: usize = 100;
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv");
    let files = vec![format!("{flights:?}"); COPIES].join(", ");
    let text = Pipeline::EXAMPLE.replace("\"flights_jan2013.csv\"", &format!("[{files}]"));
    let pipeline = Pipeline::parse(&text, Path::new("bench.toml")).expect("the pipeline is valid");
    bencher
        .counter(ItemsCount::new(COPIES * 26_398))
        .with_inputs(|| medium.directory())
        .bench_refs(|directory| publish(&pipeline, directory.path().join("state")));
}

/// The same records through a pipe to another process, without a journal, and with one on a disk or
/// in memory.
#[divan::bench(args = [(StateMedium::Disk, false), (StateMedium::Disk, true), (StateMedium::Memory, true)], sample_count = 10, sample_size = 1)]
fn piped_records(bencher: divan::Bencher<'_, '_>, (medium, journal): (StateMedium, bool)) {
    const COPIES: usize = 100;
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv");
    let rows = std::fs::read_to_string(flights).expect("the data of the examples");
    let (header, rows) = rows.split_once('\n').expect("a header");
    let text = Pipeline::EXAMPLE.replace(
        "path = \"flights_jan2013.csv\"",
        &format!("path = \"-\"\nformat = \"csv\"\njournal = {journal}"),
    );
    bencher.counter(ItemsCount::new(COPIES * 26_398)).with_inputs(|| medium.directory()).bench_refs(
        |directory| {
            let pipeline = directory.path().join("pipeline.toml");
            std::fs::write(&pipeline, &text).expect("there is room");
            let mut command = Command::new(env!("CARGO_BIN_EXE_hushflow"));
            command
                .args(["run", "--quiet"])
                .arg(&pipeline)
                .arg("--state")
                .arg(directory.path().join("state"));
            let mut child =
                command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the run starts");
            let mut input = child.stdin.take().expect("a pipe");
            writeln!(input, "{header}").expect("the run reads");
            (0..COPIES).for_each(|_| input.write_all(rows.as_bytes()).expect("the run reads"));
            drop(input);
            assert!(child.wait().expect("the run ends").success());
        },
    );
}

fn publish(pipeline: &Pipeline, state: PathBuf) {
    let publication =
        Publication::of_pipeline(pipeline, &state, &mut |_| ()).expect("the parameters are sound");
    run(pipeline, &publication, &RunOptions::new(1, state), |_| ()).expect("the run succeeds");
}
