//! The numbers of a chart, or of all keys at once, as one JSON document.
//!
//! A document holds at most about [`READINGS`] readings: the more keys and series, the fewer
//! epochs. The epochs are evenly spaced, and beside them is the newest. [`kept`](super::kept)
//! shares the documents among readers, and extends them as the log grows.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::choice::SeriesChoice;
use super::kept::GrowingText;
use crate::follow::{EpochEstimates, FollowError, Follower, Subject, open_log};
use crate::http::{ComputeTurn, HttpRequest};

/// Maximum number of readings in a document, approximately.
const READINGS: u64 = 6000;

/// Minimum and maximum number of epochs in a document, unless the log has fewer.
const EPOCHS: (u64, u64) = (12, 480);

/// Maximum number of epochs that are read in a turn. A turn also ends after a selected epoch.
const MAX_EPOCHS_PER_POLL: usize = 64;

/// Subject of a document.
pub(super) struct ReadingsQuery {
    /// Directory of the log.
    pub(super) directory: PathBuf,
    pub(super) subject: Subject,
    /// Keys in order. The number of keys means the total over all keys.
    pub(super) keys: Vec<u32>,
    pub(super) series: Vec<SeriesChoice>,
    /// The first and last epoch to show.
    pub(super) range: EpochRange,
    /// Half-width of an interval, in standard deviations of the noise.
    pub(super) reach: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EpochRange {
    pub(super) from: Option<u64>,
    pub(super) to: Option<u64>,
    /// Number of epochs to show, up to `to` or the newest. It replaces `from`.
    pub(super) last: Option<u64>,
}

impl EpochRange {
    /// Reads `from`, `to` and `last`.
    pub(super) fn of_request(request: &HttpRequest) -> Result<Self, String> {
        let epoch = |name: &str| {
            let parsed = request.get(name).map(str::parse::<u64>).transpose();
            parsed.map_err(|_| format!("{name}: expected a whole number"))
        };
        Ok(EpochRange { from: epoch("from")?, to: epoch("to")?, last: epoch("last")? })
    }

    /// Returns the ends in a log of `published` epochs.
    fn ends(self, published: u64) -> (u64, u64) {
        let to = self.to.unwrap_or(published).min(published);
        let from = self.last.map_or(self.from.unwrap_or(1), |last| (to + 1).saturating_sub(last));
        (from.clamp(1, to.max(1)), to)
    }
}

/// A document, as far as the log has been read.
pub(super) struct Readings {
    query: ReadingsQuery,
    follower: Option<Follower>,
    /// The document has all epochs in the range that are multiples of this step.
    step: u64,
    columns: ReadingColumns,
}

impl Readings {
    /// Begins before the first epoch.
    pub(super) fn new(query: ReadingsQuery) -> Self {
        Readings { columns: ReadingColumns::new(&query), query, follower: None, step: 1 }
    }
}

impl GrowingText for Readings {
    fn text(&mut self, published: u64) -> Result<String, FollowError> {
        let (from, to) = self.query.range.ends(published);
        let number = (self.query.keys.len() * self.query.series.len()).max(1) as u64;
        let most = (READINGS / number).clamp(EPOCHS.0, EPOCHS.1);
        // Multiples of another step would not all be there.
        while (to + 1 - from).div_ceil(self.step) > most {
            self.step = match self.columns.epochs.is_empty() {
                true => (to + 1 - from).div_ceil(most),
                false => 2 * self.step,
            };
        }
        let step = self.step;
        let is_due = |epoch: u64| (from..=to).contains(&epoch) && (epoch == to || epoch.is_multiple_of(step));
        self.columns.retain(is_due);
        let read = self.follower.as_ref().map_or(0, Follower::last);
        let mut is_over = read >= to || self.query.keys.is_empty();
        while !is_over {
            let _turn = ComputeTurn::wait();
            if self.follower.is_none() {
                let log = open_log(&self.query.directory)?;
                self.follower = log.map(|log| Follower::new(log, &self.query.subject, &self.query.keys));
            }
            let Some(follower) = &mut self.follower else { break };
            for _ in 0..MAX_EPOCHS_PER_POLL {
                let Some(epoch) = follower.next(|epoch, _| is_due(epoch))? else {
                    is_over = true;
                    break;
                };
                is_over = epoch.number >= to;
                if is_due(epoch.number) {
                    self.columns.push(&self.query, &epoch);
                }
                if is_over || is_due(epoch.number) {
                    break;
                }
            }
        }
        Ok(self.columns.document(&self.query, (from, to), step).to_string())
    }

    fn is_final(&self) -> bool {
        let last = self.query.range.to.unwrap_or(u64::MAX).min(self.query.subject.horizon());
        self.query.keys.is_empty() || self.follower.as_ref().is_some_and(|follower| follower.last() >= last)
    }
}

/// The readings of each key and series, over the epochs.
struct ReadingColumns {
    epochs: Vec<u64>,
    keys: Vec<KeyColumns>,
}

#[derive(Clone, Default)]
struct KeyColumns {
    quality: &'static str,
    is_good: Vec<u8>,
    /// Value and both ends, series by series.
    series: Vec<[Vec<Option<f64>>; 3]>,
}

impl ReadingColumns {
    fn new(query: &ReadingsQuery) -> Self {
        let series = vec![Default::default(); query.series.len()];
        let empty = KeyColumns { series, ..KeyColumns::default() };
        Self { epochs: Vec::new(), keys: vec![empty; query.keys.len()] }
    }

    fn push(&mut self, query: &ReadingsQuery, epoch: &EpochEstimates) {
        // No window of several epochs ends with this one.
        if epoch.estimates.is_empty() {
            return;
        }
        self.epochs.push(epoch.number);
        for (key, own) in query.keys.iter().zip(&mut self.keys) {
            // A key that is discovered later has no estimate yet.
            let found = epoch.estimates.iter().find(|found| found.key == *key);
            let estimate = found.map(|found| &*found.estimate);
            own.quality = estimate.and_then(|estimate| estimate.quality()).unwrap_or("good");
            let is_good = estimate.is_some() && matches!(own.quality, "good" | "if-missing-at-random");
            own.is_good.push(u8::from(is_good));
            for (choice, [values, lower, upper]) in query.series.iter().zip(&mut own.series) {
                let reading = estimate.map(|estimate| choice.read(estimate));
                let ends = reading.as_ref().map_or([None; 2], |reading| reading.ends(query.reach));
                values.push(reading.and_then(|reading| reading.value).filter(|value| value.is_finite()));
                lower.push(ends[0]);
                upper.push(ends[1]);
            }
        }
    }

    /// Keeps these epochs.
    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let kept: Vec<bool> = self.epochs.iter().map(|&epoch| keep(epoch)).collect();
        if kept.iter().all(|&is_kept| is_kept) {
            return;
        }
        fn filter<T>(list: &mut Vec<T>, kept: &[bool]) {
            let mut kept = kept.iter();
            list.retain(|_| kept.next().is_some_and(|&is_kept| is_kept));
        }
        filter(&mut self.epochs, &kept);
        for own in &mut self.keys {
            filter(&mut own.is_good, &kept);
            own.series.iter_mut().flatten().for_each(|list| filter(list, &kept));
        }
    }

    fn document(&self, query: &ReadingsQuery, (from, to): (u64, u64), step: u64) -> Value {
        let name = |key: u32| query.subject.parameters().key_name(key);
        let keys = query.keys.iter().zip(&self.keys).map(|(&key, own)| {
            let series = own
                .series
                .iter()
                .map(|[values, lower, upper]| json!({ "value": values, "lower": lower, "upper": upper }));
            json!({
                "key": name(key),
                "quality": own.quality,
                "good": own.is_good,
                "series": series.collect::<Vec<_>>(),
            })
        });
        json!({
            "from": from,
            "to": to,
            "step": step,
            "epochs": self.epochs,
            "of": query.series.iter().map(|choice| choice.name.as_str()).collect::<Vec<_>>(),
            "keys": keys.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_within_the_log() {
        let range = |from, to, last| EpochRange { from, to, last }.ends(60);
        assert_eq!(range(None, None, None), (1, 60));
        assert_eq!(range(Some(20), Some(30), None), (20, 30));
        assert_eq!(range(Some(70), Some(90), None), (60, 60));
        assert_eq!(range(None, None, Some(7)), (54, 60));
        assert_eq!(range(None, None, Some(u64::MAX)), (1, 60));
        assert_eq!(range(Some(0), None, None), (1, 60));
        assert_eq!(EpochRange::default().ends(0), (1, 0));
    }
}
