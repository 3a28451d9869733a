//! Pipeline files: a validated description of what is read, protected and published.
//!
//! A pipeline file is TOML. [`Pipeline::EXAMPLE`] shows every section that most people need; the types below say
//! what each field means and what holds when it is absent. Reading a file checks everything that can be checked
//! without the data and reports all problems at once, each with its place and with how to mend it.

mod document;
mod estimator;
mod read;
mod scales;
mod sinks;
mod source;

use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use hushflow_mechanism::accounting::adjacency::{Adjacency, Unit};
use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::estimate::intervals::{Confidence, Subject};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::StrategyName;
use hushflow_mechanism::view::SquareBias;
use hushflow_mechanism::workload::Workload;
use hushflow_operators::EntityLimits;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ledger::Budget;
use crate::state::Settings;
use crate::strategies::{Purpose, Wanted};
use crate::whole::{SETTINGS, read_text};

pub use document::Problem;
pub use estimator::Estimator;
pub use sinks::{ReleaseFile, ReleaseStream, Rotation, Sink};
pub use source::{
    Address, Broker, Credentials, Followed, Format, Input, Protocol, Socket, Source, SourceClock,
};

/// A validated pipeline file.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// `name`: what the releases are called.
    pub name: String,
    /// `[source]`, or several `[[sources]]` that are read together: where rows come from, at least one.
    pub sources: Vec<Source>,
    /// `[source] missing`, `malformed`: what happens to rows that can't be used.
    pub rows: RowPolicies,
    /// `[source] id`: the column by which copies of a record are known.
    pub id: Option<String>,
    /// `[[columns]]`: the coordinates of a record, at least one, with distinct names.
    pub columns: Vec<Column>,
    /// `[key]`: the public groups; without it all records belong to one.
    pub key: Option<Key>,
    /// `[entity]`: whose records are protected as a whole; without it single records are.
    pub entity: Option<EntityUnit>,
    /// `[epochs]`: the steps of the release.
    pub epochs: Epochs,
    /// `[privacy]`: the guarantee.
    pub privacy: Privacy,
    /// `[release]`: how noise is correlated over time.
    pub release: Release,
    /// `[release] method`, where it is an estimator that looks at all records of an epoch at once; `release` then says nothing.
    pub estimator: Option<Estimator>,
    /// Where the strategy is, if it is one of a file.
    pub strategy_file: Option<PathBuf>,
    /// `[[views]]`: what people read; one view of the running average if the file has none.
    pub views: Vec<View>,
    /// `[[sinks]]`: what follows the log.
    pub sinks: Vec<Sink>,
    /// `[state] directory`: where logs are kept.
    pub state_directory: Option<PathBuf>,
    /// `[state] keep`, `anchor`, `public`: how they are kept.
    pub state: Settings,
    /// `[ledger]`: who else releases from these data, and what all may spend together.
    pub ledger: LedgerSettings,
    /// `[simulation]`: noise from a seed, so that the output is **not private**; else it comes from the operating system.
    pub noise: NoiseSource,
}

/// What a pipeline says of the ledger of its data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerSettings {
    /// `directory`: that of the ledger, which all pipelines over the same data share; without it the state directory has one of
    /// its own.
    pub directory: Option<PathBuf>,
    /// `data_set`: the name of the data, in ledgers that others share.
    pub data_set: Option<String>,
    /// `budget`: what all of them may spend together; no run exceeds it.
    pub budget: Option<Budget>,
}

/// What happens to rows that can't be used. Either way the row keeps its place in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPolicies {
    /// Rows that lack a value.
    pub missing: RowPolicy,
    /// Rows with a value that can't be read: no number, not finite, no time, a wrong number of fields.
    pub malformed: RowPolicy,
}

/// What happens to a row that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowPolicy {
    /// The default: it is skipped, so what one record holds never stops the stream. Where counts are public, it counts as
    /// a record in the middle of the bounds, if its key and time can be read.
    Skip,
    /// The run stops with an error. Everybody sees that it stopped, so this is for files that are known to be clean.
    Reject,
}

/// One coordinate of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The column's name in the source.
    pub name: String,
    /// The public lower bound, in the column's own unit.
    pub lower: f64,
    /// The public upper bound, above the lower one.
    pub upper: f64,
}

/// The public groups of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The column that holds the key.
    pub column: String,
    /// All keys, at least one, each once: those that are not listed are counted and skipped.
    pub values: Vec<String>,
}

/// Entities that are protected as a whole: all records of one, however many come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityUnit {
    /// The column that says whose a record is.
    pub column: String,
    /// `kind`: what entities are called in ledgers, the name of the column unless the file says otherwise.
    pub kind: String,
    /// `within`: larger kinds of entities, each of which all records of one of these belong to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// `participations`, `min_separation`, `records_per_epoch`, `several`: how much of the stream an entity may be.
    pub limits: EntityLimits,
}

impl EntityUnit {
    /// In which epochs an entity takes part.
    pub fn participation(&self) -> Participation {
        let at_least_one = |number: u64| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
        match self.limits.participations {
            0 | 1 => Participation::Single,
            count => Participation::MinSeparation {
                count: at_least_one(count),
                gap: at_least_one(self.limits.min_separation),
            },
        }
    }
}

/// The steps of the release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// Which epoch a record belongs to and when epochs close.
    pub schedule: Schedule,
    /// `time`: the column of the event time; none when epochs are counted.
    pub time: Option<String>,
    /// `arrival`: the column that moves the clock, if one does.
    pub arrival: Option<String>,
}

/// The guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Privacy {
    /// ε of the whole history of releases, above 0.
    pub epsilon: f64,
    /// δ of the whole history of releases, between 0 and 1.
    pub delta: f64,
    /// Which streams are hard to tell apart; replace-one by default.
    pub neighbours: Neighbours,
    /// ζ: the largest norm of a record once its bounds are scaled to [−1, 1]. By default √d, which cuts nothing
    /// that lies inside the bounds.
    pub clip_norm: f64,
    /// λ: the share of the second moments; none for the largest that costs nothing.
    pub second_moment_weight: Option<f64>,
    /// Which second moments are released.
    pub second_moments: SecondMoment,
}

/// How moments are made private, and how noise is correlated over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The strategy C; by default one of constant memory, fitted to the workload.
    pub strategy: StrategyName,
    /// The workload A that the strategy is made for.
    pub workload: Workload,
    /// `memory_limit`: the most bytes of encoder state a coordinate may take where `strategy = "auto"`.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// `method`: how moments are made private; joint moment estimation by default, as in logs that don't say.
    #[serde(default, skip_serializing_if = "is_default")]
    pub method: Method,
}

fn is_default(method: &Method) -> bool {
    *method == Method::default()
}

/// What people read: a workload over the releases. Views cost no privacy and may change from run to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// The view's name.
    pub name: String,
    /// The workload.
    pub workload: Workload,
    /// What is made of it.
    pub estimate: Estimate,
    /// `squares`: whether squares of noisy sums keep their bias, where second moments are made of them.
    #[serde(default)]
    pub squares: SquareBias,
    /// `covariance`: how a noisy estimate becomes a covariance.
    pub covariance: Projection,
    /// What its intervals promise.
    pub intervals: Intervals,
    /// `keys = "total"`: it shows the sum over all keys, in the place of each.
    #[serde(default)]
    pub total: bool,
}

/// What the confidence intervals of a view promise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// `level`: the probability to hold the truth, between 0 and 1.
    pub level: f64,
    /// `joint`: whether all intervals of a line hold theirs together, or each by itself.
    pub joint: bool,
    /// `population`: whether the truth is that of the population from which records are drawn, or of the records.
    pub population: bool,
}

impl Default for Intervals {
    fn default() -> Self {
        let Confidence { level, joint, .. } = Confidence::default();
        Intervals { level, joint, population: false }
    }
}

impl Intervals {
    /// The same for a view of `workload` at an epoch.
    pub fn confidence(&self, workload: &Workload, epoch: u64) -> Confidence {
        let subject = match self.population {
            true => Subject::Population { heaviest: workload.largest_coefficient(epoch) },
            false => Subject::Records,
        };
        Confidence { level: self.level, joint: self.joint, subject }
    }

    /// How many standard deviations of its noise a count may be off, by itself.
    pub fn count_reach(&self) -> f64 {
        Confidence { level: self.level, ..Confidence::default() }.normal_quantile()
    }
}

/// What a view makes of the moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Estimate {
    /// Mean and covariance.
    Gaussian,
    /// The moments as they are.
    Moments,
}

impl PublicParameters {
    /// Number of keys; 1 where there are none.
    pub fn keys(&self) -> u32 {
        self.key.as_ref().map_or(1, |key| key.values.len() as u32)
    }

    /// The name of a key; `all` where there are none.
    pub fn key_name(&self, key: u32) -> &str {
        let values = self.key.as_ref().map(|key| key.values.as_slice()).unwrap_or_default();
        values.get(key as usize).map_or("all", String::as_str)
    }

    /// In which epochs what is protected takes part.
    pub fn participation(&self) -> Participation {
        self.entity.as_ref().map_or(Participation::Single, EntityUnit::participation)
    }

    /// The most records with which it takes part in an epoch.
    pub fn records_at_once(&self) -> u32 {
        self.entity.as_ref().map_or(1, |entity| entity.limits.records_per_epoch.max(1))
    }

    /// What is protected as a whole, and how it may differ.
    pub fn adjacency(&self) -> Adjacency {
        let unit = self.entity.as_ref().map_or(Unit::Record, |entity| Unit::Entity(entity.kind.clone()));
        Adjacency { unit, neighbours: self.privacy.neighbours }
    }

    /// Whether second moments of records are known, and with them covariances: squares of epoch sums are second moments of
    /// records only where an epoch is one record.
    pub fn have_covariances(&self) -> bool {
        let PublicParameters { epochs, privacy, release, .. } = self;
        have_covariances(release.method, privacy.second_moments, epochs)
    }
}

fn have_covariances(method: Method, second_moments: SecondMoment, epochs: &Epochs) -> bool {
    let single = matches!(&epochs.schedule, Schedule::ByCount(by) if by.records_per_epoch == 1);
    second_moments != SecondMoment::None && (method != Method::Pp || single)
}

impl Estimate {
    /// Densities where there are covariances of records.
    pub fn default_for(covariances: bool) -> Self {
        if covariances { Self::Gaussian } else { Self::Moments }
    }
}

/// What a reader of the releases has to know and what the guarantee depends on: the header of the public log.
///
/// It holds nothing of the machine (no paths) and nothing that may change between runs (no views).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicParameters {
    /// [`Pipeline::name`].
    pub name: String,
    /// [`Pipeline::rows`].
    pub rows: RowPolicies,
    /// The clocks of several [`Pipeline::sources`], in their order; absent where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceClock>,
    /// [`Pipeline::id`]; absent where copies are records like others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// [`Pipeline::columns`].
    pub columns: Vec<Column>,
    /// [`Pipeline::key`].
    pub key: Option<Key>,
    /// [`Pipeline::entity`]; absent where single records are protected, as in logs of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity: Option<EntityUnit>,
    /// [`Pipeline::epochs`].
    pub epochs: Epochs,
    /// [`Pipeline::privacy`].
    pub privacy: Privacy,
    /// [`Pipeline::release`].
    pub release: Release,
    /// [`Pipeline::estimator`]; absent where moments are released, as in logs of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimator: Option<Estimator>,
}

/// A pipeline file that can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The file can't be read.
    #[error("{}: the pipeline file can't be read: {source}", path.display())]
    Read {
        /// The pipeline file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file can be read but not used.
    #[error("{}", Lines { path, problems })]
    Invalid {
        /// The pipeline file.
        path: PathBuf,
        /// All problems in the order of the file, at least one.
        problems: Vec<Problem>,
    },
}

/// One line for each problem.
struct Lines<'a> {
    path: &'a Path,
    problems: &'a [Problem],
}

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{problem}", self.path.display())?;
        }
        Ok(())
    }
}

impl Pipeline {
    /// The directory of the public log of a run whose state directory is `state`.
    pub fn log_directory<'a>(&'a self, state: &'a Path) -> &'a Path {
        self.state.public.as_deref().unwrap_or(state)
    }

    /// A pipeline file to start from.
    pub const EXAMPLE: &str = include_str!("example.toml");

    /// Reads the pipeline file at `path`.
    ///
    /// # Errors
    /// As [`Pipeline::parse`], and [`PipelineError::Read`] where there is no such file or it is not UTF-8.
    pub fn load(path: &Path) -> Result<Pipeline, PipelineError> {
        match read_text(path, SETTINGS) {
            Ok(text) => Pipeline::parse(&text, path),
            Err(source) => Err(PipelineError::Read { path: path.into(), source }),
        }
    }

    /// Reads the text of the pipeline file at `path`. Relative paths in it start from the directory of `path`.
    ///
    /// # Errors
    /// [`PipelineError::Invalid`] lists all problems of the file.
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

    /// Whether several sources are read together.
    pub fn has_several_sources(&self) -> bool {
        self.sources.len() > 1
    }

    /// The strategy that `[release]` asks for.
    pub fn wanted_strategy(&self) -> Wanted {
        let name = match (&self.release.strategy, &self.strategy_file) {
            (StrategyName::File(_), Some(path)) => StrategyName::File(path.display().to_string()),
            (name, _) => name.clone(),
        };
        Wanted { name, memory_limit: self.release.memory_limit.unwrap_or(u64::MAX) }
    }

    /// What that strategy is for.
    pub fn strategy_purpose(&self) -> Purpose {
        let participation = self.public_parameters().participation();
        let horizon = self.epochs.schedule.horizon();
        Purpose { participation, ..Purpose::new(self.release.workload.clone(), horizon) }
    }

    /// What a reader of the releases has to know.
    pub fn public_parameters(&self) -> PublicParameters {
        let several = self.sources.iter().filter(|_| self.has_several_sources());
        PublicParameters {
            name: self.name.clone(),
            rows: self.rows,
            sources: several.filter_map(Source::public_clock).collect(),
            id: self.id.clone(),
            columns: self.columns.clone(),
            key: self.key.clone(),
            entity: self.entity.clone(),
            epochs: self.epochs.clone(),
            privacy: self.privacy,
            release: self.release.clone(),
            estimator: self.estimator.clone(),
        }
    }
}
