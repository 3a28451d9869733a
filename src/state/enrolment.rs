//! Which entry of which ledger pays for the releases of a state directory.
//!
//! A run pays when it commits the first epoch, not before: a run that fails earlier has spent
//! nothing. First it takes room for that epoch in the private log, as zeros, so a disk that is full
//! or fails at this write costs nothing either. Then, in this order, each durable before the next
//! begins:
//!
//! 1. the directory's identity, drawn now unless the ledger knows an earlier one, in the file `enrolment`;
//! 2. the entry with this identity in the ledger;
//! 3. [`begun`](Enrolment::has_begun) in the enrolment;
//! 4. the first epoch, in the private log; then it is published.
//!
//! So an epoch that anybody saw has an entry. A restart finds the entry by the identity and pays no
//! more; a directory that is made anew draws another identity and pays anew. An entry is never
//! taken back. After a crash or a failed write between 2 and 4 it stays, and pays for what the
//! directory publishes later. Giving it back would not be safe: a copy of the directory, such as a
//! clone of the machine, may have found the entry and go on to publish what then nothing pays for,
//! and no file of the original tells of the copy. An entry that is missing was not made yet where
//! nothing has begun, and has been lost where something has.
//!
//! A directory that has not begun has published nothing. If its log is of other parameters than those of the pipeline, the log
//! is begun anew: a pipeline file that failed can be corrected.

use super::{
    Recovered, Settings, Store, anchor,
    error::{StateError, refused},
    format::{Role, kind},
    frames::PublicHeader,
    log::Sealed,
    private_log::Tail,
    public_log::Rest,
    recovery::decide,
    storage::{Directory, PUBLIC_LOG, Storage, segment_name},
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
    /// That of the state directory at `path`; none if no run has paid for anything in it.
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

    /// A new one with `ledger`, which is on disk when this returns.
    fn draw(storage: &dyn Storage, ledger: &Path) -> Result<Self, StateError> {
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

/// Enters a directory in its ledger.
pub type Enter = Box<dyn FnOnce(&Enrolment) -> Result<(), Box<dyn Error + Send + Sync>> + Send>;

/// What pays for a directory.
pub struct Pay {
    /// Whether the ledger has the entry already, of a run that was cut short before it published.
    pub entered: bool,
    /// Makes the entry, and returns when it is durable.
    pub enter: Enter,
}

/// What is still to be paid before anything is committed, and the directory of the ledger.
pub(super) struct Payment {
    pay: Pay,
    ledger: PathBuf,
}

impl Payment {
    /// Pays: the first three steps at the head of this module.
    pub(super) fn settle(self, storage: &dyn Storage) -> Result<(), StateError> {
        // An identity without an entry may be that of copies too: each draws its own.
        let entered = if self.pay.entered { Enrolment::on(storage)? } else { None };
        let enrolment = entered.map_or_else(|| Enrolment::draw(storage, &self.ledger), Ok)?;
        (self.pay.enter)(&enrolment).map_err(StateError::Unpaid)?;
        enrolment.begin(storage, &self.ledger)
    }
}

/// Removes the logs of a directory that has not begun, if they are whole, hold no epoch, and are of other parameters.
fn forget_unpaid(storage: &dyn Storage, header: &[u8]) -> Result<(), StateError> {
    let mut survey = Survey::new(None);
    survey.conduct(storage)?;
    let (private, public) = (&survey.facts.private, &survey.facts.public);
    let other = private.header.as_deref().is_some_and(|stored| stored != header);
    let empty = private.standing.epoch == 0 && private.segments.len() == 1 && private.tail != Tail::Damaged;
    if !other || !empty || matches!(public.rest, Rest::Ahead { .. } | Rest::Differs { .. }) {
        return Ok(());
    }
    // The private log goes last: without it the public one would be taken for that of a lost history.
    for name in [PUBLIC_LOG, &segment_name(private.end().segment)] {
        if storage.read(name)?.is_some() {
            storage.remove(name)?;
            storage.sync()?;
        }
    }
    Ok(())
}

impl Store {
    /// As [`open`](Self::open), for releases that a ledger pays for. `enter` is called under the lock, before anything of the
    /// logs is touched, with the directory's enrolment if it has one. It says whether there is room in `ledger`, and gives what
    /// pays; none if the directory has begun and its entry is there. The first [`commit`](Self::commit) pays.
    /// `ledger` is absolute, or seen from the state directory.
    ///
    /// # Errors
    /// Those of `enter` and of [`open`](Self::open), and [`StateError::PrivateLogLost`] where releases were paid for but
    /// there is no log of them.
    pub fn open_enrolled<E: From<StateError>>(
        path: &Path,
        header: &PublicHeader,
        settings: &Settings,
        ledger: &Path,
        enter: impl FnOnce(Option<&Enrolment>) -> Result<Option<Pay>, E>,
    ) -> Result<(Self, Recovered), E> {
        let directory = Directory::exclusive(path)?.publishing_in(settings.public.as_deref())?;
        apart(path, settings, ledger)?;
        let anchor = anchor::hold(settings, header)?;
        let open = |storage| Self::recover(storage, anchor, header, settings.keep);
        Self::recover_enrolled(Box::new(directory), header, open, ledger, enter)
    }

    /// `open` goes on with the storage once `enter` has found room for it.
    pub(super) fn recover_enrolled<E: From<StateError>>(
        storage: Box<dyn Storage>,
        header: &PublicHeader,
        open: impl FnOnce(Box<dyn Storage>) -> Result<(Self, Recovered), StateError>,
        ledger: &Path,
        enter: impl FnOnce(Option<&Enrolment>) -> Result<Option<Pay>, E>,
    ) -> Result<(Self, Recovered), E> {
        let enrolment = Enrolment::on(&*storage)?;
        let begun = enrolment.as_ref().filter(|enrolment| enrolment.has_begun());
        if begun.is_none() {
            forget_unpaid(&*storage, &header.payload()?)?;
        }
        let pay = match enter(enrolment.as_ref()) {
            Ok(pay) => pay,
            Err(refused) => {
                // If it is the log that does not fit, that says more.
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
        store.payment = pay.map(|pay| Payment { pay, ledger: ledger.into() });
        Ok((store, recovered))
    }
}
