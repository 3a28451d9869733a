//! A live page of one view of a public log: the [plot](crate::estimates::Plot) of its estimate,
//! such as means with their confidence bands, and the guarantee.
//!
//! ```text
//! GET /                                      the page, with /page.js and /page.css
//! GET /about                                 what the log promises, as one JSON object
//! GET /events?key=EWR&workload=window:7      server-sent events: for each epoch a JSON line of
//!                                            `hushflow tail --json`; key=all: total over keys
//! ```
//!
//! Anyone may connect, so the cost of a request is bounded. A request names one of a few workloads
//! that the page's owner chose. Their noise levels are computed once for the epochs in the log. The
//! server computes for one client at a time.
//!
//! Each connection follows the log separately (`sink::events`). A client that joins a long
//! log late gets a subsampled backlog, at most [`BACKLOG`] epochs including the newest, and then
//! every epoch.

mod promise;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::view::ViewNoise;
use hushflow_mechanism::workload::Workload;
use serde_json::{Value, json};

use crate::estimates::EstimateView;
use crate::follow::{StopFlag, Subject};
use crate::http::{HttpAnswer, HttpRequest, HttpServer, HttpStatus};
use crate::publication::{MomentPublication, Publication};
use crate::sink::{Backlog, EventStream, SinkInput};

pub use crate::http::HttpError;

/// Maximum number of past events for a client, give or take one.
pub const BACKLOG: u64 = 4000;

/// Number of keys in the page's list. Others are requested by name.
const LISTED_KEYS: u32 = 1000;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// Contents of the page.
pub struct PageContents {
    /// The state directory, or one with a copy of its public log.
    pub directory: PathBuf,
    /// The publication of that log.
    pub publication: MomentPublication,
    /// The initial view.
    pub view: EstimateView,
    /// Workloads that can be chosen besides that of the view, unless its estimator has its own.
    pub workloads: Vec<Workload>,
    /// The initial key; the number of keys stands for their total.
    pub key: u32,
    /// The account of the ledger that pays for the log, as `hushflow ledger --json` prints it; null
    /// if there is none.
    pub ledger: Box<dyn Fn() -> Value + Send + Sync>,
}

/// A served page.
pub struct Page {
    address: SocketAddr,
    published: Arc<AtomicU64>,
}

impl Page {
    /// Serves `contents` at `address`, `HOST:PORT`, for the life of the process.
    ///
    /// # Errors
    /// [`HttpError`] if it cannot listen there.
    pub fn serve(contents: PageContents, address: &str) -> Result<Self, HttpError> {
        let server = HttpServer::bind(address)?;
        let published = Arc::new(AtomicU64::new(0));
        let page = Self { address: server.address(), published: Arc::clone(&published) };
        let keys = contents.publication.keys() + u32::from(offers_total(&contents.publication));
        let names = (0..keys).map(|key| (contents.publication.key_name(key).to_owned(), key));
        let (publication, view) = (&contents.publication, &contents.view);
        let mut workloads = vec![publication.levels(&view.workload)];
        let own = view.estimator.decays();
        for workload in contents.workloads.iter().filter(|_| own.is_none()) {
            if !workloads.iter().any(|levels| levels.workload() == workload) {
                workloads.push(publication.levels(workload));
            }
        }
        let offered = workloads.len();
        workloads.extend(own.map(|[_, second]| publication.levels(&Workload::Adam(second))));
        let handler = PageHandler { names: names.collect(), workloads, offered, contents, published };
        server.serve(move |request| handler.answer(request))?;
        Ok(page)
    }

    /// Returns the address of the page.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the last published epoch: a new client gets at most [`BACKLOG`] epochs up to it.
    pub fn set_published(&self, epoch: u64) {
        self.published.store(epoch, Ordering::Relaxed);
    }
}

/// Whether the total over keys is offered as one more key called `all`.
fn offers_total(publication: &MomentPublication) -> bool {
    let total = publication.key_name(publication.keys());
    let is_taken = (0..publication.keys()).any(|key| publication.key_name(key) == total);
    !is_taken && publication.has_totals()
}

/// Answers requests for a page.
struct PageHandler {
    contents: PageContents,
    names: HashMap<String, u32>,
    /// Noise levels that streams share: those of the workloads on offer, the view's first, and of
    /// the second workload of its estimator.
    workloads: Vec<Arc<ViewNoise>>,
    offered: usize,
    published: Arc<AtomicU64>,
}

impl PageHandler {
    fn answer(&self, request: &HttpRequest) -> HttpAnswer {
        match request.path.as_str() {
            "/" => HttpAnswer::Document("text/html; charset=utf-8", PAGE.into()),
            "/page.js" => HttpAnswer::Document("text/javascript; charset=utf-8", SCRIPT.into()),
            "/page.css" => HttpAnswer::Document("text/css; charset=utf-8", STYLE.into()),
            "/about" => HttpAnswer::Document("application/json", Cow::Owned(self.about().to_string())),
            "/events" => match self.stream(request) {
                Ok(stream) => HttpAnswer::Events(Box::new(move |events| stream.send(events))),
                Err(why) => HttpAnswer::Refused(HttpStatus::BadRequest, why),
            },
            _ => HttpAnswer::Refused(HttpStatus::NotFound, "there is no such page: go to /".into()),
        }
    }

    /// Public facts about the log before its first epoch.
    fn about(&self) -> Value {
        let PageContents { publication, view, key, ledger, .. } = &self.contents;
        let parameters = publication.parameters();
        let (start, length, runs) = match &parameters.epochs.schedule {
            Schedule::ByTime(by) => {
                (Some(by.start), Some(by.length), by.calendar.as_ref().map(|calendar| &calendar.runs))
            }
            Schedule::ByCount(_) => (None, None, None),
        };
        let more = u32::from(offers_total(publication) && publication.keys() <= LISTED_KEYS);
        let listed = publication.keys().min(LISTED_KEYS) + more;
        let names: Vec<_> = (0..listed).map(|key| publication.key_name(key)).collect();
        json!({
            "name": parameters.name,
            "private": publication.is_private(),
            "epsilon": parameters.privacy.epsilon,
            "delta": parameters.privacy.delta,
            "neighbours": parameters.privacy.neighbours,
            "protects": promise::unit(parameters),
            "guarantee": promise::guarantee(publication),
            "method": parameters.release.method,
            "strategy": publication.calibration().strategy.name.to_string(),
            "noise_multiplier": publication.calibration().noise_multiplier,
            "columns": parameters.columns,
            "by": parameters.key.as_ref().map(|key| key.column.as_str()),
            "keys": names,
            "number_of_keys": publication.keys(),
            "horizon": publication.horizon(),
            "start": start,
            "length": length,
            "runs": runs,
            "view": { "key": publication.key_name(*key), "workload": view.workload.to_string() },
            "workloads": self.offered(),
            "estimate": view.estimator.name(),
            "plot": view.estimator.plot(&publication.scaled_view(view)),
            "projection": view.covariance.name(),
            "level": view.intervals.level,
            "joint": view.intervals.joint,
            "about": view.intervals.about(),
            "reach": view.intervals.count_reach(),
            "ledger": ledger(),
        })
    }

    fn on_offer(&self) -> impl Iterator<Item = &Workload> {
        self.workloads[..self.offered].iter().map(|levels| levels.workload())
    }

    fn offered(&self) -> Vec<String> {
        self.on_offer().map(Workload::to_string).collect()
    }

    /// Returns the stream that a client requests, or why it is refused.
    fn stream(&self, request: &HttpRequest) -> Result<EventStream, String> {
        let PageContents { directory, publication, view, key, .. } = &self.contents;
        let key = match request.get("key") {
            None => *key,
            Some(name) => *self.names.get(name).ok_or("this log has no such key")?,
        };
        let refused = || {
            let offered = self.offered().join(", ");
            format!(
                "workload: this page shows {offered}; `hushflow tail --web … --workload WORKLOAD` adds others"
            )
        };
        let is_requested = |offered: &&Workload| match request.get("workload") {
            None => **offered == view.workload,
            // A matrix is known by the name of its file.
            Some(text) => offered.to_string() == text || text.parse().as_ref() == Ok(*offered),
        };
        let workload = self.on_offer().find(is_requested).ok_or_else(refused)?.clone();
        let name = match workload == view.workload {
            true => view.name.clone(),
            false => EstimateView::usual_name(&workload),
        };
        let view = EstimateView { name, workload, total: key == publication.keys(), ..view.clone() };
        let published = self.published.load(Ordering::Relaxed);
        let subject = Subject { publication: Publication::Moments(publication.clone()), views: vec![view] };
        Ok(EventStream {
            input: SinkInput { directory: directory.clone(), subject: Arc::new(subject) },
            keys: vec![key],
            seen: request.last_event.unwrap_or(0),
            backlog: Backlog::Subsampled { published, most: BACKLOG },
            stop: StopFlag::default(),
        })
    }
}
