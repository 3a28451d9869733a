//! What each target does with an input. The targets in `fuzz_targets/` only hand it over; `tests/system/seeds.rs` of the project runs
//! all seeds through the same functions, so that an input that was once too much stays a test.

pub mod brokers;
mod framed;
pub mod greeting;
pub mod header;
pub mod http;
pub mod journal;
pub mod ledger;
pub mod pipeline;
mod place;
pub mod rows;
pub mod state;
pub mod strategy;

/// What a target does with an input.
pub type Body = fn(&[u8]);

/// All targets, by the names of their folders of seeds.
pub const TARGETS: &[(&str, Body)] = &[
    ("brokers", brokers::run),
    ("csv", |input| rows::run("csv", input)),
    ("greeting", greeting::run),
    ("header", header::run),
    ("http", http::run),
    ("journal", journal::run),
    ("ledger", ledger::run),
    ("ndjson", |input| rows::run("ndjson", input)),
    ("parquet", |input| rows::run("parquet", input)),
    ("pipeline", pipeline::run),
    ("state", state::run),
    ("strategy", strategy::run),
];

/// Seeds that follow from what the project itself writes: the name of a target, of a seed, and its bytes.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let state = state::seeds().into_iter().map(|(name, bytes)| ("state", name, bytes));
    let journal = journal::seeds().into_iter().map(|(name, bytes)| ("journal", name, bytes));
    let ledger = ledger::seeds().into_iter().map(|(name, bytes)| ("ledger", name, bytes));
    state.chain(journal).chain(ledger).collect()
}
