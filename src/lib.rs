//! hushflow publishes running moments of a stream of personal data under differential privacy.
//!
//! A stream of records, each a few numbers and optionally a public key, is cut into epochs. For
//! every epoch and key, hushflow releases the count, the sum and the sum of products. The noise is
//! exact in its distribution, correlated over time, and sized so that the **whole history of
//! releases** is (ε, δ)-differentially private. Any number of means, covariances, densities and
//! windowed averages follow from the releases, each with its noise level.
//!
//! # Data flow
//!
//! ```text
//! source ─ records (key, event time, x ∈ R^d)
//!    │  epochs       event time → epoch, closed by a public clock
//!    │  clip         centre, scale, clip to the ζ-ball, round to an integer grid
//!    │  accumulate   exact integer sums of 1, x and xxᵀ for each key and epoch
//!    │  release      encode over time (C), add exact discrete Gaussian noise
//!    │  commit       private log ── sync ── public log: each epoch once, despite crashes
//! ── the private side ends here: everything below is public ──
//!    │  follow       reads the public log, here or elsewhere
//!    │  view         any workload over the releases: prefix, average, exponential, sliding window
//!    │  density      mean and covariance, debiased, with their noise levels
//! lines, sinks, pages
//! ```
//!
//! The public log is the product. Every view is a pure function of it, so views added later cost no
//! privacy.
//!
//! # Three layers
//!
//! - [`mechanism`]: the mathematics, without I/O: moments, strategies, sensitivity, accounting,
//!   noise, estimates.
//! - [`operators`]: timely dataflow operators, each a thin shell around a state machine of
//!   `mechanism`. To publish from a dataflow of your own, begin with [`runtime::embed`] and
//!   `hushflow = { git = "…", default-features = false }`, which leaves the command out.
//! - this crate: a [`pipeline`] file describes a publication, [`runtime`] runs it over a [`source`]
//!   whose rows have a [`format`](mod@format), [`state`] makes it survive crashes, a [`ledger`]
//!   adds up the spending on the same data, and [`publication`] interprets a log. Readers of a log
//!   [`follow`] it: [`estimates`] are computed, [`lines`] formats them, a [`sink`] passes the lines
//!   on, and [`web`] draws a page. [`metrics`] report on the run. The command `hushflow` does all
//!   of this from a shell.
//!
//! # An example
//!
//! Publish a month of flights out of New York, then read the public log and print the mean delays
//! per airport of the last week.
//!
//! ```
//! use hushflow::pipeline::Pipeline;
//! use hushflow::publication::{MomentPublication, Publication};
//! use hushflow::runtime::{RunOptions, run};
//! use hushflow::state::PublicReader;
//!
//! let pipeline = Pipeline::load("examples/flights.toml".as_ref())?;
//! let directory = tempfile::tempdir()?;
//! let state = directory.path().join("state");
//! let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ())?;
//! run(&pipeline, &publication, &RunOptions::new(2, &state), |_first_epoch| ())?;
//!
//! let mut log = PublicReader::open(&state)?;
//! let publication = MomentPublication::from_header(log.header())?;
//! let mut week = publication.view(&"window:7".parse()?);
//! while let Some(release) = log.next_frame()? {
//!     for moments in week.push(&release.values)?.filter(|moments| moments.epoch == 31) {
//!         let density = publication.to_units(&moments.density()?)?;
//!         let (mean, noise) = (density.mean[0], density.mean_noise[0]);
//!         println!("{}: {mean:.1} ± {noise:.1} minutes", publication.key_name(moments.key));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use hushflow_estimators as estimators;
pub use hushflow_formats as format;
#[doc(hidden)]
pub use hushflow_formats::spelling;
pub use hushflow_formats::time;
pub use hushflow_mechanism as mechanism;
pub use hushflow_operators as operators;

// The files of the command name the library as its users do.
#[cfg(feature = "cli")]
extern crate self as hushflow;

pub mod check;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod connect;
pub mod control;
mod document;
pub mod estimates;
pub mod follow;
pub mod histogram;
mod http;
pub mod key;
pub mod ledger;
pub mod lines;
pub mod metrics;
pub mod pipeline;
#[cfg(feature = "plots")]
pub mod plot;
pub mod prelude;
pub mod publication;
mod readiness;
pub mod runtime;
pub mod security;
pub mod sink;
pub mod source;
pub mod state;
pub mod strategies;
mod tcp;
#[cfg(feature = "training")]
pub mod training;
pub mod web;
#[doc(hidden)]
pub mod whole;

pub use http::probe;
