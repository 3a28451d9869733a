//! Publishing from your own timely dataflow.
//!
//! A [`Publisher`] does what a run does, without its source: it opens a state directory, pays the
//! ledger before the first release, draws the noise from the operating system, commits each epoch
//! to the private log and then shows it in the public log. It resumes after the last committed
//! epoch.
//!
//! One dependency is enough. Without the default features the library has no command, Parquet and
//! plots; the prelude exports the version of timely to use:
//!
//! ```toml
//! [dependencies]
//! hushflow = { version = "0.1", default-features = false }
//! ```
//!
//! This is a whole program:
//!
//! ```
//! use hushflow::prelude::*;
//! use timely::dataflow::operators::{Inspect, vec::Map};
//!
//! #[derive(Clone)]
//! struct Flight { airport: u32, departure: i64, recorded: i64, delay: f64 }
//!
//! # let outer = tempfile::tempdir()?;
//! # let directory = outer.path().join("state");
//! let pipeline = Pipeline::builder("delays")
//!     .column("delay", -60.0, 240.0)
//!     .keys("airport", ["EWR", "JFK", "LGA"])
//!     .epochs("2013-01-01T05:00:00Z", "1d", 4)
//!     .guarantee(1.0, 1e-6)
//!     .build()?;
//! let publisher = Publisher::open(&pipeline, &directory)?;
//! let last = publisher.run(2, |worker, publisher| {
//!     let mut flights = worker.dataflow(|scope| {
//!         let (input, EpochStream { items, ends }) = publisher.input::<Flight>(scope);
//!         let view = publisher.view(&Workload::Prefix);
//!         let records = items.map(|(epoch, flight)| Record::new(epoch, flight.airport, [flight.delay]));
//!         let moments = records.publish(publisher, ends).view(view, publisher.fault());
//!         moments.inspect(|moments| println!("day {}: {} flights", moments.epoch, moments.count()));
//!         input
//!     });
//!     let start = 1_357_016_400_000_000; // microseconds since 1970
//!     for minute in (0..4 * 1440).skip(worker.index()).step_by(worker.peers()) {
//!         let departure = start + minute * 60_000_000;
//!         let flight = Flight { airport: (minute % 3) as u32, departure, recorded: departure, delay: 5.0 };
//!         flights.advance(flight.recorded);
//!         flights.send(flight.departure, flight);
//!         worker.step();
//!     }
//!     flights.end();
//! })?;
//! assert_eq!(last, 4);
//! # assert_eq!(hushflow::state::PublicReader::open(&directory)?.next_frame()?.unwrap().epoch, 1);
//! # assert_eq!(Publisher::open(&pipeline, &directory)?.first_epoch(), 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the guarantee needs from a program
//! - *Bounds, keys and epochs are public* and don't come from the data.
//! - *The clock is public*: [`EpochInput::advance`] takes the times at which records became known,
//!   not those of private events.
//! - *Each record is sent once.* After a restart a program either sends only what it has not sent
//!   before, or the same items with the same times, each to the same worker, in the same order.
//!   Then those of committed epochs are recognised and left out: they are before
//!   [`Publisher::first_epoch`].
//! - *The end is announced*: [`EpochInput::end`]. An input that is dropped earlier looks like
//!   lost data, and ends the run by a fault.

mod records;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hushflow_mechanism::epochs::{Clock, Schedule};
use hushflow_mechanism::view::View;
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{CommitLog, Fault, Measurement, Records, ReleasedEpoch};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::vec::{Map, ToStream};
use timely::dataflow::operators::{Input, Inspect};
use timely::dataflow::{InputHandle, Scope, StreamVec};
use timely::worker::Worker;

use super::cluster::execute;
use super::journal::{EpochExtra, Journal, RunStart, open_store};
use super::{CHECKPOINT_INTERVAL, NAP, RunError, RunOptions, moments};
use crate::pipeline::{KeyBounds, Pipeline};
use crate::publication::{MomentPublication, Publication, PublicationError};
use crate::state::PublicReader;

/// The version to use: another version has other stream types.
pub use timely;

pub use records::Record;
use records::{WantedRecords, batches};

/// Publishes the records of a dataflow in a state directory, which it holds locked.
#[derive(Clone)]
pub struct Publisher(Arc<OpenPublication>);

struct OpenPublication {
    publication: MomentPublication,
    measurement: Measurement,
    first_epoch: u64,
    public_log: PathBuf,
    fault: Fault,
    /// The last epoch committed; 0 before the first.
    committed: Arc<AtomicU64>,
    /// Taken by the dataflow that publishes.
    journal: Mutex<Option<Journal>>,
}

impl Publisher {
    /// Opens a state directory for the publication that a pipeline describes, and finds the epoch
    /// after the last one committed. The pipeline's sources, views and sinks are not used. The
    /// ledger must have room; it is paid at the first release.
    ///
    /// # Errors
    /// [`RunError`]: invalid parameters, a ledger without room, another run that holds the
    /// directory, damage, or a release of estimates of windows, which need their source.
    pub fn open(pipeline: &Pipeline, state: impl Into<PathBuf>) -> Result<Self, RunError> {
        Self::open_with(pipeline, &RunOptions::new(1, state))
    }

    /// Opens the state directory of these options, with their ledgers and metrics.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pipeline: &Pipeline, options: &RunOptions) -> Result<Self, RunError> {
        let noise = pipeline.noise;
        // Nothing can be released without entropy, so check before anything is written.
        noise.generator(0, 0).map_err(|error| RunError::Start(error.to_string()))?;
        let publication = Publication::of_pipeline(pipeline, &options.state, &mut |_| ())?;
        let moments = publication.clone().into_moments()?;
        let (store, recovered) = open_store(pipeline, &publication, options)?;
        let (start, histories) = RunStart::recover(&moments, recovered, noise)?;
        let measurement = moments.measurement(noise)?;
        let measurement = measurement
            .checkpoint_interval(CHECKPOINT_INTERVAL)
            .resume(start.first_epoch, start.states)
            .histories(start.histories);
        Ok(Self(Arc::new(OpenPublication {
            measurement: measurement.build().map_err(PublicationError::from)?,
            publication: moments,
            first_epoch: start.first_epoch,
            public_log: pipeline.log_directory(&options.state).to_owned(),
            fault: Fault::new(),
            committed: Arc::new(AtomicU64::new(start.first_epoch - 1)),
            journal: Mutex::new(Some(Journal::new(
                store,
                (Vec::new(), None),
                histories,
                Arc::clone(&options.metrics),
            ))),
        })))
    }

    /// The publication: its parameters, names of keys and units of columns.
    pub fn publication(&self) -> &MomentPublication {
        &self.0.publication
    }

    /// The first epoch that this publisher releases.
    pub fn first_epoch(&self) -> u64 {
        self.0.first_epoch
    }

    fn wanted(&self) -> WantedRecords {
        let OpenPublication { publication, first_epoch, .. } = &*self.0;
        WantedRecords {
            first_epoch: *first_epoch,
            keys: publication.keys(),
            columns: publication.parameters().columns.len(),
            has_entities: publication.parameters().entity.is_some(),
            bounds: KeyBounds::new(&publication.parameters().columns, publication.parameters().key.as_ref()),
        }
    }

    /// The flag that an operator raises if it can't continue. All workers of
    /// [`run`](Self::run) then stop.
    pub fn fault(&self) -> Fault {
        self.0.fault.clone()
    }

    /// A view from the first epoch on. It has seen the releases of earlier runs.
    pub fn view(&self, workload: &Workload) -> impl FnOnce() -> View + use<> {
        let (publisher, workload) = (self.clone(), workload.clone());
        move || {
            let OpenPublication { publication, first_epoch, public_log, fault, .. } = &*publisher.0;
            let mut view = publication.view(&workload);
            if let Err(error) = see_earlier(&mut view, *first_epoch, public_log) {
                fault.raise(error);
            }
            view
        }
    }

    /// Adds an input for items with event times to a dataflow.
    pub fn input<'scope, T: Clone + 'static>(
        &self,
        scope: Scope<'scope, u64>,
    ) -> (EpochInput<T>, EpochStream<'scope, T>) {
        let (mut items, mut ends) = (InputHandle::new(), InputHandle::new());
        let stream = EpochStream { items: scope.input_from(&mut items), ends: scope.input_from(&mut ends) };
        items.advance_to(self.0.first_epoch);
        ends.advance_to(self.0.first_epoch);
        let schedule = self.0.publication.parameters().epochs.schedule.clone();
        let fault = self.fault();
        (EpochInput { items, ends, schedule, clock: Clock::START, fault }, stream)
    }

    /// Runs `work` on every worker thread, which builds a dataflow and feeds it, then steps the
    /// workers until all is committed. Returns the last epoch committed.
    ///
    /// # Errors
    /// [`RunError::Fault`] with the reason of a fault. What was committed before stays committed.
    pub fn run(
        &self,
        workers: usize,
        work: impl Fn(&mut Worker, &Self) + Send + Sync + 'static,
    ) -> Result<u64, RunError> {
        let (publisher, fault) = (self.clone(), self.fault());
        execute(workers, None, &self.0.fault, move |worker| {
            work(worker, &publisher);
            while !fault.is_raised() && worker.step_or_park(Some(NAP)) {}
            // After a fault, timely must not wait for dataflows that never finish.
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
            0
        })?;
        match self.0.fault.reason() {
            Some(reason) => Err(RunError::Fault(reason.to_owned())),
            None => Ok(self.0.committed.load(Ordering::Relaxed)),
        }
    }
}

/// Shows a view the releases of earlier runs.
fn see_earlier(view: &mut View, first_epoch: u64, log: &Path) -> Result<(), Box<dyn Error>> {
    if first_epoch > 1 {
        let mut log = PublicReader::open(log)?;
        while view.next_epoch() < first_epoch
            && let Some(release) = log.next_frame()?
        {
            view.push(&release.values)?.for_each(drop);
        }
    }
    Ok(())
}

/// Items at or before the time of their epoch, and the last epoch once the input has ended.
pub struct EpochStream<'scope, T: Clone + 'static> {
    /// Items with the epochs that they join.
    pub items: StreamVec<'scope, u64, (u64, T)>,
    /// For [`Publish::publish`].
    pub ends: StreamVec<'scope, u64, u64>,
}

type Handle<T> = InputHandle<u64, CapacityContainerBuilder<Vec<T>>>;

/// One worker's input. Its clock closes epochs.
pub struct EpochInput<T: Clone + 'static> {
    items: Handle<(u64, T)>,
    ends: Handle<u64>,
    schedule: Schedule,
    clock: Clock,
    fault: Fault,
}

impl<T: Clone + 'static> EpochInput<T> {
    /// Moves the clock to a public time in microseconds since 1970, never back. Epochs whose time
    /// has passed are closed. With epochs by number of records, the clock counts items instead.
    pub fn advance(&mut self, time: i64) {
        self.clock.advance(time);
        self.close();
    }

    fn close(&mut self) {
        let oldest = self.schedule.oldest_open(self.clock);
        if oldest > *self.items.time() {
            self.items.advance_to(oldest);
            self.ends.advance_to(oldest);
        }
    }

    /// Sends an item with its event time in microseconds since 1970. Returns whether it counts: an
    /// item of no epoch, or of an epoch that was committed before, is left out.
    pub fn send(&mut self, event_time: i64, item: T) -> bool {
        let epoch = self.schedule.assign(event_time, self.clock).epoch();
        let counted = epoch.filter(|epoch| epoch >= self.items.time() && !self.fault.is_raised());
        if let Some(epoch) = counted {
            self.items.send((epoch, item));
        }
        self.clock.row += 1;
        self.close();
        counted.is_some()
    }

    /// Ends the input. The last epoch to release follows from the clock, not from the items.
    pub fn end(mut self) {
        self.ends.send(self.schedule.last_at_end(self.clock));
    }
}

/// Publishes records.
pub trait Publish<'scope> {
    /// Releases and commits every epoch, and returns it when it is in the public log. `ends`
    /// carries the last epoch to release, before all inputs close, and moves on with the records:
    /// its frontier is the clock.
    ///
    /// A record must come at a time not after its epoch; one of an epoch that is committed, or of a
    /// key that is not in the list, is left out. A record with another number of values, or without
    /// an entity where entities are protected, raises the fault. Only one dataflow can publish.
    fn publish(
        self,
        publisher: &Publisher,
        ends: StreamVec<'scope, u64, u64>,
    ) -> StreamVec<'scope, u64, ReleasedEpoch>;
}

impl<'scope> Publish<'scope> for StreamVec<'scope, u64, Record> {
    fn publish(
        self,
        publisher: &Publisher,
        ends: StreamVec<'scope, u64, u64>,
    ) -> StreamVec<'scope, u64, ReleasedEpoch> {
        let worker = self.scope().worker();
        let workers = (worker.index(), worker.peers());
        batches(self, publisher.wanted(), workers, publisher.fault()).publish(publisher, ends)
    }
}

/// Publishes batches of records, without an allocation for each. A batch with a record of a
/// committed epoch or of an unlisted key raises the fault, as does one whose fields differ in
/// length.
impl<'scope> Publish<'scope> for StreamVec<'scope, u64, Records> {
    fn publish(
        self,
        publisher: &Publisher,
        ends: StreamVec<'scope, u64, u64>,
    ) -> StreamVec<'scope, u64, ReleasedEpoch> {
        let OpenPublication { measurement, fault, committed, journal, .. } = &*publisher.0;
        let committed = Arc::clone(committed);
        let scope = self.scope();
        let log = if scope.worker().index() == 0 {
            let journal = journal.lock().unwrap_or_else(PoisonError::into_inner).take();
            if journal.is_none() {
                fault.raise("this publisher has published from another dataflow: open another one");
            }
            journal.map(|journal| Box::new(journal) as Box<dyn CommitLog<EpochExtra>>)
        } else {
            None
        };
        let (wanted, raised) = (publisher.wanted(), fault.clone());
        let records = self.flat_map(move |mut records| {
            if !wanted.fit(&records) {
                raised.raise("a batch of records does not fit the publication");
                return None;
            }
            wanted.scale(&mut records);
            Some(records)
        });
        let marks = Vec::new().to_stream(scope);
        let streams = moments::RecordStreams { records, marks, ends };
        moments::release(streams, publisher.wanted().has_entities, measurement, log, fault)
            .inspect(move |released| committed.store(released.epoch, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: i64 = 1440;

    /// Publishes a record a minute of the first days, from the first one on.
    fn publish(directory: &Path, days: i64) -> (u64, u64) {
        let builder = Pipeline::builder("minutes").column("x", 0.0, 1.0).keys("half", ["am", "pm"]);
        let pipeline = builder.epochs("1970-01-01", "1d", 4).guarantee(1.0, 1e-6).build().unwrap();
        let publisher = Publisher::open(&pipeline, directory).unwrap();
        let last = publisher.run(2, move |worker, publisher| {
            let mut input = worker.dataflow(|scope| {
                let (input, EpochStream { items, ends }) = publisher.input::<i64>(scope);
                let records = items.map(|(epoch, minute)| {
                    Record::new(epoch, u32::from(minute % MINUTES >= MINUTES / 2), [0.5])
                });
                records.publish(publisher, ends);
                input
            });
            for minute in (0..days * MINUTES).skip(worker.index()).step_by(worker.peers()) {
                input.advance(minute * 60_000_000);
                input.send(minute * 60_000_000, minute);
                worker.step();
            }
            input.end();
        });
        (publisher.first_epoch(), last.unwrap())
    }

    /// Counts of all keys up to the last epoch in the log.
    fn count(directory: &Path) -> f64 {
        let mut log = PublicReader::open(directory).unwrap();
        let publication = MomentPublication::from_header(log.header()).unwrap();
        let mut view = publication.view(&Workload::Prefix);
        let mut counts = 0.0;
        while let Some(release) = log.next_frame().unwrap() {
            counts = view.push(&release.values).unwrap().map(|moments| moments.count()).sum();
        }
        counts
    }

    /// A day counted twice or not at all is 1440 records. The noise of a count has a standard
    /// deviation below 60, so an error of 700 has a probability below 1e-9.
    #[test]
    fn items_of_committed_epochs_count_once_when_they_are_sent_again() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("state");
        assert_eq!(publish(&directory, 2), (1, 2));
        assert!((count(&directory) - 2.0 * MINUTES as f64).abs() < 700.0);
        assert_eq!(publish(&directory, 4), (3, 4));
        assert!((count(&directory) - 4.0 * MINUTES as f64).abs() < 700.0);
        assert_eq!(publish(&directory, 4), (5, 4));
    }

    #[test]
    fn an_input_that_is_dropped_without_its_end_is_a_fault() {
        let outer = tempfile::tempdir().unwrap();
        let builder = Pipeline::builder("lost").column("x", 0.0, 1.0).guarantee(1.0, 1e-6);
        let pipeline = builder.epochs("1970-01-01", "1d", 4).build().unwrap();
        let publisher = Publisher::open(&pipeline, outer.path().join("state")).unwrap();
        let ended = publisher.run(1, |worker, publisher| {
            worker.dataflow(|scope| {
                let (_, EpochStream { items, ends }) = publisher.input::<i64>(scope);
                items.map(|(epoch, _)| Record::new(epoch, 0, [0.5])).publish(publisher, ends);
            });
        });
        assert!(matches!(ended, Err(RunError::Fault(reason)) if reason.contains("last epoch")));
    }
}
