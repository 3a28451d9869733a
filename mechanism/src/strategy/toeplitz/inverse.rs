//! The banded inverse square root: `C⁻¹` is a Toeplitz matrix with b bands, and C runs as a
//! recursion over its last b − 1 outputs (Kalinin et al., "Back to square roots", arXiv
//! 2505.12128).
//!
//! `banded-inverse-optimal:b`, with fitted coefficients, runs in the same way.
//!
//! *Strategy.* `C[t,i] = c_(t−i) s_i`, where c is the exact inverse of the series d of b integers
//! in units of 2^-40 with `d_0 = 1`. The scales s are integers in the same units: one for all
//! columns (the first coefficient of the square root, or the one for which columns have at most
//! norm 1), or the scale that gives each column norm 1. With
//! `z_t = s_t x_t`, `y_t = z_t − Σ_(1≤j<b) d_j y_(t−j)`.
//!
//! *Rounding.* y is kept in units of 2^-40 of the unit of x, in which `z_t` is exact. For `d_j y`,
//! y is split into a high part and the last 40 bits. The products of the high parts are exact.
//! Those of the low parts are summed exactly and rounded once, to the nearest unit. So the y that
//! runs obeys the recursion with an error `|e_t| ≤ 1/2` at every step. The errors of two streams
//! differ by at most 1, so the difference of their outputs differs from that of C by
//! `c ∗ (e − e')`, whose squared norm is at most `n ‖c‖₁²` squared units:
//! `ColumnGeometry::rounding_squared = n ‖c‖₁² 2^−80`. For prefix sums `‖c‖₁ ≤ 1/d(1) ≈ √(πb)`.
//!
//! *Norms.* c is computed by long division in floating point; let ĉ be the result. Every term of ĉ
//! misses the recursion by at most `γ Σ_j |d_j| |ĉ_(t−j)|`, γ = (b + 4) 2^-52. So `ĉ − c = c ∗ r`
//! with `‖r‖₁ ≤ γ ‖d‖₁ ‖ĉ‖₁ =: ρ`, `‖c‖₁ ≤ ‖ĉ‖₁/(1 − ρ)`, and over any number of first terms
//! `‖c‖ ≤ ‖ĉ‖ (1 + ‖c‖₁ γ ‖d‖₁)`. Strategies with ρ > 1/4 are refused.
//!
//! *As a matrix* ([`Discrepancy`]). Lower-triangular Toeplitz matrices of n rows multiply like
//! series. The scales are the same, so `ĉ = (1 + r) ∗ c` means `C = (I + R)⁻¹ Ĉ` with
//! `‖R‖₂ ≤ ‖r‖₁ ≤ ρ`, and `‖(I + R)⁻¹ − I‖₂ ≤ ρ/(1 − ρ)`. If all scales are equal, they are
//! multiplied into ĉ, which rounds every entry once: a column is then off by a further 2^-53 of its
//! norm.
//!
//! Computing c takes n b steps, so the horizon times the bands is limited to 2³⁴.

use super::{real, root, rows};
use crate::{
    series,
    strategy::{
        COEFFICIENT_BITS, ColumnGeometry, Decoder, Discrepancy, Encoder, Factorization, Matrix, MatrixError,
        RowNorms, RowSamples, StepError, Strategy, StrategyError, StrategyName, check_horizon, gram, samples,
        step::{self, History, Identification, sums, wrong_length},
    },
    workload::Workload,
};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Largest horizon times bands, the cost of computing c.
const MAX_WORK: u64 = 1 << 34;

const MAX_COEFFICIENT: f64 = (1u64 << 20) as f64;

/// A lower-triangular C whose inverse is banded and Toeplitz up to the scale of columns.
#[derive(Clone)]
pub(in crate::strategy) struct BandedInverse {
    name: StrategyName,
    /// d, in units of 2^-[`COEFFICIENT_BITS`]; the first is 1.
    inverse: Arc<[i64]>,
    /// s for every step of the horizon, in units of 2^-[`COEFFICIENT_BITS`]: positive, not
    /// decreasing.
    scales: Arc<[i64]>,
    /// ĉ.
    coefficients: Arc<[f64]>,
    /// Upper bound of `‖c‖₁`.
    sum: f64,
    /// Upper bound of the norm of any first terms of c, relative to that of ĉ.
    inflation: f64,
    /// Upper bound of `ρ/(1 − ρ)`.
    relative_error: f64,
    fingerprint: u64,
}

impl BandedInverse {
    pub(super) fn new(name: &StrategyName, workload: &Workload, horizon: u64) -> Result<Self, StrategyError> {
        let bands = u64::from(name.number().get()).min(horizon);
        check_horizon(name, horizon, MAX_WORK / bands)?;
        let units = |value: f64| (value / real(1)).round();
        let refused = || root::refused(name, workload, "the inverse of its square root grows too much");
        let series = root::inverse_root(workload, bands as usize);
        if !series.iter().all(|d| d.abs() <= MAX_COEFFICIENT) {
            return Err(refused());
        }
        let inverse: Vec<i64> = series.into_iter().map(|d| units(d) as i64).collect();
        let scale = units(root::root(workload, 1)[0]) as i64;
        let strategy = Self::exact(name, inverse, vec![scale; horizon as usize]);
        strategy.ok_or_else(refused)
    }

    /// With these coefficients of C⁻¹, and a scale for which columns have at most norm 1.
    pub(super) fn of_inverse(
        name: &StrategyName,
        inverse: &[i64],
        horizon: u64,
    ) -> Result<Self, StrategyError> {
        let bands = (inverse.len() as u64).clamp(1, horizon);
        check_horizon(name, horizon, MAX_WORK / bands)?;
        let refused = |reason| StrategyError::Parameters { reason };
        let one = 1 << COEFFICIENT_BITS;
        let inverse = &inverse[..inverse.len().min(horizon as usize)];
        if inverse.first() != Some(&one) {
            return Err(refused("the first coefficient of the inverse is not 1"));
        }
        if inverse.iter().any(|&d| real(d).abs() > MAX_COEFFICIENT) {
            return Err(refused("a coefficient of the inverse is above 2^20"));
        }
        let unscaled = Self::exact(name, inverse.to_vec(), vec![one; horizon as usize]);
        let unscaled = unscaled.ok_or(refused("the inverse of its coefficients grows too much"))?;
        let norm = unscaled.norms().last().copied().unwrap_or(1.0);
        let scales: Arc<[i64]> = vec![((1.0 / norm / real(1)) as i64).max(1); horizon as usize].into();
        let fingerprint = fingerprint(inverse, &scales);
        Ok(Self { scales, fingerprint, ..unscaled })
    }

    fn exact(name: &StrategyName, inverse: Vec<i64>, scales: Vec<i64>) -> Option<Self> {
        let terms: Vec<f64> = inverse.iter().map(|&d| real(d)).collect();
        let coefficients = series::quotient(&[1.0], &terms, scales.len());
        let sum_up = |terms: &[f64]| {
            terms.iter().map(|term| term.abs()).sum::<f64>() * (1.0 + terms.len() as f64 * f64::EPSILON)
        };
        let (error, sum) = ((terms.len() + 4) as f64 * f64::EPSILON * sum_up(&terms), sum_up(&coefficients));
        let remainder = 1.0 - error * sum;
        if remainder.is_nan() || remainder < 0.75 {
            return None;
        }
        let relative_error = 1.01 * error * sum / remainder;
        let sum = sum / remainder;
        let inflation = 1.0 + 1.01 * sum * error + 2.0 * scales.len() as f64 * f64::EPSILON;
        let fingerprint = fingerprint(&inverse, &scales);
        Some(Self {
            name: name.clone(),
            inverse: inverse.into(),
            scales: scales.into(),
            coefficients: coefficients.into(),
            sum,
            inflation,
            relative_error,
            fingerprint,
        })
    }

    /// With columns of norm 1, minus at most the rounding of 40-bit scales.
    pub(super) fn normalized(self) -> Self {
        let norms = self.norms();
        let scale = |norm: &f64| (1.0 / norm / real(1)) as i64;
        let scales: Vec<i64> = norms.iter().rev().map(scale).collect();
        let fingerprint = fingerprint(&self.inverse, &scales);
        Self { scales: scales.into(), fingerprint, ..self }
    }

    /// Upper bounds of the norms of the first 1, 2, … terms of c.
    fn norms(&self) -> Vec<f64> {
        let squares = self.coefficients.iter().scan(0.0, |sum, c| {
            *sum += c * c;
            Some(*sum)
        });
        squares.map(|square| f64::sqrt(square) * self.inflation).collect()
    }

    fn real_scales(&self, steps: usize) -> Vec<f64> {
        self.scales.iter().take(steps).map(|&s| real(s)).collect()
    }

    /// The series of C⁻¹, if all columns have one scale and the workload is Toeplitz with row
    /// divisors.
    fn unscaled_inverse(&self, workload: &Workload, steps: usize) -> Option<Vec<f64>> {
        let scale = self.scales[0];
        workload.toeplitz_part(1).filter(|_| self.scales[..steps].iter().all(|&s| s == scale))?;
        Some(self.inverse.iter().map(|&d| real(d) / real(scale)).collect())
    }

    fn bands(&self) -> impl Iterator<Item = i64> {
        self.inverse[1..].iter().copied()
    }

    fn kept(&self) -> usize {
        self.inverse.len() - 1
    }

    fn within_horizon(&self, steps: u64) -> usize {
        steps.min(self.scales.len() as u64) as usize
    }

    /// Upper bound of `−(CᵀC)_ij` over all i ≠ j. It is 0 if d has no positive coefficient after
    /// the first: then c has no negative one.
    fn negative_overlap(&self) -> f64 {
        if self.bands().all(|d| d <= 0) {
            return 0.0;
        }
        let scales = self.real_scales(self.scales.len());
        let overlap = gram::scaled_negative_overlap(&self.coefficients, &scales);
        let error = self.inflation.powi(2) - 1.0;
        let norms = self.norms();
        let largest = norms.iter().rev().zip(&scales).map(|(norm, s)| norm * s).fold(0.0, f64::max);
        overlap + 2.0 * error * largest * largest
    }
}

fn fingerprint(inverse: &[i64], scales: &[i64]) -> u64 {
    let length = (inverse.len() as u64).to_le_bytes();
    let numbers = inverse.iter().chain(scales).flat_map(|number| number.to_le_bytes());
    step::fingerprint(b"inverse".iter().copied().chain(length).chain(numbers))
}

impl Factorization for BandedInverse {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        Some(self.scales.len() as u64)
    }

    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let steps = self.within_horizon(steps);
        let (coefficients, scales) = (self.coefficients[..steps].to_vec(), self.real_scales(steps));
        let relative = self.relative_error;
        if scales.iter().any(|&scale| scale != scales[0]) {
            let discrepancy = Discrepancy { relative, column: 0.0 };
            return Ok(Matrix::scaled_toeplitz(coefficients, scales)?.with_discrepancy(discrepancy));
        }
        let column = f64::EPSILON * self.norms()[steps - 1] * scales[0];
        let matrix = Matrix::toeplitz(coefficients.into_iter().map(|c| c * scales[0]).collect(), steps)?;
        Ok(matrix.with_discrepancy(Discrepancy { relative, column }))
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        let steps = self.within_horizon(steps);
        let (norms, scales) = (self.norms(), self.real_scales(steps));
        let columns = norms[..steps].iter().rev().zip(scales).map(|(norm, scale)| norm * scale);
        columns.fold(0.0, f64::max).powi(2) * (1.0 + 1e-15)
    }

    /// If all columns have one scale, B is the workload applied to d, and takes as long. Otherwise
    /// the norms take n² time.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        match self.unscaled_inverse(workload, steps) {
            Some(inverse) => rows::of_series(workload, rows::inverse_terms(workload, inverse).take(steps)),
            None => {
                let inverse: Vec<f64> = self.inverse.iter().map(|&d| real(d)).collect();
                rows::of_scaled(workload, &inverse, &self.real_scales(steps), None)
            }
        }
    }

    fn decoder_row_samples(&self, workload: &Workload, steps: u64) -> RowSamples<'_> {
        let within = self.within_horizon(steps);
        let inverse = self.unscaled_inverse(workload, within);
        match inverse.and_then(|inverse| rows::inverse_samples(workload, &inverse, within)) {
            Some(samples) => Box::new(samples.into_iter()),
            None => samples::all(self.decoder_row_norms(workload, steps)),
        }
    }
}

impl Strategy for BandedInverse {
    fn geometry(&self) -> ColumnGeometry {
        let steps = self.scales.len() as u64;
        let rounding = real(1) * self.sum;
        ColumnGeometry {
            max_norm_squared: self.max_column_norm_squared(steps),
            negative_overlap: self.negative_overlap(),
            rounding_squared: steps as f64 * rounding * rounding * (1.0 + 1e-14),
        }
    }

    fn encoder_bytes(&self) -> usize {
        self.kept() * size_of::<i128>()
    }

    /// For inputs up to X every `z_t` is at most `s X` and every output at most `‖c‖₁ (s X + 1)`,
    /// so [`InverseEncoder::in_range`] requires `s X + ‖d‖₁ ‖c‖₁ (s X + 1) + …` below 2¹²⁶.
    fn input_limit(&self) -> Option<u128> {
        let weight: f64 = self.bands().map(|d| real(d).abs()).sum();
        let scale = self.scales.iter().fold(1.0, |largest: f64, &scale| largest.max(scale as f64));
        Some((2f64.powi(125) / (scale * (1.0 + weight * self.sum))) as u128)
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        Box::new(InverseEncoder {
            strategy: self.clone(),
            weight: self.bands().map(|d| u128::from(d.unsigned_abs())).sum(),
            outputs: History::new(coordinates, self.kept()),
            largest: 0,
            low: Zeroizing::new(vec![0; coordinates]),
        })
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        Box::new(InverseDecoder { strategy: self.clone(), outputs: History::new(coordinates, self.kept()) })
    }
}

struct InverseEncoder {
    strategy: BandedInverse,
    /// Sum of the magnitudes of d after the first.
    weight: u128,
    outputs: History<i128>,
    /// Upper bound of the magnitudes of the stored outputs.
    largest: u128,
    /// Sums of products with the low bits of outputs, in units of 2^-80.
    low: Zeroizing<Vec<i128>>,
}

const LOW_BITS: i128 = (1 << COEFFICIENT_BITS) - 1;

impl InverseEncoder {
    fn identification(&self) -> Identification {
        Identification {
            version: 1,
            fingerprint: self.strategy.fingerprint,
            coordinates: self.outputs.coordinates(),
            horizon: self.strategy.horizon(),
        }
    }

    /// Whether all partial sums of the next step stay in range.
    fn in_range(&self, x: &[i128], scale: i128) -> bool {
        let input = x.iter().map(|x| x.unsigned_abs()).fold(0, u128::max).checked_mul(scale.unsigned_abs());
        let held = self.weight.checked_mul((self.largest >> COEFFICIENT_BITS) + 2);
        let bound = input.zip(held).and_then(|(input, held)| input.checked_add(held));
        bound.is_some_and(|bound| bound <= i128::MAX as u128 / 2)
    }

    /// Subtracts `d_j` times the high parts of the outputs from y, and sums the products of the low
    /// parts.
    fn recur(&mut self, y: &mut [i128], in_range: bool) -> Result<(), StepError> {
        self.low.fill(0);
        for (d, row) in self.strategy.bands().map(i128::from).zip(self.outputs.newest_first()) {
            for ((y, low), output) in y.iter_mut().zip(self.low.iter_mut()).zip(row) {
                let high = output >> COEFFICIENT_BITS;
                *low += d * (output & LOW_BITS);
                *y = if in_range {
                    y.wrapping_sub(d.wrapping_mul(high))
                } else {
                    d.checked_mul(high).and_then(|term| y.checked_sub(term)).ok_or(StepError::Overflow)?
                };
            }
        }
        Ok(())
    }
}

impl Encoder for InverseEncoder {
    fn steps(&self) -> u64 {
        self.outputs.steps()
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.outputs.check_step(self.strategy.horizon(), [x.len(), y.len()])?;
        let scale = i128::from(self.strategy.scales[self.steps() as usize]);
        let in_range = self.in_range(x, scale);
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.checked_mul(scale).ok_or(StepError::Overflow)?;
        }
        self.recur(y, in_range)?;
        for (y, low) in y.iter_mut().zip(self.low.iter()) {
            let rounded = (low + (1 << (COEFFICIENT_BITS - 1))) >> COEFFICIENT_BITS;
            *y = y.checked_sub(rounded).ok_or(StepError::Overflow)?;
        }
        self.largest = y.iter().map(|y| y.unsigned_abs()).fold(self.largest, u128::max);
        self.outputs.push(y);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        self.identification().save(self.steps(), self.outputs.values())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification().read(state)?;
        let rows = sums(rows)?;
        let largest = rows.iter().map(|y| y.unsigned_abs()).fold(0, u128::max);
        self.outputs = self.outputs.replaced(steps, rows).ok_or(wrong_length())?;
        self.largest = largest;
        Ok(())
    }
}

/// `x_t = (Σ_j d_j y_(t−j)) / s_t`. Not a recursion, so no error lasts longer than b steps.
struct InverseDecoder {
    strategy: BandedInverse,
    outputs: History<f64>,
}

impl Decoder for InverseDecoder {
    fn steps(&self) -> u64 {
        self.outputs.steps()
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        self.outputs.check_step(self.strategy.horizon(), [y.len(), x.len()])?;
        x.copy_from_slice(y);
        for (d, row) in self.strategy.bands().map(real).zip(self.outputs.newest_first()) {
            x.iter_mut().zip(row).for_each(|(x, output)| *x += d * output);
        }
        let scale = real(self.strategy.scales[self.steps() as usize]);
        x.iter_mut().for_each(|x| *x /= scale);
        self.outputs.push(y);
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        self.outputs.values().to_vec()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        self.outputs = self.outputs.resumed(self.strategy.horizon(), steps, state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::build;
    use num_bigint::BigInt;
    use proptest::{
        collection,
        prelude::{any, prop_assert, prop_assert_eq, proptest},
    };

    const STEPS: u64 = 30;

    fn strategy(workload: &str, bands: u32, normalized: bool) -> BandedInverse {
        let name = super::super::BANDED_INVERSE_SQUARE_ROOT.numbered(bands);
        let plain = BandedInverse::new(&name, &workload.parse().unwrap(), STEPS).unwrap();
        if normalized { plain.normalized() } else { plain }
    }

    proptest! {
        #[test]
        fn a_step_is_off_by_half_a_unit(
            workload in "prefix|exponential:0\\.9|window:[3-9]",
            bands in 1u32..12,
            normalized: bool,
            rows in collection::vec((any::<i128>(), 40u32..120), STEPS as usize),
        ) {
            let strategy = strategy(&workload, bands, normalized);
            let (mut encoder, mut y, mut outputs) = (strategy.encoder(1), [0], Vec::<BigInt>::new());
            for (x, shift) in rows {
                let (x, t, before) = (x >> shift, outputs.len(), encoder.save());
                let outcome = encoder.encode(&[x], &mut y);
                if outcome.is_err() {
                    prop_assert_eq!(outcome, Err(StepError::Overflow));
                    prop_assert!(x.unsigned_abs() > 1 << 80);
                    prop_assert_eq!(encoder.save(), before);
                    continue;
                }
                outputs.push(y[0].into());
                let recursion: BigInt =
                    strategy.inverse.iter().zip(outputs.iter().rev()).map(|(&d, y)| BigInt::from(d) * y).sum();
                let wanted = (BigInt::from(x) * strategy.scales[t]) << COEFFICIENT_BITS;
                let error = recursion - wanted;
                prop_assert!(error.magnitude() <= BigInt::from(1i64 << 39).magnitude(), "{}", error);
            }
        }
    }

    /// c in exact fractions: the charged norm is above the true one and close to it.
    #[test]
    fn norms_are_rounded_up() {
        let strategy = strategy("prefix", 5, false);
        let mut exact = vec![BigInt::from(1) << 400];
        for t in 1..STEPS as usize {
            let terms = strategy.bands().zip(exact[..t].iter().rev());
            let sum: BigInt = terms.map(|(d, c)| BigInt::from(d) * c).sum();
            exact.push(-(sum >> COEFFICIENT_BITS));
        }
        let squares: BigInt = exact.iter().map(|c| c * c).sum();
        let charged = strategy.geometry().max_norm_squared;
        let charged_exact = BigInt::from((charged * 2f64.powi(100)) as i128) << 700;
        assert!(charged_exact >= squares && charged_exact < &squares + (&squares >> 40), "{charged}");
    }

    #[test]
    fn long_or_growing_inverses_are_refused() {
        let check = |name: &str, workload: &str, horizon, part: &str| {
            let error = build(name, &workload.parse().unwrap(), Some(horizon)).map(|_| ());
            let message = error.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check("banded-inverse-square-root:1048576", "prefix", 1 << 20, "16384");
        check("banded-inverse-square-root:33", "window:32", 1 << 16, "grows too much");
        check("normalized-square-root", "prefix", 1 << 18, "131072");
        check("log-perturbed-root", "window:3", 10, "`prefix` and `average`");
    }
}
