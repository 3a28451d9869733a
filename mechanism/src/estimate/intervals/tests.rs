//! Tests the coverage of intervals by simulation, and refusals.

use super::*;
use crate::audit::bound::Count;
use crate::estimate::debias::MomentNoise;
use crate::moments::Layout;
use crate::reference::{assert_share, layout, moments, noise, released, sampled};
use chacha20::ChaCha8Rng;
use proptest::prelude::*;
use rand::SeedableRng;

const LEVELS: [f64; 2] = [0.95, 0.99];

#[derive(Clone, Debug)]
struct CoverageSetting {
    dimension: usize,
    count: usize,
    /// Mean of every column.
    mean: f64,
    /// Variance of every column; neighbouring columns have a correlation of 1/2.
    variance: f64,
    noise: MomentNoise,
    /// Whether every release has fresh records.
    population: bool,
    releases: usize,
}

const ONE: CoverageSetting = CoverageSetting {
    dimension: 1,
    count: 100,
    mean: 0.4,
    variance: 0.1,
    noise: noise(0.0, 5.0, 7.0),
    population: false,
    releases: 6_000,
};

impl CoverageSetting {
    fn layout(&self) -> Layout {
        layout(self.dimension, SecondMoment::Full)
    }

    fn covariance(&self) -> DMatrix<f64> {
        DMatrix::from_fn(self.dimension, self.dimension, |i, j| {
            self.variance * 0.5f64.powi(i.abs_diff(j) as i32)
        })
    }

    fn releases(&self, seed: u64) -> impl Iterator<Item = Vec<f64>> {
        let (layout, mean) = (self.layout(), vec![self.mean; self.dimension]);
        let covariance = self.covariance();
        let factor = nalgebra::Cholesky::new(covariance.clone()).unwrap().unpack();
        let exact = moments(layout, self.count as f64, &mean, covariance.as_slice());
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let setting = self.clone();
        (0..self.releases).map(move |_| match setting.population {
            false => released(layout, &exact, setting.noise, &mut random),
            true => {
                let drawn = sampled(layout, setting.count, &mean, &factor, &mut random);
                released(layout, &drawn, setting.noise, &mut random)
            }
        })
    }

    fn confidence(&self, level: f64, joint: bool) -> Confidence {
        let subject = if self.population {
            IntervalSubject::Population { heaviest: 1.0 }
        } else {
            IntervalSubject::Records
        };
        Confidence { level, joint, subject }
    }

    /// Counts the intervals that contain the truth. The first four counts are for the first mean,
    /// variance, covariance and correlation, where an interval is given. The fifth is for all means
    /// and covariances at once.
    fn coverage(&self, level: f64, seed: u64) -> [Count; 5] {
        let truth = self.covariance();
        let mut counts = [Count::default(); 5];
        for coordinates in self.releases(seed) {
            let moments =
                NoisyMoments { layout: self.layout(), coordinates: &coordinates, noise: self.noise };
            let intervals = moments.intervals(self.confidence(level, false)).unwrap();
            let together = moments.intervals(self.confidence(level, true)).unwrap();
            let mean = |intervals: &MomentIntervals<'_>, i| intervals.mean(i).map(|x| x.contains(self.mean));
            let entry = |intervals: &MomentIntervals<'_>, (i, j)| {
                intervals.covariance(i, j).map(|interval| interval.contains(truth[(i, j)]))
            };
            let found = [
                mean(&intervals, 0),
                entry(&intervals, (0, 0)),
                entry(&intervals, (0, 1)),
                intervals.correlation(0, 1).map(|(_, interval)| interval.contains(0.5)),
                Some(
                    (0..self.dimension).all(|i| mean(&together, i) == Some(true))
                        && self.layout().second_entries().all(|at| entry(&together, at) == Some(true)),
                ),
            ];
            for (count, held) in counts.iter_mut().zip(found) {
                held.into_iter().for_each(|held| count.add(held));
            }
        }
        counts
    }
}

/// Checks that coverage is between level − `under` and level + `over`.
#[track_caller]
fn check(setting: CoverageSetting, under: f64, over: f64) {
    for (seed, level) in LEVELS.into_iter().enumerate() {
        let counts = setting.coverage(level, seed as u64);
        let given = counts.into_iter().filter(|count| count.trials > 0).collect::<Vec<_>>();
        assert_eq!(given.len(), if setting.dimension > 1 { 5 } else { 3 }, "{setting:?}");
        for count in given {
            assert_eq!(count.trials, setting.releases as u64);
            assert_share(count, level - under..=level + over);
        }
    }
}

/// Coverage is near the level for small noise, and above it where noise dominates: no interval lies
/// below a variance that is smaller than z deviations of its noise.
#[test]
fn intervals_for_records_cover_at_their_level() {
    check(CoverageSetting { noise: noise(0.0, 2.0, 2.0), ..ONE }, 0.0, 0.0);
    check(ONE, 0.0, 0.03);
    check(CoverageSetting { noise: noise(5.0, 5.0, 7.0), ..ONE }, 0.0, 0.03);
    check(CoverageSetting { noise: noise(12.0, 9.0, 13.0), ..ONE }, 0.0, 0.05);
    check(CoverageSetting { count: 4, mean: 0.3, noise: noise(0.0, 1.0, 1.4), ..ONE }, 0.0, 0.05);
    check(CoverageSetting { mean: 0.9, noise: noise(0.0, 30.0, 42.0), ..ONE }, 0.0, 0.05);
    check(CoverageSetting { mean: 0.9, noise: noise(0.0, 30.0, 3.0), ..ONE }, 0.0, 0.05);
    check(CoverageSetting { mean: 0.0, noise: noise(0.0, 100.0, 140.0), ..ONE }, 0.0, 0.05);
    check(CoverageSetting { mean: 0.3, noise: noise(0.0, 100.0, 14.0), ..ONE }, 0.0, 0.05);
    let five = CoverageSetting { dimension: 5, releases: 1_000, ..ONE };
    check(CoverageSetting { noise: noise(0.0, 1.0, 1.4), ..five.clone() }, 0.0, 0.01);
    check(CoverageSetting { noise: noise(0.0, 5.0, 7.0), ..five.clone() }, 0.0, 0.05);
    check(CoverageSetting { noise: noise(7.0, 0.5, 0.7), ..five.clone() }, 0.0, 0.03);
    check(CoverageSetting { noise: noise(7.0, 5.0, 7.0), ..five.clone() }, 0.0, 0.05);
    check(CoverageSetting { mean: 0.5, noise: noise(0.0, 30.0, 12.0), ..five }, 0.0, 0.05);
}

/// The plain interval fails only if the noise of the mean exceeds that of the second moment
/// (`ball.rs`). Here most of the variance's noise comes from the mean, and the coverage of the
/// plain interval is 90 % instead of 95 %.
#[test]
fn plain_standard_deviations_cover_below_their_level() {
    let setting = CoverageSetting { mean: 0.9, noise: noise(0.0, 30.0, 3.0), ..ONE };
    let held = setting.releases(4).filter(|coordinates| {
        let moments = NoisyMoments { layout: setting.layout(), coordinates, noise: setting.noise };
        let (mean, covariance) = moments.estimates().unwrap();
        let noise = moments.covariance_noise(covariance[(0, 0)], (mean[0], mean[0]), true);
        (covariance[(0, 0)] - setting.variance).abs() <= 1.96 * noise
    });
    let share = held.count() as f64 / setting.releases as f64;
    assert!(share < 0.93, "{share}");
}

/// With noisy counts the sample size is uncertain, which costs up to half a percent.
#[test]
fn intervals_for_the_population_cover_at_their_level() {
    let one = CoverageSetting { population: true, count: 30, releases: 10_000, ..ONE };
    check(CoverageSetting { noise: noise(0.0, 0.01, 0.01), ..one.clone() }, 0.0, 0.0);
    check(CoverageSetting { noise: noise(0.0, 2.0, 3.0), ..one.clone() }, 0.0, 0.03);
    check(CoverageSetting { noise: noise(2.0, 0.1, 0.1), ..one.clone() }, 0.005, 0.01);
    check(CoverageSetting { noise: noise(0.0, 30.0, 42.0), ..one.clone() }, 0.0, 0.05);
    let five = CoverageSetting { dimension: 5, releases: 1_000, ..one };
    check(CoverageSetting { noise: noise(0.0, 0.01, 0.01), ..five.clone() }, 0.0, 0.01);
    check(CoverageSetting { noise: noise(0.0, 1.0, 1.4), ..five.clone() }, 0.0, 0.05);
    check(CoverageSetting { count: 200, noise: noise(7.0, 3.0, 4.0), ..five }, 0.005, 0.03);
}

#[test]
fn without_noise_records_have_points_for_intervals() {
    let setting = CoverageSetting { dimension: 2, noise: noise(0.0, 0.0, 0.0), releases: 1, ..ONE };
    let coordinates = setting.releases(0).next().unwrap();
    let moments = NoisyMoments { layout: setting.layout(), coordinates: &coordinates, noise: setting.noise };
    let intervals = moments.intervals(Confidence::default()).unwrap();
    let near = |interval: Interval, truth: f64| {
        assert!(interval.width() < 1e-12 && interval.contains(truth), "{interval:?} {truth}");
    };
    near(intervals.mean(1).unwrap(), intervals.mean[1]);
    near(intervals.covariance(0, 1).unwrap(), intervals.covariance[(0, 1)]);
    near(intervals.standard_deviation(0).unwrap(), intervals.covariance[(0, 0)].sqrt());
}

#[test]
fn intervals_need_columns_records_and_moments() {
    let coordinates = [9.0, 1.0, 2.0, 8.0, 4.0];
    let layout = layout(2, SecondMoment::Diagonal);
    let moments = NoisyMoments { layout, coordinates: &coordinates, noise: noise(0.0, 1.0, 1.0) };
    let records = moments.intervals(Confidence::default()).unwrap();
    assert_eq!((records.mean(2), records.covariance(0, 1), records.covariance(2, 2)), (None, None, None));
    assert_eq!(records.correlation(0, 1), None);
    let subject = IntervalSubject::Population { heaviest: 1.0 };
    let population = moments.intervals(Confidence { subject, ..Confidence::default() }).unwrap();
    assert_eq!(population.mean(0), Some(Interval::UNBOUNDED), "nine records");
    assert_eq!(population.covariance(1, 1), Some(Interval { lower: 0.0, upper: f64::INFINITY }));
    // At half the weight per record, there are twice as many records.
    let subject = IntervalSubject::Population { heaviest: 0.5 };
    let many = moments.intervals(Confidence { subject, ..Confidence::default() }).unwrap();
    assert!(many.mean(0).unwrap().upper < 5.0);
}

#[test]
fn invalid_levels_and_weights_are_refused() {
    let moments = NoisyMoments {
        layout: layout(1, SecondMoment::Full),
        coordinates: &[9.0, 1.0, 2.0],
        noise: noise(0.0, 1.0, 1.0),
    };
    let check = |level: f64, heaviest: f64, expected: &str| {
        let subject = IntervalSubject::Population { heaviest };
        let error = moments.intervals(Confidence { level, joint: false, subject }).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(0.0, 1.0, "level is 0,");
    check(1.0, 1.0, "level is 1,");
    check(f64::NAN, 1.0, "level is NaN");
    check(0.9, 0.0, "heaviest weight of a record is 0");
    check(0.9, f64::INFINITY, "heaviest weight of a record is inf");
}

/// Without information no correlation is shown, and its interval is [−1, 1].
#[test]
fn correlations_of_noise_are_not_shown() {
    let noise_alone =
        CoverageSetting { dimension: 2, variance: 1e-6, noise: noise(0.0, 5.0, 7.0), releases: 1_000, ..ONE };
    let whole = noise_alone.releases(3).filter(|coordinates| {
        let moments = NoisyMoments { layout: noise_alone.layout(), coordinates, noise: noise_alone.noise };
        let (shown, interval) = moments.intervals(Confidence::default()).unwrap().correlation(0, 1).unwrap();
        shown.is_none() && interval.width() == 2.0
    });
    // Both variances exceed 3.9 deviations of their noise in fewer than one line of 10⁸.
    assert_eq!(whole.count(), 1_000);
}

/// Coverage among the lines of each quality, for truths on both sides of its thresholds: at least
/// 94.5 %. Coverage above the level is allowed: bounds cut intervals where noise dominates.
#[test]
fn intervals_cover_at_their_level_among_lines_of_each_quality() {
    use crate::estimate::quality::Quality;
    let check = |seed: u64, setting: CoverageSetting, correlation: f64| {
        let truth = setting.covariance();
        let mut counts = [[Count::default(); 5]; 3];
        for coordinates in setting.releases(seed) {
            let moments =
                NoisyMoments { layout: setting.layout(), coordinates: &coordinates, noise: setting.noise };
            let intervals = moments.intervals(Confidence::default()).map(MomentIntervals::within_bounds);
            let quality = match (&intervals, moments.quality()) {
                (Err(_), _) => 0,
                (_, Quality::NoiseDominated) => 1,
                (_, Quality::Good) => 2,
            };
            let mut add = |position: usize, held: bool| counts[quality][position].add(held);
            add(0, moments.count_interval(0.95).contains(setting.count as f64));
            let Ok(intervals) = intervals else { continue };
            add(1, intervals.mean(0).unwrap().contains(setting.mean));
            add(2, intervals.standard_deviation(1).unwrap().contains(setting.variance.sqrt()));
            add(3, intervals.covariance(0, 1).unwrap().contains(truth[(0, 1)]));
            if let (Some(_), interval) = intervals.correlation(0, 1).unwrap() {
                add(4, interval.contains(correlation));
            }
        }
        for count in counts.into_iter().flatten().filter(|count| count.trials > 0) {
            assert_share(count, 0.945..=1.0);
        }
        counts.map(|counts| counts.map(|count| count.trials))
    };
    let noise = noise(10.0, 10.0, 20.0);
    let setting = CoverageSetting { dimension: 2, noise, releases: 2_000, ..ONE };
    let mut seen = [[0; 5]; 3];
    for (seed, (count, mean, variance)) in [
        (35, 0.9, 0.1),
        (45, -0.95, 0.05),
        (340, 0.9, 0.15),
        (370, 0.0, 1.0),
        (30, 0.0, 0.02),
        (2000, 0.5, 0.03),
    ]
    .into_iter()
    .enumerate()
    {
        let found = check(seed as u64, CoverageSetting { count, mean, variance, ..setting.clone() }, 0.5);
        let seen = seen.as_flattened_mut().iter_mut();
        seen.zip(found.as_flattened()).for_each(|(seen, found)| *seen += found);
    }
    let [hidden, noisy, good] = seen;
    assert!(hidden[0] > 1_500 && noisy.iter().chain(&good).all(|&lines| lines > 200), "{seen:?}");
}

/// A plain interval of the mean, among lines whose count exceeds its noise by chance, holds the
/// truth in fewer than four of five.
#[test]
fn plain_intervals_miss_among_lines_that_noise_selects() {
    let noise = noise(14.0, 10.0, 14.0);
    let setting = CoverageSetting { count: 35, mean: 0.95, variance: 0.05, noise, releases: 20_000, ..ONE };
    let (mut plain, mut conditional) = (Count::default(), Count::default());
    for coordinates in setting.releases(9) {
        let moments = NoisyMoments { layout: setting.layout(), coordinates: &coordinates, noise };
        let Ok(intervals) = moments.intervals(Confidence::default()) else { continue };
        plain.add(intervals.roots(coordinates[1], intervals.z).contains(0.95));
        conditional.add(intervals.mean(0).unwrap().contains(0.95));
    }
    assert!(plain.trials > 500 && plain.hits * 5 < plain.trials * 4, "{plain:?}");
    assert_share(conditional, 0.945..=1.0);
}

/// A count just below the threshold of its quality says little about the mean: the interval
/// contains both the estimate and the smaller means of a larger count.
#[test]
fn a_count_near_the_end_of_its_range_has_a_wide_interval() {
    let noise = noise(3.245, 3.75, 6.0);
    let layout = layout(1, SecondMoment::Full);
    let good = NoisyMoments { layout, coordinates: &[1e6, 0.0, 0.0], noise }.count_range().0;
    for distance in [1e-6, 1e-3, 0.02, 0.1] {
        for mean in [-0.58, -0.2, 0.3, 0.9] {
            let count = good - distance;
            let coordinates = [count, mean * count, 0.5 * count];
            let moments = NoisyMoments { layout, coordinates: &coordinates, noise };
            let intervals = moments.intervals(Confidence::default()).unwrap().within_bounds();
            let interval = intervals.mean(0).unwrap();
            let estimate = moments.intervals(Confidence::default()).unwrap().mean[0];
            assert!(interval.contains(estimate), "{interval:?}");
            let is_known = interval.contains(mean * count / (count + 5.0 * noise.count));
            assert!(is_known && interval.width() > 0.05, "{distance} {mean}: {interval:?}");
        }
    }
}

/// Every interval is within the bounds of the columns, and longer than a point.
#[test]
fn intervals_stay_within_bounds() {
    for noise in [noise(5.0, 30.0, 40.0), noise(0.0, 300.0, 400.0)] {
        let setting = CoverageSetting { dimension: 2, mean: 0.8, noise, releases: 300, ..ONE };
        for coordinates in setting.releases(2) {
            let moments = NoisyMoments { layout: setting.layout(), coordinates: &coordinates, noise };
            let Ok(intervals) = moments.intervals(Confidence::default()) else { continue };
            let intervals = intervals.within_bounds();
            let (mean, variance) = (intervals.mean(0).unwrap(), intervals.covariance(0, 0).unwrap());
            assert!(-1.0 <= mean.lower && mean.upper <= 1.0 && mean.width() > 0.0, "{mean:?}");
            assert!(0.0 <= variance.lower && variance.upper <= 1.0 && variance.width() > 0.0, "{variance:?}");
            let covariance = intervals.covariance(0, 1).unwrap();
            assert!(-1.0 <= covariance.lower && covariance.upper <= 1.0, "{covariance:?}");
            let density = moments.density().unwrap().within_bounds();
            let (mean, variance) = (density.mean[0], density.covariance[(0, 0)]);
            // A mean at a bound has a variance too, because noise may have moved it there.
            let nearest = (mean.abs() - density.mean_noise[0]).max(0.0);
            let largest = 1.0 - nearest * nearest + 1e-12;
            assert!(mean.abs() <= 1.0 && 0.0 < variance && variance <= largest, "{mean} {variance}");
            assert!(density.covariance.determinant() >= -1e-12);
        }
    }
}

proptest! {
    /// No input panics, and an interval has its ends in order and contains its estimate.
    #[test]
    fn intervals_are_ordered_and_contain_the_estimate(
        coordinates in proptest::collection::vec(any::<f64>(), 6), levels in any::<[f64; 3]>(),
        level in 0.5..0.9999, joint in any::<bool>(), population in any::<bool>(), tame in any::<bool>(),
    ) {
        let tamed = |x: f64| if tame { x.signum() * x.abs().ln_1p() } else { x };
        let coordinates: Vec<f64> = coordinates.into_iter().map(tamed).collect();
        let [count, first, second] = levels.map(|x| tamed(x).abs());
        let moments = NoisyMoments {
            layout: layout(2, SecondMoment::Full),
            coordinates: &coordinates,
            noise: noise(count / 10.0, first, second),
        };
        let subject =
            if population { IntervalSubject::Population { heaviest: 1.0 } } else { IntervalSubject::Records };
        if let Ok(intervals) = moments.intervals(Confidence { level, joint, subject }) {
            let estimates = [(intervals.mean(1), intervals.mean[1])].into_iter().chain(
                [(0, 0), (0, 1)].map(|(i, j)| {
                    let estimate = intervals.covariance[(i, j)];
                    (intervals.covariance(i, j), if i == j { estimate.max(0.0) } else { estimate })
                }),
            );
            for (interval, estimate) in estimates {
                let interval = interval.expect("a column of two");
                prop_assert!(interval.contains(estimate), "{interval:?} {estimate}");
            }
            if let Some((Some(correlation), interval)) = intervals.correlation(0, 1) {
                prop_assert!(interval.contains(correlation) && (-1.0..=1.0).contains(&interval.upper));
            }
        }
    }
}
