//! Takes rows that were parsed ahead, in ranges, in the order of the file.

use super::{ParsedFate, ParsedRange, ParsedRow, RangePlan, RangeSupply};
use crate::connect::SourceError;
use crate::source::RowSurvey;
use crate::source::content::{RowContent, RowFate, UnusableRow};
use crate::source::rows::RowReader;
use crate::state::Position;

/// The way to get the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowAccess {
    /// The row is parsed.
    Parsed,
    /// The range of the row is not parsed yet.
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
    /// A range that another process holds and that is not used, with the number of that process.
    unused: Option<(usize, usize)>,
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
    /// Index of its stretch in the plan, and its index in the range.
    pub(crate) range: usize,
    pub(crate) index: usize,
    /// Number of records before it in the range.
    record: usize,
    /// The line where it begins.
    pub(crate) line: u64,
    /// Whether its values are in this process, and the process that holds them if not.
    pub(crate) is_here: bool,
    pub(crate) holder: usize,
}

impl TakenRow {
    /// The index of its key.
    pub(crate) fn key(&self) -> u32 {
        self.row.key
    }

    /// Returns its clock value, if a column moves the clock.
    pub(crate) fn clock(&self, has_clock: bool) -> Result<Option<i64>, UnusableRow> {
        match self.row.fate {
            ParsedFate::NoClock(unusable) => Err(unusable),
            _ => Ok(has_clock.then_some(self.row.clock)),
        }
    }
}

impl RangeCursor {
    pub(crate) fn new(plan: RangePlan, supply: Box<dyn RangeSupply>, first_row: u64) -> Self {
        RangeCursor { plan, supply, first_row, next: 0, is_refused: false, current: None, unused: None }
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
                if current.rows < current.range.rows.len() {
                    return Ok(RowAccess::Parsed);
                }
                rows.park(self.end_of(current));
                (self.current, self.is_refused) = (None, true);
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
            let follows = range.start == self.plan.offset(position) && range.end > range.start;
            if !range.is_parsed || !follows || self.plan.is_cut_short(stretch, &range) {
                self.is_refused = true;
                let is_elsewhere = range.is_parsed && range.held.is_none();
                self.unused = is_elsewhere.then_some((self.next, range.holder));
                return Ok(RowAccess::Read);
            }
            if let Some(held) = &mut range.held {
                survey.merge(&std::mem::take(&mut held.survey));
            }
            self.current = Some(CurrentRange { range, start: position, rows: 0, records: 0 });
        }
    }

    /// Returns a range that its holder may discard, with the number of that process.
    pub(crate) fn take_unused(&mut self) -> Option<(usize, usize)> {
        self.unused.take()
    }

    /// The position after a range: the beginning of the next file, if there is one.
    fn end_of(&self, CurrentRange { range, start, .. }: &CurrentRange) -> Position {
        match self.plan.passes_to_next_file(start.part, range) {
            true => Position::new(start.part + 1, 0),
            false => self.plan.position(*start, range.end, range.lines),
        }
    }

    /// Whether the next row is parsed.
    pub(crate) fn has_row(&self) -> bool {
        let next = match &self.current {
            Some(current) if current.rows < current.range.rows.len() => return true,
            Some(_) => self.next + 1,
            None if self.is_refused => return false,
            None => self.next,
        };
        next < self.plan.stretches.len() && self.supply.is_ready(next)
    }

    /// Takes the next row after [`RowAccess::Parsed`], with the position before it, and moves `rows`
    /// to the position after it.
    pub(crate) fn take(&mut self, rows: &mut RowReader) -> Option<(Position, TakenRow)> {
        let current = self.current.as_mut()?;
        let row = *current.range.rows.get(current.rows)?;
        let (plan, range, start) = (&self.plan, &current.range, current.start);
        let at =
            |row: &ParsedRow| plan.position(start, range.start + u64::from(row.start), u64::from(row.line));
        let position = at(&row);
        let next = range.rows.get(current.rows + 1);
        rows.park(next.map_or_else(|| plan.position(start, range.end, range.lines), at));
        let taken = TakenRow {
            row,
            range: self.next,
            index: current.rows,
            record: current.records,
            line: self.plan.line(position),
            is_here: current.range.held.is_some(),
            holder: current.range.holder,
        };
        current.rows += 1;
        current.records += usize::from(row.is_record());
        Some((position, taken))
    }

    /// Returns the content of a row, and adds the values of a record to `values`, if they are in
    /// this process.
    pub(crate) fn content(&self, taken: &TakenRow, values: &mut Vec<f64>) -> RowContent {
        let ParsedRow { event, key, fate, .. } = taken.row;
        let (event, fate) = match fate {
            ParsedFate::NoEvent(unusable) | ParsedFate::NoClock(unusable) => {
                (None, RowFate::Unusable(unusable))
            }
            ParsedFate::Content(fate) => (Some(event), fate),
        };
        let mut content = RowContent { event, fate, key, entity: None, fingerprint: None };
        let held = self.current.as_ref().and_then(|current| current.range.held.as_ref());
        if let Some(held) = held.filter(|_| taken.row.is_record()) {
            let start = taken.record * held.width;
            values.extend_from_slice(&held.values[start..start + held.width]);
            content.entity = held.entities.get(taken.record).copied();
            content.fingerprint = held.fingerprints.get(taken.record).copied();
        }
        content
    }
}
