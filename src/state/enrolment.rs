//! Links a state directory to the ledger entry that pays for its releases.
//!
//! A run pays when it commits its first epoch, so a run that fails earlier has no cost. Before
//! paying it fills the space of that epoch in the private log with zeros. So a disk that is full or
//! fails at this write causes no cost either. Then come these steps, each durable before the next
//! begins:
//!
//! 1. the directory's identity in the file `enrolment`, newly drawn unless the ledger has an entry
//!    with the identity that is there already;
//! 2. the entry with this identity in the ledger;
//! 3. [`begun`](Enrolment::has_begun) in the enrolment;
//! 4. the first epoch in the private log, which is then published.
//!
//! So every published epoch has an entry. A restart finds the entry by the identity and does not
//! pay again; a newly made directory draws another identity and pays again.
//!
//! An entry is never removed. After a crash or a failed write between steps 2 and 4 it stays, and
//! pays for later releases of the directory. Removing it would be unsafe: a copy of the directory,
//! such as a cloned machine, may have found the entry and publish under it, and no file of the
//! original shows that the copy exists.
//!
//! If the directory has not begun, a missing entry was never made. Otherwise the entry was lost.
//!
//! A directory that has not begun has no releases. If the parameters of its log differ from the
//! pipeline's, the log is replaced, so a pipeline file that failed can be corrected.

use super::{
    RecoveredState, StateSettings, Store, anchor,
    error::{StateError, refused},
    format::{FileRole, kind},
    frames::PublicHeader,
    log::SealedFile,
    private_log::LogTail,
    public_log::PublicTail,
    recovery::decide,
    storage::{DirectoryStorage, PUBLIC_LOG, Storage, segment_name},
    survey::Survey,
};
use rand::{TryRng, rngs::SysRng};
use serde::{Deserialize, Serialize};
use std::{
    error::Error,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

pub(super) const ENROLMENT: SealedFile = SealedFile {
    name: "enrolment",
    temporary_name: "enrolment.new",
    role: FileRole::Enrolment,
    kind: kind::ENROLMENT,
};

/// Identity of a state directory, and the ledger that pays for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    identity: [u8; 16],
    begun: bool,
    ledger: Vec<u8>,
}

impl Enrolment {
    /// Reads the enrolment of the state directory at `path`; `None` if no run has paid for anything
    /// in it.
    ///
    /// # Errors
    /// [`StateError`] if it can't be read.
    pub fn of(path: &Path) -> Result<Option<Self>, StateError> {
        Self::on(&DirectoryStorage::shared(path)?)
    }

    pub(super) fn on(storage: &dyn Storage) -> Result<Option<Self>, StateError> {
        ENROLMENT.read(storage)
    }

    /// Returns the 32 hexadecimal digits that identify the directory.
    pub fn identity(&self) -> String {
        self.identity.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether something may have been released.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns the ledger's directory, absolute or relative to the state directory.
    pub fn ledger(&self) -> PathBuf {
        OsStr::from_bytes(&self.ledger).into()
    }

    /// Draws a new identity, with `ledger`. It is on disk when this returns.
    fn draw(storage: &dyn Storage, ledger: &Path) -> Result<Self, StateError> {
        let mut identity = [0; 16];
        SysRng.try_fill_bytes(&mut identity).map_err(|error| {
            refused(storage.path(), "draw an identity for the directory")(std::io::Error::other(error))
        })?;
        let enrolment = Self { identity, begun: false, ledger: ledger.as_os_str().as_bytes().into() };
        ENROLMENT.write(storage, &enrolment)?;
        Ok(enrolment)
    }

    /// Records durably that releases may exist now, paid for in `ledger`.
    fn begin(self, storage: &dyn Storage, ledger: &Path) -> Result<(), StateError> {
        let begun = Self { begun: true, ledger: ledger.as_os_str().as_bytes().into(), ..self.clone() };
        if begun == self { Ok(()) } else { ENROLMENT.write(storage, &begun) }
    }
}

/// Refuses an anchor inside the state directory at `path`, because a restored copy would include
/// it, and a ledger that is the state directory itself.
fn apart(path: &Path, settings: &StateSettings, ledger: &Path) -> Result<(), StateError> {
    // A path that can't be resolved does not exist yet, or fails when it is opened.
    let real = |path: &Path| path.canonicalize().ok();
    let Some(state) = real(path) else { return Ok(()) };
    if let Some(anchor) =
        settings.anchor.as_deref().filter(|anchor| real(anchor).is_some_and(|real| real.starts_with(&state)))
    {
        return Err(StateError::Inside { path: anchor.into(), file: "the anchor" });
    }
    let ledger = path.join(ledger);
    if real(&ledger) == Some(state) {
        return Err(StateError::Inside { path: ledger, file: "the ledger" });
    }
    Ok(())
}

/// Enters a directory in its ledger.
pub type EnterLedger = Box<dyn FnOnce(&Enrolment) -> Result<(), Box<dyn Error + Send + Sync>> + Send>;

/// The payment for a directory.
pub struct LedgerPayment {
    /// Whether the ledger already has the entry, made by a run that was cut short before it
    /// published.
    pub entered: bool,
    /// Makes the entry and returns once it is durable.
    pub enter: EnterLedger,
}

/// A payment due before the first commit, and the ledger's directory.
pub(super) struct DuePayment {
    pay: LedgerPayment,
    ledger: PathBuf,
}

impl DuePayment {
    /// Pays: steps 1 to 3 of the module head.
    pub(super) fn settle(self, storage: &dyn Storage) -> Result<(), StateError> {
        // An identity without an entry may also belong to copies, so each copy draws its own.
        let entered = if self.pay.entered { Enrolment::on(storage)? } else { None };
        let enrolment = entered.map_or_else(|| Enrolment::draw(storage, &self.ledger), Ok)?;
        (self.pay.enter)(&enrolment).map_err(StateError::Unpaid)?;
        enrolment.begin(storage, &self.ledger)
    }
}

/// Removes the logs of a directory that has not begun if they are intact, hold no epoch, and have
/// other parameters.
fn forget_unpaid(storage: &dyn Storage, header: &[u8]) -> Result<(), StateError> {
    let mut survey = Survey::new(None);
    survey.conduct(storage)?;
    let (private, public) = (&survey.facts.private, &survey.facts.public);
    let other = private.header.as_deref().is_some_and(|stored| stored != header);
    let empty = private.head.epoch == 0 && private.segments.len() == 1 && private.tail != LogTail::Damaged;
    if !other || !empty || matches!(public.rest, PublicTail::Ahead { .. } | PublicTail::Differs { .. }) {
        return Ok(());
    }
    // The private log goes last: a public log left alone would mean a lost history.
    for name in [PUBLIC_LOG, &segment_name(private.end().segment)] {
        if storage.read(name)?.is_some() {
            storage.remove(name)?;
            storage.sync()?;
        }
    }
    Ok(())
}

impl Store {
    /// Opens as [`open`](Self::open) does, for releases that a ledger pays for.
    ///
    /// `enter` is called under the lock with the directory's enrolment, if any, before the logs are
    /// touched. It checks whether `ledger` has room and returns the payment, or `None` if the
    /// directory has begun and its entry exists. The first [`commit`](Self::commit) pays. `ledger`
    /// is absolute or relative to the state directory.
    ///
    /// # Errors
    /// The errors of `enter` and of [`open`](Self::open), and [`StateError::PrivateLogLost`] if
    /// releases were paid for but their log is missing.
    pub fn open_enrolled<E: From<StateError>>(
        path: &Path,
        header: &PublicHeader,
        settings: &StateSettings,
        ledger: &Path,
        enter: impl FnOnce(Option<&Enrolment>) -> Result<Option<LedgerPayment>, E>,
    ) -> Result<(Self, RecoveredState), E> {
        let directory = DirectoryStorage::exclusive(path)?.publishing_in(settings.public.as_deref())?;
        apart(path, settings, ledger)?;
        let anchor = anchor::hold(settings, header)?;
        let open = |storage| Self::recover(storage, anchor, header, settings.keep);
        Self::recover_enrolled(Box::new(directory), header, open, ledger, enter)
    }

    /// Calls `enter` to find room in the ledger, and then `open`.
    pub(super) fn recover_enrolled<E: From<StateError>>(
        storage: Box<dyn Storage>,
        header: &PublicHeader,
        open: impl FnOnce(Box<dyn Storage>) -> Result<(Self, RecoveredState), StateError>,
        ledger: &Path,
        enter: impl FnOnce(Option<&Enrolment>) -> Result<Option<LedgerPayment>, E>,
    ) -> Result<(Self, RecoveredState), E> {
        let enrolment = Enrolment::on(&*storage)?;
        let begun = enrolment.as_ref().filter(|enrolment| enrolment.has_begun());
        if begun.is_none() {
            forget_unpaid(&*storage, &header.payload()?)?;
        }
        let pay = match enter(enrolment.as_ref()) {
            Ok(pay) => pay,
            Err(refused) => {
                // If the log belongs to another pipeline, its error is more useful.
                let mut survey = Survey::new(None);
                survey.conduct(&*storage)?;
                decide(storage.path(), &survey.facts, &header.payload()?)?;
                return Err(refused);
            }
        };
        let (mut store, recovered) = open(storage)?;
        if let Some(enrolment) = begun {
            // The ledger may have moved.
            enrolment.clone().begin(&*store.storage, ledger)?;
        }
        store.payment = pay.map(|pay| DuePayment { pay, ledger: ledger.into() });
        Ok((store, recovered))
    }
}
