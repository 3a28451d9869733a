//! Attacks on [`joint_participation`](super::joint_participation) and [`batch`](super::batch) by
//! gradient ascent.
//!
//! The attack starts from random and from likely records, and varies all records of one entity in
//! two neighbouring streams of two keys. The streams are encoded and compared entry by entry. False
//! alarms are impossible: every distance it finds exists. The seeds are fixed.

use super::{
    BatchQuery, ClaimKind, MomentStrategies, MomentWeights, Neighbours, SensitivityClaim, TrainingBatch,
    batch_participation_sensitivity, joint_participation_sensitivity,
};
use crate::strategy::participation::{SCHEMAS, attained, strategies};
use crate::{moments::SecondMoment, participation::Participation, strategy::Matrix};
use chacha20::ChaCha8Rng;
use nalgebra::{DMatrix, DVector};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal, Uniform};

const KEYS: usize = 2;
const STEPS: usize = 5;

/// A record, or the mean or sum of a batch, that only one stream has: the first (sign 1) or the
/// second (sign −1).
#[derive(Clone, Debug)]
struct StreamRecord {
    key: usize,
    step: usize,
    sign: f64,
    x: DVector<f64>,
}

/// The release whose two streams are compared.
struct ReleaseMatrices {
    first: DMatrix<f64>,
    second: DMatrix<f64>,
    weights: MomentWeights,
    moment: SecondMoment,
}

fn written_out(matrix: &Matrix) -> DMatrix<f64> {
    let unit = |i| (0..matrix.columns()).map(|j| f64::from(u8::from(i == j))).collect::<Vec<_>>();
    let columns: Vec<f64> = (0..matrix.columns()).flat_map(|i| matrix.product(&unit(i))).collect();
    DMatrix::from_vec(matrix.rows(), matrix.columns(), columns)
}

impl ReleaseMatrices {
    fn second_moments(&self, x: &DVector<f64>) -> DVector<f64> {
        match self.moment {
            SecondMoment::Full => DVector::from_column_slice((x * x.transpose()).as_slice()),
            SecondMoment::Diagonal => x.component_mul(x),
            SecondMoment::None => DVector::zeros(0),
        }
    }

    /// Returns the derivative of `⟨weight, second_moments(x)⟩`.
    fn pulled_back(&self, weight: &DVector<f64>, x: &DVector<f64>) -> DVector<f64> {
        match self.moment {
            SecondMoment::Full => {
                let weight = DMatrix::from_column_slice(x.len(), x.len(), weight.as_slice());
                (&weight + weight.transpose()) * x
            }
            SecondMoment::Diagonal => weight.component_mul(x) * 2.0,
            SecondMoment::None => x * 0.0,
        }
    }

    /// Returns the squared distance of the releases, and half its gradient by every record.
    fn distance(&self, records: &[StreamRecord]) -> (f64, Vec<DVector<f64>>) {
        let dimension = records[0].x.len();
        let width = self.second_moments(&records[0].x).len();
        let mut gradient = vec![DVector::zeros(dimension); records.len()];
        let mut squared = 0.0;
        for key in 0..KEYS {
            let steps = self.first.ncols();
            let (mut first, mut second) =
                (DMatrix::zeros(steps, 1 + dimension), DMatrix::zeros(steps, width));
            for one in records.iter().filter(|one| one.key == key) {
                first[(one.step, 0)] += one.sign * self.weights.count.sqrt();
                let mut row = first.view_mut((one.step, 1), (1, dimension));
                row += one.x.transpose() * one.sign;
                let mut row = second.row_mut(one.step);
                row += self.second_moments(&one.x).transpose() * one.sign;
            }
            let (first, second) = (&self.first * first, &self.second * second);
            squared += first.norm_squared() + self.weights.second * second.norm_squared();
            let (first, second) = (self.first.tr_mul(&first), self.second.tr_mul(&second));
            for (one, gradient) in records.iter().zip(&mut gradient).filter(|(one, _)| one.key == key) {
                let linear = first.row(one.step).columns(1, dimension).transpose();
                let quadratic = self.pulled_back(&second.row(one.step).transpose(), &one.x);
                *gradient = (linear + quadratic * self.weights.second) * one.sign;
            }
        }
        (squared, gradient)
    }

    /// Climbs over single records of the entity.
    fn climb_records(&self, mut records: Vec<StreamRecord>) -> f64 {
        self.climb(|release, step| {
            let (squared, gradient) = release.distance(&records);
            records.iter_mut().zip(gradient).for_each(|(one, pull)| one.x = moved(&one.x, &pull, step, 1.0));
            squared
        })
    }

    /// Climbs over batches. At each step there are the sum of the other records, of norm at most
    /// `others`, the entity's record, and its replacement, if any.
    fn climb_batches(
        &self,
        mut batches: Vec<[DVector<f64>; 3]>,
        steps: &[usize],
        batch: TrainingBatch,
        replaced: bool,
    ) -> f64 {
        let others = (batch.size - 1) as f64;
        let divisor = if batch.query == BatchQuery::SquareOfSum { 1.0 } else { (others + 1.0).recip() };
        let right_counts = if replaced { 1.0 } else { 0.0 };
        self.climb(|release, step| {
            let pairs = batches.iter().zip(steps).flat_map(|([rest, left, right], &step)| {
                let record = |sign, x: DVector<f64>| StreamRecord { key: 0, step, sign, x: x * divisor };
                [record(1.0, rest + left), record(-1.0, rest + right * right_counts)]
            });
            let (squared, gradient) = release.distance(&pairs.collect::<Vec<_>>());
            for ([rest, left, right], pull) in batches.iter_mut().zip(gradient.chunks(2)) {
                *rest = moved(rest, &(&pull[0] + &pull[1]), step * others, others);
                *left = moved(left, &pull[0], step, 1.0);
                *right = moved(right, &pull[1], step, 1.0);
            }
            squared
        })
    }

    /// Returns the largest distance on a walk with ever smaller steps.
    fn climb(&self, mut walk: impl FnMut(&Self, f64) -> f64) -> f64 {
        (0..20).map(|turn| walk(self, 0.7_f64.powi(turn))).fold(0.0, f64::max)
    }
}

fn moved(x: &DVector<f64>, pull: &DVector<f64>, step: f64, longest: f64) -> DVector<f64> {
    let x = x + pull * (step / pull.norm().max(1e-12));
    let norm = x.norm();
    // Stays slightly inside the ball, so that rounding does not lengthen the record.
    if norm > longest { x * (longest / (norm * (1.0 + 1e-15))) } else { x }
}

fn random_record(dimension: usize, random: &mut ChaCha8Rng) -> DVector<f64> {
    let x = DVector::from_fn(dimension, |_, _| StandardNormal.sample(random));
    moved(&x, &DVector::zeros(dimension), 0.0, 1.0)
}

fn below(end: usize, random: &mut ChaCha8Rng) -> usize {
    Uniform::new(0, end).unwrap().sample(random)
}

/// Returns two records that are far apart: opposite, or (for heavy second moments) not quite.
fn pair(dimension: usize, opposite: bool) -> [DVector<f64>; 2] {
    let [x, y] = match (opposite, dimension) {
        (true, _) => [[1.0, 0.0], [-1.0, 0.0]],
        (false, 1) => [[1.0, 0.0], [-0.7, 0.0]],
        (false, _) => [[0.9, 0.43], [-0.43, -0.9]],
    };
    [x, y].map(|record| DVector::from_fn(dimension, |i, _| record.get(i).copied().unwrap_or(0.0)))
}

/// The cells of one entity in one stream, the signs that its contributions should have there, and
/// the cells it may have in the other stream.
struct EntityCells<'a> {
    pattern: &'a [usize],
    signs: &'a [f64],
    other: &'a [usize],
}

/// Returns the records of one stream. `of` gives the key and the record at each index of the
/// pattern.
fn records_at(
    steps: &[usize],
    sign: f64,
    mut of: impl FnMut(usize) -> (usize, DVector<f64>),
) -> Vec<StreamRecord> {
    let record = |(position, &step): (usize, &usize)| {
        let (key, x) = of(position);
        StreamRecord { key, step, sign, x }
    };
    steps.iter().enumerate().map(record).collect()
}

/// Returns streams that differ in one entity. The first turns start as in the proofs: equal records
/// that vanish (turn 0), records replaced in place by others far away (turns 0 and 1), or records
/// replaced by the same ones of another key (turn 2).
fn neighbouring(
    neighbours: Neighbours,
    dimension: usize,
    cells: &EntityCells<'_>,
    turn: usize,
    random: &mut ChaCha8Rng,
) -> Vec<StreamRecord> {
    let EntityCells { pattern, signs, other } = *cells;
    let [axis, _] = pair(dimension, true);
    let likely = pair(dimension, turn == 0);
    let side =
        |position: usize, side: usize| likely[if signs[position] < 0.0 { 1 - side } else { side }].clone();
    let anywhere = |random: &mut ChaCha8Rng| (below(KEYS, random), random_record(dimension, random));
    let [left, right] = match (turn, neighbours) {
        (0, Neighbours::ZeroOut) => [records_at(pattern, 1.0, |_| (0, axis.clone())), vec![]],
        (_, Neighbours::ZeroOut) => [records_at(pattern, 1.0, |_| anywhere(random)), vec![]],
        (2, Neighbours::ReplaceOne) => {
            [(1.0, 0), (-1.0, 1)].map(|(sign, key)| records_at(pattern, sign, |_| (key, axis.clone())))
        }
        (0 | 1, _) => [(1.0, 0), (-1.0, 1)]
            .map(|(sign, of)| records_at(pattern, sign, |position| (0, side(position, of)))),
        (_, Neighbours::ReplaceOneInPlace) => {
            [1.0, -1.0].map(|sign| records_at(pattern, sign, |_| (0, random_record(dimension, random))))
        }
        _ => {
            [(pattern, 1.0), (other, -1.0)].map(|(steps, sign)| records_at(steps, sign, |_| anywhere(random)))
        }
    };
    [left, right].concat()
}

/// Checks that no distance exceeds the claim, and that claims called exact are attained.
fn judge(claim: SensitivityClaim, largest: f64, case: &dyn Fn() -> String) {
    assert!(largest <= claim.squared * (1.0 + 1e-12), "exceeded: {largest} of {claim:?}, {}", case());
    let reached = largest >= claim.squared * 0.99;
    assert!(reached || claim.kind != ClaimKind::Exact, "not reached: {largest} of {claim:?}, {}", case());
}

const ALL: [Neighbours; 3] = [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut];

/// Returns all patterns with signs for each. Where C has a witness, the signs are those that attain
/// its sensitivity.
fn patterns(schema: &str, matrix: &Matrix) -> Vec<(Vec<usize>, Vec<f64>)> {
    let schedule = schema.parse::<Participation>().unwrap().on(matrix.columns());
    let witness = attained(matrix, schedule, false).unwrap().witness.unwrap_or_default();
    let sign = |step: &usize| witness.iter().find(|(other, _)| other == step).map_or(1.0, |&(_, sign)| sign);
    let patterns = schedule.patterns(schedule.first_steps(), 1000).unwrap();
    patterns.into_iter().map(|pattern| (pattern.clone(), pattern.iter().map(sign).collect())).collect()
}

/// Checks the claims of these strategies for all neighbours and schemas. Returns the number of
/// exact claims.
fn check(
    strategies: MomentStrategies<'_>,
    [first, second]: [&Matrix; 2],
    dimension: usize,
    moment: SecondMoment,
) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut exact = 0;
    for (neighbours, schema) in
        ALL.into_iter().flat_map(|neighbours| SCHEMAS.map(|schema| (neighbours, schema)))
    {
        for (nu, count) in [(0.5, 0.5), (1.3, 0.1), (6.0, 1.0)] {
            let count = if neighbours.counts_are_public() { 0.0 } else { count };
            let weights = MomentWeights { second: nu, count };
            let participation = schema.parse().unwrap();
            let claim =
                joint_participation_sensitivity(neighbours, dimension, strategies, participation, weights)
                    .unwrap();
            let release =
                ReleaseMatrices { first: written_out(first), second: written_out(second), weights, moment };
            let patterns = patterns(schema, first);
            let mut largest = 0.0_f64;
            for ((pattern, signs), turn) in
                patterns.iter().flat_map(|one| (0..4).map(move |turn| (one, turn)))
            {
                let other = &patterns[below(patterns.len(), &mut random)].0;
                let places = EntityCells { pattern, signs, other };
                let start = neighbouring(neighbours, dimension, &places, turn, &mut random);
                largest = largest.max(release.climb_records(start));
            }
            exact += usize::from(claim.kind == ClaimKind::Exact);
            judge(claim, largest, &|| {
                format!("{neighbours} {schema} {weights:?} {dimension} {first:?} {second:?}")
            });
        }
    }
    exact
}

const KINDS: [(usize, SecondMoment); 3] =
    [(1, SecondMoment::Full), (2, SecondMoment::Full), (3, SecondMoment::Diagonal)];

#[test]
fn no_attack_exceeds_the_claims_for_one_strategy() {
    let strategies = strategies(STEPS);
    let checked = strategies.iter().flat_map(|matrix| KINDS.map(|kind| (matrix, kind)));
    let exact: usize = checked
        .map(|(matrix, (dimension, moment))| {
            check(MomentStrategies::shared(matrix), [matrix; 2], dimension, moment)
        })
        .sum();
    assert!(exact > 500, "{exact}");
}

/// Cases in which diagonal moments point further away from each other than full ones can: the
/// records of one entity become their opposites in the same key, at other steps. The kernel is then
/// below the least of full moments.
#[test]
fn opposite_records_with_diagonal_moments_stay_within_the_claims() {
    let weights = MomentWeights { second: 0.5, count: 0.5 };
    let neighbours = Neighbours::ReplaceOne;
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut below_full = 0;
    for dimension in [2, 4] {
        let even = DVector::from_element(dimension, (dimension as f64).sqrt().recip());
        // ⟨x∘x, y∘y⟩ is 1/d for y = −x, while ⟨x,y⟩² is 1.
        let kernel = weights.count - 1.0 + weights.second / dimension as f64;
        assert!(kernel <= -0.25, "the least of full moments is 0");
        for matrix in &strategies(STEPS) {
            let (release, claims) = (
                ReleaseMatrices {
                    first: written_out(matrix),
                    second: written_out(matrix),
                    weights,
                    moment: SecondMoment::Diagonal,
                },
                MomentStrategies::shared(matrix),
            );
            for schema in SCHEMAS {
                let participation = schema.parse().unwrap();
                let claim =
                    joint_participation_sensitivity(neighbours, dimension, claims, participation, weights)
                        .unwrap();
                let patterns = patterns(schema, matrix);
                let mut largest = 0.0_f64;
                for (left, _) in &patterns {
                    let (right, _) = &patterns[below(patterns.len(), &mut random)];
                    for right in [left, right] {
                        // Flipping the signs of single coordinates, or of whole records, leaves x∘x
                        // unchanged.
                        let flips = DVector::from_fn(dimension, |_, _| {
                            f64::from(below(2, &mut random) as u8) * 2.0 - 1.0
                        });
                        for x in [even.clone(), even.component_mul(&flips)] {
                            let start = [
                                records_at(left, 1.0, |_| (0, x.clone())),
                                records_at(right, -1.0, |_| (0, -x.clone())),
                            ];
                            let (distance, _) = release.distance(&start.concat());
                            largest = largest.max(distance).max(release.climb_records(start.concat()));
                        }
                    }
                }
                assert!(
                    largest <= claim.squared * (1.0 + 1e-12),
                    "{largest} of {claim:?}, {schema} {matrix:?}"
                );
                below_full += usize::from(largest > 0.5 * claim.squared);
            }
        }
    }
    assert!(below_full > 20, "the attack comes near the claims: {below_full}");
}

#[test]
fn no_attack_exceeds_the_claims_for_two_strategies() {
    let strategies = strategies(STEPS);
    let pairs = [(1, 0), (0, 1), (5, 6), (7, 2), (3, 1), (8, 9), (4, 5)];
    let mut exact = 0;
    for ((one, two), (dimension, moment)) in pairs.into_iter().flat_map(|pair| KINDS.map(|kind| (pair, kind)))
    {
        let both = [&strategies[one], &strategies[two]];
        exact += check(MomentStrategies::separate(both[0], both[1]).unwrap(), both, dimension, moment);
    }
    assert!(exact > 50, "{exact}");
}

#[test]
fn no_attack_exceeds_the_claims_for_batches() {
    let strategies = strategies(STEPS);
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut exact = 0;
    let queries = [BatchQuery::SquareOfMean, BatchQuery::SquareOfSum];
    for ((one, two), query) in [(0, 0), (1, 1), (1, 0), (7, 7), (5, 6)]
        .into_iter()
        .flat_map(|pair| queries.map(|query| (pair, query)))
    {
        let (first, second) = (&strategies[one], &strategies[two]);
        let together = MomentStrategies::separate(first, second).unwrap();
        for (neighbours, schema) in
            ALL[1..].iter().flat_map(|&neighbours| SCHEMAS.map(|schema| (neighbours, schema)))
        {
            for (size, nu, (dimension, moment)) in
                [(2, 0.5, KINDS[0]), (3, 2.0, KINDS[1]), (16, 0.3, KINDS[2])]
            {
                let (batch, participation) = (TrainingBatch { query, size }, schema.parse().unwrap());
                let claim = batch_participation_sensitivity(
                    batch,
                    neighbours,
                    dimension,
                    together,
                    participation,
                    nu,
                )
                .unwrap();
                let weights = MomentWeights { second: nu, count: 0.0 };
                let release = ReleaseMatrices {
                    first: written_out(first),
                    second: written_out(second),
                    weights,
                    moment,
                };
                let mut largest = 0.0_f64;
                for ((pattern, signs), turn) in
                    patterns(schema, first).iter().flat_map(|one| (0..4).map(move |turn| (one, turn)))
                {
                    let start = signs.iter().map(|&sign| {
                        let [one, opposite] = pair(dimension, true);
                        let [left, right] = if sign < 0.0 { [&opposite, &one] } else { [&one, &opposite] };
                        if turn == 0 {
                            [&one * (size - 1) as f64, left.clone(), right.clone()]
                        } else {
                            [(); 3].map(|()| random_record(dimension, &mut random))
                        }
                    });
                    let replaced = neighbours == Neighbours::ReplaceOneInPlace;
                    largest = largest.max(release.climb_batches(start.collect(), pattern, batch, replaced));
                }
                exact += usize::from(claim.kind == ClaimKind::Exact);
                judge(claim, largest, &|| {
                    format!("{batch:?} {neighbours} {schema} {nu} {dimension} {first:?} {second:?}")
                });
            }
        }
    }
    assert!(exact > 100, "{exact}");
}
