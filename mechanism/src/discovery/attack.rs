//! Attacks on discovery. They measure how often a key of a single record or entity is shown, and
//! how far records move the noisy nodes. They also compare a restored state with one that ran on.
//! `entity_attack` attacks the contributions of entities.

use super::{
    Candidates, ClosedKeys, Counted, Discovery, DiscoveryParameterError, DiscoveryParameters, KeyArrival,
    names_of, tree,
};
use crate::moments::{Layout, SecondMoment};
use crate::noise::NoiseSource;
use crate::sensitivity::Neighbours;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const LAYOUT: Layout = Layout::new(1, SecondMoment::None);

pub(super) const PARAMETERS: DiscoveryParameters = DiscoveryParameters {
    delta: 1e-7,
    share: 0.1,
    most: 10,
    at_least: 1,
    threshold: None,
    counted: Counted::Records,
};

fn discovery(delta: f64, share: f64, at_least: u64, horizon: u64, sigma: f64) -> Arc<Discovery> {
    let parameters = DiscoveryParameters { delta, share, most: 3, at_least, ..PARAMETERS };
    Arc::new(Discovery::new(parameters, Neighbours::ZeroOut, sigma, horizon).unwrap())
}

/// Closes the next epoch. `keys` lists keys with their number of records, each of value 7, and the
/// entities of these records.
pub(super) fn closed(candidates: &mut Candidates, keys: &[(&str, i128, Vec<u128>)]) -> ClosedKeys {
    let epoch = candidates.next_epoch();
    let sums: Vec<_> = keys.iter().map(|&(_, count, _)| [count, 7 * count]).collect();
    let arrivals = keys.iter().zip(&sums).map(|((name, _, entities), sums)| KeyArrival {
        name: Arc::from(*name),
        sums: Some(sums[..].into()),
        entities,
    });
    candidates.close(epoch, arrivals).unwrap()
}

/// Closes an epoch in which keys have this many records. Returns new keys.
fn close(candidates: &mut Candidates, counts: &[(&str, i128)]) -> Vec<String> {
    let keys: Vec<_> = counts.iter().map(|&(name, count)| (name, count, Vec::new())).collect();
    names_of(&closed(candidates, &keys).public).unwrap()
}

/// Returns the share of seeds for which a key of `records` records is ever shown.
fn shown(discovery: &Arc<Discovery>, records: i128, epochs: u64, seeds: u64) -> f64 {
    let is_shown = |seed: &u64| {
        let source = NoiseSource::Seeded(*seed);
        let mut candidates = Candidates::new(Arc::clone(discovery), LAYOUT, source);
        let first = close(&mut candidates, &[("a", records)]);
        !first.is_empty() || (1..epochs).any(|_| !close(&mut candidates, &[]).is_empty())
    };
    (0..seeds).filter(is_shown).count() as f64 / seeds as f64
}

/// The share of 40,000 seeds has a deviation of at most 0.0025. The test allows five of these: a
/// false alarm has a probability below 10⁻⁶.
#[test]
fn a_key_of_one_neighbour_alone_is_shown_as_often_as_the_bound_says() {
    let (delta, seeds, room) = (0.3, 40_000, 5.0 * 0.0025);
    for at_least in [1, 4] {
        let one = shown(&discovery(delta, 0.2, at_least, 1, 3.0), at_least.into(), 1, seeds);
        assert!((one - delta).abs() < room, "{one}: the bound is reached in one epoch");
        // The worst record comes in the first epoch, so every test may show it.
        let six = shown(&discovery(delta, 0.2, at_least, 6, 3.0), at_least.into(), 6, seeds);
        assert!(six < delta + room && six > 0.6 * delta, "{six}");
        let fewer = shown(&discovery(delta, 0.2, at_least, 6, 3.0), i128::from(at_least) - 1, 6, 1000);
        assert_eq!(fewer, 0.0, "keys below at_least are never shown");
    }
}

/// Nodes of the trees of some keys, in records, at the epochs that complete them.
fn nodes(records: &[(u8, u64)], horizon: u64) -> BTreeMap<(u8, u32, u64), i64> {
    let mut nodes = BTreeMap::new();
    for &(key, epoch) in records {
        for level in 0..tree::height(horizon) {
            let end = epoch.div_ceil(1 << level) << level;
            if end <= horizon {
                *nodes.entry((key, level, end)).or_default() += 1;
            }
        }
    }
    nodes
}

#[test]
fn no_record_moves_the_nodes_farther_than_charged() {
    for horizon in 1..=33 {
        let height = i64::from(tree::height(horizon));
        let distance = |one: &[(u8, u64)], other: &[(u8, u64)]| -> i64 {
            let (one, mut both) = (nodes(one, horizon), nodes(other, horizon));
            one.into_iter().for_each(|(node, count)| *both.entry(node).or_default() -= count);
            both.values().map(|count| count * count).sum()
        };
        let cells = || (0..2).flat_map(|key| (1..=horizon).map(move |epoch| (key, epoch)));
        let blanked = cells().map(|cell| distance(&[cell], &[])).max();
        assert_eq!(blanked, Some(height), "attained at {horizon}");
        let moved = cells().flat_map(|from| cells().map(move |to| (from, to)));
        let moved = moved.map(|(from, to)| distance(&[from], &[to])).max();
        assert_eq!(moved, Some(2 * height), "attained at {horizon}");
    }
}

#[test]
fn noise_and_thresholds_are_those_of_the_theorem() {
    let parameters = DiscoveryParameters { at_least: 5, ..PARAMETERS };
    for (neighbours, squared) in [(Neighbours::ZeroOut, 10.0), (Neighbours::ReplaceOne, 20.0)] {
        let discovery = Discovery::new(parameters, neighbours, 2.0, 1000).unwrap();
        let of_node = 2.0 * f64::sqrt(squared / 0.1);
        assert!((discovery.deviation(1) / of_node - 1.0).abs() < 1e-6);
        assert!((discovery.deviation(1000) / of_node - tree::variance(1000).sqrt()).abs() < 1e-6);
        // 6.361 is the quantile of 10⁻¹⁰.
        let threshold = 5.0 + 6.3613 * discovery.deviation(1000);
        assert!((discovery.threshold(1000) / threshold - 1.0).abs() < 1e-4, "{}", discovery.threshold(1000));
        assert!((discovery.total_variation() / 1e-7 - 1.0).abs() < 1e-6);
    }
    let slots = Discovery::multiplier_of_slots(parameters, 3.0);
    assert!(1.0 / slots.powi(2) + 0.1 / 9.0 <= 1.0 / 9.0 && slots < 3.0 / 0.9f64.sqrt() * (1.0 + 1e-12));
}

#[test]
fn invalid_parameters_are_refused() {
    let valid = PARAMETERS;
    let refused = |parameters, horizon| Discovery::new(parameters, Neighbours::ZeroOut, 2.0, horizon).err();
    assert_eq!(refused(valid, 10), None);
    for (parameters, horizon) in [
        (DiscoveryParameters { delta: 0.0, ..valid }, 10),
        (DiscoveryParameters { delta: f64::NAN, ..valid }, 10),
        (DiscoveryParameters { share: 1.0, ..valid }, 10),
        (DiscoveryParameters { most: 0, ..valid }, 10),
        (DiscoveryParameters { at_least: 0, ..valid }, 10),
        (valid, 0),
        (valid, super::MOST_EPOCHS + 1),
    ] {
        assert!(matches!(refused(parameters, horizon), Some(DiscoveryParameterError::Range { .. })));
    }
    let tiny = DiscoveryParameters { delta: 1e-300, ..valid };
    assert!(matches!(refused(tiny, 10), Some(DiscoveryParameterError::Delta { .. })));
    let in_place = Discovery::new(valid, Neighbours::ReplaceOneInPlace, 2.0, 10).err();
    assert_eq!(in_place, Some(DiscoveryParameterError::InPlace));
}

/// Records of each epoch: two frequent keys, a rare one, and many of a single record.
fn stream(epoch: u64) -> Vec<(String, i128)> {
    let mut counts = vec![("often".to_owned(), 400), (format!("once {epoch}"), 1)];
    if epoch.is_multiple_of(3) {
        counts.extend([("also".to_owned(), 900), ("rare".to_owned(), 2)]);
    }
    counts
}

/// Compares the outputs of three machines: one runs on, one is saved and restored after every
/// epoch, and one replays the outputs of the first.
#[test]
fn a_restart_changes_nothing() {
    for counted in [Counted::Records, Counted::Entities { records: 2 }] {
        let parameters =
            DiscoveryParameters { delta: 1e-3, share: 0.5, most: 3, at_least: 1, counted, ..PARAMETERS };
        let discovery = Arc::new(Discovery::new(parameters, Neighbours::ZeroOut, 3.0, 20).unwrap());
        let new = || Candidates::new(Arc::clone(&discovery), LAYOUT, NoiseSource::Seeded(5));
        let [mut whole, mut restored, mut replayed] = [(); 3].map(|()| new());
        for epoch in 1..=20 {
            let records = stream(epoch);
            // Each record has an entity, half of which come again in the next epoch.
            let entities =
                |n: i128| (0..n as u128).map(|at| at + u128::from(epoch) * n as u128 / 2).collect();
            let entities = |n| if counted == Counted::Records { Vec::new() } else { entities(n) };
            let keys: Vec<_> = records.iter().map(|(name, n)| (&**name, *n, entities(*n))).collect();
            let close = |candidates: &mut Candidates| closed(candidates, &keys);
            let [closed, other] = [close(&mut whole), close(&mut restored)];
            assert!(
                closed.slots == other.slots
                    && closed.public == other.public
                    && closed.private == other.private
            );
            let saved = restored.save();
            restored = new();
            restored.restore(&saved).unwrap();
            // The replaying machine closes the last epoch itself.
            if epoch < 20 {
                replayed.replay(epoch, &closed.private, &closed.public).unwrap();
            } else {
                let own = close(&mut replayed);
                assert!(own.slots == closed.slots && own.public == closed.public);
            }
            let expected = 7 * closed.slots.values().map(|sums| sums[0]).sum::<i128>();
            assert_eq!(closed.slots.values().map(|sums| sums[1]).sum::<i128>(), expected);
        }
        let names: Vec<_> = whole.names().collect();
        assert!(names == ["often", "also"] || names == ["also", "often"], "{counted:?}: {names:?}");
        assert!(replayed.names().eq(names));
    }
}

#[test]
fn records_before_the_discovery_enter_the_slot_once() {
    let discovery = discovery(0.2, 0.5, 1, 8, 1.0);
    let mut candidates = Candidates::new(discovery, LAYOUT, NoiseSource::Seeded(1));
    let mut seen = 0;
    for epoch in 1..=8 {
        let closed = closed(&mut candidates, &[("a", 20, Vec::new())]);
        seen += closed.slots.get(&0).map_or(0, |sums| sums[0]);
        if candidates.names().len() == 1 {
            assert_eq!(seen, 20 * i128::from(epoch));
        }
    }
    assert_eq!(candidates.names().len(), 1);
}

#[test]
fn slots_are_taken_by_name_until_none_is_left() {
    let discovery = discovery(0.2, 0.5, 1, 4, 1.0);
    let mut candidates = Candidates::new(discovery, LAYOUT, NoiseSource::Seeded(1));
    let many = 100_000;
    assert_eq!(
        close(&mut candidates, &[("d", many), ("b", many), ("é", many), ("a", many)]),
        ["a", "b", "d"]
    );
    assert!(close(&mut candidates, &[("c", many), ("é", many)]).is_empty());
    assert_eq!(candidates.save()[2], 0, "no candidate is kept");
}

#[test]
fn foreign_states_are_refused() {
    let new = || Candidates::new(discovery(0.2, 0.5, 1, 4, 1.0), LAYOUT, NoiseSource::Seeded(1));
    let mut candidates = new();
    close(&mut candidates, &[("a", 1), ("b", 100_000)]);
    let saved = candidates.save();
    assert!(new().restore(&saved).is_ok());
    for length in 0..saved.len() {
        assert!(new().restore(&saved[..length]).is_err(), "cut to {length}");
    }
    assert!(new().restore(&[&saved[..], &[0]].concat()).is_err());
    assert!(candidates.close(1, []).is_err(), "an epoch is closed once");
    assert!(candidates.replay(2, &[1], &[]).is_err());
}

#[test]
fn secrets_of_the_system_are_new_each_time() {
    let new = || Candidates::new(discovery(0.2, 0.5, 1, 4, 1.0), LAYOUT, NoiseSource::System);
    let [one, other] = [new(), new()].map(|mut candidates| candidates.close(1, []).unwrap().private.to_vec());
    assert_ne!(one, other);
    let mut exhausted = Candidates::new(discovery(0.2, 0.5, 1, 4, 1.0), LAYOUT, NoiseSource::Exhausted);
    assert!(exhausted.close(1, []).is_err(), "without entropy nothing is released");
}
