//! Batches of records, in a public order or drawn at random, and the noise that random batches
//! need.
//!
//! [`Batches`] are the public numbers of a run: records, batch size, and [`Sampling`]. m is the
//! batch size, N the number of records, and b the number of bands of the strategy.
//!
//! # Groups
//! For a strategy with b bands, the records are cut into b groups of equal size, up to one record,
//! in their public order. Step t draws from group t mod b. So the steps of a record are at least b
//! apart, and their columns of C have no row in common. For b = 1 all records are one group.
//!
//! | scheme | the batch of a step | size |
//! |---|---|---|
//! | `InOrder` | the next m records | public |
//! | `Poisson` | each record of the group with probability m b/N, independently | private |
//! | `BallsInBins` | in each pass, each record of the group in one of its steps | private |
//!
//! # Guarantee
//! For random batches, a [`MatrixMechanism`] has the sensitivity of *one* participation, and
//! [`Batches::epsilon`] composes the participations by their
//! [amplification](crate::accounting::amplification). Its theorems need batches that are secret, as
//! are their sizes, and independent of everything that is released. They also need encoders that
//! are exact, since rounding may let a record touch steps in which it does not take part.

mod contributions;

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::accounting::amplification::{AmplificationError, RandomParticipation};
use crate::accounting::pld::DominatingPair;
use crate::accounting::{AccountingError, Delta, Epsilon};
use crate::mechanism::{MatrixMechanism, MechanismError, Method};
use crate::sensitivity::Neighbours;
use crate::strategy::{MatrixError, Strategy};

pub use contributions::RandomContributions;

/// Relative tolerance of the least noise multiplier.
const CLOSE: f64 = 1e-4;

/// Share of ε that calibration leaves. It exceeds differences of rounding between machines.
const RESERVE: f64 = 1e-9;

/// Share of δ for more participations than the search begins with.
const COVER_SHARE: f64 = 1e-3;

/// Excess of ln ε where accounting fails.
const FAILED: f64 = 100.0;

/// Logarithm of a noise multiplier at which a failure of accounting has another reason.
const LARGEST: f64 = 16.0;

/// How records are assigned to steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampling {
    /// In one fixed, public order: every record takes part once in every pass, at the same step.
    /// Nothing is random, and nothing is amplified.
    #[default]
    InOrder,
    /// Poisson sampling; for a strategy with bands, cyclic Poisson sampling from one group per band
    /// (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization").
    Poisson,
    /// Balls in bins, or random allocation: in every pass each record takes part in one random step
    /// of its group (Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD").
    BallsInBins,
}

impl Sampling {
    /// All schemes.
    pub const ALL: [Self; 3] = [Self::InOrder, Self::Poisson, Self::BallsInBins];

    /// Returns whether batches are public.
    pub fn is_public(&self) -> bool {
        *self == Self::InOrder
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InOrder => "in-order",
            Self::Poisson => "poisson",
            Self::BallsInBins => "balls-in-bins",
        })
    }
}

/// A name that is not one of a sampling scheme.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a sampling scheme: expected in-order, poisson or balls-in-bins")]
pub struct SamplingNameError(String);

impl FromStr for Sampling {
    type Err = SamplingNameError;

    fn from_str(text: &str) -> Result<Self, SamplingNameError> {
        let named = Self::ALL.into_iter().find(|sampling| sampling.to_string() == text);
        named.ok_or_else(|| SamplingNameError(text.into()))
    }
}

/// A sampling scheme with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// The next records.
    InOrder {
        /// Number of records in a step.
        batch_size: u64,
    },
    /// Each record of a group independently.
    Poisson {
        /// Number of groups.
        groups: NonZeroU64,
        /// Probability of a record of the step's group.
        probability: f64,
    },
    /// Each record of a group in one of its steps.
    BallsInBins {
        /// Number of groups.
        groups: NonZeroU64,
        /// Number of steps of a group in a pass.
        bins: NonZeroU64,
    },
}

/// Returns the records of a group, in their public order.
pub fn group(records: u64, step: u64, groups: NonZeroU64) -> Range<u64> {
    let (group, groups) = (u128::from(step.saturating_sub(1) % groups), u128::from(groups.get()));
    let border = |group: u128| (u128::from(records) * group / groups) as u64;
    border(group)..border(group + 1)
}

/// Public numbers of the batches of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// N, the number of records.
    pub records: u64,
    /// m, the number of records in a step; the expected number if batches are random.
    pub batch_size: u32,
    /// How records are assigned to steps.
    pub sampling: Sampling,
}

/// Reasons why batches can't be drawn at random.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    /// There are fewer records than a batch needs.
    #[error("there are {records} records, fewer than the {batch_size} of a batch: choose smaller batches")]
    Batch {
        /// Number of records.
        records: u64,
        /// Number of records in a batch.
        batch_size: u32,
    },
    /// A strategy without exact bands.
    #[error(
        "sampling is {sampling}, but the strategy {strategy} has no bands that are encoded exactly: choose identity, a banded strategy such as banded-toeplitz-optimal:4, or batches in-order"
    )]
    Unbanded {
        /// The sampling.
        sampling: Sampling,
        /// Name of the strategy.
        strategy: String,
    },
    /// Groups that are too small for the batches.
    #[error(
        "a strategy with {bands} bands draws batches of {batch_size} records from groups of {records}/{bands}: choose identity, a strategy with fewer bands, or smaller batches"
    )]
    Groups {
        /// Number of bands, and of groups.
        bands: u64,
        /// Number of records in a batch.
        batch_size: u32,
        /// Number of records.
        records: u64,
    },
    /// A pass that does not divide into cycles of groups.
    #[error(
        "balls-in-bins needs a multiple of {bands} steps in a pass, one for each band, but there are {steps}: choose another batch size or number of bands"
    )]
    Cycles {
        /// Number of bands.
        bands: u64,
        /// Number of steps in a pass.
        steps: u64,
    },
    /// Records that do not fill the batches of a pass.
    #[error(
        "balls-in-bins puts each of {records} records in one of the steps of a pass, so the batch size {batch_size} must divide them: choose a divisor"
    )]
    Uneven {
        /// Number of records.
        records: u64,
        /// Number of records in a batch.
        batch_size: u32,
    },
    /// Second moments that can't be released from random batches.
    #[error(
        "sampling is {sampling}, but the method {method} needs batches of public size, or neighbours zero-out: choose dp-adam, or batches in-order"
    )]
    Method {
        /// The sampling.
        sampling: Sampling,
        /// The method.
        method: Method,
    },
    /// There is no amplified guarantee.
    #[error(transparent)]
    Amplification(#[from] AmplificationError),
    /// No noise gives the guarantee.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
}

impl From<AccountingError> for SamplingError {
    fn from(error: AccountingError) -> Self {
        Self::Mechanism(error.into())
    }
}

impl From<MatrixError> for SamplingError {
    fn from(error: MatrixError) -> Self {
        Self::Mechanism(error.into())
    }
}

impl Batches {
    /// Returns the number of steps in a pass. Batches in order leave out the records of an
    /// incomplete batch.
    pub fn steps_per_pass(&self) -> u64 {
        self.records / u64::from(self.batch_size.max(1))
    }

    /// Returns the scheme for a mechanism of `horizon` steps.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn scheme(&self, mechanism: &MatrixMechanism, horizon: u64) -> Result<Scheme, SamplingError> {
        let Self { records, batch_size, sampling } = *self;
        let steps =
            NonZeroU64::new(self.steps_per_pass()).ok_or(SamplingError::Batch { records, batch_size })?;
        if sampling.is_public() {
            return Ok(Scheme::InOrder { batch_size: batch_size.into() });
        }
        if sampling == Sampling::BallsInBins && !records.is_multiple_of(batch_size.into()) {
            return Err(SamplingError::Uneven { records, batch_size });
        }
        let parameters = mechanism.moments().parameters();
        let method = parameters.method;
        let in_place = parameters.neighbours == Neighbours::ReplaceOneInPlace;
        if matches!(method, Method::BatchSquares { .. }) || (in_place && method != Method::Pp) {
            return Err(SamplingError::Method { sampling, method });
        }
        let strategies = mechanism.strategies();
        let bands = |strategy: &dyn Strategy| match strategies.is_exact() {
            true => exact_bands(strategy, horizon),
            false => Ok(None),
        };
        let bands = |strategy: &dyn Strategy| {
            bands(strategy)?.ok_or_else(|| SamplingError::Unbanded { sampling, strategy: strategy.name() })
        };
        let mut groups = bands(strategies.first())?;
        if method != Method::Pp {
            groups = groups.max(bands(strategies.second())?);
        }
        let bands = groups.get();
        if sampling == Sampling::Poisson {
            let expected = u64::from(batch_size).saturating_mul(bands);
            if expected > records {
                return Err(SamplingError::Groups { bands, batch_size, records });
            }
            return Ok(Scheme::Poisson { groups, probability: expected as f64 / records as f64 });
        }
        match NonZeroU64::new(steps.get() / bands).filter(|_| steps.get().is_multiple_of(bands)) {
            Some(bins) => Ok(Scheme::BallsInBins { groups, bins }),
            None => Err(SamplingError::Cycles { bands, steps: steps.get() }),
        }
    }

    /// Returns the contributions of a record to `passes` passes of a mechanism of `horizon` steps;
    /// `None` for batches in order.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn contributions(
        &self,
        mechanism: &MatrixMechanism,
        horizon: u64,
        passes: u32,
    ) -> Result<Option<RandomContributions>, SamplingError> {
        let passes = u64::from(passes);
        let participation = match self.scheme(mechanism, horizon)? {
            Scheme::InOrder { .. } => return Ok(None),
            Scheme::Poisson { groups, probability: rate } => {
                let steps = self.steps_per_pass().saturating_mul(passes).div_ceil(groups.get());
                RandomParticipation::Poisson { rate, steps }
            }
            Scheme::BallsInBins { bins, .. } => {
                RandomParticipation::Allocation { bins: bins.get(), rounds: passes }
            }
        };
        let parameters = mechanism.moments().parameters();
        // The sensitivity in place is twice the norm of one contribution: 4A = (2√A)².
        let norms = match parameters.neighbours {
            Neighbours::ReplaceOneInPlace => 2.0,
            _ => 1.0,
        };
        let noise_multiplier = parameters.noise_multiplier * norms;
        Ok(Some(RandomContributions { participation, noise_multiplier }))
    }

    /// Returns the pair that dominates a step or a pass of random batches under the noise of a
    /// mechanism, which may take seconds to find; `None` for batches in order.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn dominating(
        &self,
        mechanism: &MatrixMechanism,
        horizon: u64,
    ) -> Result<Option<DominatingPair>, SamplingError> {
        let Some(contributions) = self.contributions(mechanism, horizon, 1)? else { return Ok(None) };
        let (pair, _) = contributions.dominating(mechanism.moments().parameters().neighbours)?;
        Ok(Some(pair))
    }

    /// Returns ε of `passes` passes with random batches, rounded up; infinite if the grid uses up
    /// δ, and `None` for batches in order. `pair` is that of [`dominating`](Self::dominating).
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn epsilon_by(
        &self,
        pair: DominatingPair,
        mechanism: &MatrixMechanism,
        (horizon, passes): (u64, u32),
        delta: Delta,
    ) -> Result<Option<f64>, SamplingError> {
        let Some(contributions) = self.contributions(mechanism, horizon, passes)? else { return Ok(None) };
        let cells = self.steps_per_pass() as f64 * f64::from(passes);
        let discreteness = mechanism.moments().drawn_discreteness(cells)?;
        Ok(Some(contributions.epsilon(pair, discreteness, delta)))
    }

    /// As [`epsilon_by`](Self::epsilon_by), and finds the pair.
    ///
    /// # Errors
    /// [`SamplingError`].
    pub fn epsilon(
        &self,
        mechanism: &MatrixMechanism,
        run: (u64, u32),
        delta: Delta,
    ) -> Result<Option<f64>, SamplingError> {
        match self.dominating(mechanism, run.0)? {
            Some(pair) => self.epsilon_by(pair, mechanism, run, delta),
            None => Ok(None),
        }
    }

    /// Returns a noise multiplier that gives the guarantee with random batches, at most a
    /// ten-thousandth above the least one; `None` for batches in order. `mechanism` has the noise
    /// of a single participation. `progress` receives the ε of each noise that is tried.
    ///
    /// The search begins with the noise that suffices if batches are public, because accounting
    /// takes longer for less noise. ln ε falls almost linearly in ln σ. So each guess is the point
    /// at which the line through both ends reaches ε, shifted by a third of the tolerance to
    /// alternating sides. Where accounting fails for less noise, a hundredth is near enough. Any
    /// result is valid, because its own ε was computed.
    ///
    /// # Errors
    /// [`SamplingError`] if no noise gives the guarantee.
    pub fn calibrated(
        &self,
        mechanism: &MatrixMechanism,
        (horizon, passes): (u64, u32),
        (epsilon, delta): (Epsilon, Delta),
        progress: &mut dyn FnMut(f64),
    ) -> Result<Option<f64>, SamplingError> {
        let Some(contributions) = self.contributions(mechanism, horizon, passes)? else { return Ok(None) };
        let wanted = epsilon.value() * (1.0 - RESERVE);
        let mut excess = |log_multiplier: f64| -> Result<f64, SamplingError> {
            let mechanism = mechanism.with_noise_multiplier(log_multiplier.exp())?;
            let epsilon = self.epsilon(&mechanism, (horizon, passes), delta)?.unwrap_or(f64::INFINITY);
            progress(epsilon);
            Ok((epsilon / wanted).ln().min(FAILED))
        };
        let parameters = mechanism.moments().parameters();
        let (cover, _) = contributions.gaussian_cover(parameters.neighbours, delta.value() * COVER_SHARE)?;
        // The cover's noise is that of the mechanism over the root of the number of participations.
        let mut high = (parameters.noise_multiplier * (parameters.noise_multiplier / cover.value())).ln();
        // If accounting fails for some noise, the noise is too small.
        let mut above = excess(high).unwrap_or(FAILED);
        let (mut low, mut below) = (high, above);
        while above > 0.0 {
            (low, below) = (high, above);
            high += 1.0;
            above = if high < LARGEST { excess(high).unwrap_or(FAILED) } else { excess(high)? };
        }
        while below <= 0.0 {
            (high, above) = (low, below);
            // Usual slopes are between 1.5 and 2, and a step too far takes the longest.
            low -= (-below / 1.5).clamp(CLOSE, 1.0);
            below = excess(low).unwrap_or(FAILED);
        }
        let mut side = 1.0;
        let tolerance = |below: f64| if below < FAILED { CLOSE } else { 1e-2 };
        while high - low > tolerance(below) {
            let share = if below < 10.0 && above > -10.0 { below / (below - above) } else { 0.5 };
            let guess = low + (high - low) * share + side * CLOSE / 3.0;
            let margin = (high - low) / 8.0;
            let guess = if high - low < 4.0 * CLOSE { (low + high) / 2.0 } else { guess };
            let guess = guess.clamp(low + margin.min(CLOSE / 4.0), high - margin.min(CLOSE / 4.0));
            let found = excess(guess).unwrap_or(FAILED);
            if found <= 0.0 {
                (high, above) = (guess, found);
            } else {
                (low, below) = (guess, found);
            }
            side = -side;
        }
        Ok(Some(high.exp()))
    }
}

/// Returns the number of bands of a strategy that encodes exactly: the contribution of a record to
/// a step changes at most this number of rows.
fn exact_bands(strategy: &dyn Strategy, horizon: u64) -> Result<Option<NonZeroU64>, MatrixError> {
    let matrix = strategy.matrix(horizon)?;
    let exact = strategy.geometry().rounding_squared == 0.0 && matrix.discrepancy().relative == 0.0;
    Ok(matrix.bands().filter(|_| exact).and_then(|bands| NonZeroU64::new(bands as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_names() {
        for sampling in Sampling::ALL {
            assert_eq!(sampling.to_string().parse(), Ok(sampling));
            assert_eq!(serde_json::to_value(sampling).unwrap(), sampling.to_string());
        }
        let error = "shuffle".parse::<Sampling>().unwrap_err().to_string();
        assert!(error.starts_with("\"shuffle\" is not a sampling scheme: expected in-order, poisson"));
    }

    #[test]
    fn groups_hold_every_record_once() {
        for (records, groups) in [(83, 4), (4, 4), (7, 5), (1 << 40, 3)] {
            let groups = NonZeroU64::new(groups).unwrap();
            let mut next = 0;
            for step in 1..=groups.get() {
                let group = group(records, step, groups);
                assert_eq!(group.start, next);
                assert!(group.end - group.start <= records.div_ceil(groups.get()));
                assert_eq!(group, super::group(records, step + 2 * groups.get(), groups));
                next = group.end;
            }
            assert_eq!(next, records);
        }
    }
}
