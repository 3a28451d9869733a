//! Throughput from raw values to exact sums, in records a second, compared with two inexact
//! methods.
//!
//! `cargo bench -p hushflow-mechanism --bench moments`

use chacha20::ChaCha20Rng;
use divan::{Bencher, counter::ItemsCount};
use hushflow_mechanism::moments::{Accumulators, Clipper, Layout, QuantisedRows, SecondMoment};
use nalgebra::{DMatrix, DMatrixView};
use rand::{RngExt, SeedableRng};

const RECORDS: usize = 4096;
const DIMENSIONS: [usize; 3] = [8, 32, 128];

fn main() {
    divan::main();
}

/// Records in [−1, 1]^d. The norm 0.57 √d clips about half of them.
fn records(dimension: usize) -> Vec<f64> {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    (0..RECORDS * dimension).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn clipper(dimension: usize) -> Clipper {
    let clip_norm = 0.57 * (dimension as f64).sqrt();
    Clipper::new(&vec![(-1.0, 1.0); dimension], clip_norm).expect("sound bounds")
}

fn quantised(dimension: usize) -> QuantisedRows {
    let mut rows = QuantisedRows::new(dimension);
    clipper(dimension).quantise_all(&records(dimension), &mut rows).expect("whole rows");
    rows
}

fn full(dimension: usize) -> Accumulators {
    Accumulators::new(Layout::new(dimension, SecondMoment::Full))
}

/// The private path without the noise: clip, quantise and sum.
#[divan::bench(args = DIMENSIONS)]
fn quantise_and_accumulate(bencher: Bencher, dimension: usize) {
    let (records, clipper) = (records(dimension), clipper(dimension));
    let (mut rows, mut accumulators) = (QuantisedRows::new(dimension), full(dimension));
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| {
        rows.clear();
        clipper.quantise_all(&records, &mut rows).expect("whole rows");
        accumulators.add_to_key(0, &rows)
    });
}

#[divan::bench(args = DIMENSIONS)]
fn quantise(bencher: Bencher, dimension: usize) {
    let (records, clipper) = (records(dimension), clipper(dimension));
    let mut rows = QuantisedRows::new(dimension);
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| {
        rows.clear();
        clipper.quantise_all(&records, &mut rows)
    });
}

#[divan::bench(args = DIMENSIONS)]
fn accumulate(bencher: Bencher, dimension: usize) {
    let (rows, mut accumulators) = (quantised(dimension), full(dimension));
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| accumulators.add_to_key(0, &rows));
}

/// As `accumulate`, over this many keys in turn.
#[divan::bench(args = DIMENSIONS, consts = [16, 100, 1024])]
fn accumulate_keys<const KEYS: u32>(bencher: Bencher, dimension: usize) {
    let (rows, mut accumulators) = (quantised(dimension), full(dimension));
    let keys: Vec<u32> = (0..RECORDS as u32).map(|record| record % KEYS).collect();
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| accumulators.add(&keys, &rows));
}

/// Inexact: Σxxᵀ, one record at a time, upper triangle, on raw values.
#[divan::bench(args = DIMENSIONS)]
fn rank_one_loop(bencher: Bencher, dimension: usize) {
    let records = records(dimension);
    let mut sums = vec![0.0; dimension * (dimension + 1) / 2];
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| {
        for record in records.chunks_exact(dimension) {
            let mut rest = &mut sums[..];
            for i in 0..dimension {
                let (row, below) = rest.split_at_mut(dimension - i);
                row.iter_mut().zip(&record[i..]).for_each(|(sum, value)| *sum += record[i] * value);
                rest = below;
            }
        }
        divan::black_box(&mut sums);
    });
}

/// Inexact: the whole matrix product on raw values.
#[divan::bench(args = DIMENSIONS)]
fn matrix_product(bencher: Bencher, dimension: usize) {
    let records = records(dimension);
    let records = DMatrixView::from_slice(&records, dimension, RECORDS);
    let (transposed, mut product) = (records.transpose(), DMatrix::zeros(dimension, dimension));
    bencher.counter(ItemsCount::new(RECORDS)).bench_local(|| records.mul_to(&transposed, &mut product));
}
