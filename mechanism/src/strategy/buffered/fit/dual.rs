//! Numbers with their derivatives: forward differentiation.

use std::ops::{Add, Div, Mul, Neg, Sub};

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
    fn derivatives_are_those_of_differences() {
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
