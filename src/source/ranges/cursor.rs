//! Takes rows that were parsed ahead, in ranges, in the order of the file.

use super::handover::{RangeHandover, RangeResult, ReaderState};
use super::{ParsedOutcome, ParsedRange, ParsedRow, RangePlan, RangeSupply};
use crate::connect::SourceError;
use crate::source::RowSurvey;
use crate::source::content::{RowContent, RowOutcome, UnusableRow};
use crate::source::rows::RowReader;
use crate::state::Position;

/// The way to get the next row.
pub(crate) enum RowAccess {
    /// The row is parsed.
    Parsed,
    /// Another process holds the range of the row, and takes its rows once it has the clock.
    Elsewhere,
    /// Another process has taken the rows of the range.
    Taken(Box<RangeResult>),
    /// The range of the row is not parsed, or not taken yet.
    Wait,
    /// The row must be read from the file.
    Read,
}

/// Takes rows that are parsed ahead, if they continue the previous rows without a gap.
pub(crate) struct RangeCursor {
    plan: RangePlan,
    supply: Box<dyn RangeSupply>,
    /// Rows before this number are read from the file one by one.
    first_row: u64,
    /// The stretch that holds the next row, or a later one.
    next: usize,
    /// Whether the rest of that stretch must be read.
    is_refused: bool,
    current: Option<CurrentRange>,
    /// Whether the process that holds the current range has the clock.
    is_away: bool,
    /// Whether values stay in the range when its rows are taken.
    leaves_values: bool,
}

/// A range whose rows are being taken.
struct CurrentRange {
    range: ParsedRange,
    /// Position of its first row.
    start: Position,
    /// Rows and records taken.
    rows: usize,
    records: usize,
}

/// A row that was parsed ahead.
#[derive(Clone, Copy)]
pub(crate) struct TakenRow {
    row: ParsedRow,
    /// Number of records before it in the range.
    record: usize,
    /// The line where it begins.
    pub(crate) line: u64,
}

impl TakenRow {
    /// Returns its clock value, if a column moves the clock.
    pub(crate) fn clock(&self, has_clock: bool) -> Result<Option<i64>, UnusableRow> {
        match self.row.outcome {
            ParsedOutcome::NoClock(unusable) => Err(unusable),
            _ => Ok(has_clock.then_some(self.row.clock)),
        }
    }
}

impl RangeCursor {
    pub(crate) fn new(plan: RangePlan, supply: Box<dyn RangeSupply>, first_row: u64) -> Self {
        let (next, is_refused, is_away, leaves_values) = (0, false, false, false);
        RangeCursor { plan, supply, first_row, next, is_refused, current: None, is_away, leaves_values }
    }

    /// Leaves values in the range when its rows are taken.
    pub(super) fn leaving_values(self) -> Self {
        RangeCursor { leaves_values: true, ..self }
    }

    /// Index in the range of the last record that was taken.
    pub(super) fn last_record(&self) -> usize {
        self.current.as_ref().map_or(0, |current| current.records.saturating_sub(1))
    }

    /// Returns the current range.
    pub(super) fn into_range(self) -> Option<ParsedRange> {
        self.current.map(|current| current.range)
    }

    /// Determines the way to get the next row, which has the number `row`. If the row must be read,
    /// moves `rows` to its position. Adds the survey of a new range to `survey`.
    pub(crate) fn next_row(
        &mut self,
        rows: &mut RowReader,
        row: u64,
        survey: &mut RowSurvey,
    ) -> Result<RowAccess, SourceError> {
        loop {
            if let Some(current) = &self.current {
                let result = if self.is_away { self.supply.take_back() } else { None };
                if self.is_away && result.is_none() {
                    return Ok(RowAccess::Wait);
                }
                if current.rows < current.range.rows.len() {
                    return Ok(RowAccess::Parsed);
                }
                rows.park(self.end_of(current));
                (self.current, self.is_away, self.is_refused) = (None, false, true);
                if let Some(result) = result {
                    return Ok(RowAccess::Taken(Box::new(result)));
                }
            }
            if row < self.first_row {
                return Ok(RowAccess::Read);
            }
            let position = rows.settle()?;
            let stretches = &self.plan.stretches;
            while stretches.get(self.next).is_some_and(|next| self.plan.is_before(next, position)) {
                self.next += 1;
                self.is_refused = false;
            }
            let next = stretches.get(self.next).filter(|next| self.plan.holds(next, position));
            let Some(stretch) = next.filter(|_| !self.is_refused) else { return Ok(RowAccess::Read) };
            if self.plan.is_missed(stretch, position) {
                self.is_refused = true;
                self.supply.want(self.next + 1);
                return Ok(RowAccess::Read);
            }
            let Some(mut range) = self.supply.take(self.next) else { return Ok(RowAccess::Wait) };
            let extent = &range.extent;
            let follows = extent.start == self.plan.offset(position) && extent.end > extent.start;
            if !extent.is_parsed || !follows || self.plan.is_cut_short(stretch, extent) {
                self.is_refused = true;
                return Ok(RowAccess::Read);
            }
            survey.merge(&std::mem::take(&mut range.held.survey));
            let is_elsewhere = range.holder.is_some() && extent.rows > 0;
            self.current = Some(CurrentRange { range, start: position, rows: 0, records: 0 });
            if is_elsewhere {
                return Ok(RowAccess::Elsewhere);
            }
        }
    }

    /// Hands the clock to the process that holds the current range.
    pub(crate) fn hand_over(&mut self, state: ReaderState) {
        let Some(CurrentRange { range, start, .. }) = &self.current else { return };
        let Some(holder) = range.holder else { return };
        let plan = self.plan.of_one(self.next);
        self.supply.hand_over(holder, RangeHandover { range: self.next, plan, start: *start, state });
        self.is_away = true;
    }

    /// The position after a range: the beginning of the next file, if there is one.
    fn end_of(&self, CurrentRange { range, start, .. }: &CurrentRange) -> Position {
        let extent = &range.extent;
        match self.plan.passes_to_next_file(start.part, extent) {
            true => Position::new(start.part + 1, 0),
            false => self.plan.position(*start, extent.end, extent.lines),
        }
    }

    /// Whether the next row is parsed and here.
    pub(crate) fn has_row(&self) -> bool {
        let next = match &self.current {
            Some(_) if self.is_away => return false,
            Some(current) if current.rows < current.range.rows.len() => return true,
            Some(_) => self.next + 1,
            None if self.is_refused => return false,
            None => self.next,
        };
        next < self.plan.stretches.len() && self.supply.is_ready(next)
    }

    /// Takes the next row after [`RowAccess::Parsed`], with the position before it.
    pub(crate) fn take(&mut self) -> Option<(Position, TakenRow)> {
        let position = self.position()?;
        let current = self.current.as_mut()?;
        let row = *current.range.rows.get(current.rows)?;
        let taken = TakenRow { row, record: current.records, line: self.plan.line(position) };
        current.rows += 1;
        current.records += usize::from(row.is_record());
        Some((position, taken))
    }

    /// The position of the next row, in a range whose rows are being taken.
    pub(crate) fn position(&self) -> Option<Position> {
        let CurrentRange { range, start, rows, .. } = self.current.as_ref()?;
        let extent = &range.extent;
        Some(match range.rows.get(*rows) {
            Some(row) => self.plan.position(*start, extent.start + u64::from(row.start), row.line.into()),
            None => self.plan.position(*start, extent.end, extent.lines),
        })
    }

    /// Returns the content of a row, and adds the values of a record to `values`, unless they stay
    /// in the range.
    pub(crate) fn content(&self, taken: &TakenRow, values: &mut Vec<f64>) -> RowContent {
        let ParsedRow { event, key, outcome, .. } = taken.row;
        let (event, outcome) = match outcome {
            ParsedOutcome::NoEvent(unusable) | ParsedOutcome::NoClock(unusable) => {
                (None, RowOutcome::Unusable(unusable))
            }
            ParsedOutcome::Content(outcome) => (Some(event), outcome),
        };
        let mut content = RowContent { event, outcome, key, entity: None, fingerprint: None };
        if let Some(CurrentRange { range: ParsedRange { held, .. }, .. }) = &self.current
            && taken.row.is_record()
        {
            let width = if self.leaves_values { 0 } else { held.width };
            values.extend_from_slice(&held.values[taken.record * width..][..width]);
            content.entity = held.entities.get(taken.record).copied();
            content.fingerprint = held.fingerprints.get(taken.record).copied();
        }
        content
    }
}
