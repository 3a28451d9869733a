//! Checks that every strategy must pass, using only the traits: the stream matches the matrix, and
//! the geometry matches the encoder that runs.

use super::{Decoder, Discrepancy, Encoder, StepError, Strategy};
use crate::moments::IntegerRow;
use crate::workload::Workload;
use chacha20::ChaCha20Rng;
use nalgebra::DMatrix;
use rand::{RngExt, SeedableRng};

/// Tolerance relative to the largest entry compared.
const TOLERANCE: f64 = 1e-10;
const UNIT: f64 = 1.0 / (1u64 << super::COEFFICIENT_BITS) as f64;
const COORDINATES: usize = 3;

/// Checks `steps` steps of a strategy, at most its horizon, against dense matrices.
pub(super) fn check(strategy: &dyn Strategy, workload: &Workload, steps: usize) {
    let context = format!("{} for {workload}, {steps} steps", strategy.name());
    let c = strategy.matrix(steps as u64).expect(&context).entries();
    let inverse = c.clone().try_inverse().expect(&context);
    let rows = rows(steps);
    check_columns(strategy, &c, &context);
    check_row_norms(strategy, &(workload.matrix(steps) * &inverse), workload, &context);
    check_stream(strategy, &c, &rows, &context);
    check_addition(strategy, &rows, &context);
    check_rounding(strategy, &c, &rows, &context);
    check_decoder(strategy, &inverse, &context);
    check_saved_states(strategy, &rows, &context);
    check_refusals(strategy, &rows, &context);
}

fn check_columns(strategy: &dyn Strategy, c: &DMatrix<f64>, context: &str) {
    let (steps, geometry) = (c.ncols(), strategy.geometry());
    for part in [1, steps.div_ceil(2), steps] {
        let norms = (0..part).map(|i| c.view((0, i), (part, 1)).norm_squared());
        let (norm, found) = (norms.fold(0.0, f64::max), strategy.max_column_norm_squared(part as u64));
        let charged = if strategy.horizon().is_some() { norm } else { norm.max(geometry.max_norm_squared) };
        let close = found >= norm * (1.0 - TOLERANCE) && found <= charged * (1.0 + TOLERANCE);
        assert!(close, "{context}: {found} against {norm} at {part}");
        assert!(geometry.max_norm_squared >= norm * (1.0 - TOLERANCE), "{context}: {geometry:?}, {norm}");
    }
    let gram = c.transpose() * c;
    let pairs = (0..steps).flat_map(|j| (0..j).map(move |i| (i, j)));
    let overlap = pairs.map(|pair| -gram[pair]).fold(0.0, f64::max);
    let slack = TOLERANCE * geometry.max_norm_squared;
    assert!(geometry.negative_overlap >= 0.0, "{context}: {geometry:?}");
    assert!(geometry.negative_overlap >= overlap - slack, "{context}: {geometry:?}, {overlap}");
}

fn check_row_norms(strategy: &dyn Strategy, decoder: &DMatrix<f64>, workload: &Workload, context: &str) {
    for part in [1, decoder.nrows()] {
        let found: Vec<f64> = strategy.decoder_row_norms(workload, part as u64).collect();
        assert_eq!(found.len(), part, "{context}");
        for (t, found) in found.into_iter().enumerate() {
            let norm = decoder.row(t).norm();
            assert!((found - norm).abs() <= TOLERANCE * norm, "{context}: row {t}: {found} against {norm}");
        }
    }
}

/// Integers of both signs, with some rows of zeros.
fn rows(steps: usize) -> Vec<Vec<i128>> {
    let mut random = ChaCha20Rng::seed_from_u64(3);
    let mut value = |t: usize| if t % 5 == 3 { 0 } else { random.random_range(-(1i128 << 50)..1 << 50) };
    (0..steps).map(|t| (0..COORDINATES).map(|_| value(t)).collect()).collect()
}

fn real(rows: &[Vec<i128>], unit: f64) -> DMatrix<f64> {
    DMatrix::from_fn(rows.len(), rows[0].len(), |t, coordinate| rows[t][coordinate] as f64 * unit)
}

fn encode(encoder: &mut dyn Encoder, rows: &[Vec<i128>], context: &str) -> Vec<Vec<i128>> {
    let mut encode_row = |x: &Vec<i128>| {
        let mut y = vec![0; x.len()];
        encoder.encode(x, &mut y).expect(context);
        y
    };
    rows.iter().map(&mut encode_row).collect()
}

fn decode(decoder: &mut dyn Decoder, y: &DMatrix<f64>, context: &str) -> DMatrix<f64> {
    let mut decode_row = |t: usize| {
        let row: Vec<f64> = y.row(t).iter().copied().collect();
        let mut x = vec![0.0; row.len()];
        decoder.decode(&row, &mut x).expect(context);
        x
    };
    let rows = (0..y.nrows()).flat_map(&mut decode_row);
    DMatrix::from_row_iterator(y.nrows(), y.ncols(), rows)
}

fn check_close(found: &DMatrix<f64>, expected: &DMatrix<f64>, context: &str) {
    let (error, size) = ((found - expected).amax(), expected.amax());
    assert!(error <= TOLERANCE * size, "{context}: off by {error} where entries are up to {size}");
}

fn check_stream(strategy: &dyn Strategy, c: &DMatrix<f64>, rows: &[Vec<i128>], context: &str) {
    let y = real(&encode(strategy.encoder(COORDINATES).as_mut(), rows, context), UNIT);
    check_close(&y, &(c * real(rows, 1.0)), context);
    check_close(&decode(strategy.decoder(COORDINATES).as_mut(), &y, context), &real(rows, 1.0), context);
}

/// Checks that encoding can be added to a buffer, from rows of either width.
fn check_addition(strategy: &dyn Strategy, rows: &[Vec<i128>], context: &str) {
    let y = encode(strategy.encoder(COORDINATES).as_mut(), rows, context);
    let [mut wide, mut narrow] = [(); 2].map(|()| strategy.encoder(COORDINATES));
    for (t, (row, y)) in rows.iter().zip(&y).enumerate() {
        let offset = (t as i128 - 3) << 70;
        let in_64_bits: Vec<i64> = row.iter().map(|&x| x as i64).collect();
        for (encoder, row) in
            [(&mut wide, IntegerRow::Wide(row)), (&mut narrow, IntegerRow::Narrow(&in_64_bits))]
        {
            let mut sums = [offset; COORDINATES];
            encoder.add_encoded(row, &mut sums).expect(context);
            assert!(sums.iter().map(|sum| sum - offset).eq(y.iter().copied()), "{context}: step {t}");
        }
    }
    let (mut from_zero, mut from_largest) = ([0; COORDINATES], [i128::MAX; COORDINATES]);
    for sums in [&mut from_zero, &mut from_largest] {
        strategy
            .encoder(COORDINATES)
            .add_encoded(IntegerRow::Narrow(&[1; COORDINATES]), sums)
            .expect(context);
    }
    assert_eq!(from_largest, from_zero.map(|sum| i128::MAX.wrapping_add(sum)), "{context}");
}

/// Checks that two streams that differ by a unit vector in every coordinate are encoded as far
/// apart as C requires, up to the charged rounding and the matrix's discrepancy.
fn check_rounding(strategy: &dyn Strategy, c: &DMatrix<f64>, rows: &[Vec<i128>], context: &str) {
    let steps = rows.len();
    let repeated: Vec<Vec<i128>> = rows.iter().map(|row| vec![row[0]; steps]).collect();
    let mut neighbours = repeated.clone();
    (0..steps).for_each(|t| neighbours[t][t] += 1);
    let [y, other] = [&repeated, &neighbours].map(|x| encode(strategy.encoder(steps).as_mut(), x, context));
    let Discrepancy { relative, column } = strategy.matrix(steps as u64).expect(context).discrepancy();
    for i in 0..steps {
        let norm = c.column(i).norm();
        // 2⁻⁵³ per entry for the rounding of `c`, and as much for that of the differences.
        let discrepancy = relative * norm + column + 2.0 * f64::EPSILON * norm;
        let charged = (strategy.geometry().rounding_squared.sqrt() + discrepancy).powi(2);
        let errors = (0..steps).map(|t| (other[t][i] - y[t][i]) as f64 * UNIT - c[(t, i)]);
        let error: f64 = errors.map(|error| error * error).sum();
        assert!(error <= charged, "{context}: column {i} is off by {error}, charged is {charged}");
    }
}

fn check_decoder(strategy: &dyn Strategy, inverse: &DMatrix<f64>, context: &str) {
    let y =
        DMatrix::from_fn(inverse.nrows(), COORDINATES, |t, coordinate| ((t * 3 + coordinate) as f64).sin());
    let decoded = decode(strategy.decoder(COORDINATES).as_mut(), &y, context);
    check_close(&decoded, &(inverse * &y), context);
    // A decoder restored after any step continues like the original, and refuses a state of another
    // length.
    let mut decoder = strategy.decoder(COORDINATES);
    for t in 0..y.nrows() {
        let (state, mut restored) = (decoder.save(), strategy.decoder(COORDINATES));
        decode(restored.as_mut(), &y.rows(0, y.nrows() / 2).into_owned(), context);
        let before = restored.save();
        let longer = [&state[..], &[0.0]].concat();
        assert!(restored.restore(t as u64, &longer).is_err(), "{context}: step {t}");
        assert_eq!(restored.save(), before, "{context}: step {t}");
        restored.restore(t as u64, &state).expect(context);
        assert_eq!((restored.steps(), restored.save()), (t as u64, state), "{context}");
        let row = y.rows(t, 1).into_owned();
        let expected = decode(decoder.as_mut(), &row, context);
        assert_eq!(decode(restored.as_mut(), &row, context), expected, "{context}: step {t}");
    }
}

/// Checks that an encoder restored from the state saved at any step continues like the original,
/// and that the state has the declared size.
fn check_saved_states(strategy: &dyn Strategy, rows: &[Vec<i128>], context: &str) {
    const MARGIN: usize = 1024;
    let mut encoder = strategy.encoder(COORDINATES);
    let mut states = vec![encoder.save()];
    let y: Vec<_> = rows
        .iter()
        .map(|row| {
            let y = encode(encoder.as_mut(), std::slice::from_ref(row), context);
            states.push(encoder.save());
            y
        })
        .collect();
    for (t, row) in rows.iter().enumerate() {
        let mut restored = strategy.encoder(COORDINATES);
        encode(restored.as_mut(), &rows[..rows.len() / 2], context);
        restored.restore(&states[t]).expect(context);
        assert_eq!(restored.steps(), t as u64, "{context}");
        assert_eq!(restored.save(), states[t], "{context}: saved after step {t}");
        assert_eq!(
            encode(restored.as_mut(), std::slice::from_ref(row), context),
            y[t],
            "{context}: step {t}"
        );
        assert_eq!(restored.save(), states[t + 1], "{context}: restored after step {t}");
        assert!(states[t].len() <= MARGIN + COORDINATES * strategy.encoder_bytes(), "{context}: step {t}");
    }
}

fn check_refusals(strategy: &dyn Strategy, rows: &[Vec<i128>], context: &str) {
    let (mut encoder, mut decoder) = (strategy.encoder(COORDINATES), strategy.decoder(COORDINATES));
    let wrong = Err(StepError::Coordinates { found: 1, expected: COORDINATES });
    assert_eq!(encoder.encode(&[0], &mut [0]), wrong, "{context}");
    assert_eq!(decoder.decode(&[0.0], &mut [0.0]), wrong, "{context}");
    let y = real(&encode(encoder.as_mut(), rows, context), UNIT);
    decode(decoder.as_mut(), &y, context);
    let saved = encoder.save();
    let mut other = strategy.encoder(COORDINATES + 1);
    let states = [&saved[..0], &saved[..saved.len() - 1], &other.save(), &[&saved[..], &[0]].concat()];
    for state in states {
        assert!(matches!(encoder.restore(state), Err(StepError::State { .. })), "{context}");
        assert_eq!(encoder.save(), saved, "{context}");
    }
    assert!(matches!(other.restore(&saved), Err(StepError::State { .. })), "{context}");
    if strategy.horizon() == Some(rows.len() as u64) {
        let ended = Err(StepError::PastHorizon { horizon: rows.len() as u64 });
        assert_eq!(encoder.encode(&[1; COORDINATES], &mut [0; COORDINATES]), ended, "{context}");
        assert_eq!(decoder.decode(&[1.0; COORDINATES], &mut [0.0; COORDINATES]), ended, "{context}");
        assert_eq!(encoder.save(), saved, "{context}");
    } else {
        // Only strategies with a limit may refuse large values.
        let outcome = encoder.encode(&[i128::MAX; COORDINATES], &mut [0; COORDINATES]);
        let expected = strategy.input_limit().map_or(Ok(()), |_| Err(StepError::Overflow));
        assert_eq!(outcome, expected, "{context}");
        if expected.is_err() {
            assert_eq!(encoder.save(), saved, "{context}");
        }
        encoder.restore(&saved).expect(context);
    }
    assert_eq!((encoder.steps(), decoder.steps()), (rows.len() as u64, rows.len() as u64), "{context}");
}

/// Checks that an encoder is unchanged after it refuses a state. If `has_head` is set, the state
/// starts with a valid head.
pub(super) fn check_restoring(mut encoder: Box<dyn Encoder>, mut state: Vec<u8>, has_head: bool) {
    let before = encoder.save();
    if has_head {
        state.splice(0..0, before[..24].iter().copied());
    }
    if encoder.restore(&state).is_err() {
        assert_eq!(encoder.save(), before);
    }
}
