//! Measures how often intervals contain the truth, for the releases of each quality.
//!
//! Records with known moments are released many times, with the noise of the joint mechanism. The
//! count has noise or is exact, and the number of records ranges from far below the noise to far
//! above it. For each quality, the output is the share of 95 % intervals that contain the truth,
//! and the worst setting among those in which at least a quarter of the releases have the quality.
//!
//! "By column" are releases of rows that lack some values, with indicators. Their quality is that
//! of the first column that is not good. Counts, means and variances are those of the first column,
//! and the covariance is that of the rows that have the first two.
//!
//! ```sh
//! cargo run --release -p hushflow-mechanism --example interval_coverage
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::collections::BTreeMap;
use std::error::Error;

use chacha20::ChaCha8Rng;
use hushflow_mechanism::estimate::by_column::ColumnwiseMoments;
use hushflow_mechanism::estimate::debias::{MIN_COUNT_TO_NOISE, MomentNoise, NoisyMoments};
use hushflow_mechanism::estimate::density::{Density, Sampler};
use hushflow_mechanism::estimate::intervals::{Confidence, Interval};
use hushflow_mechanism::estimate::quality::Quality;
use hushflow_mechanism::moments::{Layout, SecondMoment};
use nalgebra::{DMatrix, DVector};
use rand::SeedableRng;

/// Noise of sums. Only ratios matter.
const SUM_NOISE: f64 = 10.0;

/// Mean, variance and correlation of columns in [−1, 1]. The last four have the largest variance
/// for their mean. In the last two, nearly all values are at one bound.
const TRUTHS: [(f64, f64, f64); 10] = [
    (0.0, 0.1, 0.0),
    (0.4, 0.1, 0.5),
    (0.7, 0.25, 0.8),
    (-0.9, 0.01, 0.3),
    (0.95, 0.002, 0.95),
    (0.2, 0.3, -0.6),
    (0.0, 1.0, 0.2),
    (-0.8, 0.36, 0.9),
    (0.98, 0.0396, 0.0),
    (-0.999, 0.001_999, 0.5),
];

/// Number of records, divided by the noise of sums.
const SIZES: [f64; 11] = [2.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 40.0, 60.0, 100.0, 1000.0];

const GOOD_BY_COLUMN: &str = "by column, good";

/// Number of intervals that contain the truth, total number, and the worst share with its setting.
#[derive(Default)]
struct Share {
    held: u32,
    all: u32,
    worst: Option<(f64, String)>,
}

impl Share {
    /// Adds the intervals of a setting.
    fn add(&mut self, (held, all): (u32, u32), releases: u32, setting: String) {
        self.held += held;
        self.all += all;
        let coverage = f64::from(held) / f64::from(all);
        if 4 * all >= releases && self.worst.as_ref().is_none_or(|(worst, _)| coverage < *worst) {
            self.worst = Some((coverage, setting));
        }
    }
}

/// Sums with fresh noise.
struct NoisySums {
    exact: Vec<f64>,
    /// Standard deviation of the noise of each sum.
    levels: Vec<f64>,
    normal: Sampler,
}

impl NoisySums {
    /// Takes the means of first and second moments of `count` records.
    fn new(
        layout: Layout,
        noise: MomentNoise,
        means: impl Iterator<Item = f64>,
        count: f64,
    ) -> Result<Self, Box<dyn Error>> {
        let exact: Vec<f64> = [1.0].into_iter().chain(means).map(|mean| mean * count).collect();
        let first = std::iter::repeat_n(noise.first, layout.dimension);
        let second =
            layout.second_entries().map(|(i, j)| noise.second / if i == j { 1.0 } else { 2f64.sqrt() });
        let levels: Vec<f64> = [noise.count].into_iter().chain(first).chain(second).collect();
        let (mean, covariance) =
            (DVector::zeros(levels.len()), DMatrix::identity(levels.len(), levels.len()));
        let normal = Density::known(mean, covariance)?.sampler().ok_or("the identity is a covariance")?;
        Ok(NoisySums { exact, levels, normal })
    }

    fn draw(&self, random: &mut ChaCha8Rng) -> Vec<f64> {
        let normal = self.normal.draw(random);
        let sums = self.exact.iter().zip(&self.levels).zip(&normal);
        sums.map(|((exact, level), normal)| exact + level * normal).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let releases = std::env::args().nth(1).map_or(Ok(4000), |argument| argument.parse())?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut shares = BTreeMap::new();
    for dimension in [1, 2, 5] {
        for private_count in [true, false] {
            for truth in TRUTHS {
                for size in SIZES {
                    setting(dimension, private_count, truth, size, releases, &mut random, &mut shares)?;
                }
            }
        }
    }
    for columns in [2, 3, 5] {
        for lacking in [0.0, 0.3, 0.6] {
            for truth in TRUTHS {
                for size in SIZES {
                    by_column(columns, lacking, truth, size, releases, &mut random, &mut shares)?;
                }
            }
        }
    }
    println!("| quality | interval | held | of | worst | setting |\n|---|---|--:|--:|--:|---|");
    for ((quality, interval), Share { held, all, worst }) in &shares {
        let (worst, setting) = worst.clone().unwrap_or_default();
        let coverage = f64::from(*held) / f64::from(*all);
        println!("| {quality} | {interval} | {coverage:.4} | {all} | {worst:.4} | {setting} |");
    }
    Ok(())
}

/// Rows of `columns` columns. Each column lacks its value independently with this probability.
fn by_column(
    columns: usize,
    lacking: f64,
    (mean, variance, correlation): (f64, f64, f64),
    size: f64,
    releases: u32,
    random: &mut ChaCha8Rng,
    shares: &mut BTreeMap<(&'static str, &'static str), Share>,
) -> Result<(), Box<dyn Error>> {
    let layout = Layout::new(2 * columns, SecondMoment::Full);
    // Indicators have norm √d/2, and values norm √d.
    let norm = (1.25 * columns as f64).sqrt();
    let noise = MomentNoise {
        count: SUM_NOISE * 2f64.sqrt() / norm,
        first: SUM_NOISE,
        second: SUM_NOISE * 2f64.sqrt() * norm,
    };
    let count = size * SUM_NOISE;
    let present = 1.0 - lacking;
    let is_value = |entry: usize| entry < columns;
    let expected = |entry: usize| if is_value(entry) { present * mean } else { present - 0.5 };
    let product = |(i, j): (usize, usize)| {
        let of = |entry: usize| entry % columns;
        let covariance = if i == j { variance } else { correlation * variance };
        match (is_value(i), is_value(j)) {
            (true, true) if i == j => present * (covariance + mean * mean),
            (true, true) => present * present * (covariance + mean * mean),
            (false, false) if i == j => 0.25,
            (true, false) if of(i) == of(j) => present * mean / 2.0,
            _ => expected(i) * expected(j),
        }
    };
    let means = (0..2 * columns).map(expected).chain(layout.second_entries().map(product));
    let sums = NoisySums::new(layout, noise, means, count)?;
    let mut counts = BTreeMap::<_, (u32, u32)>::new();
    for _ in 0..releases {
        let coordinates = sums.draw(random);
        let moments = NoisyMoments { layout, coordinates: &coordinates, noise };
        let moments = ColumnwiseMoments::new(moments, 1.0)?;
        let own = moments.column(0);
        let words = (0..columns).map(|column| {
            let column = moments.column(column);
            match column.noisy().quality() {
                _ if column.count().0 <= MIN_COUNT_TO_NOISE * column.count().1 => "by column, too few",
                Quality::Good => GOOD_BY_COLUMN,
                Quality::NoiseDominated => "by column, noisy",
            }
        });
        let quality = words.into_iter().find(|word| *word != GOOD_BY_COLUMN).unwrap_or(GOOD_BY_COLUMN);
        let mut add = |interval: &'static str, held: bool| {
            let (yes, all) = counts.entry((quality, interval)).or_default();
            *yes += u32::from(held);
            *all += 1;
        };
        add("records", moments.count_interval(0.95).contains(count));
        add("count", moments.column_count_interval(0, 0.95).contains(present * count));
        let pair = moments.pair(0, 1).ok_or("products are known")?;
        if let Ok(intervals) = own.intervals(Confidence::default()) {
            let intervals = intervals.within_bounds();
            add("mean", intervals.mean(0).is_some_and(|interval| interval.contains(mean)));
            add("variance", intervals.covariance(0, 0).is_some_and(|interval| interval.contains(variance)));
        }
        if let Ok(intervals) = pair.intervals(Confidence::default()) {
            let found = intervals.within_bounds().covariance(0, 1);
            add("covariance", found.is_some_and(|interval| interval.contains(correlation * variance)));
        }
        if let Some((found, interval)) = moments.correlation_at_random(0, 1, Confidence::default())
            && found.shown().is_some()
        {
            add("correlation", interval.contains(correlation));
        }
    }
    for (name, (held, all)) in counts {
        let setting = format!(
            "d = {columns}, {lacking} missing, {size} records per τ₁, m = {mean}, σ² = {variance}, ρ = {correlation}"
        );
        shares.entry(name).or_default().add((held, all), releases, setting);
    }
    Ok(())
}

fn setting(
    dimension: usize,
    private_count: bool,
    (mean, variance, correlation): (f64, f64, f64),
    size: f64,
    releases: u32,
    random: &mut ChaCha8Rng,
    shares: &mut BTreeMap<(&'static str, &'static str), Share>,
) -> Result<(), Box<dyn Error>> {
    let layout = Layout::new(dimension, SecondMoment::Full);
    let noise = MomentNoise {
        count: if private_count { SUM_NOISE * (2.0 / dimension as f64).sqrt() } else { 0.0 },
        first: SUM_NOISE,
        second: SUM_NOISE * (2.0 * dimension as f64).sqrt(),
    };
    let count = size * SUM_NOISE;
    let covariance = |i: usize, j: usize| if i == j { variance } else { correlation * variance };
    let second = layout.second_entries().map(|(i, j)| covariance(i, j) + mean * mean);
    let sums = NoisySums::new(layout, noise, (0..dimension).map(|_| mean).chain(second), count)?;
    let mut counts = BTreeMap::<_, (u32, u32)>::new();
    for _ in 0..releases {
        let coordinates = sums.draw(random);
        let moments = NoisyMoments { layout, coordinates: &coordinates, noise };
        let quality = match moments.quality() {
            _ if coordinates[0] <= MIN_COUNT_TO_NOISE * noise.count || coordinates[0] <= 0.0 => "too few",
            Quality::Good => "good",
            Quality::NoiseDominated => "noisy",
        };
        let mut add = |interval: &'static str, held: bool| {
            let (yes, all) = counts.entry((quality, interval)).or_default();
            *yes += u32::from(held);
            *all += 1;
        };
        if private_count {
            add("count", moments.count_interval(0.95).contains(count));
        }
        let Ok(intervals) = moments.intervals(Confidence::default()) else { continue };
        let intervals = intervals.within_bounds();
        let mut entry = |name, interval: Option<Interval>, truth| {
            add(name, interval.is_some_and(|interval| interval.contains(truth)));
        };
        entry("mean", intervals.mean(0), mean);
        entry("variance", intervals.covariance(0, 0), variance);
        if dimension > 1 {
            entry("covariance", intervals.covariance(0, 1), correlation * variance);
            if let Some((Some(_), interval)) = intervals.correlation(0, 1) {
                entry("correlation", Some(interval), correlation);
            }
        }
    }
    for (name, (held, all)) in counts {
        let counts = if private_count { "noisy count" } else { "exact count" };
        let setting = format!(
            "d = {dimension}, {counts}, {size} records per τ₁, m = {mean}, σ² = {variance}, ρ = {correlation}"
        );
        shares.entry(name).or_default().add((held, all), releases, setting);
    }
    Ok(())
}
