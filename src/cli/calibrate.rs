//! `hushflow calibrate`: computes ε, δ or the noise multiplier from the other two, and ε or δ of
//! several mechanisms.

use clap::Args;
use hushflow::mechanism::accounting::event::{Accountant, EventSpending, PrivacyEvent, PrivacyEvents};
use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, gaussian};
use serde::Serialize;
use serde_json::{Value, json};

use super::output::{number, print_json, print_wrapped, table};
use super::{CliError, number_in};

/// Arguments of `hushflow calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Give two of the three options; calibrate computes the third: the noise that a guarantee needs, or the guarantee that a \
noise level gives. The noise multiplier is the standard deviation of the noise divided by the sensitivity; hushflow plan \
shows its effect on a stream.

The numbers are exact for continuous noise. A run uses slightly more noise, never less, to allow for rounding.

With --events and one of ε and δ, calibrate computes the other one for several mechanisms on the same data. Each may depend \
on what the earlier ones have released; the list may not. Events are separated by commas, each with a number of times before it \
if it is more than one:
  gaussian:σ             Gaussian noise of σ times the sensitivity
  sampled-gaussian:σ:q   the same on a Poisson sample of the records, at rate q
  laplace:b              Laplace noise of b times the sensitivity
  pure:ε                 any ε-private mechanism
  selection:ε            an exponential mechanism whose log-ratios have a range of ε
Neighbours differ in one record; with sampled events, it is missing in one of them. The result is the least of three upper \
bounds: by privacy loss distributions (pld), with their numerical error; by one Gaussian mechanism that reveals at least as \
much (gdp); by ρ (zcdp). The last two know no sampling.

Examples:
  hushflow calibrate --events '1000*sampled-gaussian:1.1:0.01' --delta 1e-5
  hushflow calibrate --events 'gaussian:4,20*selection:0.1,pure:0.5' --delta 1e-6 --json
  hushflow calibrate --epsilon 1 --delta 1e-6
  hushflow calibrate --noise-multiplier 4 --delta 1e-6 --json
  hushflow calibrate --noise-multiplier 4 --epsilon 2")]
pub(crate) struct CalibrateArguments {
    /// ε of (ε, δ)-differential privacy, at least 0
    #[arg(long, value_name = "ε", allow_hyphen_values = true, value_parser = number_in(Epsilon::new))]
    epsilon: Option<Epsilon>,
    /// δ of (ε, δ)-differential privacy, between 0 and 1
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// σ: standard deviation of the noise divided by the sensitivity, above 0
    #[arg(long, value_name = "σ", allow_hyphen_values = true, value_parser = number_in(NoiseMultiplier::new))]
    noise_multiplier: Option<NoiseMultiplier>,
    /// Mechanisms on the same data, such as gaussian:4,20*selection:0.1
    #[arg(long, value_name = "EVENTS", conflicts_with = "noise_multiplier")]
    events: Option<PrivacyEvents>,
    /// Print one JSON object, with all digits
    #[arg(long)]
    json: bool,
}

/// A noise multiplier and its guarantee.
#[derive(Clone, Copy, Debug, Serialize)]
struct CalibrationReport {
    epsilon: f64,
    /// 0 where it is below the smallest positive floating-point number.
    delta: f64,
    /// Natural logarithm of δ; finite even where `delta` is 0.
    log_delta: f64,
    noise_multiplier: f64,
    /// ρ of zero-concentrated differential privacy.
    rho: f64,
    /// μ of Gaussian differential privacy.
    mu: f64,
}

impl CalibrationReport {
    fn new(epsilon: Epsilon, delta: f64, log_delta: f64, noise_multiplier: NoiseMultiplier) -> Self {
        CalibrationReport {
            epsilon: epsilon.value(),
            delta,
            log_delta,
            noise_multiplier: noise_multiplier.value(),
            rho: noise_multiplier.rho().value(),
            mu: noise_multiplier.mu(),
        }
    }

    /// Returns the guarantee that the two given numbers determine.
    fn of(arguments: &CalibrateArguments) -> Result<Self, CliError> {
        let of_delta = |epsilon, delta: Delta, noise_multiplier| {
            CalibrationReport::new(epsilon, delta.value(), delta.value().ln(), noise_multiplier)
        };
        match (arguments.epsilon, arguments.delta, arguments.noise_multiplier) {
            (Some(epsilon), Some(delta), None) => {
                Ok(of_delta(epsilon, delta, gaussian::noise_multiplier(epsilon, delta)))
            }
            (None, Some(delta), Some(sigma)) => Ok(of_delta(gaussian::epsilon(sigma, delta), delta, sigma)),
            (Some(epsilon), None, Some(sigma)) => {
                let log_delta = gaussian::log_delta(sigma, epsilon);
                Ok(CalibrationReport::new(epsilon, gaussian::delta(sigma, epsilon), log_delta, sigma))
            }
            (epsilon, delta, sigma) => Err(wrong_number(epsilon, delta, sigma)),
        }
    }

    fn text(&self) -> String {
        let [epsilon, sigma, rho, mu] = [self.epsilon, self.noise_multiplier, self.rho, self.mu].map(number);
        // Never print 0: it would overstate the guarantee.
        let delta = match self.delta {
            0.0 => format!("e^{}", number(self.log_delta)),
            delta => number(delta),
        };
        let sentence = format!(
            "\nGaussian noise with a standard deviation of {sigma} times the sensitivity is ({epsilon}, {delta})-differentially private.\n"
        );
        let rows = [
            ["ε".into(), epsilon],
            ["δ".into(), delta],
            ["noise multiplier σ".into(), sigma],
            ["ρ of zCDP".into(), rho],
            ["μ of Gaussian DP".into(), mu],
        ];
        table(&rows.map(Vec::from)) + &sentence
    }
}

fn wrong_number(epsilon: Option<Epsilon>, delta: Option<Delta>, sigma: Option<NoiseMultiplier>) -> CliError {
    let found = usize::from(epsilon.is_some()) + usize::from(delta.is_some()) + usize::from(sigma.is_some());
    CliError::usage(format!(
        "found {found} of --epsilon, --delta and --noise-multiplier, expected two: leave out the one to compute"
    ))
}

/// Joint spending of several mechanisms.
struct EventReport<'a> {
    events: &'a PrivacyEvents,
    spending: EventSpending,
    /// The given number, and whether it is δ.
    given: (f64, bool),
}

impl<'a> EventReport<'a> {
    fn of(arguments: &CalibrateArguments, events: &'a PrivacyEvents) -> Result<Self, CliError> {
        let report = |spending, given| Self { events, spending, given };
        let found = match (arguments.epsilon, arguments.delta) {
            (None, Some(delta)) => events.epsilon(delta).map(|found| report(found, (delta.value(), true))),
            (Some(epsilon), None) => {
                events.delta(epsilon).map(|found| report(found, (epsilon.value(), false)))
            }
            (epsilon, _) => {
                let found = if epsilon.is_some() { "both" } else { "none" };
                return Err(CliError::usage(format!(
                    "found {found} of --epsilon and --delta beside --events, expected one: leave out the one to compute"
                )));
            }
        };
        found.map_err(|error| CliError::usage(format!("--events: {error}")))
    }

    fn epsilon_and_delta(&self) -> (f64, f64) {
        let (least, _) = self.spending.least();
        if self.given.1 { (least, self.given.0) } else { (self.given.0, least) }
    }

    /// Returns the numerical error of the result: 0 for closed forms.
    fn numerical_error(&self) -> f64 {
        match (self.spending.least().1, self.spending.pld) {
            (Accountant::PrivacyLossDistributions, Some(found)) => found.high - found.low,
            _ => 0.0,
        }
    }

    fn json(&self) -> Value {
        let EventSpending { pld, gdp, zcdp } = self.spending;
        let (epsilon, delta) = self.epsilon_and_delta();
        let event = |(event, count)| json!({ "event": PrivacyEvent::to_string(&event), "count": count });
        json!({
            "epsilon": epsilon,
            "delta": delta,
            "accountant": self.spending.least().1.to_string(),
            "numerical_error": self.numerical_error(),
            "pld": pld.map(|found| json!({ "low": found.low, "high": found.high })),
            "gdp": gdp,
            "zcdp": zcdp,
            "events": self.events.iter().map(event).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let row = |name: String, value: String| vec![name, value];
        let events = [row("event".into(), "times".into())].into_iter();
        let events =
            events.chain(self.events.iter().map(|(event, count)| row(event.to_string(), count.to_string())));
        let EventSpending { pld, gdp, zcdp } = self.spending;
        let results = [
            row("accountant".into(), if self.given.1 { "ε" } else { "δ" }.into()),
            row("pld".into(), pld.map_or("-".into(), |found| number(found.high))),
            row("gdp".into(), number(gdp)),
            row("zcdp".into(), number(zcdp)),
        ];
        let (epsilon, delta) = self.epsilon_and_delta();
        let error = match self.numerical_error() {
            0.0 => String::new(),
            error => format!(", numerical error at most {}", number(error)),
        };
        format!(
            "{}\n{}\nTogether they are ({}, {})-differentially private (by {}{error}).\n",
            table(&events.collect::<Vec<_>>()),
            table(&results),
            number(epsilon),
            number(delta),
            self.spending.least().1
        )
    }
}

/// Prints the guarantee.
pub(crate) fn execute(arguments: &CalibrateArguments) -> Result<(), CliError> {
    if let Some(events) = &arguments.events {
        let report = EventReport::of(arguments, events)?;
        return Ok(if arguments.json { print_json(&report.json()) } else { print_wrapped(&report.text()) }?);
    }
    let guarantee = CalibrationReport::of(arguments)?;
    Ok(if arguments.json { print_json(&guarantee) } else { print_wrapped(&guarantee.text()) }?)
}
