//! `hushflow calibrate`: computes ε, δ or the noise multiplier from the other two.

use clap::Args;
use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier, gaussian};
use serde::Serialize;

use super::output::{number, print, print_json, table};
use super::{CliError, number_in};

/// Arguments of `hushflow calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Give two of the three options; calibrate computes the third: the noise that a guarantee needs, or the guarantee that a \
noise level gives. The noise multiplier is the standard deviation of the noise divided by the sensitivity; hushflow plan \
shows its effect on a stream.

The numbers are exact for continuous noise. A run uses slightly more noise, never less, to allow for rounding.

Examples:
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

/// Prints the guarantee.
pub(crate) fn execute(arguments: &CalibrateArguments) -> Result<(), CliError> {
    let guarantee = CalibrationReport::of(arguments)?;
    Ok(if arguments.json { print_json(&guarantee) } else { print(&guarantee.text()) }?)
}
