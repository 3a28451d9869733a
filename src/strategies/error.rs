//! Reasons why a strategy or a workload from the command line or a file can't be used.

use std::io;
use std::path::PathBuf;

use hushflow_mechanism::sensitivity::OutOfRange;
use hushflow_mechanism::strategy::MatrixError;
use hushflow_mechanism::strategy::{MAX_DENSE_HORIZON, SearchError, StrategyError};
use hushflow_mechanism::workload::WorkloadError;
use thiserror::Error;

/// Reasons why a strategy or a workload can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StrategiesError {
    /// The strategy cannot be built.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The optimiser finds no strategy.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The matrix in its file is not a strategy.
    #[error("{}: {source}", path.display())]
    OfFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: StrategyError,
    },
    /// Too many steps for a matrix.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A sensitivity cannot be computed.
    #[error(transparent)]
    Sensitivity(#[from] OutOfRange),
    /// A saved strategy is for another request.
    #[error("{}: the strategy was made for {found}, not for {expected}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The saved request.
        found: String,
        /// The expected request.
        expected: String,
    },
    /// A signal stopped the search.
    #[error("stopped by a signal")]
    Stopped,
    /// More copies than steps.
    #[error(
        "{stamps} copies of a strategy don't fit into {horizon} steps; expected at most one copy for every step"
    )]
    Stamps {
        /// Number of copies.
        stamps: u64,
        /// Number of steps.
        horizon: u64,
    },
    /// No strategy fits the memory limit.
    #[error(
        "no strategy for this workload keeps within {limit} bytes a coordinate; expected a memory_limit of 0 or more, \
         and 64 for good ones"
    )]
    MemoryLimit {
        /// Limit in bytes per coordinate.
        limit: u64,
    },
    /// A strategy file cannot be read or written.
    #[error("{}: the strategy file can't be {action}: {source}", path.display())]
    FileAccess {
        /// The file.
        path: PathBuf,
        /// Read or written.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a strategy file.
    #[error("{}: this is not a strategy file of this version ({reason}); write one with `hushflow optimize -o FILE`", path.display())]
    FileFormat {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A strategy file was changed after it was written.
    #[error("{}: the checksum is wrong: the file was damaged or edited; write it again with `hushflow optimize -o FILE`", path.display())]
    FileChecksum {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: the matrix can't be read: {source}", path.display())]
    UnreadableMatrix {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: csv::Error,
    },
    /// A field is not a finite number.
    #[error("{}:{line}: field {column} is `{found}`; expected a finite number such as 0.5", path.display())]
    MatrixEntry {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Field, from 1.
        column: usize,
        /// The field.
        found: String,
    },
    /// A line is longer or shorter than the first.
    #[error("{}:{line}: {found} numbers in a line; expected {expected} as in the first line", path.display())]
    RaggedMatrix {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Numbers in this line.
        found: usize,
        /// Numbers in the first.
        expected: usize,
    },
    /// The file is empty.
    #[error("{}: the file is empty; expected a line of comma-separated numbers for every row of the matrix", path.display())]
    EmptyMatrix {
        /// The file.
        path: PathBuf,
    },
    /// The text is not a workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The matrix in a file is not a workload.
    #[error("{}: {source}", path.display())]
    WorkloadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: WorkloadError,
    },
    /// The text has no known form.
    #[error(
        "unknown schedule `{found}`; expected `constant:W`, `linear:W` or `cosine:W`, with W steps of warm-up, or \
         `file:PATH`"
    )]
    UnknownSchedule {
        /// The rejected text.
        found: String,
    },
    /// The file has another number of rates.
    #[error("{}: {found} learning rates; expected {expected}, one for every step, in one row or column", path.display())]
    RateCount {
        /// The file.
        path: PathBuf,
        /// Number of rates.
        found: usize,
        /// Number of steps.
        expected: u64,
    },
    /// A rate is not positive.
    #[error("the learning rate of step {step} is {found}; expected a number above 0")]
    Rate {
        /// The step, from 1.
        step: usize,
        /// The rate.
        found: f64,
    },
    /// The workload is neither prefix sums nor momentum.
    #[error("a schedule weighs the steps of `prefix` and `momentum`; the workload is `{found}`")]
    ScheduleWorkload {
        /// The workload, as on the command line.
        found: String,
    },
    /// Too many steps.
    #[error("a schedule has at most {MAX_DENSE_HORIZON} steps; the horizon is {found}")]
    ScheduleHorizon {
        /// Number of steps.
        found: u64,
    },
}
