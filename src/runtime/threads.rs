//! Readers of sources and partitions on threads of their own.

use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};
use hushflow_operators::Fault;
use serde::{Deserialize, Serialize};

use super::readers::RemoteReader;
use crate::check::FIRST_ROWS;
use crate::source::{RowCounters, RowSurvey, SourceError, SourceEvent, SourceReader};

/// Maximum number of waiting events of a reader.
pub(super) const WAITING_EVENTS: usize = 4;

/// An event of a reader, and how far it has come.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ReaderEvent<E = Result<SourceEvent, SourceError>, S = Box<RowSurvey>> {
    pub(super) event: E,
    /// The number of its next row.
    pub(super) next_row: u64,
    pub(super) counters: RowCounters,
    /// The counters without rows that an earlier run has judged.
    pub(super) unjudged: RowCounters,
    /// Survey of its rows, after the first rows and at the end.
    pub(super) survey: Option<S>,
    /// Number of partitions that another process, where it is read, has found; 0 in this one.
    pub(super) partitions: u32,
}

impl ReaderEvent {
    /// Waits for the next event.
    pub(super) fn next(reader: &mut SourceReader) -> Self {
        let event = reader.next_event();
        let counters = *reader.counters();
        let is_first = reader.unjudged().rows <= 2 * FIRST_ROWS;
        let is_last = matches!(event, Err(_) | Ok(SourceEvent::End));
        let survey = (is_first || is_last).then(|| Box::new(reader.survey().clone()));
        let (next_row, unjudged) = (reader.next_row(), reader.unjudged());
        ReaderEvent { event, next_row, counters, unjudged, survey, partitions: 0 }
    }

    /// The event of a reader that can't be opened.
    pub(super) fn failed(fault: SourceError) -> Self {
        let (counters, unjudged) = Default::default();
        ReaderEvent { event: Err(fault), next_row: 0, counters, unjudged, survey: None, partitions: 0 }
    }

    /// Whether no other event follows.
    pub(super) fn is_last(&self) -> bool {
        matches!(self.event, Err(_) | Ok(SourceEvent::End))
    }
}

impl<E, S> ReaderEvent<E, S> {
    /// Converts the event and the survey.
    pub(super) fn map<F, T>(
        self,
        event: impl FnOnce(E) -> F,
        survey: impl FnOnce(S) -> T,
    ) -> ReaderEvent<F, T> {
        let ReaderEvent { next_row, counters, unjudged, partitions, .. } = self;
        let (event, survey) = (event(self.event), self.survey.map(survey));
        ReaderEvent { event, next_row, counters, unjudged, survey, partitions }
    }
}

/// A reader on a thread of its own, in this process or another one.
pub(super) struct ReaderThread {
    pub(super) events: Receiver<ReaderEvent>,
    /// The other process, if one reads.
    pub(super) elsewhere: Option<RemoteReader>,
    /// Time of its last event.
    pub(super) last: Instant,
    pub(super) counters: RowCounters,
    pub(super) survey: Box<RowSurvey>,
}

impl ReaderThread {
    /// Begins to read.
    pub(super) fn start(reader: SourceReader, fault: &Fault) -> Self {
        let (sender, events) = bounded(WAITING_EVENTS);
        // Never joined: it may wait for a source that stays silent.
        let started = std::thread::Builder::new().spawn(move || forward(reader, &sender));
        if let Err(error) = started {
            fault.raise(format_args!("no thread for a source: {error}"));
        }
        Self::receiving(events, None)
    }

    /// Receives the events of a reader.
    pub(super) fn receiving(events: Receiver<ReaderEvent>, elsewhere: Option<RemoteReader>) -> Self {
        let (counters, survey) = (RowCounters::default(), Box::default());
        ReaderThread { events, elsewhere, last: Instant::now(), counters, survey }
    }

    pub(super) fn is_silent(&self, timeout: Duration) -> bool {
        self.events.is_empty() && self.last.elapsed() >= timeout
    }
}

/// Sends all events of a reader, until it ends, fails or the receiver is gone.
fn forward(mut reader: SourceReader, sender: &Sender<ReaderEvent>) {
    loop {
        let event = ReaderEvent::next(&mut reader);
        let is_last = event.is_last();
        if sender.send(event).is_err() || is_last {
            return;
        }
    }
}
