//! Moment mechanisms: the privacy cost and the noise of a release of counts, first and second
//! moments, for every method.
//!
//! # One release for all methods
//! With the cells' sums n (counts), u = Σx and S = Σxxᵀ (or Σx∘x), strategies C₁ and C₂ and a noise
//! multiplier σ, the release is
//!
//! ```text
//! y⁰ = C₁n + N(0, σ²s²/κ²)      y¹ = C₁u + N(0, σ²s²)      y² = C₂S + N(0, σ²s²/λ)
//! ```
//!
//! where s bounds how far neighbours move `(κ C₁n, C₁u, √λ C₂S)`: one Gaussian mechanism of noise
//! multiplier σ. The methods differ in
//!
//! - κ, λ and the bound s: their [`JointClaim`];
//! - the largest contribution of a record to the sums ([`MomentMechanism::clipper`]);
//! - whether second moments are released at all.
//!
//! | [`Method`] | source |
//! |---|---|
//! | `jme` | Algorithm 1 |
//! | `ime` | Algorithm 4 |
//! | `cs` | Algorithm 5 |
//! | `pp` | Algorithm 6 |
//! | `batch-squares` | Algorithm 2, own bound |
//! | `joint-clip` | the heuristic of Section 5 |
//!
//! Algorithms and sections are those of "Continual Release Moment Estimation with Differential
//! Privacy".
//!
//! # Half the samples for a symmetric matrix
//! Only the upper triangle of S is released, with off-diagonal noise of half the variance. The
//! distance that the sensitivity bounds is Frobenius, `‖ΔS‖² = Σ_i ΔS_ii² + 2 Σ_{i<j} ΔS_ij²`. With
//! variances τ² and τ²/2 the privacy loss of the triangle is
//! `Σ_i ΔS_ii²/(2τ²) + Σ_{i<j} ΔS_ij²/(2·τ²/2) = ‖ΔS‖²/(2τ²)`. The loss is the same for the full
//! matrix with noise τ everywhere, which is then averaged with its transpose.
//!
//! # In integers
//! A record of norm ζ is 2²⁰ in integers, and C has coefficients in units of 2⁻⁴⁰. So encoded sums
//! are integers in units of 2⁻⁴⁰ (count), ζ2⁻⁶⁰ (first) and ζ²2⁻⁸⁰ (second moments): the *grid*.
//! The noise is a discrete Gaussian on the grid. Its deviation in grid units depends on `ν = λζ²`,
//! `c = κ²/ζ²` and `s/ζ`, but not on ζ itself. The deviation is rounded up to a
//! [`NoiseScale`](crate::noise::NoiseScale). (Encoded sums that are [rounded](Strategies::rounded)
//! and noise that is [correlated](Strategies::correlated) ahead of the sums have grids of their
//! own: [`CoordinateNoise::sum_bits`].) A discrete Gaussian of parameter σ_q on integers at
//! distance Δ_q, coordinate by coordinate, is ρ-zCDP with exactly `ρ = Σ_q Δ_q²/(2σ_q²)` (Canonne,
//! Kamath, Steinke 2020, on the multivariate discrete Gaussian), and here `ρ ≤ 1/(2σ²)`.

#[cfg(test)]
mod attack;
mod bins;
#[cfg(test)]
mod entity_attack;
mod error;
mod geometry;
mod matrix;
pub mod method;
mod noise;
mod parts;
mod sent;
#[cfg(test)]
mod tests;

pub use error::MechanismError;
pub use geometry::MomentGeometry;
pub use matrix::{MatrixMechanism, Strategies};
pub use method::Method;
pub use noise::CoordinateNoise;
use noise::RoundingLoss;
pub(crate) use parts::{MomentDecoder, MomentEncoder};

use crate::moments::{Bins, Clipper, Layout};
use crate::sensitivity::{MomentWeights, Neighbours, OutOfRange, positive, rounded_up};
use crate::strategy::Correlation;

/// The parameters of a mechanism, except its strategies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentParameters {
    /// The method that makes moments private.
    pub method: Method,
    /// Dimension of a record and the requested kind of second moments.
    pub layout: Layout,
    /// The streams that must be hard to tell apart.
    pub neighbours: Neighbours,
    /// ζ: the bound of a record's norm. Real units, between 2⁻³⁰⁰ and 2³⁰⁰. For
    /// [`Method::JointClip`] it is R, the bound of a record and its square together.
    pub clip_norm: f64,
    /// σ: noise deviation divided by sensitivity, above 0.
    pub noise_multiplier: f64,
    /// λ (τ of [`Method::Cs`] and [`Method::JointClip`]), above 0, in real units (those of 1/ζ²):
    /// ν = λζ². `None` selects the method's default. Must be `None` where the method leaves no
    /// choice: [`Method::Ime`], [`Method::Pp`], or no second moments.
    pub second_moment_weight: Option<f64>,
    /// κ, above 0, in real units (those of ζ): c = κ²/ζ². `None` selects the method's default. Must
    /// be `None` where counts are public.
    pub count_weight: Option<f64>,
    /// w, above 0: weight of the bins of all histograms together, in units of ζ². `None` selects
    /// ½. Must be `None` without histograms.
    pub bin_weight: Option<f64>,
}

impl MomentParameters {
    /// Returns the layout of the release: without second moments where the method derives them from
    /// first moments.
    pub fn released_layout(&self) -> Layout {
        if self.method == Method::Pp { self.layout.without_second() } else { self.layout }
    }

    /// Returns the method's claim about the sensitivity, for any noise.
    ///
    /// # Errors
    /// [`MechanismError`] if a parameter is out of its range.
    pub fn claim(&self, geometry: &MomentGeometry) -> Result<JointClaim, MechanismError> {
        self.check()?;
        let claim = self.method.claim(self, geometry)?;
        let mut squared = claim.squared;
        if let Some(weight) = self.sent_weight() {
            squared = rounded_up(squared + weight * geometry.sent_records(self.neighbours)?);
        }
        if let Some(weight) = self.relative_bin_weight() {
            let of_one = weight * geometry.bins(self.neighbours)?;
            squared = rounded_up(squared + rounded_up(of_one * f64::from(self.layout.bins.histograms)));
        }
        Ok(JointClaim { squared, ..claim })
    }

    /// Returns e: the weight of the bins of one histogram (`bins.rs`). `None` without histograms.
    fn relative_bin_weight(&self) -> Option<f64> {
        let histograms = f64::from(self.layout.bins.histograms);
        (histograms > 0.0).then(|| self.bin_weight.unwrap_or(bins::WEIGHT) / histograms)
    }

    /// Returns e: the weight of the number of sent records (`sent.rs`). `None` where that is not
    /// released, or exact.
    fn sent_weight(&self) -> Option<f64> {
        self.layout.sent.filter(|_| !self.neighbours.counts_are_public()).map(|_| sent::WEIGHT)
    }

    /// Returns ν = λζ², or the default. Rounding is harmless here, because the mechanism uses the
    /// rounded weight.
    pub(crate) fn relative_second_weight(&self, default: f64) -> Result<f64, OutOfRange> {
        let Some(lambda) = self.second_moment_weight else { return Ok(default) };
        let root = positive("second_moment_weight", lambda)?.sqrt() * self.clip_norm;
        positive("second_moment_weight times squared clip_norm", root * root)
    }

    /// Returns c = κ²/ζ², or the default; 0 where counts are public.
    pub(crate) fn relative_count_weight(&self, default: f64) -> Result<f64, MechanismError> {
        match self.count_weight {
            Some(count_weight) if self.neighbours.counts_are_public() => {
                Err(MechanismError::CountIsPublic { count_weight })
            }
            Some(count_weight) => {
                let ratio = positive("count_weight", count_weight)? / self.clip_norm;
                Ok(positive("squared ratio of count_weight and clip_norm", ratio * ratio)?)
            }
            None => Ok(if self.neighbours.counts_are_public() { 0.0 } else { default }),
        }
    }

    fn check(&self) -> Result<(), MechanismError> {
        let Self { method, layout, .. } = *self;
        check_clip_norm(self.clip_norm)?;
        method.check()?;
        if method.needs_second_moments() && layout.second_len() == 0 && layout.dimension > 0 {
            return Err(MechanismError::NoSecondMoments { method });
        }
        match self.bin_weight {
            Some(weight) if layout.bins.histograms > 0 => positive("histogram_weight", weight).map(drop)?,
            Some(bin_weight) => return Err(MechanismError::BinWeight { bin_weight }),
            None => {}
        }
        match self.second_moment_weight {
            Some(second_moment_weight) if !(method.weighs_second_moments() && layout.second_len() > 0) => {
                Err(MechanismError::SecondMomentWeight { method, second_moment_weight })
            }
            _ => Ok(()),
        }
    }
}

/// A method's claim: under `weights`, no neighbours move the encoded moments further than
/// `squared`, excluding the rounding of recursive encoders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointClaim {
    /// ν and c, the weights of second moments and of the count.
    pub weights: MomentWeights,
    /// Bound of `c‖C₁Δn‖² + ‖C₁Δu‖² + ν‖C₂ΔS‖²` with lengths in units of ζ, plus the terms of the
    /// sent records and of the bins, rounded up.
    pub squared: f64,
}

/// An immutable, validated description of the noise of one release, as defined at the head of this
/// module.
///
/// The type that runs is [`MatrixMechanism`], which also holds the strategies.
///
/// ```
/// use hushflow_mechanism::mechanism::{Method, MomentGeometry, MomentMechanism, MomentParameters};
/// use hushflow_mechanism::moments::{Layout, SecondMoment};
/// use hushflow_mechanism::sensitivity::Neighbours;
/// use hushflow_mechanism::strategy::ColumnGeometry;
///
/// let parameters = MomentParameters {
///     method: Method::Jme,
///     layout: Layout::new(3, SecondMoment::Full),
///     neighbours: Neighbours::ReplaceOne,
///     clip_norm: 5.0,
///     noise_multiplier: 1.0,
///     second_moment_weight: None,
///     count_weight: None,
///     bin_weight: None,
/// };
/// let identity = MomentGeometry::shared(ColumnGeometry::exact(1.0, 0.0));
/// let mechanism = MomentMechanism::new(parameters, &identity)?;
/// // Twice the clip norm, as for first moments alone: the count and the second moments are free.
/// assert!((mechanism.sensitivity() - 10.0).abs() < 1e-9);
/// let first = mechanism.noise()[1].standard_deviation();
/// assert!((first - 10.0).abs() < 1e-8);
/// // Algorithm 5 of the paper uses a looser bound.
/// let parameters = MomentParameters { method: Method::Cs, ..parameters };
/// let concatenated = MomentMechanism::new(parameters, &identity)?;
/// assert!((concatenated.sensitivity() - 10.0 * 1.5f64.sqrt()).abs() < 1e-9);
/// # Ok::<(), hushflow_mechanism::mechanism::MechanismError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MomentMechanism {
    parameters: MomentParameters,
    claim: JointClaim,
    rounding: RoundingLoss,
    /// m: the most records of an entity in a step, which the noise multiplier contains.
    records_at_once: u32,
    /// s/ζ, the sensitivity in units of the clip norm.
    relative_sensitivity: f64,
    noise: Vec<CoordinateNoise>,
}

impl MomentMechanism {
    /// Computes weights, sensitivity and noise.
    ///
    /// # Errors
    /// [`MechanismError`] if a parameter is out of its range or the noise out of the sampler's.
    pub fn new(parameters: MomentParameters, geometry: &MomentGeometry) -> Result<Self, MechanismError> {
        positive("noise_multiplier", parameters.noise_multiplier)?;
        let claim = parameters.claim(geometry)?;
        let rounding = RoundingLoss::Encoders(noise::of_encoders(&parameters, claim.weights, geometry));
        Self::with_rounding(parameters, claim, rounding, 1)
    }

    /// As [`new`](Self::new), for encoded sums that are [rounded](Strategies::rounded) to a coarser
    /// grid over `steps` steps.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the rounding would cost more than a hundredth of the
    /// sensitivity.
    pub fn rounded(
        parameters: MomentParameters,
        geometry: &MomentGeometry,
        steps: u64,
    ) -> Result<Self, MechanismError> {
        positive("noise_multiplier", parameters.noise_multiplier)?;
        let claim = parameters.claim(geometry)?;
        let encoders = noise::of_encoders(&parameters, claim.weights, geometry);
        let rounding = noise::of_grid(&parameters, encoders, geometry.participations(), steps);
        Self::with_rounding(parameters, claim, rounding.unwrap_or(RoundingLoss::Encoders(encoders)), 1)
    }

    fn with_rounding(
        parameters: MomentParameters,
        claim: JointClaim,
        rounding: RoundingLoss,
        records_at_once: u32,
    ) -> Result<Self, MechanismError> {
        let relative_sensitivity = rounding.relative_sensitivity(claim, parameters.noise_multiplier)?;
        let noise = noise::of_moments(&parameters, claim, rounding, records_at_once)?;
        Ok(Self { parameters, claim, rounding, records_at_once, relative_sensitivity, noise })
    }

    /// As [`new`](Self::new), for noise that is correlated ahead of the sums over `steps` steps.
    fn correlated(
        parameters: MomentParameters,
        geometry: &MomentGeometry,
        correlations: [Correlation; 2],
        steps: u64,
    ) -> Result<Self, MechanismError> {
        positive("noise_multiplier", parameters.noise_multiplier)?;
        let claim = parameters.claim(geometry)?;
        let rounding = noise::of_correlators(&parameters, correlations, geometry.participations(), steps);
        Self::with_rounding(parameters, claim, rounding.ok_or(MechanismError::Correlation)?, 1)
    }

    /// Returns the same mechanism for entities of up to m records in a step. The noise multiplier
    /// must already contain the factor m; only the noise of the number of sent records changes.
    ///
    /// # Errors
    /// As [`with_noise_multiplier`](Self::with_noise_multiplier).
    pub fn for_records_at_once(&self, records: u32) -> Result<Self, MechanismError> {
        Self::with_rounding(self.parameters, self.claim, self.rounding, records.max(1))
    }

    /// Returns m: the most records of an entity in a step.
    pub fn records_at_once(&self) -> u32 {
        self.records_at_once
    }

    /// Returns the same mechanism with another noise multiplier.
    ///
    /// # Errors
    /// [`MechanismError`] for a noise multiplier that is not above 0, or whose noise the sampler
    /// can't draw.
    pub fn with_noise_multiplier(&self, noise_multiplier: f64) -> Result<Self, MechanismError> {
        let parameters = MomentParameters { noise_multiplier, ..self.parameters };
        positive("noise_multiplier", noise_multiplier)?;
        Self::with_rounding(parameters, self.claim, self.rounding, self.records_at_once)
    }

    /// Returns a mechanism of the same weights and noise for records of fewer columns. If this
    /// mechanism has two columns or more, `dimension` must be at least 2: from two columns on, the
    /// sensitivity does not depend on their number.
    pub(crate) fn with_fewer_columns(&self, dimension: usize) -> Result<Self, MechanismError> {
        let layout = Layout { dimension, ..self.parameters.layout };
        let parameters = MomentParameters { layout, ..self.parameters };
        Self::with_rounding(parameters, self.claim, self.rounding, self.records_at_once)
    }

    /// Returns the parameters, with defaults not filled in.
    pub fn parameters(&self) -> &MomentParameters {
        &self.parameters
    }

    /// Returns the positions of the coordinates of one key in a release.
    pub fn layout(&self) -> Layout {
        self.parameters.released_layout()
    }

    /// Returns the claim about the sensitivity, with defaults filled in.
    pub fn claim(&self) -> JointClaim {
        self.claim
    }

    /// Returns λ = ν/ζ²; `None` where no second moments are released.
    pub fn second_moment_weight(&self) -> Option<f64> {
        let lambda = self.claim.weights.second / self.parameters.clip_norm.powi(2);
        (self.layout().second_len() > 0).then_some(lambda)
    }

    /// Returns κ = ζ√c; `None` when counts are public.
    pub fn count_weight(&self) -> Option<f64> {
        self.noise[Layout::COUNT].scale.map(|_| self.claim.weights.count.sqrt() * self.parameters.clip_norm)
    }

    /// Returns s: the bound of how far neighbours move `(κ C₁n, C₁u, √λ C₂S)`, in real units,
    /// rounded up.
    pub fn sensitivity(&self) -> f64 {
        rounded_up(self.relative_sensitivity * self.parameters.clip_norm)
    }

    /// Returns the share of the sensitivity that is due to the rounding of a recursive encoder, of
    /// encoded sums, or of a correlator.
    pub fn rounding_share(&self) -> f64 {
        match self.rounding {
            RoundingLoss::Encoders(added) => added / self.relative_sensitivity,
            RoundingLoss::Grid(added, deviations) => {
                added / self.relative_sensitivity + deviations * self.parameters.noise_multiplier
            }
            RoundingLoss::Correlators(deviations) => deviations * self.parameters.noise_multiplier,
        }
    }

    /// Adapts a clipper to the records that the sensitivity is for: it counts unusable records
    /// where counts are public, and clips records together with their squares where that is the
    /// method.
    ///
    /// # Errors
    /// [`MechanismError::Clipper`] for a clipper of another norm or number of columns.
    pub fn clipper(&self, clipper: Clipper) -> Result<Clipper, MechanismError> {
        let MomentParameters { method, layout, clip_norm, neighbours, .. } = self.parameters;
        if (clipper.clip_norm(), clipper.width()) != (clip_norm, layout.dimension) {
            let (found_norm, found_dimension) = (clipper.clip_norm(), clipper.width());
            return Err(MechanismError::Clipper { found_norm, found_dimension, clip_norm, layout });
        }
        let (found, expected) = (Bins::of(clipper.histograms()), layout.bins);
        if found != expected {
            return Err(MechanismError::Bins { found, expected });
        }
        let clipper = if neighbours.counts_are_public() { clipper.counting_unusable() } else { clipper };
        match method {
            Method::JointClip => Ok(clipper.jointly(self.claim.weights.second)?),
            _ => Ok(clipper),
        }
    }

    /// Returns the noise of each coordinate, in the order of the [`Layout`].
    pub fn noise(&self) -> &[CoordinateNoise] {
        &self.noise
    }

    /// Returns ρ of zero-concentrated differential privacy between two streams whose encoded sums
    /// differ by `difference`, rounded up. `difference` has rows of one value per coordinate, one
    /// row after another for any number of epochs and keys. ρ is at most `1/(2σ²)` for neighbours.
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
