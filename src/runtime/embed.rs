//! Publishing from your own timely dataflow.
//!
//! A [`Publisher`] does what a run does, without its source. It opens a state directory, pays the
//! ledger before the first release, and draws the noise from the operating system. It commits each
//! epoch to the private log and then publishes it in the public log. It resumes after the last
//! committed epoch.
//!
//! One dependency is enough. Without the default features the library has no command, no Parquet
//! and no plots; the prelude exports the version of timely to use:
//!
//! ```toml
//! [dependencies]
//! hushflow = { git = "https://github.com/hushflow/hushflow", default-features = false }
//! ```
//! or `path = "…"` in place of `git`. This is a complete program; a second start resumes it:
//!
//! ```
//! use hushflow::prelude::*;
//! use timely::dataflow::operators::{Inspect, vec::Map};
//!
//! #[derive(Clone)]
//! struct Flight { airport: u32, departure: i64, recorded: i64, delay: f64 }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let outer = tempfile::tempdir()?;
//! # std::env::set_current_dir(&outer)?;
//!     let pipeline = Pipeline::builder("delays")
//!         .column("delay", -60.0, 240.0)
//!         .keys("airport", ["EWR", "JFK", "LGA"])
//!         .epochs("2013-01-01T05:00:00Z", "1d", 4)
//!         .guarantee(1.0, 1e-6)
//!         .build()?;
//!     let publisher = Publisher::open(&pipeline, "delays-state")?;
//!     let last = publisher.run(2, |worker, publisher| {
//!         let mut flights = worker.dataflow(|scope| {
//!             let (input, EpochStream { items, ends }) = publisher.input::<Flight>(scope);
//!             let view = publisher.view(&Workload::Prefix);
//!             let records = items
//!                 .map(|(epoch, flight)| Record::new(epoch, flight.airport, [flight.delay]));
//!             let moments = records.publish(publisher, ends).view(view, publisher.fault());
//!             moments.inspect(|moments| println!("day {}: {} flights", moments.epoch, moments.count()));
//!             input
//!         });
//!         let start = 1_357_016_400_000_000; // microseconds since 1970
//!         for minute in (0..4 * 1440).skip(worker.index()).step_by(worker.peers()) {
//!             let (departure, delay) = (start + minute * 60_000_000, 5.0);
//!             let flight = Flight { airport: (minute % 3) as u32, departure, recorded: departure, delay };
//!             flights.advance(flight.recorded);
//!             flights.send(flight.departure, flight);
//!             worker.step();
//!         }
//!         flights.end();
//!     })?;
//!     println!("{last} days are published");
//! # assert_eq!((last, Publisher::open(&pipeline, "delays-state")?.first_epoch()), (4, 5));
//!     Ok(())
//! }
//! ```
//!
//! # Means, and people or devices
//! A view has moments in scaled units. The publication converts their density to the units of the
//! columns. If all records of an entity are protected together, each record names its entity:
//!
//! ```
//! # use hushflow::prelude::*;
//! # let outer = tempfile::tempdir()?;
//! # let directory = outer.path().join("state");
//! # let pipeline = Pipeline::builder("delays").column("delay", -60.0, 240.0);
//! # let pipeline = pipeline.epochs("2013-01-01", "1d", 4).guarantee(1.0, 1e-6);
//! let pipeline = pipeline.set("privacy", "unit", "entity").set("entity", "column", "aircraft");
//! # let pipeline = pipeline.set("entity", "participations", 4).build()?;
//! let record = Record::new(1, 0, [5.0]).of_entity(entity(b"N14228"));
//! # fn show(publisher: &Publisher, moments: &hushflow::mechanism::view::Moments) {
//! let publication = publisher.publication();
//! if let Ok(density) = moments.density().and_then(|density| publication.to_units(&density)) {
//!     let (mean, reach) = (density.mean[0], 1.96 * density.mean_noise[0]); // at 95 %
//!     println!("{}: {mean:.1} ± {reach:.1}", publication.key_name(moments.key));
//! }
//! # }
//! # Publisher::open(&pipeline, &directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the guarantee needs from a program
//! - *Bounds, keys and epochs are public* and don't come from the data.
//! - *The clock is public*: [`EpochInput::advance`] takes the times at which records became known,
//!   not those of private events.
//! - *Each record is sent once.* After a restart a program sends the same items with the same
//!   times, in the same order, all of them or from a [position](#where-to-resume) on. Items of
//!   committed epochs, those before [`Publisher::first_epoch`], are left out.
//! - *The end is announced*: [`EpochInput::end`]. An input that is dropped earlier looks like
//!   lost data, and ends the run by a fault.
//!
//! # Where to resume
//! A program that can read its input again from a position numbers its items. Each commit then
//! records, for every partition of the input, after which item a restart continues:
//!
//! ```
//! # use hushflow::prelude::*;
//! # use timely::dataflow::operators::vec::Map;
//! # let outer = tempfile::tempdir()?;
//! # let directory = outer.path().join("state");
//! # let pipeline = Pipeline::builder("delays").column("delay", -60.0, 240.0);
//! # let pipeline = pipeline.epochs("1970-01-01", "1d", 4).guarantee(1.0, 1e-6).build()?;
//! # fn read_after(_: Option<u64>) -> impl Iterator<Item = (u64, i64)> {
//! #     (0..4 * 1440).map(|minute: u64| (minute, minute as i64 * 60_000_000))
//! # }
//! let publisher = Publisher::open(&pipeline, &directory)?;
//! publisher.run(1, |worker, publisher| {
//!     let mut input = worker.dataflow(|scope| {
//!         let (input, EpochStream { items, ends }) = publisher.input_of::<i64>(scope, 0);
//!         items.map(|(epoch, _)| Record::new(epoch, 0, [5.0])).publish(publisher, ends);
//!         input
//!     });
//!     for (position, time) in read_after(publisher.resume_after(0)) {
//!         input.advance(time);
//!         input.send_at(position, time, time);
//!         worker.step();
//!     }
//!     input.end();
//! })?;
//! # drop(publisher);
//! let publisher = Publisher::open(&pipeline, &directory)?;
//! assert_eq!(publisher.resume_after(0), Some(4 * 1440 - 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod records;
#[cfg(test)]
mod tests;

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
use super::cuts::EntityCuts;
use super::journal::{EpochExtra, Journal, RunStart, open_store};
use super::positions::{PARTITIONS, PartitionPositions, PartitionReader, last_item};
use super::{CHECKPOINT_INTERVAL, PARK_TIMEOUT, RunError, RunOptions, moments};
use crate::pipeline::{KeyBounds, Pipeline};
use crate::publication::{MomentPublication, Publication, PublicationError};
use crate::state::PublicReader;

/// The version of timely to use: streams of another version have other types.
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
    positions: PartitionPositions,
    /// Taken by the dataflow that publishes.
    journal: Mutex<Option<Journal>>,
}

impl Publisher {
    /// Opens a state directory for the publication that a pipeline describes, and finds the epoch
    /// after the last one committed. The pipeline's sources, views and sinks are not used. The
    /// ledger must have room; the charge is entered before the first release.
    ///
    /// # Errors
    /// [`RunError`]: invalid parameters, a ledger without room, another run that holds the
    /// directory, damage, or a pipeline that trains, discovers keys, or estimates windows (these
    /// need their source).
    pub fn open(pipeline: &Pipeline, state: impl Into<PathBuf>) -> Result<Self, RunError> {
        Self::open_with(pipeline, &RunOptions::new(1, state))
    }

    /// Opens the state directory of these options, with their ledgers and metrics.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(pipeline: &Pipeline, options: &RunOptions) -> Result<Self, RunError> {
        if pipeline.training.is_some() {
            return Err(RunError::Trains);
        }
        let noise = pipeline.noise;
        // Nothing can be released without entropy, so check before anything is written.
        noise.generator(0, 0).map_err(|error| RunError::Start(error.to_string()))?;
        if pipeline.discovery().is_some() {
            return Err(PublicationError::EmbeddedDiscovery.into());
        }
        let publication = Publication::of_pipeline(pipeline, &options.state, &mut |_| ())?;
        let moments = publication.clone().into_moments()?;
        let (store, recovered) = open_store(pipeline, &publication, options)?;
        let positions = PartitionPositions::recover(&recovered.positions).ok_or(RunError::Checkpoint)?;
        let (start, histories) = RunStart::recover(&moments, recovered, noise)?;
        let journal = Journal::new(store, (Vec::new(), None), histories, Arc::clone(&options.metrics));
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
            journal: Mutex::new(Some(journal.embedded(positions.clone()))),
            positions,
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

    /// Returns the position after which to read a partition for [`input_of`](Self::input_of).
    /// All items up to it are durable or were left out; the next one is the first that no
    /// committed epoch holds. `None` if the partition is to be read from its beginning.
    pub fn resume_after(&self, partition: u32) -> Option<u64> {
        last_item(&self.0.positions.resume(partition))
    }

    fn wanted(&self) -> WantedRecords {
        let OpenPublication { publication, first_epoch, .. } = &*self.0;
        WantedRecords {
            first_epoch: *first_epoch,
            keys: publication.keys(),
            columns: publication.clipper().record_width(),
            has_entities: publication.parameters().entity.is_some(),
            bounds: KeyBounds::new(&publication.parameters().columns, publication.parameters().key.as_ref()),
        }
    }

    /// The flag that an operator raises if it can't continue. All workers of
    /// [`run`](Self::run) then stop.
    pub fn fault(&self) -> Fault {
        self.0.fault.clone()
    }

    /// Returns a function that makes a view, which has seen the releases of earlier runs.
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
        self.input_with(scope, Clock::START, None)
    }

    /// Adds an input for the items of a partition. Each is sent with its position, by
    /// [`EpochInput::send_at`], from the first one after [`Self::resume_after`] on. The clock
    /// continues from there. A partition has one input, on any worker, and a number below 2²⁴.
    ///
    /// Another input of the same partition, or a larger number, raises the fault.
    pub fn input_of<'scope, T: Clone + 'static>(
        &self,
        scope: Scope<'scope, u64>,
        partition: u32,
    ) -> (EpochInput<T>, EpochStream<'scope, T>) {
        let resume = self.0.positions.resume(partition);
        let own = (partition < PARTITIONS).then(|| self.0.positions.read(partition, self.0.first_epoch - 1));
        let reader = own.flatten();
        if reader.is_none() {
            self.0.fault.raise("a partition has one input, and a number below 2²⁴");
        }
        self.input_with(scope, resume.clock, reader)
    }

    fn input_with<'scope, T: Clone + 'static>(
        &self,
        scope: Scope<'scope, u64>,
        clock: Clock,
        reader: Option<PartitionReader>,
    ) -> (EpochInput<T>, EpochStream<'scope, T>) {
        let (mut items, mut ends) = (InputHandle::new(), InputHandle::new());
        let stream = EpochStream { items: scope.input_from(&mut items), ends: scope.input_from(&mut ends) };
        items.advance_to(self.0.first_epoch);
        ends.advance_to(self.0.first_epoch);
        let schedule = self.0.publication.parameters().epochs.schedule.clone();
        let fault = self.fault();
        (EpochInput { items, ends, schedule, clock, reader, fault }, stream)
    }

    /// Runs `work`, which builds a dataflow and feeds it, on every worker thread. Then steps the
    /// workers until all epochs are committed. Returns the last one.
    ///
    /// # Errors
    /// [`RunError::Fault`] with the reason of a fault. Committed epochs stay committed.
    pub fn run(
        &self,
        workers: usize,
        work: impl Fn(&mut Worker, &Self) + Send + Sync + 'static,
    ) -> Result<u64, RunError> {
        let (publisher, fault) = (self.clone(), self.fault());
        execute(workers, None, &self.0.fault, move |worker| {
            work(worker, &publisher);
            while !fault.is_raised() && worker.step_or_park(Some(PARK_TIMEOUT)) {}
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

/// Passes the releases of earlier runs to a view.
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

/// Items, at dataflow times up to their epoch, and the last epoch once the input has ended.
pub struct EpochStream<'scope, T: Clone + 'static> {
    /// Items with the epochs that they join.
    pub items: StreamVec<'scope, u64, (u64, T)>,
    /// The last epoch to release, for [`Publish::publish`].
    pub ends: StreamVec<'scope, u64, u64>,
}

type Handle<T> = InputHandle<u64, CapacityContainerBuilder<Vec<T>>>;

/// One worker's input. Its clock closes epochs.
pub struct EpochInput<T: Clone + 'static> {
    items: Handle<(u64, T)>,
    ends: Handle<u64>,
    schedule: Schedule,
    clock: Clock,
    /// Records the positions of the items, if they have positions.
    reader: Option<PartitionReader>,
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
            if let Some(reader) = &mut self.reader {
                reader.close(oldest - 1, self.clock);
            }
            self.items.advance_to(oldest);
            self.ends.advance_to(oldest);
        }
    }

    /// Sends an item with its event time in microseconds since 1970. Returns whether the item
    /// counts: an item of no epoch, or of a committed epoch, is left out. Items of an
    /// [`input_of`](Publisher::input_of) are sent with [`send_at`](Self::send_at) instead.
    pub fn send(&mut self, event_time: i64, item: T) -> bool {
        if self.reader.is_some() {
            self.fault.raise("an item of a partition was sent without its position: use send_at");
        }
        self.send_counted(None, event_time, item)
    }

    /// Sends an item as [`send`](Self::send) does, with its position in the partition: any number
    /// by which the program can find the next item again.
    pub fn send_at(&mut self, position: u64, event_time: i64, item: T) -> bool {
        self.send_counted(Some(position), event_time, item)
    }

    fn send_counted(&mut self, position: Option<u64>, event_time: i64, item: T) -> bool {
        let epoch = self.schedule.assign(event_time, self.clock).epoch();
        let counted = epoch.filter(|epoch| epoch >= self.items.time() && !self.fault.is_raised());
        if let (Some(reader), Some(position)) = (&mut self.reader, position) {
            reader.item(counted, position, self.clock);
        }
        if let Some(epoch) = counted {
            self.items.send((epoch, item));
        }
        self.clock.row += 1;
        self.close();
        counted.is_some()
    }

    /// Ends the input. The last epoch to release follows from the clock, not from the items.
    pub fn end(mut self) {
        let last = self.schedule.last_at_end(self.clock);
        if let Some(reader) = &mut self.reader {
            reader.close(u64::MAX, Clock { closed: last, ..self.clock });
        }
        self.ends.send(last);
    }
}

/// Publishes records.
pub trait Publish<'scope> {
    /// Releases and commits every epoch, and emits it once it is in the public log. `ends` carries
    /// the last epoch to release before all inputs close. It advances with the records: its
    /// frontier is the clock.
    ///
    /// A record must come at a dataflow time not after its epoch. A record of a committed epoch, or
    /// of an unlisted key, is left out. A record with another number of values, or without an
    /// entity where entities are protected, raises the fault. Only one dataflow can publish.
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
        let cuts = publisher.wanted().has_entities.then(EntityCuts::default);
        moments::release(streams, (cuts.as_ref(), None), measurement, log, fault)
            .inspect(move |released| committed.store(released.epoch, Ordering::Relaxed))
    }
}
