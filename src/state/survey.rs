//! Gathers the facts: reads a whole state directory once, front to back, one frame in memory at a time.

use super::{
    checkpoint::{self, Slot},
    error::StateError,
    format::{FILE_HEADER_LENGTH, FRAME_HEADER_LENGTH, kind},
    frames::{EpochPayload, SourcePosition},
    log::Frame,
    private_log::{Entry, PrivateFacts},
    public_log::{Comparison, PublicFacts},
    recovery::{Facts, newest_checkpoint},
    storage::{PRIVATE_LOG, PUBLIC_LOG, Storage},
};
use std::collections::VecDeque;

/// The facts, and what carrying out a plan needs besides them.
pub(super) struct Survey {
    pub(super) facts: Facts,
    /// The source positions of the last committed epoch.
    pub(super) positions: Vec<SourcePosition>,
    /// Where in the private log the frames after the newest checkpoint begin.
    pub(super) replay_from: u64,
    /// Where in the private log the frames begin that the public log lacks.
    pub(super) unpublished_from: u64,
    /// Payload checksums of the epochs after the newest checkpoint.
    pub(super) checksums: VecDeque<u32>,
}

impl Survey {
    /// Of nothing yet.
    pub(super) fn new() -> Self {
        let first_frame = FILE_HEADER_LENGTH as u64;
        Self {
            facts: Facts {
                private: PrivateFacts::none(),
                public: PublicFacts::none(),
                checkpoints: [Slot::Absent; 2],
            },
            positions: Vec::new(),
            replay_from: first_frame,
            unpublished_from: first_frame,
            checksums: VecDeque::new(),
        }
    }

    /// Reads everything. After an error, the private log's facts describe what came before it.
    ///
    /// The public log's length and the checkpoints are taken first: a run that is at work meanwhile writes the
    /// private log before them, so it is never found behind.
    pub(super) fn conduct(&mut self, storage: &dyn Storage) -> Result<(), StateError> {
        let public = storage.read(PUBLIC_LOG)?;
        let public_length = public.as_ref().map_or(Ok(0), |file| file.length())?;
        self.facts.checkpoints = checkpoint::look(storage)?;
        let mut comparison = Comparison::new(public.as_deref(), public_length)?;
        if let Some(file) = storage.read(PRIVATE_LOG)? {
            let mut private = self.facts.private.clone();
            let gathered = private.gather(&*file, |frame, entry| match entry {
                Entry::Header => comparison.expect(kind::HEADER, 0, &frame.payload),
                Entry::Generation => Ok(()),
                Entry::Epoch(epoch) => self.take(frame, epoch, &mut comparison),
            });
            self.facts.private = private;
            gathered?;
        }
        let private = &self.facts.private;
        self.facts.public = comparison.finish(private.header.as_ref().map(|_| private.epoch))?;
        Ok(())
    }

    fn take(
        &mut self,
        frame: &Frame,
        epoch: EpochPayload<'_>,
        comparison: &mut Comparison<'_>,
    ) -> Result<(), StateError> {
        let release = epoch.release()?;
        comparison.expect(kind::RELEASE, epoch.epoch, &release[FRAME_HEADER_LENGTH..])?;
        if comparison.facts.epoch == epoch.epoch {
            self.unpublished_from = frame.end();
        }
        self.recognise_checkpoints(epoch.epoch, frame);
        self.positions = epoch.positions;
        Ok(())
    }

    fn recognise_checkpoints(&mut self, at: u64, frame: &Frame) {
        let checksum = frame.header.payload_checksum;
        for slot in &mut self.facts.checkpoints {
            if let Slot::Intact { epoch, frame_checksum, genuine } = slot {
                *genuine |= *epoch == at && *frame_checksum == checksum;
            }
        }
        let newest = self.newest_checkpoint();
        if at == newest {
            self.replay_from = frame.end();
        } else if at > newest {
            self.checksums.push_back(checksum);
        }
    }

    /// The epoch of the newest checkpoint, 0 without one.
    pub(super) fn newest_checkpoint(&self) -> u64 {
        let slots = &self.facts.checkpoints;
        match newest_checkpoint(slots).map(|place| slots[place]) {
            Some(Slot::Intact { epoch, .. }) => epoch,
            _ => 0,
        }
    }
}
