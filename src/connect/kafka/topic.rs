//! A Kafka topic as named in a pipeline.

use std::sync::Arc;
use std::time::Duration;

use super::connection::TopicConsumer;
use super::group::GroupOffsets;
use super::partitions::{FoundPartitions, TopicPartition, TopicPartitions};
use super::registry::Registry;
use super::sasl::Mechanism;
use super::security::mechanism;
use super::writer;
use crate::connect::entries::{identity, origin};
use crate::connect::origin::{CommitListener, Partitioning};
use crate::connect::wire::{BrokerServer, stream};
use crate::connect::writer::StreamOutlet;
use crate::connect::{
    AllowedFormats, Origin, OriginRequest, Partitions, RequestError, SinkConfig, SinkTarget, SourceConfig,
    SourceError, SystemSection, report_broker,
};
use crate::control::Control;
use crate::format::Format;
use crate::format::form::RowLayout;

/// Default of `partition_idle`.
const IDLE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// Several servers are separated by commas.
    pub(super) server: BrokerServer,
    /// `sasl`: how the user proves its password.
    pub(super) mechanism: Mechanism,
    /// `stream`: name of the topic.
    pub(super) stream: String,
    /// `partition`: the only partition to read.
    pub(super) partition: Option<u32>,
    /// `partition_idle`: after this silence of a partition the others go on without it.
    pub(super) idle: Duration,
    /// `group`: consumer group under which offsets are stored.
    pub(super) group: Option<String>,
    /// `registry`: server with the schemas of messages.
    pub(super) registry: Option<Registry>,
}

impl Topic {
    fn read(settings: &SystemSection<'_, '_>) -> Option<Self> {
        let stream = stream(settings.section, ",:*?/\\\"'");
        let Some((server, "")) = BrokerServer::read(settings, 9092) else {
            report_broker(settings.path);
            return None;
        };
        let mechanism = mechanism(settings, &server)?;
        let (partition, idle, group, registry) = (None, IDLE, None, None);
        Some(Topic { server, mechanism, stream: stream?, partition, idle, group, registry })
    }

    /// The topic's name for messages.
    pub(super) fn name(&self) -> String {
        let partition = self.partition.map_or_else(String::new, |partition| format!(" {partition}"));
        format!("kafka://{} {}{partition}", self.server.address, self.stream)
    }
}

pub(super) fn source(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    let section = settings.section;
    let partition = section.count("partition");
    let partition = partition.and_then(|number| u32::try_from(number.value).ok());
    if partition.is_some() {
        section.refuse("partition_idle", "a single partition has no others that could wait: leave it out");
    }
    let idle = section.duration("partition_idle").and_then(|micros| u64::try_from(micros).ok());
    let group = section.text("group");
    if let Some(group) = group.as_ref().filter(|group| group.value.is_empty()) {
        group.report("found \"\", expected the name of a consumer group");
        return None;
    }
    let registry = section.text("registry");
    let registry = match &registry {
        Some(url) => Some(Registry::read(settings, url)?),
        None => None,
    };
    let topic = Topic::read(settings)?;
    let idle = idle.map_or(IDLE, Duration::from_micros);
    let group = group.map(|group| group.value.into());
    Some(Arc::new(Topic { partition, idle, group, registry, ..topic }))
}

pub(super) fn sink(settings: &SystemSection<'_, '_>) -> Option<Arc<dyn SinkConfig>> {
    Some(Arc::new(Topic::read(settings)?))
}

impl SourceConfig for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn formats(&self) -> AllowedFormats {
        let (allowed, expected) = match self.registry {
            Some(_) => (
                &[Format::Avro, Format::Ndjson][..],
                "a registry is for format = \"avro\" or format = \"ndjson\"",
            ),
            None => (
                &[Format::COMMAS, Format::Ndjson][..],
                "a message is text: use format = \"ndjson\" or format = \"csv\", or name a registry for format = \"avro\"",
            ),
        };
        AllowedFormats { allowed, expected: Some(expected), ..AllowedFormats::MESSAGES }
    }

    fn identity(&self) -> Option<Vec<u8>> {
        Some(identity(0, self.partition.unwrap_or(u32::MAX), &self.stream))
    }

    fn partitioning(&self) -> Option<Partitioning> {
        self.partition.is_none().then_some(Partitioning { idle: self.idle })
    }

    fn opens_anywhere(&self) -> bool {
        true
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        let found = FoundPartitions::default();
        let partition = TopicPartition::new(self, self.partition.unwrap_or(0), &found);
        Ok(origin(partition, opening.shape, opening.control))
    }

    fn open_partitions(
        &self,
        shape: &RowLayout,
        control: &Control,
        recorded: u32,
    ) -> Option<Arc<dyn Partitions>> {
        self.partitioning()?;
        Some(Arc::new(TopicPartitions::open(self, shape, control, recorded)))
    }

    fn commit_listener(&self, control: &Control) -> Option<Box<dyn CommitListener>> {
        let group = self.group.as_ref()?;
        Some(Box::new(GroupOffsets::start(self, group, control)))
    }
}

impl SinkConfig for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn target(&self, control: &Control) -> SinkTarget {
        StreamOutlet::target(writer::TopicWriter::new(self, control))
    }

    fn probe(&self, control: &Control) -> Result<(), RequestError> {
        TopicConsumer::open(self, 1, control)?.partitions(control).map(drop)
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
        let topic = |address: &str| Topic {
            server: BrokerServer { address: address.into(), ..BrokerServer::default() },
            mechanism: Mechanism::default(),
            stream: "s".into(),
            partition: None,
            idle: IDLE,
            group: None,
            registry: None,
        };
        let check = |path: &str, more: &str, expected: Option<Topic>| {
            let found = source_of(&format!("path = '{path}', stream = 's'{more}"));
            let equal = match (&found, expected) {
                (Ok(found), Some(expected)) => expected.equals(&*found.0.source as &dyn Any),
                (found, expected) => found.is_err() && expected.is_none(),
            };
            assert!(equal, "{path}{more}: {found:?}");
        };
        check("kafka://h", "", Some(topic("h:9092")));
        check("kafka://h:1,i:2", "", Some(topic("h:1,i:2")));
        check("kafka://h/0", "", None);
        check("kafka://h", ", partition = 3", Some(Topic { partition: Some(3), ..topic("h:9092") }));
        check("kafka://h", ", partition = -1", None);
        check("kafka://h", ", partition = 3, partition_idle = '1s'", None);
        let idle = Duration::from_secs(5);
        check("kafka://h", ", partition_idle = '5s'", Some(Topic { idle, ..topic("h:9092") }));
        check("kafka://h", ", group = 'g'", Some(Topic { group: Some("g".into()), ..topic("h:9092") }));
        check("kafka://h", ", group = ''", None);
        check("kafka://h", ", format = 'fields'", None);
        check("kafka://h", ", sasl = 'plain'", None);
        check("kafka://h", ", user = 'u', password_env = 'P', sasl = 'plain'", None);
        check("kafka://h", ", tls = true, tls_server_name = 'n'", None);
        check("kafka://h", ", password_env = 'P'", None);
    }
}
