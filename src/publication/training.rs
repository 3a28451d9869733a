//! The guarantee of a training run: what its passes spend, and its random batches.

use hushflow_mechanism::accounting::{Epsilon, MARGIN};
use hushflow_mechanism::mechanism::{MatrixMechanism, MomentParameters};
use hushflow_mechanism::sampling::{Batches, Scheme};

use super::{MomentPublication, PublicationError, guarantee};
use crate::ledger::SampledSpending;
use crate::pipeline::PublicParameters;

/// Share of δ that the Gaussian cover of random batches may add to it.
const COVER_SHARE: f64 = 1.0 / 1024.0;

/// Returns the batches of a training run that draws them at random, and its numbers of steps and
/// passes.
pub(super) fn random_batches(parameters: &PublicParameters) -> Option<(Batches, (u64, u32))> {
    let training = parameters.training.as_ref().filter(|training| !training.sampling.is_public())?;
    Some((training.batches(), (parameters.epochs.schedule.horizon(), training.passes)))
}

/// Returns the noise multiplier and the total variation of one Gaussian mechanism that reveals at
/// least as much as a run with random batches.
pub(super) fn gaussian_cover(
    parameters: &PublicParameters,
    sampled: &SampledSpending,
) -> Result<(f64, f64), PublicationError> {
    let (epsilon, delta) = guarantee(parameters)?;
    let share = COVER_SHARE * delta.value() / (1.0 + epsilon.value().exp());
    let neighbours = parameters.privacy.neighbours;
    let (cover, variation) = sampled.contributions.gaussian_cover(neighbours, share)?;
    Ok((cover.value(), (sampled.total_variation + variation) * (1.0 + MARGIN)))
}

impl MomentPublication {
    /// Returns what an accountant needs of random batches; `None` if there are none.
    pub(super) fn sampled(&self) -> Result<Option<SampledSpending>, PublicationError> {
        let Some((batches, (steps, passes))) = random_batches(self.parameters()) else { return Ok(None) };
        let total_variation = self.total_variation()?;
        let contributions = batches.contributions(self.mechanism(), steps, passes)?;
        Ok(contributions.map(|contributions| SampledSpending { contributions, total_variation }))
    }

    /// Returns ε spent after this number of passes of training, at δ of the guarantee: the cost of
    /// a row's gradients until then, under the noise of the whole run. `None` if no model is
    /// trained.
    ///
    /// # Errors
    /// [`PublicationError`] if it can't be counted.
    pub fn spent_after(&self, passes: u32) -> Result<Option<f64>, PublicationError> {
        let Some(training) = &self.parameters().training else { return Ok(None) };
        let (_, delta) = guarantee(self.parameters())?;
        let moments = self.mechanism().moments();
        if let Some((batches, (horizon, _))) = random_batches(self.parameters()) {
            return Ok(batches.epsilon(self.mechanism(), (horizon, passes), delta)?);
        }
        let steps = training.steps_per_pass() * u64::from(passes);
        let parameters = MomentParameters {
            second_moment_weight: moments.second_moment_weight(),
            ..*moments.parameters()
        };
        let (strategies, participation) =
            (self.mechanism().strategies().clone(), training.participation(passes));
        let part = MatrixMechanism::with_participation(parameters, strategies, participation, steps)?;
        let spent = moments.spent_by(part.moments(), delta, steps as f64)?;
        Ok(Some(spent.map_or(f64::INFINITY, Epsilon::value)))
    }

    /// Returns how rows are assigned to the steps of a training run; `None` if no model is trained.
    ///
    /// # Errors
    /// [`PublicationError::Sampling`] if they can't be.
    pub fn batch_scheme(&self) -> Result<Option<Scheme>, PublicationError> {
        let Some(training) = &self.parameters().training else { return Ok(None) };
        Ok(Some(training.batches().scheme(self.mechanism(), self.horizon())?))
    }
}
