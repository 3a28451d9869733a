//! Writes releases to a Redis stream: one entry per line, with the id `epoch-line` and the line in
//! the field `release`.
//!
//! Redis refuses an id that is not above the last one. So a repeated line is never stored twice,
//! and the last id is the position to resume from. Each batch is one transaction: if Redis refuses
//! a line when it is queued, it stores none of the batch, so no line is skipped.

use super::RedisStream;
use super::connection::{RedisConnection, RedisValue, fact, write_command};

use crate::connect::error::{RequestError, foreign};
use crate::connect::wire::{format_id, malformed_answer, parse_id};
use crate::connect::writer::{EntryId, EpochStamp, ServerWriter};
use crate::control::Control;

/// The field of a line.
const FIELD: &str = "release";

pub(super) struct RedisWriter {
    stream: RedisStream,
    /// Approximate number of epochs that the server keeps.
    keep: Option<u64>,
    control: Control,
    connection: Option<RedisConnection>,
}

impl RedisWriter {
    pub(super) fn new(stream: &RedisStream, keep: Option<u64>, control: &Control) -> Self {
        RedisWriter { stream: stream.clone(), keep, control: control.clone(), connection: None }
    }
}

impl ServerWriter for RedisWriter {
    fn open(&mut self) -> Result<(EntryId, Option<EpochStamp>), RequestError> {
        let facts = self.connection.insert(RedisConnection::open(&self.stream, &self.control)?).facts();
        let facts = match facts {
            Err(RequestError::NoStream) => return Ok(((0, 0), None)),
            facts => facts?,
        };
        let Some(RedisValue::Text(id)) = fact(&facts, "last-generated-id") else {
            return Err(malformed_answer().into());
        };
        let last = match fact(&facts, "last-entry") {
            Some(RedisValue::List(entry)) => Some(mark(entry).ok_or_else(|| foreign(self.stream.name()))?),
            // All entries have been removed in the meantime.
            _ => None,
        };
        Ok((parse_id(id)?, last))
    }

    fn send(
        &mut self,
        lines: &[(EntryId, &str)],
        acknowledge: &mut dyn FnMut(EntryId),
    ) -> Result<(), RequestError> {
        let Some(connection) = &mut self.connection else { return Err(malformed_answer().into()) };
        let mut commands = Vec::new();
        write_command(&mut commands, &["MULTI"]);
        for &((epoch, number), line) in lines {
            let id = format_id((epoch, number));
            let oldest = self.keep.map(|keep| epoch.saturating_sub(keep).to_string());
            let limit = oldest.as_deref().map(|oldest| ["MINID", "~", oldest]);
            let parts = ["XADD", self.stream.stream.as_str()].into_iter();
            let parts: Vec<&str> =
                parts.chain(limit.into_iter().flatten()).chain([id.as_str(), FIELD, line]).collect();
            write_command(&mut commands, &parts);
        }
        write_command(&mut commands, &["EXEC"]);
        connection.wire.send(&commands)?;
        // One answer to MULTI and one per queued line. After a refusal EXEC does nothing.
        for _ in 0..=lines.len() {
            connection.answer()?;
        }
        let RedisValue::List(answers) = connection.answer()? else { return Err(malformed_answer().into()) };
        if answers.len() != lines.len() {
            return Err(malformed_answer().into());
        }
        for (&(id, _), answer) in lines.iter().zip(&answers) {
            connection.accepted(answer)?;
            acknowledge(id);
        }
        Ok(())
    }
}

/// Returns the stamp of an entry, if a sink wrote it.
fn mark(entry: &[RedisValue]) -> Option<EpochStamp> {
    let [RedisValue::Text(id), RedisValue::List(fields)] = entry else { return None };
    let Some(RedisValue::Text(line)) = fact(fields, FIELD) else { return None };
    EpochStamp::of(line).filter(|mark| parse_id(id).is_ok_and(|(epoch, _)| epoch == mark.epoch))
}

#[cfg(test)]
mod tests {
    use super::super::BrokerServer;
    use super::*;
    use crate::connect::fake::serve;

    /// A line that is refused, when it is queued or when it is executed, is not acknowledged, and
    /// neither is any later line.
    #[test]
    fn a_line_that_a_transaction_refuses_is_not_acknowledged() {
        const ADDED: &str = "$3\r\n7-0\r\n";
        const REFUSED: &str = "-ERR The ID specified in XADD is equal or smaller\r\n";
        let check = |answers: String, expected: &[EntryId], reason: &str| {
            let script = vec![(Some("XINFO"), "-ERR no such key\r\n".into()), (Some("EXEC"), answers)];
            let (address, server) = serve(script, false);
            let stream = RedisStream {
                server: BrokerServer { address, ..BrokerServer::default() },
                database: None,
                stream: "s".into(),
            };
            let mut writer = RedisWriter::new(&stream, None, &Control::new());
            assert!(matches!(writer.open(), Ok(((0, 0), None))));
            let mut acknowledged = Vec::new();
            match writer.send(&[((7, 0), "{}"), ((7, 1), "{}")], &mut |id| acknowledged.push(id)) {
                Err(RequestError::Refused { problem, .. }) => assert!(problem.contains(reason), "{problem}"),
                sent => panic!("{sent:?}"),
            }
            assert_eq!(acknowledged, expected);
            server.join().unwrap();
        };
        check(format!("+OK\r\n+QUEUED\r\n{REFUSED}-EXECABORT\r\n"), &[], "XADD");
        check("+OK\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT discarded\r\n".into(), &[], "discarded");
        check(format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{ADDED}{REFUSED}"), &[(7, 0)], "XADD");
        check(format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{REFUSED}{ADDED}"), &[], "XADD");
    }
}
