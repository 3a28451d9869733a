//! The meaning of a release log, derived from its public parameters.
//!
//! The runtime builds a [`Publication`] from a pipeline before it draws any noise. Followers and
//! `verify` build the same one from the header of the public log, so reading and writing agree.

mod discovery;
mod error;
mod moments;
pub mod report;
mod training;
mod window_audit;
mod window_budget;
mod windows;

use std::fmt;
use std::path::Path;

use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon};
use hushflow_mechanism::moments::Layout;
use hushflow_mechanism::strategy::StrategyChoice;
use serde::{Deserialize, Serialize};

pub use discovery::DiscoverySetting;
pub use error::PublicationError;
pub use moments::{Calibration, MomentPublication, with_indicators};
pub use window_audit::{WindowAudit, WindowFinding};
pub use windows::{WindowEstimate, WindowPublication};

use crate::ledger::Charge;
use crate::pipeline::{Pipeline, PublicParameters, Release};
use crate::state::{MAX_PAYLOAD, PublicHeader, PublicReader};
use crate::strategies::{SearchProgress, StrategiesError};

/// Maximum count of numbers in a release, over all keys. At sixteen bytes for each exact sum and
/// each released value they fill a frame of the log, so every release can be committed.
pub const RELEASE_LIMIT: u64 = MAX_PAYLOAD / 32;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    parameters: PublicParameters,
    noise_multiplier: f64,
    /// `None` for window estimates.
    strategy: Option<StrategyChoice>,
    /// `None` if all moments have one strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    second_strategy: Option<StrategyChoice>,
    #[serde(default, skip_serializing_if = "Grid::is_exact")]
    grid: Grid,
}

/// The integers that are released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grid {
    /// Encoded sums, exactly: the grid of logs that name no grid.
    #[default]
    Exact,
    /// Encoded sums, rounded to a grid for noise of 64 bits.
    Rounded,
}

/// The largest share of the sensitivity that the rounding of encoded sums may cause.
const MAX_ROUNDING_SHARE: f64 = 1e-3;

impl Grid {
    /// Calibrates on the coarser grid if its rounding costs little, and else on the exact one.
    ///
    /// # Errors
    /// Those of `calibrate` on the exact grid.
    pub fn choose<M, E>(
        calibrate: impl Fn(Grid) -> Result<M, E>,
        rounding_share: impl Fn(&M) -> f64,
    ) -> Result<(M, Grid), E> {
        let rounded = calibrate(Grid::Rounded).ok();
        match rounded.filter(|calibrated| rounding_share(calibrated) <= MAX_ROUNDING_SHARE) {
            Some(calibrated) => Ok((calibrated, Grid::Rounded)),
            None => Ok((calibrate(Grid::Exact)?, Grid::Exact)),
        }
    }

    /// Whether it is the grid of logs that don't name one.
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// The publication of a pipeline.
#[derive(Clone)]
pub enum Publication {
    /// Moments, epoch by epoch.
    Moments(MomentPublication),
    /// Window estimates, one per epoch.
    Windows(WindowPublication),
}

impl Publication {
    /// Returns the publication of a pipeline into a state directory. Noise and strategy come from
    /// an existing log with the pipeline's parameters, or from a search, which may take seconds and
    /// reports to `progress`.
    ///
    /// # Errors
    /// [`PublicationError`] names the invalid parameter and the remedy.
    pub fn of_pipeline(
        pipeline: &Pipeline,
        state: &Path,
        progress: &mut dyn FnMut(&SearchProgress),
    ) -> Result<Self, PublicationError> {
        let (parameters, private) = (pipeline.public_parameters(), pipeline.noise.is_private());
        let earlier = PublicReader::open(pipeline.log_directory(state)).ok();
        let earlier = earlier.and_then(|reader| Self::from_header(reader.header()).ok());
        let is_continued =
            |earlier: &Self| *earlier.parameters() == parameters && earlier.is_private() == private;
        if let Some(earlier) = earlier.filter(is_continued) {
            return if earlier.guarantee_holds()? { Ok(earlier) } else { Err(PublicationError::Promise) };
        }
        if let Some(windows) = WindowPublication::new(parameters.clone(), private)? {
            return Ok(Self::Windows(windows));
        }
        if let Some(found) = training::best_for_random_batches(pipeline, &parameters, private, progress)? {
            return Ok(Self::Moments(found));
        }
        let chosen = chosen(pipeline, progress)?;
        Ok(Self::Moments(MomentPublication::calibrate_chosen(parameters, chosen, private, progress)?))
    }

    /// Reads the publication from the header of a public log.
    ///
    /// # Errors
    /// [`PublicationError::Header`], or why its parameters are invalid.
    pub fn from_header(header: &PublicHeader) -> Result<Self, PublicationError> {
        let Header { parameters, noise_multiplier, strategy, second_strategy, grid } =
            serde_json::from_slice(&header.parameters)?;
        if let Some(windows) = WindowPublication::new(parameters.clone(), header.private)? {
            return Ok(Self::Windows(windows.with_noise_multiplier(noise_multiplier)));
        }
        let strategy = strategy.ok_or(PublicationError::NoStrategy)?;
        let strategies = ChosenStrategies { strategy, second_strategy };
        let calibration = Calibration { noise_multiplier, strategies, grid };
        Ok(Self::Moments(MomentPublication::calibrated(parameters, calibration, header.private)?))
    }

    /// Returns the header of this publication's log.
    ///
    /// # Errors
    /// [`PublicationError::Header`].
    pub fn header(&self) -> Result<PublicHeader, PublicationError> {
        let parameters = self.parameters().clone();
        let header = match self {
            Self::Moments(moments) => {
                let Calibration { noise_multiplier, strategies, grid } = moments.calibration().clone();
                let ChosenStrategies { strategy, second_strategy } = strategies;
                Header { parameters, noise_multiplier, strategy: Some(strategy), second_strategy, grid }
            }
            Self::Windows(windows) => Header {
                parameters,
                noise_multiplier: windows.noise_multiplier(),
                strategy: None,
                second_strategy: None,
                grid: Grid::Exact,
            },
        };
        Ok(PublicHeader { parameters: serde_json::to_vec(&header)?, private: self.is_private() })
    }

    /// Returns whether the noise in use gives the stated guarantee.
    ///
    /// # Errors
    /// [`PublicationError`] if no noise gives it.
    pub fn guarantee_holds(&self) -> Result<bool, PublicationError> {
        match self {
            Self::Moments(moments) => moments.guarantee_holds(),
            Self::Windows(windows) => Ok(windows.guarantee_holds()),
        }
    }

    /// Returns the spending of all its releases.
    ///
    /// # Errors
    /// [`PublicationError`] if its parameters give no guarantee.
    pub fn charge(&self) -> Result<Charge, PublicationError> {
        match self {
            Self::Moments(moments) => moments.charge(),
            Self::Windows(windows) => Ok(windows.charge()),
        }
    }

    /// Returns the public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        match self {
            Self::Moments(moments) => moments.parameters(),
            Self::Windows(windows) => windows.parameters(),
        }
    }

    /// Whether the releases are private: false if a seeded generator drew the noise.
    pub fn is_private(&self) -> bool {
        match self {
            Self::Moments(moments) => moments.is_private(),
            Self::Windows(windows) => windows.is_private(),
        }
    }

    /// Returns the number of epochs.
    pub fn horizon(&self) -> u64 {
        self.parameters().epochs.schedule.horizon()
    }

    /// Returns the publication of moments.
    ///
    /// # Errors
    /// [`PublicationError::Windows`] for window estimates.
    pub fn into_moments(self) -> Result<MomentPublication, PublicationError> {
        match self {
            Self::Moments(moments) => Ok(moments),
            Self::Windows(windows) => Err(PublicationError::Windows(Box::new(windows.estimator().clone()))),
        }
    }
}

/// The strategies that run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenStrategies {
    /// The strategy of all moments, or of counts and first moments.
    pub strategy: StrategyChoice,
    /// The strategy of second moments, if they have one of their own.
    pub second_strategy: Option<StrategyChoice>,
}

impl ChosenStrategies {
    /// Returns the strategies that their names in the parameters determine.
    fn named(release: &Release) -> Self {
        let second = release.second.as_ref();
        Self {
            strategy: release.strategy.clone().into(),
            second_strategy: second.map(|second| second.strategy.clone().into()),
        }
    }
}

/// Names the strategies.
impl fmt::Display for ChosenStrategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.strategy.name)?;
        let second = self.second_strategy.as_ref();
        second.map_or(Ok(()), |second| write!(f, ", and {} for second moments", second.name))
    }
}

/// Returns the strategies of a pipeline: the named ones, or the best within its memory limit.
///
/// # Errors
/// [`StrategiesError`].
pub fn chosen(
    pipeline: &Pipeline,
    progress: &mut dyn FnMut(&SearchProgress),
) -> Result<ChosenStrategies, StrategiesError> {
    let (strategy, purpose) = pipeline.requested_strategy();
    let strategy = strategy.find(&purpose, progress)?.chosen;
    let second = pipeline.requested_second_strategy();
    let second = second.map(|(strategy, purpose)| strategy.find(&purpose, progress)).transpose()?;
    Ok(ChosenStrategies { strategy, second_strategy: second.map(|found| found.chosen) })
}

fn guarantee(parameters: &PublicParameters) -> Result<(Epsilon, Delta), AccountingError> {
    Ok((Epsilon::new(parameters.privacy.epsilon)?, Delta::new(parameters.privacy.delta)?))
}

/// Checks that a release of this number of keys fits a frame of the log.
///
/// # Errors
/// [`PublicationError::TooWide`].
pub fn check_width(keys: u64, layout: Layout) -> Result<(), PublicationError> {
    let each = layout.coordinates() as u64;
    match keys.saturating_mul(each) > RELEASE_LIMIT {
        true => Err(PublicationError::TooWide { keys, each }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A log that names no grid is read and continued on the finest one.
    #[test]
    fn a_log_without_a_grid_has_the_finest() {
        let text = "name = 'a'\nsource.path = 'a.csv'\ncolumns = [{ name = 'x', lower = 0, upper = 1 }]\n\
                    epochs = { records = 9, horizon = 9 }\nprivacy = { epsilon = 1, delta = 1e-6 }\n\
                    release.strategy = 'square-root'";
        let parameters = Pipeline::parse(text, "a.toml".as_ref()).unwrap().public_parameters();
        let new = Publication::Moments(MomentPublication::calibrate(parameters, true).unwrap());
        let header = new.header().unwrap();
        let mut fields: Value = serde_json::from_slice(&header.parameters).unwrap();
        let bits = |publication: &Publication| {
            let moments = publication.clone().into_moments().unwrap();
            moments.mechanism().moments().noise().iter().map(|noise| noise.sum_bits).collect::<Vec<_>>()
        };
        assert_eq!(fields["grid"], json!("rounded"));
        assert!(bits(&new)[1] < 40 && bits(&new)[2] == 0, "{:?}", bits(&new));
        assert_eq!(bits(&Publication::from_header(&header).unwrap()), bits(&new));

        fields.as_object_mut().unwrap().shift_remove("grid");
        let old = PublicHeader { parameters: serde_json::to_vec(&fields).unwrap(), ..header };
        let read = Publication::from_header(&old).unwrap();
        assert_eq!(bits(&read), [40; 3]);
        assert_eq!(read.header().unwrap().parameters, old.parameters, "a run continues the log");
        assert!(read.guarantee_holds().unwrap());
    }
}
