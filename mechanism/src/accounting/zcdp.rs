//! Conversion of ρ-zCDP to (ε, δ).
//!
//! The tight conversion of Canonne, Kamath & Steinke 2020 (Corollary 13) is a minimum over the
//! order α > 1 of the Rényi divergence; with β = α − 1
//!
//! ```text
//! ln δ = min_β  β ((1+β)ρ − ε − ln(1+1/β)) − ln(1+β)         stationary: (1+2β)ρ − ln(1+1/β) = ε,
//!    ε = min_β  (1+β)ρ − ln(1+1/β) + (ln(1/δ) − ln(1+β))/β   stationary: β²ρ + ln(1+β) = ln(1/δ).
//! ```
//!
//! Both stationarity conditions are monotone in β, and every β gives a valid bound. So an inexact
//! minimum costs accuracy but never privacy.

use super::{Delta, Epsilon, MARGIN, Rho, least};

/// Returns the least ε that ρ-zCDP is known to give for this δ; at least 0.
pub fn epsilon(rho: Rho, delta: Delta) -> Epsilon {
    Epsilon(epsilon_at(best_order_for_delta(rho, delta), rho, delta).max(0.0))
}

/// Returns an upper bound of [`epsilon()`]: raised by the relative margin of its largest term.
pub fn epsilon_rounded_up(rho: Rho, delta: Delta) -> Epsilon {
    let beta = best_order_for_delta(rho, delta);
    let largest_term = (1.0 + 2.0 * beta) * rho.value() + beta.recip().ln_1p();
    Epsilon((epsilon_at(beta, rho, delta) + MARGIN * largest_term).max(0.0))
}

/// Returns the least δ that ρ-zCDP is known to give for this ε; at most 1, and 0 if it is below the
/// smallest positive float.
pub fn delta(rho: Rho, epsilon: Epsilon) -> f64 {
    let (rho, epsilon) = (rho.value(), epsilon.value());
    let order_term = |beta: f64| beta.recip().ln_1p();
    let stationary = |beta: f64| (1.0 + 2.0 * beta) * rho - order_term(beta) >= epsilon;
    let beta = least(f64::MIN_POSITIVE, f64::MAX, stationary);
    let log_delta = beta * ((1.0 + beta) * rho - epsilon - order_term(beta)) - beta.ln_1p();
    log_delta.min(0.0).exp()
}

/// Returns the minimising β for a given δ.
fn best_order_for_delta(rho: Rho, delta: Delta) -> f64 {
    let (rho, log_inverse_delta) = (rho.value(), -delta.value().ln());
    least(f64::MIN_POSITIVE, f64::MAX, |beta| beta * rho * beta + beta.ln_1p() >= log_inverse_delta)
}

/// Returns the ε that the order 1 + β gives.
fn epsilon_at(beta: f64, rho: Rho, delta: Delta) -> f64 {
    let log_inverse_delta = -delta.value().ln();
    (1.0 + beta) * rho.value() - beta.recip().ln_1p() + (log_inverse_delta - beta.ln_1p()) / beta
}

#[cfg(test)]
mod tests {
    use super::super::tests::assert_close;
    use super::super::{NoiseMultiplier, gaussian};
    use super::*;
    use crate::reference::cases;
    use proptest::prelude::*;

    #[test]
    fn epsilon_agrees_with_the_reference() {
        for case in cases(include_str!("../../../tests/vectors/gaussian_eps.json")) {
            let number = |group: &str, name: &str| case[group][name].as_f64().unwrap();
            let rho = NoiseMultiplier::new(number("input", "sigma")).unwrap().rho();
            let target = Delta::new(number("input", "delta")).unwrap();
            assert_close(epsilon(rho, target).value(), number("expected", "eps_from_rho_tight"), 1e-10);
        }
    }

    #[test]
    fn delta_agrees_with_the_reference() {
        for case in cases(include_str!("../../../tests/vectors/gaussian_delta.json")) {
            let number = |group: &str, name: &str| case[group][name].as_f64().unwrap();
            let rho = NoiseMultiplier::new(number("input", "sigma")).unwrap().rho();
            let found = delta(rho, Epsilon::new(number("input", "eps")).unwrap());
            assert_close(found, number("expected", "delta_from_rho_tight"), 1e-9);
        }
    }

    #[test]
    fn every_valid_input_gives_a_number() {
        let rhos = [f64::MIN_POSITIVE, 1e-100, 1.0, 1e100, Rho::MAX].map(|rho| Rho::new(rho).unwrap());
        for rho in rhos {
            for target in [f64::MIN_POSITIVE, 1e-9, 0.5, 1.0 - f64::EPSILON].map(|x| Delta::new(x).unwrap()) {
                let found = [epsilon, epsilon_rounded_up].map(|f| f(rho, target).value());
                assert!(found.iter().all(|x| Epsilon::new(*x).is_ok()), "{rho:?} {target:?} {found:?}");
            }
            for cost in [0.0, f64::MIN_POSITIVE, 1.0, 1e100, f64::MAX].map(|x| Epsilon::new(x).unwrap()) {
                assert!((0.0..=1.0).contains(&delta(rho, cost)), "{rho:?} {cost:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn exact_accounting_beats_the_tight_bound(
            log_sigma in -5.0..5.0_f64, log_target in -60.0..-0.1_f64,
        ) {
            let noise_multiplier = NoiseMultiplier::new(log_sigma.exp()).unwrap();
            let (rho, target) = (noise_multiplier.rho(), Delta::new(log_target.exp()).unwrap());
            prop_assert!(gaussian::epsilon(noise_multiplier, target) <= epsilon(rho, target));
            prop_assert!(epsilon(rho, target) <= epsilon_rounded_up(rho, target));
        }

        #[test]
        fn inverses_undo_each_other(log_rho in -10.0..5.0_f64, log_target in -60.0..-1.0_f64) {
            let (rho, target) = (Rho::new(log_rho.exp()).unwrap(), Delta::new(log_target.exp()).unwrap());
            let cost = epsilon(rho, target);
            prop_assume!(cost.value() > 1e-3);
            prop_assert!((delta(rho, cost).ln() - log_target).abs() < 1e-8);
        }
    }
}
