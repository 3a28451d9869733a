//! Minimises a smooth function of a few variables: BFGS with the weak Wolfe conditions (Nocedal and
//! Wright, Numerical Optimization, chapters 3 and 6).
//!
//! Implemented here because it is short, fits have at most a few hundred variables, and plain loops
//! give the same digits on every machine.
//!
//! # Dual numbers
//! Numbers with their derivatives: forward differentiation.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// Sufficient decrease, and curvature.
const WOLFE: [f64; 2] = [1e-4, 0.9];

/// Longest first step in any variable.
const FIRST_STEP: f64 = 0.5;

#[derive(Clone, Debug)]
pub(super) struct DescentPoint {
    pub(super) variables: Vec<f64>,
    pub(super) value: f64,
    gradient: Vec<f64>,
}

/// A function to minimise: returns its value and its gradient.
pub(super) type Function<'a> = dyn Fn(&[f64]) -> (f64, Vec<f64>) + 'a;

/// Descends from `start` until a step gains less than `tolerance`, or for `steps` steps. Values
/// that are not finite count as infinite.
pub(super) fn minimize(function: &Function<'_>, start: &[f64], steps: usize, tolerance: f64) -> DescentPoint {
    Descent::patient(0).run(function, start, steps, tolerance)
}

/// A descent that can continue with a similar function.
#[derive(Clone, Debug)]
pub(super) struct Descent {
    /// Estimate of the inverse Hessian; empty before the first step.
    inverse: Vec<Vec<f64>>,
    /// Number of steps in a row that may gain less than the tolerance before the last.
    patience: usize,
}

impl Descent {
    /// Allows that number of steps in a row to gain less than the tolerance.
    pub(super) fn patient(patience: usize) -> Self {
        Self { inverse: Vec::new(), patience }
    }

    /// As [`minimize`], with the curvature that earlier runs have estimated.
    pub(super) fn run(
        &mut self,
        function: &Function<'_>,
        start: &[f64],
        steps: usize,
        tolerance: f64,
    ) -> DescentPoint {
        let mut point = evaluate(function, start.to_vec());
        let unknown = self.inverse.is_empty();
        if unknown {
            self.inverse = identity(start.len());
        }
        let mut idle = 0;
        for step in 0..steps {
            let mut direction: Vec<f64> = self.inverse.iter().map(|row| -dot(row, &point.gradient)).collect();
            let longest = direction.iter().fold(FIRST_STEP, |longest, d| longest.max(d.abs()));
            if step == 0 && (unknown || longest > FIRST_STEP) {
                direction.iter_mut().for_each(|d| *d *= FIRST_STEP / longest);
            }
            let Some(next) = search(function, &point, &direction) else { break };
            update(&mut self.inverse, &point, &next, unknown && step == 0);
            idle = if point.value - next.value <= tolerance { idle + 1 } else { 0 };
            point = next;
            if idle > self.patience {
                break;
            }
        }
        point
    }
}

fn evaluate(function: &Function<'_>, variables: Vec<f64>) -> DescentPoint {
    let (value, gradient) = function(&variables);
    let finite = value.is_finite() && gradient.iter().all(|slope| slope.is_finite());
    DescentPoint { variables, value: if finite { value } else { f64::INFINITY }, gradient }
}

/// Returns a point along the direction that satisfies the Wolfe conditions, or at least lies lower;
/// `None` if none is found.
fn search(function: &Function<'_>, from: &DescentPoint, direction: &[f64]) -> Option<DescentPoint> {
    let slope = dot(&from.gradient, direction);
    let (mut low, mut high, mut length) = (0.0, f64::INFINITY, 1.0);
    let mut best = None;
    for _ in 0..40 {
        let variables = from.variables.iter().zip(direction).map(|(x, d)| x + length * d).collect();
        let point = evaluate(function, variables);
        if point.value.is_infinite() || point.value > from.value + WOLFE[0] * length * slope {
            high = length;
        } else {
            low = length;
            let flat = dot(&point.gradient, direction) >= WOLFE[1] * slope;
            best = Some(point);
            if flat {
                break;
            }
        }
        length = if high.is_finite() { 0.5 * (low + high) } else { 2.0 * low };
    }
    best.filter(|point| point.value < from.value)
}

/// BFGS update of the inverse Hessian.
fn update(inverse: &mut [Vec<f64>], from: &DescentPoint, to: &DescentPoint, first: bool) {
    let difference = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>();
    let step = difference(&to.variables, &from.variables);
    let change = difference(&to.gradient, &from.gradient);
    let curvature = dot(&step, &change);
    if curvature <= 0.0 {
        return;
    }
    if first {
        let scale = curvature / dot(&change, &change);
        inverse.iter_mut().flatten().for_each(|entry| *entry *= scale);
    }
    let applied: Vec<f64> = inverse.iter().map(|row| dot(row, &change)).collect();
    let factor = (1.0 + dot(&change, &applied) / curvature) / curvature;
    for (i, row) in inverse.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            *entry += factor * step[i] * step[j] - (applied[i] * step[j] + step[i] * applied[j]) / curvature;
        }
    }
}

fn identity(size: usize) -> Vec<Vec<f64>> {
    (0..size).map(|i| (0..size).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A value and its derivatives by N variables.
#[derive(Clone, Copy, Debug)]
pub(super) struct DualNumber<const N: usize> {
    pub(super) value: f64,
    pub(super) slopes: [f64; N],
}

impl<const N: usize> DualNumber<N> {
    pub(super) fn constant(value: f64) -> Self {
        Self { value, slopes: [0.0; N] }
    }

    pub(super) fn variable(value: f64, index: usize) -> Self {
        Self { value, slopes: std::array::from_fn(|j| if j == index { 1.0 } else { 0.0 }) }
    }

    /// A function of this number with this value and this derivative.
    pub(super) fn map(self, value: f64, derivative: f64) -> Self {
        Self { value, slopes: self.slopes.map(|slope| slope * derivative) }
    }

    pub(super) fn exp(self) -> Self {
        let value = libm::exp(self.value);
        self.map(value, value)
    }

    pub(super) fn log(self) -> Self {
        self.map(libm::log(self.value), 1.0 / self.value)
    }

    /// A function of several numbers with this value and these derivatives.
    pub(super) fn compose(value: f64, parts: impl IntoIterator<Item = (Self, f64)>) -> Self {
        let zero = Self::constant(value);
        parts.into_iter().fold(zero, |sum, (part, derivative)| Self {
            value,
            slopes: (sum + part.map(0.0, derivative)).slopes,
        })
    }

    fn zip(self, other: Self, value: f64, slope: impl Fn(f64, f64) -> f64) -> Self {
        Self { value, slopes: std::array::from_fn(|j| slope(self.slopes[j], other.slopes[j])) }
    }
}

impl<const N: usize> Add for DualNumber<N> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, self.value + other.value, |a, b| a + b)
    }
}

impl<const N: usize> Sub for DualNumber<N> {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, self.value - other.value, |a, b| a - b)
    }
}

impl<const N: usize> Mul for DualNumber<N> {
    type Output = Self;

    #[expect(clippy::suspicious_arithmetic_impl, reason = "the product rule has a sum")]
    fn mul(self, other: Self) -> Self {
        self.zip(other, self.value * other.value, |a, b| a * other.value + self.value * b)
    }
}

impl<const N: usize> Div for DualNumber<N> {
    type Output = Self;

    #[expect(clippy::suspicious_arithmetic_impl, reason = "the quotient rule has a difference")]
    fn div(self, other: Self) -> Self {
        let quotient = self.value / other.value;
        self.zip(other, quotient, |a, b| (a - quotient * b) / other.value)
    }
}

impl<const N: usize> Neg for DualNumber<N> {
    type Output = Self;

    fn neg(self) -> Self {
        self.map(-self.value, -1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_reaches_the_minimum_of_rosenbrock() {
        let function = |x: &[f64]| {
            let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
            (a * a + 100.0 * b * b, vec![-2.0 * a - 400.0 * x[0] * b, 200.0 * b])
        };
        let found = minimize(&function, &[-1.2, 1.0], 200, 1e-30);
        assert!(found.value < 1e-20, "{found:?}");
    }

    #[test]
    fn edges_of_the_domain_are_respected() {
        let function = |x: &[f64]| (x[0] - libm::log(x[0]), vec![1.0 - 1.0 / x[0]]);
        let found = minimize(&function, &[50.0], 200, 1e-16);
        assert!((found.variables[0] - 1.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn derivatives_agree_with_differences() {
        let value =
            |x: DualNumber<2>, y: DualNumber<2>| (x * y - y / x + (-x).exp() * (y + x).log()) / (y * y);
        let at = |x, y| value(DualNumber::constant(x), DualNumber::constant(y)).value;
        let found = value(DualNumber::variable(0.7, 0), DualNumber::variable(1.3, 1));
        let step = 1e-6;
        let by_x = (at(0.7 + step, 1.3) - at(0.7 - step, 1.3)) / (2.0 * step);
        let by_y = (at(0.7, 1.3 + step) - at(0.7, 1.3 - step)) / (2.0 * step);
        assert!((found.slopes[0] - by_x).abs() < 1e-8 && (found.slopes[1] - by_y).abs() < 1e-8);
        let composed = DualNumber::compose(5.0, [(found, 2.0), (DualNumber::variable(0.0, 1), 3.0)]);
        assert_eq!((composed.value, composed.slopes[1]), (5.0, 2.0 * found.slopes[1] + 3.0));
    }
}
