//! The ledger on disk: entering a pipeline, once for each state directory, and looking up what was entered.

use std::path::{Path, PathBuf};

use super::{Budget, Charge, Entry, Ledger, LedgerError};
use crate::pipeline::time;
use crate::state::{Enrolment, LedgerFile};

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

    /// The absolute path of a ledger, or that of a state directory's own, as seen from there.
    ///
    /// # Errors
    /// If the working directory is gone.
    pub fn place(directory: Option<&Path>) -> std::io::Result<PathBuf> {
        directory.map_or(Ok(OWN.into()), std::path::absolute)
    }
}

/// The directory of the ledger that `path` means.
fn place(path: &Path) -> Result<PathBuf, LedgerError> {
    let enrolment = Enrolment::of(path)?;
    Ok(enrolment.map_or_else(|| path.into(), |enrolment| path.join(enrolment.ledger())))
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

/// Sees to it that the ledger in the directory `path` pays for the releases of a state directory. When this returns, the entry
/// is on disk.
///
/// A state directory pays once. If it has begun, its entry must be there; if not, it may be there from a run that went no
/// further, and is then written once more: its sync may have been what failed. A budget that is stated later stands from then
/// on, and nobody releases more who has paid while all together exceed one.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter(
    path: &Path,
    enrolment: &Enrolment,
    charge: Charge,
    budget: Option<Budget>,
    started: String,
) -> Result<(), LedgerError> {
    let mut file =
        if enrolment.has_begun() { opened(path, enrolment)? } else { LedgerFile::exclusive(path)? };
    if enrolment.has_begun() && budget.is_some() && read(&file)?.is_some_and(|ledger| ledger.budget.is_none())
    {
        file = LedgerFile::exclusive(path)?;
    }
    enter_in(&file, enrolment, charge, budget, started)
}

/// Enters what is released once and kept nowhere, such as an estimate from a file: each call is an entry of its own. When this
/// returns, it is on disk.
///
/// # Errors
/// [`LedgerError`]; nothing may be released.
pub fn enter_once(path: &Path, charge: Charge) -> Result<(), LedgerError> {
    let file = LedgerFile::exclusive(path)?;
    let ledger = read(&file)?.unwrap_or_default();
    let started = time::now();
    let identity = format!("{}, {} at {started}", charge.method, ledger.entries.len() + 1);
    let refused = |refusal| LedgerError::Refused { path: file.path().into(), refusal };
    let ledger = ledger.with(Entry { identity, started, charge }, None).map_err(refused)?;
    write(&file, &ledger)
}

/// As [`enter`], in a file that is held exclusively if it may change.
pub(crate) fn enter_in(
    file: &LedgerFile,
    enrolment: &Enrolment,
    charge: Charge,
    budget: Option<Budget>,
    started: String,
) -> Result<(), LedgerError> {
    let ledger = read(file)?.unwrap_or_default();
    let identity = enrolment.identity();
    let refused = |refusal| LedgerError::Refused { path: file.path().into(), refusal };
    if enrolment.has_begun() || ledger.entry(&identity).is_some() {
        agreeing(&ledger, file.path(), identity, &charge)?;
        let stated = ledger.clone().stating(budget).map_err(refused)?;
        let unchanged = enrolment.has_begun() && stated == ledger;
        return if unchanged { Ok(()) } else { write(file, &stated) };
    }
    let ledger = ledger.with(Entry { identity, started, charge }, budget).map_err(refused)?;
    write(file, &ledger)
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
