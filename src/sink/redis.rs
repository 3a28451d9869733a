//! A stream of Redis: an entry for each line, with the id `epoch-line` and the line in the field `release`.
//!
//! Redis takes ids in rising order alone. So no line can be there twice, whoever repeats it, and the last id says where to go on.

use crate::broker::Trouble;
use crate::broker::id::{Id, parse, shown};
use crate::broker::redis::{Connection, Value, fact, write_command};
use crate::broker::wire::garbled;
use crate::control::Control;
use crate::pipeline::ReleaseStream;

use super::feed::Mark;
use super::stream::Server;

/// The field of a line.
const FIELD: &str = "release";

#[derive(Default)]
pub(super) struct Redis(Option<Connection>);

impl Server for Redis {
    fn open(&mut self, sink: &ReleaseStream) -> Result<(Id, Option<Mark>), Trouble> {
        let facts = self.0.insert(Connection::open(&sink.broker, &Control::new())?).facts();
        let facts = match facts {
            Err(Trouble::NoStream) => return Ok(((0, 0), None)),
            facts => facts?,
        };
        let Some(Value::Text(id)) = fact(&facts, "last-generated-id") else { return Err(garbled().into()) };
        let last = match fact(&facts, "last-entry") {
            Some(Value::List(entry)) => Some(mark(entry).ok_or_else(|| sink.foreign())?),
            // All entries have been removed since.
            _ => None,
        };
        Ok((parse(id)?, last))
    }

    fn send(
        &mut self,
        sink: &ReleaseStream,
        lines: &[(Id, &str)],
        taken: &mut dyn FnMut(Id),
    ) -> Result<(), Trouble> {
        let Some(connection) = &mut self.0 else { return Err(garbled().into()) };
        let mut commands = Vec::new();
        for &((epoch, number), line) in lines {
            let id = shown((epoch, number));
            let oldest = sink.keep.map(|keep| epoch.saturating_sub(keep).to_string());
            let limit = oldest.as_deref().map(|oldest| ["MINID", "~", oldest]);
            let parts = ["XADD", sink.broker.stream.as_str()].into_iter();
            let parts: Vec<&str> =
                parts.chain(limit.into_iter().flatten()).chain([id.as_str(), FIELD, line]).collect();
            write_command(&mut commands, &parts);
        }
        connection.wire.send(&commands)?;
        for &(id, _) in lines {
            connection.answer()?;
            taken(id);
        }
        Ok(())
    }
}

/// What an entry tells, if it is one of ours.
fn mark(entry: &[Value]) -> Option<Mark> {
    let [Value::Text(id), Value::List(fields)] = entry else { return None };
    let Some(Value::Text(line)) = fact(fields, FIELD) else { return None };
    Mark::of(line).filter(|mark| parse(id).is_ok_and(|(epoch, _)| epoch == mark.epoch))
}
