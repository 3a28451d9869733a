//! What to follow in a log.

use crate::estimates::View;
use crate::pipeline::PublicParameters;
use crate::publication::{Publication, PublicationError};
use crate::state::PublicHeader;

/// What to follow in a log.
#[derive(Clone)]
pub struct Subject {
    /// The publication of the log.
    pub publication: Publication,
    /// Views of its moments. Estimates of windows need none.
    pub views: Vec<View>,
}

impl Subject {
    /// Reads the publication from a log's header, for these views.
    ///
    /// # Errors
    /// [`PublicationError`] if the header cannot be read.
    pub fn from_header(header: &PublicHeader, views: Vec<View>) -> Result<Self, PublicationError> {
        Ok(Subject { publication: Publication::from_header(header)?, views })
    }

    /// Returns the public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        self.publication.parameters()
    }

    /// Returns the number of epochs.
    pub fn horizon(&self) -> u64 {
        self.publication.horizon()
    }
}
