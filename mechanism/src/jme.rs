//! The joint moment mechanism: what one release of counts, first and second moments costs, and its noise.
//!
//! # The mechanism
//! With the cells' sums n (counts), u = Σx and S = Σxxᵀ (or Σx∘x), a strategy C and a noise multiplier σ, the
//! release is
//!
//! ```text
//! y⁰ = C n + N(0, σ²s²/κ²)      y¹ = C u + N(0, σ²s²)      y² = C S + N(0, σ²s²/λ)
//! ```
//!
//! where s is the joint sensitivity ([`joint_sensitivity_squared`], in real units) of `(κ n, u, √λ S)`: one
//! Gaussian mechanism of noise multiplier σ. This is λ-JME, Algorithms 1 and 3 of "Continual Release Moment
//! Estimation with Differential Privacy", with a private count beside it, and with s for the neighbours in
//! force.
//!
//! # Half the samples for a symmetric matrix
//! Only the upper triangle of S is released, with off-diagonal noise of half the variance. The distance that
//! the sensitivity bounds is Frobenius, `‖ΔS‖² = Σ_i ΔS_ii² + 2 Σ_{i<j} ΔS_ij²`. With variances τ² and τ²/2
//! the privacy loss of the triangle is `Σ_i ΔS_ii²/(2τ²) + Σ_{i<j} ΔS_ij²/(2·τ²/2) = ‖ΔS‖²/(2τ²)`: that of
//! the full matrix with noise τ everywhere, then averaged with its transpose.
//!
//! # In integers
//! A record of norm ζ is 2²⁰ in integers, C has coefficients in units of 2⁻⁴⁰, so encoded sums are integers
//! in units of 2⁻⁴⁰ (count), ζ2⁻⁶⁰ (first) and ζ²2⁻⁸⁰ (second moments): the *grid*. The noise is a discrete
//! Gaussian on the grid. Counted in grid units its deviation does not depend on ζ, because neither do `ν =
//! λζ²`, `c = κ²/ζ²` and `s/ζ`; it is rounded up to a [`NoiseScale`]. A discrete Gaussian of parameter σ_q on
//! integers at distance Δ_q, coordinate by coordinate, is ρ-zCDP with exactly `ρ = Σ_q Δ_q²/(2σ_q²)`
//! (Canonne, Kamath, Steinke 2020, on the multivariate discrete Gaussian), and here `ρ ≤ 1/(2σ²)`.

use crate::moments::{Layout, RECORD_BITS};
use crate::noise::scale::{NoiseScale, NoiseScaleError};
use crate::sensitivity::{
    MomentWeights, Neighbours, OutOfRange, joint_sensitivity_squared, positive, rounded_up,
};
use crate::strategy::{COEFFICIENT_BITS, ColumnGeometry};
use std::iter;
use thiserror::Error;

#[cfg(test)]
mod attack;

/// What a joint mechanism is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointParameters {
    /// Dimension of a record and the kind of second moments.
    pub layout: Layout,
    /// Which streams must be hard to tell apart.
    pub neighbours: Neighbours,
    /// ζ: no record is longer. Real units, between 2⁻³⁰⁰ and 2³⁰⁰.
    pub clip_norm: f64,
    /// σ: noise deviation over sensitivity, above 0.
    pub noise_multiplier: f64,
    /// Of the strategy C.
    pub geometry: ColumnGeometry,
    /// λ, above 0, in real units (those of 1/ζ²): ν = λζ². By default that of [`MomentWeights::default_for`].
    pub second_moment_weight: Option<f64>,
    /// κ, above 0, in real units (those of ζ): c = κ²/ζ². By default that of [`MomentWeights::default_for`].
    /// Not to be given where counts are public.
    pub count_weight: Option<f64>,
}

/// Why parameters do not make a mechanism.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum JointMechanismError {
    /// A number is not what it must be.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A weight for a count that needs none.
    #[error(
        "count_weight is {count_weight:?}, but counts are public when records are replaced in place: leave it out, or choose other neighbours"
    )]
    CountIsPublic {
        /// The weight that was given.
        count_weight: f64,
    },
    /// The sampler cannot draw the noise of some moment.
    #[error("{moment}: {source}")]
    Scale {
        /// Which moment.
        moment: &'static str,
        /// What is wrong with its noise.
        source: NoiseScaleError,
    },
}

/// Noise of one released coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoordinateNoise {
    /// Real value of one unit of the integer grid.
    pub unit: f64,
    /// Deviation of the discrete Gaussian in grid units; `None` when the coordinate is public and exact.
    pub scale: Option<NoiseScale>,
}

impl CoordinateNoise {
    /// Standard deviation of the noise of one released value of `C·sums`, in real units; 0 when exact.
    pub fn standard_deviation(&self) -> f64 {
        self.scale.map_or(0.0, |scale| scale.sigma() * self.unit)
    }

    /// ρ of zero-concentrated differential privacy for values this many grid units apart, rounded up.
    fn concentrated_loss(&self, difference: i128) -> f64 {
        match self.scale {
            _ if difference == 0 => 0.0,
            Some(scale) => rounded_up((difference as f64 / scale.sigma()).powi(2) / 2.0),
            None => f64::INFINITY,
        }
    }
}

/// An immutable, validated description of the release of one pipeline; the head of this module says what it
/// means.
///
/// ```
/// use hushflow_mechanism::jme::{JointMechanism, JointParameters};
/// use hushflow_mechanism::moments::{Layout, SecondMoment};
/// use hushflow_mechanism::sensitivity::Neighbours;
/// use hushflow_mechanism::strategy::ColumnGeometry;
///
/// let mechanism = JointMechanism::new(JointParameters {
///     layout: Layout { dimension: 3, second: SecondMoment::Full },
///     neighbours: Neighbours::ReplaceOne,
///     clip_norm: 5.0,
///     noise_multiplier: 1.0,
///     geometry: ColumnGeometry::exact(1.0, 0.0),
///     second_moment_weight: None,
///     count_weight: None,
/// })?;
/// // Twice the clip norm, as for first moments alone: the count and the second moments are free.
/// assert!((mechanism.sensitivity() - 10.0).abs() < 1e-9);
/// let first = mechanism.noise()[1].standard_deviation();
/// assert!((first - 10.0).abs() < 1e-8);
/// # Ok::<(), hushflow_mechanism::jme::JointMechanismError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct JointMechanism {
    parameters: JointParameters,
    weights: MomentWeights,
    relative_sensitivity: f64,
    noise: Vec<CoordinateNoise>,
}

impl JointMechanism {
    /// Computes weights, sensitivity and noise.
    ///
    /// # Errors
    /// [`JointMechanismError`] when a parameter is out of its range or the noise out of the sampler's.
    pub fn new(parameters: JointParameters) -> Result<Self, JointMechanismError> {
        let JointParameters { layout, neighbours, geometry, .. } = parameters;
        check_clip_norm(parameters.clip_norm)?;
        positive("noise_multiplier", parameters.noise_multiplier)?;
        let weights = relative_weights(&parameters)?;
        let squared = joint_sensitivity_squared(neighbours, layout.dimension, geometry, weights)?;
        let rounding = rounding_squared(layout, geometry, weights).sqrt();
        let relative_sensitivity = rounded_up(squared.sqrt() + rounding);
        let deviation = parameters.noise_multiplier * relative_sensitivity;
        let noise = noise_of(layout, parameters.clip_norm, deviation, weights)?;
        Ok(Self { parameters, weights, relative_sensitivity, noise })
    }

    /// What the mechanism was made of, defaults not filled in.
    pub fn parameters(&self) -> &JointParameters {
        &self.parameters
    }

    /// ν and c, defaults filled in.
    pub fn weights(&self) -> MomentWeights {
        self.weights
    }

    /// λ = ν/ζ².
    pub fn second_moment_weight(&self) -> f64 {
        self.weights.second / self.parameters.clip_norm.powi(2)
    }

    /// κ = ζ√c; `None` when counts are public.
    pub fn count_weight(&self) -> Option<f64> {
        self.noise[Layout::COUNT].scale.map(|_| self.weights.count.sqrt() * self.parameters.clip_norm)
    }

    /// Joint sensitivity s of `(κ n, u, √λ S)` in real units, rounded up.
    pub fn sensitivity(&self) -> f64 {
        rounded_up(self.relative_sensitivity * self.parameters.clip_norm)
    }

    /// Share of the joint sensitivity that is due to the rounding of a recursive encoder.
    pub fn rounding_share(&self) -> f64 {
        let JointParameters { layout, geometry, .. } = self.parameters;
        rounding_squared(layout, geometry, self.weights).sqrt() / self.relative_sensitivity
    }

    /// Noise of each coordinate, in the order of the [`Layout`].
    pub fn noise(&self) -> &[CoordinateNoise] {
        &self.noise
    }

    /// ρ of zero-concentrated differential privacy between two streams whose encoded sums differ by
    /// `difference`, rounded up: rows of one value per coordinate, one row after another for any number of
    /// epochs and keys. It is at most `1/(2σ²)` for neighbours.
    pub fn concentrated_loss(&self, difference: &[i128]) -> f64 {
        let coordinates = self.noise.iter().cycle();
        let losses = difference.iter().zip(coordinates).map(|(&value, noise)| noise.concentrated_loss(value));
        losses.filter(|&loss| loss > 0.0).fold(0.0, |sum, loss| (sum + loss).next_up())
    }
}

fn check_clip_norm(value: f64) -> Result<(), OutOfRange> {
    let expected = "a number between 2^-300 and 2^300";
    let range = 2_f64.powi(-300)..=2_f64.powi(300);
    if range.contains(&value) { Ok(()) } else { Err(OutOfRange { name: "clip_norm", value, expected }) }
}

/// ν and c. Whatever rounding happens here is harmless: the mechanism is the one with the rounded weights.
fn relative_weights(parameters: &JointParameters) -> Result<MomentWeights, JointMechanismError> {
    let JointParameters { layout, neighbours, clip_norm, .. } = *parameters;
    let mut weights = MomentWeights::default_for(neighbours, layout.dimension);
    if let Some(lambda) = parameters.second_moment_weight {
        let root = positive("second_moment_weight", lambda)?.sqrt() * clip_norm;
        weights.second = positive("second_moment_weight times squared clip_norm", root * root)?;
    }
    if let Some(count_weight) = parameters.count_weight {
        if neighbours.counts_are_public() {
            return Err(JointMechanismError::CountIsPublic { count_weight });
        }
        let ratio = positive("count_weight", count_weight)? / clip_norm;
        weights.count = positive("squared ratio of count_weight and clip_norm", ratio * ratio)?;
    }
    Ok(weights)
}

/// What the rounding of a recursive encoder can add to the distance of two encoded streams, in units of ζ: by the
/// triangle inequality it adds to the sensitivity. Neighbours differ in two cells at most, so in two keys, and where
/// they do not differ their encoders round alike. The units of count, first and second moments are 1, ζ2⁻²⁰ and ζ²2⁻⁴⁰.
fn rounding_squared(layout: Layout, geometry: ColumnGeometry, weights: MomentWeights) -> f64 {
    let unit = 0.5_f64.powi(2 * RECORD_BITS as i32);
    let entries = |(i, j)| if i == j { 1.0 } else { 2.0 };
    let second: f64 = layout.second_entries().map(entries).sum();
    let squares = weights.count + layout.dimension as f64 * unit + weights.second * second * unit * unit;
    2.0 * geometry.rounding_squared * squares
}

/// Noise of all coordinates when first moments get `deviation`, in units of ζ.
fn noise_of(
    layout: Layout,
    clip_norm: f64,
    deviation: f64,
    weights: MomentWeights,
) -> Result<Vec<CoordinateNoise>, JointMechanismError> {
    let noise = |moment, degree: u32, weight: f64| -> Result<_, JointMechanismError> {
        let grid = (1_u128 << (degree * RECORD_BITS + COEFFICIENT_BITS)) as f64;
        let wanted = rounded_up(deviation / weight.sqrt() * grid);
        let scale =
            NoiseScale::at_least(wanted).map_err(|source| JointMechanismError::Scale { moment, source })?;
        Ok(CoordinateNoise { unit: clip_norm.powi(degree as i32) / grid, scale: Some(scale) })
    };
    let count = if weights.count > 0.0 {
        noise("count", 0, weights.count)?
    } else {
        CoordinateNoise { unit: 1.0 / (1_u128 << COEFFICIENT_BITS) as f64, scale: None }
    };
    let first = noise("first moments", 1, 1.0)?;
    let diagonal = noise("second moments", 2, weights.second)?;
    let off_diagonal = noise("second moments off the diagonal", 2, 2.0 * weights.second)?;
    let second = layout.second_entries().map(|(i, j)| if i == j { diagonal } else { off_diagonal });
    Ok(iter::once(count).chain(iter::repeat_n(first, layout.dimension)).chain(second).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::SecondMoment;
    use serde_json::Value;

    fn parameters(neighbours: Neighbours, dimension: usize) -> JointParameters {
        JointParameters {
            layout: Layout { dimension, second: SecondMoment::Full },
            neighbours,
            clip_norm: 3.0,
            noise_multiplier: 2.0,
            geometry: ColumnGeometry::exact(2.25, 0.0),
            second_moment_weight: None,
            count_weight: None,
        }
    }

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found}, expected {expected}");
    }

    /// Weights, sensitivity and noise levels are the paper's, for records replaced in place.
    #[test]
    fn agrees_with_the_reference_values() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../tests/vectors/jme_errors.json")).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        let mut checked = 0;
        for case in cases.iter().filter(|case| case["input"]["c"] == "identity") {
            let number = |value: &Value| value.as_f64().unwrap();
            let (input, expected) = (&case["input"], &case["expected"]["jme"]);
            let mechanism = JointMechanism::new(JointParameters {
                clip_norm: number(&input["zeta"]),
                noise_multiplier: number(&input["sigma_eps_delta"]),
                geometry: ColumnGeometry::exact(1.0, 0.0),
                ..parameters(Neighbours::ReplaceOneInPlace, input["d"].as_u64().unwrap() as usize)
            })
            .unwrap();
            close(mechanism.second_moment_weight(), number(&expected["lambda"]));
            close(mechanism.sensitivity(), number(&expected["sens"]));
            let layout = mechanism.parameters().layout;
            let deviation = |place: usize| mechanism.noise()[place].standard_deviation();
            close(deviation(layout.first().start), number(&expected["noise_std_1"]));
            close(deviation(layout.second().start), number(&expected["noise_std_2"]));
            checked += 1;
        }
        assert!(checked >= 2);
    }

    #[test]
    fn noise_levels_are_those_of_one_gaussian_mechanism() {
        let check = |parameters: JointParameters, sensitivity: f64| {
            let mechanism = JointMechanism::new(parameters).unwrap();
            close(mechanism.sensitivity(), sensitivity);
            assert!(mechanism.sensitivity() >= sensitivity);
            let total = parameters.noise_multiplier * mechanism.sensitivity();
            let lambda = mechanism.second_moment_weight();
            let layout = parameters.layout;
            assert_eq!(mechanism.noise().len(), layout.coordinates());
            let count = mechanism.count_weight().map_or(0.0, |kappa| total / kappa);
            let of_entry = |(i, j)| total / if i == j { lambda } else { 2.0 * lambda }.sqrt();
            let expected = iter::once(count)
                .chain(iter::repeat_n(total, layout.dimension))
                .chain(layout.second_entries().map(of_entry));
            for (noise, expected) in mechanism.noise().iter().zip(expected) {
                let found = noise.standard_deviation();
                assert!(found >= expected * (1.0 - 1e-15) && found <= expected * (1.0 + 0.5_f64.powi(30)));
            }
        };
        let replaced = parameters(Neighbours::ReplaceOne, 3);
        check(replaced, 9.0);
        check(parameters(Neighbours::ReplaceOne, 1), 9.0);
        check(parameters(Neighbours::ReplaceOneInPlace, 3), 9.0);
        check(parameters(Neighbours::ZeroOut, 3), 4.5 * 2_f64.sqrt());
        let geometry = ColumnGeometry::exact(2.25, 0.75);
        check(JointParameters { geometry, ..replaced }, 3.0 * 12_f64.sqrt());
        // ν = 2, c = 1: 2(1 + ν + c) = 8.
        let weighted = JointParameters {
            second_moment_weight: Some(2.0 / 9.0),
            count_weight: Some(3.0),
            layout: Layout { dimension: 3, second: SecondMoment::Diagonal },
            ..replaced
        };
        check(weighted, 4.5 * 8_f64.sqrt());
    }

    #[test]
    fn integer_scales_do_not_depend_on_the_clip_norm() {
        let scales = |clip_norm| {
            let mechanism =
                JointMechanism::new(JointParameters { clip_norm, ..parameters(Neighbours::ReplaceOne, 2) });
            mechanism.unwrap().noise().iter().map(|noise| noise.scale).collect::<Vec<_>>()
        };
        assert_eq!(scales(1.0), scales(1e-80));
        assert_eq!(scales(1.0), scales(1e80));
    }

    #[test]
    fn public_counts_are_exact_and_revealed_by_any_difference() {
        let mechanism = JointMechanism::new(parameters(Neighbours::ReplaceOneInPlace, 2)).unwrap();
        assert_eq!(mechanism.count_weight(), None);
        assert_eq!(mechanism.noise()[Layout::COUNT].scale, None);
        assert_eq!(mechanism.noise()[Layout::COUNT].standard_deviation(), 0.0);
        assert_eq!(mechanism.concentrated_loss(&[1]), f64::INFINITY);
        assert!(mechanism.concentrated_loss(&[0, 1]) > 0.0);
    }

    #[test]
    fn refuses_with_a_reason() {
        let base = parameters(Neighbours::ReplaceOne, 2);
        let check = |parameters, message: &str| {
            let found = JointMechanism::new(parameters).unwrap_err().to_string();
            assert!(found.starts_with(message), "{found}");
        };
        let without_columns = Layout { dimension: 0, ..base.layout };
        check(JointParameters { layout: without_columns, ..base }, "dimension is 0.0, expected at least 1");
        for clip_norm in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-100] {
            check(JointParameters { clip_norm, ..base }, "clip_norm is");
        }
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            check(JointParameters { noise_multiplier: value, ..base }, "noise_multiplier is");
            let second_moment_weight = Some(value);
            check(JointParameters { second_moment_weight, ..base }, "second_moment_weight is");
            check(JointParameters { count_weight: Some(value), ..base }, "count_weight is");
        }
        check(JointParameters { second_moment_weight: Some(1e-300), ..base }, "second moments: noise of");
        check(JointParameters { noise_multiplier: 1e-9, ..base }, "count: noise of");
        check(JointParameters { noise_multiplier: 1e11, ..base }, "second moments: noise of");
        let in_place = JointParameters { neighbours: Neighbours::ReplaceOneInPlace, ..base };
        check(
            JointParameters { count_weight: Some(1.0), ..in_place },
            "count_weight is 1.0, but counts are public",
        );
    }
}
