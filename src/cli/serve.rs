//! `hushflow serve`: followers of a public log without a run, as another user or on another
//! machine.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use hushflow::control::Control;
use hushflow::estimates::EstimateView;
use hushflow::follow::{StopFlag, Subject, open_log, read_names};
use hushflow::mechanism::workload::Workload;
use hushflow::publication::Publication;
use hushflow::sink::{SinkInput, SinkThread, TakenAddress};
use hushflow::state::{PublicReader, StateError};
use hushflow::web::{Page, PageContents, WindowPageContents};

use super::http::HttpArguments;
use super::located::{LocatedLog, LogArguments};
use super::signals::set_by_signals;
use super::{CliError, ledger, output, run};

/// Default address of the page.
const PAGE: &str = "127.0.0.1:8080";

/// Arguments of `hushflow serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
serve reads only the public log. It can run as a user who may read nothing else of the state directory, or on a machine \
that has only a copy of the log. It can't affect the run. Sinks receive every epoch exactly once, no matter which command \
serves them: keep the sinks out of the pipeline file of `run`, or start `run` first and this command after it.

serve ends when the last epoch is in all sinks. With a page, it runs until it is stopped (SIGINT, SIGTERM). It may start \
before the run: until there is a log, the page says that there is no release yet.

Examples:
  hushflow serve state
  hushflow serve /srv/hushflow/public --web 127.0.0.1:8080
  hushflow serve sinks.toml --public /srv/hushflow/public")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    log: LogArguments,
    /// Serve the log as a web page at http://ADDR/ [default: 127.0.0.1:8080 if there are no sinks]
    #[arg(long, value_name = "ADDR")]
    web: Option<String>,
    /// Report at /readyz that the page is not ready if no epoch has come for this long, such as
    /// 25h. By default the page is ready once it has read the log
    #[arg(long, value_name = "DURATION", value_parser = run::timeout)]
    ready_within: Option<Duration>,
    #[command(flatten)]
    http: HttpArguments,
}

/// Returns the content of the log under the views of the pipeline file, or under a default view.
fn subject(service: &LocatedLog, reader: &PublicReader) -> Result<Subject, CliError> {
    let mut subject = Subject::from_header(reader.header(), service.views.clone())?;
    service.check(&subject)?;
    if subject.views.is_empty() {
        let parameters = subject.parameters();
        let view = EstimateView::new(parameters.release.workload.clone(), &parameters.log_facts());
        subject.views.push(view);
    }
    Ok(subject)
}

/// Serves until all sinks have the last epoch, or until a signal stops it.
pub(crate) fn execute(arguments: &ServeArguments) -> Result<(), CliError> {
    let service = arguments.log.locate()?;
    let address = arguments.web.as_deref().or(service.sinks.is_empty().then_some(PAGE));
    let endpoint = arguments.http.endpoint(address, "--web")?;
    let control = Control::new().on_notice(output::warn);
    set_by_signals(&control.stop_flag())?;
    let stop = StopFlag::from(control.stop_flag());
    let page = endpoint.as_ref().map(Page::listen).transpose()?;
    let Some(mut reader) = await_log(&service.directory, page.as_ref(), &stop)? else { return Ok(()) };
    let subject = subject(&service, &reader)?;
    let input = SinkInput { directory: service.directory.clone(), subject: Arc::new(subject) };
    let start = |sink| run::start_sink(sink, &input, &control, TakenAddress::Refuse);
    let sinks = service.sinks.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let served = match &page {
        None => await_horizon(&mut reader, input.subject.horizon(), &stop).map_err(CliError::from),
        Some(page) => page_contents(input.directory.clone(), &input.subject, &[], &[]).and_then(|contents| {
            let mut contents = contents;
            contents.ready_within(arguments.ready_within);
            show_on(page, contents, reader, &stop)
        }),
    };
    let finished: Vec<_> = sinks.into_iter().map(SinkThread::finish).collect();
    served?;
    Ok(finished.into_iter().collect::<Result<(), _>>()?)
}

/// Waits for the last epoch.
fn await_horizon(reader: &mut PublicReader, horizon: u64, stop: &StopFlag) -> Result<(), StateError> {
    while let Poll::Ready(Some(release)) = stop.wait(Duration::MAX, || reader.next_frame())? {
        if release.epoch >= horizon {
            break;
        }
    }
    Ok(())
}

/// A page of either kind of log.
pub(super) enum ServedContents {
    Moments(Box<PageContents>),
    Windows(Box<WindowPageContents>),
}

impl ServedContents {
    /// Sets the longest time from one epoch to the next at which the page is ready.
    fn ready_within(&mut self, within: Option<Duration>) {
        match self {
            Self::Moments(contents) => contents.ready_within = within,
            Self::Windows(contents) => contents.ready_within = within,
        }
    }
}

/// Shows the log that `reader` reads on a page, until `stop` is set.
///
/// # Errors
/// Fails if the log can't be read.
pub(super) fn show_on(
    page: &Page,
    contents: ServedContents,
    mut reader: PublicReader,
    stop: &StopFlag,
) -> Result<(), CliError> {
    let shown = match contents {
        ServedContents::Moments(contents) => page.show(*contents),
        ServedContents::Windows(contents) => page.show_windows(*contents),
    };
    let read_on = |reader: &mut PublicReader, timeout| {
        while let Poll::Ready(Some(release)) = stop.wait(timeout, || reader.next_frame())? {
            shown.set_published(release.epoch);
        }
        Ok::<_, StateError>(())
    };
    read_on(&mut reader, Duration::ZERO)?;
    shown.set_caught_up(reader.written_at());
    let _ = writeln!(stderr(), "{}/ serves the log until this command is stopped", page.url());
    Ok(read_on(&mut reader, Duration::MAX)?)
}

/// Returns the page of a log, which opens with the first of `keys`, or with the total, or with all
/// keys.
///
/// # Errors
/// Fails if a log of moments has no view.
pub(super) fn page_contents(
    directory: PathBuf,
    subject: &Subject,
    workloads: &[Workload],
    keys: &[u32],
) -> Result<ServedContents, CliError> {
    let ledger = {
        let directory = directory.clone();
        Box::new(move || ledger::public_account(&directory))
    };
    let publication = match &subject.publication {
        Publication::Moments(publication) => publication.clone(),
        Publication::Windows(publication) => {
            let (publication, key) = (publication.clone(), keys.first().copied());
            let contents = WindowPageContents { directory, publication, key, ledger, ready_within: None };
            return Ok(ServedContents::Windows(Box::new(contents)));
        }
    };
    read_names(&directory, &subject.publication)?;
    let (view, more_views) =
        subject.views.split_first().ok_or_else(|| CliError::usage("a page needs a view: name one"))?;
    let key = if view.total { Some(publication.keys()) } else { keys.first().copied() };
    Ok(ServedContents::Moments(Box::new(PageContents {
        directory,
        publication,
        view: view.clone(),
        more_views: more_views.to_vec(),
        workloads: workloads.to_vec(),
        key,
        ledger,
        ready_within: None,
    })))
}

/// Opens the log, waiting until a run has created it; `None` if the command is stopped first.
pub(super) fn await_log(
    directory: &Path,
    page: Option<&Page>,
    stop: &StopFlag,
) -> Result<Option<PublicReader>, StateError> {
    match PublicReader::open(directory) {
        Err(StateError::Missing { path }) => {
            let _ = writeln!(stderr(), "waiting for a run to create {}", path.display());
        }
        opened => return opened.map(Some),
    }
    if let Some(page) = page {
        let _ = writeln!(stderr(), "{}/ says meanwhile that there is no release yet", page.url());
    }
    match stop.wait(Duration::MAX, || open_log(directory))? {
        Poll::Ready(opened) => Ok(opened),
        Poll::Pending => Ok(None),
    }
}
