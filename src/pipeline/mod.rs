//! Pipeline files: validated descriptions of the source, the protection and the releases.
//!
//! A pipeline file is TOML. [`Pipeline::EXAMPLE`] shows the common sections; the types below
//! document each field and its default. Parsing checks everything that does not need the data and
//! reports all problems at once, each with its position and a fix.

mod builder;
mod column;
mod discovery;
mod entity;
mod estimator;
mod fields;
mod key_bounds;
mod read;
pub mod reference;
mod source;
pub mod training;

use std::fmt;
use std::path::{Path, PathBuf};

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::{Bins, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{Purpose, StrategyName};
use hushflow_mechanism::windows::WindowSpan;
use hushflow_mechanism::workload::Workload;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::estimates::{EstimateView, LogFacts};
use crate::histogram::Histogram;
use crate::ledger::Budget;
use crate::state::StateSettings;
use crate::strategies::RequestedStrategy;
use crate::whole::{SETTINGS, read_text};

pub use crate::connect::{Input, Sink};
pub use crate::document::PipelineProblem;
pub use crate::format::Format;
pub use builder::PipelineBuilder;
pub use column::{Column, KeyColumn, bounds_by_key};
pub use discovery::KeyDiscovery;
pub(crate) use discovery::{KeyTexts, MOST_KEYS};
pub use entity::EntityUnit;
pub use estimator::WindowEstimator;
pub(crate) use key_bounds::KeyBounds;
pub use source::{Source, SourceClock};
pub use training::Training;

/// A validated pipeline file.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// `name`: name of the releases.
    pub name: String,
    /// `[source]`, or several `[[sources]]` that are read together; at least one.
    pub sources: Vec<Source>,
    /// `[source] missing`, `malformed`: treatment of rows that can't be used.
    pub rows: RowPolicies,
    /// `[source] preflight`: how a run reacts if its rows don't count.
    pub preflight: Preflight,
    /// `[source] id`: column that identifies duplicates of a record.
    pub id: Option<String>,
    /// `[[columns]]`: the coordinates of a record, at least one, with distinct names.
    pub columns: Vec<Column>,
    /// `[[histograms]]`: counts of records by ranges or values.
    pub histograms: Vec<Histogram>,
    /// `[key]`: public groups; without it, all records form one group.
    pub key: Option<KeyColumn>,
    /// `[entity]`: entities that are protected as a whole; without it, single records are
    /// protected.
    pub entity: Option<EntityUnit>,
    /// `[epochs]`: the steps of the release.
    pub epochs: Epochs,
    /// `[training]`: the model that is trained; its steps are the epochs.
    pub training: Option<Training>,
    /// `[privacy]`: the guarantee.
    pub privacy: Privacy,
    /// `[release]`: how noise is correlated over time.
    pub release: Release,
    /// `[release] method`, if it names an estimator of windows; `release` is then unused.
    pub estimator: Option<WindowEstimator>,
    /// `[release] window`, `stride`: the epochs that an estimator reads together.
    pub window: WindowSpan,
    /// Paths of the strategy, and of that of second moments, if they are read from files.
    pub strategy_files: [Option<PathBuf>; 2],
    /// `[[views]]`: the views that readers see; by default one view of the workload of the release.
    pub views: Vec<EstimateView>,
    /// `[[sinks]]`: destinations of releases.
    pub sinks: Vec<Sink>,
    /// `[state] directory`: directory of the logs.
    pub state_directory: Option<PathBuf>,
    /// `[state] keep`, `anchor`, `public`: settings of the state directory.
    pub state: StateSettings,
    /// `[ledger]`: the shared ledger of the data and its budget.
    pub ledger: LedgerSettings,
    /// `[simulation]`: noise from a seed, which is **not private**; by default noise comes from the
    /// operating system.
    pub noise: NoiseSource,
}

/// Settings of the ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerSettings {
    /// `directory`: directory of the ledger that all pipelines over the same data share; by default
    /// the state directory has its own.
    pub directory: Option<PathBuf>,
    /// `data_set`: name of the data in shared ledgers.
    pub data_set: Option<String>,
    /// `budget`: the most that all pipelines may spend together; no run exceeds it.
    pub budget: Option<Budget>,
}

/// Treatment of unusable rows. With either policy the row keeps its position in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPolicies {
    /// Rows with a missing value in a column.
    pub missing: MissingPolicy,
    /// Rows that can't be parsed: not a number, not finite, not a time, or a wrong number of
    /// fields.
    pub malformed: RowPolicy,
}

/// Treatment of a row without a value in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingPolicy {
    /// As [`RowPolicy::Skip`]. The default: where all rows are complete it has less noise.
    Skip,
    /// As [`RowPolicy::Reject`].
    Reject,
    /// The row counts for the columns that it has. Each column's count is released, so each mean is
    /// over the rows that have the column, and each covariance over those that have both. With
    /// malformed = "skip", a value that can't be read is missing too. A row without any value is
    /// skipped, or counts without values where counts are public.
    ByColumn,
}

/// Treatment of an unusable row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowPolicy {
    /// Skip the row, so that the content of a record never stops the stream. Where counts are
    /// public, it counts as a record in the middle of the bounds if its key and time can be read.
    /// The default.
    Skip,
    /// Stop the run with an error. The stop is visible to everyone, so use it only for files that
    /// are known to be clean.
    Reject,
}

/// Behaviour of a run before it publishes epochs, if most rows don't count or nearly all epochs are
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preflight {
    /// Stop a first run for public facts alone, such as a clock far ahead of the start. Warn the
    /// operator of private ones, such as keys that the pipeline doesn't list. The default.
    #[default]
    Warn,
    /// Stop for private facts too, among the first rows and among later ones. Readers see that
    /// there are no releases, or that they end: a bit about the rows that is not charged.
    Stop,
    /// Don't check the rows.
    Off,
}

/// The steps of the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// Assignment of records to epochs, and when epochs close.
    pub schedule: Schedule,
    /// `time`: column of the event time; `None` if epochs have a fixed number of records.
    pub time: Option<String>,
    /// `arrival`: column that advances the clock, if any.
    pub arrival: Option<String>,
}

/// The guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Privacy {
    /// ε of all releases together, above 0.
    pub epsilon: f64,
    /// δ of all releases together, between 0 and 1.
    pub delta: f64,
    /// Which streams are neighbours; replace-one by default.
    pub neighbours: Neighbours,
    /// ζ: largest norm of a record after scaling the bounds to [−1, 1]. By default √d, which clips
    /// nothing inside the bounds.
    pub clip_norm: f64,
    /// λ: weight of the second moments; by default the largest that adds no noise to the means.
    pub second_moment_weight: Option<f64>,
    /// Which second moments are released.
    pub second_moments: SecondMoment,
    /// w: weight of all histograms together; ½ by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram_weight: Option<f64>,
}

/// How moments are made private, and how noise is correlated over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The strategy C; by default one with constant memory, fitted to the workload.
    pub strategy: StrategyName,
    /// The workload A for which the strategy is chosen.
    pub workload: Workload,
    /// `memory_limit`: largest encoder state in bytes per coordinate, for `strategy = "auto"`.
    pub memory_limit: Option<u64>,
    /// `method`: how moments are made private; joint moment estimation by default.
    pub method: Method,
    /// The strategy of second moments; absent if all moments have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<SecondRelease>,
}

/// A strategy of second moments alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondRelease {
    /// `second_strategy`: C₂.
    pub strategy: StrategyName,
    /// `second_workload`: the workload for which it is chosen.
    pub workload: Workload,
}

impl PublicParameters {
    /// Whether a row counts for the columns that it has.
    pub fn by_column(&self) -> bool {
        self.rows.missing == MissingPolicy::ByColumn
    }

    /// Whether keys have bounds of their own.
    pub fn has_key_bounds(&self) -> bool {
        self.columns.iter().any(|column| !column.bounds.is_empty())
    }

    /// Returns the names of the columns.
    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.name.as_str()).collect()
    }

    /// Returns the number of histograms and of all their bins.
    pub fn bins(&self) -> Bins {
        let levels: Vec<usize> = self.histograms.iter().flat_map(Histogram::levels).collect();
        // A release of more values is refused for its width.
        let number = u32::try_from(levels.iter().sum::<usize>()).unwrap_or(u32::MAX);
        Bins { histograms: levels.len() as u32, number }
    }

    /// Returns the facts about the log that estimators need.
    pub fn log_facts(&self) -> LogFacts<'_> {
        let PublicParameters { key, epochs, privacy, release, .. } = self;
        LogFacts {
            columns: Some(self.column_names()),
            second_moments: of_records(release.method, privacy.second_moments, Some(epochs)),
            method: release.method,
            keyed: key.is_some(),
            key_bounds: self.has_key_bounds(),
            by_column: self.rows.missing == MissingPolicy::ByColumn,
            histograms: &self.histograms,
            epochs: epochs.schedule.horizon(),
        }
    }
}

/// Returns the second moments of records that releases determine. Squares of epoch sums are those
/// of records only where an epoch is one record.
fn of_records(method: Method, second_moments: SecondMoment, epochs: Option<&Epochs>) -> SecondMoment {
    let single =
        |epochs: &Epochs| matches!(&epochs.schedule, Schedule::ByCount(by) if by.records_per_epoch == 1);
    match method == Method::Pp && epochs.is_some_and(|epochs| !single(epochs)) {
        true => SecondMoment::None,
        false => second_moments,
    }
}

/// Header of the public log: the parameters that readers need and that the guarantee depends on.
///
/// It holds no paths and nothing that may change between runs, such as views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicParameters {
    /// [`Pipeline::name`].
    pub name: String,
    /// [`Pipeline::rows`].
    pub rows: RowPolicies,
    /// Clocks of several [`Pipeline::sources`], in order; absent for a single source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceClock>,
    /// [`Pipeline::id`]; absent if duplicates are not detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// [`Pipeline::columns`].
    pub columns: Vec<Column>,
    /// [`Pipeline::histograms`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histograms: Vec<Histogram>,
    /// [`Pipeline::key`].
    pub key: Option<KeyColumn>,
    /// [`Pipeline::entity`]; absent if single records are protected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<EntityUnit>,
    /// [`Pipeline::epochs`].
    pub epochs: Epochs,
    /// [`Pipeline::training`], with the coordinates of gradients as columns; absent without a
    /// model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// [`Pipeline::privacy`].
    pub privacy: Privacy,
    /// [`Pipeline::release`].
    pub release: Release,
    /// [`Pipeline::estimator`]; absent if moments are released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<WindowEstimator>,
    /// [`Pipeline::window`]; absent if each epoch is a window, or if moments are released.
    #[serde(default, skip_serializing_if = "WindowSpan::is_each_epoch")]
    pub window: WindowSpan,
}

/// Errors of reading a pipeline file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The file can't be read.
    #[error("{}: the pipeline file can't be read: {source}", path.display())]
    Read {
        /// The pipeline file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is invalid.
    #[error("{}", ProblemLines { path, problems })]
    Invalid {
        /// The pipeline file.
        path: PathBuf,
        /// All problems in file order, at least one.
        problems: Vec<PipelineProblem>,
    },
}

/// Formats one problem per line.
struct ProblemLines<'a> {
    path: &'a Path,
    problems: &'a [PipelineProblem],
}

impl fmt::Display for ProblemLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{problem}", self.path.display())?;
        }
        Ok(())
    }
}

impl Pipeline {
    /// Returns the directory of the public log of a run with state directory `state`.
    pub fn log_directory<'a>(&'a self, state: &'a Path) -> &'a Path {
        self.state.public.as_deref().unwrap_or(state)
    }

    /// An example pipeline file.
    pub const EXAMPLE: &str = include_str!("example.toml");

    /// Reads the pipeline file at `path`.
    ///
    /// # Errors
    /// Returns the errors of [`Pipeline::parse`], or [`PipelineError::Read`] if the file can't be
    /// read or is not UTF-8.
    pub fn load(path: &Path) -> Result<Pipeline, PipelineError> {
        match read_text(path, SETTINGS) {
            Ok(text) => Pipeline::parse(&text, path),
            Err(source) => Err(PipelineError::Read { path: path.into(), source }),
        }
    }

    /// Parses the text of the pipeline file at `path`. Relative paths in it are relative to the
    /// directory of `path`.
    ///
    /// # Errors
    /// Returns [`PipelineError::Invalid`] with all problems of the file.
    ///
    /// ```
    /// # use hushflow::pipeline::Pipeline;
    /// let pipeline = Pipeline::parse(Pipeline::EXAMPLE, "examples/data/flights.toml".as_ref())?;
    /// assert_eq!(pipeline.columns[0].name, "dep_delay");
    /// assert_eq!(pipeline.privacy.clip_norm, 2f64.sqrt());
    ///
    /// let mistyped = Pipeline::EXAMPLE.replace("horizon", "horizont");
    /// let error = Pipeline::parse(&mistyped, "flights.toml".as_ref()).unwrap_err();
    /// assert!(error.to_string().contains("epochs.horizont: unknown field: did you mean horizon?"));
    /// # Ok::<(), hushflow::pipeline::PipelineError>(())
    /// ```
    pub fn parse(text: &str, path: &Path) -> Result<Pipeline, PipelineError> {
        read::pipeline(text, path).map_err(|problems| PipelineError::Invalid { path: path.into(), problems })
    }

    /// Returns the line and the column of a field such as `privacy.epsilon` of the pipeline file at
    /// `path`, or of the section that lacks it.
    pub fn position(path: &Path, field: &str) -> Option<(usize, usize)> {
        crate::document::position(&read_text(path, SETTINGS).ok()?, field)
    }

    /// Whether several sources are read together.
    pub fn has_several_sources(&self) -> bool {
        self.sources.len() > 1
    }

    /// Whether a source has partitions, each with its own clock.
    pub(crate) fn has_partitions(&self) -> bool {
        self.sources.iter().any(|source| source.input.source().partitioning().is_some())
    }

    /// Returns the strategy that `[release]` requests, and its purpose.
    pub fn requested_strategy(&self) -> (RequestedStrategy, Purpose) {
        let Release { strategy, workload, .. } = &self.release;
        self.requested(strategy, &self.strategy_files[0], workload)
    }

    /// Returns the strategy that `[release]` requests for second moments, and its purpose; `None`
    /// if all moments have one strategy.
    pub fn requested_second_strategy(&self) -> Option<(RequestedStrategy, Purpose)> {
        let SecondRelease { strategy, workload } = self.release.second.as_ref()?;
        Some(self.requested(strategy, &self.strategy_files[1], workload))
    }

    fn requested(
        &self,
        strategy: &StrategyName,
        file: &Option<PathBuf>,
        workload: &Workload,
    ) -> (RequestedStrategy, Purpose) {
        let name = match (strategy, file) {
            (StrategyName::File(_), Some(path)) => StrategyName::File(path.display().to_string()),
            (name, _) => name.clone(),
        };
        let participation = self.public_parameters().participation();
        let purpose = Purpose::new(workload.clone(), self.epochs.schedule.horizon());
        let memory_limit = self.release.memory_limit.unwrap_or(u64::MAX);
        (RequestedStrategy { name, memory_limit }, Purpose { participation, ..purpose })
    }

    /// Returns the header of the public log.
    pub fn public_parameters(&self) -> PublicParameters {
        let named = self.sources.iter().filter(|_| self.has_several_sources());
        let training = self.training.as_ref();
        PublicParameters {
            name: self.name.clone(),
            rows: self.rows,
            sources: named.filter_map(Source::public_clock).collect(),
            id: self.id.clone(),
            columns: training.map_or(self.columns.clone(), |it| it.coordinates(self.privacy.clip_norm)),
            histograms: self.histograms.clone(),
            key: self.key.clone(),
            entity: self.entity.clone(),
            epochs: self.epochs.clone(),
            training: training.cloned(),
            privacy: self.privacy,
            release: self.release.clone(),
            estimator: self.estimator.clone(),
            window: self.window,
        }
    }
}
