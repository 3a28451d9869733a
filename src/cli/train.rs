//! `hushflow train`: trains a model on the rows of a pipeline file.

mod plan;
mod report;

use std::fs::File;
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::control::Control;
use hushflow::ledger::LedgerHome;
use hushflow::pipeline::Pipeline;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::runtime::training::train;
use hushflow::runtime::{RunOptions, shared_ledger};
use hushflow::strategies::SearchProgress;
use hushflow::training::{Examples, ModelReport, TrainedModel};

use super::budget::large_delta;
use super::ledger::print_uncounted_note;
use super::output::{ProgressCounter, SearchStatus, print_message, warn};
use super::signals::stopped_by_signals;
use super::{CliError, thousands};
pub(super) use plan::{print_check, print_plan, refuse_comparison};
use report::StepTable;

/// Number of lines in the table of steps.
const LINES: u64 = 20;

/// Arguments of `hushflow train`.
#[derive(Debug, Args)]
#[command(after_help = "\
The pipeline file needs a section [training]: hushflow reference training explains it. Each step releases the clipped \
gradients of a batch with noise. It is in the log before it is used. A run that was stopped or killed goes on after the last \
released step when the command is repeated, and no step is drawn twice. The ledger is charged for all steps at the first one.

The model is public: parameters, steps, noise. What --test prints is not: it comes from the rows of FILE without noise.

Examples:
  hushflow plan model.toml
  hushflow check model.toml
  hushflow train model.toml --model model.json
  hushflow train model.toml --json | tail -n 1 | jq .parameters")]
pub(crate) struct TrainArguments {
    /// The pipeline file, with a section [training]
    pipeline: PathBuf,
    /// State directory; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Number of threads that compute gradients. The steps of a seed don't depend on it
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// File for the model, as JSON; it is written at the end, also when the run is stopped
    /// [default: model.json in the directory of the public log]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Test the model after each printed step on the rows of this file. The results have no noise
    /// and are private unless the file is public
    #[arg(long, value_name = "FILE")]
    test: Option<PathBuf>,
    /// Print one JSON line for each step, and the model last
    #[arg(long)]
    json: bool,
    /// Report on standard error how many rows are blank, also if it is not a terminal. The number
    /// is private
    #[arg(long)]
    counters: bool,
}

/// Trains until the last step.
pub(crate) fn execute(arguments: &TrainArguments) -> Result<(), CliError> {
    let pipeline = Pipeline::load(&arguments.pipeline)?;
    let Some(training) = &pipeline.training else {
        return Err(CliError::usage(format!(
            "{}: there is no section [training] (see hushflow reference training); a stream is published by hushflow run",
            arguments.pipeline.display()
        )));
    };
    let state = arguments.state.clone().or_else(|| pipeline.state_directory.clone()).ok_or_else(|| {
        CliError::usage("no state directory: name one with --state DIR, or in the pipeline file:\n\n[state]\ndirectory = \"state\"")
    })?;
    let control = stopped_by_signals(Control::new().on_notice(warn))?;
    let options = RunOptions {
        control,
        ledgers: LedgerHome::find()?,
        ..RunOptions::new(arguments.workers.into(), state)
    };
    if shared_ledger(&pipeline, &options)?.is_none() {
        print_uncounted_note("[ledger] directory");
    }
    if !pipeline.noise.is_private() {
        warn(
            "[simulation] is set: the noise is drawn from a seed, so what is published has no privacy protection",
        );
    }
    if let Some(warning) = large_delta(pipeline.privacy.delta, None) {
        warn(&warning);
    }
    let bar = SearchStatus::new();
    let progress = &mut |progress: &_| bar.update(progress);
    let publication = publication(&pipeline, &options.state, &arguments.pipeline, progress)?;
    bar.finish();
    let unusable = |error: hushflow::training::ExamplesError| CliError::failed(error.to_string());
    let examples = Examples::of_source(&pipeline).map_err(unusable)?;
    if arguments.counters || stderr().is_terminal() {
        print_blank(&examples);
    }
    let test = arguments.test.as_deref().map(|file| Examples::of_test(training, file)).transpose();
    let mut table = StepTable::new(&publication, test.map_err(unusable)?, arguments.json);
    let every = publication.horizon().div_ceil(LINES);
    let bar = ProgressCounter::new(publication.horizon(), "steps");
    // The first call is for the steps of earlier runs.
    let (mut before, mut failed) = (None, None);
    let model = train(&pipeline, &publication, &options, &examples, &mut |model| {
        bar.add(model.step() - before.unwrap_or_default());
        let is_due = arguments.json || model.step().is_multiple_of(every) || model.is_complete();
        if before.replace(model.step()).is_some() && is_due && failed.is_none() {
            bar.interrupt(|| failed = table.print(model).err());
        }
    });
    bar.finish();
    let model = model?;
    if let Some(error) = failed {
        return Err(error);
    }
    finish(arguments, &pipeline, &options, (&model, &publication), &mut table)
}

/// Writes the model and prints the summary.
fn finish(
    arguments: &TrainArguments,
    pipeline: &Pipeline,
    options: &RunOptions,
    (model, publication): (&TrainedModel, &MomentPublication),
    table: &mut StepTable,
) -> Result<(), CliError> {
    let report = ModelReport::new(model, publication)?;
    let default_path = || pipeline.log_directory(&options.state).join("model.json");
    let path = arguments.model.clone().unwrap_or_else(default_path);
    write(&path, &report)
        .map_err(|error| CliError::failed(format!("{}: can't be written: {error}", path.display())))?;
    table.print_model(&report, model)?;
    let (steps, horizon) = (thousands(model.step()), thousands(publication.horizon()));
    print_message(&match model.is_complete() {
        true => format!("All {horizon} steps are released. The model is in {}.", path.display()),
        false => format!(
            "{steps} of {horizon} steps are released. The model so far is in {}. Run the command again to go on.",
            path.display()
        ),
    });
    Ok(())
}

/// Returns the publication of the gradients of a pipeline. Reports a search to `progress`.
pub(super) fn publication(
    pipeline: &Pipeline,
    state: &Path,
    file: &Path,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<MomentPublication, CliError> {
    let publication = Publication::of_pipeline(pipeline, state, progress);
    publication.and_then(Publication::into_moments).map_err(|error| CliError::from(error).in_pipeline(file))
}

/// Prints how many rows count as blank. Private.
fn print_blank(examples: &Examples) {
    let (blank, rows) = (examples.blank(), examples.len() as u64);
    if blank > 0 {
        print_message(&format!(
            "note: {} of {} rows are blank (a value is missing or can't be read, or the class is not listed); their gradients \
             count as zero. The number is private.",
            thousands(blank),
            thousands(rows)
        ));
    }
}

/// Writes a file as a whole or not at all.
fn write(path: &Path, report: &ModelReport) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let mut file = File::create(&partial)?;
    serde_json::to_writer_pretty(&mut file, report)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&partial, path)
}
