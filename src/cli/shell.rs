//! `hushflow completions` and `hushflow man`: files for shells and manual readers, made from the
//! definition of the command line.

use std::fs;
use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::{CommandFactory, Subcommand};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::{Arguments, CliError, help};

/// Width of the notes of a manual page, which the reader of the page doesn't break.
const NOTES: usize = 72;

/// Commands that describe the command line.
#[derive(Debug, Subcommand)]
pub(super) enum ShellCommand {
    /// Print the completions for a shell
    #[command(after_help = "\
Examples:
  hushflow completions bash > ~/.local/share/bash-completion/completions/hushflow
  hushflow completions zsh > ~/.zfunc/_hushflow      # with fpath+=~/.zfunc in .zshrc
  hushflow completions fish > ~/.config/fish/completions/hushflow.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a manual page for each command into a directory
    #[command(after_help = "\
Example:
  hushflow man ~/.local/share/man/man1 && man hushflow-run")]
    Man {
        /// The directory, which is made if it is missing
        directory: PathBuf,
    },
}

/// Prints completions or writes manual pages.
pub(super) fn execute(command: &ShellCommand) -> Result<(), CliError> {
    match command {
        ShellCommand::Completions { shell } => {
            // Written at once: the generator panics where output is closed.
            let mut script = Vec::new();
            generate(*shell, &mut Arguments::command(), "hushflow", &mut script);
            Ok(stdout().lock().write_all(&script)?)
        }
        ShellCommand::Man { directory } => {
            let refused = |error| CliError::failed(format!("{}: {error}", directory.display()));
            fs::create_dir_all(directory).map_err(refused)?;
            let mut command = help::command(NOTES).disable_help_subcommand(true);
            command.build();
            for command in std::iter::once(&command).chain(command.get_subcommands()) {
                let page = Man::new(command.clone());
                let mut text = Vec::new();
                page.render(&mut text)?;
                // Without filling, lists and examples keep their lines.
                let text = String::from_utf8_lossy(&text).replacen(".SH EXTRA", ".SH NOTES\n.nf", 1);
                fs::write(directory.join(page.get_filename()), text.as_bytes()).map_err(refused)?;
            }
            Ok(())
        }
    }
}
