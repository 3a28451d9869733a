//! Compares JME with post-processing for second moments, for the numbers of a plan (Table 2 of the
//! JME paper).

use hushflow::mechanism::error::{
    Better, ExpectedError, MethodComparison, NoiseDeviations, PostProcessing, SecondEntries,
};
use hushflow::mechanism::mechanism::{Method, MomentGeometry, MomentMechanism, MomentParameters};
use hushflow::mechanism::moments::SecondMoment;
use hushflow::strategies::Candidate;
use serde::Serialize;

use super::super::output::number;
use super::forecast::StreamPlan;

/// Longest horizon at which a comparison advises on every strategy.
pub(super) const COMPARED_HORIZON: u64 = 1 << 11;

/// The better method for second moments where each key has one record per epoch.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SecondMomentAdvice {
    /// `jme`; `pp` (debiased); or `either`, where it depends on the data.
    better: &'static str,
    /// Expected error of an entry with JME: root mean square over steps and entries.
    jme_rmse: f64,
    /// Lower and upper bound of the same error with debiased PP, for the worst data.
    pp_rmse: [f64; 2],
    /// Lower and upper bound of the noise multiplier from which JME is better, for the worst data;
    /// 0 where it always is.
    jme_from_noise_multiplier: [f64; 2],
}

impl SecondMomentAdvice {
    /// Returns `None` if no second moments are wanted, the strategy can't run, or the sums over all
    /// pairs of steps would take too long.
    pub(super) fn new(
        plan: &StreamPlan,
        candidate: &Candidate,
        geometry: &MomentGeometry,
        parameters: MomentParameters,
        error: &ExpectedError,
    ) -> Option<Self> {
        let steps = plan.purpose.horizon;
        // If rows may lack columns, squares of sums are not second moments.
        if plan.by_column {
            return None;
        }
        let strategy = candidate.strategy.as_ref().filter(|_| steps <= plan.advice_horizon)?;
        let (dimension, clip_norm) = (plan.layout.dimension, plan.clip_norm);
        let (entries, number) = match plan.layout.second {
            SecondMoment::Full => (SecondEntries::Symmetric, dimension * dimension),
            SecondMoment::Diagonal => (SecondEntries::Diagonal, dimension),
            SecondMoment::None => return None,
        };
        let joint = noise(MomentParameters { method: Method::Jme, ..parameters }, geometry)?;
        let alone = MomentParameters { method: Method::Pp, second_moment_weight: None, ..parameters };
        let deviation = noise(alone, geometry)?.first;
        let squares = PostProcessing::new(&plan.purpose.workload, strategy.as_ref(), steps).ok()?;
        let comparison = MethodComparison {
            joint: joint.second_moment_error(entries, dimension, error.frobenius),
            post_processing: squares.error(entries, dimension, clip_norm, deviation),
        };
        let mean = |total: f64| (total / (steps as f64 * number as f64)).sqrt();
        let debiased = comparison.post_processing.debiased().map(mean);
        let crossing = comparison
            .crossing()
            .map(|crossing| crossing * parameters.noise_multiplier / f64::from(plan.records_at_once));
        Some(Self {
            better: match comparison.better() {
                Better::Joint => "jme",
                Better::PostProcessing => "pp",
                Better::Undecided => "either",
            },
            jme_rmse: mean(comparison.joint),
            pp_rmse: [debiased.lower, debiased.upper],
            jme_from_noise_multiplier: [crossing.lower, crossing.upper],
        })
    }

    /// Formats the advice as text.
    pub(super) fn text(&self) -> String {
        let choice = match self.better {
            "either" => "which is better depends on the data".into(),
            better => format!("choose {better}"),
        };
        let [_, surely] = self.jme_from_noise_multiplier;
        let always = match surely {
            0.0 => "JME is better with any noise".into(),
            surely => format!("JME is better for any data from noise multiplier {} on", number(surely)),
        };
        format!(
            "Second moments with one record per epoch: the error of JME is {}, that of debiased post-processing up to {}:\n{choice}. {always}.\n\
             Post-processing squares epoch sums, so with more than one record per epoch it yields no second moments.\n",
            number(self.jme_rmse),
            number(self.pp_rmse[1]),
        )
    }
}

/// Returns the noise of a mechanism before decoding; `None` where its noise can't be drawn.
fn noise(parameters: MomentParameters, geometry: &MomentGeometry) -> Option<NoiseDeviations> {
    let mechanism = MomentMechanism::new(parameters, geometry).ok()?;
    let layout = mechanism.layout();
    let deviation =
        |index: usize| mechanism.noise().get(index).map_or(0.0, |noise| noise.standard_deviation());
    Some(NoiseDeviations {
        first: deviation(layout.first().start),
        second: layout.second().next().map_or(0.0, deviation),
    })
}
