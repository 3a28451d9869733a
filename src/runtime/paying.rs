//! Chooses the ledger that pays for a run, and opens the state directory once the ledger has room.

use std::path::PathBuf;

use super::{RunError, RunOptions};
use crate::ledger::{Book, LedgerRequest, enter};
use crate::pipeline::Pipeline;
use crate::publication::Publication;
use crate::state::{Enrolment, RecoveredState, StateError, Store};
use crate::time;

/// Returns the directory of the shared ledger that pays for a run's releases: the one that the
/// pipeline names, or that of its state directory if something was published there, or that of its
/// data in the directory of all ledgers. `None` if the state directory's own ledger pays, so
/// releases compose with nothing else.
///
/// # Errors
/// [`RunError`] if this can't be determined.
pub fn shared_ledger(pipeline: &Pipeline, options: &RunOptions) -> Result<Option<PathBuf>, RunError> {
    if let Some(directory) = &pipeline.ledger.directory {
        let absolute = std::path::absolute(directory);
        return absolute
            .map(Some)
            .map_err(|error| RunError::Start(format!("the working directory is gone: {error}")));
    }
    let enrolment = match Enrolment::of(&options.state) {
        Err(StateError::Missing { .. }) => None,
        enrolment => enrolment?,
    };
    if let Some(enrolment) = enrolment.filter(Enrolment::has_begun) {
        return Ok(Some(enrolment.ledger()).filter(|ledger| *ledger != Book::own()));
    }
    let home = options.ledgers.as_ref();
    Ok(home.map(|home| home.of_data(pipeline.ledger.data_set.as_deref())).transpose()?)
}

/// Opens the state directory once a ledger has room for its releases.
pub(super) fn open_store(
    pipeline: &Pipeline,
    publication: &Publication,
    options: &RunOptions,
) -> Result<(Store, RecoveredState), RunError> {
    let (charge, header) = (publication.charge()?, publication.header()?);
    let shared = shared_ledger(pipeline, options)?;
    let request = LedgerRequest {
        charge,
        budget: pipeline.ledger.budget.clone(),
        data_set: pipeline.ledger.data_set.clone(),
        shared: shared.is_some(),
        started: time::now(),
    };
    let ledger = shared.unwrap_or_else(Book::own);
    Store::open_enrolled(&options.state, &header, &pipeline.state, &ledger, |enrolment| {
        Ok(enter(&options.state.join(&ledger), enrolment, request)?)
    })
}
