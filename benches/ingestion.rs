//! Measures keyed ingestion from memory, by number of keys and workers: records through the
//! operators to a log that keeps nothing, for single records and for bounded entities. A plain loop
//! that sums records is the baseline.
//!
//! `cargo bench --bench ingestion`; figures in `docs/benchmarks.md`.

use std::sync::Arc;

use divan::counter::ItemsCount;
use hushflow::mechanism::noise::NoiseSource;
use hushflow::operators::timely;
use hushflow::operators::{
    Accumulate, BoundEntities, Clip, Commit, CommitLog, Entity, EpochCommit, Fault, Records, ReleaseMoments,
    SplitEpochs,
};
use hushflow::pipeline::Pipeline;
use hushflow::publication::MomentPublication;
use hushflow::source::BATCH_RECORDS;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::vec::ToStream;
use timely::dataflow::operators::{Input, Probe};
use timely::worker::Worker;

fn main() {
    divan::main();
}

/// Columns of a record.
const DIMENSION: usize = 8;

/// Epochs that a run publishes.
const EPOCHS: u64 = 4;

/// Records of an epoch, over all workers.
const RECORDS: u64 = 1 << 19;

/// Number of entities; each has about two records in an epoch.
const ENTITIES: u64 = 1 << 18;

const CASES: [(usize, usize); 8] =
    [(1, 1), (1, 2), (100, 1), (100, 2), (1_000, 1), (1_000, 2), (100_000, 1), (100_000, 2)];

/// Count, values and products of a record.
const COORDINATES: usize = 1 + DIMENSION + DIMENSION * (DIMENSION + 1) / 2;

/// The baseline: one thread adds each record to floating-point sums of its key, without clipping,
/// exactness, privacy or a log.
#[divan::bench(args = [1, 100, 1_000, 100_000], sample_count = 3, sample_size = 1)]
fn plain_loop(bencher: divan::Bencher<'_, '_>, keys: usize) {
    let batches: Vec<Records> = (0..64).map(|number| batch(number, keys, false)).collect();
    bencher.counter(ItemsCount::new(EPOCHS * RECORDS)).bench(|| {
        for _ in 0..EPOCHS {
            let mut sums = vec![[0.0; COORDINATES]; keys];
            let an_epoch = batches.iter().cycle().take(RECORDS as usize / BATCH_RECORDS);
            an_epoch.for_each(|batch| add(&mut sums, batch));
            divan::black_box(sums);
        }
    });
}

fn add(sums: &mut [[f64; COORDINATES]], batch: &Records) {
    for (&key, row) in batch.keys.iter().zip(batch.values.as_chunks::<DIMENSION>().0) {
        let (first, products) = sums[key as usize].split_at_mut(1 + DIMENSION);
        first[0] += 1.0;
        first[1..].iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        let mut products = products.iter_mut();
        for (i, left) in row.iter().enumerate() {
            row[i..].iter().zip(&mut products).for_each(|(right, sum)| *sum += left * right);
        }
    }
}

/// Single records: keys, workers.
#[divan::bench(args = CASES, sample_count = 3, sample_size = 1)]
fn records(bencher: divan::Bencher<'_, '_>, (keys, workers): (usize, usize)) {
    ingest(bencher, keys, workers, false);
}

/// Entities that each count once in an epoch: keys, workers.
#[divan::bench(args = CASES, sample_count = 3, sample_size = 1)]
fn entities(bencher: divan::Bencher<'_, '_>, (keys, workers): (usize, usize)) {
    ingest(bencher, keys, workers, true);
}

fn ingest(bencher: divan::Bencher<'_, '_>, keys: usize, workers: usize, bounded: bool) {
    let publication = publication(keys, bounded);
    let batches: Arc<Vec<Records>> = Arc::new((0..64).map(|number| batch(number, keys, bounded)).collect());
    bencher.counter(ItemsCount::new(EPOCHS * RECORDS)).bench(|| {
        let (publication, batches) = (publication.clone(), batches.clone());
        let work = move |worker: &mut Worker| feed(worker, &publication, &batches);
        timely::execute(timely::Config::process(workers), work).expect("threads can be started").join()
    });
}

fn publication(keys: usize, bounded: bool) -> MomentPublication {
    let columns: String =
        (0..DIMENSION).map(|column| format!("{{ name = 'x{column}', lower = -1, upper = 1 }},")).collect();
    let keys: String = (0..keys).map(|key| format!("'{key}',")).collect();
    let (unit, entity) = match bounded {
        true => ("entity", "entity = { column = 'who', participations = 4 }"),
        false => ("record", ""),
    };
    let text = format!(
        "name = 'ingestion'\nsource.path = 'none.csv'\ncolumns = [{columns}]\nkey = {{ column = 'key', values = [{keys}] }}
        epochs = {{ records = {RECORDS}, horizon = {EPOCHS} }}\n{entity}
        privacy = {{ epsilon = 1, delta = 1e-6, unit = '{unit}' }}\nrelease.strategy = 'identity'"
    );
    let pipeline = Pipeline::parse(&text, "ingestion.toml".as_ref()).expect("a pipeline");
    MomentPublication::calibrate(pipeline.public_parameters(), true).expect("a publication")
}

/// Records of the first epoch.
fn batch(number: u64, keys: usize, bounded: bool) -> Records {
    let rows = || (0..BATCH_RECORDS as u64).map(move |row| mix(number << 32 | row));
    Records {
        keys: rows().map(|hash| (hash % keys as u64) as u32).collect(),
        epochs: vec![1; BATCH_RECORDS],
        values: rows()
            .flat_map(|hash| {
                (0..DIMENSION as u64).map(move |column| mix(hash ^ column) as f64 / u64::MAX as f64 - 0.5)
            })
            .collect(),
        entities: if bounded {
            rows().map(|hash| entity(mix(hash) % ENTITIES)).collect()
        } else {
            Vec::new()
        },
        positions: if bounded {
            (0..BATCH_RECORDS as u64).map(|row| number << 32 | row).collect()
        } else {
            Vec::new()
        },
    }
}

fn entity(number: u64) -> Entity {
    Entity(u128::from(mix(number)) << 64 | u128::from(mix(!number)))
}

/// Splitmix64 (Steele, Lea & Flood 2014).
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Publishes the epochs; every worker reads its share.
fn feed(worker: &mut Worker, publication: &MomentPublication, batches: &[Records]) {
    let (mut input, mut ends) = (InputHandle::new(), InputHandle::new());
    let fault = Fault::new();
    let measurement = publication.measurement(NoiseSource::System).expect("private noise");
    let measurement = measurement.build().expect("sound parts");
    let log = |_: &[EpochCommit<()>]| Ok(());
    let log = (worker.index() == 0).then(|| Box::new(log) as Box<dyn CommitLog<()>>);
    let probe = worker.dataflow::<u64, _, _>(|scope| {
        let records = scope.input_from(&mut input).epochs();
        let clipped = if publication.parameters().entity.is_some() {
            records.bound(&measurement, fault.clone()).records.clip(&measurement, fault.clone())
        } else {
            records.clip(&measurement, fault.clone())
        };
        clipped
            .accumulate(&measurement, fault.clone())
            .release(scope.input_from(&mut ends), &measurement, fault.clone())
            .commit(None::<(u64, ())>.to_stream(scope), &measurement, log, fault.clone())
            .probe()
            .0
    });
    let an_epoch = RECORDS as usize / BATCH_RECORDS;
    for epoch in 1..=EPOCHS {
        for number in (worker.index()..an_epoch).step_by(worker.peers()) {
            let batch = batches[number % batches.len()].clone();
            input.send(Records { epochs: vec![epoch; BATCH_RECORDS], ..batch });
            worker.step_or_park(Some(std::time::Duration::ZERO));
        }
        input.advance_to(epoch + 1);
        ends.advance_to(epoch + 1);
    }
    if worker.index() == 0 {
        ends.send(EPOCHS);
    }
    input.close();
    ends.close();
    while !probe.done() && !fault.is_raised() {
        worker.step_or_park(Some(std::time::Duration::from_millis(1)));
    }
    assert_eq!(fault.reason(), None);
}
