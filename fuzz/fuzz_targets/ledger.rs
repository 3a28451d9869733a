//! Ledgers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::ledger::run(input));
