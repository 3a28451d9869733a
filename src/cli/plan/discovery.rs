//! Forecasts the number of records that discovered keys need, before any data are read.

use std::io;

use hushflow::mechanism::discovery::Counted;
use hushflow::publication::{DiscoverySetting, PublicationError};
use serde::Serialize;

use super::super::output::{number, print_json, print_wrapped};
use super::super::thousands;
use super::forecast::{Forecast, StreamPlan};

/// Noise and thresholds of discovered keys.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DiscoveryForecast {
    /// Probability that any key of a single record, or of a single entity, is ever shown.
    delta: f64,
    /// Share of the budget.
    share: f64,
    /// Number of slots.
    most: u32,
    at_least: u64,
    /// `records`, or `entities`, each once for a key.
    counted: &'static str,
    /// Maximum number of keys that a unit of the guarantee touches in all epochs.
    keys_of_one: u32,
    first_epoch: KeyTest,
    last_epoch: KeyTest,
}

/// The test of a key after an epoch, in records or entities.
#[derive(Clone, Copy, Debug, Serialize)]
struct KeyTest {
    /// Number beyond which a noisy count shows a key.
    threshold: f64,
    /// Standard deviation of the noise.
    deviation: f64,
}

impl DiscoveryForecast {
    /// Computes the forecast for the noise multiplier of all releases together.
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
            counted: match parameters.counted {
                Counted::Records => "records",
                Counted::Entities { .. } => "entities",
            },
            keys_of_one: parameters.counted.most_records(),
            first_epoch: test(1),
            last_epoch: test(setting.horizon),
        })
    }

    /// Formats the forecast as a paragraph.
    fn text(&self) -> String {
        let test = |test: KeyTest| format!("{} (noise {})", number(test.threshold), number(test.deviation));
        let of_one = match (self.counted, self.at_least) {
            ("records", 1) => "A key of one record is shown".to_owned(),
            ("records", least) => format!("A key of at most {} records is shown", thousands(least)),
            (_, least) => format!(
                "One entity has records of at most {} {} in all epochs; any of these that no other entity has{} is shown",
                thousands(self.keys_of_one.into()),
                if self.keys_of_one == 1 { "key" } else { "keys" },
                if least == 1 {
                    String::new()
                } else {
                    format!(", or that have at most {} entities,", thousands(least))
                },
            ),
        };
        format!(
            "\nKeys are discovered: one is shown once its noisy number of {} so far exceeds {} after the first epoch, {} after \
             the last. {of_one} with a probability of at most {:e} in all epochs together; (1 + e^ε) times that is part of δ. \
             Finding keys takes {} of the budget, and all {} slots are released whether they have a key or not.\n",
            if self.counted == "records" { "records" } else { "different entities" },
            test(self.first_epoch),
            test(self.last_epoch),
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

/// A plan with the forecast of the discovery of keys.
#[derive(Debug, Serialize)]
struct WithDiscovery<P> {
    #[serde(flatten)]
    plan: P,
    #[serde(skip_serializing_if = "Option::is_none")]
    discovery: Option<DiscoveryForecast>,
}

/// Prints a plan as text, or as JSON if there is no function for its text. Adds the discovery of
/// keys if they are discovered.
pub(super) fn print<P: Serialize>(
    plan: P,
    discovery: Option<DiscoveryForecast>,
    text: Option<impl FnOnce(&P) -> String>,
) -> io::Result<()> {
    let Some(text) = text else { return print_json(&WithDiscovery { plan, discovery }) };
    print_wrapped(&(text(&plan) + &discovery.map_or(String::new(), |discovery| discovery.text())))
}
