//! Time of a whole robust private mean, in the paper's setting.
//!
//! `cargo bench -p hushflow-estimators --bench mean`

use chacha20::ChaCha20Rng;
use divan::Bencher;
use hushflow_estimators::mean::{MeanAnswer, MeanMethod, Question, Scale, estimate};
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::noise::NoiseSource;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

const RECORDS: usize = 1_000_000;
const CORRUPTION: f64 = 0.05;

fn main() {
    divan::main();
}

/// (1−α)N(0, I) + αN(1.5·1, I).
fn table(dimension: usize) -> Vec<f64> {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let bad = (CORRUPTION * RECORDS as f64) as usize;
    let value = |position: usize| -> f64 {
        let noise: f64 = StandardNormal.sample(&mut rng);
        if position / dimension < bad { noise + 1.5 } else { noise }
    };
    (0..RECORDS * dimension).map(value).collect()
}

fn answer(rows: &[f64], dimension: usize, method: MeanMethod) -> MeanAnswer {
    let question = Question {
        method,
        epsilon: Epsilon::new(20.0).expect("an epsilon"),
        delta: Delta::new(0.01).expect("a delta"),
        corruption: CORRUPTION,
        scale: Scale::Known(vec![1.0; dimension]),
        range: None,
    };
    let mut generator = NoiseSource::Seeded(1).generator(0, 0).expect("a seed");
    estimate(rows, dimension, &question, &mut generator).expect("enough records")
}

#[divan::bench(args = [10, 50], sample_count = 3, sample_size = 1)]
fn prime(bencher: Bencher, dimension: usize) {
    let rows = table(dimension);
    bencher.bench_local(|| answer(&rows, dimension, MeanMethod::Prime));
}

#[divan::bench(args = [10, 50], sample_count = 3, sample_size = 1)]
fn gaussian(bencher: Bencher, dimension: usize) {
    let rows = table(dimension);
    bencher.bench_local(|| answer(&rows, dimension, MeanMethod::Gaussian));
}
