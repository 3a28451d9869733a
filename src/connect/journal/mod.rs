//! The ingest journal: keeps records of a source that can't be read again until they are counted.
//!
//! An [`Intake`] copies the source into sessions of the journal. Sessions are read like files: from
//! a position, one after the other.

mod intake;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use super::{OpenFile, Origin, SourceError, io_error};
use crate::format::ByteStream;
use crate::state::{IngestJournal, IngestReader, Position};

pub(crate) use intake::Intake;
pub(super) use intake::{CHUNK, IntakeBuffer};
pub(crate) use session::JournalSession;

/// Position tag of journals.
pub(crate) const TAG: u8 = 1;

/// The sessions of a journal, each like a file.
pub(crate) struct JournalSessions {
    pub(crate) ingest: Arc<IngestJournal>,
    /// The source's name for messages.
    pub(crate) name: String,
}

impl Origin for JournalSessions {
    fn name(&self, file: u32) -> PathBuf {
        if file >= self.ingest.session() {
            return self.name.clone().into();
        }
        let inner = self.name.trim_matches(['<', '>']).replace("standard", "the standard");
        format!("<session {file} of {inner}>").into()
    }

    fn may_wait(&self, _position: Position) -> bool {
        true
    }

    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError> {
        let reader = IngestReader::open(&self.ingest, position);
        let reader = reader.map_err(|source| io_error(&self.name(position.part), source))?;
        Ok(reader.map(|reader| {
            let header = ByteStream::new(std::io::Cursor::new(reader.header().to_vec()), 0);
            OpenFile::Bytes {
                stream: ByteStream::new(reader, position.offset),
                header: Some(header),
                is_rest: false,
            }
        }))
    }
}
