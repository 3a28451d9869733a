//! What is followed in a log.

use crate::pipeline::{PublicParameters, View};
use crate::publication::{Publication, PublicationError};
use crate::state::PublicHeader;

/// What is followed in a log.
#[derive(Clone)]
pub struct Subject {
    /// What the log means.
    pub publication: Publication,
    /// The views of its moments. Estimates of windows are shown as they are.
    pub views: Vec<View>,
}

impl Subject {
    /// What a log says of itself, under these views.
    ///
    /// # Errors
    /// [`PublicationError`] if the header can't be read.
    pub fn from_header(header: &PublicHeader, views: Vec<View>) -> Result<Self, PublicationError> {
        Ok(Subject { publication: Publication::from_header(header)?, views })
    }

    /// The public parameters.
    pub fn parameters(&self) -> &PublicParameters {
        self.publication.parameters()
    }

    /// Number of epochs.
    pub fn horizon(&self) -> u64 {
        self.publication.horizon()
    }
}
