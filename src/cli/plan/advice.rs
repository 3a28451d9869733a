//! JME or post-processing for second moments: Table 2 of the paper, in the numbers of a plan.

use hushflow::mechanism::error::{
    Better, Comparison, ExpectedError, NoiseDeviations, PostProcessing, SecondEntries,
};
use hushflow::mechanism::mechanism::{Method, MomentGeometry, MomentMechanism, MomentParameters};
use hushflow::mechanism::moments::SecondMoment;
use hushflow::strategies::Candidate;
use serde::Serialize;

use super::super::output::number;
use super::forecast::Plan;

/// The longest horizon where every strategy of a comparison is advised on.
pub(super) const COMPARED_HORIZON: u64 = 1 << 11;

/// What is better for the second moments of a stream of one record an epoch and key.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct SecondMomentAdvice {
    /// `jme`; `pp`, debiased; or `either`, where the data decide.
    better: &'static str,
    /// Expected error of an entry with JME, root mean square over steps and entries.
    jme_rmse: f64,
    /// The same with debiased PP, for the worst data: at least and at most.
    pp_rmse: [f64; 2],
    /// The noise multiplier from which JME is better, for the worst data: at least and at most; 0 where it always is.
    jme_from_noise_multiplier: [f64; 2],
}

impl SecondMomentAdvice {
    /// `None` where no second moments are wanted, the strategy does not run, or the sums over all pairs of steps
    /// would take too long.
    pub(super) fn new(
        plan: &Plan,
        candidate: &Candidate,
        geometry: &MomentGeometry,
        parameters: MomentParameters,
        error: &ExpectedError,
    ) -> Option<Self> {
        let steps = plan.purpose.horizon;
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
        let comparison = Comparison {
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

    /// For people.
    pub(super) fn text(&self) -> String {
        let choice = match self.better {
            "either" => "the data decide".into(),
            better => format!("choose {better}"),
        };
        let [_, surely] = self.jme_from_noise_multiplier;
        let always = match surely {
            0.0 => "JME is better with any noise".into(),
            surely => format!("JME is surely better from noise multiplier {} on", number(surely)),
        };
        format!(
            "Second moments of one record an epoch: JME errs by {}, debiased post-processing by up to {}:\n{choice}. {always}.\n\
             Post-processing squares the sums of epochs: of more records an epoch it has no second moments.\n",
            number(self.jme_rmse),
            number(self.pp_rmse[1]),
        )
    }
}

/// Noise of a mechanism before decoding; `None` where its noise can't be drawn.
fn noise(parameters: MomentParameters, geometry: &MomentGeometry) -> Option<NoiseDeviations> {
    let mechanism = MomentMechanism::new(parameters, geometry).ok()?;
    let layout = mechanism.layout();
    let deviation =
        |place: usize| mechanism.noise().get(place).map_or(0.0, |noise| noise.standard_deviation());
    Some(NoiseDeviations { first: deviation(layout.first().start), second: deviation(layout.second().start) })
}
