//! Principal components of released moments, and their uncertainty due to noise.
//!
//! Let X be the covariance in the units of the columns, X = ZΣZ with the scales Z of the columns,
//! or the correlation, where Z has the inverse standard deviations. Its estimate X̂ = X + E is
//! debiased but not projected. A coordinate of E in the basis of eigenvectors uᵢ is linear in the
//! noise, to first order:
//!
//! ```text
//! uᵢᵀE uⱼ = ⟨K, dΣ⟩,    K = Z (uᵢuⱼᵀ + uⱼuᵢᵀ)/2 Z − c Z diag(uᵢ∘uⱼ) Z
//! dΣ = (dS − m dsᵀ − ds mᵀ − (Σ − mmᵀ) dn)/n
//! ```
//!
//! with c = 0 for the covariance, and (λᵢ + λⱼ)/2 for the correlation, whose diagonal has no noise.
//! So the covariance of two such coordinates is exact and public, except that it uses estimates:
//!
//! ```text
//! n² cov(⟨K, dΣ⟩, ⟨L, dΣ⟩) = (τ₂² + 2τ₁⁴/n²) ⟨K, L⟩ + 4τ₁² Km·Lm + τ₀² h(K) h(L)
//! h(K) = ⟨K, Σ⟩ − mᵀKm
//! ```
//!
//! For the population the sampling error 2 tr(KΣLΣ)/n of a Gaussian distribution is added. Let vᵢⱼ²
//! be the variance of uᵢᵀE uⱼ.
//!
//! **Clusters.** Noise moves eigenvalues apart, and mixes the eigenvectors of close eigenvalues.
//! Two eigenvalues are *linked* if they differ by at most κ = 4√2 times vᵢⱼ. For equal eigenvalues
//! in two dimensions the gap is larger with probability e^(−κ²/8) = e⁻⁴. Chains of links are
//! clusters.
//!
//! **Eigenvalues.** The eigenvalues outside the cluster of λᵢ shift its estimate by Σⱼ vᵢⱼ²/(λᵢ −
//! λⱼ), and the code subtracts this shift. (For one eigenvalue above a bulk of noise this is exact
//! in the limit of many columns, since the sum is the Stieltjes transform of the bulk at λ̂ᵢ.) If
//! λᵢ is alone in its cluster, its interval is λ̂ᵢ ± z vᵢᵢ. Within a cluster a..b only Courant &
//! Fischer's principle applies:
//!
//! ```text
//! λ_max(E on u_i … u_b) ≥ λ̂ᵢ − λᵢ ≥ λ_min(E on u_a … u_i)
//! ```
//!
//! On k dimensions with noise of at most v in each direction, λ_max exceeds v(e_k + z) no more
//! often than a standard normal variable exceeds z: its mean is at most v e_k, and v is its
//! Lipschitz constant. For the Gaussian orthogonal ensemble e_k ≈ √(2k) − 0.853 k^(−1/6) (Tracy &
//! Widom 1996), and e₁ = 0. So intervals need no gap, and are wider than necessary in a cluster.
//!
//! **Directions.** Only an eigenvalue that is alone in its cluster has a direction. From
//! ûⱼᵀX̂uᵢ = ûⱼᵀ(X + E)uᵢ follows
//!
//! ```text
//! ûⱼ·uᵢ = ûⱼᵀE uᵢ / (λ̂ⱼ − λᵢ),    sin² θ = Σⱼ (ûⱼ·uᵢ)²
//! ```
//!
//! which is a sum of squares of Gaussian variables with a known covariance, for which Satterthwaite
//! 1946 gives a quantile. The identity is the one behind the bound of Davis & Kahan, without the
//! loss of that bound. Noise also affects which gaps look wide: a gap g counts as √(g² − 12 v²) in
//! a bound of θ, so that the bound holds among the directions that are shown.

use super::debias::NoisyMoments;
use super::density::DensityError;
use super::interval::{Confidence, Interval, IntervalSubject};
use super::intervals::LEAST_SAMPLE;
use super::projection::Spectrum;
use crate::moments::SecondMoment;
use crate::quantile;
use nalgebra::{DMatrix, DVector};

/// κ = 4√2: eigenvalues that differ by at most κ deviations of the noise between them are linked.
const LINKED: f64 = 5.656_854_249_492_381;

/// Multiple of the noise variance of a gap that is subtracted from the squared gap, because only
/// directions with wide gaps are shown.
const SELECTED: f64 = 12.0;

/// Largest expected sin² θ of a direction: 30°.
const LARGEST_TURN: f64 = 0.25;

/// Minimum variance of a column, in deviations of its noise, for a correlation.
const LEAST_VARIANCE: f64 = 4.0;

/// Degrees of freedom below which a sum of squares counts as one square, whose quantile is exact.
const ALONE: f64 = 1.02;

/// The matrix to decompose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalOf {
    /// The covariance in the units of the columns.
    Covariance,
    /// The correlation, in which columns have equal weight.
    Correlation,
}

/// The leading principal components.
#[derive(Clone, Debug)]
pub struct PrincipalComponents {
    /// The components, the largest first.
    pub components: Vec<PrincipalComponent>,
    /// The sum of all eigenvalues, and the standard deviation of its noise.
    pub total: (f64, f64),
}

/// A principal component.
#[derive(Clone, Debug)]
pub struct PrincipalComponent {
    /// The eigenvalue; noise may make it negative.
    pub eigenvalue: f64,
    /// Standard deviation of its noise.
    pub noise: f64,
    /// Its confidence interval, within what the bounds of the columns allow.
    pub interval: Interval,
    /// Its direction; `None` if noise may have mixed it with others.
    pub direction: Option<Direction>,
}

/// The direction of a component.
#[derive(Clone, Debug)]
pub struct Direction {
    /// The unit vector whose largest coordinate is positive.
    pub vector: DVector<f64>,
    /// Standard deviation of the noise of each coordinate, to first order.
    pub noise: DVector<f64>,
    /// Upper bound of the angle to the true direction at the confidence level, in radians.
    pub angle: f64,
}

impl NoisyMoments<'_> {
    /// Returns the `number` leading components of records with coordinates in [−1, 1], at most as
    /// many as there are columns. `units` holds the size of each coordinate's unit, in the unit of
    /// its column. If intervals are joint, the intervals and angles of all returned components hold
    /// together.
    ///
    /// # Errors
    /// As [`density`](Self::density); [`DensityError::NoSecondMoments`] without products of
    /// columns, [`DensityError::HiddenVariance`] if a correlation needs a variance that noise may
    /// account for.
    ///
    /// ```
    /// use hushflow_mechanism::estimate::debias::{MomentNoise, NoisyMoments};
    /// use hushflow_mechanism::estimate::principal::PrincipalOf;
    /// use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// let moments = NoisyMoments {
    ///     layout: Layout::new(2, SecondMoment::Full),
    ///     coordinates: &[1000.0, 0.0, 0.0, 200.0, 90.0, 200.0],
    ///     noise: MomentNoise { count: 0.0, first: 2.0, second: 3.0 },
    /// };
    /// let found =
    ///     moments.principal_components(&[1.0, 1.0], PrincipalOf::Covariance, 1, Default::default())?;
    /// let first = &found.components[0];
    /// assert!((first.eigenvalue - 0.29).abs() < 1e-3 && first.interval.contains(0.29));
    /// let direction = first.direction.as_ref().expect("the gap is 0.18, the noise 0.003");
    /// assert!((direction.vector[0] - 0.5f64.sqrt()).abs() < 1e-9 && direction.angle < 0.05);
    /// # Ok::<(), hushflow_mechanism::estimate::density::DensityError>(())
    /// ```
    pub fn principal_components(
        &self,
        units: &[f64],
        of: PrincipalOf,
        number: usize,
        confidence: Confidence,
    ) -> Result<PrincipalComponents, DensityError> {
        if self.layout.second != SecondMoment::Full {
            return Err(DensityError::NoSecondMoments);
        }
        let level = confidence.level;
        if !(level > 0.0 && level < 1.0) {
            return Err(DensityError::Level(level));
        }
        let decomposition = Decomposition::new(*self, units, of, confidence.subject)?;
        let number = number.min(units.len());
        let statements = if confidence.joint { 2 * number.max(1) } else { 1 };
        let error = (1.0 - level) / statements as f64;
        let components = (0..number).map(|i| decomposition.component(i, error)).collect();
        let found = PrincipalComponents { components, total: decomposition.total() };
        let numbers = found.components.iter().flat_map(|component| [component.eigenvalue, component.noise]);
        let finite = numbers.chain([found.total.0, found.total.1]).all(f64::is_finite);
        if finite { Ok(found) } else { Err(DensityError::OutOfRange) }
    }
}

/// Sources of the noise matrix E.
#[derive(Clone, Copy, PartialEq)]
enum ErrorOf {
    /// The noise of the release.
    Noise,
    /// The noise of the release and, for statements about the population, the sampling error.
    NoiseAndSample,
}

/// X̂ in its eigenvectors, in descending order of eigenvalues.
struct Decomposition<'a> {
    moments: NoisyMoments<'a>,
    of: PrincipalOf,
    mean: DVector<f64>,
    /// Diagonal of Z.
    scales: DVector<f64>,
    values: DVector<f64>,
    /// U, one eigenvector per column.
    directions: DMatrix<f64>,
    /// UᵀZ²U.
    gram: DMatrix<f64>,
    /// ZU.
    scaled: DMatrix<f64>,
    /// (ZU)ᵀm.
    means: DVector<f64>,
    /// X∘X.
    squares: DMatrix<f64>,
    /// Degrees of freedom of the sample, for statements about the population.
    freedom: Option<f64>,
    /// The clusters, in order.
    clusters: Vec<Cluster>,
}

/// Eigenvalues that noise does not separate.
struct Cluster {
    first: usize,
    last: usize,
    /// Largest variance of the noise in one of their directions. `error` is the same with the
    /// sampling error.
    noise: f64,
    error: f64,
}

impl<'a> Decomposition<'a> {
    fn new(
        moments: NoisyMoments<'a>,
        units: &[f64],
        of: PrincipalOf,
        subject: IntervalSubject,
    ) -> Result<Self, DensityError> {
        let (mean, covariance) = moments.estimates()?;
        let (found, dimension) = (units.len(), mean.len());
        if found != dimension {
            return Err(DensityError::Shape { found, expected: dimension, dimension });
        }
        if let Some(unit) = units.iter().find(|unit| !(f64::MIN_POSITIVE..=f64::MAX).contains(*unit)) {
            return Err(DensityError::Scale(*unit));
        }
        let freedom = match subject {
            IntervalSubject::Records => None,
            IntervalSubject::Population { heaviest }
                if !(f64::MIN_POSITIVE..=f64::MAX).contains(&heaviest) =>
            {
                return Err(DensityError::Heaviest(heaviest));
            }
            IntervalSubject::Population { heaviest } => Some(moments.count() / heaviest - 1.0),
        };
        let scales = match of {
            PrincipalOf::Covariance => DVector::from_column_slice(units),
            PrincipalOf::Correlation => {
                let noise = moments.entry_noise(&mean, &covariance).diagonal();
                let variances = covariance.diagonal();
                let hidden = |column: &usize| variances[*column] <= LEAST_VARIANCE * noise[*column];
                if let Some(column) = (0..dimension).find(hidden) {
                    return Err(DensityError::HiddenVariance { column });
                }
                variances.map(|variance| variance.sqrt().recip())
            }
        };
        let matrix = covariance.component_mul(&(&scales * scales.transpose()));
        let spectrum = Spectrum::of(&matrix).ok_or(DensityError::Eigenvalues)?;
        let directions = spectrum.directions.ok_or(DensityError::Eigenvalues)?;
        let mut order: Vec<usize> = (0..dimension).collect();
        order.sort_by(|&i, &j| spectrum.values[j].total_cmp(&spectrum.values[i]));
        let directions = directions.select_columns(&order);
        let scaled = DMatrix::from_fn(dimension, dimension, |i, j| scales[i] * directions[(i, j)]);
        let mut decomposition = Self {
            values: spectrum.values.select_rows(&order),
            gram: scaled.tr_mul(&scaled),
            means: scaled.tr_mul(&mean),
            squares: matrix.component_mul(&matrix),
            clusters: Vec::new(),
            moments,
            of,
            mean,
            scales,
            directions,
            scaled,
            freedom,
        };
        decomposition.clusters = decomposition.clusters();
        Ok(decomposition)
    }

    /// c of a pair of eigenvectors.
    fn slope(&self, i: usize, j: usize) -> f64 {
        match self.of {
            PrincipalOf::Covariance => 0.0,
            PrincipalOf::Correlation => (self.values[i] + self.values[j]) / 2.0,
        }
    }

    /// The covariance matrix of uᵢᵀE uⱼ, for this i and all j in `others`.
    fn covariances(&self, i: usize, others: &[usize], error: ErrorOf) -> DMatrix<f64> {
        let (dimension, size) = (self.mean.len(), others.len());
        let slopes: Vec<f64> = others.iter().map(|&j| self.slope(i, j)).collect();
        let column = |matrix: &DMatrix<f64>, j: usize| matrix.column(j).into_owned();
        let products = DMatrix::from_fn(dimension, size, |k, at| {
            self.directions[(k, i)] * self.directions[(k, others[at])]
        });
        let scaled_products =
            DMatrix::from_fn(dimension, size, |k, at| self.scaled[(k, i)] * self.scaled[(k, others[at])]);
        // The products K·m for each j.
        let own = column(&self.scaled, i);
        let mut with_means = DMatrix::zeros(dimension, size);
        let mut ratios = Vec::with_capacity(size);
        for (at, &j) in others.iter().enumerate() {
            let pulled = (&own * self.means[j] + self.scaled.column(j) * self.means[i]) / 2.0
                - scaled_products.column(at).component_mul(&self.mean) * slopes[at];
            let variance = if i == j && self.of == PrincipalOf::Covariance { self.values[i] } else { 0.0 };
            ratios.push(variance - pulled.dot(&self.mean));
            with_means.set_column(at, &pulled);
        }
        let of_products = scaled_products.tr_mul(&scaled_products);
        let of_means = with_means.tr_mul(&with_means);
        let noise = self.moments.noise;
        let count = self.moments.count();
        let second = noise.second.powi(2) + 2.0 * (noise.first.powi(2) / count).powi(2);
        let mut covariances = DMatrix::from_fn(size, size, |a, b| {
            let (j, l) = (others[a], others[b]);
            let inner = (self.gram[(i, i)] * self.gram[(j, l)] + self.gram[(i, j)] * self.gram[(i, l)]) / 2.0
                + (slopes[a] * slopes[b] - slopes[a] - slopes[b]) * of_products[(a, b)];
            (second * inner
                + 4.0 * noise.first.powi(2) * of_means[(a, b)]
                + noise.count.powi(2) * ratios[a] * ratios[b])
                / count.powi(2)
        });
        if let (ErrorOf::NoiseAndSample, Some(freedom)) = (error, self.freedom) {
            covariances += self.sampling(i, others, &slopes, &products) * (2.0 / freedom.max(1.0));
        }
        covariances
    }

    /// tr(KΣLΣ) for this i and each pair of `others`.
    fn sampling(&self, i: usize, others: &[usize], slopes: &[f64], products: &DMatrix<f64>) -> DMatrix<f64> {
        let value = |j: usize| self.values[j].max(0.0);
        let plain = products.tr_mul(products);
        let squared = products.tr_mul(&(&self.squares * products));
        DMatrix::from_fn(others.len(), others.len(), |a, b| {
            let (j, l) = (others[a], others[b]);
            let same = match j == l {
                true => value(i) * value(j) * if i == j { 1.0 } else { 0.5 },
                false => 0.0,
            };
            same - value(i) * (slopes[b] * value(j) + slopes[a] * value(l)) * plain[(a, b)]
                + slopes[a] * slopes[b] * squared[(a, b)]
        })
    }

    /// The variance vᵢⱼ² of uᵢᵀE uⱼ.
    fn variance(&self, i: usize, j: usize, error: ErrorOf) -> f64 {
        self.covariances(i, &[j], error)[(0, 0)].max(0.0)
    }

    fn clusters(&self) -> Vec<Cluster> {
        let dimension = self.mean.len();
        let rounding = dimension as f64 * f64::EPSILON * self.values.amax();
        let linked = |i: usize, j: usize| {
            let gap = self.values[i] - self.values[j];
            gap <= rounding || gap <= LINKED * self.variance(i, j, ErrorOf::NoiseAndSample).sqrt()
        };
        let mut clusters = Vec::new();
        let (mut first, mut last) = (0, 0);
        for i in 0..dimension {
            last = (last.max(i)..dimension).rev().find(|&j| j == i || linked(i, j)).unwrap_or(i).max(last);
            if last == i {
                let largest = |error: ErrorOf| {
                    let pairs = (first..=i).flat_map(|i| (i..=last).map(move |j| (i, j)));
                    let weighed = |(i, j)| if i == j { 1.0 } else { 2.0 } * self.variance(i, j, error);
                    pairs.map(weighed).fold(0.0, f64::max)
                };
                let (noise, error) = (largest(ErrorOf::Noise), largest(ErrorOf::NoiseAndSample));
                clusters.push(Cluster { first, last: i, noise, error });
                first = i + 1;
            }
        }
        clusters
    }

    /// The cluster of an eigenvalue.
    fn cluster(&self, i: usize) -> &Cluster {
        &self.clusters[self.clusters.partition_point(|cluster| cluster.last < i)]
    }

    fn component(&self, i: usize, error: f64) -> PrincipalComponent {
        let dimension = self.mean.len();
        let &Cluster { first, last, .. } = self.cluster(i);
        let others: Vec<usize> = (0..dimension).filter(|&j| j != i).collect();
        let couplings = self.covariances(i, &others, ErrorOf::NoiseAndSample);
        let outside = others.iter().enumerate().filter(|(_, j)| !(first..=last).contains(*j));
        let push: f64 = outside.map(|(at, &j)| couplings[(at, at)] / (self.values[i] - self.values[j])).sum();
        let eigenvalue = self.values[i] - push;
        let noise = self.variance(i, i, ErrorOf::Noise).sqrt();
        let z = quantile::normal(error / 2.0);
        let allowed = Interval { lower: 0.0, upper: self.largest() };
        let direction = (first == last).then(|| self.direction(i, &others, eigenvalue, couplings, error));
        PrincipalComponent {
            eigenvalue,
            noise,
            interval: self.interval(i, eigenvalue, z).within(allowed, z * self.cluster(i).noise.sqrt()),
            direction: direction.flatten(),
        }
    }

    fn interval(&self, i: usize, eigenvalue: f64, z: f64) -> Interval {
        let &Cluster { first, last, noise: own, error: all } = self.cluster(i);
        let (up, down) = (mean_of_largest(i - first + 1) + z, mean_of_largest(last - i + 1) + z);
        let deviation = own.sqrt();
        let records = Interval { lower: eigenvalue - deviation * down, upper: eigenvalue + deviation * up };
        match self.freedom {
            None => records,
            Some(freedom) if freedom + 1.0 < LEAST_SAMPLE => Interval::UNBOUNDED,
            Some(freedom) => {
                // Distances of χ² quantiles, with the sampling error in place of √(2/freedom).
                let unit = (all - own).max(0.0).sqrt() / (2.0 / freedom).sqrt();
                let below = unit * (1.0 - freedom / quantile::chi_squared(z, freedom));
                let above = unit * (freedom / quantile::chi_squared(-z, freedom) - 1.0);
                let sampled = records.widened(eigenvalue, (below * down / z, above * up / z));
                let unbiased = match self.of {
                    PrincipalOf::Covariance => (freedom + 1.0) / freedom,
                    PrincipalOf::Correlation => 1.0,
                };
                sampled.map(|end| end * unbiased)
            }
        }
    }

    /// The largest eigenvalue of records with coordinates in [−1, 1].
    fn largest(&self) -> f64 {
        match self.of {
            PrincipalOf::Covariance => self.scales.norm_squared(),
            PrincipalOf::Correlation => self.scales.len() as f64,
        }
    }

    /// Returns the direction, unless it is expected to be too far from the truth.
    fn direction(
        &self,
        i: usize,
        others: &[usize],
        eigenvalue: f64,
        couplings: DMatrix<f64>,
        error: f64,
    ) -> Option<Direction> {
        let gaps = DVector::from_iterator(others.len(), others.iter().map(|&j| eigenvalue - self.values[j]));
        let turns = couplings.component_div(&(&gaps * gaps.transpose()));
        if turns.trace() > LARGEST_TURN {
            return None;
        }
        let selected = gaps.zip_map(&couplings.diagonal(), |gap, variance| {
            (gap * gap - SELECTED * variance).max(f64::MIN_POSITIVE).sqrt().copysign(gap)
        });
        let bounds = couplings.component_div(&(&selected * selected.transpose()));
        let angle = largest_sum(&bounds, error).sqrt().min(1.0).asin();
        let basis = self.directions.select_columns(others);
        let noise = (&basis * &turns * basis.transpose()).diagonal().map(|variance| variance.max(0.0).sqrt());
        let vector = self.directions.column(i).into_owned();
        let sign = vector[vector.iamax()].signum();
        Some(Direction { vector: vector * sign, noise, angle })
    }

    /// The sum of all eigenvalues, and its noise.
    fn total(&self) -> (f64, f64) {
        if self.of == PrincipalOf::Correlation {
            return (self.mean.len() as f64, 0.0);
        }
        let (noise, count) = (self.moments.noise, self.moments.count());
        let areas = self.scales.component_mul(&self.scales);
        let pulled = areas.component_mul(&self.mean);
        let total = self.values.sum();
        let second = noise.second.powi(2) + 2.0 * (noise.first.powi(2) / count).powi(2);
        let variance = second * areas.norm_squared()
            + 4.0 * noise.first.powi(2) * pulled.norm_squared()
            + (noise.count * (total - pulled.dot(&self.mean))).powi(2);
        (total, variance.sqrt() / count)
    }
}

/// e_k: the mean of the largest eigenvalue of the k×k Gaussian orthogonal ensemble with variance 1
/// on the diagonal. The result may be slightly larger.
fn mean_of_largest(dimension: usize) -> f64 {
    let k = dimension as f64;
    if dimension == 1 { 0.0 } else { (2.0 * k).sqrt() - 0.853 * k.powf(-1.0 / 6.0) }
}

/// The quantile, with this probability above it, of the sum of squares of Gaussian variables with
/// this covariance matrix.
fn largest_sum(covariance: &DMatrix<f64>, above: f64) -> f64 {
    let (mean, square) = (covariance.trace(), covariance.norm_squared());
    if mean <= 0.0 {
        return 0.0;
    }
    let freedom = mean * mean / square;
    if freedom < ALONE {
        return mean * quantile::normal(above / 2.0).powi(2);
    }
    let z = if above > 0.5 { -quantile::normal(1.0 - above) } else { quantile::normal(above) };
    square / mean * quantile::chi_squared(z, freedom)
}

#[cfg(test)]
mod tests;
