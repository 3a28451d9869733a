//! Followers of the public log: estimates from releases, epoch by epoch.
//!
//! ```text
//! public log ─ read ─ decode ─ view ─ total ─ estimate ─ caller
//! ```
//!
//! A [`Follower`] is a separate dataflow over the public log alone. It runs on the thread that
//! calls it: in the process of a run, in another one, or on another machine with a copy of the log.
//! A follower cannot affect a run. Tables, sinks and pages all use it.

mod subject;
mod totals;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hushflow_operators::{Fault, ReleasedEpoch, Views};
use thiserror::Error;
use timely::WorkerConfig;
use timely::communication::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::vec::{Filter, Map as _};
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle, Scope, StreamVec};
use timely::worker::Worker;

use crate::estimates::{Found, View};
use crate::publication::{MomentPublication, Publication, WindowPublication};
use crate::state::{PublicReader, ReleaseFrame, Stamp, StateError};

pub use subject::Subject;
pub use totals::{Totals, add_up};

/// Why a log cannot be followed further.
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

/// The estimate of one key in one epoch, under one view.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The view's number; 0 for estimates of windows.
    pub view: usize,
    /// The epoch.
    pub epoch: u64,
    /// The key; the number of keys stands for their total.
    pub key: u32,
    /// The estimate.
    pub found: Arc<dyn Found>,
}

/// One epoch, as a follower shows it.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The epoch.
    pub number: u64,
    /// Stamp of the run and its history.
    pub stamp: Stamp,
    /// Estimates view by view, and within a view key by key. Empty for an epoch that was not
    /// wanted.
    pub shown: Vec<Shown>,
}

/// Follows a public log from its first epoch on.
pub struct Follower {
    reader: PublicReader,
    /// The release after the last shown one, if it has been read.
    ahead: Option<Result<ReleaseFrame, StateError>>,
    last: u64,
    flow: Flow,
}

impl Follower {
    /// Opens the log in `directory`. Empty `keys` mean all.
    ///
    /// # Errors
    /// [`StateError::Missing`] if no run has begun the log yet.
    pub fn open(directory: &Path, subject: &Subject, keys: &[u32]) -> Result<Self, FollowError> {
        Ok(Self::of(PublicReader::open(directory)?, subject, keys))
    }

    /// Follows a log that is open but unread.
    pub fn of(reader: PublicReader, subject: &Subject, keys: &[u32]) -> Self {
        Self { reader, ahead: None, last: 0, flow: Flow::new(subject, keys) }
    }

    /// Returns the last epoch that was read; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Reads the next epoch if it has been published. Estimates are computed only for `wanted`
    /// epochs, because they take time. `wanted` is called once per epoch, with the epoch and
    /// whether it is the newest in the log.
    ///
    /// # Errors
    /// [`FollowError`]. The follower is unusable afterwards.
    pub fn next(&mut self, wanted: impl FnOnce(u64, bool) -> bool) -> Result<Option<Epoch>, FollowError> {
        let Some(frame) = self.read().transpose()? else { return Ok(None) };
        self.ahead = self.read();
        let (number, stamp) = (frame.epoch, frame.stamp());
        let shown = self.flow.push(frame, wanted(number, self.ahead.is_none()))?;
        self.last = number;
        Ok(Some(Epoch { number, stamp, shown }))
    }

    fn read(&mut self) -> Option<Result<ReleaseFrame, StateError>> {
        self.ahead.take().or_else(|| self.reader.next_frame().transpose())
    }
}

struct Flow {
    worker: Worker,
    input: InputHandle<u64, CapacityContainerBuilder<Vec<ReleasedEpoch>>>,
    probe: ProbeHandle<u64>,
    fault: Fault,
    wanted: Rc<Cell<bool>>,
    shown: Rc<RefCell<Vec<Shown>>>,
}

impl Flow {
    fn new(subject: &Subject, keys: &[u32]) -> Self {
        let allocator = Allocator::Thread(Thread::default());
        let mut flow = Flow {
            worker: Worker::new(WorkerConfig::default(), allocator, Some(Instant::now())),
            input: InputHandle::new(),
            probe: ProbeHandle::new(),
            fault: Fault::new(),
            wanted: Rc::default(),
            shown: Rc::default(),
        };
        let (worker, input) = (&mut flow.worker, &mut flow.input);
        let part = Part { fault: &flow.fault, wanted: &flow.wanted, keys };
        let (shown, probe) = (&flow.shown, &flow.probe);
        worker.dataflow(|scope: Scope<'_, u64>| {
            let released = scope.input_from(input);
            let show = |estimates: StreamVec<'_, u64, Shown>| {
                let shown = Rc::clone(shown);
                estimates.inspect(move |found| shown.borrow_mut().push(found.clone())).probe_with(probe);
            };
            match &subject.publication {
                Publication::Windows(windows) => show(part.windows(released, windows)),
                Publication::Moments(moments) => {
                    for (number, view) in subject.views.iter().enumerate() {
                        show(part.moments(released.clone(), moments, (number, view)));
                    }
                }
            }
        });
        flow
    }

    /// Feeds a release to the dataflow and returns its estimates.
    fn push(&mut self, frame: ReleaseFrame, wanted: bool) -> Result<Vec<Shown>, FollowError> {
        let epoch = frame.epoch;
        self.wanted.set(wanted);
        self.input.advance_to(epoch);
        self.input.send(ReleasedEpoch::released_before(epoch, frame.values));
        self.input.advance_to(epoch + 1);
        while self.probe.less_than(&(epoch + 1)) && !self.fault.is_raised() {
            self.worker.step();
        }
        if let Some(problem) = self.fault.reason() {
            return Err(FollowError::Release { epoch, problem: problem.to_owned() });
        }
        let mut shown = self.shown.take();
        shown.sort_by_key(|found| found.view);
        Ok(shown)
    }
}

struct Part<'a> {
    fault: &'a Fault,
    wanted: &'a Rc<Cell<bool>>,
    keys: &'a [u32],
}

impl Part<'_> {
    /// Returns a filter for the wanted keys, if the current epoch is wanted.
    fn filter(&self) -> impl Fn(u32) -> bool + 'static {
        let (wanted, keys) = (Rc::clone(self.wanted), self.keys.to_vec());
        move |key| wanted.get() && (keys.is_empty() || keys.contains(&key))
    }

    fn moments<'scope>(
        &self,
        released: StreamVec<'scope, u64, ReleasedEpoch>,
        publication: &MomentPublication,
        (number, view): (usize, &View),
    ) -> StreamVec<'scope, u64, Shown> {
        let weighted = publication.view(&view.workload).with_square_bias(view.squares);
        let mut totals = Totals::of(publication, view.total);
        let is_asked_for = self.filter();
        let moments = released.view(move || weighted, self.fault.clone());
        let shown = moments.flat_map(move |moments| totals.push(moments));
        let setting = publication.setting(view);
        shown.filter(move |moments| is_asked_for(moments.key)).map(move |moments| Shown {
            view: number,
            epoch: moments.epoch,
            key: moments.key,
            found: setting.view.estimate.find(moments, &setting),
        })
    }

    fn windows<'scope>(
        &self,
        released: StreamVec<'scope, u64, ReleasedEpoch>,
        publication: &WindowPublication,
    ) -> StreamVec<'scope, u64, Shown> {
        let (publication, fault, is_asked_for) = (publication.clone(), self.fault.clone(), self.filter());
        let windows = released.flat_map(move |released| {
            let Some(found) = publication.read(&released.to_vec()) else {
                fault.raise("it holds no estimates of windows");
                return Vec::new();
            };
            let shown = |(key, found)| Shown { view: 0, epoch: released.epoch, key, found };
            (0..).zip(found).map(shown).collect()
        });
        windows.filter(move |shown| is_asked_for(shown.key))
    }
}

/// A flag that is set when nothing more will be published. Followers then read the rest and end.
#[derive(Clone, Debug, Default)]
pub struct Over(Arc<AtomicBool>);

impl Over {
    /// Sets the flag.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns the flag. Check it before reading the log, so that the read covers everything.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
