//! Correlation of the noise of first moments under two exponential averages of the same releases.
//!
//! Let r_t be the rows of C⁻¹, and `P_t = βP_(t−1) + r_t` and `Q_t = γQ_(t−1) + r_t` those of the
//! decoders of both averages, without divisors. Then `‖P_t‖² − β²‖P_(t−1)‖² = 2β⟨P_(t−1), r_t⟩ +
//! ‖r_t‖²`, and likewise for Q. Hence
//!
//! ```text
//! ⟨P_t, Q_t⟩ = βγ⟨P_(t−1), Q_(t−1)⟩ + ½(‖P_t‖² − β²‖P_(t−1)‖²) + ½(‖Q_t‖² − γ²‖Q_(t−1)‖²)
//! ```
//!
//! So the noise levels of both views determine the correlation, for every strategy. Divisors of
//! rows don't change it.

use super::ViewNoise;
use crate::workload::{Decay, Workload};
use std::sync::Arc;

/// Returns the correlation of the noise of counts and first moments under the averages
/// [`Workload::Adam`] of two decays, from the first epoch to the horizon. The levels are those of
/// these averages, in this order.
pub fn noise_correlations(
    levels: [Arc<ViewNoise>; 2],
    decays: [Decay; 2],
) -> impl Iterator<Item = f64> + Send {
    let [beta, gamma] = decays.map(Decay::get);
    let (mut last, mut product) = ([0.0; 2], 0.0);
    (1..).map_while(move |epoch: u64| {
        let square = |which: usize| {
            let (level, _) = levels[which].at(epoch as usize - 1)?;
            Some((level * Workload::Adam(decays[which]).row_divisor(epoch)).powi(2))
        };
        let squares = [square(0)?, square(1)?];
        let grown = squares[0] - beta * beta * last[0] + squares[1] - gamma * gamma * last[1];
        product = beta * gamma * product + grown / 2.0;
        last = squares;
        Some((product / (squares[0] * squares[1]).sqrt()).clamp(-1.0, 1.0))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mechanism, strategies};
    use super::*;
    use crate::strategy::Strategy;
    use nalgebra::{DMatrix, DVector};

    const STEPS: usize = 12;

    /// C⁻¹, column by column from the decoder.
    fn inverse(strategy: &dyn Strategy) -> DMatrix<f64> {
        let columns = (0..STEPS).map(|impulse| {
            let mut decoder = strategy.decoder(1);
            let row = |t: usize| {
                let mut x = [0.0];
                decoder.decode(&[f64::from(u8::from(t == impulse))], &mut x).unwrap();
                x[0]
            };
            DVector::from_iterator(STEPS, (0..STEPS).map(row))
        });
        DMatrix::from_columns(&columns.collect::<Vec<_>>())
    }

    #[test]
    fn the_correlation_is_that_of_the_rows_of_both_decoders() {
        for strategy in strategies() {
            let (name, inverse) = (strategy.name(), inverse(&*strategy));
            let mechanism = mechanism(strategy);
            for decays in [[0.9, 0.999], [0.5, 0.99], [0.99, 0.2], [0.9, 0.9]] {
                let decays = decays.map(|decay| Decay::new(decay).unwrap());
                let averages = decays.map(Workload::Adam);
                let noise = |average| Arc::new(ViewNoise::new(&mechanism, average, STEPS as u64));
                let found: Vec<f64> = noise_correlations(averages.each_ref().map(noise), decays).collect();
                assert_eq!(found.len(), STEPS, "{name}");
                let [one, other] = averages.map(|average| average.matrix(STEPS) * &inverse);
                for (t, found) in found.iter().enumerate() {
                    let (one, other) = (one.row(t), other.row(t));
                    let expected = one.dot(&other) / one.norm() / other.norm();
                    assert!((found - expected).abs() < 1e-9, "{name} {decays:?} {t}: {found}, {expected}");
                }
            }
        }
    }
}
