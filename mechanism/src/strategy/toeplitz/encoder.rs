//! `C x` with a Toeplitz C, exactly in integers.

use super::Toeplitz;
use crate::strategy::{
    Encoder, StepError,
    history::History,
    step::{Identification, sums, wrong_length},
};
use std::iter;

pub(super) struct ToeplitzEncoder {
    strategy: Toeplitz,
    /// At least the sum of the magnitudes of the entries of a row.
    weight: u128,
    history: History<i128>,
    /// At least the magnitude of every value held.
    largest: u128,
}

impl ToeplitzEncoder {
    pub(super) fn new(strategy: &Toeplitz, coordinates: usize) -> Self {
        let (strategy, history) = (strategy.clone(), strategy.history(coordinates));
        Self { weight: strategy.weight(), strategy, history, largest: 0 }
    }

    /// The entries of the next row of C with the rows they apply to: the new one, then the ones before it.
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
        self.weight = longer.weight();
        self.strategy = longer;
    }
}

impl Toeplitz {
    /// At least the sum of the magnitudes of the entries of a row.
    fn weight(&self) -> u128 {
        let sum: u128 = self.coefficients.iter().map(|m| u128::from(m.unsigned_abs())).sum();
        match self.column_scales.as_deref().and_then(|scales| scales.last()) {
            None => sum,
            Some(largest) => (sum as f64 * largest * 1.001) as u128 + self.coefficients.len() as u128,
        }
    }
}

impl Encoder for ToeplitzEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    /// `Σ|C[t,i]| · max|x|` bounds every partial sum: while it is in range, no operation needs a check of its own.
    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.strategy.check_step(&self.history, [x.len(), y.len()])?;
        if !x.is_empty()
            && let Some(longer) = self.strategy.longer(self.steps())
        {
            self.lengthen(longer);
        }
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
        self.identification().save(self.steps(), self.history.values())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification().read(state)?;
        let rows = sums(rows)?;
        let largest = rows.iter().map(|x| x.unsigned_abs()).fold(0, u128::max);
        let coordinates = self.history.coordinates();
        // A stream without end holds all rows: steps whose rows are not there must not be given coefficients.
        if self.strategy.endless.is_some() && coordinates.checked_mul(steps as usize) != Some(rows.len()) {
            return Err(wrong_length());
        }
        let longer = (!rows.is_empty()).then(|| self.strategy.longer(steps)).flatten();
        let mut restored = Self::new(longer.as_ref().unwrap_or(&self.strategy), coordinates);
        restored.history = restored.history.replaced(steps, rows).ok_or(wrong_length())?;
        *self = Self { largest, ..restored };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Strategy as _, StrategyName, build};
    use num_bigint::BigInt;
    use proptest::prelude::*;

    const HORIZON: u64 = 24;
    const WORKLOADS: &str = "prefix|exponential:0\\.[19]|window:[1-9]";

    /// A square root as `build` makes it, and of a forgetful workload one that forgets within the horizon.
    fn square_root(workload: &str) -> Toeplitz {
        let workload = workload.parse().unwrap();
        let root = crate::strategy::toeplitz::root::root(&workload, HORIZON as usize);
        Toeplitz::new(StrategyName::SquareRoot, &root, Some(HORIZON))
    }

    /// Values of all magnitudes; those of more than 86 bits can overflow, and become rare with `shift`.
    fn stream(coordinates: usize) -> impl Strategy<Value = Vec<Vec<i128>>> {
        (0u32..70).prop_flat_map(move |shift| {
            let value = (any::<i128>(), 0u32..58).prop_map(move |(x, more)| x >> (shift + more));
            prop::collection::vec(prop::collection::vec(value, coordinates), 0..HORIZON as usize)
        })
    }

    fn exact(coefficients: &[i64], rows: &[Vec<i128>], coordinate: usize) -> (BigInt, BigInt) {
        let terms = coefficients.iter().zip(rows.iter().rev());
        let terms = terms.map(|(&m, row)| BigInt::from(m) * BigInt::from(row[coordinate]));
        terms.fold(Default::default(), |(sum, size), term| {
            (sum + &term, size + BigInt::from(term.magnitude().clone()))
        })
    }

    proptest! {
        /// A step is either exact, or refused because a partial sum can leave the range, without a trace.
        #[test]
        fn encoding_is_exact_or_refused(workload in WORKLOADS, rows in stream(2)) {
            let strategy = square_root(&workload);
            let (mut encoder, mut y, mut taken) = (strategy.encoder(2), [0; 2], Vec::new());
            for row in rows {
                taken.push(row);
                let expected = [0, 1].map(|c| exact(&strategy.coefficients, &taken, c));
                match encoder.encode(&taken[taken.len() - 1], &mut y) {
                    Ok(()) => prop_assert_eq!(y.map(BigInt::from), expected.map(|(sum, _)| sum)),
                    Err(error) => {
                        prop_assert_eq!(error, StepError::Overflow);
                        prop_assert!(expected.iter().any(|(_, size)| *size > BigInt::from(i128::MAX)));
                        taken.pop();
                    }
                }
                prop_assert_eq!(encoder.steps(), taken.len() as u64);
            }
        }

        #[test]
        fn a_restored_encoder_goes_on_as_the_saved_one(
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
        fn restoring_anything_does_no_harm(mut state in prop::collection::vec(any::<u8>(), 0..200), good: bool) {
            let mut encoder = square_root("window:3").encoder(1);
            if good {
                state.splice(0..0, encoder.save()[..24].iter().copied());
            }
            let before = encoder.save();
            if encoder.restore(&state).is_err() {
                prop_assert_eq!(encoder.save(), before);
            }
        }
    }

    /// The root applied to its own coefficients gives ones: so the sum stays just in range until a last row, small
    /// enough to be in range by itself, drives it out.
    #[test]
    fn a_forged_number_of_steps_is_refused_before_it_costs_anything() {
        let strategy = build(StrategyName::LogPerturbedRoot, &"prefix".parse().unwrap(), None).unwrap();
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
    fn what_is_held_counts_for_the_range() {
        let strategy = square_root("prefix");
        let [mut encoder, mut restored] = [strategy.encoder(1), strategy.encoder(1)];
        let full = (i128::MAX >> 40) / 100;
        for &m in &strategy.coefficients[..HORIZON as usize - 1] {
            encoder.encode(&[(full >> 40) * 99 * i128::from(m)], &mut [0]).unwrap();
        }
        restored.restore(&encoder.save()).unwrap();
        let weight: i128 = strategy.coefficients.iter().map(|&m| i128::from(m)).sum();
        assert!((17 * full).checked_mul(weight).is_some());
        for mut encoder in [encoder, restored] {
            assert_eq!(encoder.encode(&[17 * full], &mut [0]), Err(StepError::Overflow));
            assert_eq!(encoder.steps(), HORIZON - 1);
        }
    }

    #[test]
    fn the_identity_passes_everything_that_fits() {
        let strategy = build(StrategyName::Identity, &"prefix".parse().unwrap(), None).unwrap();
        let (mut encoder, mut y) = (strategy.encoder(1), [0]);
        let limit = i128::MAX >> 40;
        for x in [limit, -limit - 1, 0, 5] {
            encoder.encode(&[x], &mut y).unwrap();
            assert_eq!(y, [x << 40]);
        }
        for x in [limit + 1, -limit - 2, i128::MAX, i128::MIN] {
            assert_eq!(encoder.encode(&[x], &mut y), Err(StepError::Overflow));
        }
        assert_eq!((encoder.steps(), encoder.save().len()), (4, 32));
    }

    #[test]
    fn steps_end_with_the_horizon_and_rows_have_their_length() {
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
        let with = |place: usize, value: u8| {
            let mut state = good.clone();
            state[place] = value;
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

    /// States on disk must stay readable.
    #[test]
    fn the_saved_bytes_are_those_of_version_1() {
        let workload = "prefix".parse().unwrap();
        let strategy = build(StrategyName::SquareRoot, &workload, Some(3)).unwrap();
        let mut encoder = strategy.encoder(1);
        encoder.encode(&[-2], &mut [0]).unwrap();
        let header = [1, 0x40d4_4d4f_715a_4571, 1, 1].map(u64::to_le_bytes).concat();
        let row = (-2i128).to_le_bytes();
        assert_eq!(encoder.save(), [&header[..], &row].concat());
    }

    #[test]
    fn a_forgetful_strategy_keeps_few_rows() {
        let terms = crate::strategy::toeplitz::root::root(&"exponential:0.1".parse().unwrap(), 1000);
        let strategy = Toeplitz::new(StrategyName::SquareRoot, &terms, Some(1000));
        let mut encoder = strategy.encoder(1);
        (0..1000).for_each(|_| encoder.encode(&[1], &mut [0]).unwrap());
        assert_eq!(encoder.save().len(), 32 + strategy.encoder_bytes());
        assert!(strategy.coefficients.len() < 15);
    }
}
