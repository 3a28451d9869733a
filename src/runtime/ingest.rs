//! The source of a run: files from the recorded place, the standard input piped in again, or its journal.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::RunError;
use super::journal::Recorded;
use crate::pipeline::Pipeline;
use crate::source::{Intake, Position, SourceError, SourceReader};
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

/// A standard input that is being taken into a journal.
pub(super) struct Taking {
    pub(super) ingest: Arc<Ingest>,
    intake: Intake,
    acknowledging: Option<JoinHandle<()>>,
}

impl Taking {
    fn start(pipeline: &Pipeline, ingest: Arc<Ingest>, acknowledge: Option<Acknowledge>) -> io::Result<Self> {
        // Not through the library's own buffer, which would keep what it has read.
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let acknowledging = acknowledge.map(|acknowledge| {
            let ingest = Arc::clone(&ingest);
            thread::spawn(move || {
                let mut known = None;
                while let Some(records) = ingest.acknowledged(known) {
                    (acknowledge.0)(records);
                    known = Some(records);
                }
            })
        });
        let intake = Intake::start(input, &ingest, pipeline);
        Ok(Taking { ingest, intake, acknowledging })
    }

    /// After an orderly end: what was counted is not kept, and all has been acknowledged.
    pub(super) fn finish(self) -> Result<(), RunError> {
        drop(self.intake);
        self.ingest.finish()?;
        if let Some(thread) = self.acknowledging {
            // A listener that panics has told already.
            let _ = thread.join();
        }
        Ok(())
    }
}

/// Opens the source where the last committed epoch has left it.
pub(super) fn source(
    pipeline: &Pipeline,
    store: &Store,
    recorded: Recorded,
    committed: u64,
    acknowledge: Option<Acknowledge>,
) -> Result<(SourceReader, Option<Taking>), RunError> {
    let Recorded { position, in_journal } = recorded;
    if !pipeline.source.journal {
        if in_journal || store.has_ingest()? {
            return Err(RunError::JournalOff);
        }
        return Ok((SourceReader::resume(pipeline, position, committed)?, None));
    }
    // What earlier runs read without a journal is behind; only their clock goes on.
    let position = if in_journal { position } else { Position { clock: position.clock, ..Position::START } };
    let ingest = Arc::new(store.ingest(IngestPlace { session: position.file, offset: position.offset })?);
    let refused = |source| SourceError::Io { path: "<standard input>".into(), source };
    let taking = Taking::start(pipeline, Arc::clone(&ingest), acknowledge).map_err(refused)?;
    Ok((SourceReader::journaled(pipeline, ingest, position, committed)?, Some(taking)))
}
