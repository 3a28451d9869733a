//! `view`: applies a workload to releases.

use crate::{Fault, ReleasedEpoch};
use hushflow_mechanism::view::{Moments, View};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Applies views to releases.
pub trait Views<'scope> {
    /// Returns the moments of every key under the view's workload, with their exact noise levels,
    /// epoch by epoch.
    ///
    /// `view` is called on the worker that receives the first release. After a restart the view may
    /// already have seen earlier releases; it continues after them. This is post-processing, so any
    /// number of views is free. Releases may come from a dataflow or from a log. Here are 10
    /// records of mean ½ and mean square ¼, without noise, in units of the output grid:
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let released = ReleasedEpoch::released_before(1, vec![10 << 40, 5 << 60, 5 << 79]);
    /// let view = move || View::new(&mechanism, &Workload::Average, 1, 8);
    /// timely::example(move |scope| {
    ///     let moments = vec![released].to_stream(scope).view(view, fault);
    ///     moments.inspect(move |moments| seen.send(moments.clone()).expect("heard"));
    /// });
    /// let moments = all_seen.recv()?;
    /// assert_eq!((moments.count(), moments.first(), moments.second()), (10.0, &[5.0][..], &[2.5][..]));
    /// assert!(moments.noise.first > 0.0); // what a release would have held
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn view(self, view: impl FnOnce() -> View + 'static, fault: Fault) -> StreamVec<'scope, u64, Moments>;
}

impl<'scope> Views<'scope> for StreamVec<'scope, u64, ReleasedEpoch> {
    fn view(self, view: impl FnOnce() -> View + 'static, fault: Fault) -> StreamVec<'scope, u64, Moments> {
        self.unary(Pipeline, "View", move |_capability, _info| {
            let mut waiting = BTreeMap::new();
            let (mut make, mut made) = (Some(view), None);
            move |input, output| {
                input.for_each_time(|time, batches| {
                    for released in batches.flat_map(|batch| batch.drain(..)) {
                        waiting.insert(released.epoch, (time.retain(0), released));
                    }
                });
                if !waiting.is_empty() {
                    made = made.take().or_else(|| make.take().map(|make| make()));
                }
                let Some(view) = made.as_mut() else { return };
                while !fault.is_raised()
                    && let Some(entry) = waiting.first_entry()
                    && *entry.key() == view.next_epoch()
                {
                    let (capability, released) = entry.remove();
                    match view.push(&released.to_vec()) {
                        Ok(moments) => output.session(&capability).give_iterator(moments),
                        Err(error) => fault.raise(error),
                    }
                }
            }
        })
    }
}
