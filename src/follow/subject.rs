//! What is followed in a log: views of its moments, or the estimates of its windows.

use crate::estimates::WindowPublication;
use crate::pipeline::{PublicParameters, View};
use crate::publication::{Publication, PublicationError};
use crate::state::PublicHeader;

/// What is followed in a log.
#[derive(Clone)]
pub enum Subject {
    /// Views of moments.
    Moments(Publication, Vec<View>),
    /// Estimates of windows, as they are.
    Windows(WindowPublication),
}

impl Subject {
    /// What a log says of itself, under these views where it holds moments.
    ///
    /// # Errors
    /// [`PublicationError`] if the header can't be read.
    pub fn from_header(header: &PublicHeader, views: Vec<View>) -> Result<Self, PublicationError> {
        Ok(match WindowPublication::from_header(header)? {
            Some(publication) => Subject::Windows(publication),
            None => Subject::Moments(Publication::from_header(header)?, views),
        })
    }

    /// The public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        match self {
            Subject::Moments(publication, _) => publication.parameters(),
            Subject::Windows(publication) => publication.parameters(),
        }
    }

    /// False where a seeded generator drew the noise: such releases protect nobody.
    pub fn is_private(&self) -> bool {
        match self {
            Subject::Moments(publication, _) => publication.is_private(),
            Subject::Windows(publication) => publication.is_private(),
        }
    }

    /// Number of epochs.
    pub fn horizon(&self) -> u64 {
        self.parameters().epochs.schedule.horizon()
    }
}
