//! The share of a noisy number in a noisy whole, such as the records that counted among those sent.
//!
//! Let r = n/v be the true share, and let the estimates n̂ and v̂ have independent normal errors
//! of deviations τ and ω. Then `n̂ − r·v̂` is normal with mean 0 and variance τ² + r²ω². So the
//! numbers r with
//!
//! ```text
//! (n̂ − r·v̂)² ≤ z²(τ² + r²ω²)
//! ```
//!
//! contain the true share with probability P(|N(0, 1)| ≤ z), for all n and v (Fieller 1954).
//! These numbers lie between the roots of a quadratic, or outside the roots if v̂ can't be
//! distinguished from 0. A share is at least 0 and at most 1, so the interval is the hull of those
//! numbers within [0, 1]. If there are none, the interval starts from the nearest end.

use super::interval::{Confidence, Interval};

/// An estimate of a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The ratio of the estimates, at least 0 and at most 1; `None` if the whole can't be
    /// distinguished from 0.
    pub estimate: Option<f64>,
    /// The interval of the share.
    pub interval: Interval,
}

impl Share {
    /// Estimates the share of a `part` in a `whole`, each given with the standard deviation of its
    /// noise. The interval contains the share with probability `level`.
    ///
    /// ```
    /// use hushflow_mechanism::estimate::share::Share;
    ///
    /// let share = Share::of((630.0, 10.0), (1000.0, 30.0), 0.95);
    /// assert_eq!(share.estimate, Some(0.63));
    /// assert!(share.interval.lower > 0.58 && share.interval.upper < 0.68, "{share:?}");
    /// let unknown = Share::of((1.0, 10.0), (2.0, 30.0), 0.95);
    /// assert_eq!((unknown.estimate, unknown.interval.width()), (None, 1.0));
    /// ```
    pub fn of(part: (f64, f64), whole: (f64, f64), level: f64) -> Self {
        let z = Confidence { level, ..Confidence::default() }.normal_quantile();
        let ((n, tau), (v, omega)) = ((part.0, z * part.1), (whole.0, z * whole.1));
        // a·r² − 2b·r + c ≤ 0
        let (a, b, c) = (v * v - omega * omega, n * v, n * n - tau * tau);
        // b² − ac, without cancellation.
        let discriminant = (tau * v).powi(2) + (omega * n).powi(2) - (tau * omega).powi(2);
        let far = b + discriminant.sqrt().copysign(b);
        let ends = [(0.0, c), (1.0, a - 2.0 * b + c)].into_iter().filter(|&(_, value)| value <= 0.0);
        let roots = [far / a, c / far].into_iter().filter(|root| (0.0..=1.0).contains(root));
        let mut allowed = ends.map(|(end, _)| end).chain(roots);
        let nearest = if n.abs() > v.abs() && b > 0.0 { 1.0 } else { 0.0 };
        let first = allowed.next().unwrap_or(nearest);
        let interval = allowed.fold(Interval { lower: first, upper: first }, Interval::with);
        let estimate = (v > 0.0 && a > 0.0).then(|| (n / v).clamp(0.0, 1.0));
        let reach = tau.hypot(estimate.unwrap_or(nearest) * omega) / v.abs();
        let all = Interval { lower: 0.0, upper: 1.0 };
        let interval = interval.within(all, if reach.is_nan() { 0.0 } else { reach.min(1.0) });
        Self { estimate, interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::normal;
    use chacha20::ChaCha8Rng;
    use rand::SeedableRng;

    #[test]
    fn exact_numbers_have_an_exact_share() {
        let exact = |part, whole| Share::of((part, 0.0), (whole, 0.0), 0.95);
        let third = exact(1.0, 3.0);
        assert_eq!(third.estimate, Some(1.0 / 3.0));
        assert!(third.interval.width() < 1e-15 && (third.interval.lower - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(exact(7.0, 7.0).interval, Interval { lower: 1.0, upper: 1.0 });
        assert_eq!(exact(0.0, 7.0).interval, Interval { lower: 0.0, upper: 0.0 });
        let nothing = exact(0.0, 0.0);
        assert_eq!((nothing.estimate, nothing.interval), (None, Interval { lower: 0.0, upper: 1.0 }));
    }

    /// An interval wholly beyond an end reaches z deviations from there, so it is never a point.
    #[test]
    fn estimates_beyond_the_whole_are_cut_to_it() {
        let near = |found: Share, estimate: f64, lower: f64, upper: f64| {
            assert_eq!(found.estimate, Some(estimate));
            let Interval { lower: from, upper: to } = found.interval;
            assert!((from - lower).abs() < 1e-4 && (to - upper).abs() < 1e-4, "{found:?}");
        };
        near(Share::of((200.0, 1.0), (100.0, 1.0), 0.95), 1.0, 1.0 - 1.96e-2 * 2f64.sqrt(), 1.0);
        near(Share::of((-50.0, 1.0), (100.0, 1.0), 0.95), 0.0, 0.0, 1.96e-2);
        let unknown = Share::of((200.0, 1.0), (0.1, 1.0), 0.95);
        assert_eq!((unknown.estimate, unknown.interval.width()), (None, 1.0));
    }

    /// The coverage of the definition is exact, and cutting the interval to [0, 1] does not reduce
    /// it. With 40,000 draws a frequency is 5.5 deviations from its mean with a probability of
    /// 4·10⁻⁸, for each of the twenty cases; the seed is fixed.
    #[test]
    fn intervals_hold_their_level() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let draws = 40_000;
        for (part, whole) in [(0.0, 50.0), (3.0, 4.0), (500.0, 1000.0), (990.0, 1000.0), (1000.0, 1000.0)] {
            for (tau, omega, level) in
                [(1.0, 4.0, 0.95), (30.0, 100.0, 0.95), (30.0, 300.0, 0.9), (0.5, 2.0, 0.99)]
            {
                let mut inside = 0;
                for _ in 0..draws {
                    let mut noisy = |value: f64, deviation: f64| value + deviation * normal(&mut random);
                    let share = Share::of((noisy(part, tau), tau), (noisy(whole, omega), omega), level);
                    // The ends are computed in floating point.
                    let Interval { lower, upper } = share.interval;
                    inside += u32::from(lower - 1e-9 <= part / whole && part / whole <= upper + 1e-9);
                }
                let frequency = f64::from(inside) / f64::from(draws);
                let deviation = (level * (1.0 - level) / f64::from(draws)).sqrt();
                let case = format!("{part} of {whole} with noise {tau}, {omega}: {frequency}");
                assert!(frequency >= level - 5.5 * deviation, "{case}");
                let is_inner = part > 0.0 && part < whole && omega * 6.0 < whole && tau * 6.0 < whole - part;
                assert!(!is_inner || frequency <= level + 5.5 * deviation, "{case}");
            }
        }
    }
}
