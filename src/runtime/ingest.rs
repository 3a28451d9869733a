//! Opens the sources of a run: files and brokers at the recorded position, standard input piped in
//! again, or a journal.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::journal::Recorded;
use super::{Options, RunError};
use crate::connect::tag;
use crate::control::Control;
use crate::pipeline::{Format, Input, Pipeline, Source};
use crate::source::{Connections, Followed, Intake, Position, SourceError, SourceReader};
use crate::state::{Ingest, IngestPlace, Store};

/// A listener for the number of safe records. It counts all records that the state directory's
/// journal has ever made durable, without headers and blank lines. The listener is called once at
/// the start, before anything is read, so that a sender knows where to continue, and again after
/// one or more syncs. Each number is greater than the one before.
///
/// Calls are made on a separate thread, so a slow listener delays nothing and misses numbers.
///
/// ```
/// use hushflow::runtime::Acknowledge;
///
/// let acknowledge = Acknowledge::to(|records| println!("{records} records are safe"));
/// ```
#[derive(Clone)]
pub struct Acknowledge(Arc<dyn Fn(u64) + Send + Sync>);

impl Acknowledge {
    /// Calls `listener`.
    pub fn to(listener: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Acknowledge(Arc::new(listener))
    }
}

impl fmt::Debug for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acknowledge")
    }
}

/// Source tag stored with each position: the kind of position in the low byte. The bits above it
/// are 0, or those that tell one stream from another.
pub(super) fn partition_of(source: &Source) -> u32 {
    let kind = match &source.input {
        _ if source.journal => tag::JOURNAL,
        Input::Stream(stream) => return stream.tag(),
        Input::Followed(_) => tag::FOLLOWED,
        Input::Files(_) if source.format == Format::Parquet => tag::PARQUET,
        _ => tag::FILES,
    };
    kind.into()
}

/// Checks that a position with the source tag `recorded` is valid for a source with the tag `now`.
fn is_position_in(now: u32, recorded: u32) -> Result<(), RunError> {
    match now ^ recorded {
        0 => Ok(()),
        differing if differing as u8 == 0 => Err(RunError::OtherStream),
        _ => Err(RunError::OtherSource),
    }
}

/// A source being copied into a journal.
pub(super) struct Taking {
    pub(super) ingest: Arc<Ingest>,
    intake: Intake,
    acknowledging: Vec<JoinHandle<()>>,
}

impl Taking {
    fn start(
        (pipeline, source): (&Pipeline, &Source),
        control: &Control,
        ingest: Arc<Ingest>,
        acknowledge: Option<Acknowledge>,
    ) -> io::Result<Self> {
        control.begin();
        let mut acknowledging: Vec<_> = acknowledge
            .map(|acknowledge| telling(&ingest, move |records| (acknowledge.0)(records)))
            .transpose()?
            .into_iter()
            .collect();
        let intake = match &source.input {
            Input::Socket(socket) => {
                let connections = Connections::open(socket, control)?;
                let peer = connections.peer();
                acknowledging.push(telling(&ingest, move |records| peer.tell(records))?);
                Intake::serve(connections, &ingest, (pipeline, source), control)
            }
            _ => {
                // Not through the standard library's buffer, which would keep the bytes it has
                // read.
                let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                Intake::start(input, &ingest, (pipeline, source), control)
            }
        };
        Ok(Taking { ingest, intake, acknowledging })
    }

    /// Ends in good order: counted records are deleted and all have been acknowledged. Returns the
    /// number of records cut by a disconnect.
    pub(super) fn finish(self) -> Result<u64, RunError> {
        let torn = self.intake.torn();
        drop(self.intake);
        self.ingest.finish()?;
        for thread in self.acknowledging {
            // A panicking listener has already printed its message.
            let _ = thread.join();
        }
        Ok(torn)
    }
}

/// Starts a thread that calls `tell` with each number of safe records.
fn telling(ingest: &Arc<Ingest>, tell: impl Fn(u64) + Send + 'static) -> io::Result<JoinHandle<()>> {
    let ingest = Arc::clone(ingest);
    thread::Builder::new().spawn(move || {
        let mut known = None;
        while let Some(records) = ingest.acknowledged(known) {
            tell(records);
            known = Some(records);
        }
    })
}

/// Readers of a pipeline's sources, and the thread that copies one of them into a journal.
pub(super) type Opened = (Vec<SourceReader>, Option<Taking>);

/// Opens the sources at the positions of the last committed epoch.
pub(super) fn sources(
    pipeline: &Pipeline,
    store: &Store,
    recorded: Option<Vec<Recorded>>,
    committed: u64,
    options: &Options,
) -> Result<Opened, RunError> {
    let journaled = pipeline.sources.iter().any(|source| source.journal);
    let kept = recorded.iter().flatten().any(Recorded::is_journal) || store.has_ingest()?;
    if kept && !journaled {
        return Err(RunError::JournalOff);
    }
    let opening = Opening { pipeline, store, committed, options };
    let (mut readers, mut taking) = (Vec::new(), None);
    for (number, source) in pipeline.sources.iter().enumerate() {
        let recorded = recorded.as_ref().and_then(|recorded| recorded.get(number).copied());
        let late_from = recorded.map_or(u64::MAX, |recorded| recorded.resume.late_from);
        let (reader, taken) = opening.source(source, number, recorded)?;
        readers.push(reader.among((number as u64, pipeline.sources.len() as u64), late_from));
        taking = taking.or(taken);
    }
    Ok((readers, taking))
}

/// Inputs needed to open a source.
struct Opening<'a> {
    pipeline: &'a Pipeline,
    store: &'a Store,
    committed: u64,
    options: &'a Options,
}

impl Opening<'_> {
    fn source(
        &self,
        source: &Source,
        number: usize,
        recorded: Option<Recorded>,
    ) -> Result<(SourceReader, Option<Taking>), RunError> {
        let (control, committed) = (&self.options.control, self.committed);
        let position = recorded.map_or(Position::START, |Recorded { resume, .. }| resume.position);
        if source.journal {
            // Records read by earlier runs without a journal are past; only their clock continues.
            let in_journal = recorded.as_ref().is_some_and(Recorded::is_journal);
            let position =
                if in_journal { position } else { Position { clock: position.clock, ..Position::START } };
            return self.journaled(source, position);
        }
        recorded.map_or(Ok(()), |recorded| is_position_in(partition_of(source), recorded.partition))?;
        let read = (self.pipeline, source);
        let reader = match &source.input {
            Input::Followed(files) => {
                let reached = recorded.map(|_| position.file);
                let list = if self.pipeline.has_several_sources() { number as u64 + 1 } else { 0 };
                let kept = self.store.followed(list, reached)?;
                let files = Followed::kept(files, source.format, control, kept);
                SourceReader::following(read, files, control, position, committed)?
            }
            _ => SourceReader::controlled(read, control, position, committed)?,
        };
        Ok((reader, None))
    }

    fn journaled(
        &self,
        source: &Source,
        position: Position,
    ) -> Result<(SourceReader, Option<Taking>), RunError> {
        let name = match &source.input {
            Input::Socket(socket) => socket.to_string(),
            _ => "<standard input>".into(),
        };
        let Options { control, acknowledge, .. } = self.options;
        let place = IngestPlace { session: position.file, offset: position.offset };
        let ingest = Arc::new(self.store.ingest(place, source.journal_limit)?);
        let refused = |source| SourceError::Io { path: name.clone().into(), source };
        let read = (self.pipeline, source);
        let taking =
            Taking::start(read, control, Arc::clone(&ingest), acknowledge.clone()).map_err(refused)?;
        let journal = (ingest, name.clone().into());
        let reader = SourceReader::journaled(read, journal, control, position, self.committed)?;
        Ok((reader, Some(taking)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_of_its_own_kind_and_stream_alone() {
        let (file, one, other) = (0, 0x1203, 0x3403);
        for tag in [file, one, other] {
            assert!(is_position_in(tag, tag).is_ok());
        }
        for (now, recorded) in [(file, one), (one, file), (one, 0x1204)] {
            assert!(matches!(is_position_in(now, recorded), Err(RunError::OtherSource)));
        }
        for (now, recorded) in [(one, other), (one, 3), (3, one)] {
            assert!(matches!(is_position_in(now, recorded), Err(RunError::OtherStream)));
        }
    }
}
