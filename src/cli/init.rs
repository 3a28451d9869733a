//! `hushflow init`: reads files, asks for the public knowledge about them, and writes a pipeline
//! file.

mod ask;
mod draft;
mod limits;
mod propose;
mod values;
mod write;

use std::fs::File;
use std::io::{IsTerminal, Write, stdin};
use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::format::FormatError;
use hushflow::format::profile::{FileProfile, ranges_by_key};
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::operators::RepeatPolicy;
use hushflow::pipeline::{Format, Pipeline, PublicParameters};
use hushflow::publication::Publication;
use hushflow::runtime::DryRunLimits;
use hushflow::time::TimeFormat;

use super::budget::large_delta;
use super::output::print_message;
use super::plan::{MissingShare, forecast_of_means};
use super::{CliError, PRIVATE, number_in, prospects, thousands};
use ask::Questions;
use draft::{Draft, Times};
use limits::{LimitSearch, stops_at_limits};
use propose::{Proposal, quoted};
use values::{ColumnBounds, ColumnList, KeyBounds, Keys};

/// Arguments of `hushflow init`.
#[derive(Debug, Args)]
#[command(after_help = "\
init looks at the files, proposes columns, keys, clock, epochs and bounds, and asks for each on the terminal. BOUNDS, KEYS, \
START AND LENGTH OF EPOCHS ARE PUBLISHED, and the guarantee does not cover them: give what everyone may know, not what the file holds. What \
init shows of the file is for your eyes alone.

Without a terminal, or with --yes, nothing is asked: --columns, --epsilon and --delta are required, and --time, --start, \
--epoch and --horizon if the file has times, because init takes none of them from the data. If one is missing, init prints a command to \
complete. No file is overwritten.

--columns may be repeated. The name of a column may hold blanks and commas: it ends with its bounds. A value of --key with a \
comma is written in double quotes.

Examples:
  hushflow init flights.csv
  hushflow init flights.csv --columns dep_delay:-60:240,distance:0:5000 --key origin=EWR,JFK,LGA \\
      --time event_time --arrival recorded_at --start 2013-01-01 --epoch 1d --horizon 365 --epsilon 1 --delta 1e-6
  hushflow init sales.csv --columns 'amount, net:0:5000' --key 'city=Oslo,\"New York, NY\"' --time sold \\
      --timezone America/New_York --start 2013-01-01 --epoch month --horizon 12 --epsilon 1 --delta 1e-6")]
pub(crate) struct InitArguments {
    /// CSV, NDJSON or Parquet files with the same columns, in their order, or a directory of such
    /// files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The pipeline file to write [default: the name of the first file, with .toml, in this
    /// directory]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Columns to publish, with their public bounds; may be repeated
    #[arg(long, value_name = "NAME:LOWER:UPPER,…", allow_hyphen_values = true)]
    columns: Vec<ColumnList>,
    /// Column that groups the records, with the public list of its values; "…" around one with a
    /// comma
    #[arg(long, value_name = "COLUMN=A,B,…")]
    key: Option<Keys>,
    /// Bounds of a column for one value of --key, as kinds of measurement have; may be repeated
    #[arg(long, value_name = "VALUE=NAME:LOW:HIGH", requires = "key", allow_hyphen_values = true)]
    key_bounds: Vec<KeyBounds>,
    /// Column with the time of the event
    #[arg(long, value_name = "COLUMN", requires_all = ["start", "epoch", "horizon"])]
    time: Option<String>,
    /// Column with the time when the row arrived, which closes epochs [default: all epochs close at
    /// the end of the input]
    #[arg(long, value_name = "COLUMN", requires = "time")]
    arrival: Option<String>,
    /// How times are written: seconds, milliseconds, microseconds or nanoseconds since 1970, or a
    /// pattern such as '%d/%m/%Y %H:%M' [default: as found in the file]
    #[arg(long, value_name = "FORMAT", requires = "time", value_parser = values::time_format)]
    time_format: Option<TimeFormat>,
    /// Length of an epoch, such as 6h, 1d, week or month; without --time, a number of rows
    /// [default: a tenth of the rows]
    #[arg(long, value_name = "LENGTH", value_parser = values::length_or_rows)]
    epoch: Option<String>,
    /// Time zone of days, weeks and months, and of times without an offset, such as
    /// America/New_York [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "time", value_parser = values::time_zone)]
    timezone: Option<String>,
    /// Beginning of the first epoch, such as 2013-01-01 or 2013-01-01T05:00:00Z
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    horizon: Option<u64>,
    /// Rows that lack a value: skip them, or count them by-column, for the columns that they have
    /// [default: skip]
    #[arg(long, value_name = "skip|by-column", value_parser = ["skip", "by-column"])]
    missing: Option<String>,
    /// What is protected: record, or the column that names a person or device whose records are
    /// protected together
    #[arg(long, value_name = "record|COLUMN")]
    unit: Option<String>,
    /// Maximum number of epochs in which one of them counts, with --unit COLUMN: its later records
    /// are left out, and more epochs need more noise [default: the horizon]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    participations: Option<u64>,
    /// Maximum number of records with which one of them counts in an epoch, with --unit COLUMN;
    /// noise is proportional to it [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    records_per_epoch: Option<u64>,
    /// More records of one of them in an epoch: keep the first ones, or average those of a key to
    /// one record [default: keep]
    #[arg(long = "several", value_name = "keep|average", value_parser = values::repeat_policy)]
    repeat_policy: Option<RepeatPolicy>,
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

impl InitArguments {
    fn columns(&self) -> Vec<ColumnBounds> {
        self.columns.iter().flat_map(|list| list.0.clone()).collect()
    }
}

/// Makes the pipeline file.
pub(crate) fn execute(arguments: &InitArguments) -> Result<(), CliError> {
    let output = output(arguments)?;
    let files = files(&arguments.files)?;
    let format = format(&files)?;
    let failed = |error: FormatError| CliError::failed(error.to_string());
    let times: Vec<&str> =
        [&arguments.time, &arguments.arrival].into_iter().flatten().map(String::as_str).collect();
    let profile = FileProfile::of(&files, format, &times, arguments.time_format.as_ref()).map_err(failed)?;
    if profile.columns.is_empty() {
        return Err(CliError::usage("no row with named columns is found in the file"));
    }
    if profile.rows == 0 {
        return Err(CliError::usage("the file has columns and no row, so init has nothing to describe"));
    }
    let mut proposal = Proposal::of(&profile, arguments);
    let own_bounds = |key: &Keys, columns: &[ColumnBounds]| {
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let ranges = ranges_by_key(&files, format, &key.column, &names).map_err(failed)?;
        let mut own = propose::bounds_by_key(columns, &ranges);
        own.retain(|own| key.values.contains(&own.key));
        Ok(own)
    };
    if let Some(key) = arguments.key.as_ref().or(proposal.keys.first()) {
        proposal.key_bounds = own_bounds(key, &proposal.columns)?;
    }
    if proposal.columns.is_empty() && arguments.columns.is_empty() {
        let commas = profile.columns.iter().find(|column| column.decimal_commas > 0);
        return Err(CliError::usage(match commas {
            Some(column) => format!("values of the column {:?} {}", column.name, draft::DECIMAL_COMMAS),
            None => "the file has no column of numbers to publish".into(),
        }));
    }
    let name = output.file_stem().map_or("stream".into(), |stem| stem.to_string_lossy().into_owned());
    let paths = paths(&files, &output)?;
    let text = |draft: &Draft| write::pipeline(&name, &paths, format, draft);
    let search = |draft: &Draft| {
        let draft = draft.entity.is_some().then(|| draft.clone().filled(&profile))?;
        Pipeline::parse(&text(&draft), &output).ok().and_then(LimitSearch::of)
    };
    let draft = match arguments.yes || !stdin().is_terminal() {
        true => given(arguments, &profile, &proposal, &output, &search)?,
        false => {
            let (profile, proposal) = (&profile, &proposal);
            Questions { profile, proposal, search: &search, key_bounds: &own_bounds }.draft(arguments)?
        }
    };
    if let ([], true, Some(key)) =
        (&draft.key_bounds[..], arguments.yes || !stdin().is_terminal(), &draft.key)
        && let own = own_bounds(key, &draft.columns)?
        && !own.is_empty()
    {
        let flags: Vec<_> = own.iter().map(|own| quoted(&propose::key_bounds_text(own))).collect();
        print_message(&format!(
            "note: the values of some keys lie in a small part of the bounds of their column, and bounds of their own would lower \
             their noise. PRIVATE: --key-bounds {}",
            flags.join(" --key-bounds ")
        ));
    }
    let text = text(&draft);
    let pipeline = Pipeline::parse(&text, &output)
        .map_err(|error| CliError::usage(format!("these answers make no valid pipeline:\n{error}")))?;
    let stops = show_expected(&pipeline, &output)?;
    if !arguments.yes && stdin().is_terminal() && !ask::confirm(&format!("Write {}?", output.display()))? {
        return Err(CliError::failed("nothing was written"));
    }
    let written = File::create_new(&output).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| CliError::failed(format!("{}: can't be written: {error}", output.display())))?;
    let output = output.display();
    let run = match stops {
        true => "A run would stop: correct the file first.".into(),
        false => format!("  hushflow run {output}      publish"),
    };
    print_message(&format!(
        "{output} is written. Next:\n  hushflow check {output}    what a run would make of the rows; spends nothing\n  \
         hushflow plan {output}     other strategies and budgets\n{run}"
    ));
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

/// Returns the files, and those in each directory in the order of their names.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let found = path.read_dir().and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        let mut found: Vec<PathBuf> =
            found.map_err(|error| CliError::failed(format!("{}: can't be read: {error}", path.display())))?;
        found.retain(|path| path.is_file() && Format::of_name(path).is_some());
        if found.is_empty() {
            return Err(CliError::usage(format!(
                "{}: expected files that end in .csv, .tsv, .ndjson, .jsonl or .parquet, packed or not, in this directory",
                path.display()
            )));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// Returns the format of the first file, which all of them must have.
fn format(files: &[PathBuf]) -> Result<Format, CliError> {
    let of = |path: &PathBuf| Format::of_file(path).map_err(|error| CliError::failed(error.to_string()));
    let first = of(&files[0])?;
    for path in &files[1..] {
        if of(path)? != first {
            let (path, first) = (path.display(), files[0].display());
            return Err(CliError::usage(format!(
                "{path} is written in another way than {first}: make a pipeline for files of one format and delimiter"
            )));
        }
    }
    Ok(first)
}

/// Returns the paths of the files as the pipeline file names them: relative to its directory if
/// that is this one, else absolute.
fn paths(files: &[PathBuf], output: &Path) -> Result<Vec<String>, CliError> {
    let is_in_current_folder = output.parent().is_none_or(|parent| parent.as_os_str().is_empty());
    let path = |path: &PathBuf| -> Result<String, std::io::Error> {
        let path = if is_in_current_folder { path.clone() } else { std::path::absolute(path)? };
        Ok(path.to_string_lossy().into_owned())
    };
    files.iter().map(path).collect::<Result<_, _>>().map_err(CliError::from)
}

/// Returns the draft that the flags give, without a question.
fn given(
    arguments: &InitArguments,
    profile: &FileProfile,
    proposal: &Proposal,
    output: &Path,
    search: &dyn Fn(&Draft) -> Option<LimitSearch>,
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
             the place of each bound, key and time:\n\n{}{}",
            match &missing[..] {
                [one] => format!("{one} is"),
                more => format!("{} are", more.join(", ")),
            },
            proposal.command(profile, arguments, output, search),
            proposal.remarks(arguments)
        )));
    };
    let draft = Draft {
        columns: arguments.columns(),
        key: arguments.key.clone(),
        key_bounds: arguments.key_bounds.clone(),
        missing: arguments.missing.clone(),
        time: arguments.time.clone(),
        arrival: arguments.arrival.clone(),
        time_format: profile.time_format(arguments.time.as_deref()),
        timezone: arguments.timezone.clone(),
        epoch: arguments.epoch.clone(),
        start: arguments.start.clone().unwrap_or_default(),
        horizon: arguments.horizon.unwrap_or(propose::COUNTED_EPOCHS),
        entity: arguments.unit.clone().filter(|unit| unit != "record"),
        repeat_policy: arguments.repeat_policy,
        records: arguments.records_per_epoch,
        participations: arguments.participations,
        epsilon: epsilon.value(),
        delta: delta.value(),
    };
    draft.check(profile)?;
    if let Some(warning) = large_delta(draft.delta, None) {
        print_message(&format!("warning: {warning}"));
    }
    if let (None, None, Some(time)) = (&draft.time, &draft.epoch, &proposal.time) {
        return Err(CliError::usage(format!(
            "the file has times: name their column with --time, or choose epochs of a number of rows with --epoch.\nThis command would \
             make epochs of {time:?}; its start and horizon are PRIVATE until you have put public knowledge in their place:\n\n{}",
            proposal.command(profile, arguments, output, search)
        )));
    }
    for note in draft.notes(profile, &proposal.entities) {
        print_message(&format!("note: {note}"));
    }
    Ok(draft.filled(profile))
}

/// Returns the share of counted records without a value, for each column without which they count.
/// The share with a value is rounded to two digits.
fn missing_shares(parameters: &PublicParameters, values: &[u64], counting: u64) -> Vec<MissingShare> {
    let share = |values: u64| {
        let present = values as f64 / counting.max(1) as f64;
        let decimals = (1.0 - present.log10().floor()).max(2.0) as usize;
        format!("{:.decimals$}", 1.0 - present).parse().unwrap_or(0.0)
    };
    let columns = parameters.columns.iter().zip(values).filter(|_| parameters.by_column());
    let shares =
        columns.map(|(column, &values)| MissingShare { column: column.name.clone(), share: share(values) });
    shares.filter(|missing| (0.01..1.0).contains(&missing.share)).collect()
}

/// Prints the errors of the means that `plan` forecasts for the records that would count. Returns
/// whether a run would stop.
fn show_expected(pipeline: &Pipeline, output: &Path) -> Result<bool, CliError> {
    let run = limits::read(pipeline, &DryRunLimits::default());
    let counted = run.tally.records.saturating_sub(run.left_out.unwrap_or(0));
    let parameters = pipeline.public_parameters();
    let cells = f64::from(parameters.keys()) * parameters.epochs.schedule.horizon() as f64;
    // Three digits, as a person would type.
    let counting = run.counting.unwrap_or(counted);
    let records: f64 = format!("{:.2e}", counting as f64 / cells).parse().unwrap_or(0.0);
    let left_out = match run.left_out {
        Some(left_out) if left_out > 0 => {
            format!("; {} are beyond the limits of their entities", thousands(left_out))
        }
        _ => String::new(),
    };
    let rows = thousands(run.counters.rows);
    let means = match counting < counted {
        true => format!(", as {} means", thousands(counting)),
        false => String::new(),
    };
    print_message(&format!(
        "\n{PRIVATE}\n{} of {rows} rows would count{means}{left_out}.",
        thousands(counted)
    ));
    if 2 * counted < run.counters.rows {
        print_message(&format!("Most would not: hushflow check {} shows why.", output.display()));
    }
    let counts_in_all = pipeline
        .entity
        .as_ref()
        .is_some_and(|entity| entity.limits.participations >= parameters.epochs.schedule.horizon());
    let limits = match counts_in_all || stops_at_limits(&run) {
        true => LimitSearch::of(pipeline.clone()),
        false => None,
    };
    if let Some(cost) = limits.as_ref().map(LimitSearch::cost_of_all_epochs).transpose()?.flatten() {
        print_message(&format!("note: {cost}."));
    }
    let reason = run.problems.iter().find(|problem| problem.stops);
    if let Some((last, problem)) = run.stops_after.zip(reason) {
        print_message(&format!("A run would stop after {} epochs: {}.", thousands(last), problem.message));
    }
    if let Some(limits) = limits.filter(|_| stops_at_limits(&run)) {
        print_message(&limits.remedy());
    }
    let state = pipeline.state_directory.clone().unwrap_or_default();
    let publication = Publication::of_pipeline(pipeline, &state, &mut |_| ())?;
    if let Some(warning) = prospects::warning(&publication, &pipeline.views, &run) {
        print_message(&format!("warning: {warning}"));
    }
    let missing = missing_shares(&parameters, &run.values, counting);
    let flag = |missing: &MissingShare| {
        format!(" --missing-share {}", quoted(&format!("{}={}", missing.column, missing.share)))
    };
    let flags: String = missing.iter().map(flag).collect();
    if records > 0.0
        && let Some(expected) = forecast_of_means(pipeline, records, missing)?
    {
        print_message(&format!(
            "If they spread evenly over keys and epochs, as hushflow plan {} --records-per-epoch {records}{flags} forecasts:\n{expected}",
            output.display()
        ));
    }
    Ok(reason.is_some())
}
