//! A page that shows a view of a public log while it grows: means with their confidence bands, the covariance, the guarantee.
//!
//! ```text
//! GET /                                      the page, with /page.js and /page.css
//! GET /about                                 what the log promises, as one JSON object
//! GET /events?key=EWR&workload=window:7      a JSON line of `hushflow tail --json` for each epoch, as server-sent events;
//!                                            key=all is the total over keys
//! ```
//!
//! Anybody may ask, so what a request costs is bounded. It names one of a few workloads that the page's owner chose, whose noise
//! levels are found once, as far as the log goes. The server computes for one client at a time.
//!
//! The number of an event is its epoch, so a browser that loses its connection goes on behind the last epoch that it has seen.
//! Each connection reads the log for itself, as fast as its client takes what it gives. So there are no queues: a client that
//! stalls holds up itself, and never another one or the run, which knows nothing of readers. A client that comes late to a long log
//! gets a subsampled backlog, [`BACKLOG`] epochs at most with the newest among them, and from then on every epoch.

mod promise;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::view::{Moments, View as Weighted, ViewError, ViewNoise};
use hushflow_mechanism::workload::Workload;
use hushflow_operators::Estimated;
use serde_json::{Value, json};
use thiserror::Error;

use crate::http::{Answer, Events, Request, Server, Status, Turn};
use crate::pipeline::View;
use crate::publication::Publication;
use crate::sink::{Format, Writer};
use crate::state::{PublicReader, ReleaseFrame, StateError};
use crate::totals::{Totals, add_up};

pub use crate::http::HttpError;

/// Events of the past that a client gets at most, give or take one.
pub const BACKLOG: u64 = 4000;

/// Keys that the page offers in a list. More are asked for by their names.
const LISTED_KEYS: u32 = 1000;

/// How often a log is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Epochs, and bytes of events, that are computed for a client in one turn.
const SLICE: (usize, usize) = (64, 256 << 10);

/// How often a client hears that nothing has happened.
const HEARTBEAT: Duration = Duration::from_secs(5);

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

/// What the page shows.
pub struct Site {
    /// The state directory, or one with a copy of its public log.
    pub directory: PathBuf,
    /// What that log means.
    pub publication: Publication,
    /// The view that the page begins with.
    pub view: View,
    /// The workloads that can be chosen beside that of the view.
    pub workloads: Vec<Workload>,
    /// The key that the page begins with; the number after theirs for their total.
    pub key: u32,
    /// The account of the ledger that pays for the log, as `hushflow ledger --json` gives it; null where there is none.
    pub ledger: Box<dyn Fn() -> Value + Send + Sync>,
}

/// A page that is served.
pub struct Page {
    address: SocketAddr,
    published: Arc<AtomicU64>,
}

impl Page {
    /// Serves `site` at `address`, `HOST:PORT`, from now on, for as long as the process lives.
    ///
    /// # Errors
    /// [`HttpError`] if that can't be listened at.
    pub fn serve(site: Site, address: &str) -> Result<Self, HttpError> {
        let server = Server::bind(address)?;
        let published = Arc::new(AtomicU64::new(0));
        let page = Self { address: server.address(), published: Arc::clone(&published) };
        let shown = site.publication.keys() + u32::from(has_total(&site.publication));
        let names = (0..shown).map(|key| (site.publication.key_name(key).to_owned(), key));
        let mut workloads = vec![site.publication.levels(&site.view.workload)];
        for workload in &site.workloads {
            if !workloads.iter().any(|levels| levels.workload() == workload) {
                workloads.push(site.publication.levels(workload));
            }
        }
        let visit = Arc::new(Visit { names: names.collect(), workloads, site, published });
        server.serve(move |request| visit.answer(request))?;
        Ok(page)
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells how far the log is known to go: whoever comes now gets [`BACKLOG`] epochs of it at most.
    pub fn tell_published(&self, epoch: u64) {
        self.published.store(epoch, Ordering::Relaxed);
    }
}

/// Whether the total over keys can be asked for, as one more key called `all`.
fn has_total(publication: &Publication) -> bool {
    let total = publication.key_name(publication.keys());
    let taken = (0..publication.keys()).any(|key| publication.key_name(key) == total);
    !taken && add_up(publication)
}

struct Visit {
    site: Site,
    names: HashMap<String, u32>,
    /// Those that can be chosen, the view's first.
    workloads: Vec<Arc<ViewNoise>>,
    published: Arc<AtomicU64>,
}

impl Visit {
    fn answer(self: &Arc<Self>, request: &Request) -> Answer {
        match request.path.as_str() {
            "/" => Answer::Document("text/html; charset=utf-8", PAGE.into()),
            "/page.js" => Answer::Document("text/javascript; charset=utf-8", SCRIPT.into()),
            "/page.css" => Answer::Document("text/css; charset=utf-8", STYLE.into()),
            "/about" => Answer::Document("application/json", Cow::Owned(self.about().to_string())),
            "/events" => match self.follower(request) {
                Ok(follower) => Answer::Events(Box::new(move |events| follower.follow(events))),
                Err(why) => Answer::Refused(Status::BadRequest, why),
            },
            _ => Answer::Refused(Status::NotFound, "there is no such page: go to /".into()),
        }
    }

    /// What everyone may know of the log before its first epoch.
    fn about(&self) -> Value {
        let Site { publication, view, key, ledger, .. } = &self.site;
        let parameters = publication.parameters();
        let (start, length) = match &parameters.epochs.schedule {
            Schedule::ByTime(by) => (Some(by.start), Some(by.length)),
            Schedule::ByCount(_) => (None, None),
        };
        let more = u32::from(has_total(publication) && publication.keys() <= LISTED_KEYS);
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
            "view": { "key": publication.key_name(*key), "workload": view.workload.to_string() },
            "workloads": self.offered(),
            "estimate": view.estimate,
            "projection": view.covariance.name(),
            "level": view.intervals.level,
            "joint": view.intervals.joint,
            "about": if view.intervals.population { "population" } else { "records" },
            "reach": view.intervals.count_reach(),
            "ledger": ledger(),
        })
    }

    /// The workloads that can be chosen.
    fn offered(&self) -> Vec<String> {
        self.workloads.iter().map(|levels| levels.workload().to_string()).collect()
    }

    /// What a client wants to follow, or why it can't.
    fn follower(self: &Arc<Self>, request: &Request) -> Result<Follower, String> {
        let Site { view, key, .. } = &self.site;
        let key = match request.get("key") {
            None => *key,
            Some(name) => *self.names.get(name).ok_or("no key of this log is called so")?,
        };
        let refused = || {
            let offered = self.offered().join(", ");
            format!(
                "workload: this page shows {offered}; `hushflow tail --web … --workload WORKLOAD` adds others"
            )
        };
        let wanted = match request.get("workload") {
            None => view.workload.clone(),
            Some(text) => text.parse().map_err(|_| refused())?,
        };
        let levels = self.workloads.iter().find(|levels| *levels.workload() == wanted).ok_or_else(refused)?;
        let (visit, levels) = (Arc::clone(self), Arc::clone(levels));
        Ok(Follower { visit, key, levels, seen: request.last_event.unwrap_or(0) })
    }
}

/// A client that follows a view of one key.
struct Follower {
    visit: Arc<Visit>,
    key: u32,
    levels: Arc<ViewNoise>,
    /// The last epoch that it has seen.
    seen: u64,
}

/// Why a client can't be told more.
#[derive(Debug, Error)]
enum Lost {
    #[error("the client is gone")]
    Client(#[from] io::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    View(#[from] ViewError),
}

impl Follower {
    /// Sends what there is and what comes, up to the last epoch.
    fn follow(&self, events: &mut Events<'_>) -> io::Result<()> {
        match self.try_follow(events) {
            Ok(()) => events.tell("end", "the last epoch has been published"),
            Err(Lost::Client(error)) => Err(error),
            // What is wrong is told to the operator, who sees it in the terminal of this command.
            Err(_) => events.tell("fault", "the log can't be read on"),
        }
    }

    fn try_follow(&self, events: &mut Events<'_>) -> Result<(), Lost> {
        let horizon = self.visit.site.publication.horizon();
        if self.seen >= horizon {
            return Ok(());
        }
        let mut reading = {
            let _turn = Turn::wait();
            Reading::of(self)?
        };
        let mut told = Instant::now();
        loop {
            let slice = {
                let _turn = Turn::wait();
                reading.slice()?
            };
            for (epoch, line) in &slice.events {
                events.send(*epoch, line)?;
                told = Instant::now();
            }
            if reading.moments.next_epoch() > horizon {
                return Ok(());
            }
            if told.elapsed() >= HEARTBEAT {
                events.beat()?;
                told = Instant::now();
            }
            if slice.is_all {
                std::thread::sleep(INTERVAL);
            }
        }
    }
}

/// How far a client has come in the log.
struct Reading<'a> {
    follower: &'a Follower,
    reader: PublicReader,
    moments: Weighted,
    totals: Totals,
    lines: Lines,
    /// The last epoch of the backlog, of which every `stride`-th is sent.
    published: u64,
    stride: u64,
    /// The newest epoch that has been left out since one was sent.
    skipped: Option<(Moments, ReleaseFrame)>,
}

/// What one turn has computed.
struct Slice {
    events: Vec<(u64, String)>,
    /// There is nothing more in the log.
    is_all: bool,
}

impl<'a> Reading<'a> {
    fn of(follower: &'a Follower) -> Result<Self, Lost> {
        let Follower { visit, key, levels, seen } = follower;
        let Site { directory, publication, view, .. } = &visit.site;
        let published = visit.published.load(Ordering::Relaxed);
        let workload = levels.workload().clone();
        Ok(Self {
            follower,
            reader: PublicReader::open(directory)?,
            moments: publication.view(&workload).with_square_bias(view.squares),
            totals: Totals::of(publication, *key == publication.keys()),
            lines: Lines::new(publication, View { workload, ..view.clone() }),
            published,
            stride: published.saturating_sub(*seen).div_ceil(BACKLOG).max(1),
            skipped: None,
        })
    }

    /// Reads on in the log, but no more than a turn allows.
    fn slice(&mut self) -> Result<Slice, Lost> {
        let (key, seen) = (self.follower.key, self.follower.seen);
        let (mut events, mut bytes) = (Vec::new(), 0);
        for _ in 0..SLICE.0 {
            if bytes >= SLICE.1 {
                return Ok(Slice { events, is_all: false });
            }
            let Some(release) = self.reader.next_frame()? else {
                if let Some((found, release)) = self.skipped.take() {
                    events.push((found.epoch, self.lines.of(found, &release)?.to_owned()));
                }
                return Ok(Slice { events, is_all: true });
            };
            let totals = &mut self.totals;
            let mut shown = self.moments.push(&release.values)?.filter_map(|line| totals.push(line));
            let found = shown.find(|line| line.key == key);
            let Some(found) = found.filter(|found| found.epoch > seen) else { continue };
            let due = found.epoch > self.published || (found.epoch - seen).is_multiple_of(self.stride);
            if due {
                let epoch = found.epoch;
                let line = self.lines.of(found, &release)?;
                bytes += line.len();
                events.push((epoch, line.to_owned()));
                self.skipped = None;
            } else {
                self.skipped = Some((found, release));
            }
        }
        Ok(Slice { events, is_all: false })
    }
}

/// Lines of `hushflow tail --json`.
struct Lines {
    writer: Writer,
    view: View,
    line: Vec<u8>,
}

impl Lines {
    fn new(publication: &Publication, view: View) -> Self {
        Self {
            writer: Writer::new(publication.clone(), view.clone(), Format::Json, false),
            view,
            line: vec![],
        }
    }

    /// The line about these moments, without its end.
    fn of(&mut self, moments: Moments, release: &ReleaseFrame) -> io::Result<&str> {
        let density = moments.noisy().density_by(self.view.covariance);
        self.line.clear();
        self.writer.write(&Estimated { density, moments }, &release.stamp(), &mut self.line)?;
        str::from_utf8(&self.line).map(str::trim_end).map_err(io::Error::other)
    }
}
