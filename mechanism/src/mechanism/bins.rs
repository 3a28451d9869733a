//! Bins of histograms, released together with the moments of the same records.
//!
//! Each record adds 1 to at most one bin of each of H histograms. The counts v of all bins are
//! further coordinates of every key, and are encoded by C₁ like the count.
//!
//! # Theorem
//! Let s₀ be the joint sensitivity of the moments for an entity that has one record at a time and
//! takes part as its schema allows (a single record takes part once). Let V be the squared
//! sensitivity of C₁ for contributions of norm 1, −g ≤ 0 a lower bound of the overlaps of its
//! columns, k the maximum number of records of the entity, and e > 0 a weight. Let each bin have
//! noise of deviation σ·s/√e, and the moments their noise for σ and s. Then both together are one
//! Gaussian mechanism of noise multiplier σ if
//!
//! ```text
//! s² = s₀² + e·H·S      S = V                           zero-out
//!                       S = 2V                          in place
//!                       S = min(4V, 2V + 2k²g)          replace-one
//! ```
//!
//! *Proof.* Let u_i be the vector that the entity's record adds to the bins of all keys in step i.
//! It has at most H entries of 1. So ‖u_i‖² ≤ H, and ⟨u_i, u_j⟩ ∈ [0, H] for any two records.
//! Zero-out removes such vectors: ‖C₁u‖² ≤ H·V. In place, steps and keys stay, and the difference
//! of each step is u_i − w_i with ‖u_i − w_i‖² ≤ ‖u_i‖² + ‖w_i‖² ≤ 2H, so ‖C₁(u − w)‖² ≤ 2H·V. For
//! replace-one, with X = C₁ᵀC₁,
//!
//! ```text
//! ‖C₁u − C₁w‖² = ‖C₁u‖² + ‖C₁w‖² − 2 Σ_ij X_ij⟨u_i, w_j⟩ ≤ 2HV + 2k²g·H
//! ```
//!
//! and at most (2√(HV))² by the triangle inequality. In units of its noise the square is
//! e·H·S/(σs)². For the moments it is s₀²/(σs)². These are different coordinates with independent
//! noise, so the squares add up to 1/σ². ∎
//!
//! *The sum is tight* for one strategy without negative overlaps. A pair of records is farthest
//! apart in moments where they are antipodal, or in different keys or epochs, and such records may
//! fall into different bins of every histogram. So no smaller bound holds for both together.
//!
//! The proof uses nothing about the moments but s₀. So it holds for every method, all second
//! moments, missing values (a record without a bin adds less), and bounds by key. If an entity has
//! m records at once, the r-th records of all steps move the release by at most s, so m·s covers
//! all m of them (`operators/src/bound/mod.rs`).
//!
//! *From the matrix to the C that runs.* As for the moments (`mechanism/geometry.rs`): the error of
//! C₁u is at most η√(HV) where records are blanked, η√(2HV) in place, and 2η√(HV) where S ≥ 2V. So
//! (1 + 2η)² covers it.
//!
//! *Rounding of recursive encoders.* With R the bound of an encoder's squared rounding error, v
//! differs in at most 2kH bins, by √R each, in units of 1: like H counts of weight e.
//!
//! # The weight
//! e = w/H, with w = ½ unless a pipeline sets it (`histogram_weight`). The default count weight is
//! c = ½, so a bin of the only histogram then has the noise of the count, and one of H histograms
//! √H times that. With the default weights of JME, s₀² is 4V for replaced and 2V for blanked
//! records, so s grows by √(1 + w/2): by 12 % for w = ½.

/// w, the default weight of the bins of all histograms together.
pub(super) const WEIGHT: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::super::{
        MatrixMechanism, MechanismError, Method, MomentGeometry, MomentMechanism, MomentParameters,
        Strategies,
    };
    use crate::moments::{Bins, Layout, RECORD_BITS, SecondMoment};
    use crate::participation::Participation;
    use crate::sensitivity::Neighbours;
    use crate::strategy::{COEFFICIENT_BITS, ColumnGeometry, Matrix, build};
    use crate::workload::Workload;
    use chacha20::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};
    use std::f64::consts::TAU;
    use std::sync::Arc;

    const EPOCHS: usize = 3;
    const KEYS: usize = 2;
    const SIGMA: f64 = 0.7;
    const ALL: [Neighbours; 3] = [Neighbours::ZeroOut, Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace];

    fn parameters(method: Method, neighbours: Neighbours, layout: Layout) -> MomentParameters {
        MomentParameters {
            method,
            layout,
            neighbours,
            clip_norm: 3.0,
            noise_multiplier: SIGMA,
            second_moment_weight: None,
            count_weight: None,
            bin_weight: None,
        }
    }

    /// H histograms of two bins each.
    fn layout(dimension: usize, second: SecondMoment, histograms: u32) -> Layout {
        let bins = Bins { histograms, number: 2 * histograms };
        Layout { bins, ..Layout::new(dimension, second) }
    }

    /// A record of one or two columns in units of ζ.
    #[derive(Clone, Copy, Debug)]
    struct Record {
        epoch: usize,
        key: usize,
        values: [f64; 2],
        /// Its bin in every histogram.
        bin: Option<usize>,
    }

    /// Weighted coordinates of a record before encoding: c, first and second moments, bins.
    fn weighted(record: &Record, layout: Layout, weights: [f64; 3]) -> Vec<f64> {
        let [count, second, bin] = weights.map(f64::sqrt);
        let mut all = vec![0.0; layout.coordinates()];
        all[0] = count;
        layout.first().zip(record.values).for_each(|(at, value)| all[at] = value);
        let entries = layout.second_entries();
        layout.second().zip(entries).for_each(|(at, (i, j))| {
            let both = if i == j { 1.0 } else { 2_f64.sqrt() };
            all[at] = second * both * record.values[i] * record.values[j];
        });
        let first = layout.bins().start;
        if let Some(own) = record.bin {
            (0..layout.bins.histograms as usize).for_each(|at| all[first + 2 * at + own] = bin);
        }
        all
    }

    /// Squared norm of the encoded difference of two streams of records.
    fn distance(streams: [&[Record]; 2], layout: Layout, weights: [f64; 3], c: &[f64]) -> f64 {
        let width = layout.coordinates();
        let mut difference = vec![0.0; KEYS * EPOCHS * width];
        for (stream, sign) in streams.into_iter().zip([1.0, -1.0]) {
            for record in stream {
                let added = weighted(record, layout, weights);
                for (lag, coefficient) in c.iter().enumerate().take(EPOCHS - record.epoch) {
                    let start = (record.key * EPOCHS + record.epoch + lag) * width;
                    let sums = difference[start..start + width].iter_mut();
                    sums.zip(&added).for_each(|(sum, value)| *sum += sign * coefficient * value);
                }
            }
        }
        difference.iter().map(|value| value * value).sum()
    }

    /// Records at the ends of the ball and inside, in every epoch, key and bin.
    fn candidates(dimension: usize, random: &mut ChaCha8Rng) -> Vec<Record> {
        let mut values = vec![[1.0, 0.0], [-1.0, 0.0], [0.0; 2]];
        if dimension == 2 {
            values.extend([[0.0, 1.0], [0.6, -0.8]]);
            values.extend((0..4).map(|_| {
                let (angle, length): (f64, f64) = (random.random::<f64>() * TAU, random.random());
                [length * angle.cos(), length * angle.sin()]
            }));
        }
        let places = (0..EPOCHS).flat_map(|epoch| (0..KEYS).map(move |key| (epoch, key)));
        let of = |(epoch, key), values: &[[f64; 2]]| {
            let bins = [None, Some(0), Some(1)];
            let all = values.iter().flat_map(|&values| bins.map(|bin| Record { epoch, key, values, bin }));
            all.collect::<Vec<_>>()
        };
        places.flat_map(|place| of(place, &values)).collect()
    }

    fn are_neighbours(neighbours: Neighbours, one: &Record, other: &Record) -> bool {
        let in_place = (one.epoch, one.key) == (other.epoch, other.key);
        neighbours == Neighbours::ReplaceOne || neighbours == Neighbours::ReplaceOneInPlace && in_place
    }

    /// The search for the farthest pair: no pair exceeds the bound, and one attains it to 1e-9.
    #[test]
    fn pairs_of_records_attain_the_joint_bound() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let c: &[f64] = &[1.0, 0.5, 0.375];
        let norm = c.iter().map(|c| c * c).sum::<f64>();
        let geometry = MomentGeometry::shared(ColumnGeometry::exact(norm, 0.0));
        for (dimension, second, histograms, weight) in [
            (1, SecondMoment::Full, 1, None),
            (2, SecondMoment::Full, 1, None),
            (2, SecondMoment::Diagonal, 3, Some(0.2)),
            (2, SecondMoment::Full, 2, Some(5.0)),
            (1, SecondMoment::None, 2, None),
        ] {
            let records = candidates(dimension, &mut random);
            let layout = layout(dimension, second, histograms);
            for neighbours in ALL {
                let parameters =
                    MomentParameters { bin_weight: weight, ..parameters(Method::Jme, neighbours, layout) };
                let claim = parameters.claim(&geometry).unwrap();
                let bin = weight.unwrap_or(super::WEIGHT) / f64::from(histograms);
                let weights = [claim.weights.count, claim.weights.second, bin];
                let far = |streams| distance(streams, layout, weights, c);
                let mut worst = 0.0_f64;
                for one in &records {
                    if neighbours == Neighbours::ZeroOut {
                        worst = worst.max(far([std::slice::from_ref(one), &[]]));
                    }
                    let others = records.iter().filter(|other| are_neighbours(neighbours, one, other));
                    for other in others {
                        worst = worst.max(far([one, other].map(std::slice::from_ref)));
                    }
                }
                let share = worst / claim.squared;
                let case = format!("{dimension} {second:?} {histograms} {neighbours}: {share}");
                assert!((1.0 - 1e-9..=1.0 + 1e-12).contains(&share), "{case}");
            }
        }
    }

    /// Integers of a record as the encoder adds them, with values at an end of the ball.
    fn add(difference: &mut [i128], layout: Layout, record: &Record, sign: i128, c: &[f64]) {
        let (unit, length) = (f64::from(COEFFICIENT_BITS).exp2(), 1_i128 << RECORD_BITS);
        for (lag, coefficient) in c.iter().enumerate().take(EPOCHS - record.epoch) {
            let factor = sign * (coefficient * unit) as i128;
            let start = (record.key * EPOCHS + record.epoch + lag) * layout.coordinates();
            let value = record.values[0] as i128 * length;
            difference[start] += factor;
            difference[start + 1] += factor * value;
            layout.second().for_each(|at| difference[start + at] += factor * value * value);
            let bins = start + layout.bins().start;
            for histogram in 0..layout.bins.histograms as usize {
                record.bin.iter().for_each(|bin| difference[bins + 2 * histogram + bin] += factor);
            }
        }
    }

    /// Entities that take part twice, with `jme`, `ime`, `cs` and `pp`: the noise in use covers all
    /// pairs of streams. With `jme` and `pp`, it is needed where no overlap is negative.
    #[test]
    fn the_noise_covers_entities_that_take_part_twice() {
        let methods = [Method::Jme, Method::Ime { first_moment_share: 0.4 }, Method::Cs, Method::Pp];
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let records: Vec<Record> = candidates(1, &mut random)
            .into_iter()
            .filter(|record| record.bin.is_some() && record.values[0] != 0.0)
            .collect();
        let later = |one: &Record, other: &Record| one.epoch < other.epoch;
        let streams: Vec<[Record; 2]> = records
            .iter()
            .flat_map(|&one| {
                records.iter().filter(move |other| later(&one, other)).map(move |&other| [one, other])
            })
            .collect();
        for (method, neighbours) in methods.into_iter().flat_map(|m| ALL.map(|n| (m, n))) {
            for (c, tight) in [(&[1.0, 0.5, 0.375][..], true), (&[1.0, -0.75], false)] {
                let layout = layout(1, SecondMoment::Full, 2);
                let matrix = Arc::new(Matrix::toeplitz(c.to_vec(), EPOCHS).unwrap());
                let participation: Participation = "2x1+".parse().unwrap();
                let geometry =
                    MomentGeometry::of_matrices(matrix.clone(), matrix, participation, [0.0; 2]).unwrap();
                let parameters = parameters(method, neighbours, layout);
                let mechanism = MomentMechanism::new(parameters, &geometry).unwrap();
                let layout = mechanism.layout();
                let mut worst = 0.0_f64;
                let mut spend = |one: &[Record], other: &[Record]| {
                    let mut difference = vec![0; KEYS * EPOCHS * layout.coordinates()];
                    one.iter().for_each(|record| add(&mut difference, layout, record, 1, c));
                    other.iter().for_each(|record| add(&mut difference, layout, record, -1, c));
                    worst = worst.max(mechanism.concentrated_loss(&difference) * 2.0 * SIGMA * SIGMA);
                };
                for one in &streams {
                    // Counts are public in place, so nothing is blanked there.
                    if neighbours != Neighbours::ReplaceOneInPlace {
                        spend(one, &[]);
                    }
                    let is_one = |pair: (&Record, &Record)| are_neighbours(neighbours, pair.0, pair.1);
                    let others = streams.iter().filter(|other| one.iter().zip(*other).all(is_one));
                    others.for_each(|other| spend(one, other));
                }
                let case = format!("{method} {neighbours} {c:?}: {worst}");
                assert!(worst <= 1.0, "exceeded: {case}");
                let is_joint = matches!(method, Method::Jme | Method::Pp);
                assert!(worst >= 0.99 || !tight || !is_joint, "not tight: {case}");
            }
        }
    }

    #[test]
    fn the_default_weight_raises_the_noise_of_moments_by_an_eighth_at_most() {
        let strategy = build("square-root", &Workload::Prefix, Some(50)).unwrap();
        for (neighbours, histograms) in ALL.into_iter().flat_map(|n| [1, 4].map(|h| (n, h))) {
            let mechanism = |layout| {
                let parameters = parameters(Method::Jme, neighbours, layout);
                let strategies = Strategies::shared(strategy.clone());
                MatrixMechanism::with_participation(parameters, strategies, Participation::Single, 50)
                    .unwrap()
            };
            let layout = layout(2, SecondMoment::Full, histograms);
            let [with, without] = [layout, Layout { bins: Bins::NONE, ..layout }].map(mechanism);
            let ratio = with.moments().sensitivity() / without.moments().sensitivity();
            assert!((ratio - 1.25_f64.sqrt()).abs() < 1e-3, "{neighbours} {histograms}: {ratio}");
            let noise = with.moments().noise();
            let bin = noise[layout.bins().start].standard_deviation();
            if neighbours != Neighbours::ReplaceOneInPlace {
                let count = noise[Layout::COUNT].standard_deviation();
                assert!((bin / count - f64::from(histograms).sqrt()).abs() < 1e-5, "{bin} {count}");
            }
            assert_eq!(noise.len(), layout.coordinates());
        }
    }

    #[test]
    fn a_weight_needs_histograms_and_is_above_zero() {
        let geometry = MomentGeometry::shared(ColumnGeometry::exact(1.0, 0.0));
        let claim = |layout, weight| {
            let parameters = parameters(Method::Jme, Neighbours::ReplaceOne, layout);
            MomentParameters { bin_weight: Some(weight), ..parameters }.claim(&geometry)
        };
        let with = layout(1, SecondMoment::Full, 1);
        assert!(claim(with, 1.0).is_ok());
        assert!(matches!(claim(with, 0.0), Err(MechanismError::OutOfRange(_))));
        let without = Layout::new(1, SecondMoment::Full);
        assert_eq!(claim(without, 1.0), Err(MechanismError::BinWeight { bin_weight: 1.0 }));
    }
}
