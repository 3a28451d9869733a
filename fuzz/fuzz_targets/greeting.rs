//! What strangers say to a process of a cluster.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::greeting::run(input));
