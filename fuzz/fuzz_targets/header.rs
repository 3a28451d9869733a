//! The public parameters in a log's header.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::header::run(input));
