//! Noise that is correlated ahead of the sums, in integers.
//!
//! Everyone who reads a release `C x + z` decodes it: what is used is `x + C⁻¹ z`. Where the diagonal of C is one, that can be released
//! in the first place. With integer sums x, in units of which the grid has K, and integer noise z,
//!
//! ```text
//! u_t = z_t − R_t(u_1, …, u_(t−1)),        w_t = K x_t + u_t
//! ```
//!
//! where R_t is an integer near `L_t(u) = Σ_(s<t) C[t,s] u_s`. The w are released. What is kept from step to step is u, so noise alone: no
//! state depends on the data, everything but one addition is done before the sums are looked at, and nothing is left to decode.
//!
//! # Privacy
//! *Given the past, w_t is an integer that depends on the data plus a discrete Gaussian.* For u_s = w_s − K x_s,
//!
//! ```text
//! w_t = v_t + z_t,        v_t = K x_t − R_t(w_1 − K x_1, …, w_(t−1) − K x_(t−1))
//! ```
//!
//! and z_t is drawn whatever came before. So the proof of [`release`](crate::release) holds with this v, if for neighbours, *on every path
//! w*, it moves no further than the sensitivity says. L is linear, so if R errs by at most e,
//!
//! ```text
//! |Δv_t − K (CΔx)_t| = |(R_t − L_t)(w − Kx) − (R_t − L_t)(w − Kx′)| ≤ 2e
//! ```
//!
//! where the streams have differed before in that coordinate, and 0 where they have not. By the triangle inequality n steps of all
//! coordinates of the keys that a neighbour touches add at most `2e √(n · coordinates)` to the distance, which the mechanism charges.
//! Every z_t and so every w_t may be any integer, whatever x is: the grid tells nothing, as the grid of a rounded C⁻¹z would.
//!
//! *Which R.* Sums of floating-point numbers, rounded ([`Correlator`]): they err by no more than e as long as |u| ≤ M and |R| ≤ 2M. Let R* be
//! the same there, and L rounded exactly elsewhere. It errs by no more than e everywhere, so the release with R* has the guarantee on every path.
//! The one that runs is the same function of z and x until some |u| > M or |R| > 2M. In the release with R* both are functions **of the noise
//! alone**, and as `R*_t = z_t − u_t`, |R*| ≤ 2M unless |z| > M or |u| > M. Discrete Gaussians are σ²-sub-Gaussian (Canonne, Kamath & Steinke
//! 2020), `u_t = Σ_s C⁻¹[t,s] (z_s − error_s)`, and the norm ρ of a row of C⁻¹ is at least 1. With `M = 40ρσ`, of which the errors take less than
//! ρσ, one coordinate of one step leaves the range with probability at most `4 exp(−39²/2) < 2⁻¹⁰⁹⁴`. So the two releases of up to 2⁹⁴
//! numbers are within 2⁻¹⁰⁰⁰ of each other in total variation: what runs is (ε, δ + (1 + e^ε) 2⁻¹⁰⁰⁰)-private, less than the last place of
//! any δ. ∎
//!
//! *The grid.* K is the least power of two with which σ is above 2⁴¹. Where σ is above 2⁴² with K = 1, noise is correlated in coarser units, of 2 to the
//! power [`CorrelationUnits::coarse_bits`]: u is rounded to them before it is kept, and R is a multiple of them. So in these units σ lies in (2⁴¹, 2⁴²]:
//! small enough for 51 bits of M, large enough for a unit to be nothing.

use super::{Decoder, StepError, step::check_step};

/// The deviation of noise that is correlated is above this many units, as a power of two, and not above twice as many.
const DEVIATION_BITS: u32 = 41;

/// Noise with 2M beyond 63 bits has no room: this much coarser can units be than the grid.
const MOST_COARSE_BITS: u8 = 11;

/// Sums of 64 bits stay within 127 bits of the grid.
const MOST_SUM_BITS: u8 = 63;

/// M over ρσ.
const REACH: f64 = 40.0;

/// Integers below this in magnitude become floating-point numbers and back by an addition.
const RANGE: f64 = (1u64 << 51) as f64;

/// Turns independent noise into noise that is correlated by C⁻¹, step by step. It never meets data.
pub trait Correlator: Send {
    /// Number of steps so far.
    fn steps(&self) -> u64;

    /// Turns z_t into u_t, of which the head of this module's source tells.
    ///
    /// # Errors
    /// [`StepError::PastHorizon`] and [`StepError::Coordinates`]; the state is unchanged then.
    fn correlate(&mut self, noise: &mut [i64]) -> Result<(), StepError>;

    /// All state, for a checkpoint. It holds noise: private.
    fn save(&self) -> Vec<u8>;

    /// Takes over a state written by [`save`](Self::save).
    ///
    /// # Errors
    /// [`StepError::State`] if it was saved by another strategy or for another number of coordinates.
    fn restore(&mut self, state: &[u8]) -> Result<(), StepError>;
}

/// A strategy that correlates noise ahead of the sums.
pub trait Correlates {
    /// How well it does over so many steps.
    fn correlation(&self, steps: u64) -> Correlation;

    /// Starts with the noise of `coordinates` independent streams, in units of 2 to the power `coarse_bits` of theirs.
    fn correlator(&self, coordinates: usize, coarse_bits: u32) -> Box<dyn Correlator>;
}

/// How well a strategy correlates noise over a number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correlation {
    /// ρ: largest norm of a row of C⁻¹, at least 1.
    pub row_norm: f64,
    /// By how much R errs in units.
    pub units: f64,
    /// By how much it errs besides for u of magnitude 1.
    pub growth: f64,
}

/// In which units noise of some deviation is correlated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CorrelationUnits {
    /// K is 2 to this power.
    pub(crate) sum_bits: u8,
    /// A unit is 2 to this power of the grid's.
    pub(crate) coarse_bits: u8,
}

impl CorrelationUnits {
    /// No noise has a smaller deviation in units of the grid, however small or large it is: K is chosen so, scaling by powers of
    /// two is exact, and scales are rounded up.
    pub(crate) const LEAST_SCALE: f64 = (1u64 << DEVIATION_BITS) as f64;

    /// For noise of this deviation in the units of sums; `None` where there are none.
    pub(crate) fn for_deviation(deviation: f64) -> Option<Self> {
        let least = 2f64.powi(DEVIATION_BITS as i32);
        let sum_bits = (0..=MOST_SUM_BITS).find(|&bits| deviation * 2f64.powi(bits.into()) > least)?;
        let in_grid = deviation * 2f64.powi(sum_bits.into());
        let coarse_bits =
            (0..=MOST_COARSE_BITS).find(|&bits| in_grid <= least * 2f64.powi(i32::from(bits) + 1))?;
        Some(Self { sum_bits, coarse_bits })
    }
}

impl Correlation {
    /// e/σ: by how much R errs, in deviations of the noise; `None` where so much noise has no room in 51 bits.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        let least = 2f64.powi(DEVIATION_BITS as i32);
        let reach = REACH * self.row_norm;
        // A scale is rounded up, by less than one part in 2¹⁹.
        let has_room = 4.0 * reach * least * (1.0 + 0.5f64.powi(18)) <= RANGE;
        has_room.then(|| (self.units / least + reach * self.growth) * (1.0 + 8.0 * f64::EPSILON))
    }
}

/// Decodes what was correlated ahead of the sums: nothing is left to do.
pub(crate) struct Decoded {
    steps: u64,
    horizon: Option<u64>,
    coordinates: usize,
}

impl Decoded {
    pub(crate) fn new(horizon: Option<u64>, coordinates: usize) -> Self {
        Self { steps: 0, horizon, coordinates }
    }
}

impl Decoder for Decoded {
    fn steps(&self) -> u64 {
        self.steps
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        check_step(self.horizon, self.steps, self.coordinates, [y.len(), x.len()])?;
        x.copy_from_slice(y);
        self.steps += 1;
        Ok(())
    }
}
