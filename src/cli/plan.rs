//! `hushflow plan`: forecasts the noise of a stream and compares strategies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hushflow::mechanism::accounting::{Delta, Epsilon, NoiseMultiplier};
use hushflow::mechanism::epochs::Schedule;
use hushflow::mechanism::mechanism::Method;
use hushflow::mechanism::mechanism::method::DEFAULT_FIRST_MOMENT_SHARE;
use hushflow::mechanism::moments::{Bins, Layout, SecondMoment};
use hushflow::mechanism::optimize::loss_bound;
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::mechanism::strategy::{
    Comparison, KINDS, Kind, MAX_HORIZON, Objective, Omission, OmissionReason, Purpose, StrategyName, compare,
};
use hushflow::mechanism::workload::Workload;
use hushflow::pipeline::{Pipeline, Privacy, PublicParameters};
use hushflow::plot::{PlotCurve, error_per_step};
use hushflow::publication::{DiscoverySetting, PublicationError, with_indicators};
use hushflow::strategies::matrix;
use hushflow::strategies::schedule::LearningRates;
use hushflow::strategies::{Candidate, StrategiesError};
use serde::Serialize;

use super::output::SearchStatus;
use super::output::{print_json, print_wrapped};
use super::signals::set_by_signals;
use super::train::{print_plan, refuse_comparison};
use super::{CliError, number_in, word};
use advice::COMPARED_HORIZON;
use columns::ColumnForecasts;
pub(super) use columns::{MissingShare, forecast_of_means, last_noise};
use discovery::{discovery, print};
use forecast::{Forecast, RequestedBudget, StreamPlan};
use windows::WindowPlan;
pub(super) use windows::refusal;

mod advice;
mod columns;
mod discovery;
mod forecast;
mod noise;
mod report;
mod windows;

/// Longest horizon for which the forecast of one strategy searches for a lower bound.
const BOUNDED_HORIZON: u64 = 1 << 10;

/// Maximum number of lines of a plot: more can't be distinguished.
const PLOTTED: usize = 9;

fn help() -> String {
    format!(
        "\
Use plan before a run to choose a strategy, an epoch length and a budget. It reads no data and spends no budget. All \
figures are exact: a run has the same. Without --strategy, all strategies are compared, the smallest error first, and \
those that are left out are named with the reason. --all also computes those that take long; the first SIGINT or \
SIGTERM stops it after the strategy in progress, and results are saved for the next plan. Without a budget, noise \
levels are for a noise multiplier of 1.

{}

Let A be the workload and C the strategy. The JSON fields sensitivity, frobenius, max_row, loss, rmse and max_error \
describe the factorization A = B C, for records of norm 1 that are added or removed, under --participation, and for a \
noise multiplier of 1. sensitivity_kind says whether streams attain the sensitivity, or which upper bound it is. \
loss_lower_bound is a proven lower bound of the loss of every strategy (for several participations: with records of enough \
coordinates), and loss_excess the share by which the loss is \
above it. joint_sensitivity and the noise levels describe the release: count, first and second moments together, for the given \
clip norm, neighbours and noise multiplier. Their unit is that of the clip norm; a pipeline file scales its columns to \
[−1, 1].

Examples:
  hushflow plan --workload prefix --horizon 365 --epsilon 1 --delta 1e-6
  hushflow plan examples/flights.toml --plot errors.svg
  hushflow plan --workload prefix --horizon 2000 --participation 20x100 --strategy fft-optimal-decoder --stamps 5
  hushflow plan --workload prefix --horizon 1000 --schedule cosine:100 --participation 10x100
  hushflow plan --workload window:7 --horizon 365 --strategy square-root --json",
        [workloads(), list("Strategies", |_| true)].join("\n\n"),
    )
}

/// Lists the workloads with their divisors.
pub(super) fn workloads() -> String {
    let line = |(usage, about): &(&str, &str)| format!("\n  {usage:15} {about}");
    let lines: String = Workload::FORMS.iter().map(line).collect();
    format!("Workloads, at epoch t of values x:{lines}")
}

/// Lists the strategies of the table that have a property, each with a line of help.
pub(super) fn list(title: &str, listed: impl Fn(&Kind) -> bool) -> String {
    let line = |usage: &str, help: &str| format!("\n  {usage:33} {help}");
    let kinds = || KINDS.iter().filter(|kind| listed(kind));
    let mut text = format!("{title}:");
    text.extend(kinds().map(|kind| line(&kind.usage(), kind.help())));
    if kinds().any(|kind| kind.can_be_normalized()) {
        text += &line("normalized-…", "a root above, with columns of norm 1");
        text += &line("file:PATH", "saved by hushflow optimize, or a CSV matrix");
    }
    text
}

/// Arguments of `hushflow plan`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct PlanArguments {
    /// Pipeline file with these settings; flags override it
    pipeline: Option<PathBuf>,
    /// How epochs are weighted: prefix, average, exponential:β, window:k, window-mean:k,
    /// momentum:β, adam:β, or matrix:FILE (CSV)
    #[arg(long, short = 'w')]
    #[arg(value_parser = read_workload)]
    workload: Option<Workload>,
    /// Number of epochs
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_HORIZON))]
    horizon: Option<u64>,
    /// Learning rates that weight the steps of prefix: constant:W, linear:W or cosine:W, with W
    /// steps of warm-up, or file:PATH (CSV)
    #[arg(long, value_name = "SHAPE:W")]
    schedule: Option<String>,
    /// How noise is correlated over time; see below. A strategy of second moments in FILE stays
    /// [default: compare all that apply]
    #[arg(long, short)]
    strategy: Option<StrategyName>,
    /// Number of columns of a record [default: 2]
    #[arg(long, short, value_name = "D", allow_hyphen_values = true, conflicts_with = "pipeline")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    dimension: Option<u16>,
    /// ζ: largest norm of a record [default: 1]
    #[arg(long, value_name = "ζ", allow_hyphen_values = true, value_parser = number_in(positive))]
    clip_norm: Option<f64>,
    /// How moments are made private; ime takes its share from the file, or one half [default: jme]
    #[arg(long, value_parser = PossibleValuesParser::new(METHODS).map(|name| method(&name)))]
    method: Option<Method>,
    /// Which second moments to release [default: full]
    #[arg(long, value_parser = word::<SecondMoment>(&["full", "diagonal", "none"]))]
    moments: Option<SecondMoment>,
    /// Which streams are neighbours, that is, hard to tell apart [default: replace-one]
    #[arg(long, value_parser = word::<Neighbours>(&["replace-one", "replace-one-in-place", "zero-out"]))]
    neighbours: Option<Neighbours>,
    /// ε of all releases together
    #[arg(long, value_name = "ε", allow_hyphen_values = true, value_parser = number_in(Epsilon::new))]
    epsilon: Option<Epsilon>,
    /// δ of all releases together
    #[arg(long, value_name = "δ", allow_hyphen_values = true, value_parser = number_in(Delta::new))]
    delta: Option<Delta>,
    /// σ, instead of ε and δ
    #[arg(long, value_name = "σ", allow_hyphen_values = true, value_parser = number_in(NoiseMultiplier::new))]
    #[arg(conflicts_with_all = ["epsilon", "delta"])]
    noise_multiplier: Option<NoiseMultiplier>,
    /// λ: weight of the second moments [default: ½ζ⁻²; for replace-one-in-place, the largest that
    /// is free]
    #[arg(long, value_name = "λ", allow_hyphen_values = true, value_parser = number_in(positive))]
    second_moment_weight: Option<f64>,
    /// How often a record or entity takes part: 1; KxB: K times, B epochs apart; KxB+: B or more
    /// apart; every-step [default: as in the file, or 1]
    #[arg(long, value_name = "KxB", allow_hyphen_values = true)]
    participation: Option<Participation>,
    /// Split the horizon into S blocks, each with a fresh copy of the strategy
    #[arg(long, value_name = "S", default_value_t = 1, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    stamps: u64,
    /// Compare also strategies that take long to find
    #[arg(long, conflicts_with = "strategy")]
    all: bool,
    /// Error to minimise in fits, and to sort the table by
    #[arg(long, value_name = "rmse|max", default_value = "rmse", value_parser = word::<Objective>(&["rmse", "max"]))]
    objective: Objective,
    /// Expected records of one key in an epoch; adds the noise of the mean
    #[arg(long, value_name = "R", allow_hyphen_values = true, value_parser = number_in(positive))]
    records_per_epoch: Option<f64>,
    /// Share of the records that lack a value of this column, with missing = "by-column"; may be
    /// repeated [default: none lacks one]
    #[arg(long, value_name = "COLUMN=SHARE", requires = "pipeline", requires = "records_per_epoch")]
    missing_share: Vec<MissingShare>,
    /// Write an SVG plot of the error of each epoch, one line per strategy
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object, with all digits
    #[arg(long)]
    json: bool,
}

const METHODS: [&str; 5] = ["jme", "ime", "cs", "pp", "joint-clip"];

fn method(name: &str) -> Method {
    match name {
        "ime" => Method::Ime { first_moment_share: DEFAULT_FIRST_MOMENT_SHARE },
        "cs" => Method::Cs,
        "pp" => Method::Pp,
        "joint-clip" => Method::JointClip,
        _ => Method::Jme,
    }
}

/// Reads a workload by name, or from a matrix file.
pub(super) fn read_workload(text: &str) -> Result<Workload, String> {
    matrix::read_workload(text, Path::new("")).map_err(|error| error.to_string())
}

/// Weights the steps of a workload by a schedule, if there is one.
pub(super) fn scheduled(
    workload: Workload,
    schedule: Option<&str>,
    horizon: u64,
) -> Result<Workload, CliError> {
    let Some(schedule) = schedule else { return Ok(workload) };
    let weighted = LearningRates::weigh(schedule, Path::new(""), &workload, horizon);
    weighted.map_err(|error| CliError::usage(format!("--schedule: {error}")))
}

fn positive(value: f64) -> Result<f64, &'static str> {
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("expected a finite number above 0") }
}

impl PlanArguments {
    /// Returns the settings of the pipeline file, if there is one, overridden by the flags.
    fn plan(&self, file: Option<&PublicParameters>) -> Result<StreamPlan, CliError> {
        let privacy = file.map(|file| file.privacy);
        let workload = self.workload.clone().or_else(|| Some(file?.release.workload.clone()));
        let workload = workload.ok_or_else(|| missing("--workload", "--workload prefix"))?;
        let horizon = self.horizon.or_else(|| Some(file?.epochs.schedule.horizon())).or(workload.horizon());
        let horizon = horizon.ok_or_else(|| missing("--horizon", "--horizon 365, the number of epochs"))?;
        let workload = scheduled(workload, self.schedule.as_deref(), horizon)?;
        let second = self.moments.or_else(|| Some(privacy?.second_moments));
        let neighbours = self.neighbours.or_else(|| Some(privacy?.neighbours));
        let dimension = file.map_or(self.dimension.unwrap_or(2).into(), |file| file.columns.len());
        let layout = Layout {
            sent: file.and_then(|file| file.entity.as_ref()?.limits.sent_limit),
            bins: file.map_or(Bins::NONE, PublicParameters::bins),
            ..Layout::new(dimension, second.unwrap_or(SecondMoment::Full))
        };
        let clip_norm = self.clip_norm.or_else(|| Some(privacy?.clip_norm)).unwrap_or(1.0);
        let by_column = file.is_some_and(PublicParameters::by_column);
        let (layout, clip_norm) =
            if by_column { with_indicators(layout, clip_norm) } else { (layout, clip_norm) };
        Ok(StreamPlan {
            by_column,
            purpose: Purpose {
                workload,
                horizon,
                participation: self
                    .participation
                    .or_else(|| Some(file?.participation()))
                    .unwrap_or(Participation::Single),
                stamps: self.stamps,
                objective: self.objective,
            },
            method: self.method(file),
            layout,
            neighbours: neighbours.unwrap_or(Neighbours::ReplaceOne),
            clip_norm,
            second_moment_weight: self.second_moment_weight.or_else(|| privacy?.second_moment_weight),
            bin_weight: privacy.and_then(|privacy| privacy.histogram_weight),
            keys: file.map_or(1, |file| file.keys().into()),
            discovery: file.and_then(DiscoverySetting::of),
            records_at_once: file.map_or(1, PublicParameters::records_at_once),
            budget: self.budget(privacy)?,
            records_per_epoch: self.records_per_epoch.or_else(|| records_per_epoch(file?)),
            advice_horizon: if self.strategy.is_some() { MAX_HORIZON } else { COMPARED_HORIZON },
        })
    }

    /// Returns the method of the flag, with its share from the file.
    fn method(&self, file: Option<&PublicParameters>) -> Method {
        let of_file = file.map(|file| file.release.method);
        match (self.method, of_file) {
            (Some(Method::Ime { .. }), Some(of_file @ Method::Ime { .. })) => of_file,
            (Some(method), _) => method,
            (None, of_file) => of_file.unwrap_or_default(),
        }
    }

    fn budget(&self, privacy: Option<Privacy>) -> Result<RequestedBudget, CliError> {
        if let Some(noise_multiplier) = self.noise_multiplier {
            return Ok(RequestedBudget::NoiseMultiplier(noise_multiplier));
        }
        let of_file = privacy.map(|privacy| Ok((Epsilon::new(privacy.epsilon)?, Delta::new(privacy.delta)?)));
        let (epsilon, delta) = of_file.transpose().map_err(PublicationError::Accounting)?.unzip();
        match (self.epsilon.or(epsilon), self.delta.or(delta)) {
            (Some(epsilon), Some(delta)) => Ok(RequestedBudget::Guarantee(epsilon, delta)),
            (None, None) => Ok(RequestedBudget::None),
            (Some(_), None) => Err(missing("--delta", "--delta 1e-6")),
            (None, Some(_)) => Err(missing("--epsilon", "--epsilon 1")),
        }
    }
}

fn missing(flag: &str, example: &str) -> CliError {
    CliError::usage(format!("{flag} is missing: add for example {example}"))
}

/// Returns the records of an epoch, if epochs have a fixed number of records and there is one key.
fn records_per_epoch(file: &PublicParameters) -> Option<f64> {
    match &file.epochs.schedule {
        Schedule::ByCount(schedule) if file.keys() == 1 => Some(schedule.records_per_epoch as f64),
        _ => None,
    }
}

/// Prints the forecast of one strategy, or compares all.
pub(crate) fn execute(arguments: &PlanArguments) -> Result<(), CliError> {
    let file = arguments.pipeline.as_deref().map(Pipeline::load).transpose()?;
    let compares = arguments.all || arguments.plot.is_some() || arguments.strategy.is_some();
    if let (Some(path), Some(file), false) = (&arguments.pipeline, &file, compares)
        && let Some(training) = &file.training
    {
        return print_plan(file, training, path, arguments.json);
    }
    file.as_ref().filter(|_| compares).map_or(Ok(()), refuse_comparison)?;
    let windows = file.as_ref().map(|file| WindowPlan::of(file, arguments.records_per_epoch)).transpose()?;
    if let (Some(plan), Some(file)) = (windows.flatten(), &file) {
        let columns: Vec<String> = file.columns.iter().map(|column| column.name.clone()).collect();
        return Ok(if arguments.json { print_json(&plan) } else { print_wrapped(&plan.text(&columns)) }?);
    }
    let parameters = file.as_ref().map(Pipeline::public_parameters);
    if let Some(parameters) = &parameters {
        columns::check_shares(&arguments.missing_share, parameters)?;
    }
    let plan = arguments.plan(parameters.as_ref())?;
    let bar = SearchStatus::new();
    if let Some(name) = &arguments.strategy {
        let mut forecast = match file.as_ref().filter(|file| file.release.second.is_some()) {
            Some(file) => forecast_of_file(&plan, file, Some(name), &bar)?,
            None => forecast(&plan, name, &bar)?,
        };
        bar.name("lower bound");
        if plan.purpose.horizon <= BOUNDED_HORIZON {
            let bound = lower_bound(&plan, std::slice::from_ref(&forecast));
            forecast.factorization.bound(bound.ok());
        }
        bar.finish();
        draw(arguments, std::slice::from_ref(&forecast))?;
        let columns =
            file.as_ref().and_then(|file| ColumnForecasts::new(&forecast, file, &arguments.missing_share));
        let discovery = discovery(&plan, Some(&forecast))?;
        let plan = SingleForecast { forecast, of_file: columns };
        let text = |plan: &SingleForecast| report::details(&plan.forecast, plan.of_file.as_ref());
        return Ok(print(plan, discovery, (!arguments.json).then_some(text))?);
    }
    let stop = Arc::default();
    if arguments.all {
        set_by_signals(&stop)?;
    }
    let table = compared(&plan, file.as_ref(), arguments, &stop, &bar)?;
    bar.finish();
    report::refusal(&table, &plan.purpose).map_or(Ok(()), |reason| Err(CliError::usage(reason)))?;
    draw(arguments, &table.strategies)?;
    let discovery = discovery(&plan, table.strategies.first())?;
    Ok(print(table, discovery, (!arguments.json).then_some(report::comparison))?)
}

/// One strategy.
#[derive(Debug, Serialize)]
struct SingleForecast {
    #[serde(flatten)]
    forecast: Forecast,
    /// Its forecast in the units of the columns of the pipeline file.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_file: Option<ColumnForecasts>,
}

/// The strategies of a comparison, the best first.
#[derive(Debug, Serialize)]
pub(super) struct ComparisonTable {
    strategies: Vec<Forecast>,
    omissions: Vec<Omission>,
    /// Reason why there is no lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_lower_bound: Option<String>,
    /// The strategies of the pipeline file.
    #[serde(skip)]
    in_file: Option<String>,
    /// Its forecast in the units of the columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_file: Option<ColumnForecasts>,
    /// The forecasts of all strategies, if there is a pipeline file and the records of an epoch are
    /// known.
    #[serde(skip)]
    in_units: Option<Vec<ColumnForecasts>>,
}

fn compared(
    plan: &StreamPlan,
    file: Option<&Pipeline>,
    arguments: &PlanArguments,
    stop: &AtomicBool,
    bar: &SearchStatus,
) -> Result<ComparisonTable, PublicationError> {
    let Comparison { strategies: names, mut omissions } = compare(&plan.purpose, arguments.all);
    let mut strategies: Vec<Forecast> = Vec::new();
    let mut add = |name: &StrategyName, forecast: Result<Forecast, PublicationError>| {
        match forecast {
            Ok(forecast) if strategies.iter().any(|other| other.name() == forecast.name()) => (),
            Ok(forecast) => strategies.push(forecast),
            Err(error) => omissions.push(Omission { strategy: name.to_string(), reason: reason(error)? }),
        }
        Ok::<_, PublicationError>(())
    };
    for name in &names {
        add(
            name,
            match stop.load(Ordering::Relaxed) {
                true => Err(PublicationError::Search(StrategiesError::Stopped)),
                false => forecast(plan, name, bar),
            },
        )?;
    }
    // The strategy of the file is part of the comparison.
    let (mut in_file, mut of_file) = (None, None);
    if let Some(file) = file {
        let forecast = forecast_of_file(plan, file, None, bar);
        if let Ok(forecast) = &forecast {
            in_file = Some(forecast.name());
            of_file = ColumnForecasts::new(forecast, file, &arguments.missing_share);
        }
        add(&file.release.strategy, forecast)?;
    }
    bar.name("lower bound");
    let bound = lower_bound(plan, &strategies);
    strategies.iter_mut().for_each(|forecast| forecast.factorization.bound(bound.as_ref().ok().copied()));
    let objective = plan.purpose.objective;
    strategies.sort_by(|a, b| a.error(objective).total_cmp(&b.error(objective)));
    let in_units = |forecast| ColumnForecasts::new(forecast, file?, &arguments.missing_share);
    let in_units = strategies.iter().map(in_units).collect();
    Ok(ComparisonTable { strategies, omissions, no_lower_bound: bound.err(), in_file, of_file, in_units })
}

/// Returns why a strategy is left out of a comparison, or an error that ends it.
fn reason(error: PublicationError) -> Result<OmissionReason, PublicationError> {
    let reason = match &error {
        PublicationError::Search(error) => error.omission(),
        PublicationError::Matrix(error) => Some(OmissionReason::Failed { detail: error.to_string() }),
        _ => None,
    };
    reason.ok_or(error)
}

/// Returns the best bound of the loss that a search found, or one without a search.
fn lower_bound(plan: &StreamPlan, forecasts: &[Forecast]) -> Result<f64, String> {
    let found = forecasts.iter().filter_map(|forecast| forecast.factorization.loss_lower_bound);
    let Purpose { workload, horizon, participation, .. } = &plan.purpose;
    match found.reduce(f64::max) {
        Some(found) => Ok(found),
        None => loss_bound(workload, *horizon, *participation).map_err(|error| error.to_string()),
    }
}

fn forecast(
    plan: &StreamPlan,
    name: &StrategyName,
    bar: &SearchStatus,
) -> Result<Forecast, PublicationError> {
    bar.name(name);
    let candidate = Candidate::new(name, &plan.purpose, &mut |progress| bar.update(progress))?;
    plan.forecast(&candidate, None)
}

/// Returns the forecast of the strategies of the file, or of this one in place of its first.
fn forecast_of_file(
    plan: &StreamPlan,
    file: &Pipeline,
    named: Option<&StrategyName>,
    bar: &SearchStatus,
) -> Result<Forecast, PublicationError> {
    bar.name(named.unwrap_or(&file.release.strategy));
    let mut progress = |progress: &_| bar.update(progress);
    let first = match named {
        Some(name) => Candidate::new(name, &plan.purpose, &mut progress)?,
        None => Candidate::of_requested(&file.requested_strategy().0, &plan.purpose, &mut progress)?,
    };
    let second = file.requested_second_strategy().map(|(strategy, of_file)| {
        let purpose = Purpose { workload: of_file.workload, ..plan.purpose.clone() };
        Candidate::of_requested(&strategy, &purpose, &mut progress)
    });
    plan.forecast(&first, second.transpose()?.as_ref())
}

/// Plots the errors of the best strategies.
fn draw(arguments: &PlanArguments, forecasts: &[Forecast]) -> Result<(), CliError> {
    let Some(path) = &arguments.plot else { return Ok(()) };
    let line = |forecast: &Forecast| PlotCurve {
        name: forecast.strategy.to_string(),
        points: forecast.curve.clone(),
    };
    let lines: Vec<_> = forecasts.iter().take(PLOTTED).map(line).collect();
    let title = forecasts
        .first()
        .map(|best| format!("{} over {} epochs", best.problem.workload, best.problem.horizon));
    error_per_step(path, &title.unwrap_or_default(), &lines)
        .map_err(|error| CliError::usage(error.to_string()))
}
