//! `C⁻¹ y` with a Toeplitz C, in floating point.

use super::{Toeplitz, real};
use crate::strategy::{Decoder, StepError, history::History};

/// Forward substitution, `x_t = (y_t − Σ_(i<t) C[t,i] x_i) / C[t,t]`, with the entries of the
/// encoder. It keeps increments, which do not grow like their sums.
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
        self.strategy.check_step(&self.history, [y.len(), x.len()])?;
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
}

#[cfg(test)]
mod tests {
    use crate::strategy::{StepError, build};

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
    fn steps_end_with_the_horizon_and_rows_have_their_length() {
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
