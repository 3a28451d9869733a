//! Names of the strategies on the command line, and a strategy as a log stores it.

use super::{Fit, KINDS, Kind, StrategyError, StrategyParameters, toeplitz};
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// The name of a strategy.
///
/// ```
/// use hushflow_mechanism::strategy::StrategyName;
///
/// let name: StrategyName = "normalized-banded-square-root:8".parse()?;
/// assert!(matches!(name, StrategyName::Known { normalized: true, .. }));
/// assert_eq!(name.to_string(), "normalized-banded-square-root:8");
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StrategyName {
    /// A strategy of the table.
    Known {
        /// The strategy.
        kind: &'static Kind,
        /// The number after the name, if it has one.
        number: Option<NonZeroU32>,
        /// `normalized-…`: with columns scaled to norm 1.
        normalized: bool,
    },
    /// `auto`: the best of all strategies that can run, within a memory limit.
    Auto,
    /// `file:PATH`: a saved strategy, or any lower-triangular C written as a matrix.
    File(String),
}

/// A strategy as it runs and as a log stores it: its name, and its fitted parameters if it needs
/// them.
///
/// Fitted parameters are stored and never recomputed. A fit may differ between machines and
/// versions, and a log must be read with exactly the C that wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyChoice {
    /// The strategy that runs; never [`StrategyName::Auto`].
    pub name: StrategyName,
    /// Fitted parameters; `None` if the name determines the strategy.
    pub fitted: Option<StrategyParameters>,
}

const NORMALIZED: &str = "normalized-";
const AUTO: &str = "auto";
const FILE: &str = "file:";

impl StrategyName {
    /// This strategy with columns scaled to norm 1; `None` if that form does not exist or is the
    /// same.
    pub fn normalized(self) -> Option<Self> {
        match self {
            Self::Known { kind, number, normalized: false } if kind.can_be_normalized() => {
                Some(Self::Known { kind, number, normalized: true })
            }
            _ => None,
        }
    }

    /// What an optimiser has to find for it.
    pub fn fit(&self) -> Fit {
        match self {
            Self::Known { kind, .. } => kind.fit,
            Self::Auto | Self::File(_) => Fit::None,
        }
    }

    /// The number after the name; 1 for a name without one.
    pub(super) fn number(&self) -> NonZeroU32 {
        match self {
            Self::Known { number: Some(number), .. } => *number,
            _ => NonZeroU32::MIN,
        }
    }

    pub(super) fn is_normalized(&self) -> bool {
        matches!(self, Self::Known { normalized: true, .. })
    }
}

/// `identity`: fresh noise at every step.
impl Default for StrategyName {
    fn default() -> Self {
        toeplitz::IDENTITY.name()
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::File(path) => write!(f, "{FILE}{path}"),
            Self::Known { kind, number, normalized } => {
                write!(f, "{}{}", if *normalized { NORMALIZED } else { "" }, kind.word)?;
                number.map_or(Ok(()), |number| write!(f, ":{number}"))
            }
        }
    }
}

impl FromStr for StrategyName {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let unknown = || StrategyError::Unknown { found: text.into() };
        if let Some(inner) = text.strip_prefix(NORMALIZED) {
            return match inner.parse::<Self>() {
                Err(StrategyError::Unknown { .. }) => Err(unknown()),
                inner => inner?.normalized().ok_or_else(unknown),
            };
        }
        if text == AUTO {
            return Ok(Self::Auto);
        }
        if let Some(path) = text.strip_prefix(FILE).filter(|path| !path.is_empty()) {
            return Ok(Self::File(path.into()));
        }
        let (word, after) = text.split_once(':').map_or((text, None), |(word, after)| (word, Some(after)));
        let kind = *KINDS.iter().find(|kind| kind.word == word).ok_or_else(unknown)?;
        let number = match (kind.number, after) {
            (None, None) => None,
            (None, Some(_)) => return Err(unknown()),
            (Some((unit, limit)), after) => {
                let number = after.and_then(|after| after.parse().ok());
                let number = number.filter(|number: &NonZeroU32| number.get() <= limit);
                let refused =
                    || StrategyError::Number { strategy: kind.word, unit, limit, found: text.into() };
                Some(number.ok_or_else(refused)?)
            }
        };
        Ok(Self::Known { kind, number, normalized: false })
    }
}

impl TryFrom<String> for StrategyName {
    type Error = StrategyError;

    fn try_from(text: String) -> Result<Self, StrategyError> {
        text.parse()
    }
}

impl From<StrategyName> for String {
    fn from(name: StrategyName) -> Self {
        name.to_string()
    }
}

impl From<StrategyName> for StrategyChoice {
    fn from(name: StrategyName) -> Self {
        Self { name, fitted: None }
    }
}

pub(super) fn all_names() -> String {
    let names = KINDS.iter().map(|kind| kind.usage()).chain([AUTO.into(), format!("{FILE}PATH")]);
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_back() {
        let numbered = ["banded-square-root:7", "banded-inverse-square-root:1", "banded-optimal:2", "blt:8"];
        let normalized = ["normalized-square-root", "normalized-banded-inverse-square-root:3"];
        let known = KINDS.iter().map(|kind| kind.name().to_string());
        let others = numbered.into_iter().chain(normalized).chain(["auto", "power-law:1", "file:a b.json"]);
        for text in known.chain(others.map(String::from)) {
            let name: StrategyName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{text}\""));
        }
    }

    #[test]
    fn every_strategy_has_its_own_name_and_can_be_made_somehow() {
        for (place, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..place].iter().all(|other| other != kind), "{kind:?}");
            assert!(kind.strategy.is_some() || kind.factorization.is_some(), "{kind:?}");
        }
    }

    #[test]
    fn what_is_no_strategy_is_refused_with_what_would_be_one() {
        let check = |text: &str, part: &str| {
            let message = text.parse::<StrategyName>().unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(text), "{message}");
        };
        for text in ["", "root", "identity:1", "Identity", "normalized-", "normalized-identity", "blt4"] {
            check(text, "`square-root`");
        }
        check("normalized-normalized-square-root", "`square-root`");
        for text in ["blt", "blt:", "blt:0", "blt:9", "blt:-1", "blt:two", "blt:4:2"] {
            check(text, "from 1 to 8");
        }
        check("banded-square-root:1048577", "from 1 to 1048576");
    }
}
