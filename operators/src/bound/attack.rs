//! Measures the cost of one changed record under a guarantee about entities.
//!
//! Two streams that differ in one record are bounded by the dataflow itself, then clipped, summed,
//! encoded and compared in integers. Only the last comparison uses the sensitivity or the table of
//! steps: in units of the guarantee's charge, the distance is at most the number of steps, and
//! nearly attains it for streams built to do so.

use super::EntityLimits;
use super::tests::{LAST, TestRecord, bounded, limits};
use hushflow_mechanism::accounting::adjacency::{Adjacency, Nesting, Unit};
use hushflow_mechanism::mechanism::{Method, MomentGeometry, MomentMechanism, MomentParameters};
use hushflow_mechanism::moments::{Clipper, Layout, QuantisedRows, SecondMoment};
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::{COEFFICIENT_BITS, Matrix};
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::sync::Arc;

const KEYS: usize = 3;
const SIGMA: f64 = 0.7;
const CLIP_NORM: f64 = 3.0;
const LAYOUT: Layout = Layout::new(1, SecondMoment::Full);

/// The first coefficients of C, exact in units of 2⁻⁴⁰.
type ToeplitzCoefficients = [f64; LAST as usize];

const IDENTITY: ToeplitzCoefficients = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const FORGETTING: ToeplitzCoefficients = [1.0, 0.5, 0.375, 0.25, 0.125, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
/// Columns that point as far away from each other as possible.
const OPPOSED: ToeplitzCoefficients = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0];

struct EntityGuarantee {
    coefficients: ToeplitzCoefficients,
    mechanism: MomentMechanism,
    limits: EntityLimits,
}

impl EntityGuarantee {
    fn new(coefficients: ToeplitzCoefficients, neighbours: Neighbours, limits: EntityLimits) -> Self {
        let matrix = Arc::new(Matrix::toeplitz(coefficients.to_vec(), LAST as usize).unwrap());
        let written = format!("{}x{}+", limits.participations, limits.min_separation);
        let participation: Participation = written.parse().unwrap();
        let geometry =
            MomentGeometry::of_matrices(Arc::clone(&matrix), matrix, participation, [0.0; 2]).unwrap();
        let parameters = MomentParameters {
            method: Method::Jme,
            layout: Layout { sent: limits.sent_limit, ..LAYOUT },
            neighbours,
            clip_norm: CLIP_NORM,
            noise_multiplier: SIGMA,
            second_moment_weight: None,
            count_weight: None,
            bin_weight: None,
        };
        let mechanism = MomentMechanism::new(parameters, &geometry).unwrap();
        let mechanism = mechanism.for_records_at_once(limits.records_per_epoch).unwrap();
        Self { coefficients, mechanism, limits }
    }

    /// Sums of all records that pass, by key, epoch and coordinate.
    fn sums(&self, records: &[TestRecord]) -> Vec<i128> {
        let clipper =
            self.mechanism.clipper(Clipper::unscaled(LAYOUT.dimension, CLIP_NORM).unwrap()).unwrap();
        let layout = self.mechanism.layout();
        let width = layout.coordinates();
        let mut sums = vec![0; KEYS * LAST as usize * width];
        let (passed, _, sent) = bounded(records, self.limits, 1, &[], 1);
        let start = |epoch: u64, key: u32| (key as usize * LAST as usize + epoch as usize - 1) * width;
        for ((epoch, key), number) in sent {
            layout.sent().into_iter().for_each(|at| sums[start(epoch, key) + at] += i128::from(number));
        }
        for (epoch, key, value) in passed {
            let mut rows = QuantisedRows::new(1);
            let value = (f64::from_bits(value) / 127.5 - 1.0) * CLIP_NORM;
            clipper.quantise(&[value], &mut rows).unwrap();
            let moment = rows.values()[0] as i128;
            for (sum, more) in sums[start(epoch, key)..].iter_mut().zip([1, moment, moment * moment]) {
                *sum += more;
            }
        }
        sums
    }

    /// Distance between the releases of two streams before noise, in units of μ, the cost of one
    /// step.
    fn distance(&self, one: &[TestRecord], other: &[TestRecord]) -> f64 {
        let [one, other] = [one, other].map(|records| self.sums(records));
        let difference: Vec<i128> = one.iter().zip(&other).map(|(one, other)| one - other).collect();
        let (width, epochs) = (self.mechanism.layout().coordinates(), LAST as usize);
        let unit = f64::from(COEFFICIENT_BITS).exp2();
        let mut encoded = vec![0; difference.len()];
        for (at, change) in difference.iter().enumerate().filter(|(_, change)| **change != 0) {
            let epoch = at / width % epochs;
            for lag in 0..epochs - epoch {
                encoded[at + lag * width] += change * (self.coefficients[lag] * unit) as i128;
            }
        }
        let squared = self.mechanism.concentrated_loss(&encoded) * 2.0 * SIGMA * SIGMA;
        // m records at once cost m times as much, which the noise accounts for.
        squared.sqrt() / f64::from(self.limits.records_per_epoch)
    }
}

fn steps(from: Neighbours, to: Neighbours) -> f64 {
    let about = |unit, neighbours| Adjacency { unit, neighbours };
    let steps =
        about(Unit::Entity("user".into()), from).steps_to(&about(Unit::Record, to), &Nesting::default());
    steps.unwrap().into()
}

/// Value 255 is ζ and 0 is −ζ.
const HIGH: u8 = 255;

/// Three streams. In the first, entity 1 has rows in epochs 1 and 2, of which only the one in epoch
/// 1 passes, and entity 2 has a row in epoch 3. In the second, the row in epoch 1 is blanked. In
/// the third, entity 2 has a row in epoch 2 in its place.
fn chain() -> [Vec<TestRecord>; 3] {
    let rest = [(1, 2, 0, HIGH), (2, 3, 0, HIGH)];
    let with = |first: Option<TestRecord>| first.into_iter().chain(rest).collect();
    [Some((1, 1, 0, HIGH)), None, Some((2, 2, 0, HIGH))].map(with)
}

/// Blanking one row of an entity, or giving it to another entity, moves further than one step.
#[test]
fn one_record_costs_more_than_one_step() {
    use Neighbours::{ReplaceOne, ZeroOut};
    let [before, blanked, moved] = chain();
    let check = |coefficients, charged, other: &Vec<TestRecord>, expected: f64, most: f64| {
        let distance =
            EntityGuarantee::new(coefficients, charged, EntityLimits::LEAST).distance(&before, other);
        assert!((distance / expected - 1.0).abs() < 1e-3, "{charged}: {distance}, expected {expected}");
        assert!(distance <= most, "{charged}: {distance} in {most} steps");
    };
    // No columns overlap.
    check(IDENTITY, ZeroOut, &blanked, 2_f64.sqrt(), steps(ZeroOut, ZeroOut));
    check(IDENTITY, ZeroOut, &moved, 6_f64.sqrt(), steps(ZeroOut, ReplaceOne));
    check(IDENTITY, ReplaceOne, &blanked, 1.0, steps(ReplaceOne, ZeroOut));
    check(IDENTITY, ReplaceOne, &moved, 3_f64.sqrt(), steps(ReplaceOne, ReplaceOne));
    // Opposed columns: the squared charge is K·12, and the squared encoded differences are K·45 and
    // K·170.
    check(OPPOSED, ZeroOut, &blanked, (45_f64 / 12.0).sqrt(), steps(ZeroOut, ZeroOut));
    check(OPPOSED, ZeroOut, &moved, (170_f64 / 12.0).sqrt(), steps(ZeroOut, ReplaceOne));
}

/// Tests guarantees that also release the number of sent records. Both changes affect it.
#[test]
fn sent_records_cost_no_more_than_their_steps() {
    use Neighbours::{ReplaceOne, ZeroOut};
    let [before, blanked, moved] = chain().map(|rows| [rows.clone(), rows].concat());
    let limits = EntityLimits { sent_limit: NonZeroU32::new(2), ..EntityLimits::LEAST };
    for coefficients in [IDENTITY, FORGETTING, OPPOSED] {
        for (charged, wanted, other) in
            [(ZeroOut, ZeroOut, &blanked), (ZeroOut, ReplaceOne, &moved), (ReplaceOne, ReplaceOne, &moved)]
        {
            let distance = EntityGuarantee::new(coefficients, charged, limits).distance(&before, other);
            let most = steps(charged, wanted);
            assert!(distance > 0.3 * most && distance <= most, "{charged} about {wanted}: {distance}");
        }
    }
}

/// Each pair exceeds the cost of one step, so charging one step per record would be wrong.
#[test]
fn some_pairs_nearly_attain_the_bounds() {
    use Neighbours::{ReplaceOne, ZeroOut};
    let [before, blanked, moved] = chain();
    let share = |charged, wanted, other: &Vec<TestRecord>| {
        EntityGuarantee::new(OPPOSED, charged, EntityLimits::LEAST).distance(&before, other)
            / steps(charged, wanted)
    };
    assert!(share(ZeroOut, ZeroOut, &blanked) > 0.96);
    assert!(share(ZeroOut, ReplaceOne, &moved) > 0.94);
    assert!(share(ReplaceOne, ReplaceOne, &moved) > 0.94);
    assert!(share(ReplaceOne, ZeroOut, &blanked) > 0.96);
}

fn record() -> impl Strategy<Value = TestRecord> {
    let value = prop_oneof![Just(0), Just(HIGH), 0..=HIGH];
    (0..3_u8, 1..=LAST, 0..2_u32, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Holds for any other rows and any change of the one row.
    #[test]
    fn no_changed_record_exceeds_the_bound_of_its_steps(
        rows in prop::collection::vec(record(), 1..16), at in 0..16_usize, replacement in record(),
        limits in limits(), strategy in 0..3_usize,
    ) {
        let at = at % rows.len();
        let with = |row: Option<TestRecord>| -> Vec<TestRecord> {
            [&rows[..at], row.as_slice(), &rows[at + 1..]].concat()
        };
        let (entity, epoch, key, _) = rows[at];
        let changed = [
            (Neighbours::ZeroOut, with(None)),
            (Neighbours::ReplaceOne, with(Some(replacement))),
            (Neighbours::ReplaceOneInPlace, with(Some((entity, epoch, key, replacement.3)))),
        ];
        let coefficients = [IDENTITY, FORGETTING, OPPOSED][strategy];
        for charged in [Neighbours::ZeroOut, Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace] {
            let guarantee = EntityGuarantee::new(coefficients, charged, limits);
            for (wanted, other) in &changed {
                if charged == Neighbours::ReplaceOneInPlace && *wanted != charged {
                    continue;
                }
                let distance = guarantee.distance(&rows, other);
                prop_assert!(distance <= steps(charged, *wanted), "{charged} about {wanted}: {distance}");
            }
        }
    }
}
