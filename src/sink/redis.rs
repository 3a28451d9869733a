//! A stream of Redis: an entry for each line, with the id `epoch-line` and the line in the field `release`.
//!
//! Redis takes ids in rising order alone. So no line can be there twice, whoever repeats it, and the last id says where to go on.

use crate::broker::Trouble;
use crate::broker::redis::{Connection, Id, Value, fact, parse, shown, write_command};
use crate::broker::wire::garbled;
use crate::pipeline::ReleaseStream;
use crate::source::Control;

use super::SinkError;
use super::feed::Mark;
use super::following::{Held, Outlet, batches, numbered};

/// The field of a line.
const FIELD: &str = "release";

pub(super) struct Redis {
    sink: ReleaseStream,
    connection: Option<Connection>,
    /// The last id.
    last: Id,
    /// The last line of the last epoch that was written as a whole, by this sink since it began.
    done: Option<Id>,
}

impl Redis {
    pub(super) fn new(sink: ReleaseStream) -> Self {
        Redis { sink, connection: None, last: (0, 0), done: None }
    }

    /// The last epoch of which everything is there, as far as is known.
    fn whole(&self) -> u64 {
        let (epoch, _) = self.last;
        if self.done == Some(self.last) { epoch } else { epoch.saturating_sub(1) }
    }

    fn begin(&mut self) -> Result<Held, Trouble> {
        let mut connection = Connection::open(&self.sink.broker, &Control::new())?;
        let facts = connection.facts();
        self.connection = Some(connection);
        let facts = match facts {
            Err(Trouble::NoStream) => {
                self.last = (0, 0);
                return Ok(Held::default());
            }
            facts => facts?,
        };
        let Some(Value::Text(id)) = fact(&facts, "last-generated-id") else { return Err(garbled().into()) };
        self.last = parse(id)?;
        let last = match fact(&facts, "last-entry") {
            Some(Value::List(entry)) => Some(self.mark(entry)?),
            // All entries have been removed since.
            _ => None,
        };
        Ok(Held { whole: self.whole(), last })
    }

    /// What an entry tells.
    fn mark(&self, entry: &[Value]) -> Result<Mark, Trouble> {
        let found = match entry {
            [Value::Text(id), Value::List(fields)] => match fact(fields, FIELD) {
                Some(Value::Text(line)) => {
                    Mark::of(line).filter(|mark| parse(id).is_ok_and(|(epoch, _)| epoch == mark.epoch))
                }
                _ => None,
            },
            _ => None,
        };
        found.ok_or_else(|| self.sink.foreign())
    }

    fn write(&mut self, epoch: u64, lines: &[u8]) -> Result<(), Trouble> {
        let Some(connection) = &mut self.connection else { return Err(garbled().into()) };
        let oldest = self.sink.keep.map(|keep| epoch.saturating_sub(keep).to_string());
        let last = self.last;
        let due = numbered(lines).filter(|&(number, _)| (epoch, number) > last);
        for batch in batches(due) {
            let mut commands = Vec::new();
            for (number, line) in &batch {
                let id = shown((epoch, *number));
                let limit = oldest.as_deref().map(|oldest| ["MINID", "~", oldest]);
                let parts = ["XADD", self.sink.broker.stream.as_str()].into_iter();
                let parts: Vec<&str> =
                    parts.chain(limit.into_iter().flatten()).chain([id.as_str(), FIELD, line]).collect();
                write_command(&mut commands, &parts);
            }
            connection.wire.send(&commands)?;
            for (number, _) in batch {
                connection.answer()?;
                self.last = (epoch, number);
            }
        }
        self.done = Some(self.last);
        Ok(())
    }
}

impl Outlet for Redis {
    fn name(&self) -> String {
        crate::broker::name(&self.sink.broker)
    }

    fn open(&mut self) -> Result<Held, SinkError> {
        self.begin().map_err(|trouble| SinkError::of(&self.sink.broker, trouble))
    }

    fn append(&mut self, epoch: u64, lines: &[u8]) -> Result<(), SinkError> {
        self.write(epoch, lines).map_err(|trouble| SinkError::of(&self.sink.broker, trouble))
    }
}
