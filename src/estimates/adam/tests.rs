//! Adam: its own recursion on exact sums, the stated noise on drawn releases, the floor, columns
//! with missing values, parameters.

use super::*;
use hushflow_mechanism::estimate::density::Density;
use hushflow_mechanism::moments::Layout;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::view::SecondMomentSource;
use nalgebra::{DMatrix, DVector};

use crate::estimates::{ESTIMATORS, EstimateView};

const DIAGONAL: Layout = Layout::new(1, SecondMoment::Diagonal);
const EXACT: MomentNoise = MomentNoise { count: 0.0, first: 0.0, second: 0.0 };

fn adam(decays: [f64; 2], stability: f64, floor: f64) -> Adam {
    Adam { decays: decays.map(|decay| Decay::new(decay).unwrap()), stability, floor }
}

fn log(second_moments: SecondMoment) -> LogFacts<'static> {
    LogFacts::plain(&["x"], second_moments)
}

fn scaled(columns: &[(f64, f64)], indicator_step: Option<f64>) -> Arc<ScaledView> {
    let view = EstimateView::new(Workload::Prefix, &log(SecondMoment::Diagonal));
    let (centres, half_widths) = columns.iter().copied().unzip();
    let key_scales = vec![ColumnScales { centres, half_widths }];
    let columns = ["x", "y"].map(String::from)[..columns.len()].to_vec();
    Arc::new(ScaledView {
        view,
        columns,
        key_scales,
        indicator_step,
        keyed_bounds: Vec::new(),
        histograms: Vec::new(),
        bins_every_record: true,
    })
}

fn moments(layout: Layout, coordinates: Vec<f64>, noise: MomentNoise) -> Moments {
    let (epoch, key, source) = (1, 0, SecondMomentSource::Released);
    Moments { epoch, key, coordinates, layout, noise, source, sent_noise: 0.0, bin_noise: 0.0 }
}

fn sums([count, first, second]: [f64; 3], noise: MomentNoise) -> ColumnSums {
    ColumnSums { count, first, second, noise }
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{found}, not {expected}");
}

/// The steps of Adam on the mean and the mean square of the records of each epoch.
#[test]
fn exact_sums_of_equal_epochs_give_the_steps_of_adam() {
    let (adam, (centre, half_width)) = (adam([0.9, 0.99], 1e-3, 1.0), (3.0, 5.0));
    let [beta, gamma] = adam.decays.map(Decay::get);
    let (mut m, mut v) = (0.0, 0.0);
    let mut epochs = Vec::new();
    for t in 1..=12_u32 {
        let records = [1, 2, 3].map(|i| f64::from(t * i * 7 % 10) - 2.0);
        let mean = |f: fn(f64) -> f64| records.map(f).iter().sum::<f64>() / 3.0;
        m = beta * m + (1.0 - beta) * mean(|x| x);
        v = gamma * v + (1.0 - gamma) * mean(|x| x * x);
        let corrected = (m / (1.0 - beta.powf(t.into())), v / (1.0 - gamma.powf(t.into())));

        epochs.push(records.map(|x| (x - centre) / half_width));
        let weighted = |decay| {
            let terms = (1..).zip(&epochs).map(|(epoch, records)| {
                let weight = Workload::Adam(decay).coefficient(t.into(), epoch);
                [3.0, records.iter().sum(), records.iter().map(|z| z * z).sum()].map(|sum: f64| weight * sum)
            });
            let total = terms.reduce(|one, other| [one[0] + other[0], one[1] + other[1], one[2] + other[2]]);
            sums(total.unwrap(), EXACT)
        };
        let [one, two] = adam.decays.map(weighted);
        let found = adam.column((one, two), 0.5, (centre, half_width)).unwrap();
        close(found.first.0, corrected.0);
        close(found.second.0, corrected.1);
        close(found.update.0, corrected.0 / (corrected.1.sqrt() + 1e-3));
        assert_eq!((found.first.1, found.second.1, found.update.1), (0.0, 0.0, 0.0));
    }
}

/// Over 8,000 releases the mean of m and v is within 5.5 standard errors of the truth. The share of
/// values within 1.96 stated deviations of the truth is within 0.0135 of 95 %, 5.5 standard
/// deviations. The deviations are within 6 % of the stated ones, 7.5 standard errors. Any of these
/// checks fails by chance with a probability below 10⁻⁶.
fn check_stated(truth: AdamColumn, mut draw: impl FnMut() -> AdamColumn) {
    let trials = 8_000;
    let truth = [truth.first.0, truth.second.0, truth.update.0];
    let (mut held, mut total, mut squares, mut stated) = ([0.0; 3], [0.0; 3], [0.0; 3], [0.0; 3]);
    for _ in 0..trials {
        let found = draw();
        for (at, (value, level)) in [found.first, found.second, found.update].into_iter().enumerate() {
            let error = value - truth[at];
            held[at] += f64::from(u8::from(error.abs() <= 1.96 * level));
            total[at] += error;
            squares[at] += error * error;
            stated[at] += level;
        }
    }
    let trials = f64::from(trials);
    for at in 0..3 {
        let (share, mean) = (held[at] / trials, total[at] / trials);
        let deviation = (squares[at] / trials - mean * mean).sqrt();
        assert!((share - 0.95).abs() < 0.0135, "{at}: {share}");
        // The update is a quotient, whose bias is of second order.
        assert!(at == 2 || mean.abs() < 5.5 * deviation / trials.sqrt(), "{at}: {mean} ± {deviation}");
        let level = stated[at] / trials;
        assert!((level / deviation - 1.0).abs() < 0.06, "{at}: stated {level}, found {deviation}");
    }
}

/// Draws numbers of both averages with these deviations. Numbers that `are_paired` are of the same
/// sum, and their noise is correlated.
fn draws(
    exact: &[f64],
    levels: &[f64],
    correlation: f64,
    are_paired: impl Fn(usize, usize) -> bool,
    seed: u64,
) -> impl FnMut() -> DVector<f64> {
    let covariance = DMatrix::from_fn(levels.len(), levels.len(), |i, j| match i == j {
        true => levels[i] * levels[j],
        false if are_paired(i.min(j), i.max(j)) => correlation * levels[i] * levels[j],
        false => 0.0,
    });
    let sampler = Density::known(DVector::from_row_slice(exact), covariance).unwrap().sampler().unwrap();
    let mut random = NoiseSource::Seeded(seed).generator(1, 0).unwrap();
    move || sampler.draw(&mut random)
}

fn check_noise(noise: [MomentNoise; 2], correlation: f64, scale: (f64, f64), seed: u64) {
    let adam = adam([0.9, 0.999], 1e-8, 1.0);
    let [under_one, under_two] = [[1000.0, 300.0, 200.0], [800.0, 280.0, 190.0]];
    let truth = adam.column((sums(under_one, EXACT), sums(under_two, EXACT)), 0.0, scale).unwrap();
    let [one, two] = noise;
    let levels = [one.count, one.first, two.count, two.first, two.second];
    let exact = [under_one[0], under_one[1], under_two[0], under_two[1], under_two[2]];
    let mut draw = draws(&exact, &levels, correlation, |i, j| j == i + 2 && j < 4, seed);
    check_stated(truth, || {
        let drawn = draw();
        let pair = (sums([drawn[0], drawn[1], 0.0], one), sums([drawn[2], drawn[3], drawn[4]], two));
        adam.column(pair, correlation, scale).unwrap()
    });
}

#[test]
fn the_noise_is_as_stated() {
    let noise = |count, first, second| MomentNoise { count, first, second };
    check_noise([noise(0.001, 20.0, 28.0), noise(0.001, 4.0, 6.0)], 0.2, (0.0, 1.0), 1);
    check_noise([noise(10.0, 20.0, 28.0), noise(8.0, 15.0, 20.0)], 0.9, (10.0, 2.0), 2);
    check_noise([noise(20.0, 10.0, 28.0), noise(20.0, 20.0, 10.0)], 0.5, (-1.0, 4.0), 3);
}

/// By column the counts are half the released count plus the sum of the indicators, whose noise is
/// larger and shared by both averages too.
#[test]
fn the_noise_is_as_stated_where_values_are_missing() {
    let adam = adam([0.9, 0.999], 1e-8, 1.0);
    let (step, scale) = (0.5, (2.0, 3.0));
    let scaled = scaled(&[scale], Some(step));
    let layout = Layout { dimension: 2, ..DIAGONAL };
    let [one, two] = [[10.0, 8.0, 12.0], [6.0, 5.0, 9.0]].map(|[count, first, second]| MomentNoise {
        count,
        first,
        second,
    });
    // The count, Σy, Σe, Σy² and Σe² of 800 rows of 1000 with the column, and of 650 of 900.
    let under_one = [1000.0, 300.0, 300.0 * step, 200.0, 250.0 * step * step];
    let under_two = [900.0, 280.0, 200.0 * step, 190.0, 225.0 * step * step];
    let column = |under_one: [f64; 5], under_two: [f64; 5], levels: [MomentNoise; 2], correlation| {
        let [one, two] = [(under_one, levels[0]), (under_two, levels[1])]
            .map(|(coordinates, noise)| column_sums(&moments(layout, coordinates.into(), noise), &scaled));
        let pair = one.into_iter().zip(two).next().unwrap();
        adam.column(pair, correlation, scale).unwrap()
    };
    let truth = column(under_one, under_two, [EXACT; 2], 0.0);
    let levels = [one.count, one.first, one.first, two.count, two.first, two.first, two.second];
    let exact =
        [under_one[0], under_one[1], under_one[2], under_two[0], under_two[1], under_two[2], under_two[3]];
    let correlation = 0.6;
    let mut draw = draws(&exact, &levels, correlation, |i, j| j == i + 3 && j < 6, 4);
    check_stated(truth, || {
        let drawn = draw();
        let released_one = [drawn[0], drawn[1], drawn[2], under_one[3], under_one[4]];
        let released_two = [drawn[3], drawn[4], drawn[5], drawn[6], under_two[4]];
        column(released_one, released_two, [one, two], correlation)
    });
}

#[test]
fn the_floor_of_v_is_in_deviations_of_its_noise() {
    let noise = MomentNoise { count: 0.0, first: 4.0, second: 6.0 };
    let check = |second: f64, kappa: f64, floored: f64, quality: &str| {
        let (adam, scaled) = (adam([0.9, 0.999], 0.01, kappa), scaled(&[(0.0, 2.0)], None));
        let second = moments(DIAGONAL, vec![100.0, 20.0, second], noise);
        let second = SecondAverage { moments: second, correlation: 0.5 };
        let found = adam.estimate(moments(DIAGONAL, vec![50.0, 10.0, 0.0], noise), second, &scaled);
        let mut line = Map::new();
        found.json(&mut line);
        let number = |name: &str| line[name]["x"].as_f64().unwrap();
        close(number("second_moment_noise"), 4.0 * 6.0 / 100.0);
        close(number("floored_second_moment"), floored);
        close(number("update"), 0.4 / (floored.sqrt() + 0.01));
        if floored > number("second_moment") {
            close(number("update_noise"), 2.0 * 4.0 / 50.0 / (floored.sqrt() + 0.01));
        }
        assert_eq!((found.quality(), &line["quality"]), (Some(quality), &quality.into()));
    };
    check(-10.0, 1.0, 0.24, "noise-dominated");
    check(-10.0, 2.0, 0.48, "noise-dominated");
    check(-10.0, 0.0, 0.0, "noise-dominated");
    check(5.0, 1.0, 0.24, "noise-dominated");
    check(50.0, 1.0, 2.0, "good");
}

#[test]
fn a_count_that_noise_hides_gives_no_numbers() {
    let noise = MomentNoise { count: 3.0, first: 4.0, second: 6.0 };
    let (adam, scaled) = (adam([0.9, 0.999], 1e-8, 1.0), scaled(&[(0.0, 2.0)], None));
    let estimate = |counts: [f64; 2]| {
        let [one, two] = counts.map(|count| moments(DIAGONAL, vec![count, 1.0, 1.0], noise));
        adam.estimate(one, SecondAverage { moments: two, correlation: 0.0 }, &scaled)
    };
    for counts in [[12.0, 20.0], [20.0, -5.0]] {
        let found = estimate(counts);
        let mut line = Map::new();
        found.json(&mut line);
        assert!(line["first_moment"]["x"].is_null() && line["update_noise"]["x"].is_null());
        assert_eq!((found.quality(), found.fields().len()), (Some("too-few-records"), 7 + 1));
        assert!(found.cells().unwrap_err().contains("count"));
    }
    let found = estimate([20.0, 20.0]);
    assert_eq!(found.cells().unwrap().len(), found.titles().len());
    let huge = moments(DIAGONAL, vec![1e300, f64::MAX, f64::MAX], EXACT);
    let second = SecondAverage { moments: huge.clone(), correlation: 1.0 };
    let found = adam.estimate(huge, second, &self::scaled(&[(0.0, 1e200)], None));
    assert_eq!(found.quality(), Some("out-of-range"));
}

/// The rows (0.4, none) and (0.6, 0.1), and then (0.6, 0.1) alone.
#[test]
fn each_column_is_averaged_over_the_rows_that_have_it() {
    let layout = Layout { dimension: 4, ..DIAGONAL };
    let both = moments(layout, vec![2.0, 1.0, 0.1, 1.0, 0.0, 0.52, 0.01, 0.5, 0.5], EXACT);
    let last = moments(layout, vec![1.0, 0.6, 0.1, 0.5, 0.5, 0.36, 0.01, 0.25, 0.25], EXACT);
    let scaled = scaled(&[(0.0, 1.0); 2], Some(1.0));
    let second = SecondAverage { moments: last, correlation: 0.0 };
    let found = adam([0.9, 0.999], 1e-8, 1.0).estimate(both, second, &scaled);
    let mut line = Map::new();
    found.json(&mut line);
    for (name, column, expected) in [
        ("first_moment", "x", 0.5),
        ("first_moment", "y", 0.1),
        ("second_moment", "x", 0.36),
        ("second_moment", "y", 0.01),
    ] {
        close(line[name][column].as_f64().unwrap(), expected);
    }
}

#[test]
fn numbers_are_checked_and_others_have_defaults() {
    let kind = ESTIMATORS.iter().find(|kind| kind.name == NAME).unwrap();
    let check = |numbers: &[(&str, f64)], second_moments, expected: Result<Adam, &str>| {
        let texts: Vec<_> = numbers.iter().map(|&(name, number)| (name, number.to_string())).collect();
        let found = kind.from_texts(&texts, &log(second_moments)).map(|adam| format!("{adam:?}"));
        let expected = expected.map(|adam| format!("{adam:?}"));
        assert_eq!(found.as_ref().map_err(String::as_str), expected.as_ref().map_err(|error| *error));
    };
    let diagonal = SecondMoment::Diagonal;
    check(&[], diagonal, Ok(adam([0.9, 0.999], 1e-8, 1.0)));
    check(&[("beta2", 0.5), ("floor", 0.0)], SecondMoment::Full, Ok(adam([0.9, 0.5], 1e-8, 0.0)));
    check(&[("beta1", 1.0)], diagonal, Err("beta1: found 1.0, expected a number above 0 and below 1"));
    check(&[("stability", 0.0)], diagonal, Err("stability: found 0.0, expected a number above 0"));
    check(&[("floor", f64::NAN)], diagonal, Err("floor: found nan, expected a number at least 0"));
    let lacks = "this log has no second moments of records, so there is no covariance and no square: \
        choose --view moments";
    check(&[], SecondMoment::None, Err(lacks));
    assert_eq!(EstimatorKind::default_of(&log(SecondMoment::None)).name, "moments");
}
