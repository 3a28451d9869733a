//! Parses a range: guesses where its first row begins, and reads its rows.

use std::io::{self, BufRead};
use std::sync::Arc;

use super::{
    FileStretch, HeldContent, MOST_ROWS, ParsedOutcome, ParsedRange, ParsedRow, PooledVec, RangeBuffers,
    RangeExtent, RangePlan,
};
use crate::connect::{SourceError, io_error};
use crate::format::Defect;
use crate::source::RowSurvey;
use crate::source::content::{RowOutcome, RowRules, UnusableRow};
use crate::source::rows::{RangeRow, RowReader};
use crate::state::Position;

/// Number of rows by which a guess is judged, and of consecutive ones among them that must be
/// whole.
const SHOWN_ROWS: usize = 16;
const WHOLE_ROWS: usize = 3;

/// Parses ranges of the files of a source.
pub(crate) struct RangeParser {
    rules: Arc<RowRules>,
    /// The wanted columns.
    columns: Vec<String>,
    rows: RowReader,
    buffers: RangeBuffers,
}

impl RangeParser {
    pub(in crate::source) fn new(
        rules: Arc<RowRules>,
        columns: Vec<String>,
        rows: RowReader,
        buffers: RangeBuffers,
    ) -> Self {
        RangeParser { rules, columns, rows, buffers }
    }

    /// Parses the stretch of a plan that another process has made, if the file is at least as long
    /// here as it is there.
    pub(crate) fn parse_planned(&mut self, plan: &RangePlan) -> ParsedRange {
        let [stretch] = &plan.stretches[..] else { return ParsedRange::default() };
        let found = self.rows.name_of(stretch.start.part).metadata();
        let is_same = found.is_ok_and(|found| found.len() >= plan.least_length(stretch));
        if is_same { self.parse(*stretch) } else { ParsedRange::default() }
    }

    /// Parses the rows that begin in a stretch.
    pub(crate) fn parse(&mut self, stretch: FileStretch) -> ParsedRange {
        let parsed = self.parse_guess(stretch).unwrap_or_default();
        self.rows.park(Position::START);
        parsed
    }

    fn parse_guess(&mut self, stretch: FileStretch) -> Result<ParsedRange, SourceError> {
        let Some(start) = self.first_row(stretch, false)? else { return Ok(ParsedRange::default()) };
        let parsed = self.parse_from(start, stretch, usize::MAX)?;
        if stretch.from == 0 || !parsed.rows.first().is_some_and(is_cut) {
            return Ok(parsed);
        }
        let outside = first_whole(&parsed);
        let inside = match self.first_row(stretch, true)? {
            Some(start) => first_whole(&self.parse_from(start, stretch, SHOWN_ROWS)?),
            None => None,
        };
        // Take the guess with fewer rows before the first whole ones.
        match outside.into_iter().chain(inside).min_by_key(|&(cut, _)| cut) {
            Some((_, start)) => self.parse_from(start, stretch, usize::MAX),
            None => Ok(parsed),
        }
    }

    /// Returns the offset of the first row of a stretch, if the stretch begins outside or inside of
    /// quotes; `None` if it has none.
    fn first_row(
        &mut self,
        FileStretch { start: Position { part, .. }, from, to }: FileStretch,
        in_quotes: bool,
    ) -> Result<Option<u64>, SourceError> {
        if self.rows.counts_rows() {
            return Ok(Some(from));
        }
        let Some(before) = from.checked_sub(1) else { return Ok(Some(0)) };
        let Some(stream) = self.rows.bytes_at(Position::new(part, before))? else { return Ok(None) };
        let found = next_row(stream, in_quotes);
        let found = found.map_err(|source| io_error(&self.rows.name_of(part), source))?;
        Ok(found.map(|passed| before + passed).filter(|&start| start < to))
    }

    /// Parses rows from an offset on, up to the end of the stretch. The result has at most `most`
    /// rows. If this cuts it short, it serves only to judge a guess.
    fn parse_from(
        &mut self,
        start: u64,
        stretch: FileStretch,
        most: usize,
    ) -> Result<ParsedRange, SourceError> {
        let is_exact = self.rows.counts_rows();
        let first = if is_exact { stretch.start } else { Position::new(stretch.start.part, start) };
        self.rows.park(first);
        let mut range = ParsedRange { rows: PooledVec::of(&self.buffers.rows), ..ParsedRange::default() };
        range.held.values = PooledVec::of(&self.buffers.values);
        range.held.width = self.rules.width();
        range.held.survey = RowSurvey::new(&self.columns);
        let mut base = None;
        loop {
            let read = self.rows.read_within(stretch.to)?;
            let (end, end_line) = self.rows.range_position();
            let (offset, line) = if let RangeRow::Row(before) = read { before } else { (end, end_line) };
            let first_line = *base.get_or_insert(if start == 0 { 1 } else { line });
            // Another process may have a Parquet file with other row groups.
            if range.rows.len() > MOST_ROWS || (is_exact && offset != start + range.rows.len() as u64) {
                return Ok(ParsedRange::default());
            }
            match read {
                RangeRow::Row(before) if range.rows.len() < most => {
                    let Some(row) = self.parse_row(start, first_line, before, &mut range.held) else {
                        return Ok(ParsedRange::default());
                    };
                    range.rows.push(row);
                }
                read => {
                    let (lines, ends_file) = (end_line - first_line, read == RangeRow::FileEnd);
                    let rows = range.rows.len() as u64;
                    range.extent = RangeExtent { is_parsed: true, start, end, lines, ends_file, rows };
                    return Ok(range);
                }
            }
        }
    }

    /// Parses the current row, which begins at this offset and line; `None` if it is too far from
    /// the first one.
    fn parse_row(
        &self,
        start: u64,
        line: u64,
        (offset, row_line): (u64, u64),
        held: &mut HeldContent,
    ) -> Option<ParsedRow> {
        let (rules, row) = (&self.rules, &self.rows.row);
        let mut parsed = ParsedRow {
            clock: 0,
            event: 0,
            key: 0,
            start: u32::try_from(offset.checked_sub(start)?).ok()?,
            line: u32::try_from(row_line.checked_sub(line)?).ok()?,
            outcome: ParsedOutcome::NoClock(UnusableRow { slot: None, defect: Defect::Missing }),
        };
        match rules.clock(row, &mut held.survey) {
            Err(unusable) => parsed.outcome = ParsedOutcome::NoClock(unusable),
            Ok(clock) => {
                parsed.clock = clock.unwrap_or(0);
                let content = rules.content(row, &mut held.values, &mut held.survey);
                parsed.key = content.key;
                parsed.outcome = match (content.event, content.outcome) {
                    (None, RowOutcome::Unusable(unusable)) => ParsedOutcome::NoEvent(unusable),
                    (event, outcome) => {
                        parsed.event = event.unwrap_or(0);
                        ParsedOutcome::Content(outcome)
                    }
                };
                if parsed.is_record() {
                    held.entities.extend(content.entity);
                    held.fingerprints.extend(content.fingerprint);
                }
            }
        }
        Some(parsed)
    }
}

/// Whether a row doesn't have the fields of the header.
fn is_cut(row: &ParsedRow) -> bool {
    matches!(row.outcome, ParsedOutcome::NoClock(UnusableRow { slot: None, defect: Defect::FieldCount }))
}

/// Returns the number of rows before the first [`WHOLE_ROWS`] consecutive rows that have the fields
/// of the header, and where these begin.
fn first_whole(range: &ParsedRange) -> Option<(usize, u64)> {
    let shown = &range.rows[..range.rows.len().min(SHOWN_ROWS)];
    let first = shown.windows(WHOLE_ROWS).position(|rows| !rows.iter().any(is_cut))?;
    Some((first, range.extent.start + u64::from(shown[first].start)))
}

/// Returns the number of bytes up to the first row after the first line end that ends a row. With
/// `in_quotes`, the bytes up to the next quote are quoted, and line ends within quotes end no row.
fn next_row(mut stream: impl BufRead, in_quotes: bool) -> io::Result<Option<u64>> {
    let (mut passed, mut is_quoted, mut ended) = (0, in_quotes, false);
    loop {
        let buffer = stream.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        for (index, &byte) in buffer.iter().enumerate() {
            match byte {
                b'\n' if !is_quoted => ended = true,
                b'\r' if ended => {}
                _ if ended => return Ok(Some(passed + index as u64)),
                b'"' if in_quotes => is_quoted = !is_quoted,
                _ => {}
            }
        }
        let length = buffer.len();
        passed += length as u64;
        stream.consume(length);
    }
}
