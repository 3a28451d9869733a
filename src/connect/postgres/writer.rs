//! Writes estimates to a table: a row for every key, epoch and statistic.
//!
//! The rows of an epoch are one `COPY`, and so one transaction: either all of them are written or
//! none. The last epoch in the table is the position to resume from. The primary key refuses an
//! epoch that is already in the table. So a writer that was cut off while the server commits can't
//! write it twice.

use jiff::Timestamp;
use postgres_protocol::escape::escape_literal;

use super::connection::{DatabaseConnection, TextRow};
use super::section::TableSink;
use crate::connect::error::RequestError;
use crate::connect::wire::malformed_answer;
use crate::connect::{EpochStamp, Outlet, OutletContent, SinkConfig};
use crate::control::Control;
use crate::estimates::EstimateRecord;

/// Columns of the table, and their types.
const COLUMNS: [(&str, &str); 15] = [
    ("dataset", "text"),
    ("view", "text"),
    ("key", "text"),
    ("epoch", "bigint"),
    ("start", "timestamp with time zone"),
    ("statistic", "text"),
    ("of", "text[]"),
    ("value", "double precision"),
    ("noise", "double precision"),
    ("lower", "double precision"),
    ("upper", "double precision"),
    ("quality", "text"),
    ("private", "boolean"),
    ("generation", "bigint"),
    ("chain", "text"),
];

/// Columns that may be null: all others must have a value.
const NULLABLE: [&str; 6] = ["start", "value", "noise", "lower", "upper", "quality"];

/// Columns of the primary key. Its order finds the last epoch at once.
const KEY: [&str; 6] = ["dataset", "epoch", "view", "key", "statistic", "of"];

/// Whether no transaction may write, as on a standby server.
const READ_ONLY: &str = "current_setting('transaction_read_only') = 'on'";
const READ_ONLY_WORDS: &str =
    "the server or the user may only read: name the primary, or set default_transaction_read_only = off";

pub(super) struct TableWriter {
    sink: TableSink,
    control: Control,
    connection: Option<DatabaseConnection>,
}

impl TableWriter {
    pub(super) fn new(sink: &TableSink, control: &Control) -> Self {
        TableWriter { sink: sink.clone(), control: control.clone(), connection: None }
    }

    /// Connects, checks the table if it is there, and asks for the rights to create or to write it.
    pub(super) fn probe(&self) -> Result<(), RequestError> {
        let mut connection = self.connect()?;
        if self.has_table(&mut connection)? {
            self.check(&mut connection)?;
            return self.check_rights(&mut connection);
        }
        let schema = self.sink.table.schema.as_deref().map_or("current_schema()".into(), escape_literal);
        let may = |right: &str| format!("coalesce(has_schema_privilege({schema}, '{right}'), false)");
        let query = format!("SELECT {} AND {}, {READ_ONLY}", may("CREATE"), may("USAGE"));
        let problem = match is_true(&connection.query(&query)?)[..] {
            [_, true] => READ_ONLY_WORDS,
            [true, _] => return Ok(()),
            _ => {
                "the table is missing and the user may not create it: GRANT CREATE, USAGE ON SCHEMA … TO the user"
            }
        };
        Err(connection.refusal(problem))
    }

    /// Refuses a table that the user may not read and write.
    fn check_rights(&self, connection: &mut DatabaseConnection) -> Result<(), RequestError> {
        let table = escape_literal(&self.sink.table.quoted());
        let names = COLUMNS.map(|(name, _)| escape_literal(name)).join(", ");
        let may = |right: &str| format!("bool_and(has_column_privilege(attrelid, attnum, '{right}'))");
        let query = format!(
            "SELECT {} AND {}, row_security_active({table}::regclass), {READ_ONLY} FROM pg_attribute \
             WHERE attrelid = {table}::regclass AND attname IN ({names})",
            may("SELECT"),
            may("INSERT")
        );
        let problem = match is_true(&connection.query(&query)?)[..] {
            [_, _, true] => READ_ONLY_WORDS,
            [_, true, _] => {
                "the table has row security, with which COPY can't write: exempt the user from it"
            }
            [true, ..] => return Ok(()),
            _ => "the user may not read and write the table: GRANT SELECT, INSERT ON … TO the user",
        };
        Err(connection.refusal(problem))
    }

    fn connect(&self) -> Result<DatabaseConnection, RequestError> {
        DatabaseConnection::open(&self.sink.database, SinkConfig::name(&self.sink), &self.control)
    }

    fn has_table(&self, connection: &mut DatabaseConnection) -> Result<bool, RequestError> {
        let table = escape_literal(&self.sink.table.quoted());
        let found = connection.query(&format!("SELECT to_regclass({table})"))?;
        Ok(found.into_iter().flatten().flatten().next().is_some())
    }

    /// Refuses a table without the columns and the key that are written.
    fn check(&self, connection: &mut DatabaseConnection) -> Result<(), RequestError> {
        let table = escape_literal(&self.sink.table.quoted());
        let columns = connection.query(&format!(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute \
             WHERE attrelid = {table}::regclass AND attnum > 0 AND NOT attisdropped"
        ))?;
        let is_present = |&(name, kind): &(&str, &str)| {
            columns.iter().any(|found| matches!(&found[..], [Some(n), Some(k)] if n == name && k == kind))
        };
        if let Some((name, kind)) = COLUMNS.iter().find(|column| !is_present(column)) {
            let words = format!(
                "the table has no column {name:?} of type {kind}: name a new table, which is created"
            );
            return Err(connection.refusal(&words));
        }
        let mut key = KEY;
        key.sort_unstable();
        let unique = connection.query(&format!(
            "SELECT 1 FROM pg_index WHERE indrelid = {table}::regclass AND indisunique AND indisvalid \
             AND indpred IS NULL AND indnkeyatts = {} AND ARRAY(SELECT attname::text FROM pg_attribute \
             WHERE attrelid = indrelid AND attnum = ANY (indkey) ORDER BY attname::text COLLATE \"C\") = '{{{}}}'::text[]",
            KEY.len(),
            key.join(",")
        ))?;
        match unique.is_empty() {
            true => Err(connection
                .refusal(&format!("the table has no PRIMARY KEY ({})", quoted_names(&KEY).join(", ")))),
            false => Ok(()),
        }
    }

    /// The last epoch of the data set.
    fn last(&self, connection: &mut DatabaseConnection) -> Result<Option<EpochStamp>, RequestError> {
        let rows = connection.query(&format!(
            "SELECT epoch, generation, chain FROM {} WHERE dataset = {} ORDER BY epoch DESC LIMIT 1",
            self.sink.table.quoted(),
            escape_literal(&self.sink.dataset)
        ))?;
        Ok(rows.first().map(|row| stamp(row)).transpose()?)
    }

    /// The lines of `COPY`.
    fn lines(&self, stamp: &EpochStamp, records: &[EstimateRecord]) -> Option<Vec<u8>> {
        let mut lines = Vec::new();
        for record in records {
            for row in record.statistics() {
                let number = |number: Option<f64>| number.map(|number| number.to_string());
                let [value, noise, lower, upper] = row.numbers.map(number);
                let of =
                    row.of.iter().map(|of| format!("\"{}\"", of.replace('\\', "\\\\").replace('"', "\\\"")));
                let start = record.start.and_then(|start| Timestamp::from_microsecond(start).ok());
                let fields: [Option<String>; COLUMNS.len()] = [
                    Some(self.sink.dataset.clone()),
                    Some(record.view.clone()),
                    Some(record.key.clone()),
                    Some(record.epoch.to_string()),
                    start.map(|start| start.to_string()),
                    Some(row.statistic.into()),
                    Some(format!("{{{}}}", of.collect::<Vec<_>>().join(","))),
                    value,
                    noise,
                    lower,
                    upper,
                    record.word().map(String::from),
                    Some(record.private.to_string()),
                    Some(stamp.generation.to_string()),
                    Some(stamp.chain.clone()),
                ];
                if fields.iter().flatten().any(|field| field.contains('\0')) {
                    return None;
                }
                lines.extend_from_slice(fields.map(copied).join("\t").as_bytes());
                lines.push(b'\n');
            }
        }
        Some(lines)
    }
}

impl Outlet<[EstimateRecord]> for TableWriter {
    fn open(&mut self) -> Result<OutletContent, RequestError> {
        self.connection = None;
        let mut connection = self.connect()?;
        if !self.has_table(&mut connection)? {
            let table = self.sink.table.quoted();
            connection.query(&format!("CREATE TABLE IF NOT EXISTS {table} ({})", definition()))?;
        }
        self.check(&mut connection)?;
        let last = self.last(&mut connection)?;
        self.connection = Some(connection);
        Ok(OutletContent { whole: last.as_ref().map_or(0, |last| last.epoch), last })
    }

    fn append(&mut self, stamp: &EpochStamp, records: &[EstimateRecord]) -> Result<(), RequestError> {
        let lines = self.lines(stamp, records);
        let Some(connection) = &mut self.connection else { return Err(malformed_answer().into()) };
        let lines = lines.ok_or_else(|| {
            connection.refusal(
                "PostgreSQL can't store the character NUL, which a key, a column or a view has in its name",
            )
        })?;
        if lines.is_empty() {
            return Ok(());
        }
        let columns = quoted_names(&COLUMNS.map(|(name, _)| name)).join(", ");
        connection.copy(&format!("COPY {} ({columns}) FROM STDIN", self.sink.table.quoted()), &lines)
    }
}

/// The columns and the key, as `CREATE TABLE` has them.
fn definition() -> String {
    let columns = COLUMNS.map(|(name, kind)| {
        let null = if NULLABLE.contains(&name) { "" } else { " NOT NULL" };
        format!("\"{name}\" {kind}{null}")
    });
    format!("{}, PRIMARY KEY ({})", columns.join(", "), quoted_names(&KEY).join(", "))
}

/// Reads the first row of an answer of truth values.
fn is_true(rows: &[TextRow]) -> Vec<bool> {
    rows.first().map_or(&[][..], Vec::as_slice).iter().map(|value| value.as_deref() == Some("t")).collect()
}

fn quoted_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("\"{name}\"")).collect()
}

/// Reads the stamp of an epoch.
fn stamp(row: &[Option<String>]) -> std::io::Result<EpochStamp> {
    let read = || {
        let [epoch, generation, chain] = row else { return None };
        let number = |text: &Option<String>| text.as_ref()?.parse().ok();
        Some(EpochStamp { epoch: number(epoch)?, generation: number(generation)?, chain: chain.clone()? })
    };
    read().ok_or_else(malformed_answer)
}

/// A field in the text format of `COPY`.
fn copied(field: Option<String>) -> String {
    let Some(field) = field else { return "\\N".into() };
    let mut copied = String::with_capacity(field.len());
    for character in field.chars() {
        match character {
            '\\' => copied.push_str("\\\\"),
            '\n' => copied.push_str("\\n"),
            '\r' => copied.push_str("\\r"),
            '\t' => copied.push_str("\\t"),
            character => copied.push(character),
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_no_separators() {
        assert_eq!(copied(None), "\\N");
        assert_eq!(copied(Some("\\N".into())), "\\\\N");
        assert_eq!(copied(Some("a\tb\nc\r\\.".into())), "a\\tb\\nc\\r\\\\.");
    }

    #[test]
    fn stamps_are_read() {
        let row = |epoch: &str| [epoch, "1", "ab"].map(|text| Some(text.into())).to_vec();
        assert_eq!(stamp(&row("7")).ok().map(|stamp| stamp.epoch), Some(7));
        assert!(stamp(&row("x")).is_err() && stamp(&[None, None, None]).is_err() && stamp(&[]).is_err());
    }
}
