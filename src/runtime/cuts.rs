//! Counts the records that the limits of entities leave out of a run, for the operator. Private.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hushflow_operators::{BoundEntities, BoundOutput, BoundPlan, Fault, Records};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Inspect;

/// By epoch, the number of records that came, less the number of those that passed. Shared by the
/// workers of a process.
#[derive(Clone, Default)]
pub(super) struct EntityCuts(Arc<Mutex<BTreeMap<u64, i64>>>);

impl EntityCuts {
    /// Bounds entities, and counts what that leaves out.
    pub(super) fn bound<'scope>(
        &self,
        records: StreamVec<'scope, u64, Records>,
        plan: impl Into<BoundPlan>,
        fault: Fault,
    ) -> BoundOutput<'scope> {
        let (come, pass) = (self.clone(), self.clone());
        let count = |records: &Records| i64::try_from(records.len()).unwrap_or(i64::MAX);
        let records = records.inspect_time(move |&epoch, records| come.add(epoch, count(records)));
        let BoundOutput { records, admitted } = records.bound(plan, fault);
        let records = records.inspect_time(move |&epoch, records| pass.add(epoch, -count(records)));
        BoundOutput { records, admitted }
    }

    /// Returns the number of records left out of the epochs up to `last`. Of several records that
    /// became their mean, all but one count as left out.
    pub(super) fn up_to(&self, last: u64) -> u64 {
        let cut: i64 = self.epochs().range(..=last).map(|(_, cut)| cut).sum();
        u64::try_from(cut).unwrap_or(0)
    }

    fn add(&self, epoch: u64, change: i64) {
        *self.epochs().entry(epoch).or_default() += change;
    }

    fn epochs(&self) -> MutexGuard<'_, BTreeMap<u64, i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
