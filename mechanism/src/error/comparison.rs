//! JME or post-processing: Table 2 of the paper in numbers.
//!
//! Second moments with their own noise have an error of `Jσ²`. Squares of noisy first moments have
//! `Lσ² + Qσ⁴` when debiased, where L depends on the data. So JME is better from the noise
//! multiplier `√((J − L)/Q)` on, and always where J ≤ L, as for d = 1. For the identity and records
//! replaced in place, in units of `‖A‖²ζ⁴`,
//!
//! ```text
//! J = 8d²     L = 8(d+1)     Q = 16d(d+1)        better from below 1/√2 on
//! J = 4d(d+1), where the triangle of a symmetric matrix is released        from below ½ on
//! ```
//!
//! In noise deviations these are √2 and 1.

use super::post_processing::{Bounds, SquaredNoiseError};

/// The second moments with the smaller expected squared error for the worst data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Second moments with their own noise.
    Joint,
    /// Second moments squared from noisy first moments.
    PostProcessing,
    /// The bounds do not decide.
    Undecided,
}

/// Errors of both at one noise multiplier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Error of second moments with their own noise.
    pub joint: f64,
    /// Error of second moments squared from noisy first moments.
    pub post_processing: SquaredNoiseError,
}

impl Comparison {
    /// Returns the better one, with debiased post-processing.
    pub fn better(&self) -> Better {
        let Bounds { lower, upper } = self.post_processing.debiased();
        if self.joint <= lower {
            Better::Joint
        } else if self.joint >= upper {
            Better::PostProcessing
        } else {
            Better::Undecided
        }
    }

    /// Returns the noise multiplier, in units of the present one, from which JME is better; 0 where
    /// it always is.
    pub fn crossing(&self) -> Bounds {
        let SquaredNoiseError { quadratic, linear, .. } = self.post_processing;
        let of = |linear: f64| ((self.joint - linear).max(0.0) / quadratic).sqrt();
        Bounds { lower: of(linear.upper), upper: of(linear.lower) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference::close;
    use super::super::{ExpectedError, InPlaceRelease, PostProcessing, SecondEntries};
    use super::*;
    use crate::strategy::build;
    use crate::workload::Workload;

    fn compare(
        dimension: usize,
        noise_multiplier: f64,
        strategy: &str,
        entries: SecondEntries,
    ) -> Comparison {
        let (workload, steps) = (Workload::Prefix, 200);
        let strategy = build(strategy, &workload, Some(steps)).unwrap();
        let error = ExpectedError::new(&workload, strategy.as_ref(), steps).unwrap();
        let release =
            InPlaceRelease::new(dimension, 3.0, noise_multiplier).with_column_norm(error.sensitivity);
        Comparison {
            joint: release.joint().second_moment_error(entries, dimension, error.frobenius),
            post_processing: PostProcessing::new(&workload, strategy.as_ref(), steps).unwrap().error(
                entries,
                dimension,
                release.clip_norm,
                release.post_processed(),
            ),
        }
    }

    /// Checks the crossing derived at the head of the module.
    #[test]
    fn the_identity_crosses_where_the_theory_says() {
        for d in [3, 10, 1000] {
            let f = d as f64;
            let published = (2.0 * f * f - 2.0 * (f + 1.0)) / (f * (f + 1.0));
            let symmetric = 1.0 - 2.0 / f;
            for (entries, deviation) in
                [(SecondEntries::Independent, published), (SecondEntries::Symmetric, symmetric)]
            {
                let crossing = compare(d, 1.0, "identity", entries).crossing();
                close("crossing", crossing.lower, deviation.sqrt() / 2.0, 1e-9);
                close("crossing", crossing.upper, crossing.lower, 1e-9);
                let at = |factor: f64| compare(d, crossing.upper * factor, "identity", entries).better();
                assert_eq!((at(0.999), at(1.001)), (Better::PostProcessing, Better::Joint));
            }
        }
    }

    #[test]
    fn one_dimension_is_always_better_with_noise_of_its_own() {
        for strategy in ["identity", "square-root"] {
            for noise_multiplier in [1e-4, 0.1, 1.0, 100.0] {
                let found = compare(1, noise_multiplier, strategy, SecondEntries::Symmetric);
                assert_eq!((found.better(), found.crossing().upper), (Better::Joint, 0.0));
            }
        }
    }

    #[test]
    fn between_the_crossings_data_decide() {
        let crossing = compare(1000, 1.0, "square-root", SecondEntries::Symmetric).crossing();
        assert!(0.0 < crossing.lower && crossing.lower < crossing.upper);
        let at = |noise_multiplier| {
            compare(1000, noise_multiplier, "square-root", SecondEntries::Symmetric).better()
        };
        assert_eq!(at(crossing.lower * 0.99), Better::PostProcessing);
        assert_eq!(at((crossing.lower * crossing.upper).sqrt()), Better::Undecided);
        assert_eq!(at(crossing.upper * 1.01), Better::Joint);
    }
}
