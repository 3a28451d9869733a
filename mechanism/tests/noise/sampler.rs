//! Tests the distribution of the exact sampler: against exact probabilities at small scales,
//! against equal cells, moments and tails at large ones, and against an independent sampler.
//!
//! Each test draws 10⁶ samples; `HUSHFLOW_SAMPLER_DRAWS=100000000` sets another number for a long
//! run, and `HUSHFLOW_SAMPLER_SEED` another seed. Every statistic is compared at six standard
//! deviations (chi-squared ones after Wilson and Hilferty's cube root), so one comparison gives a
//! false alarm with probability 2·10⁻⁹, and all of them together with less than 10⁻⁶.

use chacha20::ChaCha20Rng;
use hushflow_mechanism::noise::{DiscreteGaussian, NoiseScale, reference};
use rand::{Rng, SeedableRng};

const LIMIT: f64 = 6.0;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn draws() -> u64 {
    setting("HUSHFLOW_SAMPLER_DRAWS", 1_000_000)
}

fn generator(stream: u64) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(setting("HUSHFLOW_SAMPLER_SEED", 20_130_101));
    rng.set_stream(stream);
    rng
}

/// Scale with bin width W = w·2^k.
fn sampler(w: u32, k: u32) -> DiscreteGaussian {
    DiscreteGaussian::new(NoiseScale::new(w, k).expect("a valid scale"))
}

/// Makes draws in blocks, as a release does.
fn filled(sampler: &DiscreteGaussian, rng: &mut ChaCha20Rng) -> impl FnMut() -> i128 {
    let mut draws = Vec::new();
    move || {
        if draws.is_empty() {
            draws.resize(200, 0);
            sampler.fill(rng, &mut draws);
        }
        draws.pop().expect("just filled")
    }
}

/// Probabilities of −radius..=radius.
fn probabilities(sigma: f64, radius: i64) -> Vec<f64> {
    let weight = |x: i64| (-((x * x) as f64) / (2.0 * sigma * sigma)).exp();
    let total = 1.0 + 2.0 * (1..=(40.0 * sigma) as i64).rev().map(weight).sum::<f64>();
    (-radius..=radius).map(|x| weight(x) / total).collect()
}

/// Standard score of a chi-squared statistic. Cells are pooled to at least 20 expected counts.
fn chi_squared_score(counts: &[u64], probabilities: &[f64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let (mut statistic, mut degrees, mut observed, mut expected) = (0.0, -1.0f64, 0.0, 0.0);
    let mut rest = total;
    for (&count, &probability) in counts.iter().zip(probabilities) {
        observed += count as f64;
        expected += total * probability;
        if expected >= 20.0 && rest - expected >= 20.0 {
            statistic += (observed - expected) * (observed - expected) / expected;
            rest -= expected;
            degrees += 1.0;
            (observed, expected) = (0.0, 0.0);
        }
    }
    statistic += (observed - rest) * (observed - rest) / rest;
    standard_score(statistic, degrees + 1.0)
}

/// Wilson and Hilferty's transform of a chi-squared statistic to a nearly normal one.
fn standard_score(statistic: f64, degrees: f64) -> f64 {
    let variance = 2.0 / (9.0 * degrees);
    ((statistic / degrees).cbrt() - (1.0 - variance)) / variance.sqrt()
}

fn histogram(radius: i64, draws: u64, mut draw: impl FnMut() -> i128) -> Vec<u64> {
    let mut counts = vec![0; 2 * radius as usize + 1];
    for _ in 0..draws {
        let x = draw() as i64;
        counts[(x.clamp(-radius, radius) + radius) as usize] += 1;
    }
    counts
}

/// Probabilities whose two end cells include the tails, as in `histogram`.
fn with_tails(sigma: f64, radius: i64) -> Vec<f64> {
    let mut probabilities = probabilities(sigma, radius);
    let tail = (1.0 - probabilities.iter().sum::<f64>()).max(0.0) / 2.0;
    probabilities[0] += tail;
    probabilities[2 * radius as usize] += tail;
    probabilities
}

#[test]
fn every_integer_has_its_exact_probability_at_small_scales() {
    for (stream, w) in [1, 2, 3, 4, 5, 7, 13, 16].into_iter().enumerate() {
        let (sampler, mut rng) = (sampler(w, 0), generator(stream as u64));
        let sigma = 64.0 * f64::from(w);
        let radius = (5.5 * sigma) as i64;
        let counts = histogram(radius, draws(), filled(&sampler, &mut rng));
        let score = chi_squared_score(&counts, &with_tails(sigma, radius));
        assert!(score.abs() < LIMIT, "σ = {sigma}: chi-squared score {score:.2}");
    }
}

/// At large scales there are too many integers to count each. So cells of equal probability are
/// counted instead.
#[test]
fn equal_cells_are_hit_equally_at_large_scales() {
    for (stream, (w, k)) in [
        (1 << 14, 0),
        (12_345, 3),
        (u32::MAX, 2),
        (1 << 31, 16),
        (1 << 31, 26),
        (3_000_000_019, 16),
        (3 << 30, 33),
        (1, 64),
        (3, 60),
        (1 << 31, 64),
        // Several draws at a time.
        (1 << 19, 0),
        (600_001, 17),
        ((1 << 20) - 1, 32),
    ]
    .into_iter()
    .enumerate()
    {
        let (sampler, mut rng) = (sampler(w, k), generator(100 + stream as u64));
        let sigma = sampler.scale().sigma();
        let cells = 1000;
        let mut counts = vec![0u64; cells];
        let mut draw = filled(&sampler, &mut rng);
        for _ in 0..draws() {
            let quantile = normal_distribution(draw() as f64 / sigma);
            counts[((quantile * cells as f64) as usize).min(cells - 1)] += 1;
        }
        let score = chi_squared_score(&counts, &vec![1.0 / cells as f64; cells]);
        assert!(score.abs() < LIMIT, "W = {w}·2^{k}: chi-squared score {score:.2}");
    }
}

fn normal_distribution(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

#[test]
fn moments_and_tails_agree_with_the_gaussian_at_every_scale() {
    for (stream, (w, k)) in
        [(1, 0), (1 << 16, 0), (1 << 31, 2), (4_000_000_007, 30), (1 << 31, 64), (777_777, 16)]
            .into_iter()
            .enumerate()
    {
        let (sampler, mut rng) = (sampler(w, k), generator(200 + stream as u64));
        let (sigma, n) = (sampler.scale().sigma(), draws());
        let mut sums = [0.0f64; 4];
        let mut beyond = [0u64; 4];
        let mut lag = (0.0, 0.0);
        let mut draw = filled(&sampler, &mut rng);
        for _ in 0..n {
            let z = draw() as f64 / sigma;
            for (power, sum) in sums.iter_mut().enumerate() {
                *sum += z.powi(power as i32 + 1);
            }
            for (level, count) in beyond.iter_mut().enumerate() {
                *count += u64::from(z.abs() > level as f64 + 1.5);
            }
            lag = (lag.0 + z * lag.1, z);
        }
        let n = n as f64;
        // Means and variances of z, z², z³, z⁴ under the normal distribution.
        for (power, (mean, variance)) in
            [(0.0, 1.0), (1.0, 2.0), (0.0, 15.0), (3.0, 96.0)].into_iter().enumerate()
        {
            let score = (sums[power] / n - mean) / f64::sqrt(variance / n);
            assert!(score.abs() < LIMIT, "W = {w}·2^{k}: moment {}: {score:.2}", power + 1);
        }
        let lag_score = lag.0 / n.sqrt();
        assert!(lag_score.abs() < LIMIT, "W = {w}·2^{k}: consecutive draws correlate, {lag_score:.2}");
        for (level, &count) in beyond.iter().enumerate() {
            let threshold = level as f64 + 1.5;
            let probability = if w == 1 && k == 0 {
                1.0 - probabilities(64.0, (threshold * 64.0) as i64).iter().sum::<f64>()
            } else {
                libm::erfc(threshold / std::f64::consts::SQRT_2)
            };
            let expected = n * probability;
            let score = (count as f64 - expected) / (expected + 1.0).sqrt();
            assert!(score.abs() < LIMIT, "W = {w}·2^{k}: beyond {threshold}σ: {count} of {expected:.1}");
        }
    }
}

/// Within a bin, rejection makes the density fall as exp(−f(2h + f)/8192). The test statistic is
/// the mean of h·(f − ½), which is then −0.083. Without rejection it is 0.
#[test]
fn the_density_falls_within_each_bin() {
    for (stream, (w, k)) in
        [(1 << 20, 0), (u32::MAX, 2), (1, 64), (3, 60), (3_000_000_019, 50)].into_iter().enumerate()
    {
        let (sampler, mut rng) = (sampler(w, k), generator(600 + stream as u64));
        let width = sampler.scale().bin_width();
        let n = 4 * draws();
        let (mut sum, mut squares) = (0.0, 0.0);
        let mut draw = filled(&sampler, &mut rng);
        for _ in 0..n {
            let x = draw().unsigned_abs();
            let (h, f) = ((x / width) as f64, (x % width) as f64 / width as f64);
            sum += h * (f - 0.5);
            squares += (h * (f - 0.5)).powi(2);
        }
        let score = (sum - n as f64 * expected_lean()) / squares.sqrt();
        assert!(score.abs() < LIMIT, "W = {w}·2^{k}: {score:.2}");
        let without_rejection = sum / squares.sqrt();
        assert!(without_rejection < -LIMIT, "W = {w}·2^{k}: {without_rejection:.2}");
    }
}

/// E[h(f − ½)] by midpoint sums over f.
fn expected_lean() -> f64 {
    const STEPS: usize = 64;
    let (mut total, mut lean) = (0.0, 0.0);
    for h in 0..900 {
        for step in 0..STEPS {
            let f = (step as f64 + 0.5) / STEPS as f64;
            let weight = (-(f64::from(h) + f).powi(2) / 8192.0).exp();
            total += weight;
            lean += weight * f64::from(h) * (f - 0.5);
        }
    }
    lean / total
}

/// At large scales all residues modulo a small number are equally likely: low bits have no pattern.
#[test]
fn low_bits_are_uniform() {
    for (stream, (w, k)) in
        [(1 << 20, 0), (3_000_000_019, 2), (3_000_000_019, 40), (1 << 19, 5), (600_001, 17)]
            .into_iter()
            .enumerate()
    {
        for modulus in [2usize, 64, 81] {
            let (sampler, mut rng) = (sampler(w, k), generator(300 + 10 * stream as u64 + modulus as u64));
            let mut counts = vec![0u64; modulus];
            let mut draw = filled(&sampler, &mut rng);
            for _ in 0..draws() {
                counts[draw().rem_euclid(modulus as i128) as usize] += 1;
            }
            let score = chi_squared_score(&counts, &vec![1.0 / modulus as f64; modulus]);
            assert!(score.abs() < LIMIT, "W = {w}·2^{k} modulo {modulus}: {score:.2}");
        }
    }
}

#[test]
fn the_independent_sampler_agrees() {
    let n = draws() / 10;
    for (stream, sigma) in [64u64, 128, 448].into_iter().enumerate() {
        let mut rng = generator(400 + stream as u64);
        let radius = 5 * sigma as i64;
        let slow = histogram(radius, n, || reference::sample(sigma, &mut rng));
        let score = chi_squared_score(&slow, &with_tails(sigma as f64, radius));
        assert!(score.abs() < LIMIT, "σ = {sigma}: the reference itself: {score:.2}");

        let sampler = sampler((sigma / 64) as u32, 0);
        let fast = histogram(radius, n, filled(&sampler, &mut rng));
        let score = two_sample_score(&slow, &fast);
        assert!(score.abs() < LIMIT, "σ = {sigma}: the two samplers differ, {score:.2}");
    }
}

/// Standard score of the chi-squared statistic of two histograms of equally many draws. Cells are
/// pooled to at least 40 counts. The last cells have fewer and are left out, so the others have no
/// fixed total.
fn two_sample_score(first: &[u64], second: &[u64]) -> f64 {
    let (mut statistic, mut degrees, mut a, mut b) = (0.0, 0.0, 0.0, 0.0);
    for (&x, &y) in first.iter().zip(second) {
        (a, b) = (a + x as f64, b + y as f64);
        if a + b >= 40.0 {
            statistic += (a - b) * (a - b) / (a + b);
            degrees += 1.0;
            (a, b) = (0.0, 0.0);
        }
    }
    standard_score(statistic, degrees)
}

/// Checks that the tests can fail: they detect a σ too small by 2 %, also by comparison with other
/// draws, a shift by 3 % of σ, and draws of which 15 in 16 are even.
#[test]
fn a_wrong_sampler_is_caught() {
    let (sampler, mut rng) = (sampler(4, 0), generator(500));
    let expected = with_tails(256.0, 1400);
    let narrow = histogram(1400, draws(), || sampler.sample(&mut rng) * 98 / 100);
    assert!(chi_squared_score(&narrow, &expected).abs() > LIMIT);
    let exact = histogram(1400, draws(), || sampler.sample(&mut rng));
    assert!(two_sample_score(&exact, &narrow) > LIMIT);
    let shifted = histogram(1400, draws(), || sampler.sample(&mut rng) + 8);
    assert!(chi_squared_score(&shifted, &expected).abs() > LIMIT);
    let even =
        histogram(1400, draws(), || sampler.sample(&mut rng) & !1 | i128::from(rng.next_u64() % 16 == 0));
    assert!(chi_squared_score(&even, &expected).abs() > LIMIT);
}
