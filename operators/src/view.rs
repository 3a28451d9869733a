//! `view` and `density`: moments under a workload, and their mean and covariance, from releases.

use crate::{ClosedEpoch, Fault, OpenEpochs, ReleasedEpoch};
use hushflow_mechanism::estimate::density::{Density, DensityError};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::view::{Moments, View};
use std::cell::{LazyCell, RefCell};
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Map;

/// Applies views to releases.
pub trait Views<'scope> {
    /// Returns the moments of every key under the view's workload, with their noise levels, epoch
    /// by epoch.
    ///
    /// `view` is called on the worker that receives the first release. After a restart the view may
    /// already have seen earlier releases; it continues after them. This is post-processing, so any
    /// number of views is free. Releases may come from a dataflow or from a log, epoch by epoch; a
    /// missing one raises the fault. Here are 10 records of mean ½ and mean square ¼, without
    /// noise, in units of the output grid:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let released = ReleasedEpoch::released_before(1, vec![10 << 40, 5 << 60, 5 << 79]);
    /// let view = move || View::new(&mechanism, &Workload::Average, 1, 8);
    /// timely::example(move |scope| {
    ///     let moments = vec![released].to_stream(scope).view(view, fault);
    ///     moments.inspect(move |moments| sender.send(moments.clone()).expect("a receiver"));
    /// });
    /// let moments = receiver.recv()?;
    /// assert_eq!((moments.count(), moments.first()[0], moments.second()[0]), (10.0, 5.0, 2.5));
    /// assert!(moments.noise.first > 0.0); // the noise of a real release
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn view(self, view: impl FnOnce() -> View + 'static, fault: Fault) -> StreamVec<'scope, u64, Moments>;
}

impl<'scope> Views<'scope> for StreamVec<'scope, u64, ReleasedEpoch> {
    fn view(self, view: impl FnOnce() -> View + 'static, fault: Fault) -> StreamVec<'scope, u64, Moments> {
        self.unary_frontier(Pipeline, "View", move |_capability, _info| {
            let view = LazyCell::new(|| RefCell::new(view()));
            let mut epochs = OpenEpochs::new(fault);
            move |(input, frontier), output| {
                epochs.collect(input, Vec::new, Vec::push);
                epochs.on_close([frontier], |run| {
                    let mut view = view.borrow_mut();
                    for ClosedEpoch { times: [time], data: releases, .. } in run {
                        for released in releases {
                            let (found, expected) = (released.epoch, view.next_epoch());
                            if found != expected {
                                return Err(format!(
                                    "a view got epoch {found} where epoch {expected} follows"
                                ));
                            }
                            let moments = view.push(&released.to_vec()).map_err(|error| error.to_string())?;
                            output.session(time).give_iterator(moments);
                        }
                    }
                    Ok(())
                });
            }
        })
    }
}

/// Moments with their density, or with the reason why there is none.
#[derive(Clone, Debug)]
pub struct DensityEstimate {
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
    /// // A million records of mean ½ and mean square ¾, without noise, in units of the grid.
    /// let million = 1_000_000;
    /// let values: Vec<i128> = vec![million << 40, million << 59, 3 * million << 78];
    /// let released = ReleasedEpoch::released_before(1, values.into());
    /// let view = move || View::new(&mechanism, &Workload::Prefix, 1, 8);
    /// timely::example(move |scope| {
    ///     let densities = vec![released].to_stream(scope).view(view, fault).density();
    ///     densities.inspect(move |estimate| sender.send(estimate.clone()).expect("a receiver"));
    /// });
    /// let density = receiver.recv()?.density?;
    /// assert!((density.mean[0] - 0.5).abs() < 1e-6);
    /// assert!((density.covariance[(0, 0)] - 0.5).abs() < 1e-3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn density(self) -> StreamVec<'scope, u64, DensityEstimate>
    where
        Self: Sized,
    {
        self.density_by(Projection::default())
    }

    /// Like [`density`](Self::density), with this projection of the covariances.
    fn density_by(self, projection: Projection) -> StreamVec<'scope, u64, DensityEstimate>;
}

impl<'scope> Densities<'scope> for StreamVec<'scope, u64, Moments> {
    fn density_by(self, projection: Projection) -> StreamVec<'scope, u64, DensityEstimate> {
        self.map(move |moments| DensityEstimate { density: moments.noisy().density_by(projection), moments })
    }
}
