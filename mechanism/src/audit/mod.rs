//! Audits: the real mechanism is run many times on neighbours that lie as far apart as neighbours can, and who sees the
//! releases tries to tell which of the two it was. How well that works bounds the privacy from below.
//!
//! An audit is no proof of privacy: it knows the pairs it tries, and proofs know all. It shows that what *runs* does what
//! was proved: a clipper that lets a unit too much through, noise that is a little too small, drawn twice or drawn in
//! floating point all give the worlds away, and tests plant each of these to see the audit find it.
//!
//! # What is measured
//! With a canary's two streams ([`canaries`]) and σ the noise multiplier, the claim is μ = 1/σ. An audit looks at
//! 1. **the distance**, in integers: a run with equal seeds gives equal noise in both worlds, so their releases differ by just
//!    v⁰ − v¹. Its length in units of the claimed noise is at most μ, without any statistics; where the sensitivity is attained,
//!    it is μ but for roundings.
//! 2. **the noise**, from the operating system: trials in one of the worlds each, by a coin. A threshold on the best linear
//!    statistic (`statistic`) makes an event that is likely in one world and unlikely in the other. How often it was seen bounds
//!    μ, and by another threshold ε, from below (`bound`). No law of the statistic is assumed.
//! 3. **the grid**: noise in integers makes the lowest bit of a release a fair coin in both worlds (with σ ≥ 2²⁶ to
//!    within e^(−10¹⁵)). Floating-point noise of that size has no such bits, and which values it can take
//!    depends on the data (Mironov, CCS 2012).
//!
//! ε at δ follows from the bound of μ by the curve that the claim itself is computed by (`accounting::gaussian`). The
//! direct bound of ε at δ assumes nothing but (ε, δ), and so needs far more than 1/δ trials to come near.
//!
//! # How sure it is
//! An honest mechanism is accused of something with a chance of at most 1 − confidence for all canaries
//! together: the chance is divided evenly among canaries and the events counted of each. The distance involves no chance.
//!
//! Sources: Nasr et al., "Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023; Steinke, Nasr &
//! Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, for many canaries in one run, each in by a coin.

pub mod bound;
mod canary;
#[cfg(test)]
mod planted;
mod runs;
mod statistic;
mod subject;

pub use canary::{Canary, canaries};
pub use subject::{Placed, RealPath, Stream, Subject};

use crate::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier, gaussian};
use crate::mechanism::{MatrixMechanism, MechanismError, Method};
use crate::moments::{ClipError, MomentError, RecordError};
use crate::noise::{EntropyError, NoiseSource};
use crate::participation::Participation;
use crate::release::ReleaseError;
use crate::strategy::MatrixError;
use bound::Count;
use runs::{Runs, Seen, Test};
use serde::Serialize;
use statistic::Known;
use thiserror::Error;

/// Counts of one canary that a chance of error is divided among: two events and the lowest bit, in two worlds, the bit
/// from both sides.
const COUNTS: f64 = 8.0;

/// Released values of one run, about: enough to make its fixed costs small.
const VALUES: usize = 1 << 18;

/// Most trials of a run.
const MOST: usize = 4096;

/// Why there is no audit.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuditError {
    /// There is no such mechanism.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// There is no such clipper.
    #[error(transparent)]
    Clip(#[from] ClipError),
    /// A record can't be clipped.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Records can't be summed.
    #[error(transparent)]
    Moments(#[from] MomentError),
    /// An epoch can't be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// There is no entropy.
    #[error(transparent)]
    Entropy(#[from] EntropyError),
    /// There is no such noise multiplier.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// The strategy can't be written out.
    #[error("the strategy can't be audited over so many epochs: {0}")]
    Matrix(#[from] MatrixError),
    /// Squares of batches take another path than sums of records.
    #[error("the method batch-squares can't be audited: its sums are made by the training loop")]
    BatchSquares,
    /// Releases whose difference is not that of encoded sums.
    #[error(
        "a mechanism that correlates its noise can't be audited, for what two of its releases differ by is not encoded: audit the one that encodes"
    )]
    Correlated,
    /// A record outside the stream.
    #[error(
        "a record is in key {key} and epoch {epoch}, outside a stream of {keys} keys and {epochs} epochs"
    )]
    Cell {
        /// Its key.
        key: u32,
        /// Its epoch.
        epoch: u64,
        /// Keys of the stream, from 0.
        keys: u32,
        /// Epochs of the stream, from 1.
        epochs: u64,
    },
    /// Too few to learn from, or to show anything.
    #[error("{found} trials are too few: give at least {least}")]
    Trials {
        /// Trials asked for.
        found: u64,
        /// The least number.
        least: u64,
    },
}

/// A mechanism, and the claim that is made of it.
pub struct Audited {
    /// What is claimed to be private, in the fewest columns that hold the worst case: its noise is that of all of them.
    pub mechanism: MatrixMechanism,
    /// How often what is protected takes part.
    pub participation: Participation,
    /// Epochs that are run; the claim may be for more.
    pub epochs: u64,
    /// Whether a record may move to another key.
    pub two_keys: bool,
    /// The claimed ε.
    pub epsilon: Epsilon,
    /// The claimed δ.
    pub delta: Delta,
}

impl Audited {
    /// The claim that this mechanism is (ε, δ)-private, audited over its first `epochs` epochs.
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

    /// The claimed μ = 1/σ.
    pub fn mu(&self) -> f64 {
        self.mechanism.moments().parameters().noise_multiplier.recip()
    }

    fn known(&self, subject: &dyn Subject, canary: &Canary) -> Result<Known, AuditError> {
        let seed = NoiseSource::Seeded(0);
        let world = |world: usize| -> Result<Vec<i128>, AuditError> {
            let sums = subject.sums(&canary.stream(self.epochs, &[world]))?;
            let nothing: Vec<_> = sums.iter().map(|row| vec![0; row.len()]).collect();
            let [released, noise] = [&sums, &nothing].map(|sums| subject.release(sums, seed));
            let values = released?.concat().into_iter().zip(noise?.concat());
            Ok(values.map(|(value, noise)| value.wrapping_sub(noise)).collect())
        };
        let noise = self.mechanism.moments().noise().repeat(canary.keys as usize);
        Ok(Known::new([world(0)?, world(1)?], &noise))
    }
}

/// How much is run, and how sure one wants to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Trials of a canary, about half of them in each world.
    pub trials: u64,
    /// Chance that an honest mechanism is accused of anything, all canaries together: 1 − confidence.
    pub false_alarm: f64,
    /// Canaries that the chance is divided among.
    pub canaries: usize,
}

impl Settings {
    /// The least number of trials.
    pub const LEAST_TRIALS: u64 = 100;

    fn check(&self) -> Result<(), AuditError> {
        let (found, least) = (self.trials, Self::LEAST_TRIALS);
        if found < least { Err(AuditError::Trials { found, least }) } else { Ok(()) }
    }

    /// The chance of error of one count.
    fn alpha(&self) -> f64 {
        self.false_alarm / COUNTS / self.canaries.max(1) as f64
    }
}

/// What contradicts a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// The streams are moved further apart than neighbours may be.
    Distance,
    /// The noise hides less than is claimed.
    Noise,
    /// The lowest bits of releases are not those of noise in integers.
    Grid,
}

/// What a canary showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The canary.
    pub canary: &'static str,
    /// Trials, of both worlds.
    pub trials: u64,
    /// The claimed μ.
    pub mu_claimed: f64,
    /// The distance of the two streams in units of the claimed noise, exact but for rounding up: no more than the claim.
    pub distance: f64,
    /// μ is no less, with the confidence of the audit.
    pub mu: f64,
    /// ε at the claimed δ is no less, for a mechanism of Gaussian differential privacy.
    pub epsilon: f64,
    /// ε at the claimed δ is no less, whatever the mechanism.
    pub epsilon_of_any: f64,
    /// Share of releases whose lowest bit is set, in each world.
    pub odd: [f64; 2],
    /// What contradicts the claim; nothing, if it is kept.
    pub violations: Vec<Violation>,
}

impl Finding {
    /// The share of the claimed ε that was reached.
    pub fn share(&self, claimed: Epsilon) -> f64 {
        self.epsilon.max(self.epsilon_of_any) / claimed.value()
    }
}

/// Audits many runs of many trials each, by the statistic that earlier trials have taught. `tell` hears the number of
/// trials done so far, of [`trials`](Settings::trials).
///
/// # Errors
/// [`AuditError`] if the subject fails, or for too few trials.
pub fn audit(
    subject: &dyn Subject,
    audited: &Audited,
    canary: &Canary,
    settings: &Settings,
    tell: &mut dyn FnMut(u64),
) -> Result<Finding, AuditError> {
    settings.check()?;
    let known = audited.known(subject, canary)?;
    let trials = (VALUES / known.origin.len().max(1)).clamp(2, MOST);
    let runs = Runs::new(subject, audited.epochs, canary, trials)?;
    let test = runs.learn(&known, audited.delta, settings)?;
    let mut seen = Seen::default();
    while seen.trials() < settings.trials {
        runs.look(&test, &mut seen)?;
        tell(seen.trials().min(settings.trials));
    }
    Ok(conclude(audited, canary, settings, &known, &seen))
}

/// Audits one run, in which every trial has its keys to itself, by the projection that is best for the noise claimed.
///
/// # Errors
/// As [`audit()`].
pub fn audit_one_run(
    subject: &dyn Subject,
    audited: &Audited,
    canary: &Canary,
    settings: &Settings,
) -> Result<Finding, AuditError> {
    settings.check()?;
    let known = audited.known(subject, canary)?;
    let runs = Runs::new(subject, audited.epochs, canary, settings.trials as usize)?;
    let statistic = known.projection();
    let distance = statistic.of(&known.moved());
    let test = Test::new(statistic, [distance, 0.0], 1.0, audited.delta, settings);
    let mut seen = Seen::default();
    runs.look(&test, &mut seen)?;
    Ok(conclude(audited, canary, settings, &known, &seen))
}

fn conclude(audited: &Audited, canary: &Canary, settings: &Settings, known: &Known, seen: &Seen) -> Finding {
    let (alpha, mu_claimed) = (settings.alpha(), audited.mu());
    let loss = audited.mechanism.moments().concentrated_loss(&known.difference);
    let mu = seen.centre.mu(alpha);
    let epsilon_of_any = seen.far.epsilon(audited.delta, alpha);
    let is_fair = |count: &Count| count.at_least(alpha) <= 0.5 && count.at_most(alpha) >= 0.5;
    let violations = [
        (Violation::Distance, loss > mu_claimed * mu_claimed / 2.0),
        (Violation::Noise, mu > mu_claimed || epsilon_of_any > audited.epsilon.value()),
        (Violation::Grid, !seen.odd.iter().all(is_fair)),
    ];
    Finding {
        canary: canary.name,
        trials: seen.trials(),
        mu_claimed,
        distance: (2.0 * loss).sqrt(),
        mu,
        epsilon: epsilon_of(mu, audited.delta),
        epsilon_of_any,
        odd: seen.odd.map(|count| count.hits as f64 / count.trials.max(1) as f64),
        violations: violations.into_iter().filter(|(_, is)| *is).map(|(violation, _)| violation).collect(),
    }
}

/// ε at δ of μ-GDP.
fn epsilon_of(mu: f64, delta: Delta) -> f64 {
    NoiseMultiplier::new(mu.recip()).map_or(0.0, |sigma| gaussian::epsilon(sigma, delta).value())
}
