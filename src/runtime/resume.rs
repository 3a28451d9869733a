//! Positions at which a run resumes after an epoch, as recorded with the epoch.

use bincode::{DefaultOptions, Options};
use serde::{Deserialize, Serialize};

use super::RunError;
use crate::check::JudgeState;
use crate::connect::{PositionParts, journal};
use crate::source::ResumePoint;
use crate::state::{Position, RecoveredState, SourcePosition};

/// Positions at which a run resumes after an epoch.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct EpochResume {
    /// The position of each source, or of each of its partitions, in the order of the sources.
    pub(super) sources: Vec<SourceResume>,
    /// The state of the judge, if it goes on after the first rows.
    pub(super) judged: Option<Box<JudgeState>>,
}

/// Position at which a source, or one of its partitions, resumes.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct SourceResume {
    /// Index of the source.
    pub(super) source: usize,
    pub(super) resume: ResumePoint,
    /// Position after the last row whose arrival closed epochs in this run. Public.
    pub(super) read: Option<Position>,
}

/// Source tag of a position that holds the state of the judge of rows instead of a source's
/// position.
const JUDGE: u32 = 7;

/// The position at which a source resumes.
#[derive(Clone, Copy)]
pub(super) struct TaggedPosition {
    pub(super) resume: ResumePoint,
    /// Its source tag, see [`Source::tag`](crate::pipeline::Source).
    pub(super) partition: u32,
}

impl TaggedPosition {
    /// Returns whether it is a position in the ingest journal.
    pub(super) fn is_journal(&self) -> bool {
        self.partition == u32::from(journal::TAG)
    }

    /// Returns whether it belongs to the source of the position before it.
    fn is_further_partition(&self) -> bool {
        PositionParts::of(self.partition) == PositionParts::Partitions && self.resume.position.part > 0
    }

    /// Returns the positions of the last committed epoch: for each of `sources` sources one, or one
    /// for each of its partitions; `None` before the first epoch.
    pub(super) fn of(recovered: &RecoveredState, sources: usize) -> Result<Option<Vec<Vec<Self>>>, RunError> {
        let positions = of_sources(&recovered.positions);
        if positions.is_empty() {
            return Ok(None);
        }
        let grouped = by_source(positions).filter(|grouped| grouped.len() == sources);
        grouped.map(Some).ok_or(RunError::Checkpoint)
    }
}

/// Groups positions by their sources; `None` if they can't be read.
fn by_source(positions: &[SourcePosition]) -> Option<Vec<Vec<TaggedPosition>>> {
    let mut sources: Vec<Vec<TaggedPosition>> = Vec::new();
    for recorded in positions {
        let position = TaggedPosition { resume: resume_point(recorded)?, partition: recorded.partition };
        if position.is_further_partition() {
            let first = sources.last_mut().filter(|first| {
                first[0].partition == position.partition
                    && first.len() == position.resume.position.part as usize
            });
            first?.push(position);
        } else {
            sources.push(vec![position]);
        }
    }
    Some(sources)
}

/// Returns the positions of the sources among those of an epoch.
fn of_sources(positions: &[SourcePosition]) -> &[SourcePosition] {
    match positions {
        [sources @ .., last] if last.partition == JUDGE => sources,
        sources => sources,
    }
}

/// Returns the state of the judge after the last committed epoch, if it was recorded.
pub(super) fn judged(recovered: &RecoveredState) -> Result<Option<JudgeState>, RunError> {
    let last = recovered.positions.last().filter(|last| last.partition == JUDGE);
    last.map(|last| options().deserialize(&last.payload)).transpose().map_err(|_| RunError::Checkpoint)
}

/// Returns where the next run resumes in the ingest journal, if one of these positions is in it.
pub fn journaled(positions: &[SourcePosition]) -> Option<Position> {
    let position = positions.iter().find(|position| position.partition == u32::from(journal::TAG))?;
    Some(resume_point(position)?.position)
}

/// Returns the number of the last file of which anything was read before a position. A source may
/// still wait for the file that the position names.
pub(super) fn last_file(position: Position) -> Option<u32> {
    let is_at_start = position == Position::new(position.part, 0);
    if is_at_start { position.part.checked_sub(1) } else { Some(position.part) }
}

/// Returns, for each source that has read followed files, the number of its list and the number of
/// its last file.
pub fn followed(positions: &[SourcePosition]) -> Vec<(u64, u32)> {
    let sources = by_source(of_sources(positions)).unwrap_or_default();
    let first = u64::from(sources.len() > 1);
    let positions = (first..).zip(sources.iter().map(|partitions| partitions[0]));
    let followed =
        positions.filter(|(_, position)| PositionParts::of(position.partition) == PositionParts::Listed);
    followed.filter_map(|(source, at)| Some((source, last_file(at.resume.position)?))).collect()
}

impl EpochResume {
    /// Encodes the position of each source, with the source's tag, and the state of the judge.
    pub(super) fn positions(&self, tags: &[u32]) -> Result<Vec<SourcePosition>, bincode::Error> {
        let sources = self.sources.iter().map(|at| recorded(&at.resume, tags[at.source]));
        let judged = self.judged.iter().map(|state| {
            Ok(SourcePosition { partition: JUDGE, offset: 0, payload: options().serialize(state)? })
        });
        sources.chain(judged).collect()
    }

    /// Returns the positions at which a source resumes. Private: event times decide them.
    pub(super) fn of_source(&self, source: usize) -> impl Iterator<Item = Position> {
        self.sources.iter().filter(move |at| at.source == source).map(|at| at.resume.position)
    }

    /// Returns the positions up to which a source was read when its clocks closed epochs. Public.
    pub(super) fn read_of(&self, source: usize) -> impl Iterator<Item = Position> {
        self.sources.iter().filter(move |at| at.source == source).filter_map(|at| at.read)
    }
}

/// Encodes the position at which a source resumes.
pub(super) fn recorded(resume: &ResumePoint, partition: u32) -> Result<SourcePosition, bincode::Error> {
    let &ResumePoint { position, clock, late_from, fingerprint } = resume;
    let mut payload = options().serialize(&(position, clock, late_from))?;
    payload.extend(fingerprint.into_iter().flat_map(u32::to_le_bytes));
    Ok(SourcePosition { partition, offset: position.offset, payload })
}

/// Decodes the position at which a source resumes; `None` for any other bytes.
pub(super) fn resume_point(recorded: &SourcePosition) -> Option<ResumePoint> {
    let mut rest = &recorded.payload[..];
    let read = options().allow_trailing_bytes().deserialize_from(&mut rest);
    let (position, clock, late_from) = read.ok()?;
    let fingerprint = match rest {
        [] => None,
        bytes => Some(u32::from_le_bytes(bytes.try_into().ok()?)),
    };
    Some(ResumePoint { position, clock, late_from, fingerprint })
}

/// Encoding of payloads inside the frames of the state.
pub(super) fn options() -> impl Options {
    DefaultOptions::new().with_fixint_encoding().with_limit(crate::state::MAX_PAYLOAD).reject_trailing_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_belong_to_the_source_before_them() {
        let [files, followed, one, other] = [0, 2, 0x1206, 0x3406];
        let check = |entries: &[(u32, u32)], expected: Option<&[usize]>| {
            let position = |&(tag, part): &(u32, u32)| {
                let position = Position::new(part, 7);
                recorded(&ResumePoint { position, ..ResumePoint::START }, tag).unwrap()
            };
            let positions: Vec<_> = entries.iter().map(position).collect();
            let found = by_source(&positions).map(|sources| sources.iter().map(Vec::len).collect());
            assert_eq!(found, expected.map(<[usize]>::to_vec), "{entries:?}");
            positions
        };
        check(&[(files, 3), (files, 5)], Some(&[1, 1]));
        check(&[(one, 0), (one, 1), (one, 2)], Some(&[3]));
        // Topics with the same name, of two clusters.
        check(&[(one, 0), (one, 1), (one, 0), (one, 1)], Some(&[2, 2]));
        for wrong in
            [&[(one, 1)][..], &[(one, 0), (one, 2)], &[(one, 0), (other, 1)], &[(files, 0), (one, 1)]]
        {
            check(wrong, None);
        }
        let positions = check(&[(one, 0), (one, 1), (followed, 9)], Some(&[2, 1]));
        assert_eq!(super::followed(&positions), [(2, 9)]);
        let files = |position| last_file(position);
        assert_eq!([files(Position::START), files(Position::new(3, 0))], [None, Some(2)]);
        assert_eq!(files(Position { row: 2, ..Position::START }), Some(0), "of a Parquet file");
    }
}
