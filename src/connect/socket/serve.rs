//! Reads one connection after another until the run is over.

use std::io::{self, ErrorKind, Read};
use std::time::Instant;

use zeroize::Zeroizing;

use super::connection::{PeerConnection, PeerConnections};
use crate::connect::journal::{CHUNK, IntakeBuffer};
use crate::format::STANDARD_INPUT;
use crate::format::form::{EntryParser, RowLayout};
use crate::format::row::{RECORD_LIMIT, Row};
use crate::format::{BYTE_ORDER_MARK, Defect, Format};
use crate::state::IngestJournal;

const GIVE_WAY: &str = "no usable line has come in time, and another peer is ready to send";

/// Maximum number of lines checked per chunk: if the peer sends rows, one of them is usable.
const MAX_CHECKED_LINES: usize = 16;

/// How a connection ended.
#[derive(Default)]
struct ConnectionEnd {
    /// Reason why the peer was refused or lost its turn.
    refused: Option<String>,
    /// Error of the transport.
    error: Option<io::Error>,
    /// Whether the peer has sent anything.
    has_sent: bool,
}

/// Passes bytes from connections to the writer of the journal.
pub(super) fn serve(
    buffer: &IntakeBuffer,
    mut connections: PeerConnections,
    ingest: &IngestJournal,
    shape: &RowLayout,
) {
    let peer = connections.peer();
    let mut last_activity = Instant::now();
    let ended = loop {
        let mut connection = match connections.next(last_activity) {
            Ok(Some(connection)) => connection,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        last_activity = Instant::now();
        if connections.acknowledges() {
            peer.greet(&connection, ingest.acknowledged(None).unwrap_or_default());
        }
        let activity = PeerActivity::new(shape);
        let end = read(buffer, &mut connection, &mut connections, &mut last_activity, activity);
        peer.leave();
        let refused = buffer.end_connection().or(end.refused);
        let is_of_use = end.has_sent && refused.is_none();
        if let Some(reason) = refused {
            connections.control().notice(&format!("a peer was refused: {reason}"));
            connection.refuse(&reason);
        }
        if buffer.is_stopped() {
            return;
        }
        if let Err(error) = connections.note_end(end.error, is_of_use) {
            break Err(error);
        }
    };
    buffer.end(ended);
}

/// Reads a connection until it ends or the rest is unwanted.
fn read(
    buffer: &IntakeBuffer,
    connection: &mut PeerConnection,
    connections: &mut PeerConnections,
    last_activity: &mut Instant,
    mut activity: PeerActivity,
) -> ConnectionEnd {
    let mut chunk = Zeroizing::new(vec![0; CHUNK]);
    let mut progress = Instant::now();
    let mut end = ConnectionEnd::default();
    let mut is_new = true;
    while !connections.control().is_over(*last_activity) && buffer.is_wanted() {
        if connections.must_give_way(progress, is_new) {
            return ConnectionEnd { refused: Some(GIVE_WAY.into()), ..end };
        }
        match connection.read(&mut chunk) {
            Ok(0) => return end,
            Ok(read) => {
                end.has_sent = true;
                let received = Instant::now();
                let is_activity = activity.observe(&chunk[..read]);
                is_new &= !is_activity;
                if !buffer.put(&chunk[..read]) {
                    return end;
                }
                *last_activity = Instant::now();
                // A blocked peer does not count as silent.
                progress = if is_activity { *last_activity } else { progress + (*last_activity - received) };
            }
            Err(error) if has_no_data_yet(&error) => {}
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return ConnectionEnd { refused: Some(error.to_string()), ..end };
            }
            Err(error) => return ConnectionEnd { error: Some(error), ..end },
        }
    }
    end
}

/// Whether the error only means that no data is available yet.
fn has_no_data_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Detects activity of a peer: the header of its rows, and usable rows. An occasional byte, a blank
/// line or an unreadable line does not count.
struct PeerActivity {
    shape: RowLayout,
    /// How to read a line, once its header is known.
    form: Option<EntryParser>,
    row: Row,
    /// The beginning of the current line, up to the limit of a record.
    line: Zeroizing<Vec<u8>>,
}

impl PeerActivity {
    fn new(shape: &RowLayout) -> Self {
        let has_header = matches!(shape.format, Format::Csv(_)) && shape.header.is_none();
        let form = (!has_header).then(|| EntryParser::new(shape, STANDARD_INPUT.as_ref()).ok()).flatten();
        // At full size from the start: a growing vector would leave copies behind.
        let line = Zeroizing::new(Vec::with_capacity(RECORD_LIMIT));
        PeerActivity { shape: shape.clone(), form, row: Row::default(), line }
    }

    /// Whether a line that ends in this chunk counts as activity.
    fn observe(&mut self, chunk: &[u8]) -> bool {
        let mut lines = chunk.split_inclusive(|&byte| byte == b'\n');
        let mut is_activity = false;
        for part in lines.by_ref().take(MAX_CHECKED_LINES) {
            self.gather(part);
            if part.ends_with(b"\n") {
                let mut line = std::mem::take(&mut self.line);
                is_activity = self.is_activity(&line);
                line.clear();
                self.line = line;
                if is_activity {
                    break;
                }
            }
        }
        // Skip the rest of the chunk, except for an unfinished last line.
        if let Some(part) = lines.next_back() {
            self.line.clear();
            if !part.ends_with(b"\n") {
                self.gather(part);
            }
        }
        is_activity
    }

    fn gather(&mut self, part: &[u8]) {
        let room = RECORD_LIMIT.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn is_activity(&mut self, line: &[u8]) -> bool {
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        if line.trim_ascii().is_empty() {
            return false;
        }
        let Some(form) = &mut self.form else {
            let shape = RowLayout { header: Some(line.to_vec()), ..self.shape.clone() };
            self.form = EntryParser::new(&shape, STANDARD_INPUT.as_ref()).ok();
            return self.form.is_some();
        };
        // Quoted fields may contain line ends.
        if matches!(self.shape.format, Format::Csv(_)) && line.contains(&b'"') {
            return true;
        }
        form.read(line, &mut self.row);
        // The first wanted column is a number.
        self.row.defect.is_none()
            && matches!(self.row.number(0), Ok(_) | Err(Defect::Missing))
            && (0..self.shape.wanted.len()).any(|slot| self.row.is_present(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_usable_rows_count_as_activity() {
        let activity = |format, header: Option<&str>| {
            let header = header.map(|header| header.into());
            PeerActivity::new(&RowLayout { format, header, wanted: vec!["x".into(), "y".into()] })
        };
        let check = |mut activity: PeerActivity, chunks: &[(&str, bool)]| {
            for (chunk, expected) in chunks {
                assert_eq!(activity.observe(chunk.as_bytes()), *expected, "{chunk:?}");
            }
        };
        let rows = [("junk\n", false), ("1,", false), ("2\n", true), ("\n \n", false), ("1\n2,3,4\n", false)];
        check(activity(Format::COMMAS, Some("x,y\n")), &rows);
        check(
            activity(Format::COMMAS, None),
            &[("junk\n", false), ("\u{feff}y,x\r\n", true), ("1,2\r\n", true)],
        );
        check(
            activity(Format::COMMAS, Some("x,y\n")),
            &[("\"a\n", true), ("junk\n1,2\njunk", true), ("\n", false)],
        );
        let objects = [
            ("junk\n", false),
            ("{\"log\":1}\n", false),
            ("{\"x\"", false),
            (":1}\n", true),
            ("[1]\n{\"x\":\"a\"}\n", false),
        ];
        check(activity(Format::Ndjson, None), &objects);
        // Junk without a line end, far longer than the buffer.
        let mut junk = activity(Format::Ndjson, None);
        for _ in 0..40 {
            assert!(!junk.observe(&[b'j'; CHUNK]));
        }
        assert!(junk.line.len() <= RECORD_LIMIT && !junk.observe(b"\n") && junk.observe(b"{\"y\":2}\n"));
    }
}
