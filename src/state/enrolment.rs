//! Which entry of which ledger pays for the releases of a state directory.
//!
//! A directory draws an identity when it is first opened, and keeps it for as long as it lives; a ledger knows the entry of the
//! directory by it. So a restart finds its entry, and a directory that is made anew pays anew. The identity is on disk before
//! the entry is made, and [`begun`](Enrolment::has_begun) before the first release is: an entry that is missing in
//! the ledger was not made yet where nothing has begun, and has been lost where something has.

use super::{
    Recovered, Settings, Store, anchor,
    error::{StateError, refused},
    format::{Role, kind},
    frames::PublicHeader,
    recovery::decide,
    sealed::Sealed,
    storage::{Directory, Storage},
    survey::Survey,
};
use rand::{TryRng, rngs::SysRng};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

pub(super) const ENROLMENT: Sealed =
    Sealed { name: "enrolment", beside: "enrolment.new", role: Role::Enrolment, kind: kind::ENROLMENT };

/// A state directory's place in a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    identity: [u8; 16],
    begun: bool,
    ledger: Vec<u8>,
}

impl Enrolment {
    /// That of the state directory at `path`; none if no run has opened it, or only one before there were ledgers.
    ///
    /// # Errors
    /// [`StateError`] if it can't be read.
    pub fn of(path: &Path) -> Result<Option<Self>, StateError> {
        Self::on(&Directory::shared(path)?)
    }

    pub(super) fn on(storage: &dyn Storage) -> Result<Option<Self>, StateError> {
        ENROLMENT.read(storage)
    }

    /// 32 hexadecimal digits that tell the directory from all others.
    pub fn identity(&self) -> String {
        self.identity.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether something may have been released.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The directory of the ledger, seen from the state directory.
    pub fn ledger(&self) -> PathBuf {
        OsStr::from_bytes(&self.ledger).into()
    }

    /// What is there or, in its absence, a new one with `ledger`, which is on disk when this returns.
    fn ensure(storage: &dyn Storage, ledger: &Path) -> Result<Self, StateError> {
        if let Some(enrolment) = Self::on(storage)? {
            return Ok(enrolment);
        }
        let mut identity = [0; 16];
        SysRng.try_fill_bytes(&mut identity).map_err(|error| {
            refused(storage.path(), "draw an identity for the directory")(std::io::Error::other(error))
        })?;
        let enrolment = Self { identity, begun: false, ledger: ledger.as_os_str().as_bytes().into() };
        ENROLMENT.write(storage, &enrolment)?;
        Ok(enrolment)
    }

    /// Says, durably, that there may be releases now, paid for in `ledger`.
    fn begin(self, storage: &dyn Storage, ledger: &Path) -> Result<(), StateError> {
        let begun = Self { begun: true, ledger: ledger.as_os_str().as_bytes().into(), ..self.clone() };
        if begun == self { Ok(()) } else { ENROLMENT.write(storage, &begun) }
    }
}

/// Refuses an anchor within the state directory at `path`, where it would tell nothing, and a ledger in its place.
fn apart(path: &Path, settings: &Settings, ledger: &Path) -> Result<(), StateError> {
    // What can't be resolved is not there yet, or is told when it is opened.
    let real = |path: &Path| path.canonicalize().ok();
    let Some(state) = real(path) else { return Ok(()) };
    if let Some(anchor) =
        settings.anchor.as_deref().filter(|anchor| real(anchor).is_some_and(|real| real.starts_with(&state)))
    {
        return Err(StateError::Inside { path: anchor.into(), what: "the anchor" });
    }
    let ledger = path.join(ledger);
    if real(&ledger) == Some(state) {
        return Err(StateError::Inside { path: ledger, what: "the ledger" });
    }
    Ok(())
}

impl Store {
    /// As [`open`](Self::open), once `enter` has seen to it that `ledger` pays for what will be released. That is called
    /// under the lock, before anything of the logs is touched. `ledger` is absolute, or seen from the state directory.
    ///
    /// # Errors
    /// Those of `enter` and of [`open`](Self::open), and [`StateError::PrivateLogLost`] where releases were paid for but
    /// there is no log of them.
    pub fn open_enrolled<E: From<StateError>>(
        path: &Path,
        header: &PublicHeader,
        settings: &Settings,
        ledger: &Path,
        enter: impl FnOnce(&Enrolment) -> Result<(), E>,
    ) -> Result<(Self, Recovered), E> {
        let directory = Directory::exclusive(path)?;
        apart(path, settings, ledger)?;
        let anchor = settings.anchor.as_deref().map(anchor::directory).transpose()?;
        let open = |storage| Self::recover(storage, anchor, header, settings.keep);
        Self::recover_enrolled(Box::new(directory), header, open, ledger, enter)
    }

    /// `open` goes on with the storage once `enter` has paid for it.
    pub(super) fn recover_enrolled<E: From<StateError>>(
        storage: Box<dyn Storage>,
        header: &PublicHeader,
        open: impl FnOnce(Box<dyn Storage>) -> Result<(Self, Recovered), StateError>,
        ledger: &Path,
        enter: impl FnOnce(&Enrolment) -> Result<(), E>,
    ) -> Result<(Self, Recovered), E> {
        let enrolment = Enrolment::ensure(&*storage, ledger)?;
        if let Err(refused) = enter(&enrolment) {
            // If it is the log that does not fit, that says more.
            let mut survey = Survey::new(None);
            survey.conduct(&*storage)?;
            decide(storage.path(), &survey.facts, &header.payload()?)?;
            return Err(refused);
        }
        let (store, recovered) = open(storage)?;
        enrolment.begin(&*store.storage, ledger)?;
        Ok((store, recovered))
    }
}
