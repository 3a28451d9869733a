//! Operators of the public dataflow, around [`view`](hushflow_operators::Views::view).

use std::collections::HashMap;
use std::sync::Arc;

use hushflow_mechanism::estimate::debias::MomentNoise;
use hushflow_mechanism::view::Moments;
use hushflow_mechanism::workload::Workload;
use hushflow_operators::{Fault, ReleasedEpoch, Views};
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Concat;
use timely::dataflow::operators::vec::{Filter, Map};

use crate::estimates::{Averages, Estimate, EstimateView, ScaledView, SecondAverage};
use crate::publication::{MomentPublication, WindowPublication};

/// The estimate of one key in one epoch, under one view.
#[derive(Clone, Debug)]
pub struct KeyEstimate {
    /// The view's number; 0 for estimates of windows.
    pub view: usize,
    /// The epoch.
    pub epoch: u64,
    /// The key. The number of keys means the total over all keys.
    pub key: u32,
    /// The estimate.
    pub estimate: Arc<dyn Estimate>,
}

/// Decodes releases of estimates of windows.
pub trait DecodeWindows<'scope> {
    /// Returns the estimate of every key and window, at its last epoch. A release of anything else
    /// raises the fault.
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
            let windows = publication.read(released.epoch, &released.to_vec()).unwrap_or_else(|| {
                fault.raise("a release holds no estimates of windows");
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
            let deviations = [count, first, second, &mut total.sent_noise, &mut total.bin_noise];
            deviations.into_iter().for_each(|deviation| *deviation *= root);
            Some(Moments { key: keys, ..total })
        })
    }
}

/// Computes the estimates of a view.
pub trait Estimates<'scope> {
    /// Returns the estimates of a view of releases, under every workload that its estimator needs:
    /// of the keys that `select` accepts, or of the total over all keys. `number` is the view's
    /// number in the estimates. A release that does not fit the publication raises the fault.
    fn estimates(
        self,
        number: usize,
        publication: &MomentPublication,
        view: &EstimateView,
        select: impl FnMut(u32) -> bool + Clone + 'static,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyEstimate>;
}

impl<'scope> Estimates<'scope> for StreamVec<'scope, u64, ReleasedEpoch> {
    fn estimates(
        self,
        number: usize,
        publication: &MomentPublication,
        view: &EstimateView,
        select: impl FnMut(u32) -> bool + Clone + 'static,
        fault: Fault,
    ) -> StreamVec<'scope, u64, KeyEstimate> {
        let weighted = |workload: &Workload| {
            let weighted = publication.view(workload).with_square_bias(view.squares);
            let moments = self.clone().view(move || weighted, fault.clone());
            let moments = if view.total { moments.total(publication.keys()) } else { moments };
            let mut select = select.clone();
            moments.filter(move |moments| select(moments.key))
        };
        let (moments, scaled) = (weighted(&view.workload), publication.scaled_view(view));
        match view.estimator.decays() {
            None => from_one_average(moments, number, scaled),
            Some(decays) => {
                let second = weighted(&Workload::Adam(decays[1]));
                let correlations = publication.noise_correlations(decays);
                from_two_averages(moments, second, correlations, number, scaled)
            }
        }
    }
}

fn from_one_average(
    moments: StreamVec<'_, u64, Moments>,
    number: usize,
    scaled: Arc<ScaledView>,
) -> StreamVec<'_, u64, KeyEstimate> {
    moments.flat_map(move |moments| {
        let Averages::One(estimator) = scaled.view.estimator.averages() else { return None };
        let (epoch, key) = (moments.epoch, moments.key);
        Some(KeyEstimate { view: number, epoch, key, estimate: estimator.estimate(moments, &scaled) })
    })
}

/// `correlations` are those between the noise of the two averages, from the first epoch on.
fn from_two_averages<'scope>(
    moments: StreamVec<'scope, u64, Moments>,
    second: StreamVec<'scope, u64, Moments>,
    correlations: impl Iterator<Item = f64> + 'static,
    number: usize,
    scaled: Arc<ScaledView>,
) -> StreamVec<'scope, u64, KeyEstimate> {
    let mut correlations = (1..).zip(correlations);
    let mut current = (0, 0.0);
    // Moments of a key and epoch whose moments under the other average have not come yet.
    let mut waiting = HashMap::new();
    let (first, second) = (moments.map(|moments| (false, moments)), second.map(|moments| (true, moments)));
    first.concat(second).flat_map(move |(is_second, moments)| {
        let Averages::Two(_, estimator) = scaled.view.estimator.averages() else { return None };
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
        Some(KeyEstimate { view: number, epoch, key, estimate: estimator.estimate(moments, second, &scaled) })
    })
}
