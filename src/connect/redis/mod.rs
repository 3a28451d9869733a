//! Redis: a stream of entries with named fields.

mod connection;
mod reader;
mod writer;

use std::sync::Arc;

use super::entries::{Entries, ServerStream, identity};
use super::security::{TLS_CLIENT_FIELDS, TLS_FIELDS, USER_FIELDS};
use super::wire::{BrokerServer, stream};
use super::writer::StreamOutlet;
use super::{
    AllowedFormats, PositionParts, RequestError, STREAM, SinkConfig, SinkTarget, SourceConfig, System,
    SystemSection, report_broker,
};
use crate::control::Control;
use crate::document::definition::{FieldDefinition, FieldType};
use crate::format::Format;
use crate::state::Position;

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "redis://host:port",
    full_path: "redis://host[:port][/database]",
    has_fields: true,
    journaling: super::Journaling::Never,
    tags: &[PositionParts::InOrder.tag(3)],
    source_fields: &[
        STREAM,
        FieldDefinition::optional(
            "field",
            FieldType::Text,
            "the fields of an entry are the columns",
            "\"line\"",
            "Field of an entry that holds a record as text, in the `format` of the source.",
        ),
    ],
    source: Some(source),
    sink_fields: &[
        STREAM,
        FieldDefinition::optional(
            "keep",
            FieldType::Pattern("a number such as \"1000 epochs\"", "^[0-9]+ epochs?$"),
            "the stream grows without limit",
            "\"1000 epochs\"",
            "Approximate number of epochs that the server keeps.",
        ),
    ],
    sink: Some(sink),
    security: &[(TLS_FIELDS, SCHEMES), (TLS_CLIENT_FIELDS, SCHEMES), (USER_FIELDS, SCHEMES)],
};

const SCHEMES: &[&str] = &["redis"];

/// A server's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RedisStream {
    server: BrokerServer,
    /// The number of the database.
    database: Option<u32>,
    stream: String,
}

/// `[source]` with a Redis path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RedisSource {
    stream: RedisStream,
    /// `field`: the field of an entry that holds a record as text; without it the fields are the
    /// columns.
    field: Option<String>,
}

/// `[[sinks]]` with a Redis path.
#[derive(Debug, PartialEq, Eq)]
struct RedisSink {
    stream: RedisStream,
    /// `keep`: approximate number of epochs that the server keeps; all of them if absent.
    keep: Option<u64>,
}

impl RedisStream {
    fn read(settings: &SystemSection<'_, '_>) -> Option<Self> {
        let stream = stream(settings.section, "");
        let found = BrokerServer::read(settings, 6379).and_then(|(server, database)| match database {
            "" => Some((server, None)),
            number => Some((server, Some(number.parse().ok()?))),
        });
        let Some((server, database)) = found else {
            report_broker(settings.path);
            return None;
        };
        Some(RedisStream { server, database, stream: stream? })
    }

    fn name(&self) -> String {
        format!("redis://{} {}", self.server.address, self.stream)
    }
}

fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let field = settings.section.text("field").map(|field| field.value.into());
    Some(Arc::new(RedisSource { stream: RedisStream::read(settings)?, field }))
}

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let keep = settings.section.form("keep", epochs);
    let stream = RedisStream::read(settings)?;
    Some(Arc::new(RedisSink { stream, keep }))
}

/// Parses a number of epochs above 0, such as `1000 epochs`.
fn epochs(text: &str) -> Option<u64> {
    let number = text.strip_suffix("epochs").or(text.strip_suffix("epoch"))?;
    number.trim().parse().ok().filter(|&number| number > 0)
}

impl ServerStream for RedisSource {
    fn name(&self) -> String {
        self.stream.name()
    }

    fn identity(&self) -> Vec<u8> {
        identity(self.stream.database.unwrap_or(0), 0, &self.stream.stream)
    }

    fn formats(&self) -> AllowedFormats {
        match self.field {
            Some(_) => AllowedFormats {
                expected: Some("the field holds text: use format = \"csv\" or format = \"ndjson\""),
                ..AllowedFormats::MESSAGES
            },
            None => AllowedFormats {
                default: Some(Format::Fields),
                allowed: &[Format::Fields],
                expected: Some(
                    "Redis entries have fields: use format = \"fields\", or name a text field with field = \"…\"",
                ),
                ..AllowedFormats::MESSAGES
            },
        }
    }

    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError> {
        Ok(Box::new(reader::RedisReader::open(self, control, position)?))
    }
}

impl SinkConfig for RedisSink {
    fn name(&self) -> String {
        self.stream.name()
    }

    fn destination(&self) -> Option<String> {
        Some(format!("{}/{}", self.name(), self.stream.database.unwrap_or(0)))
    }

    fn target(&self, control: &Control) -> SinkTarget {
        StreamOutlet::target(writer::RedisWriter::new(&self.stream, self.keep, control))
    }

    fn probe(&self, control: &Control) -> Result<(), RequestError> {
        connection::RedisConnection::open(&self.stream, control)?.probe()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{sink_of, source_of};
    use super::*;
    use crate::connect::DynamicEq;
    use std::any::Any;

    #[test]
    fn paths_have_defaults() {
        let check = |path: &str, expected: Option<(&str, Option<u32>)>| {
            let found = source_of(&format!("path = '{path}', stream = 's'"));
            let expected = expected.map(|(address, database)| {
                let server = BrokerServer { address: address.into(), ..BrokerServer::default() };
                RedisSource { stream: RedisStream { server, database, stream: "s".into() }, field: None }
            });
            let equal = match (&found, &expected) {
                (Ok(found), Some(expected)) => expected.equals(&*found.0.source as &dyn Any),
                (found, expected) => found.is_err() && expected.is_none(),
            };
            assert!(equal, "{path}: {found:?}");
        };
        check("redis://h", Some(("h:6379", None)));
        check("redis://h:1/", Some(("h:1", None)));
        check("redis://[::1]", Some(("[::1]:6379", None)));
        check("redis://h:99999", None);
        check("redis://h/3", Some(("h:6379", Some(3))));
        check("redis://h/x", None);
        assert!(source_of("path = 'redis://h'").is_err_and(|error| error.contains("stream")));
        assert!(source_of("path = 'redis://h', stream = 's', format = 'ndjson'").is_err());
        let format =
            |source: &str| source_of(&format!("path = 'redis://h', stream = 's'{source}")).unwrap().1;
        assert_eq!(format(""), Format::Fields);
        assert_eq!(format(", field = 'line'"), Format::Ndjson);
    }

    #[test]
    fn a_sink_keeps_some_epochs() {
        let refused = |sink: &str| sink_of(&format!("path = 'redis://h', {sink}")).unwrap_err();
        let sink = sink_of("path = 'redis://h', stream = 's', keep = '5 epochs'").unwrap();
        let server = BrokerServer { address: "h:6379".into(), ..BrokerServer::default() };
        let stream = RedisStream { server, database: None, stream: "s".into() };
        assert!(RedisSink { stream, keep: Some(5) }.equals(&*sink.0 as &dyn Any), "{sink:?}");
        assert!(refused("stream = 's', keep = '5 MiB'").contains("1000 epochs"));
        assert!(refused("stream = 's', keep = '0 epochs'").contains("1000 epochs"));
        assert!(refused("stream = 's', subject = 'a'").contains("this field is for nats://: leave it out"));
    }
}
