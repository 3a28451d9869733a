//! Streams of a server: a message for each line, whose id `epoch-line` rises, so that no line can be there twice.

use super::SinkError;
use super::following::{Held, Outlet};
use crate::connect::writer::{Id, Writer};
use crate::connect::{StreamSink, Trouble};
use crate::control::Control;

/// A stream, and how far it has come.
pub(super) struct Stream {
    sink: StreamSink,
    writer: Box<dyn Writer>,
    /// The last line in it.
    last: Id,
    /// The last line of the last epoch that was written as a whole, by this sink since it began.
    done: Option<Id>,
}

impl Stream {
    pub(super) fn new(sink: StreamSink, control: &Control) -> Self {
        let writer = sink.stream().writer(control);
        Stream { sink, writer, last: (0, 0), done: None }
    }

    fn begin(&mut self) -> Result<Held, Trouble> {
        let (last, mark) = self.writer.open()?;
        self.last = last;
        let (epoch, _) = last;
        // As far as is known, there may be more lines of the last epoch to come.
        let whole = if self.done == Some(last) { epoch } else { epoch.saturating_sub(1) };
        Ok(Held { whole, last: mark })
    }

    fn write(&mut self, epoch: u64, lines: &[u8]) -> Result<(), Trouble> {
        let before = self.last;
        let ids = numbered(lines).map(|(number, line)| ((epoch, number), line));
        for batch in batches(ids.filter(|&(id, _)| id > before)) {
            self.writer.send(&batch, &mut |id| self.last = id)?;
        }
        self.done = Some(self.last);
        Ok(())
    }

    fn error(&self, trouble: Trouble) -> SinkError {
        SinkError::of(self.name(), trouble)
    }
}

impl Outlet for Stream {
    fn name(&self) -> String {
        self.sink.stream().name()
    }

    fn open(&mut self) -> Result<Held, SinkError> {
        self.begin().map_err(|trouble| self.error(trouble))
    }

    fn append(&mut self, epoch: u64, lines: &[u8]) -> Result<(), SinkError> {
        self.write(epoch, lines).map_err(|trouble| self.error(trouble))
    }
}

/// The lines of an epoch with their numbers in it, from 0.
fn numbered(lines: &[u8]) -> impl Iterator<Item = (u64, &str)> {
    let text = std::str::from_utf8(lines).expect("JSON is UTF-8");
    (0..).zip(text.lines())
}

/// The most lines that are sent before their answers are read, and the most bytes, unless one line alone has more.
const BATCH_LINES: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Lines in parts of no more than that.
fn batches<'a>(lines: impl Iterator<Item = (Id, &'a str)>) -> impl Iterator<Item = Vec<(Id, &'a str)>> {
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
    fn batches_are_bounded_and_in_order() {
        let long = "x".repeat(BATCH_BYTES);
        let lines = [vec!["a"; 300], vec![long.as_str(), "b"]].concat().join("\n");
        let ids = numbered(lines.as_bytes()).map(|(number, line)| ((7, number), line));
        let batches: Vec<_> = batches(ids).collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [256, 44, 1, 1]);
        assert!(batches.concat().iter().map(|(id, _)| *id).eq((0..302).map(|number| (7, number))));
    }
}
