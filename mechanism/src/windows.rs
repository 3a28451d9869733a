//! Windows of epochs that are estimated as a whole, and the privacy cost of their overlap.
//!
//! An estimate reads all records of its window. A record is in every window that contains its
//! epoch, so it is charged for each of them.
//!
//! # One record
//! Fix two streams that differ in one record in place, or in whether it is blank. Given all earlier
//! releases, a window without the record has the same law in both streams. A window with it is a
//! random function of one draw of N(0, 1) in one stream and of N(μ, 1) in the other, up to a total
//! variation τ (`accounting::bounded_range`, `docs/privacy.md` on adaptivity). The windows that
//! contain the record are known beforehand. So w of them are √w·μ-Gaussian-private together, up to
//! wτ, and no less is possible where each is a Gaussian mechanism. If a window of k epochs ends
//! every s epochs, w = ⌈k/s⌉ windows contain a record. If the window grows from s epochs and
//! doubles, at most w = ⌊log₂(n/s)⌋ + 1 windows within n epochs contain it.
//!
//! # An entity
//! An entity takes part in at most p epochs, at least b apart, with at most m records in each over
//! all keys. Number its records in an epoch by 1 … m and its epochs by 1 … p. Let c be the most of
//! its epochs in one window: c = min(p, ⌈k/b⌉), or p for windows that grow. They are consecutive,
//! so their numbers have different remainders modulo c. Change the records in mc *steps*: step
//! (r, j) changes the r-th records of the epochs whose number is j modulo c. A step changes at most
//! one record of any window, so by the argument above a step that reaches w_j windows is
//! √w_j·μ-private, up to w_jτ. μ adds up along the steps (Dong, Roth & Su 2022, Theorem 2.14):
//!
//! ```text
//! F·μ,   F = m Σ_j √w_j  ≤  m √(c Σ_j w_j),   Σ_j w_j ≤ min(p·w, c·number of windows)
//! ```
//!
//! # Total variation along steps
//! **Lemma.** Let g_a(x) = Φ(Φ⁻¹(x) + a). If for every step i and event S the probabilities p_i and
//! p_{i+1} of S on either side obey p_{i+1} ≤ g_a(p_i + τ) + τ, with Σ a = A, then after k steps
//! p_k ≤ g_A(p_0) + T, T = 2k·g_A(τ).
//!
//! *Proof.* g_a is concave with g_a(0) = 0, so it is subadditive: g_a(x + y) ≤ g_a(x) + g_a(y). And
//! g_a∘g_b = g_{a+b}. So each step adds at most g_A(τ) for the τ inside and as much for the τ
//! outside. ∎
//!
//! **Lemma.** If p ≤ g_A(q) + T and q ≤ g_A(p) + T for the probabilities of every event, then both
//! laws are random functions of N(0, 1) and N(A, 1), up to a total variation of s = g_A(T).
//!
//! *Proof.* With f(x) = 1 − g_A(x), no test has a smaller error than max(f − T, 0). Consider the
//! pair that reveals the law with probability s, and else shows the Gaussian. Its errors are
//! (1 − s)·f(x/(1 − s)), for x ≤ 1 − s. D(x) = f(x) − T − (1 − s)·f(x/(1 − s)) is s − T ≥ 0 at
//! x = 0, and 0 at x = 1 − s, because f(1 − s) = f(f(T)) = T. D' = f'(x) − f'(x/(1 − s)) ≤ 0, as f
//! is convex. So D ≥ 0: the pair is no harder to test, and by Blackwell's theorem both laws are
//! random functions of it. It is within s of the Gaussian pair. ∎
//!
//! So the charge is a Gaussian mechanism of Fμ with the total variation s, which composes with
//! others (`accounting::composition`). For a single step it is wτ.
//!
//! # zCDP along steps
//! If step i is ρ_i-zCDP, all of them are (Σ √ρ_i)²-zCDP, so F² is the factor of ρ. *Proof* for two
//! steps, from which the rest follows by induction. Let 0 < u < 1 and α > 1. Then
//!
//! ```text
//! D_α(P‖R) ≤ (α − u)/(α − 1)·D_{α/u}(P‖Q) + D_{(α−u)/(1−u)}(Q‖R)  ≤  α(s + t)(ρ₁/s + ρ₂/t)
//! ```
//!
//! by Mironov 2017, Proposition 11, with s = u(α − 1) and t = α(1 − u), for s + t = α − u. s/t may
//! be any positive number. With s/t = √(ρ₁/ρ₂) the bound is α(√ρ₁ + √ρ₂)². ∎

use crate::accounting::discrete::Discreteness;
use crate::accounting::{AccountingError, MARGIN};
use crate::participation::Participation;
use crate::quantile::normal;
use serde::{Deserialize, Serialize};
use std::f64::consts::FRAC_1_SQRT_2;
use std::fmt;
use std::num::NonZeroU64;

const ONE: NonZeroU64 = NonZeroU64::MIN;

/// The windows of a stream: which epochs an estimate reads, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum WindowSpan {
    /// The last `length` epochs, at the end of every `stride`-th epoch.
    Sliding {
        /// Number of epochs of a window, at least `stride`.
        length: NonZeroU64,
        /// Number of epochs from one window to the next.
        stride: NonZeroU64,
    },
    /// All epochs so far, at the end of the epochs s, 2s, 4s, 8s, ….
    Growing {
        /// s: number of epochs of the first window.
        first: NonZeroU64,
    },
}

/// Every epoch is a window.
impl Default for WindowSpan {
    fn default() -> Self {
        Self::Sliding { length: ONE, stride: ONE }
    }
}

impl fmt::Display for WindowSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epochs = |count: NonZeroU64| format!("{count} epoch{}", if count == ONE { "" } else { "s" });
        match *self {
            Self::Sliding { length, stride } if length == stride => write!(f, "{}", epochs(length)),
            Self::Sliding { length, stride } => write!(f, "{}, every {}", epochs(length), epochs(stride)),
            Self::Growing { first } => write!(f, "growing from {}", epochs(first)),
        }
    }
}

impl WindowSpan {
    /// Whether every epoch is a window.
    pub fn is_each_epoch(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a window ends with this epoch.
    pub fn ends_at(self, epoch: u64) -> bool {
        match self {
            Self::Sliding { stride, .. } => epoch > 0 && epoch.is_multiple_of(stride.get()),
            Self::Growing { first } => {
                epoch.is_multiple_of(first.get()) && (epoch / first.get()).is_power_of_two()
            }
        }
    }

    /// Returns the first epoch of the window that ends with `end`.
    pub fn first_epoch(self, end: u64) -> u64 {
        match self {
            Self::Sliding { length, .. } => end.saturating_sub(length.get() - 1).max(1),
            Self::Growing { .. } => 1,
        }
    }

    /// Returns the first epoch that any window ending after `epoch` reads.
    pub fn first_needed_after(self, epoch: u64) -> u64 {
        match self {
            Self::Sliding { stride, .. } => {
                let next = (epoch / stride.get()).saturating_add(1).saturating_mul(stride.get());
                self.first_epoch(next)
            }
            Self::Growing { .. } => 1,
        }
    }

    /// Returns the number of epochs of the longest window within a horizon; 0 if none ends in it.
    pub fn longest(self, horizon: u64) -> u64 {
        match self {
            Self::Sliding { length, stride } => length.get().min(horizon - horizon % stride.get()),
            Self::Growing { first } => self.ends(horizon).map_or(0, |last| first.get() << last),
        }
    }

    /// Returns the number of windows that end within a horizon.
    pub fn count(self, horizon: u64) -> u64 {
        match self {
            Self::Sliding { stride, .. } => horizon / stride.get(),
            Self::Growing { .. } => self.ends(horizon).map_or(0, |last| u64::from(last) + 1),
        }
    }

    /// Returns windows of the same length that do not overlap; `None` if the windows of this span
    /// do not overlap, or grow.
    pub fn tumbling(self) -> Option<Self> {
        match self {
            Self::Sliding { length, stride } if length != stride => {
                Some(Self::Sliding { length, stride: length })
            }
            _ => None,
        }
    }

    /// Returns the number of doublings of the first growing window within a horizon; `None` if no
    /// window ends within it, or if windows slide.
    fn ends(self, horizon: u64) -> Option<u32> {
        match self {
            Self::Growing { first } => (horizon / first.get()).checked_ilog2(),
            Self::Sliding { .. } => None,
        }
    }
}

/// Joint cost of all windows that contain a unit, as a multiple of one window and one record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowOverlap {
    /// F: factor of μ, rounded up.
    pub factor: f64,
    /// Σ_j w_j: maximum number of pairs of a window and an epoch in it in which the unit takes
    /// part.
    pub windows: u64,
    /// Number of steps; 1 if no window holds more than one record of the unit.
    pub steps: u64,
    /// Maximum number of pairs of a window and a record of the unit in it.
    pub contributions: u64,
}

impl WindowOverlap {
    /// Returns the cost over `horizon` epochs for a unit that takes part as in `participation`,
    /// with at most `records` records in an epoch.
    pub fn new(span: WindowSpan, horizon: u64, participation: Participation, records: u32) -> Self {
        let horizon = horizon.max(1);
        let (most, gap) = match participation {
            Participation::Single => (1, 1),
            Participation::Fixed { count, gap } | Participation::MinSeparation { count, gap } => {
                (count.get(), gap.get())
            }
            Participation::EveryStep => (horizon, 1),
        };
        let (epochs, records) = (most.min(horizon.div_ceil(gap)), u64::from(records.max(1)));
        let count = span.count(horizon).max(1);
        let (at_once, windows, factor) = match span {
            WindowSpan::Sliding { length, stride } => {
                let at_once = epochs.min(length.get().div_ceil(gap)).max(1);
                let each = length.get().div_ceil(stride.get()).min(count);
                let windows = epochs.saturating_mul(each).min(at_once.saturating_mul(count));
                (at_once, windows, (at_once as f64 * windows as f64).sqrt())
            }
            WindowSpan::Growing { first } => {
                let (mut before, mut windows, mut factor) = (0, 0u64, 0.0);
                for doubling in 0..count {
                    let end = first.get() << doubling;
                    // Epochs 1, 1 + b, 1 + 2b, … up to the end of this window.
                    let until = epochs.min((end - 1) / gap + 1);
                    let containing = count - doubling;
                    windows = windows.saturating_add((until - before).saturating_mul(containing));
                    factor += (until - before) as f64 * (containing as f64).sqrt();
                    before = until;
                }
                (before.max(1), windows, factor)
            }
        };
        Self {
            factor: if factor == 1.0 && records == 1 {
                1.0
            } else {
                factor * records as f64 * (1.0 + 4.0 * MARGIN)
            },
            windows,
            steps: at_once.saturating_mul(records),
            contributions: windows.saturating_mul(records),
        }
    }

    /// Whether the unit is one record in one window.
    pub fn is_single(&self) -> bool {
        self.contributions == 1
    }

    /// Returns the total variation of all windows for a unit, from the total variation of one
    /// window. `mu` is that of all windows together.
    ///
    /// # Errors
    /// [`AccountingError::TotalVariation`] if it is above 1.
    pub fn total_variation(&self, of_window: Discreteness, mu: f64) -> Result<Discreteness, AccountingError> {
        let of_step = self.windows as f64 * of_window.total_variation() * (1.0 + MARGIN);
        if self.steps == 1 {
            return Discreteness::of_total_variation(of_step);
        }
        let along = 2.0 * self.steps as f64 * shifted(of_step, mu);
        Discreteness::of_total_variation(shifted(along, mu))
    }
}

/// Returns g_a(x) = Φ(Φ⁻¹(x) + a), rounded up; above 1 if x is above 1/2.
fn shifted(probability: f64, a: f64) -> f64 {
    if probability.is_nan() || probability > 0.5 {
        return f64::INFINITY;
    }
    // Rounding of the quantile moves the result by less than a share of 10⁻⁹.
    let z = normal(probability.max(f64::MIN_POSITIVE));
    (libm::erfc((z - a) * FRAC_1_SQRT_2) / 2.0 * (1.0 + 1e-9)).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_least_one(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    fn sliding(length: u64, stride: u64) -> WindowSpan {
        WindowSpan::Sliding { length: at_least_one(length), stride: at_least_one(stride) }
    }

    fn growing(first: u64) -> WindowSpan {
        WindowSpan::Growing { first: at_least_one(first) }
    }

    fn apart(count: u64, gap: u64) -> Participation {
        Participation::MinSeparation { count: at_least_one(count), gap: at_least_one(gap) }
    }

    const SPANS: [(u64, u64); 8] = [(1, 1), (2, 1), (3, 2), (4, 4), (5, 2), (6, 3), (7, 7), (9, 1)];

    fn spans() -> impl Iterator<Item = WindowSpan> {
        SPANS.into_iter().map(|(length, stride)| sliding(length, stride)).chain([1, 2, 3].map(growing))
    }

    /// Windows as lists of epochs, from the definition.
    fn windows(span: WindowSpan, horizon: u64) -> Vec<Vec<u64>> {
        let ends = (1..=horizon).filter(|&end| match span {
            WindowSpan::Sliding { stride, .. } => end % stride.get() == 0,
            WindowSpan::Growing { first } => (0..20).any(|doubling| end == first.get() << doubling),
        });
        let first = |end: u64| match span {
            WindowSpan::Sliding { length, .. } => (end + 1).saturating_sub(length.get()).max(1),
            WindowSpan::Growing { .. } => 1,
        };
        ends.map(|end| (first(end)..=end).collect()).collect()
    }

    /// All sets of at most `most` epochs that are at least `gap` apart.
    fn patterns(horizon: u64, most: u64, gap: u64) -> Vec<Vec<u64>> {
        let mut all = vec![Vec::new()];
        let mut begun = vec![Vec::<u64>::new()];
        for _ in 0..most {
            let longer = begun.iter().flat_map(|pattern| {
                let from = pattern.last().map_or(1, |last| last + gap);
                (from..=horizon).map(move |epoch| [pattern.as_slice(), &[epoch]].concat())
            });
            begun = longer.collect();
            all.extend(begun.iter().cloned());
        }
        all
    }

    #[test]
    fn spans_are_their_definition() {
        for (span, horizon) in spans().flat_map(|span| (1..25).map(move |horizon| (span, horizon))) {
            let expected = windows(span, horizon);
            let ends: Vec<u64> = (0..=horizon).filter(|&epoch| span.ends_at(epoch)).collect();
            let found: Vec<Vec<u64>> =
                ends.iter().map(|&end| (span.first_epoch(end)..=end).collect()).collect();
            assert_eq!(found, expected, "{span} {horizon}");
            assert_eq!(span.count(horizon), expected.len() as u64, "{span} {horizon}");
            let longest = expected.iter().map(Vec::len).max().unwrap_or(0) as u64;
            assert_eq!(span.longest(horizon), longest, "{span} {horizon}");
            for epoch in 1..horizon {
                let later = windows(span, 4 * horizon).into_iter().find(|all| all.last() > Some(&epoch));
                assert_eq!(later.map(|all| all[0]), Some(span.first_needed_after(epoch)), "{span} {epoch}");
            }
        }
    }

    /// The attack: each window releases the number of the unit's records in it, plus a normal
    /// variable. Then μ of all windows is the distance of the worst pattern. The bound holds for
    /// all patterns. It is attained within 1 % by a single participation, by windows of one epoch,
    /// and by windows without overlap if participations are far apart.
    #[test]
    fn no_pattern_is_further_apart_than_the_charge() {
        let horizon = 13;
        for span in spans() {
            let windows = windows(span, horizon);
            for (count, gap, records) in
                [(1, 1, 1), (1, 1, 3), (2, 1, 1), (2, 3, 1), (3, 2, 2), (4, 1, 1), (4, 4, 1)]
            {
                let found = WindowOverlap::new(span, horizon, apart(count, gap), records);
                let held = |pattern: &Vec<u64>| -> Vec<u64> {
                    let of =
                        |window: &Vec<u64>| window.iter().filter(|epoch| pattern.contains(epoch)).count();
                    windows.iter().map(|window| of(window) as u64 * u64::from(records)).collect()
                };
                let patterns: Vec<_> = patterns(horizon, count, gap).iter().map(held).collect();
                let squares = |held: &Vec<u64>| held.iter().map(|count| count * count).sum::<u64>();
                let worst = (patterns.iter().map(squares).max().unwrap() as f64).sqrt();
                assert!(worst <= found.factor, "{span} {count}x{gap} {records}: {worst} {found:?}");
                let sums = patterns.iter().map(|held| held.iter().sum::<u64>()).max().unwrap();
                assert!(sums <= found.contributions, "{span} {count}x{gap}: {sums} {found:?}");
                let at_once = patterns.iter().flatten().copied().max().unwrap();
                assert!(at_once <= found.steps, "{span} {count}x{gap}: {at_once} {found:?}");
                let is_disjoint = matches!(span, WindowSpan::Sliding { length, stride } if length == stride);
                if count == 1 || (is_disjoint && gap * count >= 13) || span == WindowSpan::default() {
                    assert!(worst > found.factor * 0.99, "{span} {count}x{gap}: {worst} {found:?}");
                }
            }
        }
    }

    #[test]
    fn a_single_record_in_one_window_costs_one_window() {
        let one = WindowOverlap::new(WindowSpan::default(), 1000, Participation::Single, 1);
        assert_eq!(one, WindowOverlap { factor: 1.0, windows: 1, steps: 1, contributions: 1 });
        assert!(one.is_single());
        let tau = Discreteness::of_total_variation(1e-12).unwrap();
        assert!((one.total_variation(tau, 0.5).unwrap().total_variation() - 1e-12).abs() < 1e-20);
        let growing = WindowOverlap::new(growing(1), 1 << 20, Participation::Single, 1);
        assert_eq!((growing.windows, growing.steps), (21, 1));
        assert!((growing.factor - 21_f64.sqrt()).abs() < 1e-9);
    }

    /// The chain of the lemma, computed step by step, stays below its bound.
    #[test]
    fn total_variation_grows_along_steps_as_the_lemma_says() {
        for (steps, mu, tau) in [(2u64, 0.5, 1e-10), (6, 1.0, 1e-12), (12, 3.0, 1e-15), (3, 0.01, 1e-6)] {
            let each = mu / steps as f64;
            for first in [0.0, 1e-9, 1e-4, 0.1] {
                let mut probability: f64 = first;
                for _ in 0..steps {
                    probability = shifted(probability + tau, each) + tau;
                    if probability > 0.5 {
                        break;
                    }
                }
                let bound = shifted(first, mu) + 2.0 * steps as f64 * shifted(tau, mu);
                assert!(probability <= bound * (1.0 + 1e-6), "{steps} {mu} {tau} {first}");
            }
            let overlap = WindowOverlap { factor: steps as f64, windows: 1, steps, contributions: steps };
            let found = overlap.total_variation(Discreteness::of_total_variation(tau).unwrap(), mu).unwrap();
            assert!(found.total_variation() >= tau * steps as f64, "{found:?}");
        }
        let overlap = WindowOverlap { factor: 9.0, windows: 1, steps: 9, contributions: 9 };
        let coarse = Discreteness::of_total_variation(0.1).unwrap();
        assert!(overlap.total_variation(coarse, 1.0).is_err());
    }
}
