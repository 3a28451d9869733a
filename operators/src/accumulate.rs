//! `accumulate`: exact sums of each worker's own records, per epoch.

use crate::batch_squares::square_batches;
use crate::measurement::{Cut, MeasurementId};
use crate::{ClosedEpoch, Fault, Measurement, OpenEpochs, PartialSums, QuantisedRecords};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::Accumulators;
use hushflow_mechanism::release::Shards;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// Sums records.
pub trait Accumulate<'scope> {
    /// Sums the records of each (key, epoch) on this worker and sends the sums, cut by shard, when
    /// the epoch closes.
    ///
    /// For the method `batch-squares`, the squares of the sums over all workers replace the second
    /// moments. A key that is not below the measurement's number of keys raises the fault. So do
    /// records that were clipped under another measurement.
    ///
    /// Records of two epochs give two sums (here one shard holds all coordinates):
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let batch = Records { keys: vec![0; 3], epochs: vec![1, 1, 2], values: vec![0.5, 0.25, 0.125], ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault);
    ///     sums.inspect_time(move |epoch, _private| seen.send(*epoch).expect("heard"));
    /// });
    /// assert_eq!(all_seen.iter().collect::<Vec<_>>(), [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums>;
}

impl<'scope> Accumulate<'scope> for StreamVec<'scope, u64, QuantisedRecords> {
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums> {
        summed(measurement, fault, |cut, fault| sums(self, cut, fault))
    }
}

pub(crate) fn summed<'scope>(
    measurement: &Measurement,
    fault: Fault,
    sums: impl FnOnce(Cut, Fault) -> StreamVec<'scope, u64, PartialSums>,
) -> StreamVec<'scope, u64, PartialSums> {
    let (layout, shards) = (measurement.layout(), measurement.shards());
    let released = Cut { measurement: measurement.id(), layout, shards };
    match measurement.mechanism().moments().parameters().method {
        Method::BatchSquares { size } => {
            let layout = layout.without_second();
            let keys = (shards.coordinates() / released.layout.coordinates() as u64) as u32;
            let cut = Cut { layout, shards: Shards::new(keys, layout, shards.number()), ..released };
            square_batches(sums(cut, fault.clone()), size.get(), cut, released, fault)
        }
        _ => sums(released, fault),
    }
}

fn sums<'scope>(
    records: StreamVec<'scope, u64, QuantisedRecords>,
    cut: Cut,
    fault: Fault,
) -> StreamVec<'scope, u64, PartialSums> {
    records.unary_frontier(Pipeline, "Accumulate", move |_capability, _info| {
        let mut epochs = OpenEpochs::new(fault.clone());
        move |(input, frontier), output| {
            let sums = || Accumulators::new(cut.layout);
            epochs.collect(input, sums, |sums, records| add(sums, &records, cut.measurement, &fault));
            epochs.on_close([frontier], |run| {
                for ClosedEpoch { times: [time], data: mut sums, .. } in run {
                    output.session(time).give_iterator(partial_sums(&mut sums, cut)?.into_iter());
                }
                Ok(())
            });
        }
    })
}

pub(crate) fn add(
    sums: &mut Accumulators,
    records: &QuantisedRecords,
    measurement: MeasurementId,
    fault: &Fault,
) {
    let checked = records.measurement.check(measurement, "clipped records");
    let added =
        checked.and_then(|()| sums.add(&records.keys, &records.rows).map_err(|error| error.to_string()));
    added.unwrap_or_else(|reason| fault.raise(reason));
}

/// Cuts sums into pieces. Sums of neighbouring keys in the same shard form one piece.
fn partial_sums(sums: &mut Accumulators, cut: Cut) -> Result<Vec<PartialSums>, String> {
    let Cut { measurement, layout, shards } = cut;
    let (keys, width) = (sums.keys(), layout.coordinates() as u64);
    if keys.last().is_some_and(|&last| (u64::from(last) + 1) * width > shards.coordinates()) {
        let keys = shards.coordinates() / width;
        return Err(format!("a record's key is not among the {keys} keys: number keys from 0"));
    }
    let runs = keys.chunk_by(|key, next| key + 1 == *next).map(|run| {
        let start = u64::from(run[0]) * width;
        start..start + run.len() as u64 * width
    });
    let pieces: Vec<_> = runs.flat_map(|run| shards.split(run)).collect();
    let room = |(_, piece): &(u32, std::ops::Range<u64>)| {
        Zeroizing::new(Vec::with_capacity((piece.end - piece.start) as usize))
    };
    let mut parts: Vec<Zeroizing<Vec<i128>>> = pieces.iter().map(room).collect();
    let mut open = parts.iter_mut().zip(&pieces).peekable();
    sums.drain(|_, mut coordinates| {
        while let Some((part, (_, piece))) = open.peek_mut() {
            let room = (piece.end - piece.start) as usize - part.len();
            let (here, beyond) = coordinates.split_at(room.min(coordinates.len()));
            part.extend_from_slice(here);
            coordinates = beyond;
            if here.len() < room {
                return;
            }
            open.next();
        }
    });
    let whole = |((shard, piece), sums): ((u32, std::ops::Range<u64>), Zeroizing<Vec<i128>>)| PartialSums {
        measurement,
        shard,
        offset: piece.start - shards.range(shard).start,
        sums: sums.into(),
    };
    Ok(pieces.into_iter().zip(parts).map(whole).collect())
}
