//! `hushflow serve`: followers of a public log without a run, as another user or on another
//! machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;

use clap::Args;
use hushflow::control::Control;
use hushflow::estimates::View;
use hushflow::follow::Subject;
use hushflow::pipeline::{Pipeline, PublicParameters, Sink};
use hushflow::sink::{Following, Log};
use hushflow::state::PublicReader;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};

use super::page::{self, Served};
use super::tail::{INTERVAL, await_log};
use super::{CliError, run};

/// Default address of the page.
const PAGE: &str = "127.0.0.1:8080";

/// Arguments of `hushflow serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
serve reads only the public log. It can run as a user who may read nothing else of the state directory, or on a machine
that has only a copy of the log. It can't affect the run. Sinks receive every epoch exactly once, no matter which command
serves them: keep the sinks out of the pipeline file of `run`, or start `run` first and this command after it.

serve ends when the last epoch is in all sinks. With a page, it runs until it is stopped (SIGINT, SIGTERM).

Examples:
  hushflow serve state
  hushflow serve /srv/hushflow/public --web 127.0.0.1:8080
  hushflow serve sinks.toml --public /srv/hushflow/public")]
pub(crate) struct ServeArguments {
    /// A directory with a public log, or a pipeline file whose [[sinks]] and [[views]] are served
    source: PathBuf,
    /// State directory of the pipeline; overrides the one in its file
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Directory of the public log; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    public: Option<PathBuf>,
    /// Serve the log as a web page at http://ADDR/ [default: 127.0.0.1:8080 if there are no sinks]
    #[arg(long, value_name = "ADDR")]
    web: Option<String>,
}

/// The log to serve, its views and its sinks.
struct Service {
    directory: PathBuf,
    /// Parameters that the log must have.
    parameters: Option<PublicParameters>,
    views: Vec<View>,
    sinks: Vec<Sink>,
}

impl Service {
    fn of(arguments: &ServeArguments) -> Result<Self, CliError> {
        if arguments.source.is_dir() {
            if arguments.state.is_some() || arguments.public.is_some() {
                return Err(CliError::usage(
                    "--state and --public locate the log of a pipeline file, but the argument is a directory: leave them out",
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

    /// Returns the content of the log under the views of the pipeline file, or under a default
    /// view.
    fn subject(&self, reader: &PublicReader, source: &Path) -> Result<Subject, CliError> {
        let mut subject = Subject::from_header(reader.header(), self.views.clone())?;
        if self.parameters.as_ref().is_some_and(|parameters| parameters != subject.parameters()) {
            return Err(CliError::usage(format!(
                "{}: the log in {} has other parameters: serve it with the pipeline file that created it",
                source.display(),
                self.directory.display()
            )));
        }
        if subject.views.is_empty() {
            let parameters = subject.parameters();
            let view = View::usual("serve", parameters.release.workload.clone(), &parameters.log());
            subject.views.push(view);
        }
        Ok(subject)
    }
}

/// Serves until all sinks have the last epoch, or until a signal stops it.
pub(crate) fn execute(arguments: &ServeArguments) -> Result<(), CliError> {
    let service = Service::of(arguments)?;
    let mut reader = await_log(&service.directory)?;
    let subject = service.subject(&reader, &arguments.source)?;
    let page = arguments.web.as_deref().or(service.sinks.is_empty().then_some(PAGE));
    let control = control()?;
    let log = Log { directory: service.directory.clone(), subject: Arc::new(subject) };
    let sinks =
        service.sinks.iter().map(|sink| run::start(sink, &log, &control)).collect::<Result<Vec<_>, _>>()?;
    let serving = match page {
        None => follow(&mut reader, log.subject.horizon(), &control),
        Some(address) => show(address, &log, reader, &control),
    };
    let sunk: Vec<_> = sinks.into_iter().map(Following::finish).collect();
    serving?;
    Ok(sunk.into_iter().collect::<Result<(), _>>()?)
}

/// Waits for the last epoch.
fn follow(reader: &mut PublicReader, horizon: u64, control: &Control) -> Result<(), CliError> {
    let mut last = 0;
    while last < horizon && !control.is_stopped() {
        match reader.next_frame()? {
            Some(release) => last = release.epoch,
            None => sleep(INTERVAL),
        }
    }
    Ok(())
}

/// Serves a page until a signal stops it.
fn show(address: &str, log: &Log, reader: PublicReader, control: &Control) -> Result<(), CliError> {
    let site = page::site(log.directory.clone(), &log.subject, &[], &[])?;
    let mut served = Served::begin(address, site, reader)?;
    while !control.is_stopped() {
        sleep(INTERVAL);
        served.read_on()?;
    }
    Ok(())
}

/// Returns the control by which the first signal stops the followers; the second signal ends the
/// process.
fn control() -> Result<Control, CliError> {
    let control = Control::new().on_notice(run::warn);
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, control.stop_flag())
            .and_then(|_| register(signal, control.stop_flag()))
            .map_err(|error| CliError::failed(format!("can't install signal handlers: {error}")))?;
    }
    Ok(control)
}
