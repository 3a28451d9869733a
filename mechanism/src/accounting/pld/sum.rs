//! Hockey-stick divergences of sums of independent losses, by Fourier transforms of tilted masses.
//!
//! Let part i have masses w_i(l), k_i times. For any tilt θ ≥ 0 and numbers c_i let `t_i(l) =
//! w_i(l) e^(θl − c_i)`, and let t be the convolution of all k_i copies of all t_i. Then
//!
//! ```text
//! Σ_(l > ε) w(l) (1 − e^(ε−l)) = e^(Σ k_i c_i − θε) Σ_(l > ε) t(l) g(l − ε),
//!     g(u) = e^(−θu) − e^(−(θ+1)u) ≤ θ^θ/(1+θ)^(1+θ).
//! ```
//!
//! With c_i = ln Σ w_i(l) e^(θl) the t_i are probabilities, and errors are relative to the Chernoff
//! bound of δ instead of to 1. There are bounds of three errors, with u = 2⁻⁵³.
//!
//! **Aliasing.** A cyclic convolution of n values adds to each value of a window those that are a
//! multiple of n·step away. So it is too large by the mass outside the window, and the window lacks
//! that mass. With K(s) the sum of k_i ln Σ t_i(l) e^(sl), Chernoff's bound e^(K(s) − s·end) for
//! both ends, times max g, bounds both errors.
//!
//! **Transforms.** A Fourier transform of n values has an error of at most F = 64u log₂ n of its
//! result, both in the Euclidean norm (`series::fourier` has 8u (log₂ n + 1)). With φ_i the
//! transform of t_i, |φ_i| ≤ Σ t_i ≈ 1, the error of Π φ_i^(k_i) is at most `Σ k_i (F‖φ_i‖ +
//! 3u‖φ‖)` times the growth Π max(Σ t_i + F√n‖t_i‖, 1)^(k_i) (a complex product has a relative
//! error below 3u: Brent, Percival & Zimmermann 2007). The inverse divides norms by √n and adds F
//! of its result. By Cauchy and Schwarz the sum above is off by that norm times ‖g‖, where ‖g‖² ≤
//! max g² + ∫g²/step = max g² + 1/(2θ(2θ+1)(θ+1)·step).
//!
//! **Rounding of positive terms.** Every t_i(l) has a relative error of a few times u(1 + |θl −
//! c|), so t has k_i times that. Sums of positive terms have a relative error of u for each term.

use super::PrivacyLossDistribution;
use crate::series::fourier::RealTransform;
use nalgebra::Complex;

/// Bound of the relative error of a transform for each binary digit of its length: 64u.
pub(super) const TRANSFORM: f64 = 32.0 * f64::EPSILON;

/// Bound of the relative error of a complex product.
pub(super) const PRODUCT: f64 = 1.5 * f64::EPSILON;

/// Largest number of values of a transform.
const MAX_LENGTH: usize = 1 << 22;

/// Initial length of the window in standard deviations of the sum.
const DEVIATIONS: f64 = 24.0;

/// Probability outside the window for which the window is long enough.
const OUTSIDE: f64 = 1e-13;

/// Minimum product of slope and distance for Chernoff's bound: e^(−32) is below [`OUTSIDE`].
const REACH: f64 = 32.0;

/// Largest number of slopes tried for Chernoff's bound.
const SLOPES: i32 = 12;

/// A distribution that is added `count` times.
pub(super) struct Part {
    pub(super) distribution: PrivacyLossDistribution,
    pub(super) count: u64,
}

/// The logarithm of E e^(θL), and its first two derivatives: mean and variance of tilted losses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cumulants {
    pub(super) log_moment: f64,
    pub(super) mean: f64,
    pub(super) variance: f64,
}

/// Returns the cumulants of the sum of all parts.
pub(super) fn cumulants(parts: &[Part], tilt: f64) -> Cumulants {
    parts.iter().fold(Cumulants::default(), |sum, part| {
        let one = cumulants_of(&part.distribution, tilt);
        let count = part.count as f64;
        Cumulants {
            log_moment: sum.log_moment + count * one.log_moment,
            mean: sum.mean + count * one.mean,
            variance: sum.variance + count * one.variance,
        }
    })
}

fn cumulants_of(distribution: &PrivacyLossDistribution, tilt: f64) -> Cumulants {
    let exponents = || distribution.log_values().map(|(loss, log_mass)| (loss, tilt * loss + log_mass));
    let (centre, largest) =
        exponents().fold((0.0, f64::NEG_INFINITY), |best, one| if one.1 > best.1 { one } else { best });
    let [mut sum, mut first, mut second] = [0.0; 3];
    for (loss, exponent) in exponents() {
        let (weight, distance) = ((exponent - largest).exp(), loss - centre);
        sum += weight;
        first += weight * distance;
        second += weight * distance * distance;
    }
    let shift = first / sum;
    Cumulants {
        log_moment: largest + sum.ln(),
        mean: centre + shift,
        variance: (second / sum - shift * shift).max(0.0),
    }
}

/// Returns max g: θ^θ/(1+θ)^(1+θ), rounded up.
pub(super) fn largest_weight(tilt: f64) -> f64 {
    let power = if tilt == 0.0 { 0.0 } else { -tilt * tilt.recip().ln_1p() };
    (power - tilt.ln_1p()).exp() * (1.0 + 1e-9)
}

/// The tilted masses of a sum in a window, with the bounds of their errors.
pub(super) struct TiltedSum {
    tilt: f64,
    log_scale: f64,
    step: f64,
    /// Index of the first grid value of the window.
    first: f64,
    /// Σ t(l) e^(−θ(l − l_j)) over l ≥ l_j.
    plain: Vec<f64>,
    /// Σ t(l) g(l − l_j) over l ≥ l_j.
    weighted: Vec<f64>,
    /// Bound of the error of any Σ t(l) g(l − ε).
    error: f64,
    /// Relative error of positive terms.
    relative: f64,
    /// Bound of the probability of an infinite loss.
    infinite: f64,
}

impl TiltedSum {
    pub(super) fn new(parts: &[Part], tilt: f64) -> Self {
        let step = parts.first().map_or(1.0, |part| part.distribution.step());
        let found = cumulants(parts, tilt);
        let window = Window::around(parts, tilt, found, step);
        let length = window.length;
        let fourier = RealTransform::new(length);
        let transform = TRANSFORM * (length as f64).log2();

        let mut product = vec![Complex::from(1.0); length / 2 + 1];
        let (mut log_scale, mut log_growth, mut rounding, mut relative, mut infinite) =
            (0.0, 0.0, 0.0, 0.0, 0.0);
        let (mut scale_error, mut products) = (0.0, 0.0);
        for Part { distribution, count } in parts {
            let times = *count as f64;
            let constant = cumulants_of(distribution, tilt).log_moment;
            let mut buffer = vec![0.0; length];
            let mut largest = 0.0_f64;
            let mut index = distribution.first().rem_euclid(length as i64) as usize;
            for (loss, log_mass) in distribution.log_values() {
                buffer[index] += (tilt * loss - constant + log_mass).exp();
                largest = largest.max((tilt * loss).abs());
                index = if index + 1 == length { 0 } else { index + 1 };
            }
            let (sum, norm) = (buffer.iter().sum::<f64>(), norm(&buffer));
            for (product, value) in product.iter_mut().zip(fourier.forward(&buffer)) {
                *product *= power(value, *count);
            }
            log_scale += times * constant;
            log_growth += times * ((sum - 1.0).max(0.0) + transform * (length as f64).sqrt() * norm);
            rounding += times * transform * norm;
            relative += times * f64::EPSILON * (1600.0 + 4.0 * largest + 4.0 * constant.abs());
            scale_error += f64::EPSILON * (4.0 + (times * constant).abs());
            products += times + 1.0;
            infinite += times * distribution.infinite();
        }
        let mut values = fourier.inverse(&product);
        let found = norm(&values);
        let rounding =
            log_growth.exp() * (rounding + (products * PRODUCT + 2.0 * transform) * found) * (1.0 + 1e-3);

        values.rotate_left((window.first.rem_euclid(length as f64)) as usize);
        let (plain, weighted) = decaying_sums(&values, tilt, step);
        let weight = largest_weight(tilt);
        let squares = (2.0 * tilt * (2.0 * tilt + 1.0) * (tilt + 1.0) * step).recip();
        let norm_of_weights = (weight * weight + squares).min(length as f64 * weight * weight).sqrt();
        Self {
            tilt,
            log_scale,
            step,
            first: window.first,
            plain,
            weighted,
            error: rounding * norm_of_weights + window.outside * weight,
            relative: relative + scale_error + 8.0 * length as f64 * f64::EPSILON,
            infinite,
        }
    }

    /// Returns an upper bound of δ(ε).
    pub(super) fn delta_above(&self, epsilon: f64) -> f64 {
        let sum = self.sum(epsilon) * (1.0 + self.relative) + self.error;
        (self.scale(epsilon) * (1.0 + self.scale_error(epsilon)) * sum + self.infinite).min(1.0)
    }

    /// Returns a lower bound of δ(ε).
    pub(super) fn delta_below(&self, epsilon: f64) -> f64 {
        let sum = self.sum(epsilon) * (1.0 - self.relative) - self.error;
        (self.scale(epsilon) * (1.0 - self.scale_error(epsilon)) * sum).clamp(0.0, 1.0)
    }

    fn scale(&self, epsilon: f64) -> f64 {
        (self.log_scale - self.tilt * epsilon).exp()
    }

    fn scale_error(&self, epsilon: f64) -> f64 {
        4.0 * f64::EPSILON * (1.0 + self.log_scale.abs() + self.tilt * epsilon.abs())
    }

    /// Returns Σ t(l) g(l − ε) over l > ε in the window.
    fn sum(&self, epsilon: f64) -> f64 {
        let index = ((epsilon / self.step).floor() + 1.0 - self.first).max(0.0);
        if index >= self.plain.len() as f64 {
            return 0.0;
        }
        let distance = (self.first + index) * self.step - epsilon;
        let decay = (-self.tilt * distance).exp();
        let shrunk = decay * (-distance).exp();
        let index = index as usize;
        shrunk * self.weighted[index] - decay * (-distance).exp_m1() * self.plain[index]
    }
}

/// Returns Σ t e^(−θu) and Σ t g(u) above every value, from the last one down. All terms are
/// positive, so nothing cancels. A value below 0 is a rounding error and is raised to 0.
fn decaying_sums(values: &[f64], tilt: f64, step: f64) -> (Vec<f64>, Vec<f64>) {
    let (decay, less) = ((-tilt * step).exp(), -(-step).exp_m1());
    let mut plain = vec![0.0; values.len()];
    let mut weighted = vec![0.0; values.len()];
    let (mut sum, mut difference) = (0.0, 0.0);
    for (index, value) in values.iter().enumerate().rev() {
        difference = decay * ((1.0 - less) * difference + less * sum);
        sum = value.max(0.0) + decay * sum;
        (plain[index], weighted[index]) = (sum, difference);
    }
    (plain, weighted)
}

/// Grid values around the mean of the tilted sum.
struct Window {
    first: f64,
    length: usize,
    /// Bound of the tilted probability outside the window.
    outside: f64,
}

impl Window {
    fn around(parts: &[Part], tilt: f64, found: Cumulants, step: f64) -> Self {
        let (mut low, mut high) = (0.0, 0.0);
        for part in parts {
            let (first, count) = (part.distribution.first() as f64, part.count as f64);
            low += count * first;
            high += count * (first + (part.distribution.len() - 1) as f64);
        }
        let deviation = found.variance.sqrt() / step;
        let mut length = (DEVIATIONS * deviation).max(64.0).min(MAX_LENGTH as f64) as usize;
        length = length.next_power_of_two().min(MAX_LENGTH);
        loop {
            let whole = high - low < length as f64;
            let first = if whole { low } else { (found.mean / step - length as f64 / 2.0).floor() };
            let ends = (first * step, (first + (length - 1) as f64) * step);
            let outside = if whole { 0.0 } else { outside(parts, tilt, found, ends) };
            if outside <= OUTSIDE || length == MAX_LENGTH {
                return Self { first, length, outside };
            }
            length *= 2;
        }
    }
}

/// Returns Chernoff's bound of the tilted probability outside of an interval.
fn outside(parts: &[Part], tilt: f64, found: Cumulants, (low, high): (f64, f64)) -> f64 {
    let bound = |slope: f64, end: f64| {
        let moved = cumulants(parts, tilt + slope).log_moment;
        let slack = 1e-12 * (moved.abs() + found.log_moment.abs() + (slope * end).abs());
        (moved - found.log_moment - slope * end + slack).exp()
    };
    // The bound is convex in the slope. Slopes below the first can't reach OUTSIDE. The slope is
    // doubled as long as the bound falls. Rare large losses have no moments at steep slopes.
    let least = |end: f64, sign: f64| {
        let first = REACH / (sign * (end - found.mean)).max(f64::MIN_POSITIVE);
        let mut best = f64::INFINITY;
        for doublings in 0..SLOPES {
            let next = bound(sign * first * 2_f64.powi(doublings), end);
            if next >= best {
                break;
            }
            best = next;
        }
        best
    };
    (least(high, 1.0) + least(low, -1.0)).min(1.0)
}

pub(super) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns z^count by repeated squaring, with fewer than 2·count roundings.
pub(super) fn power(mut base: Complex<f64>, mut count: u64) -> Complex<f64> {
    let mut result = Complex::from(1.0);
    while count > 0 {
        if count & 1 == 1 {
            result *= base;
        }
        base *= base;
        count >>= 1;
    }
    result
}
