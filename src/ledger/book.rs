//! The ledger on disk: reserving room, paying once for each state directory, and looking up what was entered.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Budget, Charge, Entry, Ledger, LedgerError, Refusal};
use crate::state::{Enrolment, LedgerFile, Pay, Reservation};
use crate::time;

/// The directory of a state directory's own ledger, seen from there.
const OWN: &str = "ledger";

/// Where a ledger is, and what was read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Book {
    /// The directory of the ledger.
    pub path: PathBuf,
    /// Its content.
    pub ledger: Ledger,
}

impl Book {
    /// The ledger in the directory `path`, or the one that pays for the state directory `path`.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] if there is none, and others if it can't be read.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let path = place(path)?;
        let file = LedgerFile::shared(&path)?;
        let ledger = read(&file)?.ok_or(LedgerError::Missing { path: path.clone() })?;
        Ok(Self { path, ledger })
    }

    /// The path of a state directory's own ledger, as seen from there.
    pub fn own() -> PathBuf {
        OWN.into()
    }
}

/// The directory of the ledger that `path` means.
fn place(path: &Path) -> Result<PathBuf, LedgerError> {
    let own = path.join(OWN);
    Ok(match Enrolment::of(path)? {
        Some(enrolment) => path.join(enrolment.ledger()),
        // A state directory that has paid for nothing yet.
        None if own.is_dir() => own,
        None => path.into(),
    })
}

fn read(file: &LedgerFile) -> Result<Option<Ledger>, LedgerError> {
    let content = |reason| LedgerError::Content { path: file.path().into(), reason };
    file.read()?.map(|text| Ledger::from_bytes(&text).map_err(content)).transpose()
}

fn write(file: &LedgerFile, ledger: &Ledger) -> Result<(), LedgerError> {
    let content = |error: serde_json::Error| LedgerError::Content {
        path: file.path().into(),
        reason: error.to_string(),
    };
    Ok(file.write(ledger.to_bytes().map_err(content)?)?)
}

/// What a pipeline asks of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// What it will spend.
    pub charge: Charge,
    /// What it says that all may spend together.
    pub budget: Option<Budget>,
    /// The name of its data.
    pub data_set: Option<String>,
    /// Whether others may use the ledger too, so that the data must have a name.
    pub shared: bool,
    /// When it was made, as RFC 3339.
    pub started: String,
}

impl Request {
    /// The ledger with one more entry.
    fn enter(self, ledger: Ledger, identity: String) -> Result<Ledger, Refusal> {
        let Self { charge, budget, data_set, shared, started } = self;
        if shared && data_set.is_none() {
            return Err(Refusal::NoData { stands: ledger.data_set });
        }
        ledger.of_data(data_set.as_deref())?.with(Entry { identity, started, charge }, budget)
    }

    /// The ledger as it will be when this has been paid, whether that is within the budget or not.
    fn count(self, mut ledger: Ledger) -> Ledger {
        let Self { charge, budget, data_set, started, .. } = self;
        ledger.budget = ledger.budget.or(budget);
        ledger.data_set = ledger.data_set.or(data_set);
        ledger.entries.push(Entry::reserved(started, charge));
        ledger
    }
}

/// Finds room in the ledger in the directory `path` for the releases of a state directory, and gives what pays for them.
///
/// Where the state directory has begun, its entry must be there, and nothing is left to pay: that is none. A budget that
/// is stated later stands from then on, and nobody releases more who has paid while all together exceed one. Where it has not,
/// its room is reserved until the run pays or ends, however it ends. What pays looks again: nothing is entered
/// beyond the budget, whatever became of reservations.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter(
    path: &Path,
    enrolment: Option<&Enrolment>,
    request: Request,
) -> Result<Option<Pay>, LedgerError> {
    if let Some(enrolment) = enrolment.filter(|enrolment| enrolment.has_begun()) {
        let mut file = opened(path, enrolment)?;
        if request.budget.is_some() && read(&file)?.is_some_and(|ledger| ledger.budget.is_none()) {
            file = LedgerFile::exclusive(path)?;
        }
        return enter_in(&file, enrolment, request).map(|()| None);
    }
    let file = LedgerFile::exclusive(path)?;
    let ledger = read(&file)?.unwrap_or_default();
    // Entered by a run that was cut short before its first release: that has been paid for.
    let entered = enrolment.map(Enrolment::identity).filter(|identity| ledger.entry(identity).is_some());
    let reservation = match entered {
        None => Some(reserve(&file, ledger, &request)?),
        Some(identity) => agreeing(&ledger, path, identity, &request.charge).map(|_| None)?,
    };
    let path = path.to_owned();
    let entered = reservation.is_none();
    let enter = move |enrolment: &Enrolment| {
        enter_in(&LedgerFile::exclusive(&path)?, enrolment, request)?;
        drop(reservation);
        Ok(())
    };
    Ok(Some(Pay { entered, enter: Box::new(enter) }))
}

/// Reserves room beside what is entered and what others have reserved.
fn reserve(file: &LedgerFile, ledger: Ledger, request: &Request) -> Result<Reservation, LedgerError> {
    let path = file.path();
    let content =
        |error: serde_json::Error| LedgerError::Content { path: path.into(), reason: error.to_string() };
    let mut counted = ledger;
    for text in Reservation::all(path)? {
        let other: Request = serde_json::from_slice(&text).map_err(content)?;
        counted = other.count(counted);
    }
    let refused = |refusal| LedgerError::Refused { path: path.into(), refusal };
    request.clone().enter(counted, String::new()).map_err(refused)?;
    Ok(Reservation::make(path, &serde_json::to_vec(request).map_err(content)?)?)
}

/// Enters what is released once and kept nowhere, such as an estimate from a file: each call is an entry of its own. When this
/// returns, it is on disk.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter_once(path: &Path, charge: Charge, data_set: Option<String>) -> Result<(), LedgerError> {
    let file = LedgerFile::exclusive(path)?;
    let mut ledger = read(&file)?.unwrap_or_default();
    let (started, entries) = (time::now(), ledger.entries.len());
    let identity = format!("{}, {} at {started}", charge.method, entries + 1);
    let request = Request { charge, budget: None, data_set, shared: true, started };
    // What others have reserved is theirs.
    let reserved = Reservation::all(path)?;
    let refused = |refusal| LedgerError::Refused { path: file.path().into(), refusal };
    let counted = reserved.iter().filter_map(|text| serde_json::from_slice::<Request>(text).ok());
    let counted = counted.fold(ledger.clone(), |counted, other| other.count(counted));
    request.clone().enter(counted, identity.clone()).map_err(refused)?;
    ledger = request.enter(ledger, identity).map_err(refused)?;
    write(&file, &ledger)
}

/// Sees to it that a ledger pays for the releases of a state directory, in a file that is held exclusively if it may change. When
/// this returns, the entry is on disk.
///
/// A state directory pays once. If it has begun, its entry must be there; if not, it may be there from a run that went no
/// further, and is then written once more: its sync may have been what failed.
pub(crate) fn enter_in(
    file: &LedgerFile,
    enrolment: &Enrolment,
    request: Request,
) -> Result<(), LedgerError> {
    let ledger = read(file)?.unwrap_or_default();
    let identity = enrolment.identity();
    let refused = |refusal| LedgerError::Refused { path: file.path().into(), refusal };
    if enrolment.has_begun() || ledger.entry(&identity).is_some() {
        agreeing(&ledger, file.path(), identity, &request.charge)?;
        let stated = ledger.clone().of_data(request.data_set.as_deref()).map_err(refused)?;
        let stated = stated.stating(request.budget).map_err(refused)?;
        let unchanged = enrolment.has_begun() && stated.budget == ledger.budget;
        return if unchanged { Ok(()) } else { write(file, &stated) };
    }
    write(file, &request.enter(ledger, identity).map_err(refused)?)
}

/// The number of the entry that pays for a state directory, and of all entries, once it is there and says what its public
/// parameters say.
///
/// # Errors
/// [`LedgerError::Lost`], [`LedgerError::Differs`], or why the ledger can't be read.
pub fn standing(path: &Path, enrolment: &Enrolment, charge: &Charge) -> Result<(usize, usize), LedgerError> {
    let ledger = read(&opened(path, enrolment)?)?.unwrap_or_default();
    agreeing(&ledger, path, enrolment.identity(), charge)
}

/// The ledger that a state directory counts on.
fn opened(path: &Path, enrolment: &Enrolment) -> Result<LedgerFile, LedgerError> {
    LedgerFile::shared(path).map_err(|error| match LedgerError::from(error) {
        LedgerError::Missing { path } => LedgerError::Lost { path, identity: enrolment.identity() },
        error => error,
    })
}

fn agreeing(
    ledger: &Ledger,
    path: &Path,
    identity: String,
    charge: &Charge,
) -> Result<(usize, usize), LedgerError> {
    match ledger.entry(&identity) {
        None => Err(LedgerError::Lost { path: path.into(), identity }),
        Some((_, entry)) if !entry.charge.agrees(charge) => {
            Err(LedgerError::Differs { path: path.into(), identity })
        }
        Some((number, _)) => Ok((number, ledger.entries.len())),
    }
}

/// Changes the budget for all, whatever has been spent. Creates the ledger when needed. Gives its directory.
///
/// # Errors
/// [`LedgerError`]; the budget is then what it was.
pub fn set_budget(path: &Path, budget: impl FnOnce(&Ledger) -> Budget) -> Result<PathBuf, LedgerError> {
    let path = if path.exists() { place(path)? } else { path.into() };
    let file = LedgerFile::exclusive(&path)?;
    let mut ledger = read(&file)?.unwrap_or_default();
    ledger.budget = Some(budget(&ledger));
    write(&file, &ledger)?;
    Ok(path)
}
