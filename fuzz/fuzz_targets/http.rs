//! What anybody sends to a port at which pages, events or metrics are served.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::http::run(input));
