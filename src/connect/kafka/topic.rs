//! A Kafka topic as named in a pipeline.

use std::sync::Arc;

use super::{reader, writer};
use crate::connect::entries::{Entries, ServerStream, identity};
use crate::connect::wire::{address_of, stream};
use crate::connect::writer::StreamOutlet;
use crate::connect::{RequestError, SinkConfig, SinkTarget, SourceConfig, SystemSection, report_broker};
use crate::control::Control;
use crate::state::Position;

/// A topic, of which a source reads one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// `host:port`, or several of them separated by commas.
    pub(super) address: String,
    /// `stream`: name of the topic.
    pub(super) stream: String,
    /// `partition`: the partition to read.
    pub(super) partition: Option<u32>,
}

impl Topic {
    fn read(settings: &SystemSection<'_, '_>) -> Option<Self> {
        let stream = stream(settings.section, ",:*?/\\\"'");
        let Some((address, "")) = address_of(settings.rest, 9092) else {
            report_broker(settings.path);
            return None;
        };
        Some(Topic { address, stream: stream?, partition: None })
    }

    /// The topic's name for messages.
    pub(super) fn name(&self) -> String {
        let partition = self.partition.map_or_else(String::new, |partition| format!(" {partition}"));
        format!("kafka://{} {}{partition}", self.address, self.stream)
    }
}

pub(super) fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let partition = settings.section.count("partition");
    let partition = partition.and_then(|number| u32::try_from(number.value).ok());
    let topic = Topic::read(settings)?;
    Some(Arc::new(Topic { partition, ..topic }))
}

pub(super) fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    Some(Arc::new(Topic::read(settings)?))
}

impl ServerStream for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn identity(&self) -> Vec<u8> {
        identity(0, self.partition.unwrap_or(0), &self.stream)
    }

    fn connect(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, RequestError> {
        Ok(Box::new(reader::PartitionReader::open(self, control, position)?))
    }
}

impl SinkConfig for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn target(&self, control: &Control) -> SinkTarget {
        StreamOutlet::target(writer::TopicWriter::new(self, control))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::DynamicEq;
    use crate::connect::fake::source_of;
    use std::any::Any;

    #[test]
    fn paths_have_defaults() {
        let check = |path: &str, more: &str, expected: Option<(&str, Option<u32>)>| {
            let found = source_of(&format!("path = '{path}', stream = 's'{more}"));
            let equal = match (&found, expected) {
                (Ok(found), Some((address, partition))) => {
                    let expected = Topic { address: address.into(), stream: "s".into(), partition };
                    expected.equals(&*found.0.source as &dyn Any)
                }
                (found, expected) => found.is_err() && expected.is_none(),
            };
            assert!(equal, "{path}: {found:?}");
        };
        check("kafka://h", "", Some(("h:9092", None)));
        check("kafka://h:1,i:2", "", Some(("h:1,i:2", None)));
        check("kafka://h/0", "", None);
        check("kafka://h", ", partition = 3", Some(("h:9092", Some(3))));
        check("kafka://h", ", partition = -1", None);
        check("kafka://h", ", format = 'fields'", None);
    }
}
