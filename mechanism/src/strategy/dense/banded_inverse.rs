//! The best Toeplitz C whose inverse has b bands, for the squared error summed over all steps:
//! BandInvMF ("Back to square roots", arXiv 2505.12128). With two bands, `C⁻¹ = 1 − λx`, it is
//! DP-λCGD (arXiv 2601.22334); there columns have norm 1, as in the `normalized-…` form.
//!
//! With coefficients d of C⁻¹, `d_0 = 1`, those of C are `c = 1/d`, and those of the decoder are
//! `a ∗ d`. So the loss is `s² Σ_j w_j (a ∗ d)_j²`, where `w_j` is the sum of 1 over the squared
//! divisors of rows j and later. The sum is a quadratic form of b × b numbers. The squared
//! sensitivity s² is that of |c| for the pattern that starts first, `‖Σ_(m<k) x^(mg) |c|‖²`. The
//! derivative of c by `d_k` is `−c ∗ c` shifted by k steps.
//!
//! *Fractional roots*, γ-BIFR (arXiv 2605.18379): C⁻¹ has the first b coefficients of the power −γ
//! of the workload, with the best γ between 0 and 1. γ = 1/2 is the inverse square root. For prefix
//! sums and two bands C⁻¹ is `1 − γx`, which is DP-λCGD.

use super::{
    banded::descend,
    banded_toeplitz::{divide, dot, weights},
};
use crate::{
    participation::ParticipationSchedule,
    series,
    strategy::{
        Fit, Kind, Objective, OptimisedStrategy, Purpose, SearchError, StrategyError, StrategyName,
        StrategyParameters,
        toeplitz::{self, MAX_BANDS, MAX_INVERSE_HORIZON, MAX_NORMALIZED_HORIZON},
    },
};

const ITERATIONS: usize = 500;

/// Maximum product of horizon and bands for which a search takes only seconds.
const COMPARED_WORK: u64 = 1 << 18;

/// The same for a search over roots, which computes the loss about a hundred times.
const COMPARED_ROOT_WORK: u64 = 1 << 22;

/// Number of exponents that a search over roots tries first, and number of divisions of the
/// interval around the best.
const SCANNED: u32 = 16;
const SECTIONS: usize = 30;

/// The larger part of the golden section.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Searches start from the first coefficients of these powers of the Toeplitz part; 1/2 is the
/// root.
const EXPONENTS: [f64; 3] = [0.5, 0.75, 0.95];

/// `banded-inverse-optimal:b`: the best C whose inverse is Toeplitz with b bands.
pub(in crate::strategy) static BANDED_INVERSE_OPTIMAL: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    horizon: MAX_INVERSE_HORIZON,
    normalized: Some(MAX_NORMALIZED_HORIZON),
    compared: |kind, purpose| {
        let normalized = kind.numbered(32).normalized().map(|name| (32, name));
        let names = [2, 32].map(|bands| (bands, kind.numbered(bands))).into_iter().chain(normalized);
        purpose.if_toeplitz(names.map(|(bands, name)| name.up_to(COMPARED_WORK / u64::from(bands))))
    },
    fit: Fit::Parameters {
        search: |name, purpose, _| found(optimal_banded_inverse(name, purpose)),
        objective: true,
    },
    strategy: Some(toeplitz::of_inverse),
    ..Kind::new("banded-inverse-optimal", "the optimum whose inverse has b coefficients: BandInvMF, λCGD")
};

/// `banded-inverse-fractional-root:b`: `C⁻¹` has the first b coefficients of the best power of the
/// workload.
pub(in crate::strategy) static BANDED_INVERSE_FRACTIONAL_ROOT: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    horizon: MAX_INVERSE_HORIZON,
    normalized: Some(MAX_NORMALIZED_HORIZON),
    compared: |kind, purpose| {
        let name = |bands| kind.numbered(bands).up_to(COMPARED_ROOT_WORK / u64::from(bands));
        purpose.if_toeplitz([8, 32].map(name))
    },
    fit: Fit::Parameters {
        search: |name, purpose, _| found(best_fractional_root(name, purpose)),
        objective: true,
    },
    strategy: Some(toeplitz::of_inverse),
    ..Kind::new(
        "banded-inverse-fractional-root",
        "a root of the best degree whose inverse has b coefficients: γ-BIFR",
    )
};

fn found(best: Result<(Vec<f64>, f64), StrategyError>) -> Result<OptimisedStrategy, SearchError> {
    let (coefficients, loss) = best?;
    Ok(OptimisedStrategy {
        fitted: StrategyParameters::Toeplitz(toeplitz::units(&coefficients)),
        objective: loss,
        lower_bound: None,
        class_bound: None,
    })
}

/// Coefficients of the inverse, the first of them 1, and the loss.
fn optimal_banded_inverse(name: &StrategyName, purpose: &Purpose) -> Result<(Vec<f64>, f64), StrategyError> {
    let problem = InverseObjective::of(name, purpose)?;
    let ends = EXPONENTS.map(|exponent| {
        let end = descend(problem.root(exponent), ITERATIONS, |rest| problem.evaluate(rest));
        (problem.evaluate(&end).0, end)
    });
    best(name, purpose, ends)
}

/// As [`optimal_banded_inverse`], for the first coefficients of a power of the workload.
fn best_fractional_root(name: &StrategyName, purpose: &Purpose) -> Result<(Vec<f64>, f64), StrategyError> {
    let problem = InverseObjective::of(name, purpose)?;
    let at = |exponent: f64| {
        let root = problem.root(exponent);
        let value = problem.evaluate(&root).0;
        (if value.is_finite() { value } else { f64::INFINITY }, root)
    };
    let scanned = (1..=SCANNED).map(|part| f64::from(part) / f64::from(SCANNED));
    let rough = scanned.min_by(|&a, &b| at(a).0.total_cmp(&at(b).0)).unwrap_or(0.5);
    // Golden-section search in the interval between the neighbours of `rough`.
    let width = 1.0 / f64::from(SCANNED);
    let (mut low, mut high) = (rough - width, (rough + width).min(1.0));
    for _ in 0..SECTIONS {
        let [left, right] = [GOLDEN, 1.0 - GOLDEN].map(|part| high - part * (high - low));
        if at(left).0 <= at(right).0 {
            high = right;
        } else {
            low = left;
        }
    }
    best(name, purpose, [at(rough), at(0.5 * (low + high))])
}

/// The end with the least loss, given by its logarithm.
fn best(
    name: &StrategyName,
    purpose: &Purpose,
    ends: impl IntoIterator<Item = (f64, Vec<f64>)>,
) -> Result<(Vec<f64>, f64), StrategyError> {
    let best = ends.into_iter().filter(|(value, _)| value.is_finite()).min_by(|a, b| a.0.total_cmp(&b.0));
    let refused = super::root::refusal(name, &purpose.workload, purpose.horizon, MAX_INVERSE_HORIZON)?;
    let (value, rest) = best.ok_or(refused("its banded inverses grow too much"))?;
    Ok(([vec![1.0], rest].concat(), libm::exp(value)))
}

struct InverseObjective {
    steps: usize,
    schedule: ParticipationSchedule,
    /// The first coefficients of the workload, divided by the first one.
    first: Vec<f64>,
    /// `Σ_j w_j a_(j−k) a_(j−l)`, row by row.
    quadratic: Vec<Vec<f64>>,
}

impl InverseObjective {
    fn of(name: &StrategyName, purpose: &Purpose) -> Result<Self, StrategyError> {
        let Purpose { workload, horizon, participation, objective, .. } = purpose;
        let refused = super::root::refusal(name, workload, *horizon, MAX_INVERSE_HORIZON)?;
        let numerator =
            workload.toeplitz_part(*horizon as usize).ok_or(refused("it is not a Toeplitz matrix"))?;
        if numerator[0] <= 0.0 {
            return Err(refused("its diagonal is not positive"));
        }
        let weights = match objective {
            // Without row divisors the last row is the longest.
            Objective::MaxError if workload.row_divisor(*horizon) == 1.0 => vec![1.0; numerator.len()],
            _ => weights(workload, *horizon),
        };
        let bands = (name.number().get() as usize).min(numerator.len());
        Ok(Self::new(&numerator, &weights, participation.on(numerator.len()), bands))
    }

    /// The coefficients of the power −`exponent` of the workload after the first, which is 1.
    fn root(&self, exponent: f64) -> Vec<f64> {
        series::power(&self.first, -exponent, self.first.len())[1..].to_vec()
    }

    fn new(numerator: &[f64], weights: &[f64], schedule: ParticipationSchedule, bands: usize) -> Self {
        let weighted =
            |k: usize| -> Vec<f64> { numerator.iter().zip(&weights[k..]).map(|(a, w)| a * w).collect() };
        let row = |k: usize| {
            let weighted = weighted(k);
            (0..=k).map(|l| dot(&weighted, &numerator[k - l..])).collect()
        };
        let first = numerator[..bands].iter().map(|a| a / numerator[0]).collect();
        Self { steps: numerator.len(), schedule, first, quadratic: (0..bands).map(row).collect() }
    }

    /// Logarithm of the loss, and its gradient, for the coefficients after the first.
    fn evaluate(&self, rest: &[f64]) -> (f64, Vec<f64>) {
        let inverse: Vec<f64> = [&[1.0][..], rest].concat();
        let mut image = vec![0.0; inverse.len()];
        for (k, row) in self.quadratic.iter().enumerate() {
            for (l, entry) in row.iter().enumerate() {
                image[k] += entry * inverse[l];
                if l < k {
                    image[l] += entry * inverse[k];
                }
            }
        }
        let error = dot(&image, &inverse);
        let one: Vec<f64> = (0..self.steps).map(|t| if t == 0 { 1.0 } else { 0.0 }).collect();
        let coefficients = divide(&one, &inverse);
        let gap = self.schedule.gap();
        let mut sums: Vec<f64> = vec![0.0; self.steps];
        for start in (0..self.schedule.count()).map(|m| m * gap) {
            sums[start..].iter_mut().zip(&coefficients).for_each(|(sum, c)| *sum += c.abs());
        }
        let sensitivity = dot(&sums, &sums);
        let mut slopes: Vec<f64> = vec![0.0; self.steps];
        for start in (0..self.schedule.count()).map(|m| m * gap) {
            slopes.iter_mut().zip(&sums[start..]).for_each(|(slope, sum)| *slope += sum);
        }
        slopes.iter_mut().zip(&coefficients).for_each(|(slope, c)| *slope *= c.signum());
        let squared = divide(&coefficients, &inverse);
        let slope = |k: usize| 2.0 * (image[k] / error - dot(&slopes[k..], &squared) / sensitivity);
        (libm::log(error) + libm::log(sensitivity), (1..inverse.len()).map(slope).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Strategy, StrategyChoice, build_chosen, conformance};
    use std::sync::Arc;

    fn purpose(workload: &str, steps: u64, participation: &str) -> Purpose {
        let participation = participation.parse().unwrap();
        Purpose { participation, ..Purpose::new(workload.parse().unwrap(), steps) }
    }

    /// A fractional root is not worse than the square root, and not better than the best banded
    /// inverse. With one or two bands it is the best one for prefix sums.
    #[test]
    fn a_fractional_root_lies_between_the_square_root_and_the_optimum() {
        for (workload, participation) in [
            ("prefix", "1"),
            ("prefix", "5x20"),
            ("average", "1"),
            ("exponential:0.9", "1"),
            ("momentum:0.9", "3x30"),
        ] {
            for bands in [1, 2, 4, 8, 100] {
                let purpose = purpose(workload, 100, participation);
                let name = BANDED_INVERSE_FRACTIONAL_ROOT.numbered(bands);
                let (coefficients, loss) = best_fractional_root(&name, &purpose).unwrap();
                let problem = InverseObjective::of(&name, &purpose).unwrap();
                let root = libm::exp(problem.evaluate(&problem.root(0.5)).0);
                let optimum = fitted(bands, false, &purpose).1;
                let named = format!("{workload} {participation} {bands}: {optimum} {loss} {root}");
                assert!(optimum <= loss * (1.0 + 1e-9) && loss <= root * (1.0 + 1e-12), "{named}");
                assert!(bands > 2 || workload != "prefix" || loss <= optimum * (1.0 + 1e-9), "{named}");
                let gains = workload == "prefix" && participation == "1" && (2..100).contains(&bands);
                assert!(!gains || loss < 0.99 * root, "{named}");
                let fitted = Some(StrategyParameters::Toeplitz(toeplitz::units(&coefficients)));
                let strategy = build_chosen(&StrategyChoice { name, fitted }, &purpose.workload, Some(100));
                conformance::check(strategy.unwrap().as_ref(), &purpose.workload, 100);
            }
        }
    }

    fn fitted(bands: u32, normalized: bool, purpose: &Purpose) -> (Arc<dyn Strategy>, f64) {
        let name = BANDED_INVERSE_OPTIMAL.numbered(bands);
        let name = if normalized { name.normalized().unwrap() } else { name };
        let (coefficients, loss) = optimal_banded_inverse(&name, purpose).unwrap();
        let fitted = Some(StrategyParameters::Toeplitz(toeplitz::units(&coefficients)));
        let chosen = StrategyChoice { name, fitted };
        (build_chosen(&chosen, &purpose.workload, Some(purpose.horizon)).unwrap(), loss)
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for workload in
            ["prefix", "average", "exponential:0.9", "window:5", "window-mean:5", "momentum:0.9", "adam:0.9"]
        {
            for (bands, normalized) in [(1, false), (2, true), (5, false), (5, true), (60, false)] {
                let purpose = purpose(workload, 40, "1");
                let strategy = fitted(bands, normalized, &purpose).0;
                conformance::check(strategy.as_ref(), &purpose.workload, 40);
            }
        }
    }

    #[test]
    fn gradient_agrees_with_differences() {
        for participation in ["1", "3x7"] {
            let purpose = purpose("average", 30, participation);
            let numerator = purpose.workload.toeplitz_part(30).unwrap();
            let weights = weights(&purpose.workload, 30);
            let problem = InverseObjective::new(&numerator, &weights, purpose.participation.on(30), 4);
            let rest = [-0.6, 0.1, -0.05];
            let gradient = problem.evaluate(&rest).1;
            for position in 0..rest.len() {
                let at = |shift: f64| {
                    let mut point = rest;
                    point[position] += shift;
                    problem.evaluate(&point).0
                };
                let difference = (at(1e-6) - at(-1e-6)) / 2e-6;
                assert!((difference - gradient[position]).abs() < 1e-7, "{participation} {position}");
            }
        }
    }

    /// The loss of the fit is that of the strategy that runs.
    #[test]
    fn the_loss_agrees_with_the_strategy() {
        for workload in ["prefix", "exponential:0.9", "average"] {
            let purpose = purpose(workload, 100, "1");
            let (strategy, loss) = fitted(6, false, &purpose);
            let squares = strategy.decoder_row_norms(&purpose.workload, 100).map(|norm| norm * norm);
            let found = squares.sum::<f64>() * strategy.geometry().max_norm_squared;
            assert!((found / loss - 1.0).abs() < 1e-8, "{workload}: {found} against {loss}");
        }
    }

    /// With two bands there is one free coefficient. A scan of it finds no smaller loss.
    #[test]
    fn no_single_correlation_is_better() {
        for (workload, participation) in [("prefix", "1"), ("prefix", "5x20"), ("average", "1")] {
            let purpose = purpose(workload, 100, participation);
            let loss = fitted(2, false, &purpose).1;
            let numerator = purpose.workload.toeplitz_part(100).unwrap();
            let weights = weights(&purpose.workload, 100);
            let problem = InverseObjective::new(&numerator, &weights, purpose.participation.on(100), 2);
            let scanned = (0..1000).map(|step| problem.evaluate(&[-f64::from(step) / 1000.0]).0);
            let least = libm::exp(scanned.fold(f64::INFINITY, f64::min));
            assert!(
                loss <= least * (1.0 + 1e-9) && loss > 0.999 * least,
                "{workload} {participation}: {loss} {least}"
            );
        }
    }

    /// One-step correlation of 0.95 has a loss of 1,451,620, and inverse square roots with 8 and 32
    /// bands have 3,395,939 and 1,208,492.
    #[test]
    fn more_bands_are_better_under_several_participations() {
        let losses = [2, 8, 32].map(|bands| fitted(bands, false, &purpose("prefix", 2000, "20x100")).1);
        assert!(losses[0] < 1_451_620.0 && losses[1] < losses[0] && losses[2] < losses[1], "{losses:?}");
        assert!(losses[2] < 1_208_492.0, "{losses:?}");
    }
}
