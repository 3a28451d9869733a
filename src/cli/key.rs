//! `hushflow key`: creates a key file, or prints the token derived from one.

use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::Args;
use hushflow::key::SharedKey;
use serde_json::json;

use super::CliError;
use super::output::{print_json, print_message};

/// Arguments of `hushflow key`.
#[derive(Debug, Args)]
#[command(after_help = "\
The file has mode 0600. A key file that other users may read is refused. An existing file is never overwritten.

Examples:
  hushflow key cluster.key   (copy it to every machine: scp -p cluster.key other:)
  hushflow run pipeline.toml --hosts … --process 0 --key cluster.key
  hushflow key source.key    (and key = \"source.key\" in [source])
  (hushflow key source.key --token; cat flights.csv) | nc 10.0.0.1 7000")]
pub(crate) struct KeyArguments {
    /// The key file
    file: PathBuf,
    /// Print the token of an existing key file: the first line that a sender writes to a source
    /// with this key
    #[arg(long)]
    token: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Creates the key file, or prints its token.
pub(crate) fn execute(arguments: &KeyArguments) -> Result<(), CliError> {
    let file = arguments.file.display();
    if arguments.token {
        let token = SharedKey::load(&arguments.file)?.token();
        return match arguments.json {
            true => Ok(print_json(&json!({ "token": token.digits() }))?),
            false => Ok(writeln!(stdout(), "{}", token.digits())?),
        };
    }
    SharedKey::create(&arguments.file)?;
    if arguments.json {
        return Ok(print_json(&json!({ "file": arguments.file.to_string_lossy(), "created": true }))?);
    }
    print_message(&format!(
        "{file} holds a new key; only its owner may read it. For a cluster, copy the file to every machine and start all \
         processes with --key {file}. For a listening source, set key = \"{file}\" in [source]; senders must begin with the \
         line that `hushflow key {file} --token` prints."
    ));
    Ok(())
}
