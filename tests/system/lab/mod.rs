//! The strategy lab: `plan`, `optimize`, and `run` with the strategies that they find.
//!
//! - `figures`: errors and sensitivities, compared with reference numbers and with each other.
//! - `optimisers`: objectives, lower bounds and files of `optimize`.
//! - `input`: bad input is refused with a correction; unusual input gives the right answer.
//! - `runs`: streams under every kind of strategy: resumed, torn, verified, read again.
//! - `tables`: tables that fit a screen, marks, plots.
//!
//! Every test saves found strategies in a separate folder.

mod figures;
mod input;
mod optimisers;
mod runs;
mod tables;

use std::path::Path;
use std::process::Command;

use crate::harness::{Ended, Lab, finish, hushflow};
use serde_json::Value;

/// Folder of saved strategies in a test's directory.
const KEPT: &str = "kept";

/// Runs a command in a test's directory, with its strategies saved there.
fn inside<'a>(lab: &Lab, command: &'a mut Command) -> &'a mut Command {
    command.current_dir(lab.path("")).env("HUSHFLOW_STRATEGIES", lab.path(KEPT))
}

/// Runs the binary in a test's directory, with the arguments in one line.
fn hush(lab: &Lab, line: &str) -> Ended {
    finish(inside(lab, &mut hushflow(line.split_whitespace())))
}

/// Returns the output with `--json`.
#[track_caller]
fn json(lab: &Lab, line: &str) -> Value {
    hush(lab, &format!("{line} --json")).succeeded().json().remove(0)
}

/// Returns the number of saved strategies.
fn kept(lab: &Lab) -> usize {
    std::fs::read_dir(lab.path(KEPT)).map_or(0, Iterator::count)
}

fn forget(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("a folder of kept strategies");
}
