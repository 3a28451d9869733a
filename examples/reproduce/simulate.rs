//! Runs the release path on streams with known moments and measures its errors.
//!
//! Encoder, exact noise, decoder and view are those of a real run; only the noise is seeded. Every
//! key is a separate run with one record in each epoch. So the errors of keys are independent, and
//! their spread gives the standard error of their mean.
//!
//! *Many dimensions.* All coordinates are treated alike. For records with equal entries, an error
//! summed over all entries follows from one diagonal and one off-diagonal entry. So two of the d
//! coordinates are simulated and represent all of them.

use hushflow::mechanism::mechanism::MatrixMechanism;
use hushflow::mechanism::moments::{Layout, RECORD_BITS};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::mechanism::release::{ReleaseShard, Shards};
use hushflow::mechanism::view::{Moments, SquareBias, View};
use hushflow::mechanism::workload::{Workload, WorkloadState};

use super::figures::ReproductionError;

/// The quantity to compare with the truth, besides first moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Weighted sums of squares.
    SecondMoments,
    /// The covariance `Ŝ − μ̂μ̂ᵀ`, plus the variance of the noise of μ̂. The workload is an
    /// average.
    Covariance,
}

/// A stream with one record per epoch.
pub(crate) struct SimulatedStream<'a> {
    /// The mechanism that makes it private.
    pub(crate) mechanism: &'a MatrixMechanism,
    /// The workload to estimate.
    pub(crate) workload: &'a Workload,
    /// Whether squares of noisy sums, if the method uses them, keep their bias.
    pub(crate) square_bias: SquareBias,
    /// d; the mechanism runs the first coordinates only.
    pub(crate) dimension: usize,
    /// Records in units of ζ/2²⁰, one per epoch. If the mechanism has fewer coordinates than d,
    /// they are equal.
    pub(crate) records: &'a [Vec<i64>],
}

/// A mean over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunMean {
    /// Mean over runs.
    pub(crate) mean: f64,
    /// Standard error of the mean.
    pub(crate) standard_error: f64,
}

impl RunMean {
    /// Returns the estimate from independent numbers.
    pub(crate) fn of(values: &[f64]) -> Self {
        let (mean, deviation) = mean_and_deviation(values);
        Self { mean, standard_error: deviation / (values.len() as f64).sqrt() }
    }

    /// Returns the distance from an expected value, in standard errors.
    pub(crate) fn distance(&self, expected: f64) -> f64 {
        (self.mean - expected) / self.standard_error
    }
}

/// Mean and standard deviation of a sample.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

/// Squared errors, summed over steps and entries: means over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SquaredErrors {
    /// Errors of first moments.
    pub(crate) first: RunMean,
    /// Errors of second moments or covariances.
    pub(crate) second: RunMean,
}

/// Returns `sign·ζ·(1, …, 1)/√d` for every sign, in the first `coordinates` of `dimension`, rounded
/// to the grid towards 0.
pub(crate) fn equal_entries(
    dimension: usize,
    coordinates: usize,
    signs: impl Iterator<Item = bool>,
) -> Vec<Vec<i64>> {
    let entry = (f64::from(1 << RECORD_BITS) / (dimension as f64).sqrt()).floor() as i64;
    signs.map(|positive| vec![if positive { entry } else { -entry }; coordinates]).collect()
}

impl SimulatedStream<'_> {
    /// Releases the stream for `runs` keys, with noise of this seed, and returns the errors of the
    /// view.
    ///
    /// # Errors
    /// [`ReproductionError`] if mechanism and records do not fit.
    pub(crate) fn run(
        &self,
        quantity: Quantity,
        runs: u32,
        seed: u64,
    ) -> Result<SquaredErrors, ReproductionError> {
        let steps = self.records.len() as u64;
        let view = View::new(self.mechanism, self.workload, runs, steps);
        let mut view = view.with_square_bias(self.square_bias);
        let mut truth = ExactMoments::new(self, quantity);
        let mut errors = vec![(0.0, 0.0); runs as usize];
        let mut records = self.records.iter();
        let sums = |_: u64, sums: &mut [i128]| {
            let one = records.next().map_or_else(Vec::new, |record| moments(self.mechanism.layout(), record));
            sums.chunks_exact_mut(one.len().max(1)).for_each(|key| key.copy_from_slice(&one));
        };
        release(self.mechanism, runs, steps, seed, sums, |epoch, _, values| {
            truth.push(&self.records[epoch as usize - 1])?;
            for (moments, errors) in view.push(values)?.zip(&mut errors) {
                let (first, second) = truth.squared_errors(&moments);
                *errors = (errors.0 + first, errors.1 + second);
            }
            Ok(())
        })?;
        let (first, second): (Vec<f64>, Vec<f64>) = errors.into_iter().unzip();
        Ok(SquaredErrors { first: RunMean::of(&first), second: RunMean::of(&second) })
    }
}

/// Releases `keys` keys epoch after epoch: `sums` fills in the sums of all keys, and `see` receives
/// the sums and the released values.
///
/// # Errors
/// [`ReproductionError`] if a release or `see` fails.
pub(crate) fn release(
    mechanism: &MatrixMechanism,
    keys: u32,
    steps: u64,
    seed: u64,
    mut sums: impl FnMut(u64, &mut [i128]),
    mut see: impl FnMut(u64, &[i128], &[i128]) -> Result<(), ReproductionError>,
) -> Result<(), ReproductionError> {
    let shards = Shards::new(keys, mechanism.layout(), 1);
    let mut shard = ReleaseShard::new(0, shards, mechanism, NoiseSource::Seeded(seed));
    let mut of_epoch = vec![0; shards.coordinates() as usize];
    for epoch in 1..=steps {
        sums(epoch, &mut of_epoch);
        see(epoch, &of_epoch, &shard.release(epoch, &of_epoch)?)?;
    }
    Ok(())
}

/// Count, first and second moments of one record, as integers.
pub(crate) fn moments(layout: Layout, record: &[i64]) -> Vec<i128> {
    let first = record.iter().map(|&x| i128::from(x));
    let second = layout.second_entries().map(|(i, j)| i128::from(record[i]) * i128::from(record[j]));
    std::iter::once(1).chain(first).chain(second).collect()
}

/// Exact moments, step by step.
struct ExactMoments {
    layout: Layout,
    quantity: Quantity,
    dimension: usize,
    unit: f64,
    state: WorkloadState,
    exact: Vec<f64>,
}

impl ExactMoments {
    fn new(stream: &SimulatedStream, quantity: Quantity) -> Self {
        let parameters = stream.mechanism.moments().parameters();
        let layout = parameters.layout;
        ExactMoments {
            layout,
            quantity,
            dimension: stream.dimension,
            unit: parameters.clip_norm / f64::from(1 << RECORD_BITS),
            state: stream.workload.state(layout.coordinates()),
            exact: Vec::new(),
        }
    }

    fn push(&mut self, record: &[i64]) -> Result<(), ReproductionError> {
        let degree =
            |coordinate: usize| (coordinate >= 1) as i32 + (coordinate > self.layout.dimension) as i32;
        let real = moments(self.layout, record).into_iter().enumerate();
        let real: Vec<f64> =
            real.map(|(coordinate, integer)| integer as f64 * self.unit.powi(degree(coordinate))).collect();
        self.exact = self.state.push(&real)?.to_vec();
        Ok(())
    }

    /// Squared distance of first and second moments, over all d and all d² entries (d of a
    /// diagonal).
    fn squared_errors(&self, found: &Moments) -> (f64, f64) {
        let exact = &self.exact[self.layout.first()];
        let first: f64 = found.first().iter().zip(exact).map(|(found, exact)| (found - exact).powi(2)).sum();
        let (d, run) = (self.dimension as f64, self.layout.dimension as f64);
        let noise = found.noise.first.powi(2);
        let entries =
            self.layout.second_entries().zip(found.second().iter().zip(&self.exact[self.layout.second()]));
        let second = entries.map(|((i, j), (second, truth))| {
            let error = match self.quantity {
                Quantity::SecondMoments => second - truth,
                Quantity::Covariance => {
                    let bias = if i == j { noise } else { 0.0 };
                    second - found.first()[i] * found.first()[j] + bias - (truth - exact[i] * exact[j])
                }
            };
            // Number of entries that this one represents.
            let weight = if i == j { d / run } else { 2.0 * d * (d - 1.0) / (run * (run - 1.0)) };
            weight * error * error
        });
        (first * d / run, second.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow::mechanism::error::{
        ExpectedError, InPlaceRelease, NoiseDeviations, PostProcessing, SecondEntries,
        joint_covariance_error, post_processed_covariance_error,
    };
    use hushflow::mechanism::mechanism::{Method, MomentParameters};
    use hushflow::mechanism::moments::SecondMoment;
    use hushflow::mechanism::sensitivity::Neighbours;
    use hushflow::mechanism::strategy::build;

    /// Maximum distance of a mean error, in standard errors: a correct mechanism exceeds it with a
    /// probability below 10⁻⁶. The normal law has 4·10⁻⁸ beyond it, and the skewness of sums of
    /// squares (at most 4, over 3000 runs or more) makes that at most eight times as much.
    const FAR: f64 = 5.5;

    /// A stream and its mechanism.
    struct ReleaseSetup {
        workload: &'static str,
        strategy: &'static str,
        steps: u64,
        dimension: usize,
        clip_norm: f64,
        noise_multiplier: f64,
        second: SecondMoment,
    }

    impl ReleaseSetup {
        fn mechanism(&self, method: Method, second_moment_weight: Option<f64>) -> MatrixMechanism {
            let strategy = build(self.strategy, &self.workload(), Some(self.steps)).unwrap();
            let parameters = MomentParameters {
                method,
                layout: Layout::new(self.dimension, self.second),
                neighbours: Neighbours::ReplaceOneInPlace,
                clip_norm: self.clip_norm,
                noise_multiplier: self.noise_multiplier,
                second_moment_weight,
                count_weight: None,
                bin_weight: None,
            };
            MatrixMechanism::new(parameters, strategy).unwrap()
        }

        fn workload(&self) -> Workload {
            self.workload.parse().unwrap()
        }

        fn entries(&self) -> SecondEntries {
            if self.second == SecondMoment::Full { SecondEntries::Symmetric } else { SecondEntries::Diagonal }
        }

        /// Records of norm at most ζ without any symmetry.
        fn records(&self) -> Vec<Vec<i64>> {
            let entry = |t: u64, j: usize| ((t * 37 + j as u64 * 101 + t * t * 11) % 19) as f64 - 8.0;
            let record = |t: u64| {
                let entries: Vec<f64> = (0..self.dimension).map(|j| entry(t, j)).collect();
                let norm = entries.iter().map(|x| x * x).sum::<f64>().sqrt().max(1.0);
                entries.iter().map(|x| (x / norm * 2_f64.powi(20)) as i64).collect()
            };
            (0..self.steps).map(record).collect()
        }

        fn run(
            &self,
            mechanism: &MatrixMechanism,
            square_bias: SquareBias,
            quantity: Quantity,
            runs: u32,
        ) -> SquaredErrors {
            let (workload, records) = (self.workload(), self.records());
            let stream = SimulatedStream {
                mechanism,
                workload: &workload,
                square_bias,
                dimension: self.dimension,
                records: &records,
            };
            stream.run(quantity, runs, 7).unwrap()
        }

        /// Compares all methods with their closed forms.
        fn check(&self, runs: u32) {
            let strategy = build(self.strategy, &self.workload(), Some(self.steps)).unwrap();
            let error = ExpectedError::new(&self.workload(), strategy.as_ref(), self.steps).unwrap();
            let release = InPlaceRelease::new(self.dimension, self.clip_norm, self.noise_multiplier)
                .with_column_norm(error.sensitivity);
            let near = |what: &str, found: RunMean, expected: f64| {
                let distance = found.distance(expected);
                let Self { workload, strategy, dimension, .. } = self;
                assert!(
                    distance.abs() < FAR,
                    "{what} of {workload}, {strategy}, d = {dimension}: {found:?}, expected {expected}"
                );
            };
            let additive = |what: &str, method, weight: Option<f64>, noise: NoiseDeviations| {
                let mechanism = self.mechanism(method, weight);
                let found = self.run(&mechanism, SquareBias::Removed, Quantity::SecondMoments, runs);
                near(what, found.first, noise.first_moment_error(self.dimension, error.frobenius));
                near(
                    what,
                    found.second,
                    noise.second_moment_error(self.entries(), self.dimension, error.frobenius),
                );
            };
            let weight = 3.0 / self.clip_norm.powi(2);
            additive("jme", Method::Jme, None, release.joint());
            additive("λ-jme", Method::Jme, Some(weight), release.weighted_joint(weight));
            additive("ime", Method::Ime { first_moment_share: 0.3 }, None, release.independent(0.3));
            additive("cs", Method::Cs, Some(weight), release.concatenated(weight));
            self.check_post_processing(release.post_processed(), runs, &near);
        }

        fn check_post_processing(&self, deviation: f64, runs: u32, near: &dyn Fn(&str, RunMean, f64)) {
            let mechanism = self.mechanism(Method::Pp, None);
            let sums =
                PostProcessing::new(&self.workload(), mechanism.strategies().first(), self.steps).unwrap();
            let (records, unit) = (self.records(), self.clip_norm / 2_f64.powi(20));
            let product = |i: usize, j: usize| -> f64 {
                records[i].iter().zip(&records[j]).map(|(a, b)| *a as f64 * *b as f64 * unit * unit).sum()
            };
            let expected = sums.error(self.entries(), self.dimension, self.clip_norm, deviation);
            let linear =
                PostProcessing::linear(self.entries(), self.dimension, deviation, sums.of_records(product));
            let (upper, rounding) = (expected.linear.upper, 1e-12);
            assert!(linear <= upper * (1.0 + rounding), "{linear} is above {upper}: {}", self.workload);
            let second_error = |bias| self.run(&mechanism, bias, Quantity::SecondMoments, runs).second;
            near("debiased pp", second_error(SquareBias::Removed), expected.quadratic + linear);
            near("pp", second_error(SquareBias::Kept), expected.quadratic + linear + expected.bias);
        }
    }

    const BASE: ReleaseSetup = ReleaseSetup {
        workload: "prefix",
        strategy: "square-root",
        steps: 8,
        dimension: 2,
        clip_norm: 2.0,
        noise_multiplier: 0.4,
        second: SecondMoment::Full,
    };

    #[test]
    fn errors_of_runs_match_the_closed_forms() {
        BASE.check(4000);
        ReleaseSetup {
            workload: "average",
            strategy: "identity",
            dimension: 3,
            clip_norm: 0.5,
            noise_multiplier: 1.5,
            ..BASE
        }
        .check(4000);
        ReleaseSetup { workload: "exponential:0.8", dimension: 1, ..BASE }.check(4000);
        let diagonal = SecondMoment::Diagonal;
        ReleaseSetup {
            workload: "adam:0.9",
            strategy: "banded-inverse-square-root:2",
            second: diagonal,
            dimension: 4,
            ..BASE
        }
        .check(4000);
        ReleaseSetup { workload: "window:3", strategy: "normalized-square-root", second: diagonal, ..BASE }
            .check(4000);
    }

    /// 432 settings, one thread per workload. Takes minutes of processor time, so it runs only if
    /// `HUSHFLOW_LONG_TESTS` is set.
    #[test]
    fn errors_on_a_wide_grid_match_the_closed_forms() {
        if std::env::var_os("HUSHFLOW_LONG_TESTS").is_none() {
            return;
        }
        let workloads = ["prefix", "average", "exponential:0.9", "window:5", "momentum:0.7", "adam:0.95"];
        std::thread::scope(|scope| {
            for workload in workloads {
                scope.spawn(move || check_grid(workload));
            }
        });
    }

    fn check_grid(workload: &'static str) {
        for strategy in ["identity", "square-root", "banded-inverse-square-root:3", "tree-optimal-decoder"] {
            for (i, (dimension, clip_norm)) in [(1, 3.0), (2, 1.0), (5, 0.2)].into_iter().enumerate() {
                for (j, noise_multiplier) in [0.1, 0.5, 4.0].into_iter().enumerate() {
                    for second in [SecondMoment::Full, SecondMoment::Diagonal] {
                        let steps = [6, 17, 40][(i + j) % 3];
                        let setting = ReleaseSetup {
                            workload,
                            strategy,
                            steps,
                            dimension,
                            clip_norm,
                            noise_multiplier,
                            second,
                        };
                        setting.check(3000);
                    }
                }
            }
        }
    }

    /// Two coordinates represent all of them.
    #[test]
    fn two_equal_coordinates_represent_all() {
        let full = ReleaseSetup { dimension: 6, strategy: "identity", ..BASE };
        let signs = || (0..full.steps).map(|t| t % 3 == 0);
        let found = |run: usize| {
            let mechanism = ReleaseSetup { dimension: run, ..full }.mechanism(Method::Pp, None);
            let (workload, records) = (full.workload(), equal_entries(6, run, signs()));
            let square_bias = SquareBias::Removed;
            let stream = SimulatedStream {
                mechanism: &mechanism,
                workload: &workload,
                square_bias,
                dimension: 6,
                records: &records,
            };
            stream.run(Quantity::SecondMoments, 4000, 3).unwrap()
        };
        let (all, two) = (found(6), found(2));
        for (all, two) in [(all.first, two.first), (all.second, two.second)] {
            let error = all.standard_error.hypot(two.standard_error);
            assert!((all.mean - two.mean).abs() < FAR * error, "{all:?} {two:?}");
        }
    }

    /// Theorems 4.1 and 4.2, for equal records and for records that change their sign.
    #[test]
    fn covariance_errors_match_the_theorems() {
        let (steps, d, zeta, sigma) = (12, 3, 2.0, 0.4);
        let setting = ReleaseSetup {
            workload: "average",
            strategy: "identity",
            steps,
            dimension: d,
            clip_norm: zeta,
            noise_multiplier: sigma,
            ..BASE
        };
        let workload = setting.workload();
        let run = |method, alternating: bool| {
            let mechanism = setting.mechanism(method, None);
            let records = equal_entries(d, d, (0..steps).map(|t| !alternating || t % 2 == 0));
            let square_bias = SquareBias::Removed;
            let stream = SimulatedStream {
                mechanism: &mechanism,
                workload: &workload,
                square_bias,
                dimension: d,
                records: &records,
            };
            stream.run(Quantity::Covariance, 4000, 11).unwrap().second
        };
        let release = InPlaceRelease::new(d, zeta, sigma);
        let rows = (1..=steps).map(|t| (t as f64).powf(-0.5));
        let joint = joint_covariance_error(SecondEntries::Symmetric, d, zeta, release.joint(), rows);
        assert!(run(Method::Jme, false).distance(joint.debiased).abs() < FAR);
        let squared = post_processed_covariance_error(
            SecondEntries::Symmetric,
            d,
            zeta,
            release.post_processed(),
            steps,
        );
        // The mean is 0 at even steps and 1/t at odd ones.
        let lost: f64 = (1..=steps).step_by(2).map(|t| (t as f64).powi(-3)).sum();
        let harmonic: f64 = (1..=steps).map(|t| 1.0 / t as f64).sum();
        let expected = squared.quadratic + squared.linear.upper * (harmonic - lost) / harmonic;
        assert!(squared.debiased().lower <= expected && expected <= squared.debiased().upper);
        assert!(run(Method::Pp, true).distance(expected).abs() < FAR);
    }
}
