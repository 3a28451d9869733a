//! Errors of a state directory. Messages name the file, the offset and a remedy; they never contain
//! a sum, a position or a value.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Reasons why a state directory can't be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The operating system returned an error.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The attempt, as a verb with its object.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The group or other users have access to private data.
    #[error(
        "{}: mode {mode:04o} lets group or others in, but this is for its owner alone: {}",
        path.display(), restrict(path, "go-rwx")
    )]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users have write access to the public log or its directory.
    #[error(
        "{}: mode {mode:04o} lets group or others write, who could change what is published: {}",
        path.display(), restrict(path, "go-w")
    )]
    Writable {
        /// The log or its directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file or directory belongs to another user.
    #[error(
        "{}: belongs to user {owner}, not to this process's user: run as its owner, or use another state directory",
        path.display()
    )]
    ForeignOwner {
        /// The file or directory.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
    },
    /// Another run holds the directory.
    #[error(
        "{}: another run holds this state directory: wait for it to end, or use another state directory",
        path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Another run holds the anchor.
    #[error(
        "{}: another run holds this anchor, so it is at work on this state directory or on a copy of it, and of two copies \
         only one may publish: wait for it to end, or end it",
        path.display()
    )]
    AnchorHeld {
        /// The anchor.
        path: PathBuf,
    },
    /// A path leads to another file or directory than the one this run opened.
    #[error(
        "{}: no longer leads to what this run has locked: it was removed, renamed or replaced while the run was at work, and \
         another run may be at work there now, so nothing more is published: put back what was there, then start again",
        path.display()
    )]
    Replaced {
        /// The file or directory.
        path: PathBuf,
    },
    /// The list of followed files is too short for the position recorded in the log.
    #[error(
        "{}: the list of followed files has {found} names, but the last run had read up to number {expected}, and the rows of \
         files that are not in it would be counted twice: restore it from the newest copy",
        path.display()
    )]
    ListShort {
        /// The list.
        path: PathBuf,
        /// Names in it.
        found: usize,
        /// The number, from 1, of the file that the last run was reading.
        expected: usize,
    },
    /// No log has been written here yet, or there is no such directory.
    #[error("{}: nothing has been published here: start a run with this state directory first", path.display())]
    Missing {
        /// The missing log.
        path: PathBuf,
    },
    /// The directory was made with other public parameters.
    #[error(
        "{}: these parameters differ from those the directory was made with{}: restore the parameters, or \
         use another state directory, whose guarantee adds to that of this one if the data are the same",
        path.display(),
        difference.as_ref().map(|difference| format!(" ({difference})")).unwrap_or_default()
    )]
    HeaderDiffers {
        /// The log whose header differs.
        path: PathBuf,
        /// The path of the first difference, and both values.
        difference: Option<String>,
    },
    /// A directory that must be outside lies in the state directory.
    #[error(
        "{}: {file} lies in the state directory, and would be copied, restored and locked with it: name another directory",
        path.display()
    )]
    Inside {
        /// The configured directory.
        path: PathBuf,
        /// Its purpose.
        file: &'static str,
    },
    /// A format version that this program does not read.
    #[error(
        "{}: format version {found}, but this program reads version {supported}: use the program that wrote the file",
        path.display()
    )]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The version this program reads.
        supported: u16,
    },
    /// Bytes that had been written completely have changed.
    #[error("{}: damaged at byte {offset}: {damage}: restore the file from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damaged frame.
        offset: u64,
        /// The problem.
        damage: &'static str,
    },
    /// Intact frames in an order that no run writes.
    #[error(
        "{}: {field} {found} at byte {offset}, expected {expected}: the file was put together from several logs; \
         restore it from a copy",
        path.display()
    )]
    Disorder {
        /// The file.
        path: PathBuf,
        /// Offset of the frame.
        offset: u64,
        /// The number that is out of order: an epoch or a generation.
        field: &'static str,
        /// The number found.
        found: u64,
        /// The number expected.
        expected: u64,
    },
    /// A release whose link does not continue the history before it.
    #[error(
        "{}: the release of epoch {epoch} (byte {offset}) does not continue the history before it: the log was \
         restored from a copy, or put together from several, and epochs may have been drawn twice: keep what was read \
         before, and restore the newest state directory",
        path.display()
    )]
    Forked {
        /// The log.
        path: PathBuf,
        /// Offset of the frame.
        offset: u64,
        /// Its epoch.
        epoch: u64,
    },
    /// A public log that is shorter than the part that was already read from it.
    #[error(
        "{}: now ends before epoch {epoch}, which was read from it: the log was restored from a copy, and epochs may be \
         drawn twice: keep what was read before, and restore the newest state directory",
        path.display()
    )]
    WentBack {
        /// The public log.
        path: PathBuf,
        /// The last epoch that was read.
        epoch: u64,
    },
    /// The private log ends before an epoch that another file holds.
    #[error(
        "{}: ends at epoch {committed} (byte {offset}), but {} holds epoch {witnessed}: the private log was cut \
         or rolled back, and going on would draw fresh noise for published epochs: restore the newest private log, \
         or use another state directory",
        path.display(), witness.display()
    )]
    RolledBack {
        /// The private log.
        path: PathBuf,
        /// Offset at which its readable part ends.
        offset: u64,
        /// The last epoch it holds.
        committed: u64,
        /// The file that holds a later one.
        witness: PathBuf,
        /// The epoch in that file.
        witnessed: u64,
    },
    /// The private log is missing, though files derived from it exist.
    #[error(
        "{}: missing or without a readable beginning, but {} was made from it: restore the private log, or use \
         another state directory",
        path.display(), witness.display()
    )]
    PrivateLogLost {
        /// The private log.
        path: PathBuf,
        /// The derived file.
        witness: PathBuf,
    },
    /// The private log begins after an epoch, and no checkpoint of that epoch or a later one is
    /// readable.
    #[error(
        "{}: begins after epoch {epoch}, and no checkpoint that holds the epochs before is readable: restore the \
         checkpoints and lists of entities, or use another state directory",
        path.display()
    )]
    CheckpointLost {
        /// The first segment of the private log.
        path: PathBuf,
        /// The last epoch before it.
        epoch: u64,
    },
    /// The anchor is ahead of the state directory.
    #[error(
        "{}: its last epoch is {epoch}, of run {generation}, but its anchor {} has seen run {anchored_generation}, epoch \
         {anchored_epoch}: the directory is new, or was restored from an older copy, and going on would draw fresh \
         noise for published epochs: restore the newest state directory; to delete the anchor is to accept that epochs \
         are released twice, which (ε, δ) does not cover",
        path.display(), anchor.display()
    )]
    BehindAnchor {
        /// The state directory.
        path: PathBuf,
        /// The anchor.
        anchor: PathBuf,
        /// The last run of the directory, 0 before the first.
        generation: u64,
        /// Its last committed epoch, 0 before the first.
        epoch: u64,
        /// The anchored run.
        anchored_generation: u64,
        /// The anchored epoch.
        anchored_epoch: u64,
    },
    /// The anchor records another history.
    #[error(
        "{}: its release of epoch {epoch} is not the one that its anchor {} has seen: the directory is a copy that was \
         continued separately: restore the newest state directory; to delete the anchor is to accept that epochs were released \
         twice, which (ε, δ) does not cover",
        path.display(), anchor.display()
    )]
    ForkedFromAnchor {
        /// The state directory.
        path: PathBuf,
        /// The anchor.
        anchor: PathBuf,
        /// The anchored epoch.
        epoch: u64,
    },
    /// This log has no anchor.
    #[error("{}: there is no anchor of this log: name its directory as `anchor` in [state], and start a run", path.display())]
    NotAnchored {
        /// The expected path.
        path: PathBuf,
    },
    /// The anchor differs from the content that this run has written.
    #[error(
        "{}: the anchor was moved or removed during this run: another run may use a copy of the state directory, so nothing more is published: end it, then start this one again",
        path.display()
    )]
    AnchorMoved {
        /// The anchor.
        path: PathBuf,
    },
    /// The public log differs from the private log.
    #[error(
        "{}: the frame at byte {offset} is intact but is not what the private log holds for epoch {epoch}: the two \
         logs are of different runs; restore both from one copy, or use another state directory",
        path.display()
    )]
    Conflict {
        /// The public log.
        path: PathBuf,
        /// Offset of the frame.
        offset: u64,
        /// The epoch, 0 for the header.
        epoch: u64,
    },
    /// A checkpoint of another log.
    #[error(
        "{}: the checkpoint of epoch {epoch} was not made from this private log: restore both from one copy, or \
         remove the checkpoint to replay the whole log",
        path.display()
    )]
    ForeignCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// Its epoch.
        epoch: u64,
    },
    /// The ingest journal lacks the bytes that follow the private log's position.
    #[error(
        "{}: the ingest journal has nothing at byte {offset} of session {session}, where it should go on: a file was \
         removed, or restored from another copy than the logs; restore all from one copy",
        path.display()
    )]
    IngestGap {
        /// The state directory, or the file that ends too early.
        path: PathBuf,
        /// The session.
        session: u32,
        /// The offset in the session, in bytes after the header.
        offset: u64,
    },
    /// A commit or checkpoint of the wrong epoch. Nothing was written.
    #[error(
        "epoch {found} cannot be written now, expected {expected}: epochs are written once, in order, without gaps"
    )]
    WrongEpoch {
        /// The epoch passed in.
        found: u64,
        /// The epoch or epochs allowed.
        expected: String,
    },
    /// A frame above the format's limit.
    #[error(
        "a frame must not exceed {limit} bytes: publish fewer coordinates, estimate windows of fewer epochs, or split them over \
         several pipelines"
    )]
    TooLarge {
        /// The limit on a payload, in bytes.
        limit: u64,
    },
    /// The ledger refused to pay for the commit.
    #[error("{0}")]
    Unpaid(Box<dyn std::error::Error + Send + Sync>),
    /// An earlier write or sync failed.
    #[error(
        "nothing more is written after a failure, since what is on disk is unknown: start again; first failure: {cause}"
    )]
    Stopped {
        /// The message of the first failure.
        cause: String,
    },
}

impl StateError {
    /// Returns whether the disk or a quota is full, so the same operation may succeed later.
    pub(super) fn is_full(&self) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }
}

/// Advises how to take away the access of others. The root and the directories in it belong to the
/// system, which would break without that access.
pub(crate) fn restrict(path: &Path, change: &str) -> String {
    let mut parts = path.components();
    match parts.next() {
        Some(Component::RootDir) if parts.count() <= 1 => {
            "name another directory, which holds nothing else".into()
        }
        _ => format!("run `chmod {change} {}`", path.display()),
    }
}

/// Wraps an operating system error with the attempted action and the file.
pub(super) fn refused(
    path: impl Into<PathBuf>,
    action: &'static str,
) -> impl FnOnce(io::Error) -> StateError {
    let path = path.into();
    move |source| StateError::Io { path, action, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn no_advice_takes_access_to_the_system_away() {
        for path in ["/", "//", "/usr", "/tmp/"] {
            assert!(restrict(Path::new(path), "go-rwx").starts_with("name another directory"), "{path}");
        }
        assert_eq!(restrict(Path::new("state"), "go-w"), "run `chmod go-w state`");
        assert_eq!(restrict(Path::new("/tmp/state"), "go-w"), "run `chmod go-w /tmp/state`");
    }

    #[test]
    fn an_exhausted_quota_counts_as_a_full_disk() {
        for (errno, full) in
            [(Errno::NOSPC, true), (Errno::DQUOT, true), (Errno::IO, false), (Errno::FBIG, false)]
        {
            assert_eq!(refused("journal", "write the file")(errno.into()).is_full(), full, "{errno}");
        }
    }
}
