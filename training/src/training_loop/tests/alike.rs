//! Training on other gradients with the same releases. Noise is shifted by the difference of the
//! sums. Then the log, the form of its values and the parameters are equal in both forms, on any
//! number of workers.
//!
//! A step's offsets are known once the earlier steps release the same values, because only then
//! gradients are taken at the same parameters. So the loop runs once for each step.

use super::*;
use hushflow_mechanism::moments::Row;
use hushflow_mechanism::noise::Offsets;

const RECORDS: usize = 30;

/// What a record does in a step; see [`Pull`].
type Odd = fn(u64, usize) -> Option<f64>;

/// Released integers of a step, and which shards hold (and send) them in 64 bits.
type Held = (Vec<i128>, Vec<bool>);

/// Records what the log receives.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Held>>>);

impl CommitLog<u64> for Recorder {
    fn commit(&mut self, epochs: &[EpochCommit<u64>]) -> Result<(), Box<dyn Error>> {
        for epoch in epochs {
            let released = &epoch.released;
            let pieces = released.run(0..released.len()).map(|row| matches!(row, Row::Narrow(_)));
            self.0.lock().unwrap().push((released.to_vec(), pieces.collect()));
        }
        Ok(())
    }
}

fn setup(is_correlated: bool, offsets: &[Vec<i128>]) -> TrainingSetup {
    let source = NoiseSource::Shifted { seed: 4, offsets: Offsets::new(offsets.to_vec()).leaked() };
    let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
    let fitted = BufferedParameters { horizon: Some(STEPS), buffers };
    let strategy = Arc::new(Buffered::new("blt:1".parse().unwrap(), fitted).unwrap());
    let strategies = Strategies::shared(strategy);
    let strategies = if is_correlated { strategies.correlated() } else { strategies };
    setup_with(source, Method::Jme, setting(), true, |parameters| {
        MatrixMechanism::with_participation(parameters, strategies, Participation::Single, STEPS)
    })
}

/// The visible outcome: releases, parameters bit by bit, and the fault.
type Public = (Vec<Held>, Vec<(u64, Vec<u64>)>, Option<String>);

fn public(workers: usize, odd: Odd, setup: &TrainingSetup) -> Public {
    let log = Recorder::default();
    let (seen, _, fault) = run_into(&log, workers, RECORDS, odd, setup);
    let bits =
        |(step, parameters): (u64, Vec<f64>)| (step, parameters.into_iter().map(f64::to_bits).collect());
    let releases = std::mem::take(&mut *log.0.lock().unwrap());
    (releases, seen.into_iter().map(bits).collect(), fault)
}

fn released(odd: Odd, setup: &TrainingSetup) -> Vec<Vec<i128>> {
    public(1, odd, setup).0.into_iter().map(|(values, _)| values).collect()
}

/// Offsets with which this input releases the target.
fn offsets_for(target: &[Vec<i128>], odd: Odd, is_correlated: bool) -> Vec<Vec<i128>> {
    let mut offsets: Vec<Vec<i128>> = Vec::new();
    for (step, target) in target.iter().enumerate() {
        let values = released(odd, &setup(is_correlated, &offsets)).swap_remove(step);
        offsets.push(target.iter().zip(values).map(|(target, value)| target - value).collect());
    }
    offsets
}

/// Integers on both sides of ±2^bits where there is noise.
fn around(bits: u32, values: &[Vec<i128>], setup: &TrainingSetup) -> Vec<Vec<i128>> {
    let noise = setup.measurement.mechanism().moments().noise().to_vec();
    let integer = |(at, &value): (usize, &i128)| match at % 4 {
        _ if noise[at].scale.is_none() => value,
        0 => value,
        1 => -(1 << bits) - (at as i128 / 4) % 3 + 1,
        _ => (1 << bits) + (at as i128 / 4) % 3 - 1,
    };
    values.iter().map(|values| values.iter().enumerate().map(integer).collect()).collect()
}

const USUAL: Odd = |_, _| None;

const ODD: Odd = |step, record| match (record as u64 + step) % 9 {
    0 => Some(f64::NAN),
    1 => Some(f64::INFINITY),
    2 => Some(f64::NEG_INFINITY),
    3 => Some(5e-324),
    4 => Some(-1e-280),
    5 => Some(1e-160),
    6 => Some(1e300),
    7 => Some(-f64::MAX),
    _ => None,
};

/// As far as possible in one direction, and in the other; nothing in some steps.
const LONG: Odd = |_, _| Some(1e200);
const OPPOSITE: Odd = |step, _| if step % 3 == 2 { Some(f64::NAN) } else { Some(-1.0) };

fn check(is_correlated: bool, [one, other]: [Odd; 2], bits: Option<u32>) {
    let plain = setup(is_correlated, &[]);
    let natural = released(one, &plain);
    assert_ne!(natural, released(other, &plain), "the worlds differ");
    let target = bits.map_or_else(|| natural.clone(), |bits| around(bits, &natural, &plain));
    let worlds =
        [one, other].map(|odd| (odd, setup(is_correlated, &offsets_for(&target, odd, is_correlated))));
    let expected = public(1, one, &worlds[0].1);
    assert_eq!(expected.2, None);
    assert!(expected.0.iter().map(|(values, _)| values).eq(&target), "noise was chosen for these releases");
    for workers in [1, 2, 3] {
        for (odd, setup) in &worlds {
            let found = public(workers, *odd, setup);
            assert!(found == expected, "{workers} workers, correlated: {is_correlated}, {bits:?}");
        }
    }
    let again = replayed(target, &plain).into_iter();
    let again = again.map(|(step, parameters)| (step, parameters.into_iter().map(f64::to_bits).collect()));
    assert_eq!(again.collect::<Vec<(u64, Vec<u64>)>>(), expected.1, "and from the log alone");
}

#[test]
fn the_same_releases_of_other_gradients_leave_no_trace_of_them() {
    for is_correlated in [false, true] {
        for worlds in [[USUAL, ODD], [ODD, LONG], [LONG, OPPOSITE]] {
            check(is_correlated, worlds, None);
        }
    }
}

/// Independent noise that is to be correlated fits 64 bits, so releases can be chosen up to 2⁶²
/// there.
#[test]
fn the_same_releases_around_a_width_leave_no_trace() {
    for (is_correlated, widths) in [(false, &[31, 63, 64, 100][..]), (true, &[31, 53, 61, 62])] {
        for &bits in widths {
            check(is_correlated, [ODD, OPPOSITE], Some(bits));
        }
    }
}
