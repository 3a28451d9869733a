//! What a sink gives to a system: lines with rising ids, so that no line can be there twice.

use std::fmt;

use serde_json::Value;

pub(crate) use super::id::Id;
use super::{Equal, Trouble};
use crate::control::Control;

/// A stream as a sink of the pipeline names it, which is for this sink alone.
pub(crate) trait Writes: Equal + fmt::Debug + Send + Sync {
    /// The system and the stream, in messages: without a secret.
    fn name(&self) -> String;

    /// Where lines go: two sinks of the same place are refused.
    fn place(&self) -> String;

    /// What writes there, for as long as `control` waits. It connects when it is opened.
    fn writer(&self, control: &Control) -> Box<dyn Writer>;
}

/// What differs from system to system.
pub(crate) trait Writer: Send {
    /// Connects anew: the id of the last line that the stream has had, and what the last one that
    /// is there tells.
    fn open(&mut self) -> Result<(Id, Option<Mark>), Trouble>;

    /// Sends lines with their ids; `taken` hears of each that the system has taken.
    fn send(&mut self, lines: &[(Id, &str)], taken: &mut dyn FnMut(Id)) -> Result<(), Trouble>;
}

/// What tells an epoch from that of another history. Every line holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) chain: String,
}

impl Mark {
    /// What a line says, if it is one of ours.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let chain = value["chain"].as_str()?.into();
        Some(Mark { epoch: value["epoch"].as_u64()?, generation: value["generation"].as_u64()?, chain })
    }

    /// Whether one log can hold both: the run that drew a later epoch is never an earlier one.
    pub(crate) fn agrees(&self, other: &Mark) -> bool {
        match self.epoch.cmp(&other.epoch) {
            std::cmp::Ordering::Less => self.generation <= other.generation,
            std::cmp::Ordering::Equal => self == other,
            std::cmp::Ordering::Greater => self.generation >= other.generation,
        }
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
