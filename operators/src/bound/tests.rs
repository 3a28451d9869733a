//! Compares the dataflow with the rule applied entity by entity, and tests how far neighbours can
//! move a bounded stream.

use super::*;
use crate::measurement::tests::entities;
use crate::{EncoderStates, SplitEpochs};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::Duration;
use timely::dataflow::operators::{Input, Inspect, Probe};
use timely::dataflow::{InputHandle, ProbeHandle};

/// A record: entity, epoch, key and value. Its index in the list is its position.
pub(super) type TestRecord = (u8, u64, u32, u8);

/// The records that pass as sorted (epoch, key, value), the participations as (epoch, entity), and
/// the number of sent records by epoch and key.
pub(super) type BoundedOutcome = (Vec<(u64, u32, u64)>, BTreeSet<(u64, u8)>, BTreeMap<(u64, u32), u64>);

pub(super) const LAST: u64 = 12;

/// Runs records through the operator on some workers, epoch by epoch, starting after the known
/// epochs.
pub(super) fn bounded(
    records: &[TestRecord],
    limits: EntityLimits,
    workers: usize,
    histories: &[(Entity, EntityHistory)],
    first: u64,
) -> BoundedOutcome {
    let (records, histories) = (Arc::new(records.to_vec()), Arc::new(histories.to_vec()));
    let (sender, receiver) = mpsc::channel();
    let (sent_sender, sent_receiver) = mpsc::channel();
    let fault = Fault::new();
    let raised = fault.clone();
    timely::execute(timely::Config::process(workers), move |worker| {
        let measurement = entities(limits, [(0.0, 255.0)]).histories(histories.clone());
        let measurement = measurement.resume(first, EncoderStates::new()).build().expect("a measurement");
        let [passed, taking] = [(); 2].map(|()| sender.clone());
        let sent = sent_sender.clone();
        let (mut input, probe) = (InputHandle::new(), ProbeHandle::new());
        worker.dataflow(|scope| {
            let bounded = scope.input_from(&mut input).epochs().bound(&measurement, fault.clone());
            bounded.admitted.inspect_time(move |&epoch, entities: &Vec<Entity>| {
                let entities = entities.iter().map(|&Entity(entity)| (epoch, u64::MAX, entity as u64));
                entities.for_each(|participation| taking.send(participation).expect("a receiver"));
            });
            let records = bounded.records.inspect_time(move |&epoch, batch: &BoundedRecords| {
                for (&key, &number) in batch.sent() {
                    sent.send(((epoch, key), number)).expect("a receiver");
                }
                for (at, &value) in batch.values.iter().enumerate() {
                    assert_eq!(batch.epochs[at], epoch);
                    passed.send((epoch, batch.keys[at].into(), value.to_bits())).expect("a receiver");
                }
            });
            records.probe_with(&probe);
        });
        for epoch in first..=LAST {
            let mut batch = Records::default();
            for (&(entity, at, key, value), position) in records.iter().zip(0..) {
                if at == epoch && position as usize % worker.peers() == worker.index() {
                    batch.keys.push(key);
                    batch.epochs.push(epoch);
                    batch.values.push(value.into());
                    batch.entities.push(Entity(entity.into()));
                    batch.positions.push(position);
                }
            }
            input.send(batch);
            input.advance_to(epoch + 1);
            // Sometimes several epochs close at once.
            if epoch % 3 == 0 {
                while probe.less_than(&(epoch + 1)) && worker.step_or_park(Some(Duration::from_millis(1))) {}
            }
        }
    })
    .expect("threads can be started");
    assert_eq!(raised.reason(), None);
    let (mut records, mut taking) = (Vec::new(), BTreeSet::new());
    for (epoch, key, value) in receiver.iter() {
        match u32::try_from(key) {
            Ok(key) => records.push((epoch, key, value)),
            Err(_) => assert!(taking.insert((epoch, value as u8)), "an entity takes part once in an epoch"),
        }
    }
    records.sort();
    let mut sent = BTreeMap::new();
    sent_receiver.iter().for_each(|(cell, number)| *sent.entry(cell).or_default() += number);
    (records, taking, sent)
}

fn expected(records: &[TestRecord], limits: EntityLimits) -> BoundedOutcome {
    let (mut passed, mut taking, mut sent) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    for entity in records.iter().map(|record| record.0).collect::<BTreeSet<_>>() {
        let own: Vec<_> = records.iter().filter(|record| record.0 == entity).collect();
        let mut admitted: Vec<u64> = Vec::new();
        for epoch in own.iter().map(|record| record.1).collect::<BTreeSet<_>>() {
            let apart = admitted.last().is_none_or(|last| epoch - last >= limits.min_separation);
            if !apart || admitted.len() as u64 == limits.participations {
                continue;
            }
            admitted.push(epoch);
            taking.insert((epoch, entity));
            let there: Vec<_> = own.iter().filter(|record| record.1 == epoch).collect();
            let most = limits.records_per_epoch as usize;
            let most_sent = limits.sent_limit.map_or(0, |most| most.get() as usize);
            let mut send = |key: u32| *sent.entry((epoch, key)).or_default() += 1;
            match limits.repeat_policy {
                RepeatPolicy::Keep => {
                    there.iter().take(most_sent).for_each(|record| send(record.2));
                    passed.extend(there.iter().take(most).map(|r| (epoch, r.2, f64::from(r.3).to_bits())));
                }
                RepeatPolicy::Average => {
                    let mut keys: Vec<u32> = Vec::new();
                    there.iter().for_each(|r| {
                        if !keys.contains(&r.2) {
                            keys.push(r.2)
                        }
                    });
                    keys.iter().take(most_sent).for_each(|&key| send(key));
                    for &key in keys.iter().take(most) {
                        let values: Vec<f64> =
                            there.iter().filter(|r| r.2 == key).map(|r| r.3.into()).collect();
                        let mean = values.iter().sum::<f64>() / values.len() as f64;
                        passed.push((epoch, key, mean.to_bits()));
                    }
                }
            }
        }
    }
    passed.sort();
    (passed, taking, sent)
}

fn close(found: &BoundedOutcome, expected: &BoundedOutcome) -> bool {
    let ((found, taking, sent), (expected, expected_taking, expected_sent)) = (found, expected);
    let near = |a: u64, b: u64| (f64::from_bits(a) - f64::from_bits(b)).abs() < 1e-9;
    let records = || found.iter().zip(expected).all(|(a, b)| (a.0, a.1) == (b.0, b.1) && near(a.2, b.2));
    (taking, sent) == (expected_taking, expected_sent) && found.len() == expected.len() && records()
}

pub(super) fn limits() -> impl Strategy<Value = EntityLimits> {
    (1..4_u64, 1..5_u64, 1..3_u32, prop::bool::ANY, 0..4_u32).prop_map(
        |(participations, min_separation, records_per_epoch, average, more)| {
            let repeat_policy = if average { RepeatPolicy::Average } else { RepeatPolicy::Keep };
            let sent_limit = NonZeroU32::new(records_per_epoch + more).filter(|_| more > 0);
            EntityLimits { participations, min_separation, records_per_epoch, repeat_policy, sent_limit }
        },
    )
}

/// A skewed distribution: some entities have most of the records.
fn entity() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0_u8), Just(1), 0..20_u8]
}

fn records(most: usize) -> impl Strategy<Value = Vec<TestRecord>> {
    prop::collection::vec((entity(), 1..=LAST, 0..3_u32, 0..=255_u8), 0..most)
}

fn changes(a: &[(u64, u32, u64)], b: &[(u64, u32, u64)]) -> BTreeMap<u64, [usize; 2]> {
    let mut counts: BTreeMap<(u64, u32, u64), i64> = BTreeMap::new();
    a.iter().for_each(|record| *counts.entry(*record).or_default() += 1);
    b.iter().for_each(|record| *counts.entry(*record).or_default() -= 1);
    let mut changes: BTreeMap<u64, [usize; 2]> = BTreeMap::new();
    for ((epoch, ..), count) in counts.into_iter().filter(|(_, count)| *count != 0) {
        changes.entry(epoch).or_default()[usize::from(count < 0)] += count.unsigned_abs() as usize;
    }
    changes
}

fn check_pattern(epochs: &[u64], limits: &EntityLimits) -> Result<(), TestCaseError> {
    prop_assert!(epochs.len() as u64 <= limits.participations, "{:?}", epochs);
    prop_assert!(epochs.windows(2).all(|pair| pair[1] - pair[0] >= limits.min_separation), "{:?}", epochs);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_dataflow_matches_the_rule_on_any_number_of_workers(
        records in records(80), limits in limits(), workers in 1..4_usize,
    ) {
        let found = bounded(&records, limits, workers, &[], 1);
        prop_assert!(close(&found, &expected(&records, limits)));
        prop_assert!(found == bounded(&records, limits, 1, &[], 1), "bit by bit");
    }

    #[test]
    fn one_entity_changes_k_epochs_b_apart_by_m_records_each(
        others in records(60), limits in limits(), mine in records(40), yours in records(40),
    ) {
        // Each version has its own rows of entity 100, or none, and the same rows of all others, in
        // the same order.
        let version = |own: &[TestRecord]| -> Vec<TestRecord> {
            own.iter().map(|&(_, epoch, key, value)| (100, epoch, key, value)).chain(others.clone()).collect()
        };
        let blank: Vec<TestRecord> = Vec::new();
        let [a, b, none] = [&mine, &yours, &blank].map(|own| expected(&version(own), limits));
        let run = bounded(&version(&mine), limits, 2, &[], 1);
        prop_assert!(close(&run, &a));
        let most = limits.records_per_epoch as usize;
        for own in [&a, &b] {
            let taken = changes(&own.0, &none.0);
            check_pattern(&taken.keys().copied().collect::<Vec<_>>(), &limits)?;
            prop_assert!(taken.values().all(|&[more, less]| more <= most && less == 0));
            let epochs: Vec<_> = own.1.iter().filter(|participation| participation.1 == 100).map(|participation| participation.0).collect();
            check_pattern(&epochs, &limits)?;
        }
        // At most M sent records are counted, in the epochs in which the entity takes part. They
        // include the records that pass.
        for own in [&a, &b] {
            let mut more: BTreeMap<u64, u64> = BTreeMap::new();
            for (cell, number) in &own.2 {
                *more.entry(cell.0).or_default() += number - none.2.get(cell).copied().unwrap_or(0);
            }
            more.retain(|_, number| *number > 0);
            let most_sent = limits.sent_limit.map_or(0, |most| u64::from(most.get()));
            prop_assert!(more.values().all(|&number| number <= most_sent));
            check_pattern(&more.keys().copied().collect::<Vec<_>>(), &limits)?;
            let counts = |cell: &(u64, u32)| own.0.iter().filter(|r| (r.0, r.1) == *cell).count() as u64;
            prop_assert!(own.2.iter().all(|(cell, number)| counts(cell) <= *number));
        }
        // Replaced: one pattern is removed and another added.
        let replaced = changes(&a.0, &b.0);
        prop_assert!(replaced.values().all(|&[gone, come]| gone <= most && come <= most));
        for side in [0, 1] {
            let epochs: Vec<_> = replaced.iter().filter(|(_, change)| change[side] > 0).map(|(&e, _)| e).collect();
            check_pattern(&epochs, &limits)?;
        }
        prop_assert!(a.1.iter().filter(|participation| participation.1 != 100).eq(b.1.iter().filter(|participation| participation.1 != 100)));
    }

    #[test]
    fn a_restart_continues_with_the_histories(records in records(80), limits in limits(), cut in 1..LAST) {
        let whole = bounded(&records, limits, 1, &[], 1);
        let mut histories: BTreeMap<u8, EntityHistory> = BTreeMap::new();
        for &(epoch, entity) in whole.1.iter().filter(|participation| participation.0 <= cut) {
            let history = limits.admit(histories.get(&entity).copied(), epoch);
            histories.insert(entity, history.expect("who takes part is admitted"));
        }
        let histories: Vec<_> =
            histories.into_iter().map(|(entity, history)| (Entity(entity.into()), history)).collect();
        let rest = bounded(&records, limits, 2, &histories, cut + 1);
        let after = |passed: &BoundedOutcome| -> BoundedOutcome {
            let (records, taking, sent) = passed;
            let sent = sent.iter().filter(|((epoch, _), _)| *epoch > cut).map(|(cell, number)| (*cell, *number));
            (
                records.iter().filter(|r| r.0 > cut).copied().collect(),
                taking.iter().filter(|t| t.0 > cut).copied().collect(),
                sent.collect(),
            )
        };
        prop_assert!(rest == after(&whole));
    }
}

#[test]
fn records_without_entities_raise_the_fault_and_keep_their_epoch_open() {
    let fault = Fault::new();
    let raised = fault.clone();
    let closed = timely::execute_directly(move |worker| {
        let measurement = entities(EntityLimits::LEAST, [(0.0, 1.0)]).build().expect("a measurement");
        let mut input = InputHandle::new();
        let probe = worker.dataflow(|scope| {
            let bounded = scope.input_from(&mut input).bound(&measurement, fault);
            bounded.records.probe().0
        });
        input.advance_to(1);
        input.send(Records { keys: vec![0], epochs: vec![1], values: vec![0.5], ..Records::default() });
        input.close();
        (0..20).for_each(|_| {
            worker.step();
        });
        let closed = probe.done();
        worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        closed
    });
    assert!(!closed && raised.reason().is_some_and(|reason| reason.contains("lacks the entity")));
}
