//! Ranges that one process parses and another one takes: the rows on their way there, and their
//! epochs on the way back.
//!
//! Rows have the same length on the way, whatever they hold, so the length of a message follows
//! from the number of rows of its range alone.

use std::sync::Arc;

use hushflow_operators::Records;
use serde::{Deserialize, Serialize};

use super::{HeldContent, ParsedFate, ParsedRange, ParsedRow, PooledVec, Words};
use crate::format::Defect;
use crate::source::content::{RowFate, RowRules, UnusableRow};

/// Words before the rows, and words of a row.
const HEAD: usize = 4;
const ROW: usize = 4;

/// Epochs of consecutive rows of a range that another process holds; without rows, a range that is
/// not used.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct AssignedRows {
    /// Index of the range in the plan.
    pub(crate) range: usize,
    /// Index of the first of these rows in the range, and its number in the stream.
    pub(crate) from: usize,
    pub(crate) first_row: u64,
    /// The epoch that each row joins; 0 if none.
    pub(crate) epochs: Words,
    /// The process that holds them.
    #[serde(skip)]
    pub(crate) holder: usize,
    /// Keys and epochs of the records that join one.
    #[serde(skip)]
    pub(crate) records: Records,
}

/// A range that this process has parsed, whose rows another process takes.
pub(crate) struct HeldRange {
    rules: Arc<RowRules>,
    rows: PooledVec<ParsedRow>,
    held: HeldContent,
    /// Rows and records that are assigned.
    taken: usize,
    records: usize,
}

impl HeldRange {
    /// Splits a range into what stays here and what is sent.
    pub(super) fn split(mut range: ParsedRange, rules: Arc<RowRules>) -> (Option<HeldRange>, Words) {
        let sent = encode(&range);
        let held = range.held.take().filter(|_| range.is_parsed);
        (held.map(|held| HeldRange { rules, rows: range.rows, held, taken: 0, records: 0 }), sent)
    }

    /// Returns the records of rows that follow those returned before; `None` if they don't follow.
    pub(crate) fn assign(&mut self, assigned: &AssignedRows) -> Option<Records> {
        let end = self.taken.checked_add(assigned.epochs.0.len())?;
        if assigned.from != self.taken || end > self.rows.len() {
            return None;
        }
        let (mut records, width) = (Records::default(), self.held.width);
        for (index, (row, &epoch)) in self.rows[self.taken..end].iter().zip(&assigned.epochs.0).enumerate() {
            let record = self.records;
            self.records += usize::from(row.is_record());
            if epoch == 0 {
                continue;
            }
            if !row.is_record() {
                return None;
            }
            let start = records.values.len();
            records.values.extend_from_slice(&self.held.values[record * width..][..width]);
            self.rules.key_bounds.scale(row.key, &mut records.values[start..]);
            records.keys.push(row.key);
            records.epochs.push(epoch);
            records.entities.extend(self.held.entities.get(record));
            if self.rules.needs_positions {
                records.positions.push(assigned.first_row + index as u64);
            }
        }
        self.taken = end;
        Some(records)
    }

    /// Whether all rows are assigned.
    pub(crate) fn is_done(&self) -> bool {
        self.taken == self.rows.len()
    }
}

/// Encodes a range without its values.
fn encode(range: &ParsedRange) -> Words {
    let mut words = Vec::with_capacity(HEAD + ROW * range.rows.len());
    let flags = u64::from(range.is_parsed) | u64::from(range.ends_file) << 1;
    words.extend([flags, range.start, range.end, range.lines]);
    words.extend(range.rows.iter().flat_map(|row| {
        let fate = u32::from_le_bytes(encode_fate(row.fate));
        [row.clock.cast_unsigned(), row.event.cast_unsigned(), join(row.key, row.start), join(row.line, fate)]
    }));
    Words(words)
}

impl ParsedRange {
    /// Decodes a range that the process with this number holds; `None` for any other words.
    pub(crate) fn decode(Words(words): &Words, holder: usize) -> Option<Self> {
        let (&[flags, start, end, lines], rows) = words.split_first_chunk::<HEAD>()?;
        let (rows, []) = rows.as_chunks::<ROW>() else { return None };
        let mut decoded = PooledVec::default();
        decoded.reserve(rows.len());
        for row in rows {
            decoded.push(decode_row(row)?);
        }
        let (is_parsed, ends_file) = (flags & 1 == 1, flags & 2 == 2);
        Some(ParsedRange { is_parsed, start, end, lines, ends_file, rows: decoded, held: None, holder })
    }
}

fn decode_row(&[clock, event, place, rest]: &[u64; ROW]) -> Option<ParsedRow> {
    let ((key, start), (line, fate)) = (halves(place), halves(rest));
    let fate = decode_fate(fate.to_le_bytes())?;
    Some(ParsedRow { clock: clock.cast_signed(), event: event.cast_signed(), key, start, line, fate })
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << u32::BITS
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> u32::BITS) as u32)
}

/// A fate as its kind, its defect, and the number of the field from 1.
fn encode_fate(fate: ParsedFate) -> [u8; 4] {
    let (kind, unusable) = match fate {
        ParsedFate::Content(RowFate::Record) => (0, None),
        ParsedFate::Content(RowFate::Unlisted) => (1, None),
        ParsedFate::Content(RowFate::Unusable(unusable)) => (2, Some(unusable)),
        ParsedFate::Content(RowFate::Partial(unusable)) => (3, Some(unusable)),
        ParsedFate::Content(RowFate::Blank(unusable)) => (4, Some(unusable)),
        ParsedFate::NoClock(unusable) => (5, Some(unusable)),
        ParsedFate::NoEvent(unusable) => (6, Some(unusable)),
    };
    let defect = unusable.and_then(|unusable| Defect::ALL.iter().position(|&one| one == unusable.defect));
    let slot = unusable.and_then(|unusable| unusable.slot).map_or(0, |slot| slot + 1);
    let [low, high] = slot.to_le_bytes();
    [kind, defect.unwrap_or(0) as u8, low, high]
}

fn decode_fate([kind, defect, low, high]: [u8; 4]) -> Option<ParsedFate> {
    let slot = u16::from_le_bytes([low, high]).checked_sub(1);
    let unusable = UnusableRow { slot, defect: *Defect::ALL.get(usize::from(defect))? };
    Some(match kind {
        0 => ParsedFate::Content(RowFate::Record),
        1 => ParsedFate::Content(RowFate::Unlisted),
        2 => ParsedFate::Content(RowFate::Unusable(unusable)),
        3 => ParsedFate::Content(RowFate::Partial(unusable)),
        4 => ParsedFate::Content(RowFate::Blank(unusable)),
        5 => ParsedFate::NoClock(unusable),
        6 => ParsedFate::NoEvent(unusable),
        _ => return None,
    })
}
