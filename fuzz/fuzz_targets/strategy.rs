//! Strategy files, and matrices in CSV.
#![no_main]

use hushflow::strategies::SavedStrategy;
use hushflow::strategies::matrix::read_matrix;
use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use tempfile::TempDir;

#[path = "place.rs"]
mod place;

thread_local! {
    static DIRECTORY: LazyCell<TempDir> = const { LazyCell::new(place::directory) };
}

fuzz_target!(|input: &[u8]| {
    DIRECTORY.with(|directory| {
        let path = directory.path().join("strategy");
        std::fs::write(&path, input).expect("a file");
        if let Ok(saved) = SavedStrategy::load(&path) {
            let copy = directory.path().join("copy");
            saved.save(&copy).expect("a strategy can be written");
            assert!(std::fs::read(&copy).is_ok());
            SavedStrategy::load(&copy).expect("what was written can be read");
        }
        let _ = read_matrix(&path);
    });
});
