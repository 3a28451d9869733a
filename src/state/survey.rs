//! Surveys a state directory: reads it once, front to back, with one frame in memory at a time.

use super::{
    anchor::AnchorContent,
    chain::{ChainLink, LogHead},
    checkpoint::{self, CheckpointSlot},
    enrolment::Enrolment,
    error::StateError,
    format::{FILE_HEADER_LENGTH, FRAME_HEADER_LENGTH, kind},
    frames::SourcePosition,
    log::Frame,
    private_log::{LogEntry, LogPosition, PrivateFacts},
    public_log::{LogComparison, PublicFacts},
    recovery::{StateFacts, newest_checkpoint},
    storage::{PUBLIC_LOG, Storage, segment_name, segment_numbers},
};
use std::collections::VecDeque;

/// The facts about a state directory, and further data for a plan.
pub(super) struct Survey {
    pub(super) facts: StateFacts,
    /// The source positions of the last committed epoch.
    pub(super) positions: Vec<SourcePosition>,
    /// Position in the private log of the first frame after the newest checkpoint.
    pub(super) replay_from: LogPosition,
    /// Position in the private log of the first frame that the public log lacks.
    pub(super) unpublished_from: LogPosition,
    /// The public log is not known to be synced beyond this offset.
    pub(super) public_unproven: u64,
    /// Links of the epochs after the newest checkpoint.
    pub(super) links: VecDeque<ChainLink>,
}

impl Survey {
    /// A survey before anything is read.
    pub(super) fn new(anchored: Option<AnchorContent>) -> Self {
        let first_frame = LogPosition { segment: 1, offset: FILE_HEADER_LENGTH as u64 };
        Self {
            facts: StateFacts {
                private: PrivateFacts::none(),
                public: PublicFacts::none(),
                checkpoints: [CheckpointSlot::Absent; 2],
                begun: false,
                public_log: PUBLIC_LOG.into(),
                anchored,
            },
            positions: Vec::new(),
            replay_from: first_frame,
            unpublished_from: first_frame,
            public_unproven: u64::MAX,
            links: VecDeque::new(),
        }
    }

    /// Reads everything. After an error, the private log's facts describe the part before it.
    ///
    /// The length of the public log and the checkpoints are read first. A concurrent run writes the
    /// private log before them, so the private log never appears to be behind.
    pub(super) fn conduct(&mut self, storage: &dyn Storage) -> Result<(), StateError> {
        self.facts.public_log = storage.path_of(PUBLIC_LOG);
        let public = storage.read(PUBLIC_LOG)?;
        let public_length = public.as_ref().map_or(Ok(0), |file| file.length())?;
        self.facts.checkpoints = checkpoint::read_slots(storage)?;
        self.facts.begun = Enrolment::on(storage)?.is_some_and(|enrolment| enrolment.has_begun());
        let mut comparison = LogComparison::new(public.as_deref(), public_length)?;
        for number in segment_numbers(storage)? {
            self.read_segment(storage, number, &mut comparison)?;
        }
        let private = &self.facts.private;
        self.facts.public = comparison.finish(private.header.as_ref().map(|_| private.head.epoch))?;
        Ok(())
    }

    fn read_segment(
        &mut self,
        storage: &dyn Storage,
        number: u64,
        comparison: &mut LogComparison<'_>,
    ) -> Result<(), StateError> {
        let mut private = self.facts.private.clone();
        if private.last > 0 && number != private.last + 1 {
            return Err(StateError::PrivateLogLost {
                path: storage.path().join(segment_name(private.last + 1)),
                witness: storage.path().join(segment_name(number)),
            });
        }
        // The oldest segment may have been removed since the names were listed.
        let Some(file) = storage.read(&segment_name(number))? else { return Ok(()) };
        let gathered = private
            .gather(&*file, number, |frame, entry, head| self.take(number, frame, entry, head, comparison));
        self.facts.private = private;
        gathered
    }

    fn take(
        &mut self,
        segment: u64,
        frame: &Frame,
        entry: LogEntry<'_>,
        head: &LogHead,
        comparison: &mut LogComparison<'_>,
    ) -> Result<(), StateError> {
        let after = LogPosition { segment, offset: frame.end() };
        self.recognise_anchor(head);
        match entry {
            LogEntry::Generation => {}
            LogEntry::Header => comparison.expect_header(&frame.payload)?,
            LogEntry::Segment { begins, first } => {
                if first {
                    comparison.follow(head, |head| self.recognise_anchor(head))?;
                }
                // A segment begins after a checkpoint, which syncs the public log. Before the first
                // checkpoint not even its header is known to be synced.
                self.public_unproven = if begins.epoch == 0 { 0 } else { comparison.facts.matched };
                self.recognise_checkpoints(begins.epoch, begins.chain, after);
                self.positions = begins.positions;
            }
            LogEntry::Epoch(epoch) => {
                let release = epoch.release().frame(head.link)?;
                comparison.expect(kind::RELEASE, epoch.epoch, &release[FRAME_HEADER_LENGTH..])?;
                if self.recognise_checkpoints(epoch.epoch, head.link, after) {
                    self.links.push_back(head.link);
                }
                self.positions = epoch.positions;
            }
        }
        if comparison.facts.epoch == head.epoch {
            self.unpublished_from = after;
        }
        Ok(())
    }

    fn recognise_anchor(&mut self, at: &LogHead) {
        if let Some(anchored) = &mut self.facts.anchored {
            anchored.agrees |= (anchored.head.epoch, anchored.head.link) == (at.epoch, at.link);
        }
    }

    /// Marks the checkpoints of epoch `at` as genuine if their link is `found`; returns whether the
    /// epoch is newer than all checkpoints.
    fn recognise_checkpoints(&mut self, at: u64, found: ChainLink, after: LogPosition) -> bool {
        for slot in &mut self.facts.checkpoints {
            if let CheckpointSlot::Intact { epoch, link, genuine, .. } = slot {
                *genuine |= *epoch == at && *link == found;
            }
        }
        let newest = self.newest_checkpoint();
        if at == newest {
            self.replay_from = after;
        }
        at > newest
    }

    /// Returns the epoch of the newest checkpoint, 0 without one.
    pub(super) fn newest_checkpoint(&self) -> u64 {
        let slots = &self.facts.checkpoints;
        match newest_checkpoint(slots).map(|index| slots[index]) {
            Some(CheckpointSlot::Intact { epoch, .. }) => epoch,
            _ => 0,
        }
    }
}
