//! Followers of the public log: estimates from releases, epoch by epoch.
//!
//! ```text
//! public log ─ read ─ view ─ total ─ estimate ─ caller
//!                   └ decode windows ──────────┘
//! ```
//!
//! A [`Follower`] is a separate dataflow over the public log alone. It runs on the thread that
//! calls it: in the process of a run, in another one, or on another machine with a copy of the log.
//! A follower cannot affect a run. Tables, sinks and pages all use followers, and wait for the log
//! with [`StopFlag::wait`].
//!
//! The operators are public, for other dataflows over a log: [`DecodeWindows`], [`Totals`],
//! [`Estimates`], and [`Views`](hushflow_operators::Views). This example prints the total of a log
//! under a view that the pipeline does not name:
//!
//! ```
//! use hushflow::estimates::EstimateView;
//! use hushflow::follow::Estimates;
//! use hushflow::operators::timely::dataflow::operators::{Inspect, ToStream};
//! use hushflow::operators::{Fault, ReleasedEpoch, timely};
//! # use hushflow::pipeline::Pipeline;
//! # use hushflow::publication::{MomentPublication, Publication};
//! # use hushflow::runtime::{RunOptions, run};
//! # use hushflow::state::PublicReader;
//! # let pipeline = Pipeline::load("examples/flights.toml".as_ref())?;
//! # let directory = tempfile::tempdir()?;
//! # let state = directory.path().join("state");
//! # let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ())?;
//! # run(&pipeline, &publication, &RunOptions::new(1, &state), |_first_epoch| ())?;
//!
//! let mut log = PublicReader::open(&state)?;
//! let publication = MomentPublication::from_header(log.header())?;
//! let mut released = Vec::new();
//! while let Some(frame) = log.next_frame()? {
//!     released.push(ReleasedEpoch::released_before(frame.epoch, frame.values));
//! }
//! let view = EstimateView::new("window:7".parse()?, &publication.parameters().log_facts());
//! let view = EstimateView { total: true, ..view };
//! timely::example(move |scope| {
//!     let keys = publication.keys();
//!     let released = released.to_stream(scope);
//!     let totals = released.estimates(0, &publication, &view, |_key| true, Fault::new());
//!     totals.inspect(move |total| {
//!         assert_eq!(total.key, keys);
//!         println!("{}: {:?}", total.epoch, total.estimate.fields());
//!     });
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod counts;
mod found;
mod operators;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use hushflow_operators::{Fault, ReleasedEpoch};
use thiserror::Error;
use timely::WorkerConfig;
use timely::communication::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::vec::Filter;
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle, Scope, StreamVec};
use timely::worker::Worker;

use crate::estimates::EstimateView;
use crate::pipeline::PublicParameters;
use crate::publication::{Publication, PublicationError};
use crate::state::{HistoryStamp, PublicHeader, PublicReader, ReleaseFrame, StateError};

pub use counts::FaintCounts;
use found::FoundKeys;
pub use found::read_names;
pub use operators::{DecodeWindows, Estimates, KeyEstimate, Totals};

/// How often to check the log for a release.
const INTERVAL: Duration = Duration::from_millis(50);

/// Reasons why a log cannot be followed further.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The log cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// A release does not match the header.
    #[error("epoch {epoch} of the public log: {problem}: use the directory that this pipeline made")]
    Release {
        /// The epoch.
        epoch: u64,
        /// The mismatch.
        problem: String,
    },
}

/// The publication and the views of a log to follow.
#[derive(Clone)]
pub struct Subject {
    /// The publication of the log.
    pub publication: Publication,
    /// Views of its moments. Estimates of windows have no views.
    pub views: Vec<EstimateView>,
}

impl Subject {
    /// Reads the publication from a log's header, for these views.
    ///
    /// # Errors
    /// [`PublicationError`] if the header cannot be read.
    pub fn from_header(header: &PublicHeader, views: Vec<EstimateView>) -> Result<Self, PublicationError> {
        Ok(Subject { publication: Publication::from_header(header)?, views })
    }

    /// Returns the public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        self.publication.parameters()
    }

    /// Returns the number of epochs.
    pub fn horizon(&self) -> u64 {
        self.publication.horizon()
    }
}

/// A flag that is set when no more epochs will be published or are wanted. Followers then read the
/// rest and end.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl From<Arc<AtomicBool>> for StopFlag {
    fn from(flag: Arc<AtomicBool>) -> Self {
        StopFlag(flag)
    }
}

impl StopFlag {
    /// Sets the flag.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns the flag.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits for a log: tries `read` again until it returns something new. Returns `Pending` if it
    /// did not within `timeout`, and `Ready(None)` if the flag is set and all has been read.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn wait<T, E>(
        &self,
        timeout: Duration,
        mut read: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Poll<Option<T>>, E> {
        let begun = Instant::now();
        loop {
            // Checked before the log is read, so that all of it is read afterwards.
            let is_last = self.is_set();
            let frame = read()?;
            if frame.is_some() || is_last {
                return Ok(Poll::Ready(frame));
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(Poll::Pending);
            }
            // The thread that sets the flag may wake this one.
            thread::park_timeout(left.min(INTERVAL));
        }
    }
}

/// Opens the log in `directory`; `None` if no run has created it yet.
///
/// # Errors
/// [`StateError`] if it cannot be read.
pub fn open_log(directory: &Path) -> Result<Option<PublicReader>, StateError> {
    match PublicReader::open(directory) {
        Err(StateError::Missing { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Estimates of one epoch.
#[derive(Clone, Debug)]
pub struct EpochEstimates {
    /// The epoch.
    pub number: u64,
    /// Stamp of the run and its history.
    pub stamp: HistoryStamp,
    /// Estimates view by view, and within a view key by key. Empty for an epoch that was not
    /// selected.
    pub estimates: Vec<KeyEstimate>,
}

/// Follows a public log from its first epoch on.
pub struct Follower {
    reader: PublicReader,
    /// The release after the last estimated one, if it has been read.
    ahead: Option<Result<ReleaseFrame, StateError>>,
    last: u64,
    dataflow: Dataflow,
}

impl Follower {
    /// Follows a log that is open but unread. Empty `keys` mean all.
    pub fn new(reader: PublicReader, subject: &Subject, keys: &[u32]) -> Self {
        Self { reader, ahead: None, last: 0, dataflow: Dataflow::new(subject, keys) }
    }

    /// Returns the last epoch that was read; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Reads the next epoch if it has been published. Estimates are computed only for epochs that
    /// `select` accepts, because they take time. It is called once per epoch, with the epoch and
    /// whether it is the newest in the log.
    ///
    /// # Errors
    /// [`FollowError`]. The follower is unusable afterwards.
    pub fn next(
        &mut self,
        select: impl FnOnce(u64, bool) -> bool,
    ) -> Result<Option<EpochEstimates>, FollowError> {
        let Some(frame) = self.read().transpose()? else { return Ok(None) };
        self.ahead = self.read();
        let (number, stamp) = (frame.epoch, frame.stamp());
        let estimates = self.dataflow.push(frame, select(number, self.ahead.is_none()))?;
        self.last = number;
        Ok(Some(EpochEstimates { number, stamp, estimates }))
    }

    fn read(&mut self) -> Option<Result<ReleaseFrame, StateError>> {
        self.ahead.take().or_else(|| self.reader.next_frame().transpose())
    }
}

/// The public dataflow, with its own worker on the caller's thread.
struct Dataflow {
    worker: Worker,
    input: InputHandle<u64, CapacityContainerBuilder<Vec<ReleasedEpoch>>>,
    probe: ProbeHandle<u64>,
    fault: Fault,
    /// Whether to estimate the current epoch.
    is_selected: Rc<Cell<bool>>,
    /// The slots with a key so far, if keys are discovered.
    slots: Option<FoundKeys>,
    estimates: Rc<RefCell<Vec<KeyEstimate>>>,
}

impl Dataflow {
    fn new(subject: &Subject, keys: &[u32]) -> Self {
        let allocator = Allocator::Thread(Thread::default());
        let mut dataflow = Dataflow {
            worker: Worker::new(WorkerConfig::default(), allocator, Some(Instant::now())),
            input: InputHandle::new(),
            probe: ProbeHandle::new(),
            fault: Fault::new(),
            is_selected: Rc::default(),
            slots: FoundKeys::of(&subject.publication),
            estimates: Rc::default(),
        };
        let Dataflow { worker, input, probe, fault, is_selected, slots, estimates } = &mut dataflow;
        let selects = || {
            let (is_selected, mut keys) = (Rc::clone(is_selected), keys.to_vec());
            let found = slots.as_ref().map(|slots| Rc::clone(&slots.number));
            keys.sort_unstable();
            move |key| {
                let has_name = found.as_ref().is_none_or(|found| key < found.get());
                is_selected.get() && has_name && (keys.is_empty() || keys.binary_search(&key).is_ok())
            }
        };
        worker.dataflow(|scope: Scope<'_, u64>| {
            let released = scope.input_from(input);
            let collect = |stream: StreamVec<'_, u64, KeyEstimate>| {
                let estimates = Rc::clone(estimates);
                stream
                    .inspect(move |estimate| estimates.borrow_mut().push(estimate.clone()))
                    .probe_with(probe);
            };
            match &subject.publication {
                Publication::Windows(publication) => {
                    let (windows, selects) =
                        (released.decode_windows(publication.clone(), fault.clone()), selects());
                    collect(windows.filter(move |window| selects(window.key)));
                }
                Publication::Moments(publication) => {
                    for (number, view) in subject.views.iter().enumerate() {
                        let released = released.clone();
                        collect(released.estimates(number, publication, view, selects(), fault.clone()));
                    }
                }
            }
        });
        dataflow
    }

    /// Feeds a release to the dataflow and returns its estimates.
    fn push(&mut self, mut frame: ReleaseFrame, is_selected: bool) -> Result<Vec<KeyEstimate>, FollowError> {
        let epoch = frame.epoch;
        if let Some(slots) = &self.slots {
            slots.read(&mut frame.values).map_err(|problem| FollowError::Release { epoch, problem })?;
        }
        self.is_selected.set(is_selected);
        self.input.advance_to(epoch);
        self.input.send(ReleasedEpoch::released_before(epoch, frame.values));
        self.input.advance_to(epoch + 1);
        while self.probe.less_than(&(epoch + 1)) && !self.fault.is_raised() {
            self.worker.step();
        }
        if let Some(problem) = self.fault.reason() {
            return Err(FollowError::Release { epoch, problem: problem.to_owned() });
        }
        let mut estimates = self.estimates.take();
        estimates.sort_by_key(|estimate| estimate.view);
        Ok(estimates)
    }
}
