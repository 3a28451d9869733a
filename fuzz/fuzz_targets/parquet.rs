//! Rows in Parquet.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| hushflow_fuzz::rows::run("parquet", input));
