//! `hushflow plan` for a pipeline that releases estimates of windows: their privacy cost.

use hushflow::pipeline::Pipeline;
use hushflow::publication::PublicationError;
use hushflow::publication::WindowPublication;
use serde::Serialize;

use super::super::output::{number, table};

/// The privacy cost of all windows together, which equals that of one.
#[derive(Debug, Serialize)]
pub(super) struct WindowPlan {
    estimator: String,
    /// Number of pairs of key and epoch.
    windows: u64,
    epsilon: f64,
    delta: f64,
    unit: String,
    neighbours: String,
    /// ρ of zero-concentrated privacy for Gaussian noise and for selections, where the estimator
    /// spends ρ.
    rho: Option<[f64; 2]>,
    /// μ of Gaussian differential privacy that a ledger is charged.
    mu: f64,
    noise_multiplier: f64,
}

impl WindowPlan {
    /// Returns `None` for a pipeline of moments.
    pub(super) fn of(pipeline: &Pipeline) -> Result<Option<Self>, PublicationError> {
        let Some(publication) = WindowPublication::new(pipeline.public_parameters(), true)? else {
            return Ok(None);
        };
        let (parameters, charge) = (publication.parameters(), publication.charge());
        Ok(Some(WindowPlan {
            estimator: publication.estimator().to_string(),
            windows: u64::from(parameters.keys()).saturating_mul(charge.epochs),
            epsilon: charge.epsilon,
            delta: charge.delta,
            unit: charge.unit.to_string(),
            neighbours: charge.neighbours.to_string(),
            rho: charge.rho.map(|rho| [rho.gaussian, rho.selection]),
            mu: charge.spending()?.mu(),
            noise_multiplier: charge.noise_multiplier,
        }))
    }

    pub(super) fn text(&self) -> String {
        let rows = [
            ["estimator", &self.estimator],
            ["windows", &self.windows.to_string()],
            ["ε", &number(self.epsilon)],
            ["δ", &number(self.delta)],
            ["unit", &self.unit],
            ["neighbours", &self.neighbours],
            [
                "ρ of noise and of selections",
                &self.rho.map_or("-".into(), |parts| parts.map(number).join(" + ")),
            ],
            ["μ", &number(self.mu)],
        ];
        let rows: Vec<Vec<String>> = rows.map(|row| row.map(String::from).to_vec()).to_vec();
        table(&rows)
            + "\nEvery record is in one window, so all windows together spend as much as one. Each window is estimated when its \
               epoch closes. The noise of an estimate depends on its rows and is published with it.\n"
    }
}
