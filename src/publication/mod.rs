//! What a release log means: everything that follows from its public parameters.
//!
//! The runtime makes a [`Publication`] from a pipeline before it draws any noise; followers and `verify` make the same one
//! from the header of the public log. So what is read is decoded by what was run.

mod error;
mod moments;
pub mod report;
mod windows;

use std::path::Path;

use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon};
use hushflow_mechanism::moments::Layout;
use hushflow_mechanism::strategy::Chosen;
use serde::{Deserialize, Serialize};

pub use error::PublicationError;
pub use moments::{Calibration, MomentPublication};
pub use windows::{Asked, WindowPublication};

use crate::ledger::Charge;
use crate::pipeline::{Pipeline, PublicParameters};
use crate::state::{MAX_PAYLOAD, PublicHeader, PublicReader};
use crate::strategies::{Progress, StrategiesError};

/// Numbers that one release may have, over all keys: at sixteen bytes for each exact sum and as many for each released value they
/// fill a frame of the log, so none is ever too large to be committed.
pub const RELEASE_LIMIT: u64 = MAX_PAYLOAD / 32;

/// The header of the public log.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    parameters: PublicParameters,
    noise_multiplier: f64,
    /// Estimates of windows have none.
    strategy: Option<Chosen>,
}

/// What a pipeline publishes.
#[derive(Clone)]
pub enum Publication {
    /// Moments, epoch by epoch.
    Moments(MomentPublication),
    /// Estimates of windows, each of a whole epoch.
    Windows(WindowPublication),
}

impl Publication {
    /// What a pipeline publishes into a state directory: with the noise and the strategy of the log that is there, if it has
    /// the pipeline's parameters, or else found now, which may take seconds: `progress` is told.
    ///
    /// # Errors
    /// [`PublicationError`] says which parameter can't be and how to mend it.
    pub fn of_pipeline(
        pipeline: &Pipeline,
        state: &Path,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Self, PublicationError> {
        let (parameters, private) = (pipeline.public_parameters(), pipeline.noise.is_private());
        let earlier = PublicReader::open(pipeline.log_directory(state)).ok();
        let earlier = earlier.and_then(|reader| Self::from_header(reader.header()).ok());
        let goes_on = |earlier: &Self| *earlier.parameters() == parameters && earlier.is_private() == private;
        if let Some(earlier) = earlier.filter(goes_on) {
            return if earlier.guarantee_holds()? { Ok(earlier) } else { Err(PublicationError::Promise) };
        }
        if let Some(windows) = WindowPublication::new(parameters.clone(), private)? {
            return Ok(Self::Windows(windows));
        }
        let chosen = chosen(pipeline, progress)?;
        Ok(Self::Moments(MomentPublication::calibrate_chosen(parameters, chosen, private)?))
    }

    /// What the header of a public log says.
    ///
    /// # Errors
    /// [`PublicationError::Header`], or what the parameters in it can't be.
    pub fn from_header(header: &PublicHeader) -> Result<Self, PublicationError> {
        let Header { parameters, noise_multiplier, strategy } = serde_json::from_slice(&header.parameters)?;
        if let Some(windows) = WindowPublication::new(parameters.clone(), header.private)? {
            return Ok(Self::Windows(windows.with_noise_multiplier(noise_multiplier)));
        }
        let strategy = strategy.ok_or(PublicationError::NoStrategy)?;
        let calibration = Calibration { noise_multiplier, strategy };
        Ok(Self::Moments(MomentPublication::calibrated(parameters, calibration, header.private)?))
    }

    /// The header of this publication's log.
    ///
    /// # Errors
    /// [`PublicationError::Header`].
    pub fn header(&self) -> Result<PublicHeader, PublicationError> {
        let (noise_multiplier, strategy) = match self {
            Self::Moments(moments) => {
                let Calibration { noise_multiplier, strategy } = moments.calibration().clone();
                (noise_multiplier, Some(strategy))
            }
            Self::Windows(windows) => (windows.noise_multiplier(), None),
        };
        let header = Header { parameters: self.parameters().clone(), noise_multiplier, strategy };
        Ok(PublicHeader { parameters: serde_json::to_vec(&header)?, private: self.is_private() })
    }

    /// Whether the noise in use gives the stated guarantee.
    ///
    /// # Errors
    /// [`PublicationError`] if no noise gives it.
    pub fn guarantee_holds(&self) -> Result<bool, PublicationError> {
        match self {
            Self::Moments(moments) => moments.guarantee_holds(),
            Self::Windows(windows) => Ok(windows.guarantee_holds()),
        }
    }

    /// What all its releases spend.
    ///
    /// # Errors
    /// [`PublicationError`] if its parameters give no guarantee.
    pub fn charge(&self) -> Result<Charge, PublicationError> {
        match self {
            Self::Moments(moments) => moments.charge(),
            Self::Windows(windows) => Ok(windows.charge()),
        }
    }

    /// The public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        match self {
            Self::Moments(moments) => moments.parameters(),
            Self::Windows(windows) => windows.parameters(),
        }
    }

    /// False where a seeded generator drew the noise: such releases protect nobody.
    pub fn is_private(&self) -> bool {
        match self {
            Self::Moments(moments) => moments.is_private(),
            Self::Windows(windows) => windows.is_private(),
        }
    }

    /// Number of epochs.
    pub fn horizon(&self) -> u64 {
        self.parameters().epochs.schedule.horizon()
    }

    /// That of moments.
    ///
    /// # Errors
    /// [`PublicationError::Windows`] where estimates of windows are published.
    pub fn into_moments(self) -> Result<MomentPublication, PublicationError> {
        match self {
            Self::Moments(moments) => Ok(moments),
            Self::Windows(windows) => Err(PublicationError::Windows(Box::new(windows.estimator().clone()))),
        }
    }
}

/// The strategy that a pipeline runs: the one it names, or the best that keeps within its limit of memory.
///
/// # Errors
/// [`StrategiesError`].
pub fn chosen(pipeline: &Pipeline, progress: &mut dyn FnMut(&Progress)) -> Result<Chosen, StrategiesError> {
    let purpose = pipeline.strategy_purpose();
    Ok(pipeline.wanted_strategy().find(&purpose, progress)?.chosen)
}

fn guarantee(parameters: &PublicParameters) -> Result<(Epsilon, Delta), AccountingError> {
    Ok((Epsilon::new(parameters.privacy.epsilon)?, Delta::new(parameters.privacy.delta)?))
}

/// Whether a release of so many keys fits a frame of the log.
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
