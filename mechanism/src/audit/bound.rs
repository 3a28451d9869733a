//! Lower bounds on privacy loss from counted events, for any distribution of the statistic.
//!
//! A threshold on a statistic defines an event in every trial. Suppose the event occurs k times
//! among n trials of one world. The bounds of Clopper & Pearson (1934) enclose its probability p
//! with a stated confidence. The lower bound is the p for which k or more hits have probability α.
//!
//! - **μ**: for a μ-GDP mechanism no event has P₀ > Φ(μ + Φ⁻¹(P₁)) (Dong, Roth & Su 2022), so
//!   `μ ≥ Φ⁻¹(P₀) − Φ⁻¹(P₁)`.
//! - **ε**: for an (ε, δ)-private mechanism no event has P₀ > e^ε P₁ + δ, so `ε ≥ ln((P₀ − δ)/P₁)`.
//!   This bound needs no trade-off curve, and is only tight for n far above 1/δ.

use crate::accounting::Delta;
use crate::quantile;

/// Maximum number of terms of the continued fraction, which takes about √n terms for n trials.
const MAX_TERMS: u32 = 1_000_000;

/// Frequency of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of trials in which the event occurred.
    pub hits: u64,
    /// Number of trials.
    pub trials: u64,
}

impl Count {
    /// Adds a trial, and whether the event occurred in it.
    pub fn add(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.trials += 1;
    }

    /// Returns a lower bound of the event's probability, wrong with probability at most `alpha`.
    pub fn at_least(self, alpha: f64) -> f64 {
        let (hits, rest) = (self.hits as f64, (self.trials - self.hits) as f64);
        if self.hits == 0 {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if incomplete_beta(hits, rest + 1.0, middle) < alpha { low = middle } else { high = middle }
        }
        low
    }

    /// Returns an upper bound of the event's probability, wrong with probability at most `alpha`.
    pub fn at_most(self, alpha: f64) -> f64 {
        1.0 - Count { hits: self.trials - self.hits, ..self }.at_least(alpha)
    }
}

/// The same event in both worlds. It is more likely in the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventPair {
    /// The counts in two neighbouring worlds.
    pub worlds: [Count; 2],
}

impl EventPair {
    /// Returns a lower bound of μ, at least 0, if each count errs with probability at most
    /// `alpha`.
    pub fn mu(&self, alpha: f64) -> f64 {
        let [one, other] = self.worlds;
        let mu = quantile_of(one.at_least(alpha)) - quantile_of(other.at_most(alpha));
        if mu > 0.0 { mu } else { 0.0 }
    }

    /// Returns a lower bound of ε at δ, at least 0, if each count errs with probability at most
    /// `alpha`.
    pub fn epsilon(&self, delta: Delta, alpha: f64) -> f64 {
        let [one, other] = self.worlds;
        let epsilon = ((one.at_least(alpha) - delta.value()) / other.at_most(alpha)).ln();
        if epsilon > 0.0 { epsilon } else { 0.0 }
    }
}

/// Returns Φ⁻¹(p).
fn quantile_of(p: f64) -> f64 {
    match p {
        _ if p <= 0.0 => f64::NEG_INFINITY,
        _ if p >= 1.0 => f64::INFINITY,
        _ if p < 0.5 => -quantile::normal(p),
        _ => quantile::normal(1.0 - p),
    }
}

/// Returns I_x(a, b) for a, b ≥ 1: the probability of at least a hits in a+b−1 trials of
/// probability x.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let power = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (-x).ln_1p();
    if x < (a + 1.0) / (a + b + 2.0) {
        power.exp() * continued_fraction(a, b, x) / a
    } else {
        1.0 - power.exp() * continued_fraction(b, a, 1.0 - x) / b
    }
}

/// Evaluates the continued fraction of Abramowitz & Stegun 26.5.8 by Lentz's method.
fn continued_fraction(a: f64, b: f64, x: f64) -> f64 {
    let away_from_zero = |value: f64| if value.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0)));
    let mut value = d;
    for term in 1..=MAX_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = value;
        for coefficient in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + coefficient * d);
            c = away_from_zero(1.0 + coefficient / c);
            value *= c * d;
        }
        if (value / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(hits: u64, trials: u64) -> Count {
        Count { hits, trials }
    }

    /// Compares with another implementation of the beta quantile.
    #[test]
    fn bounds_agree_with_clopper_and_pearson() {
        let check = |found: f64, expected: f64| {
            assert!((found - expected).abs() <= 1e-8 * expected, "{found:e}, expected {expected:e}");
        };
        for (hits, trials, alpha, low, high) in REFERENCE {
            check(count(hits, trials).at_least(alpha), low);
            check(count(hits, trials).at_most(alpha), high);
        }
        assert_eq!(count(0, 10).at_least(0.1), 0.0);
        assert_eq!(count(10, 10).at_most(0.1), 1.0);
        check(count(10, 10).at_least(0.1), 0.1_f64.powf(0.1));
    }

    /// Columns: hits, trials, α, and both bounds.
    const REFERENCE: [(u64, u64, f64, f64, f64); 4] = [
        (7, 40, 0.01, 0.06114851321022112, 0.3564624361263871),
        (158_655, 1_000_000, 2.5e-7, 0.1568239885915177, 0.16049774179890364),
        (3, 1_000_000, 1e-4, 8.617613748061367e-8, 1.5913711246983366e-5),
        (999_990, 1_000_000, 1e-3, 0.9999758661994086, 0.9999970394706872),
    ];

    /// The probability of counts beyond a bound, summed from the binomial distribution, is α.
    #[test]
    fn bounds_err_at_the_stated_rate() {
        let (trials, alpha) = (40_u64, 0.01);
        let p = count(7, trials).at_least(alpha);
        let choose = |k: u64| (0..k).map(|i| (trials - i) as f64 / (i + 1) as f64).product::<f64>();
        let beyond: f64 =
            (7..=trials).map(|k| choose(k) * p.powi(k as i32) * (1.0 - p).powi((trials - k) as i32)).sum();
        assert!((beyond - alpha).abs() < 1e-12, "{beyond}");
    }

    #[test]
    fn event_counts_bound_the_distance_of_the_worlds() {
        let event = EventPair { worlds: [count(841_345, 1_000_000), count(158_655, 1_000_000)] };
        let mu = event.mu(1e-3);
        assert!(mu < 2.0 && mu > 1.98, "{mu}");
        let alike = EventPair { worlds: [count(5, 10); 2] };
        assert_eq!(alike.mu(1e-3), 0.0);
        let delta = Delta::new(1e-3).unwrap();
        assert_eq!(alike.epsilon(delta, 1e-3), 0.0);
        let sure = EventPair { worlds: [count(1000, 1000), count(0, 1000)] };
        assert!(sure.epsilon(delta, 1e-3) > 4.0 && sure.mu(1e-3) > 4.0);
        assert_eq!(EventPair::default().mu(1e-3), 0.0, "nothing seen, nothing shown");
    }
}
