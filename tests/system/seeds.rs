//! Runs the fuzz targets on their seeds, so that inputs that once failed remain tests.
//!
//! `HUSHFLOW_WRITE_SEEDS=1` writes the generated seeds instead of comparing them.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "a crate of its own, which the targets link to")]
mod fuzz;

fn seeds(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target)
}

#[test]
fn every_target_accepts_its_seeds() {
    for &(target, body) in fuzz::TARGETS {
        let files = fs::read_dir(seeds(target)).expect("a folder of seeds");
        let mut files: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{target}");
        for file in files {
            let seed = fs::read(&file).expect("a seed");
            assert!(std::panic::catch_unwind(|| body(&seed)).is_ok(), "{}", file.display());
        }
    }
}

#[test]
fn seeds_match_the_files_that_the_project_writes() {
    for (target, name, bytes) in fuzz::seeds() {
        let path = seeds(target).join(name);
        if std::env::var_os("HUSHFLOW_WRITE_SEEDS").is_some() {
            fs::create_dir_all(seeds(target)).expect("a folder");
            fs::write(&path, &bytes).expect("a seed is written");
        }
        let found = fs::read(&path).unwrap_or_default();
        assert!(found == bytes, "{} is out of date: HUSHFLOW_WRITE_SEEDS=1 writes it", path.display());
    }
}
