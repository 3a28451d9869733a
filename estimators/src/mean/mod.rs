//! Robust and private means of a whole table: PRIME and its baselines.
//!
//! Liu, Kong, Kakade & Oh, "Robust and differentially private mean estimation" (NeurIPS 2021, arXiv
//! 2102.09159); the files name its algorithms, definitions and lemmas. `docs/mean.md` lists the
//! steps of the paper that are not private as written. The proofs here cover the code as it runs.
//!
//! | file | subject |
//! |---|---|
//! | `budget` | μ² of Gaussian privacy, spent adaptively; DPthreshold (Algorithms 11 and 17) |
//! | `release` | exact Gaussian releases of counts, sums and moments; sensitivities |
//! | `range` | a private ball that holds the clean records (Algorithms 5 and 15); scales |
//! | `whiten` | directions and their scales, if columns are correlated |
//! | `weights` | DPfilter (Algorithms 7 and 8); which records it removes (Definition C.1) |
//! | `filtering` | methods on the records in a private ball, and the choice of `auto` |
//! | `prime` | PRIME and PRIME-ht (Algorithms 9, 10 and 16) |
//! | `tukey` | the Tukey median (Algorithm 14), over public directions |
//! | `resilience`, `located` | resilience (Algorithm 2), with a given or a private range |
//! | `balloon` | a baseline that clips at a private radius |
//! | `error` | refusals and errors |
//!
//! **Neighbours** are tables with the same number of rows that differ in one row
//! ([`Neighbours::ReplaceOneInPlace`](hushflow_mechanism::sensitivity::Neighbours)): the number of
//! rows is public.

mod balloon;
mod budget;
mod error;
mod filtering;
mod located;
mod prime;
mod range;
mod release;
mod resilience;
#[cfg(test)]
mod tests;
mod tukey;
mod weights;
mod whiten;

pub use budget::StepCost;
pub use error::{MeanError, MeanRefusal};
pub use located::shares as shares_of_range;
pub use range::Clipping;

use budget::MeanBudget;
use error::EstimationStop;
use hushflow_mechanism::accounting::{Delta, Epsilon};
use hushflow_mechanism::estimate::projection::UnknownName;
use hushflow_mechanism::noise::NoiseGenerator;
use hushflow_mechanism::numbers;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Method of estimating a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeanMethod {
    /// PRIME or the plain mean, whichever has the smaller error bound. The bounds depend on public
    /// numbers only. If PRIME removes too many records, its assumptions do not hold. Then the
    /// remaining budget pays for PRIME-ht, or for the plain mean if it is too small for that.
    Auto,
    /// Filters by matrix multiplicative weights, for clean columns that are subgaussian with
    /// identity covariance.
    Prime,
    /// The same for heavy tails and a covariance of at most the identity.
    PrimeHt,
    /// Filters one direction at a time.
    Filter,
    /// The resilience estimator, for up to four columns: exponential time in the columns.
    Resilience,
    /// The private Tukey median, for up to four columns: exponential time in the columns.
    Tukey,
    /// The mean of clipped records.
    Gaussian,
    /// The mean of records clipped at a private quantile of their distance.
    Balloon,
}

impl MeanMethod {
    /// All methods.
    pub const ALL: [Self; 8] = [
        Self::Auto,
        Self::Prime,
        Self::PrimeHt,
        Self::Filter,
        Self::Resilience,
        Self::Tukey,
        Self::Gaussian,
        Self::Balloon,
    ];

    /// Returns the name on the command line and in pipeline files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Prime => "prime",
            Self::PrimeHt => "prime-ht",
            Self::Filter => "filter",
            Self::Resilience => "resilience",
            Self::Tukey => "tukey",
            Self::Gaussian => "gaussian",
            Self::Balloon => "balloon",
        }
    }

    /// Describes the method in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Auto => {
                "Robust mean: prime, or prime-ht if prime removes too much; gaussian where its error bound is smaller."
            }
            Self::Prime => {
                "Filters outliers; for clean columns that are subgaussian and, once scaled, uncorrelated."
            }
            Self::PrimeHt => "Prime for heavy tails and correlated columns: assumes only bounded variance.",
            Self::Filter => "Filters one direction at a time; slow.",
            Self::Resilience => {
                "For up to four columns and thousands of rows; without a range, a third of the budget finds one."
            }
            Self::Tukey => {
                "A private Tukey median, for up to four columns; from three columns on, for few rows; needs a range."
            }
            Self::Gaussian => "Clips and averages; clipping is its only defence.",
            Self::Balloon => "Clips at a private quantile of the distance from the centre.",
        }
    }

    /// Whether the method uses [`Question::range`].
    pub fn takes_range(self) -> bool {
        matches!(self, Self::Tukey | Self::Resilience)
    }
}

numbers!(enum MeanMethod {
    0 Auto, 1 Prime, 2 PrimeHt, 3 Filter, 4 Resilience, 5 Tukey, 6 Gaussian, 7 Balloon
});

impl fmt::Display for MeanMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MeanMethod {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let expected = "auto, prime, prime-ht, filter, resilience, tukey, gaussian or balloon";
        Self::ALL
            .into_iter()
            .find(|method| method.name() == text)
            .ok_or_else(|| UnknownName { found: text.into(), expected })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tails {
    SubGaussian,
    BoundedCovariance,
}

/// Standard deviation of each column's clean values, and whether columns are correlated.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Known in advance, one for each column.
    Known(Vec<f64>),
    /// Estimated with a share of the budget.
    Estimated,
    /// For correlated columns: directions and their scales are estimated with a larger share. The
    /// mean is found in these coordinates and mapped back.
    Whitened,
}

/// Method, budget and assumptions of an estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The method.
    pub method: MeanMethod,
    /// ε of the whole estimate.
    pub epsilon: Epsilon,
    /// δ of the whole estimate.
    pub delta: Delta,
    /// α: share of records that may be arbitrary, at least 0 and below 1/2.
    pub corruption: f64,
    /// Scales of columns.
    pub scale: Scale,
    /// R: the means of all columns are in [−R, R] scales. [`MeanMethod::Tukey`] needs it.
    /// [`MeanMethod::Resilience`] finds one with a third of the budget if it is absent. Other
    /// methods ignore it.
    pub range: Option<f64>,
}

/// Shares of μ² per step; the last release gets the rest.
struct Shares;

impl Shares {
    const SCALE: f64 = 0.1;
    const DIRECTIONS: f64 = 0.16;
    const DIRECTED: f64 = 0.14;
    const RANGE: f64 = 0.05;
    const REFINEMENT: f64 = 0.05;
    /// Spending before any round, without scales.
    const BEFORE: f64 = Self::RANGE + Self::REFINEMENT;
    const ROUNDS: f64 = 0.6;
    const THRESHOLD: f64 = 0.2;
    const RADIUS: f64 = 0.02;
}

/// An estimate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeanEstimate {
    /// The mean of each column, in its own unit.
    pub mean: Vec<f64>,
    /// Standard deviation of the noise of each column's mean, in its own unit. The error also has
    /// other causes, such as clipping.
    pub noise: Vec<f64>,
    /// Noisy number of kept records; `None` if the method removes none.
    pub kept: Option<f64>,
    /// Whether a filter stopped because the kept records look clean.
    pub converged: bool,
}

numbers!(struct MeanEstimate { mean, noise, kept, converged });

/// The result and its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeanAnswer {
    /// The method that ran.
    pub method: MeanMethod,
    /// The estimate, or the reason why there is no estimate.
    pub outcome: Result<MeanEstimate, MeanRefusal>,
    /// Spending of each step.
    pub parts: Vec<StepCost>,
    /// Total ε at δ: at most the requested one.
    pub spent: f64,
}

numbers!(struct MeanAnswer { outcome, method, spent, parts });

/// Minimum distance between 3n/4 and n/2, in standard deviations of a noisy count.
const COUNT_DEVIATIONS: f64 = 6.0;

/// Estimates the mean of the columns of a table, given row by row.
///
/// ```
/// use hushflow_mechanism::accounting::{Delta, Epsilon};
/// use hushflow_estimators::mean::{MeanMethod, Question, Scale, estimate};
/// use hushflow_mechanism::noise::NoiseSource;
///
/// // Two columns around 10 and −2, and a corrupt reading.
/// let clean = |i: u32| [9.0 + f64::from(i % 100) / 50.0, -3.0 + f64::from(i % 17) / 8.0];
/// let mut rows: Vec<f64> = (0..20_000).flat_map(clean).collect();
/// rows[777] = 1e9;
/// let question = Question {
///     method: MeanMethod::PrimeHt,
///     epsilon: Epsilon::new(1.0)?,
///     delta: Delta::new(1e-6)?,
///     corruption: 0.01,
///     scale: Scale::Known(vec![1.0, 1.0]),
///     range: None,
/// };
/// let answer = estimate(&rows, 2, &question, &mut NoiseSource::Seeded(1).generator(0, 0)?)?;
/// let found = answer.outcome.expect("enough records");
/// assert!((found.mean[0] - 10.0).abs() < 0.2 && (found.mean[1] + 2.0).abs() < 0.2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`MeanError`] if the method has no answer for a table of this size.
pub fn estimate(
    rows: &[f64],
    columns: usize,
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    estimate_and_clipping(rows, columns, question, rng).map(|(answer, _)| answer)
}

/// As [`estimate`], and also returns the clipping of each column, which follows from released
/// numbers and costs nothing. It is empty for methods that don't clip, for whitened columns, and
/// without a mean.
///
/// # Errors
/// As [`estimate`].
pub fn estimate_and_clipping(
    rows: &[f64],
    columns: usize,
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<(MeanAnswer, Vec<Clipping>), MeanError> {
    check(rows, columns, question)?;
    match question.method {
        MeanMethod::Tukey | MeanMethod::Resilience => {
            by_enumeration(rows, question, rng).map(|answer| (answer, Vec::new()))
        }
        _ => filtering::estimate(rows, columns, question, rng),
    }
}

/// Answers by a method that scores every point of a net, with a budget of pure privacy.
fn by_enumeration(
    rows: &[f64],
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let method = question.method;
    let Scale::Known(scales) = &question.scale else { return Err(MeanError::NoScale { method }) };
    match (method, question.range) {
        (MeanMethod::Resilience, None) => located::estimate(rows, scales, question, rng),
        (_, Some(range)) if range.is_normal() && range > 0.0 => match method {
            MeanMethod::Tukey => tukey::estimate(rows, (scales, range), question, rng),
            _ => resilience::estimate(rows, (scales, range), question, rng),
        },
        _ => Err(MeanError::NoRange { method }),
    }
}

fn check(rows: &[f64], columns: usize, question: &Question) -> Result<(), MeanError> {
    if columns > 0 && rows.is_empty() {
        return Err(MeanError::NoRows);
    }
    if columns == 0 || !rows.len().is_multiple_of(columns) {
        return Err(MeanError::Table { values: rows.len(), columns });
    }
    if !(0.0..0.5).contains(&question.corruption) {
        return Err(MeanError::Corruption(question.corruption));
    }
    if question.epsilon.value() == 0.0 {
        return Err(MeanError::NoBudget);
    }
    let Scale::Known(scales) = &question.scale else { return Ok(()) };
    let bad = |scale: &f64| !(scale.is_normal() && *scale > 0.0);
    if scales.len() != columns {
        return Err(MeanError::Scale { column: scales.len().min(columns), scale: f64::NAN });
    }
    match scales.iter().position(bad) {
        Some(column) => Err(MeanError::Scale { column, scale: scales[column] }),
        None => Ok(()),
    }
}

fn check_count(records: usize, columns: usize, budget: &MeanBudget) -> Result<(), MeanError> {
    let deviation = release::count_deviation(columns as f64, Shares::RANGE * budget.whole());
    let needed = least_count(deviation);
    if records < needed {
        return Err(MeanError::TooFew { rows: records, noise: deviation / records as f64, needed });
    }
    Ok(())
}

/// Returns the least number of rows for counts with noise of this deviation.
fn least_count(deviation: f64) -> usize {
    (4.0 * COUNT_DEVIATIONS * deviation).ceil().min(9e18) as usize
}

/// Returns the least number of rows of a table that the method does not refuse as too few. It
/// follows from public numbers, so a budget can be planned with it.
///
/// # Errors
/// [`MeanError`] if no estimate is possible with this budget.
pub fn rows_needed(columns: usize, question: &Question) -> Result<usize, MeanError> {
    let of_counts = |epsilon, delta, share: f64| {
        let squared_mu = share * MeanBudget::new(epsilon, delta)?.whole();
        Ok(least_count(release::count_deviation(columns as f64, squared_mu)))
    };
    match (question.method, question.range) {
        (MeanMethod::Tukey, _) => Ok(1),
        // A share α of the rows must contain more than one row.
        (MeanMethod::Resilience, Some(_)) => Ok((1.0 / question.corruption).floor().min(9e18) as usize + 1),
        (MeanMethod::Resilience, None) => {
            let [(epsilon, delta), _] = located::shares(question.epsilon, question.delta)?;
            of_counts(epsilon, delta, 1.0)
        }
        _ => of_counts(question.epsilon, question.delta, Shares::RANGE),
    }
}
