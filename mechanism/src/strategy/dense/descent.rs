//! Limited-memory descent (L-BFGS; Nocedal and Wright, Numerical Optimization, 2006, algorithms 7.4
//! and 7.5), for smooth functions of many variables. Plain loops visit the same points on every
//! machine if the function returns the same values.

use std::collections::VecDeque;

const MEMORY: usize = 20;

/// The descent stops when a quadratic model predicts no larger gain than this.
const TOLERANCE: f64 = 1e-13;

/// Least gain of a step, as a share of what the slope predicts.
const SUFFICIENT: f64 = 1e-4;

const HALVINGS: usize = 40;

/// A step and the change of the gradient along it.
type CurvaturePair = (Vec<f64>, Vec<f64>);

/// Descends from `start` until no gain is predicted, no step gains anything, or `iterations` are
/// done. `evaluate` returns the value and the gradient.
pub(super) fn descend(
    start: Vec<f64>,
    iterations: usize,
    mut evaluate: impl FnMut(&[f64]) -> (f64, Vec<f64>),
) -> Vec<f64> {
    let (mut point, mut memory) = (start, VecDeque::new());
    let (mut value, mut gradient) = evaluate(&point);
    for _ in 0..iterations {
        let direction = direction(&memory, &gradient);
        let slope = dot(&direction, &gradient);
        if slope.is_nan() || -slope <= 2.0 * TOLERANCE {
            return point;
        }
        let mut candidates = (0..HALVINGS).map(|halving| {
            let length = 0.5f64.powi(halving as i32);
            let candidate: Vec<f64> = point.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            let (value, gradient) = evaluate(&candidate);
            (length, candidate, value, gradient)
        });
        let gains = |(length, _, found, _): &(f64, Vec<f64>, f64, Vec<f64>)| {
            *found <= value + SUFFICIENT * length * slope
        };
        let Some((_, next, next_value, next_gradient)) = candidates.find(gains) else {
            return point;
        };
        remember(&mut memory, difference(&next, &point), difference(&next_gradient, &gradient));
        (point, value, gradient) = (next, next_value, next_gradient);
    }
    point
}

/// Skips pairs along which the gradient does not grow: they would spoil the model.
fn remember(memory: &mut VecDeque<CurvaturePair>, step: Vec<f64>, change: Vec<f64>) {
    if dot(&step, &change) > f64::EPSILON * dot(&change, &change) {
        memory.push_front((step, change));
        memory.truncate(MEMORY);
    }
}

/// Minus the gradient times the approximate inverse Hessian from memory.
fn direction(memory: &VecDeque<CurvaturePair>, gradient: &[f64]) -> Vec<f64> {
    let mut direction: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(memory.len());
    for (step, change) in memory {
        let weight = dot(step, &direction) / dot(step, change);
        add(&mut direction, -weight, change);
        weights.push(weight);
    }
    let scale = memory.front().map_or_else(
        || 1.0 / dot(gradient, gradient).sqrt().max(1.0),
        |(step, change)| dot(step, change) / dot(change, change),
    );
    direction.iter_mut().for_each(|d| *d *= scale);
    for ((step, change), weight) in memory.iter().zip(weights).rev() {
        let correction = weight - dot(change, &direction) / dot(step, change);
        add(&mut direction, correction, step);
    }
    direction
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], factor: f64, terms: &[f64]) {
    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += factor * term);
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curved_valley_is_followed_to_its_end() {
        let valley = |x: &[f64]| {
            let mut gradient = vec![0.0; x.len()];
            let mut value = 0.0;
            for i in 0..x.len() - 1 {
                let (bend, rest) = (x[i + 1] - x[i] * x[i], 1.0 - x[i]);
                value += 100.0 * bend * bend + rest * rest;
                gradient[i] -= 400.0 * x[i] * bend + 2.0 * rest;
                gradient[i + 1] += 200.0 * bend;
            }
            (value, gradient)
        };
        let end = descend(vec![-1.2; 30], 500, valley);
        assert!(end.iter().all(|x| (x - 1.0).abs() < 1e-5), "{end:?}");
    }

    #[test]
    fn a_descent_that_is_cut_gives_what_it_has() {
        let square = |x: &[f64]| (x[0] * x[0], vec![2.0 * x[0]]);
        assert_eq!(descend(vec![3.0], 0, square), [3.0]);
        assert_eq!(descend(vec![0.0], 9, square), [0.0]);
    }
}
