//! Names of the strategies on the command line.

use super::StrategyError;
use serde::{Deserialize, Serialize};
use std::{fmt, num::NonZeroU32, str::FromStr};

/// Largest number of bands of a banded strategy.
pub const MAX_BANDS: u32 = 1 << 20;

/// Largest number of buffers of a buffered strategy.
pub const MAX_BUFFERS: u32 = 8;

/// The name of a strategy.
///
/// ```
/// use hushflow_mechanism::strategy::StrategyName;
///
/// let name: StrategyName = "normalized-banded-square-root:8".parse()?;
/// assert!(matches!(name, StrategyName::Normalized(_)));
/// assert_eq!(name.to_string(), "normalized-banded-square-root:8");
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum StrategyName {
    /// `identity`: C = I, fresh noise at every step. No memory, no horizon.
    Identity,
    /// `square-root`: `C = T^(1/2)` for the Toeplitz part T of the workload (Fichtenberger,
    /// Henzinger and Upadhyay, "Constant matters", 2023, for prefix sums). Needs a horizon n. Keeps
    /// all rows, or fewer if the coefficients of a decaying workload round to 0.
    SquareRoot,
    /// `banded-square-root:b`: the first b coefficients of the square root (Kalinin and Lampert,
    /// 2024).
    BandedSquareRoot(NonZeroU32),
    /// `banded-inverse-square-root:b`: the inverse has the first b coefficients of the inverse
    /// square root (arXiv 2505.12128).
    BandedInverseSquareRoot(NonZeroU32),
    /// `matrix-square-root`: the lower-triangular square root of the whole workload, row divisors
    /// included. Dense.
    MatrixSquareRoot,
    /// `normalized-…`: one of the strategies above with columns scaled to norm 1.
    Normalized(Box<StrategyName>),
    /// `log-perturbed-root`: for prefix sums of an unbounded stream (arXiv 2506.15018).
    LogPerturbedRoot,
    /// `blt:b`: a buffered linear Toeplitz matrix with b buffers (Dvijotham et al., 2024), fitted
    /// to the workload.
    BufferedToeplitz(NonZeroU32),
    /// `power-law:b`: b buffers that decay as powers of time, fitted to the running average.
    PowerLaw(NonZeroU32),
    /// `tree`: the binary tree, each sum from the nodes of its dyadic decomposition.
    Tree,
    /// `honaker`: the binary tree, each sum estimated online from all nodes below (Honaker, 2015).
    Honaker,
    /// `tree-optimal-decoder`: the causal form of the binary tree with the optimal decoder.
    TreeOptimalDecoder,
    /// `fft`: the Fourier mechanism with its own decoder.
    Fourier,
    /// `fft-optimal-decoder`: the causal form of the Fourier encoder with the optimal decoder.
    FourierOptimalDecoder,
    /// `banded-optimal:b`: the best C with b bands.
    BandedOptimal(NonZeroU32),
    /// `banded-toeplitz-optimal:b`: the best Toeplitz C with b bands.
    BandedToeplitzOptimal(NonZeroU32),
    /// `optimal`: the best C for the participation, with a certificate.
    Optimal,
    /// `auto`: the best of all strategies that can run, within a memory limit.
    Auto,
    /// `file:PATH`: a saved strategy, or any lower-triangular C written as a matrix.
    File(String),
    /// `coa`: the best C for single participation, found by Newton's method, with a certificate.
    Coa,
}

const PLAIN: [(&str, StrategyName); 12] = [
    ("identity", StrategyName::Identity),
    ("square-root", StrategyName::SquareRoot),
    ("matrix-square-root", StrategyName::MatrixSquareRoot),
    ("log-perturbed-root", StrategyName::LogPerturbedRoot),
    ("tree", StrategyName::Tree),
    ("honaker", StrategyName::Honaker),
    ("tree-optimal-decoder", StrategyName::TreeOptimalDecoder),
    ("fft", StrategyName::Fourier),
    ("fft-optimal-decoder", StrategyName::FourierOptimalDecoder),
    ("optimal", StrategyName::Optimal),
    ("coa", StrategyName::Coa),
    ("auto", StrategyName::Auto),
];

/// A name with a number: the name, what the number counts, its upper limit, and the constructor.
type Numbered = (&'static str, &'static str, u32, fn(NonZeroU32) -> StrategyName);

const NUMBERED: [Numbered; 6] = [
    ("banded-square-root", "bands", MAX_BANDS, StrategyName::BandedSquareRoot),
    ("banded-inverse-square-root", "bands", MAX_BANDS, StrategyName::BandedInverseSquareRoot),
    ("banded-optimal", "bands", MAX_BANDS, StrategyName::BandedOptimal),
    ("banded-toeplitz-optimal", "bands", MAX_BANDS, StrategyName::BandedToeplitzOptimal),
    ("blt", "buffers", MAX_BUFFERS, StrategyName::BufferedToeplitz),
    ("power-law", "buffers", MAX_BUFFERS, StrategyName::PowerLaw),
];

const NORMALIZED: &str = "normalized-";

const FILE: &str = "file:";

impl StrategyName {
    /// This strategy with columns scaled to norm 1; `None` if that form does not exist or is the
    /// same.
    pub fn normalized(self) -> Option<Self> {
        match self {
            Self::SquareRoot
            | Self::BandedSquareRoot(_)
            | Self::BandedInverseSquareRoot(_)
            | Self::MatrixSquareRoot => Some(Self::Normalized(Box::new(self))),
            _ => None,
        }
    }
}

impl StrategyName {
    /// Whether the strategy can run. The others exist for comparison.
    pub fn runs(&self) -> bool {
        !matches!(self, Self::Tree | Self::Honaker | Self::Fourier)
    }

    /// Whether an optimiser has to find its parameters.
    pub fn is_searched(&self) -> bool {
        matches!(
            self,
            Self::BufferedToeplitz(_)
                | Self::PowerLaw(_)
                | Self::BandedOptimal(_)
                | Self::BandedToeplitzOptimal(_)
                | Self::Optimal
                | Self::Coa
        )
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self {
            Self::Normalized(inner) => return write!(f, "{NORMALIZED}{inner}"),
            Self::File(path) => return write!(f, "{FILE}{path}"),
            Self::BandedSquareRoot(number)
            | Self::BandedInverseSquareRoot(number)
            | Self::BandedOptimal(number)
            | Self::BandedToeplitzOptimal(number)
            | Self::BufferedToeplitz(number)
            | Self::PowerLaw(number) => number,
            plain => {
                let word = PLAIN.iter().find(|(_, name)| name == plain).map(|(word, _)| *word);
                return f.write_str(word.unwrap_or_default());
            }
        };
        let word = NUMBERED.iter().find(|(.., name)| name(*number) == *self).map(|(word, ..)| *word);
        write!(f, "{}:{number}", word.unwrap_or_default())
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
        if let Some(path) = text.strip_prefix(FILE).filter(|path| !path.is_empty()) {
            return Ok(Self::File(path.into()));
        }
        if let Some((_, name)) = PLAIN.iter().find(|(word, _)| *word == text) {
            return Ok(name.clone());
        }
        let (word, number) = text.split_once(':').unwrap_or((text, ""));
        let (word, unit, limit, name) =
            *NUMBERED.iter().find(|(known, ..)| *known == word).ok_or_else(unknown)?;
        let number = number.parse().ok().filter(|number: &NonZeroU32| number.get() <= limit);
        number.map(name).ok_or_else(|| StrategyError::Number {
            strategy: word,
            unit,
            limit,
            found: text.into(),
        })
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

pub(super) fn all_names() -> String {
    let plain = PLAIN.iter().map(|(word, _)| format!("`{word}`"));
    let numbered = NUMBERED.iter().map(|(word, unit, ..)| format!("`{word}:{}`", &unit[..1]));
    plain.chain(numbered).chain(["`file:PATH`".into()]).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_back() {
        let numbered = ["banded-square-root:7", "banded-inverse-square-root:1", "banded-optimal:2", "blt:8"];
        let normalized = ["normalized-square-root", "normalized-banded-inverse-square-root:3"];
        let plain = PLAIN.iter().map(|(word, _)| *word);
        for text in plain.chain(numbered).chain(normalized).chain(["power-law:1", "file:a b.json"]) {
            let name: StrategyName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(serde_json::to_string(&name).unwrap(), format!("\"{text}\""));
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
        for text in ["blt", "blt:", "blt:0", "blt:9", "blt:-1", "blt:two", "blt:4:2"] {
            check(text, "from 1 to 8");
        }
        check("banded-square-root:1048577", "from 1 to 1048576");
    }
}
