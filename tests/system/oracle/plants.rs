//! Whether the oracles find what they are for: faults that are planted in the source.
//!
//! `tests/oracle-plants` has a patch for each fault. Above its first file it says what the fault is, and by which kind of leak it must
//! be found. Each costs a build, so a usual run only checks that they still apply. To plant them:
//!
//! ```text
//! HUSHFLOW_ORACLE_PLANTS=all cargo test --test system oracle::plants      # or 03,07
//! ```
//!
//! The tree is copied to `target/oracle-plants`, a patch is applied, and the oracle is built from what comes of it: it runs the
//! planted binary, and takes what the header means from the planted library. It must fail, and name the kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The oracle and what it needs, as a program of its own: it is linked in seconds.
const PROGRAM: &str = "//! The oracle alone.
#![allow(dead_code)]
#[path = \"system/harness/mod.rs\"]
mod harness;
#[path = \"system/oracle/mod.rs\"]
mod oracle;
";

/// Cases for each fault.
const CASES: &str = "150";

struct Plant {
    path: PathBuf,
    name: String,
    /// How the kind of its leak begins.
    expected: String,
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
        let expected = text.lines().find_map(|line| line.strip_prefix("Expected: "));
        let expected = expected.expect("it says by what it is found").to_owned();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        Plant { path, name, expected }
    };
    paths.into_iter().map(plant).collect()
}

fn git(directory: &Path, arguments: &[&str], patch: &Path) -> Output {
    let mut git = Command::new("git");
    // The copy lies in the repository, whose own files are not meant.
    git.env("GIT_CEILING_DIRECTORIES", directory.parent().expect("a folder above")).current_dir(directory);
    git.args(arguments).arg(patch).output().expect("git runs")
}

#[track_caller]
fn succeeded(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_planted_fault_applies() {
    let plants = plants();
    assert!(plants.len() >= 10);
    for plant in plants {
        let checked = git(root(), &["apply", "--check"], &plant.path);
        succeeded(&checked, &format!("{}: change the patch with the source", plant.name));
    }
}

/// A copy of the tree without what is built of it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && name != ".git" {
            copy(&path, &to.join(name));
        } else if path.is_file() {
            fs::copy(&path, to.join(name)).expect("a file is copied");
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let Ok(wanted) = std::env::var("HUSHFLOW_ORACLE_PLANTS") else { return };
    let folder = root().join("target/oracle-plants");
    let tree = folder.join("tree");
    let _ = fs::remove_dir_all(&tree);
    copy(root(), &tree);
    fs::write(tree.join("tests/oracle.rs"), PROGRAM).expect("a program");
    let mut missed = Vec::new();
    let is_wanted = |name: &str| wanted == "all" || wanted.split(',').any(|number| name.starts_with(number));
    for plant in plants().into_iter().filter(|plant| is_wanted(&plant.name)) {
        succeeded(&git(&tree, &["apply"], &plant.path), &plant.name);
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["test", "--locked", "--test", "oracle", "--no-fail-fast", "--", "--skip", "plants"]);
        cargo.current_dir(&tree).env("CARGO_TARGET_DIR", folder.join("target"));
        cargo.env("HUSHFLOW_ORACLE_CASES", CASES).env("HUSHFLOW_ORACLE_SHRINKING", "0");
        let output = cargo.output().expect("cargo runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        fs::write(folder.join(format!("{}.log", plant.name)), &said).expect("a log is written");
        if !said.contains(&format!("LEAK {}", plant.expected)) {
            missed.push(plant.name);
        }
        succeeded(&git(&tree, &["apply", "-R"], &plant.path), "the patch is taken back");
    }
    assert!(missed.is_empty(), "the oracle does not see {missed:?}: see the logs in {}", folder.display());
}
