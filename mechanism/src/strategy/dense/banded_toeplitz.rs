//! The best Toeplitz C with b bands, for the squared error summed over all steps.
//!
//! With coefficients c, those of the decoder are `b = a/c` as series, and the loss is
//! `‖c‖² Σ_j w_j b_j²`. `w_j` is the sum of 1 over the squared divisors of rows j and later: n − j
//! for running sums. The derivative of b by `c_k` is `−b/c` shifted by k steps, so value and
//! gradient take n operations per band.
//!
//! If participations are at least as far apart as there are bands, their columns do not overlap.
//! The squared sensitivity under k participations is then k `‖c‖²`, and the same c is optimal.
//! Plain loops give the same result on every machine.

use super::banded::descend;
use crate::{
    strategy::{
        Fit, Kind, MAX_HISTORY_HORIZON, OptimisedStrategy, StrategyError, StrategyName, StrategyParameters,
        toeplitz::{self, MAX_BANDS},
    },
    workload::Workload,
};

const ITERATIONS: usize = 1000;

/// Largest product of horizon and bands for which a search takes seconds.
const COMPARED_WORK: u64 = 1 << 18;

/// `banded-toeplitz-optimal:b`: the best Toeplitz C with b bands.
pub(in crate::strategy) static BANDED_TOEPLITZ_OPTIMAL: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    horizon: MAX_HISTORY_HORIZON,
    compared: |kind, purpose| {
        let bands = purpose.bands_apart();
        purpose.if_toeplitz([kind.numbered(bands).up_to(COMPARED_WORK / u64::from(bands))])
    },
    fit: Fit::Parameters {
        search: |name, purpose, _| {
            let coefficients = optimal_banded_toeplitz(name, &purpose.workload, purpose.horizon)?;
            Ok(OptimisedStrategy {
                fitted: StrategyParameters::Toeplitz(toeplitz::units(&coefficients)),
                objective: 1.0,
                lower_bound: None,
                class_bound: None,
            })
        },
        objective: false,
    },
    strategy: Some(toeplitz::of_parameters),
    ..Kind::new("banded-toeplitz-optimal", "the Toeplitz optimum with b bands")
};

/// Coefficients of the best Toeplitz C for a workload with a Toeplitz part, scaled to norm 1.
fn optimal_banded_toeplitz(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
) -> Result<Vec<f64>, StrategyError> {
    let refused = super::root::refusal(name, workload, horizon, MAX_HISTORY_HORIZON)?;
    let numerator = workload.toeplitz_part(horizon as usize).ok_or(refused("it is not a Toeplitz matrix"))?;
    if numerator[0] <= 0.0 {
        return Err(refused("its diagonal is not positive"));
    }
    let weights = weights(workload, horizon);
    let bands = (name.number().get() as usize).min(numerator.len());
    // Any start works; the root of running sums is never far.
    let start = crate::series::binomial(-0.5, 1.0, bands);
    let mut best = descend(start, ITERATIONS, |c| evaluate(c, &numerator, &weights));
    let norm = best.iter().map(|c| c * c).sum::<f64>().sqrt().copysign(best[0]);
    best.iter_mut().for_each(|c| *c /= norm);
    Ok(best)
}

/// Sums of 1 over the squared divisors of a row and all later ones.
pub(super) fn weights(workload: &Workload, horizon: u64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut weights: Vec<f64> = (1..=horizon)
        .rev()
        .map(|t| {
            sum += workload.row_divisor(t).powi(-2);
            sum
        })
        .collect();
    weights.reverse();
    weights
}

/// Logarithm of the loss, and its gradient.
fn evaluate(c: &[f64], numerator: &[f64], weights: &[f64]) -> (f64, Vec<f64>) {
    let decoder = divide(numerator, c);
    let moved = divide(&decoder, c);
    let weighted: Vec<f64> = decoder.iter().zip(weights).map(|(b, w)| b * w).collect();
    let loss = dot(&weighted, &decoder);
    let norm = dot(c, c);
    let slope = |(k, c): (usize, &f64)| 2.0 * (c / norm - dot(&weighted[k..], &moved) / loss);
    (libm::log(loss) + libm::log(norm), c.iter().enumerate().map(slope).collect())
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A quotient of series, term by term; cheap for a short divisor.
pub(super) fn divide(numerator: &[f64], divisor: &[f64]) -> Vec<f64> {
    let mut quotient: Vec<f64> = Vec::with_capacity(numerator.len());
    for &term in numerator {
        let earlier: f64 = divisor[1..].iter().zip(quotient.iter().rev()).map(|(c, q)| c * q).sum();
        quotient.push((term - earlier) / divisor[0]);
    }
    quotient
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(bands: u32, workload: &str, steps: u64) -> f64 {
        let workload: Workload = workload.parse().unwrap();
        let name = BANDED_TOEPLITZ_OPTIMAL.numbered(bands);
        let best = optimal_banded_toeplitz(&name, &workload, steps).unwrap();
        assert!((dot(&best, &best) - 1.0).abs() < 1e-14 && best[0] > 0.0);
        dot(
            &divide(&workload.toeplitz_part(steps as usize).unwrap(), &best)
                .iter()
                .map(|b| b * b)
                .collect::<Vec<_>>(),
            &weights(&workload, steps),
        )
    }

    /// The published optimum with 20 participations, 100 steps apart.
    #[test]
    fn optimum_agrees_with_the_known_value() {
        let found = 20.0 * loss(100, "prefix", 2000);
        assert!((found / 816620.8897423883 - 1.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn more_bands_are_better() {
        for workload in
            ["prefix", "average", "exponential:0.9", "window:10", "window-mean:10", "momentum:0.9"]
        {
            let losses: Vec<f64> = [1, 2, 4, 8, 30].map(|bands| loss(bands, workload, 100)).into();
            assert!(
                losses.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-9)),
                "{workload}: {losses:?}"
            );
        }
    }

    #[test]
    fn gradient_agrees_with_differences() {
        let workload = Workload::Average;
        let (numerator, weights) = (workload.toeplitz_part(30).unwrap(), weights(&workload, 30));
        let c = [1.0, 0.4, 0.3, 0.1];
        let gradient = evaluate(&c, &numerator, &weights).1;
        for position in 0..c.len() {
            let at = |shift: f64| {
                let mut point = c;
                point[position] += shift;
                evaluate(&point, &numerator, &weights).0
            };
            assert!(((at(1e-6) - at(-1e-6)) / 2e-6 - gradient[position]).abs() < 1e-8, "{position}");
        }
    }

    #[test]
    fn workloads_without_a_toeplitz_part_are_refused() {
        let any = nalgebra::DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 1.0, 2.0]);
        let any = Workload::from_matrix("any", any).unwrap();
        let refused = |workload: &Workload, steps| {
            let name = BANDED_TOEPLITZ_OPTIMAL.name();
            optimal_banded_toeplitz(&name, workload, steps).err().map(|error| error.to_string())
        };
        assert!(refused(&any, 2).unwrap().contains("not a Toeplitz matrix"));
        assert!(refused(&any, 3).unwrap().contains("fewer rows"));
        assert!(refused(&Workload::Prefix, 0).is_some());
    }
}
