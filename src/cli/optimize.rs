//! `hushflow optimize`: runs one optimiser, prints its trace and writes a strategy file.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use hushflow::mechanism::optimize::{
    self, OptimizeError, OptimizerSettings, Optimum, QuadraticForm, certificate, multi_epoch,
};
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::strategy::buffered::MAX_BUFFERS;
use hushflow::mechanism::strategy::{
    Dense, Fit, KINDS, MAX_DENSE_HORIZON, MAX_HORIZON, Objective, Purpose, StrategyChoice, StrategyError,
    StrategyName, StrategyParameters,
};
use hushflow::mechanism::workload::Workload;
use hushflow::strategies::matrix::read_matrix;
use hushflow::strategies::{
    Candidate, SavedStrategy, SearchProgress, SearchQuantity, StrategiesError, StrategyRequest, remember,
    search,
};
use serde::Serialize;

use super::output::SearchStatus;
use super::output::{number, print_json, print_wrapped, table};
use super::plan::{list, read_workload, scheduled};
use super::{CliError, number_in, word};

/// Another word for `optimal`.
const MULTI_EPOCH: &str = "multi-epoch";

fn help() -> String {
    format!(
        "\
{}

multi-epoch is another word for optimal: participations a fixed number of steps apart. coa and multi-epoch take any \
workload matrix, causal or not (all-range), up to {MAX_DENSE_HORIZON} steps; buffers up to 10⁸ steps.

objective is the total squared error at sensitivity 1. lower_bound is a proven bound on the objective of every strategy \
(for blt: of every Toeplitz strategy). The result is cached for plan and run. -o FILE writes it to a file for use with \
--strategy file:FILE.

Examples:
  hushflow optimize --method coa --workload prefix --horizon 512
  hushflow optimize --method multi-epoch --workload prefix --horizon 2000 --participation 20x100 -o best.json
  hushflow optimize --method blt --buffers 4 --workload exponential:0.99 --horizon 1000000 --objective max",
        list("Methods", |kind| !matches!(kind.fit(), Fit::None)),
    )
}

/// Arguments of `hushflow optimize`.
#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct OptimizeArguments {
    /// Strategy to optimise; see below
    #[arg(long, value_parser = method)]
    method: String,
    /// How epochs are weighted: prefix, average, exponential:β, window:k, window-mean:k,
    /// momentum:β, adam:β, matrix:FILE (CSV), or, for coa, all-range
    #[arg(long, short = 'w')]
    workload: String,
    /// Number of steps [default for a matrix: its number of columns]
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MAX_HORIZON))]
    horizon: Option<u64>,
    /// Learning rates that weight the steps of prefix, as in plan
    #[arg(long, value_name = "SHAPE:W")]
    schedule: Option<String>,
    /// How often a record or entity takes part: 1; KxB: K times, B steps apart
    #[arg(long, value_name = "KxB", default_value = "1", allow_hyphen_values = true)]
    participation: Participation,
    /// Number of buffers, where --method does not say it, as in blt:4
    #[arg(long, default_value_t = 4, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BUFFERS)))]
    buffers: u32,
    /// Error to minimise, for buffers
    #[arg(long, value_name = "rmse|max", default_value = "rmse", value_parser = word::<Objective>(&["rmse", "max"]))]
    objective: Objective,
    /// Target for the relative gap between objective and lower bound
    #[arg(long, value_name = "GAP", default_value_t = 1e-6, allow_hyphen_values = true)]
    #[arg(value_parser = number_in(gap))]
    gap: f64,
    /// Maximum number of iterations
    #[arg(long, value_name = "N", default_value_t = 500, allow_hyphen_values = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Write the strategy to this file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object, with all digits
    #[arg(long)]
    json: bool,
}

/// Checks that a method is a strategy with an optimiser, with or without its number.
fn method(text: &str) -> Result<String, String> {
    let fitted = |name: &StrategyName| !matches!(name.fit(), Fit::None);
    match text.parse() {
        _ if text == MULTI_EPOCH => Ok(text.into()),
        Ok(name) if fitted(&name) => Ok(text.into()),
        Ok(name) => Err(format!("{name} needs no optimiser: give it to plan or run")),
        Err(StrategyError::Number { strategy, .. }) if strategy == text => Ok(text.into()),
        Err(error @ StrategyError::Number { .. }) => Err(error.to_string()),
        Err(_) => {
            let names = KINDS.iter().filter(|kind| fitted(&kind.name())).map(|kind| kind.usage());
            Err(format!("expected one of {}, {MULTI_EPOCH}", names.collect::<Vec<_>>().join(", ")))
        }
    }
}

impl OptimizeArguments {
    /// Returns the name of the strategy to optimise.
    fn strategy(&self) -> Result<StrategyName, CliError> {
        let failed = |error: StrategyError| CliError::usage(error.to_string());
        match self.method.parse() {
            _ if self.method == MULTI_EPOCH => "optimal".parse().map_err(failed),
            Err(StrategyError::Number { strategy, .. }) => {
                format!("{strategy}:{}", self.buffers).parse().map_err(failed)
            }
            name => name.map_err(failed),
        }
    }
}

/// Result of the optimiser.
#[derive(Debug, Serialize)]
struct OptimizeReport {
    method: String,
    workload: String,
    horizon: u64,
    participation: Participation,
    objective: f64,
    /// `None` if no bound is known.
    lower_bound: Option<f64>,
    relative_gap: Option<f64>,
    /// Whether the target gap is reached.
    converged: bool,
    /// Whether the proof was verified by code that is independent of the optimiser.
    certified: bool,
    /// √(objective / rows of the workload).
    rmse: f64,
    max_error: Option<f64>,
    sensitivity: f64,
    iterations: usize,
    seconds: f64,
    /// Parameters of buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<StrategyParameters>,
    trace: Vec<TracePoint>,
}

/// One line of the trace.
#[derive(Clone, Copy, Debug, Serialize)]
struct TracePoint {
    iteration: usize,
    objective: f64,
    relative_gap: Option<f64>,
    seconds: f64,
}

fn gap(value: f64) -> Result<f64, &'static str> {
    if value > 0.0 && value < 1.0 { Ok(value) } else { Err("expected a number between 0 and 1") }
}

/// Runs one optimiser.
pub(crate) fn execute(arguments: &OptimizeArguments) -> Result<(), CliError> {
    let bar = SearchStatus::new();
    let name = arguments.strategy()?;
    let (report, saved) = match name.fit() {
        Fit::Program { repeated } => dense(arguments, &name, repeated, &bar)?,
        Fit::Parameters { .. } | Fit::None => fitted(arguments, &name, &bar)?,
    };
    bar.finish();
    if let Some(saved) = saved {
        if let Some(path) = &arguments.output {
            saved.save(path).map_err(|error| CliError::failed(error.to_string()))?;
        }
        // Whether a search with default settings would find nothing better.
        let gap = report.relative_gap.unwrap_or(f64::INFINITY);
        if !matches!(name.fit(), Fit::Program { .. }) || gap <= OptimizerSettings::default().relative_gap {
            remember(&saved);
        }
    }
    Ok(if arguments.json {
        print_json(&report)
    } else {
        print_wrapped(&describe(&report, arguments.output.as_deref()))
    }?)
}

struct WorkloadObjective {
    form: QuadraticForm,
    rows: f64,
    /// Only if it is causal.
    workload: Option<Workload>,
}

fn workload_objective(arguments: &OptimizeArguments) -> Result<WorkloadObjective, CliError> {
    let failed = |error: OptimizeError| CliError::usage(error.to_string());
    let steps = |default: Option<u64>| {
        let steps = arguments.horizon.or(default);
        let steps =
            steps.ok_or_else(|| CliError::usage("--horizon is missing: add for example --horizon 512"))?;
        if steps <= MAX_DENSE_HORIZON {
            return Ok(steps as usize);
        }
        Err(CliError::usage(format!(
            "--horizon is {steps}: dense strategies have at most {MAX_DENSE_HORIZON} steps"
        )))
    };
    let takes_no_schedule = arguments.workload == "all-range" || arguments.workload.starts_with("matrix:");
    if let (true, Some(schedule)) = (takes_no_schedule, &arguments.schedule) {
        return Err(CliError::usage(format!(
            "--schedule {schedule} weighs the steps of `prefix` and `momentum`; the workload is `{}`",
            arguments.workload
        )));
    }
    if arguments.workload == "all-range" {
        let steps = steps(None)?;
        let rows = steps as f64 * (steps as f64 + 1.0) / 2.0;
        let form = QuadraticForm::all_ranges(steps).map_err(failed)?;
        return Ok(WorkloadObjective { form, rows, workload: None });
    }
    if let Some(path) = arguments.workload.strip_prefix("matrix:") {
        let matrix = read_matrix(Path::new(path)).map_err(|error| CliError::usage(error.to_string()))?;
        let (rows, columns) = matrix.shape();
        if arguments.horizon.is_some_and(|horizon| horizon != columns as u64) {
            return Err(CliError::usage(format!(
                "--horizon differs from the {columns} columns of {path}: leave it out"
            )));
        }
        let form = QuadraticForm::from_matrix(&matrix).map_err(failed)?;
        return Ok(WorkloadObjective {
            form,
            rows: rows as f64,
            workload: Workload::from_matrix(path, matrix).ok(),
        });
    }
    let workload = read_workload(&arguments.workload).map_err(CliError::usage)?;
    let steps = steps(None)?;
    let workload = scheduled(workload, arguments.schedule.as_deref(), steps as u64)?;
    let form = QuadraticForm::from_workload(&workload, steps).map_err(failed)?;
    Ok(WorkloadObjective { form, rows: steps as f64, workload: Some(workload) })
}

fn dense(
    arguments: &OptimizeArguments,
    name: &StrategyName,
    repeated: bool,
    bar: &SearchStatus,
) -> Result<(OptimizeReport, Option<SavedStrategy>), CliError> {
    let WorkloadObjective { form, rows, workload } = workload_objective(arguments)?;
    if workload.is_none() && arguments.output.is_some() {
        return Err(CliError::usage(
            "--output: the workload is not causal (row t of a stream has zeros after entry t), so no strategy can be \
             written: leave --output out",
        ));
    }
    let settings =
        OptimizerSettings { relative_gap: arguments.gap, iterations: arguments.iterations as usize };
    let begin = Instant::now();
    let mut trace = Vec::new();
    let describe = &mut |at: &optimize::OptimizerProgress| {
        let optimize::OptimizerProgress { iteration, objective, lower_bound, .. } = *at;
        let (strategy, quantity) = (name.clone(), SearchQuantity::Loss);
        bar.update(&SearchProgress { strategy, quantity, iteration, objective, lower_bound });
        let relative_gap = Some(at.relative_gap()).filter(|gap| gap.is_finite());
        trace.push(TracePoint { iteration, objective, relative_gap, seconds: begin.elapsed().as_secs_f64() });
        ControlFlow::Continue(())
    };
    let schedule = arguments.participation.on(form.steps());
    if schedule.is_flexible() && repeated {
        let (count, gap) = (schedule.count(), schedule.gap());
        return Err(CliError::usage(format!(
            "multi-epoch needs participations exactly {gap} steps apart: optimise for --participation {count}x{gap}, then \
             see the error with plan --participation {} and the strategy file",
            arguments.participation,
        )));
    }
    if !repeated && !arguments.participation.is_single() {
        return Err(CliError::usage(
            "coa is for single participation: use --method multi-epoch, or leave --participation out",
        ));
    }
    let optimum = multi_epoch(&form, schedule.count(), schedule.gap(), &settings, describe);
    let optimum = optimum.map_err(|error| CliError::usage(error.to_string()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let report = report_of(arguments, &form, rows, &optimum, seconds, trace);
    let Some(workload) = workload else { return Ok((report, None)) };
    let steps = form.steps() as u64;
    let parameters =
        Dense::new(name.clone(), &optimum.strategy).map_err(|error| CliError::failed(error.to_string()))?;
    let fitted = Some(StrategyParameters::Dense(parameters.parameters().clone()));
    let request = StrategyRequest::new(name.to_string(), &workload, steps, arguments.participation);
    let chosen = StrategyChoice { name: name.clone(), fitted };
    let saved = SavedStrategy::new(request, chosen, optimum.objective, Some(optimum.lower_bound));
    Ok((report, Some(saved)))
}

fn report_of(
    arguments: &OptimizeArguments,
    form: &QuadraticForm,
    rows: f64,
    optimum: &Optimum,
    seconds: f64,
    trace: Vec<TracePoint>,
) -> OptimizeReport {
    let relative_gap = optimum.relative_gap();
    OptimizeReport {
        method: arguments.method.clone(),
        workload: arguments.workload.clone(),
        horizon: form.steps() as u64,
        participation: arguments.participation,
        objective: optimum.objective,
        lower_bound: Some(optimum.lower_bound),
        relative_gap: Some(relative_gap),
        converged: relative_gap <= arguments.gap,
        certified: certificate::verify(optimum, form).is_ok(),
        rmse: (optimum.objective / rows).sqrt(),
        max_error: None,
        sensitivity: 1.0,
        iterations: optimum.iterations,
        seconds,
        parameters: None,
        trace,
    }
}

fn fitted(
    arguments: &OptimizeArguments,
    name: &StrategyName,
    bar: &SearchStatus,
) -> Result<(OptimizeReport, Option<SavedStrategy>), CliError> {
    let workload = read_workload(&arguments.workload).map_err(CliError::usage)?;
    let horizon = arguments.horizon.or(workload.horizon());
    let horizon =
        horizon.ok_or_else(|| CliError::usage("--horizon is missing: add for example --horizon 512"))?;
    let workload = scheduled(workload, arguments.schedule.as_deref(), horizon)?;
    let purpose = Purpose {
        participation: arguments.participation,
        objective: arguments.objective,
        ..Purpose::new(workload, horizon)
    };
    let begin = Instant::now();
    let mut trace = Vec::new();
    let failed = |error: StrategiesError| CliError::usage(error.to_string());
    let (saved, bound) = search(name, &purpose, &mut |progress: &SearchProgress| {
        bar.update(progress);
        let SearchProgress { iteration, objective, .. } = *progress;
        trace.push(TracePoint {
            iteration,
            objective,
            relative_gap: None,
            seconds: begin.elapsed().as_secs_f64(),
        });
    })
    .map_err(failed)?;
    let seconds = begin.elapsed().as_secs_f64();
    let candidate = Candidate::of_chosen(saved.strategy.clone(), &purpose, None).map_err(failed)?;
    let error = candidate.error_under(&purpose).map_err(failed)?;
    let (objective, lower_bound) = match arguments.objective {
        Objective::Rmse => (error.loss, bound.map(|bound| bound * bound * horizon as f64)),
        Objective::MaxError => (error.max_error, bound),
    };
    let relative_gap = lower_bound.map(|bound| (objective / bound - 1.0).max(0.0));
    let report = OptimizeReport {
        method: arguments.method.clone(),
        workload: arguments.workload.clone(),
        horizon,
        participation: arguments.participation,
        objective,
        lower_bound,
        relative_gap,
        converged: true,
        certified: false,
        rmse: error.rmse,
        max_error: Some(error.max_error),
        sensitivity: error.sensitivity,
        iterations: trace.len(),
        seconds,
        parameters: saved
            .strategy
            .fitted
            .clone()
            .filter(|fitted| matches!(fitted, StrategyParameters::Buffered(_))),
        trace,
    };
    Ok((report, Some(saved)))
}

/// Formats the report as text.
fn describe(report: &OptimizeReport, output: Option<&Path>) -> String {
    let gap = |gap: Option<f64>| gap.map_or("-".into(), |gap| format!("{gap:.1e}"));
    let titles = ["iteration", "objective", "gap", "seconds"].map(String::from).to_vec();
    let line = |at: &TracePoint| {
        vec![
            at.iteration.to_string(),
            number(at.objective),
            gap(at.relative_gap),
            format!("{:.2}", at.seconds),
        ]
    };
    let trace: Vec<_> = [titles].into_iter().chain(report.trace.iter().map(line)).collect();
    let row = |name: &str, value: String| vec![name.to_string(), value];
    let mut rows = vec![row("objective", number(report.objective))];
    rows.extend(report.lower_bound.map(|bound| row("lower bound", number(bound))));
    rows.extend(report.relative_gap.map(|_| row("relative gap", gap(report.relative_gap))));
    rows.push(row("rmse", number(report.rmse)));
    rows.extend(report.max_error.map(|error| row("largest error", number(error))));
    rows.push(row("seconds", format!("{:.2}", report.seconds)));
    let certified = if report.certified { "The certificate was verified independently.\n" } else { "" };
    let warning = if report.converged { "" } else { "The target gap was not reached.\n" };
    let written = output.map_or(String::new(), |path| {
        format!("Written to {0}: use it with --strategy file:{0}\n", path.display())
    });
    [table(&trace), "\n".into(), table(&rows), certified.into(), warning.into(), written].concat()
}
