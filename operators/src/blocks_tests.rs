//! Any split of records over workers, and any grouping of epochs into blocks, gives the same sums,
//! releases and states.

use crate::measurement::tests::vectors;
use crate::{Accumulate, Clip, Commit, CommitLog, EpochCommit, Fault, Records, ReleaseMoments};
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use proptest::prelude::*;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Input;
use timely::dataflow::operators::vec::ToStream;
use timely::dataflow::{InputHandle, StreamVec};

const LAYOUT: Layout = Layout::new(1, SecondMoment::Full);
const LAST: u64 = 14;
const KEYS: u32 = 9;

/// A record, and whether it is sent with the first block, long before its epoch closes.
#[derive(Clone, Debug)]
struct SentRecord {
    epoch: u64,
    key: u32,
    value: f64,
    early: bool,
}

/// Everything that is committed of an epoch: sums, values, and states by shard.
type Committed = (u64, Vec<i128>, Vec<i128>, Vec<(u32, Vec<u8>)>);

/// Commits records that are dealt to workers in turn. `blocks` has the last epoch of each block.
fn committed(records: &[SentRecord], blocks: &[u64], workers: usize) -> Vec<Committed> {
    let (sender, receiver) = mpsc::channel();
    let (records, blocks) = (Arc::new(records.to_vec()), Arc::new(blocks.to_vec()));
    let fault = Fault::new();
    let guards = timely::execute(timely::Config::process(workers), move |worker| {
        let builder = vectors(Method::Jme, LAYOUT, Neighbours::ReplaceOne).keys(KEYS).shards_at_most(4);
        let measurement =
            builder.noise(NoiseSource::Seeded(5)).checkpoint_interval(3).build().expect("sound");
        let (index, peers, sender, fault) = (worker.index(), worker.peers(), sender.clone(), fault.clone());
        let log = move |epochs: &[EpochCommit<u64>]| {
            epochs.iter().try_for_each(|epoch| {
                let sums = epoch.sums.iter().flat_map(|sums| sums.to_wide().to_vec()).collect();
                let states = epoch.states.iter().map(|(shard, state)| (*shard, state.to_vec())).collect();
                Ok(sender.send((epoch.released.epoch, sums, epoch.released.to_vec(), states))?)
            })
        };
        let mut input = InputHandle::<u64, CapacityContainerBuilder<Vec<Records>>>::new();
        let mut ends = InputHandle::<u64, CapacityContainerBuilder<Vec<u64>>>::new();
        worker.dataflow(|scope| {
            let stream: StreamVec<'_, u64, Records> = scope.input_from(&mut input);
            let sums = stream.clip(&measurement, fault.clone()).accumulate(&measurement, fault.clone());
            let released = sums.release(scope.input_from(&mut ends), &measurement, fault.clone());
            let log: Option<Box<dyn CommitLog<u64>>> = Some(Box::new(log));
            released.commit(Vec::new().to_stream(scope), &measurement, log, fault.clone());
        });
        input.advance_to(1);
        ends.advance_to(1);
        for (number, &last) in blocks.iter().enumerate() {
            let block = *input.time()..=last;
            let is_due = |record: &SentRecord| match record.early {
                true => number == 0,
                false => block.contains(&record.epoch),
            };
            let mut batch = Records::default();
            let own = records.iter().enumerate().filter(|(at, record)| at % peers == index && is_due(record));
            for (_, record) in own {
                batch.keys.push(record.key);
                batch.epochs.push(record.epoch);
                batch.values.push(record.value);
            }
            input.send(batch);
            input.advance_to(last + 1);
            ends.advance_to(last + 1);
            if last % 2 == 0 {
                worker.step();
            }
        }
        ends.send(LAST);
        drop((input, ends));
        while !fault.is_raised() && worker.step_or_park(Some(Duration::from_millis(20))) {}
        worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        assert_eq!(fault.reason(), None);
    });
    drop(guards.expect("workers"));
    let mut committed: Vec<Committed> = receiver.iter().collect();
    assert!(committed.iter().map(|epoch| epoch.0).eq(1..=LAST), "each epoch once, in order");
    committed.iter_mut().for_each(|epoch| epoch.3.sort());
    committed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn blocks_and_workers_do_not_change_what_is_committed(
        records in prop::collection::vec(
            (1..=LAST, 0..KEYS, -(1 << 19)..(1 << 19), any::<bool>()).prop_map(|(epoch, key, value, early)| {
                SentRecord { epoch, key, value: f64::from(value), early }
            }),
            0..40,
        ),
        cuts in prop::collection::btree_set(1..LAST, 0..6),
        workers in 1..4_usize,
    ) {
        let one_by_one: Vec<u64> = (1..=LAST).collect();
        let blocks: Vec<u64> = cuts.into_iter().chain([LAST]).collect();
        prop_assert_eq!(committed(&records, &one_by_one, 1), committed(&records, &blocks, workers));
    }
}
