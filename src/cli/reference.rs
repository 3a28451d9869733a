//! `hushflow reference`: every section and field of the pipeline file.

use clap::Args;
use clap::builder::PossibleValuesParser;
use console::Term;
use hushflow::pipeline::reference;

use super::CliError;
use super::output::print;

/// Arguments of `hushflow reference`.
#[derive(Debug, Args)]
#[command(after_help = "\
The reference is printed from the table by which pipeline files are read.

Examples:
  hushflow reference epochs
  hushflow reference --json-schema > pipeline.schema.json   (and #:schema pipeline.schema.json in the first line of a file)")]
pub(crate) struct ReferenceArguments {
    /// Print only this section; top are the fields before the first section, words are the words
    /// and letters of tables and JSON
    #[arg(value_name = "SECTION", value_parser = PossibleValuesParser::new(reference::section_names()))]
    section: Option<String>,
    /// Print the JSON schema of the file, for editors
    #[arg(long, conflicts_with_all = ["section", "markdown"])]
    json_schema: bool,
    /// Print the page docs/pipeline.md
    #[arg(long, conflicts_with = "section")]
    markdown: bool,
}

/// Runs the command.
pub(crate) fn execute(arguments: &ReferenceArguments) -> Result<(), CliError> {
    let text = if arguments.json_schema {
        let schema = serde_json::to_string_pretty(&reference::json_schema());
        schema.map_err(|error| CliError::failed(error.to_string()))? + "\n"
    } else if arguments.markdown {
        reference::markdown()
    } else {
        let width = Term::stdout().size_checked().map_or(100, |(_, columns)| usize::from(columns));
        reference::text(arguments.section.as_deref(), width).unwrap_or_default()
    };
    Ok(print(&text)?)
}
