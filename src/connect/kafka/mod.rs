//! Kafka: a topic with one record per message. All partitions are read, or a chosen one. The client
//! is a C library, behind the feature `kafka`.

#[cfg(feature = "kafka")]
mod connection;
#[cfg(feature = "kafka")]
mod group;
#[cfg(feature = "kafka")]
mod partitions;
#[cfg(feature = "kafka")]
mod reader;
#[cfg(feature = "kafka")]
mod registry;
mod sasl;
#[cfg(feature = "kafka")]
mod security;
#[cfg(feature = "kafka")]
mod topic;
#[cfg(feature = "kafka")]
mod writer;

use super::security::{TLS_CLIENT_FIELDS, TLS_FIELDS, USER_FIELDS, VARIABLE};
use super::{PositionParts, STREAM, System};
#[cfg(not(feature = "kafka"))]
use super::{without_client as sink, without_client as source};
use crate::document::definition::{FieldDefinition, FieldType};
use crate::security::SecretFields;
use sasl::SASL;
#[cfg(feature = "kafka")]
use topic::{sink, source};

const REGISTRY_PASSWORD: SecretFields =
    SecretFields { variable: "registry_password_env", file: "registry_password_file" };

const SCHEMES: &[&str] = &["kafka"];

pub(super) const SYSTEM: System = System {
    schemes: SCHEMES,
    path: "kafka://host:port",
    full_path: "kafka://host[:port]",
    has_fields: false,
    tags: &[PositionParts::Partitions.tag(6)],
    source_fields: &[
        STREAM,
        FieldDefinition::optional(
            "partition",
            FieldType::Count { least: 0, most: i32::MAX as u64 },
            "all partitions, new ones too",
            "0",
            "The only partition of the topic to read.",
        ),
        FieldDefinition::with_default(
            "partition_idle",
            FieldType::Duration { least: 1 },
            "\"30s\"",
            "\"5m\"",
            "After this time without a row, the other partitions no longer wait for a partition.",
        ),
        SASL,
        FieldDefinition::optional(
            "registry",
            FieldType::Text,
            "messages have no schema",
            "\"http://127.0.0.1:8081\"",
            "Schema registry of messages in Avro, or in JSON with the number of a schema before it.",
        ),
        FieldDefinition::optional(
            "registry_user",
            FieldType::Text,
            "the registry asks for no user",
            "\"hushflow\"",
            "User of the registry.",
        ),
        FieldDefinition::optional(
            REGISTRY_PASSWORD.variable,
            VARIABLE,
            "no password",
            "\"REGISTRY_PASSWORD\"",
            "Environment variable that holds the password for the registry.",
        ),
        FieldDefinition::optional(
            REGISTRY_PASSWORD.file,
            FieldType::Text,
            "no password",
            "\"registry.password\"",
            "File that holds the password for the registry, in one line.",
        ),
        FieldDefinition::optional(
            "group",
            FieldType::Text,
            "no offsets are stored",
            "\"hushflow-flights\"",
            "Consumer group under which the offsets of committed epochs are stored, for Kafka's own tools to show.",
        ),
    ],
    source: Some(source),
    sink_fields: &[STREAM, SASL],
    sink: Some(sink),
    security: &[(TLS_FIELDS, SCHEMES), (TLS_CLIENT_FIELDS, SCHEMES), (USER_FIELDS, SCHEMES)],
    ..System::NONE
};

#[cfg(all(test, not(feature = "kafka")))]
mod tests {
    use crate::connect::fake::{sink_of, source_of};

    #[test]
    fn a_build_without_kafka_reports_it() {
        let kafka = "path = 'kafka://h', stream = 's'";
        assert!(source_of(kafka).is_err_and(|error| error.contains("--features kafka")));
        assert!(sink_of(kafka).is_err_and(|error| error.contains("--features kafka")));
    }
}
