//! A publication whose records come from Python: the dataflow of `hushflow run` without its source,
//! on its own threads.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hushflow::ledger::LedgerHome;
use hushflow::operators::{Fault, Records};
use hushflow::runtime::embed::timely::container::CapacityContainerBuilder;
use hushflow::runtime::embed::timely::dataflow::InputHandle;
use hushflow::runtime::embed::timely::dataflow::operators::{Input, Inspect};
use hushflow::runtime::embed::timely::worker::Worker;
use hushflow::runtime::embed::{Publish, Publisher};
use hushflow::runtime::{RunError, RunOptions};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::batches::{Batch, BatchRules, CHUNK, ChunkPool, Columns, KEPT_CHUNKS};
use crate::errors::Failure;
use crate::process::Owner;
use crate::process::{SIGNALS, interruptible};
use crate::runs::{Pipeline, state_directory};

/// Reason of the fault that ends a session before its horizon.
const CLOSED: &str = "the session was closed";

/// Capacity of a worker's queue of commands: those of a million rows. A faster caller waits.
const WAITING: usize = KEPT_CHUNKS;

/// Number of chunks that are made before other threads of Python run: about a millisecond's.
const PIECE_CHUNKS: usize = 16;

/// Longest sleep of a worker before it checks for a fault.
const PARK_TIMEOUT: Duration = Duration::from_millis(50);

type Handle<T> = InputHandle<u64, CapacityContainerBuilder<Vec<T>>>;

/// A command to a worker.
enum Command {
    /// Takes records of open epochs.
    Records(Records),
    /// Closes all epochs before this one, and waits until they are committed.
    Close(u64),
    /// Ends after this epoch.
    End(u64),
}

/// Progress of the workers, as the caller sees it.
#[derive(Default)]
struct Progress {
    committed: u64,
    /// How the dataflow ended, if it has.
    ended: Option<Result<(), Failure>>,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit(&self, epoch: u64) {
        let mut progress = self.progress();
        progress.committed = progress.committed.max(epoch);
        self.changed.notify_all();
    }

    fn end(&self, ended: Result<(), Failure>) {
        self.progress().ended.get_or_insert(ended);
        self.changed.notify_all();
    }

    /// Waits a moment until an epoch is committed. Returns whether it is.
    fn wait(&self, epoch: u64) -> Result<bool, Failure> {
        let waits = |progress: &mut Progress| progress.committed < epoch && progress.ended.is_none();
        let (progress, _) = self
            .changed
            .wait_timeout_while(self.progress(), SIGNALS, waits)
            .unwrap_or_else(PoisonError::into_inner);
        match &progress.ended {
            _ if progress.committed >= epoch => Ok(true),
            Some(ended) => Err(ended.clone().err().unwrap_or_else(closed)),
            None => Ok(false),
        }
    }
}

/// Reports the end of the dataflow even if its thread panics.
struct EndReport(Arc<Shared>);

impl Drop for EndReport {
    fn drop(&mut self) {
        self.0.end(Err(Failure::new("RunError", "the dataflow ended unexpectedly: this is a bug")));
    }
}

fn closed() -> Failure {
    Failure::new("RunError", "it is closed: open it again to continue after the last committed epoch")
}

/// The caller's end of the dataflow.
struct Open {
    senders: Vec<SyncSender<Command>>,
    /// The oldest open epoch.
    epoch: u64,
    /// Number of rows so far.
    position: u64,
    /// Number of chunks so far, which the workers take in turn.
    chunks: usize,
    thread: Option<JoinHandle<()>>,
}

impl Open {
    /// Lets the threads end, and waits for them.
    fn end(&mut self) {
        self.senders.clear();
        // A panic was reported by its thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A publication that takes records from Python.
#[pyclass(frozen, module = "hushflow._hushflow")]
pub(crate) struct Session {
    rules: BatchRules,
    pool: ChunkPool,
    open: Mutex<Open>,
    shared: Arc<Shared>,
    /// The process that opened it: its threads don't exist in a fork.
    owner: Owner,
}

impl Session {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The failure that has ended the dataflow.
    fn failure(&self) -> Failure {
        let ended = self.shared.progress().ended.clone();
        ended.and_then(Result::err).unwrap_or_else(closed)
    }

    /// The failure that has ended the dataflow, or that all epochs are published.
    fn finished(&self) -> Failure {
        let (ended, horizon) = (self.shared.progress().ended.clone(), self.rules.horizon());
        let message = format!("all {horizon} epochs are published: a longer stream needs a new publication");
        ended.and_then(Result::err).unwrap_or_else(|| Failure::new("RunError", message))
    }

    /// Sends the records of a batch whose rows are all plain, a few chunks at a time: then they are
    /// still in a processor's cache. Returns false, and sends nothing, for any other batch.
    ///
    /// Other threads of Python run after each piece. If one of them makes a value of the batch
    /// unusable meanwhile, the publication ends, because what was sent can't be taken back.
    fn send_plain(&self, py: Python<'_>, columns: &Columns<'_>) -> PyResult<bool> {
        let mut open = self.open.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let rows = self.rules.plain_rows(columns, || py.detach(|| ()))?;
        let Some(rows) = rows else { return Ok(false) };
        let open = &mut *open;
        self.check_open(open)?;
        open.position += rows as u64;
        let mut starts = (0..rows).step_by(CHUNK);
        loop {
            let piece = starts.by_ref().take(PIECE_CHUNKS);
            let made = piece.map(|start| self.rules.chunk_of(columns, start, open.epoch, &self.pool));
            let made = made.collect::<Result<Vec<_>, _>>().inspect_err(|_| open.senders.clear())?;
            if made.is_empty() {
                return Ok(true);
            }
            py.detach(|| made.into_iter().try_for_each(|records| self.send_chunk(open, records)))?;
        }
    }

    /// Sends records to the worker whose turn it is.
    fn send_chunk(&self, open: &mut Open, records: Records) -> Result<(), Failure> {
        let worker = open.chunks % open.senders.len();
        open.chunks += 1;
        open.senders[worker].send(Command::Records(records)).map_err(|_| self.failure())
    }

    /// Whether it takes records.
    fn check_open(&self, open: &Open) -> Result<(), Failure> {
        if open.epoch > self.rules.horizon() {
            return Err(self.finished());
        }
        if open.senders.is_empty() { Err(self.failure()) } else { Ok(()) }
    }

    /// Sends the records of a batch. Returns the last epoch that they have filled.
    fn send(&self, batch: Batch) -> Result<Option<u64>, Failure> {
        let rows = batch.rows as u64;
        let mut open = self.open();
        self.check_open(&open)?;
        let chunks = self.rules.records(batch, open.epoch, open.position)?;
        open.position += rows;
        for records in chunks.into_iter().filter(|records| !records.is_empty()) {
            self.send_chunk(&mut open, records)?;
        }
        let Some(epoch_rows) = self.rules.epoch_rows() else { return Ok(None) };
        let filled = (open.position / epoch_rows.max(1)).min(self.rules.horizon());
        if filled < open.epoch {
            return Ok(None);
        }
        self.close_until(&mut open, filled)?;
        Ok(Some(filled))
    }

    /// Closes the epochs up to this one.
    fn close_until(&self, open: &mut Open, epoch: u64) -> Result<(), Failure> {
        let last = epoch == self.rules.horizon();
        for sender in &open.senders {
            let command = if last { Command::End(epoch) } else { Command::Close(epoch + 1) };
            sender.send(command).map_err(|_| self.failure())?;
        }
        open.epoch = epoch + 1;
        Ok(())
    }

    /// Closes the oldest open epoch and returns it.
    fn close_oldest(&self) -> Result<u64, Failure> {
        if let Some(rows) = self.rules.epoch_rows() {
            return Err(Failure::new("RunError", format!("epochs of {rows} rows close by themselves")));
        }
        let mut open = self.open();
        self.check_open(&open)?;
        let epoch = open.epoch;
        self.close_until(&mut open, epoch)?;
        Ok(epoch)
    }

    /// Waits until an epoch is durable and published.
    fn wait(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        while !py.detach(|| self.shared.wait(epoch))? {
            py.check_signals()?;
        }
        if epoch == self.rules.horizon() {
            py.detach(|| self.open().end());
        }
        Ok(())
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (pipeline, *, state = None, workers = 1))]
    fn new(
        py: Python<'_>,
        pipeline: PyRef<'_, Pipeline>,
        state: Option<PathBuf>,
        workers: usize,
    ) -> PyResult<Self> {
        if !(1..=256).contains(&workers) {
            return Err(Failure::parameter(format!("workers: found {workers}, expected 1 to 256")).into());
        }
        let pipeline = pipeline.0.clone();
        let rules = BatchRules::new(&pipeline)?;
        let state = state_directory(&pipeline, state)?;
        let work = move || {
            let ledgers = LedgerHome::find()?;
            Ok(Publisher::open_with(&pipeline, &RunOptions { ledgers, ..RunOptions::new(workers, state) })?)
        };
        let publisher = interruptible(py, work, || (), true)?;
        let epoch = publisher.first_epoch();
        let shared = Arc::new(Shared::default());
        shared.commit(epoch - 1);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| sync_channel(WAITING)).unzip();
        let (reported, pool) = (Arc::clone(&shared), ChunkPool::default());
        let emptied = pool.clone();
        let publish = move || {
            let report = EndReport(reported);
            let ended = publish(&publisher, receivers, &report.0, &emptied);
            drop(publisher);
            report.0.end(ended);
        };
        let thread = thread::Builder::new().name("hushflow publish".into()).spawn(publish);
        let thread = thread
            .map_err(|error| Failure::new("RunError", format!("no thread could be started: {error}")))?;
        // If the number of rows determines epochs, the rows of published epochs have been counted.
        let position = (epoch - 1).saturating_mul(rules.epoch_rows().unwrap_or(0));
        let open = Open { senders, epoch, position, chunks: 0, thread: Some(thread) };
        Ok(Session { rules, pool, open: Mutex::new(open), shared, owner: Owner::this_process() })
    }

    /// Takes a batch of equally long columns, the numbers of its keys, its event times in
    /// microseconds since 1970 and the names of its entities.
    #[pyo3(signature = (columns, *, keys = None, times = None, entities = None))]
    fn push(
        &self,
        py: Python<'_>,
        columns: Vec<PyReadonlyArray1<'_, f64>>,
        keys: Option<PyReadonlyArray1<'_, u32>>,
        times: Option<PyReadonlyArray1<'_, i64>>,
        entities: Option<Vec<String>>,
    ) -> PyResult<()> {
        self.owner.check("publication")?;
        let columns = Columns {
            values: columns.iter().map(PyReadonlyArray1::as_array).collect(),
            keys: keys.as_ref().map(PyReadonlyArray1::as_array),
            times: times.as_ref().map(PyReadonlyArray1::as_array),
            entities,
        };
        if self.send_plain(py, &columns)? {
            return Ok(());
        }
        // Copied before the lock is released: another thread may change the arrays.
        let batch = self.rules.copy(columns, &self.pool)?;
        match py.detach(|| self.send(batch))? {
            Some(epoch) => self.wait(py, epoch),
            None => Ok(()),
        }
    }

    /// Closes the oldest open epoch. Returns it once it is durable and published.
    fn close_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.owner.check("publication")?;
        let epoch = py.detach(|| self.close_oldest())?;
        self.wait(py, epoch)?;
        Ok(epoch)
    }

    /// Ends the session and unlocks the directory. Records of the open epoch are forgotten.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check("publication")?;
        py.detach(|| self.open().end());
        Ok(())
    }

    /// The oldest open epoch.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.owner.check("publication")?;
        Ok(py.detach(|| self.open().epoch))
    }

    #[getter]
    fn committed(&self) -> PyResult<u64> {
        self.owner.check("publication")?;
        Ok(self.shared.progress().committed)
    }

    #[getter]
    fn horizon(&self) -> u64 {
        self.rules.horizon()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a fork there is no thread to wait for.
        if self.owner.is_this_process() {
            Python::attach(|py| py.detach(|| self.open().end()));
        }
    }
}

/// Publishes until the horizon, a fault, or the end of the commands.
fn publish(
    publisher: &Publisher,
    receivers: Vec<Receiver<Command>>,
    shared: &Arc<Shared>,
    pool: &ChunkPool,
) -> Result<(), Failure> {
    let workers = receivers.len();
    let receivers: Vec<_> = receivers.into_iter().map(|receiver| Mutex::new(Some(receiver))).collect();
    let (shared, pool) = (Arc::clone(shared), pool.clone());
    let ended = publisher.run(workers, move |worker, publisher| {
        let receiver = receivers[worker.index()].lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(receiver) = receiver {
            work(worker, publisher, &receiver, (&shared, &pool));
        }
    });
    match ended {
        Err(RunError::Fault(reason)) if reason == CLOSED => Ok(()),
        ended => Ok(ended.map(drop)?),
    }
}

/// Runs one worker: builds its dataflow and carries out the commands.
fn work(
    worker: &mut Worker,
    publisher: &Publisher,
    commands: &Receiver<Command>,
    (shared, pool): (&Arc<Shared>, &ChunkPool),
) {
    let fault: Fault = publisher.fault();
    let (mut records, mut ends) = (Handle::<Records>::new(), Handle::<u64>::new());
    worker.dataflow(|scope| {
        let (stream, end) = (scope.input_from(&mut records), scope.input_from(&mut ends));
        let shared = Arc::clone(shared);
        stream.publish(publisher, end).inspect(move |released| shared.commit(released.epoch));
    });
    records.advance_to(publisher.first_epoch());
    ends.advance_to(publisher.first_epoch());
    while !fault.is_raised() {
        match commands.recv() {
            Ok(Command::Records(mut batch)) => {
                // The caller's memory goes back to it. The copy stays in this processor's cache.
                let values = batch.values.clone();
                pool.give(std::mem::replace(&mut batch.values, values));
                records.send(batch);
                records.flush();
                worker.step();
            }
            Ok(Command::Close(next)) => {
                records.advance_to(next);
                ends.advance_to(next);
                while !fault.is_raised() && shared.progress().committed + 1 < next {
                    worker.step_or_park(Some(PARK_TIMEOUT));
                }
            }
            Ok(Command::End(last)) => {
                ends.send(last);
                return;
            }
            Err(_) => fault.raise(CLOSED),
        }
    }
}
