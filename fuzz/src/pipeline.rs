//! Pipeline files.

use hushflow::pipeline::Pipeline;
use std::path::Path;

/// Reads a pipeline.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Pipeline::parse(text, Path::new("pipeline.toml")) {
        Ok(pipeline) => drop(pipeline.public_parameters()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
