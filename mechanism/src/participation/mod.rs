//! Participation schemas: how often, and at which steps, one entity may take part in the stream
//! ("Multi-Epoch Matrix Factorization Mechanisms", Section 2, and min-separation).
//!
//! A *pattern* is a set of steps that may hold all records of one entity. The entity may skip steps
//! of its pattern, so only maximal patterns are listed. A schema has no horizon;
//! [`Participation::on`] applies one, which may fit fewer participations than the schema allows.

mod schedule;

pub use schedule::Schedule;

use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU64, str::FromStr};
use thiserror::Error;

/// A participation schema, written as on the command line both in text and in serialised form.
///
/// Steps count from 1. A schema may allow more than fits a horizon; only what fits counts.
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
        "no participation is written `{found}`; expected `1` (once), `20x100` (at most 20 times, exactly 100 steps \
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
        "the {what} of the participation `{found}` is no whole number of 1 or more; expected for example `20x100`"
    )]
    Number {
        /// Which of the two numbers.
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
    pub fn on(self, horizon: usize) -> Schedule {
        let size = |number: NonZeroU64| usize::try_from(number.get()).unwrap_or(usize::MAX);
        match self {
            Self::Single => Schedule::new(horizon, 1, 1, false),
            Self::Fixed { count, gap } => Schedule::new(horizon, size(count), size(gap), false),
            Self::MinSeparation { count, gap } => Schedule::new(horizon, size(count), size(gap), true),
            Self::EveryStep => Schedule::new(horizon, usize::MAX, 1, false),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["1", "1x7", "20x100", "20x100+", "1x1+", "every-step"] {
            let participation: Participation = text.parse().unwrap();
            assert_eq!(participation.to_string(), text);
            let json = serde_json::to_string(&participation).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Participation>(&json).unwrap(), participation);
        }
    }

    #[test]
    fn errors_teach() {
        let check = |text: &str, part: &str| {
            let message = text.parse::<Participation>().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("20", "expected for example `20x100`");
        check("twice", "no participation is written `twice`");
        check("", "every-step");
        check("0", "no participation is written `0`");
        check("0x100", "the count of the participation `0x100`");
        check("20x0+", "the gap of the participation `20x0+`");
        check("20x-1", "the gap");
        check("20x1.5", "the gap");
        check("x", "the count");
        check("20x100++", "the gap");
        check("99999999999999999999x2", "the count");
        assert!(serde_json::from_str::<Participation>("\"2\"").is_err());
    }
}
