//! The resilience estimator: Algorithm 2 of the paper, for up to four columns.
//!
//! Of subsets S′ of n′ = ⌈(1−2α)n⌉ records, the goodness R is the least distance by which leaving
//! out a share α can move the mean. If the private R is as small as the promised distribution's,
//! trimmed means have small sensitivity along every direction. Then the exponential mechanism draws
//! a point that is near all of them.
//!
//! # What is enumerated
//! The paper's minimum is over all subsets and its distances are over all directions, which is
//! infeasible (`docs/mean.md`). Public families replace both:
//! - **directions**: {−1, 0, 1}^d, one of each pair ±v, normalised. A distance along them is at
//!   least 0.92, 0.88 and 0.86 of the Euclidean one in 2, 3 and 4 columns;
//! - **subsets**: the n′ records nearest to c, for each point c of a net over [−R, R]^d. One of
//!   these points is near the mean, and the records near the mean exclude the corruption that
//!   matters.
//!
//! This R is at least the paper's, and the proof below only needs some S′. Time is exponential
//! only in the number of columns.
//!
//! # Privacy, with our own proof
//! Along each direction, records are projected and rounded to integers of an interval of length D.
//! n′ ≥ 1.
//! - **R** moves by at most D/n′. For every c, the n′ nearest in both tables, by distance and
//!   position, differ in at most one record. A replaced record of S′ moves μ(S′) by at most D/n′
//!   along any direction, and μ(T) − μ(S′) by at most that whether it is in T or not. Maxima over T
//!   and directions, and minima over c, move by no more. R gets Laplace noise of that over ε/2.
//! - **The trimmed mean** along a direction is the mean without the k = ⌈3αn⌉ lowest and highest.
//!   Let R ≤ b. S′ has at least αn records among the k highest. Their mean exceeds μ(S′) by at most
//!   b(2−α)/α (Lemma H.1), so their least does, and so does the least of *all* k highest; likewise
//!   below. (With m = ⌊αn′⌋ left out, b(n′−m)/m holds exactly, and the code uses it.) So a replaced
//!   record moves one value of the middle within an interval of 2b(2−α)/α, and the trimmed mean by
//!   at most 2b(2−α)/(α(n − 2k)), along every direction with the same S′.
//! - **The draw** is by the exponential mechanism with ε/2 in all, over a public net. The score is
//!   the largest distance from a trimmed mean along any direction, a maximum of numbers with this
//!   sensitivity.
//! - **If R > b** for both of two neighbours (else the sensitivity holds for the pair), each is
//!   refused except with probability below δ/12: R̂ plus a margin must stay below b, and the margin
//!   is the (1 − δ/12)-quantile of the noise.
//! - **The interval** is public (R of the question), so no budget goes to a range. If no interval
//!   is known, `located` finds one first.
//!
//! # Public points
//! Public points from which a mean is drawn or searched: an even grid over a cube.
//!
//! A draw from finitely many data-independent points is exact and needs no bound on records.

use super::release::in_parallel;
use super::{MeanAnswer, MeanError, MeanEstimate, MeanRefusal, Question, StepCost};
use hushflow_mechanism::accounting::Epsilon;
use hushflow_mechanism::noise::selection::ExponentialMechanism;
use hushflow_mechanism::noise::{DiscreteLaplace, NoiseGenerator};

/// Maximum number of columns: directions are 3^d.
const MAX_COLUMNS: usize = 4;

/// Maximum work: centres times directions times records.
const MAX_STEPS: f64 = 1e9;

/// Grid units of half the interval.
const GRID: f64 = (1u64 << 40) as f64;

/// Points per axis of the net for the draw, for each number of columns.
const POINTS: [usize; MAX_COLUMNS] = [4001, 401, 61, 25];

/// Spacing of the centres of subsets, in scales.
const CENTRES: f64 = 0.5;

/// Exceeds the grid units that rounding of values, means and goodness can add to a difference.
const ROUNDING: f64 = 32.0;

/// Accepted goodness over α√ln(1/α): the 3 of Lemma H.11.
const GOODNESS: f64 = 3.0;

pub(super) fn estimate(
    rows: &[f64],
    (scales, range): (&[f64], f64),
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let ResilienceCheck { centres, trimmed, half, to_grid, bound, laplace, margin } =
        check(rows.len() / scales.len(), scales, &Question { range: Some(range), ..question.clone() })?;
    let table = DirectionValues::new(rows, scales, to_grid);
    let noisy = trimmed.goodness(&table, &centres).saturating_add(laplace.sample(rng)) as f64;
    let part = |step, delta| StepCost { step, releases: 1, squared_mu: 0.0, epsilon: half.value(), delta };
    let parts = vec![part("goodness", question.delta.value()), part("draw", 0.0)];
    let (method, spent) = (question.method, question.epsilon.value());
    if noisy + margin > bound {
        return Ok(MeanAnswer { method, outcome: Err(MeanRefusal::NotResilient), parts, spent });
    }
    let sensitivity = 2.0 * bound * trimmed.spread() / trimmed.middle as f64 + ROUNDING;
    let selection =
        ExponentialMechanism::pure(half, sensitivity.ceil() as i128).map_err(|_| MeanError::Noise)?;
    let net = Net { side: POINTS[scales.len() - 1], dimension: scales.len(), half_width: range };
    let scores = table.scores(&trimmed, &net, to_grid);
    let mean = net.draw(&selection, &scores, scales, rng)?;
    // The deviation of a two-sided exponential of this weight, and of rounding to the net.
    let deviation = (2_f64.sqrt() / selection.weight() / to_grid).hypot(net.spacing() / 12_f64.sqrt());
    let noise = scales.iter().map(|scale| scale * deviation).collect();
    Ok(MeanAnswer {
        method,
        outcome: Ok(MeanEstimate { mean, noise, kept: None, converged: true }),
        parts,
        spent,
    })
}

pub(super) struct ResilienceCheck {
    centres: Net,
    trimmed: TrimSizes,
    half: Epsilon,
    /// Grid units of a scale: the interval of length D is 2·GRID units.
    to_grid: f64,
    bound: f64,
    laplace: DiscreteLaplace,
    margin: f64,
}

pub(super) fn check(
    records: usize,
    scales: &[f64],
    question: &Question,
) -> Result<ResilienceCheck, MeanError> {
    let (alpha, method) = (question.corruption, question.method);
    let range = question.range.ok_or(MeanError::NoRange { method })?;
    let centres = centres(records, scales.len(), range, question)?;
    let trimmed =
        TrimSizes::new(records, alpha).ok_or(MeanError::Trimmed { corruption: alpha, rows: records })?;
    let half = Epsilon::new(question.epsilon.value() / 2.0)?;
    let to_grid = GRID / reach(range, scales.len());
    let bound = GOODNESS * alpha * (1.0 / alpha).ln().sqrt() * to_grid;
    let moved = 2.0 * GRID / trimmed.subset as f64 + ROUNDING;
    let laplace = DiscreteLaplace::at_least(moved / half.value()).map_err(|_| MeanError::Noise)?;
    let margin = laplace.scale() as f64 * (6.0 / question.delta.value()).ln() + moved;
    if margin > bound / 2.0 {
        let share = margin / (bound / 2.0);
        let needed = (records as f64 * share).ceil().min(9e18) as usize;
        return Err(MeanError::TooFew { rows: records, noise: share, needed });
    }
    Ok(ResilienceCheck { centres, trimmed, half, to_grid, bound, laplace, margin })
}

/// Half the length of the interval of projected records, in scales: means are within R√d of 0 along
/// any direction.
fn reach(range: f64, dimension: usize) -> f64 {
    range * (1.0 + (dimension as f64).sqrt())
}

/// Returns the centres of subsets, or refuses if there are too many to enumerate.
fn centres(records: usize, dimension: usize, range: f64, question: &Question) -> Result<Net, MeanError> {
    let too_large =
        |what, found: f64, most: f64| MeanError::TooLarge { method: question.method, what, found, most };
    if dimension > MAX_COLUMNS {
        return Err(too_large("columns", dimension as f64, MAX_COLUMNS as f64));
    }
    let side = Net::side_of(range, CENTRES);
    let most = (MAX_STEPS / (side.powi(dimension as i32) * 3_f64.powi(dimension as i32))).floor();
    if records as f64 > most {
        return Err(too_large("records for this range", records as f64, most));
    }
    Ok(Net { side: side as usize, dimension, half_width: range })
}

/// Directions: one of each pair ±v of {−1, 0, 1}^d, normalised.
fn directions(dimension: usize) -> Vec<Vec<f64>> {
    let signs = |index: usize| -> Vec<f64> {
        let steps = std::iter::successors(Some(index), |rest| Some(rest / 3));
        steps.take(dimension).map(|rest| (rest % 3) as f64 - 1.0).collect()
    };
    let leads = |direction: &Vec<f64>| direction.iter().find(|x| **x != 0.0) == Some(&1.0);
    let normalised = |direction: Vec<f64>| {
        let norm = along(&direction, &direction).sqrt();
        direction.iter().map(|x| x / norm).collect()
    };
    (0..3usize.pow(dimension as u32)).map(signs).filter(leads).map(normalised).collect()
}

fn along(direction: &[f64], point: &[f64]) -> f64 {
    direction.iter().zip(point).map(|(a, b)| a * b).sum()
}

/// Rounds a value to grid units within the interval; NaN becomes 0.
fn on_grid(value: f64, to_grid: f64) -> i128 {
    (value * to_grid).clamp(-GRID, GRID).round() as i128
}

struct DirectionValues {
    dimension: usize,
    /// A record that is not finite is at 0.
    scaled: Vec<f64>,
    directions: Vec<Vec<f64>>,
    /// In grid units, a column of all records for each direction.
    values: Vec<Vec<i128>>,
}

impl DirectionValues {
    fn new(rows: &[f64], scales: &[f64], to_grid: f64) -> Self {
        let dimension = scales.len();
        let scaled: Vec<f64> = rows
            .chunks_exact(dimension)
            .flat_map(|row| {
                let usable = row.iter().all(|value| value.is_finite());
                row.iter().zip(scales).map(move |(value, scale)| if usable { value / scale } else { 0.0 })
            })
            .collect();
        let directions = directions(dimension);
        let column = |direction: &Vec<f64>| {
            let records = scaled.chunks_exact(dimension);
            records.map(|record| on_grid(along(direction, record), to_grid)).collect()
        };
        let values = directions.iter().map(column).collect();
        Self { dimension, scaled, directions, values }
    }

    /// Positions of the `count` records nearest to a point; of equally near ones the first.
    fn nearest(&self, point: &[f64], count: usize) -> Vec<usize> {
        let distance = |record: &[f64]| record.iter().zip(point).map(|(x, c)| (x - c).powi(2)).sum::<f64>();
        let distances: Vec<f64> = self.scaled.chunks_exact(self.dimension).map(distance).collect();
        let mut places: Vec<usize> = (0..distances.len()).collect();
        if count < places.len() {
            places.select_nth_unstable_by(count, |&a, &b| {
                distances[a].total_cmp(&distances[b]).then(a.cmp(&b))
            });
            places.truncate(count);
        }
        places
    }

    /// Returns, for every point of a net, the negated largest distance from a trimmed mean over
    /// directions.
    fn scores(&self, trimmed: &TrimSizes, net: &Net, to_grid: f64) -> Vec<i128> {
        let means: Vec<i128> = self.values.iter().map(|values| trimmed.mean(values.clone())).collect();
        let score = |index: usize| {
            let point = net.point(index);
            let aligned = self.directions.iter().zip(&means);
            let off = |(direction, mean): (&Vec<f64>, &i128)| {
                (on_grid(along(direction, &point), to_grid) - mean).abs()
            };
            -aligned.map(off).max().unwrap_or(0)
        };
        (0..net.len()).map(score).collect()
    }
}

struct TrimSizes {
    /// n′.
    subset: usize,
    /// Number of records left out of S′.
    left_out: usize,
    /// k.
    tail: usize,
    /// n − 2k.
    middle: usize,
}

impl TrimSizes {
    /// `None` if the middle is empty, or if no record may be left out.
    fn new(records: usize, alpha: f64) -> Option<Self> {
        let rounded_share = |share: f64| (share * records as f64).ceil() as usize;
        let (subset, tail) = (rounded_share(1.0 - 2.0 * alpha), rounded_share(3.0 * alpha));
        let left_out = (alpha * subset as f64).floor() as usize;
        let middle = records.checked_sub(2 * tail).filter(|middle| *middle > 0)?;
        (left_out > 0).then_some(Self { subset, left_out, tail, middle })
    }

    /// Factor of R that bounds the distance between a mean of `left_out` records of S′ and that of
    /// all of S′: (n′ − m)/m.
    fn spread(&self) -> f64 {
        (self.subset - self.left_out) as f64 / self.left_out as f64
    }

    /// R, in grid units, rounded up.
    fn goodness(&self, table: &DirectionValues, centres: &Net) -> i128 {
        let places: Vec<usize> = (0..centres.len()).collect();
        let of_centre = |&index: &usize| {
            let subset = table.nearest(&centres.point(index), self.subset);
            let along = |values: &Vec<i128>| self.moved(subset.iter().map(|&index| values[index]).collect());
            table.values.iter().map(along).max().unwrap_or(i128::MAX / 2)
        };
        in_parallel(&places, of_centre).into_iter().min().unwrap_or(i128::MAX / 2)
    }

    /// Largest change of the mean of S′ by leaving out m values: the lowest, or the highest.
    fn moved(&self, mut values: Vec<i128>) -> i128 {
        let (left_out, rest) = (self.left_out, (self.subset - self.left_out) as f64);
        let whole = values.iter().sum::<i128>();
        let mean = whole as f64 / self.subset as f64;
        values.select_nth_unstable(left_out - 1);
        let low = (whole - values[..left_out].iter().sum::<i128>()) as f64 / rest - mean;
        values.select_nth_unstable(self.subset - left_out);
        let high = mean - (whole - values[self.subset - left_out..].iter().sum::<i128>()) as f64 / rest;
        low.max(high).ceil() as i128
    }

    /// Mean of the middle values, in grid units.
    fn mean(&self, mut values: Vec<i128>) -> i128 {
        values.sort_unstable();
        values[self.tail..self.tail + self.middle].iter().sum::<i128>() / self.middle as i128
    }
}

/// A grid over [−h, h]^d.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    /// Number of points per axis, at least 2.
    pub(super) side: usize,
    /// d.
    pub(super) dimension: usize,
    /// h.
    pub(super) half_width: f64,
}

impl Net {
    /// Number of points per axis that are at most `spacing` apart.
    pub(super) fn side_of(half_width: f64, spacing: f64) -> f64 {
        (2.0 * half_width / spacing).ceil().max(1.0) + 1.0
    }

    pub(super) fn len(&self) -> usize {
        self.side.pow(self.dimension as u32)
    }

    pub(super) fn spacing(&self) -> f64 {
        2.0 * self.half_width / (self.side - 1) as f64
    }

    /// Draws a point by the scores of all points and returns it in the units of the scales.
    pub(super) fn draw(
        &self,
        selection: &ExponentialMechanism,
        scores: &[i128],
        scales: &[f64],
        rng: &mut NoiseGenerator,
    ) -> Result<Vec<f64>, MeanError> {
        let index = selection.select(scores, rng).map_err(|_| MeanError::Noise)?;
        Ok(self.point(index).iter().zip(scales).map(|(value, scale)| value * scale).collect())
    }

    /// Returns the point with this index; the first coordinate changes fastest.
    pub(super) fn point(&self, index: usize) -> Vec<f64> {
        let steps = std::iter::successors(Some(index), |rest| Some(rest / self.side));
        let coordinate = |rest: usize| (rest % self.side) as f64 * self.spacing() - self.half_width;
        steps.take(self.dimension).map(coordinate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MeanMethod, Scale, estimate};
    use super::*;
    use hushflow_mechanism::accounting::Delta;
    use hushflow_mechanism::noise::NoiseSource;

    fn rows(seed: usize, count: usize) -> Vec<f64> {
        (0..count).map(|i| (((i * i + 3) * (seed + 1) * 7919) % 100_003) as f64 / 50_001.5 - 1.0).collect()
    }

    /// A replaced record moves R by at most D/n′, and trimmed means by at most their bound for R.
    #[test]
    fn sensitivities_hold() {
        let trimmed = TrimSizes { subset: 24, left_out: 3, tail: 9, middle: 12 };
        for (seed, dimension) in (0..24).flat_map(|seed| [1, 2, 3].map(|dimension| (seed, dimension))) {
            let before = rows(seed, 30 * dimension);
            let to_grid = GRID / reach(1.0, dimension);
            let net = Net { side: 3, dimension, half_width: 1.0 };
            let table = |rows: &[f64]| DirectionValues::new(rows, &vec![1.0; dimension], to_grid);
            let (one, bound) = (table(&before), trimmed.goodness(&table(&before), &net));
            for (index, new) in [(0, 9.0), (29, -9.0), (15, 1.0), (7, 0.0), (3, f64::NAN)] {
                let mut after = before.clone();
                after[index * dimension..(index + 1) * dimension].fill(new);
                let other = table(&after);
                let moved = (trimmed.goodness(&other, &net) - bound).abs() as f64;
                assert!(moved <= 2.0 * GRID / 24.0 + ROUNDING, "{seed} {dimension}: {moved}");
                let least = bound.min(trimmed.goodness(&other, &net)) as f64;
                let allowed = 2.0 * least * trimmed.spread() / 12.0 + ROUNDING;
                for (a, b) in one.values.iter().zip(&other.values) {
                    let moved = (trimmed.mean(a.clone()) - trimmed.mean(b.clone())).abs() as f64;
                    assert!(moved <= allowed, "{seed} {dimension}: {moved}");
                }
                let draw = Net { side: 5, dimension, half_width: 1.0 };
                let scores = [&one, &other].map(|table| table.scores(&trimmed, &draw, to_grid));
                let moved = scores[0].iter().zip(&scores[1]).map(|(a, b)| (a - b).abs()).max();
                assert!(moved.is_some_and(|moved| moved as f64 <= allowed), "{seed} {dimension}: {moved:?}");
            }
        }
    }

    #[test]
    fn goodness_is_that_of_the_best_subset() {
        let trimmed = TrimSizes { subset: 4, left_out: 1, tail: 1, middle: 3 };
        // Without its highest or lowest, 1 2 3 4 is ½ off: the records nearest to 2.5.
        let table = DirectionValues::new(&[1.0, 2.0, 3.0, 4.0, 90.0], &[1.0], GRID / 10.0);
        let net = Net { side: 3, dimension: 1, half_width: 2.5 };
        let found = trimmed.goodness(&table, &net) as f64;
        assert!((found / (GRID / 10.0) - 0.5).abs() < 1e-9, "{found}");
    }

    #[test]
    fn directions_are_even() {
        assert_eq!([1, 2, 3, 4].map(|dimension| directions(dimension).len()), [1, 4, 13, 40]);
        assert!(directions(3).iter().all(|v| (along(v, v) - 1.0).abs() < 1e-12));
    }

    #[test]
    fn corrupted_records_do_not_move_the_estimate() {
        for (columns, count, epsilon, most) in
            [(1, 4000, 3.0, 0.1), (2, 4000, 4.0, 0.15), (3, 5000, 4.0, 0.2)]
        {
            let value = |index: usize| {
                let (record, column) = (index / columns, index % columns);
                let spread = record * [7919, 104_729, 1_299_709][column] % 1000;
                if record % 20 == 0 { 9.0 } else { spread as f64 / 500.0 - 0.5 }
            };
            let rows: Vec<f64> = (0..count * columns).map(value).collect();
            let question = Question {
                method: MeanMethod::Resilience,
                epsilon: Epsilon::new(epsilon).expect("an epsilon"),
                delta: Delta::new(1e-3).expect("a delta"),
                corruption: 0.05,
                scale: Scale::Known(vec![1.0; columns]),
                range: Some(2.0),
            };
            let mut rng = NoiseSource::Seeded(1).generator(0, 0).unwrap();
            let answer = estimate(&rows, columns, &question, &mut rng).unwrap();
            let mean = answer.outcome.unwrap().mean;
            assert!(mean.iter().all(|mean| (mean - 0.5).abs() < most), "{columns}: {mean:?}");
            assert!(answer.spent <= epsilon);
            let far = Question { range: Some(1e4), ..question.clone() };
            let refused = estimate(&rows, columns, &far, &mut rng).unwrap_err().to_string();
            assert!(refused.contains("too few") || refused.contains("exponential time"), "{refused}");
        }
    }

    #[test]
    fn points_are_those_of_a_grid() {
        let net = Net { side: Net::side_of(2.0, 1.1) as usize, dimension: 2, half_width: 2.0 };
        assert_eq!((net.len(), net.spacing()), (25, 1.0));
        assert_eq!(
            [0, 1, 5, 24].map(|index| net.point(index)),
            [[-2.0, -2.0], [-1.0, -2.0], [-2.0, -1.0], [2.0, 2.0]]
        );
        assert_eq!(Net::side_of(1.0, 9.0), 2.0);
    }
}
