//! `optimal` and `coa`: the certified optima of [`optimize`](crate::optimize), as strategies.

use super::{Dense, MAX_DENSE_HORIZON};
use crate::{
    optimize::{OnProgress, OptimizeError, OptimizerSettings, QuadraticForm, multi_epoch},
    strategy::{
        Fit, Kind, OptimisedStrategy, Purpose, SearchError, StrategyName, StrategyParameters, check_horizon,
    },
};

/// `optimal`: the best C for the participation.
pub(in crate::strategy) static OPTIMAL: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    compared: Kind::if_short,
    fit: Fit::Program { repeated: true },
    strategy: Some(super::of_parameters),
    ..Kind::new("optimal", "the certified optimum for the participation")
};

/// `coa`: the best C for single participation.
pub(in crate::strategy) static COA: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    compared: |kind, purpose| match purpose.participation.is_single() {
        true => Err("here it is `optimal`"),
        false => kind.if_short(purpose),
    },
    fit: Fit::Program { repeated: false },
    strategy: Some(super::of_parameters),
    ..Kind::new("coa", "the certified optimum for single participation")
};

/// The optimum for a purpose; if `repeated`, for its participation.
pub(in crate::strategy) fn optimum(
    name: &StrategyName,
    purpose: &Purpose,
    repeated: bool,
    progress: OnProgress<'_>,
) -> Result<OptimisedStrategy, SearchError> {
    let Purpose { workload, horizon, participation, .. } = purpose;
    check_horizon(name, *horizon, workload.horizon().unwrap_or(u64::MAX).min(MAX_DENSE_HORIZON))?;
    let failed = |source: OptimizeError| SearchError::Optimize { strategy: name.to_string(), source };
    let steps = *horizon as usize;
    let form = QuadraticForm::from_workload(workload, steps).map_err(failed)?;
    let schedule = participation.on(steps);
    let (count, gap) = if repeated { (schedule.count(), schedule.gap()) } else { (1, steps) };
    let found =
        multi_epoch(&form, count, gap, &OptimizerSettings::for_steps(*horizon), progress).map_err(failed)?;
    Ok(OptimisedStrategy {
        fitted: StrategyParameters::Dense(Dense::new(name.clone(), &found.strategy)?.parameters().clone()),
        objective: found.objective,
        // The bound of a search for single participation says nothing about several.
        lower_bound: Some(found.lower_bound).filter(|_| repeated || participation.is_single()),
        class_bound: None,
    })
}
