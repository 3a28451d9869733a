//! `hushflow serve`: followers of a public log by themselves, as another user, or on another machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;

use clap::Args;
use hushflow::follow::Subject;
use hushflow::pipeline::{Estimate, Intervals, Pipeline, PublicParameters, Sink, View};
use hushflow::sink::{Following, Log};
use hushflow::state::PublicReader;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use super::page::{self, Served};
use super::tail::{INTERVAL, await_log};
use super::{CliError, run};

/// Where a page is served unless the command says otherwise.
const PAGE: &str = "127.0.0.1:8080";

/// What `hushflow serve` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Only the public log is read. So this may run as a user who can't read anything else of the state directory, or on a machine that
has a copy of the log alone, and nothing that happens here reaches the run. The sinks of a pipeline file have every epoch once,
whoever serves them: keep them out of the pipeline file that `run` gets, or start `run` first and this command after it.

It ends when the last epoch is in all sinks; with a page, when it is stopped (SIGINT, SIGTERM).

Examples:
  hushflow serve state
  hushflow serve /srv/hushflow/public --web 127.0.0.1:8080
  hushflow serve sinks.toml --public /srv/hushflow/public")]
pub(crate) struct ServeArguments {
    /// A directory with a public log, or a pipeline file whose [[sinks]] and [[views]] are served
    source: PathBuf,
    /// The state directory of the pipeline, instead of the one that its file names
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The directory of the public log, instead of the one that the pipeline file names
    #[arg(long, value_name = "DIR")]
    public: Option<PathBuf>,
    /// Show the log as a page at http://ADDR/ [default: 127.0.0.1:8080 where there are no sinks]
    #[arg(long, value_name = "ADDR")]
    web: Option<String>,
}

/// What is served.
struct Service {
    directory: PathBuf,
    /// The parameters that the log has to have.
    parameters: Option<PublicParameters>,
    views: Vec<View>,
    sinks: Vec<Sink>,
}

impl Service {
    fn of(arguments: &ServeArguments) -> Result<Self, CliError> {
        if arguments.source.is_dir() {
            if arguments.state.is_some() || arguments.public.is_some() {
                return Err(CliError::usage(
                    "--state and --public say where the log of a pipeline file is; a directory is served as it is",
                ));
            }
            let directory = arguments.source.clone();
            return Ok(Service { directory, parameters: None, views: Vec::new(), sinks: Vec::new() });
        }
        let mut pipeline = Pipeline::load(&arguments.source)?;
        pipeline.state.public = arguments.public.clone().or(pipeline.state.public);
        let state = arguments.state.clone().or_else(|| pipeline.state_directory.clone());
        let directory = match (&state, &pipeline.state.public) {
            (_, Some(public)) => public.clone(),
            (Some(state), None) => state.clone(),
            (None, None) => {
                return Err(CliError::usage(
                    "no public log: name its directory with --public DIR, or in the pipeline file:\n\n[state]\npublic = \"public\"",
                ));
            }
        };
        let parameters = Some(pipeline.public_parameters());
        Ok(Service { directory, parameters, views: pipeline.views, sinks: pipeline.sinks })
    }

    /// What the log holds, under the views of the pipeline file or one that everybody understands.
    fn subject(&self, reader: &PublicReader, source: &Path) -> Result<Subject, CliError> {
        let mut subject = Subject::from_header(reader.header(), self.views.clone())?;
        if self.parameters.as_ref().is_some_and(|parameters| parameters != subject.parameters()) {
            return Err(CliError::usage(format!(
                "{}: the log in {} was begun with other parameters: serve it with the pipeline file that made it",
                source.display(),
                self.directory.display()
            )));
        }
        if subject.views.is_empty() {
            subject.views.push(usual_view(subject.parameters()));
        }
        Ok(subject)
    }
}

fn usual_view(parameters: &PublicParameters) -> View {
    View {
        name: "serve".into(),
        workload: parameters.release.workload.clone(),
        estimate: Estimate::default_for(parameters.have_covariances()),
        squares: Default::default(),
        covariance: Default::default(),
        intervals: Intervals::default(),
        total: false,
    }
}

/// Serves until everything is written that will ever be published, or until it is stopped.
pub(crate) fn execute(arguments: &ServeArguments) -> Result<(), CliError> {
    let service = Service::of(arguments)?;
    let mut reader = await_log(&service.directory)?;
    let subject = service.subject(&reader, &arguments.source)?;
    let page = arguments.web.as_deref().or(service.sinks.is_empty().then_some(PAGE));
    let stopped = stop_flag()?;
    let log = Log { directory: service.directory.clone(), subject: Arc::new(subject) };
    let sinks = service.sinks.iter().map(|sink| run::start(sink, &log)).collect::<Result<Vec<_>, _>>()?;
    let serving = match page {
        None => follow(&mut reader, log.subject.horizon(), &stopped),
        Some(address) => show(address, &log, reader, &stopped),
    };
    let sunk: Vec<_> = sinks.into_iter().map(Following::finish).collect();
    serving?;
    Ok(sunk.into_iter().collect::<Result<(), _>>()?)
}

/// Waits for the last epoch.
fn follow(reader: &mut PublicReader, horizon: u64, stopped: &AtomicBool) -> Result<(), CliError> {
    let mut last = 0;
    while last < horizon && !stopped.load(Ordering::Relaxed) {
        match reader.next_frame()? {
            Some(release) => last = release.epoch,
            None => sleep(INTERVAL),
        }
    }
    Ok(())
}

/// Shows a page.
fn show(address: &str, log: &Log, reader: PublicReader, stopped: &AtomicBool) -> Result<(), CliError> {
    let site = page::site(log.directory.clone(), &log.subject, &[], &[])?;
    let mut served = Served::begin(address, site, reader)?;
    while !stopped.load(Ordering::Relaxed) {
        sleep(INTERVAL);
        served.read_on()?;
    }
    Ok(())
}

/// A flag that the first signal sets; the second one ends the process.
fn stop_flag() -> Result<Arc<AtomicBool>, CliError> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, Arc::clone(&stopped))
            .and_then(|_| register(signal, Arc::clone(&stopped)))
            .map_err(|error| CliError::failed(format!("can't install signal handlers: {error}")))?;
    }
    Ok(stopped)
}
