//! Opens the sources of a run: files and brokers at the recorded position, standard input from its
//! beginning, or a journal.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::resume::{TaggedPosition, last_file};
use super::{RunError, RunOptions};
use crate::connect::journal::{Intake, JournalSession, JournalSessions};
use crate::connect::{CommitListener, FileList, MAX_PARTITIONS, Partitions};
use crate::control::Control;
use crate::pipeline::{Pipeline, Source};
use crate::source::{ResumePoint, SourceError, SourceReader, shape};
use crate::state::{FollowedList, Position, Store};

/// A listener for the number of durable records: all that the state directory's journal has ever
/// synced, without headers and blank lines. The listener is called once at the start, before
/// anything is read, so that a sender knows where to continue, and again after one or more syncs.
/// Each number is greater than the one before.
///
/// Calls are made on a separate thread, so a slow listener delays nothing, but may miss numbers.
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

/// Checks that a position with the source tag `recorded` is valid for a source with the tag `now`.
fn check_source_tag(now: u32, recorded: u32) -> Result<(), RunError> {
    match now ^ recorded {
        0 => Ok(()),
        differing if differing as u8 == 0 => Err(RunError::OtherStream),
        _ => Err(RunError::OtherSource),
    }
}

/// Readers of a pipeline's sources, and the threads that copy one source into a journal.
pub(super) type OpenSources = (Vec<SourceReaders>, Option<Intake>);

/// The readers of a source: one, or one for each partition.
pub(super) struct SourceReaders {
    pub(super) readers: Vec<SourceReader>,
    /// Partitions of the source, if it has any. More may be found later.
    pub(super) partitions: Option<Arc<dyn Partitions>>,
    /// The list of its files, if the state directory keeps one.
    pub(super) list: Option<Arc<dyn FileList>>,
}

impl SourceReaders {
    /// Notes that an earlier run has judged the rows up to the end of this epoch.
    pub(super) fn judged_through(self, epoch: u64) -> Self {
        let readers = self.readers.into_iter().map(|reader| reader.judged_through(epoch)).collect();
        SourceReaders { readers, ..self }
    }

    /// Makes the readers read up to `rows` rows, even if the last epoch has closed.
    pub(super) fn reading_on(self, rows: u64) -> Self {
        let readers = self.readers.into_iter().map(|reader| reader.reading_on(rows)).collect();
        SourceReaders { readers, ..self }
    }

    /// Returns the reader of a run that has one and can't get more, or else the sources unchanged.
    pub(super) fn only(mut sources: Vec<Self>) -> Result<SourceReader, Vec<Self>> {
        match &mut sources[..] {
            [SourceReaders { readers, partitions: None, .. }] if readers.len() == 1 => {
                readers.pop().ok_or_else(Vec::new)
            }
            _ => Err(sources),
        }
    }

    /// Opens the partitions of a source at their `recorded` positions; `None` if it has none.
    pub(super) fn of_partitions(
        (pipeline, number): (&Pipeline, usize),
        control: &Control,
        recorded: &[ResumePoint],
        committed: u64,
    ) -> Result<Option<Self>, SourceError> {
        let partitions = partitions_of((pipeline, number), control, recorded.len() as u32);
        let Some(partitions) = partitions else { return Ok(None) };
        let mut opened = SourceReaders { readers: Vec::new(), partitions: Some(partitions), list: None };
        opened.readers = opened.open_from((pipeline, number), control, (0, recorded), committed)?;
        Ok(Some(opened))
    }

    /// Opens the partitions from `first` on. One with a `recorded` position resumes there. One that
    /// was found since begins at its start, and its rows of closed epochs are late.
    pub(super) fn open_from(
        &self,
        read: (&Pipeline, usize),
        control: &Control,
        (first, recorded): (u32, &[ResumePoint]),
        closed: u64,
    ) -> Result<Vec<SourceReader>, SourceError> {
        let Some(partitions) = self.partitions.as_ref().filter(|all| all.number() > first) else {
            return Ok(Vec::new());
        };
        let open = |partition: u32| {
            let start = Position { part: partition, ..Position::START };
            let new = ResumePoint { position: start, late_from: 0, ..ResumePoint::START };
            let resume = recorded.get(partition as usize).copied().unwrap_or(new);
            open_reader(read, control, PartOf::Partitions(&**partitions), (partition, resume), closed)
        };
        (first..partitions.number()).map(open).collect()
    }
}

/// Opens the partitions of a source, if it has any. An earlier run, or another process, has found
/// the first `known` of them.
pub(super) fn partitions_of(
    (pipeline, number): (&Pipeline, usize),
    control: &Control,
    known: u32,
) -> Option<Arc<dyn Partitions>> {
    let source = &pipeline.sources[number];
    source.input.source().open_partitions(&shape(pipeline, source), control, known)
}

/// What a reader is opened from, besides the configuration.
pub(super) enum PartOf<'a> {
    Partitions(&'a dyn Partitions),
    Listed(Option<Arc<dyn FileList>>),
}

/// Opens a reader of a source, or of one of its partitions, at a position.
pub(super) fn open_reader(
    (pipeline, number): (&Pipeline, usize),
    control: &Control,
    part_of: PartOf<'_>,
    (partition, resume): (u32, ResumePoint),
    closed: u64,
) -> Result<SourceReader, SourceError> {
    let read = (pipeline, &pipeline.sources[number]);
    let reader = match part_of {
        PartOf::Partitions(all) => SourceReader::over(all.open(partition), read, control, resume, closed)?,
        PartOf::Listed(list) => SourceReader::listed(read, control, resume, closed, list)?,
    };
    Ok(reader.among(rank(pipeline, number, partition)))
}

/// Returns the rank of a reader among all that a run may have, and how many these are.
fn rank(pipeline: &Pipeline, source: usize, partition: u32) -> (u64, u64) {
    let sources = pipeline.sources.len() as u64;
    let partitions = if pipeline.has_partitions() { u64::from(MAX_PARTITIONS) } else { 1 };
    (source as u64 + sources * u64::from(partition), sources * partitions)
}

/// Opens a source from its beginning, for a dry run, which keeps no state.
pub(super) fn from_start(
    pipeline: &Pipeline,
    number: usize,
    control: &Control,
) -> Result<SourceReaders, SourceError> {
    if let Some(opened) = SourceReaders::of_partitions((pipeline, number), control, &[], 0)? {
        return Ok(opened);
    }
    let start = (0, ResumePoint::START);
    let reader = open_reader((pipeline, number), control, PartOf::Listed(None), start, 0)?;
    Ok(SourceReaders { readers: vec![reader], partitions: None, list: None })
}

/// Returns the commit listeners, each with the index of its source.
pub(super) fn listeners(pipeline: &Pipeline, control: &Control) -> Vec<(usize, Box<dyn CommitListener>)> {
    let listener = |source: &Source| source.input.source().commit_listener(control);
    let listeners = pipeline.sources.iter().map(listener).enumerate();
    listeners.filter_map(|(source, listener)| Some((source, listener?))).collect()
}

/// Opens the sources at the positions of the last committed epoch.
pub(super) fn sources(
    pipeline: &Pipeline,
    store: &Store,
    recorded: Option<Vec<Vec<TaggedPosition>>>,
    committed: u64,
    options: &RunOptions,
) -> Result<OpenSources, RunError> {
    let journaled = pipeline.sources.iter().any(|source| source.journal);
    let has_journal =
        recorded.iter().flatten().flatten().any(TaggedPosition::is_journal) || store.has_ingest()?;
    if has_journal && !journaled {
        return Err(RunError::JournalOff);
    }
    let opener = SourceOpener { pipeline, store, committed, options };
    let (mut readers, mut intake) = (Vec::new(), None);
    for (number, source) in pipeline.sources.iter().enumerate() {
        let recorded = recorded.as_ref().map_or(&[][..], |recorded| &recorded[number]);
        if let Some(opened) = opener.partitions(number, recorded)? {
            readers.push(opened);
            continue;
        }
        let recorded = recorded.first().copied();
        if source.journal {
            let (reader, started) = opener.journaled(source, recorded)?;
            let reader = reader.among(rank(pipeline, number, 0));
            readers.push(SourceReaders { readers: vec![reader], partitions: None, list: None });
            intake = intake.or(Some(started));
        } else {
            readers.push(opener.source(number, recorded)?);
        }
    }
    Ok((readers, intake))
}

/// Inputs needed to open a source.
struct SourceOpener<'a> {
    pipeline: &'a Pipeline,
    store: &'a Store,
    committed: u64,
    options: &'a RunOptions,
}

impl SourceOpener<'_> {
    fn partitions(
        &self,
        number: usize,
        recorded: &[TaggedPosition],
    ) -> Result<Option<SourceReaders>, RunError> {
        let source = &self.pipeline.sources[number];
        if source.input.source().partitioning().is_none() {
            return Ok(None);
        }
        recorded.first().map_or(Ok(()), |first| check_source_tag(source.tag(), first.partition))?;
        let recorded: Vec<ResumePoint> = recorded.iter().map(|recorded| recorded.resume).collect();
        let read = (self.pipeline, number);
        Ok(SourceReaders::of_partitions(read, &self.options.control, &recorded, self.committed)?)
    }

    fn source(&self, number: usize, recorded: Option<TaggedPosition>) -> Result<SourceReaders, RunError> {
        let source = &self.pipeline.sources[number];
        recorded.map_or(Ok(()), |recorded| check_source_tag(source.tag(), recorded.partition))?;
        let list = source.input.source().keeps_list().then(|| {
            let number = if self.pipeline.has_several_sources() { number as u64 + 1 } else { 0 };
            let reached = recorded.and_then(|recorded| last_file(recorded.resume.position));
            StoredList::open(self.store, number, reached)
        });
        let list = list.transpose()?.map(|list| Arc::new(list) as Arc<dyn FileList>);
        let resume = recorded.map_or(ResumePoint::START, |recorded| recorded.resume);
        let (read, part_of) = ((self.pipeline, number), PartOf::Listed(list.clone()));
        let reader = open_reader(read, &self.options.control, part_of, (0, resume), self.committed)?;
        Ok(SourceReaders { readers: vec![reader], partitions: None, list })
    }

    fn journaled(
        &self,
        source: &Source,
        recorded: Option<TaggedPosition>,
    ) -> Result<(SourceReader, Intake), RunError> {
        // Records that earlier runs read without a journal are not read again; their clock
        // continues.
        let resume = recorded.map_or(ResumePoint::START, |recorded| match recorded.is_journal() {
            true => recorded.resume,
            false => ResumePoint { position: Position::START, ..recorded.resume },
        });
        let (input, name) = (source.input.source(), source.input.to_string());
        let RunOptions { control, acknowledge, .. } = self.options;
        let ingest = Arc::new(self.store.ingest(resume.position, source.journal_limit)?);
        control.begin();
        let shape = shape(self.pipeline, source);
        let session = JournalSession::new(Arc::clone(&ingest), shape, name.clone().into());
        let refused = |source| SourceError::Io { path: name.clone().into(), source };
        let mut intake = input.take_in(session, control).map_err(refused)?;
        if let Some(Acknowledge(listener)) = acknowledge.clone() {
            intake.report_to(Box::new(move |records| listener(records))).map_err(refused)?;
        }
        let (sessions, read) = (Box::new(JournalSessions { ingest, name }), (self.pipeline, source));
        Ok((SourceReader::over(sessions, read, control, resume, self.committed)?, intake))
    }
}

/// A list of files in the state directory.
struct StoredList(Mutex<(FollowedList, Vec<Vec<u8>>)>);

impl StoredList {
    /// Opens the list of the source with this number. `reached` is the number of the last file of
    /// which anything was read.
    fn open(store: &Store, number: u64, reached: Option<u32>) -> Result<Self, SourceError> {
        Ok(StoredList(Mutex::new(store.followed(number, reached)?)))
    }

    fn lock(&self) -> MutexGuard<'_, (FollowedList, Vec<Vec<u8>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileList for StoredList {
    fn names(&self) -> Vec<Vec<u8>> {
        self.lock().1.clone()
    }

    fn add(&self, names: &[Vec<u8>]) -> Result<(), SourceError> {
        let mut list = self.lock();
        list.0.add(names)?;
        list.1.extend_from_slice(names);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_belongs_to_one_kind_of_source_and_stream() {
        let (file, one, other) = (0, 0x1203, 0x3403);
        for tag in [file, one, other] {
            assert!(check_source_tag(tag, tag).is_ok());
        }
        for (now, recorded) in [(file, one), (one, file), (one, 0x1204)] {
            assert!(matches!(check_source_tag(now, recorded), Err(RunError::OtherSource)));
        }
        for (now, recorded) in [(one, other), (one, 3), (3, one)] {
            assert!(matches!(check_source_tag(now, recorded), Err(RunError::OtherStream)));
        }
    }
}
