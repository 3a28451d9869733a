//! The lines of a public log, epoch by epoch, for whatever writes them elsewhere: a reader of the log like any other, so it
//! never holds up a run.

use super::following::Log;
use crate::connect::writer::Mark;
use crate::follow::{FollowError, Follower};
use crate::lines::{Format, Writer};

/// The lines of a log from its first epoch on.
pub(super) struct Feed {
    follower: Follower,
    writer: Writer,
}

/// What an epoch is told as.
pub(super) struct Published {
    pub(super) mark: Mark,
    /// The lines of all views and keys, each with its line end.
    pub(super) lines: Vec<u8>,
}

impl Feed {
    /// # Errors
    /// [`FollowError::State`], too where no run has begun the log yet.
    pub(super) fn open(log: &Log, format: Format) -> Result<Self, FollowError> {
        let follower = Follower::open(&log.directory, &log.subject, &[])?;
        Ok(Feed { follower, writer: Writer::new(&log.subject, format) })
    }

    /// The last epoch that was read.
    pub(super) fn read(&self) -> u64 {
        self.follower.last()
    }

    /// The next epoch if it has been published, with its lines if it comes after `known`.
    pub(super) fn next(&mut self, known: u64) -> Result<Option<Published>, FollowError> {
        let Some(epoch) = self.follower.next(|epoch, _| epoch > known)? else { return Ok(None) };
        let mut lines = Vec::new();
        self.writer.write(&epoch, &mut lines).expect("memory takes every line");
        let (generation, chain) = (epoch.stamp.generation, epoch.stamp.chain.short());
        Ok(Some(Published { mark: Mark { epoch: epoch.number, generation, chain }, lines }))
    }
}
