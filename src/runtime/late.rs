//! Records of epochs that are closed already: they move to the oldest open epoch, or are dropped.

use hushflow_mechanism::epochs::{LatePolicy, Schedule};
use hushflow_operators::Records;

use super::duplicates::retain;
use crate::pipeline::Pipeline;
use crate::source::RowCounters;

/// What a pipeline says about late records.
#[derive(Clone, Copy)]
pub(super) struct LateRule {
    policy: LatePolicy,
    horizon: u64,
}

impl LateRule {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let policy = match &pipeline.epochs.schedule {
            Schedule::ByTime(by) => by.late,
            Schedule::ByCount(_) => LatePolicy::Fold,
        };
        LateRule { policy, horizon: pipeline.epochs.schedule.horizon() }
    }

    /// Moves records of epochs up to `closed` to the next one, or drops them with their
    /// fingerprints. Adds their number to the counters. Depends on the epochs of records alone, so
    /// the process that counts records and the one that holds their values do the same.
    pub(super) fn apply(
        self,
        records: &mut Records,
        fingerprints: &mut Vec<u128>,
        closed: u64,
        counters: &mut RowCounters,
    ) {
        let open = closed + 1;
        let late = records.epochs.iter().filter(|&&epoch| epoch <= closed).count() as u64;
        match self.policy {
            _ if late == 0 => {}
            LatePolicy::Fold if open <= self.horizon => {
                records.epochs.iter_mut().for_each(|epoch| *epoch = open.max(*epoch));
                counters.folded += late;
            }
            _ => {
                let kept: Vec<bool> = records.epochs.iter().map(|&epoch| epoch > closed).collect();
                let mut kept_too = kept.iter();
                fingerprints.retain(|_| kept_too.next() == Some(&true));
                retain(records, &kept);
                counters.late += late;
            }
        }
    }
}
