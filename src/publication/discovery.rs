//! The share of the budget that discovers keys, and the remaining budget of their moments.

use hushflow_mechanism::accounting::{Delta, Epsilon, MARGIN, gaussian};
use hushflow_mechanism::discovery::{Discovery, DiscoveryParameters};
use hushflow_mechanism::sensitivity::Neighbours;

use super::PublicationError;
use crate::pipeline::PublicParameters;

/// Parameters of the noise and the thresholds of discovered keys, besides the noise multiplier.
#[derive(Clone, Copy, Debug)]
pub struct DiscoverySetting {
    /// `[key] discover`.
    pub parameters: DiscoveryParameters,
    /// The neighbours of the guarantee.
    pub neighbours: Neighbours,
    /// Number of epochs.
    pub horizon: u64,
}

impl DiscoverySetting {
    /// Returns the setting of a log; `None` if its keys are listed.
    pub fn of(parameters: &PublicParameters) -> Option<Self> {
        Some(DiscoverySetting {
            parameters: parameters.discovery_parameters()?,
            neighbours: parameters.privacy.neighbours,
            horizon: parameters.epochs.schedule.horizon(),
        })
    }

    /// Returns noise and thresholds, if the noise multiplier of all releases together is
    /// `noise_multiplier`.
    ///
    /// # Errors
    /// [`PublicationError::Discovery`] names the invalid parameter.
    pub fn discovery(&self, noise_multiplier: f64) -> Result<Discovery, PublicationError> {
        Ok(Discovery::new(self.parameters, self.neighbours, noise_multiplier, self.horizon)?)
    }

    /// Returns the noise multiplier of the moments of keys, if that of all releases together is
    /// `noise_multiplier`.
    pub fn multiplier_of_moments(&self, noise_multiplier: f64) -> f64 {
        Discovery::multiplier_of_slots(self.parameters, noise_multiplier)
    }

    /// Returns the part of δ for which noise is calibrated: all but (1 + e^ε) times the distance of
    /// the discovery from a Gaussian mechanism.
    ///
    /// # Errors
    /// [`PublicationError::DiscoveryDelta`] if no δ is left.
    pub fn delta_of_noise(&self, epsilon: Epsilon, delta: Delta) -> Result<Delta, PublicationError> {
        // The cost falls as the multiplier grows, and the calibrated one is larger than `least`.
        let least = gaussian::noise_multiplier(epsilon, delta).value() * (1.0 - MARGIN);
        let distance = self.discovery(least)?.total_variation();
        let cost = (1.0 + epsilon.value().exp()) * distance * (1.0 + MARGIN);
        let excessive = PublicationError::DiscoveryDelta { cost, delta: delta.value() };
        Delta::new(delta.value() - cost).map_err(|_| excessive)
    }
}
