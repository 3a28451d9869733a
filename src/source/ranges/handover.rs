//! Hands the clock of a source to the process that holds the next rows, and takes it back.
//!
//! Messages say nothing about rows by their length: the state has one length, there are as many
//! marks as the public clock has closed epochs, and keys and epochs of records are padded to the
//! number of rows.

use std::collections::VecDeque;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::{ParsedRange, RangePlan, RangeSupply};
use crate::pipeline::{Pipeline, Source};
use crate::source::clock::ClockState;
use crate::source::{BATCH_RECORDS, EpochMark, RangeCursor, RowCounters, RowSurvey, SourceReader};
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
    /// Closed epochs, and the counters then.
    pub(super) marks: VecDeque<(EpochMark, RowCounters)>,
    /// Keys and epochs of the records, if they are needed; behind them, as many of epoch 0 as rows
    /// hold none.
    records: Records,
    /// The state after the last row that was taken.
    pub(super) state: ReaderState,
    /// Why a row can't be taken.
    fault: Option<String>,
}

/// What another process has come to and this one has not reported yet.
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
            // Those of other processes are not sent.
            let unlisted_keys = std::mem::take(&mut self.survey.unlisted_keys);
            self.survey = RowSurvey { unlisted_keys, ..survey };
        }
    }

    /// Takes the clock back after rows that another process has taken.
    pub(in crate::source) fn take_back(&mut self, result: RangeResult) {
        let RangeResult { marks, mut records, state, fault } = result;
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
    /// records in batches, and what to send back.
    pub(crate) fn take(
        &mut self,
        handover: RangeHandover,
        range: ParsedRange,
    ) -> (Vec<Records>, RangeResult) {
        let RangeHandover { plan, start, state, .. } = handover;
        let (RangeTaker(reader), rows, needs_records) = (self, range.extent.rows, state.needs_records);
        reader.restore(state);
        reader.survey.unlisted_keys.clear();
        reader.rows.park(start);
        reader.ranges = Some(RangeCursor::new(plan, Box::new(OneRange(Some(range))), 0));
        let (mut batches, mut marks, mut fault) = (Vec::new(), VecDeque::new(), None);
        for _ in 0..rows {
            if reader.has_ended() {
                break;
            }
            if let Err(error) = reader.advance() {
                fault = Some(error.to_string());
                break;
            }
            marks.extend(std::iter::from_fn(|| reader.mark()));
            if reader.batch.len() >= BATCH_RECORDS {
                batches.push(reader.take_batch().records);
            }
        }
        batches.push(reader.take_batch().records);
        let mut records = Records::default();
        if needs_records {
            for batch in &batches {
                records.keys.extend(&batch.keys);
                records.epochs.extend(&batch.epochs);
            }
            let rows = usize::try_from(rows).unwrap_or(0).max(records.len());
            records.keys.resize(rows, 0);
            records.epochs.resize(rows, 0);
        }
        (batches, RangeResult { marks, records, state: reader.state(), fault })
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
