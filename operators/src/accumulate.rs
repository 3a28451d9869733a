//! `accumulate`: exact sums of each worker's own records, per epoch.

use crate::{ClosedEpoch, Entity, Fault, Measurement, OpenEpochs, PartialSums, QuantisedRecords};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::Accumulators;
use std::collections::BTreeMap;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;

/// Sums records.
pub trait Accumulate<'scope> {
    /// Sums the records of each (key, epoch) on this worker and sends the sums, cut by shard, when
    /// the epoch closes.
    ///
    /// A key that is not below the measurement's number of keys raises the fault. So do records
    /// that were clipped under another measurement, a measurement whose keys are
    /// [discovered](crate::Discover), and the method `batch-squares`, whose second moments are not
    /// sums over records.
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
    ///     let sums = sums.container::<Vec<_>>();
    ///     sums.inspect(move |private| sender.send(private.epoch()).expect("a receiver"));
    /// });
    /// assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums>;
}

impl<'scope> Accumulate<'scope> for StreamVec<'scope, u64, QuantisedRecords> {
    fn accumulate(self, measurement: &Measurement, fault: Fault) -> StreamVec<'scope, u64, PartialSums> {
        if measurement.discovers() {
            fault.raise("the keys of this measurement are discovered: let its records pass `discover`");
        }
        accumulate_with(self, "Accumulate", measurement, fault, |epoch, summed, measurement| {
            partial_sums(epoch, &mut summed.sums, measurement)
        })
    }
}

/// Sums the records of each (key, epoch) on this worker. When an epoch closes, passes its sums to
/// `give` and sends the result.
pub(crate) fn accumulate_with<'scope, T: 'static, I: IntoIterator<Item = T>>(
    records: StreamVec<'scope, u64, QuantisedRecords>,
    name: &str,
    measurement: &Measurement,
    fault: Fault,
    give: impl Fn(u64, &mut SummedRecords, &Measurement) -> Result<I, String> + 'static,
) -> StreamVec<'scope, u64, T> {
    if let Method::BatchSquares { .. } = measurement.mechanism().moments().parameters().method {
        fault.raise("batch-squares needs the squares of whole batches: only a training loop makes them");
    }
    let measurement = measurement.clone();
    records.unary_frontier(Pipeline, name, move |_capability, _info| {
        let mut epochs: OpenEpochs<_> = OpenEpochs::new(fault.clone());
        let mut spare: Vec<Accumulators> = Vec::new();
        let most_spare = SPARE_COORDINATES / measurement.layout().coordinates();
        move |(input, frontier), output| {
            epochs.collect_with(input, |time, records: QuantisedRecords, open| {
                let new = || {
                    let sums = spare.pop().unwrap_or_else(|| Accumulators::new(measurement.layout()));
                    SummedRecords { sums, key_entities: Vec::new() }
                };
                let mut sums = EpochSums { open, new };
                sums.add(&records, time, &measurement).unwrap_or_else(|reason| fault.raise(reason));
            });
            epochs.on_close([frontier], |run| {
                let Some(first) = run.first() else { return Ok(()) };
                let mut session = output.session(&first.times[0]);
                for ClosedEpoch { epoch, data: mut summed, .. } in run {
                    session.give_iterator(give(epoch, &mut summed, &measurement)?.into_iter());
                    if spare.len() < most_spare {
                        spare.push(summed.sums);
                    }
                }
                Ok(())
            });
        }
    })
}

/// Number of coordinates of accumulators of closed epochs that are kept for later epochs.
const SPARE_COORDINATES: usize = 1 << 18;

/// The sums and entities of an epoch's records on one worker.
pub(crate) struct SummedRecords {
    pub(crate) sums: Accumulators,
    /// Keys with their entities, as in [`BoundedRecords`](crate::BoundedRecords).
    pub(crate) key_entities: Vec<(u32, Entity)>,
}

/// The sums of open epochs.
struct EpochSums<'a, N> {
    open: &'a mut BTreeMap<u64, SummedRecords>,
    new: N,
}

impl<N: FnMut() -> SummedRecords> EpochSums<'_, N> {
    fn of(&mut self, epoch: u64) -> &mut SummedRecords {
        self.open.entry(epoch).or_insert_with(&mut self.new)
    }

    /// Adds records to the sums of their epochs. Records of epochs before `time` join epoch `time`.
    fn add(
        &mut self,
        records: &QuantisedRecords,
        time: u64,
        measurement: &Measurement,
    ) -> Result<(), String> {
        records.measurement.check(measurement.id(), "clipped records")?;
        let QuantisedRecords { keys, epochs, rows, sent, key_entities, .. } = records;
        if keys.len() != rows.len() || !(epochs.is_empty() || epochs.len() == keys.len()) {
            let (keys, epochs, rows) = (keys.len(), epochs.len(), rows.len());
            return Err(format!("a batch has {keys} keys and {epochs} epochs for its {rows} records"));
        }
        let whole = (time, keys.len());
        let runs = epochs.chunk_by(PartialEq::eq).map(|run| (run[0].max(time), run.len()));
        let mut start = 0;
        for (epoch, length) in runs.chain(epochs.is_empty().then_some(whole)) {
            let run = start..start + length;
            let added = self.of(epoch).sums.add_rows(&keys[run.clone()], rows, run);
            added.map_err(|error| error.to_string())?;
            start += length;
        }
        let last = epochs.last().map_or(time, |&epoch| epoch.max(time));
        sent.iter().for_each(|(&key, &number)| self.of(last).sums.add_sent(key, number));
        if !key_entities.is_empty() {
            self.of(last).key_entities.extend_from_slice(key_entities);
        }
        Ok(())
    }
}

/// Cuts the sums of an epoch into pieces. Sums of neighbouring keys in the same shard form one
/// piece.
fn partial_sums(
    epoch: u64,
    sums: &mut Accumulators,
    measurement: &Measurement,
) -> Result<Vec<PartialSums>, String> {
    let (layout, shards) = (measurement.layout(), measurement.shards());
    let width = layout.coordinates() as u64;
    let (keys, all) = sums.take_row();
    if keys.last().is_some_and(|&last| (u64::from(last) + 1) * width > shards.coordinates()) {
        let keys = shards.coordinates() / width;
        return Err(format!("a record's key is not among the {keys} keys: number keys from 0"));
    }
    let (mut pieces, mut taken) = (Vec::new(), 0);
    for run in keys.chunk_by(|key, next| key + 1 == *next) {
        let start = u64::from(run[0]) * width;
        for (shard, piece) in shards.split(start..start + run.len() as u64 * width) {
            let length = (piece.end - piece.start) as usize;
            let offset = piece.start - shards.range(shard).start;
            pieces.push(measurement.partial_sums(epoch, shard, offset, all.part(taken..taken + length)));
            taken += length;
        }
    }
    Ok(pieces)
}
