//! Compositions against closed forms, sums without transforms, and another accountant.

use super::super::tests::{assert_close, del, eps, sigma};
use super::*;
use crate::accounting::gaussian;

fn width(found: Interval) -> f64 {
    (found.high - found.low) / found.high
}

/// k Gaussian mechanisms are one of σ/√k.
#[test]
fn gaussian_compositions_agree_with_the_closed_form() {
    for (noise, count, delta) in [
        (1.0, 1, 1e-6),
        (4.0, 16, 1e-6),
        (100.0, 10_000, 1e-12),
        (30.0, 100, 1e-3),
        (0.1, 1, 1e-9),
        (500.0, 10_000, 1e-5),
    ] {
        let pair = DominatingPair::gaussian(sigma(noise)).unwrap();
        let composed = Composition::default().compose(pair, count);
        let one = sigma(noise / (count as f64).sqrt());
        let truth = gaussian::epsilon(one, del(delta)).value();
        let found = composed.epsilon(del(delta)).unwrap();
        assert!(found.low <= truth && truth <= found.high, "{noise} {count}: {found:?} {truth}");
        assert!(width(found) < 3e-4, "{noise} {count}: {found:?} {truth}");
        let truth = gaussian::delta(one, eps(truth * 1.1));
        let found = composed.delta(eps(gaussian::epsilon(one, del(delta)).value() * 1.1));
        assert!(found.low <= truth && truth <= found.high, "{noise} {count}: {found:?} {truth}");
        assert!(width(found) < 5e-3, "{noise} {count}: {found:?} {truth}");
    }
}

/// Reference: dp-accounting 0.6.0, `from_gaussian_mechanism(σ, sampling_prob=q,
/// value_discretization_interval=1e-5).self_compose(k)`, ε of `_pmf_remove` and `_pmf_add`.
#[test]
fn sampled_compositions_agree_with_the_reference() {
    for (noise, rate, count, delta, remove, add) in [
        (1.0, 0.01, 1000, 1e-5, 1.828_236_7, 1.416_662_1),
        (0.6, 1e-3, 10_000, 1e-8, 4.518_884_5, 1.575_351_3),
        (2.0, 0.1, 500, 1e-6, 6.216_698_3, 5.487_611_8),
    ] {
        let pair = DominatingPair::poisson_sampled_gaussian(sigma(noise), rate).unwrap();
        for (pair, expected) in [(pair.clone(), remove), (pair.reversed(), add)] {
            let found = Composition::default().compose(pair, count).epsilon(del(delta)).unwrap();
            assert!(found.low <= expected, "{found:?} {expected}");
            assert_close(found.high, expected, 1e-3);
        }
    }
}
