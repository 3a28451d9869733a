//! Participation schemas: how often, and at which steps, one entity may take part in the stream
//! ("Multi-Epoch Matrix Factorization Mechanisms", Section 2, and min-separation).
//!
//! A *pattern* is a set of steps that may hold all records of one entity. The entity may skip steps
//! of its pattern, so only maximal patterns are listed. A schema has no horizon;
//! [`Participation::on`] applies one, which may fit fewer participations than the schema allows.

use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU64, ops::Range, str::FromStr};
use thiserror::Error;

/// A participation schema, written as on the command line both in text and in serialised form.
///
/// Steps count from 1. A schema may allow more participations than fit a horizon; only those that
/// fit count.
///
/// ```
/// use hushflow_mechanism::participation::Participation;
///
/// let weekly: Participation = "52x7".parse()?;
/// assert_eq!(weekly.to_string(), "52x7");
/// assert_eq!(weekly.on(100).count(), 15); // steps 1, 8, …, 99
/// assert!("0x7".parse::<Participation>().is_err());
/// # Ok::<(), hushflow_mechanism::participation::ParticipationError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Participation {
    /// `1`: any single step.
    Single,
    /// `20x100`: at most 20 steps, exactly 100 apart; (k, b)-participation. `1xb` equals
    /// [`Single`](Self::Single).
    Fixed {
        /// k, the largest number of participations.
        count: NonZeroU64,
        /// b, the number of steps from one participation to the next.
        gap: NonZeroU64,
    },
    /// `20x100+`: at most 20 steps, at least 100 apart.
    MinSeparation {
        /// k, the largest number of participations.
        count: NonZeroU64,
        /// b, the least number of steps from one participation to the next.
        gap: NonZeroU64,
    },
    /// `every-step`: all steps.
    EveryStep,
}

/// Error of parsing a schema.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParticipationError {
    /// The text has no known form.
    #[error(
        "unknown participation `{found}`; expected `1` (once), `20x100` (at most 20 times, exactly 100 steps \
         apart), `20x100+` (at most 20 times, at least 100 steps apart) or `every-step`"
    )]
    Unknown {
        /// The rejected text.
        found: String,
    },
    /// The number of participations is given without the gap.
    #[error(
        "`{found}` does not say how far apart the participations are; expected for example `{found}x100` \
         (exactly 100 steps apart) or `{found}x100+` (at least 100 steps apart)"
    )]
    NoGap {
        /// The rejected text.
        found: NonZeroU64,
    },
    /// A number is zero or unreadable.
    #[error(
        "the {what} of the participation `{found}` is not a whole number of 1 or more; expected for example `20x100`"
    )]
    Number {
        /// The name of the number.
        what: &'static str,
        /// The rejected text.
        found: String,
    },
}

impl Participation {
    /// Whether every entity takes part at most once.
    pub fn is_single(self) -> bool {
        self.on(usize::MAX).count() == 1
    }

    /// Applies the schema to steps 1..=`horizon`.
    pub fn on(self, horizon: usize) -> ParticipationSchedule {
        let size = |number: NonZeroU64| usize::try_from(number.get()).unwrap_or(usize::MAX);
        match self {
            Self::Single => ParticipationSchedule::new(horizon, 1, 1, false),
            Self::Fixed { count, gap } => ParticipationSchedule::new(horizon, size(count), size(gap), false),
            Self::MinSeparation { count, gap } => {
                ParticipationSchedule::new(horizon, size(count), size(gap), true)
            }
            Self::EveryStep => ParticipationSchedule::new(horizon, usize::MAX, 1, false),
        }
    }
}

impl fmt::Display for Participation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("1"),
            Self::Fixed { count, gap } => write!(f, "{count}x{gap}"),
            Self::MinSeparation { count, gap } => write!(f, "{count}x{gap}+"),
            Self::EveryStep => f.write_str("every-step"),
        }
    }
}

impl FromStr for Participation {
    type Err = ParticipationError;

    fn from_str(text: &str) -> Result<Self, ParticipationError> {
        match text {
            "1" => return Ok(Self::Single),
            "every-step" => return Ok(Self::EveryStep),
            _ => {}
        }
        let (numbers, flexible) = text.strip_suffix('+').map_or((text, false), |numbers| (numbers, true));
        let Some((count, gap)) = numbers.split_once('x') else {
            return Err(match text.parse() {
                Ok(found) => ParticipationError::NoGap { found },
                Err(_) => ParticipationError::Unknown { found: text.into() },
            });
        };
        let number = |what, digits: &str| {
            digits.parse().map_err(|_| ParticipationError::Number { what, found: text.into() })
        };
        let (count, gap) = (number("count", count)?, number("gap", gap)?);
        Ok(if flexible { Self::MinSeparation { count, gap } } else { Self::Fixed { count, gap } })
    }
}

impl TryFrom<String> for Participation {
    type Error = ParticipationError;

    fn try_from(text: String) -> Result<Self, ParticipationError> {
        text.parse()
    }
}

impl From<Participation> for String {
    fn from(participation: Participation) -> Self {
        participation.to_string()
    }
}

/// A participation schema on steps 0..`horizon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParticipationSchedule {
    horizon: usize,
    count: usize,
    gap: usize,
    flexible: bool,
}

impl ParticipationSchedule {
    /// At most `count` ≥ 1 participations, `gap` apart, or at least `gap` apart if `flexible`.
    /// `gap` is at least 1.
    fn new(horizon: usize, count: usize, gap: usize, flexible: bool) -> Self {
        let count = count.min(horizon.div_ceil(gap));
        // Patterns can differ in their gaps only if a larger gap fits, and if no pattern has all
        // steps.
        let differs = count > 1 && gap + 1 < horizon && count < horizon;
        Self { horizon, count, gap, flexible: flexible && differs }
    }

    /// Number of steps.
    pub fn horizon(self) -> usize {
        self.horizon
    }

    /// Largest number of participations of one entity that fit.
    pub fn count(self) -> usize {
        self.count
    }

    /// Steps from one participation to the next, or the least number of them.
    pub fn gap(self) -> usize {
        self.gap
    }

    /// Whether gaps may exceed [`gap`](Self::gap), so that patterns differ in more than their
    /// start.
    pub fn is_flexible(self) -> bool {
        self.flexible
    }

    /// First steps of the maximal patterns with equal gaps: patterns that cannot be extended to the
    /// left, and patterns that already have all participations.
    pub fn starts(self) -> Range<usize> {
        let full = self.horizon - self.count.saturating_sub(1) * self.gap;
        0..full.max(self.gap.min(self.horizon))
    }

    /// The pattern with equal gaps that starts at `start`.
    pub fn pattern(self, start: usize) -> Vec<usize> {
        (start..self.horizon).step_by(self.gap).take(self.count).collect()
    }

    /// Patterns that start in `starts` and cannot be extended to the right, including all maximal
    /// ones. `None` if there are more than `limit` or, with variable gaps, more than the larger of
    /// `limit` and the horizon.
    pub fn patterns(self, starts: Range<usize>, limit: usize) -> Option<Vec<Vec<usize>>> {
        if !self.flexible {
            return (starts.len() <= limit).then(|| starts.map(|start| self.pattern(start)).collect());
        }
        let (mut found, mut open) = (Vec::new(), starts.map(|start| vec![start]).collect::<Vec<_>>());
        while let Some(pattern) = open.pop() {
            let next = pattern.last().map_or(0, |last| last + self.gap);
            if pattern.len() == self.count || next >= self.horizon {
                found.push(pattern);
            } else {
                open.extend((next..self.horizon).map(|step| [pattern.as_slice(), &[step]].concat()));
            }
            if found.len() + open.len() > limit.max(self.horizon) {
                return None;
            }
        }
        Some(found)
    }

    /// First steps of all patterns; with variable gaps these go beyond [`starts`](Self::starts).
    pub fn first_steps(self) -> Range<usize> {
        if self.flexible { 0..self.horizon } else { self.starts() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::assert_read_back;
    use std::collections::BTreeSet;

    #[test]
    fn participations_are_read_back_as_written() {
        for text in ["1", "1x7", "20x100", "20x100+", "1x1+", "every-step"] {
            assert_read_back::<Participation>(text);
        }
    }

    #[test]
    fn errors_show_the_expected_form() {
        let check = |text: &str, part: &str| {
            let message = text.parse::<Participation>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("20", "expected for example `20x100`");
        check("twice", "unknown participation `twice`");
        check("", "every-step");
        check("0", "unknown participation `0`");
        check("0x100", "the count of the participation `0x100`");
        check("20x0+", "the gap of the participation `20x0+`");
        check("20x-1", "the gap");
        check("20x1.5", "the gap");
        check("x", "the count");
        check("20x100++", "the gap");
        check("99999999999999999999x2", "the count");
        assert!(serde_json::from_str::<Participation>("\"2\"").is_err());
    }

    fn schedule(text: &str, horizon: usize) -> ParticipationSchedule {
        text.parse::<Participation>().unwrap().on(horizon)
    }

    fn patterns(text: &str, horizon: usize) -> Vec<Vec<usize>> {
        let schedule = schedule(text, horizon);
        schedule.patterns(schedule.first_steps(), 1000).unwrap()
    }

    #[test]
    fn participations_fit_the_horizon() {
        let counts = |kind: &str| [1, 2, 3, 4, 5].map(|gap| schedule(&format!("9x{gap}{kind}"), 5).count());
        assert_eq!(counts(""), [5, 3, 2, 2, 1]);
        assert_eq!(counts("+"), [5, 3, 2, 2, 1]);
        assert_eq!(schedule("20x100", 2000).count(), 20);
        assert_eq!(schedule("1", 7).count(), 1);
        assert_eq!(schedule("every-step", 7).count(), 7);
        let huge = format!("{0}x{0}", u64::MAX);
        assert_eq!(patterns(&huge, 2), [[0], [1]]);
        assert_eq!(patterns(&(huge + "+"), 2), [[0], [1]]);
        assert_eq!(schedule("3x2+", 0).count(), 0);
        assert!(patterns("3x2", 0).is_empty() && patterns("every-step", 0).is_empty());
    }

    #[test]
    fn fixed_patterns_are_cut_at_the_horizon_and_start_anywhere() {
        assert_eq!(patterns("3x2", 6), [vec![0, 2, 4], vec![1, 3, 5]]);
        assert_eq!(patterns("2x3", 9), [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7], [5, 8]]);
        assert_eq!(patterns("3x2", 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(patterns("1", 3), [[0], [1], [2]]);
        assert_eq!(patterns("1x9", 3), patterns("1", 3));
        assert_eq!(patterns("2x9", 3), patterns("1", 3));
        assert_eq!(patterns("every-step", 3), [[0, 1, 2]]);
        assert_eq!(patterns("2x2+", 3), [vec![0, 2], vec![1]]);
    }

    /// Every admissible set of steps is contained in a listed pattern, and every listed pattern is
    /// admissible.
    #[test]
    fn separated_patterns_cover_every_admissible_set() {
        for (count, gap, horizon) in
            [(3, 2, 8), (2, 3, 7), (8, 3, 9), (4, 1, 6), (9, 2, 5), (9, 1, 4), (2, 4, 5)]
        {
            let admissible = |steps: &[usize]| {
                steps.len() <= count && steps.windows(2).all(|pair| pair[1] - pair[0] >= gap)
            };
            let listed = patterns(&format!("{count}x{gap}+"), horizon);
            assert!(listed.iter().all(|pattern| admissible(pattern)));
            let listed: Vec<BTreeSet<_>> =
                listed.into_iter().map(|pattern| pattern.into_iter().collect()).collect();
            for mask in 0_u32..1 << horizon {
                let steps: Vec<_> = (0..horizon).filter(|step| mask >> step & 1 == 1).collect();
                let covered = || listed.iter().any(|set| steps.iter().all(|step| set.contains(step)));
                assert!(!admissible(&steps) || covered(), "{steps:?}");
            }
        }
    }

    #[test]
    fn too_many_patterns_are_not_listed() {
        let schedule = schedule("9x2+", 60);
        assert_eq!(schedule.patterns(schedule.first_steps(), 1000), None);
    }
}
