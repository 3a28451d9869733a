//! A live page of a public log: the [plots](crate::estimates::Plot) of its estimates, such as means
//! with their confidence bands, for all keys at once or for some, and the guarantee.
//!
//! ```text
//! GET /                          the page, with /page.js and /page.css
//! GET /healthz, /readyz          probes: alive, and an epoch within its deadline
//! GET /about                     what the log promises and what can be chosen, as one JSON object
//! GET /readings?of=mean:fare     one series of every key, of at most about 60 epochs; with q=TEXT
//!                                of every key whose name contains the text
//! GET /readings?key=EWR&of=mean  all series of a group, for up to six keys
//! GET /newest                    the newest epoch, its age and when the next is due; null before
//!                                there is a log
//! GET /events?key=EWR            server-sent events: for each epoch the lines of `hushflow tail
//!                                --json` of these keys; key=all: total over keys
//! ```
//!
//! `estimate=`, `workload=` choose the view. Readings take `from=`, `to=` or `last=`, events take
//! `since=`.
//!
//! Anyone may connect, so the cost of a request is bounded. A request names one of a few workloads
//! that the page's owner chose. Their noise levels are computed once for the epochs in the log. The
//! server computes for one client at a time, and keeps readings for others.
//!
//! Each connection to events follows the log separately (`sink::events`). A client that joins a
//! long log late gets a subsampled backlog, at most [`BACKLOG`] epochs including the newest, and
//! then every epoch.

mod about;
mod choice;
mod kept;
mod progress;
mod promise;
mod readings;
mod windows;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use hushflow_mechanism::workload::Workload;
use serde_json::{Value, json};

use crate::estimates::EstimateView;
use crate::follow::StopFlag;
use crate::http::{HttpAnswer, HttpRequest, HttpServer, HttpStatus};
use crate::publication::MomentPublication;
use crate::readiness::Readiness;
use crate::sink::{Backlog, EventStream, SinkInput, last_seen};
use choice::{Offer, SeriesChoice};
use kept::KeptDocuments;
use progress::PageProgress;
use readings::{EpochRange, Readings, ReadingsQuery};
use windows::WindowPageHandler;

pub use crate::http::{HttpEndpoint, HttpError};
pub use windows::WindowPageContents;

/// Maximum number of past events for a client, give or take one.
pub const BACKLOG: u64 = 4000;

/// Number of keys in the overview. Others are requested by name.
const LISTED_KEYS: u32 = 1000;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");

/// The scripts share one scope, so that a browser needs one request.
const SCRIPT: &str = concat!(
    include_str!("page/state.js"),
    include_str!("page/numbers.js"),
    include_str!("page/data.js"),
    include_str!("page/chart.js"),
    include_str!("page/overview.js"),
    include_str!("page/detail.js"),
    include_str!("page/bars.js"),
    include_str!("page/matrix.js"),
    include_str!("page/promise.js"),
    include_str!("page/parquet.js"),
    include_str!("page/download.js"),
    include_str!("page/page.js"),
);

/// Contents of the page.
pub struct PageContents {
    /// The state directory, or one with a copy of its public log.
    pub directory: PathBuf,
    /// The publication of that log.
    pub publication: MomentPublication,
    /// The view that opens.
    pub view: EstimateView,
    /// Other views, whose workloads and estimates are on offer.
    pub more_views: Vec<EstimateView>,
    /// Workloads that can be chosen besides those of the views and of the release.
    pub workloads: Vec<Workload>,
    /// The key that opens; the number of keys stands for their total. `None` opens all keys.
    pub key: Option<u32>,
    /// The account of the ledger that pays for the log, as `hushflow ledger --json` prints it; null
    /// if there is none.
    pub ledger: Box<dyn Fn() -> Value + Send + Sync>,
    /// The longest time from one epoch to the next at which `/readyz` reports ready. `None`: any.
    pub ready_within: Option<Duration>,
}

/// A page that listens for the life of the process.
pub struct Page {
    url: String,
    /// What it answers, once it shows a log.
    handler: Arc<OnceLock<Handler>>,
}

type Handler = Box<dyn Fn(&HttpRequest) -> HttpAnswer + Send + Sync>;

/// A log that a page shows.
pub struct ShownLog(Arc<PageProgress>);

impl Page {
    /// Listens. Until a log is shown, the page says that there is no release yet.
    ///
    /// # Errors
    /// [`HttpError`] if it cannot listen there, or can't use the certificate.
    pub fn listen(endpoint: &HttpEndpoint) -> Result<Self, HttpError> {
        let server = HttpServer::bind(endpoint)?;
        let page = Self { url: server.url(), handler: Arc::default() };
        let handler = Arc::clone(&page.handler);
        server.serve(move |request| handler.get().map_or_else(|| await_log(request), |own| own(request)))?;
        Ok(page)
    }

    /// Shows a log from now on. A page shows the first log that it is given.
    pub fn show(&self, contents: PageContents) -> ShownLog {
        let schedule = &contents.publication.parameters().epochs.schedule;
        let progress = Arc::new(PageProgress::new(schedule, contents.ready_within));
        let (offer, kept, shown) =
            (Offer::new(&contents), KeptDocuments::default(), ShownLog(Arc::clone(&progress)));
        let handler = PageHandler { contents, offer, kept, progress };
        let _ = self.handler.set(Box::new(move |request| handler.answer(request)));
        shown
    }

    /// Shows window estimates, as [`show`](Self::show) does.
    pub fn show_windows(&self, contents: WindowPageContents) -> ShownLog {
        let schedule = &contents.publication.parameters().epochs.schedule;
        let progress = Arc::new(PageProgress::new(schedule, contents.ready_within));
        let shown = ShownLog(Arc::clone(&progress));
        let handler = WindowPageHandler::new(contents, progress);
        let _ = self.handler.set(Box::new(move |request| handler.answer(request)));
        shown
    }

    /// Returns the address of the page, such as `https://127.0.0.1:8080`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Answers a request before there is a log.
fn await_log(request: &HttpRequest) -> HttpAnswer {
    let probe = || Readiness::default().answer(request);
    match request.path.as_str() {
        "/newest" => json_document(json!({ "epoch": null, "age": null, "due": null }).to_string()),
        "/readyz" | "/about" | "/readings" | "/events" => {
            HttpAnswer::Refused(HttpStatus::Unavailable, "no release yet: no run has created the log".into())
        }
        path => static_document(path).or_else(probe).unwrap_or_else(unknown_page),
    }
}

fn unknown_page() -> HttpAnswer {
    HttpAnswer::Refused(HttpStatus::NotFound, "there is no such page: go to /".into())
}

impl ShownLog {
    /// Sets the last published epoch: a new client gets at most [`BACKLOG`] epochs up to it.
    pub fn set_published(&self, epoch: u64) {
        self.0.advance(epoch);
    }

    /// Records that the log has been read to its present end, which was written at the time
    /// `written`: the page is ready.
    pub fn set_caught_up(&self, written: Option<SystemTime>) {
        self.0.set_newest_at(written);
        self.0.readiness.begin(None);
    }
}

/// Returns a file of the page.
fn static_document(path: &str) -> Option<HttpAnswer> {
    let (kind, text) = match path {
        "/" => ("text/html; charset=utf-8", PAGE),
        "/page.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "/page.css" => ("text/css; charset=utf-8", STYLE),
        _ => return None,
    };
    Some(HttpAnswer::Document(kind, text.into()))
}

/// Answers requests for a page.
struct PageHandler {
    contents: PageContents,
    offer: Offer,
    kept: KeptDocuments,
    progress: Arc<PageProgress>,
}

impl PageHandler {
    fn answer(&self, request: &HttpRequest) -> HttpAnswer {
        if let Some(answered) = self.progress.answer(request) {
            return answered;
        }
        let answered = match request.path.as_str() {
            "/about" => self.about(request).map(|about| json_document(about.to_string())),
            "/readings" => self.readings(request),
            "/events" => {
                let stream = self.stream(request);
                stream.map(|stream| HttpAnswer::Events(Box::new(move |events| stream.send(events))))
            }
            path => return static_document(path).unwrap_or_else(unknown_page),
        };
        answered.unwrap_or_else(|why| HttpAnswer::Refused(HttpStatus::BadRequest, why))
    }

    fn published(&self) -> u64 {
        self.progress.published()
    }

    /// Returns the readings that a client requests, or why they are refused.
    fn readings(&self, request: &HttpRequest) -> Result<HttpAnswer, String> {
        let PageContents { directory, publication, .. } = &self.contents;
        let view = self.offer.view(request, &self.contents)?;
        let scaled = publication.scaled_view(&view);
        let plot = view.estimator.plot(&scaled);
        let mut series = SeriesChoice::named(request.get("of"), &plot, &scaled.columns)?;
        let mut keys = self.offer.keys(request)?;
        if keys.is_empty() {
            keys = match request.get("q") {
                Some(text) => self.offer.search(text, LISTED_KEYS),
                None => self.listed_keys(),
            };
            series.truncate(1);
        }
        let range = EpochRange::of_request(request)?;
        let estimate = view.estimator.parameter(&scaled.columns);
        let (kind, workload) = (view.estimator.name(), &view.workload);
        let names: Vec<_> = series.iter().map(|choice| choice.name.as_str()).collect();
        let name = format!("{kind} {estimate:?} {workload} {keys:?} {names:?} {range:?}");
        let subject = choice::subject(publication, &view, &keys);
        let (directory, reach) = (directory.clone(), view.intervals.count_reach());
        let query = ReadingsQuery { directory, subject, keys, series, range, reach };
        Ok(kept_document(&self.kept, &name, self.published(), query))
    }

    /// Keys of the overview.
    fn listed_keys(&self) -> Vec<u32> {
        let publication = &self.contents.publication;
        let total = choice::offers_total(publication).then_some(publication.keys());
        publication.parameters().named_keys().take(LISTED_KEYS as usize).chain(total).collect()
    }

    /// Returns the stream that a client requests, or why it is refused.
    fn stream(&self, request: &HttpRequest) -> Result<EventStream, String> {
        let PageContents { directory, publication, key, .. } = &self.contents;
        let view = self.offer.view(request, &self.contents)?;
        let mut keys = self.offer.keys(request)?;
        if keys.is_empty() {
            keys.push(key.unwrap_or(0));
        }
        let subject = choice::subject(publication, &view, &keys);
        Ok(EventStream {
            input: SinkInput { directory: directory.clone(), subject: Arc::new(subject) },
            keys,
            seen: last_seen(request, publication.parameters().epochs.schedule.horizon())?,
            backlog: Backlog::Subsampled { published: self.published(), most: BACKLOG },
            stop: StopFlag::default(),
        })
    }
}

/// Answers with the readings of this name.
fn kept_document(kept: &KeptDocuments, name: &str, published: u64, query: ReadingsQuery) -> HttpAnswer {
    match kept.get(name, published, move || Readings::new(query)) {
        Some(text) => json_document(text.to_string()),
        None => HttpAnswer::Refused(HttpStatus::Unavailable, "the log can't be read".into()),
    }
}

fn json_document(text: String) -> HttpAnswer {
    HttpAnswer::Document("application/json", Cow::Owned(text))
}
