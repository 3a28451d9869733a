//! Views against their definitions: decoding, units, noise levels.

use super::*;
use crate::mechanism::{Method, MomentParameters};
use crate::moments::SecondMoment;
use crate::sensitivity::Neighbours;
use crate::strategy::{COEFFICIENT_BITS, StrategyName, build};
use std::sync::Arc;

const LAYOUT: Layout = Layout { dimension: 1, second: SecondMoment::Full };

fn parameters(method: Method) -> MomentParameters {
    MomentParameters {
        method,
        layout: LAYOUT,
        neighbours: Neighbours::ReplaceOne,
        clip_norm: 2.0,
        noise_multiplier: 1.0,
        second_moment_weight: None,
        count_weight: None,
    }
}

fn mechanism(strategy: Arc<dyn Strategy>) -> MatrixMechanism {
    MatrixMechanism::new(parameters(Method::Jme), strategy).unwrap()
}

/// Without noise a view gives the weighted sums themselves, in real units, for every strategy and workload.
#[test]
fn a_view_undoes_strategy_and_units() {
    for (name, workload) in [
        (StrategyName::Identity, Workload::Average),
        (StrategyName::SquareRoot, Workload::Prefix),
        (StrategyName::SquareRoot, "exponential:0.5".parse().unwrap()),
        (StrategyName::SquareRoot, "window:2".parse().unwrap()),
    ] {
        let (keys, horizon) = (2, 6);
        let strategy = build(name, &workload, Some(horizon)).unwrap();
        let mut encoder = strategy.encoder(6);
        let mechanism = mechanism(strategy);
        let mut view = View::new(&mechanism, &workload, keys, horizon);
        for epoch in 1..=horizon {
            // Counts t and 2t; a record of the largest norm is 2²⁰ and its square 2⁴⁰ on the grid.
            let (t, unit, square) = (epoch as i128, 1i128 << 20, 1i128 << 40);
            let sums = [t, t * unit, -t * square, 2 * t, 3 * unit, square];
            let mut values = [0; 6];
            encoder.encode(&sums, &mut values).unwrap();
            let moments: Vec<Moments> = view.push(&values).unwrap().collect();
            let weighted = |f: &dyn Fn(f64) -> f64| {
                (1..=epoch).map(|i| workload.coefficient(epoch, i) * f(i as f64)).sum::<f64>()
            };
            let expected = [
                [weighted(&|i| i), weighted(&|i| 2.0 * i), weighted(&|i| -4.0 * i)],
                [weighted(&|i| 2.0 * i), weighted(&|_| 6.0), weighted(&|_| 4.0)],
            ];
            for (key, (found, expected)) in moments.iter().zip(expected).enumerate() {
                assert_eq!((found.epoch, found.key as usize), (epoch, key));
                for (found, expected) in found.coordinates.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-9, "{workload} {epoch}: {found} {expected}");
                }
            }
            assert_eq!((moments[0].count(), moments[0].first().len()), (moments[0].coordinates[0], 1));
        }
        let past = view.push(&[0; 6]).err();
        assert!(matches!(past, Some(ViewError::PastHorizon { horizon: 6 })), "{past:?}");
    }
}

#[test]
fn noise_levels_are_those_of_the_theorem() {
    let strategy = build(StrategyName::Identity, &Workload::Prefix, Some(9)).unwrap();
    let mut view = View::new(&mechanism(strategy), &Workload::Prefix, 1, 9);
    for epoch in 1..=9u32 {
        let noise = view.push(&[0; 3]).unwrap().next().unwrap().noise;
        let root = f64::from(epoch).sqrt();
        // 2ζσ√t, ζ√2 times that, and √2/ζ times that: at ν = c = 1/2.
        let expected = [4.0 * root, 8.0 * 2f64.sqrt() * root, 4.0 / 2f64.sqrt() * root];
        for (found, expected) in [noise.first, noise.second, noise.count].into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-8, "{found} {expected}");
        }
    }
}

#[test]
fn releases_of_another_length_are_refused() {
    let strategy = build(StrategyName::Identity, &Workload::Prefix, Some(9)).unwrap();
    let mut view = View::new(&mechanism(strategy), &Workload::Prefix, 1, 9);
    let error = view.push(&[1 << COEFFICIENT_BITS; 4]).err();
    assert!(matches!(error, Some(ViewError::Length { found: 4, expected: 3 })), "{error:?}");
}
