//! The guarantee of a training run: what its passes spend, and its random batches.

use hushflow_mechanism::accounting::{Delta, Epsilon, MARGIN};
use hushflow_mechanism::error::ExpectedError;
use hushflow_mechanism::mechanism::{MatrixMechanism, MomentParameters};
use hushflow_mechanism::sampling::{Batches, Scheme};
use hushflow_mechanism::strategy::{Strategy, StrategyName};

use super::{ChosenStrategies, MomentPublication, PublicationError, guarantee};
use crate::ledger::SampledSpending;
use crate::pipeline::{Pipeline, PublicParameters};
use crate::strategies::{RequestedStrategy, SearchProgress, SearchQuantity};

/// Strategies among which `auto` chooses for random batches.
const BANDED: [&str; 5] = [
    "identity",
    "banded-toeplitz-optimal:2",
    "banded-toeplitz-optimal:4",
    "banded-toeplitz-optimal:8",
    "banded-toeplitz-optimal:16",
];

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

/// Reports each noise that is tried, by its ε.
pub(super) fn noise_progress(
    chosen: &ChosenStrategies,
    wanted: Epsilon,
    progress: &mut dyn FnMut(&SearchProgress),
) -> impl FnMut(f64) {
    let (strategy, mut iteration) = (chosen.strategy.name.clone(), 0);
    move |epsilon| {
        iteration += 1;
        let (strategy, quantity) = (strategy.clone(), SearchQuantity::Epsilon);
        let lower_bound = wanted.value();
        progress(&SearchProgress { strategy, quantity, iteration, objective: epsilon, lower_bound });
    }
}

/// Returns the publication of the strategy with the least noise in the workload, among those that
/// random batches can use; `None` unless the pipeline has random batches and leaves the choice.
///
/// # Errors
/// That of the identity if no strategy can be used.
pub(super) fn best_for_random_batches(
    pipeline: &Pipeline,
    parameters: &PublicParameters,
    private: bool,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<Option<MomentPublication>, PublicationError> {
    let (requested, purpose) = pipeline.requested_strategy();
    let is_left_open = requested.name == StrategyName::Auto && parameters.release.second.is_none();
    if !is_left_open || random_batches(parameters).is_none() {
        return Ok(None);
    }
    let mut calibrated = |name: &str| -> Result<(f64, MomentPublication), PublicationError> {
        let name = name.parse::<StrategyName>()?;
        let strategy = RequestedStrategy { name, ..requested.clone() }.find(&purpose, progress)?.chosen;
        let chosen = ChosenStrategies { strategy, second_strategy: None };
        let found = MomentPublication::calibrate_chosen(parameters.clone(), chosen, private, progress)?;
        Ok((found.noise_in_workload()?, found))
    };
    let mut best = calibrated(BANDED[0]);
    for name in &BANDED[1..] {
        let fits = |strategy: &dyn Strategy| strategy.encoder_bytes() as u64 <= requested.memory_limit;
        // A strategy with too many bands for the batches is left out.
        let found = calibrated(name).ok();
        let found = found.filter(|(_, found)| fits(found.mechanism().strategies().first()));
        if let Some(found) = found
            && best.as_ref().is_ok_and(|best| found.0 < best.0)
        {
            best = Ok(found);
        }
    }
    best.map(|(_, found)| Some(found))
}

impl MomentPublication {
    /// Returns the root mean square, over the steps, of the deviation of the noise of sums of
    /// gradients in the workload, in each coordinate.
    ///
    /// # Errors
    /// [`PublicationError`] if the strategy's errors can't be computed.
    pub fn noise_in_workload(&self) -> Result<f64, PublicationError> {
        let (moments, strategy) = (self.mechanism().moments(), self.mechanism().strategies().first());
        let error = ExpectedError::new(&self.parameters().release.workload, strategy, self.horizon())?;
        let each = moments.parameters().noise_multiplier * moments.sensitivity();
        Ok(each * error.frobenius / (self.horizon() as f64).sqrt())
    }

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
        if let Some(spent) = self.spent_by_random_batches(Some(passes), delta)? {
            return Ok(Some(spent));
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

    /// Returns ε spent by random batches after this number of passes, or after all; `None` if
    /// batches are public.
    pub(super) fn spent_by_random_batches(
        &self,
        passes: Option<u32>,
        delta: Delta,
    ) -> Result<Option<f64>, PublicationError> {
        let Some((batches, (horizon, all))) = random_batches(self.parameters()) else { return Ok(None) };
        let pair = match self.dominating.get() {
            Some(pair) => Some(pair.clone()),
            None => batches.dominating(self.mechanism(), horizon)?,
        };
        let Some(pair) = pair else { return Ok(None) };
        let pair = self.dominating.get_or_init(|| pair).clone();
        Ok(batches.epsilon_by(pair, self.mechanism(), (horizon, passes.unwrap_or(all)), delta)?)
    }

    /// Returns ε of the whole run if it is less than 99 % of the stated one: with less noise, there
    /// is no bound for random batches.
    ///
    /// # Errors
    /// As [`spent_after`](Self::spent_after).
    pub fn spends_less(&self) -> Result<Option<f64>, PublicationError> {
        let (epsilon, delta) = guarantee(self.parameters())?;
        let spent = self.spent_by_random_batches(None, delta)?;
        Ok(spent.filter(|spent| *spent < 0.99 * epsilon.value()))
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
