//! `clip`: centres, scales, clips and quantises records.

use crate::{Fault, QuantisedRecords, Records};
use hushflow_mechanism::moments::{Clipper, QuantisedRows, RecordError};
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroize;

/// Bounds what a record can do.
pub trait Clip<'scope> {
    /// Brings every record into the ζ-ball and onto its integer grid. A record that is not finite is dropped, as one NaN
    /// must not poison a sum; where counts are public it counts as the centre, if the clipper is made
    /// [`counting_unusable`](Clipper::counting_unusable), as it must be there.
    /// A batch that does not divide into rows raises the fault.
    ///
    /// ```
    /// use hushflow_mechanism::moments::Clipper;
    /// use hushflow_operators::{Clip, Fault, Records};
    /// use std::sync::Arc;
    /// use timely::dataflow::operators::{Inspect, vec::ToStream};
    ///
    /// let clipper = Arc::new(Clipper::new(&[(0.0, 100.0)], 1.0)?);
    /// let batch = Records { keys: vec![0; 3], values: vec![50.0, 1e9, f64::NAN], ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     let clipped = records.clip(clipper, Fault::new());
    ///     clipped.inspect(|batch| assert_eq!(batch.rows.values(), [0.0, 1048576.0]));
    /// });
    /// # Ok::<(), hushflow_mechanism::moments::ClipError>(())
    /// ```
    fn clip(self, clipper: Arc<Clipper>, fault: Fault) -> StreamVec<'scope, u64, QuantisedRecords>;
}

impl<'scope> Clip<'scope> for StreamVec<'scope, u64, Records> {
    fn clip(self, clipper: Arc<Clipper>, fault: Fault) -> StreamVec<'scope, u64, QuantisedRecords> {
        self.unary(Pipeline, "Clip", move |_capability, _info| {
            // The times of batches that could not be taken stay: a fault must not look like an end.
            let mut failed = Vec::new();
            move |input, output| {
                input.for_each_time(|time, batches| {
                    let mut session = output.session(&time);
                    for records in batches.flat_map(|batch| batch.drain(..)) {
                        match quantise(&clipper, records) {
                            Ok(quantised) => session.give(quantised),
                            Err(error) => {
                                failed.push(time.retain(0));
                                fault.raise(error);
                            }
                        }
                    }
                });
            }
        })
    }
}

/// Raw values are wiped once they are quantised.
fn quantise(clipper: &Clipper, mut records: Records) -> Result<QuantisedRecords, RecordError> {
    let mut rows = QuantisedRows::new(clipper.dimension());
    let left_out = clipper.quantise_all(&records.values, &mut rows);
    records.values.zeroize();
    let left_out = left_out?;
    let (mut left_out, mut places) = (left_out.into_iter().peekable(), 0..);
    records.keys.retain(|_| places.next().is_none_or(|place| left_out.next_if_eq(&place).is_none()));
    Ok(QuantisedRecords { keys: records.keys, rows })
}
