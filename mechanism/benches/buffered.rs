//! Compares a step of a buffered strategy with copying the bytes that it must move. Also measures
//! the fits.
//!
//! `cargo bench -p hushflow-mechanism --bench buffered`
//!
//! With b buffers, encoding reads and writes 16 (b + 1) bytes a coordinate and decoding 8 (b + 1):
//! the buffers, and a row in and a row out. The baseline copies the same number, read once and
//! written once.
//!
//! `release` is a whole step, from sums to real numbers with exact noise from the operating
//! system's entropy, in both forms: sums encoded and decoded, or added to correlated noise.
//! `noise_stream` is the second form without sums, as training code in Python uses it.

use divan::{Bencher, counter::ItemsCount};
use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
use hushflow_mechanism::moments::{IntegerRow, Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::release::{NoiseStream, NoiseStreamParameters, ReleaseShard, Shards, in_real_units};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers, ExponentialBuffer};
use hushflow_mechanism::strategy::{Purpose, Strategy as _, fit};
use hushflow_mechanism::workload::Workload;
use std::{hint::black_box, num::NonZeroUsize, ops::ControlFlow, sync::Arc};

const COORDINATES: usize = 1_000_000;
const BUFFERS: usize = 4;

/// Number of steps. Rounding errors of correlated noise grow with steps and coordinates, and for a
/// million of both this noise is refused.
const RELEASES: u64 = 1_000;

fn main() {
    divan::main();
}

fn strategy() -> Buffered {
    let exact = |decay: f64, weight: f64| ExponentialBuffer {
        decay,
        weight: (weight * 2f64.powi(40)).round() / 2f64.powi(40),
    };
    let buffers = vec![exact(0.99999, 0.002), exact(0.999, 0.015), exact(0.97, 0.08), exact(0.6, 0.3)];
    let parameters = BufferedParameters { horizon: Some(1_000_000), buffers: Buffers::Toeplitz(buffers) };
    Buffered::new("blt:4".parse().expect("a name"), parameters).expect("sound parameters")
}

fn rows() -> (Vec<i128>, Vec<i128>, Vec<f64>, Vec<f64>) {
    let x: Vec<i128> = (0..COORDINATES as i128).map(|i| (i * 0x9e37_79b9) << 20).collect();
    let y = x.iter().map(|&x| x as f64).collect();
    (x, vec![1; COORDINATES], y, vec![1.0; COORDINATES])
}

/// A step of the encoder and one of the decoder.
#[divan::bench]
fn encode_and_decode(bencher: Bencher) {
    let (x, mut encoded, y, mut decoded) = rows();
    let (mut encoder, mut decoder) = (strategy().encoder(COORDINATES), strategy().decoder(COORDINATES));
    bencher.counter(ItemsCount::new(COORDINATES)).bench_local(|| {
        encoder.encode(black_box(&x), &mut encoded).expect("in range");
        decoder.decode(black_box(&y), &mut decoded).expect("within the horizon");
    });
}

/// A step of the encoder alone.
#[divan::bench]
fn encode(bencher: Bencher) {
    let (x, mut encoded, ..) = rows();
    let mut encoder = strategy().encoder(COORDINATES);
    bencher
        .counter(ItemsCount::new(COORDINATES))
        .bench_local(|| encoder.encode(black_box(&x), &mut encoded).expect("in range"));
}

/// A step of the decoder alone.
#[divan::bench]
fn decode(bencher: Bencher) {
    let (.., y, mut decoded) = rows();
    let mut decoder = strategy().decoder(COORDINATES);
    bencher
        .counter(ItemsCount::new(COORDINATES))
        .bench_local(|| decoder.decode(black_box(&y), &mut decoded).expect("within the horizon"));
}

/// Copies the bytes that encoder and decoder must move.
#[divan::bench]
fn copy(bencher: Bencher) {
    let bytes = COORDINATES * (BUFFERS + 1) * (16 + 8);
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    bencher
        .counter(ItemsCount::new(COORDINATES))
        .bench_local(|| black_box(&mut to).copy_from_slice(black_box(&from)));
}

/// A step of correlated noise, drawn by one thread.
#[divan::bench]
fn noise_stream(bencher: Bencher) {
    let parameters = NoiseStreamParameters {
        dimension: COORDINATES,
        clip_norm: 1.0,
        noise_multiplier: 2.6,
        neighbours: Neighbours::ZeroOut,
        participation: Participation::Single,
        horizon: 1_000_000,
        threads: NonZeroUsize::MIN,
    };
    let mut stream =
        NoiseStream::new(parameters, Arc::new(strategy()), NoiseSource::System).expect("a stream");
    let mut noise = vec![0.0; COORDINATES];
    bencher.counter(ItemsCount::new(COORDINATES)).bench_local(|| {
        let step = stream.next_step();
        stream.draw(step, black_box(&mut noise)).expect("entropy");
    });
}

/// A step from sums to real numbers with noise.
#[divan::bench(args = [false, true])]
fn release(bencher: Bencher, is_correlated: bool) {
    let layout = Layout::new(COORDINATES - 1, SecondMoment::None);
    let parameters = MomentParameters {
        method: Method::Jme,
        layout,
        neighbours: Neighbours::ReplaceOne,
        clip_norm: 1.0,
        noise_multiplier: 2.6,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let encoded = Strategies::shared(Arc::new(strategy()));
    let strategies = if is_correlated { encoded.correlated() } else { encoded };
    let mechanism =
        MatrixMechanism::with_participation(parameters, strategies, Participation::Single, RELEASES)
            .expect("a mechanism");
    let strategies = mechanism.strategies();
    let mut shard = ReleaseShard::new(0, Shards::new(1, layout, 1), &mechanism, NoiseSource::System);
    let mut decoder = strategies.first().decoder(COORDINATES);
    let sums: Vec<i64> = (0..COORDINATES as i64).map(|i| (i * 0x9e37_79b9) >> 8).collect();
    let (mut encoded, mut decoded) = (vec![0.0; COORDINATES], vec![0.0; COORDINATES]);
    bencher.counter(ItemsCount::new(COORDINATES)).bench_local(|| {
        let sums = IntegerRow::Narrow(black_box(&sums));
        let released = shard.release_row(shard.next_epoch(), sums).expect("entropy");
        if is_correlated {
            in_real_units(released.row(), 1e-12, black_box(&mut decoded));
        } else {
            in_real_units(released.row(), 1e-12, &mut encoded);
            decoder.decode(&encoded, black_box(&mut decoded)).expect("within the horizon");
        }
    });
}

#[divan::bench(args = [4, 5, 8], sample_count = 3)]
fn fit_for_a_million_steps(buffers: u32) -> f64 {
    let name = format!("blt:{buffers}").parse().expect("a strategy");
    let purpose = Purpose::new(Workload::Prefix, 1_000_000);
    fit(&name, &purpose, &mut |_| ControlFlow::Continue(())).map_or(f64::NAN, |fit| fit.objective)
}
