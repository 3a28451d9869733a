//! `hushflow check`: reads the real source as a run does, and shows the operator how a run would
//! treat it.

mod json;
mod notes;
mod report;

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hushflow::check::{Problem, never_closes};
use hushflow::control::Control;
use hushflow::ledger::LedgerHome;
use hushflow::pipeline::{Pipeline, Source};
use hushflow::publication::Publication;
use hushflow::runtime::{DryRun, DryRunLimits, RunOptions, confirm_budget, dry_run};
use hushflow::sink::probe;
use hushflow::source::SourceError;
use hushflow::state::PublicReader;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use super::output::{RowProgress, print_json, print_message, print_wrapped, warn};
use super::run::timeout;
use super::train::print_check;
use super::{CliError, ColorChoice};
use report::CheckReport;

/// Maximum number of rows that are read from a source without an end.
const ENDLESS_ROWS: u64 = 100_000;

/// Silence after which reading of a source without an end stops.
const SILENCE: Duration = Duration::from_secs(1);

/// Maximum wait for a server that is away, or that holds rows back.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// A state directory that does not exist.
const NO_STATE: &str = "/nonexistent/state";

/// Arguments of `hushflow check`.
#[derive(Debug, Args)]
#[command(after_help = "\
check reads the source with the reader, the clock and the epochs of a run. It publishes nothing, writes nothing, spends \
nothing and needs no state directory. What it prints is exact and PRIVATE: for the operator, never for readers.

Files are read to their ends, and so is standard input, whose rows are then gone. A followed directory or a broker is \
read until it is silent, at most 100,000 rows; nothing is acknowledged. A socket can't be read: its peer would take the \
records as received. SIGINT ends the reading and prints what was seen. Then check connects and logs in to each server of \
[[sinks]], and writes nothing there.

Exit status: 0 if a run would publish what the pipeline file describes, 4 if it would stop, or if the source does not \
fit the file or a sink can't be used, 1 if the source can't be read, 2 for a bad pipeline file, 5 if the source's server \
could not be reached.

Examples:
  hushflow check examples/flights.toml
  hushflow check pipeline.toml --rows 10000 --json | jq .problems")]
pub(crate) struct CheckArguments {
    /// The pipeline file
    pipeline: PathBuf,
    /// Read at most this many rows of each source [default: all, or 100000 of a source without an
    /// end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Stop reading when no rows have arrived for this long, for sources without an end [default:
    /// 1s]. A server that is away, or that holds rows back, is waited for ten seconds at least
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    until_idle: Option<Duration>,
    /// State directory of the run, if it exists; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// List all epochs
    #[arg(long)]
    epochs: bool,
    /// Print one JSON object; it is private too
    #[arg(long)]
    json: bool,
    /// Colours of the report. By default on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
}

/// Reads the source and prints the report.
pub(crate) fn execute(arguments: &CheckArguments) -> Result<(), CliError> {
    let pipeline = Pipeline::load(&arguments.pipeline)?;
    refuse_sockets(&pipeline)?;
    let state = arguments.state.clone().or_else(|| pipeline.state_directory.clone());
    let state = state.unwrap_or_else(|| NO_STATE.into());
    if pipeline.training.is_some() {
        return print_check(&pipeline, (&arguments.pipeline, &state), arguments.json);
    }
    let wrong = |error| CliError::from(error).in_pipeline(&arguments.pipeline);
    let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ()).map_err(wrong)?;
    let progress = RowProgress::new();
    let limits = limits(arguments, &pipeline, progress.clone())?;
    let mut run = dry_run(&pipeline, &limits, &mut |rows| progress.update(rows));
    progress.finish();
    let stopped = limits.control.is_stopped();
    run.is_whole &= !stopped;
    let mut problems = std::mem::take(&mut run.problems);
    let obstacles = obstacles(&pipeline, &publication, &state)?;
    let obstacles: Vec<Problem> = never_closes(&pipeline).into_iter().chain(obstacles).collect();
    if !obstacles.is_empty() {
        run.stops_after = Some(0);
    }
    problems.extend(obstacles);
    problems.extend(unusable_sinks(&pipeline, &limits.control));
    if !pipeline.sinks.is_empty() && !stopped {
        print_message("note: each sink was tried, and nothing was written to it");
    }
    let report = CheckReport::new(&pipeline, &publication, &run, problems)?;
    if arguments.json {
        print_json(&report.json())?
    } else {
        print_wrapped(&report.text(arguments.epochs, &arguments.color.style()))?
    };
    if !stderr().is_terminal() || arguments.json {
        print_message("note: the output of check is private: for the operator only");
    }
    report.verdict()
}

/// Kind of the problem of a sink.
const UNUSABLE_SINK: &str = "unusable sink";

/// Connects to each sink, unless the check is stopped, and returns those that a run could not use.
fn unusable_sinks(pipeline: &Pipeline, control: &Control) -> Vec<Problem> {
    let sinks = pipeline.sinks.iter().filter(|_| !control.is_stopped());
    let unusable = sinks.filter_map(|sink| probe(sink, control).err()).map(|error| {
        let message = format!("a sink can't be used: {error}. A run publishes to its log, and tries again");
        Problem::new(UNUSABLE_SINK, true, message)
    });
    unusable.collect()
}

fn refuse_sockets(pipeline: &Pipeline) -> Result<(), CliError> {
    match pipeline.sources.iter().find(|source| source.journal && source.is_endless()) {
        None => Ok(()),
        Some(socket) => Err(CliError::usage(format!(
            "{}: a socket can't be checked, because its peer would take the records as received: save some of them to a file, and \
             name that in path for the check",
            socket.input
        ))),
    }
}

/// Returns how much to read. The first signal ends the reading, the second one the process.
fn limits(
    arguments: &CheckArguments,
    pipeline: &Pipeline,
    progress: RowProgress,
) -> Result<DryRunLimits, CliError> {
    let is_endless = pipeline.sources.iter().any(Source::is_endless);
    let silence = arguments.until_idle.or(is_endless.then_some(SILENCE));
    let control = Control::new()
        .until_idle(silence)
        .wait_for_servers(SERVER_TIMEOUT.max(silence.unwrap_or_default()))
        .on_notice(move |notice| progress.interrupt(|| warn(notice)));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, control.stop_flag())
            .and_then(|_| register(signal, control.stop_flag()))
            .map_err(|error| CliError::failed(format!("can't install signal handlers: {error}")))?;
    }
    Ok(DryRunLimits { rows: arguments.rows.or(is_endless.then_some(ENDLESS_ROWS)), control, spread: false })
}

/// Returns the problems other than rows that would stop a run: the state directory, or the budget.
fn obstacles(pipeline: &Pipeline, publication: &Publication, state: &Path) -> Result<Vec<Problem>, CliError> {
    let mut found = Vec::new();
    let mut add =
        |kind, message: String| found.push(Problem { stops: true, ..Problem::new(kind, true, message) });
    let header = publication.header()?;
    let earlier = PublicReader::open(pipeline.log_directory(state)).ok();
    // A run that was refused leaves a log without a release, which the next run replaces.
    let has_release = |mut earlier: PublicReader| !matches!(earlier.next_frame(), Ok(None));
    if earlier.is_some_and(|earlier| *earlier.header() != header && has_release(earlier)) {
        add(
            "another state",
            format!(
                "{} holds releases with other parameters: use the old ones, or a new state directory",
                state.display()
            ),
        );
    }
    let options = RunOptions { ledgers: LedgerHome::find()?, ..RunOptions::new(1, state) };
    if let Err(error) = confirm_budget(pipeline, publication, &options) {
        add("ledger", error.to_string());
    }
    Ok(found)
}

impl CheckReport<'_> {
    /// Returns the outcome as an exit status.
    fn verdict(&self) -> Result<(), CliError> {
        let DryRun { fault, .. } = self.run;
        match fault {
            Some(fault @ SourceError::Unreached(_)) => Err(CliError::unreached(fault.to_string())),
            Some(fault) if fault.is_unreadable() => Err(CliError::failed(fault.to_string())),
            Some(_) => Err(CliError::refused("a run would stop: see the problem above")),
            None if self.problems.is_empty() => Ok(()),
            None => match self.problems.iter().find(|problem| problem.stops) {
                Some(_) => Err(CliError::refused("a run would stop: see the problems above")),
                None if self.run.is_empty() => {
                    Err(CliError::refused("there is no row, so a run would publish nothing"))
                }
                None if self.problems.iter().all(|problem| problem.kind == UNUSABLE_SINK) => Err(
                    CliError::refused("a run would publish, but not to every sink: see the problems above"),
                ),
                None => Err(CliError::refused(
                    "a run would spend its budget on a source that does not fit the pipeline file: see the problems above",
                )),
            },
        }
    }
}
