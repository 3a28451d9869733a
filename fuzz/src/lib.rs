//! The fuzz targets. `fuzz_targets/target.rs` is the program of each; `tests/system/seeds.rs` of
//! the project runs all seeds through the same functions, so an input that once failed stays a
//! test.

mod files;
mod network;
mod state;

/// A target: the name of its program and of its folder of seeds, and its function.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    ("brokers", network::brokers),
    ("csv", |input| files::rows("csv", input)),
    ("entities", state::entities),
    ("greeting", network::greeting),
    ("header", files::header),
    ("http", network::http),
    ("journal", state::journal),
    ("ledger", state::ledger),
    ("ndjson", |input| files::rows("ndjson", input)),
    ("parquet", |input| files::rows("parquet", input)),
    ("pipeline", files::pipeline),
    ("state", state::state),
    ("strategy", files::strategy),
];

/// Seeds made from files that the project writes: the names of target and seed, and the bytes.
pub fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let seeds = [
        ("state", state::state_seeds()),
        ("entities", state::entity_seeds()),
        ("journal", state::journal_seeds()),
        ("ledger", state::ledger_seeds()),
    ];
    let named = |(target, seeds): (_, Vec<(String, Vec<u8>)>)| {
        seeds.into_iter().map(move |(name, bytes)| (target, name, bytes))
    };
    seeds.into_iter().flat_map(named).collect()
}
