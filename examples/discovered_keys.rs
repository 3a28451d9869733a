//! Counts the keys that discovery finds in a stream, and those that batch methods find at the end
//! of the stream with the same budget. The number of records per person is heavy-tailed.
//!
//! ```sh
//! cargo run --release --example discovered_keys -- 300000 1.05,1.3,2
//! cargo run --release --example discovered_keys -- dp-sqlp 10000000
//! ```
//!
//! The arguments are the number of people and the exponents of the Zipf distributions of keys. The
//! number of records of a person has a Pareto distribution (exponent 1.5), cut at 1000. A method
//! uses at most K different keys of each person: the first K in the order in which they were drawn.
//! In the stream, each of these keys arrives in an epoch drawn uniformly at random. Noise is
//! seeded.
//!
//! - *Gaussian*: counts the people of each key at the end of the stream. Noise and threshold are
//!   for K keys per person (Wilson et al. 2020).
//! - *Weighted*: a person with k keys adds 1/√k to each (Gopi et al. 2020, "Differentially Private
//!   Set Union", weighted Gaussian). So the L2 sensitivity is 1.
//!
//! With `dp-sqlp` the stream is the synthetic one of Section 5.1 of "Differentially Private Stream
//! Processing at Scale" (Zhang et al. 2024), with this number of people. Keys have a
//! Zipf–Mandelbrot distribution over a million ranks (q = 1000, s = 1.4). So has the number of
//! records per person (q = 26, s = 6.738), cut at 32. ε = 6 and δ = 10⁻⁹. Half of the squared
//! budget μ² finds keys, and (1 + e^ε)·10⁻¹² ≈ 4·10⁻¹⁰ of δ.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use hushflow::mechanism::accounting::{Delta, Epsilon, gaussian};
use hushflow::mechanism::discovery::{Candidates, Counted, Discovery, DiscoveryParameters, KeyArrival};
use hushflow::mechanism::moments::{Layout, SecondMoment};
use hushflow::mechanism::noise::{NoiseGenerator, NoiseSource};
use hushflow::mechanism::sensitivity::Neighbours;
use rand_distr::{Distribution, Pareto, StandardNormal, Uniform, Zipf};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;
use std::sync::Arc;

/// ε of the noise.
const EPSILON: f64 = 2.0;

/// δ of the noise.
const DELTA: f64 = 1e-6;

/// δ of the thresholds, beside `DELTA` for the noise.
const KEY_DELTA: f64 = 1e-8;

/// Share of the squared budget μ² that finds keys.
const KEY_SHARE: f64 = 0.5;

/// Number of keys that may occur.
const POSSIBLE_KEYS: f64 = 1e6;

const LAYOUT: Layout = Layout::new(1, SecondMoment::None);

/// Returns the different keys of each person, in the order in which they were drawn.
fn people(
    number: usize,
    exponent: f64,
    random: &mut NoiseGenerator,
) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let (keys, tail) = (Zipf::new(POSSIBLE_KEYS, exponent)?, Pareto::new(1.0, 1.5)?);
    let person = |_| {
        let records = f64::min(tail.sample(random), 1000.0) as usize;
        let mut seen = BTreeSet::new();
        let mut own: Vec<u32> = (0..records).map(|_| keys.sample(random) as u32).collect();
        own.retain(|&key| seen.insert(key));
        own
    };
    Ok((0..number).map(person).collect())
}

/// Sums the weights of each key over people. A person contributes the first `max_keys` of their
/// keys.
fn totals(people: &[Vec<u32>], max_keys: usize, weight: impl Fn(usize) -> f64) -> HashMap<u32, f64> {
    let mut totals = HashMap::new();
    for keys in people {
        let used = &keys[..keys.len().min(max_keys)];
        used.iter().for_each(|&key| *totals.entry(key).or_default() += weight(used.len()));
    }
    totals
}

/// Counts the totals that exceed `threshold` after noise is added.
fn count_above(
    totals: &HashMap<u32, f64>,
    threshold: f64,
    deviation: f64,
    random: &mut NoiseGenerator,
) -> usize {
    let mut noise = || -> f64 { StandardNormal.sample(random) };
    totals.values().filter(|&&total| total + deviation * noise() > threshold).count()
}

/// Returns the number of keys that discovery finds in the stream.
fn keys_discovered(
    people: &[Vec<u32>],
    (max_keys, epochs): (usize, u64),
    (multiplier, delta): (f64, f64),
    random: &mut NoiseGenerator,
) -> Result<usize, Box<dyn Error>> {
    let parameters = DiscoveryParameters {
        delta,
        share: KEY_SHARE,
        most: 1 << 20,
        at_least: 1,
        threshold: None,
        counted: Counted::Entities { records: max_keys as u32 },
    };
    let discovery = Arc::new(Discovery::new(parameters, Neighbours::ZeroOut, multiplier, epochs)?);
    // Leave out keys seven deviations below every threshold, to save time.
    let least = |epoch| discovery.threshold(epoch) - 7.0 * discovery.deviation(epoch);
    let least = (1..=epochs).map(least).fold(f64::INFINITY, f64::min);
    let counts = totals(people, max_keys, |_| 1.0);
    let mut stream = vec![BTreeMap::<u32, Vec<u128>>::new(); epochs as usize];
    let epoch = Uniform::new(0, epochs as usize)?;
    for (person, keys) in (0..).zip(people) {
        for key in keys.iter().take(max_keys).filter(|key| counts[key] >= least) {
            stream[epoch.sample(random)].entry(*key).or_default().push(person);
        }
    }
    let mut candidates = Candidates::new(discovery, LAYOUT, NoiseSource::Seeded(1));
    for (number, arrived) in (1..).zip(&stream) {
        let arrival = |(key, entities): (&u32, &Vec<u128>)| {
            (Arc::from(key.to_string()), [entities.len() as i128, 0], entities.clone())
        };
        let arrivals: Vec<(Arc<str>, _, _)> = arrived.iter().map(arrival).collect();
        candidates.close(
            number,
            arrivals.iter().map(|(name, sums, entities)| KeyArrival {
                name: Arc::clone(name),
                sums: Some(sums[..].into()),
                entities,
            }),
        )?;
    }
    Ok(candidates.names().len())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let number = arguments.next().ok_or("how many people?")?;
    if number == "dp-sqlp" {
        return run_dp_sqlp_stream(arguments.next().ok_or("how many people?")?.parse()?);
    }
    let number = number.parse()?;
    let exponents = arguments.next().ok_or("which exponents?")?;
    let multiplier = gaussian::noise_multiplier(Epsilon::new(EPSILON)?, Delta::new(DELTA)?).value();
    println!("exponent,keys,K,gaussian,weighted,1 epoch,12 epochs,100 epochs");
    for exponent in exponents.split(',') {
        let random = &mut NoiseSource::Seeded(7).generator(1, 0)?;
        let people = people(number, exponent.parse()?, random)?;
        let occurring = totals(&people, usize::MAX, |_| 1.0).len();
        for max_keys in [1, 4, 16] {
            let deviation = multiplier / KEY_SHARE.sqrt();
            let gaussian_deviation = deviation * (max_keys as f64).sqrt();
            let threshold = 1.0 + gaussian_deviation * upper_normal_quantile(KEY_DELTA / max_keys as f64)?;
            let counts = totals(&people, max_keys, |_| 1.0);
            let gaussian = count_above(&counts, threshold, gaussian_deviation, random);
            let weight = |keys: usize| (keys as f64).sqrt().recip();
            let threshold_for = |keys: usize| -> Result<f64, Box<dyn Error>> {
                Ok(weight(keys) + deviation * upper_normal_quantile(KEY_DELTA / keys as f64)?)
            };
            let thresholds: Vec<f64> = (1..=max_keys).map(threshold_for).collect::<Result<_, _>>()?;
            let threshold = thresholds.into_iter().fold(0.0, f64::max);
            let weighted = count_above(&totals(&people, max_keys, weight), threshold, deviation, random);
            let stream = [1, 12, 100]
                .map(|epochs| keys_discovered(&people, (max_keys, epochs), (multiplier, KEY_DELTA), random));
            let stream: Vec<_> = stream.into_iter().collect::<Result<_, _>>()?;
            let stream: Vec<_> = stream.iter().map(ToString::to_string).collect();
            println!("{exponent},{occurring},{max_keys},{gaussian},{weighted},{}", stream.join(","));
        }
    }
    Ok(())
}

/// A distribution of ranks from 1 with probabilities proportional to (rank + q)^(−s).
struct ZipfMandelbrot(Vec<f64>);

impl ZipfMandelbrot {
    fn new(ranks: u32, q: f64, s: f64) -> Self {
        let mut sum = 0.0;
        let term = |rank: u32| {
            sum += (f64::from(rank) + q).powf(-s);
            sum
        };
        Self((1..=ranks).map(term).collect())
    }

    fn sample(&self, random: &mut NoiseGenerator) -> Result<u32, Box<dyn Error>> {
        let total = self.0.last().copied().ok_or("no rank")?;
        let drawn = Uniform::new(0.0, total)?.sample(random);
        Ok(self.0.partition_point(|&sum| sum <= drawn) as u32 + 1)
    }
}

/// Prints the keys found in the stream of Section 5.1 of the DP-SQLP paper.
fn run_dp_sqlp_stream(number: usize) -> Result<(), Box<dyn Error>> {
    const MAX_RECORDS: usize = 32;
    let (epsilon, delta, key_delta) = (6.0_f64, 1e-9, 1e-12);
    let noise_delta = delta - (1.0 + epsilon.exp()) * key_delta;
    let multiplier = gaussian::noise_multiplier(Epsilon::new(epsilon)?, Delta::new(noise_delta)?).value();
    let random = &mut NoiseSource::Seeded(7).generator(1, 0)?;
    let (records, keys) =
        (ZipfMandelbrot::new(100_000, 26.0, 6.738), ZipfMandelbrot::new(1_000_000, 1000.0, 1.4));
    let mut people = Vec::with_capacity(number);
    for _ in 0..number {
        let records = records.sample(random)?.min(MAX_RECORDS as u32);
        let mut own = (0..records).map(|_| keys.sample(random)).collect::<Result<Vec<u32>, _>>()?;
        own.sort_unstable();
        own.dedup();
        people.push(own);
    }
    println!("epochs,keys found");
    for epochs in [100, 1000] {
        let found = keys_discovered(&people, (MAX_RECORDS, epochs), (multiplier, key_delta), random)?;
        println!("{epochs},{found}");
    }
    Ok(())
}

/// Returns the value that a standard normal variable exceeds with probability `delta`. Read off the
/// threshold of discovery with one record and one epoch.
fn upper_normal_quantile(delta: f64) -> Result<f64, Box<dyn Error>> {
    let parameters = DiscoveryParameters {
        delta,
        share: KEY_SHARE,
        most: 1,
        at_least: 1,
        threshold: None,
        counted: Counted::Records,
    };
    let test = Discovery::new(parameters, Neighbours::ZeroOut, 1.0, 1)?;
    Ok((test.threshold(1) - 1.0) / test.deviation(1))
}
