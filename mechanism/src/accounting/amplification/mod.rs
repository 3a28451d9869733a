//! Amplification by sampling: the guarantee of a release in which each record takes part at secret
//! random steps.
//!
//! # Setting
//! A record's *contribution* to a step moves the release by a vector of norm at most s, and the
//! noise has the deviation s/μ, independent in every coordinate. The contribution may depend on all
//! earlier releases. With a strategy C of b bands the steps of a record are at least b apart, from
//! one group of steps that is fixed beforehand. Step t moves rows t to t + b − 1 by `c_t ⊗ x`, with
//! x the record's value at step t. So the rows that different steps of the group move are disjoint,
//! the vector is known when row t begins, and its norm is at most the longest column times ‖x‖.
//! Each block of rows is therefore one Gaussian mechanism of noise multiplier 1/μ, and the blocks
//! follow one another. This is the reduction of Choquette-Choo et al. 2023, "(Amplified) Banded
//! Matrix Factorization". For C = I it is private training by DP-SGD. Other records only depend on
//! releases and on their own draws, so they are fixed, given these.
//!
//! A lower-triangular C without bands has no such blocks. Bounds for it need Rényi divergences or
//! conditional composition (2601.21636), or Monte Carlo, and it is left out. So is sampling with a
//! pause of b steps after each participation, "b-min-sep subsampling" (2602.09338): its accounting
//! is by Monte Carlo alone. The scheme here keeps steps b apart as well.
//!
//! # Poisson sampling
//! The record takes part in each step of its group independently, with probability q.
//!
//! **Theorem 1** (zero-out). *The release of n steps is dominated by n copies of
//! (1−q) N(0,1) + q N(μ,1) against N(0,1), and by the same pair the other way round.*
//! *Proof.* Given the past and the group, a block is the mixture (1−q) N(0,I) + q N(v,I) against
//! N(0,I), with ‖v‖ ≤ μ. A rotation leaves the coordinate along v. The hockey-stick divergence of
//! the pair is E f(1 − q + qW) with f convex and W = exp(‖v‖x − ‖v‖²/2) under N(0,1), which is
//! geometric Brownian motion at the time ‖v‖²: a martingale, so the expectation grows with ‖v‖.
//! Adaptive composition is Theorem 10 of Zhu, Dong & Wang 2022 ([`pld`](super::pld)). ∎
//!
//! **Theorem 2** (replaced in place). *The same holds with (1−q) N(0,1) + q N(μ,1) against
//! (1−q) N(0,1) + q N(−μ,1).* *Proof.* Given the past, a block is (1−q) φ₀ + q φ_u against
//! (1−q) φ₀ + q φ_v, where φ_w is the density of N(w,I) and ‖u‖, ‖v‖ ≤ μ: both neighbours take
//! part in the same steps. Let e^ε ≥ 1. The divergence is `q ∫ [φ_u − a φ₀ − e^ε φ_v]₊` with
//! `a = (e^ε − 1)(1−q)/q ≥ 0`: the largest value of φ_u − aφ₀ − e^ε φ_v over sets S, attained at
//! S = {g < 1}, `g = aφ₀/φ_u + e^ε φ_v/φ_u = a' e^(−⟨u,z⟩) + b' e^(−⟨u−v,z⟩)`, a convex function.
//! By the envelope theorem its derivative is that of the terms for fixed S. (1) *Turn v away from
//! u.* Along v(θ) of constant length the derivative of −φ_v(S) is `∫_∂S φ_v ⟨v',n⟩`, with the
//! outward normal n ∝ ∇g = −a'' u − b''(u − v), a'', b'' > 0. As ⟨v',v⟩ = 0, ⟨v',n⟩ ∝
//! −(a'' + b'')⟨v',u⟩ ≥ 0 while v turns away from u. So the divergence is largest for v opposite to
//! u. (2) *Then everything is on a line*, u ≥ 0 ≥ v, and g decreases along it. So S is a half-line
//! to the right, φ_u(S) grows with u, and φ_v(S) falls as v goes to the left: the largest
//! divergence has u = μ, v = −μ. For u = 0 it is at most that, by continuity. For e^ε < 1,
//! `H_α(P,Q) = 1 − α + α H_(1/α)(Q,P)`, and the reversed pair is the mirror image. ∎
//!
//! *Smaller q and ‖v‖ are covered:* a mixture of rate q' ≤ q is the mixture, with weight q'/q, of
//! the one of rate q and of N(0,1) on both sides, and divergences are jointly convex.
//!
//! # Random allocation
//! In each round the record takes part in exactly one of b steps, uniformly and independently of
//! other rounds: balls in bins. **Theorem 3** (zero-out) is at the head of
//! `allocation`: a round is dominated by (1/b) Σ N(μe_i, I) against N(0, I), both ways, and rounds
//! compose as above.
//!
//! **Theorem 4** (replaced in place). *A round is dominated by (1/b) Σ N(μe_i, I) against
//! (1/b) Σ N(−μe_i, I).* *Proof.* Let u_i and v_i be the contributions to bin i, given the past.
//! Under the releases without the record, the densities with them are `(1/b) Σ W_i` and
//! `(1/b) Σ V_i`, with `W_i = exp(⟨u_i, y_i⟩ − ‖u_i‖²/2)`, V_i alike, and y_i standard normal. The
//! divergence at ε is `E f(Σ_i (W_i − cV_i)/b)`, where `c = e^ε` and f(z) = z₊ is convex. The
//! logarithms of (W_i, V_i) are normal with some covariance Σ, and for `F = φ(s + W − cV)` with φ
//! convex `∂E F/∂Σ_11 = E W²φ''/2`, `∂E F/∂Σ_22 = c² E V²φ''/2` and `∂E F/∂Σ_12 = −c E WVφ''`. So
//! E F does not fall if first Σ_11 = ‖u_i‖² and Σ_22 = ‖v_i‖² grow to μ², and then Σ_12 falls to
//! −μ²: Σ remains a covariance. There u_i = −v_i, of norm μ. Replace the bins from the last to the
//! first: each replacement leaves a convex function of the earlier sum. ∎
//!
//! For every ε the divergence is an expectation over a sum of independent numbers, W_i − e^ε V_i.
//! `replaced_allocation` bounds it from above.
//!
//! # Neighbours
//! [`ZeroOut`](Neighbours::ZeroOut): the record is drawn like any other, and its contribution is
//! zero. This also covers adding or removing a record, if probabilities, divisors and the groups of
//! other records stay the same. [`ReplaceOneInPlace`](Neighbours::ReplaceOneInPlace): another
//! value at the same steps. [`ReplaceOne`](Neighbours::ReplaceOne), where a record may move to
//! another step, is meaningless here, and refused. The number of records of a step is **not
//! public** under either: given sizes, the other records' draws depend on this one's.

#[cfg(test)]
mod tests;

use super::pld::{Composition, DominatingPair};
use super::{AccountingError, NoiseMultiplier};
use crate::sensitivity::Neighbours;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The steps in which a record takes part, at random.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RandomParticipation {
    /// In each of its group's steps, independently.
    Poisson {
        /// Probability of taking part in a step.
        rate: f64,
        /// Number of steps of the group.
        steps: u64,
    },
    /// In one step of each round, uniformly.
    Allocation {
        /// Number of a group's steps in a round.
        bins: u64,
        /// Number of rounds.
        rounds: u64,
    },
}

/// Reasons why there is no amplified guarantee.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AmplificationError {
    /// Neighbours that the sampling does not protect.
    #[error("{scheme} does not protect neighbours {neighbours}: choose zero-out or replace-one-in-place")]
    Neighbours {
        /// The sampling scheme.
        scheme: &'static str,
        /// The neighbours.
        neighbours: Neighbours,
    },
    /// No noise gives the guarantee.
    #[error(transparent)]
    Accounting(#[from] AccountingError),
}

impl RandomParticipation {
    /// Returns the composition whose δ bounds that of the release, in both directions.
    /// `noise_multiplier` is the deviation of the noise over the largest norm of *one* record's
    /// contribution, even if records are replaced.
    ///
    /// # Errors
    /// [`AmplificationError`].
    ///
    /// ```
    /// use hushflow_mechanism::accounting::amplification::RandomParticipation;
    /// use hushflow_mechanism::accounting::{Delta, NoiseMultiplier};
    /// use hushflow_mechanism::sensitivity::Neighbours;
    ///
    /// let sigma = NoiseMultiplier::new(1.2)?;
    /// let epsilon = |participation: RandomParticipation| -> Result<_, Box<dyn std::error::Error>> {
    ///     let composition = participation.composition(Neighbours::ZeroOut, sigma)?;
    ///     Ok(composition.epsilon(Delta::new(1e-6)?).ok_or("δ is too small")?.high)
    /// };
    /// let poisson = epsilon(RandomParticipation::Poisson { rate: 0.02, steps: 250 })?;
    /// let balls = epsilon(RandomParticipation::Allocation { bins: 50, rounds: 5 })?;
    /// assert!(poisson < 1.7 && balls < 1.7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn composition(
        self,
        neighbours: Neighbours,
        noise_multiplier: NoiseMultiplier,
    ) -> Result<Composition, AmplificationError> {
        let (pair, count) = self.dominating(neighbours, noise_multiplier)?;
        Ok(Composition::default().compose(pair, count).either_direction())
    }

    /// Returns the pair that dominates a step or a round, in one direction, and their number. The
    /// reversed pair dominates the other direction.
    ///
    /// # Errors
    /// As [`composition`](Self::composition).
    pub fn dominating(
        self,
        neighbours: Neighbours,
        noise_multiplier: NoiseMultiplier,
    ) -> Result<(DominatingPair, u64), AmplificationError> {
        let pair = match (self, neighbours) {
            (Self::Poisson { rate, .. }, Neighbours::ZeroOut) => {
                DominatingPair::poisson_sampled_gaussian(noise_multiplier, rate)?
            }
            (Self::Poisson { rate, .. }, Neighbours::ReplaceOneInPlace) => {
                DominatingPair::poisson_sampled_replacement(noise_multiplier, rate)?
            }
            (Self::Allocation { bins, .. }, Neighbours::ZeroOut) => {
                DominatingPair::randomly_allocated_gaussian(noise_multiplier, bins)?
            }
            (Self::Allocation { bins, .. }, Neighbours::ReplaceOneInPlace) => {
                DominatingPair::randomly_allocated_replacement(noise_multiplier, bins)?
            }
            (_, Neighbours::ReplaceOne) => {
                let scheme = match self {
                    Self::Poisson { .. } => "poisson",
                    Self::Allocation { .. } => "balls-in-bins",
                };
                return Err(AmplificationError::Neighbours { scheme, neighbours });
            }
        };
        Ok((pair, self.count()))
    }

    /// Returns the number of steps or rounds.
    pub fn count(self) -> u64 {
        match self {
            Self::Poisson { steps, .. } => steps,
            Self::Allocation { rounds, .. } => rounds,
        }
    }
}
