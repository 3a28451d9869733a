//! Runs a pipeline: the dataflow, the worker loop, and the handling of faults.
//!
//! ```text
//! readers ─ source ─ (epochs ─ bound) ─ clip ─ accumulate ─ release ─ commit ─→ both logs
//!              ├─ epochs ─ release_windows ──────────────────────────────┤
//!              └─ where to resume ───────────────────────────────────────┘
//! ```
//!
//! Entities and windows need records by epoch. Sums do not: `accumulate` adds each record to the
//! sums of its own epoch.
//!
//! A run ends at the commit. [Followers](crate::follow) read its releases from the public log.
//!
//! A fault anywhere (source, entropy, disk, a peer) stops the run: nothing more is committed or
//! published, and the next run resumes after the last committed epoch. In a cluster a fault ends
//! the process at once, because an orderly exit would leave the other processes waiting.

mod bootstrap;
mod cluster;
mod cuts;
mod dry_run;
mod duplicates;
pub mod embed;
mod feed;
mod histories;
mod ingest;
mod journal;
mod late;
pub mod link;
mod memory;
mod merge;
mod moments;
mod positions;
mod preflight;
mod progress;
mod public_progress;
mod readers;
mod resume;
mod source;
#[cfg(test)]
mod tests;
mod threads;
#[cfg(feature = "training")]
pub mod training;
mod windows;

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hushflow_mechanism::discovery::DiscoveryError;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::ReleaseError;
use hushflow_operators::Fault;
use thiserror::Error;
use timely::dataflow::ProbeHandle;
use timely::worker::Worker;
use tracing::{error, info, info_span};

use crate::check::{FIRST_ROWS, JudgeState};
use crate::connect::journal::Intake;
use crate::control::{Control, PRIVATE_LOG};
use crate::ledger::{LedgerError, LedgerHome, LedgerHomeError};
use crate::metrics::Metrics;
use crate::pipeline::{KeyTexts, Pipeline, Preflight, Source};
use crate::publication::{Publication, PublicationError};
use crate::source::{RowCounters, SourceError};
use crate::state::StateError;
use bootstrap::{PeerWatch, ProcessLinks, connect_processes};
use cluster::{execute, send_starts};
use cuts::EntityCuts;
use feed::{ReadOutcome, WorkerFeed, channels};
use ingest::{OpenSources, SourceReaders, sources as open_sources};
use journal::{Journal, RunStart, open_store};
use merge::Merge;
use preflight::RowGuard;
use public_progress::PublicProgress;
use readers::{PostRoute, SharedReading};
use resume::{TaggedPosition, judged};
use windows::{STOPPED, TIMEOUT};

pub use cluster::{Cluster, ClusterError, is_lost_peer, is_missing_worker};
pub use dry_run::{DryRun, DryRunLimits, dry_run};
pub use ingest::Acknowledge;
pub use journal::{confirm_budget, shared_ledger};
pub use resume::{followed, journaled};

/// Epochs between checkpoints of the encoder states.
const CHECKPOINT_INTERVAL: u64 = 64;

/// Longest sleep of a worker before it checks for a fault.
const PARK_TIMEOUT: Duration = Duration::from_millis(50);

/// Why a run ended before its source.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The pipeline's parameters are invalid.
    #[error(transparent)]
    MomentPublication(#[from] PublicationError),
    /// The state directory can't be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The ledger can't be used, or has no room for this pipeline. Nothing was published.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The directory of all ledgers can't be used.
    #[error(transparent)]
    Home(#[from] LedgerHomeError),
    /// The source can't be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source of a run can't be opened; with what was published and spent.
    #[error("{0}; {1}")]
    Unopened(SourceError, &'static str),
    /// The run was stopped before it could reach the server of any source.
    #[error("nothing was read: {0}")]
    Unreached(String),
    /// The discovery of keys can't resume from its saved state.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The encoder can't resume from its saved state.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The processes of a cluster could not connect.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The state belongs to another pipeline's encoders.
    #[error(
        "the checkpoint or the log in the state directory does not fit this pipeline: use the directory it was made with"
    )]
    Checkpoint,
    /// A pipeline that trains a model was run as a stream.
    #[error("this pipeline file trains a model: run it by `hushflow train`")]
    Trains,
    /// The rows of a training run have changed.
    #[error(
        "the rows are not those of the released steps: a row could take part more often than the guarantee counts. Use the same \
         rows in the same order, or a new state directory, which pays again"
    )]
    OtherRows,
    /// The state holds an ingest journal, but the pipeline does not enable one.
    #[error(
        "the state directory has an ingest journal, so what came on the standard input may be in it and not be counted yet: \
         keep `journal = true` in [source]"
    )]
    JournalOff,
    /// The state holds positions in another kind of source.
    #[error(
        "the last run read another kind of source, so where it stopped means nothing here: keep the source, or begin a new \
         state directory"
    )]
    OtherSource,
    /// The state holds a position in another stream of a server.
    #[error(
        "the last run read another stream, or another partition or database, than `stream`, `partition` and `path` name now, so \
         where it stopped means nothing here: name that one, or begin a new state directory"
    )]
    OtherStream,
    /// Something failed while running. Nothing after the last committed epoch was published.
    #[error("{0}")]
    Fault(String),
    /// The threads could not be started.
    #[error("the run could not be started: {0}")]
    Start(String),
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Worker threads of this process, at least 1.
    pub workers: usize,
    /// The state directory.
    pub state: PathBuf,
    /// The other processes, if any.
    pub cluster: Option<Cluster>,
    /// Listener for records that are durable in the ingest journal, if the pipeline enables one.
    pub acknowledge: Option<Acknowledge>,
    /// Stops the run and receives messages for its operator.
    pub control: Control,
    /// Metrics of the run.
    pub metrics: Arc<Metrics>,
    /// Directory of all ledgers, for a pipeline that names none.
    pub ledgers: Option<LedgerHome>,
}

impl RunOptions {
    /// One process with `workers` threads, at least 1, and its state in `state`. By default nobody
    /// is notified, and the run stops only when its source ends.
    pub fn new(workers: usize, state: impl Into<PathBuf>) -> Self {
        RunOptions {
            workers,
            state: state.into(),
            cluster: None,
            acknowledge: None,
            control: Control::default(),
            metrics: Arc::default(),
            ledgers: None,
        }
    }
}

/// Result of a run.
pub struct RunSummary {
    /// The epochs that this run committed.
    pub epochs: std::ops::Range<u64>,
    /// The number of this run in the state directory.
    pub generation: u64,
    /// Row counts; private, for the operator only.
    pub counters: RowCounters,
    /// Records of the committed epochs that the limits of entities leave out; of several that
    /// became a mean, all but one. Private. `None` if no entities are protected, or in a cluster,
    /// whose processes each know a part.
    pub left_out: Option<u64>,
}

/// Runs a pipeline until its source ends, and writes its releases to the public log.
///
/// `publication` is the one that [`Publication::of_pipeline`] makes for this state directory.
/// `begins` is called once, with the first epoch of this run.
///
/// Only the first process of a cluster commits; the others release their shards, and read
/// some of the rows.
///
/// # Errors
/// [`RunError`]; what was committed before stays committed.
pub fn run(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
    begins: impl FnOnce(u64),
) -> Result<RunSummary, RunError> {
    let progress = PublicProgress::of(options);
    begin(pipeline, publication, options, begins).map_err(|error| progress.with(error))
}

/// Begins the run, and waits for its end.
fn begin(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
    begins: impl FnOnce(u64),
) -> Result<RunSummary, RunError> {
    if pipeline.training.is_some() {
        return Err(RunError::Trains);
    }
    let noise = pipeline.noise;
    // Nothing can be released without entropy, so check before anything is written.
    noise.generator(0, 0).map_err(|error| RunError::Start(error.to_string()))?;
    let _span = info_span!("run", pipeline = pipeline.name).entered();
    info!(pipeline = pipeline.name, workers = options.workers, private = noise.is_private(), "a run begins");
    options.metrics.watch_connections(&options.control);
    let fault = Fault::new();
    let leads = options.cluster.as_ref().is_none_or(|cluster| cluster.process == 0);
    let met = options.cluster.as_ref().map(|cluster| find_others(cluster, options, publication, noise));
    let met = met.transpose()?;
    let (links, watch) = met.unzip();
    let opened = leads.then(|| info_span!("open").in_scope(|| open(pipeline, publication, options)));
    let opened = opened.transpose()?;
    drop(watch);
    let (lead, sources) = opened.unzip();
    let (readers, taking) = sources.unzip();
    let taking = taking.flatten();
    let (dealer, feed) = channels(options.workers, &fault, &options.metrics);
    let (shared, route) = SharedReading::new(pipeline, options);
    let dealer = dealer.of_journal(taking.as_ref().map(Intake::ingest)).among(shared.informs());
    options.metrics.watch_batches(feed.waiting());
    let start = lead.as_ref().map(|lead| lead.start.clone());
    let committed = start.as_ref().map_or(0, |start| start.first_epoch - 1);
    let state = lead.as_ref().and_then(|lead| lead.judged.as_ref());
    let histories = start.as_ref().map_or(&[][..], |start| &start.histories[..]);
    let guard = RowGuard::new(pipeline, committed, histories, state, &options.control);
    let dealer = dealer.guarded(guard);
    let judged = state.map_or(0, JudgeState::last);
    // A stretch of clipped values is found among all values only.
    let compares_all = match pipeline.preflight {
        Preflight::Stop => true,
        Preflight::Warn => options.control.shows_private(),
        Preflight::Off => false,
    };
    // The check of the first rows also shows that the horizon is too short for them.
    let is_checked = committed == 0 && pipeline.preflight != Preflight::Off;
    let first_rows = if is_checked { FIRST_ROWS } else { 0 };
    let feeds = shared.feeds();
    let reading = if let Some(readers) = readers {
        let prepared = |readers: SourceReaders| readers.judged_through(judged).reading_on(first_rows);
        let work: Box<dyn FnOnce() -> ReadOutcome + Send> =
            match SourceReaders::only(readers.into_iter().map(prepared).collect()) {
                Ok(reader) => {
                    let reader = shared.ahead(reader, (pipeline, options), &fault);
                    let reader = if compares_all { reader.comparing_all() } else { reader };
                    Box::new(move || dealer.deal(reader))
                }
                Err(readers) => {
                    let merge = Merge::new(pipeline, committed, compares_all, &options.control);
                    let merge = merge.among(shared.partitions(options, &fault));
                    Box::new(move || merge.deal(readers, dealer))
                }
            };
        Some(std::thread::Builder::new().name("source".into()).spawn(work))
    } else {
        shared.follow(pipeline, options, dealer, &fault);
        None
    };
    let reading =
        reading.transpose().map_err(|error| RunError::Start(format!("no thread for the source: {error}")))?;
    let generation = lead.as_ref().map_or(0, |lead| lead.journal.generation());
    let cuts = EntityCuts::default();
    let process = ProcessState {
        publication: publication.clone(),
        noise,
        fault: fault.clone(),
        control: options.control.clone(),
        cuts: cuts.clone(),
        texts: pipeline.discovery().map(|discovery| discovery.texts.clone()),
        feed: feeds.then_some(feed),
        route,
        start: start.clone(),
        lead: Mutex::new(lead),
        on_cluster_fault: options.cluster.as_ref().map(|cluster| cluster.on_fault),
        progress: PublicProgress::of(options),
    };
    if let Some(start) = &start {
        let schedule = &pipeline.epochs.schedule;
        options.metrics.begin(&pipeline.name, generation, start.first_epoch - 1, schedule);
        info!(generation, first_epoch = start.first_epoch, "the run resumes after the last committed epoch");
        begins(start.first_epoch);
    } else {
        options.metrics.begin_following();
    }
    let cluster = options.cluster.as_ref().map(|cluster| cluster.process).zip(links);
    let worked = execute(options.workers, cluster, &fault, move |worker| process.work(worker));
    if let Err(error) = &worked {
        fault.raise(error);
    }
    let ends = worked?;
    // After a fault the reader is not joined: it may be waiting for rows that never come.
    if let Some(reason) = fault.reason().filter(|reason| *reason != STOPPED) {
        error!("a fault has ended the run");
        error!(target: PRIVATE_LOG, reason, "the reason of the fault");
        return Err(RunError::Fault(reason.into()));
    }
    let read = reading.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let cut_off = taking.map_or(Ok(0), Intake::finish)?;
    let counters = RowCounters { cut_off, ..read.counters };
    if options.control.is_stopped() {
        options.control.check_reached(pipeline.sources.len()).map_err(RunError::Unreached)?;
    }
    read.notices.iter().for_each(|notice| options.control.private_notice(notice));
    let first = start.map_or(1, |start| start.first_epoch);
    let epochs = first..ends.into_iter().fold(first, u64::max);
    info!(generation, last_epoch = epochs.end - 1, "the run ended cleanly");
    let has_cuts = pipeline.entity.is_some() && options.cluster.is_none();
    let left_out = has_cuts.then(|| cuts.up_to(epochs.end - 1));
    Ok(RunSummary { epochs, generation, counters, left_out })
}

/// Connects to the other processes before anything is opened: a source may be silent for long, and
/// a run that can't start must spend no budget. While the returned [`PeerWatch`] lives, a process
/// that ends before the dataflow starts is noticed.
fn find_others(
    cluster: &Cluster,
    options: &RunOptions,
    publication: &Publication,
    noise: NoiseSource,
) -> Result<(ProcessLinks, PeerWatch), RunError> {
    let parameters = serde_json::to_vec(publication.parameters()).map_err(PublicationError::from)?;
    // Includes the kind of noise: one process with seeded noise would make all releases
    // non-private.
    let identity = [&parameters[..], &[u8::from(noise.is_private())]].concat();
    let links = connect_processes(cluster, options.workers, &identity, &options.control)?;
    let watch = PeerWatch::begin(&links, cluster.on_fault)?;
    Ok((links, watch))
}

/// State of the first worker of the first process.
struct FirstWorker {
    start: RunStart,
    journal: Journal,
    /// The state of the judge of rows, if rows are judged.
    judged: Option<JudgeState>,
}

/// Opens state and sources, and restores encoders and positions of the last run.
fn open(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
) -> Result<(FirstWorker, OpenSources), RunError> {
    let (store, recovered) = open_store(pipeline, publication, options)?;
    let recorded = TaggedPosition::of(&recovered, pipeline.sources.len())?;
    let judges = pipeline.preflight == Preflight::Stop;
    let judged = if judges { judged(&recovered)? } else { None };
    let (start, histories) = match publication {
        Publication::Moments(moments) => RunStart::recover(moments, recovered, pipeline.noise)?,
        Publication::Windows(publication) => windows::recover(publication, recovered)?,
    };
    let committed = start.first_epoch - 1;
    let (readers, taking) = open_sources(pipeline, &store, recorded, committed, options)?;
    let ingest = taking.as_ref().map(Intake::ingest);
    let tags = pipeline.sources.iter().map(Source::tag).collect();
    let listeners = ingest::listeners(pipeline, &options.control);
    let journal = Journal::new(store, (tags, ingest), histories, Arc::clone(&options.metrics));
    let journal = journal.reporting(listeners);
    Ok((FirstWorker { start, journal, judged }, (readers, taking)))
}

/// Shared parts of every dataflow of a run.
struct RunContext<'a> {
    noise: NoiseSource,
    feed: Option<&'a WorkerFeed>,
    fault: &'a Fault,
    control: &'a Control,
    cuts: &'a EntityCuts,
    /// The keys of the rows, if keys are discovered.
    texts: Option<&'a KeyTexts>,
    start: RunStart,
    committed: &'a ProbeHandle<u64>,
    /// The epoch after the last one committed.
    last: Rc<Cell<u64>>,
}

/// Shared by the workers of a process.
struct ProcessState {
    publication: Publication,
    noise: NoiseSource,
    fault: Fault,
    control: Control,
    cuts: EntityCuts,
    /// The keys of the rows, if keys are discovered. Of use in the process that reads.
    texts: Option<KeyTexts>,
    feed: Option<WorkerFeed>,
    /// Carries messages between the readers of the processes, if all of them read.
    route: Option<PostRoute>,
    /// Known in the first process, which sends it to the others.
    start: Option<RunStart>,
    lead: Mutex<Option<FirstWorker>>,
    /// Ends this process after a fault, if it belongs to a cluster.
    on_cluster_fault: Option<fn(&str) -> !>,
    progress: PublicProgress,
}

impl ProcessState {
    /// Runs one worker; returns the epoch after the last one committed.
    fn work(&self, worker: &mut Worker) -> u64 {
        let start = match &self.start {
            Some(start) if self.on_cluster_fault.is_none() => start.clone(),
            start => send_starts(worker, start.as_ref()),
        };
        self.route.iter().for_each(|route| route.build(worker));
        let committed = ProbeHandle::new();
        let last = Rc::new(Cell::new(start.first_epoch));
        let lead = if worker.index() == 0 {
            self.lead.lock().unwrap_or_else(PoisonError::into_inner).take()
        } else {
            None
        };
        let running = RunContext {
            noise: self.noise,
            feed: self.feed.as_ref(),
            fault: &self.fault,
            control: &self.control,
            cuts: &self.cuts,
            texts: self.texts.as_ref(),
            start,
            committed: &committed,
            last: Rc::clone(&last),
        };
        let journal = lead.map(|lead| lead.journal);
        match &self.publication {
            Publication::Moments(moments) => moments::build(moments, worker, running, journal),
            Publication::Windows(windows) => windows::build(windows, worker, running, journal),
        }
        // An estimate of a window may take too long to wait for once a run is stopped.
        let answers_slowly = matches!(self.publication, Publication::Windows(_));
        let mut stopped = None;
        while !self.fault.is_raised() && worker.step_or_park(Some(PARK_TIMEOUT)) {
            if answers_slowly && self.control.is_stopped() {
                let since = *stopped.get_or_insert_with(Instant::now);
                if since.elapsed() >= TIMEOUT {
                    self.fault.raise(STOPPED);
                }
            }
        }
        if let Some(reason) = self.fault.reason() {
            if let Some(end) = self.on_cluster_fault {
                error!("a fault ends this process of the cluster");
                error!(target: PRIVATE_LOG, reason, "the reason of the fault");
                // Other processes don't know what the first one has committed.
                if self.start.is_some() { end(&self.progress.after(reason)) } else { end(reason) }
            }
            // All workers of this single process stop here, so none waits for another.
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        }
        last.get()
    }
}
