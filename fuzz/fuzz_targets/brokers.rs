//! What servers of brokers say.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::brokers::run(input));
