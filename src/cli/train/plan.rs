//! `hushflow plan` and `hushflow check` for a file with `[training]`.

use std::path::Path;

use hushflow::ledger::LedgerHome;
use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::sampling::Sampling;
use hushflow::pipeline::{Pipeline, Training};
use hushflow::publication::{MomentPublication, PublicationError};
use hushflow::runtime::{RunOptions, confirm_budget};
use hushflow::training::Examples;
use serde::Serialize;

use super::super::output::{SearchStatus, number, print_json, print_message, print_wrapped};
use super::super::{CliError, PRIVATE, thousands};
use super::publication;

/// Forecast of a training run.
#[derive(Serialize)]
struct TrainingPlan<'a> {
    training: &'a Training,
    parameters: usize,
    steps: u64,
    steps_per_pass: u64,
    /// Rows of an incomplete batch.
    left_out: u64,
    participation: String,
    neighbours: hushflow::mechanism::sensitivity::Neighbours,
    clip_norm: f64,
    epsilon: f64,
    delta: f64,
    /// Passes and ε spent after them: all, or [`PASSES`] of many.
    epsilon_by_pass: Vec<(u32, f64)>,
    /// ε of the run, if it is less than the stated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    spends_less: Option<f64>,
    noise_multiplier: f64,
    sensitivity: f64,
    strategy: String,
    workload: String,
    /// Standard deviation of the noise in the mean gradients of the workload, root mean square over
    /// the steps, in each coordinate.
    gradient_noise: f64,
    /// The same after the last step.
    last_gradient_noise: f64,
    /// Estimated bytes of encoder, decoder and optimiser.
    memory: u64,
}

/// Says how often a row takes part.
fn participation(training: &Training) -> String {
    match training.sampling {
        Sampling::InOrder => training.participation(training.passes).to_string(),
        Sampling::Poisson => {
            let taken = training.steps() as f64 * f64::from(training.batch_size);
            format!("{} times on average (poisson)", number(taken / training.records as f64))
        }
        Sampling::BallsInBins => format!("{} times, at random steps (balls-in-bins)", training.passes),
    }
}

/// Says that a run spends less than the stated ε.
fn spends_less(spent: f64, epsilon: f64) -> String {
    format!(
        "the run spends ε = {} of the stated {}: with less noise, no bound is known for random batches; state epsilon = {}, or \
         choose sampling = \"in-order\"",
        number(spent),
        number(epsilon),
        number(spent.ceil())
    )
}

/// Maximum number of passes whose ε is printed.
const PASSES: u32 = 10;

/// Bytes per released coordinate for parameters, their sums, updates and averages, without
/// strategies.
const OPTIMISER_BYTES: u64 = 8 * 5;

impl<'a> TrainingPlan<'a> {
    fn new(training: &'a Training, publication: &MomentPublication) -> Result<Self, PublicationError> {
        let (mechanism, parameters) = (publication.mechanism(), publication.parameters());
        let (moments, strategy) = (mechanism.moments(), mechanism.strategies().first());
        let horizon = publication.horizon();
        let error = ExpectedError::new(&parameters.release.workload, strategy, horizon)?;
        let each =
            moments.parameters().noise_multiplier * moments.sensitivity() / f64::from(training.batch_size);
        let every = training.passes.div_ceil(PASSES) as usize;
        let listed = (1..=training.passes).rev().step_by(every).collect::<Vec<_>>().into_iter().rev();
        let spent = listed.map(|passes| Ok((passes, publication.spent_after(passes)?.unwrap_or_default())));
        let coordinates = publication.layout().coordinates() as u64;
        // The larger one, for all coordinates.
        let state = mechanism.strategies().second().encoder_bytes().max(strategy.encoder_bytes()) as u64;
        Ok(Self {
            training,
            parameters: parameters.columns.len(),
            steps: horizon,
            steps_per_pass: training.steps_per_pass(),
            left_out: match training.sampling.is_public() {
                true => training.records - training.steps_per_pass() * u64::from(training.batch_size),
                false => 0,
            },
            participation: participation(training),
            neighbours: parameters.privacy.neighbours,
            clip_norm: parameters.privacy.clip_norm,
            epsilon: parameters.privacy.epsilon,
            delta: parameters.privacy.delta,
            epsilon_by_pass: spent.collect::<Result<_, PublicationError>>()?,
            spends_less: publication.spends_less()?,
            noise_multiplier: moments.parameters().noise_multiplier,
            sensitivity: moments.sensitivity(),
            strategy: publication.calibration().strategies.to_string(),
            workload: parameters.release.workload.to_string(),
            gradient_noise: publication.noise_in_workload()? / f64::from(training.batch_size),
            last_gradient_noise: each * error.last_row,
            memory: coordinates * (2 * state + OPTIMISER_BYTES),
        })
    }

    fn text(&self) -> String {
        let Self { training, steps, .. } = self;
        let rows = u64::from(training.batch_size);
        let mut text = format!(
            "{} steps: {} passes of {} batches of {} rows; a row takes part {}\n",
            thousands(*steps),
            training.passes,
            thousands(self.steps_per_pass),
            thousands(rows),
            self.participation,
        );
        if self.left_out > 0 {
            text += &format!("{} rows don't fill a batch and are left out\n", thousands(self.left_out));
        }
        text += &format!(
            "{} parameters; {} neighbours; clip norm {}\n",
            self.parameters,
            self.neighbours,
            number(self.clip_norm)
        );
        text += &format!(
            "(ε, δ) = ({}, {}), with a noise multiplier of {} and a sensitivity of {}\n",
            number(self.epsilon),
            number(self.delta),
            number(self.noise_multiplier),
            number(self.sensitivity)
        );
        let spent = self.epsilon_by_pass.iter();
        let spent: Vec<_> = spent.map(|(pass, epsilon)| format!("{} ({pass})", number(*epsilon))).collect();
        text += &format!("ε spent after each pass: {}\n", spent.join(", "));
        text += &self.spends_less.map_or(String::new(), |spent| spends_less(spent, self.epsilon) + "\n");
        if !training.sampling.is_public() {
            text += "batches are secret: (ε, δ) and the sensitivity are those of one participation at random steps, for those who \
                     can't time the steps\n";
        }
        text += &format!("strategy {} for {}\n", self.strategy, self.workload);
        text += &format!(
            "noise in the mean gradients of that workload, per coordinate: {} (root mean square over the steps), {} after the last\n",
            number(self.gradient_noise),
            number(self.last_gradient_noise)
        );
        text +=
            &format!("memory of noise and optimiser: about {} bytes, and the rows\n", thousands(self.memory));
        text
    }
}

/// Refuses to compare strategies for batches that are drawn at random: their noise is searched for
/// one strategy at a time.
pub(in crate::cli) fn refuse_comparison(pipeline: &Pipeline) -> Result<(), CliError> {
    match &pipeline.training {
        Some(training) if !training.sampling.is_public() => Err(CliError::usage(
            "strategies are not compared for batches that are drawn at random: name one as strategy in [release], and leave \
             out --strategy, --all and --plot",
        )),
        _ => Ok(()),
    }
}

/// Prints the forecast of a training run.
pub(in crate::cli) fn print_plan(
    pipeline: &Pipeline,
    training: &Training,
    file: &Path,
    json: bool,
) -> Result<(), CliError> {
    let bar = SearchStatus::new();
    let progress = &mut |progress: &_| bar.update(progress);
    let publication = publication(pipeline, Path::new("/nonexistent/state"), file, progress)?;
    bar.finish();
    let plan = TrainingPlan::new(training, &publication)?;
    Ok(if json { print_json(&plan) } else { print_wrapped(&plan.text()) }?)
}

/// Findings of `check` in the rows. Private.
#[derive(Serialize)]
struct RowsReport {
    rows: u64,
    blank: u64,
    /// Share of the other rows whose first gradient is longer than the clip norm.
    clipped: f64,
    /// Quantiles of the norms of first gradients: 10 %, 50 %, 90 %, 100 %.
    norms: [f64; 4],
    /// ε of the run, if it is less than the stated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    spends_less: Option<f64>,
    /// Problems that would stop a run.
    problems: Vec<String>,
}

/// Reads the rows and prints how a run would use them.
pub(in crate::cli) fn print_check(
    pipeline: &Pipeline,
    (file, state): (&Path, &Path),
    json: bool,
) -> Result<(), CliError> {
    let bar = SearchStatus::new();
    let publication = publication(pipeline, state, file, &mut |progress| bar.update(progress))?;
    bar.finish();
    let examples = Examples::of_source(pipeline).map_err(|error| CliError::refused(error.to_string()))?;
    let clip_norm = pipeline.privacy.clip_norm;
    let dimension = publication.layout().dimension;
    let mut norms = Vec::new();
    let rows: Vec<usize> = (0..examples.len()).collect();
    examples.gradients(&rows, &vec![0.0; dimension], &mut |gradient| {
        let norm = gradient.iter().map(|value| value * value).sum::<f64>().sqrt();
        norms.extend(Some(norm).filter(|norm| !norm.is_nan()));
    });
    norms.sort_by(f64::total_cmp);
    let quantile = |share: f64| {
        let last = norms.len().saturating_sub(1);
        norms.get((share * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
    };
    let options = RunOptions { ledgers: LedgerHome::find()?, ..RunOptions::new(1, state) };
    let budget =
        confirm_budget(pipeline, &hushflow::publication::Publication::Moments(publication.clone()), &options);
    let report = RowsReport {
        rows: examples.len() as u64,
        blank: examples.blank(),
        clipped: norms.iter().filter(|&&norm| norm > clip_norm).count() as f64 / norms.len().max(1) as f64,
        norms: [0.1, 0.5, 0.9, 1.0].map(quantile),
        spends_less: publication.spends_less()?,
        problems: budget.err().map(|error| error.to_string()).into_iter().collect(),
    };
    if json {
        print_json(&report)
    } else {
        print_wrapped(&report.text(clip_norm, pipeline.privacy.epsilon))
    }?;
    if json {
        print_message("note: the output of check is private: for the operator only");
    }
    match report.problems.first() {
        Some(_) => Err(CliError::refused("a run would stop: see the problems above")),
        None => Ok(()),
    }
}

impl RowsReport {
    fn text(&self, clip_norm: f64, epsilon: f64) -> String {
        let [low, middle, high, most] = self.norms.map(number);
        let mut text =
            format!("{PRIVATE}\n\n{} rows, {} of them blank\n", thousands(self.rows), thousands(self.blank));
        text += &format!(
            "{:.1} % of the gradients at parameters 0 are longer than clip_norm = {} and would be clipped\n",
            100.0 * self.clipped,
            number(clip_norm)
        );
        text +=
            &format!("norms: 10 % up to {low}, half up to {middle}, 90 % up to {high}, the longest {most}\n");
        text += &self.spends_less.map_or(String::new(), |spent| spends_less(spent, epsilon) + "\n");
        for problem in &self.problems {
            text += &format!("problem: {problem}\n");
        }
        text
    }
}
