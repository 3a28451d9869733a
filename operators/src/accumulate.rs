//! `accumulate`: exact sums of each worker's own records, per epoch.

use crate::{ClosedEpoch, Fault, Measurement, OpenEpochs, PartialSums, QuantisedRecords};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::Accumulators;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use zeroize::Zeroizing;

/// Sums records.
pub trait Accumulate<'scope> {
    /// Sums the records of each (key, epoch) on this worker and sends the sums, cut by shard, when
    /// the epoch closes.
    ///
    /// A key that is not below the measurement's number of keys raises the fault. So do records
    /// that were clipped under another measurement, and the method `batch-squares`, whose second
    /// moments are not sums over records.
    ///
    /// Records of two epochs give two sums (here one shard holds all coordinates):
    ///
    /// ```
    #[doc = include_str!("../doc/setup.txt")]
    /// let (keys, epochs, values) = (vec![0; 3], vec![1, 1, 2], vec![0.5, 0.25, 0.125]);
    /// let batch = Records { keys, epochs, values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).epochs().clip(&measurement, fault.clone());
    ///     let sums = records.accumulate(&measurement, fault);
    ///     sums.inspect_time(move |epoch, _private| sender.send(*epoch).expect("a receiver"));
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums>;
}

impl<'scope> Accumulate<'scope> for StreamVec<'scope, u64, QuantisedRecords> {
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums> {
        if let Method::BatchSquares { .. } = measurement.mechanism().moments().parameters().method {
            fault.raise("batch-squares needs the squares of whole batches: only a training loop makes them");
        }
        let measurement = measurement.clone();
        self.unary_frontier(Pipeline, "Accumulate", move |_capability, _info| {
            let mut epochs = OpenEpochs::new(fault.clone());
            move |(input, frontier), output| {
                let sums = || Accumulators::new(measurement.layout());
                epochs.collect(input, sums, |sums, records| add(sums, &records, &measurement, &fault));
                epochs.on_close([frontier], |run| {
                    for ClosedEpoch { times: [time], data: mut sums, .. } in run {
                        output
                            .session(time)
                            .give_iterator(partial_sums(&mut sums, &measurement)?.into_iter());
                    }
                    Ok(())
                });
            }
        })
    }
}

pub(crate) fn add(
    sums: &mut Accumulators,
    records: &QuantisedRecords,
    measurement: &Measurement,
    fault: &Fault,
) {
    let checked = records.measurement.check(measurement.id(), "clipped records");
    let added =
        checked.and_then(|()| sums.add(&records.keys, &records.rows).map_err(|error| error.to_string()));
    added.unwrap_or_else(|reason| fault.raise(reason));
    records.sent.iter().for_each(|(&key, &number)| sums.add_sent(key, number));
}

/// Cuts sums into pieces. Sums of neighbouring keys in the same shard form one piece.
fn partial_sums(sums: &mut Accumulators, measurement: &Measurement) -> Result<Vec<PartialSums>, String> {
    let (layout, shards) = (measurement.layout(), measurement.shards());
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
    let whole = |((shard, piece), sums): ((u32, std::ops::Range<u64>), Zeroizing<Vec<i128>>)| {
        measurement.partial_sums(shard, piece.start - shards.range(shard).start, sums.into())
    };
    Ok(pieces.into_iter().zip(parts).map(whole).collect())
}
