//! Compares estimates by column with plain sums over the rows, and tests them under noise.

use super::correlation::ALL_CORRELATIONS;
use super::*;
use crate::audit::bound::Count;
use crate::moments::{Accumulators, Clipper, QuantisedRows};
use crate::reference::{self, assert_share};
use chacha20::ChaCha8Rng;
use rand::SeedableRng;
use rand_distr::{Distribution, Uniform};

/// Exact moments of these records, computed by the clipper and the accumulators. NaN is missing.
fn released(records: &[[f64; 3]], second: SecondMoment) -> (Layout, Vec<f64>, f64) {
    let clip_norm = Clipper::norm_with_indicators(3f64.sqrt());
    let clipper = Clipper::new(&[(-1.0, 1.0); 3], clip_norm).unwrap().with_indicators().unwrap();
    let layout = Layout::new(clipper.width(), second);
    let mut rows = QuantisedRows::new(clipper.width());
    clipper.quantise_all(&records.concat(), &mut rows).unwrap();
    let mut accumulators = Accumulators::new(layout);
    accumulators.add_to_key(0, &rows).unwrap();
    let unit = clipper.clip_norm() / f64::from(1 << 20);
    let sums = accumulators.take()[&0].row().iter().map(|sum| sum as f64).collect::<Vec<_>>();
    let scale = |position: usize| match position {
        Layout::COUNT => 1.0,
        position if layout.first().contains(&position) => unit,
        _ => unit * unit,
    };
    let coordinates = sums.iter().enumerate().map(|(position, sum)| sum * scale(position)).collect();
    (layout, coordinates, clipper.indicator_step().unwrap())
}

fn records(number: usize, random: &mut ChaCha8Rng) -> Vec<[f64; 3]> {
    let uniform = Uniform::new(-1.0, 1.0).unwrap();
    let record = |_| {
        let common: f64 = uniform.sample(random);
        let mut value = |share: f64| {
            let value = share * common + (1.0 - share) * uniform.sample(random);
            // Values that are missing depend on the values themselves.
            if uniform.sample(random) > 0.6 - value { f64::NAN } else { value }
        };
        [value(0.8), value(0.5), value(0.2)]
    };
    (0..number).map(record).collect()
}

/// Moments of a column, or of a pair of columns, over the rows that have values, by definition.
fn of_rows(records: &[[f64; 3]], columns: &[usize]) -> (f64, Vec<f64>, f64) {
    let has_all = |record: &&[f64; 3]| columns.iter().all(|&column| record[column].is_finite());
    let rows: Vec<_> = records.iter().filter(has_all).collect();
    let count = rows.len() as f64;
    let means: Vec<f64> =
        columns.iter().map(|&column| rows.iter().map(|row| row[column]).sum::<f64>() / count).collect();
    let (i, j) = (columns[0], columns[columns.len() - 1]);
    let product = |row: &&[f64; 3]| (row[i] - means[0]) * (row[j] - means[means.len() - 1]);
    let covariance = rows.iter().map(product).sum::<f64>() / count;
    (count, means, covariance)
}

const NO_NOISE: MomentNoise = MomentNoise { count: 0.0, first: 0.0, second: 0.0 };

#[test]
fn without_noise_moments_are_those_of_the_rows_that_have_them() {
    let records = records(500, &mut ChaCha8Rng::seed_from_u64(3));
    let (layout, coordinates, step) = released(&records, SecondMoment::Full);
    let noisy = NoisyMoments { layout, coordinates: &coordinates, noise: NO_NOISE };
    let moments = ColumnwiseMoments::new(noisy, step).unwrap();
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 2e-6, "{found} {expected}");
    for i in 0..3 {
        let (count, means, variance) = of_rows(&records, &[i]);
        let column = moments.column(i);
        near(column.count().0, count);
        let density = column.noisy().density().unwrap();
        near(density.mean[0], means[0]);
        near(density.covariance[(0, 0)], variance);
        for j in (0..3).filter(|&j| j != i) {
            let (count, means, covariance) = of_rows(&records, &[i, j]);
            let pair = moments.pair(i, j).unwrap();
            near(pair.count().0, count);
            (0..2).for_each(|at| near(pair.first()[at] / count, means[at]));
            near(moments.covariance(i, j).unwrap().covariance, covariance);
            let deviations = [i, j].map(|column| of_rows(&records, &[column]).2.sqrt());
            let (correlation, interval) = moments.correlation_at_random(i, j, Confidence::default()).unwrap();
            near(correlation.shown().unwrap(), covariance / deviations[0] / deviations[1]);
            near(interval.upper, interval.lower);
        }
    }
    let (layout, coordinates, step) = released(&records, SecondMoment::Diagonal);
    let noisy = NoisyMoments { layout, coordinates: &coordinates, noise: NO_NOISE };
    let moments = ColumnwiseMoments::new(noisy, step).unwrap();
    near(moments.entries().0[(1, 1)], of_rows(&records, &[1]).2);
    assert!(moments.pair(0, 1).is_none());
}

/// Draws 20,000 releases. At least 94 % of the intervals contain the truth: 1 % is for terms of
/// second order. The standard deviations of estimates are as stated to 3 %, six standard errors: a
/// false alarm has a probability below 10⁻⁸.
#[test]
fn intervals_and_noise_hold_under_noise() {
    const RELEASES: usize = 20_000;
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let records = records(600, &mut random);
    let (layout, exact, step) = released(&records, SecondMoment::Full);
    let noise = MomentNoise { count: 3.0, first: 4.0, second: 4.0 };
    let of_pair = of_rows(&records, &[0, 1]);
    let of_columns = [0, 1].map(|column| of_rows(&records, &[column]));
    let correlation = of_pair.2 / (of_columns[0].2 * of_columns[1].2).sqrt();
    let (mut held, mut errors, mut stated) = ([Count::default(); 3], [0.0; 3], [0.0; 3]);
    for _ in 0..RELEASES {
        let coordinates = reference::released(layout, &exact, noise, &mut random);
        let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
        let moments = ColumnwiseMoments::new(noisy, step).unwrap();
        let confidence = Confidence::default();
        let (column, pair) = (moments.column(0), moments.pair(0, 1).unwrap());
        let mean = column.intervals(confidence).unwrap().mean(0).unwrap();
        let covariance = pair.intervals(confidence).unwrap().covariance(0, 1).unwrap();
        let correlated = moments.correlation_at_random(0, 1, confidence).unwrap();
        let contained = [
            mean.contains(of_columns[0].1[0]),
            covariance.contains(of_pair.2),
            correlated.1.contains(correlation),
        ];
        held.iter_mut().zip(contained).for_each(|(held, contains)| held.add(contains));
        let density = column.noisy().density().unwrap();
        let PairCovariance { covariance, noise } = moments.covariance(0, 1).unwrap();
        let found = [
            (column.count().0 - of_columns[0].0, column.count().1),
            (density.mean[0] - of_columns[0].1[0], density.mean_noise[0]),
            (covariance - of_pair.2, noise),
        ];
        for ((sum, total), (error, noise)) in errors.iter_mut().zip(&mut stated).zip(found) {
            *sum += error * error;
            *total += noise * noise;
        }
    }
    held.into_iter().for_each(|held| assert_share(held, 0.94..=1.0));
    for (found, stated) in errors.iter().zip(&stated) {
        let ratio = (found / stated).sqrt();
        assert!((0.97..1.03).contains(&ratio), "{ratio}");
    }
}

/// A pair whose count is three deviations of its noise has an estimate in a sixth of the releases.
/// At least 95 % of its intervals contain the truth. Intervals that compute the effect of the
/// count's noise from the estimate contain it in only 91 %.
#[test]
fn covariances_hold_where_pairs_are_few() {
    const RELEASES: usize = 20_000;
    let mut random = ChaCha8Rng::seed_from_u64(12);
    let records = records(600, &mut random);
    let (layout, exact, step) = released(&records, SecondMoment::Full);
    let of_pair = of_rows(&records, &[0, 1]);
    let release = |level: f64| MomentNoise { count: level / 2.0, first: level, second: 1.5 * level };
    let pair = |coordinates: &[f64], noise| {
        let noisy = NoisyMoments { layout, coordinates, noise };
        ColumnwiseMoments::new(noisy, step).unwrap().pair(0, 1).unwrap()
    };
    let noise = release(of_pair.0 / 3.0 / pair(&exact, release(1.0)).count().1);
    let mut held = Count::default();
    for _ in 0..RELEASES {
        let coordinates = reference::released(layout, &exact, noise, &mut random);
        let pair = pair(&coordinates, noise);
        let Ok(intervals) = pair.intervals(Confidence::default()) else { continue };
        held.add(intervals.covariance(0, 1).is_some_and(|interval| interval.contains(of_pair.2)));
    }
    assert_share(Count { hits: held.trials, trials: RELEASES as u64 }, 0.14..=0.18);
    assert_share(held, 0.95..=1.0);
}

/// Two columns whose counts noise moves across the thresholds of their qualities, in opposite
/// directions. Among the lines of each combination of qualities, all intervals contain the truth in
/// at least 94 %: 1 % is for terms of second order.
#[test]
fn intervals_hold_given_the_qualities_of_all_columns() {
    const RELEASES: usize = 3_000;
    let mut random = ChaCha8Rng::seed_from_u64(31);
    let layout = Layout::new(4, SecondMoment::Full);
    let noise = MomentNoise { count: 30.0, first: 6.0, second: 10.0 };
    // Rows whose columns have these shares of values, a mean of 0.9 and a variance of 0.1.
    let (rows, shares) = (72.0, [0.95, 0.95]);
    let present = |i: usize, j: usize| if i == j { shares[i] } else { shares[i] * shares[j] };
    let first = [0.9 * shares[0], 0.9 * shares[1], shares[0] - 0.5, shares[1] - 0.5];
    let product = |(i, j): (usize, usize)| match (i < 2, j < 2) {
        (true, true) => present(i, j) * if i == j { 0.91 } else { 0.86 },
        (true, false) => 0.9 * (present(i, j - 2) - shares[i] / 2.0),
        _ if i == j => 0.25,
        _ => first[2] * first[3],
    };
    let second = layout.second_entries().map(product);
    let exact: Vec<f64> = [1.0].into_iter().chain(first).chain(second).map(|mean| rows * mean).collect();
    let mut shares_held = std::collections::BTreeMap::<_, Count>::new();
    for _ in 0..RELEASES {
        let coordinates = reference::released(layout, &exact, noise, &mut random);
        let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
        let moments = ColumnwiseMoments::new(noisy, 1.0).unwrap();
        let qualities = [0, 1].map(|column| moments.column(column).noisy().count_range().0.max(0.0) as u32);
        let mut add = |number: &'static str, interval: Interval, truth: f64| {
            shares_held.entry((qualities, number)).or_default().add(interval.contains(truth));
        };
        add("rows", moments.count_interval(0.95), rows);
        add("count", moments.column_count_interval(0, 0.95), rows * shares[0]);
        if let Ok(intervals) = moments.column(0).intervals(Confidence::default()) {
            let intervals = intervals.within_bounds();
            add("mean", intervals.mean(0).unwrap(), 0.9);
            add("variance", intervals.covariance(0, 0).unwrap(), 0.1);
        }
        if let Ok(intervals) = moments.pair(0, 1).unwrap().intervals(Confidence::default()) {
            add("covariance", intervals.within_bounds().covariance(0, 1).unwrap(), 0.05);
        }
    }
    shares_held.values().for_each(|held| assert_share(*held, 0.94..=1.0));
    let many = shares_held.values().filter(|held| held.trials > 150).count();
    assert!(many >= 12, "{shares_held:?}");
}

/// Where variances are near their noise, some correlations are shown. At four levels of noise, over
/// 5,000 releases each, they are shown more than 100 times, and at least 94 % of these intervals
/// contain the truth: 1 % is for terms of second order.
#[test]
fn correlations_hold_where_variances_are_near_their_noise() {
    const RELEASES: usize = 5_000;
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let records = records(600, &mut random);
    let (layout, exact, step) = released(&records, SecondMoment::Full);
    let of_columns = [0, 1].map(|column| of_rows(&records, &[column]).2);
    let correlation = of_rows(&records, &[0, 1]).2 / (of_columns[0] * of_columns[1]).sqrt();
    for level in [8.0, 15.0, 20.0, 25.0] {
        let noise = MomentNoise { count: 3.0, first: level / 3.0, second: level };
        let mut held = Count::default();
        for _ in 0..RELEASES {
            let coordinates = reference::released(layout, &exact, noise, &mut random);
            let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
            let moments = ColumnwiseMoments::new(noisy, step).unwrap();
            let found = moments.correlation_at_random(0, 1, Confidence::default());
            let Some((PairCorrelation::Shown(_), interval)) = found else { continue };
            held.add(interval.contains(correlation));
        }
        assert!(held.trials > 100, "{level}: {held:?}");
        assert_share(held, 0.94..=1.0);
    }
}

#[test]
fn a_projected_matrix_has_no_negative_eigenvalue() {
    // No row has all three columns, and every pair is perfectly anticorrelated.
    let mut records = Vec::new();
    for at in 0..300 {
        let value = if at % 2 == 0 { 0.5 } else { -0.5 };
        let mut record = [value, -value, f64::NAN];
        record.rotate_right(at / 2 % 3);
        records.push(record);
    }
    let (layout, coordinates, step) = released(&records, SecondMoment::Full);
    let noise = MomentNoise { count: 0.1, first: 0.1, second: 0.1 };
    let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
    let moments = ColumnwiseMoments::new(noisy, step).unwrap();
    let least = |projection| {
        let (matrix, _) = moments.covariance_matrix(projection).unwrap();
        Spectrum::of(&matrix).unwrap().values.min()
    };
    assert!(least(Projection::Raw) < -0.1);
    for projection in [Projection::Floor, Projection::Nearest, Projection::Shrink] {
        assert!(least(projection) > 0.0, "{projection}");
    }
}

/// Correlation over the rows that have both columns, by definition.
fn correlation_of_rows(records: &[[f64; 3]], i: usize, j: usize) -> f64 {
    let both = |record: &&[f64; 3]| record[i].is_finite() && record[j].is_finite();
    let rows: Vec<_> = records.iter().filter(both).copied().collect();
    let variance = |column: usize| of_rows(&rows, &[column]).2;
    of_rows(&rows, &[i, j]).2 / (variance(i) * variance(j)).sqrt()
}

/// Values go missing in three ways: by their own size, by their distance from the middle, by
/// another column. Without noise the bounds are theorems, so no record set may leave them.
#[test]
fn correlation_bounds_hold_whichever_values_are_missing() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let uniform = Uniform::new(-1.0, 1.0).unwrap();
    let mut widths = Vec::new();
    for at in 0..400 {
        let (power, shape, share) = (at % 4, at / 4 % 3, f64::from(at % 7) / 14.0);
        let draw = |_| {
            let mut value = |common: f64| {
                let value: f64 = (common + uniform.sample(&mut random)) / 2.0;
                value.signum() * value.abs().powi(power + 1)
            };
            let mut record = [value(0.0), 0.0, 0.0];
            record[1] = value(record[0]);
            let keep = uniform.sample(&mut random) > 2.0 * share - 1.0;
            let lost = match shape {
                0 => record[1] > 0.2,
                1 => record[0].abs() > 0.3,
                _ => record[0] * record[1] > 0.0,
            };
            record[at as usize % 2] = if lost && !keep { f64::NAN } else { record[at as usize % 2] };
            record
        };
        let records: Vec<_> = (0..60).map(draw).collect();
        let (layout, coordinates, step) = released(&records, SecondMoment::Full);
        let noisy = NoisyMoments { layout, coordinates: &coordinates, noise: NO_NOISE };
        let moments = ColumnwiseMoments::new(noisy, step).unwrap();
        let (_, interval) = moments.correlation(0, 1, Confidence::default()).unwrap();
        let truth = correlation_of_rows(&records, 0, 1);
        assert!(
            interval.lower - 1e-4 <= truth && truth <= interval.upper + 1e-4,
            "{at}: {interval:?} {truth}"
        );
        if share == 0.0 {
            assert!(interval.width() < 1e-4, "{interval:?}");
        }
        widths.push(interval.width());
    }
    assert!(widths.iter().any(|width| (0.05..1.5).contains(width)));
}

/// Counts the releases in which means contradict a random cause. Where values are missing at
/// random, chance contradicts it in at most six comparisons at four deviations. Where large values
/// are missing, nearly all releases contradict it.
#[test]
fn means_contradict_a_random_cause_only_where_values_depend_on_it() {
    const RELEASES: usize = 2_000;
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let uniform = Uniform::new(-1.0, 1.0).unwrap();
    let mut contradicted = [Count::default(); 2];
    let noise = MomentNoise { count: 3.0, first: 3.0, second: 3.0 };
    for release in 0..RELEASES {
        for (at_random, contradicted) in contradicted.iter_mut().enumerate() {
            if at_random == 1 && release % 20 > 0 {
                continue;
            }
            let record = |_| {
                let x: f64 = uniform.sample(&mut random);
                let y = (x + uniform.sample(&mut random)) / 2.0;
                let cause = if at_random == 0 { uniform.sample(&mut random) } else { y };
                let z = if uniform.sample(&mut random) > 0.6 { f64::NAN } else { x };
                [x, if cause > 0.2 { f64::NAN } else { y }, z]
            };
            let records: Vec<_> = (0..600).map(record).collect();
            let (layout, exact, step) = released(&records, SecondMoment::Full);
            let coordinates = reference::released(layout, &exact, noise, &mut random);
            let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
            let moments = ColumnwiseMoments::new(noisy, step).unwrap();
            contradicted.add(moments.contradict_random(&[0, 1, 2], 1.0));
        }
    }
    assert_share(contradicted[0], 0.0..=6.0 / 16_000.0);
    assert!(contradicted[1].hits + 5 >= contradicted[1].trials, "{contradicted:?}");
}

/// Complete rows in which one column is nearly a multiple of another, so that noise pushes the
/// quotient beyond 1. Over 3,000 releases, the interval is [−1, 1] only if the quotient is beyond 1
/// by more than its noise, which is rare. At least 94 % of the intervals contain the truth.
#[test]
fn quotients_beyond_one_have_intervals_that_say_something() {
    const RELEASES: usize = 3_000;
    let mut random = ChaCha8Rng::seed_from_u64(29);
    let uniform = Uniform::new(-1.0, 1.0).unwrap();
    let record = |_| {
        let common: f64 = uniform.sample(&mut random);
        [common, 0.98 * common + 0.02 * uniform.sample(&mut random), uniform.sample(&mut random)]
    };
    let records: Vec<[f64; 3]> = (0..600).map(record).collect();
    let (layout, exact, step) = released(&records, SecondMoment::Full);
    let truth = correlation_of_rows(&records, 0, 1);
    let noise = MomentNoise { count: 3.0, first: 4.0, second: 4.0 };
    let (mut held, mut beyond, mut unknown) = (Count::default(), 0, Count::default());
    for _ in 0..RELEASES {
        let coordinates = reference::released(layout, &exact, noise, &mut random);
        let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
        let moments = ColumnwiseMoments::new(noisy, step).unwrap();
        let confidence = Confidence::default();
        let (shown, at_random) = moments.correlation_at_random(0, 1, confidence).unwrap();
        let (_, any) = moments.correlation(0, 1, confidence).unwrap();
        match shown {
            PairCorrelation::Shown(1.0) => {
                beyond += 1;
                assert!(at_random.upper == 1.0 && any.upper == 1.0 && at_random.lower > 0.0);
            }
            PairCorrelation::BeyondOne => {
                beyond += 1;
                assert_eq!((at_random, any), (ALL_CORRELATIONS, ALL_CORRELATIONS));
            }
            _ => (),
        }
        unknown.add(shown == PairCorrelation::BeyondOne);
        held.add(at_random.contains(truth) && any.contains(truth));
    }
    assert!(beyond > RELEASES / 10, "{beyond}");
    // This needs 1.96 deviations of noise.
    assert_share(unknown, 0.0..=0.025);
    assert_share(held, 0.94..=1.0);
}

/// Complete rows, and rows that lack their large values: over 3,000 releases, at least 94 % of the
/// intervals contain the correlation of the pair's rows: 1 % is for terms of second order.
#[test]
fn correlations_hold_under_noise_whichever_values_are_missing() {
    const RELEASES: usize = 3_000;
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let lacking = records(600, &mut random);
    let uniform = Uniform::new(-1.0, 1.0).unwrap();
    let complete: Vec<_> = (0..600)
        .map(|_| {
            let common: f64 = uniform.sample(&mut random);
            [0.0; 3].map(|_| (common + uniform.sample(&mut random)) / 2.0)
        })
        .collect();
    let noise = MomentNoise { count: 3.0, first: 4.0, second: 4.0 };
    for records in [&lacking, &complete] {
        let (layout, exact, step) = released(records, SecondMoment::Full);
        let truth = correlation_of_rows(records, 0, 1);
        let (mut held, mut width) = (Count::default(), 0.0);
        for _ in 0..RELEASES {
            let coordinates = reference::released(layout, &exact, noise, &mut random);
            let noisy = NoisyMoments { layout, coordinates: &coordinates, noise };
            let moments = ColumnwiseMoments::new(noisy, step).unwrap();
            let (_, interval) = moments.correlation(0, 1, Confidence::default()).unwrap();
            held.add(interval.contains(truth));
            width += interval.width() / RELEASES as f64;
        }
        assert_share(held, 0.94..=1.0);
        assert!(width < 1.5, "{width}");
    }
}

#[test]
fn a_column_has_no_more_rows_than_there_are() {
    let records = vec![[0.5, 0.2, f64::NAN]; 40];
    let (layout, mut coordinates, step) = released(&records, SecondMoment::Full);
    // Noise has raised the count of column 0, and lowered that of column 2.
    coordinates[1 + 3] += 9.0 * step;
    coordinates[1 + 5] -= 9.0 * step;
    for count in [0.0, 1.0] {
        let noise = MomentNoise { count, first: 5.0, second: 5.0 };
        let moments =
            ColumnwiseMoments::new(NoisyMoments { layout, coordinates: &coordinates, noise }, step).unwrap();
        for column in 0..3 {
            let interval = moments.column_count_interval(column, 0.95);
            assert!(0.0 <= interval.lower && interval.upper <= 40.0 + 4.0 * count, "{interval:?}");
            assert!(interval.contains([40.0, 40.0, 0.0][column]), "{interval:?}");
        }
    }
}
