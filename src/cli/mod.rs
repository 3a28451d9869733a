//! The command line: one file per command.
//!
//! Data go to standard output, everything else to standard error. A closed standard output counts
//! as success.

pub(crate) mod audit;
mod budget;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod covariance;
mod crash;
pub(crate) mod health;
mod help;
mod http;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod ledger;
mod located;
mod log;
pub(crate) mod mean;
pub(crate) mod optimize;
mod output;
pub(crate) mod plan;
mod prospects;
pub(crate) mod query;
pub(crate) mod reference;
pub(crate) mod run;
pub(crate) mod serve;
mod shell;
mod signals;
pub(crate) mod tail;
mod telemetry;
pub(crate) mod train;
pub(crate) mod verify;

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal, stdout};
use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use console::Term;
use hushflow::lines::{OutputFormat, TableStyle};
use hushflow::pipeline::Pipeline;
use hushflow::publication::PublicationError;
use hushflow::runtime::RunError;
use hushflow::sink::SinkError;
use hushflow::web::HttpError;
use serde::de::DeserializeOwned;
use serde::de::value::StrDeserializer;

use help::parse;

/// Publishes running moments of a data stream, epoch by epoch. One differential privacy guarantee
/// covers all releases together.
#[derive(Debug, Parser)]
#[command(name = "hushflow", version, arg_required_else_help = true)]
#[command(after_help = "\
Exit status: 0 success, 1 failure, 2 wrong usage or a bad pipeline file, 3 an audit found that a claim is exceeded, 4 a check \
found that a run would stop or publish nothing useful, 5 a server of the source could not be reached.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look at a file, ask what is public about it, and write a pipeline file
    Init(init::InitArguments),
    /// Read the source without publishing or spending: what would a run make of it?
    Check(check::CheckArguments),
    /// Forecast the noise of a stream and compare strategies before a run
    Plan(plan::PlanArguments),
    /// Find the best strategy for a workload, with a certified bound on the gap
    Optimize(optimize::OptimizeArguments),
    /// Explain every section and field of the pipeline file
    Reference(reference::ReferenceArguments),
    /// Publish a stream as described by a pipeline file
    Run(run::RunArguments),
    /// Train a model on the rows of a pipeline file, privately
    Train(train::TrainArguments),
    /// Read the published releases under any view
    Tail(tail::TailArguments),
    /// Serve a public log as a web page and write its sinks, separately from the run
    Serve(serve::ServeArguments),
    /// Ask a run or a page whether it is alive or ready
    Health(health::HealthArguments),
    /// Compute the noise for a guarantee, or the guarantee for a noise level
    Calibrate(calibrate::CalibrateArguments),
    /// Estimate the covariance of a file's rows
    Covariance(covariance::CovarianceArguments),
    /// Answer linear queries over a histogram with the least total noise
    Query(query::QueryArguments),
    /// Show the privacy budget that all pipelines have spent on the same data
    Ledger(ledger::LedgerArguments),
    /// Create a key file for cluster links and the senders of a source
    Key(key::KeyArguments),
    /// Check that a state directory is intact and its guarantee holds
    Verify(verify::VerifyArguments),
    /// Attack the mechanism: try to tell neighbouring streams apart by their releases
    Audit(audit::AuditArguments),
    /// Estimate a mean privately, even if a share of the rows is corrupt
    Mean(mean::MeanArguments),
    /// Print the completions of a shell, or write manual pages
    #[command(flatten)]
    Shell(shell::ShellCommand),
}

/// Runs the command with these arguments. The first is its name. Returns the exit status;
/// help and wrong usage end the process.
pub fn execute(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = parse(arguments);
    crash::prepare();
    let done = match &arguments.command {
        Command::Reference(arguments) => reference::execute(arguments),
        Command::Run(arguments) => run::execute(arguments),
        Command::Train(arguments) => train::execute(arguments),
        Command::Check(arguments) => check::execute(arguments),
        Command::Init(arguments) => init::execute(arguments),
        Command::Tail(arguments) => tail::execute(arguments),
        Command::Serve(arguments) => serve::execute(arguments),
        Command::Health(arguments) => health::execute(arguments),
        Command::Calibrate(arguments) => calibrate::execute(arguments),
        Command::Covariance(arguments) => covariance::execute(arguments),
        Command::Query(arguments) => query::execute(arguments),
        Command::Plan(arguments) => plan::execute(arguments),
        Command::Optimize(arguments) => optimize::execute(arguments),
        Command::Ledger(arguments) => ledger::execute(arguments),
        Command::Key(arguments) => key::execute(arguments),
        Command::Verify(arguments) => verify::execute(arguments),
        Command::Audit(arguments) => audit::execute(arguments),
        Command::Mean(arguments) => mean::execute(arguments),
        Command::Shell(command) => shell::execute(command),
    };
    match done {
        Ok(()) => 0,
        Err(error) if error.is_broken_pipe() => 0,
        Err(error) => {
            output::print_message(&format!("error: {error}"));
            error.status
        }
    }
}

/// Output format of a view.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FormatArgument {
    /// Output format: a table for people, JSON lines or CSV for programs
    #[arg(long, value_enum, default_value_t = FormatName::Table)]
    format: FormatName,
    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// How the releases are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseFormatArguments {
    #[command(flatten)]
    format: FormatArgument,
    /// Cells of the table to show, separated by commas: names of columns, words of titles such as
    /// mean or corr, or pairs of columns such as a~b. All of them are shown, on several lines where
    /// the terminal is narrow. May be repeated; a name with a comma needs a flag of its own
    #[arg(long, value_name = "NAMES", conflicts_with = "json")]
    columns: Vec<String>,
    /// Colours of the table. By default on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
}

/// When a table has colours.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorChoice {
    /// Returns the style of text: for the terminal, or for a pipe.
    fn style(self) -> TableStyle {
        let is_terminal = stdout().is_terminal();
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let colours = match self {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                is_terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
            }
        };
        let width = is_terminal.then(|| usize::from(Term::stdout().size().1));
        TableStyle { width, colours, ..TableStyle::default() }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Table,
    Json,
    Csv,
}

impl FormatArgument {
    fn format(self) -> OutputFormat {
        match self.format {
            _ if self.json => OutputFormat::Json,
            FormatName::Table => OutputFormat::Table(TableStyle::default()),
            FormatName::Json => OutputFormat::Json,
            FormatName::Csv => OutputFormat::Csv,
        }
    }
}

impl ReleaseFormatArguments {
    fn format(&self) -> Result<OutputFormat, CliError> {
        match self.format.format() {
            OutputFormat::Table(_) => Ok(OutputFormat::Table(self.style())),
            format if self.columns.is_empty() => Ok(format),
            _ => Err(CliError::usage("--columns is for tables: JSON and CSV lines have all fields")),
        }
    }

    fn style(&self) -> TableStyle {
        TableStyle { columns: self.columns.clone(), ..self.color.style() }
    }
}

/// The error and exit status of a failed command.
#[derive(Debug)]
pub(crate) struct CliError {
    status: u8,
    cause: Box<dyn Error + Send + Sync>,
}

impl CliError {
    /// Exit status 2: wrong usage or bad input.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        CliError { status: 2, cause: message.into().into() }
    }

    /// Exit status 1: failure.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        CliError { status: 1, cause: message.into().into() }
    }

    /// Exit status 3: a claim does not hold.
    pub(crate) fn exceeded(message: impl Into<String>) -> Self {
        CliError { status: 3, cause: message.into().into() }
    }

    /// Exit status 4: a run would stop, or publish little or nothing.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        CliError { status: 4, cause: message.into().into() }
    }

    /// Exit status 5: no server of the source could be reached.
    pub(crate) fn unreached(message: impl Into<String>) -> Self {
        CliError { status: 5, cause: message.into().into() }
    }

    /// Adds the position in the pipeline file of the field that the error is about.
    fn in_pipeline(self, path: &Path) -> Self {
        let Some(error) = self.cause.downcast_ref::<PublicationError>() else { return self };
        let position = match error.field().and_then(|field| Pipeline::position(path, field)) {
            Some((line, column)) => format!("{}:{line}:{column}", path.display()),
            None => path.display().to_string(),
        };
        CliError { status: self.status, cause: format!("{position}: {error}").into() }
    }

    fn is_broken_pipe(&self) -> bool {
        let cause: &(dyn Error + 'static) = &*self.cause;
        let output = cause.downcast_ref().and_then(|error: &SinkError| match error {
            SinkError::Output(error) => Some(error),
            _ => None,
        });
        let error = output.or_else(|| cause.downcast_ref::<io::Error>());
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

macro_rules! status_of {
    ($($error:ty => $status:literal),* $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> Self {
                CliError { status: $status, cause: Box::new(error) }
            }
        })*
    };
}

status_of! {
    hushflow::ledger::LedgerHomeError => 2,
    hushflow::key::KeyError => 1,
    hushflow::ledger::LedgerError => 1,
    hushflow::pipeline::PipelineError => 2,
    PublicationError => 2,
    hushflow::mechanism::audit::AuditError => 1,
    hushflow::mechanism::accounting::AccountingError => 2,
    hushflow::estimators::covariance::CovarianceError => 2,
    hushflow::estimators::mean::MeanError => 2,
    hushflow::estimators::query::QueryError => 2,
    hushflow::mechanism::noise::EntropyError => 1,
    hushflow::follow::FollowError => 1,
    hushflow::format::FormatError => 1,
    hushflow::state::StateError => 1,
    SinkError => 1,
    io::Error => 1,
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Unreached(_) => CliError::unreached(error.to_string()),
            error => CliError { status: 1, cause: Box::new(error) },
        }
    }
}

impl From<HttpError> for CliError {
    /// Pages and metrics are secured by flags, and not by fields of a pipeline file.
    fn from(error: HttpError) -> Self {
        CliError::failed(http::with_flags(&error.to_string()))
    }
}

/// Returns a parser of a numeric argument whose range `make` checks.
fn number_in<T, E: fmt::Display>(
    make: fn(f64) -> Result<T, E>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let value = text.parse().map_err(|_| "expected a number, such as 1, 0.5 or 1e-6")?;
        make(value).map_err(|error| error.to_string())
    }
}

/// The words before exact counts of a source.
pub(crate) const PRIVATE: &str = "PRIVATE: exact counts of private rows, for the operator only. Do not publish or log them, and do not take \
                                  bounds, keys or start from them.";

/// Formats a number with thousands separators: `12,345`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a parser of one of these words, spelled as in pipeline files.
pub(super) fn word<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    let read = |word: String| T::deserialize(StrDeserializer::<serde::de::value::Error>::new(&word));
    PossibleValuesParser::new(words).try_map(read)
}
