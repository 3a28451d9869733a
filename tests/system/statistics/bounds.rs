//! Bounds on the deviation of sums of squares and products of Gaussians from their means, and the
//! tests of samples.
//!
//! For independent standard normal g_i and X = Σ λ_i (g_i² − 1),
//!
//! ```text
//! P(|X| ≥ 2‖λ‖₂√x + 2‖λ‖∞ x) ≤ 2e⁻ˣ
//! ```
//!
//! This is Lemma 1 of Laurent & Massart (2000). Unlike a number of standard errors, it holds at any
//! sample size, and its proof holds for λ of any sign. All comparisons use x = [`EXPONENT`]: the
//! first term is then 7.7 standard errors, and a false alarm has probability 2e⁻³⁰ < 2·10⁻¹³.

use nalgebra::DMatrix;

/// x of the bound.
const EXPONENT: f64 = 30.0;

/// Returns the largest plausible deviation of a quadratic form with this standard error and largest
/// |λ|, or of a linear form (λ = 0), because P(|g| ≥ √(2x)) ≤ 2e⁻ˣ.
pub(crate) fn plausible(standard_error: f64, largest: f64) -> f64 {
    standard_error * (2.0 * EXPONENT).sqrt() + 2.0 * largest * EXPONENT
}

/// Reports a number that is too far from its expected value.
fn judge(faults: &mut Vec<String>, what: impl Fn() -> String, found: f64, expected: f64, plausible: f64) {
    let deviation = (found - expected).abs();
    if deviation.is_nan() || deviation > plausible {
        faults.push(format!("{}: {found}, expected {expected} ± {plausible}", what()));
    }
}

/// Returns the faults in the noise of a view. `errors` holds released minus exact values, in units
/// of the noise of C's output. There is one matrix per run: a row per epoch, a column per
/// coordinate of a key. B is the decoder of the view, and `kinds` are the columns that are tested
/// together.
///
/// Every entry has mean 0, and down each column the covariance is BBᵀ.
pub(crate) fn faults_of_view(
    errors: &[DMatrix<f64>],
    decoder: &DMatrix<f64>,
    kinds: &[(&str, Vec<usize>)],
) -> Vec<String> {
    let mut faults = Vec::new();
    let covariance = decoder * decoder.transpose();
    let mean = errors.iter().sum::<DMatrix<f64>>() / errors.len() as f64;
    for (kind, columns) in kinds {
        for (t, &column) in (0..mean.nrows()).flat_map(|t| columns.iter().map(move |column| (t, column))) {
            let standard_error = (covariance[(t, t)] / errors.len() as f64).sqrt();
            let what = || format!("mean of {kind}, column {column}, epoch {}", t + 1);
            judge(&mut faults, what, mean[(t, column)], 0.0, plausible(standard_error, 0.0));
        }
        let samples = (errors.len() * columns.len()) as f64;
        let products = errors.iter().map(|error| {
            let chosen = error.select_columns(columns);
            &chosen * chosen.transpose()
        });
        let found = products.sum::<DMatrix<f64>>() / samples;
        for (t, i) in (0..found.nrows()).flat_map(|t| (0..=t).map(move |i| (t, i))) {
            // e_t e_i has the eigenvalues (Σ_ti ± √(Σ_tt Σ_ii))/2.
            let (expected, geometric) =
                (covariance[(t, i)], (covariance[(t, t)] * covariance[(i, i)]).sqrt());
            let standard_error = ((geometric.powi(2) + expected.powi(2)) / samples).sqrt();
            let largest = (geometric + expected.abs()) / 2.0 / samples;
            let what = || format!("covariance of {kind}, epochs {} and {}", i + 1, t + 1);
            judge(&mut faults, what, found[(t, i)], expected, plausible(standard_error, largest));
        }
    }
    faults
}

/// Returns the faults in the noise of C's output, whose entries are independent standard normal
/// numbers: the variance of every kind of column, and all correlations between columns (keys,
/// coordinates) and over time.
pub(crate) fn faults_of_noise(noise: &[DMatrix<f64>], kinds: &[(&str, Vec<usize>)]) -> Vec<String> {
    let mut faults = Vec::new();
    let epochs = noise[0].nrows();
    for (kind, columns) in kinds {
        let samples = (noise.len() * epochs * columns.len()) as f64;
        let squares = noise.iter().map(|z| z.select_columns(columns).norm_squared());
        let what = || format!("variance of {kind}");
        let plausible = plausible((2.0 / samples).sqrt(), 1.0 / samples);
        judge(&mut faults, what, squares.sum::<f64>() / samples, 1.0, plausible);
    }
    for lag in 0..epochs {
        let samples = (noise.len() * (epochs - lag)) as f64;
        let products = noise.iter().map(|z| z.rows(0, epochs - lag).transpose() * z.rows(lag, epochs - lag));
        let found = products.sum::<DMatrix<f64>>() / samples;
        let pairs = (0..found.nrows()).flat_map(|p| (0..found.ncols()).map(move |q| (p, q)));
        for (p, q) in pairs.filter(|(p, q)| lag > 0 || p < q) {
            // Products of distinct entries: eigenvalues are below 1, even if chains of them share
            // entries.
            let what = || format!("correlation of columns {p} and {q} at lag {lag}");
            let plausible = plausible(samples.sqrt() / samples, 1.0 / samples);
            judge(&mut faults, what, found[(p, q)], 0.0, plausible);
        }
    }
    faults
}

/// Estimate of μ, the distance of two means in standard deviations, from two samples of a
/// projection.
pub(crate) struct Distance {
    /// The estimate.
    pub(crate) mu: f64,
    /// Size of each sample.
    samples: f64,
}

impl Distance {
    /// Compares two samples of equal size.
    pub(crate) fn between(one: &[f64], other: &[f64]) -> Self {
        let mean = |sample: &[f64]| sample.iter().sum::<f64>() / sample.len() as f64;
        let squares = |sample: &[f64]| {
            let mean = mean(sample);
            sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
        };
        let samples = one.len() as f64;
        let variance = (squares(one) + squares(other)) / (2.0 * samples - 2.0);
        Distance { mu: (mean(one) - mean(other)) / variance.sqrt(), samples }
    }

    /// Returns the smallest and the largest plausible estimate if μ is the truth.
    pub(crate) fn plausible(&self, mu: f64) -> (f64, f64) {
        let shift = plausible((2.0 / self.samples).sqrt(), 0.0);
        let freedom = 2.0 * self.samples - 2.0;
        let stretch = plausible((2.0 / freedom).sqrt(), 1.0 / freedom);
        ((mu - shift) / (1.0 + stretch).sqrt(), (mu + shift) / (1.0 - stretch).sqrt())
    }
}
