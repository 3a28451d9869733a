//! Counts the keys that discovery finds in a stream of people with heavy tails, and those that
//! batch methods find at its end with the same budget.
//!
//! ```sh
//! cargo run --release --example discovered_keys -- 300000 1.05,1.3,2
//! cargo run --release --example discovered_keys -- dp-sqlp 10000000
//! ```
//!
//! The arguments are the number of people and the exponents of Zipf's law of the keys. A person has
//! a number of records of a Pareto tail (exponent 1.5), at most 1000, and a method uses K of them
//! at most, drawn at random. The stream has each record in an epoch that is drawn at random. Noise
//! is seeded.
//!
//! - *Gaussian*: the number of people of each key at the end of the stream, with noise for K keys
//!   and a threshold for K keys (Wilson et al. 2020).
//! - *Weighted*: a person with k keys gives each 1/√k (Gopi et al. 2020, "Differentially Private
//!   Set Union", weighted Gaussian), so noise is for 1.

//!
//! With `dp-sqlp` it has the synthetic stream of Section 5.1 of "Differentially Private Stream
//! Processing at Scale" (Zhang et al. 2024), with this number of people: a million keys of a
//! Zipf-Mandelbrot law (q = 1000, s = 1.4), and for each person a number of records of another
//! (q = 26, s = 6.738), at most 32; ε = 6 and δ = 10⁻⁹, half of it for keys.

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

/// The budget, and the share of it that finds keys.
const EPSILON: f64 = 2.0;
const DELTA: f64 = 1e-6;
const OF_KEYS: f64 = 1e-8;
const SHARE: f64 = 0.5;

/// Number of keys that may occur.
const KEYS: f64 = 1e6;

const LAYOUT: Layout = Layout::new(1, SecondMoment::None);

/// The different keys of each person, in random order.
fn people(
    number: usize,
    exponent: f64,
    random: &mut NoiseGenerator,
) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let (keys, tail) = (Zipf::new(KEYS, exponent)?, Pareto::new(1.0, 1.5)?);
    let person = |_| {
        let records = f64::min(tail.sample(random), 1000.0) as usize;
        let mut seen = BTreeSet::new();
        let mut own: Vec<u32> = (0..records).map(|_| keys.sample(random) as u32).collect();
        own.retain(|&key| seen.insert(key));
        own
    };
    Ok((0..number).map(person).collect())
}

/// Sums what each person gives to each of the first `most` keys.
fn totals(people: &[Vec<u32>], most: usize, weight: impl Fn(usize) -> f64) -> HashMap<u32, f64> {
    let mut totals = HashMap::new();
    for keys in people {
        let used = &keys[..keys.len().min(most)];
        used.iter().for_each(|&key| *totals.entry(key).or_default() += weight(used.len()));
    }
    totals
}

/// Number of totals that exceed a threshold with noise.
fn beyond(totals: &HashMap<u32, f64>, threshold: f64, deviation: f64, random: &mut NoiseGenerator) -> usize {
    let mut noise = || -> f64 { StandardNormal.sample(random) };
    totals.values().filter(|&&total| total + deviation * noise() > threshold).count()
}

/// Keys found in the stream.
fn found(
    people: &[Vec<u32>],
    (most, epochs): (usize, u64),
    (multiplier, delta): (f64, f64),
    random: &mut NoiseGenerator,
) -> Result<usize, Box<dyn Error>> {
    let parameters = DiscoveryParameters {
        delta,
        share: SHARE,
        most: 1 << 20,
        at_least: 1,
        threshold: None,
        counted: Counted::Entities { records: most as u32 },
    };
    let discovery = Arc::new(Discovery::new(parameters, Neighbours::ZeroOut, multiplier, epochs)?);
    // Keys that have no chance in any epoch only cost time.
    let least = |epoch| discovery.threshold(epoch) - 7.0 * discovery.deviation(epoch);
    let least = (1..=epochs).map(least).fold(f64::INFINITY, f64::min);
    let counts = totals(people, most, |_| 1.0);
    let mut stream = vec![BTreeMap::<u32, Vec<u128>>::new(); epochs as usize];
    let epoch = Uniform::new(0, epochs as usize)?;
    for (person, keys) in (0..).zip(people) {
        for key in keys.iter().take(most).filter(|key| counts[key] >= least) {
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
        return beside_dp_sqlp(arguments.next().ok_or("how many people?")?.parse()?);
    }
    let number = number.parse()?;
    let exponents = arguments.next().ok_or("which exponents?")?;
    let multiplier = gaussian::noise_multiplier(Epsilon::new(EPSILON)?, Delta::new(DELTA)?).value();
    println!("exponent,keys,K,gaussian,weighted,1 epoch,12 epochs,100 epochs");
    for exponent in exponents.split(',') {
        let random = &mut NoiseSource::Seeded(7).generator(1, 0)?;
        let people = people(number, exponent.parse()?, random)?;
        let occurring = totals(&people, usize::MAX, |_| 1.0).len();
        for most in [1, 4, 16] {
            let deviation = multiplier / SHARE.sqrt();
            let plain = deviation * (most as f64).sqrt();
            let threshold = 1.0 + plain * normal_quantile(OF_KEYS / most as f64)?;
            let gaussian = beyond(&totals(&people, most, |_| 1.0), threshold, plain, random);
            let weight = |keys: usize| (keys as f64).sqrt().recip();
            let of = |keys: usize| -> Result<f64, Box<dyn Error>> {
                Ok(weight(keys) + deviation * normal_quantile(OF_KEYS / keys as f64)?)
            };
            let thresholds: Vec<f64> = (1..=most).map(of).collect::<Result<_, _>>()?;
            let threshold = thresholds.into_iter().fold(0.0, f64::max);
            let weighted = beyond(&totals(&people, most, weight), threshold, deviation, random);
            let stream =
                [1, 12, 100].map(|epochs| found(&people, (most, epochs), (multiplier, OF_KEYS), random));
            let stream: Vec<_> = stream.into_iter().collect::<Result<_, _>>()?;
            let stream: Vec<_> = stream.iter().map(ToString::to_string).collect();
            println!("{exponent},{occurring},{most},{gaussian},{weighted},{}", stream.join(","));
        }
    }
    Ok(())
}

/// A law of the ranks from 1 with probabilities proportional to (rank + q)^(−s).
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
fn beside_dp_sqlp(number: usize) -> Result<(), Box<dyn Error>> {
    const MOST: usize = 32;
    let (epsilon, delta, of_keys) = (6.0_f64, 1e-9, 1e-12);
    let of_noise = delta - (1.0 + epsilon.exp()) * of_keys;
    let multiplier = gaussian::noise_multiplier(Epsilon::new(epsilon)?, Delta::new(of_noise)?).value();
    let random = &mut NoiseSource::Seeded(7).generator(1, 0)?;
    let (records, keys) =
        (ZipfMandelbrot::new(100_000, 26.0, 6.738), ZipfMandelbrot::new(1_000_000, 1000.0, 1.4));
    let mut people = Vec::with_capacity(number);
    for _ in 0..number {
        let records = records.sample(random)?.min(MOST as u32);
        let mut own = (0..records).map(|_| keys.sample(random)).collect::<Result<Vec<u32>, _>>()?;
        own.sort_unstable();
        own.dedup();
        people.push(own);
    }
    println!("epochs,keys found");
    for epochs in [100, 1000] {
        println!("{epochs},{}", found(&people, (MOST, epochs), (multiplier, of_keys), random)?);
    }
    Ok(())
}

/// The number that a standard normal variable exceeds with this probability: the threshold of a
/// test of one record in one epoch.
fn normal_quantile(delta: f64) -> Result<f64, Box<dyn Error>> {
    let parameters = DiscoveryParameters {
        delta,
        share: SHARE,
        most: 1,
        at_least: 1,
        threshold: None,
        counted: Counted::Records,
    };
    let test = Discovery::new(parameters, Neighbours::ZeroOut, 1.0, 1)?;
    Ok((test.threshold(1) - 1.0) / test.deviation(1))
}
