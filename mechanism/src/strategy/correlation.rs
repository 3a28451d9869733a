//! Correlates noise in integers before the sums are added.
//!
//! A reader of a release `C x + z` decodes it to `x + C⁻¹ z`. If the diagonal of C is one, that sum
//! can be released directly. With integer sums x, whose unit is K units of the grid, and integer
//! noise z,
//!
//! ```text
//! u_t = z_t − R_t(u_1, …, u_(t−1)),        w_t = K x_t + u_t
//! ```
//!
//! where R_t is an integer near `L_t(u) = Σ_(s<t) C[t,s] u_s`. The w are released. Only the noise u
//! is kept from step to step. So no state depends on the data, all work except one addition
//! precedes the sums, and the output needs no decoding.
//!
//! # Privacy
//! *Given the past, w_t is an integer that depends on the data plus a discrete Gaussian.* Since
//! `u_s = w_s − K x_s`,
//!
//! ```text
//! w_t = v_t + z_t,        v_t = K x_t − R_t(w_1 − K x_1, …, w_(t−1) − K x_(t−1))
//! ```
//!
//! and z_t is independent of the past. So the proof of [`release`](crate::release) applies to this
//! v if, for neighbours and *on every path w*, v moves no further than the sensitivity. L is
//! linear, so if R errs by at most e,
//!
//! ```text
//! |Δv_t − K (CΔx)_t| = |(R_t − L_t)(w − Kx) − (R_t − L_t)(w − Kx′)| ≤ 2e
//! ```
//!
//! if the streams differ before step t in that coordinate, and 0 if they do not. By the triangle
//! inequality, n steps of all coordinates of the keys that a neighbour touches add at most
//! `2e √(n · coordinates)` to the distance. The mechanism charges this. Every w_t can be any
//! integer for any x, so the grid reveals nothing, unlike the grid of a rounded C⁻¹z.
//!
//! *Choice of R.* R is a sum of floating-point numbers, rounded ([`Correlator`]). It errs by at
//! most e as long as |u| ≤ M and |R| ≤ 2M. Let R* equal R there, and L rounded exactly elsewhere.
//! R* errs by at most e everywhere, so the release with R* has the guarantee on every path. The
//! release that runs is the same function of z and x until some |u| > M or |R| > 2M. In the release
//! with R*, u and R* are functions **of the noise alone**. As `R*_t = z_t − u_t`, |R*| ≤ 2M unless
//! |z| > M or |u| > M. Discrete Gaussians are σ²-sub-Gaussian (Canonne, Kamath & Steinke 2020),
//! `u_t = Σ_s C⁻¹[t,s] (z_s − error_s)`, and the largest norm ρ of a row of C⁻¹ is at least 1. With
//! `M = 40ρσ`, where the errors take less than ρσ, one coordinate of one step leaves the range
//! with probability at most `4 exp(−39²/2) < 2⁻¹⁰⁹⁴`. So for up to 2⁹⁴ numbers the two releases are
//! within 2⁻¹⁰⁰⁰ of each other in total variation, and the release that runs is (ε, δ + (1 + e^ε)
//! 2⁻¹⁰⁰⁰)-private. The difference is less than the last digit of any δ. ∎
//!
//! *The grid.* K is the least power of two for which σ exceeds 2⁴¹ grid units. If σ exceeds 2⁴²
//! with K = 1, noise is correlated in coarser units, of 2 to the power
//! [`CorrelationUnits::coarse_bits`]: u is rounded to them before it is kept, and R is a multiple
//! of them. In these units σ lies in (2⁴¹, 2⁴²]: M fits 51 bits, and one unit is negligible.
//!
//! # Why pipelines encode
//! A restart could replay this form. The private log holds the sums x and the values w of every
//! epoch, so it determines `u_t = w_t − K x_t`, and the u determine the state. Nothing is drawn
//! again, so the proof holds. Pipelines encode anyway. Only Toeplitz buffers with a horizon have a
//! diagonal of ones, so all other strategies would still need the encoded form. Logs, their checks,
//! audits and attacks would exist twice. The saving would be the difference between the two forms
//! in `cargo bench --bench buffered -- release`. The saving matters for rows of a million
//! coordinates, as in training, which takes this form. An epoch of a pipeline has fewer
//! coordinates, and spends most of its time elsewhere.

use super::{
    COEFFICIENT_BITS, Decoder, StepError,
    step::{check_step, wrong_length},
};

/// Noise is correlated in units for which its deviation is above 2 to this power and at most twice
/// that.
const DEVIATION_BITS: u32 = 41;

/// Maximum of `coarse_bits`: with coarser units 2M would exceed 63 bits.
const MAX_COARSE_BITS: u8 = 11;

/// Maximum of `sum_bits`: sums of 64 bits then stay within 127 bits of the grid.
const MAX_SUM_BITS: u8 = 63;

/// M / (ρσ).
const REACH: f64 = 40.0;

/// Integers below this magnitude convert to floating point and back by one addition.
const RANGE: f64 = (1u64 << 51) as f64;

/// Turns independent noise into noise correlated by C⁻¹, step by step. It never sees data.
pub trait Correlator: Send {
    /// Number of steps so far.
    fn steps(&self) -> u64;

    /// Turns z_t into u_t, as defined at the head of this module's source.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is then unchanged.
    fn correlate(&mut self, noise: &mut [i64]) -> Result<(), StepError>;

    /// The complete state, for a checkpoint. Private: it holds noise.
    fn save(&self) -> Vec<u8>;

    /// Restores a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`StepError::State`] if it was saved by another strategy or for another number of
    /// coordinates.
    fn restore(&mut self, state: &[u8]) -> Result<(), StepError>;
}

/// A strategy that correlates noise ahead of the sums.
pub trait Correlates {
    /// Row norm and error bounds over this number of steps.
    fn correlation(&self, steps: u64) -> Correlation;

    /// Starts correlating the noise of `coordinates` independent streams, in units of
    /// 2^`coarse_bits` units of the noise.
    fn correlator(&self, coordinates: usize, coarse_bits: u32) -> Box<dyn Correlator>;
}

/// Row norm and error bounds of a strategy that correlates noise, over a number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correlation {
    /// ρ: largest norm of a row of C⁻¹, at least 1.
    pub row_norm: f64,
    /// Constant part of the error of R, in units.
    pub units: f64,
    /// Error of R per unit of |u|, in addition to `units`.
    pub growth: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorrelationUnits {
    /// K = 2^`sum_bits`.
    pub(crate) sum_bits: u8,
    /// A unit is 2^`coarse_bits` units of the grid.
    pub(crate) coarse_bits: u8,
}

impl CorrelationUnits {
    /// Smallest deviation of any noise in units of the grid. K ensures it; scaling by powers of two
    /// is exact, and scales are rounded up.
    pub(crate) const LEAST_SCALE: f64 = (1u64 << DEVIATION_BITS) as f64;

    /// Returns units for encoded sums, which have at most 40 fractional bits beyond the unit of the
    /// sums. Noise of this deviation, given in the units of sums, is above 2⁴¹ units unless these
    /// are the finest.
    pub(crate) fn of_rounded_sums(deviation: f64) -> Self {
        let is_enough = |bits: &u8| deviation * 2f64.powi((*bits).into()) > Self::LEAST_SCALE;
        let finest = COEFFICIENT_BITS as u8;
        Self { sum_bits: (0..finest).find(is_enough).unwrap_or(finest), coarse_bits: 0 }
    }

    /// Units for noise of this deviation, given in the units of sums; `None` if no units fit.
    pub(crate) fn for_deviation(deviation: f64) -> Option<Self> {
        let least = 2f64.powi(DEVIATION_BITS as i32);
        let sum_bits = (0..=MAX_SUM_BITS).find(|&bits| deviation * 2f64.powi(bits.into()) > least)?;
        let in_grid = deviation * 2f64.powi(sum_bits.into());
        let coarse_bits =
            (0..=MAX_COARSE_BITS).find(|&bits| in_grid <= least * 2f64.powi(i32::from(bits) + 1))?;
        Some(Self { sum_bits, coarse_bits })
    }
}

impl Correlation {
    /// e/σ: error of R in deviations of the noise; `None` if u and R would not fit 51 bits.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        let least = 2f64.powi(DEVIATION_BITS as i32);
        let reach = REACH * self.row_norm;
        // A scale is rounded up by less than one part in 2¹⁹.
        let has_room = 4.0 * reach * least * (1.0 + 0.5f64.powi(18)) <= RANGE;
        has_room.then(|| (self.units / least + reach * self.growth) * (1.0 + 8.0 * f64::EPSILON))
    }
}

/// Decoder of noise that was correlated ahead of the sums: copies its input.
pub(crate) struct IdentityDecoder {
    steps: u64,
    horizon: Option<u64>,
    coordinates: usize,
}

impl IdentityDecoder {
    pub(crate) fn new(horizon: Option<u64>, coordinates: usize) -> Self {
        Self { steps: 0, horizon, coordinates }
    }
}

impl Decoder for IdentityDecoder {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        check_step(self.horizon, self.steps, self.coordinates, [y.len(), x.len()])?;
        x.copy_from_slice(y);
        self.steps += 1;
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        Vec::new()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        if !state.is_empty() || self.horizon.is_some_and(|horizon| steps > horizon) {
            return Err(wrong_length());
        }
        self.steps = steps;
        Ok(())
    }
}
