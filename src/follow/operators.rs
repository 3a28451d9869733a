//! Operators of the public dataflow, after [`view`](hushflow_operators::Views::view).

use std::collections::HashMap;
use std::sync::Arc;

use hushflow_mechanism::estimate::debias::MomentNoise;
use hushflow_mechanism::view::Moments;
use hushflow_operators::{Fault, ReleasedEpoch};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::vec::Map;

use crate::estimates::{Estimate, ScaledView, SecondAverage};
use crate::publication::WindowPublication;

/// The estimate of one key in one epoch, under one view.
#[derive(Clone, Debug)]
pub struct KeyEstimate {
    /// The view's number; 0 for estimates of windows.
    pub view: usize,
    /// The epoch.
    pub epoch: u64,
    /// The key; the number of keys stands for their total.
    pub key: u32,
    /// The estimate.
    pub estimate: Arc<dyn Estimate>,
}

/// Decodes releases of estimates of windows.
pub trait DecodeWindows<'scope> {
    /// Returns the estimate of every key and epoch. A release of anything else raises the fault.
    fn decode_windows(
        self,
        publication: WindowPublication,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyEstimate>;
}

impl<'scope> DecodeWindows<'scope> for StreamVec<'scope, u64, ReleasedEpoch> {
    fn decode_windows(
        self,
        publication: WindowPublication,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyEstimate> {
        self.flat_map(move |released| {
            let windows = publication.read(&released.to_vec()).unwrap_or_else(|| {
                fault.raise("it holds no estimates of windows");
                Vec::new()
            });
            let epoch = released.epoch;
            (0..).zip(windows).map(move |(key, estimate)| KeyEstimate { view: 0, epoch, key, estimate })
        })
    }
}

/// Adds up keys.
pub trait Totals<'scope> {
    /// Returns the total over `keys` keys in every epoch. Its key is the number of keys.
    ///
    /// Totals are post-processing and cost no privacy. The noise of the keys is independent and
    /// equally large, so the total of n keys has exactly √n times the standard deviation of one.
    /// For the method `pp` second moments are squares of each key's sums. A sum of squares is not
    /// the square of the sum, so there are no totals
    /// ([`has_totals`](crate::publication::MomentPublication::has_totals)).
    fn total(self, keys: u32) -> StreamVec<'scope, u64, Moments>;
}

impl<'scope> Totals<'scope> for StreamVec<'scope, u64, Moments> {
    fn total(self, keys: u32) -> StreamVec<'scope, u64, Moments> {
        let mut total: Option<Moments> = None;
        self.flat_map(move |moments| {
            let is_last = moments.key + 1 == keys;
            match &mut total {
                None => total = Some(moments),
                Some(total) => {
                    let parts = total.coordinates.iter_mut().zip(&moments.coordinates);
                    parts.for_each(|(sum, part)| *sum += part);
                }
            }
            let mut total = total.take_if(|_| is_last)?;
            let root = f64::from(keys).sqrt();
            let MomentNoise { count, first, second } = &mut total.noise;
            let deviations = [count, first, second, &mut total.sent_noise];
            deviations.into_iter().for_each(|deviation| *deviation *= root);
            Some(Moments { key: keys, ..total })
        })
    }
}

/// Estimates what a view shows.
pub trait Estimates<'scope>: Sized {
    /// Returns the estimate of the moments of every key and epoch. `number` is the view's number
    /// in the estimates.
    fn estimate(self, number: usize, view: Arc<ScaledView>) -> StreamVec<'scope, u64, KeyEstimate>;

    /// Returns the estimate from moments under both averages of the view's estimator
    /// ([`decays`](crate::estimates::ViewEstimator::decays)). `correlations` are those of their
    /// noise, from the first epoch on
    /// ([`noise_correlations`](crate::publication::MomentPublication::noise_correlations)).
    fn estimate_with(
        self,
        second: Self,
        correlations: impl Iterator<Item = f64> + 'static,
        number: usize,
        view: Arc<ScaledView>,
    ) -> StreamVec<'scope, u64, KeyEstimate>;
}

impl<'scope> Estimates<'scope> for StreamVec<'scope, u64, Moments> {
    fn estimate(self, number: usize, view: Arc<ScaledView>) -> StreamVec<'scope, u64, KeyEstimate> {
        self.map(move |moments| KeyEstimate {
            view: number,
            epoch: moments.epoch,
            key: moments.key,
            estimate: view.view.estimator.estimate(moments, &view),
        })
    }

    fn estimate_with(
        self,
        second: Self,
        correlations: impl Iterator<Item = f64> + 'static,
        number: usize,
        view: Arc<ScaledView>,
    ) -> StreamVec<'scope, u64, KeyEstimate> {
        let mut correlations = (1..).zip(correlations);
        let mut current = (0, 0.0);
        // Moments of a key and epoch until those under the other average come.
        let mut waiting = HashMap::new();
        let (first, second) = (self.map(|moments| (false, moments)), second.map(|moments| (true, moments)));
        first.concat(second).flat_map(move |(is_second, moments)| {
            let (epoch, key) = (moments.epoch, moments.key);
            let Some(other) = waiting.remove(&(epoch, key)) else {
                waiting.insert((epoch, key), moments);
                return None;
            };
            let (moments, second) = if is_second { (other, moments) } else { (moments, other) };
            while current.0 < epoch {
                current = correlations.next()?;
            }
            let second = SecondAverage { moments: second, correlation: current.1 };
            let estimate = view.view.estimator.estimate_with(moments, second, &view);
            Some(KeyEstimate { view: number, epoch, key, estimate })
        })
    }
}
