//! Strategies that treat every step alike: `C[t,i] = m_(t−i)`, applied to the rows themselves.
//!
//! Memory: one row of sums for every coefficient after the first. The identity has one coefficient and so no
//! memory; a square root has up to a coefficient for every step of its horizon.
//!
//! A saved encoder is, in little-endian order: the version (1 byte, 1), the fingerprint of the strategy (8), the
//! number of coordinates (8), the number of steps (8), and the rows held in the order of their ring (16 for each
//! coordinate).

use super::{
    COEFFICIENT_BITS, ColumnGeometry, Decoder, Encoder, StepError, Strategy, StrategyName, gram,
    history::History,
};
use crate::{series, workload::Workload};
use std::{iter, sync::Arc};
use zeroize::Zeroizing;

/// A lower-triangular Toeplitz C with integer coefficients.
#[derive(Clone)]
pub(super) struct Toeplitz {
    name: StrategyName,
    /// In units of 2^-[`COEFFICIENT_BITS`], at most 2⁴⁰ in magnitude, without zeros at the end; the first is positive.
    coefficients: Arc<[i64]>,
    horizon: Option<u64>,
}

impl Toeplitz {
    /// Rounds a series of coefficients, all at most 1 in magnitude, to the nearest ones that are exact.
    pub(super) fn new(name: StrategyName, series: &[f64], horizon: Option<u64>) -> Self {
        let mut coefficients: Vec<i64> =
            series.iter().map(|c| (c * f64::from(COEFFICIENT_BITS).exp2()).round() as i64).collect();
        let used = coefficients.iter().rposition(|&m| m != 0).map_or(0, |last| last + 1);
        coefficients.truncate(used);
        Self { name, coefficients: coefficients.into(), horizon }
    }

    fn history<T: Copy + zeroize::Zeroize>(&self, coordinates: usize) -> History<T> {
        History::new(coordinates, self.coefficients.len() - 1)
    }

    fn within_horizon(&self, steps: u64) -> usize {
        steps.min(self.horizon.unwrap_or(u64::MAX)) as usize
    }

    fn check_step(&self, steps: u64, rows: [usize; 2], expected: usize) -> Result<(), StepError> {
        if let Some(horizon) = self.horizon.filter(|&horizon| steps >= horizon) {
            return Err(StepError::PastHorizon { horizon });
        }
        match rows.into_iter().find(|&found| found != expected) {
            Some(found) => Err(StepError::Coordinates { found, expected }),
            None => Ok(()),
        }
    }

    /// Tells this strategy from others in saved states: FNV-1a over its horizon and coefficients.
    fn fingerprint(&self) -> u64 {
        let horizon = self.horizon.unwrap_or(0).to_le_bytes();
        let coefficients = self.coefficients.iter().flat_map(|m| m.to_le_bytes());
        let absorb = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        horizon.into_iter().chain(coefficients).fold(0xcbf2_9ce4_8422_2325, absorb)
    }
}

/// The real value of a coefficient; exact.
fn real(coefficient: i64) -> f64 {
    coefficient as f64 * (-f64::from(COEFFICIENT_BITS)).exp2()
}

impl Strategy for Toeplitz {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        self.horizon
    }

    fn geometry(&self) -> ColumnGeometry {
        let norms = gram::squared_norms(&self.coefficients);
        ColumnGeometry {
            max_norm_squared: gram::round_up(norms[norms.len() - 1]),
            negative_overlap: gram::round_up(gram::negative_overlap(&self.coefficients)),
        }
    }

    fn column_norms_squared(&self, steps: u64) -> Vec<f64> {
        let norms = gram::squared_norms(&self.coefficients);
        let entries = (1..=self.within_horizon(steps)).rev();
        entries.map(|entries| gram::round_up(norms[entries.min(norms.len() - 1)])).collect()
    }

    /// For `A = D⁻¹T` with the row divisors D, row t of B holds the first t coefficients of `T C⁻¹`, divided.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> Vec<f64> {
        let terms = self.within_horizon(steps);
        let coefficients: Vec<f64> = self.coefficients.iter().map(|&m| real(m)).collect();
        let decoder = series::quotient(&workload.toeplitz_part(terms), &coefficients, terms);
        let squared_norms = decoder.iter().scan(0.0, |sum, b| {
            *sum += b * b;
            Some(*sum)
        });
        (1..).zip(squared_norms).map(|(t, square)| square.sqrt() / workload.row_divisor(t)).collect()
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        Box::new(ToeplitzEncoder {
            strategy: self.clone(),
            weight: self.coefficients.iter().map(|m| u128::from(m.unsigned_abs())).sum(),
            history: self.history(coordinates),
            largest: 0,
        })
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        Box::new(ToeplitzDecoder { strategy: self.clone(), history: self.history(coordinates) })
    }
}

struct ToeplitzEncoder {
    strategy: Toeplitz,
    /// Sum of the magnitudes of the coefficients.
    weight: u128,
    history: History<i128>,
    /// At least the magnitude of every value held.
    largest: u128,
}

const STATE_VERSION: u8 = 1;
const STATE_HEADER: usize = 25;

impl ToeplitzEncoder {
    /// What the state of this strategy begins with: version, fingerprint, coordinates.
    fn identification(&self) -> Vec<u8> {
        let coordinates = (self.history.coordinates() as u64).to_le_bytes();
        [&[STATE_VERSION], &self.strategy.fingerprint().to_le_bytes()[..], &coordinates].concat()
    }

    /// The coefficients with the rows they apply to: the new one, then the ones before it.
    fn terms<'a>(&'a self, x: &'a [i128]) -> impl Iterator<Item = (i128, &'a [i128])> {
        let rows = iter::once(x).chain(self.history.newest_first());
        self.strategy.coefficients.iter().map(|&m| i128::from(m)).zip(rows)
    }
}

impl Encoder for ToeplitzEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    /// `Σ|m| · max|x|` bounds every partial sum: while it is in range, no operation has to be checked.
    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps(), [x.len(), y.len()], self.history.coordinates())?;
        let largest = x.iter().map(|x| x.unsigned_abs()).fold(self.largest, u128::max);
        let in_range = largest.checked_mul(self.weight).is_some_and(|bound| bound <= i128::MAX as u128);
        y.fill(0);
        for (m, row) in self.terms(x) {
            if in_range {
                y.iter_mut().zip(row).for_each(|(y, &x)| *y = y.wrapping_add(x.wrapping_mul(m)));
            } else {
                for (y, &x) in y.iter_mut().zip(row) {
                    *y = x.checked_mul(m).and_then(|term| y.checked_add(term)).ok_or(StepError::Overflow)?;
                }
            }
        }
        self.largest = largest;
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        let values = self.history.values();
        let mut state = Vec::with_capacity(STATE_HEADER + size_of_val(values));
        state.extend(self.identification());
        state.extend(self.steps().to_le_bytes());
        values.iter().for_each(|x| state.extend(x.to_le_bytes()));
        state
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let refuse = |reason| StepError::State { reason };
        let expected = self.identification();
        let (version, fingerprint) = (..1, ..9);
        if state.get(version) != expected.get(version) {
            return Err(refuse("it is not of version 1"));
        }
        if state.get(fingerprint) != expected.get(fingerprint) {
            return Err(refuse("it was saved by another strategy or for another horizon"));
        }
        if !state.starts_with(&expected) {
            return Err(refuse("it was saved for another number of coordinates"));
        }
        let (steps, rows) = state[expected.len()..]
            .split_first_chunk()
            .ok_or(refuse("it ends before the number of steps"))?;
        let steps = u64::from_le_bytes(*steps);
        if self.strategy.horizon.is_some_and(|horizon| steps > horizon) {
            return Err(refuse("it has more steps than the horizon"));
        }
        let (rows, rest) = rows.as_chunks();
        let rows = Zeroizing::new(rows.iter().map(|x| i128::from_le_bytes(*x)).collect::<Vec<_>>());
        let largest = rows.iter().map(|x| x.unsigned_abs()).fold(0, u128::max);
        let kept = self.strategy.coefficients.len() - 1;
        let history = History::with_rows(self.history.coordinates(), kept, steps, rows);
        self.history = history.filter(|_| rest.is_empty()).ok_or(refuse("its number of rows is wrong"))?;
        self.largest = largest;
        Ok(())
    }
}

struct ToeplitzDecoder {
    strategy: Toeplitz,
    history: History<f64>,
}

impl Decoder for ToeplitzDecoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    /// Forward substitution, `x_t = (y_t − Σ_(lag≥1) m_lag x_(t−lag)) / m_0`, works with the very coefficients that
    /// encoded and with the increments, which do not grow with the sums they belong to.
    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        self.strategy.check_step(self.steps(), [y.len(), x.len()], self.history.coordinates())?;
        let (first, others) = (real(self.strategy.coefficients[0]), &self.strategy.coefficients[1..]);
        x.copy_from_slice(y);
        for (&m, row) in others.iter().zip(self.history.newest_first()) {
            let coefficient = real(m);
            x.iter_mut().zip(row).for_each(|(x, earlier)| *x -= coefficient * earlier);
        }
        x.iter_mut().for_each(|x| *x /= first);
        self.history.push(x);
        Ok(())
    }
}
