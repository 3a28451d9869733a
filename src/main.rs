//! The `hushflow` command.

use std::process::ExitCode;

use clap::Parser;

mod cli;

fn main() -> ExitCode {
    cli::execute(&cli::Arguments::parse())
}
