//! The lines of a public log, epoch by epoch, for whatever writes them elsewhere: a reader of the log like any other, so it
//! never holds up a run.

use serde_json::Value;

use super::following::Log;
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

/// What tells an epoch from that of another history. Every line holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) epoch: u64,
    pub(super) generation: u64,
    pub(super) chain: String,
}

impl Mark {
    /// What a line says, if it is one of ours.
    pub(super) fn of(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let chain = value["chain"].as_str()?.into();
        Some(Mark { epoch: value["epoch"].as_u64()?, generation: value["generation"].as_u64()?, chain })
    }

    /// Whether one log can hold both: the run that drew a later epoch is never an earlier one.
    pub(super) fn agrees(&self, other: &Mark) -> bool {
        match self.epoch.cmp(&other.epoch) {
            std::cmp::Ordering::Less => self.generation <= other.generation,
            std::cmp::Ordering::Equal => self == other,
            std::cmp::Ordering::Greater => self.generation >= other.generation,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_history_goes_back() {
        let mark = |epoch, generation, chain: &str| Mark { epoch, generation, chain: chain.into() };
        let held = mark(5, 2, "a");
        let check = |other, expected| assert_eq!(held.agrees(&other), expected, "{other:?}");
        check(mark(5, 2, "a"), true);
        check(mark(5, 2, "b"), false);
        check(mark(5, 3, "a"), false);
        check(mark(6, 2, "c"), true);
        check(mark(6, 1, "c"), false);
        check(mark(4, 1, "c"), true);
        check(mark(4, 3, "c"), false);
    }

    #[test]
    fn lines_of_others_are_no_marks() {
        let line = br#"{"epoch":3,"key":"a","generation":1,"chain":"0a"}"#;
        assert_eq!(Mark::of(line), Some(Mark { epoch: 3, generation: 1, chain: "0a".into() }));
        assert!(
            ["", "{}", "[]", "{\"epoch\":3}", "\u{1}"].iter().all(|line| Mark::of(line.as_bytes()).is_none())
        );
    }
}
