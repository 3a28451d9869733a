//! Errors of ledgers. Messages name the ledger and the remedy.

use std::path::PathBuf;

use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::accounting::adjacency::Incomparable;
use thiserror::Error;

use super::{Budget, BudgetExceeded, budget::reached};
use crate::state::{StateError, restrict};

/// Reasons why the entries of a ledger have no joint guarantee.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CompositionError {
    /// One of them is not private.
    #[error("the noise of pipeline {pipeline:?} is drawn from a seed, so its releases protect nobody")]
    Seeded {
        /// Its name.
        pipeline: String,
    },
    /// The guarantee of one of them can't be converted to the neighbour relation in question.
    #[error("pipeline {pipeline:?}: {reason}")]
    Incomparable {
        /// Its name.
        pipeline: String,
        /// Reason why its guarantee cannot be converted.
        reason: Box<Incomparable>,
    },
    /// Their spending is too large for the accounting.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
}

/// Reasons why a pipeline is refused.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum LedgerRefusal {
    /// The stated budget differs from the ledger's.
    #[error(
        "the budget of this data set is {recorded}, and other pipelines rely on it, but the pipeline file says {stated}: state the \
         same in all files; to change it for all, `hushflow ledger DIR --budget EPSILON,DELTA`"
    )]
    OtherBudget {
        /// The ledger's.
        recorded: Box<Budget>,
        /// The pipeline's.
        stated: Box<Budget>,
    },
    /// The ledger belongs to another data set.
    #[error(
        "this ledger is that of the data set {recorded:?}, not of {named:?}: correct `data_set`, or name another directory"
    )]
    OtherData {
        /// The ledger's.
        recorded: String,
        /// The pipeline's.
        named: String,
    },
    /// A run that shares a ledger does not name its data set.
    #[error(
        "{}, but nothing says which data are read here: name them, with data_set = {example:?} under [ledger] in the pipeline file, \
         or for an estimate from a file with --data-set {example}; data of another name have a ledger of their own",
        recorded.as_ref().map_or("this ledger is for one data set".into(), |name| format!("this ledger is that of the data set {name:?}")),
        example = recorded.as_deref().unwrap_or("flights")
    )]
    NoData {
        /// Name of the ledger's data set, if it has one yet.
        recorded: Option<String>,
    },
    /// No guarantee exists that could be within the budget.
    #[error(
        "the budget of this data set is {budget}, but with this pipeline there is no such guarantee: {reason}: choose other \
         neighbours or real noise, or a ledger of its own if the data are others"
    )]
    NoGuarantee {
        /// The budget.
        budget: Box<Budget>,
        /// The reason.
        reason: CompositionError,
    },
    /// The budget does not suffice.
    #[error("{0}")]
    Exceeded(Box<BudgetExceeded>),
    /// The pipeline is already charged, but the entries exceed a budget that was set later.
    #[error(
        "the budget of this data set is {budget}, but its entries, {entries} with this pipeline, spend {}: nothing was \
         published: raise the budget, in the pipeline file and, where the ledger has it from another run, \
         with `hushflow ledger DIR --budget EPSILON,DELTA`, or publish no more",
        reached(*together, budget.delta())
    )]
    Overspent {
        /// The budget.
        budget: Box<Budget>,
        /// Number of entries.
        entries: usize,
        /// Their ε at the δ of the budget.
        together: Option<f64>,
    },
}

/// Reasons why a ledger cannot be used, or refuses a pipeline.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The file or its directory can't be used.
    #[error("the ledger can't be used: {0}")]
    State(StateError),
    /// Other processes have held it for too long.
    #[error("{}: other runs have held this ledger for twenty seconds: look for one that hangs, and try again", path.display())]
    Busy {
        /// The directory of the ledger.
        path: PathBuf,
    },
    /// Other users could change it.
    #[error("{}: mode {mode:04o} gives group or others access, who could delete entries: {}", path.display(), restrict(path, "go-rwx"))]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is intact but unknown.
    #[error(
        "{}: the ledger was written by a newer version, or is not a ledger ({reason}): use the newer program, or restore the ledger from a copy",
        path.display()
    )]
    Content {
        /// The directory of the ledger.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// There is no ledger.
    #[error("{}: there is no ledger here: name the directory of a ledger, or a state directory that something was published from", path.display())]
    Missing {
        /// The expected directory.
        path: PathBuf,
    },
    /// The pipeline is refused.
    #[error("{}: {refusal}", path.display())]
    Refused {
        /// The directory of the ledger.
        path: PathBuf,
        /// The reason.
        refusal: LedgerRefusal,
    },
    /// The entry that paid for a state directory is missing.
    #[error(
        "{}: this ledger has no entry {identity}, which paid for what the state directory has published: it was removed, rolled \
         back or replaced, and later spending may be missing: restore its newest copy, or name the ledger's new directory under \
         [ledger] in the pipeline file; if there is no copy, remove `enrolment` from the state directory, which is then charged again",
        path.display()
    )]
    Lost {
        /// The directory of the ledger.
        path: PathBuf,
        /// The identity of the state directory.
        identity: String,
    },
    /// The entry that paid for a state directory does not match its log.
    #[error(
        "{}: entry {identity} is for other public parameters than those of the state directory it pays for: restore the \
         parameters (or both directories from one copy), or use another state directory, which is charged again",
        path.display()
    )]
    Differs {
        /// The directory of the ledger.
        path: PathBuf,
        /// The identity of the state directory.
        identity: String,
    },
    /// No ledger has an entry for a state directory.
    #[error(
        "{}: no ledger has an entry for this state directory: its releases, if it has any, are in no composition; the next run that \
         publishes enters it",
        path.display()
    )]
    NotEntered {
        /// The state directory.
        path: PathBuf,
    },
}

impl From<StateError> for LedgerError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Locked { path } => Self::Busy { path },
            StateError::Missing { path } => Self::Missing { path },
            StateError::Exposed { path, mode } => Self::Exposed { path, mode },
            error => Self::State(error),
        }
    }
}
