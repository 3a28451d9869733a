//! End-to-end tests of the methods: results, spending, refusals, and attacks on neighbouring
//! samples.

use super::estimate::regress;
use super::*;
use chacha20::ChaCha20Rng;
use hushflow_mechanism::accounting::{Delta, Rho, zcdp};
use hushflow_mechanism::audit::bound::EventPair;
use rand::{Rng, SeedableRng};

const PLACE: Neighbours = Neighbours::ReplaceOneInPlace;

/// Records with columns between −1 and 1: the pairs (0, 1) and (2, 3) are correlated, the others
/// independent.
fn records(count: usize, dimension: usize, seed: u64) -> Vec<f64> {
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    let mut record = || {
        let mut values: Vec<f64> = (0..dimension).map(|_| uniform()).collect();
        for (a, b, sign) in [(0, 1, 1.0), (2, 3, -1.0)] {
            if b < dimension {
                values[b] = sign * (0.9 * values[a] + 0.1 * values[b]);
            }
        }
        values
    };
    (0..count).flat_map(|_| record()).collect()
}

fn second_moments(records: &[f64], dimension: usize) -> DMatrix<f64> {
    let rows = DMatrix::from_row_slice(records.len() / dimension, dimension, records);
    rows.transpose() * &rows / rows.nrows() as f64
}

fn run(
    method: CovarianceMethod,
    records: &[f64],
    dimension: usize,
    rho: f64,
    (neighbours, centre): (Neighbours, Option<f64>),
    seed: u64,
) -> Result<CovarianceEstimate, CovarianceError> {
    let found =
        CovarianceSample::new(&vec![(-1.0, 1.0); dimension], records, neighbours).and_then(|sample| {
            let budget = CovarianceBudget::new(Rho::new(rho).expect("a rho"));
            method.estimate(&sample, centre, budget, &mut ChaCha20Rng::seed_from_u64(seed))
        });
    crate::read_back(&found)
}

#[test]
fn every_method_finds_the_covariance_with_a_large_budget() {
    let records = records(4000, 6, 1);
    let truth = second_moments(&records, 6);
    for method in CovarianceMethod::ALL {
        let found = run(method, &records, 6, 1000.0, (PLACE, None), 2).unwrap();
        let off: f64 = truth.norm_squared() - truth.diagonal().norm_squared();
        let limit = match method {
            CovarianceMethod::Diagonal => 1.01 * off.sqrt(),
            CovarianceMethod::CoinPress => 0.2,
            _ => 0.01,
        };
        let error = (&found.covariance - &truth).norm();
        assert!(error < limit, "{method}: {error}");
    }
}

#[test]
fn pace_finds_correlations_and_beats_the_whole_matrix_at_small_budgets() {
    let records = records(2000, 12, 3);
    let truth = second_moments(&records, 12);
    let found = run(CovarianceMethod::Pace, &records, 12, 0.02, (PLACE, None), 4).unwrap();
    let pairs: Vec<(usize, usize)> =
        found.measurements.iter().filter(|m| m.row != m.column).map(|m| (m.row, m.column)).collect();
    assert!(pairs.contains(&(1, 0)) && pairs.contains(&(3, 2)) && pairs.len() < 12, "{pairs:?}");
    assert!(found.sparsity() > Some(0.8));
    let error = |method| {
        let runs = (0..5).map(|seed| run(method, &records, 12, 0.02, (PLACE, None), seed).unwrap());
        runs.map(|found| (&found.covariance - &truth).norm()).sum::<f64>()
    };
    let [pace, ssp, diagonal] =
        [CovarianceMethod::Pace, CovarianceMethod::Ssp, CovarianceMethod::Diagonal].map(error);
    assert!(pace < 0.7 * ssp && pace < 0.9 * diagonal, "{pace} {ssp} {diagonal}");
    let names: Vec<String> = (0..12).map(|position| format!("column \"{position}\"")).collect();
    let graph = found.dot(&names);
    assert!(
        graph.starts_with("graph covariance {")
            && graph.contains("\"column \\\"0\\\"\" -- \"column \\\"1\\\"\"")
    );
}

#[test]
fn exactly_the_budget_is_spent() {
    let records = records(300, 5, 5);
    for method in CovarianceMethod::ALL {
        for (neighbours, centre) in [(PLACE, None), (PLACE, Some(0.1)), (Neighbours::ZeroOut, Some(0.2))] {
            for rho in [1e-4, 0.3, 50.0] {
                match run(method, &records, 5, rho, (neighbours, centre), 6) {
                    Ok(found) => {
                        let sum: f64 = found.budget.parts().iter().map(|(_, rho)| rho).sum();
                        assert!(sum <= rho && sum > rho * (1.0 - 1e-8), "{method} {neighbours} {rho}: {sum}");
                        assert_eq!(found.mean.is_some(), centre.is_some());
                        assert_eq!(found.rows_deviation > 0.0, neighbours == Neighbours::ZeroOut);
                    }
                    Err(error) => assert!(
                        error == CovarianceError::PublicCount && neighbours == Neighbours::ZeroOut,
                        "{method} {neighbours} {rho}: {error}"
                    ),
                }
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_estimate() {
    let records = records(100, 4, 7);
    for method in CovarianceMethod::ALL {
        let once = || run(method, &records, 4, 1.0, (PLACE, None), 8).unwrap();
        assert_eq!(once(), once(), "{method}");
    }
}

#[test]
fn odd_inputs_are_estimated_or_refused() {
    for method in CovarianceMethod::ALL {
        let single = run(method, &[0.5, -0.25, 1.0, f64::NAN], 1, 1.0, (PLACE, None), 9).unwrap();
        assert_eq!(single.covariance.shape(), (1, 1), "{method}: one column");
        let few = run(method, &records(2, 8, 1), 8, 1.0, (PLACE, None), 9).unwrap();
        assert!(few.covariance.iter().all(|x| x.is_finite()), "{method}: fewer rows than columns");
        run(method, &[0.0; 60], 3, 1.0, (PLACE, Some(0.1)), 9).expect("constant columns");
        let one = run(method, &[0.0; 3], 3, 1.0, (PLACE, None), 9).unwrap_err();
        assert_eq!(one, CovarianceError::TooFew { found: 1 }, "{method}");
        let tiny = run(method, &[0.0; 60], 3, 1e-300, (PLACE, None), 9).unwrap_err();
        assert!(matches!(tiny, CovarianceError::Noise(_)), "{method}: {tiny}");
    }
    let empty = run(CovarianceMethod::Pace, &[], 3, 1.0, (Neighbours::ZeroOut, None), 9).unwrap();
    assert!(empty.rows >= 1.0, "a private count is at least 1");
    let share = run(CovarianceMethod::Pace, &[0.0; 60], 3, 1.0, (PLACE, Some(1.0)), 9).unwrap_err();
    assert!(share.to_string().contains("share of the budget for centring is 1.0"), "{share}");
}

#[test]
fn centring_finds_mean_and_covariance() {
    let mut records = records(20_000, 4, 10);
    records.iter_mut().for_each(|x| *x = 0.4 + 0.5 * *x);
    let found = run(CovarianceMethod::Pace, &records, 4, 10.0, (PLACE, Some(0.1)), 11).unwrap();
    let mean = found.mean.unwrap();
    assert!(mean.values.iter().all(|value| (value - 0.4).abs() < 0.02), "{mean:?}");
    let centred: Vec<f64> = records.iter().map(|x| x - 0.4).collect();
    assert!((found.covariance - second_moments(&centred, 4)).norm() < 0.02);
}

/// Values far outside the bounds count as the bounds, also about a private mean, which widens the
/// range of the differences: half of the rows are clipped to −1, and the others are 0.
#[test]
fn centring_clips_to_the_bounds() {
    let records: Vec<f64> = (0..4000).flat_map(|row| [-3.0 * f64::from(row % 2), 0.5]).collect();
    for method in CovarianceMethod::ALL {
        let Ok(found) = run(method, &records, 2, 1000.0, (PLACE, Some(0.1)), 12) else { continue };
        let variance = found.covariance[(0, 0)];
        let within = if method == CovarianceMethod::CoinPress { 0.1 } else { 0.02 };
        assert!((variance - 0.25).abs() < within, "{method}: {variance}");
    }
}

/// Attack: two samples differ in one record, in the worst corners; the attacker reads the sign of
/// the entry that differs most. Its success rate is at most what ρ allows plus six standard
/// deviations (false alarm below 1e-8).
#[test]
fn neighbours_are_hard_to_tell_apart() {
    let rho = 0.2;
    let delta = 0.05;
    let epsilon = zcdp::epsilon(Rho::new(rho).unwrap(), Delta::new(delta).unwrap()).value();
    let runs = 1500;
    for (method, neighbours) in [
        (CovarianceMethod::Pace, PLACE),
        (CovarianceMethod::Pace, Neighbours::ZeroOut),
        (CovarianceMethod::Ssp, PLACE),
        (CovarianceMethod::SspTight, PLACE),
        (CovarianceMethod::Separate, PLACE),
        (CovarianceMethod::Adaptive, PLACE),
        (CovarianceMethod::Shrunk, PLACE),
        (CovarianceMethod::Shrunk, Neighbours::ZeroOut),
    ] {
        let other = if neighbours == PLACE { [1.0, -1.0] } else { [0.0, 0.0] };
        let in_middle = neighbours == PLACE || method == CovarianceMethod::Shrunk;
        let threshold = if in_middle { 0.0 } else { 0.5 };
        let positive = |last: [f64; 2]| {
            // With two records `shrunk` measures the diagonal alone.
            let blank = if method == CovarianceMethod::Shrunk { 200 } else { 1 };
            let records = [vec![0.0; 2 * blank], last.into()].concat();
            let above = (0..runs).filter(|&seed| {
                let found = run(method, &records, 2, rho, (neighbours, None), seed).expect("an estimate");
                match found.measurements.iter().find(|entry| entry.row != entry.column) {
                    Some(entry) if blank > 1 => entry.value * found.rows > threshold,
                    _ => found.covariance[(1, 0)] * found.rows > threshold,
                }
            });
            above.count() as f64 / runs as f64
        };
        let (hit, false_alarm) = (positive([1.0, 1.0]), positive(other));
        let limit = epsilon.exp() * false_alarm
            + delta
            + 6.0 * (0.25 * (1.0 + (2.0 * epsilon).exp()) / runs as f64).sqrt();
        assert!(hit <= limit, "{method} {neighbours}: {hit} {false_alarm} {limit}");
        assert!(hit > false_alarm, "{method} {neighbours}: the attack sees something: {hit} {false_alarm}");
    }
}

/// Audit: the lower bound of μ from the sign of the entries that differ most is at most what ρ
/// allows. For the tight triangle and `shrunk`, whose sensitivities the pair attains, it is at
/// least nine tenths of it. The paper's SSP claims √2 times the μ that it reveals. Each count errs
/// with probability 10⁻⁷.
#[test]
fn a_counting_attack_proves_nearly_the_claimed_epsilon() {
    let rho: f64 = 0.5;
    for (method, least, columns, blank) in [
        (CovarianceMethod::SspTight, 0.9, 2, 1),
        (CovarianceMethod::Ssp, 0.6, 2, 1),
        // Without correlations, three tenths of ρ measure them.
        (CovarianceMethod::Shrunk, 0.5, 2, 10),
        // With fewer records it measures the diagonal alone.
        (CovarianceMethod::Shrunk, 0.9, 6, 15),
    ] {
        let mut event = EventPair::default();
        let half = columns / 2;
        for trial in 0..40_000 {
            for (world, sign) in [1.0, -1.0].into_iter().enumerate() {
                let last = [vec![1.0; half], vec![sign; half]].concat();
                let records = [vec![0.0; columns * blank], last].concat();
                let found = run(method, &records, columns, rho, (PLACE, None), 2 * trial + world as u64);
                let found = found.expect("an estimate").measurements;
                let across = found.iter().filter(|entry| entry.row >= half && entry.column < half);
                event.worlds[world].add(across.map(|entry| entry.value).sum::<f64>() > 0.0);
            }
        }
        let (proved, claimed) = (event.mu(1e-7), (2.0 * rho).sqrt());
        assert!(proved <= claimed && proved >= least * claimed, "{method}: {proved} of {claimed}");
    }
}

/// Records much shorter than their bounds are clipped to a private norm, and the error is below 0.3
/// of the error of `separate` and of `ssp`. A private number of rows is refused before anything is
/// spent.
#[test]
fn adaptive_clips_short_records_near_their_norm() {
    let mut records = records(4000, 8, 14);
    records.iter_mut().for_each(|x| *x *= 0.05);
    records[..16].fill(1.0);
    let truth = second_moments(&records, 8);
    let error = |method| {
        let runs = (0..4).map(|seed| run(method, &records, 8, 0.01, (PLACE, None), seed).unwrap());
        runs.map(|found| (&found.covariance - &truth).norm()).sum::<f64>()
    };
    let [adaptive, separate, ssp] =
        [CovarianceMethod::Adaptive, CovarianceMethod::Separate, CovarianceMethod::Ssp].map(error);
    assert!(adaptive < 0.3 * separate.min(ssp), "{adaptive} {separate} {ssp}");
    let refused = run(CovarianceMethod::Adaptive, &records, 8, 0.01, (Neighbours::ZeroOut, None), 1);
    assert_eq!(refused, Err(CovarianceError::PublicCount));
}

/// The error of `shrunk` is at most a tenth above the least error of the other methods, and at most
/// a third above it where noise exceeds the covariance. Tested for records of few directions, of
/// independent columns and of norms far below their bounds.
#[test]
fn shrunk_is_never_far_from_the_best_in_hindsight() {
    let full = records(3000, 10, 15);
    let short: Vec<f64> = full.iter().map(|x| 0.05 * x).collect();
    let directed: Vec<f64> =
        full.chunks(10).flat_map(|row| [0, 2, 0, 2, 0, 2, 0, 2, 0, 2].map(|j| row[j])).collect();
    for (name, records) in [("full", full), ("short", short), ("directed", directed)] {
        let truth = second_moments(&records, 10);
        for rho in [0.001, 0.1, 10.0] {
            let error = |method| {
                let runs = (0..10).map(|seed| run(method, &records, 10, rho, (PLACE, None), seed).unwrap());
                runs.map(|found| (&found.covariance - &truth).norm()).sum::<f64>()
            };
            let [shrunk, others @ ..] = CovarianceMethod::ALL.map(error);
            let best = others.into_iter().fold(f64::INFINITY, f64::min);
            let limit = if rho < 0.01 { 1.34 } else { 1.1 };
            assert!(shrunk < limit * best, "{name} {rho}: {shrunk} {others:?}");
        }
    }
}

#[test]
fn regressions_find_the_slope() {
    let records = records(20_000, 3, 12);
    let sample = CovarianceSample::new(&[(-1.0, 1.0); 3], &records, PLACE).unwrap();
    for method in [CovarianceMethod::Pace, CovarianceMethod::Ssp, CovarianceMethod::Shrunk] {
        let budget = CovarianceBudget::new(Rho::new(5.0).unwrap());
        let found = regress(method, &sample, 1, budget, &mut ChaCha20Rng::seed_from_u64(13)).unwrap();
        assert!((found.coefficients[0] - 0.9).abs() < 0.05, "{method}: {found:?}");
        assert!(found.coefficients[1..].iter().all(|b| b.abs() < 0.05), "{method}: {found:?}");
        assert!(found.budget.left() < 1e-7);
    }
}

/// The noise of each entry has the printed deviation, for records of one norm, which no norm clips.
/// Over 300 runs, the sum of squared errors over
/// variances is within 5.5 standard deviations of 300 for each of six entries. The false-alarm
/// probability is below 10⁻⁶.
#[test]
fn entries_of_stepwise_methods_have_the_noise_that_they_report() {
    let records: Vec<f64> = records(500, 2, 8).iter().map(|x| x.signum()).collect();
    let truth = second_moments(&records, 2);
    for method in [CovarianceMethod::CoinPress, CovarianceMethod::Adaptive, CovarianceMethod::Shrunk] {
        let mut squares = [0.0; 3];
        for seed in 0..300 {
            let found = run(method, &records, 2, 0.5, (PLACE, None), seed).unwrap();
            assert_eq!(found.measurements.len(), 3, "{method}");
            for (sum, entry) in squares.iter_mut().zip(&found.measurements) {
                *sum += ((entry.value - truth[(entry.row, entry.column)]) / entry.deviation).powi(2);
            }
        }
        let reach = 5.5 * 600f64.sqrt();
        assert!(squares.iter().all(|sum| (sum - 300.0).abs() < reach), "{method}: {squares:?}");
    }
    let separate = run(CovarianceMethod::Separate, &records, 2, 0.5, (PLACE, None), 1).unwrap();
    assert!(separate.measurements.is_empty(), "its noise is in eigenvalues and directions");
}

/// Tables of records between −1 and 1: of one column with long tails, of three with short ones and
/// bounds that are ten times too wide, and of six.
fn covered_tables() -> [(usize, Vec<f64>); 3] {
    let tail = records(400, 1, 21).iter().map(|x| 0.01 / (1.005 - x.abs())).collect();
    let short = records(400, 3, 22).iter().map(|x| 0.1 * x).collect();
    [(1, tail), (3, short), (6, records(400, 6, 23))]
}

/// Intervals of 95 % contain the second moments of the records clipped to the published norm in at
/// least 93 % of the entries, over enough seeds for 6,000 independent entries: a false alarm has a
/// probability below 10⁻¹², as 5 % of them are expected outside.
fn check_coverage(method: CovarianceMethod, rho: f64, neighbours: Neighbours) {
    for (columns, records) in covered_tables() {
        let (mut inside, mut entries) = (0, 0);
        let mut seed = 0;
        while entries < 6000 {
            seed += 1;
            let found = run(method, &records, columns, rho, (neighbours, None), seed).expect("an estimate");
            let Some(norm) = found.clip_norm else { continue };
            let scaled: Vec<f64> = records
                .chunks_exact(columns)
                .flat_map(|row| {
                    let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                    row.iter().map(move |x| x * (norm / length).min(1.0))
                })
                .collect();
            let truth = second_moments(&scaled, columns);
            let intervals = found.intervals(0.95);
            for (i, j) in (0..columns).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                let Some((lower, upper)) = intervals[i][j] else { continue };
                entries += 1;
                inside += usize::from((lower..=upper).contains(&truth[(i, j)]));
            }
        }
        let share = f64::from(inside as u32) / f64::from(entries as u32);
        assert!((0.93..0.97).contains(&share), "{method} {rho} {columns}: {share}");
    }
}

#[test]
fn intervals_of_the_default_cover_the_moments_of_the_clipped_records() {
    check_coverage(CovarianceMethod::Shrunk, 0.1, PLACE);
}

#[test]
#[ignore = "slow"]
fn intervals_cover_the_moments_of_the_clipped_records() {
    for rho in [0.01, 0.1, 1.0] {
        check_coverage(CovarianceMethod::Shrunk, rho, PLACE);
        for method in [CovarianceMethod::Ssp, CovarianceMethod::SspTight, CovarianceMethod::Diagonal] {
            check_coverage(method, rho, PLACE);
        }
        check_coverage(CovarianceMethod::Pace, rho, PLACE);
    }
    check_coverage(CovarianceMethod::Shrunk, 1.0, Neighbours::ZeroOut);
    check_coverage(CovarianceMethod::SspTight, 1.0, Neighbours::ZeroOut);
}
