//! `clip`: centres, scales, clips and quantises records.

use crate::{QuantisedRecords, Records};
use hushflow_mechanism::moments::{Clipper, QuantisedRows};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Bounds what a record can do.
pub trait Clip<'scope> {
    /// Brings every record into the ζ-ball and onto its integer grid. A record that is not finite is dropped: one NaN
    /// must not poison a sum.
    ///
    /// ```
    /// use hushflow_mechanism::moments::Clipper;
    /// use hushflow_operators::{Clip, Records};
    /// use std::sync::Arc;
    /// use timely::dataflow::operators::vec::ToStream;
    /// use timely::dataflow::operators::{Capture, capture::Extract};
    ///
    /// let clipper = Arc::new(Clipper::new(&[(0.0, 100.0)], 1.0)?);
    /// let batch = Records { keys: vec![0; 3], values: vec![50.0, 1e9, f64::NAN], ..Records::default() };
    /// let clipped = timely::example(move |scope| {
    ///     vec![batch].to_stream(scope).container::<Vec<_>>().clip(clipper.clone()).capture()
    /// });
    /// let (_, batches) = &clipped.extract()[0];
    /// assert_eq!(batches[0].rows.values(), [0.0, 1048576.0]);
    /// # Ok::<(), hushflow_mechanism::moments::ClipError>(())
    /// ```
    fn clip(self, clipper: Arc<Clipper>) -> StreamVec<'scope, u64, QuantisedRecords>;
}

impl<'scope> Clip<'scope> for StreamVec<'scope, u64, Records> {
    fn clip(self, clipper: Arc<Clipper>) -> StreamVec<'scope, u64, QuantisedRecords> {
        self.unary(Pipeline, "Clip", move |_capability, _info| {
            move |input, output| {
                input.for_each_time(|time, batches| {
                    let mut session = output.session(&time);
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        session.give(quantise(&clipper, records));
                    }
                });
            }
        })
    }
}

fn quantise(clipper: &Clipper, mut records: Records) -> QuantisedRecords {
    let mut rows = QuantisedRows::new(clipper.dimension());
    let rejected = clipper.quantise_all(&records.values, &mut rows);
    if !rejected.is_empty() {
        let mut rejected = rejected.into_iter().peekable();
        let mut place = 0;
        records.keys.retain(|_| {
            let keep = rejected.next_if_eq(&place).is_none();
            place += 1;
            keep
        });
    }
    QuantisedRecords { keys: records.keys, rows }
}
