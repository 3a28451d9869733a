//! What a pipeline says of a topic of Kafka.

use std::sync::Arc;

use super::{reader, writer};
use crate::connect::entries::{Entries, Position, Reads, identity};
use crate::connect::server::{Server, stream};
use crate::connect::writer::{Writer, Writes};
use crate::connect::{Formats, Text, Trouble, report_path};
use crate::control::Control;
use crate::document::Section;

/// A topic, of which a source reads one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// `host:port`, or several of them with commas between.
    pub(super) address: String,
    /// `stream`: its name.
    pub(super) stream: String,
    /// `partition`: which one is read.
    pub(super) partition: Option<u32>,
}

impl Topic {
    fn read(section: &Section<'_>, path: &Text<'_>, rest: &str) -> Option<Self> {
        let stream = stream(section, ",:*?/\\\"'");
        let Some((server, "")) = Server::of(rest, 9092) else {
            report_path(path);
            return None;
        };
        if server.credentials.is_some() {
            path.report(
                "passwords are not supported for Kafka, because the connection is not encrypted: use kafka://host:port",
            );
            return None;
        }
        Some(Topic { address: server.address, stream: stream?, partition: None })
    }

    /// The topic in messages.
    pub(super) fn name(&self) -> String {
        let partition = self.partition.map_or_else(String::new, |partition| format!(" {partition}"));
        format!("kafka://{} {}{partition}", self.address, self.stream)
    }
}

pub(super) fn source(section: &Section<'_>, path: &Text<'_>, rest: &str) -> Option<Arc<dyn Reads>> {
    let partition = match section.get("partition") {
        None => Some(None),
        Some(_) => section.count("partition", 0).and_then(|number| {
            let below =
                |&number: &u64| u32::try_from(number).map_err(|_| "expected a number below 2^32".to_owned());
            Some(Some(number.map(below)?.value))
        }),
    };
    let topic = Topic::read(section, path, rest)?;
    Some(Arc::new(Topic { partition: partition?, ..topic }))
}

pub(super) fn sink(section: &Section<'_>, path: &Text<'_>, rest: &str) -> Option<Arc<dyn Writes>> {
    Some(Arc::new(Topic::read(section, path, rest)?))
}

impl Reads for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn identity(&self) -> Vec<u8> {
        identity(0, self.partition.unwrap_or(0), &self.stream)
    }

    fn formats(&self) -> Formats {
        Formats::MESSAGES
    }

    fn open(&self, control: &Control, position: Position) -> Result<Box<dyn Entries>, Trouble> {
        Ok(Box::new(reader::PartitionReader::open(self, control, position)?))
    }
}

impl Writes for Topic {
    fn name(&self) -> String {
        Topic::name(self)
    }

    fn place(&self) -> String {
        Topic::name(self)
    }

    fn writer(&self, control: &Control) -> Box<dyn Writer> {
        Box::new(writer::TopicWriter::new(self, control))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Equal;
    use crate::connect::fake::source_of;
    use std::any::Any;

    #[test]
    fn paths_have_defaults() {
        let check = |path: &str, more: &str, expected: Option<(&str, Option<u32>)>| {
            let found = source_of(&format!("path = '{path}', stream = 's'{more}"));
            let equal = match (&found, expected) {
                (Ok((found, _)), Some((address, partition))) => {
                    let expected = Topic { address: address.into(), stream: "s".into(), partition };
                    expected.equals(&*found.stream as &dyn Any)
                }
                (found, expected) => found.is_err() && expected.is_none(),
            };
            assert!(equal, "{path}: {found:?}");
        };
        check("kafka://h", "", Some(("h:9092", None)));
        check("kafka://h:1,i:2", "", Some(("h:1,i:2", None)));
        check("kafka://u:hidden@h", "", None);
        check("kafka://h/0", "", None);
        check("kafka://h", ", partition = 3", Some(("h:9092", Some(3))));
        check("kafka://h", ", partition = -1", None);
        check("kafka://h", ", format = 'fields'", None);
    }
}
