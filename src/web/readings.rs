//! The numbers of a chart, or of all keys at once, as one JSON document.
//!
//! A document holds at most about [`READINGS`] readings: the more keys and series, the fewer
//! epochs. The epochs are evenly spaced and include the newest. All readers share the documents, of
//! which the last [`MAX_DOCUMENTS`] used are kept. A document is computed again after the log has
//! grown, but not before a pause of [`PAUSE_FACTOR`] times the last computation. So a page takes a
//! bounded share of the processor, for any number of readers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::choice::SeriesChoice;
use crate::follow::{EpochEstimates, FollowError, Follower, Subject, open_log};
use crate::http::{ComputeTurn, HttpRequest};

/// Maximum number of readings in a document, approximately.
const READINGS: u64 = 6000;

/// Minimum and maximum number of epochs in a document, unless the log has fewer.
const EPOCHS: (u64, u64) = (12, 480);

/// Number of documents that are kept.
const MAX_DOCUMENTS: usize = 16;

/// Pause after a computation, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 10;

/// Maximum number of epochs that are read in a turn. A turn also ends after a selected epoch.
const MAX_EPOCHS_PER_POLL: usize = 64;

/// Subject of a document.
pub(super) struct ReadingsQuery {
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

impl ReadingsQuery {
    /// Computes the document of a log of `published` epochs.
    pub(super) fn compute(&self, directory: &Path, published: u64) -> Result<String, FollowError> {
        let (from, to) = self.range.ends(published);
        let number = (self.keys.len() * self.series.len()).max(1) as u64;
        let most = (READINGS / number).clamp(EPOCHS.0, EPOCHS.1);
        let step = (to + 1 - from).div_ceil(most).max(1);
        let is_due = |epoch: u64| epoch >= from && epoch <= to && (to - epoch).is_multiple_of(step);
        let mut columns = ReadingColumns::new(self);
        let (mut follower, mut is_over) = (None, published == 0 || self.keys.is_empty());
        while !is_over {
            let _turn = ComputeTurn::wait();
            if follower.is_none() {
                follower = open_log(directory)?.map(|log| Follower::new(log, &self.subject, &self.keys));
            }
            let Some(follower) = &mut follower else { break };
            for _ in 0..MAX_EPOCHS_PER_POLL {
                let Some(epoch) = follower.next(|epoch, _| is_due(epoch))? else {
                    is_over = true;
                    break;
                };
                is_over = epoch.number >= to;
                if is_due(epoch.number) {
                    columns.push(self, &epoch);
                }
                if is_over || is_due(epoch.number) {
                    break;
                }
            }
        }
        Ok(columns.document(self, (from, to), step).to_string())
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
        for found in &epoch.estimates {
            let Some(at) = query.keys.iter().position(|key| *key == found.key) else { continue };
            let (own, estimate) = (&mut self.keys[at], &*found.estimate);
            own.quality = estimate.quality().unwrap_or("good");
            own.is_good.push(u8::from(matches!(own.quality, "good" | "if-missing-at-random")));
            for (choice, [values, lower, upper]) in query.series.iter().zip(&mut own.series) {
                let reading = choice.read(estimate);
                let ends = reading.ends(query.reach);
                values.push(reading.value.filter(|value| value.is_finite()));
                lower.push(ends[0]);
                upper.push(ends[1]);
            }
        }
    }

    fn document(self, query: &ReadingsQuery, (from, to): (u64, u64), step: u64) -> Value {
        let name = |key: u32| query.subject.parameters().key_name(key);
        let keys = query.keys.iter().zip(self.keys).map(|(&key, own)| {
            let series = own
                .series
                .into_iter()
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

/// Computed documents, the last used at the end.
#[derive(Default)]
pub(super) struct KeptDocuments(Mutex<Vec<(String, SharedDocument)>>);

/// A document. Its lock lets only one reader compute it at a time.
type SharedDocument = Arc<Mutex<Option<KeptDocument>>>;

struct KeptDocument {
    text: Arc<str>,
    published: u64,
    /// Time from which on the next document may be computed.
    due: Instant,
}

impl KeptDocuments {
    /// Returns the document of this name, and computes it if it is due. Only one reader computes a
    /// document; others that want it wait.
    pub(super) fn get(
        &self,
        name: &str,
        published: u64,
        compute: impl FnOnce() -> Result<String, FollowError>,
    ) -> Result<Arc<str>, FollowError> {
        let kept = self.slot(name);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*kept
            && (found.published == published || Instant::now() < found.due)
        {
            return Ok(Arc::clone(&found.text));
        }
        let began = Instant::now();
        let text: Arc<str> = compute()?.into();
        let rest = began.elapsed().saturating_mul(PAUSE_FACTOR).min(Duration::from_secs(3600));
        *kept = Some(KeptDocument { text: Arc::clone(&text), published, due: Instant::now() + rest });
        Ok(text)
    }

    fn slot(&self, name: &str) -> SharedDocument {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match all.iter().position(|(known, _)| known == name) {
            Some(at) => all.remove(at).1,
            None => Arc::default(),
        };
        if all.len() >= MAX_DOCUMENTS {
            all.remove(0);
        }
        all.push((name.into(), Arc::clone(&found)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_computed_once_until_the_log_grows() {
        let kept = KeptDocuments::default();
        let get = |name: &str, published: u64, text: &'static str| {
            kept.get(name, published, || Ok(text.into())).expect("no error").to_string()
        };
        assert_eq!(get("a", 1, "one"), "one");
        assert_eq!(get("a", 1, "two"), "one");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(get("a", 2, "three"), "three", "the log has grown, and it took no time");
        let slow = || {
            std::thread::sleep(Duration::from_millis(50));
            Ok("slow".into())
        };
        assert_eq!(&*kept.get("b", 1, slow).expect("no error"), "slow");
        assert_eq!(get("b", 2, "soon"), "slow", "it rests");
        (0..MAX_DOCUMENTS).for_each(|number| drop(get(&number.to_string(), 1, "x")));
        assert_eq!(get("a", 2, "four"), "four", "the oldest has made room");
        assert_eq!(kept.0.lock().expect("no panic").len(), MAX_DOCUMENTS);
    }

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
