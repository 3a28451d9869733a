//! The estimator by resilience: Algorithm 2 of the paper, for one column of a handful of records.
//!
//! Of subsets S′ of n′ = ⌈(1−2α)n⌉ records, the goodness R is the least distance that leaving out a share α can move the
//! mean by. If R, made private, is as small as the promised distribution's, then the trimmed mean of the table has small
//! sensitivity, and the exponential mechanism draws a point near it.
//!
//! Here S′ ranges over the runs of the sorted records, where the paper has all subsets: R is no less then, and the proof below asks
//! of S′ only that it exists. What is left out of a run to move its mean furthest is its lowest or highest, so R takes O(n²). In more
//! columns both minima range over all subsets and directions, and the condition on n leaves no table that is small enough to
//! enumerate: refused.
//!
//! # Privacy, proved anew
//! D = 2r bounds the distance of two records of the interval, n′ ≥ 1.
//! - **R** moves by at most D/n′: to each run there is one of the neighbour that differs in one record at most, and a replaced record of S′ moves μ(S′) by at most D/n′, and μ(T) − μ(S′) by at most that
//!   whether it is in T or not (the paper has D/n; S′ is smaller). It gets Laplace noise of that over ε/2.
//! - **The trimmed mean** of what is left without the k = ⌈3αn⌉ lowest and highest. Let R ≤ b. S′ has at least αn records among the
//!   k highest, whose mean exceeds μ(S′) by at most b(2−α)/α (Lemma H.1), so their least does, and so does the least of *all* k highest;
//!   likewise below. (With m = ⌊αn′⌋ left out, b(n′−m)/m is what holds exactly, and what is used.) So whatever a replaced record does, one value of the middle moves within an interval of 2b(2−α)/α: the trimmed mean
//!   moves by at most 2b(2−α)/(α(n − 2k)). The paper has n for n − 2k.
//! - **The draw** is by the exponential mechanism with ε/2 in all. The paper's density e^(−εnd/(24√log)) spends ε on
//!   it alone, beside ε/3 for each of two other steps: 5/3 ε in all.
//! - **If R > b** for both of two neighbours (else the sensitivity holds for the pair), each is refused but for a probability
//!   below δ/12: R̂ plus a margin must stay below b, and the margin is the (1 − δ/12)-quantile of the noise.
//! - **The interval** is public (R of the question): no budget goes to a range.

use super::{Answer, Estimate, MeanError, Method, Part, Question, Refusal, Scale};
use crate::noise::bernoulli::bernoulli_exponential;
use crate::noise::{DiscreteLaplace, NoiseGenerator};
use num_bigint::BigUint;

/// Most records: windows times what is left out of them.
const MOST_RECORDS: usize = 20_000;

/// Values are rounded to this many parts of the interval's half.
const GRID: f64 = (1u64 << 40) as f64;

/// Points that are drawn from.
const POINTS: usize = 4001;

/// More grid units than rounding of values, means and goodness can add to a difference.
const ROUNDING: f64 = 32.0;

/// Accepted goodness over α√ln(1/α): the 3 of Lemma H.11.
const GOODNESS: f64 = 3.0;

/// A point near the trimmed mean.
pub(super) fn estimate(
    rows: &[f64],
    columns: usize,
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<Answer, MeanError> {
    let method = Method::Resilience;
    let too_large = |what, found: usize, most: usize| MeanError::TooLarge {
        method,
        what,
        found: found as f64,
        most: most as f64,
    };
    let (Scale::Known(scales), Some(range)) = (&question.scale, question.range) else {
        return Err(MeanError::NoRange { method });
    };
    if columns > 1 {
        return Err(too_large("columns", columns, 1));
    }
    if rows.len() > MOST_RECORDS {
        return Err(too_large("records", rows.len(), MOST_RECORDS));
    }
    let alpha = question.corruption;
    let trimmed = Trimmed::new(rows.len(), alpha).ok_or(MeanError::Corruption(alpha))?;
    let values = on_grid(rows, scales[0], range);
    let half = question.epsilon.value() / 2.0;
    let bound = GOODNESS * alpha * (1.0 / alpha).ln().sqrt();
    let to_grid = GRID / (2.0 * range);
    // The interval [−2R, 2R] has 2·GRID grid units.
    let moved = 2.0 * GRID / trimmed.subset as f64 + ROUNDING;
    let laplace = DiscreteLaplace::at_least(moved / half).map_err(|_| MeanError::Noise)?;
    let margin = laplace.scale() as f64 * (6.0 / question.delta.value()).ln() + moved;
    if margin > bound * to_grid / 2.0 {
        let share = margin / (bound * to_grid / 2.0);
        let needed = (rows.len() as f64 * share).ceil().min(9e18) as usize;
        return Err(MeanError::TooFew { rows: rows.len(), noise: share, needed });
    }
    let noisy = trimmed.goodness(&values).saturating_add(laplace.sample(rng)) as f64;
    let parts = vec![
        Part { step: "goodness", releases: 1, squared_mu: 0.0, epsilon: half, delta: question.delta.value() },
        Part { step: "draw", releases: 1, squared_mu: 0.0, epsilon: half, delta: 0.0 },
    ];
    let spent = question.epsilon.value();
    if noisy + margin > bound * to_grid {
        return Ok(Answer { method, outcome: Err(Refusal::NotResilient), parts, spent });
    }
    let sensitivity = 2.0 * bound * to_grid * trimmed.spread() / trimmed.middle as f64 + ROUNDING;
    let found = draw(trimmed.mean(&values), sensitivity, half, rng);
    let mean = vec![found / to_grid * scales[0]];
    let noise = vec![sensitivity / half / to_grid * scales[0]];
    Ok(Answer { method, outcome: Ok(Estimate { mean, noise, kept: None, converged: true }), parts, spent })
}

/// Sorted, in units of 2R/2⁴⁰ scales, within ±2⁴⁰; what is not a number is 0.
fn on_grid(rows: &[f64], scale: f64, range: f64) -> Vec<i128> {
    let unit = GRID / (2.0 * range);
    let place = |value: &f64| {
        let scaled = (value / scale * unit).clamp(-GRID, GRID).round();
        if scaled.is_nan() { 0 } else { scaled as i128 }
    };
    let mut values: Vec<i128> = rows.iter().map(place).collect();
    values.sort_unstable();
    values
}

/// A point of an even grid over the interval, with probability ∝ exp(−ε·distance/(2·sensitivity)): exactly, for ε/(2·sensitivity) rounded
/// down to a dyadic fraction.
fn draw(mean: i128, sensitivity: f64, epsilon: f64, rng: &mut NoiseGenerator) -> f64 {
    let step = 2.0 * GRID / (POINTS - 1) as f64;
    let point = |place: usize| ((place as f64 * step).floor() - GRID) as i128;
    let distances: Vec<u128> = (0..POINTS).map(|place| point(place).abs_diff(mean)).collect();
    let least = distances.iter().copied().min().unwrap_or(0);
    let units = BigUint::from((epsilon / (2.0 * sensitivity) * 2_f64.powi(100)).floor() as u128);
    let denominator = BigUint::from(1u32) << 100;
    loop {
        let place = crate::noise::laplace::uniform_below(POINTS as u128, rng) as usize;
        if bernoulli_exponential(&(&units * (distances[place] - least)), &denominator, rng) {
            return point(place) as f64;
        }
    }
}

/// Sizes of the sets.
struct Trimmed {
    /// n′.
    subset: usize,
    /// What is left out of S′.
    left_out: usize,
    /// k.
    tail: usize,
    /// n − 2k.
    middle: usize,
}

impl Trimmed {
    /// None where nothing is left in the middle, or nothing may be left out.
    fn new(records: usize, alpha: f64) -> Option<Self> {
        let of = |share: f64| (share * records as f64).ceil() as usize;
        let (subset, tail) = (of(1.0 - 2.0 * alpha), of(3.0 * alpha));
        let left_out = (alpha * subset as f64).floor() as usize;
        let middle = records.checked_sub(2 * tail).filter(|middle| *middle > 0)?;
        (left_out > 0).then_some(Self { subset, left_out, tail, middle })
    }

    /// How many times R a mean of `left_out` records of S′ can be from all of S′: (n′ − m)/m.
    fn spread(&self) -> f64 {
        (self.subset - self.left_out) as f64 / self.left_out as f64
    }

    /// R, in grid units, rounded up.
    fn goodness(&self, sorted: &[i128]) -> i128 {
        let sum = |values: &[i128]| values.iter().sum::<i128>();
        let rest = (self.subset - self.left_out) as f64;
        let moved = |window: &[i128]| {
            let whole = sum(window);
            let mean = whole as f64 / self.subset as f64;
            let low = (whole - sum(&window[..self.left_out])) as f64 / rest - mean;
            let high = mean - (whole - sum(&window[self.subset - self.left_out..])) as f64 / rest;
            low.max(high).ceil() as i128
        };
        sorted.windows(self.subset).map(moved).min().unwrap_or(i128::MAX / 2)
    }

    /// The mean of the middle, in grid units.
    fn mean(&self, sorted: &[i128]) -> i128 {
        sorted[self.tail..self.tail + self.middle].iter().sum::<i128>() / self.middle as i128
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::{Delta, Epsilon};
    use crate::noise::NoiseSource;

    fn values(seed: i128, count: i128) -> Vec<i128> {
        let mut values: Vec<i128> =
            (0..count).map(|i| ((i * i + 3) * (seed + 1) * 7919) % 100_003 - 50_000).collect();
        values.sort_unstable();
        values
    }

    /// A replaced record moves R by at most D/n′, and the trimmed mean by what R allows, wherever it goes.
    #[test]
    fn sensitivities_hold() {
        let trimmed = Trimmed { subset: 24, left_out: 3, tail: 9, middle: 12 };
        for seed in 0..40 {
            let before = values(seed, 30);
            let bound = trimmed.goodness(&before);
            for (place, new) in [(0, 50_000), (29, -50_000), (15, 50_000), (7, 0)] {
                let mut after = before.clone();
                after[place] = new;
                after.sort_unstable();
                let moved = (trimmed.goodness(&after) - bound).abs();
                assert!(moved <= 100_003 / 24 + 2, "{seed}: {moved}");
                let moved = (trimmed.mean(&after) - trimmed.mean(&before)).abs() as f64;
                assert!(moved <= 2.0 * bound as f64 * trimmed.spread() / 12.0 + ROUNDING, "{seed}: {moved}");
            }
        }
    }

    #[test]
    fn goodness_is_that_of_the_best_run() {
        let trimmed = Trimmed { subset: 4, left_out: 1, tail: 1, middle: 3 };
        // Without its highest or lowest, 1 2 3 4 is ½ off.
        assert_eq!(trimmed.goodness(&[10, 20, 30, 40, 900]), 5);
    }

    #[test]
    fn corrupted_records_do_not_move_it() {
        let rows: Vec<f64> = (0..4000)
            .map(|i| if i % 20 == 0 { 9.0 } else { f64::from((i * 7919) % 1000) / 500.0 - 1.0 })
            .collect();
        let question = Question {
            method: Method::Resilience,
            epsilon: Epsilon::new(3.0).unwrap(),
            delta: Delta::new(1e-3).unwrap(),
            corruption: 0.05,
            scale: Scale::Known(vec![1.0]),
            range: Some(3.0),
        };
        let answer =
            estimate(&rows, 1, &question, &mut NoiseSource::Seeded(1).generator(0, 0).unwrap()).unwrap();
        let mean = answer.outcome.unwrap().mean[0];
        assert!(mean.abs() < 0.3, "{mean}");
        assert!(answer.spent <= 3.0);
    }
}
