//! `hushflow init`: looks at files, asks what is public knowledge about them, and writes a pipeline
//! file.

mod ask;
mod propose;
mod write;

use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdin};
use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::format::profile::FileProfile;
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::pipeline::{Format, Pipeline};

use super::plan::forecast_of_means;
use super::{CliError, number_in};
use ask::Questions;
use propose::{ColumnBounds, Draft, Keys, Proposal};

/// Arguments of `hushflow init`.
#[derive(Debug, Args)]
#[command(after_help = "\
init looks at the files, proposes columns, keys, clock, epochs and bounds, and asks for each on the terminal. BOUNDS, KEYS \
AND START ARE PUBLISHED, and the guarantee does not cover them: give what everyone may know, not what the file holds. What \
init shows of the file is for your eyes alone.

Without a terminal, or with --yes, nothing is asked: --columns, --epsilon and --delta are required, and so are --start and \
--horizon beside --time, because init takes none of them from the data. No file is overwritten.

Examples:
  hushflow init flights.csv
  hushflow init flights.csv --columns dep_delay:-60:240,distance:0:5000 --key origin=EWR,JFK,LGA \\
      --time event_time --arrival recorded_at --start 2013-01-01 --epoch 1d --horizon 365 --epsilon 1 --delta 1e-6")]
pub(crate) struct InitArguments {
    /// CSV, NDJSON or Parquet files with the same columns, in their order
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The pipeline file to write [default: the name of the first file, with .toml, in this
    /// directory]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Columns to publish, with their public bounds
    #[arg(long, value_name = "NAME:LOWER:UPPER,…", value_delimiter = ',', allow_hyphen_values = true)]
    columns: Vec<ColumnBounds>,
    /// Column that groups the records, with the public list of its values
    #[arg(long, value_name = "COLUMN=A,B,…")]
    key: Option<Keys>,
    /// Column with the time of the event
    #[arg(long, value_name = "COLUMN", requires_all = ["start", "horizon"])]
    time: Option<String>,
    /// Column with the time when the row arrived, which closes epochs [default: all epochs close at
    /// the end of the input]
    #[arg(long, value_name = "COLUMN", requires = "time")]
    arrival: Option<String>,
    /// Length of an epoch, such as 1d or 6h; without --time, a number of rows
    #[arg(long, value_name = "LENGTH")]
    epoch: Option<String>,
    /// Beginning of the first epoch, such as 2013-01-01 or 2013-01-01T05:00:00Z
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    horizon: Option<u64>,
    /// What is protected: record, or the column that names a person or device whose records are
    /// protected together
    #[arg(long, value_name = "record|COLUMN")]
    unit: Option<String>,
    /// Most epochs in which one of them counts, with --unit COLUMN [default: the horizon, at most
    /// 10]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    participations: Option<u64>,
    /// ε of all releases together
    #[arg(long, value_name = "ε", value_parser = number_in(Epsilon::new))]
    epsilon: Option<Epsilon>,
    /// δ of all releases together
    #[arg(long, value_name = "δ", value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// Ask nothing; everything that is published must be given by flags
    #[arg(long, short)]
    yes: bool,
}

/// Makes the pipeline file.
pub(crate) fn execute(arguments: &InitArguments) -> Result<(), CliError> {
    let output = output(arguments)?;
    let format = format(&arguments.files)?;
    let profile =
        FileProfile::of(&arguments.files, format).map_err(|error| CliError::failed(error.to_string()))?;
    let proposal = Proposal::of(&profile);
    let draft = match arguments.yes || !stdin().is_terminal() {
        true => given(arguments, &profile, &proposal, &output)?,
        false => Questions::new(&profile, &proposal).draft(arguments)?,
    };
    let name = output.file_stem().map_or("stream".into(), |stem| stem.to_string_lossy().into_owned());
    let text = write::pipeline(&name, &paths(arguments, &output)?, format, &draft);
    let pipeline = Pipeline::parse(&text, &output)
        .map_err(|error| CliError::usage(format!("these answers make no valid pipeline:\n{error}")))?;
    show_expected(&pipeline, &profile, &draft)?;
    if !arguments.yes && stdin().is_terminal() && !ask::confirm(&format!("Write {}?", output.display()))? {
        return Err(CliError::failed("nothing was written"));
    }
    let written = File::create_new(&output).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| CliError::failed(format!("{}: can't be written: {error}", output.display())))?;
    let output = output.display();
    let _ = writeln!(
        stderr(),
        "{output} is written. Next:\n  hushflow check {output}    what a run would make of the rows; spends nothing\n  \
         hushflow plan {output}     other strategies and budgets\n  hushflow run {output}      publish"
    );
    Ok(())
}

/// Returns the path of the new file, which must not exist.
fn output(arguments: &InitArguments) -> Result<PathBuf, CliError> {
    let first = arguments.files[0].file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = first.split('.').find(|part| !part.is_empty()).unwrap_or("pipeline");
    let output = arguments.output.clone().unwrap_or_else(|| format!("{stem}.toml").into());
    match output.exists() {
        true => Err(CliError::usage(format!(
            "{} exists, and init never overwrites a file: choose another name with --output",
            output.display()
        ))),
        false => Ok(output),
    }
}

fn format(files: &[PathBuf]) -> Result<Format, CliError> {
    let plain = |path: &Path| match path.extension().and_then(|end| end.to_str()) {
        Some("gz" | "zst") => path.with_extension(""),
        _ => path.to_owned(),
    };
    let of = |path: &PathBuf| match plain(path).extension()?.to_str()? {
        "csv" => Some(Format::Csv),
        "ndjson" | "jsonl" => Some(Format::Ndjson),
        "parquet" => Some(Format::Parquet),
        _ => None,
    };
    let first = of(&files[0]);
    first.filter(|_| files.iter().all(|file| of(file) == first)).ok_or_else(|| {
        CliError::usage("expected files that all end in .csv, .ndjson (or .jsonl) or .parquet: rename them")
    })
}

/// Returns the paths of the files as the pipeline file names them: relative to its directory if
/// that is this one, else absolute.
fn paths(arguments: &InitArguments, output: &Path) -> Result<Vec<String>, CliError> {
    let beside = output.parent().is_none_or(|parent| parent.as_os_str().is_empty());
    let path = |path: &PathBuf| -> Result<String, std::io::Error> {
        let path = if beside { path.clone() } else { std::path::absolute(path)? };
        Ok(path.to_string_lossy().into_owned())
    };
    arguments.files.iter().map(path).collect::<Result<_, _>>().map_err(CliError::from)
}

/// Returns the draft that the flags give, without a question.
fn given(
    arguments: &InitArguments,
    profile: &FileProfile,
    proposal: &Proposal,
    output: &Path,
) -> Result<Draft, CliError> {
    let missing: Vec<_> = [
        ("--columns", arguments.columns.is_empty()),
        ("--epsilon", arguments.epsilon.is_none()),
        ("--delta", arguments.delta.is_none()),
    ]
    .into_iter()
    .filter_map(|(flag, is_missing)| is_missing.then_some(flag))
    .collect();
    let (Some(epsilon), Some(delta), []) = (arguments.epsilon, arguments.delta, &missing[..]) else {
        return Err(CliError::usage(format!(
            "{} missing, and without a terminal init takes no bounds, keys or start from the data: they are published, and the \
             guarantee does not cover them.\nThis command would fit the file; it is PRIVATE until you have put public knowledge in \
             the place of each bound, key and time:\n\n{}",
            match &missing[..] {
                [one] => format!("{one} is"),
                more => format!("{} are", more.join(", ")),
            },
            proposal.command(arguments, output)
        )));
    };
    let draft = Draft {
        columns: arguments.columns.clone(),
        key: arguments.key.clone(),
        time: arguments.time.clone(),
        arrival: arguments.arrival.clone(),
        epoch: arguments.epoch.clone(),
        start: arguments.start.clone().unwrap_or_default(),
        horizon: arguments.horizon.unwrap_or(propose::COUNTED_EPOCHS),
        entity: arguments.unit.clone().filter(|unit| unit != "record"),
        participations: arguments.participations,
        epsilon: epsilon.value(),
        delta: delta.value(),
    };
    draft.check(profile)?;
    Ok(draft.filled(profile))
}

/// Prints what `plan` expects of the means, if the records of the file spread evenly.
fn show_expected(pipeline: &Pipeline, profile: &FileProfile, draft: &Draft) -> Result<(), CliError> {
    let keys = draft.key.as_ref().map_or(1, |key| key.values.len());
    let records = profile.rows as f64 / keys as f64 / draft.horizon as f64;
    if let Some(expected) = forecast_of_means(pipeline, records.max(1e-9))? {
        let _ = writeln!(
            stderr(),
            "\nExpected, if the rows of the file spread evenly over keys and epochs:\n{expected}"
        );
    }
    Ok(())
}
