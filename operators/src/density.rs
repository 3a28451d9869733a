//! `density`: mean and covariance from released moments.

use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::view::Moments;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

/// Moments with the density that they give, or the reason why they give none.
#[derive(Clone, Debug)]
pub struct Estimated {
    /// The moments.
    pub moments: Moments,
    /// Their density, in centred and scaled coordinates.
    pub density: Result<Density, DensityError>,
}

/// Estimates densities.
pub trait Densities<'scope> {
    /// The Gaussian density of every key at every epoch: post-processing of what was released.
    fn density(self) -> StreamVec<'scope, u64, Estimated>;
}

impl<'scope> Densities<'scope> for StreamVec<'scope, u64, Moments> {
    fn density(self) -> StreamVec<'scope, u64, Estimated> {
        self.map(|moments| Estimated { density: moments.density(), moments })
    }
}
