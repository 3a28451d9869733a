//! The page of a log of window estimates: the same documents as for moments, of the one estimate
//! that the log holds.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use hushflow_mechanism::epochs::Schedule;
use serde_json::{Value, json};

use super::choice::{COMPARED_KEYS, SeriesChoice};
use super::kept::KeptDocuments;
use super::readings::{EpochRange, ReadingsQuery};
use super::{
    BACKLOG, LISTED_KEYS, PageProgress, json_document, kept_document, promise, static_document, unknown_page,
};
use crate::estimates::{ESTIMATORS, Intervals, Plot};
use crate::follow::{StopFlag, Subject};
use crate::http::{HttpAnswer, HttpRequest, HttpStatus};
use crate::publication::{Publication, WindowPublication};
use crate::sink::{Backlog, EventStream, SinkInput, last_seen};

/// Contents of the page of window estimates.
pub struct WindowPageContents {
    /// The state directory, or one with a copy of its public log.
    pub directory: PathBuf,
    /// The publication of that log.
    pub publication: WindowPublication,
    /// The key that opens; `None` opens all keys.
    pub key: Option<u32>,
    /// As in [`PageContents`](super::PageContents).
    pub ledger: Box<dyn Fn() -> Value + Send + Sync>,
    /// As in [`PageContents`](super::PageContents).
    pub ready_within: Option<std::time::Duration>,
}

/// Answers requests for the page.
pub(super) struct WindowPageHandler {
    contents: WindowPageContents,
    keys: HashMap<String, u32>,
    plot: Plot,
    columns: Vec<String>,
    kept: KeptDocuments,
    progress: Arc<PageProgress>,
}

impl WindowPageHandler {
    pub(super) fn new(contents: WindowPageContents, progress: Arc<PageProgress>) -> Self {
        let parameters = contents.publication.parameters();
        let keys = (0..parameters.keys()).map(|key| (parameters.key_name(key).to_owned(), key)).collect();
        let columns = parameters.columns.iter().map(|column| column.name.clone()).collect();
        let plot = contents.publication.plot();
        WindowPageHandler { keys, plot, columns, kept: KeptDocuments::default(), progress, contents }
    }

    pub(super) fn answer(&self, request: &HttpRequest) -> HttpAnswer {
        if let Some(answered) = self.progress.answer(request) {
            return answered;
        }
        let answered = match request.path.as_str() {
            "/about" => Ok(json_document(self.about().to_string())),
            "/readings" => self.readings(request),
            "/events" => self
                .stream(request)
                .map(|stream| HttpAnswer::Events(Box::new(move |events| stream.send(events)))),
            path => return static_document(path).unwrap_or_else(unknown_page),
        };
        answered.unwrap_or_else(|why| HttpAnswer::Refused(HttpStatus::BadRequest, why))
    }

    fn subject(&self) -> Subject {
        let publication = Publication::Windows(self.contents.publication.clone());
        Subject { publication, views: Vec::new() }
    }

    fn about(&self) -> Value {
        let WindowPageContents { publication, key, ledger, .. } = &self.contents;
        let parameters = publication.parameters();
        let (start, length, runs) = match &parameters.epochs.schedule {
            Schedule::ByTime(by) => {
                (Some(by.start), Some(by.length), by.calendar.as_ref().map(|calendar| &calendar.runs))
            }
            Schedule::ByCount(_) => (None, None, None),
        };
        let (is_private, intervals) = (publication.is_private(), Intervals::default());
        let (estimate, workload) = (publication.estimator().to_string(), publication.span().to_string());
        let listed = 0..parameters.keys().min(LISTED_KEYS);
        let formula = ESTIMATORS.iter().find(|kind| kind.flag.is_some()).map(|kind| kind.name);
        json!({
            "name": parameters.name,
            "private": is_private,
            "epsilon": parameters.privacy.epsilon,
            "delta": parameters.privacy.delta,
            "neighbours": parameters.privacy.neighbours,
            "protects": promise::unit(parameters),
            "promise": promise::in_plain_words(parameters, is_private),
            "guarantee": promise::guarantee(parameters, is_private),
            "method": estimate,
            "strategy": "none: windows are estimated",
            "noise_multiplier": publication.charge().noise_multiplier,
            "columns": parameters.columns,
            "by": parameters.key.as_ref().map(|key| key.column.as_str()),
            "keys": listed.map(|key| parameters.key_name(key)).collect::<Vec<_>>(),
            "all_keys_listed": parameters.keys() <= LISTED_KEYS,
            "number_of_keys": parameters.keys(),
            "total": Value::Null,
            "most_compared": COMPARED_KEYS,
            "horizon": parameters.epochs.schedule.horizon(),
            "published": self.progress.published(),
            "start": start,
            "length": length,
            "runs": runs,
            "view": {
                "key": key.map(|key| parameters.key_name(key)),
                "workload": workload,
                "estimate": estimate,
            },
            "workloads": [workload],
            "estimates": [{ "name": estimate, "about": publication.about() }],
            "formula": formula,
            "plot": self.plot,
            "projection": "as released",
            "level": intervals.level,
            "joint": false,
            "about": "noise alone",
            "reach": intervals.count_reach(),
            "ledger": ledger(),
        })
    }

    fn keys(&self, request: &HttpRequest) -> Result<Vec<u32>, String> {
        let find = |name: &str| self.keys.get(name).copied().ok_or("key: this log has no such key");
        let mut keys = request.all("key").map(find).collect::<Result<Vec<u32>, _>>()?;
        let mut seen = Vec::new();
        keys.retain(|key| {
            !seen.contains(key) && {
                seen.push(*key);
                true
            }
        });
        match keys.len() > COMPARED_KEYS {
            true => Err(format!("key: expected at most {COMPARED_KEYS} keys")),
            false => Ok(keys),
        }
    }

    /// Returns the readings that a client requests, or why they are refused.
    fn readings(&self, request: &HttpRequest) -> Result<HttpAnswer, String> {
        let mut series = SeriesChoice::named(request.get("of"), &self.plot, &self.columns)?;
        let mut keys = self.keys(request)?;
        if keys.is_empty() {
            keys = (0..self.contents.publication.parameters().keys().min(LISTED_KEYS)).collect();
            series.truncate(1);
        }
        let range = EpochRange::of_request(request)?;
        let names: Vec<_> = series.iter().map(|choice| choice.name.as_str()).collect();
        let name = format!("{keys:?} {names:?} {range:?}");
        let reach = Intervals::default().count_reach();
        let (directory, subject) = (self.contents.directory.clone(), self.subject());
        let query = ReadingsQuery { directory, subject, keys, series, range, reach };
        Ok(kept_document(&self.kept, &name, self.progress.published(), query))
    }

    /// Returns the stream that a client requests, or why it is refused.
    fn stream(&self, request: &HttpRequest) -> Result<EventStream, String> {
        let mut keys = self.keys(request)?;
        if keys.is_empty() {
            keys.push(self.contents.key.unwrap_or(0));
        }
        let WindowPageContents { directory, publication, .. } = &self.contents;
        Ok(EventStream {
            input: SinkInput { directory: directory.clone(), subject: Arc::new(self.subject()) },
            keys,
            seen: last_seen(request, publication.parameters().epochs.schedule.horizon())?,
            backlog: Backlog::Subsampled { published: self.progress.published(), most: BACKLOG },
            stop: StopFlag::default(),
        })
    }
}
