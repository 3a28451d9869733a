//! NATS JetStream: a stream with one record per message.

mod connection;
mod login;
mod reader;
mod rights;
mod writer;

use std::sync::Arc;

use super::entries::{Entries, ServerStream, identity};
use super::security::{KEY_FIELDS, TLS_CLIENT_FIELDS, TLS_FIELDS, TOKEN_FIELDS, USER_FIELDS};
use super::wire::{BrokerServer, stream};
use super::writer::StreamOutlet;
use super::{
    PositionParts, RequestError, STREAM, SinkConfig, SinkTarget, SourceConfig, System, SystemSection,
    report_broker,
};
use crate::control::Control;
use crate::document::definition::{FieldDefinition, FieldType};
use crate::state::Position;
use login::NatsLogin;

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "nats://host:port",
    full_path: "nats://host[:port]",
    has_fields: false,
    journaling: super::Journaling::Never,
    tags: &[PositionParts::InOrder.tag(4)],
    source_fields: &[
        STREAM,
        FieldDefinition::optional(
            "subject",
            FieldType::Text,
            "all subjects of the stream",
            "\"flights.0.*\"",
            "Subject of the messages to read, which may have wildcards.",
        ),
    ],
    source: Some(source),
    sink_fields: &[
        STREAM,
        FieldDefinition::optional(
            "subject",
            FieldType::Text,
            "the name of the stream",
            "\"releases\"",
            "Subject of the messages, without wildcards.",
        ),
    ],
    sink: Some(sink),
    security: &[
        (TLS_FIELDS, SCHEMES),
        (TLS_CLIENT_FIELDS, SCHEMES),
        (USER_FIELDS, SCHEMES),
        (TOKEN_FIELDS, SCHEMES),
        (KEY_FIELDS, SCHEMES),
    ],
};

const SCHEMES: &[&str] = &["nats"];

/// A server's stream, as named in `[source]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NatsStream {
    server: BrokerServer,
    login: NatsLogin,
    stream: String,
}

/// `[source]` with a NATS path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NatsSource {
    stream: NatsStream,
    /// `subject`: the subject of the messages to read; the whole stream if absent.
    subject: Option<String>,
}

/// `[[sinks]]` with a NATS path.
#[derive(Debug, PartialEq, Eq)]
struct NatsSink {
    stream: NatsStream,
    /// `subject`: the subject of the messages; by default the name of the stream.
    subject: String,
}

impl NatsStream {
    fn read(settings: &SystemSection<'_, '_>) -> Option<Self> {
        let stream = stream(settings.section, ".*>/\\");
        let Some((server, "")) = BrokerServer::read(settings, 4222) else {
            report_broker(settings.path);
            return None;
        };
        let login = NatsLogin::read(settings, &server.login);
        Some(NatsStream { server, login, stream: stream? })
    }

    fn name(&self) -> String {
        format!("nats://{} {}", self.server.address, self.stream)
    }
}

fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let stream = NatsStream::read(settings);
    let subject = settings.section.text("subject");
    if let Some(subject) = subject.as_ref().filter(|subject| !is_subject(subject.value)) {
        subject.report("expected a subject such as \"flights.0\" or \"flights.0.*\"");
        return None;
    }
    Some(Arc::new(NatsSource { stream: stream?, subject: subject.map(|subject| subject.value.into()) }))
}

fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    let stream = NatsStream::read(settings);
    let subject = settings.section.text("subject");
    if let Some(subject) = subject.as_ref().filter(|subject| !is_plain(subject.value)) {
        subject.report("expected a subject without wildcards, such as \"releases\"");
        return None;
    }
    let stream = stream?;
    let subject = subject.map_or_else(|| stream.stream.clone(), |subject| subject.value.into());
    Some(Arc::new(NatsSink { stream, subject }))
}

/// Whether a text is a subject, which may have wildcards.
fn is_subject(subject: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    !subject.contains(odd) && !subject.starts_with('$') && subject.split('.').all(|part| !part.is_empty())
}

/// Whether a subject has no wildcard.
fn is_plain(subject: &str) -> bool {
    is_subject(subject) && !subject.contains(['*', '>'])
}

impl ServerStream for NatsSource {
    fn name(&self) -> String {
        let subject = self.subject.iter().map(|subject| format!(" {subject}"));
        self.stream.name() + &subject.collect::<String>()
    }

    fn identity(&self) -> Vec<u8> {
        let subject = self.subject.iter().map(|subject| format!("\0{subject}"));
        identity(0, 0, &(self.stream.stream.clone() + &subject.collect::<String>()))
    }

    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError> {
        Ok(Box::new(reader::NatsReader::open(self, control, position)?))
    }
}

impl SinkConfig for NatsSink {
    fn name(&self) -> String {
        self.stream.name()
    }

    fn target(&self, control: &Control) -> SinkTarget {
        StreamOutlet::target(writer::NatsWriter::new(&self.stream, &self.subject, control))
    }

    fn probe(&self, control: &Control) -> Result<(), RequestError> {
        let mut connection = connection::NatsConnection::open(&self.stream, control)?;
        let request = match connection.facts() {
            // The writer creates it.
            Err(RequestError::NoStream) => "CREATE",
            facts => facts.map(|_| "MSG.GET")?,
        };
        let request = format!("$JS.API.STREAM.{request}.{}", self.stream.stream);
        rights::check(&mut connection, &[self.subject.clone(), request])
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{sink_of, source_of};
    use super::*;
    use crate::connect::DynamicEq;
    use std::any::Any;

    fn stream_at(address: &str) -> NatsStream {
        let server = BrokerServer { address: address.into(), ..BrokerServer::default() };
        NatsStream { server, login: NatsLogin::default(), stream: "s".into() }
    }

    #[test]
    fn paths_have_defaults() {
        let check = |path: &str, expected: Option<NatsStream>| {
            let found = source_of(&format!("path = '{path}', stream = 's'"));
            let equal = match (&found, &expected) {
                (Ok(found), Some(expected)) => {
                    let expected = NatsSource { stream: expected.clone(), subject: None };
                    expected.equals(&*found.0.source as &dyn Any)
                }
                (found, expected) => found.is_err() && expected.is_none(),
            };
            assert!(equal, "{path}: {found:?}");
        };
        check("nats://h", Some(stream_at("h:4222")));
        check("nats://h:1", Some(stream_at("h:1")));
        check("nats://h:", None);
        check("nats://h/3", None);
        check("nats://", None);
        let refused = |source: &str| source_of(&format!("path = 'nats://h', {source}")).unwrap_err();
        assert!(refused("stream = 's', password_env = 'P'").contains("needs a user"));
        let both = "stream = 's', token_env = 'T', user = 'u', password_env = 'P'";
        assert!(refused(both).contains("several ways to log in"));
        assert!(refused("stream = 'a.b'").contains("expected the name of a stream"));
        assert!(refused("stream = 's', format = 'fields'").contains("a message is text"));
        assert!(refused("stream = 's', format = 'csv'").contains("have no header"));
        assert!(source_of("path = 'nats://h', stream = 's', format = 'csv', header = ['x']").is_ok());
        assert!(refused("stream = 's', field = 'x'").contains("for redis://: leave it out"));
        assert!(refused("stream = 's', partition = 0").contains("for kafka://: leave it out"));
    }

    #[test]
    fn a_source_may_have_a_subject() {
        let tag = |more: &str| {
            let (input, format) = source_of(&format!("path = 'nats://h', stream = 's'{more}"))?;
            Ok::<u32, String>(input.tag(format))
        };
        let tags: Vec<_> =
            ["", ", subject = 'a.0'", ", subject = 'a.*'"].map(tag).into_iter().flatten().collect();
        assert!(tags.len() == 3 && tags[0] != tags[1] && tags[1] != tags[2], "{tags:?}");
        for subject in ["a..b", "a b", "$JS.a", "a."] {
            let refused = tag(&format!(", subject = '{subject}'")).unwrap_err();
            assert!(refused.contains("expected a subject"), "{subject}: {refused}");
        }
    }

    #[test]
    fn a_sink_has_a_subject() {
        let check = |sink: &str, subject: &str| {
            let found = sink_of(&format!("path = 'nats://h:1', stream = 's'{sink}")).unwrap();
            let expected = NatsSink { stream: stream_at("h:1"), subject: subject.into() };
            assert!(expected.equals(&*found.0 as &dyn Any), "{found:?}");
        };
        check("", "s");
        check(", subject = 'a.b'", "a.b");
        let refused = |sink: &str| sink_of(&format!("path = 'nats://h', {sink}")).unwrap_err();
        assert!(refused("stream = 's', subject = 'a.*'").contains("wildcards"));
        assert!(refused("stream = 's', keep = '5 epochs'").contains("redis://"));
    }
}
