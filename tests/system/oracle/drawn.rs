//! Checks that the noise drawn has the distribution in the public header.
//!
//! If no row is usable, all sums are zero, and the release is the noise itself. Comparing two
//! worlds does not test the noise, because it cancels. So this test averages the squares of the
//! noise by coordinate, and its products with the noise of the next epoch, the next key and the
//! next run, which must be independent.

use hushflow::publication::MomentPublication;

use super::Leak;
use super::factors::{Case, Factor as F};
use super::pairs::{Pair, pair};
use super::world::World;
use crate::harness::Lab;

/// Runs, each with a different seed.
const RUNS: u64 = 60;

/// Largest distance of a mean from its expectation, in standard deviations. A normal variable is
/// this far from its mean with probability 2·10⁻⁹; there are at most 50 means here, and the seeds
/// are fixed.
const FAR: f64 = 6.0;

/// Unusable rows in both worlds.
fn silent(case: &Case) -> Pair {
    let mut pair = pair(case);
    for row in pair.worlds.iter_mut().flatten() {
        row.record.values.iter_mut().for_each(|value| value.clear());
    }
    pair
}

/// Noise in standard deviations, by run, epoch, key and coordinate.
fn drawn(relation: &str) -> Vec<Vec<Vec<Vec<f64>>>> {
    let run = |seed| {
        let levels = [
            (F::Neighbours, relation),
            (F::Strategy, "square-root"),
            (F::Keys, "three"),
            (F::Columns, "3"),
            (F::Horizon, "12"),
        ];
        let case = Case::of(&levels, seed);
        let lab = Lab::new();
        let seen = World::seen(&case, &silent(&case), 0, &lab.path("world"));
        let publication = MomentPublication::from_header(&seen.header).expect("the header of a log");
        let noise = publication.mechanism().moments().noise();
        let scaled = |(index, value): (usize, &i128)| {
            let sigma = noise[index].scale.map_or(f64::INFINITY, |scale| scale.sigma());
            *value as f64 / sigma
        };
        let key = |values: &[i128]| values.iter().enumerate().map(scaled).collect();
        let epoch = |values: &Vec<i128>| values.chunks(noise.len()).map(key).collect();
        seen.values.iter().map(epoch).collect()
    };
    (0..RUNS).map(run).collect()
}

/// Returns the deviations from independent noise of standard deviation 1.
fn leaks() -> Vec<Leak> {
    let mut leaks = Vec::new();
    for relation in ["replace-one", "replace-one-in-place"] {
        let noise = drawn(relation);
        let coordinates = noise[0][0][0].len();
        // A public count has no noise.
        let first = usize::from(relation == "replace-one-in-place");
        let mut check = |what: String, terms: Vec<f64>, expected: f64, deviation: f64| {
            let mean = terms.iter().sum::<f64>() / terms.len() as f64;
            let off = (mean - expected).abs() / deviation * (terms.len() as f64).sqrt();
            if off > FAR || off.is_nan() {
                let detail = format!("{relation}: {what} is {mean}, not {expected}: {off:.1} deviations off");
                leaks.push(Leak { kind: "noise".into(), detail });
            }
        };
        for at in first..coordinates {
            let all = noise.iter().flatten().flatten().map(|key| key[at] * key[at]);
            check(format!("the variance of coordinate {at}"), all.collect(), 1.0, 2f64.sqrt());
            let epochs = noise.iter().flat_map(|run| run.windows(2));
            let products =
                epochs.flat_map(|two| (0..two[0].len()).map(move |key| two[0][key][at] * two[1][key][at]));
            check(format!("coordinate {at} times that of the next epoch"), products.collect(), 0.0, 1.0);
        }
        let epochs = noise.iter().flatten();
        let keys = epochs.flat_map(|epoch| (first..coordinates).map(move |at| epoch[0][at] * epoch[1][at]));
        check("a key's noise times that of the next key".into(), keys.collect(), 0.0, 1.0);
        let columns = noise.iter().flatten().flatten().map(|key| key[1] * key[2]);
        check("a column's noise times that of the next one".into(), columns.collect(), 0.0, 1.0);
        let runs = noise.windows(2).flat_map(|two| two[0].iter().flatten().zip(two[1].iter().flatten()));
        let products = runs.map(|(one, other)| one[1] * other[1]);
        check("noise times that of another seed".into(), products.collect(), 0.0, 1.0);
    }
    leaks
}

#[test]
#[ignore = "slow"]
fn noise_has_the_scale_in_the_header() {
    let lines: Vec<_> = leaks().iter().map(|leak| format!("LEAK {}: {}", leak.kind, leak.detail)).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}
