//! The source of a run: files and brokers from the recorded place, the standard input piped in again, or a journal.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::journal::Recorded;
use super::{Options, RunError};
use crate::pipeline::{Format, Input, Pipeline, Protocol};
use crate::source::{Connections, Control, Followed, Intake, Position, SourceError, SourceReader};
use crate::state::{Ingest, IngestPlace, Store};

/// Whoever wants to know which records are safe. The number is of all records that the state directory's journal has
/// ever made durable, headers and blank lines not counted. It is told once at the start, before anything is read, so that a
/// sender knows where to go on, and again after each sync or several. Each number is greater than the one before.
///
/// It is told by a thread of its own, so who takes long holds up nobody and misses numbers.
///
/// ```
/// use hushflow::runtime::Acknowledge;
///
/// let acknowledge = Acknowledge::to(|records| println!("{records} records are safe"));
/// ```
#[derive(Clone)]
pub struct Acknowledge(Arc<dyn Fn(u64) + Send + Sync>);

impl Acknowledge {
    /// Tells `listener`.
    pub fn to(listener: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Acknowledge(Arc::new(listener))
    }
}

impl fmt::Debug for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acknowledge")
    }
}

/// Which kind of place a position is. The numbers are in the private log.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Partition {
    /// Files that the pipeline lists, or the standard input.
    Source = 0,
    /// The ingest journal.
    Journal = 1,
    /// Files that are followed, by their numbers in the list.
    Followed = 2,
    /// A stream of Redis.
    Redis = 3,
    /// A stream of JetStream.
    Nats = 4,
    /// Row groups of the Parquet files that the pipeline lists.
    Parquet = 5,
}

impl Partition {
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        match &pipeline.source.input {
            _ if pipeline.source.journal => Partition::Journal,
            Input::Followed(_) => Partition::Followed,
            Input::Broker(broker) => match broker.protocol {
                Protocol::Redis => Partition::Redis,
                Protocol::Nats => Partition::Nats,
            },
            Input::Files(_) if pipeline.source.format == Format::Parquet => Partition::Parquet,
            _ => Partition::Source,
        }
    }
}

/// A source that is being taken into a journal.
pub(super) struct Taking {
    pub(super) ingest: Arc<Ingest>,
    intake: Intake,
    acknowledging: Vec<JoinHandle<()>>,
}

impl Taking {
    fn start(
        pipeline: &Pipeline,
        control: &Control,
        ingest: Arc<Ingest>,
        acknowledge: Option<Acknowledge>,
    ) -> io::Result<Self> {
        let mut acknowledging: Vec<_> = acknowledge
            .map(|acknowledge| telling(&ingest, move |records| (acknowledge.0)(records)))
            .into_iter()
            .collect();
        let intake = match &pipeline.source.input {
            Input::Socket(socket) => {
                let connections = Connections::open(socket, control)?;
                let peer = connections.peer();
                acknowledging.push(telling(&ingest, move |records| peer.tell(records)));
                Intake::serve(connections, &ingest, pipeline, control)
            }
            _ => {
                // Not through the library's own buffer, which would keep what it has read.
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                Intake::start(input, &ingest, pipeline, control)
            }
        };
        Ok(Taking { ingest, intake, acknowledging })
    }

    /// After an orderly end: what was counted is not kept, and all has been acknowledged. Gives the number of records that
    /// a disconnect has cut.
    pub(super) fn finish(self) -> Result<u64, RunError> {
        let torn = self.intake.torn();
        drop(self.intake);
        self.ingest.finish()?;
        for thread in self.acknowledging {
            // A listener that panics has told already.
            let _ = thread.join();
        }
        Ok(torn)
    }
}

/// A thread that tells each number of records that are safe.
fn telling(ingest: &Arc<Ingest>, tell: impl Fn(u64) + Send + 'static) -> JoinHandle<()> {
    let ingest = Arc::clone(ingest);
    thread::spawn(move || {
        let mut known = None;
        while let Some(records) = ingest.acknowledged(known) {
            tell(records);
            known = Some(records);
        }
    })
}

/// Opens the source where the last committed epoch has left it.
pub(super) fn source(
    pipeline: &Pipeline,
    store: &Store,
    recorded: Option<Recorded>,
    committed: u64,
    options: &Options,
) -> Result<(SourceReader, Option<Taking>), RunError> {
    let (control, partition) = (&options.control, Partition::of(pipeline));
    let before = recorded.map(|recorded| recorded.partition);
    let position = recorded.map_or(Position::START, |recorded| recorded.position);
    let kept_journal = before == Some(Partition::Journal as u32) || store.has_ingest()?;
    if partition == Partition::Journal {
        // What earlier runs read without a journal is behind; only their clock goes on.
        let in_journal = before == Some(Partition::Journal as u32);
        let position =
            if in_journal { position } else { Position { clock: position.clock, ..Position::START } };
        return journaled(pipeline, store, position, committed, options);
    }
    if kept_journal {
        return Err(RunError::JournalOff);
    }
    if before.is_some_and(|before| before != partition as u32) {
        return Err(RunError::OtherSource);
    }
    let reader = match &pipeline.source.input {
        Input::Followed(files) => {
            let reached = before.map(|_| position.file);
            let files = Followed::kept(files, pipeline.source.format, control, &options.state, reached)?;
            SourceReader::following(pipeline, files, control, position, committed)?
        }
        _ => SourceReader::controlled(pipeline, control, position, committed)?,
    };
    Ok((reader, None))
}

fn journaled(
    pipeline: &Pipeline,
    store: &Store,
    position: Position,
    committed: u64,
    options: &Options,
) -> Result<(SourceReader, Option<Taking>), RunError> {
    let name = match &pipeline.source.input {
        Input::Socket(socket) => socket.to_string(),
        _ => "<standard input>".into(),
    };
    let ingest = Arc::new(store.ingest(IngestPlace { session: position.file, offset: position.offset })?);
    let refused = |source| SourceError::Io { path: name.clone().into(), source };
    let acknowledge = options.acknowledge.clone();
    let taking =
        Taking::start(pipeline, &options.control, Arc::clone(&ingest), acknowledge).map_err(refused)?;
    let journal = (ingest, name.clone().into());
    let reader = SourceReader::journaled(pipeline, journal, &options.control, position, committed)?;
    Ok((reader, Some(taking)))
}
