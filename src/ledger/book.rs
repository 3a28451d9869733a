//! The ledger on disk: reserves budget, charges each state directory once, and looks up entries.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Budget, Charge, Ledger, LedgerEntry, LedgerError, LedgerRefusal};
use crate::state::{Enrolment, LedgerFile, LedgerPayment, Reservation};
use crate::time;

/// A state directory's own ledger, relative to it.
const OWN: &str = "ledger";

/// A ledger's directory and content.
#[derive(Clone, Debug, PartialEq)]
pub struct Book {
    /// Directory of the ledger.
    pub path: PathBuf,
    /// Its content.
    pub ledger: Ledger,
}

impl Book {
    /// Opens the ledger in the directory `path`, or the one that pays for the state directory
    /// `path`.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] if there is none, and other errors if it can't be read.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let path = resolve(path)?;
        let file = LedgerFile::shared(&path)?;
        let ledger = read(&file)?.ok_or(LedgerError::Missing { path: path.clone() })?;
        Ok(Self { path, ledger })
    }

    /// Returns the path of a state directory's own ledger, relative to it.
    pub fn own() -> PathBuf {
        OWN.into()
    }
}

/// Resolves the ledger directory for `path`.
fn resolve(path: &Path) -> Result<PathBuf, LedgerError> {
    let own = path.join(OWN);
    Ok(match Enrolment::of(path)? {
        Some(enrolment) => path.join(enrolment.ledger()),
        // The state directory has not been charged yet.
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

/// A pipeline's request to a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerRequest {
    /// Its planned cost.
    pub charge: Charge,
    /// Its stated budget for all pipelines together.
    pub budget: Option<Budget>,
    /// Name of its data set.
    pub data_set: Option<String>,
    /// Whether other pipelines may use the ledger too, so that the data set needs a name.
    pub shared: bool,
    /// Time of the request, RFC 3339.
    pub started: String,
}

impl LedgerRequest {
    /// Adds the entry to the ledger.
    fn enter(self, ledger: Ledger, identity: String) -> Result<Ledger, LedgerRefusal> {
        let Self { charge, budget, data_set, shared, started } = self;
        if shared && data_set.is_none() {
            return Err(LedgerRefusal::NoData { recorded: ledger.data_set });
        }
        ledger.of_data(data_set.as_deref())?.with(LedgerEntry { identity, started, charge }, budget)
    }

    /// Adds the charge as a reserved entry, even if it exceeds the budget.
    fn count(self, mut ledger: Ledger) -> Ledger {
        let Self { charge, budget, data_set, started, .. } = self;
        ledger.budget = ledger.budget.or(budget);
        ledger.data_set = ledger.data_set.or(data_set);
        ledger.entries.push(LedgerEntry::reserved(started, charge));
        ledger
    }
}

/// Reserves budget in the ledger in the directory `path` for the releases of a state directory, and
/// returns how to pay.
///
/// - The state directory has begun: its entry must exist, and the result is `None` because it
///   has paid already. A budget added later takes effect now; if the entries together exceed a
///   budget, no more may be released.
/// - It has not begun: its budget is reserved until the run pays or ends. Paying checks again, so
///   no entry exceeds the budget, even if reservations were lost.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter(
    path: &Path,
    enrolment: Option<&Enrolment>,
    request: LedgerRequest,
) -> Result<Option<LedgerPayment>, LedgerError> {
    if let Some(enrolment) = enrolment.filter(|enrolment| enrolment.has_begun()) {
        let mut file = opened(path, enrolment)?;
        if request.budget.is_some() && read(&file)?.is_some_and(|ledger| ledger.budget.is_none()) {
            file = LedgerFile::exclusive(path)?;
        }
        return enter_in(&file, enrolment, request).map(|()| None);
    }
    let file = LedgerFile::exclusive(path)?;
    let ledger = read(&file)?.unwrap_or_default();
    // A run that was cut short before its first release has already paid.
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
    Ok(Some(LedgerPayment { entered, enter: Box::new(enter) }))
}

/// Reserves budget in addition to entries and other reservations.
fn reserve(file: &LedgerFile, ledger: Ledger, request: &LedgerRequest) -> Result<Reservation, LedgerError> {
    let path = file.path();
    let refused = |refusal| LedgerError::Refused { path: path.into(), refusal };
    request.clone().enter(with_reservations(path, ledger)?, String::new()).map_err(refused)?;
    let text = serde_json::to_vec(request).map_err(|error| unreadable(path, &error))?;
    Ok(Reservation::make(path, &text)?)
}

/// Checks that a ledger has enough budget left for a request besides entries and reservations.
/// Does not change the ledger.
///
/// # Errors
/// [`LedgerError`] if a run would be refused.
pub fn confirm_room(path: &Path, request: LedgerRequest) -> Result<(), LedgerError> {
    let ledger = match path.is_dir() {
        true => with_reservations(path, read(&LedgerFile::shared(path)?)?.unwrap_or_default())?,
        false => Ledger::default(),
    };
    let refused = |refusal| LedgerError::Refused { path: path.into(), refusal };
    request.enter(ledger, String::new()).map(drop).map_err(refused)
}

/// Counts the reservations of other runs. One that can't be read is an error: its size is unknown.
fn with_reservations(path: &Path, ledger: Ledger) -> Result<Ledger, LedgerError> {
    let count = |counted, text: Vec<u8>| {
        let other: LedgerRequest = serde_json::from_slice(&text).map_err(|error| unreadable(path, &error))?;
        Ok(other.count(counted))
    };
    Reservation::all(path)?.into_iter().try_fold(ledger, count)
}

fn unreadable(path: &Path, error: &serde_json::Error) -> LedgerError {
    LedgerError::Content { path: path.into(), reason: error.to_string() }
}

/// Adds an entry for a single release that is not stored, such as an estimate from a file. Each
/// call adds one entry, which is on disk when this returns.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter_once(path: &Path, charge: Charge, data_set: Option<String>) -> Result<(), LedgerError> {
    let file = LedgerFile::exclusive(path)?;
    let mut ledger = read(&file)?.unwrap_or_default();
    let (started, entries) = (time::now(), ledger.entries.len());
    let identity = format!("{}, {} at {started}", charge.method, entries + 1);
    let request = LedgerRequest { charge, budget: None, data_set, shared: true, started };
    let refused = |refusal| LedgerError::Refused { path: file.path().into(), refusal };
    let counted = with_reservations(path, ledger.clone())?;
    request.clone().enter(counted, identity.clone()).map_err(refused)?;
    ledger = request.enter(ledger, identity).map_err(refused)?;
    write(&file, &ledger)
}

/// Ensures that a ledger pays for the releases of a state directory. If the ledger may change,
/// `file` must be held exclusively. The entry is on disk when this returns.
///
/// A state directory pays once. If it has begun, its entry must exist. If not, an entry may exist
/// from a run that was cut short; it is written again, because its sync may have failed.
pub(crate) fn enter_in(
    file: &LedgerFile,
    enrolment: &Enrolment,
    request: LedgerRequest,
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

/// Returns the number of the entry that pays for a state directory, and the number of all entries,
/// after checking the entry against the public parameters.
///
/// # Errors
/// [`LedgerError::Lost`], [`LedgerError::Differs`], or why the ledger cannot be read.
pub fn standing(path: &Path, enrolment: &Enrolment, charge: &Charge) -> Result<(usize, usize), LedgerError> {
    let ledger = read(&opened(path, enrolment)?)?.unwrap_or_default();
    agreeing(&ledger, path, enrolment.identity(), charge)
}

/// Opens the ledger of a state directory that has begun.
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

/// Changes the budget for all pipelines, also to less than the amount spent. Creates the ledger if
/// needed and returns its directory.
///
/// # Errors
/// [`LedgerError`]; the budget is then unchanged.
pub fn set_budget(path: &Path, budget: impl FnOnce(&Ledger) -> Budget) -> Result<PathBuf, LedgerError> {
    let path = if path.exists() { resolve(path)? } else { path.into() };
    let file = LedgerFile::exclusive(&path)?;
    let mut ledger = read(&file)?.unwrap_or_default();
    ledger.budget = Some(budget(&ledger));
    write(&file, &ledger)?;
    Ok(path)
}
