//! Tests whole estimators: errors in the paper's settings, bad input, neighbours, and an audit.

use super::*;
use chacha20::ChaCha20Rng;
use hushflow_mechanism::accounting::{NoiseMultiplier, gaussian as curve};
use hushflow_mechanism::audit::bound::EventPair;
use hushflow_mechanism::noise::NoiseSource;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal, StudentT};

fn normal(rng: &mut ChaCha20Rng) -> f64 {
    StandardNormal.sample(rng)
}

/// (1−α)N(0, I) + αN(1.5·1, I), Appendix L, with `draw` in place of N(0, 1).
fn mixture(n: usize, d: usize, alpha: f64, draw: impl Fn(&mut ChaCha20Rng) -> f64) -> Vec<f64> {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let bad = (alpha * n as f64) as usize;
    (0..n * d).map(|position| draw(&mut rng) + if position / d < bad { 1.5 } else { 0.0 }).collect()
}

fn question(method: MeanMethod, epsilon: f64, delta: f64, corruption: f64, d: usize) -> Question {
    Question {
        method,
        epsilon: Epsilon::new(epsilon).expect("an epsilon"),
        delta: Delta::new(delta).expect("a delta"),
        corruption,
        scale: Scale::Known(vec![1.0; d]),
        range: None,
    }
}

fn answer(rows: &[f64], d: usize, question: &Question, seed: u64) -> MeanAnswer {
    let mut rng = NoiseSource::Seeded(seed).generator(0, 0).expect("a seed");
    crate::read_back(&estimate(rows, d, question, &mut rng).expect("an answer"))
}

fn error(answer: &MeanAnswer) -> f64 {
    let found = answer.outcome.as_ref().expect("an estimate");
    found.mean.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The error is constant in d, while that of the plain mean grows as α·1.5√d: Figure 1 of the
/// paper, with 60,000 of its 10⁶ records.
#[test]
fn robust_errors_stay_while_the_plain_one_grows() {
    for d in [4, 16, 50] {
        let rows = mixture(60_000, d, 0.05, normal);
        for (method, most) in
            [(MeanMethod::Prime, 0.12), (MeanMethod::Auto, 0.12), (MeanMethod::Filter, 0.12)]
        {
            let found = answer(&rows, d, &question(method, 20.0, 0.01, 0.05, d), 7);
            assert!(error(&found) < most, "{method}, d = {d}: {}", error(&found));
        }
        let plain = error(&answer(&rows, d, &question(MeanMethod::Gaussian, 20.0, 0.01, 0.05, d), 7));
        let expected = 0.075 * (d as f64).sqrt();
        assert!((plain / expected - 1.0).abs() < 0.15, "d = {d}: {plain} {expected}");
    }
}

/// For correlated columns, which PRIME mistakes for corruption and refuses, `auto` turns to
/// PRIME-ht. If some rows are shifted, `auto` filters them. It spends its budget once.
#[test]
fn auto_stops_filtering_what_is_no_corruption() {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let (n, d) = (20_000, 10);
    let correlated: Vec<f64> = (0..n)
        .flat_map(|_| {
            let common = normal(&mut rng);
            [(); 10].map(|()| 0.96 * common + 0.29 * normal(&mut rng))
        })
        .collect();
    let answer = |method, rows: &[f64]| answer(rows, d, &question(method, 2.0, 1e-6, 0.02, d), 7);
    let auto = answer(MeanMethod::Auto, &correlated);
    assert!(auto.method == MeanMethod::PrimeHt && auto.parts.iter().any(|part| part.step == "rounds"));
    assert!(auto.spent <= 2.0 && auto.spent > 1.9, "{}", auto.spent);
    let plain = answer(MeanMethod::Gaussian, &correlated);
    assert!(error(&auto) < error(&plain) + 0.04, "{} {}", error(&auto), error(&plain));
    assert!(answer(MeanMethod::Prime, &correlated).outcome.is_err());
    // Correlated columns of which a share is shifted: the plain mean moves by 0.79.
    let spoilt: Vec<f64> =
        correlated.iter().enumerate().map(|(i, x)| if i < 10_000 { x + 5.0 } else { *x }).collect();
    let unscaled = question(MeanMethod::Auto, 2.0, 1e-6, 0.05, d);
    let unscaled = Question { scale: Scale::Estimated, ..unscaled };
    let auto = self::answer(&spoilt, d, &unscaled, 7);
    assert!(auto.method == MeanMethod::PrimeHt && error(&auto) < 0.35, "{auto:?}");
    let shifted = mixture(n, d, 0.02, normal);
    let shifted: Vec<f64> =
        shifted.iter().enumerate().map(|(i, x)| if i < 4000 { x + 2.0 } else { *x }).collect();
    let auto = answer(MeanMethod::Auto, &shifted);
    assert!(auto.method == MeanMethod::Prime && error(&auto) < 0.06, "{auto:?}");
}

/// Without a range the resilience estimator finds one, wherever the mean is, and adds its cost. A
/// table spread over all bins is refused.
#[test]
fn resilience_finds_its_own_range() {
    let (n, d) = (6000, 2);
    let rows: Vec<f64> = mixture(n, d, 0.05, |rng| 0.4 * normal(rng) + 12_345.6);
    let question = question(MeanMethod::Resilience, 6.0, 1e-3, 0.05, d);
    let found = answer(&rows, d, &question, 3);
    let mean = &found.outcome.as_ref().expect("an estimate").mean;
    assert!(mean.iter().all(|mean| (mean - 12_345.6).abs() < 0.2), "{mean:?}");
    let (epsilon, delta) =
        found.parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.epsilon, sum.1 + part.delta));
    assert!(epsilon <= 6.0 && epsilon > 5.999 && delta <= 1e-3, "{:?}", found.parts);
    assert_eq!((found.parts[0].step, found.spent), ("range", 6.0));
    let spread: Vec<f64> = (0..n * d).map(|position| 1e3 * position as f64).collect();
    assert_eq!(answer(&spread, d, &question, 3).outcome, Err(MeanRefusal::Range { column: 0 }));
    let mut rng = NoiseSource::Seeded(1).generator(0, 0).expect("a seed");
    let few = estimate(&rows[..60], d, &question, &mut rng).expect_err("too few");
    assert!(few.to_string().contains("too few"), "{few}");
    let unscaled = Question { scale: Scale::Estimated, ..question };
    assert!(matches!(estimate(&rows, d, &unscaled, &mut rng), Err(MeanError::NoScale { .. })));
}

/// Figure 1 with all of its records, including small α (its middle). Takes minutes, so it runs only
/// if `HUSHFLOW_LONG_TESTS` is set. Errors are means over three seeds, and all include √(d/n), the
/// error of a mean of clean records alone.
#[test]
fn figure_one_is_reproduced_with_all_records() {
    if std::env::var_os("HUSHFLOW_LONG_TESTS").is_none() {
        return;
    }
    for (alpha, d, most) in [(0.05, 2, 0.09), (0.05, 50, 0.1), (0.001, 2, 0.005), (0.001, 50, 0.012)] {
        let rows = mixture(1_000_000, d, alpha, normal);
        let errors = |method| {
            let question = question(method, 20.0, 0.01, alpha, d);
            (1..=3).map(|seed| error(&answer(&rows, d, &question, seed))).sum::<f64>() / 3.0
        };
        let [prime, plain] = [MeanMethod::Prime, MeanMethod::Gaussian].map(errors);
        let expected = 1.5 * alpha * (d as f64).sqrt();
        assert!(prime < most && plain < 2.0 * expected, "alpha {alpha}, d = {d}: {prime} {plain}");
    }
}

#[test]
fn heavy_tails_are_no_corruption() {
    let heavy = StudentT::new(3.0).expect("degrees");
    for (d, most) in [(1, 0.1), (30, 0.25)] {
        let rows = mixture(60_000, d, 0.05, |rng| heavy.sample(rng) / 3_f64.sqrt());
        let found = answer(&rows, d, &question(MeanMethod::PrimeHt, 10.0, 0.01, 0.05, d), 3);
        assert!(error(&found) < most, "d = {d}: {}", error(&found));
    }
}

/// The check of PRIME-ht detects a shift of 1.5 in 20 columns, with a budget at which the noise of
/// Chebyshev's ball would hide it. The error of the plain mean is 0.333.
#[test]
fn a_shift_in_many_columns_is_filtered_for_heavy_tails() {
    let rows = mixture(100_000, 20, 0.05, normal);
    let found = answer(&rows, 20, &question(MeanMethod::PrimeHt, 4.0, 1e-6, 0.05, 20), 3);
    assert!(error(&found) < 0.2, "{} {:?}", error(&found), found.parts);
    assert!(found.parts.iter().any(|part| part.step == "radii"), "{:?}", found.parts);
}

/// A fifth of the records is corrupt: more than a quarter is removed, and the estimate is not
/// refused.
#[test]
fn a_fifth_of_the_records_may_be_corrupt() {
    let rows = mixture(60_000, 10, 0.2, |rng| 0.5 * normal(rng));
    let scaled =
        Question { scale: Scale::Known(vec![0.5; 10]), ..question(MeanMethod::Prime, 20.0, 0.01, 0.2, 10) };
    let found = answer(&rows, 10, &scaled, 3);
    let plain = 0.2 * 1.5 * 10f64.sqrt();
    assert!(error(&found) < plain / 2.0, "{} {plain}", error(&found));
}

#[test]
fn estimates_scale_with_any_units() {
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let mut rows: Vec<f64> =
        (0..20_000).flat_map(|_| [1e6 + 1e3 * normal(&mut rng), 1e-3 * normal(&mut rng), 7.0]).collect();
    rows[0] = 1e300;
    rows[4] = f64::NAN;
    for method in [MeanMethod::Prime, MeanMethod::PrimeHt, MeanMethod::Balloon, MeanMethod::Gaussian] {
        let question = Question { scale: Scale::Estimated, ..question(method, 2.0, 1e-6, 0.02, 3) };
        let answer = answer(&rows, 3, &question, 1);
        let found = answer.outcome.expect("an estimate").mean;
        assert!((found[0] - 1e6).abs() < 300.0, "{method}: {found:?}");
        assert!(found[1].abs() < 3e-4 && (found[2] - 7.0).abs() < 0.3, "{method}: {found:?}");
        assert!(answer.parts.iter().any(|part| part.step == "scale"));
    }
}

#[test]
fn bad_questions_are_refused_with_reasons() {
    let rows = vec![0.5; 4000];
    let check = |question: Question, columns, expected: &str| {
        let mut rng = NoiseSource::Seeded(1).generator(0, 0).expect("a seed");
        let found = estimate(&rows, columns, &question, &mut rng).expect_err("refused").to_string();
        assert!(found.contains(expected), "{found}");
    };
    let valid = |corruption| question(MeanMethod::Prime, 1.0, 1e-6, corruption, 1);
    for corruption in [0.5, 1.0, -0.1, f64::NAN] {
        check(valid(corruption), 1, "below 1/2");
    }
    check(question(MeanMethod::Prime, 0.0, 1e-6, 0.1, 1), 1, "epsilon is 0");
    check(question(MeanMethod::Prime, 1e-6, 1e-6, 0.1, 1), 1, "too few");
    check(question(MeanMethod::Prime, 150.0, 1e-6, 0.1, 1), 1, "smaller epsilon");
    check(question(MeanMethod::Gaussian, 800.0, 1e-6, 0.1, 1), 1, "smaller epsilon");
    for corruption in [0.0, 1e-9, 0.2] {
        check(question(MeanMethod::Resilience, 8.0, 1e-6, corruption, 1), 1, "below 1/6");
    }
    check(Question { scale: Scale::Known(vec![1e308]), ..valid(0.1) }, 1, "give another scale");
    check(valid(0.1), 0, "at least one column");
    check(valid(0.1), 3, "complete rows");
    check(valid(0.1), 2, "scale");
    check(Question { scale: Scale::Known(vec![0.0]), ..valid(0.1) }, 1, "above 0");
    check(question(MeanMethod::Tukey, 1.0, 1e-6, 0.1, 1), 1, "needs a range");
    let wide = Question { range: Some(1e6), ..question(MeanMethod::Tukey, 1.0, 1e-6, 0.1, 1) };
    check(wide, 1, "exponential time");
    let five = Question {
        range: Some(1.0),
        scale: Scale::Known(vec![1.0; 5]),
        ..question(MeanMethod::Resilience, 1.0, 1e-6, 0.1, 1)
    };
    check(five.clone(), 5, "5 columns are more than the 4");
    check(Question { method: MeanMethod::Tukey, ..five.clone() }, 5, "5 columns are more than the 4");
    check(Question { range: Some(f64::NAN), ..five }, 5, "needs a range");
}

#[test]
fn shares_of_a_budget_add_up_to_the_budget() {
    let rows = mixture(20_000, 3, 0.05, normal);
    for method in [
        MeanMethod::Prime,
        MeanMethod::PrimeHt,
        MeanMethod::Filter,
        MeanMethod::Gaussian,
        MeanMethod::Balloon,
    ] {
        let question = question(method, 2.0, 1e-6, 0.05, 3);
        let answer = answer(&rows, 3, &question, 2);
        let squared_mu: f64 = answer.parts.iter().map(|part| part.squared_mu).sum();
        let sigma = NoiseMultiplier::new(squared_mu.sqrt().recip()).expect("a multiplier");
        let epsilon = curve::epsilon(sigma, question.delta).value();
        assert!(epsilon <= 2.0 && epsilon > 1.999, "{method}: {epsilon}");
        assert!(answer.spent <= 2.0 && answer.spent >= epsilon, "{method}: {}", answer.spent);
    }
}

/// Correlations of 0.9 and scales from 10⁻² to 10³, corrupted along a direction of small
/// variance where each column by itself looks clean. Errors are in the metric of the clean
/// covariance.
#[test]
fn correlated_columns_are_whitened() {
    let (n, d, alpha) = (60_000, 6, 0.05_f64);
    let mut rng = ChaCha20Rng::seed_from_u64(8);
    let unit = |column: usize| 10_f64.powi(column as i32 - 2);
    let rows: Vec<f64> = (0..n)
        .flat_map(|record| {
            let shared = 0.9_f64.sqrt() * normal(&mut rng);
            let clean: Vec<f64> = (0..d).map(|_| shared + 0.1_f64.sqrt() * normal(&mut rng)).collect();
            let shift = if record % 20 == 0 { 1.0 } else { 0.0 };
            let moved = clean.into_iter().enumerate().map(move |(j, x)| x + shift * [1.0, -1.0][j % 2]);
            moved.enumerate().map(|(j, x)| 5.0 + x * unit(j)).collect::<Vec<_>>()
        })
        .collect();
    let metric = |answer: &MeanAnswer| {
        let found = answer.outcome.as_ref().expect("an estimate");
        let off: Vec<f64> = found.mean.iter().enumerate().map(|(j, mean)| (mean - 5.0) / unit(j)).collect();
        let shared = off.iter().sum::<f64>().powi(2) / d as f64;
        let rest = off.iter().map(|x| x * x).sum::<f64>() - shared;
        (shared / (0.9 * d as f64 + 0.1) + rest / 0.1).sqrt()
    };
    let error = |method, scale| {
        let question = Question { scale, ..question(method, 4.0, 1e-6, alpha, d) };
        metric(&answer(&rows, d, &question, 1))
    };
    let plain = error(MeanMethod::Gaussian, Scale::Estimated);
    assert!((plain / (alpha * 6_f64.sqrt() / 0.1_f64.sqrt()) - 1.0).abs() < 0.2, "{plain}");
    let [whitened, heavy] =
        [MeanMethod::Prime, MeanMethod::PrimeHt].map(|method| error(method, Scale::Whitened));
    // For heavy tails the scales are twice as large, and a shift of √α scales may go undetected.
    assert!(whitened < 0.1 && heavy < 2.0 * alpha.sqrt(), "{whitened} {heavy}");

    let question = Question { scale: Scale::Whitened, ..question(MeanMethod::Prime, 4.0, 1e-6, alpha, d) };
    let answer = answer(&rows, d, &question, 2);
    let parts: Vec<_> = answer.parts.iter().map(|part| (part.step, part.releases)).collect();
    assert_eq!(parts[..3], [("scale", 1), ("directions", 2), ("directed scale", 2)]);
    assert!(answer.spent <= 4.0 && answer.spent > 3.99, "{}", answer.spent);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The integers of each query change by at most the charge of the query, for kept sets that
    /// each contain at most one record that the other one lacks.
    #[test]
    fn neighbours_move_queries_by_their_sensitivity(
        rows in prop::collection::vec([-9.0f64..9.0, -9.0f64..9.0, -9.0f64..9.0], 3..12),
        other in [-99.0f64..99.0, -99.0f64..99.0, -99.0f64..99.0],
        taken in 0usize..3,
    ) {
        let ball = release::ClippingBall { centre: vec![0.0; 3], radius: 5.0 };
        let mut replaced = rows.clone();
        replaced[0] = other;
        let mut worlds = [&rows, &replaced].map(|rows| release::ClippedRecords::new(rows.as_flattened(), &[1.0; 3], &ball).unwrap());
        // The differing record is kept in both, in the first, or in the second; then another one
        // replaces it.
        if taken > 0 {
            worlds[taken - 1].take_out(0);
        }
        if taken == 2 {
            worlds[0].take_out(1);
        }
        let [one, other] = worlds.map(|kept| kept.moments(hushflow_mechanism::moments::SecondMoment::Full).unwrap().to_wide());
        let unit = 0.5_f64.powi(20);
        let difference: Vec<f64> = one.iter().zip(other.iter()).map(|(a, b)| (a - b) as f64).collect();
        let first: f64 = difference[1..4].iter().map(|x| (x * unit).powi(2)).sum();
        let diagonal = [0, 3, 5];
        let entry = |(position, x): (usize, &f64)| (x * unit * unit).powi(2) * if diagonal.contains(&position) { 1.0 } else { 2.0 };
        let second: f64 = difference[4..].iter().enumerate().map(entry).sum();
        let count = difference[0].powi(2);
        prop_assert!(2.5 * count + first + second / 2.0 <= 4.0);
        prop_assert!(3.0 * count + first <= 4.0);
    }
}

/// Audits a whole mechanism at small n with tables that differ in one record, with 4,000 runs each.
/// The success of the best linear statistic bounds μ from below. Each count has an error
/// probability of 10⁻⁷, so a correct mechanism fails the test with a probability below 10⁻⁶.
#[test]
#[ignore = "slow"]
fn neighbours_cannot_be_distinguished_better_than_claimed() {
    let (n, runs) = (300, 4_000u64);
    let question = question(MeanMethod::Prime, 8.0, 1e-3, 0.05, 1);
    let clean: Vec<f64> = (0..n).map(|i| f64::from(i % 21) / 10.0 - 1.0).collect();
    let moved = |value: f64| [&[value], &clean[1..]].concat();
    let worlds = [moved(40.0), moved(-40.0)];
    let statistics = worlds.map(|rows| -> Vec<f64> {
        let run = |seed| {
            let mut rng = NoiseSource::Seeded(seed).generator(0, 0).expect("a seed");
            match estimate(&rows, 1, &question, &mut rng).expect("an answer").outcome {
                Ok(found) => found.mean[0],
                Err(_) => f64::NEG_INFINITY,
            }
        };
        (0..runs).map(run).collect()
    });
    let mut sorted = statistics[0].clone();
    sorted.sort_by(f64::total_cmp);
    let threshold = sorted[runs as usize / 2];
    let mut event = EventPair::default();
    for (count, world) in event.worlds.iter_mut().zip(&statistics) {
        world.iter().for_each(|x| count.add(*x >= threshold));
    }
    let claimed = MeanBudget::new(question.epsilon, question.delta).expect("a budget").whole().sqrt();
    let (mu, epsilon) = (event.mu(1e-7), event.epsilon(question.delta, 1e-7));
    assert!(mu <= claimed && epsilon <= question.epsilon.value(), "{mu} of {claimed}, {epsilon}");
    assert!(mu > 0.0, "the record shows: {event:?}");
}
