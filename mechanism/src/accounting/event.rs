//! Lists of named mechanisms, and their joint privacy cost by the best accountant.
//!
//! The list is fixed beforehand. Each mechanism may depend on the releases of earlier ones.
//!
//! | event | pair of [`pld`](super::pld) | μ² of Gaussian DP | ρ of zCDP |
//! |---|---|---|---|
//! | `gaussian:σ` | normal | 1/σ² | 1/(2σ²) |
//! | `sampled-gaussian:σ:q` | mixture, both directions | as if not sampled | as if not sampled |
//! | `laplace:b` | Laplace | as `pure:1/b` | as `pure:1/b` |
//! | `pure:ε` | randomised response | [`bounded_range::equivalent_noise_multiplier`] | ε²/2 |
//! | `selection:ε` | logistic | πε²/8 | ε²/8 |
//!
//! Sampling does not raise δ: the mixture is a random function of a pair of normal distributions.
//! The value of ρ is from Bun & Steinke 2016, Proposition 3.3, for a pure mechanism, and from Cesar
//! & Rogers 2021, Lemma 3.2, for a selection.

use super::pld::{Composition, DominatingPair, Enclosure};
use super::{AccountingError, Delta, Epsilon, MARGIN, NoiseMultiplier, Rho, bounded_range, gaussian, zcdp};
use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A mechanism, by the bound of its privacy loss between neighbours.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PrivacyEvent {
    /// Gaussian noise.
    Gaussian(NoiseMultiplier),
    /// Gaussian noise on a Poisson sample with this rate; neighbours differ in one record, which is
    /// missing in one of them.
    SampledGaussian(NoiseMultiplier, f64),
    /// Laplace noise of this scale, for a sensitivity of 1.
    Laplace(f64),
    /// Any ε-private mechanism.
    Pure(Epsilon),
    /// Any ε-bounded-range mechanism, such as a selection by the exponential mechanism.
    Selection(Epsilon),
}

/// Errors in a list of events.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum EventError {
    /// An unknown form.
    #[error(
        "found {0:?}, expected gaussian:σ, sampled-gaussian:σ:q, laplace:b, pure:ε or selection:ε, \
         preceded by a count if the event occurs more than once, such as 1000*sampled-gaussian:1.1:0.01"
    )]
    Form(String),
    /// A number out of range.
    #[error("in {text:?}, {source}")]
    Number {
        /// The event.
        text: String,
        /// The reason.
        source: AccountingError,
    },
}

impl PrivacyEvent {
    /// Returns the dominating pair (P, Q): P is the distribution with the record.
    ///
    /// # Errors
    /// [`AccountingError`] for parameters out of range.
    pub fn pair(&self) -> Result<DominatingPair, AccountingError> {
        match *self {
            Self::Gaussian(sigma) => DominatingPair::gaussian(sigma),
            Self::SampledGaussian(sigma, rate) => DominatingPair::poisson_sampled_gaussian(sigma, rate),
            Self::Laplace(scale) => DominatingPair::laplace(scale),
            Self::Pure(epsilon) => DominatingPair::pure(epsilon),
            Self::Selection(epsilon) => DominatingPair::bounded_range(epsilon),
        }
    }

    /// Returns μ² of a Gaussian mechanism that reveals at least as much.
    fn squared_mu(&self) -> Result<f64, AccountingError> {
        Ok(match *self {
            Self::Gaussian(sigma) | Self::SampledGaussian(sigma, _) => sigma.mu().powi(2),
            Self::Laplace(scale) => {
                bounded_range::equivalent_noise_multiplier(Epsilon::new(scale.recip())?)?.mu().powi(2)
            }
            Self::Pure(epsilon) => bounded_range::equivalent_noise_multiplier(epsilon)?.mu().powi(2),
            Self::Selection(epsilon) => PI * epsilon.value().powi(2) / 8.0,
        })
    }

    fn rho(&self) -> f64 {
        match *self {
            Self::Gaussian(sigma) | Self::SampledGaussian(sigma, _) => sigma.rho().value(),
            Self::Laplace(scale) => scale.powi(-2) / 2.0,
            Self::Pure(epsilon) => epsilon.value().powi(2) / 2.0,
            Self::Selection(epsilon) => epsilon.value().powi(2) / 8.0,
        }
    }
}

impl fmt::Display for PrivacyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gaussian(sigma) => write!(f, "gaussian:{}", sigma.value()),
            Self::SampledGaussian(sigma, rate) => write!(f, "sampled-gaussian:{}:{rate}", sigma.value()),
            Self::Laplace(scale) => write!(f, "laplace:{scale}"),
            Self::Pure(epsilon) => write!(f, "pure:{}", epsilon.value()),
            Self::Selection(epsilon) => write!(f, "selection:{}", epsilon.value()),
        }
    }
}

impl FromStr for PrivacyEvent {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Self, EventError> {
        let mut parts = text.split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let numbers: Option<Vec<f64>> = parts.map(|part| part.parse().ok()).collect();
        let event = match (name, numbers.as_deref()) {
            ("gaussian", Some(&[sigma])) => NoiseMultiplier::new(sigma).map(Self::Gaussian),
            ("sampled-gaussian", Some(&[sigma, rate])) => {
                NoiseMultiplier::new(sigma).map(|sigma| Self::SampledGaussian(sigma, rate))
            }
            ("laplace", Some(&[scale])) => Ok(Self::Laplace(scale)),
            ("pure", Some(&[epsilon])) => Epsilon::new(epsilon).map(Self::Pure),
            ("selection", Some(&[epsilon])) => Epsilon::new(epsilon).map(Self::Selection),
            _ => return Err(EventError::Form(text.into())),
        };
        event
            .and_then(|event| event.pair().map(|_| event))
            .map_err(|source| EventError::Number { text: text.into(), source })
    }
}

/// A method of composing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accountant {
    /// Privacy loss distributions.
    PrivacyLossDistributions,
    /// One Gaussian mechanism that reveals at least as much.
    Gaussian,
    /// ρ of zero-concentrated differential privacy.
    ZeroConcentrated,
}

impl fmt::Display for Accountant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrivacyLossDistributions => "pld",
            Self::Gaussian => "gdp",
            Self::ZeroConcentrated => "zcdp",
        })
    }
}

/// ε or δ of events together, by every accountant. All but the lower end of `pld` are upper bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventSpending {
    /// By privacy loss distributions; `None` where they give no bound.
    pub pld: Option<Enclosure>,
    /// By Gaussian differential privacy.
    pub gdp: f64,
    /// By zero-concentrated differential privacy.
    pub zcdp: f64,
}

impl EventSpending {
    /// Returns the least of the upper bounds, with its accountant. If bounds are equal, it names
    /// the simplest accountant.
    pub fn least(&self) -> (f64, Accountant) {
        let pld = self.pld.map_or(f64::INFINITY, |found| found.high);
        if self.gdp <= pld && self.gdp <= self.zcdp {
            (self.gdp, Accountant::Gaussian)
        } else if self.zcdp <= pld {
            (self.zcdp, Accountant::ZeroConcentrated)
        } else {
            (pld, Accountant::PrivacyLossDistributions)
        }
    }
}

/// Events, and how often each occurs. Both are fixed beforehand.
///
/// ```
/// use hushflow_mechanism::accounting::event::{Accountant, PrivacyEvents};
/// use hushflow_mechanism::accounting::Delta;
///
/// let events: PrivacyEvents = "gaussian:4, 20*selection:0.1".parse()?;
/// let (epsilon, accountant) = events.epsilon(Delta::new(1e-6)?)?.least();
/// assert_eq!(accountant, Accountant::PrivacyLossDistributions);
/// assert!(epsilon < 1.64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PrivacyEvents(Vec<(PrivacyEvent, u64)>);

impl PrivacyEvents {
    /// Returns each event with its count.
    pub fn iter(&self) -> impl Iterator<Item = (PrivacyEvent, u64)> {
        self.0.iter().copied()
    }

    /// Returns the composition of the dominating pairs, in the worse direction.
    ///
    /// # Errors
    /// [`AccountingError`] for parameters out of range.
    pub fn composition(&self) -> Result<Composition, AccountingError> {
        let compose = |sum: Composition, (event, count): (PrivacyEvent, u64)| {
            event.pair().map(|pair| sum.compose(pair, count))
        };
        self.iter().try_fold(Composition::default().either_direction(), compose)
    }

    /// Returns ε for this δ, rounded up.
    ///
    /// # Errors
    /// [`AccountingError`] if more is spent than can be counted.
    pub fn epsilon(&self, delta: Delta) -> Result<EventSpending, AccountingError> {
        Ok(EventSpending {
            pld: self.composition()?.epsilon(delta),
            gdp: gaussian::epsilon_rounded_up(self.noise_multiplier()?, delta).value(),
            zcdp: zcdp::epsilon_rounded_up(self.rho()?, delta).value(),
        })
    }

    /// Returns δ for this ε, rounded up.
    ///
    /// # Errors
    /// [`AccountingError`] if more is spent than can be counted.
    pub fn delta(&self, epsilon: Epsilon) -> Result<EventSpending, AccountingError> {
        let rounded_up = |delta: f64| (delta * (1.0 + MARGIN)).min(1.0);
        Ok(EventSpending {
            pld: Some(self.composition()?.delta(epsilon)),
            gdp: rounded_up(gaussian::delta(self.noise_multiplier()?, epsilon)),
            zcdp: rounded_up(zcdp::delta(self.rho()?, epsilon)),
        })
    }

    /// Returns the noise multiplier of the Gaussian mechanism that reveals at least as much,
    /// rounded down.
    fn noise_multiplier(&self) -> Result<NoiseMultiplier, AccountingError> {
        let squared = self.iter().try_fold(0.0, |sum, (event, count)| {
            event.squared_mu().map(|squared| sum + squared * count as f64)
        })?;
        let squared = squared.max(MIN_COST);
        NoiseMultiplier::new((squared * (1.0 + MARGIN)).sqrt().recip() * (1.0 - MARGIN))
    }

    /// Returns ρ of all events, rounded up.
    fn rho(&self) -> Result<Rho, AccountingError> {
        let rho: f64 = self.iter().map(|(event, count)| event.rho() * count as f64).sum();
        Rho::new(rho.max(MIN_COST) * (1.0 + MARGIN))
    }
}

impl FromStr for PrivacyEvents {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Self, EventError> {
        let event = |text: &str| {
            let (count, event) = text.split_once('*').unwrap_or(("1", text));
            match count.trim().parse() {
                Ok(count @ 1..=MAX_COUNT) => Ok((event.trim().parse()?, count)),
                _ => Err(EventError::Form(text.trim().into())),
            }
        };
        text.split(',').map(event).collect::<Result<_, _>>().map(Self)
    }
}

/// Minimum μ² and ρ that are charged, so that events whose cost underflows are not free.
const MIN_COST: f64 = 1e-300;

/// Largest count of an event.
const MAX_COUNT: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::tests::{del, eps};
    use super::*;

    fn events(text: &str) -> PrivacyEvents {
        text.parse().unwrap()
    }

    #[test]
    fn events_are_read_and_written() {
        let text = "3*gaussian:4,sampled-gaussian:1.1:0.01,laplace:2,10*pure:0.5,selection:0.25";
        let read: Vec<String> =
            events(text).iter().map(|(event, count)| format!("{count}*{event}")).collect();
        assert_eq!(read.join(",").replace("1*s", "s").replace(",1*l", ",l"), text);
        for wrong in [
            "",
            "gauss:1",
            "gaussian",
            "gaussian:1:2",
            "0*gaussian:1",
            "gaussian:x",
            "-1*pure:1",
            "gaussian:1,",
        ] {
            assert!(matches!(wrong.parse::<PrivacyEvents>(), Err(EventError::Form(_))), "{wrong}");
        }
        for wrong in [
            "gaussian:0",
            "gaussian:0.01",
            "sampled-gaussian:1:0",
            "sampled-gaussian:1:2",
            "laplace:0",
            "pure:-1",
            "pure:0",
            "selection:NaN",
        ] {
            assert!(matches!(wrong.parse::<PrivacyEvents>(), Err(EventError::Number { .. })), "{wrong}");
        }
    }

    /// For each list the expected accountant gives the least ε. No ε is below the lower end of
    /// `pld`, and δ at that ε exceeds the given δ by at most 0.1 %.
    #[test]
    fn the_best_accountant_gives_the_result() {
        for (text, expected) in [
            ("gaussian:4", Accountant::Gaussian),
            ("16*gaussian:16", Accountant::Gaussian),
            ("100*sampled-gaussian:1:0.01", Accountant::PrivacyLossDistributions),
            ("gaussian:4,20*selection:0.1", Accountant::PrivacyLossDistributions),
            ("40*pure:0.05", Accountant::PrivacyLossDistributions),
            ("gaussian:3,10*laplace:10", Accountant::PrivacyLossDistributions),
        ] {
            let found = events(text).epsilon(del(1e-6)).unwrap();
            let (least, accountant) = found.least();
            assert_eq!(accountant, expected, "{text}: {found:?}");
            assert!(found.pld.unwrap().low <= least, "{text}: {found:?}");
            let delta = events(text).delta(eps(least)).unwrap();
            assert!(delta.least().0 <= 1.001e-6 && delta.pld.unwrap().low <= 1.001e-6, "{text}: {delta:?}");
        }
    }
}
