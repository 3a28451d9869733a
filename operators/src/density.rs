//! `density`: mean and covariance from released moments.

use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::view::Moments;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::vec::Map;

/// Moments with their density, or with the reason why there is none.
#[derive(Clone, Debug)]
pub struct Estimated {
    /// The moments.
    pub moments: Moments,
    /// Their density, in centred and scaled coordinates.
    pub density: Result<Density, DensityError>,
}

/// Estimates densities.
pub trait Densities<'scope> {
    /// Returns the Gaussian density of every key at every epoch, by post-processing of releases.
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// // A million records of mean ½ and mean square ¾, without noise, in units of the output grid.
    /// let million = 1_000_000;
    /// let values: Vec<i128> = vec![million << 40, million << 59, 3 * million << 78];
    /// let released = ReleasedEpoch::released_before(1, values.into());
    /// let view = move || View::new(&mechanism, &Workload::Prefix, 1, 8);
    /// timely::example(move |scope| {
    ///     let densities = vec![released].to_stream(scope).view(view, fault).density();
    ///     densities.inspect(move |estimated| seen.send(estimated.clone()).expect("heard"));
    /// });
    /// let density = all_seen.recv()?.density?;
    /// assert!((density.mean[0] - 0.5).abs() < 1e-6);
    /// assert!((density.covariance[(0, 0)] - 0.5).abs() < 1e-3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn density(self) -> StreamVec<'scope, u64, Estimated>
    where
        Self: Sized,
    {
        self.density_by(Projection::default())
    }

    /// Like [`density`](Self::density), with this projection of the covariances.
    fn density_by(self, projection: Projection) -> StreamVec<'scope, u64, Estimated>;
}

impl<'scope> Densities<'scope> for StreamVec<'scope, u64, Moments> {
    fn density_by(self, projection: Projection) -> StreamVec<'scope, u64, Estimated> {
        self.map(move |moments| Estimated { density: moments.noisy().density_by(projection), moments })
    }
}
