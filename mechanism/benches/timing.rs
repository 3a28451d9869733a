//! Measures the information in the duration of a release: its correlation and mutual information
//! with the noise and with the sums of the epoch.
//!
//!     cargo bench -p hushflow-mechanism --bench timing
//!
//! Noise is drawn before the sums of its epoch are known, so the duration of the draw reveals
//! nothing about them. It may reveal something about the noise. The sums take part only in the
//! encoding. The benchmark prints the correlation and the mutual information of
//! - the time of a draw and the mean magnitude of the noise drawn,
//! - the time of a release whose noise is already drawn and the size of the sums, which are 1 to
//!   80 bits long at random,
//!
//! over [`EPOCHS`] epochs. Times above the 99th percentile, which interrupts cause, are cut to it.
//! If the two are independent, the correlation lies within ±4/√[`EPOCHS`] in all but one case in
//! 16,000.
//!
//! A correlation shows linear dependence only; mutual information shows any. Each of the two
//! variables is cut into ten equal parts, and the mutual information is the sum of p log₂(p/(qr))
//! over the hundred cells. If they are independent, 2 ln 2 · [`EPOCHS`] times it is distributed as
//! χ² with 81 degrees of freedom, so it stays below [`CHANCE`] in all but one case in a thousand.
#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::hint::black_box;
use std::time::Instant;

use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::build;
use hushflow_mechanism::workload::Workload;
use rand::Rng;

const EPOCHS: usize = 100_000;

/// Number of equal parts into which the values of each variable are cut.
const PARTS: usize = 10;

/// The 99.9th percentile of χ² with 81 degrees of freedom, as bits of mutual information.
const CHANCE: f64 = 126.083 / (2.0 * std::f64::consts::LN_2 * EPOCHS as f64);
const LAYOUT: Layout = Layout::new(8, SecondMoment::Full);

/// A shard, and the deviations of its noise.
fn shard() -> (ReleaseShard, Vec<f64>) {
    let parameters = MomentParameters {
        method: Method::Jme,
        layout: LAYOUT,
        neighbours: Neighbours::ReplaceOne,
        clip_norm: 1.0,
        noise_multiplier: 4.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let strategy = build("identity", &Workload::Prefix, Some(EPOCHS as u64)).expect("a strategy");
    let mechanism = MatrixMechanism::new(parameters, strategy).expect("a mechanism");
    let deviations = mechanism.moments().noise().iter().map(|noise| noise.scale.expect("noise").sigma());
    let shard = ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), &mechanism, NoiseSource::System);
    (shard, deviations.collect())
}

fn nanoseconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = black_box(work());
    (start.elapsed().as_nanos() as f64, done)
}

fn correlation(times: &[f64], others: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted[sorted.len() * 99 / 100];
    let times: Vec<f64> = times.iter().map(|time| time.min(cut)).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (a, b) = (mean(&times), mean(others));
    let product = |x: &[f64], m: f64, y: &[f64], n: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - m) * (y - n)).sum()
    };
    product(&times, a, others, b) / (product(&times, a, &times, a) * product(others, b, others, b)).sqrt()
}

/// Returns in which of [`PARTS`] equal parts each value lies. Ties are ordered by position.
fn parts(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut parts = vec![0; values.len()];
    for (rank, position) in order.into_iter().enumerate() {
        parts[position] = rank * PARTS / values.len();
    }
    parts
}

/// Returns the mutual information of two variables in bits.
fn mutual_information(times: &[f64], others: &[f64]) -> f64 {
    let mut cells = [[0_u32; PARTS]; PARTS];
    for (time, other) in parts(times).into_iter().zip(parts(others)) {
        cells[time][other] += 1;
    }
    let all = times.len() as f64;
    let even = all / (PARTS * PARTS) as f64;
    let cells = cells.as_flattened().iter().map(|&count| f64::from(count)).filter(|&count| count > 0.0);
    cells.map(|count| count / all * (count / even).log2()).sum()
}

fn report(what: &str, times: &[f64], others: &[f64]) {
    let (correlation, information) = (correlation(times, others), mutual_information(times, others));
    println!("{what}   {correlation:+.4}   {information:.6} bits");
}

fn main() {
    let (mut shard, deviations) = shard();
    let mut coins = NoiseSource::Seeded(1).generator(0, 0).expect("a generator");
    let mut seen: [Vec<f64>; 4] = Default::default();
    for epoch in 1..=EPOCHS as u64 {
        let bits = coins.next_u64() % 80;
        let sums = vec![1_i128 << bits; LAYOUT.coordinates()];
        let (drawing, drawn) = nanoseconds(|| shard.prepare());
        drawn.expect("entropy");
        let (releasing, released) = nanoseconds(|| shard.release(epoch, &sums));
        let released = released.expect("a release");
        // The identity in units of 2⁻⁴⁰.
        let noise = released.iter().zip(&deviations);
        let noise =
            noise.map(|(value, deviation)| (value - (sums[0] << 40)).abs() as f64 / deviation).sum::<f64>();
        for (values, value) in seen.iter_mut().zip([drawing, noise, releasing, bits as f64]) {
            values.push(value);
        }
    }
    let [drawing, noise, releasing, size] = &seen;
    println!(
        "{EPOCHS} epochs of {} coordinates; chance alone: ±{:.3}, below {CHANCE:.6} bits",
        LAYOUT.coordinates(),
        4.0 / (EPOCHS as f64).sqrt()
    );
    report("time of the draw, magnitude of the noise", drawing, noise);
    report("time of the release, size of the sums   ", releasing, size);
    // A positive control: draws that are slower by 5 % for each standard deviation by which the
    // magnitude of their noise differs from its mean.
    let centre = noise.iter().sum::<f64>() / EPOCHS as f64;
    let spread = (noise.iter().map(|noise| (noise - centre).powi(2)).sum::<f64>() / EPOCHS as f64).sqrt();
    let slower = |(time, noise): (&f64, &f64)| time * (1.0 + 0.05 * (noise - centre).abs() / spread);
    let planted: Vec<f64> = drawing.iter().zip(noise).map(slower).collect();
    report("control: draws slowed by unusual noise  ", &planted, noise);
}
