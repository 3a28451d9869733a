//! The Fourier mechanism over 10⁵ steps, as whole series: encoding, both decoders, and the errors
//! of its estimates. A matrix of that many steps would take 160 GB.
//!
//! `cargo bench -p hushflow-mechanism --bench fourier`

use divan::{Bencher, black_box};
use hushflow_mechanism::strategy::{Factorization, Fourier};
use hushflow_mechanism::workload::Workload;

const STEPS: usize = 100_000;

fn main() {
    divan::main();
}

#[divan::bench]
fn encode(bencher: Bencher) {
    let fourier = Fourier::new(STEPS as u64).expect("a horizon within limits");
    let increments = vec![1.0; STEPS];
    bencher.bench(|| fourier.encode(black_box(&increments)));
}

#[divan::bench(args = ["fft", "fft-optimal-decoder"])]
fn decode(bencher: Bencher, name: &str) {
    let fourier = if name == "fft" { Fourier::new(STEPS as u64) } else { Fourier::optimal(STEPS as u64) };
    let fourier = fourier.expect("a horizon within limits");
    let encoded = fourier.encode(&vec![1.0; STEPS]).expect("the right number of steps");
    bencher.bench(|| fourier.decode(black_box(&encoded)));
}

#[divan::bench]
fn errors_of_the_optimal_decoder(bencher: Bencher) {
    bencher.bench(|| {
        let fourier = Fourier::optimal(STEPS as u64).expect("a horizon within limits");
        fourier.decoder_row_norms(&Workload::Prefix, STEPS as u64).map(|norm| norm * norm).sum::<f64>()
    });
}
