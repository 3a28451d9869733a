//! Audits: lower bounds on the privacy loss of the real mechanism.
//!
//! An audit runs the mechanism many times on neighbours that are as far apart as neighbours can be.
//! An adversary sees the releases and tries to distinguish the two streams. The adversary's success
//! rate bounds the privacy loss from below.
//!
//! An audit does not prove privacy: it covers the pairs it tries, and a proof covers all pairs. It
//! shows that what *runs* does what was proved. A clipper that lets too much through, noise that is
//! slightly too small, noise drawn twice, or noise drawn in floating point makes the worlds
//! distinguishable. Tests plant each of these faults and check that the audit finds it.
//!
//! # What is measured
//! With a canary's two streams ([`canaries`]) and σ the noise multiplier, the claim is μ = 1/σ. An
//! audit measures
//! 1. **the distance**, in integers: with equal seeds both worlds have equal noise, so their
//!    releases differ by exactly v⁰ − v¹. Its length in units of the claimed noise is at most μ,
//!    without any statistics. Where the sensitivity is attained, it equals μ up to rounding.
//! 2. **the noise**, from the operating system: a coin puts each trial in one of the worlds. A
//!    threshold on the best linear statistic (`statistic`) defines an event that is likely in one
//!    world and unlikely in the other. The counts of the event bound μ from below and, with another
//!    threshold, ε (`bound`). No distribution of the statistic is assumed.
//! 3. **the grid**: integer noise makes the lowest bit of a release a fair coin in both worlds (to
//!    within e^(−10¹⁵) for σ ≥ 2²⁶). Floating-point noise of that size has no such bits, and its
//!    possible values depend on the data (Mironov, CCS 2012).
//!
//! ε at δ follows from the bound of μ by the same curve as the claim (`accounting::gaussian`). The
//! direct bound of ε at δ assumes only (ε, δ), so it needs far more than 1/δ trials to come close.
//!
//! # Confidence
//! The probability of a false alarm is at most 1 − confidence for all canaries together. It is
//! divided evenly among the canaries and the counted events of each canary. The distance does not
//! depend on chance.
//!
//! Sources: Nasr et al., "Tight Auditing of Differentially Private Machine Learning", USENIX
//! Security 2023; Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS
//! 2023, for many canaries in one run, each included by a coin.

pub mod bound;
mod canary;
#[cfg(test)]
mod planted;
mod runs;

pub use canary::{AuditSubject, CanaryRecord, CanaryStream, RealPath};
pub use canary::{Canary, canaries};

use crate::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier, gaussian};
use crate::mechanism::{MatrixMechanism, MechanismError, Method};
use crate::moments::{ClipError, HistogramError, MomentError, RecordError};
use crate::noise::{EntropyError, NoiseSource};
use crate::participation::Participation;
use crate::release::ReleaseError;
use crate::strategy::MatrixError;
use bound::Count;
use runs::CanaryWorlds;
use runs::{EventCounts, TrialRuns};
use serde::Serialize;
use thiserror::Error;

/// Number of counts of one canary that share the chance of error: two events and the lowest bit, in
/// two worlds, where the bit is tested from both sides.
const COUNTS: f64 = 8.0;

/// Approximate number of released values per run: enough to make its fixed costs small.
const VALUES: usize = 1 << 18;

/// Maximum number of trials per run.
const MOST: usize = 4096;

/// Reasons why an audit is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The mechanism is invalid.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// The clipper is invalid.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// The mechanism's histograms are malformed.
    #[error(transparent)]
    Histogram(#[from] HistogramError),
    /// A record can't be clipped.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Records can't be summed.
    #[error(transparent)]
    Moments(#[from] MomentError),
    /// An epoch can't be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The operating system gave no entropy.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// The noise multiplier is invalid.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// The matrix of the strategy can't be computed.
    #[error("the strategy can't be audited over this number of epochs: {0}")]
    Matrix(#[from] MatrixError),
    /// Squares of batches take another path than sums of records.
    #[error("the method batch-squares can't be audited: its sums are made by the training loop")]
    BatchSquares,
    /// With correlated noise, two releases do not differ by encoded sums.
    #[error(
        "a mechanism that correlates its noise can't be audited, because the difference of two of its releases is not encoded: audit the mechanism that encodes sums"
    )]
    Correlated,
    /// A record outside the stream.
    #[error(
        "a record is in key {key} and epoch {epoch}, outside a stream of {keys} keys and {epochs} epochs"
    )]
    Cell {
        /// The record's key.
        key: u32,
        /// The record's epoch.
        epoch: u64,
        /// Number of keys of the stream, which are numbered from 0.
        keys: u32,
        /// Number of epochs of the stream, which are numbered from 1.
        epochs: u64,
    },
    /// Too few trials to learn a statistic and to bound its success.
    #[error("{found} trials are too few: give at least {least}")]
    Trials {
        /// The requested trials.
        found: u64,
        /// The least number.
        least: u64,
    },
}

/// A mechanism and its claim.
pub struct AuditClaim {
    /// The mechanism that is claimed to be private, in the fewest columns that hold the worst case.
    /// Its noise is that of all columns.
    pub mechanism: MatrixMechanism,
    /// The participation of the protected unit.
    pub participation: Participation,
    /// Number of epochs that are run; the claim may cover more.
    pub epochs: u64,
    /// Whether a record may move to another key.
    pub two_keys: bool,
    /// The claimed ε.
    pub epsilon: Epsilon,
    /// The claimed δ.
    pub delta: Delta,
}

impl AuditClaim {
    /// Makes the claim that this mechanism is (ε, δ)-private, audited over its first `epochs`
    /// epochs.
    ///
    /// # Errors
    /// [`AuditError::BatchSquares`] and [`AuditError::Correlated`].
    pub fn new(
        mechanism: &MatrixMechanism,
        participation: Participation,
        epochs: u64,
        keys: u32,
        (epsilon, delta): (Epsilon, Delta),
    ) -> Result<Self, AuditError> {
        let parameters = mechanism.moments().parameters();
        if matches!(parameters.method, Method::BatchSquares { .. }) {
            return Err(AuditError::BatchSquares);
        }
        if mechanism.is_correlated() {
            return Err(AuditError::Correlated);
        }
        let mechanism = mechanism.with_fewer_columns(parameters.layout.dimension.min(2))?;
        Ok(Self { mechanism, participation, epochs, two_keys: keys > 1, epsilon, delta })
    }

    /// Returns the claimed μ = 1/σ.
    pub fn mu(&self) -> f64 {
        self.mechanism.moments().parameters().noise_multiplier.recip()
    }

    fn worlds(&self, subject: &dyn AuditSubject, canary: &Canary) -> Result<CanaryWorlds, AuditError> {
        let seed = NoiseSource::Seeded(0);
        let world = |world: usize| -> Result<Vec<i128>, AuditError> {
            let sums = subject.sums(&canary.stream(self.epochs, &[world]))?;
            let nothing: Vec<_> = sums.iter().map(|row| vec![0; row.len()]).collect();
            let [released, noise] = [&sums, &nothing].map(|sums| subject.release(sums, seed));
            let values = released?.concat().into_iter().zip(noise?.concat());
            Ok(values.map(|(value, noise)| value.wrapping_sub(noise)).collect())
        };
        let noise = self.mechanism.moments().noise().repeat(canary.keys as usize);
        Ok(CanaryWorlds::new([world(0)?, world(1)?], &noise))
    }
}

/// Size and confidence of an audit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AuditSettings {
    /// Number of trials of a canary, about half of them in each world.
    pub trials: u64,
    /// Probability of a false alarm for a correct mechanism, for all canaries together: 1 −
    /// confidence.
    pub false_alarm: f64,
    /// Number of canaries that share this probability.
    pub canaries: usize,
}

impl AuditSettings {
    /// The least number of trials.
    pub const LEAST_TRIALS: u64 = 100;

    fn check(&self) -> Result<(), AuditError> {
        let (found, least) = (self.trials, Self::LEAST_TRIALS);
        if found < least { Err(AuditError::Trials { found, least }) } else { Ok(()) }
    }

    /// Returns the chance of error of one count.
    fn alpha(&self) -> f64 {
        self.false_alarm / COUNTS / self.canaries.max(1) as f64
    }
}

/// A contradiction of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// The streams are further apart than neighbours may be.
    Distance,
    /// The noise hides less than claimed.
    Noise,
    /// The lowest bits of releases are not those of integer noise.
    Grid,
}

/// The result for one canary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditFinding {
    /// Name of the canary.
    pub canary: &'static str,
    /// Number of trials in both worlds.
    pub trials: u64,
    /// The claimed μ.
    pub mu_claimed: f64,
    /// The distance of the two streams in units of the claimed noise, exact up to rounding up. At
    /// most the claim, if the claim holds.
    pub distance: f64,
    /// Lower bound of μ, with the confidence of the audit.
    pub mu: f64,
    /// Lower bound of ε at the claimed δ, for a mechanism of Gaussian differential privacy.
    pub epsilon: f64,
    /// Lower bound of ε at the claimed δ, for any mechanism.
    pub epsilon_of_any: f64,
    /// Share of releases whose lowest bit is set, in each world.
    pub odd: [f64; 2],
    /// Contradictions of the claim; empty if it holds.
    pub violations: Vec<Violation>,
}

impl AuditFinding {
    /// Returns the share of the claimed ε that was reached.
    pub fn share(&self, claimed: Epsilon) -> f64 {
        self.epsilon.max(self.epsilon_of_any) / claimed.value()
    }
}

/// Audits many runs of many trials each, with a statistic learned from earlier trials. `progress`
/// receives the number of trials done so far, out of [`trials`](AuditSettings::trials).
///
/// # Errors
/// [`AuditError`] if the subject fails, or for too few trials.
pub fn audit(
    subject: &dyn AuditSubject,
    audited: &AuditClaim,
    canary: &Canary,
    settings: &AuditSettings,
    progress: &mut dyn FnMut(u64),
) -> Result<AuditFinding, AuditError> {
    settings.check()?;
    let worlds = audited.worlds(subject, canary)?;
    let trials = (VALUES / worlds.origin.len().max(1)).clamp(2, MOST);
    let runs = TrialRuns::new(subject, audited.epochs, canary, trials)?;
    let test = runs.learn(&worlds, audited.delta, settings)?;
    let mut counts = EventCounts::default();
    while counts.trials() < settings.trials {
        runs.count_events(&test, &mut counts)?;
        progress(counts.trials().min(settings.trials));
    }
    Ok(conclude(audited, canary, settings, &worlds, &counts))
}

fn conclude(
    audited: &AuditClaim,
    canary: &Canary,
    settings: &AuditSettings,
    worlds: &CanaryWorlds,
    counts: &EventCounts,
) -> AuditFinding {
    let (alpha, mu_claimed) = (settings.alpha(), audited.mu());
    let loss = audited.mechanism.moments().concentrated_loss(&worlds.difference);
    let mu = counts.centre.mu(alpha);
    let epsilon_of_any = counts.far.epsilon(audited.delta, alpha);
    let is_fair = |count: &Count| count.at_least(alpha) <= 0.5 && count.at_most(alpha) >= 0.5;
    let violations = [
        (Violation::Distance, loss > mu_claimed * mu_claimed / 2.0),
        (Violation::Noise, mu > mu_claimed || epsilon_of_any > audited.epsilon.value()),
        (Violation::Grid, !counts.odd.iter().all(is_fair)),
    ];
    AuditFinding {
        canary: canary.name,
        trials: counts.trials(),
        mu_claimed,
        distance: (2.0 * loss).sqrt(),
        mu,
        epsilon: epsilon_of(mu, audited.delta),
        epsilon_of_any,
        odd: counts.odd.map(|count| count.hits as f64 / count.trials.max(1) as f64),
        violations: violations.into_iter().filter(|(_, is)| *is).map(|(violation, _)| violation).collect(),
    }
}

/// Returns ε at δ of μ-GDP.
fn epsilon_of(mu: f64, delta: Delta) -> f64 {
    NoiseMultiplier::new(mu.recip()).map_or(0.0, |sigma| gaussian::epsilon(sigma, delta).value())
}
