//! Private Adam: the optimiser of Kingma & Ba (2015) as post-processing of one release of
//! gradients.
//!
//! Per-record gradients are the records of a stream, and optimiser steps are its epochs. The
//! release of a batch, divided by the public batch size m, is a noisy mean gradient x̂ and, if
//! second moments are released, a noisy second moment ŝ. Adam is then two exponential views of the
//! increments, with the bias correction of [`Workload::Adam`]:
//!
//! ```text
//! m_t = Σ_i A(β₁)_ti x̂_i     v_t = Σ_i A(β₂)_ti ŝ_i     θ_t = θ_{t−1} − α m_t/(√max(v_t, floor_t) + ε)
//! ```
//!
//! All of this is post-processing and costs no privacy. Gradients depend on earlier releases, which
//! the guarantee covers: it is for adaptively chosen streams.
//!
//! # Sources of second moments
//! | name | ŝ_t | released | its sensitivity |
//! |---|---|---|---|
//! | mean of squares | `(1/m) Σ_j g_j∘g_j` | both moments, `jme` | free under JME: `r_d(ν)` for each record |
//! | square of mean | `((1/m) Σ_j g_j)∘((1/m) Σ_j g_j)` | both moments, `batch-squares` | its own, never free: Algorithm 2 |
//! | joint clipping | the same, of gradients clipped with their squares | both moments, `joint-clip` | 2R |
//! | DP-Adam | `x̂∘x̂` | first moments, `pp` | that of first moments |
//! | DP-AdamBC | `x̂∘x̂ − (variance of x̂'s noise)` | first moments, `pp` | that of first moments |
//! | scale, then privatise | `x̂∘x̂` | first moments of scaled gradients, `pp` | that of first moments |
//!
//! Algorithm 2 of "Continual Release Moment Estimation with Differential Privacy" prints the square
//! of the mean with the sensitivity of single records, which it exceeds;
//! [`batch_squares`](crate::mechanism::method::batch_squares) derives the right one. JME is free
//! for the mean of squares.
//!
//! # Keeping v usable
//! A released v_t is unbiased and has the noise deviation `d_t = τ₂‖(A(β₂)C₂⁻¹)_t‖/m`, the same in
//! all coordinates. Where the truth is far below d_t, about half of the v_t are negative. So v_t is
//! floored at `κ d_t`, where κ is [`AdamSetting::floor_deviations`]. Then no v_t has a relative
//! standard error above 1/κ, no root one above 1/(2κ) to first order, and no coordinate's step is
//! longer than `α|m_t|/√(κ d_t)`. If noise dominates everywhere, every coordinate is at the floor
//! and Adam is momentum with the step α/√(κ d_t).
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
//! [`release`](crate::release) holds. Dividing by s_t is post-processing. The public factor ū is
//! ours. With it the noise of all coordinates together, `Σ_j (1/s_j)²` times that of one, is at
//! most the unscaled noise, because `Σ_j (u_j + ρū)² ≤ d ū²(1 + ρ)²` by Cauchy-Schwarz. So noise
//! cannot amplify itself through v, and one clip norm suits scaled and unscaled gradients.
//!
//! # Memory
//! Per parameter: the decoders' buffers (8 bytes for each buffer of a BLT and each moment), m and v
//! (16 bytes), and the update (8 bytes). All else has the size of a block.
//!
//! [`Workload::Adam`]: crate::workload::Workload::Adam

mod noise;
mod parameters;
mod private;
mod setting;
mod state;
#[cfg(test)]
mod tests;

pub use noise::{SecondMomentNoise, second_moment_noise};
pub use parameters::{Parameters, UpdatePart};
pub use private::PrivateAdam;
pub use setting::{AdamError, AdamSetting, GradientSquares};
pub use state::Adam;
