//! Sources and sinks of PostgreSQL as named in a pipeline.

use std::fmt::Write;
use std::sync::Arc;

use super::reader::TableReader;
use super::relation::{TableName, is_name};
use super::writer::TableWriter;
use crate::connect::entries::{Entries, ServerStream};
use crate::connect::security::{Login, tls_client};
use crate::connect::wire::{BrokerServer, address_of};
use crate::connect::{
    AllowedFormats, RequestError, SinkConfig, SinkTarget, SourceConfig, SystemSection, TextField,
    report_broker,
};
use crate::control::Control;
use crate::format::Format;
use crate::state::Position;

/// The default port of a server.
const PORT: u16 = 5432;

/// A database, and our credentials for its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Database {
    pub(super) server: BrokerServer,
    pub(super) database: String,
}

/// `[source]` with a path of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableSource {
    pub(super) database: Database,
    pub(super) rows: RowSource,
    /// `order`: the column that only grows.
    pub(super) order: String,
}

/// Table or query to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowSource {
    /// `table`.
    Table(TableName),
    /// `query`.
    Query(String),
}

/// `[[sinks]]` with a path of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableSink {
    pub(super) database: Database,
    pub(super) table: TableName,
    /// `dataset`: the name of this sink's rows.
    pub(super) dataset: String,
}

impl Database {
    fn read(settings: &SystemSection<'_, '_>) -> Option<Self> {
        let (tls, login) = (tls_client(settings), Login::read(settings));
        match address_of(settings.rest, PORT) {
            Some((address, database)) if is_name(database) => {
                let server = BrokerServer { address, tls, login, ..BrokerServer::default() };
                Some(Database { server, database: database.into() })
            }
            _ => {
                report_broker(settings.path);
                None
            }
        }
    }

    fn name(&self) -> String {
        format!("postgres://{}/{}", self.server.address, self.database)
    }
}

const TABLE: &str =
    "expected a table such as \"flights\" or \"public.flights\", each name of at most 63 bytes";

fn table(field: &TextField<'_>) -> Option<TableName> {
    let name = TableName::parse(field.value);
    if name.is_none() {
        field.report(TABLE);
    }
    name
}

pub(super) fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let section = settings.section;
    let database = Database::read(settings);
    let rows = match (section.text("table"), section.text("query")) {
        (Some(field), None) => table(&field).map(RowSource::Table),
        (None, Some(query)) => Some(RowSource::Query(query.value.trim().trim_end_matches(';').into())),
        (None, None) => {
            settings.path.report("name what is read: add table = \"flights\", or query = \"SELECT …\"");
            None
        }
        (Some(_), Some(query)) => {
            query.report("found table and query, expected one of them");
            None
        }
    };
    let order = section.required_text("order")?;
    if !is_name(order.value) {
        order.report("expected the name of a column that only grows, such as \"id\"");
        return None;
    }
    Some(Arc::new(TableSource { database: database?, rows: rows?, order: order.value.into() }))
}

pub(super) fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let database = Database::read(settings);
    let table = settings.section.required_text("table").and_then(|field| table(&field));
    let dataset = settings.section.text("dataset");
    if let Some(dataset) = dataset.as_ref().filter(|dataset| dataset.value.contains('\0')) {
        dataset.report("PostgreSQL can't store the character NUL: choose a name without it");
        return None;
    }
    let (database, table) = (database?, table?);
    let dataset = dataset.map_or_else(|| table.name(), |dataset| dataset.value.into());
    Some(Arc::new(TableSink { database, table, dataset }))
}

impl RowSource {
    fn name(&self) -> String {
        match self {
            RowSource::Table(table) => table.name(),
            RowSource::Query(_) => "query".into(),
        }
    }

    /// Returns the table or query in SQL, as it follows FROM.
    pub(super) fn sql(&self) -> String {
        match self {
            RowSource::Table(table) => table.quoted(),
            // A comment at the end of the query ends with its line.
            RowSource::Query(query) => format!("({query}\n)"),
        }
    }
}

impl ServerStream for TableSource {
    fn name(&self) -> String {
        format!("{} {}", self.database.name(), self.rows.name())
    }

    fn identity(&self) -> Vec<u8> {
        // The parts can't hold NUL, except for a query, which is the last one.
        let mut identity = format!("{}\0{}\0", self.database.database, self.order);
        // Writing to a `String` never fails.
        let _ = write!(identity, "{}", self.rows.sql());
        identity.into_bytes()
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats {
            default: Some(Format::Fields),
            allowed: &[Format::Fields],
            expected: Some("rows of PostgreSQL have columns: leave format out"),
            ..AllowedFormats::MESSAGES
        }
    }

    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError> {
        Ok(Box::new(TableReader::open(self, control, position)?))
    }
}

impl SinkConfig for TableSink {
    fn name(&self) -> String {
        format!("{} {}", self.database.name(), self.table.name())
    }

    fn destination(&self) -> Option<String> {
        Some(format!("{} {}", SinkConfig::name(self), self.dataset))
    }

    fn target(&self, control: &Control) -> SinkTarget {
        SinkTarget::Records(Box::new(TableWriter::new(self, control)))
    }

    fn probe(&self, control: &Control) -> Result<(), RequestError> {
        TableWriter::new(self, control).probe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::fake::{sink_of, source_of};

    #[test]
    fn mistakes_in_sections_are_reported() {
        for (fields, part) in [
            ("path = 'postgres://h/d', order = 'id'", "add table ="),
            ("path = 'postgres://h/d', table = 't', query = 'SELECT 1', order = 'id'", "one of them"),
            ("path = 'postgres://h/d', table = 't'", "order"),
            ("path = 'postgres://h', table = 't', order = 'id'", "host[:port]/database"),
            ("path = 'postgres://h/d', table = 'a.b.c', order = 'id'", "expected a table"),
            ("path = 'postgres://h/d', table = 't', order = 'id', format = 'csv'", "leave format out"),
            ("path = 'postgres://h/d', table = 't', order = 'id', stream = 's'", "leave it out"),
        ] {
            let refused = source_of(fields).unwrap_err();
            assert!(refused.contains(part), "{fields}: {refused}");
        }
        let (input, format) = source_of("path = 'postgres://h/d', table = 'T', order = 'id'").unwrap();
        assert_eq!((input.to_string().as_str(), format), ("postgres://h:5432/d T", Format::Fields));
        let name = |fields: &str| sink_of(fields).map(|sink| sink.target().destination());
        let both =
            ["", ", dataset = 'x'"].map(|more| name(&format!("path = 'postgres://h/d', table = 't'{more}")));
        assert!(both[0].is_ok() && both[0] != both[1], "{both:?}");
    }
}
