//! Checks that the oracles find faults planted in the source.
//!
//! `tests/oracle-plants` has a patch for each fault. All are applied to one copy of the tree, in
//! order, and built once; a fault is active only if the environment variable `PLANTED` has its
//! number. Above its first file a patch states
//!
//! - the fault,
//! - `Expected:` the output of a test that has found it: `LEAK` and the kind, for the oracle,
//! - `Test:` the arguments of `cargo test` for that test, unless it is the one over neighbours.
//!
//! A build takes minutes, so a run of all tests only checks that the patches still apply. To plant
//! them:
//!
//! ```text
//! HUSHFLOW_ORACLE_PLANTS=all cargo test --test system oracle::plants      # or 03,07
//! ```
//!
//! The oracle is built from the planted tree: it runs the planted binary and interprets the header
//! with the planted library. It stops at the first leak of the expected kind. With all faults
//! inactive it must find none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Arguments of `cargo test` for the test over neighbours.
const NEIGHBOURS: &str = "--test system oracle::neighbours";

struct Plant {
    path: PathBuf,
    name: String,
    /// The expected output.
    expected: String,
    /// The arguments of `cargo test`.
    test: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn plants() -> Vec<Plant> {
    let entries = fs::read_dir(root().join("tests/oracle-plants")).expect("a folder of patches");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let plant = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a patch");
        let field = |what: &str| text.lines().find_map(|line| Some(line.strip_prefix(what)?.to_owned()));
        let expected = field("Expected: ").expect("a line `Expected:`");
        let test = field("Test: ").unwrap_or(NEIGHBOURS.into());
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        Plant { path, name, expected, test }
    };
    paths.into_iter().map(plant).collect()
}

fn git(directory: &Path, arguments: &[&str], patch: &Path) -> Output {
    let mut git = Command::new("git");
    // The copy lies in the repository, so git must not find the repository's own files.
    git.env("GIT_CEILING_DIRECTORIES", directory.parent().expect("a folder above")).current_dir(directory);
    git.args(arguments).arg(patch).output().expect("git runs")
}

#[track_caller]
fn succeeded(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Copies the tree without build output. The cargo configuration above the tree also applies to the
/// copy; a second copy of it would rebuild every dependency.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && !["target", ".git", ".cargo"].contains(&&*name.to_string_lossy()) {
            copy(&path, &to.join(name));
        } else if path.is_file() {
            fs::copy(&path, to.join(name)).expect("a file is copied");
        }
    }
}

/// Makes a copy of the tree with all faults in it.
fn planted(tree: &Path) {
    copy(root(), tree);
    for plant in plants() {
        let name = plant.name;
        succeeded(&git(tree, &["apply"], &plant.path), &format!("{name}: change the patch with the source"));
    }
}

#[test]
fn every_planted_fault_applies() {
    assert!(plants().len() >= 10);
    let folder = tempfile::tempdir().expect("a folder");
    planted(&folder.path().join("tree"));
}

#[test]
fn planted_faults_are_found() {
    let Ok(wanted) = std::env::var("HUSHFLOW_ORACLE_PLANTS") else { return };
    let folder = root().join("target/oracle-plants");
    let tree = folder.join("tree");
    let _ = fs::remove_dir_all(&tree);
    planted(&tree);
    let run = |name: &str, test: &str, until: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--locked"]).args(test.split(' '));
        cargo
            .args(["--", "--include-ignored", "--skip", "plants"])
            .current_dir(&tree)
            .env("CARGO_TARGET_DIR", folder.join("target"))
            .env("HUSHFLOW_ORACLE_UNTIL", until);
        cargo.env("PLANTED", name.split('-').next().expect("a number"));
        let output = cargo.output().expect("cargo runs");
        let output_text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        fs::write(folder.join(format!("{name}.log")), &output_text).expect("a log is written");
        (output.status.success(), output_text)
    };
    let (all_off, output_text) = run("none", NEIGHBOURS, "");
    assert!(all_off, "no fault is planted: {output_text}");
    let is_wanted = |name: &str| wanted == "all" || wanted.split(',').any(|number| name.starts_with(number));
    let mut missed = Vec::new();
    for plant in plants().into_iter().filter(|plant| is_wanted(&plant.name)) {
        let until = plant.expected.trim_start_matches("LEAK ");
        if !run(&plant.name, &plant.test, until).1.contains(&plant.expected) {
            missed.push(plant.name);
        }
    }
    assert!(missed.is_empty(), "no test found {missed:?}: see the logs in {}", folder.display());
}
