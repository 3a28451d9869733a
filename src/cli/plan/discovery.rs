//! Forecasts the records that discovered keys need, before any data are read.

use std::io;

use hushflow::publication::{DiscoverySetting, PublicationError};
use serde::Serialize;

use super::super::output::{number, print_json, print_wrapped};
use super::super::thousands;
use super::forecast::{Forecast, StreamPlan};

/// Noise and thresholds of discovered keys.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DiscoveryForecast {
    /// Probability that a key of at most `at_least` records is ever shown.
    delta: f64,
    /// Share of the budget.
    share: f64,
    /// Number of slots.
    most: u32,
    at_least: u64,
    first_epoch: KeyTest,
    last_epoch: KeyTest,
}

/// The test of a key after an epoch, in records.
#[derive(Clone, Copy, Debug, Serialize)]
struct KeyTest {
    /// Records beyond which a noisy count shows a key.
    threshold: f64,
    /// Standard deviation of the noise.
    deviation: f64,
}

impl DiscoveryForecast {
    /// Computes it for the noise multiplier of all releases together.
    pub(super) fn new(setting: &DiscoverySetting, noise_multiplier: f64) -> Result<Self, PublicationError> {
        let discovery = setting.discovery(noise_multiplier)?;
        let test =
            |epoch| KeyTest { threshold: discovery.threshold(epoch), deviation: discovery.deviation(epoch) };
        let parameters = setting.parameters;
        Ok(DiscoveryForecast {
            delta: parameters.delta,
            share: parameters.share,
            most: parameters.most,
            at_least: parameters.at_least,
            first_epoch: test(1),
            last_epoch: test(setting.horizon),
        })
    }

    /// Formats it as a paragraph.
    fn text(&self) -> String {
        let test = |test: KeyTest| format!("{} (noise {})", number(test.threshold), number(test.deviation));
        format!(
            "\nKeys are discovered: one is shown once its noisy number of records so far exceeds {} after the first epoch, {} after \
             the last. A key of at most {} is shown with a probability of at most {:e} in all epochs together; (1 + e^ε) times \
             that is part of δ. Finding keys takes {} of the budget, and all {} slots are released whether they have a key or \
             not.\n",
            test(self.first_epoch),
            test(self.last_epoch),
            if self.at_least == 1 {
                "one record".into()
            } else {
                format!("{} records", thousands(self.at_least))
            },
            self.delta,
            number(self.share),
            thousands(self.most.into()),
        )
    }
}

/// Returns the forecast of the discovery of keys, if they are discovered.
pub(super) fn discovery(
    plan: &StreamPlan,
    forecast: Option<&Forecast>,
) -> Result<Option<DiscoveryForecast>, PublicationError> {
    let multiplier = forecast.and_then(|forecast| forecast.budget.noise_multiplier).unwrap_or(1.0);
    plan.discovery.map(|setting| DiscoveryForecast::new(&setting, multiplier)).transpose()
}

/// A plan, and that of the discovery of keys.
#[derive(Debug, Serialize)]
struct WithDiscovery<P> {
    #[serde(flatten)]
    plan: P,
    #[serde(skip_serializing_if = "Option::is_none")]
    discovery: Option<DiscoveryForecast>,
}

/// Prints a plan as text, or as JSON without a function for its text, with the discovery of keys if
/// they are discovered.
pub(super) fn print<P: Serialize>(
    plan: P,
    discovery: Option<DiscoveryForecast>,
    text: Option<impl FnOnce(&P) -> String>,
) -> io::Result<()> {
    let Some(text) = text else { return print_json(&WithDiscovery { plan, discovery }) };
    print_wrapped(&(text(&plan) + &discovery.map_or(String::new(), |discovery| discovery.text())))
}
