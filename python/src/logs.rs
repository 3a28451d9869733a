//! The public side of a state directory: views as columns, new releases, and checks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use hushflow::estimates::{ESTIMATORS, EstimateView, FieldValue, Intervals, LogFacts, ViewEstimator};
use hushflow::follow::{EpochEstimates, Follower, StopFlag, Subject, read_names};
use hushflow::lines::{LineWriter, OutputFormat, records};
use hushflow::mechanism::estimate::projection::Projection;
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::workload::Workload;
use hushflow::publication::Publication;
use hushflow::state::{PublicReader, is_public_alone, verify, verify_public};
use hushflow::strategies::matrix::read_workload;
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;
use crate::process::{SIGNALS, interruptible};

/// Number of epochs that a follower reads ahead of its caller.
const AHEAD: usize = 16;

/// Selection from a log.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ViewOptions {
    workload: Option<String>,
    estimate: Option<String>,
    regress: Option<String>,
    /// The estimator's fields of `[[views]]`, as a JSON object.
    settings: Option<String>,
    covariance: Option<String>,
    level: f64,
    joint: bool,
    population: bool,
    missing_at_random: bool,
    total: bool,
    keys: Option<Vec<String>>,
    since: u64,
}

impl ViewOptions {
    /// Returns the log with the view of these options, and the keys to show.
    fn subject(&self, reader: &PublicReader, directory: &Path) -> Result<(Subject, Vec<u32>), Failure> {
        let mut subject = Subject::from_header(reader.header(), Vec::new())?;
        read_names(directory, &subject.publication)?;
        let parameters = subject.parameters();
        let find = |name: &String| {
            parameters
                .named_keys()
                .find(|&key| parameters.key_name(key) == name)
                .ok_or_else(|| Failure::parameter(format!("keys: the log has no key {name:?}")))
        };
        let keys = self.keys.iter().flatten().map(find).collect::<Result<_, _>>()?;
        if let Publication::Moments(publication) = &subject.publication {
            let parameters = publication.parameters();
            let view = self.view(&parameters.release.workload, &parameters.log_facts())?;
            subject.views.push(view);
        } else if self.workload.is_some() || self.estimate.is_some() || self.regress.is_some() || self.total {
            return Err(Failure::parameter(
                "this log holds estimates of windows: workload, estimate, regress and total are for moments",
            ));
        }
        Ok((subject, keys))
    }

    fn view(&self, released: &Workload, log: &LogFacts<'_>) -> Result<EstimateView, Failure> {
        if self.total && (log.method == Method::Pp || log.key_bounds) {
            return Err(Failure::parameter("total: the moments of this log can't be added over keys"));
        }
        if !(self.level > 0.0 && self.level < 1.0) {
            return Err(Failure::parameter(format!(
                "level: found {}, expected a number above 0 and below 1, such as 0.95",
                self.level
            )));
        }
        let mut view = EstimateView::new(released.clone(), log);
        if let Some(estimator) = self.estimator(log)? {
            view.estimator = estimator;
        }
        let chosen = self.workload.as_ref().map(|text| read_workload(text, Path::new("")));
        let chosen = chosen.transpose().map_err(Failure::of_argument("workload"))?;
        let workload = EstimateView::workload_of(&*view.estimator, chosen, released, log);
        view.workload = workload.map_err(|problem| Failure::parameter(format!("workload: {problem}")))?;
        view.name = EstimateView::default_name(&view.workload);
        if let Some(text) = &self.covariance {
            view.covariance = text.parse::<Projection>().map_err(Failure::of_argument("covariance"))?;
        }
        let &Self { level, joint, population, missing_at_random, total, .. } = self;
        view.intervals = Intervals { level, joint, population, missing_at_random };
        view.total = total;
        Ok(view)
    }

    fn estimator(&self, log: &LogFacts<'_>) -> Result<Option<std::sync::Arc<dyn ViewEstimator>>, Failure> {
        let named = |name: &str| ESTIMATORS.iter().find(|kind| kind.name == name);
        let (argument, found) = match (&self.estimate, &self.regress, &self.settings) {
            (None, None, None) => return Ok(None),
            (Some(_), Some(_), _) => {
                return Err(Failure::parameter("found estimate and regress, expected one of them"));
            }
            (None, _, Some(_)) => {
                return Err(Failure::parameter("settings: they are for an estimate: name it"));
            }
            (None, Some(formula), None) => {
                ("regress", named("regression").map(|kind| kind.from_flag(formula, log)))
            }
            (Some(name), None, settings) => {
                let settings = settings.as_deref().unwrap_or("{}");
                ("estimate", named(name).map(|kind| kind.from_json(settings, log)))
            }
        };
        let Some(found) = found else {
            let names = ESTIMATORS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
            return Err(Failure::parameter(format!("{argument}: expected one of {names}")));
        };
        Ok(Some(found.map_err(|error| Failure::parameter(format!("{argument}: {error}")))?))
    }
}

/// The public log in a directory.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct Log {
    directory: PathBuf,
}

/// A column of a view.
enum Column {
    Numbers(Vec<f64>),
    Words(Vec<String>),
}

/// A view as columns.
#[derive(Default)]
struct Columns {
    epochs: Vec<i64>,
    /// Microseconds since 1970 at which the epochs begin; empty if epochs are counted.
    starts: Vec<i64>,
    keys: Vec<String>,
    /// Names and contents, in the order of `tail --format csv`.
    others: Vec<(String, Column)>,
}

impl Columns {
    fn push(&mut self, subject: &Subject, epoch: &EpochEstimates) {
        for record in records(subject, epoch) {
            self.epochs.push(record.epoch as i64);
            self.starts.extend(record.start);
            self.keys.push(record.key);
            for (index, field) in record.fields.into_iter().enumerate() {
                if self.others.len() == index {
                    let empty = match &field.value {
                        FieldValue::Word(_) => Column::Words(Vec::new()),
                        FieldValue::Number(_) => Column::Numbers(Vec::new()),
                    };
                    self.others.push((field.title(), empty));
                }
                match (&mut self.others[index].1, field.value) {
                    (Column::Numbers(numbers), FieldValue::Number(number)) => {
                        numbers.push(number.unwrap_or(f64::NAN));
                    }
                    (Column::Words(words), FieldValue::Word(word)) => words.push(word),
                    // A field's kind doesn't change.
                    (Column::Numbers(numbers), _) => numbers.push(f64::NAN),
                    (Column::Words(words), _) => words.push(String::new()),
                }
            }
        }
    }
}

#[pymethods]
impl Log {
    #[new]
    fn new(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let reader = PublicReader::open(&directory)?;
            Publication::from_header(reader.header()).map(drop).map_err(Failure::from)
        })?;
        Ok(Log { directory })
    }

    #[getter]
    fn directory(&self) -> &Path {
        &self.directory
    }

    /// The public parameters, as JSON.
    fn parameters(&self, py: Python<'_>) -> PyResult<String> {
        let text = py.detach(|| {
            let reader = PublicReader::open(&self.directory)?;
            let publication = Publication::from_header(reader.header())?;
            let header = serde_json::json!({
                "private": publication.is_private(), "horizon": publication.horizon(),
                "parameters": publication.parameters(),
            });
            Ok::<_, Failure>(header.to_string())
        })?;
        Ok(text)
    }

    /// A view of all releases from `since` on, as columns.
    fn view<'py>(&self, py: Python<'py>, options: ViewOptions) -> PyResult<Bound<'py, PyDict>> {
        let directory = self.directory.clone();
        let work = move || {
            let reader = PublicReader::open(&directory)?;
            let (subject, keys) = options.subject(&reader, &directory)?;
            let (mut follower, mut columns) = (Follower::new(reader, &subject, &keys), Columns::default());
            while let Some(epoch) = follower.next(|epoch, _| epoch >= options.since)? {
                columns.push(&subject, &epoch);
            }
            Ok(columns)
        };
        let Columns { epochs, starts, keys, others } = interruptible(py, work, || (), false)?;
        let found = PyDict::new(py);
        let timed = !starts.is_empty();
        found.set_item("epoch", epochs.into_pyarray(py))?;
        if timed {
            found.set_item("start", starts.into_pyarray(py))?;
        }
        found.set_item("key", keys)?;
        for (name, column) in others {
            match column {
                Column::Numbers(numbers) => found.set_item(name, numbers.into_pyarray(py))?,
                Column::Words(words) => found.set_item(name, words)?,
            }
        }
        Ok(found)
    }

    /// The lines of one epoch as JSON, by default of the newest one, and its number; `None` before
    /// the first release.
    #[pyo3(signature = (options, epoch = None))]
    fn lines(
        &self,
        py: Python<'_>,
        options: ViewOptions,
        epoch: Option<u64>,
    ) -> PyResult<Option<(u64, String)>> {
        let directory = self.directory.clone();
        let work = move || {
            let reader = PublicReader::open(&directory)?;
            let (subject, keys) = options.subject(&reader, &directory)?;
            let mut follower = Follower::new(reader, &subject, &keys);
            let mut lines = None;
            let wanted = |number, newest| epoch.map_or(newest, |epoch| number == epoch);
            while let Some(found) = follower.next(wanted)? {
                if !found.estimates.is_empty() {
                    lines = Some((found.number, text(&subject, &found)));
                }
                if epoch == Some(found.number) {
                    break;
                }
            }
            Ok(lines)
        };
        interruptible(py, work, || (), false)
    }

    /// Follows the releases from `since` on.
    fn follow(&self, options: ViewOptions) -> PyResult<Follow> {
        let (sender, receiver) = sync_channel(AHEAD);
        let (stop, directory) = (StopFlag::default(), self.directory.clone());
        let flag = stop.clone();
        let follow = move || {
            let followed = || {
                let reader = PublicReader::open(&directory)?;
                let (subject, keys) = options.subject(&reader, &directory)?;
                let mut follower = Follower::new(reader, &subject, &keys);
                while follower.last() < subject.horizon() {
                    let next =
                        flag.wait(Duration::MAX, || follower.next(|epoch, _| epoch >= options.since))?;
                    let Poll::Ready(Some(epoch)) = next else { break };
                    if !epoch.estimates.is_empty()
                        && sender.send(Ok((epoch.number, text(&subject, &epoch)))).is_err()
                    {
                        break;
                    }
                }
                Ok(())
            };
            if let Err(failure) = followed() {
                // If this can't be sent, the caller has gone.
                let _ = sender.send(Err(failure));
            }
        };
        let spawned = thread::Builder::new().name("hushflow follow".into()).spawn(follow);
        spawned.map_err(|error| Failure::new("RunError", format!("no thread could be started: {error}")))?;
        Ok(Follow { receiver: Mutex::new(receiver), stop })
    }

    /// Checks checksums, order and hash chain of the log, its match with committed epochs, and its
    /// guarantee.
    fn verify<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let directory = self.directory.clone();
        let work = move || {
            let reader = PublicReader::open(&directory)?;
            let publication = Publication::from_header(reader.header())?;
            let (committed, published, generations, chain, problem) = match is_public_alone(&directory)? {
                true => {
                    let report = verify_public(&directory)?;
                    (None, report.published, report.generation, report.chain, report.problem)
                }
                false => {
                    let report = verify(&directory)?;
                    (
                        Some(report.committed),
                        report.published,
                        report.generations,
                        report.chain,
                        report.problem,
                    )
                }
            };
            if let Some(problem) = problem {
                return Err(problem.into());
            }
            if !publication.guarantee_holds()? {
                return Err(hushflow::publication::PublicationError::Promise.into());
            }
            Ok((publication.is_private(), committed, published, generations, chain.to_string()))
        };
        let (private, committed, published, generations, chain) = interruptible(py, work, || (), false)?;
        let found = PyDict::new(py);
        found.set_item("private", private)?;
        found.set_item("committed", committed)?;
        found.set_item("published", published)?;
        found.set_item("generations", generations)?;
        found.set_item("chain", chain)?;
        Ok(found)
    }
}

/// Lines of JSON.
fn text(subject: &Subject, epoch: &EpochEstimates) -> String {
    let mut lines = Vec::new();
    // Writing to memory does not fail.
    let _ = LineWriter::new(subject, OutputFormat::Json).write(epoch, &mut lines);
    String::from_utf8_lossy(&lines).into_owned()
}

type Lines = Result<(u64, String), Failure>;

/// Releases of a log that another process may be writing.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct Follow {
    receiver: Mutex<Receiver<Lines>>,
    stop: StopFlag,
}

#[pymethods]
impl Follow {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(u64, String)>> {
        loop {
            let received = py.detach(|| {
                self.receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS)
            });
            match received {
                Ok(lines) => return Ok(Some(lines?)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            }
        }
    }

    /// Ends the iteration after the epochs published so far.
    fn stop(&self) {
        self.stop.set();
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.stop.set();
    }
}
