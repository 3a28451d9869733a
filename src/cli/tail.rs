//! `hushflow tail`: reads the published releases under any view.

mod output;
mod scores;

use std::ffi::OsStr;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser};
use hushflow::estimates::{ESTIMATORS, EstimateView, EstimatorKind, Intervals, LogFacts, ViewEstimator};
use hushflow::follow::{Follower, StopFlag, Subject, read_names};
use hushflow::lines::OutputFormat;
use hushflow::mechanism::estimate::projection::Projection;
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::view::SquareBias;
use hushflow::mechanism::workload::Workload;
use hushflow::pipeline::PublicParameters;
use hushflow::publication::Publication;
use hushflow::sink::StandardOutput;
use hushflow::state::{PublicReader, StateError};
use hushflow::web::Page;

use super::http::HttpArguments;
use super::located::{LocatedLog, LogArguments};
use super::output::{print_message, warn};
use super::{CliError, ReleaseFormatArguments, number_in, plan, serve};
use output::{LiveTable, Output};

/// Treatment of the bias of squares.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Squares {
    /// Subtract the variance of the noise
    Debiased,
    /// Keep the bias
    Raw,
}

fn help() -> String {
    format!(
        "\
tail reads only the public log. Any number of views costs no privacy, including views chosen after the run.

Examples:
  hushflow tail state --follow
  hushflow tail state --workload window:7 --last 10
  hushflow tail state --population --level 0.99 --covariance shrink
  hushflow tail state --view moments --format csv > moments.csv
  hushflow tail state --regress arr_delay~dep_delay
  hushflow tail state --view adam --beta2 0.99
  hushflow tail pipeline.toml --view weekly
  hushflow tail state --sample 1000 --key JFK > synthetic.csv
  hushflow tail state --held-out later.csv
  hushflow tail state --web 127.0.0.1:8080

{}",
        plan::workloads()
    )
}

/// Arguments of `hushflow tail`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct TailArguments {
    #[command(flatten)]
    log: LogArguments,
    /// Keep printing new releases until the last epoch. On a terminal, a table shows only the
    /// newest epoch
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    estimator: EstimatorArgument,
    /// For logs of method pp: whether squares of noisy sums keep their bias [default: debiased]
    #[arg(long, value_enum)]
    squares: Option<Squares>,
    /// How epochs are weighted: prefix, average, exponential:β, window:k, window-mean:k,
    /// momentum:β, adam:β, or matrix:FILE (CSV). May be repeated with --web: the page opens with
    /// the first and offers all of them and the workload of the log [default: the workload of the
    /// log]
    #[arg(long, value_parser = plan::read_workload)]
    workload: Vec<Workload>,
    /// Weight the steps of the workload by learning rates, as plan does: constant:W, linear:W or
    /// cosine:W, with W steps of warm-up, or file:PATH (CSV). For prefix and momentum
    #[arg(long, value_name = "SHAPE:W", conflicts_with = "web")]
    schedule: Option<String>,
    /// The first epoch to show
    #[arg(long, default_value_t = 1, value_name = "EPOCH")]
    since: u64,
    /// Show only the last N epochs, and with --follow those that come after them
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..),
        conflicts_with_all = ["since", "web", "sample"])]
    last: Option<u64>,
    /// Show only this key; may be repeated
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
    /// Show the total over all keys, named all, instead of each key
    #[arg(long, conflicts_with = "key")]
    total: bool,
    /// How to turn a noisy estimate into a covariance: floor, nearest, shrink or raw [default:
    /// floor]
    #[arg(long, value_name = "PROJECTION")]
    covariance: Option<Projection>,
    /// Confidence level of the intervals [default: 0.95]
    #[arg(long, value_parser = number_in(level))]
    level: Option<f64>,
    /// Make the intervals of a line hold jointly at the confidence level, instead of each on its
    /// own
    #[arg(long)]
    joint: bool,
    /// Make intervals cover the population from which records are drawn, instead of the records
    /// that counted
    #[arg(long)]
    population: bool,
    /// Assume that values are missing at random, for correlations and regressions of a log with
    /// missing = "by-column"
    #[arg(long)]
    missing_at_random: bool,
    /// Draw this many synthetic records from the newest density of each key, as CSV, or with --json
    /// as JSON lines
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["follow", "web", "since"])]
    sample: Option<u32>,
    /// Seed of the sample: the same seed draws the same records
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    #[command(flatten)]
    scores: scores::ScoresArguments,
    #[command(flatten)]
    format: ReleaseFormatArguments,
    /// Serve the log as a live web page at http://ADDR/, such as 127.0.0.1:8080; port 0 takes any
    /// free port. The flags above set its initial view. Everyone who can reach the address can read
    /// the page
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["follow", "since", "format", "json"])]
    web: Option<String>,
    #[command(flatten)]
    http: HttpArguments,
}

/// The estimator of a view: `--view NAME` with the parameters of the estimator, or the flag that
/// gives all its parameters.
#[derive(Debug)]
struct EstimatorArgument {
    chosen: Option<(&'static EstimatorKind, String)>,
    /// Value of `--view`: an estimator, or one of the views of the pipeline file.
    named: Option<String>,
    parameters: Vec<(&'static str, String)>,
}

impl EstimatorArgument {
    fn flag_of(estimator: &EstimatorKind) -> &'static str {
        estimator.flag.as_ref().map_or("view", |flag| flag.name)
    }

    /// Returns the flag that was given, if any.
    fn given(&self) -> Option<String> {
        let chosen = self.chosen.as_ref().map(|(estimator, _)| Self::flag_of(estimator));
        let chosen = chosen.or(self.named.as_ref().map(|_| "view"));
        chosen.or(self.parameters.first().map(|(name, _)| *name)).map(|name| format!("--{name}"))
    }

    /// Returns the estimator, or the default one of the log.
    fn estimator(&self, log: &LogFacts<'_>) -> Result<Arc<dyn ViewEstimator>, CliError> {
        let default_estimator = || (EstimatorKind::default_of(log), String::new());
        let (estimator, value) = self.chosen.clone().unwrap_or_else(default_estimator);
        let has = |kind: &EstimatorKind, name: &str| kind.parameters().any(|(own, ..)| own == name);
        if let Some((name, _)) = self.parameters.iter().find(|(name, _)| !has(estimator, name)) {
            let kinds: Vec<&str> =
                ESTIMATORS.iter().filter(|kind| has(kind, name)).map(|kind| kind.name).collect();
            let kinds = kinds.join(" and ");
            return Err(CliError::usage(format!("--{name}: this is for --view {kinds}: leave it out")));
        }
        let found = match &estimator.flag {
            Some(_) => estimator.from_flag(&value, log),
            None => estimator.from_texts(&self.parameters, log),
        };
        let flag = Self::flag_of(estimator);
        found.map_err(|problem| CliError::usage(format!("--{flag} {value}: {problem}")))
    }
}

impl Args for EstimatorArgument {
    fn augment_args(command: Command) -> Command {
        let (flags, names): (Vec<_>, Vec<_>) =
            ESTIMATORS.iter().partition(|estimator| estimator.flag.is_some());
        let names = names.iter().map(|estimator| PossibleValue::new(estimator.name).help(estimator.help));
        let view = Arg::new("view")
            .long("view")
            .group("estimator")
            .value_name("VIEW")
            .value_parser(ViewNames(names.collect()))
            .help(
                "What to show, or with a pipeline file the name of one of its [[views]] [default: gaussian, or moments where the \
                 log has no second moments of records]",
            );
        let flags = flags.iter().filter_map(|estimator| estimator.flag.as_ref()).map(|flag| {
            Arg::new(flag.name).long(flag.name).value_name(flag.value).help(flag.help).group("estimator")
        });
        let parameters = ESTIMATORS.iter().flat_map(EstimatorKind::parameters);
        let parameters = parameters.map(|(name, value, help)| {
            Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
        });
        command.arg(view).args(flags).args(parameters)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EstimatorArgument {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let chosen = ESTIMATORS.iter().find_map(|estimator| {
            let value = matches.get_one::<String>(Self::flag_of(estimator))?;
            (estimator.flag.is_some() || value == estimator.name).then(|| (estimator, value.clone()))
        });
        let names = ESTIMATORS.iter().flat_map(EstimatorKind::parameters).map(|(name, ..)| name);
        let given = |name| Some((name, matches.get_one::<String>(name)?.clone()));
        let parameters = names.filter_map(given).collect();
        Ok(EstimatorArgument { chosen, named: matches.get_one("view").cloned(), parameters })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Values of `--view`: any name, with help about estimators.
#[derive(Clone)]
struct ViewNames(Vec<PossibleValue>);

impl TypedValueParser for ViewNames {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        NonEmptyStringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().cloned()))
    }
}

/// Writes the view of all releases, and with `--follow` of later ones.
pub(crate) fn execute(arguments: &TailArguments) -> Result<(), CliError> {
    let log = arguments.log.locate()?;
    let directory = &log.directory;
    let endpoint = arguments.http.endpoint(arguments.web.as_deref(), "--web")?;
    let page = endpoint.as_ref().map(Page::listen).transpose()?;
    let stop = page.as_ref().map(|_| super::signals::stopped_by_sigterm()).transpose()?.unwrap_or_default();
    let Some(reader) = open(arguments, directory, page.as_ref(), &stop)? else { return Ok(()) };
    let subject = subject(arguments, &log, &reader)?;
    if !arguments.key.is_empty() {
        read_names(directory, &subject.publication)?;
    }
    let keys = selected_keys(&arguments.key, subject.parameters())?;
    if !subject.publication.is_private() {
        warn("not private: the noise of these releases was drawn from a seed");
    }
    if let Some(page) = &page {
        let contents = serve::page_contents(directory.clone(), &subject, &arguments.workload, &keys)?;
        return serve::show_on(page, contents, reader, &stop);
    }
    let mut out = BufWriter::new(StandardOutput);
    let format = arguments.format.format()?;
    let is_live = arguments.follow && matches!(format, OutputFormat::Table(_));
    let mut table = if is_live { LiveTable::new() } else { None };
    let mut output = Output::new(arguments, &subject, format)?;
    let mut follower = Follower::new(reader, &subject, &keys);
    let since = match arguments.last {
        Some(last) => newest_epoch(directory)?.saturating_sub(last) + 1,
        None => arguments.since,
    };
    let (mut line, mut timeout) = (Vec::new(), Duration::ZERO);
    loop {
        let next = stop.wait(timeout, || follower.next(|epoch, _| epoch >= since))?;
        let Poll::Ready(Some(epoch)) = next else {
            // All that is published has been read.
            table.iter_mut().try_for_each(LiveTable::draw)?;
            out.flush()?;
            if !arguments.follow || follower.last() >= subject.horizon() {
                let last = follower.last();
                if since > last.max(1) {
                    print_message(&format!("note: the log ends at epoch {last}, before epoch {since}"));
                }
                return output.finish(&mut out);
            }
            timeout = Duration::MAX;
            continue;
        };
        timeout = Duration::ZERO;
        if let Some(table) = &mut table {
            table.begin_epoch();
            output.restart(table.width());
        }
        for estimate in &epoch.estimates {
            line.clear();
            let header = output.write(estimate, &epoch.stamp, &mut line)?;
            match &mut table {
                Some(table) => table.push(&String::from_utf8_lossy(&line), header),
                None => out.write_all(&line)?,
            }
        }
    }
}

/// Returns the publication of the log and the view of the flags.
fn subject(
    arguments: &TailArguments,
    located: &LocatedLog,
    reader: &PublicReader,
) -> Result<Subject, CliError> {
    let mut subject = Subject::from_header(reader.header(), Vec::new())?;
    located.check(&subject)?;
    match &subject.publication {
        Publication::Windows(publication) => {
            if let Some(flag) = given_for_moments(arguments) {
                return Err(CliError::usage(format!(
                    "{flag} is for logs of moments, and this log holds estimates of windows ({}), which can't be weighed, added up \
                     or turned into another: leave it out; --key, --since, --last, --follow, --columns, --format, --json and \
                     --web apply",
                    publication.estimator()
                )));
            }
        }
        Publication::Moments(publication) => {
            if arguments.web.is_none() && arguments.workload.len() > 1 {
                return Err(CliError::usage("--workload: only a page (--web) can offer several: name one"));
            }
            let parameters = publication.parameters();
            let log = parameters.log_facts();
            if arguments.total && parameters.discovery().is_some() {
                let problem = "--total: keys are discovered, and records whose key is not shown are in no total: leave it out";
                return Err(CliError::usage(problem));
            }
            if let Some(view) = named_view(arguments, located)? {
                subject.views.push(view);
                return Ok(subject);
            }
            let unfit = arguments.workload.iter().find_map(|workload| log.check_workload(workload).err());
            if let Some(problem) = unfit {
                return Err(CliError::usage(format!("--workload: {problem}")));
            }
            let view = view(arguments, &parameters.release.workload, &log)?;
            subject.views.push(view);
        }
    }
    Ok(subject)
}

/// Returns the view of the pipeline file that `--view` names; `None` if it names an estimator.
fn named_view(arguments: &TailArguments, located: &LocatedLog) -> Result<Option<EstimateView>, CliError> {
    let estimator = &arguments.estimator;
    let Some(name) = &estimator.named else { return Ok(None) };
    let quoted =
        |names: Vec<&str>| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let Some(view) = located.views.iter().find(|view| view.name == *name) else {
        if estimator.chosen.is_some() {
            return Ok(None);
        }
        let kinds = ESTIMATORS.iter().filter(|kind| kind.flag.is_none()).map(|kind| kind.name).collect();
        let of_file = match located.file() {
            None => {
                "; views of a pipeline have names where its file is given in place of the directory".into()
            }
            Some(file) => {
                let views = located.views.iter().map(|view| view.name.as_str()).collect();
                format!("; or one of the views of {}: {}", file.display(), quoted(views))
            }
        };
        return Err(CliError::usage(format!(
            "--view {name}: found no such view, expected one of {}{of_file}",
            quoted(kinds)
        )));
    };
    let parameter = estimator.parameters.first().map(|(name, _)| format!("--{name}"));
    let of_keys = (view.total && !arguments.key.is_empty()).then(|| "--key".to_owned());
    let given = parameter.or_else(|| flag_for_moments(arguments)).or(of_keys);
    let refusal = |flag| format!("{flag}: the view {name:?} of the file sets it: leave it out");
    given.map_or_else(|| Ok(Some(view.clone())), |flag| Err(CliError::usage(refusal(flag))))
}

/// Returns the first given flag that changes the output of a view of moments.
fn given_for_moments(arguments: &TailArguments) -> Option<String> {
    arguments.estimator.given().or_else(|| flag_for_moments(arguments))
}

/// As [`given_for_moments`], without the flags of the estimator.
fn flag_for_moments(arguments: &TailArguments) -> Option<String> {
    let TailArguments { squares, workload, total, joint, population, sample, scores, .. } = arguments;
    let flags = [
        ("--workload", !workload.is_empty()),
        ("--schedule", arguments.schedule.is_some()),
        ("--squares", squares.is_some()),
        ("--total", *total),
        ("--covariance", arguments.covariance.is_some()),
        ("--level", arguments.level.is_some()),
        ("--joint", *joint),
        ("--population", *population),
        ("--missing-at-random", arguments.missing_at_random),
        ("--sample", sample.is_some()),
        ("--held-out or --truth", scores.is_requested()),
    ];
    flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag.to_owned())
}

/// Returns the view of the flags, after checking that the log supports it.
fn view(
    arguments: &TailArguments,
    released: &Workload,
    log: &LogFacts<'_>,
) -> Result<EstimateView, CliError> {
    if arguments.total && log.method == Method::Pp {
        return Err(CliError::usage(
            "--total: second moments of this log are squares of sums, which can't be added over keys: leave it out",
        ));
    }
    if arguments.total && log.key_bounds {
        return Err(CliError::usage(
            "--total: keys of this log have bounds of their own, so their sums have different units and no total: leave it out",
        ));
    }
    let estimator = arguments.estimator.estimator(log)?;
    let squares = match arguments.squares {
        Some(_) if log.method != Method::Pp => {
            return Err(CliError::usage(
                "--squares: the second moments of this log were released, not squared from sums: leave it out",
            ));
        }
        Some(Squares::Raw) => SquareBias::Kept,
        _ => SquareBias::Removed,
    };
    let TailArguments { joint, population, missing_at_random, total, .. } = *arguments;
    let (covariance, level) =
        (arguments.covariance.unwrap_or_default(), arguments.level.unwrap_or(Intervals::default().level));
    if missing_at_random && !log.by_column {
        return Err(CliError::usage(
            "--missing-at-random: all rows of this log are complete, so it assumes nothing: leave it out",
        ));
    }
    let intervals = Intervals { level, joint, population, missing_at_random };
    let chosen = arguments.workload.first().cloned();
    let chosen = match &arguments.schedule {
        None => chosen,
        schedule => {
            let plain = chosen.unwrap_or_else(|| released.clone());
            Some(plan::scheduled(plain, schedule.as_deref(), log.epochs)?)
        }
    };
    let workload = EstimateView::workload_of(&*estimator, chosen, released, log);
    let workload = workload.map_err(|problem| CliError::usage(format!("--workload: {problem}")))?;
    let name = EstimateView::default_name(&workload);
    Ok(EstimateView { name, workload, estimator, squares, covariance, intervals, total })
}

/// Checks a confidence level.
fn level(level: f64) -> Result<f64, &'static str> {
    if level > 0.0 && level < 1.0 {
        Ok(level)
    } else {
        Err("expected a level above 0 and below 1, such as 0.95")
    }
}

/// Opens the log. With `--follow` or `--web`, waits until a run has created it.
fn open(
    arguments: &TailArguments,
    directory: &Path,
    page: Option<&Page>,
    stop: &StopFlag,
) -> Result<Option<PublicReader>, StateError> {
    if arguments.follow || page.is_some() {
        return serve::await_log(directory, page, stop);
    }
    PublicReader::open(directory).map(Some)
}

/// Returns the last epoch in the log; 0 before the first.
fn newest_epoch(directory: &Path) -> Result<u64, StateError> {
    let (mut reader, mut newest) = (PublicReader::open(directory)?, 0);
    while let Some(release) = reader.next_frame()? {
        newest = release.epoch;
    }
    Ok(newest)
}

fn selected_keys(names: &[String], parameters: &PublicParameters) -> Result<Vec<u32>, CliError> {
    let find = |name: &String| {
        parameters
            .named_keys()
            .find(|&key| parameters.key_name(key) == name)
            .ok_or_else(|| CliError::usage(format!("--key {name}: the log has no key with this name")))
    };
    names.iter().map(find).collect()
}
