//! Standard input as a source, and standard output.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::journal::{Intake, JournalSession};
use super::{
    AllowedFormats, EpochStamp, Journaling, OpenFile, Origin, OriginRequest, Outlet, OutletContent,
    RequestError, SourceConfig, SourceError, System, SystemSection, files, io_error,
};
use crate::control::{Control, is_ready};
use crate::format::unpack::PipedBytes;
use crate::format::{ByteStream, STANDARD_INPUT};
use crate::state::Position;

pub(super) const SYSTEM: System = System {
    schemes: &["-"],
    journaling: Journaling::IfWanted,
    tags: &[files::TAG],
    source: Some(source),
    ..System::NONE
};

/// `path = "-"`: standard input, which can't be read twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StandardInput;

fn source(_: &SystemSection<'_, '_>) -> Option<Arc<dyn SourceConfig>> {
    Some(Arc::new(StandardInput))
}

impl SourceConfig for StandardInput {
    fn name(&self) -> String {
        STANDARD_INPUT.into()
    }

    fn formats(&self) -> AllowedFormats {
        AllowedFormats::TEXT
    }

    fn is_endless(&self) -> bool {
        false
    }

    fn journaling(&self) -> Journaling {
        SYSTEM.journaling
    }

    fn open(&self, opening: &OriginRequest<'_>) -> Result<Box<dyn Origin>, SourceError> {
        Ok(Box::new(PipedInput(opening.control.clone())))
    }

    fn take_in(&self, session: JournalSession, control: &Control) -> io::Result<Intake> {
        let input = PipedBytes::new(own_input()?, STANDARD_INPUT.as_ref());
        Intake::start(session, control, false, None, move |waiting| waiting.read(input))
    }
}

/// Opens standard input without the library's buffer, which would keep raw data.
fn own_input() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Standard input without a journal.
struct PipedInput(Control);

impl Origin for PipedInput {
    fn name(&self, _file: u32) -> PathBuf {
        STANDARD_INPUT.into()
    }

    fn open(&mut self, position: Position) -> Result<Option<OpenFile>, SourceError> {
        if position.part > 0 {
            return Ok(None);
        }
        let input = own_input().map_err(|source| io_error(STANDARD_INPUT.as_ref(), source))?;
        let input = StoppableInput { input, control: self.0.clone() };
        let stream = ByteStream::of_pipe(input, STANDARD_INPUT.as_ref());
        Ok(Some(OpenFile::Bytes { stream, header: None, is_rest: false }))
    }

    fn may_wait(&self, _position: Position) -> bool {
        true
    }

    fn has_new_input_after_restart(&self) -> bool {
        true
    }
}

/// Standard input or a named pipe. A read waits for bytes until the run is stopped, and then
/// reports the end of the input.
pub(super) struct StoppableInput {
    pub(super) input: File,
    pub(super) control: Control,
}

impl Read for StoppableInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.control.is_stopped() {
            if is_ready(self.input.as_fd(), PollFlags::IN)? {
                match (&self.input).read(buffer) {
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                    read => return read,
                }
            }
        }
        Ok(0)
    }
}

/// Unbuffered standard output that waits for its reader, even if the descriptor is non-blocking.
#[derive(Clone, Copy, Debug)]
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(stdout(), bytes) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let out = stdout();
                    match poll(&mut [PollFd::new(&out, PollFlags::OUT)], None) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the epochs after a given one to standard output.
pub(crate) struct StandardWriter {
    since: u64,
    /// Number of epochs written.
    taken: Arc<AtomicU64>,
}

impl StandardWriter {
    /// Writes the epochs after `since`; `taken` counts them as they are written.
    pub(crate) fn after(since: u64, taken: Arc<AtomicU64>) -> Self {
        StandardWriter { since, taken }
    }
}

impl Outlet<[u8]> for StandardWriter {
    fn open(&mut self) -> Result<OutletContent, RequestError> {
        Ok(OutletContent { whole: self.since, last: None })
    }

    fn append(&mut self, stamp: &EpochStamp, lines: &[u8]) -> Result<(), RequestError> {
        self.since = stamp.epoch;
        StandardOutput.write_all(lines).map_err(RequestError::Gone)?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
