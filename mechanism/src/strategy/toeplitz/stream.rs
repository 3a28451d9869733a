//! `C x` with a Toeplitz C, exactly in integers modulo 2¹²⁸ (see [`Encoder`]), and `C⁻¹ y` in
//! floating point.

use super::{Toeplitz, real};
use crate::strategy::{
    Decoder, Encoder, StepError,
    step::{History, Identification, sums, wrong_length},
};
use std::iter;

pub(super) struct ToeplitzEncoder {
    strategy: Toeplitz,
    history: History<i128>,
}

impl ToeplitzEncoder {
    pub(super) fn new(strategy: &Toeplitz, coordinates: usize) -> Self {
        let (strategy, history) = (strategy.clone(), strategy.history(coordinates));
        Self { strategy, history }
    }

    /// Pairs of an entry of the next row of C and the row that it multiplies: the new row first,
    /// then older ones.
    fn terms<'a>(&'a self, x: &'a [i128]) -> impl Iterator<Item = (i128, &'a [i128])> {
        let rows = iter::once(x).chain(self.history.newest_first());
        self.strategy.row(self.steps()).map(i128::from).zip(rows)
    }

    fn identification(&self) -> Identification {
        let Toeplitz { fingerprint, horizon, .. } = self.strategy;
        Identification { version: 1, fingerprint, coordinates: self.history.coordinates(), horizon }
    }

    fn lengthen(&mut self, longer: Toeplitz) {
        self.history.keep(longer.kept());
        self.strategy = longer;
    }
}

impl Encoder for ToeplitzEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.history.check_step(self.strategy.horizon, [x.len(), y.len()])?;
        if !x.is_empty()
            && let Some(longer) = self.strategy.longer(self.steps())
        {
            self.lengthen(longer);
        }
        y.fill(0);
        for (m, row) in self.terms(x) {
            y.iter_mut().zip(row).for_each(|(y, &x)| *y = y.wrapping_add(x.wrapping_mul(m)));
        }
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        self.identification().save(self.steps(), self.history.values())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification().read(state)?;
        let rows = sums(rows)?;
        let coordinates = self.history.coordinates();
        // An unbounded stream keeps all rows, so a step count without its rows must not create
        // coefficients.
        if self.strategy.endless.is_some() && coordinates.checked_mul(steps as usize) != Some(rows.len()) {
            return Err(wrong_length());
        }
        let longer = (!rows.is_empty()).then(|| self.strategy.longer(steps)).flatten();
        let mut restored = Self::new(longer.as_ref().unwrap_or(&self.strategy), coordinates);
        restored.history = restored.history.replaced(steps, rows).ok_or(wrong_length())?;
        *self = restored;
        Ok(())
    }
}

/// Forward substitution, `x_t = (y_t − Σ_(i<t) C[t,i] x_i) / C[t,t]`, with the entries of the
/// encoder. The decoder keeps increments, which do not grow like their sums.
pub(super) struct ToeplitzDecoder {
    strategy: Toeplitz,
    history: History<f64>,
}

impl ToeplitzDecoder {
    pub(super) fn new(strategy: &Toeplitz, coordinates: usize) -> Self {
        Self { strategy: strategy.clone(), history: strategy.history(coordinates) }
    }
}

impl Decoder for ToeplitzDecoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        self.history.check_step(self.strategy.horizon, [y.len(), x.len()])?;
        if let Some(longer) = self.strategy.longer(self.steps()) {
            self.history.keep(longer.kept());
            self.strategy = longer;
        }
        x.copy_from_slice(y);
        let mut entries = self.strategy.row(self.steps()).map(real);
        let diagonal = entries.next().unwrap_or(f64::NAN);
        for (entry, row) in entries.zip(self.history.newest_first()) {
            x.iter_mut().zip(row).for_each(|(x, earlier)| *x -= entry * earlier);
        }
        x.iter_mut().for_each(|x| *x /= diagonal);
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        self.history.values().to_vec()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        let coordinates = self.history.coordinates();
        // An unbounded stream keeps all rows, so a step count without its rows must not create
        // coefficients.
        let whole = coordinates.checked_mul(steps as usize) == Some(state.len()) && !state.is_empty();
        let longer = whole.then(|| self.strategy.longer(steps)).flatten();
        let mut restored = Self::new(longer.as_ref().unwrap_or(&self.strategy), coordinates);
        restored.history = restored.history.resumed(self.strategy.horizon, steps, state)?;
        *self = restored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::SQUARE_ROOT;
    use super::*;
    use crate::strategy::{Strategy as _, build};
    use num_bigint::BigInt;
    use proptest::prelude::*;

    const HORIZON: u64 = 24;
    const WORKLOADS: &str = "prefix|exponential:0\\.[19]|window:[1-9]";

    fn square_root(workload: &str) -> Toeplitz {
        let workload = workload.parse().unwrap();
        let root = crate::strategy::toeplitz::root::root(&workload, HORIZON as usize);
        Toeplitz::new(SQUARE_ROOT.name(), &root, Some(HORIZON))
    }

    /// Values of all magnitudes. Sums of values above 86 bits can leave the range; larger `shift`
    /// makes them rare.
    fn stream(coordinates: usize) -> impl Strategy<Value = Vec<Vec<i128>>> {
        (0u32..70).prop_flat_map(move |shift| {
            let value = (any::<i128>(), 0u32..58).prop_map(move |(x, more)| x >> (shift + more));
            prop::collection::vec(prop::collection::vec(value, coordinates), 0..HORIZON as usize)
        })
    }

    fn exact(coefficients: &[i64], rows: &[Vec<i128>], coordinate: usize) -> BigInt {
        let terms = coefficients.iter().zip(rows.iter().rev());
        terms.map(|(&m, row)| BigInt::from(m) * BigInt::from(row[coordinate])).sum()
    }

    proptest! {
        #[test]
        fn encoding_is_exact_modulo_the_range(workload in WORKLOADS, rows in stream(2)) {
            let strategy = square_root(&workload);
            let (mut encoder, mut y) = (strategy.encoder(2), [0; 2]);
            for taken in 1..=rows.len() {
                encoder.encode(&rows[taken - 1], &mut y).unwrap();
                for (position, y) in y.into_iter().enumerate() {
                    let off = exact(&strategy.coefficients, &rows[..taken], position) - y;
                    prop_assert_eq!(&off >> 128 << 128, off);
                }
            }
        }

        #[test]
        fn a_restored_encoder_continues_like_the_saved_one(
            workload in WORKLOADS, rows in stream(3), step in 0..HORIZON as usize
        ) {
            let strategy = square_root(&workload);
            let [mut saved, mut restored] = [strategy.encoder(3), strategy.encoder(3)];
            let (mut y, mut again) = ([0; 3], [0; 3]);
            for (t, row) in rows.iter().enumerate() {
                if t == step {
                    restored.encode(&[1, 2, 3], &mut again).unwrap();
                    restored.restore(&saved.save()).unwrap();
                }
                let outcome = saved.encode(row, &mut y);
                if t >= step {
                    prop_assert_eq!(&restored.encode(row, &mut again), &outcome);
                    prop_assert!(outcome.is_err() || y == again);
                    prop_assert_eq!(restored.save(), saved.save());
                }
            }
        }

        #[test]
        fn a_refused_state_changes_nothing(state in prop::collection::vec(any::<u8>(), 0..200), good: bool) {
            crate::strategy::conformance::check_restoring(square_root("window:3").encoder(1), state, good);
        }
    }

    #[test]
    fn a_forged_number_of_steps_is_refused_before_memory_is_allocated() {
        let strategy = build("log-perturbed-root", &"prefix".parse().unwrap(), None).unwrap();
        let mut encoder = strategy.encoder(1);
        let mut state = encoder.save();
        for steps in [1u64, 1 << 40, u64::MAX] {
            state[24..].copy_from_slice(&steps.to_le_bytes());
            for rows in [0, 1023] {
                let state = [&state[..], &vec![0; 16 * rows]].concat();
                assert!(encoder.restore(&state).is_err());
            }
        }
        assert_eq!(encoder.steps(), 0);
        let mut empty = strategy.encoder(0);
        let mut state = empty.save();
        state[24..].copy_from_slice(&(u64::MAX - 1).to_le_bytes());
        empty.restore(&state).unwrap();
        empty.encode(&[], &mut []).unwrap();
    }

    #[test]
    fn identity_copies_every_integer_in_range() {
        let strategy = build("identity", &"prefix".parse().unwrap(), None).unwrap();
        let (mut encoder, mut y) = (strategy.encoder(1), [0]);
        let limit = i128::MAX >> 40;
        for x in [limit, -limit - 1, 0, 5] {
            encoder.encode(&[x], &mut y).unwrap();
            assert_eq!(y, [x << 40]);
        }
        assert_eq!((encoder.steps(), encoder.save().len()), (4, 32));
    }

    #[test]
    fn encoding_ends_with_the_horizon_and_checks_row_lengths() {
        let (mut encoder, mut y) = (square_root("prefix").encoder(1), [0]);
        assert_eq!(encoder.encode(&[], &mut y), Err(StepError::Coordinates { found: 0, expected: 1 }));
        assert_eq!(encoder.encode(&[1], &mut []), Err(StepError::Coordinates { found: 0, expected: 1 }));
        for _ in 0..HORIZON {
            encoder.encode(&[1], &mut y).unwrap();
        }
        assert_eq!(encoder.encode(&[1], &mut y), Err(StepError::PastHorizon { horizon: HORIZON }));
        assert_eq!(encoder.steps(), HORIZON);
    }

    #[test]
    fn states_that_do_not_fit_are_refused_with_the_reason() {
        let mut encoder = square_root("prefix").encoder(2);
        encoder.encode(&[1, 2], &mut [0; 2]).unwrap();
        let good = encoder.save();
        let with = |position: usize, value: u8| {
            let mut state = good.clone();
            state[position] = value;
            state
        };
        let check = |state: &[u8], part: &str| {
            let message = square_root("prefix").encoder(2).restore(state).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check(&[], "header");
        check(&with(0, 2), "version");
        check(&square_root("window:3").encoder(2).save(), "another strategy");
        check(&square_root("prefix").encoder(1).save(), "coordinates");
        check(&with(24, HORIZON as u8 + 1), "more steps");
        check(&with(24, 2), "length");
        check(&good[..good.len() - 1], "length");
        check(&good[..good.len() - 16], "length");
        check(&[&good[..], &[0]].concat(), "length");
    }

    #[test]
    fn saved_bytes_agree_with_version_1() {
        let workload = "prefix".parse().unwrap();
        let strategy = build("square-root", &workload, Some(3)).unwrap();
        let mut encoder = strategy.encoder(1);
        encoder.encode(&[-2], &mut [0]).unwrap();
        let header = [1, 0x40d4_4d4f_715a_4571, 1, 1].map(u64::to_le_bytes).concat();
        let row = (-2i128).to_le_bytes();
        assert_eq!(encoder.save(), [&header[..], &row].concat());
    }

    #[test]
    fn a_quickly_decaying_strategy_keeps_few_rows() {
        let terms = crate::strategy::toeplitz::root::root(&"exponential:0.1".parse().unwrap(), 1000);
        let strategy = Toeplitz::new(SQUARE_ROOT.name(), &terms, Some(1000));
        let mut encoder = strategy.encoder(1);
        (0..1000).for_each(|_| encoder.encode(&[1], &mut [0]).unwrap());
        assert_eq!(encoder.save().len(), 32 + strategy.encoder_bytes());
        assert!(strategy.coefficients.len() < 15);
    }

    #[test]
    fn increments_come_back_from_their_sums() {
        for workload in ["prefix", "average", "exponential:0.99", "window:10", "window:300"] {
            let strategy = build("square-root", &workload.parse().unwrap(), Some(3000)).unwrap();
            let (mut encoder, mut decoder) = (strategy.encoder(2), strategy.decoder(2));
            let (mut y, mut x) = ([0; 2], [0.0; 2]);
            for t in 1..=3000i128 {
                let increments = [t << 40, (t * t % 997 + 1) << 50];
                encoder.encode(&increments, &mut y).unwrap();
                decoder.decode(&y.map(|y| y as f64 / 2f64.powi(40)), &mut x).unwrap();
                for (found, expected) in x.iter().zip(increments.map(|x| x as f64)) {
                    assert!(
                        (found - expected).abs() < 1e-10 * expected,
                        "{workload} {t}: {found} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn decoding_ends_with_the_horizon() {
        let strategy = build("square-root", &"prefix".parse().unwrap(), Some(2)).unwrap();
        let mut decoder = strategy.decoder(1);
        let wrong = StepError::Coordinates { found: 2, expected: 1 };
        assert_eq!(decoder.decode(&[1.0, 1.0], &mut [0.0]), Err(wrong));
        for _ in 0..2 {
            decoder.decode(&[1.0], &mut [0.0]).unwrap();
        }
        assert_eq!(decoder.decode(&[1.0], &mut [0.0]), Err(StepError::PastHorizon { horizon: 2 }));
        assert_eq!(decoder.steps(), 2);
    }
}
