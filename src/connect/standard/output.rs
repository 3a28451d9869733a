//! Standard output for the lines of a run's epochs.

use std::io::{self, Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connect::{EpochStamp, Outlet, OutletContent, RequestError};

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

/// Writes epochs to standard output from a given one on.
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
