//! Private answers to linear queries over a histogram (Yuan, Yang, Zhang & Hao 2016, "Convex
//! Optimization for Linear Query Processing under Approximate Differential Privacy").
//!
//! | file | subject |
//! |---|---|
//! | `workload` | the queries |
//! | `integers` | a strategy in integers |
//! | `strategy` | the optimal strategy with its certificate |
//! | `path`, `quadrature` | the same for cells, prefixes and all ranges, by their structure |
//! | `baselines`, `low_rank` | the errors of other strategies |
//! | this file | the release |
//!
//! # Release
//! C of the [optimum](QueryStrategy) is rounded to integers K = ⌊2⁴⁰·C⌉. The answers to K are exact
//! integers, and each gets discrete Gaussian noise of parameter σ·Δ, where Δ² is the largest
//! squared norm of a column of K, an exact integer. Cells, answers and intervals are computed from
//! the release with K itself, so rounding C costs accuracy but no privacy.
//!
//! **Neighbours** differ in one record, which is in one cell of one of them and absent from the
//! other: cell j changes by 1, and the answers to K by column j, whose norm is at most Δ. So the
//! release is one Gaussian mechanism with the noise multiplier σ, except for the total variation
//! of discrete noise ([`Discreteness`]). If a record may move to another cell, the norm is at most
//! 2Δ: charge twice.

mod baselines;
mod integers;
mod low_rank;
mod path;
mod quadrature;
mod strategy;
mod workload;

pub use baselines::StrategyError;
pub use low_rank::MAX_CELLS as LOW_RANK_CELLS;
pub use strategy::QueryStrategy;
pub use workload::{QueryName, QueryWorkload};

use integers::TriangularIntegers;

use hushflow_mechanism::accounting::discrete::{self, Discreteness};
use hushflow_mechanism::accounting::{AccountingError, Delta, Epsilon, NoiseMultiplier};
use hushflow_mechanism::noise::scale::NoiseScaleError;
use hushflow_mechanism::noise::{DiscreteGaussian, NoiseScale};
use hushflow_mechanism::optimize::OptimizeError;
use rand::CryptoRng;
use thiserror::Error;

/// Largest count of a cell: with 2⁴⁰ for an entry and 2¹⁶ cells, sums stay below 2⁹⁷.
const LARGEST_COUNT: u64 = 1 << 40;

/// Largest number of cells of `matrix` and `marginals`: the optimum takes minutes.
pub const MAX_CELLS: usize = 2048;

/// Largest number of cells of the other workloads: all ranges then have 34 million answers.
pub const MAX_PATH_CELLS: usize = 8192;

/// Relative margin by which deviations are raised.
const MARGIN: f64 = 1e-12;

/// Reasons why there are no answers. All follow from public numbers, except
/// [`QueryError::Count`], which only the operator may see.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum QueryError {
    /// No queries or cells.
    #[error("a workload needs at least one query and one cell")]
    Empty,
    /// Unusable marginals.
    #[error(
        "marginals of {order} of {attributes} attributes: expected 1 to {attributes} of at most 20, with at least one value each"
    )]
    Marginals {
        /// Number of attributes in each marginal.
        order: usize,
        /// Number of attributes.
        attributes: usize,
    },
    /// A workload too large to write out.
    #[error("{queries} queries over {cells} cells are more than 40 million numbers: choose fewer")]
    TooLarge {
        /// Number of queries.
        queries: usize,
        /// Number of cells.
        cells: usize,
    },
    /// Too many cells for the optimum.
    #[error(
        "{found} cells: the time of the optimum grows with the cube of their number, here to about {minutes:.0} minutes on two cores; expected at most {MAX_CELLS} cells: merge some, or ask for cells, prefix or all-range"
    )]
    Cells {
        /// Number of cells.
        found: usize,
        /// Estimated time.
        minutes: f64,
    },
    /// Too many cells for a strategy in memory.
    #[error("{found} cells: expected at most {MAX_PATH_CELLS}: merge some")]
    PathCells {
        /// Number of cells.
        found: usize,
    },
    /// The number of counts differs from the number of cells.
    #[error("{found} counts for {expected} cells")]
    Length {
        /// Number of counts.
        found: usize,
        /// Number of cells.
        expected: usize,
    },
    /// A count beyond the range of exact sums.
    #[error("the count of a cell is above 2^40")]
    Count,
    /// No optimum was found.
    #[error(transparent)]
    Optimum(#[from] OptimizeError),
    /// The certificate of the optimum does not hold.
    #[error("the certificate of the optimum does not hold: {0}")]
    Certificate(String),
    /// The noise does not fit the grid.
    #[error(transparent)]
    Noise(#[from] NoiseScaleError),
    /// Accounting failed.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
    /// A factorisation failed.
    #[error("a factorisation failed: the weights of the queries differ by too many orders of magnitude")]
    Numerical,
}

/// An optimal strategy in integers, ready to release.
#[derive(Debug)]
pub struct QueryMechanism {
    strategy: QueryStrategy,
    integers: TriangularIntegers,
    /// Δ, rounded up.
    sensitivity: f64,
    /// Variance of each answer per unit of σ².
    variances: Vec<f64>,
}

/// Released answers. All of it is public.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryAnswers {
    /// Estimated counts of the cells. They may be negative.
    pub cells: Vec<f64>,
    /// Answers to the queries.
    pub answers: Vec<f64>,
    /// Standard deviation of the noise of each answer.
    pub deviations: Vec<f64>,
}

impl QueryMechanism {
    /// Finds the optimal strategy for a workload. No data are read.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn new(workload: QueryWorkload) -> Result<Self, QueryError> {
        let strategy = QueryStrategy::optimal(&workload)?;
        let integers = strategy.integers()?;
        let largest = integers.squared_norms().into_iter().max().unwrap_or(0);
        let sensitivity = (largest as f64).sqrt() * (1.0 + MARGIN);
        let variances = strategy.variances(&integers)?;
        Ok(Self { strategy, integers, sensitivity, variances })
    }

    /// The workload.
    pub fn workload(&self) -> &QueryWorkload {
        self.strategy.workload()
    }

    /// The strategy.
    pub fn strategy(&self) -> &QueryStrategy {
        &self.strategy
    }

    /// Bound on the distance of the noise from the ideal, for any noise multiplier of at least
    /// `least`.
    ///
    /// # Errors
    /// [`QueryError::Accounting`] if the grid is too coarse.
    pub fn discreteness(&self, least: NoiseMultiplier) -> Result<Discreteness, QueryError> {
        Ok(Discreteness::new(self.sensitivity * least.value(), self.workload().cells() as f64)?)
    }

    /// Returns the least noise multiplier for (ε, δ), rounded up.
    ///
    /// # Errors
    /// [`QueryError::Accounting`] if there is none on this grid.
    pub fn noise_multiplier(&self, epsilon: Epsilon, delta: Delta) -> Result<NoiseMultiplier, QueryError> {
        let continuous =
            hushflow_mechanism::accounting::gaussian::noise_multiplier_rounded_up(epsilon, delta);
        // The discrete multiplier is at least the continuous one, so this bound covers it.
        let discreteness = self.discreteness(continuous)?;
        Ok(discrete::noise_multiplier_rounded_up(epsilon, delta, discreteness)?)
    }

    /// Releases the answers for exact counts of the cells.
    ///
    /// # Errors
    /// [`QueryError`] for another number of counts, counts above 2⁴⁰, or noise beyond the grid.
    pub fn release<R: CryptoRng + ?Sized>(
        &self,
        counts: &[u64],
        noise: NoiseMultiplier,
        rng: &mut R,
    ) -> Result<QueryAnswers, QueryError> {
        let n = self.workload().cells();
        if counts.len() != n {
            return Err(QueryError::Length { found: counts.len(), expected: n });
        }
        if counts.iter().any(|count| *count > LARGEST_COUNT) {
            return Err(QueryError::Count);
        }
        let gaussian =
            DiscreteGaussian::new(NoiseScale::at_least(self.sensitivity * noise.value() * (1.0 + MARGIN))?);
        let mut drawn = vec![0; n];
        gaussian.fill(rng, &mut drawn);
        let noisy = self.integers.sums(counts).zip(&drawn).map(|(sum, noise)| sum.wrapping_add(*noise));
        let cells = self.integers.solved(noisy);
        let deviation = gaussian.scale().sigma() * TriangularIntegers::unit();
        let deviations = self.variances.iter().map(|variance| deviation * variance.sqrt());
        let answers = self.workload().answers(&cells);
        if !answers.iter().all(|answer| answer.is_finite()) {
            return Err(QueryError::Numerical);
        }
        Ok(QueryAnswers { deviations: deviations.collect(), answers, cells })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20::ChaCha20Rng;
    use hushflow_mechanism::audit::bound::EventPair;
    use nalgebra::{DMatrix, DVector};
    use rand::SeedableRng;

    fn multiplier(value: f64) -> NoiseMultiplier {
        NoiseMultiplier::new(value).unwrap()
    }

    /// Answers are unbiased with the stated deviations. Over 400 runs the sum of squared errors
    /// over variances of each of 8 ranges is within 6 of its standard deviations: a false alarm has
    /// a probability below 10⁻⁶.
    #[test]
    fn answers_have_the_noise_that_they_report() {
        let mechanism = QueryMechanism::new(QueryWorkload::AllRanges(16)).unwrap();
        let counts: Vec<u64> = (0..16).map(|cell| cell * cell * 7 % 90).collect();
        let exact =
            mechanism.workload().answers(&counts.iter().map(|count| *count as f64).collect::<Vec<_>>());
        let mut random = ChaCha20Rng::seed_from_u64(3);
        let mut squares = vec![0.0; 8];
        for _ in 0..400 {
            let found = mechanism.release(&counts, multiplier(3.0), &mut random).unwrap();
            for (index, sum) in squares.iter_mut().enumerate() {
                let query = index * 17;
                *sum += ((found.answers[query] - exact[query]) / found.deviations[query]).powi(2);
            }
        }
        let reach = 6.0 * 800f64.sqrt();
        assert!(squares.iter().all(|sum| (sum - 400.0).abs() < reach), "{squares:?}");
        let total: f64 = mechanism
            .release(&counts, multiplier(3.0), &mut random)
            .unwrap()
            .deviations
            .iter()
            .map(|x| x * x)
            .sum();
        let expected = 9.0 * mechanism.strategy().error().0;
        assert!((total / expected - 1.0).abs() < 1e-6, "{total} {expected}");
    }

    /// Attack: with and without a record in the cell of the largest column, the best test along
    /// that column proves nearly the claimed μ, and no more. Each count errs with probability 10⁻⁷.
    #[test]
    fn a_counting_attack_proves_nearly_the_claimed_epsilon() {
        let mechanism = QueryMechanism::new(QueryWorkload::Prefixes(4)).unwrap();
        let strategy = mechanism.integers.matrix();
        let cell = strategy
            .column_iter()
            .map(|column| column.norm())
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap()
            .0;
        let mut random = ChaCha20Rng::seed_from_u64(8);
        let mut event = EventPair::default();
        for _ in 0..30_000 {
            for world in 0..2 {
                let mut counts = [5u64; 4];
                counts[cell] += world as u64;
                let found = mechanism.release(&counts, multiplier(1.0), &mut random).unwrap();
                let seen = &strategy * DVector::from_column_slice(&found.cells);
                let before = &strategy * DVector::from_element(4, 5.0);
                event.worlds[1 - world].add((seen - before).dot(&strategy.column(cell)) > 0.5);
            }
        }
        let proved = event.mu(1e-7);
        assert!((0.9..=1.0).contains(&proved), "{proved}");
    }

    #[test]
    fn what_cannot_be_answered_is_refused() {
        let large = QueryWorkload::Matrix(DMatrix::from_element(1, 8192, 1.0));
        let error = QueryMechanism::new(large).unwrap_err();
        assert!(error.to_string().contains("160 minutes"), "{error}");
        let error = QueryMechanism::new(QueryWorkload::AllRanges(10_000)).unwrap_err();
        assert!(error.to_string().contains("at most 8192"), "{error}");
        assert!(matches!(QueryMechanism::new(QueryWorkload::Prefixes(0)), Err(QueryError::Empty)));
        let zero = QueryMechanism::new(QueryWorkload::Matrix(DMatrix::zeros(2, 3)));
        assert!(matches!(zero, Err(QueryError::Optimum(OptimizeError::Zero))));
        let mechanism = QueryMechanism::new(QueryWorkload::Cells(3)).unwrap();
        let mut random = ChaCha20Rng::seed_from_u64(8);
        let refused =
            |counts: &[u64], random: &mut ChaCha20Rng| mechanism.release(counts, multiplier(1.0), random);
        assert_eq!(refused(&[1, 2], &mut random), Err(QueryError::Length { found: 2, expected: 3 }));
        assert_eq!(refused(&[1, 2, u64::MAX], &mut random), Err(QueryError::Count));
        let calibrated =
            mechanism.noise_multiplier(Epsilon::new(1.0).unwrap(), Delta::new(1e-6).unwrap()).unwrap();
        assert!((calibrated.value() / 4.224_68 - 1.0).abs() < 1e-3, "{calibrated:?}");
    }
}
