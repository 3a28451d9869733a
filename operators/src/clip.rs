//! `clip`: centres, scales, clips and quantises records.

use crate::{BoundedRecords, Entity, Fault, Measurement, QuantisedRecords, Records, map_or_fault};
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;

/// Bounds the effect of each record.
pub trait Clip<'scope> {
    /// Clips every record to the ζ-ball and rounds it to the ball's integer grid. A record that is
    /// not finite is dropped, because one NaN would make a sum NaN. If counts are public, such a
    /// record counts as the centre instead. With
    /// [indicators](crate::MeasurementBuilder::with_indicators) a value that is not finite is
    /// missing, and a record is dropped only if all its values are missing.
    ///
    /// The fault is raised by a batch that does not divide into rows. If the measurement protects
    /// entities, it is also raised by records that did not pass
    /// [`BoundEntities`](crate::BoundEntities), or passed it under another measurement.
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let values = vec![0.5, 1e9, f64::NAN];
    /// let batch = Records { keys: vec![0; 3], values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>();
    ///     let clipped = records.clip(&measurement, fault);
    ///     clipped.inspect(move |batch| {
    ///         sender.send(batch.rows().values().to_vec()).expect("a receiver");
    ///     });
    /// });
    /// assert_eq!(receiver.recv()?, [524288.0, 1048576.0]); // in units of 2⁻²⁰
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn clip(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, QuantisedRecords>;
}

impl<'scope> Clip<'scope> for StreamVec<'scope, u64, Records> {
    fn clip(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, QuantisedRecords> {
        clip(self, measurement, fault, |measurement, records| match measurement.bound_setup() {
            None if records.entities.is_empty() => Ok((records, BTreeMap::new(), Vec::new())),
            None => Err(
                "records of entities came, and the measurement protects none: give it `entities`, and let \
                         the records pass `bound` first"
                    .into(),
            ),
            Some(_) => {
                Err("records of entities came that were not bounded: let them pass `bound` first".into())
            }
        })
    }
}

impl<'scope> Clip<'scope> for StreamVec<'scope, u64, BoundedRecords> {
    fn clip(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, QuantisedRecords> {
        clip(self, measurement, fault, |measurement, bounded| {
            bounded.measurement.check(measurement.id(), "bounded records")?;
            Ok((bounded.records, bounded.sent, bounded.key_entities))
        })
    }
}

/// Records, numbers of sent ones by key, and keys with their entities.
type Bounded = (Records, BTreeMap<u32, u64>, Vec<(u32, Entity)>);

fn clip<'scope, B: Clone + 'static>(
    batches: StreamVec<'scope, u64, B>,
    measurement: &Measurement,
    fault: Fault,
    records: impl Fn(&Measurement, B) -> Result<Bounded, String> + 'static,
) -> StreamVec<'scope, u64, QuantisedRecords> {
    let measurement = measurement.clone();
    map_or_fault(batches, Pipeline, "Clip", fault, move |_, batch| {
        Ok([quantise(&measurement, records(&measurement, batch)?)?])
    })
}

fn quantise(
    measurement: &Measurement,
    (mut records, sent, key_entities): Bounded,
) -> Result<QuantisedRecords, String> {
    let clipper = measurement.clipper();
    let quantised = clipper.quantise_taken(std::mem::take(&mut records.values));
    let (rows, left_out) = quantised.map_err(|error| error.to_string())?;
    leave_out(&mut records.keys, &left_out);
    leave_out(&mut records.epochs, &left_out);
    let Records { keys, epochs, .. } = records;
    Ok(QuantisedRecords { measurement: measurement.id(), keys, epochs, rows, sent, key_entities })
}

/// Removes the rows with these indices, which ascend.
fn leave_out<T>(column: &mut Vec<T>, rows: &[usize]) {
    if !rows.is_empty() {
        let (mut rows, mut row) = (rows.iter().peekable(), 0..);
        column.retain(|_| row.next().is_none_or(|row| rows.next_if_eq(&&row).is_none()));
    }
}
