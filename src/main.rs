//! The `hushflow` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    hushflow::cli::execute(std::env::args_os()).into()
}
