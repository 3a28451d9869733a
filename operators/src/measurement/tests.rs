//! Tests that data of one measurement raise the fault in every operator of another.

use super::*;
use crate::{
    Accumulate, BoundEntities, BoundedRecords, Clip, Commit, EpochCommit, Fault, Records, ReleaseMoments,
    RepeatPolicy, SplitEpochs,
};
use hushflow_mechanism::mechanism::{Method, MomentParameters};
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::build;
use hushflow_mechanism::workload::Workload;
use std::num::NonZeroU32;
use std::sync::mpsc;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::vec::ToStream;

const LAYOUT: Layout = Layout::new(1, SecondMoment::Full);
const HORIZON: u64 = 16;

fn mechanism(parameters: MomentParameters, participation: Participation) -> MatrixMechanism {
    let strategy = build("identity", &Workload::Prefix, Some(HORIZON)).unwrap();
    MatrixMechanism::with_participation(parameters, strategy.into(), participation, HORIZON).unwrap()
}

fn parameters(method: Method, layout: Layout, neighbours: Neighbours, clip_norm: f64) -> MomentParameters {
    MomentParameters {
        method,
        layout,
        neighbours,
        clip_norm,
        noise_multiplier: 4.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    }
}

/// A measurement of vectors with ζ = 2²⁰, which makes the grid the integers.
pub(crate) fn vectors(method: Method, layout: Layout, neighbours: Neighbours) -> MeasurementBuilder {
    let parameters = parameters(method, layout, neighbours, 1048576.0);
    Measurement::of_vectors(mechanism(parameters, Participation::Single))
}

pub(crate) fn entities(limits: EntityLimits, bounds: [(f64, f64); 1]) -> MeasurementBuilder {
    let layout = Layout { sent: limits.sent_limit, ..LAYOUT };
    let parameters = parameters(Method::Jme, layout, Neighbours::ReplaceOne, 1.0);
    let most = format!("{HORIZON}x1+").parse().unwrap();
    let mechanism = mechanism(parameters, most).for_records_at_once(limits.records_per_epoch).unwrap();
    Measurement::of_columns(mechanism, bounds).entities(limits)
}

fn columns(clip_norm: f64) -> MeasurementBuilder {
    let parameters = parameters(Method::Jme, LAYOUT, Neighbours::ReplaceOne, clip_norm);
    Measurement::of_columns(mechanism(parameters, Participation::Single), [(-1.0, 1.0)]).keys(9)
}

/// Returns the measurement of `columns(1.0)`, and others that differ from it.
fn measurements() -> (Measurement, Vec<Measurement>) {
    let one = || columns(1.0);
    let parameters = parameters(Method::Jme, LAYOUT, Neighbours::ReplaceOneInPlace, 1.0);
    let others = vec![
        one().shards_at_most(7),
        one().shards_at_least(3),
        one().keys(8),
        one().noise(NoiseSource::Seeded(1)),
        one().resume(2, EncoderStates::new()),
        columns(2.0),
        Measurement::of_columns(one().mechanism, [(-1.0, 1.5)]).keys(9),
        Measurement::of_vectors(one().mechanism).keys(9),
        Measurement::of_columns(mechanism(parameters, Participation::Single), [(-1.0, 1.0)]).keys(9),
        one().entities(EntityLimits::LEAST),
    ];
    (one().build().unwrap(), others.into_iter().map(|builder| builder.build().unwrap()).collect())
}

fn outcome(operators: [&Measurement; 4], ends: Vec<u64>) -> (Vec<u64>, Option<String>) {
    let operators = operators.map(Measurement::clone);
    let (fault, (commit, committed)) = (Fault::new(), mpsc::channel());
    let raised = fault.clone();
    timely::execute_directly(move |worker| {
        worker.dataflow::<u64, _, _>(|scope| {
            let log = move |epochs: &[EpochCommit<u64>]| {
                epochs.iter().try_for_each(|epoch| Ok(commit.send(epoch.released.epoch)?))
            };
            let [clip, accumulate, release, commit] = &operators;
            let batch = Records {
                keys: vec![0, 8],
                epochs: vec![1, 2],
                values: vec![0.5, 0.25],
                entities: clip.bound_setup().map_or_else(Vec::new, |_| vec![Entity(1), Entity(2)]),
                positions: vec![0, 1],
            };
            let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
            let clipped = match clip.bound_setup() {
                None => records.clip(clip, fault.clone()),
                Some(_) => records.bound(clip, fault.clone()).records.clip(clip, fault.clone()),
            };
            clipped
                .accumulate(accumulate, fault.clone())
                .release(ends.to_stream(scope), release, fault.clone())
                .commit(Vec::new().to_stream(scope), commit, Some(Box::new(log)), fault.clone());
        });
        (0..50).for_each(|_| {
            worker.step();
        });
        worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
    });
    (committed.iter().collect(), raised.reason().map(String::from))
}

#[test]
fn operators_of_one_measurement_work_together() {
    let (one, others) = measurements();
    assert_eq!(outcome([&one; 4], vec![3]), (vec![1, 2, 3], None));
    // Rebuilt as in another process. Measurements may differ in when they draw noise and save.
    let again = columns(1.0).draw_late().checkpoint_interval(2).build().unwrap();
    assert_eq!(outcome([&one, &again, &one, &again], vec![2]), (vec![1, 2], None));
    // Leaves out the measurement with fewer keys, and that which begins with a later epoch.
    let whole = |other: &&Measurement| other.shards().coordinates() == 27 && other.first_epoch() == 1;
    for other in others.iter().filter(whole) {
        assert_eq!(outcome([other; 4], vec![3]), ((1..=3).collect(), None));
    }
}

#[test]
fn data_of_another_measurement_raise_the_fault_before_commit() {
    let (one, others) = measurements();
    for other in &others {
        for operators in [[other, &one, &one, &one], [&one, &one, other, other], [&one, &one, &one, other]] {
            let (committed, fault) = outcome(operators, vec![3]);
            assert_eq!(committed, []);
            assert!(fault.unwrap().contains("under another measurement"));
        }
    }
}

#[test]
fn batch_squares_cannot_be_accumulated() {
    let method = Method::BatchSquares { size: std::num::NonZeroU32::MIN };
    let layout = Layout { second: SecondMoment::Diagonal, ..LAYOUT };
    let parameters = parameters(method, layout, Neighbours::ReplaceOneInPlace, 1.0);
    let mechanism = mechanism(parameters, Participation::Single);
    let measurement = Measurement::of_columns(mechanism, [(-1.0, 1.0)]).keys(9).build().unwrap();
    let (committed, fault) = outcome([&measurement; 4], vec![3]);
    assert_eq!(committed, []);
    assert!(fault.unwrap().contains("batch-squares"));
}

#[test]
fn a_source_that_closes_without_a_last_epoch_raises_the_fault() {
    let (one, _) = measurements();
    let (committed, fault) = outcome([&one; 4], Vec::new());
    assert_eq!(committed, []);
    assert!(fault.unwrap().contains("without a last epoch on `ends`"));
    assert_eq!(outcome([&one; 4], vec![0]), (vec![], None), "an end before the first epoch is one");
}

#[test]
fn records_of_entities_must_be_bounded_under_the_same_limits() {
    let reason = |clip: Measurement, bound: Option<Measurement>| {
        let fault = Fault::new();
        let raised = fault.clone();
        timely::execute_directly(move |worker| {
            worker.dataflow::<u64, _, _>(|scope| {
                let batch = Records {
                    keys: vec![0],
                    epochs: vec![1],
                    values: vec![0.5],
                    entities: vec![Entity(1)],
                    positions: vec![0],
                };
                let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
                let clipped = match bound {
                    None => records.clip(&clip, fault),
                    Some(bound) => {
                        let bounded = records.bound(&bound, fault.clone()).records;
                        bounded.inspect(|_: &BoundedRecords| {}).clip(&clip, fault)
                    }
                };
                clipped.inspect(|_| {});
            });
            (0..50).for_each(|_| {
                worker.step();
            });
            worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
        });
        raised.reason().map(String::from)
    };
    let of = |limits| entities(limits, [(-1.0, 1.0)]).build().unwrap();
    let twice = EntityLimits { participations: 2, ..EntityLimits::LEAST };
    let averaged = EntityLimits { repeat_policy: RepeatPolicy::Average, ..EntityLimits::LEAST };
    assert_eq!(reason(of(twice), Some(of(twice))), None);
    assert!(reason(of(twice), None).unwrap().contains("not bounded"));
    for limits in [EntityLimits::LEAST, averaged] {
        assert!(reason(of(twice), Some(of(limits))).unwrap().contains("under another measurement"));
    }
    let (single, _) = measurements();
    assert!(reason(single.clone(), None).unwrap().contains("protects none"));
    assert!(reason(single.clone(), Some(single)).unwrap().contains("protects no entities"));
}

#[test]
fn unsuitable_parameters_are_refused() {
    let refused = |builder: MeasurementBuilder| builder.build().err().unwrap();
    let apart = EntityLimits { participations: 3, min_separation: 4, ..EntityLimits::LEAST };
    let of = |schema: &str, limits| {
        let parameters = parameters(Method::Jme, LAYOUT, Neighbours::ReplaceOne, 1.0);
        let mechanism = mechanism(parameters, schema.parse().unwrap());
        Measurement::of_columns(mechanism, [(-1.0, 1.0)]).entities(limits)
    };
    let fits = |schema, limits| of(schema, limits).build().is_ok();
    assert!(fits("3x4+", apart) && fits("4x3+", apart) && fits("1", EntityLimits::LEAST));
    // Too often, too close together, or exactly this far apart, which the limits do not require.
    for schema in ["1", "2x4+", "3x5+", "3x4"] {
        assert!(matches!(refused(of(schema, apart)), MeasurementError::Entities { .. }), "{schema}");
    }
    let many = EntityLimits { records_per_epoch: 2, ..apart };
    assert!(matches!(refused(of("3x4+", many)), MeasurementError::Entities { records: 1, .. }));
    assert!(entities(many, [(-1.0, 1.0)]).build().is_ok());
    let sent = EntityLimits { sent_limit: NonZeroU32::new(5), ..many };
    assert!(entities(sent, [(-1.0, 1.0)]).build().is_ok());
    let more = EntityLimits { sent_limit: NonZeroU32::new(6), ..many };
    assert!(matches!(refused(entities(sent, [(-1.0, 1.0)]).entities(more)), MeasurementError::Sent { .. }));
    assert!(matches!(refused(entities(sent, [(-1.0, 1.0)]).entities(many)), MeasurementError::Sent { .. }));
    assert!(matches!(refused(entities(many, [(-1.0, 1.0)]).entities(sent)), MeasurementError::Sent { .. }));
    let layout = Layout { sent: NonZeroU32::new(5), ..LAYOUT };
    let of_records = vectors(Method::Jme, layout, Neighbours::ReplaceOne);
    assert!(matches!(refused(of_records), MeasurementError::Sent { limits: None, .. }));
    let later = of("3x4+", apart).resume(2, EncoderStates::new());
    assert_eq!(refused(later.clone()), MeasurementError::Histories { first_epoch: 2 });
    assert!(later.histories(Vec::new()).build().is_ok());
    assert_eq!(refused(columns(1.0).resume(0, EncoderStates::new())), MeasurementError::FirstEpoch);
    let two = Measurement::of_columns(columns(1.0).mechanism, [(0.0, 1.0), (0.0, 1.0)]);
    assert!(matches!(refused(two), MeasurementError::Mechanism(_)));
    let none = Measurement::of_columns(columns(1.0).mechanism, [(1.0, 0.0)]);
    assert!(matches!(refused(none), MeasurementError::Clip(_)));
}

/// The builder gives the clipper every setting that a mechanism needs.
#[test]
fn the_clipper_matches_the_mechanism() {
    let layout = Layout::new(2, SecondMoment::Full);
    for neighbours in [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace] {
        for method in [Method::Jme, Method::JointClip] {
            let measurement = vectors(method, layout, neighbours).build().unwrap();
            let mut rows = hushflow_mechanism::moments::QuantisedRows::new(2);
            measurement.clipper().quantise_all(&[1.0, 2.0, f64::NAN, 0.0], &mut rows).unwrap();
            let counted = if neighbours.counts_are_public() { 2 } else { 1 };
            assert_eq!(rows.len(), counted);
            assert_eq!(rows.width(), if method == Method::JointClip { 4 } else { 2 });
        }
    }
}
