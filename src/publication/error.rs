//! Reasons why parameters allow no publication.

use hushflow_estimators::covariance::CovarianceError;
use hushflow_estimators::mean::MeanMethod;
use hushflow_mechanism::accounting::AccountingError;
use hushflow_mechanism::discovery::DiscoveryParameterError;
use hushflow_mechanism::mechanism::{MechanismError, Method};
use hushflow_mechanism::moments::{ClipError, HistogramError};
use hushflow_mechanism::sampling::SamplingError;
use hushflow_mechanism::strategy::buffered::FitError;
use hushflow_mechanism::strategy::{MatrixError, SearchError, StrategyError};
use hushflow_mechanism::windows::WindowSpan;
use hushflow_operators::MeasurementError;
use thiserror::Error;

use super::RELEASE_LIMIT;
use crate::pipeline::WindowEstimator;
use crate::strategies::StrategiesError;

/// Reasons why parameters allow no publication.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PublicationError {
    /// No noise gives the guarantee.
    #[error("privacy: {0}")]
    Accounting(#[from] AccountingError),
    /// The mechanism cannot be made.
    #[error("privacy: {0}")]
    Mechanism(#[from] MechanismError),
    /// The strategy cannot be made.
    #[error("release: {0}")]
    Strategy(#[from] StrategyError),
    /// Batches can't be drawn that way.
    #[error("training: {0}")]
    Sampling(#[from] SamplingError),
    /// An audit of random batches.
    #[error(
        "training.sampling: no audit covers batches that are drawn at random; audit a copy of the file with sampling = \"in-order\""
    )]
    AuditSampling,
    /// The strategy cannot be found.
    #[error("release: {0}")]
    Search(#[from] StrategiesError),
    /// The errors of the strategy cannot be computed.
    #[error("release: {0}")]
    Matrix(#[from] MatrixError),
    /// Keys can't be discovered with these parameters.
    #[error("key.discover: {0}")]
    Discovery(#[from] DiscoveryParameterError),
    /// The discovery of keys costs all of δ.
    #[error(
        "key.discover.delta: (1 + e^ε) times it is {cost:e}, and `delta` of [privacy] is {delta:e}, which must exceed that: choose \
         a smaller one, such as a hundredth of what [privacy] has"
    )]
    DiscoveryDelta {
        /// Its cost.
        cost: f64,
        /// δ.
        delta: f64,
    },
    /// An audit of discovered keys.
    #[error("key.discover: no audit covers the discovery of keys; audit a copy of the file with listed keys")]
    AuditDiscovery,
    /// An embedded publication of discovered keys.
    #[error(
        "key.discover: a publisher numbers its keys, so list them in values; `hushflow run` discovers keys"
    )]
    EmbeddedDiscovery,
    /// A histogram has no bins.
    #[error("histograms: {0}")]
    Histogram(#[from] HistogramError),
    /// The bounds are unusable.
    #[error("columns: {0}")]
    Clip(#[from] ClipError),
    /// A release exceeds a frame of the log.
    #[error(
        "columns: a release would be {each} moments for each of {keys} keys, and has at most {RELEASE_LIMIT} in all: list fewer keys, \
         or fewer columns, or release fewer second moments ([privacy] second_moments = \"diagonal\" or \"none\")"
    )]
    TooWide {
        /// Number of keys.
        keys: u64,
        /// Moments of one key.
        each: u64,
    },
    /// An epoch may have more records than the strategy has room for.
    #[error(
        "epochs: an epoch of {rows} rows may have more records of one key than the strategy has room for, {most}: make epochs shorter, \
         or choose a shorter horizon or another strategy"
    )]
    TooLong {
        /// Rows of an epoch.
        rows: u64,
        /// Maximum number of records.
        most: u64,
    },
    /// A method that needs complete records.
    #[error(
        "source.missing: the method {0} needs complete records, so no row can count by column: choose missing = \"skip\", or \
         method = \"jme\""
    )]
    ByColumn(Method),
    /// Moments without a strategy.
    #[error("the public log's header names no strategy: it is not a log of moments that hushflow wrote")]
    NoStrategy,
    /// The log's noise is too small for its stated guarantee.
    #[error(
        "the noise multiplier in the public log's header is too small for the (ε, δ) beside it: the log was tampered with"
    )]
    Promise,
    /// No window ends within the horizon.
    #[error(
        "release.window: no window of {span} ends within a horizon of {horizon}: choose a longer horizon, or a shorter window or stride"
    )]
    NoWindow {
        /// The windows.
        span: WindowSpan,
        /// Number of epochs.
        horizon: u64,
    },
    /// A method without a proof for several records of a unit in one window.
    #[error(
        "release.method: {0} protects one record of an entity in a window, and here a window may hold several: choose \
         records_per_epoch = 1 and windows in which an entity takes part once, or another method such as prime-ht"
    )]
    SeveralRecords(MeanMethod),
    /// The estimator refuses its parameters.
    #[error("release: {0}")]
    Covariance(#[from] CovarianceError),
    /// No moments are released.
    #[error(
        "this is about estimates of windows ({0}), which have no moments, strategy or view: `hushflow tail` and programs read them as they are"
    )]
    Windows(Box<WindowEstimator>),
    /// The noise does not match `private` in the header.
    #[error(
        "the header of the publication says private = {private}, but its noise is of the other kind: use the operating system's noise \
         for what is private, and a seed for simulations alone"
    )]
    Noise {
        /// `private` in the header.
        private: bool,
    },
    /// The parts of a measurement do not fit.
    #[error(transparent)]
    Measurement(#[from] MeasurementError),
    /// The header of a log cannot be parsed.
    #[error(
        "the public log's header can't be read ({0}): it was written by another version, or is not a release log"
    )]
    Header(#[from] serde_json::Error),
}

impl PublicationError {
    /// Returns the field of the pipeline file to change, or its section.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            PublicationError::Accounting(_) | PublicationError::Mechanism(MechanismError::Accounting(_)) => {
                Some("privacy.epsilon")
            }
            PublicationError::Mechanism(_) => Some("privacy"),
            PublicationError::Strategy(StrategyError::Horizon { .. })
            | PublicationError::Search(
                StrategiesError::Strategy(StrategyError::Horizon { .. })
                | StrategiesError::Search(
                    SearchError::Strategy(StrategyError::Horizon { .. })
                    | SearchError::Fit { source: FitError::Horizon { .. }, .. },
                ),
            ) => Some("epochs.horizon"),
            PublicationError::Strategy(_) | PublicationError::Search(_) | PublicationError::Matrix(_) => {
                Some("release.strategy")
            }
            PublicationError::Covariance(_) => Some("release.method"),
            PublicationError::Clip(_) | PublicationError::TooWide { .. } => Some("columns"),
            PublicationError::TooLong { .. } => Some("epochs"),
            PublicationError::ByColumn(_) => Some("source.missing"),
            PublicationError::Discovery(_) | PublicationError::DiscoveryDelta { .. } => Some("key.discover"),
            _ => None,
        }
    }
}
