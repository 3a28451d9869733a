//! Means of the records in a private ball, with a budget of Gaussian privacy, and the choice of
//! `auto`.
//!
//! `auto` filters by PRIME unless the plain mean has a smaller error bound. It stops once PRIME has
//! removed more records than its assumptions allow. The rest of the budget then pays for PRIME-ht,
//! from its own range on, or for the plain mean. Each decision follows from released counts and
//! public numbers, so along every path the squared distances add up to at most μ² (`budget`).

use super::error::{self, EstimationStop};
use super::range::{self, Clipping};
use super::release::ClippedRecords;
use super::{
    MeanAnswer, MeanBudget, MeanError, MeanEstimate, MeanMethod, Question, Scale, Shares, Tails, balloon,
    check_count, prime, weights, whiten,
};
use hushflow_mechanism::noise::NoiseGenerator;

/// Answers by a method on the records in a private ball, with a budget of Gaussian privacy.
pub(super) fn estimate(
    rows: &[f64],
    columns: usize,
    question: &Question,
    rng: &mut NoiseGenerator,
) -> Result<(MeanAnswer, Vec<Clipping>), MeanError> {
    let mut budget = MeanBudget::new(question.epsilon, question.delta)?;
    let records = rows.len() / columns;
    check_count(records, columns, &budget)?;
    let is_hopeless = || !prime::is_worthwhile(question.corruption, records, columns, &budget);
    let method = match question.method {
        MeanMethod::Auto if is_hopeless() => MeanMethod::Gaussian,
        method => method,
    };
    let found = preprocessed(rows, columns, (question, method), &mut budget, rng);
    let outcome = error::outcome(found)?;
    let (outcome, clipping, method) = match outcome {
        Ok(found) => (Ok(found.estimate), found.clipping, found.method),
        Err(refusal) => (Err(refusal), Vec::new(), first_method(method)),
    };
    let (parts, spent) = budget.close();
    Ok((MeanAnswer { method, outcome, parts, spent }, clipping))
}

/// An estimate by filtering, its clipping, and the method that ran.
struct Filtered {
    estimate: MeanEstimate,
    clipping: Vec<Clipping>,
    /// The method that ran.
    method: MeanMethod,
}

/// The method that runs first: PRIME for `auto`.
fn first_method(method: MeanMethod) -> MeanMethod {
    if method == MeanMethod::Auto { MeanMethod::Prime } else { method }
}

fn preprocessed(
    rows: &[f64],
    columns: usize,
    (question, method): (&Question, MeanMethod),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Filtered, EstimationStop> {
    let tails = tails(method);
    let allowance = if matches!(question.scale, Scale::Known(_)) { 1.0 } else { range::HEAVY_ALLOWANCE };
    let estimator = Filter { method, corruption: question.corruption, allowance };
    match &question.scale {
        Scale::Known(scales) => scaled(rows, scales, estimator, budget, rng),
        Scale::Estimated => {
            let part = ("scale", Shares::SCALE);
            let scales = range::estimate(rows, columns, part, tails, budget, rng)?;
            scaled(rows, &scales, estimator, budget, rng)
        }
        Scale::Whitened => {
            let table = whiten::whiten(rows, columns, tails, budget, rng)?;
            let found = scaled(&table.rows, &table.scales, estimator, budget, rng)?;
            Ok(Filtered { estimate: table.back(found.estimate), clipping: Vec::new(), ..found })
        }
    }
}

/// A method, α, and the factor of its scales if `auto` turns to heavy tails.
#[derive(Clone, Copy)]
struct Filter {
    method: MeanMethod,
    corruption: f64,
    allowance: f64,
}

fn scaled(
    rows: &[f64],
    scales: &[f64],
    filter: Filter,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Filtered, EstimationStop> {
    let Filter { method, corruption, .. } = filter;
    let tails = tails(method);
    let (ball, bins) = range::ball(rows, scales, (tails, corruption), budget, rng)?;
    let clipping = match method {
        // This method clips later, to a smaller ball.
        MeanMethod::Balloon => Vec::new(),
        _ => bins.clipping(&ball, scales),
    };
    let clipped = || -> Result<_, EstimationStop> {
        Ok(ClippedRecords::new(rows, scales, &ball)?.with_corruption(corruption))
    };
    let kept = clipped()?;
    let estimate = match method {
        MeanMethod::Auto => match prime::estimate_or_stop(kept, corruption, budget, rng)? {
            Some(estimate) => Ok(estimate),
            None => return with_the_rest(&clipped()?, (rows, clipping), filter, budget, rng),
        },
        MeanMethod::PrimeHt => {
            let kept = balloon::tightened(rows, kept, corruption, budget, rng)?;
            prime::estimate(kept, (tails, corruption), budget, rng)
        }
        MeanMethod::Filter => weights::estimate(kept, (tails, corruption), budget, rng),
        MeanMethod::Gaussian => prime::last_mean(&kept, true, budget, rng),
        MeanMethod::Balloon => balloon::estimate(rows, kept, budget, rng),
        _ => prime::estimate(kept, (tails, corruption), budget, rng),
    }?;
    Ok(Filtered { estimate, clipping, method: first_method(method) })
}

/// Estimates by PRIME-ht with the budget that PRIME has left. Where that is too little to count the
/// records, or PRIME-ht refuses before its mean, the rest pays for the plain mean of the `clipped`
/// records.
fn with_the_rest(
    clipped: &ClippedRecords,
    (rows, clipping): (&[f64], Vec<Clipping>),
    filter: Filter,
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Filtered, EstimationStop> {
    budget.divide_rest();
    if check_count(clipped.len(), clipped.dimension(), budget).is_ok() {
        let scales: Vec<f64> = clipped.scales().iter().map(|scale| scale * filter.allowance).collect();
        let heavy = Filter { method: MeanMethod::PrimeHt, ..filter };
        match scaled(rows, &scales, heavy, budget, rng) {
            Err(EstimationStop::Refused(_)) if budget.left() > Shares::BEFORE * budget.whole() => {}
            found => return found,
        }
    }
    let estimate = prime::last_mean(clipped, true, budget, rng)?;
    Ok(Filtered { estimate, clipping, method: MeanMethod::Gaussian })
}

fn tails(method: MeanMethod) -> Tails {
    match method {
        MeanMethod::PrimeHt | MeanMethod::Balloon => Tails::BoundedCovariance,
        _ => Tails::SubGaussian,
    }
}
