//! Segments of the private log: a new one begins after every checkpoint, and old ones are removed.
//!
//! Recovery needs the epochs after the older of the two checkpoints, in case the newer one is
//! damaged. Earlier exact sums are not needed, so they are removed unless the settings keep them.

use super::{
    error::StateError,
    format::FileRole,
    frames::{PublicHeader, SegmentPayload},
    log::FrameAppender,
    private_log::{LogSegment, beginning},
    storage::{NEW_SEGMENT, Storage, segment_name, swap_in},
};

/// How long exact sums stay in the private log after recovery no longer needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumRetention {
    /// The sums of all epochs.
    All,
    /// The sums of the last n epochs.
    Epochs(u64),
    /// The sums committed in the last n seconds by the machine's clock.
    Seconds(u64),
}

/// By default no sums are kept.
impl Default for SumRetention {
    fn default() -> Self {
        Self::Epochs(0)
    }
}

/// The segments of the private log.
pub(super) struct Segments {
    header: PublicHeader,
    keep: SumRetention,
    /// Oldest first.
    segments: Vec<LogSegment>,
}

impl Segments {
    /// Manages these segments or, if there are none, a first one that has just been started.
    pub(super) fn new(header: PublicHeader, keep: SumRetention, segments: Vec<LogSegment>) -> Self {
        let first = || vec![LogSegment { number: 1, epoch: 0, begun: 0 }];
        Self { header, keep, segments: if segments.is_empty() { first() } else { segments } }
    }

    /// Returns the number of the next segment, unless the last one is still empty at epoch
    /// `committed`.
    pub(super) fn next(&self, committed: u64) -> Option<u64> {
        self.segments.last().filter(|last| last.epoch < committed).map(|last| last.number + 1)
    }

    /// Begins a segment.
    pub(super) fn begin(
        &mut self,
        storage: &dyn Storage,
        payload: &SegmentPayload,
    ) -> Result<FrameAppender, StateError> {
        let log = begin_segment(storage, &self.header, payload)?;
        let SegmentPayload { segment: number, epoch, begun, .. } = *payload;
        self.segments.push(LogSegment { number, epoch, begun });
        Ok(log)
    }

    /// Removes the segments that no start needs after the checkpoint of epoch `checkpoint`,
    /// except those to keep. Each removal is durable before the next, so there is never a gap.
    pub(super) fn remove_obsolete(
        &mut self,
        storage: &dyn Storage,
        checkpoint: u64,
        committed: u64,
    ) -> Result<(), StateError> {
        while let [oldest, next, ..] = self.segments[..]
            && next.epoch <= checkpoint
            && self.keep.may_remove(next, committed, storage.now())
        {
            storage.remove(&segment_name(oldest.number))?;
            storage.sync()?;
            self.segments.remove(0);
        }
        Ok(())
    }
}

impl SumRetention {
    /// Returns whether epochs committed before `next` was begun may be removed.
    fn may_remove(self, next: LogSegment, committed: u64, now: u64) -> bool {
        match self {
            Self::All => false,
            Self::Epochs(epochs) => next.epoch.saturating_add(epochs) <= committed,
            Self::Seconds(seconds) => next.begun.saturating_add(seconds) <= now,
        }
    }
}

/// Begins a segment: writes its beginning under another name, syncs and renames it.
pub(super) fn begin_segment(
    storage: &dyn Storage,
    header: &PublicHeader,
    payload: &SegmentPayload,
) -> Result<FrameAppender, StateError> {
    let bytes = beginning(FileRole::PrivateLog, header, Some(payload))?;
    let name = segment_name(payload.segment);
    swap_in(storage, NEW_SEGMENT, &name, &[&bytes])?;
    Ok(FrameAppender::at(storage.write(&name)?, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_kept_for_the_retention_period() {
        let next = LogSegment { number: 2, epoch: 100, begun: 1000 };
        let check = |keep: SumRetention, committed, now, expected| {
            assert_eq!(
                keep.may_remove(next, committed, now),
                expected,
                "{keep:?} at epoch {committed}, {now} s"
            );
        };
        check(SumRetention::default(), 100, 0, true);
        check(SumRetention::All, u64::MAX, u64::MAX, false);
        check(SumRetention::Epochs(50), 149, u64::MAX, false);
        check(SumRetention::Epochs(50), 150, 0, true);
        check(SumRetention::Epochs(u64::MAX), u64::MAX - 1, 0, false);
        check(SumRetention::Seconds(60), u64::MAX, 1059, false);
        check(SumRetention::Seconds(60), 100, 1060, true);
        check(SumRetention::Seconds(60), 100, 0, false);
    }
}
