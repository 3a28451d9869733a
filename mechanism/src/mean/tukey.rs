//! The private Tukey median: Algorithm 14 of the paper, for one and two columns.
//!
//! The Tukey depth of a point is the least number of records on one side of a line through it. The exponential mechanism
//! draws a point of a grid over [−2R, 2R]^d with probability ∝ exp(ε·depth/2): ε-private, as one replaced record changes a
//! depth by 1 at most (Proposition I.2). No δ, no sensitivity in units of data, and no bound on records is needed.
//!
//! The paper draws from a density. Here the points are a cover of spacing α/2, and the draw is exact: a point is proposed
//! uniformly and accepted with probability exp(−(ε/2)(deepest − depth)), a coin of integers
//! ([`bernoulli`](crate::noise::bernoulli)), ε being a dyadic fraction as every floating-point number is. A record that is not
//! finite is on no side of any line, whatever it replaces: depths change by 1 still.

use super::{Answer, Estimate, MeanError, Method, Part, Question, Scale};
use crate::noise::NoiseGenerator;
use crate::noise::bernoulli::bernoulli_exponential;
use num_bigint::BigUint;

/// Most steps of work: points times records.
const MOST_STEPS: f64 = 2e8;

/// Spacing of the points in scales, as a share of α, where that is not less than [`FINEST`].
const SPACING: f64 = 0.5;
const FINEST: f64 = 0.01;

/// Bits after the point that ε is rounded down to.
const EPSILON_BITS: u32 = 40;

/// A deep point, by the exponential mechanism.
pub(super) fn estimate(
    rows: &[f64],
    columns: usize,
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<Answer, MeanError> {
    let method = Method::Tukey;
    let (Scale::Known(scales), Some(range)) = (&question.scale, question.range) else {
        return Err(MeanError::NoRange { method });
    };
    if columns > 2 {
        return Err(MeanError::TooLarge { method, what: "columns", found: columns as f64, most: 2.0 });
    }
    let spacing = (question.corruption * SPACING).max(FINEST);
    let side = (4.0 * range / spacing).ceil() + 1.0;
    let steps = side.powi(columns as i32) * rows.len() as f64;
    if steps.is_nan() || steps > MOST_STEPS {
        return Err(MeanError::TooLarge {
            method,
            what: "points times values",
            found: steps,
            most: MOST_STEPS,
        });
    }
    let points = Points { side: side as usize, columns, range, spacing };
    let scaled: Vec<f64> =
        rows.chunks_exact(columns).flat_map(|row| row.iter().zip(scales).map(|(x, s)| x / s)).collect();
    let depths = points.depths(&scaled);
    let place = draw(&depths, question.epsilon.value(), rng);
    let mean = points.place(place).iter().zip(scales).map(|(value, scale)| value * scale).collect();
    let part =
        Part { step: "median", releases: 1, squared_mu: 0.0, epsilon: question.epsilon.value(), delta: 0.0 };
    let noise = scales.iter().map(|scale| scale * spacing).collect();
    let outcome = Ok(Estimate { mean, noise, kept: None, converged: true });
    Ok(Answer { method, outcome, parts: vec![part], spent: question.epsilon.value() })
}

/// A place with probability ∝ exp(ε·depth/2).
fn draw(depths: &[u64], epsilon: f64, rng: &mut NoiseGenerator) -> usize {
    let deepest = depths.iter().copied().max().unwrap_or(0);
    let units = BigUint::from((epsilon * 2_f64.powi(EPSILON_BITS as i32)).floor() as u128);
    let denominator = BigUint::from(1u64) << (EPSILON_BITS + 1);
    loop {
        let place = crate::noise::laplace::uniform_below(depths.len() as u128, rng) as usize;
        if bernoulli_exponential(&(&units * (deepest - depths[place])), &denominator, rng) {
            return place;
        }
    }
}

/// A grid over [−2R, 2R]^d.
struct Points {
    side: usize,
    columns: usize,
    range: f64,
    spacing: f64,
}

impl Points {
    fn coordinate(&self, step: usize) -> f64 {
        (step as f64 * self.spacing - 2.0 * self.range).min(2.0 * self.range)
    }

    fn place(&self, mut place: usize) -> Vec<f64> {
        (0..self.columns)
            .map(|_| {
                let step = place % self.side;
                place /= self.side;
                self.coordinate(step)
            })
            .collect()
    }

    fn depths(&self, rows: &[f64]) -> Vec<u64> {
        (0..self.side.pow(self.columns as u32)).map(|place| depth(rows, &self.place(place))).collect()
    }
}

/// The least number of records in a closed half space that the point bounds.
fn depth(rows: &[f64], point: &[f64]) -> u64 {
    match *point {
        [at] => {
            let above = rows.iter().filter(|&&x| x >= at).count();
            let below = rows.iter().filter(|&&x| x <= at).count();
            above.min(below) as u64
        }
        [x, y] => planar_depth(rows, (x, y)),
        _ => 0,
    }
}

/// In two columns: records at the point are on both sides of every line; of the others, a closed half plane that turns around the
/// point holds least just when it begins past a record, so the angles' order decides.
fn planar_depth(rows: &[f64], (x, y): (f64, f64)) -> u64 {
    use std::f64::consts::{PI, TAU};
    let mut at_point = 0;
    let mut angles = Vec::with_capacity(rows.len() / 2);
    for row in rows.chunks_exact(2) {
        let (dx, dy) = (row[0] - x, row[1] - y);
        if dx == 0.0 && dy == 0.0 {
            at_point += 1;
        } else if dx.is_finite() && dy.is_finite() {
            angles.push(dy.atan2(dx).rem_euclid(TAU));
        }
    }
    angles.sort_by(f64::total_cmp);
    let count = angles.len();
    // The open half plane of angles in (a, a + π) for a just after each record, and just before: the complement of a closed one.
    let most_open = (0..count)
        .map(|first| {
            let end = angles[first] + PI;
            let beyond = angles.partition_point(|&angle| angle < end);
            let wrapped = angles.partition_point(|&angle| angle < end - TAU);
            if end > TAU { count - first + wrapped } else { beyond - first }
        })
        .max()
        .unwrap_or(0);
    (at_point + count - most_open.min(count)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::{Delta, Epsilon};
    use crate::noise::NoiseSource;

    #[test]
    fn depths_are_right() {
        let row = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!([0.0, 1.0, 3.0, 4.5].map(|at| depth(&row, &[at])), [0, 1, 3, 1]);
        let square = [1.0, 1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0];
        assert_eq!(depth(&square, &[0.0, 0.0]), 2);
        assert_eq!(depth(&square, &[0.3, 0.1]), 1);
        assert_eq!(depth(&square, &[1.0, 1.0]), 1);
        assert_eq!(depth(&square, &[2.0, 0.0]), 0);
    }

    /// A replaced record changes no depth by more than 1, wherever it goes.
    #[test]
    fn depth_has_sensitivity_one() {
        let wave = |i: usize| ((i * i) as f64 * 0.37).sin() * 3.0;
        let rows: Vec<f64> = (0..60).map(wave).collect();
        let points = Points { side: 9, columns: 2, range: 2.0, spacing: 1.0 };
        let before = points.depths(&rows);
        for (place, new) in [(0, [9.0, -9.0]), (20, [0.0, 0.0]), (29, [f64::NAN, 1.0])] {
            let mut replaced = rows.clone();
            replaced[2 * place..2 * place + 2].copy_from_slice(&new);
            let after = points.depths(&replaced);
            assert!(before.iter().zip(&after).all(|(a, b)| a.abs_diff(*b) <= 1), "{place}");
        }
    }

    #[test]
    fn the_median_is_found_among_corrupted_records() {
        let rows: Vec<f64> =
            (0..400).map(|i| if i < 40 { 50.0 } else { 1.0 + f64::from(i % 20) / 10.0 - 0.95 }).collect();
        let question = Question {
            method: Method::Tukey,
            epsilon: Epsilon::new(1.0).unwrap(),
            delta: Delta::new(1e-6).unwrap(),
            corruption: 0.1,
            scale: Scale::Known(vec![1.0]),
            range: Some(3.0),
        };
        let answer =
            estimate(&rows, 1, &question, &mut NoiseSource::Seeded(1).generator(0, 0).unwrap()).unwrap();
        let mean = answer.outcome.unwrap().mean[0];
        assert!((mean - 1.0).abs() < 0.4, "{mean}");
        assert_eq!(answer.parts[0].epsilon, answer.spent);
    }
}
