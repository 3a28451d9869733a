//! The ingest journal: keeps records of a source that can't be read again until they are counted.
//!
//! An [`Intake`] copies the source into sessions of the journal. Sessions are read like files: from
//! a position, one after the other.

mod intake;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use super::{Opened, Origin, Position, SourceError, io_error};
use crate::format::bytes::Stream;
use crate::state::{Ingest, IngestPlace, IngestReader};

pub(crate) use intake::Intake;
pub(super) use intake::{CHUNK, Waiting};
pub(crate) use session::Session;

/// Position tag of journals.
pub(crate) const TAG: u8 = 1;

/// The sessions of a journal, each like a file.
pub(crate) struct Sessions {
    pub(crate) ingest: Arc<Ingest>,
    /// The source's name for messages.
    pub(crate) name: String,
}

impl From<Position> for IngestPlace {
    fn from(position: Position) -> Self {
        IngestPlace { session: position.file, offset: position.offset }
    }
}

impl Origin for Sessions {
    fn name(&self, file: u32) -> PathBuf {
        if file >= self.ingest.session() {
            return self.name.clone().into();
        }
        let inner = self.name.trim_matches(['<', '>']).replace("standard", "the standard");
        format!("<session {file} of {inner}>").into()
    }

    fn open(&mut self, position: Position) -> Result<Option<Opened>, SourceError> {
        let reader = IngestReader::open(&self.ingest, position.into());
        let reader = reader.map_err(|source| io_error(&self.name(position.file), source))?;
        Ok(reader.map(|reader| {
            let header = Stream::new(std::io::Cursor::new(reader.header().to_vec()), 0);
            Opened::Bytes {
                stream: Stream::new(reader, position.offset),
                header: Some(header),
                is_rest: false,
            }
        }))
    }
}
