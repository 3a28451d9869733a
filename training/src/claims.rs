//! Records which steps of a run have been drawn: a step is drawn once, even if the run continues
//! from an older saved state.
//!
//! Within a process all copies of a run share one list. A [`Journal`] is the same list on disk, for
//! states that are restored by another process.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rand::TryRng;
use rand::rngs::SysRng;
use thiserror::Error;

/// Last drawn step of every run of this process.
static DRAWN: Mutex<BTreeMap<RunId, u64>> = Mutex::new(BTreeMap::new());

/// Identifies a run, over all of its saved states.
pub(crate) type RunId = [u8; 16];

/// Reasons why a step must not be drawn.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The step was drawn by another copy of the run.
    #[error(
        "step {step} of this run was drawn already, and a second release of it is not covered by (ε, δ): go on with \
         the newest state, or begin a new run with a budget of its own"
    )]
    Drawn {
        /// The step.
        step: u64,
    },
    /// The journal belongs to another run.
    #[error(
        "the journal {} belongs to another run: name a file that doesn't exist, or load a state of that run", path.display()
    )]
    OtherRun {
        /// The journal.
        path: PathBuf,
    },
    /// Another process has the journal.
    #[error("the journal {} is in use by another process", path.display())]
    Locked {
        /// The journal.
        path: PathBuf,
    },
    /// The journal can't be read or written.
    #[error("the journal {}: {error}", path.display())]
    Journal {
        /// The journal.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The operating system has no entropy.
    #[error("the operating system gave no entropy: no run can begin")]
    Entropy,
}

/// Chooses the identifier of a new run.
pub(crate) fn new_run() -> Result<RunId, ClaimError> {
    let mut id = RunId::default();
    SysRng.try_fill_bytes(&mut id).map_err(|_| ClaimError::Entropy)?;
    Ok(id)
}

/// The steps that a run may still draw.
pub(crate) struct Claims {
    run: RunId,
    journal: Option<Journal>,
}

impl Claims {
    pub(crate) fn new(run: RunId, journal: Option<Journal>) -> Self {
        Self { run, journal }
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Continues a saved run, with the same journal.
    pub(crate) fn of_run(&mut self, run: RunId) {
        self.run = run;
    }

    /// Claims a step. Returns an error if this step or a later one has been claimed.
    pub(crate) fn claim(&self, step: u64) -> Result<(), ClaimError> {
        let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
        let in_memory = drawn.get(&self.run).copied().unwrap_or(0);
        let on_disk = match self.journal.as_ref().map_or(Ok(None), Journal::read)? {
            Some((run, step)) if run == self.run => step,
            None => 0,
            Some(_) => {
                let path = self.journal.as_ref().map(|journal| journal.path.clone());
                return Err(ClaimError::OtherRun { path: path.unwrap_or_default() });
            }
        };
        if step <= in_memory.max(on_disk) {
            return Err(ClaimError::Drawn { step });
        }
        if let Some(journal) = &self.journal {
            journal.write(self.run, step)?;
        }
        drawn.insert(self.run, step);
        Ok(())
    }
}

/// A file with the identifier of a run and its last drawn step, synced before the step is drawn.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or creates a journal, and locks it for this process.
    ///
    /// # Errors
    /// [`ClaimError::Journal`] and [`ClaimError::Locked`].
    pub fn open(path: &Path) -> Result<Self, ClaimError> {
        let wrong = |error| ClaimError::Journal { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ClaimError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
        // The name of a new file is durable once its directory is.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let synced =
            File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all());
        synced.map_err(wrong)?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn read(&self) -> Result<Option<(RunId, u64)>, ClaimError> {
        let wrong = |error| ClaimError::Journal { path: self.path.clone(), error };
        let length = self.file.metadata().map_err(wrong)?.len();
        if length == 0 {
            return Ok(None);
        }
        let (mut run, mut step) = (RunId::default(), [0; 8]);
        self.file.read_exact_at(&mut run, 0).map_err(wrong)?;
        self.file.read_exact_at(&mut step, run.len() as u64).map_err(wrong)?;
        Ok(Some((run, u64::from_le_bytes(step))))
    }

    fn write(&self, run: RunId, step: u64) -> Result<(), ClaimError> {
        let bytes = [&run[..], &step.to_le_bytes()].concat();
        let written = self.file.write_all_at(&bytes, 0).and_then(|()| self.file.sync_data());
        written.map_err(|error| ClaimError::Journal { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_claimed_once_in_a_process() {
        let run = new_run().unwrap();
        let [one, other] = [(); 2].map(|()| Claims::new(run, None));
        one.claim(1).unwrap();
        other.claim(2).unwrap();
        for step in [1, 2] {
            assert!(matches!(one.claim(step), Err(ClaimError::Drawn { .. })));
        }
        Claims::new(new_run().unwrap(), None).claim(1).unwrap();
    }

    #[test]
    fn a_journal_remembers_steps_and_belongs_to_one_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let (run, other) = (new_run().unwrap(), new_run().unwrap());
        let claims = Claims::new(run, Some(Journal::open(&path).unwrap()));
        claims.claim(4).unwrap();
        assert!(matches!(Journal::open(&path), Err(ClaimError::Locked { .. })));
        drop(claims);
        // Simulates another process, which has no list in memory.
        DRAWN.lock().unwrap().remove(&run);
        let claims = Claims::new(run, Some(Journal::open(&path).unwrap()));
        assert!(matches!(claims.claim(4), Err(ClaimError::Drawn { step: 4 })));
        claims.claim(5).unwrap();
        drop(claims);
        let mut claims = Claims::new(other, Some(Journal::open(&path).unwrap()));
        assert!(matches!(claims.claim(6), Err(ClaimError::OtherRun { .. })));
        claims.of_run(run);
        claims.claim(6).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert!(matches!(claims.claim(7), Err(ClaimError::Journal { .. })));
    }
}
