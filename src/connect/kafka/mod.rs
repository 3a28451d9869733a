//! Kafka: a topic with one record per message, of which one partition is read. The client is a C
//! library, behind the feature `kafka`.

#[cfg(feature = "kafka")]
mod connection;
#[cfg(feature = "kafka")]
mod reader;
#[cfg(feature = "kafka")]
mod topic;
#[cfg(feature = "kafka")]
mod writer;

use super::{STREAM, System};
use crate::document::definition::{FieldDefinition, FieldType};
#[cfg(feature = "kafka")]
use topic::{sink, source};
#[cfg(not(feature = "kafka"))]
use without::{sink, source};

pub(super) const SYSTEM: System = System {
    schemes: &["kafka"],
    path: "kafka://host:port",
    full_path: "kafka://host[:port]",
    has_fields: false,
    journaling: super::Journaling::Never,
    tags: &[6],
    source_fields: &[
        STREAM,
        FieldDefinition::optional(
            "partition",
            FieldType::Count { least: 0, most: u32::MAX as u64 },
            "the topic must have only one",
            "0",
            "Partition of the topic to read.",
        ),
    ],
    source: Some(source),
    sink_fields: &[STREAM],
    sink: Some(sink),
    ..System::NONE
};

/// Replacement in builds without a client.
#[cfg(not(feature = "kafka"))]
mod without {
    use std::sync::Arc;

    use crate::connect::{SinkConfig, SourceConfig, SystemSection};

    const WITHOUT: &str = "built without Kafka: cargo build --features kafka";

    pub(super) fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
        settings.path.report(WITHOUT);
        None
    }

    pub(super) fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
        settings.path.report(WITHOUT);
        None
    }

    #[test]
    fn a_build_without_kafka_reports_it() {
        use crate::connect::fake::{sink_of, source_of};
        let kafka = "path = 'kafka://h', stream = 's'";
        assert!(source_of(kafka).is_err_and(|error| error.contains("--features")));
        assert!(sink_of(kafka).is_err_and(|error| error.contains("--features")));
    }
}
