//! Followers of the public log: what was released, as estimates, epoch after epoch.
//!
//! ```text
//! public log ─ read ─ decode ─ view ─ total ─ estimate ─ whoever asks for the next epoch
//! ```
//!
//! A [`Follower`] is a dataflow of its own over the public log alone. It runs on the thread that asks it, in the process of a run,
//! in another one, or on another machine with a copy of the log. Nothing that a follower does, or fails to do, reaches a run. Tables,
//! sinks and pages are all made from it.

mod subject;
mod totals;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hushflow_operators::{Densities, Estimated, Fault, Released, Views};
use serde_json::{Map, Value};
use thiserror::Error;
use timely::WorkerConfig;
use timely::communication::Allocator;
use timely::communication::allocator::thread::Thread;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::vec::{Filter, Map as _};
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle, Scope, StreamVec};
use timely::worker::Worker;

use crate::pipeline::View;
use crate::publication::{MomentPublication, Publication, WindowPublication};
use crate::state::{PublicReader, ReleaseFrame, Stamp, StateError};

pub use subject::Subject;
pub use totals::{Totals, add_up};

/// Why a log can't be followed on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The log can't be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// A release does not fit what the header says.
    #[error("epoch {epoch} of the public log: {problem}: use the directory that this pipeline made")]
    Release {
        /// The epoch.
        epoch: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// What was found for one key in one epoch, under one view.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The view's number; 0 where windows are estimated.
    pub view: usize,
    /// The epoch.
    pub epoch: u64,
    /// The key; the number after all keys for their total.
    pub key: u32,
    /// The estimate.
    pub found: Found,
}

/// An estimate.
#[derive(Clone, Debug)]
pub enum Found {
    /// Moments and their density, in centred and scaled coordinates.
    Moments(Box<Estimated>),
    /// The fields of an estimate of a window.
    Window(Map<String, Value>),
}

/// One epoch, as a follower shows it.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The epoch.
    pub number: u64,
    /// The run and the history behind it.
    pub stamp: Stamp,
    /// View by view, and within a view key by key. Empty for an epoch that was not asked for.
    pub shown: Vec<Shown>,
}

/// Follows a public log from its first epoch on.
pub struct Follower {
    reader: PublicReader,
    /// The release after the last one shown, if it has been read.
    ahead: Option<Result<ReleaseFrame, StateError>>,
    last: u64,
    flow: Flow,
}

impl Follower {
    /// Opens the log in `directory`. Of `keys`, none means all.
    ///
    /// # Errors
    /// [`StateError::Missing`] where no run has begun the log yet.
    pub fn open(directory: &Path, subject: &Subject, keys: &[u32]) -> Result<Self, FollowError> {
        Ok(Self::of(PublicReader::open(directory)?, subject, keys))
    }

    /// Follows a log that has been opened and not been read.
    pub fn of(reader: PublicReader, subject: &Subject, keys: &[u32]) -> Self {
        Self { reader, ahead: None, last: 0, flow: Flow::new(subject, keys) }
    }

    /// The last epoch that was read; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Reads the next epoch, if it has been published. Estimates take time, and so are made of `wanted` epochs alone. `wanted` gets
    /// the epoch and whether it is the newest one in the log; it is not asked again about an epoch.
    ///
    /// # Errors
    /// [`FollowError`]. Nothing can be read from this follower afterwards.
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

/// The dataflow, and what stands at its two ends.
struct Flow {
    worker: Worker,
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Released>>>,
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

    /// What an epoch shows.
    fn push(&mut self, frame: ReleaseFrame, wanted: bool) -> Result<Vec<Shown>, FollowError> {
        let epoch = frame.epoch;
        self.wanted.set(wanted);
        self.input.advance_to(epoch);
        self.input.send(Released { epoch, values: frame.values.into() });
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

/// What the operators of a follower have in common.
struct Part<'a> {
    fault: &'a Fault,
    wanted: &'a Rc<Cell<bool>>,
    keys: &'a [u32],
}

impl Part<'_> {
    /// Whether a key of the current epoch is asked for.
    fn filter(&self) -> impl Fn(u32) -> bool + 'static {
        let (wanted, keys) = (Rc::clone(self.wanted), self.keys.to_vec());
        move |key| wanted.get() && (keys.is_empty() || keys.contains(&key))
    }

    fn moments<'scope>(
        &self,
        released: StreamVec<'scope, u64, Released>,
        publication: &MomentPublication,
        (number, view): (usize, &View),
    ) -> StreamVec<'scope, u64, Shown> {
        let weighted = publication.view(&view.workload).with_square_bias(view.squares);
        let mut totals = Totals::of(publication, view.total);
        let is_asked_for = self.filter();
        let moments = released.view(move || weighted, self.fault.clone());
        let shown = moments.flat_map(move |moments| totals.push(moments));
        shown.filter(move |moments| is_asked_for(moments.key)).density_by(view.covariance).map(
            move |estimated| Shown {
                view: number,
                epoch: estimated.moments.epoch,
                key: estimated.moments.key,
                found: Found::Moments(Box::new(estimated)),
            },
        )
    }

    fn windows<'scope>(
        &self,
        released: StreamVec<'scope, u64, Released>,
        publication: &WindowPublication,
    ) -> StreamVec<'scope, u64, Shown> {
        let (publication, fault, is_asked_for) = (publication.clone(), self.fault.clone(), self.filter());
        let windows = released.flat_map(move |released| {
            let Some(found) = publication.read(&released.values.to_vec()) else {
                fault.raise("it holds no estimates of windows");
                return Vec::new();
            };
            let shown =
                |(key, found)| Shown { view: 0, epoch: released.epoch, key, found: Found::Window(found) };
            (0..).zip(found).map(shown).collect()
        });
        windows.filter(move |shown| is_asked_for(shown.key))
    }
}

/// Says that no more will be published: whoever follows reads what there is, and ends.
#[derive(Clone, Debug, Default)]
pub struct Over(std::sync::Arc<AtomicBool>);

impl Over {
    /// From now on.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Asked before the log is read: then all of it is.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
