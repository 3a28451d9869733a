//! Reads the whole ingest journal, changes nothing, and says what is there and what is wrong with it.

use super::{
    IngestPlace,
    segment::{Segment, SegmentName},
};
use crate::state::{
    error::StateError,
    storage::{Directory, Storage},
};
use std::path::Path;

/// What [`verify_ingest`] found: every checksum, and that segments follow each other, unless `problem` says otherwise.
#[derive(Debug, Default)]
pub struct IngestReport {
    /// Sessions of which something is there.
    pub sessions: u32,
    /// Bytes of records that are there: what has not been counted yet, and what shares a segment with it.
    pub bytes: u64,
    /// Where the first byte is, or would be, and where the next one will be; none without a session.
    pub range: Option<(IngestPlace, IngestPlace)>,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Reads the journal in the state directory at `path`, if there is one. Takes no lock: a run may be at work.
///
/// # Errors
/// When the directory itself can't be opened. What is wrong inside is in the report.
pub fn verify_ingest(path: impl AsRef<Path>) -> Result<IngestReport, StateError> {
    Ok(verify_storage(&Directory::shared(path.as_ref())?))
}

pub(super) fn verify_storage(storage: &dyn Storage) -> IngestReport {
    let mut report = IngestReport::default();
    report.problem = report.read(storage).err();
    report
}

/// The error of a journal in `path` that a run can't go on from at `place`, which the logs have recorded. `before` has been
/// read before them, as a run that is at work deletes what it has recorded as counted. What is missing at the end is looked for
/// once more: such a run may have added it since.
///
/// # Errors
/// That, and where the directory can't be opened.
pub fn verify_ingest_from(
    path: impl AsRef<Path>,
    place: IngestPlace,
    before: &IngestReport,
) -> Result<(), StateError> {
    let begins = before.range.is_some_and(|(first, _)| first <= place);
    let reaches = |report: &IngestReport| report.range.is_some_and(|(_, end)| place <= end);
    if place.offset == 0 || begins && (reaches(before) || reaches(&verify_ingest(&path)?)) {
        return Ok(());
    }
    let IngestPlace { session, offset } = place;
    Err(StateError::IngestGap { path: path.as_ref().to_owned(), session, offset })
}

impl IngestReport {
    fn read(&mut self, storage: &dyn Storage) -> Result<(), StateError> {
        let names = SegmentName::all(storage)?;
        let mut before: Option<Segment> = None;
        for &name in &names {
            let Some(mut segment) = Segment::open(storage, name)? else {
                // A run that is at work has deleted it since, and all before it.
                before = None;
                continue;
            };
            if before.as_ref().is_some_and(|before| !segment.continues(before)) {
                let (path, offset) = (segment.file.path().to_owned(), segment.head.start);
                return Err(StateError::IngestGap { path, session: name.session, offset });
            }
            self.sessions +=
                u32::from(before.as_ref().is_none_or(|before| before.head.session != name.session));
            segment.read_to_end(Some(&name) == names.last())?;
            self.bytes += segment.logical - segment.head.start;
            let first = self.range.map_or(segment.head.place(), |(first, _)| first);
            self.range = Some((first, IngestPlace { session: name.session, offset: segment.logical }));
            before = Some(segment);
        }
        Ok(())
    }
}
