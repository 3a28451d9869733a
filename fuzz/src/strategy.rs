//! Strategy files, and matrices in CSV.

use super::place::in_memory;
use hushflow::strategies::SavedStrategy;
use hushflow::strategies::matrix::read_matrix;

/// Reads a strategy, and what is written of it.
pub fn run(input: &[u8]) {
    in_memory(|directory| {
        let path = directory.join("strategy");
        std::fs::write(&path, input).expect("a file");
        if let Ok(saved) = SavedStrategy::load(&path) {
            let copy = directory.join("copy");
            saved.save(&copy).expect("a strategy can be written");
            SavedStrategy::load(&copy).expect("what was written can be read");
        }
        let _ = read_matrix(&path);
    });
}
