//! The lines of a public log, epoch by epoch, for whatever writes them elsewhere: a reader of the log like any other, so it
//! never holds up a run.

use std::path::Path;

use serde_json::Value;

use super::SinkError;
use super::lines::{Lines, Subject};
use crate::state::PublicReader;

/// The lines of a log from its first epoch on.
pub(super) struct Feed {
    reader: PublicReader,
    lines: Lines,
    /// The last epoch that was read.
    read: u64,
}

/// What an epoch is told as.
pub(super) struct Published {
    pub(super) mark: Mark,
    /// The JSON lines of all views and keys, each with its line end.
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
    /// [`SinkError::State`], too where no run has begun the log yet.
    pub(super) fn open(state: &Path, subject: &Subject) -> Result<Self, SinkError> {
        Ok(Feed { reader: PublicReader::open(state)?, lines: Lines::new(subject), read: 0 })
    }

    /// The last epoch that was read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// The next epoch if it has been published, with its lines if it comes after `known`.
    pub(super) fn next(&mut self, known: u64) -> Result<Option<Published>, SinkError> {
        let Some(release) = self.reader.next_frame()? else { return Ok(None) };
        let lines = self.lines.of(&release, release.epoch > known)?;
        self.read = release.epoch;
        let (epoch, generation, chain) = (release.epoch, release.generation, release.chain.short());
        Ok(Some(Published { mark: Mark { epoch, generation, chain }, lines }))
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
