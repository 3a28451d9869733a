//! `hushflow tail`: reads what was published, under any view.

mod live;
mod sample;
mod scores;

use std::io::{BufWriter, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use hushflow::follow::{Follower, Found, Shown, Subject};
use hushflow::lines::{Format, Writer};
use hushflow::mechanism::estimate::projection::Projection;
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::view::SquareBias;
use hushflow::mechanism::workload::Workload;
use hushflow::pipeline::{Estimate, Intervals, PublicParameters, View};
use hushflow::publication::Publication;
use hushflow::state::{PublicReader, Stamp, StateError};

use super::page::{self, Served};
use super::{CliError, FormatArgument, number_in};
use live::Live;

/// How often a followed log is looked at.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// What a reader wants to see.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ViewName {
    /// Mean and covariance, in the units of the columns
    Gaussian,
    /// The weighted moments, in centred and scaled coordinates
    Moments,
}

/// What becomes of the bias of squares.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Squares {
    /// The variance of the noise is taken off
    Debiased,
    /// As they are
    Raw,
}

/// What `hushflow tail` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Only the public log is read: any number of views of it cost no privacy, also views that nobody thought of when
the stream ran.

Examples:
  hushflow tail state --follow
  hushflow tail state --workload window:7 --since 20
  hushflow tail state --population --level 0.99 --covariance shrink
  hushflow tail state --view moments --format csv > moments.csv
  hushflow tail state --sample 1000 --key JFK > synthetic.csv
  hushflow tail state --held-out later.csv
  hushflow tail state --web 127.0.0.1:8080")]
pub(crate) struct TailArguments {
    /// The state directory of a run, or a folder that holds a copy of its public.log
    directory: PathBuf,
    /// Go on with what a run publishes from now on, to the last epoch. A table on a terminal shows
    /// the newest one alone
    #[arg(long, short)]
    follow: bool,
    /// What to show [default: gaussian, or moments where no second moments of records are known]
    #[arg(long, value_enum)]
    view: Option<ViewName>,
    /// Whether squares of noisy sums keep their bias, in a log of the method pp [default: debiased]
    #[arg(long, value_enum)]
    squares: Option<Squares>,
    /// How epochs are weighted: prefix, average, exponential:β, window:k, momentum:β, adam:β. With
    /// --web it may be repeated: the page begins with the first one, and offers them all and that
    /// of the log's release
    #[arg(long, default_value = "prefix")]
    workload: Vec<Workload>,
    /// The first epoch to show
    #[arg(long, default_value_t = 1, value_name = "EPOCH")]
    since: u64,
    /// Show this key only; may be repeated
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
    /// Show the total over all keys, called `all`, in the place of keys
    #[arg(long, conflicts_with = "key")]
    total: bool,
    /// How a noisy estimate becomes a covariance: floor, nearest, shrink or raw
    #[arg(long, default_value_t, value_name = "PROJECTION")]
    covariance: Projection,
    /// Confidence level of intervals
    #[arg(long, default_value_t = 0.95, value_parser = number_in(level))]
    level: f64,
    /// Let all intervals of a line hold the truth together, instead of each by itself
    #[arg(long)]
    joint: bool,
    /// Let intervals be about the population that records are drawn from, instead of the records
    #[arg(long)]
    population: bool,
    /// Draw so many synthetic records from the newest density of each key, as CSV or with --json as
    /// JSON lines
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["follow", "web", "since"])]
    sample: Option<u32>,
    /// Draw the same sample again
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    #[command(flatten)]
    scores: scores::ScoresArguments,
    #[command(flatten)]
    format: FormatArgument,
    /// Show the log as a page at http://ADDR/, which follows it: 127.0.0.1:8080, or port 0 for any
    /// that is free. The flags above say with what it begins. The page is for everyone who can
    /// reach the address
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["follow", "since", "format", "json"])]
    web: Option<String>,
}

/// Writes the view of all releases, and with `--follow` of those to come.
pub(crate) fn execute(arguments: &TailArguments) -> Result<(), CliError> {
    let reader = open(arguments)?;
    let subject = subject(arguments, &reader)?;
    let wanted = wanted_keys(&arguments.key, subject.parameters())?;
    if !subject.publication.is_private() {
        let _ = writeln!(stderr(), "warning: not private: the noise of these releases was drawn from a seed");
    }
    if let Some(address) = &arguments.web {
        let site = page::site(arguments.directory.clone(), &subject, &arguments.workload, &wanted)?;
        let mut served = Served::begin(address, site, reader)?;
        loop {
            std::thread::sleep(INTERVAL);
            served.read_on()?;
        }
    }
    let mut out = BufWriter::new(stdout());
    let format = arguments.format.format();
    let mut live = if arguments.follow && format == Format::Table { Live::new() } else { None };
    let mut output = Output::new(arguments, &subject)?;
    let mut follower = Follower::of(reader, &subject, &wanted);
    let mut line = Vec::new();
    loop {
        while let Some(epoch) = follower.next(|epoch, _| epoch >= arguments.since)? {
            live.iter_mut().for_each(Live::begin_epoch);
            for shown in &epoch.shown {
                line.clear();
                output.write(shown, &epoch.stamp, &mut line)?;
                match &mut live {
                    Some(live) => live.push(&String::from_utf8_lossy(&line)),
                    None => out.write_all(&line)?,
                }
            }
        }
        live.iter_mut().try_for_each(Live::draw)?;
        out.flush()?;
        if !arguments.follow || follower.last() >= subject.horizon() {
            return output.finish(&mut out);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// What is shown of each key and epoch.
enum Output {
    /// The estimates.
    Lines(Box<Writer>),
    /// How good their densities are.
    Scores(Box<scores::Scores>),
    /// Records drawn from the newest densities.
    Sample(Box<sample::Sample>),
}

impl Output {
    fn new(arguments: &TailArguments, subject: &Subject) -> Result<Self, CliError> {
        let (format, scores) = (arguments.format.format(), &arguments.scores);
        let lines = || Self::Lines(Box::new(Writer::new(subject, format)));
        let Publication::Moments(publication) = &subject.publication else { return Ok(lines()) };
        let has_densities = subject.views.iter().all(|view| view.estimate == Estimate::Gaussian);
        if (arguments.sample.is_some() || scores.wanted()) && !has_densities {
            return Err(CliError::usage(
                "--sample, --held-out and --truth are about densities, and this view has moments alone: it needs second \
                 moments of records, and --view gaussian",
            ));
        }
        let publication = publication.clone();
        Ok(match arguments.sample {
            Some(size) => {
                Self::Sample(Box::new(sample::Sample::new(publication, size, arguments.seed, format)))
            }
            None if scores.wanted() => {
                let shown = if arguments.total { 1 } else { arguments.key.len() };
                Self::Scores(Box::new(scores::Scores::new(scores, publication, shown, format)?))
            }
            None => lines(),
        })
    }

    fn write(&mut self, shown: &Shown, stamp: &Stamp, out: &mut impl Write) -> Result<(), CliError> {
        match (self, &shown.found) {
            (Self::Lines(writer), _) => Ok(writer.write_line(shown, stamp, out)?),
            (Self::Scores(scores), Found::Moments(estimated)) => scores.write(estimated, out),
            (Self::Sample(sample), Found::Moments(estimated)) => {
                sample.keep(estimated);
                Ok(())
            }
            // Refused before anything is read.
            (_, Found::Window(_)) => Ok(()),
        }
    }

    /// After the last epoch.
    fn finish(self, out: &mut impl Write) -> Result<(), CliError> {
        match self {
            Self::Sample(sample) => sample.write(out),
            Self::Lines(_) | Self::Scores(_) => Ok(()),
        }
    }
}

/// What is shown of this log.
fn subject(arguments: &TailArguments, reader: &PublicReader) -> Result<Subject, CliError> {
    let [workload, others @ ..] = &arguments.workload[..] else {
        return Err(CliError::usage("--workload: name one, such as prefix"));
    };
    let view = |(estimate, squares)| View {
        name: "tail".into(),
        workload: workload.clone(),
        estimate,
        squares,
        covariance: arguments.covariance,
        intervals: Intervals {
            level: arguments.level,
            joint: arguments.joint,
            population: arguments.population,
        },
        total: arguments.total,
    };
    let mut subject = Subject::from_header(reader.header(), Vec::new())?;
    match &subject.publication {
        Publication::Windows(publication) => {
            let weighs = arguments.view.is_some() || arguments.squares.is_some() || arguments.total;
            let judged = arguments.sample.is_some() || arguments.scores.wanted();
            if weighs || judged || arguments.web.is_some() {
                return Err(CliError::usage(format!(
                    "this log holds estimates of windows ({}): --view, --squares, --total, --sample, --held-out, --truth and \
                     --web are for moments; choose a table, --json or --format csv",
                    publication.estimator()
                )));
            }
        }
        Publication::Moments(publication) => {
            if arguments.web.is_none() && !others.is_empty() {
                return Err(CliError::usage("--workload: only a page (--web) offers several: name one"));
            }
            let view = view(choice(arguments, publication.parameters())?);
            subject.views.push(view);
        }
    }
    Ok(subject)
}

/// What is made of the moments of this log.
fn choice(
    arguments: &TailArguments,
    parameters: &PublicParameters,
) -> Result<(Estimate, SquareBias), CliError> {
    if arguments.total && parameters.release.method == Method::Pp {
        return Err(CliError::usage(
            "--total: second moments of this log are squares of sums, which don't add up over keys: leave it out",
        ));
    }
    let covariances = parameters.have_covariances();
    let estimate = match arguments.view {
        None => Estimate::default_for(covariances),
        Some(ViewName::Moments) => Estimate::Moments,
        Some(ViewName::Gaussian) if covariances => Estimate::Gaussian,
        Some(ViewName::Gaussian) => {
            return Err(CliError::usage(
                "--view gaussian: this log has no second moments of records, so there is no covariance: choose --view \
                 moments",
            ));
        }
    };
    let squares = match arguments.squares {
        Some(_) if parameters.release.method != Method::Pp => {
            return Err(CliError::usage(
                "--squares: second moments of this log were released, and are no squares of sums: leave it out",
            ));
        }
        Some(Squares::Raw) => SquareBias::Kept,
        _ => SquareBias::Removed,
    };
    Ok((estimate, squares))
}

/// Checks a confidence level.
fn level(level: f64) -> Result<f64, &'static str> {
    if level > 0.0 && level < 1.0 { Ok(level) } else { Err("a level is above 0 and below 1, such as 0.95") }
}

/// Opens the log. A follower waits for a run to begin it.
fn open(arguments: &TailArguments) -> Result<PublicReader, StateError> {
    if arguments.follow || arguments.web.is_some() {
        return await_log(&arguments.directory);
    }
    PublicReader::open(&arguments.directory)
}

/// Waits for a run to begin the log.
pub(super) fn await_log(directory: &Path) -> Result<PublicReader, StateError> {
    let mut told = false;
    loop {
        match PublicReader::open(directory) {
            Err(StateError::Missing { path }) => {
                if !std::mem::replace(&mut told, true) {
                    let _ = writeln!(stderr(), "waiting for a run to begin {}", path.display());
                }
                std::thread::sleep(INTERVAL);
            }
            opened => return opened,
        }
    }
}

fn wanted_keys(names: &[String], parameters: &PublicParameters) -> Result<Vec<u32>, CliError> {
    let find = |name: &String| {
        (0..parameters.keys())
            .find(|&key| parameters.key_name(key) == name)
            .ok_or_else(|| CliError::usage(format!("--key {name}: no key of this log is called so")))
    };
    names.iter().map(find).collect()
}
