//! `hushflow run`: publishes a stream.

use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hushflow::check::never_closes;
use hushflow::control::Control;
use hushflow::follow::{FaintCounts, Subject};
use hushflow::key::SharedKey;
use hushflow::ledger::LedgerHome;
use hushflow::pipeline::{Pipeline, Preflight, Sink, Source};
use hushflow::publication::Publication;
use hushflow::runtime::{Acknowledge, Cluster, RunOptions, RunSummary, run, shared_ledger};
use hushflow::sink::{SinkError, SinkInput, SinkThread, TakenAddress};
use hushflow::time::parse_duration;

use super::budget::large_delta;
use super::crash::end_process;
use super::http::HttpArguments;
use super::ledger::print_uncounted_note;
use super::log::LogArguments;
use super::output::{print_message, warn};
use super::plan::refusal;
use super::signals::stopped_by_signals;
use super::{CliError, ReleaseFormatArguments, thousands};

/// Time that a stopped run waits for the reader of its output.
const READERS: Duration = Duration::from_millis(500);

/// Time that a process waits for the other processes of its cluster.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `hushflow run`.
#[derive(Debug, Args)]
#[command(after_help = "\
A run reads the source to its end. Run the command again to continue where it stopped: no epoch is ever published \
twice. SIGINT and SIGTERM stop the run cleanly after the last committed epoch. A second signal ends it at once; so does \
the first one before the run reads any rows (while it searches for a strategy or waits for other processes).

Examples:
  hushflow run examples/flights.toml
  cat flights.csv | hushflow run pipeline.toml --json > releases.jsonl
      (with path = \"-\")
  tail -F log.ndjson | hushflow run pipeline.toml --quiet --acknowledge safe
      (with path = \"-\" and journal = true)
  hushflow key cluster.key
  hushflow run pipeline.toml --hosts 10.0.0.1:2101,10.0.0.2:2101 \\
      --key cluster.key --process 0      (and --process 1 on 10.0.0.2)")]
pub(crate) struct RunArguments {
    /// The pipeline file
    pipeline: PathBuf,
    /// Worker threads of this process
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// State directory; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// World-readable directory for the public log; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    public: Option<PathBuf>,
    /// Output format of the releases
    #[command(flatten)]
    format: ReleaseFormatArguments,
    /// Publish only to the log; write nothing to standard output
    #[arg(long, short)]
    quiet: bool,
    /// Report on standard error how many rows were read and dropped, and what is wrong with them,
    /// also if it is not a terminal. These exact counts are private: only for the operator
    #[arg(long)]
    counters: bool,
    /// Write the number of records from standard input or a socket that are safe in the journal:
    /// one line at the start, from which to resume, and one after each sync. FILE is a file, a
    /// named pipe, /dev/fd/3, or - for standard output (with --quiet). Needs journal = true in
    /// [source]. The number is exact and therefore private
    #[arg(long, value_name = "FILE")]
    acknowledge: Option<PathBuf>,
    /// End when no rows have arrived for this long, such as 30s. For sources without an end:
    /// followed files, sockets, brokers. The open epoch is closed, as at the end of a file
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    until_idle: Option<Duration>,
    /// host:port of every process of the cluster, in order
    #[arg(long, value_delimiter = ',', requires = "process", value_name = "HOST:PORT,…")]
    hosts: Vec<String>,
    /// Index of this process in the list of hosts, from 0. Process 0 takes the rows in their order
    /// and commits; all processes read files that the pipeline lists
    #[arg(long, requires = "hosts", value_name = "I")]
    process: Option<usize>,
    /// Key file that all processes of the cluster share, created by `hushflow key FILE`. Without a
    /// key, only loopback addresses are accepted
    #[arg(long, requires = "hosts", value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    log: LogArguments,
    /// Serve Prometheus metrics at http://ADDR/metrics, such as 127.0.0.1:9100, and probes at
    /// /healthz (alive) and /readyz (an epoch within its deadline); port 0 takes any free port.
    /// Exact counts that depend on the content of records are private, and are served only on a
    /// loopback address
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Serve the private metrics on other addresses too, where other machines can read them
    #[arg(long, requires = "metrics")]
    metrics_private: bool,
    /// Report at /readyz that the run is not ready if no epoch has come for this long, such as 25h
    /// [default: twice the length of an epoch and its allowed lateness, at least 1m; no deadline
    /// for epochs of rows or with clock = "end-of-input"]
    #[arg(long, requires = "metrics", value_name = "DURATION", value_parser = timeout)]
    ready_within: Option<Duration>,
    #[command(flatten)]
    http: HttpArguments,
}

impl RunArguments {
    /// Whether standard error shows exact counts and other private facts: only if a person reads it
    /// or asked for them. Otherwise it may end in the log of a service, so it depends on public
    /// facts alone, except for early warnings.
    fn shows_private(&self) -> bool {
        self.counters || stderr().is_terminal()
    }
}

/// Runs the pipeline until its source ends.
pub(crate) fn execute(arguments: &RunArguments) -> Result<(), CliError> {
    let _telemetry = arguments.log.begin()?;
    let mut pipeline = Pipeline::load(&arguments.pipeline)?;
    pipeline.state.public = arguments.public.clone().or(pipeline.state.public);
    let state = arguments.state.clone().or_else(|| pipeline.state_directory.clone()).ok_or_else(|| {
        CliError::usage("no state directory: name one with --state DIR, or in the pipeline file:\n\n[state]\ndirectory = \"state\"")
    })?;
    let key = arguments.key.as_deref().map(SharedKey::load).transpose()?;
    let cluster = arguments.process.map(|process| Cluster {
        process,
        hosts: arguments.hosts.clone(),
        key,
        timeout: TIMEOUT,
        on_fault: end_process,
    });
    let options = RunOptions {
        cluster,
        acknowledge: acknowledge(arguments, &pipeline)?,
        control: control(arguments, &pipeline)?,
        ledgers: LedgerHome::find()?,
        ..RunOptions::new(arguments.workers.into(), state)
    };
    if arguments.process.unwrap_or(0) == 0 && shared_ledger(&pipeline, &options)?.is_none() {
        print_uncounted_note("[ledger] directory");
    }
    if let Some(within) = arguments.ready_within {
        options.metrics.set_ready_within(within);
    }
    if let Some(endpoint) = arguments.http.endpoint(arguments.metrics.as_deref(), "--metrics")? {
        let url = options.metrics.serve(&endpoint, arguments.metrics_private)?;
        let _ = writeln!(stderr(), "{url} serves the metrics of this run");
    }
    let wrong = |error| CliError::from(error).in_pipeline(&arguments.pipeline);
    if !pipeline.noise.is_private() {
        warn(
            "[simulation] is set: the noise is drawn from a seed, so what is published has no privacy protection",
        );
    }
    if let Some(warning) = large_delta(pipeline.privacy.delta, None) {
        warn(&warning);
    }
    if let Some(refusal) = refusal(&pipeline).map_err(wrong)? {
        warn(&format!("every window will be refused: {refusal}"));
    }
    let publication = Publication::of_pipeline(&pipeline, &options.state, &mut |_| ()).map_err(wrong)?;
    let subject = Subject { publication: publication.clone(), views: pipeline.views.clone() };
    let directory = pipeline.log_directory(&options.state).to_owned();
    let input = SinkInput { directory, subject: Arc::new(subject) };
    let sinks = start_sinks(&pipeline, &options, &input)?;
    let format = arguments.format.format()?;
    let mut output = None;
    let summary = run(&pipeline, &publication, &options, |first_epoch| {
        if first_epoch == 1 && pipeline.preflight == Preflight::Warn && !arguments.shows_private() {
            print_hidden_note(&arguments.pipeline);
        }
        if !arguments.quiet {
            output = Some(SinkThread::print(input.clone(), format.clone(), first_epoch - 1));
        }
    });
    let finished: Vec<_> = sinks.into_iter().map(SinkThread::finish).collect();
    let output =
        output.transpose().and_then(|output| output.map_or(Ok(()), |output| finish(output, &options)));
    let summary = summary?;
    report(&input, &options, &summary, arguments);
    report_faint_counts(&input, &options, &summary, &arguments.pipeline);
    Ok(finished.into_iter().chain([output]).collect::<Result<(), _>>()?)
}

/// Starts the sinks, in the process that writes the log. A taken address doesn't stop the run.
fn start_sinks(
    pipeline: &Pipeline,
    options: &RunOptions,
    input: &SinkInput,
) -> Result<Vec<SinkThread>, SinkError> {
    let leads = options.cluster.as_ref().is_none_or(|cluster| cluster.process == 0);
    let start = |sink| start_sink(sink, input, &options.control, TakenAddress::Retry);
    pipeline.sinks.iter().filter(|_| leads).map(start).collect()
}

/// Starts a sink, which prints its address once it listens.
pub(super) fn start_sink(
    sink: &Sink,
    input: &SinkInput,
    control: &Control,
    taken: TakenAddress,
) -> Result<SinkThread, SinkError> {
    fn announce(url: &str) {
        let _ = writeln!(stderr(), "{url}/events serves the releases as events");
    }
    SinkThread::start(sink, input.clone(), control, taken, announce)
}

/// Returns the control by which signals stop the run and notices are printed.
///
/// Only process 0 handles signals; the other processes end with it. The second
/// signal ends the process at once; so does the first one before the run reads any rows.
fn control(arguments: &RunArguments, pipeline: &Pipeline) -> Result<Control, CliError> {
    if arguments.until_idle.is_some() && !pipeline.sources.iter().any(Source::is_endless) {
        return Err(CliError::usage(
            "--until-idle is for sources without an end (followed files, sockets, brokers); this one has an end: leave it out",
        ));
    }
    if let Some(endless) = never_closes(pipeline).filter(|_| arguments.until_idle.is_none()) {
        return Err(CliError::usage(format!("{}, or add --until-idle 30s", endless.message)));
    }
    // Before anything is spent the operator is warned of private problems too, wherever standard
    // error ends: the alternative is a spent budget and useless releases. (ε, δ) does not cover it.
    let control = Control::new().until_idle(arguments.until_idle).on_notice(warn).on_early_warning(warn);
    let control = if arguments.shows_private() { control.on_private_notice(warn) } else { control };
    if arguments.process.unwrap_or(0) == 0 { stopped_by_signals(control) } else { Ok(control) }
}

pub(super) fn timeout(text: &str) -> Result<Duration, &'static str> {
    let micros = parse_duration(text).and_then(|micros| u64::try_from(micros).ok());
    micros.map(Duration::from_micros).ok_or("expected a duration such as 30s or 5m")
}

/// Returns the function that writes acknowledgements, if any are wanted.
fn acknowledge(arguments: &RunArguments, pipeline: &Pipeline) -> Result<Option<Acknowledge>, CliError> {
    let Some(path) = &arguments.acknowledge else { return Ok(None) };
    if !pipeline.sources.iter().any(|source| source.journal) {
        return Err(CliError::usage(
            "--acknowledge needs a journal: add path = \"-\" and journal = true to [source]",
        ));
    }
    if path == Path::new("-") {
        if !arguments.quiet {
            return Err(CliError::usage(
                "--acknowledge - would mix with the releases on standard output: add --quiet",
            ));
        }
        return Ok(Some(Acknowledge::to(|records| {
            // A reader that has gone does not stop the run.
            let _ = writeln!(stdout(), "{records}").and_then(|()| stdout().flush());
        })));
    }
    let file = File::options().append(true).create(true).mode(0o600).open(path);
    let file =
        file.map_err(|error| CliError::failed(format!("{}: can't be written: {error}", path.display())))?;
    Ok(Some(Acknowledge::to(move |records| {
        let _ = (&file).write_all(format!("{records}\n").as_bytes());
    })))
}

/// Prints that private problems of later rows are not shown, and where they are. It depends on the
/// arguments alone.
fn print_hidden_note(pipeline: &Path) {
    print_message(&format!(
        "note: rows after the first ones that don't count for private reasons, such as misspelt keys, are not reported here: hushflow \
         check {} shows them, --counters prints them, and preflight = \"stop\" in [source] stops the run for them",
        pipeline.display()
    ));
}

/// Waits until all output is written. If the run was stopped and the output has no active reader,
/// gives up.
fn finish(output: SinkThread, options: &RunOptions) -> Result<(), SinkError> {
    match output.finish_while_taken(|| options.control.is_stopped(), READERS) {
        Some(outcome) => outcome,
        None => {
            warn("standard output is closed, so the last releases were not printed; the log has them");
            Ok(())
        }
    }
}

/// A hint is printed if at least one row in this many is unusable.
const MANY_UNUSABLE: u64 = 20;

/// Prints the summary, and the command that reads the log.
fn report(input: &SinkInput, options: &RunOptions, summary: &RunSummary, arguments: &RunArguments) {
    if options.cluster.as_ref().is_some_and(|cluster| cluster.process > 0) {
        return;
    }
    let parameters = input.subject.parameters();
    let privacy = parameters.privacy;
    let (epochs, last) = (summary.epochs.end - summary.epochs.start, summary.epochs.end - 1);
    print_message(&match epochs {
        0 if last == 0 && summary.counters.rows == 0 => {
            "The source has no row, so no epoch was published.".into()
        }
        0 if last == 0 => "No epoch has closed yet, so none was published.".into(),
        0 => format!("Nothing new: {last} epochs were published earlier, and no epoch is published twice."),
        _ => format!(
            "{epochs} epochs published; the log now ends at epoch {last} of {}.",
            parameters.epochs.schedule.horizon()
        ),
    });
    if last > 0 {
        print_message(&match input.subject.publication.is_private() {
            false => "NOT PRIVATE: the noise was drawn from a seed.".into(),
            true => format!(
                "All releases of this state directory together are (ε = {}, δ = {})-differentially private for {}.",
                privacy.epsilon,
                privacy.delta,
                parameters.adjacency()
            ),
        });
    }
    // The public clock of these rows is past the last epoch.
    if summary.counters.past_clock > 0 {
        print_message(&format!(
            "The source goes on after the last epoch: hushflow check {} shows the horizon that holds all of its rows.",
            arguments.pipeline.display()
        ));
    }
    if options.control.is_stopped() {
        print_message(
            "Stopped by a signal: run the command again to continue. The current epoch is still open.",
        );
    }
    // A command to copy is not wrapped. A closed standard error is not a failure.
    if last > 0 {
        let _ =
            writeln!(stderr(), "To read the releases again:  hushflow tail {}", input.directory.display());
    }
    if arguments.shows_private() {
        let c = &summary.counters;
        let by_column = parameters.by_column();
        let [missing, malformed] = match by_column {
            true => [
                "a value is missing, counted for their other columns",
                "a value is malformed, counted for their other columns",
            ],
            false => ["unusable, a value is missing", "unusable, malformed"],
        };
        let rows = [
            ("rows read", c.rows),
            (missing, c.missing),
            (malformed, c.malformed),
            ("skipped, key not listed", c.unknown_key),
            ("late, counted in the oldest open epoch", c.folded),
            ("late, dropped", c.late),
            ("before the first epoch, dropped", c.before_start),
            ("after the last epoch, dropped", c.after_horizon),
            ("too far ahead of the clock, dropped", c.clock_jump),
            ("duplicates, dropped", c.duplicates),
            ("for epochs closed in an earlier run, dropped", c.already_closed),
            ("cut by a disconnect, dropped", c.cut_off),
            ("beyond the limits of their entities, or merged into a mean", summary.left_out.unwrap_or(0)),
        ];
        print_message("Rows (exact counts are private: only for the operator):");
        for (outcome, count) in
            rows.into_iter().filter(|&(outcome, count)| count > 0 || outcome == "rows read")
        {
            print_message(&format!("{:>14}  {outcome}", thousands(count)));
        }
        let unusable = c.missing + c.malformed;
        if !by_column && parameters.columns.len() > 1 && unusable > c.rows / MANY_UNUSABLE {
            let share = 100.0 * unusable as f64 / c.rows.max(1) as f64;
            print_message(&format!(
                "hint: {share:.0} % of the rows are unusable as a whole; with missing = \"by-column\" in [source], a row counts \
                 for the columns that it has (in a new state directory)"
            ));
        }
    }
}

/// Warns if the published counts show no records. It depends on releases alone, so everyone may see
/// it. A log that can't be read is reported by the commands that read it.
fn report_faint_counts(input: &SinkInput, options: &RunOptions, summary: &RunSummary, pipeline: &Path) {
    let leads = options.cluster.as_ref().is_none_or(|cluster| cluster.process == 0);
    let Publication::Moments(publication) = &input.subject.publication else { return };
    if !leads || summary.epochs.is_empty() {
        return;
    }
    let Ok(Some(counts)) = FaintCounts::of_log(&input.directory, publication) else { return };
    let part = match counts.is_sum_faint {
        true => String::new(),
        false => format!(" in {} of {} epochs", counts.faint, counts.epochs),
    };
    let causes = match publication.parameters().entity {
        Some(_) => "the start, the clock, the keys or the limits of entities",
        None => "the start, the clock or the keys",
    };
    warn(&format!(
        "the published counts can't be told from zero{part}: {causes} may be wrong; hushflow check {} shows the rows",
        pipeline.display()
    ));
}
