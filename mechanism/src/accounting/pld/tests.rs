//! Compares compositions with closed forms, sums without transforms, quadrature and another
//! accountant.

use super::super::tests::{assert_close, del, eps, sigma};
use super::*;
use crate::accounting::gaussian;
use crate::reference::cases;

fn composed(pair: DominatingPair, count: u64) -> Composition {
    Composition::default().compose(pair, count)
}

fn sampled(noise: f64, rate: f64) -> DominatingPair {
    DominatingPair::poisson_sampled_gaussian(sigma(noise), rate).unwrap()
}

fn mixture(components: &[(f64, f64)], deviation: f64) -> DominatingPair {
    DominatingPair::mixture(GaussianMixture::new(components, deviation).unwrap())
}

/// Pairs of all kinds, in both directions.
fn pairs() -> Vec<DominatingPair> {
    let pairs = [
        DominatingPair::gaussian(sigma(1.3)).unwrap(),
        sampled(0.8, 0.05),
        sampled(3.0, 1e-4),
        mixture(&[(0.5, 0.0), (0.3, 0.5), (0.15, 1.0), (0.05, 3.0)], 2.0),
        mixture(&[(0.9, 1.0), (0.1, 2.0)], 1.5),
        DominatingPair::pure(eps(0.7)).unwrap(),
        DominatingPair::laplace(2.5).unwrap(),
        DominatingPair::bounded_range(eps(1.5)).unwrap(),
        DominatingPair::poisson_sampled_replacement(sigma(1.2), 0.1).unwrap(),
        DominatingPair::randomly_allocated_gaussian(sigma(0.9), 5).unwrap(),
        DominatingPair::randomly_allocated_replacement(sigma(1.1), 4).unwrap(),
    ];
    pairs.into_iter().flat_map(|pair| [pair.clone(), pair.reversed()]).collect()
}

#[track_caller]
fn assert_encloses(found: Enclosure, truth: f64, relative: f64) {
    let slack = 1e-12 * truth;
    assert!(found.low - slack <= truth && truth <= found.high + slack, "{found:?} {truth}");
    assert!(found.high - found.low <= relative * found.high, "{found:?} {truth}");
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
        let losses = composed(DominatingPair::gaussian(sigma(noise)).unwrap(), count);
        let one = sigma(noise / (count as f64).sqrt());
        let truth = gaussian::epsilon(one, del(delta)).value();
        assert_encloses(losses.epsilon(del(delta)).unwrap(), truth, 3e-4);
        let above = eps(truth * 1.1);
        assert_encloses(losses.delta(above), gaussian::delta(one, above), 5e-3);
    }
}

/// The head of the file of test vectors names the calls that made it. Its ε are upper bounds.
#[test]
fn compositions_agree_with_another_accountant() {
    for case in cases(include_str!("../../../../tests/vectors/pld.json")) {
        let (input, expected) = (&case["input"], &case["expected"]);
        let number = |name: &str| input[name].as_f64().unwrap();
        let pair = match input["kind"].as_str().unwrap() {
            "sampled-gaussian" => sampled(number("sigma"), number("rate")),
            "mixture" => {
                let list = |name: &str| -> Vec<f64> {
                    input[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
                };
                let components: Vec<_> = list("weights").into_iter().zip(list("means")).collect();
                mixture(&components, number("sigma"))
            }
            "laplace" => DominatingPair::laplace(number("scale")).unwrap(),
            _ => DominatingPair::pure(eps(number("epsilon"))).unwrap(),
        };
        for (pair, name) in [(pair.clone(), "remove"), (pair.reversed(), "add")] {
            let expected = expected[name].as_f64().unwrap();
            let losses = composed(pair, input["count"].as_u64().unwrap());
            let found = losses.epsilon(del(number("delta"))).unwrap();
            assert!(found.low <= expected * (1.0 + 1e-9), "{case}: {found:?}");
            assert_close(found.high, expected, 1e-3);
            assert!(found.high - found.low < 1e-3 * found.high, "{case}: {found:?}");
        }
    }
}

/// Tests far in the tail, where a plain transform returns only rounding errors.
#[test]
fn many_sampled_steps_have_a_small_error_at_a_tiny_delta() {
    let losses = composed(sampled(1.0, 1e-3), 10_000).either_direction();
    let found = losses.epsilon(del(1e-12)).unwrap();
    assert!(found.high - found.low < 1e-3 * found.high, "{found:?}");
    assert!(found.low > 1.18 && found.high < 1.19, "{found:?}");
}

/// δ of k randomised responses is a sum over the number of answers that favour one input.
#[test]
fn pure_compositions_agree_with_the_binomial_law() {
    for (epsilon, count) in [(0.1_f64, 30), (1.0, 7), (3.0, 2), (0.02, 500)] {
        let losses = composed(DominatingPair::pure(eps(epsilon)).unwrap(), count);
        for at in [0.0, 0.3, 0.9].map(|share| share * epsilon * count as f64) {
            let likely = (1.0 + (-epsilon).exp()).ln();
            let mut log_ways = 0.0;
            let mut truth = 0.0;
            for hits in 0..=count {
                let loss = epsilon * (2.0 * hits as f64 - count as f64);
                let log_mass = log_ways - likely * count as f64 - epsilon * (count - hits) as f64;
                truth += log_mass.exp() * -(at - loss).min(0.0).exp_m1();
                log_ways += ((count - hits) as f64).ln() - (hits as f64 + 1.0).ln();
            }
            assert_encloses(losses.delta(eps(at)), truth, 1e-6);
        }
    }
}

/// δ of one and of two mixtures, by sums over a fine grid of outcomes.
#[test]
fn mixtures_agree_with_quadrature() {
    let components = [(0.6, 0.0), (0.3, 1.0), (0.1, 1.7)];
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let law = |x: f64| {
        let shifted: f64 = components.iter().map(|(weight, mean)| weight * density(x - mean)).sum();
        (shifted, density(x))
    };
    let grid = |step: f64| (0..(20.0 / step) as i32).map(move |index| f64::from(index) * step - 9.0);
    for reversed in [false, true] {
        let pair = mixture(&components, 1.0);
        let pair = if reversed { pair.reversed() } else { pair };
        let worlds = |x: f64| {
            let (p, q) = law(x);
            if reversed { (q, p) } else { (p, q) }
        };
        for at in [0.0_f64, 0.2, 0.7] {
            let step = 1e-3;
            let one: f64 = grid(step).map(worlds).map(|(p, q)| (p - at.exp() * q).max(0.0) * step).sum();
            let found = composed(pair.clone(), 1).delta(eps(at));
            assert!(found.low <= one * (1.0 + 1e-6) && one <= found.high * (1.0 + 1e-6), "{found:?} {one}");
            let step = 0.02;
            let laws: Vec<_> = grid(step).map(worlds).collect();
            let terms = laws.iter().flat_map(|(p, q)| {
                laws.iter().map(move |(r, s)| (p * r - at.exp() * q * s).max(0.0) * step * step)
            });
            let (two, found) = (terms.sum::<f64>(), composed(pair.clone(), 2).delta(eps(at)));
            assert!(found.low <= two * 1.001 && two <= found.high * 1.001, "{found:?} {two}");
        }
    }
}

#[test]
fn single_pairs_agree_with_closed_forms() {
    for at in [0.0_f64, 0.1, 0.39] {
        let laplace = composed(DominatingPair::laplace(2.5).unwrap(), 1).delta(eps(at));
        assert_encloses(laplace, -((at - 0.4) / 2.0).exp_m1(), 1e-3);
        // The trade-off (1 + Kx)(1 + Ky) = 1 + K of logistic distributions, at the slope −e^ε.
        let range = 0.8_f64;
        let roots = (range / 2.0).exp() - (at / 2.0).exp();
        let logistic = composed(DominatingPair::bounded_range(eps(range)).unwrap(), 1).delta(eps(at));
        assert_encloses(logistic, roots * roots / range.exp_m1(), 1e-3);
    }
}

/// Tests the mechanism with both ends, for every position of the interval of log-ratios.
#[test]
fn logistic_laws_dominate_bounded_ranges() {
    for range in [0.1_f64, 1.0, 4.0] {
        let losses = composed(DominatingPair::bounded_range(eps(range)).unwrap(), 1);
        for position in [0.01, 0.2, 0.5, 0.8, 0.99] {
            let (a, b) = ((-range * position).exp(), (range * (1.0 - position)).exp());
            let likely = (1.0 - a) / (b - a);
            for at in [0.0, 0.2, 0.5, 0.79, 0.95].map(|share| share * range) {
                let delta = [(b * likely, likely), (a * (1.0 - likely), 1.0 - likely)]
                    .map(|(p, q)| (p - at.exp() * q).max(0.0));
                let found = losses.delta(eps(at)).high;
                assert!(found >= delta.iter().sum::<f64>() - 1e-15, "{range} {position} {at}");
            }
        }
    }
}

/// Tests the requirement of the lemma, at losses on, between and beyond grid values. The masses of
/// allocations are raised by up to 4·10⁻¹² for each bin.
#[test]
fn masses_enclose_the_divergence_at_every_loss() {
    for pair in pairs() {
        for step in [0.25, 2_f64.powi(-7)] {
            let above = PrivacyLossDistribution::pessimistic(&pair, step);
            let below = PrivacyLossDistribution::optimistic(&pair, step);
            for index in -400..400 {
                let loss = f64::from(index) * 0.0173;
                let tail = pair.tail(loss);
                let truth = (tail.p - loss.exp() * tail.q).max(0.0);
                let bounds = [&below, &above].map(|masses| masses.hockey_stick_divergence(loss));
                let slack = 1e-10 * tail.p;
                assert!(bounds[0] <= truth + slack && truth <= bounds[1] + slack, "{pair:?} {step} {loss}");
            }
            let total = above.values().map(|(_, mass)| mass).sum::<f64>() + above.infinite();
            assert!((total - 1.0).abs() < 1e-10, "{pair:?}");
        }
    }
}

/// Compares with the direct convolution of a few masses, within the stated error.
#[test]
fn sums_agree_with_direct_convolution() {
    for pair in pairs() {
        let distribution = PrivacyLossDistribution::pessimistic(&pair, 0.125);
        let mut sum: Vec<f64> = vec![1.0];
        let masses: Vec<f64> = distribution.values().map(|(_, mass)| mass).collect();
        for _ in 0..5 {
            let mut next = vec![0.0; sum.len() + masses.len() - 1];
            for (i, x) in sum.iter().enumerate() {
                for (j, y) in masses.iter().enumerate() {
                    next[i + j] += x * y;
                }
            }
            sum = next;
        }
        let first = 5.0 * distribution.first() as f64 * 0.125;
        let parts = [Part { distribution, count: 5 }];
        for tilt in [0.0, 0.5, 3.0] {
            let found = TiltedSum::new(&parts, tilt);
            for at in [-0.3, 0.0, 0.2, 1.0, 2.6] {
                let losses = (0..).map(|index| first + f64::from(index) * 0.125);
                let truth: f64 =
                    losses.zip(&sum).map(|(loss, mass)| mass * -(at - loss).min(0.0).exp_m1()).sum();
                let (low, high) = (found.delta_below(at), found.delta_above(at));
                let slack = 1e-12 * truth;
                assert!(low - slack <= truth && truth <= high + slack, "{pair:?} {at}: {low} {truth} {high}");
                assert!(tilt > 0.0 || high - low < 1e-9, "{pair:?} {at}: {low} {truth} {high}");
            }
        }
    }
}

#[test]
fn epsilon_is_monotone_in_all_parameters() {
    let high = |pair: DominatingPair, count: u64, delta: f64| {
        let found = composed(pair, count).either_direction().epsilon(del(delta)).unwrap();
        assert!(found.low <= found.high);
        found.high
    };
    let check = |found: [f64; 3]| assert!(found.is_sorted_by(|one, other| one < other), "{found:?}");
    check([2.0, 1.5, 1.0].map(|noise| high(sampled(noise, 0.02), 100, 1e-6)));
    check([0.01, 0.02, 0.05].map(|rate| high(sampled(1.0, rate), 100, 1e-6)));
    check([50, 60, 100].map(|count| high(sampled(1.0, 0.02), count, 1e-6)));
    check([1e-5, 1e-6, 1e-9].map(|delta| high(sampled(1.0, 0.02), 100, delta)));
    check([0.1, 0.2, 0.3].map(|epsilon| high(DominatingPair::pure(eps(epsilon)).unwrap(), 20, 1e-6)));
    check(
        [0.1, 0.2, 0.3].map(|epsilon| high(DominatingPair::bounded_range(eps(epsilon)).unwrap(), 20, 1e-6)),
    );
    check([3.0, 2.0, 1.0].map(|scale| high(DominatingPair::laplace(scale).unwrap(), 20, 1e-6)));
    // Every record is in a sample of rate 1.
    let all = high(sampled(1.7, 1.0), 3, 1e-6);
    assert_close(all, high(DominatingPair::gaussian(sigma(1.7)).unwrap(), 3, 1e-6), 1e-12);
}

/// Compares a Gaussian measurement and three pure mechanisms together with an independent sum over
/// the outcomes of the pure ones.
#[test]
fn mixed_compositions_agree_with_quadrature() {
    let (noise, epsilon, count) = (2.0, 0.3_f64, 3);
    let losses = composed(DominatingPair::gaussian(sigma(noise)).unwrap(), 1)
        .compose(DominatingPair::pure(eps(epsilon)).unwrap(), count);
    let one = sigma(noise);
    for at in [0.4, 1.0, 2.0] {
        let mut truth = 0.0;
        let mut ways = 1.0;
        for hits in 0..=count {
            let loss = epsilon * (2.0 * hits as f64 - count as f64);
            let mass = ways * (-epsilon * (count - hits) as f64).exp() / (1.0 + (-epsilon).exp()).powi(3);
            // δ of the Gaussian mechanism at any real ε, by symmetry below 0.
            let rest: f64 = at - loss;
            let delta = if rest >= 0.0 {
                gaussian::delta(one, eps(rest))
            } else {
                -rest.exp_m1() + rest.exp() * gaussian::delta(one, eps(-rest))
            };
            truth += mass * delta;
            ways *= (count - hits) as f64 / (hits as f64 + 1.0);
        }
        assert_encloses(losses.delta(eps(at)), truth, 1e-3);
    }
}

#[test]
fn discreteness_is_charged_as_for_one_gaussian_mechanism() {
    let (noise, delta) = (sigma(3.0), 1e-5);
    let discreteness = Discreteness::new(1000.0, 10.0).unwrap();
    let pair = DominatingPair::gaussian(noise).unwrap();
    let losses = composed(pair.clone(), 1).with_discreteness(discreteness);
    let spent = super::super::composition::Spending::of(noise, discreteness).unwrap();
    assert_encloses(losses.epsilon(del(delta)).unwrap(), spent.epsilon(del(delta)).unwrap().value(), 1e-3);
    assert_encloses(losses.delta(eps(1.0)), spent.delta(eps(1.0)), 5e-3);
    assert_eq!(losses.epsilon(del(1e-12)), None);
    assert!(composed(pair, 1).epsilon(del(1e-12)).is_some());
}

#[test]
fn an_empty_composition_has_no_loss() {
    let nothing = Enclosure { low: 0.0, high: 0.0 };
    assert_eq!(Composition::default().epsilon(del(1e-9)), Some(nothing));
    assert_eq!(Composition::default().compose(sampled(1.0, 0.1), 0).delta(eps(0.0)), nothing);
    let parts = composed(sampled(1.0, 0.1), 3).compose(sampled(1.0, 0.1), 4);
    assert_eq!(parts, composed(sampled(1.0, 0.1), 7));
}

/// One large loss among many small ones determines the result. Reference: dp-accounting 0.6.0
/// bounds the first ε by [0.0099, 0.0149], and that of ten times as many steps by at most 0.0471.
#[test]
#[ignore = "slow"]
fn rare_participation_costs_little() {
    let few = composed(sampled(1.0, 1e-4), 1000).epsilon(del(1e-6)).unwrap();
    assert!(few.low > 0.009 && few.high < 0.015, "{few:?}");
    let more = composed(sampled(1.0, 1e-4), 10_000).epsilon(del(1e-6)).unwrap();
    assert!(more.low > few.high && more.high < 0.0471, "{more:?}");
}

#[test]
fn noise_of_any_size_is_composed() {
    for noise in [1e5, 1e9, 1e200, 1e308] {
        let losses = composed(DominatingPair::gaussian(sigma(noise)).unwrap(), 3);
        assert!(losses.epsilon(del(1e-6)).unwrap().high < 1e-4, "{noise}");
    }
}

#[test]
fn invalid_pairs_are_refused() {
    use crate::accounting::AccountingError::{Mixture, PrivacyLoss, SamplingRate};
    for rate in [0.0, -0.1, 1.1, f64::NAN] {
        let found = DominatingPair::poisson_sampled_gaussian(sigma(1.0), rate);
        assert!(matches!(found, Err(SamplingRate(_))), "{rate}");
    }
    for scale in [0.0, -1.0, 1e-4, f64::INFINITY, f64::NAN] {
        assert!(matches!(DominatingPair::laplace(scale), Err(PrivacyLoss(_))), "{scale}");
    }
    assert!(matches!(DominatingPair::gaussian(sigma(0.01)), Err(PrivacyLoss(_))));
    assert!(matches!(DominatingPair::pure(eps(601.0)), Err(PrivacyLoss(_))));
    for components in [
        &[(0.5, 1.0)][..],
        &[(1.0, 0.0)],
        &[(1.5, 1.0), (-0.5, 0.0)],
        &[(1.0, -1.0)],
        &[(1.0, f64::NAN)],
        &[],
    ] {
        assert!(matches!(GaussianMixture::new(components, 1.0), Err(Mixture(_))), "{components:?}");
    }
}
