//! Attacks on discovery for entities: what counts, how far one entity moves nodes and moments, how
//! often its keys are shown, and stated thresholds.

use super::attack::{LAYOUT, PARAMETERS, closed};
use super::{Candidates, Counted, Discovery, DiscoveryParameterError, DiscoveryParameters, names_of, tree};
use crate::mechanism::{Method, MomentGeometry, MomentMechanism, MomentParameters};
use crate::moments::RECORD_BITS;
use crate::noise::NoiseSource;
use crate::participation::Participation;
use crate::sensitivity::Neighbours;
use crate::strategy::{COEFFICIENT_BITS, Matrix};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn discovery(parameters: DiscoveryParameters, sigma: f64, horizon: u64) -> Arc<Discovery> {
    Arc::new(Discovery::new(parameters, Neighbours::ZeroOut, sigma, horizon).unwrap())
}

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

proptest! {
    /// With almost no noise the keys shown are those with more than `at_least` different entities.
    /// The number of records of each entity, and their times, do not matter.
    #[test]
    fn entities_count_once_for_a_key(
        stream in prop::collection::vec(prop::collection::vec((0..4_usize, 0..6_u128), 0..8), 1..8),
        restarts in any::<bool>(),
    ) {
        let counted = Counted::Entities { records: 9 };
        let parameters = DiscoveryParameters { delta: 0.1, at_least: 2, counted, ..PARAMETERS };
        let discovery = discovery(parameters, 1e-4, stream.len() as u64);
        let new = || Candidates::new(Arc::clone(&discovery), LAYOUT, NoiseSource::Seeded(1));
        let mut candidates = new();
        let mut seen: [BTreeSet<u128>; 4] = Default::default();
        for epoch in &stream {
            // Some keys arrive in two parts, as from two workers.
            let parts = |epoch: &[(usize, u128)]| -> Vec<_> {
                let entities = |key| {
                    epoch.iter().filter(|row| row.0 == key).map(|row| row.1).collect::<Vec<_>>()
                };
                (0..4).map(|key| (KEYS[key], entities(key).len() as i128, entities(key))).collect()
            };
            let (first, second) = epoch.split_at(epoch.len() / 2);
            let keys = [parts(first), parts(second)].concat();
            let shown = names_of(&closed(&mut candidates, &keys).public).unwrap();
            epoch.iter().for_each(|&(key, entity)| { seen[key].insert(entity); });
            let known: Vec<_> = (0..4).filter(|&key| seen[key].len() > 2).map(|key| KEYS[key]).collect();
            let mut names: Vec<_> = candidates.names().collect();
            names.sort_unstable();
            prop_assert_eq!(names, known);
            prop_assert!(shown.iter().all(|name| KEYS.contains(&&**name)));
            if restarts {
                let saved = candidates.save();
                candidates = new();
                candidates.restore(&saved).unwrap();
            }
        }
    }

    /// Squared distance of the nodes of all keys between two worlds in which one entity has up to K
    /// records anywhere. The records of other entities are equal and cancel.
    #[test]
    fn no_entity_moves_the_nodes_farther_than_charged(
        worlds in prop::array::uniform2(prop::collection::vec((0..3_u8, 1..=13_u64), 0..=3)),
    ) {
        let distance = nodes_apart(&worlds, 13);
        let height = i64::from(tree::height(13));
        prop_assert!(distance <= 2 * 3 * height);
        let [one, _] = &worlds;
        prop_assert!(nodes_apart(&[one.clone(), Vec::new()], 13) <= 3 * height);
    }
}

/// Squared distance of nodes, if an entity adds 1 to each of its keys in its first epoch there.
fn nodes_apart(worlds: &[Vec<(u8, u64)>; 2], horizon: u64) -> i64 {
    let mut nodes: BTreeMap<(u8, u32, u64), i64> = BTreeMap::new();
    for (world, sign) in worlds.iter().zip([1, -1]) {
        let mut first: BTreeMap<u8, u64> = BTreeMap::new();
        for &(key, epoch) in world {
            let begins = first.entry(key).or_insert(epoch);
            *begins = epoch.min(*begins);
        }
        for (key, epoch) in first {
            for level in 0..tree::height(horizon) {
                let end = epoch.div_ceil(1 << level) << level;
                if end <= horizon {
                    *nodes.entry((key, level, end)).or_default() += sign;
                }
            }
        }
    }
    nodes.values().map(|count| count * count).sum()
}

#[test]
fn the_charge_for_nodes_is_attained_and_is_that_of_the_noise() {
    let height = i64::from(tree::height(8));
    // Three keys in each world; the worlds have no key in common.
    let worlds = [vec![(0, 1), (1, 1), (2, 1)], vec![(3, 1), (4, 1), (5, 1)]];
    assert_eq!(nodes_apart(&worlds, 8), 6 * height);
    let counted = Counted::Entities { records: 3 };
    let parameters = DiscoveryParameters { counted, share: 0.2, ..PARAMETERS };
    for (neighbours, squared) in [(Neighbours::ZeroOut, 3 * height), (Neighbours::ReplaceOne, 6 * height)] {
        let discovery = Discovery::new(parameters, neighbours, 2.0, 8).unwrap();
        let expected = 2.0 * (squared as f64 / 0.2).sqrt();
        assert!((discovery.deviation(1) / expected - 1.0).abs() < 1e-9, "{}", discovery.deviation(1));
    }
}

/// Two entities with three records each have six keys, which is the number of keys in the union
/// bound. The frequency over 40,000 seeds has a standard deviation of at most 0.0012. The frequency
/// is off by more than five deviations with a probability below 10⁻⁶.
#[test]
fn keys_of_entities_of_one_neighbour_alone_are_shown_as_often_as_the_bound_says() {
    let (delta, seeds) = (0.06, 40_000);
    let counted = Counted::Entities { records: 3 };
    let parameters = DiscoveryParameters { delta, share: 0.2, at_least: 1, counted, ..PARAMETERS };
    let shown = |horizon| {
        let discovery = discovery(parameters, 3.0, horizon);
        let is_shown = |&seed: &u64| {
            let source = NoiseSource::Seeded(seed);
            let mut candidates = Candidates::new(Arc::clone(&discovery), LAYOUT, source);
            let keys = ["a", "b", "c", "d", "e", "f"].into_iter().enumerate();
            // The nine records of an entity count as one.
            let keys: Vec<_> = keys.map(|(at, name)| (name, 9, vec![at as u128 / 3])).collect();
            let mut names = closed(&mut candidates, &keys).public;
            (1..horizon).for_each(|_| names.extend(closed(&mut candidates, &[]).public));
            !names.is_empty()
        };
        (0..seeds).filter(is_shown).count() as f64 / seeds as f64
    };
    let (room, once) = (5.0 * 0.0012, 1.0 - (1.0 - delta / 6.0_f64).powi(6));
    let one = shown(1);
    assert!((one - once).abs() < room && one < delta + room, "{one}, expected {once}");
    let several = shown(5);
    assert!(several < delta + room && several > 0.5 * delta, "{several}");
}

/// An entity has up to K records in both worlds, each in any slot, in its own epoch or a later one.
/// They move the moments by at most the charge of K records at once. If all are in one cell, they
/// attain the charge.
#[test]
fn no_entity_moves_the_slots_farther_than_charged() {
    const EPOCHS: usize = 6;
    const SLOTS: usize = 3;
    const RECORDS: u32 = 3;
    const SIGMA: f64 = 0.7;
    for coefficients in [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.375, 0.3125, 0.25, 0.125]] {
        let matrix = Arc::new(Matrix::toeplitz(coefficients.to_vec(), EPOCHS).unwrap());
        let geometry =
            MomentGeometry::of_matrices(Arc::clone(&matrix), matrix, Participation::Single, [0.0; 2]);
        let parameters = MomentParameters {
            method: Method::Jme,
            layout: LAYOUT,
            neighbours: Neighbours::ReplaceOne,
            clip_norm: 1.0,
            noise_multiplier: SIGMA * f64::from(RECORDS),
            second_moment_weight: None,
            count_weight: None,
            bin_weight: None,
        };
        let mechanism = MomentMechanism::new(parameters, &geometry.unwrap()).unwrap();
        let mechanism = mechanism.for_records_at_once(RECORDS).unwrap();
        let width = mechanism.layout().coordinates();
        let unit = f64::from(COEFFICIENT_BITS).exp2();
        // Cells and signs of the records of both worlds.
        let loss = |worlds: [&[(usize, usize, i128)]; 2]| {
            let mut encoded = vec![0; SLOTS * EPOCHS * width];
            for (world, sign) in worlds.into_iter().zip([1, -1]) {
                for &(slot, epoch, value) in world {
                    for (later, coefficient) in (epoch..EPOCHS).zip(&coefficients) {
                        let at = (slot * EPOCHS + later) * width;
                        let coefficient = sign * (coefficient * unit) as i128;
                        encoded[at] += coefficient;
                        encoded[at + 1] += coefficient * (value << RECORD_BITS);
                    }
                }
            }
            mechanism.concentrated_loss(&encoded) * 2.0 * SIGMA * SIGMA
        };
        let mut worst = loss([&[(0, 0, 1); 3], &[(0, 0, -1); 3]]);
        assert!((worst - 1.0).abs() < 1e-3, "{worst}: all in one cell attain the charge");
        let mut random = crate::noise::NoiseSource::Seeded(3).generator(0, 0).unwrap();
        let mut below = |most: usize| rand::Rng::next_u32(&mut random) as usize % most;
        for _ in 0..20_000 {
            let mut world = || -> Vec<_> {
                let number = below(RECORDS as usize + 1);
                (0..number).map(|_| (below(SLOTS), below(EPOCHS), below(3) as i128 - 1)).collect()
            };
            worst = worst.max(loss([&world(), &world()]));
        }
        assert!(worst < 1.0 + 1e-9, "{worst}");
    }
}

#[test]
fn a_stated_threshold_must_cost_what_is_stated() {
    let counted = Counted::Entities { records: 4 };
    let parameters = DiscoveryParameters { counted, ..PARAMETERS };
    let own = discovery(parameters, 2.0, 100);
    let highest = (1..=100).map(|epoch| own.threshold(epoch)).fold(0.0, f64::max);
    let stated = |threshold| {
        let parameters = DiscoveryParameters { threshold: Some(threshold), ..parameters };
        Discovery::new(parameters, Neighbours::ZeroOut, 2.0, 100)
    };
    let enough = stated(highest.ceil() as u64).unwrap();
    assert!((1..=100).all(|epoch| enough.threshold(epoch) == highest.ceil()));
    assert_eq!(enough.total_variation(), own.total_variation());
    let Err(DiscoveryParameterError::Threshold { delta, least, .. }) = stated(highest as u64 / 2) else {
        panic!("half is too low")
    };
    assert!(delta > 1e-7 && least as f64 == highest.ceil(), "{delta} {least} {highest}");
    // The bound by its definition: twice four keys, each tested in every epoch.
    let low = highest as u64 / 2;
    let tail = |epoch| libm::erfc((low as f64 - 1.0) / own.deviation(epoch) / 2_f64.sqrt()) / 2.0;
    let expected = 8.0 * (1..=100).map(tail).sum::<f64>();
    assert!((delta / expected - 1.0).abs() < 1e-3, "{delta} {expected}");
}

#[test]
fn more_records_than_noise_can_hide_are_refused() {
    for records in [0, super::MOST_RECORDS + 1, u32::MAX] {
        let parameters = DiscoveryParameters { counted: Counted::Entities { records }, ..PARAMETERS };
        let refused = Discovery::new(parameters, Neighbours::ZeroOut, 2.0, 10).err();
        assert!(matches!(refused, Some(DiscoveryParameterError::Range { .. })), "{records}");
    }
}
