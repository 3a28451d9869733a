//! Reads a table or query in the order of a column that only grows.
//!
//! Each round finds the highest value, waits until all rows up to it are committed
//! ([`settle`](super::settle)), and reads them in batches. A batch ends between two values, so the
//! server never sorts more than a batch and the rows with its last value. The position is the last
//! value and the number of its rows that were read. Rows with the same value come in the order of
//! the texts of the wanted columns. Rows that agree in all of these are the same record to a run,
//! so a resumed run skips the same records.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_protocol::escape::escape_identifier;

use super::connection::{DatabaseConnection, integer};
use super::section::TableSource;
use super::settle::{CLOCK_MARGIN, OpenTransactions, OrderKind};
use crate::connect::entries::{Entries, ServerStream};
use crate::connect::error::{RequestError, lost};
use crate::connect::wire::malformed_answer;
use crate::control::{Control, POLL_INTERVAL};
use crate::format::Defect;
use crate::format::form::EntryParser;
use crate::format::row::{RECORD_LIMIT, Row, RowField};
use crate::state::Position;
use crate::time::parse_time;

/// Rows of a batch, unless more have its last value.
const BATCH: u64 = 4096;

/// First byte of the message that is a row.
const ROW: u8 = b'D';

/// Time between two queries for new rows.
const WAIT: Duration = Duration::from_millis(250);

/// Types of columns, as the server numbers them.
const BOOLEAN: i32 = 16;
pub(super) const TIMESTAMPTZ: i32 = 1184;

pub(super) struct TableReader {
    pub(super) connection: DatabaseConnection,
    pub(super) source: TableSource,
    /// Type of the ordering column.
    pub(super) kind: OrderKind,
    /// Types of the wanted columns, once they are known.
    pub(super) types: Option<Vec<i32>>,
    /// The last value that was read, and the number of its rows.
    pub(super) last: Option<(i64, u64)>,
    /// Rows of that value to skip after a restart, and those skipped so far.
    skipped: Option<Skipped>,
    /// Number of rows that this connection has delivered.
    rows: u64,
    stage: Stage,
    control: Control,
    /// Buffer for numbers.
    bytes: Vec<u8>,
}

/// Rows that an earlier connection has read.
#[derive(Clone, Copy)]
struct Skipped {
    value: i64,
    number: u64,
    found: u64,
}

/// The next step. The first number of a step is the highest value up to which rows are read.
enum Stage {
    /// Ask for new rows, at this time.
    Ask(Instant),
    /// Wait until all rows up to it are committed.
    Settle(i64, OpenTransactions),
    /// Begin the next batch.
    Begin(i64),
    /// Read the rows of a batch; this number has arrived.
    Read(i64, u64),
}

impl TableReader {
    pub(super) fn open(
        source: &TableSource,
        control: &Control,
        position: Position,
    ) -> Result<Self, RequestError> {
        let connection = DatabaseConnection::open(&source.database, ServerStream::name(source), control)?;
        let last = (position.row > 1).then(|| (value_at(position), position.row - 1));
        let skipped = last.map(|(value, number)| Skipped { value, number, found: 0 });
        let (kind, stage) = (OrderKind::Number, Stage::Ask(Instant::now()));
        let source = source.clone();
        let mut reader = TableReader {
            connection,
            source,
            kind,
            types: None,
            last,
            skipped,
            rows: 0,
            stage,
            control: control.clone(),
            bytes: Vec::new(),
        };
        reader.check_server()?;
        reader.check_order()?;
        reader.check_last()?;
        Ok(reader)
    }

    pub(super) fn name(&self) -> String {
        ServerStream::name(&self.source)
    }

    /// The ordering column in SQL.
    pub(super) fn order(&self) -> String {
        format!("r.{}", escape_identifier(&self.source.order))
    }

    /// A value of the ordering column as a number, in SQL.
    fn as_number(&self, value: &str) -> String {
        match self.kind {
            OrderKind::Number => format!("({value})::int8"),
            OrderKind::Time => format!("round(extract(epoch FROM {value}) * 1000000)::int8"),
        }
    }

    /// A value in SQL.
    fn literal(&self, value: i64) -> Result<String, RequestError> {
        match self.kind {
            OrderKind::Number => Ok(format!("'{value}'::int8")),
            OrderKind::Time => match Timestamp::from_microsecond(value) {
                Ok(time) => Ok(format!("'{time}'::timestamptz")),
                Err(_) => {
                    Err(self.connection.refusal("order: a time is before the year -9999 or after 9999"))
                }
            },
        }
    }

    /// Returns the highest value among the rows with this condition.
    pub(super) fn highest(&mut self, condition: &str) -> Result<Option<i64>, RequestError> {
        let order = self.order();
        let times = match self.kind {
            OrderKind::Number => String::new(),
            OrderKind::Time => {
                format!(" AND isfinite({order}) AND {order} < statement_timestamp() - {CLOCK_MARGIN}")
            }
        };
        let highest = self.as_number(&format!("max({order})"));
        let from = self.source.rows.sql();
        let rows =
            self.connection.query(&format!("SELECT {highest} FROM {from} AS r WHERE {condition}{times}"))?;
        let text = rows.into_iter().flatten().next().flatten();
        text.map(|text| text.parse().map_err(|_| malformed_answer().into())).transpose()
    }

    /// The condition for rows that were not read, in SQL.
    fn unread(&self) -> Result<String, RequestError> {
        let Some((last, _)) = self.last else { return Ok("TRUE".into()) };
        let comparison = if self.skipped.is_some() { ">=" } else { ">" };
        Ok(format!("{} {comparison} {}", self.order(), self.literal(last)?))
    }

    /// Asks for the next batch of rows up to `upper`.
    fn begin(&mut self, upper: i64, wanted: &[String]) -> Result<(), RequestError> {
        let (order, number) = (self.order(), self.as_number(&self.order()));
        let names: Vec<_> = (0..wanted.len()).map(|index| format!("c{index}")).collect();
        let named =
            columns(wanted).into_iter().zip(&names).map(|(column, name)| format!(", {column} AS {name}"));
        let named: String = named.collect();
        let all: String = names.iter().map(|name| format!(", {name}")).collect();
        let texts: String = names.iter().map(|name| format!(", {name}::text COLLATE \"C\"")).collect();
        let query = format!(
            "SELECT o{all} FROM (SELECT {number} AS o{named} FROM {} AS r WHERE {} AND {order} <= {} ORDER BY {order} \
             FETCH FIRST {BATCH} ROWS WITH TIES) AS b ORDER BY o{texts}",
            self.source.rows.sql(),
            self.unread()?,
            self.literal(upper)?,
        );
        self.connection.start(&query)
    }

    /// Reads the next row of a batch, and returns the value of its ordering column; `None` at the
    /// end of the batch.
    fn read_row(&mut self, row: &mut Row) -> Result<Option<i64>, RequestError> {
        loop {
            let message = self.connection.message()?;
            if message.tag == ROW {
                break;
            }
            self.connection.skip(message)?;
            if message.tag == b'Z' {
                return Ok(None);
            }
        }
        let types = self.types.take().unwrap_or_default();
        let read = self.read_fields(row, &types);
        self.types = Some(types);
        read.map(Some)
    }

    fn read_fields(&mut self, row: &mut Row, types: &[i32]) -> Result<i64, RequestError> {
        row.text.clear();
        row.fields.clear();
        row.defect = None;
        if self.number::<2>()? as usize != types.len() + 1 {
            return Err(malformed_answer().into());
        }
        let length = usize::try_from(self.number::<4>()?).ok().filter(|&length| length <= 20);
        self.bytes.clear();
        self.connection.wire.take(length.ok_or_else(malformed_answer)?, &mut self.bytes)?;
        let value = std::str::from_utf8(&self.bytes).ok().and_then(|text| text.parse().ok());
        let value = value.ok_or_else(malformed_answer)?;
        let mut total: usize = 0;
        for &found in types {
            let Ok(length) = usize::try_from(self.number::<4>()?) else {
                row.fields.push(RowField::Missing);
                continue;
            };
            total = total.saturating_add(length);
            if total > RECORD_LIMIT {
                self.connection.wire.skip(length)?;
                row.fields.push(RowField::Missing);
                continue;
            }
            let start = row.text.len();
            self.connection.wire.take(length, &mut row.text)?;
            let field = field(row, start, found);
            row.fields.push(field);
        }
        row.defect = (total > RECORD_LIMIT).then_some(Defect::TooLong);
        Ok(value)
    }

    fn number<const BYTES: usize>(&mut self) -> Result<i32, RequestError> {
        self.bytes.clear();
        self.connection.wire.take(BYTES, &mut self.bytes)?;
        Ok(integer::<BYTES>(&mut self.bytes.as_slice())?)
    }

    /// Whether an earlier connection has delivered this row. Rows are gone if only some of those
    /// with its value are found.
    fn was_read(&mut self, value: Option<i64>) -> Result<bool, RequestError> {
        let Some(skipped) = &mut self.skipped else { return Ok(false) };
        if value == Some(skipped.value) && skipped.found < skipped.number {
            skipped.found += 1;
            return Ok(true);
        }
        // If all of them are gone, they were removed after they had been read.
        if (1..skipped.number).contains(&skipped.found) {
            return Err(lost(self.name(), "has fewer rows with the last value than were read".into()));
        }
        self.skipped = None;
        Ok(false)
    }

    fn advance(&mut self, row: &mut Row, wanted: &[String]) -> Result<Option<Position>, RequestError> {
        loop {
            match &mut self.stage {
                Stage::Ask(due) => {
                    if *due > Instant::now() {
                        std::thread::sleep(POLL_INTERVAL);
                        return Ok(None);
                    }
                    let unread = self.unread()?;
                    self.stage = match self.highest(&unread)? {
                        None => Stage::Ask(Instant::now() + WAIT),
                        Some(upper) => {
                            Stage::Settle(upper, OpenTransactions::list(&mut self.connection, self.kind)?)
                        }
                    };
                }
                Stage::Settle(upper, open) => {
                    if !open.have_ended(&mut self.connection)? {
                        if let Some(wait) = open.long_wait() {
                            self.control.notice(&format!("{}: {wait}", ServerStream::name(&self.source)));
                        }
                        std::thread::sleep(POLL_INTERVAL);
                        return Ok(None);
                    }
                    let upper = *upper;
                    self.stage = Stage::Begin(upper);
                }
                &mut Stage::Begin(upper) => {
                    self.begin(upper, wanted)?;
                    self.stage = Stage::Read(upper, 0);
                }
                &mut Stage::Read(upper, found) => {
                    let value = self.read_row(row)?;
                    let was_read = self.was_read(value)?;
                    let Some(value) = value else {
                        self.stage = match found < BATCH {
                            true => Stage::Ask(Instant::now()),
                            false => Stage::Begin(upper),
                        };
                        continue;
                    };
                    self.stage = Stage::Read(upper, found + 1);
                    if was_read {
                        continue;
                    }
                    let number = self.last.filter(|&(last, _)| last == value).map_or(0, |(_, number)| number);
                    self.last = Some((value, number + 1));
                    self.rows += 1;
                    return Ok(Some(position_at(value, number + 1)));
                }
            }
        }
    }
}

impl Entries for TableReader {
    fn next(&mut self, row: &mut Row, form: &mut EntryParser) -> Result<Option<Position>, RequestError> {
        self.check_columns(form.wanted())?;
        self.advance(row, form.wanted())
    }

    /// The message that ends a batch is not a row. A full batch is probably followed by more rows.
    fn has_buffered_row(&self) -> bool {
        match self.stage {
            Stage::Read(_, found) => found >= BATCH || self.connection.wire.next_byte() == Some(ROW),
            _ => false,
        }
    }

    fn is_behind(&self) -> bool {
        !matches!(self.stage, Stage::Ask(_))
    }

    fn obstacle(&self) -> Option<String> {
        match &self.stage {
            Stage::Settle(_, open) => Some(open.obstacle()),
            _ => None,
        }
    }

    /// Values of the ordering column are not line numbers, and may be private.
    fn line(&self, _position: Position) -> u64 {
        self.rows
    }
}

/// The wanted columns in SQL.
pub(super) fn columns(wanted: &[String]) -> Vec<String> {
    wanted.iter().map(|name| format!("r.{}", escape_identifier(name))).collect()
}

/// Reads a field from the end of the row's text.
fn field(row: &mut Row, start: usize, found: i32) -> RowField {
    match found {
        BOOLEAN => {
            let is_true = row.text[start..].starts_with(b"t");
            row.text.truncate(start);
            row.text.push(if is_true { b'1' } else { b'0' });
        }
        TIMESTAMPTZ => {
            // `2013-01-01 05:00:00+00`, in the zone of the session.
            let time = std::str::from_utf8(&row.text[start..]).ok().and_then(|text| {
                parse_time(&text.strip_suffix("+00").map(|time| time.to_owned() + "Z")?.replacen(' ', "T", 1))
            });
            return time.map_or(RowField::Defective(Defect::NotATime), RowField::Time);
        }
        _ => {}
    }
    RowField::Text(start..row.text.len())
}

/// The position after a number of rows with a value. Offsets are in the order of values.
fn position_at(value: i64, rows: u64) -> Position {
    Position { part: 0, offset: value.cast_unsigned() ^ 1 << 63, row: rows + 1 }
}

fn value_at(position: Position) -> i64 {
    (position.offset ^ 1 << 63).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_in_the_order_of_values() {
        let values = [i64::MIN, -5, 0, 7, i64::MAX];
        assert!(values.map(|value| position_at(value, 1).offset).is_sorted());
        assert!(values.iter().all(|&value| value_at(position_at(value, 3)) == value));
    }

    #[test]
    fn fields_are_read_by_their_types() {
        let read = |text: &str, found| {
            let mut row = Row::default();
            row.text.extend_from_slice(text.as_bytes());
            let field = field(&mut row, 0, found);
            row.fields.push(field);
            row
        };
        assert_eq!(read("t", BOOLEAN).number(0), Ok(1.0));
        assert_eq!(read("f", BOOLEAN).number(0), Ok(0.0));
        assert_eq!(read("1.5", 1700).number(0), Ok(1.5));
        let time = |text| read(text, TIMESTAMPTZ).time(0, &crate::format::row::TimeForm::UTC);
        assert_eq!(time("1970-01-01 00:00:01.5+00"), Ok(1_500_000));
        assert_eq!(time("1970-01-01 00:00:01+00"), Ok(1_000_000));
        assert!(["infinity", "0044-03-15 00:00:00+00 BC", ""].iter().all(|text| time(text).is_err()));
    }
}
