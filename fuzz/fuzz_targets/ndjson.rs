//! Rows in NDJSON.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "rows.rs"]
mod rows;

fuzz_target!(|input: &[u8]| rows::read("ndjson", input));
