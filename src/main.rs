//! The `hushflow` command.

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::execute(&cli::parse())
}
