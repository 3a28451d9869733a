//! System tests: the real binary, real files, real servers, real failures. They are one program,
//! because linking is most of the cost of a test. `cargo test --test system kills` runs one module
//! of it.
//!
//! - Commands: `calibrate_and_plan`, `lab`, `mean`, `covariance`, `query`, `train`, `sampled`,
//!   `audit`, `reproduction`, `estimates`, `adam`, `pca`, `densities`, `weights`, `lines`,
//!   `examples`, `init`.
//! - Releases: `methods`, `by_column`, `discovery`, `windows`, `overlapping`, `window_columns`,
//!   `entities`, `workers`, `statistics`.
//! - Sources: `input`, `checks`, `mistakes`, `changed`, `parquet`, `growing`, `sockets`, `brokers`,
//!   `clocks`, `ranges`, `partitions`.
//! - Encrypted connections of sources, sinks and pages: `tls`.
//! - Those that need a feature of their name, or `otel`: `kafka`, `postgres`, `s3`, `telemetry`.
//! - Readers and sinks: `following`, `sinks`, `stream_sinks`, `rights`, `readers`, `watching`,
//!   `probes`, `web`, `elsewhere`, `serving`.
//! - Failures: `recovery`, `kills`, `journal`, `disks`, `clock`, `clusters`, `links`, `ledger`,
//!   `spending`, `golden`, `soak`, `seeds`, `holding`, `flips`, `refusals`, `pressure`, `limits`.
//! - Leaks: `oracle`.
//! - The repository itself: `deploying`, `secrecy`, `tidy`.
//! - Shared code: `harness`, `servers`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adam;
mod audit;
mod brokers;
mod by_column;
mod calibrate_and_plan;
mod changed;
mod checks;
mod clock;
mod clocks;
mod clusters;
mod covariance;
mod coverage;
mod densities;
mod deploying;
mod discovery;
mod disks;
mod elsewhere;
mod entities;
mod estimates;
mod examples;
mod flips;
mod folders;
mod following;
mod golden;
mod growing;
mod harness;
mod histograms;
mod holding;
mod init;
mod input;
mod journal;
#[cfg(feature = "kafka")]
mod kafka;
mod kills;
mod lab;
mod ledger;
mod limits;
mod lines;
mod links;
mod mean;
mod methods;
mod mistakes;
mod oracle;
mod overlapping;
mod packed;
mod parquet;
mod partitions;
mod pca;
#[cfg(feature = "postgres")]
mod postgres;
mod pressure;
mod probes;
mod query;
mod ranges;
mod readers;
mod recovery;
mod refusals;
mod reproduction;
mod rights;
#[cfg(feature = "s3")]
mod s3;
mod sampled;
mod secrecy;
mod seeds;
mod servers;
mod serving;
mod sinks;
mod soak;
mod sockets;
mod spending;
mod statistics;
mod stream_sinks;
#[cfg(feature = "otel")]
mod telemetry;
mod terminal;
mod tidy;
mod tls;
mod train;
mod watching;
mod web;
mod weights;
mod window_columns;
mod windows;
mod workers;
