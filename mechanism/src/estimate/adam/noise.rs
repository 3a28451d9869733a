//! Bias and deviation of the noise in v, step by step, known before any data.

use super::{AdamSetting, GradientSquares};
use crate::mechanism::MatrixMechanism;
use crate::strategy::Strategy;
use crate::workload::{Decay, Workload};
use std::num::NonZeroU64;

/// The noise in second moments at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SecondMomentNoise {
    /// Amount to subtract from every square of this step: the variance of x̂'s noise, or 0.
    pub bias: f64,
    /// Standard deviation of the noise in v_t; 0 if v_t cannot be negative.
    pub deviation: f64,
}

/// Returns the noise of the steps 1..=`horizon`, for sums divided by the batch size, by the
/// formulas at the head of [`adam`](super).
pub fn second_moment_noise(
    mechanism: &MatrixMechanism,
    setting: &AdamSetting,
    horizon: u64,
) -> Vec<SecondMomentNoise> {
    let layout = mechanism.layout();
    let deviation = |place: usize| mechanism.moments().noise()[place].standard_deviation();
    let divisors = setting.divisors(mechanism);
    let strategies = mechanism.strategies();
    if layout.second_len() > 0 {
        let deviation = deviation(layout.second().start) / divisors[1];
        let average = Workload::Adam(setting.second_decay);
        let norms = strategies.second().decoder_row_norms(&average, horizon);
        return norms.map(|norm| SecondMomentNoise { bias: 0.0, deviation: deviation * norm }).collect();
    }
    match setting.squares {
        GradientSquares::Raw | GradientSquares::Scaling { .. } => {
            vec![SecondMomentNoise::default(); horizon as usize]
        }
        GradientSquares::Debiased => {
            let deviation = deviation(layout.first().start) / divisors[0];
            let variances = increment_variances(strategies.first(), deviation, horizon);
            of_debiased_squares(variances, setting.second_decay)
        }
    }
}

/// φ_t²: variances of the noise of decoded increments.
fn increment_variances(strategy: &dyn Strategy, deviation: f64, horizon: u64) -> impl Iterator<Item = f64> {
    let increments = Workload::Window(NonZeroU64::MIN);
    let norms = strategy.decoder_row_norms(&increments, horizon);
    norms.map(move |norm| (deviation * norm).powi(2))
}

/// `Σ_i A_ti² φ_i⁴` by its recursion, A being `(1 − β)β^(t−i)/(1 − β^t)`.
fn of_debiased_squares(variances: impl Iterator<Item = f64>, decay: Decay) -> Vec<SecondMomentNoise> {
    let (decay, mut sum) = (decay.get(), 0.0);
    let steps = variances.zip(1..).map(|(bias, t)| {
        sum = decay * decay * sum + (1.0 - decay).powi(2) * bias * bias;
        SecondMomentNoise { bias, deviation: (2.0 * sum).sqrt() / (1.0 - decay.powi(t)) }
    });
    steps.collect()
}
