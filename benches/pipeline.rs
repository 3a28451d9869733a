//! Throughput of the reader and of the whole pipeline. The baseline is the CSV crate's loop, which
//! parses no field. The input is the file of flights ten times over, with four columns, a key,
//! event and arrival times. It also measures the operators alone on wide records, where reading is
//! not the limit.
//!
//! `TMPDIR=/dev/shm cargo bench --bench pipeline` keeps the state of a run in memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use divan::counter::{BytesCount, ItemsCount};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::operators::{
    Accumulate, Clip, Commit, EpochCommit, Fault, Records, ReleaseMoments, SplitEpochs, timely,
};
use hushflow::pipeline::Pipeline;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::runtime::{RunOptions, run};
use hushflow::source::{BATCH_RECORDS, SourceEvent, SourceReader};
use timely::dataflow::InputHandle;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::vec::ToStream;
use timely::worker::Worker;

const COPIES: usize = 10;

fn main() {
    divan::main();
}

fn flights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv")
}

fn counted(bencher: divan::Bencher<'_, '_>, read: impl Fn() -> usize + Sync) {
    let bytes = std::fs::metadata(flights()).map_or(0, |file| file.len()) * COPIES as u64;
    bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(read())).bench(read);
}

#[divan::bench]
fn csv_byte_records_alone(bencher: divan::Bencher<'_, '_>) {
    counted(bencher, || {
        let mut record = csv::ByteRecord::new();
        let mut rows = 0;
        for _ in 0..COPIES {
            let mut reader = csv::Reader::from_path(flights()).expect("the example data are there");
            while reader.read_byte_record(&mut record).expect("the example data are CSV") {
                rows += 1;
            }
        }
        rows
    });
}

/// Returns a pipeline over the flights with four columns.
fn pipeline() -> Pipeline {
    let files = vec![format!("{:?}", flights()); COPIES].join(", ");
    let columns =
        ["arr_delay", "air_time"].map(|name| format!("[[columns]]\nname = {name:?}\nlower = 0\nupper = 9\n"));
    let text = Pipeline::EXAMPLE
        .replace("\"flights_jan2013.csv\"", &format!("[{files}]"))
        .replace("[key]", &format!("{}[key]", columns.concat()));
    Pipeline::parse(&text, Path::new("bench.toml")).expect("the pipeline is valid")
}

#[divan::bench]
fn source_reader(bencher: divan::Bencher<'_, '_>) {
    let pipeline = pipeline();
    counted(bencher, || {
        let mut reader = SourceReader::open(&pipeline).expect("the example data are there");
        let mut records = 0;
        loop {
            match reader.next_event().expect("the example data are clean") {
                SourceEvent::Batch(batch) => records += divan::black_box(batch).len(),
                SourceEvent::Mark(_) => {}
                SourceEvent::End => return records,
            }
        }
    });
}

/// Runs from the file to the public log, with this many workers and the reader's thread.
#[divan::bench(args = [1, 2])]
fn whole_pipeline(bencher: divan::Bencher<'_, '_>, workers: usize) {
    let pipeline = pipeline();
    counted(bencher, || {
        let directory = tempfile::tempdir().expect("there is room");
        let state = directory.path().join("state");
        let publication =
            Publication::of_pipeline(&pipeline, &state, &mut |_| ()).expect("the parameters are sound");
        let summary =
            run(&pipeline, &publication, &RunOptions::new(workers, state), |_| ()).expect("the run succeeds");
        summary.counters.rows as usize
    });
}

/// Total number of batches for the operators.
const BATCHES: usize = 64;

/// Runs from batches in memory to a log that keeps nothing, with this many workers.
#[divan::bench(args = [1, 2], consts = [32, 64])]
fn operators<const DIMENSION: usize>(bencher: divan::Bencher<'_, '_>, workers: usize) {
    let publication = wide(DIMENSION);
    let batch = Records {
        keys: vec![0; BATCH_RECORDS],
        epochs: vec![1; BATCH_RECORDS],
        values: (0..BATCH_RECORDS * DIMENSION).map(|i| (i as f64).sin()).collect(),
        ..Records::default()
    };
    bencher.counter(ItemsCount::new(BATCHES * BATCH_RECORDS)).bench(|| {
        let (publication, batch) = (publication.clone(), batch.clone());
        let work = move |worker: &mut Worker| feed(worker, &publication, &batch);
        timely::execute(timely::Config::process(workers), work).expect("threads can be started").join()
    });
}

/// Returns a publication of one epoch of records of this dimension, in [−1, 1].
fn wide(dimension: usize) -> MomentPublication {
    let columns: String =
        (0..dimension).map(|i| format!("[[columns]]\nname = 'x{i}'\nlower = -1\nupper = 1\n")).collect();
    let text = format!(
        "name = 'wide'\nsource.path = 'a.csv'\nepochs = {{ records = 1000000, horizon = 1 }}\n\
         privacy = {{ epsilon = 1, delta = 1e-6 }}\nrelease.strategy = 'identity'\n{columns}"
    );
    let pipeline = Pipeline::parse(&text, Path::new("bench.toml")).expect("the pipeline is valid");
    MomentPublication::calibrate(pipeline.public_parameters(), true).expect("the parameters are sound")
}

fn feed(worker: &mut Worker, publication: &MomentPublication, batch: &Records) {
    let (mut input, mut ends) = (InputHandle::new(), InputHandle::new());
    let fault = Fault::new();
    let measurement = publication.measurement(NoiseSource::System).expect("private noise");
    let measurement = measurement.checkpoint_interval(u64::MAX).build().expect("sound parts");
    let log = |epochs: &[EpochCommit<u64>]| {
        divan::black_box(epochs);
        Ok(())
    };
    worker.dataflow(|scope| {
        scope
            .input_from(&mut input)
            .epochs()
            .clip(&measurement, fault.clone())
            .accumulate(&measurement, fault.clone())
            .release(scope.input_from(&mut ends), &measurement, fault.clone())
            .commit(Vec::new().to_stream(scope), &measurement, Some(Box::new(log)), fault.clone());
    });
    for _ in 0..BATCHES / worker.peers() {
        input.send_batch(&mut vec![batch.clone()]);
        worker.step();
    }
    ends.send(1);
    input.close();
    ends.close();
    while !fault.is_raised() && worker.step_or_park(Some(Duration::from_millis(50))) {}
}
