//! Measures samples per second of the exact discrete Gaussian, compared with an inexact f64 normal
//! (ziggurat) over the same generator, and bytes per second of the keystream, compared with the
//! `chacha20` crate.

use chacha20::cipher::{KeyIvInit, StreamCipher};
use chacha20::{ChaCha20Legacy, ChaCha20Rng};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use hushflow_mechanism::noise::{DiscreteGaussian, NoiseScale, NoiseSource, reference};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

const DRAWS: usize = 1 << 16;

fn main() {
    divan::main();
}

/// σ is 1.4·2^`sigma_bits` grid units.
#[divan::bench(args = [26, 40, 61, 82])]
fn exact(bencher: Bencher, sigma_bits: i32) {
    let gaussian = DiscreteGaussian::new(NoiseScale::at_least(1.4 * 2f64.powi(sigma_bits)).expect("covered"));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut noise = vec![0i128; DRAWS];
    bencher
        .counter(ItemsCount::new(DRAWS))
        .bench_local(|| gaussian.fill(&mut rng, divan::black_box(&mut noise)));
}

#[divan::bench]
fn keystream(bencher: Bencher) {
    let mut generator = NoiseSource::Seeded(1).generator(1, 0).expect("a seed is enough");
    fill(bencher, |bytes| generator.fill_bytes(bytes));
}

#[divan::bench]
fn keystream_by_the_crate(bencher: Bencher) {
    let mut cipher = ChaCha20Legacy::new(&[1; 32].into(), &[0; 8].into());
    fill(bencher, |bytes| cipher.write_keystream(bytes));
}

fn fill(bencher: Bencher, mut write: impl FnMut(&mut [u8])) {
    let mut bytes = vec![0; DRAWS];
    bencher.counter(BytesCount::new(DRAWS)).bench_local(|| write(divan::black_box(&mut bytes)));
}

#[divan::bench]
fn ziggurat_f64(bencher: Bencher) {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut noise = vec![0f64; DRAWS];
    bencher.counter(ItemsCount::new(DRAWS)).bench_local(|| {
        for x in divan::black_box(&mut noise) {
            *x = StandardNormal.sample(&mut rng);
        }
    });
}

#[divan::bench(sample_count = 10)]
fn reference_exact(bencher: Bencher) {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    bencher.counter(ItemsCount::new(1000usize)).bench_local(|| {
        for _ in 0..1000 {
            divan::black_box(reference::sample(1 << 20, &mut rng));
        }
    });
}
