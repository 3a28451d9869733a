//! Private Adam: the optimiser of Kingma & Ba (2015) as post-processing of one release of
//! gradients.
//!
//! Per-record gradients are the records of a stream, and optimiser steps are its epochs. The
//! release of a batch, divided by the public batch size m, is a noisy mean gradient x̂ and, if
//! second moments are released, a noisy second moment ŝ. Adam is then two exponential views of the
//! increments, with the bias correction of [`Workload::Adam`]:
//!
//! ```text
//! m_t = Σ_i A(β₁)_ti x̂_i     v_t = Σ_i A(β₂)_ti ŝ_i
//! θ_t = θ_{t−1} − α m_t/(√max(v_t, floor_t) + ε)
//! ```
//!
//! All of this is post-processing and costs no privacy. Gradients depend on earlier releases, which
//! the guarantee covers: it is for adaptively chosen streams.
//!
//! # Sources of second moments
//! | name | ŝ_t | released moments | its sensitivity |
//! |---|---|---|---|
//! | mean of squares | `(1/m) Σ_j g_j∘g_j` | both, `jme` | free: `r_d(ν)` for each record |
//! | square of mean | `ĝ∘ĝ` of `ĝ = Σ_j g_j/m` | both, `batch-squares` | Algorithm 2: never free |
//! | joint clipping | mean of squares, of jointly clipped gradients | both, `joint-clip` | 2ζ |
//! | DP-Adam | `x̂∘x̂` | first, `pp` | that of first moments |
//! | DP-AdamBC | `x̂∘x̂ − (variance of x̂'s noise)` | first, `pp` | that of first moments |
//! | scale, then privatise | `x̂∘x̂` | first of scaled gradients, `pp` | that of first moments |
//!
//! Algorithm 2 of "Continual Release Moment Estimation with Differential Privacy" prints the square
//! of the mean with the sensitivity of single records, which it exceeds;
//! [`Method::BatchSquares`](hushflow_mechanism::mechanism::Method::BatchSquares) derives the right
//! one. JME is free for the mean of squares.
//!
//! # Keeping v usable
//! A released v_t is unbiased and has the noise deviation `d_t = τ₂‖(A(β₂)C₂⁻¹)_t‖/m`, the same in
//! all coordinates. Where the truth is far below d_t, about half of the v_t are negative. So v_t is
//! floored at `κ d_t`, where κ is [`AdamHyperparameters::floor_deviations`]. Then no v_t has a
//! relative standard error above 1/κ, no root one above 1/(2κ) to first order, and no coordinate's
//! step is longer than `α|m_t|/√(κ d_t)`. If noise dominates everywhere, every coordinate is at the
//! floor and Adam is momentum with the step α/√(κ d_t).
//!
//! From noise alone, DP-AdamBC's v_t has the deviation `√2·√(Σ_i A(β₂)_ti² φ_i⁴)`, where φ_i² is
//! the subtracted variance. (The noise of steps counts as independent, as it is for C = I.) It has
//! the same floor. DP-Adam's v_t is a mean of squares and needs none.
//!
//! # Scale, then privatise
//! Gradients are multiplied coordinatewise by s_t *before* clipping, and decoded values are divided
//! by it, so that clipping and noise have the geometry of the preconditioner (Ganesh, McMahan &
//! Thakurta, "On Design Principles for Private Adaptive Optimizers", arXiv 2507.01129, Algorithm
//! 8). With u = √v_{t−1} and ū its root mean square over the coordinates
//!
//! ```text
//! s_t = (1 + ρ) ū / (u + ρ ū),    s_1 = 1.
//! ```
//!
//! *Private, by adaptivity.* s_t is a function of releases before t. Given them, a record's
//! contribution `clip(s_t∘g)` is a vector of norm at most ζ like any other. So, conditionally on
//! the past, step t has the same sensitivity as without scaling, and the induction of
//! [`release`](hushflow_mechanism::release) holds. Dividing by s_t is post-processing. The public
//! factor ū is our addition. With it the noise of all coordinates together, `Σ_j (1/s_j)²` times
//! that of one, is at most the unscaled noise: `Σ_j (u_j + ρū)² ≤ d ū²(1 + ρ)²` by Cauchy-Schwarz.
//! So noise cannot amplify itself through v, and one clip norm suits scaled and unscaled gradients.
//!
//! # Memory
//! Per parameter: the decoders' buffers (8 bytes for each buffer of a BLT and each moment), m and v
//! (16 bytes), and the update (8 bytes). All else has the size of a block.
//!
//! [`Workload::Adam`]: hushflow_mechanism::workload::Workload::Adam

mod private;
mod setting;
#[cfg(test)]
mod tests;

pub use private::{PrivateAdam, SecondMomentNoise, second_moment_noise};
pub use setting::{AdamError, AdamHyperparameters, GradientSquares};

use hushflow_mechanism::moments::squared_norm;
use hushflow_mechanism::registers::{Lanes, in_widest};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;

/// The averages of a run of coordinates: plain Adam, exact or of noisy increments.
///
/// ```
/// use hushflow_training::adam::{Adam, AdamHyperparameters};
/// use std::num::NonZeroU32;
///
/// let mut adam = Adam::new(&AdamHyperparameters::new(NonZeroU32::MIN, 0.1), 2);
/// let mut direction = [0.0; 2];
/// let gradient = [3.0, -0.5];
/// adam.step(&gradient, &gradient.map(|g| g * g), 0.0, &mut direction);
/// // The first step has the sign of the gradient and the length of the learning rate.
/// assert!((direction[0] - 1.0).abs() < 1e-7 && (direction[1] + 1.0).abs() < 1e-7);
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    decays: [f64; 2],
    stability: f64,
    heavy_ball: Option<f64>,
    /// β₁^t and β₂^t.
    powers: [f64; 2],
    /// `Σ_i β^(t−i)(1 − β)·x_i` of gradients and of squares.
    averages: [Vec<f64>; 2],
}

impl Adam {
    /// Starts before the first step.
    pub fn new(setting: &AdamHyperparameters, coordinates: usize) -> Self {
        Self {
            decays: [setting.first_decay.get(), setting.second_decay.get()],
            stability: setting.stability,
            heavy_ball: setting.heavy_ball,
            powers: [1.0; 2],
            averages: [(); 2].map(|()| vec![0.0; coordinates]),
        }
    }

    fn len(&self) -> usize {
        self.averages[0].len()
    }

    /// Appends β₁^t, β₂^t and the averages.
    fn save(&self, to: &mut Vec<f64>) {
        to.extend(self.powers);
        self.averages.iter().for_each(|average| to.extend(average));
    }

    /// Takes what [`save`](Self::save) appended from the front; `None` if there is less.
    fn restore(&mut self, from: &mut &[f64]) -> Option<()> {
        self.powers.copy_from_slice(from.split_off(..2)?);
        for average in &mut self.averages {
            let saved = from.split_off(..average.len())?;
            average.copy_from_slice(saved);
        }
        Some(())
    }

    /// Adds the gradient and the second moments of a step and writes `m/(√max(v, floor) + ε)`, or m
    /// of heavy-ball momentum. All slices have as many coordinates as this state; the rest of
    /// longer ones is ignored.
    pub fn step(&mut self, gradient: &[f64], squares: &[f64], floor: f64, direction: &mut [f64]) {
        let length = self.len();
        let ([m, v], decays) = (&mut self.averages, self.decays);
        if let Some(decay) = self.heavy_ball {
            for ((m, x), direction) in m.iter_mut().zip(gradient).zip(direction) {
                *m = decay * *m + x;
                *direction = *m;
            }
            return;
        }
        self.powers = [self.powers[0] * decays[0], self.powers[1] * decays[1]];
        in_widest(AdamStep {
            decays,
            corrections: self.powers.map(|power| 1.0 / (1.0 - power)),
            floor,
            stability: self.stability,
            averages: [m, v],
            increments: [&gradient[..length], &squares[..length]],
            direction: &mut direction[..length],
        });
    }

    /// Returns √v after the last step, 0 where v is negative.
    pub fn roots(&self) -> impl Iterator<Item = f64> + '_ {
        let correction = 1.0 / (1.0 - self.powers[1]);
        self.averages[1].iter().map(move |v| (v * correction).max(0.0).sqrt())
    }
}

/// A step of Adam. All slices have one length.
struct AdamStep<'a> {
    decays: [f64; 2],
    corrections: [f64; 2],
    floor: f64,
    stability: f64,
    averages: [&'a mut [f64]; 2],
    increments: [&'a [f64]; 2],
    direction: &'a mut [f64],
}

impl Lanes for AdamStep<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { decays, corrections, floor, stability, averages: [m, v], increments, direction } = self;
        // Equal lengths that the compiler sees.
        let length = direction.len();
        let (m, v) = (&mut m[..length], &mut v[..length]);
        let [gradient, squares] = [&increments[0][..length], &increments[1][..length]];
        for (position, direction) in direction.iter_mut().enumerate() {
            let first = decays[0] * m[position] + (1.0 - decays[0]) * gradient[position];
            let second = decays[1] * v[position] + (1.0 - decays[1]) * squares[position];
            // The larger number; the floor if v is not a number. `f64::max` may be a call.
            let corrected = second * corrections[1];
            let floored = if corrected > floor { corrected } else { floor };
            *direction = first * corrections[0] / (floored.sqrt() + stability);
            (m[position], v[position]) = (first, second);
        }
    }
}

/// Takes a step of this length against a direction.
struct Descent<'a> {
    rate: f64,
    direction: &'a [f64],
    values: &'a mut [f64],
}

impl Lanes for Descent<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (value, direction) in self.values.iter_mut().zip(self.direction) {
            *value -= self.rate * direction;
        }
    }
}

/// The update of a run of parameters, before learning rate and clipping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdatePart {
    /// Index of the first parameter.
    pub start: usize,
    /// `m/(√v + ε)`.
    pub direction: Vec<f64>,
    /// Σ direction².
    pub squared_norm: f64,
    /// Factors for the next gradients; empty if gradients are not scaled.
    pub scale: Vec<f64>,
}

impl UpdatePart {
    /// Makes the update of the parameters from `start` on.
    pub fn new(start: usize, direction: Vec<f64>, scale: Vec<f64>) -> Self {
        let squared_norm = squared_norm(&direction);
        Self { start, direction, squared_norm, scale }
    }
}

/// Parameters of a model during training. Public; equal parts in equal order give equal parameters
/// everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    values: Vec<f64>,
    /// Empty if gradients are not scaled.
    scale: Vec<f64>,
    learning_rate: f64,
    update_norm: f64,
}

impl Parameters {
    /// Starts from these parameters.
    pub fn new(values: Vec<f64>, setting: &AdamHyperparameters) -> Self {
        Self {
            values,
            scale: Vec::new(),
            learning_rate: setting.learning_rate,
            update_norm: setting.update_norm.unwrap_or(f64::INFINITY),
        }
    }

    /// The parameters.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the factors for gradients before clipping; empty if gradients are not scaled.
    pub fn scale(&self) -> &[f64] {
        &self.scale
    }

    /// Continues from these parameters and factors, which an equal run had.
    ///
    /// # Errors
    /// [`AdamError::Length`] for another number of them; then nothing changes.
    pub(crate) fn restore(&mut self, values: Vec<f64>, scale: Vec<f64>) -> Result<(), AdamError> {
        let expected = self.values.len();
        let scales = if scale.is_empty() { expected } else { scale.len() };
        match [values.len(), scales].into_iter().find(|&found| found != expected) {
            Some(found) => Err(AdamError::Length { found, expected }),
            None => {
                (self.values, self.scale) = (values, scale);
                Ok(())
            }
        }
    }

    /// Takes a step. `parts` must cover the parameters in order.
    ///
    /// # Errors
    /// [`AdamError::Length`] if they do not; then nothing changes.
    pub fn apply(&mut self, parts: &[impl Borrow<UpdatePart>]) -> Result<(), AdamError> {
        self.apply_at(1.0, parts)
    }

    /// Takes a step whose learning rate is multiplied by `relative`. `parts` must cover the
    /// parameters in order.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn apply_at(&mut self, relative: f64, parts: &[impl Borrow<UpdatePart>]) -> Result<(), AdamError> {
        let parts = parts.iter().map(Borrow::borrow);
        let mut next = 0;
        for part in parts.clone() {
            if part.start != next {
                return Err(AdamError::Length { found: part.start, expected: next });
            }
            next += part.direction.len();
        }
        if next != self.values.len() {
            return Err(AdamError::Length { found: next, expected: self.values.len() });
        }
        let rate = self.learning_rate * relative;
        let norm = parts.clone().map(|part| part.squared_norm).sum::<f64>().sqrt() * rate;
        let rate = rate * if norm > self.update_norm { self.update_norm / norm } else { 1.0 };
        let mut rest = &mut self.values[..];
        self.scale.clear();
        for UpdatePart { direction, scale, .. } in parts {
            let (values, after) = rest.split_at_mut(direction.len());
            in_widest(Descent { rate, direction, values });
            self.scale.extend_from_slice(scale);
            rest = after;
        }
        Ok(())
    }
}
