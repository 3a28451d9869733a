//! The estimator by resilience without a given range: Algorithm 2 from its first step.
//!
//! A third of ε and of δ finds, in each column, a bin that contains the mean or is next to it
//! (`range`, as Gaussian noise of (ε/3, δ/3)). The rest is for the estimator, whose range is the
//! few scales by which the middle of such a bin may be off. Each record is moved by a vector that
//! was released, so the estimator's proof holds for the moved records, and the parts add up by
//! basic composition.

use super::budget::MeanBudget;
use super::range::{CENTRE_ERROR, HALF_BIN, winners};
use super::{MeanAnswer, MeanError, Question, StepCost, error, least_count, release, resilience};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon};
use hushflow_mechanism::noise::NoiseGenerator;

/// Returns (ε, δ) of the range and of the estimator.
///
/// # Errors
/// [`AccountingError`] if ε or δ is too small to divide.
pub fn shares(epsilon: Epsilon, delta: Delta) -> Result<[(Epsilon, Delta); 2], AccountingError> {
    let share_of = |share: f64| {
        Ok::<_, AccountingError>((Epsilon::new(epsilon.value() * share)?, Delta::new(delta.value() * share)?))
    };
    // Slightly less than thirds, so that the parts do not exceed the whole.
    Ok([share_of(1.0 / 3.0 - 1e-12)?, share_of(2.0 / 3.0 - 1e-12)?])
}

pub(super) fn estimate(
    rows: &[f64],
    scales: &[f64],
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<MeanAnswer, MeanError> {
    let [first, (epsilon, delta)] = shares(question.epsilon, question.delta)?;
    let mut budget = MeanBudget::new(first.0, first.1)?;
    let (records, columns) = (rows.len() / scales.len(), scales.len() as f64);
    let deviation = release::count_deviation(columns, budget.whole());
    let needed = least_count(deviation);
    if records < needed {
        return Err(MeanError::TooFew { rows: records, noise: deviation / records as f64, needed });
    }
    let rest = Question { epsilon, delta, range: Some(CENTRE_ERROR * HALF_BIN), ..question.clone() };
    // Refuse before anything is spent.
    resilience::check(records, scales, &rest)?;
    let part = ("range", budget.whole());
    let released = error::outcome(winners(rows, (scales, HALF_BIN), part, &mut budget, rng))?;
    let range = StepCost {
        step: "range",
        releases: 1,
        squared_mu: budget.close().0.iter().map(|part| part.squared_mu).sum(),
        epsilon: first.0.value(),
        delta: first.1.value(),
    };
    let centre: Vec<f64> = match released {
        Ok(centre) => centre.iter().zip(scales).map(|(position, scale)| position * scale).collect(),
        Err(refusal) => {
            let (method, spent) = (question.method, question.epsilon.value());
            return Ok(MeanAnswer { method, outcome: Err(refusal), parts: vec![range], spent });
        }
    };
    let moved: Vec<f64> =
        rows.iter().zip(centre.iter().cycle()).map(|(value, centre)| value - centre).collect();
    let MeanAnswer { method, mut outcome, mut parts, .. } =
        resilience::estimate(&moved, (scales, CENTRE_ERROR * HALF_BIN), &rest, rng)?;
    if let Ok(found) = &mut outcome {
        found.mean.iter_mut().zip(&centre).for_each(|(mean, centre)| *mean += centre);
    }
    parts.insert(0, range);
    Ok(MeanAnswer { method, outcome, parts, spent: question.epsilon.value() })
}
