//! The budget of one window, chosen so that all windows with a unit's records together spend the
//! pipeline's budget.
//!
//! A record is in several windows if they overlap, and an entity has several records. The charge of
//! all of them follows from that of one record in one window
//! ([`Charge::over_windows`], proof in [`hushflow_mechanism::windows`]). This module searches for
//! the largest budget of one window for which this charge stays within the pipeline's (ε, δ).
//! Without overlap, and for single records, a window has the whole budget.

use hushflow_estimators::covariance::CovarianceMethod;
use hushflow_estimators::mean::{MeanMethod, Question};
use hushflow_mechanism::accounting::composition::Spending;
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, Rho, least};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::windows::WindowOverlap;

use super::windows::{WindowEstimate, bounds};
use super::{PublicationError, guarantee};
use crate::ledger::Charge;
use crate::pipeline::{PublicParameters, WindowEstimator};

/// Largest share of δ for total variation, where it is divided.
const VARIATION_SHARE: f64 = 1.0 / 16.0;

/// Maximum number of halvings of a window's δ.
const HALVINGS: i32 = 200;

/// Slightly less than 1, so that parts do not exceed the whole.
const ROUNDED_DOWN: f64 = 1.0 - 1e-12;

/// Returns the estimate of one window with its share of the budget, and the charge of all windows.
pub(super) fn divided(
    parameters: &PublicParameters,
    estimator: &WindowEstimator,
    overlap: &WindowOverlap,
    private: bool,
) -> Result<(WindowEstimate, Charge), PublicationError> {
    let promise = guarantee(parameters)?;
    // The noise source does not change the charge, only whether the estimate is private.
    let source = if private { NoiseSource::System } else { NoiseSource::Seeded(0) };
    let columns = parameters.columns.len();
    let (estimate, charge) = match estimator {
        WindowEstimator::Mean { method, corruption, scale, range } => {
            if *method == MeanMethod::Resilience && overlap.steps > 1 {
                return Err(PublicationError::SeveralRecords(*method));
            }
            let of = |(epsilon, delta): (Epsilon, Delta)| {
                let name = parameters.name.clone();
                Charge::of_mean(name, (*method, range.is_some()), (epsilon, delta), source)?
                    .over_windows(overlap)
            };
            let each = match method {
                _ if overlap.is_single() => promise,
                MeanMethod::Tukey | MeanMethod::Resilience => evenly(promise, overlap)?,
                _ => each_mean(promise, overlap, |epsilon, delta| of((epsilon, delta)))?,
            };
            let (epsilon, delta) = each;
            let (method, corruption, scale, range) = (*method, *corruption, scale.clone(), *range);
            let question = Question { method, epsilon, delta, corruption, scale, range };
            (WindowEstimate::Mean { question, columns }, of(each)?)
        }
        WindowEstimator::Covariance { method, centre } => {
            let neighbours = parameters.privacy.neighbours;
            let of = |rho: Rho| {
                let spending = method.spending(columns, rho)?;
                let name = (parameters.name.clone(), *method);
                let charge = Charge::of_covariance(name, &spending, promise, neighbours, source)?;
                Ok::<_, PublicationError>(charge.over_windows(overlap)?)
            };
            let rho = each_covariance(*method, columns, promise, overlap, of)?;
            let (method, centre, bounds) = (*method, *centre, bounds(parameters));
            (WindowEstimate::Covariance { method, centre, rho, neighbours, bounds }, of(rho)?)
        }
    };
    let unit = parameters.adjacency().unit;
    let within = parameters.entity.as_ref().map_or_else(Vec::new, |entity| entity.within.clone());
    let (epsilon, delta) = (promise.0.value(), promise.1.value());
    let epochs = parameters.epochs.schedule.horizon();
    Ok((estimate, Charge { unit, within, epsilon, delta, epochs, ..charge }))
}

/// Divides (ε, δ) by basic composition: ε of all windows and of all records of a group adds up.
fn evenly(
    (epsilon, delta): (Epsilon, Delta),
    overlap: &WindowOverlap,
) -> Result<(Epsilon, Delta), AccountingError> {
    let share = ROUNDED_DOWN / overlap.contributions as f64;
    Ok((Epsilon::new(epsilon.value() * share)?, Delta::new(delta.value() * share)?))
}

/// Whether the charge of all windows stays within (ε, δ).
fn keeps(spent: Spending, (epsilon, delta): (Epsilon, Delta)) -> bool {
    spent.delta(epsilon) <= delta.value()
}

/// Returns the largest ε of a window, at the largest δ whose total variation takes a small part of
/// the whole δ.
fn each_mean(
    promise: (Epsilon, Delta),
    overlap: &WindowOverlap,
    charge: impl Fn(Epsilon, Delta) -> Result<Charge, AccountingError>,
) -> Result<(Epsilon, Delta), AccountingError> {
    let (epsilon, delta) = (promise.0.value(), promise.1.value());
    let low = epsilon / overlap.contributions as f64 / 64.0;
    for halvings in 0..HALVINGS {
        let each = Delta::new(delta * ROUNDED_DOWN / overlap.windows as f64 * 0.5_f64.powi(halvings))?;
        let spent = |epsilon: f64| charge(Epsilon::new(epsilon)?, each)?.spending();
        let is_kept = |epsilon: f64| spent(epsilon).is_ok_and(|spent| keeps(spent, promise));
        let largest = least(low, 4.0 * epsilon, |epsilon| !is_kept(epsilon)).next_down();
        let Ok(spent) = spent(largest) else { continue };
        let variation = (1.0 + epsilon.exp()) * spent.total_variation();
        if keeps(spent, promise) && variation <= VARIATION_SHARE * delta {
            return Ok((Epsilon::new(largest)?, each));
        }
    }
    Err(AccountingError::DiscretenessExceedsDelta { cost: 1.0, delta })
}

/// Returns the largest ρ of a window.
fn each_covariance(
    method: CovarianceMethod,
    columns: usize,
    promise: (Epsilon, Delta),
    overlap: &WindowOverlap,
    charge: impl Fn(Rho) -> Result<Charge, PublicationError>,
) -> Result<Rho, AccountingError> {
    let whole = method.rho_for(columns, promise).ok_or(AccountingError::Rho(0.0))?;
    if overlap.is_single() {
        return Ok(whole);
    }
    let is_kept = |rho: f64| {
        let spent = Rho::new(rho).ok().and_then(|rho| charge(rho).ok()?.spending().ok());
        spent.is_some_and(|spent| keeps(spent, promise))
    };
    let low = whole.value() / (overlap.contributions as f64).powi(2) / 64.0;
    let largest = least(low, whole.value(), |rho| !is_kept(rho)).next_down();
    if is_kept(largest) { Rho::new(largest) } else { Err(AccountingError::Rho(0.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::publication::WindowPublication;
    use std::path::Path;

    fn publication(release: &str, entity: &str, neighbours: &str) -> WindowPublication {
        let unit = if entity.is_empty() { "record" } else { "entity" };
        let text = format!(
            "name = 'w'\nsource.path = 'a.csv'\ncolumns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, \
             upper = 1 }}]\nepochs = {{ records = 1000, horizon = 40 }}\n{entity}\n[privacy]\nunit = '{unit}'\nneighbours = \
             '{neighbours}'\nepsilon = 2\ndelta = 1e-6\n[release]\n{release}"
        );
        let pipeline = Pipeline::parse(&text, Path::new("w.toml")).expect("a valid file");
        WindowPublication::new(pipeline.public_parameters(), true).expect("a budget").expect("windows")
    }

    const ENTITIES: [&str; 3] = [
        "",
        "entity = { column = 'e', participations = 3 }",
        "entity = { column = 'e', participations = 2, min_separation = 4, records_per_epoch = 3 }",
    ];

    const SPANS: [&str; 4] = ["", "window = 5", "window = 8\nstride = 2", "window = 'growing'"];

    /// The (ε, δ) of all windows is kept and nearly used up, however it is divided among them. The
    /// charge states this (ε, δ), the number of epochs and the unit.
    #[test]
    fn all_windows_of_a_unit_spend_the_promise() {
        let (epsilon, delta) = (Epsilon::new(2.0).unwrap(), Delta::new(1e-6).unwrap());
        let of_mean = "method = 'prime'\ncorruption = 0.1";
        for (release, neighbours) in [
            (of_mean, "replace-one-in-place"),
            ("method = 'pace'", "replace-one-in-place"),
            ("method = 'ssp'", "zero-out"),
        ] {
            for (span, entity) in SPANS.iter().flat_map(|span| ENTITIES.map(|entity| (span, entity))) {
                let windows = publication(&format!("{release}\n{span}"), entity, neighbours);
                let charge = windows.charge();
                let spent = charge.spending().unwrap();
                let name = format!("{release} {span} {entity}");
                assert!(spent.delta(epsilon) <= delta.value(), "{name}: {}", spent.delta(epsilon));
                let used = spent.epsilon(delta).unwrap().value();
                assert!((1.97..=2.0).contains(&used), "{name}: {used}");
                assert_eq!((charge.epsilon, charge.delta, charge.epochs), (2.0, 1e-6, 40), "{name}");
                assert_eq!(charge.unit.entity(), (!entity.is_empty()).then_some("e"), "{name}");
                assert!(windows.guarantee_holds(), "{name}");
            }
        }
    }

    /// ε of purely private estimates adds up over windows and over the records of a group.
    #[test]
    fn pure_privacy_is_divided_evenly() {
        let tukey = "method = 'tukey'\ncorruption = 0.1\nscale = [1, 1]\nrange = 3";
        for (span, entity) in SPANS.iter().flat_map(|span| ENTITIES.map(|entity| (span, entity))) {
            let windows = publication(&format!("{tukey}\n{span}"), entity, "replace-one-in-place");
            let pure = windows.charge().pure.expect("a pure part");
            assert!((pure.epsilon - 2.0).abs() < 1e-9, "{span} {entity}: {pure:?}");
            let WindowEstimate::Mean { question, .. } = windows.window_estimate() else { panic!("a mean") };
            let each = question.epsilon.value() * windows.overlap().contributions as f64;
            assert!(each <= 2.0 && each > 1.999, "{span} {entity}: {each}");
        }
    }
}
