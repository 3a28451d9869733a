//! Hands the clock of a source to the process that holds the next rows, and takes it back.
//!
//! The lengths of messages say nothing about rows. The state has one length. Keys and epochs of
//! records are padded to the number of rows. How many marks close epochs together depends on event
//! times, so marks are padded to the most that there can be: one for each epoch that the public
//! clock has closed. A mark ends with an epoch that the clock has reached, or before the first row
//! of a later epoch. So there is at most one for each row, one for each first row of an epoch among
//! them, and one for each first row in the state.

use std::collections::VecDeque;
use std::sync::Arc;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::{ParsedRange, RangePlan, RangeSupply};
use crate::pipeline::{Pipeline, Source};
use crate::source::clock::{ClockState, SENT_FIRSTS};
use crate::source::content::RowRules;
use crate::source::{
    BATCH_RECORDS, EpochMark, RangeCursor, ResumePoint, RowCounters, RowSurvey, SourceReader,
};
use crate::state::Position;

/// All that later rows need to know about the rows before them. Private.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ReaderState {
    clock: ClockState,
    pub(super) counters: RowCounters,
    leap_notice: LeapNotice,
    has_started: bool,
    /// See [`SourceReader::reading_on`].
    reads_on: u64,
    /// Whether the result must list the records.
    needs_records: bool,
    /// The survey, [padded](RowSurvey::padded).
    survey: Vec<u8>,
}

/// How the operator was informed of a row whose clock leaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LeapNotice {
    /// Not yet.
    #[default]
    None,
    /// The clock leaps.
    Leap,
    /// The newest rows come first.
    NewestFirst,
}

/// What a process needs to take the rows of a range that it holds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RangeHandover {
    /// Index of the range in the plan of all files.
    pub(crate) range: usize,
    /// The part of that plan about this range.
    pub(super) plan: RangePlan,
    /// The position of the first row.
    pub(super) start: Position,
    pub(super) state: ReaderState,
}

/// What has become of the rows of a range.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RangeResult {
    /// Closed epochs, and the counters then; behind them, padding that closes epoch 0.
    pub(super) marks: VecDeque<(EpochMark, RowCounters)>,
    /// Keys and epochs of the records, if they are needed; behind them, as many of epoch 0 as rows
    /// hold none.
    records: Records,
    /// The state after the last row that was taken.
    pub(super) state: ReaderState,
    /// Why a row can't be taken.
    pub(super) fault: Option<String>,
}

/// Results of another process that this one has not reported yet.
#[derive(Default)]
pub(in crate::source) struct ReturnedRows {
    pub(in crate::source) marks: VecDeque<(EpochMark, RowCounters)>,
    /// The counters after all marks.
    pub(in crate::source) counters: Option<RowCounters>,
    pub(in crate::source) fault: Option<String>,
}

impl SourceReader {
    /// Returns all that later rows need to know.
    pub(in crate::source) fn state(&self) -> ReaderState {
        ReaderState {
            clock: self.epochs.state(),
            counters: self.counters,
            leap_notice: self.leap_notice,
            has_started: self.has_started,
            reads_on: self.reads_on,
            needs_records: self.needs_records,
            survey: self.survey.padded(),
        }
    }

    /// Continues where another reader of the same source has stopped.
    fn restore(&mut self, state: ReaderState) {
        self.epochs.restore(state.clock);
        (self.counters, self.leap_notice) = (state.counters, state.leap_notice);
        (self.has_started, self.reads_on) = (state.has_started, state.reads_on);
        let survey = RowSurvey::of_padded(&state.survey);
        if let Some(survey) = survey.filter(|survey| survey.columns.len() == self.survey.columns.len()) {
            // Unlisted keys of other processes are not sent.
            let unlisted_keys = std::mem::take(&mut self.survey.unlisted_keys);
            self.survey = RowSurvey { unlisted_keys, ..survey };
        }
    }

    /// Takes the clock back after rows that another process has taken.
    pub(in crate::source) fn take_back(&mut self, result: RangeResult) {
        let RangeResult { mut marks, mut records, state, fault } = result;
        marks.retain(|(mark, _)| mark.epoch > 0);
        let number = records.epochs.partition_point(|&epoch| epoch > 0);
        records.keys.truncate(number);
        records.epochs.truncate(number);
        self.batch.elsewhere.append(records);
        let rows = state.counters.rows.saturating_sub(self.counters.rows);
        self.pending_rows += usize::try_from(rows).unwrap_or(usize::MAX);
        self.notice_leap(state.leap_notice);
        self.returned = ReturnedRows { marks, counters: Some(state.counters), fault };
        // Counters never fall: those of the marks come first.
        let counters = self.counters;
        self.restore(state);
        self.counters = counters;
    }
}

/// Takes the rows of ranges in the process that holds them.
pub(crate) struct RangeTaker(SourceReader);

impl RangeTaker {
    /// Takes rows of a source that is [read in ranges](crate::source::is_ranged).
    pub(crate) fn new(read: (&Pipeline, &Source)) -> Option<Self> {
        Some(RangeTaker(SourceReader::of_others(read)?))
    }

    /// Takes the rows of a range, as one reader would after the rows before them. Returns the
    /// records, and what to send back.
    pub(crate) fn take(&mut self, handover: RangeHandover, range: ParsedRange) -> (HeldRecords, RangeResult) {
        let RangeHandover { plan, start, state, .. } = handover;
        let (RangeTaker(reader), rows, needs_records) = (self, range.extent.rows, state.needs_records);
        reader.restore(state);
        reader.survey.unlisted_keys.clear();
        reader.rows.park(start);
        let cursor = RangeCursor::new(plan, Box::new(OneRange(Some(range))), 0);
        reader.ranges = Some(cursor.leaving_values());
        let closed = reader.epochs.closed();
        let (mut kept, mut marks, mut fault) = (Vec::new(), VecDeque::new(), None);
        for _ in 0..rows {
            if reader.has_ended() {
                break;
            }
            let (records, taken) = (reader.batch.len(), reader.advance());
            if reader.batch.len() > records {
                kept.extend(reader.ranges.as_ref().map(RangeCursor::last_record));
            }
            if let Err(error) = taken {
                fault = Some(error.to_string());
                break;
            }
            marks.extend(std::iter::from_fn(|| reader.mark()));
        }
        let most = (reader.epochs.closed() - closed).min(2 * rows + SENT_FIRSTS as u64);
        let (resume, read) = (ResumePoint::START, Position::START);
        let padding = EpochMark { epoch: 0, due: 0, resume, rows: 0, read };
        let most = usize::try_from(most).unwrap_or(0).max(marks.len());
        marks.resize(most, (padding, RowCounters::default()));
        let taken = reader.take_batch().records;
        let mut records = Records::default();
        if needs_records {
            (records.keys, records.epochs) = (taken.keys.clone(), taken.epochs.clone());
            let rows = usize::try_from(rows).unwrap_or(0).max(records.len());
            records.keys.resize(rows, 0);
            records.epochs.resize(rows, 0);
        }
        let result = RangeResult { marks, records, state: reader.state(), fault };
        let range = reader.ranges.take().and_then(RangeCursor::into_range).unwrap_or_default();
        (HeldRecords { range, kept, records: taken, given: 0, rules: Arc::clone(&reader.rules) }, result)
    }
}

/// The records of a range, in batches. Their values are copied batch by batch, because a batch that
/// is soon given away and freed needs no fresh memory.
pub(crate) struct HeldRecords {
    range: ParsedRange,
    /// Indices of these records in the range.
    kept: Vec<usize>,
    /// The records without values.
    records: Records,
    /// Number of records that were returned.
    given: usize,
    rules: Arc<RowRules>,
}

impl Iterator for HeldRecords {
    type Item = Records;

    fn next(&mut self) -> Option<Records> {
        let (from, to) = (self.given, self.kept.len().min(self.given + BATCH_RECORDS));
        if from == to {
            return None;
        }
        self.given = to;
        let Records { keys, epochs, entities, positions, .. } = &self.records;
        let held = &self.range.held;
        let mut values = Vec::with_capacity((to - from) * held.width);
        for (&record, &key) in self.kept[from..to].iter().zip(&keys[from..to]) {
            let start = values.len();
            values.extend_from_slice(&held.values[record * held.width..][..held.width]);
            self.rules.key_bounds.scale(key, &mut values[start..]);
        }
        Some(Records {
            keys: keys[from..to].to_vec(),
            epochs: epochs[from..to].to_vec(),
            values,
            entities: entities.get(from..to).unwrap_or_default().to_vec(),
            positions: positions.get(from..to).unwrap_or_default().to_vec(),
        })
    }
}

/// A range that is taken in this process.
struct OneRange(Option<ParsedRange>);

impl RangeSupply for OneRange {
    fn take(&mut self, _range: usize) -> Option<ParsedRange> {
        self.0.take()
    }

    fn want(&mut self, _range: usize) {}

    fn is_ready(&self, _range: usize) -> bool {
        false
    }

    fn hand_over(&mut self, _holder: usize, _handover: RangeHandover) {}

    fn take_back(&mut self) -> Option<RangeResult> {
        None
    }
}
