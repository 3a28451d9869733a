//! Positions at which the partitions of an embedder's input resume.
//!
//! An input notes the positions of its items. Before it closes an epoch, it records the position
//! just before the first item of a later epoch, and the clock there. The commit of the epoch writes
//! both to the private log. A run that resumes there gives every item the same epoch again, and
//! those of committed epochs are left out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hushflow_mechanism::epochs::Clock;

use super::resume::{recorded, resume_point};
use crate::source::ResumePoint;
use crate::state::{Position, SourcePosition};

/// Source tag of the partitions of an embedder: the low byte. Above it is the partition's number. A
/// training run has the same tag for the digest of its rows; no state directory has both.
const TAG: u32 = 8;

/// Partitions have numbers below this one.
pub(super) const PARTITIONS: u32 = 1 << 24;

/// The resume positions of all partitions, shared by their inputs and the commit.
#[derive(Clone, Default)]
pub(super) struct PartitionPositions(Arc<Mutex<BTreeMap<u32, Partition>>>);

/// The resume positions of a partition.
struct Partition {
    /// The resume position after the last committed epoch.
    committed: ResumePoint,
    /// For each run of closed epochs after which the partition resumes at the same position: the
    /// last epoch and that position.
    closed: VecDeque<(u64, ResumePoint)>,
    /// Whether an input reads it.
    is_read: bool,
}

impl Partition {
    fn new(committed: ResumePoint) -> Self {
        Partition { committed, closed: VecDeque::new(), is_read: false }
    }
}

/// Returns the resume position before the first item.
fn start() -> ResumePoint {
    ResumePoint { position: Position { row: 0, ..Position::START }, ..ResumePoint::START }
}

/// The position of the last item before a resume position; `None` before the first item.
pub(super) fn last_item(resume: &ResumePoint) -> Option<u64> {
    (resume.position.row > 0).then_some(resume.position.offset)
}

impl PartitionPositions {
    /// Reads the positions recorded with the last committed epoch; `None` if they can't be read.
    pub(super) fn recover(positions: &[SourcePosition]) -> Option<Self> {
        let own = positions.iter().filter(|position| position.partition & 0xff == TAG);
        let read = |position: &SourcePosition| {
            Some((position.partition >> 8, Partition::new(resume_point(position)?)))
        };
        let partitions: Option<_> = own.map(read).collect();
        Some(PartitionPositions(Arc::new(Mutex::new(partitions?))))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Partition>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns where a partition resumes after the last committed epoch.
    pub(super) fn resume(&self, partition: u32) -> ResumePoint {
        self.lock().get(&partition).map_or(start(), |partition| partition.committed)
    }

    /// Begins to read a partition; `None` if another input reads it.
    pub(super) fn read(&self, partition: u32, committed: u64) -> Option<PartitionReader> {
        let mut partitions = self.lock();
        let own = partitions.entry(partition).or_insert_with(|| Partition::new(start()));
        if std::mem::replace(&mut own.is_read, true) {
            return None;
        }
        let (positions, last) = (self.clone(), own.committed.position);
        Some(PartitionReader { positions, partition, closed: committed, last, firsts: VecDeque::new() })
    }

    /// Returns the positions to commit with an epoch.
    pub(super) fn after(&self, epoch: u64) -> Result<Vec<SourcePosition>, bincode::Error> {
        let resume = |(&number, partition): (&u32, &mut Partition)| {
            while let Some(&(last, resume)) = partition.closed.front() {
                partition.committed = resume;
                if last >= epoch {
                    break;
                }
                partition.closed.pop_front();
            }
            recorded(&partition.committed, number << 8 | TAG)
        };
        self.lock().iter_mut().map(resume).collect()
    }
}

/// Notes the positions of the items of a partition.
pub(super) struct PartitionReader {
    positions: PartitionPositions,
    partition: u32,
    /// Epochs up to this one are closed.
    closed: u64,
    /// The position of the last item.
    last: Position,
    /// For each item with a later epoch than every item before it: that epoch, and the position
    /// before the item.
    firsts: VecDeque<(u64, ResumePoint)>,
}

impl PartitionReader {
    /// Notes the epoch that the next item joins, if any, before it moves the clock.
    pub(super) fn item(&mut self, epoch: Option<u64>, position: u64, clock: Clock) {
        if let Some(epoch) = epoch
            && self.firsts.back().is_none_or(|&(last, _)| last < epoch)
        {
            self.firsts.push_back((epoch, self.here(clock)));
        }
        self.last = Position::new(0, position);
    }

    fn here(&self, clock: Clock) -> ResumePoint {
        ResumePoint { position: self.last, clock, ..ResumePoint::START }
    }

    /// Records where the partition resumes after each of the epochs up to `due`, before they close.
    pub(super) fn close(&mut self, due: u64, clock: Clock) {
        let mut partitions = self.positions.lock();
        let Some(partition) = partitions.get_mut(&self.partition) else { return };
        while self.closed < due {
            while self.firsts.front().is_some_and(|&(epoch, _)| epoch <= self.closed + 1) {
                self.firsts.pop_front();
            }
            let (last, resume) = match self.firsts.front() {
                Some(&(epoch, first)) => (due.min(epoch - 1), first),
                None => (due, self.here(clock)),
            };
            partition.closed.push_back((last, resume));
            self.closed = last;
        }
    }
}
