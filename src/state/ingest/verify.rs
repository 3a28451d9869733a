//! Checks the whole ingest journal without changing it, and reports its contents and the first
//! problem.

use super::segment::{SegmentName, SegmentReader};
use crate::state::{
    error::StateError,
    frames::Position,
    storage::{DirectoryStorage, Storage},
};
use std::path::Path;

/// Result of [`verify_ingest`]. Every checksum and the order of segments are correct unless there
/// is a `problem`.
#[derive(Debug, Default)]
pub struct IngestReport {
    /// Sessions with any segment left.
    pub sessions: u32,
    /// Bytes of records in the remaining segments. Some of these records may have been counted.
    pub bytes: u64,
    /// Position of the first byte and position after the last one; `None` without a session.
    pub range: Option<(Position, Position)>,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Checks the journal in the state directory at `path`, if there is one. Takes no lock, so it works
/// during a run.
///
/// # Errors
/// If the directory itself can't be opened. Problems inside are in the report.
pub fn verify_ingest(path: impl AsRef<Path>) -> Result<IngestReport, StateError> {
    Ok(verify_storage(&DirectoryStorage::shared(path.as_ref())?))
}

pub(super) fn verify_storage(storage: &dyn Storage) -> IngestReport {
    let mut report = IngestReport::default();
    report.problem = report.read(storage).err();
    report
}

/// Returns an error if a run can't continue the journal in `path` at `position`, the position in
/// the logs. `before` is the report from before the logs were read: a run at work deletes records
/// after it has noted them as counted. If data are missing at the end, the journal is read once
/// more, because the run may have added them since.
///
/// # Errors
/// If the run can't continue, or the directory can't be opened.
pub fn verify_ingest_from(
    path: impl AsRef<Path>,
    position: Position,
    before: &IngestReport,
) -> Result<(), StateError> {
    let position = Position::new(position.part, position.offset);
    let begins = before.range.is_some_and(|(first, _)| first <= position);
    let reaches = |report: &IngestReport| report.range.is_some_and(|(_, end)| position <= end);
    if position.offset == 0 || begins && (reaches(before) || reaches(&verify_ingest(&path)?)) {
        return Ok(());
    }
    Err(StateError::IngestGap {
        path: path.as_ref().to_owned(),
        session: position.part,
        offset: position.offset,
    })
}

impl IngestReport {
    fn read(&mut self, storage: &dyn Storage) -> Result<(), StateError> {
        let names = SegmentName::all(storage)?;
        let mut before: Option<SegmentReader> = None;
        for &name in &names {
            let Some(mut segment) = SegmentReader::open(storage, name)? else {
                // A run at work has deleted this segment since, with everything before it.
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
            let first = self.range.map_or(segment.head.position(), |(first, _)| first);
            self.range = Some((first, Position::new(name.session, segment.logical)));
            before = Some(segment);
        }
        Ok(())
    }
}
