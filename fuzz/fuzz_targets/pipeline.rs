//! Pipeline files.
#![no_main]

use hushflow::pipeline::Pipeline;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    match Pipeline::parse(text, Path::new("pipeline.toml")) {
        Ok(pipeline) => drop(pipeline.public_parameters()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
