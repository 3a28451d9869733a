//! Sinks as named in a pipeline, and their writers.
//!
//! Lines get rising ids `epoch-line` on a server, so that no line appears twice.

use std::fmt;

use serde_json::Value;

pub(super) use super::wire::EntryId;
use super::{DynamicEq, RequestError};
use crate::control::Control;
use crate::estimates::EstimateRecord;
use crate::http::HttpEndpoint;

/// A sink as named in a pipeline. No other writer may use its destination.
pub(crate) trait SinkConfig: DynamicEq + fmt::Debug + Send + Sync {
    /// The sink's name for messages, without a secret.
    fn name(&self) -> String;

    /// Destination of the lines, if known: two sinks with the same destination are refused.
    fn destination(&self) -> Option<String> {
        Some(self.name())
    }

    /// Returns the target. An outlet waits as long as `control` allows.
    fn target(&self, control: &Control) -> SinkTarget;

    /// Connects and logs in as the outlet does, or looks at the files, and asks for the right to
    /// write as far as the system can tell. Writes nothing.
    fn probe(&self, control: &Control) -> Result<(), RequestError>;
}

/// The target of a sink.
pub(crate) enum SinkTarget {
    /// JSON lines are written.
    Lines(Box<dyn Outlet<[u8]>>),
    /// Records are written as a table.
    Records(Box<dyn Outlet<[EstimateRecord]>>),
    /// Events are served at this address to anyone who connects.
    Events(HttpEndpoint),
}

/// A destination of epochs, as lines or as records.
pub(crate) trait Outlet<C: ?Sized>: Send {
    /// Opens the destination, for the first time or again after an error, and returns its content.
    fn open(&mut self) -> Result<OutletContent, RequestError>;

    /// Writes the epoch after the last whole one, and skips the lines that are already written.
    fn append(&mut self, epoch: &EpochStamp, content: &C) -> Result<(), RequestError>;

    /// Writes buffered content, after everything published has been appended.
    fn settle(&mut self) -> Result<(), RequestError> {
        Ok(())
    }
}

/// Contents of an outlet before anything is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutletContent {
    /// Last epoch up to which all epochs are complete.
    pub(crate) whole: u64,
    /// Stamp of the last epoch that is there at least in part.
    pub(crate) last: Option<EpochStamp>,
}

/// The server-specific part of an outlet.
pub(super) trait ServerWriter: Send {
    /// Reconnects. Returns the id of the last line ever written to the stream, and the stamp of the
    /// last line still in it.
    fn open(&mut self) -> Result<(EntryId, Option<EpochStamp>), RequestError>;

    /// Sends lines with their ids. Calls `acknowledge` for each line that the system has stored.
    fn send(
        &mut self,
        lines: &[(EntryId, &str)],
        acknowledge: &mut dyn FnMut(EntryId),
    ) -> Result<(), RequestError>;
}

/// Identifies an epoch and its history. Every line contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EpochStamp {
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) chain: String,
}

impl EpochStamp {
    /// Returns the stamp of a line, if a sink wrote it.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let chain = value["chain"].as_str()?.into();
        Some(EpochStamp { epoch: value["epoch"].as_u64()?, generation: value["generation"].as_u64()?, chain })
    }

    /// Whether one log can hold both: the generation never falls from an epoch to a later one.
    pub(crate) fn agrees(&self, other: &EpochStamp) -> bool {
        match self.epoch.cmp(&other.epoch) {
            std::cmp::Ordering::Less => self.generation <= other.generation,
            std::cmp::Ordering::Equal => self == other,
            std::cmp::Ordering::Greater => self.generation >= other.generation,
        }
    }
}

/// A server's stream and the position up to which it is written.
pub(super) struct StreamOutlet<W> {
    writer: W,
    /// The last line in the stream.
    last: EntryId,
    /// The last line of the last epoch that this sink has written completely since it started.
    done: Option<EntryId>,
}

impl<W: ServerWriter + 'static> StreamOutlet<W> {
    pub(super) fn target(writer: W) -> SinkTarget {
        SinkTarget::Lines(Box::new(StreamOutlet { writer, last: (0, 0), done: None }))
    }
}

impl<W: ServerWriter> Outlet<[u8]> for StreamOutlet<W> {
    fn open(&mut self) -> Result<OutletContent, RequestError> {
        let (last, mark) = self.writer.open()?;
        self.last = last;
        let (epoch, _) = last;
        // Unless this sink has finished the last epoch, more of its lines may be missing.
        let whole = if self.done == Some(last) { epoch } else { epoch.saturating_sub(1) };
        Ok(OutletContent { whole, last: mark })
    }

    fn append(&mut self, stamp: &EpochStamp, lines: &[u8]) -> Result<(), RequestError> {
        let before = self.last;
        let ids = numbered(lines).map(|(number, line)| ((stamp.epoch, number), line));
        for batch in batches(ids.filter(|&(id, _)| id > before)) {
            self.writer.send(&batch, &mut |id| self.last = id)?;
        }
        self.done = Some(self.last);
        Ok(())
    }
}

/// The lines of an epoch, numbered from 0.
fn numbered(lines: &[u8]) -> impl Iterator<Item = (u64, &str)> {
    let text = std::str::from_utf8(lines).expect("JSON is UTF-8");
    (0..).zip(text.lines())
}

/// Limits of a batch sent before its answers are read: lines, and bytes unless one line alone has
/// more.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Splits lines into batches within these limits.
fn batches<'a>(
    lines: impl Iterator<Item = (EntryId, &'a str)>,
) -> impl Iterator<Item = Vec<(EntryId, &'a str)>> {
    let mut lines = lines.peekable();
    std::iter::from_fn(move || {
        let mut batch = vec![lines.next()?];
        let mut bytes = batch[0].1.len();
        while let Some(line) = lines.next_if(|(_, line)| {
            bytes += line.len();
            batch.len() < BATCH_LINES && bytes <= BATCH_BYTES
        }) {
            batch.push(line);
        }
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_agrees_only_with_its_own_history() {
        let mark = |epoch, generation, chain: &str| EpochStamp { epoch, generation, chain: chain.into() };
        let stamp = mark(5, 2, "a");
        let check = |other, expected| assert_eq!(stamp.agrees(&other), expected, "{other:?}");
        check(mark(5, 2, "a"), true);
        check(mark(5, 2, "b"), false);
        check(mark(5, 3, "a"), false);
        check(mark(6, 2, "c"), true);
        check(mark(6, 1, "c"), false);
        check(mark(4, 1, "c"), true);
        check(mark(4, 3, "c"), false);
    }

    #[test]
    fn lines_of_other_writers_have_no_stamp() {
        let line = br#"{"epoch":3,"key":"a","generation":1,"chain":"0a"}"#;
        assert_eq!(EpochStamp::of(line), Some(EpochStamp { epoch: 3, generation: 1, chain: "0a".into() }));
        assert!(
            ["", "{}", "[]", "{\"epoch\":3}", "\u{1}"]
                .iter()
                .all(|line| EpochStamp::of(line.as_bytes()).is_none())
        );
    }

    #[test]
    fn batches_are_bounded_and_in_order() {
        let long = "x".repeat(BATCH_BYTES);
        let lines = [vec!["a"; 300], vec![long.as_str(), "b"]].concat().join("\n");
        let ids = numbered(lines.as_bytes()).map(|(number, line)| ((7, number), line));
        let batches: Vec<_> = batches(ids).collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [256, 44, 1, 1]);
        assert!(batches.concat().iter().map(|(id, _)| *id).eq((0..302).map(|number| (7, number))));
    }
}
