//! Records of estimates: the one table that CSV, data frames, files and databases have.

use hushflow_mechanism::epochs::Schedule;

use super::EstimateLine;
use crate::estimates::{EstimateField, EstimateRecord, SentRecords};
use crate::follow::{EpochEstimates, KeyEstimate, Subject};
use crate::publication::Publication;

/// Returns the records of an epoch, in the order of its lines.
pub fn records(subject: &Subject, epoch: &EpochEstimates) -> Vec<EstimateRecord> {
    let record = |estimate: &KeyEstimate| EstimateLine::new(subject, estimate).record();
    epoch.estimates.iter().map(record).collect()
}

impl EstimateLine<'_> {
    pub(super) fn record(&self) -> EstimateRecord {
        let (by, view) = match &self.subject.publication {
            Publication::Windows(windows) => ("estimator", windows.estimator().to_string()),
            Publication::Moments(_) => ("view", self.view().into()),
        };
        let start = match &self.subject.parameters().epochs.schedule {
            Schedule::ByTime(schedule) => schedule.start_of(self.first_epoch()),
            Schedule::ByCount(_) => None,
        };
        let shown = self.estimate.shown_count();
        let count = self.estimate.moments().map(|moments| shown.map(|count| (count, moments.noise.count)));
        let counts = count.into_iter().flat_map(|count| EstimateField::noisy("count", &[], count));
        let sent = self.sent();
        let sent = sent.iter().flat_map(SentRecords::fields);
        let fields = counts.chain(sent).chain(self.estimate.fields()).collect();
        let private = self.subject.publication.is_private();
        EstimateRecord { epoch: self.epoch, start, key: self.key().into(), by, view, private, fields }
    }
}
