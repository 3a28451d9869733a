//! Checks a server and a table before rows are read: the conditions of the proof of
//! [`settle`](super::settle), and that the table does not end before the last value that was read.

use postgres_protocol::escape::escape_literal;

use super::reader::{TIMESTAMPTZ, TableReader, columns};
use super::section::RowSource;
use super::settle::OrderKind;
use crate::connect::error::{RequestError, lost};
use crate::connect::wire::malformed_answer;

/// Oldest supported version: its `FETCH FIRST … WITH TIES` ends a batch between two values.
const OLDEST: u32 = 130_000;

/// Type numbers of whole numbers in the server.
const NUMBERS: [i32; 3] = [20, 21, 23];

impl TableReader {
    pub(super) fn check_server(&mut self) -> Result<(), RequestError> {
        self.connection.query("SET default_transaction_read_only = on")?;
        let facts =
            self.connection.query("SELECT pg_is_in_recovery(), current_setting('server_version_num')")?;
        let [Some(standby), Some(version)] = facts.first().map_or(&[][..], Vec::as_slice) else {
            return Err(malformed_answer().into());
        };
        if standby == "t" {
            let words = "this is a standby server, which does not know the transactions that are open: name the primary";
            return Err(self.connection.refusal(words));
        }
        if version.parse().unwrap_or(0) < OLDEST {
            return Err(self.connection.refusal("the server is older than PostgreSQL 13"));
        }
        Ok(())
    }

    /// Finds the type of the ordering column, and refuses a column whose values may not only grow.
    pub(super) fn check_order(&mut self) -> Result<(), RequestError> {
        let query = format!("SELECT {} FROM {} AS r LIMIT 0", self.order(), self.source.rows.sql());
        self.kind = match self.connection.column_types(&query)?[..] {
            [TIMESTAMPTZ] => OrderKind::Time,
            [found] if NUMBERS.contains(&found) => OrderKind::Number,
            _ => {
                let words = format!(
                    "order: column {:?} has another type: expected bigint, integer, smallint or timestamptz",
                    self.source.order
                );
                return Err(self.connection.refusal(&words));
            }
        };
        let RowSource::Table(table) = &self.source.rows else { return Ok(()) };
        let (table, column) = (escape_literal(&table.quoted()), escape_literal(&self.source.order));
        let query = format!(
            "SELECT c.relkind IN ('r', 'p') AND NOT a.attnotnull, s.seqcache > 1 OR s.seqcycle OR s.seqincrement < 0 \
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
             LEFT JOIN pg_sequence s ON s.seqrelid = pg_get_serial_sequence({table}, {column})::regclass \
             WHERE c.oid = {table}::regclass AND a.attname = {column}"
        );
        let facts = self.connection.query(&query)?;
        let is = |fact: usize| facts.first().and_then(|row| row.get(fact)?.as_deref()) == Some("t");
        let problem = if is(0) {
            "may be null, and rows without a value would never be read: ALTER COLUMN … SET NOT NULL"
        } else if is(1) {
            "has a sequence with CACHE or CYCLE or that falls, so rows may appear below numbers that were read: \
             ALTER SEQUENCE … CACHE 1 NO CYCLE"
        } else {
            return Ok(());
        };
        let words = format!("order: column {:?} {problem}", self.source.order);
        Err(self.connection.refusal(&words))
    }

    /// Refuses a table that ends before the last value, because its values would begin again.
    pub(super) fn check_last(&mut self) -> Result<(), RequestError> {
        let Some((last, _)) = self.last else { return Ok(()) };
        match self.highest("TRUE")? {
            Some(highest) if highest < last => {
                Err(lost(self.name(), "ends before the value up to which it was read".into()))
            }
            _ => Ok(()),
        }
    }

    /// Finds the types of the wanted columns.
    pub(super) fn check_columns(&mut self, wanted: &[String]) -> Result<(), RequestError> {
        if self.types.is_none() {
            let columns = columns(wanted).join(", ");
            let query = format!("SELECT {columns} FROM {} AS r LIMIT 0", self.source.rows.sql());
            self.types = Some(self.connection.column_types(&query)?);
        }
        Ok(())
    }
}
