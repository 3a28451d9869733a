//! `hushflow key`: makes a key file, or shows the token that follows from one.

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;

use clap::Args;
use hushflow::key::Key;
use serde_json::json;

use super::CliError;
use super::output::print_json;

/// What `hushflow key` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
The file has mode 0600, and is refused when others may read it. Never overwritten: a new key is a new file.

Examples:
  hushflow key cluster.key                     (copy it to every machine: scp -p cluster.key other:)
  hushflow run pipeline.toml --hosts … --process 0 --key cluster.key
  hushflow key source.key                      (and key = \"source.key\" in [source])
  (hushflow key source.key --token; cat flights.csv) | nc 10.0.0.1 7000")]
pub(crate) struct KeyArguments {
    /// The key file
    file: PathBuf,
    /// Print the token of an existing key file: what a sender says first to a source with this key
    #[arg(long)]
    token: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes the file, or reads it.
pub(crate) fn execute(arguments: &KeyArguments) -> Result<(), CliError> {
    let file = arguments.file.display();
    if arguments.token {
        let token = Key::load(&arguments.file)?.token();
        return match arguments.json {
            true => Ok(print_json(&json!({ "token": token.digits() }))?),
            false => Ok(writeln!(stdout(), "{}", token.digits())?),
        };
    }
    Key::create(&arguments.file)?;
    if arguments.json {
        return Ok(print_json(&json!({ "file": arguments.file.to_string_lossy(), "created": true }))?);
    }
    // A closed standard error is no reason to fail after the work is done.
    let _ = writeln!(
        stderr(),
        "{file} holds a new key, which nobody but its owner may read. For a cluster, copy it to every machine and start all \
         processes with --key {file}. For a source that listens, write key = \"{file}\" in [source]; its senders begin with the \
         line that `hushflow key {file} --token` prints."
    );
    Ok(())
}
