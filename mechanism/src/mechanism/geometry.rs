//! The strategies and participations from which sensitivities are computed.
//!
//! One strategy and one participation are described by the longest column of C and its most
//! negative overlap. Two strategies C₁ (counts and first moments) and C₂ (second moments), or
//! several participations, need the matrices. In both cases the theorems are those of
//! [`sensitivity`](crate::sensitivity).
//!
//! # Second moments alone
//! Let V₂ be the squared sensitivity of C₂ for vectors of norm 1, let all overlaps X_ij = ⟨c_i,
//! c_j⟩ of its columns be at least −g, and let an entity have at most k records. In units of ζ⁴ and
//! with `⟨xxᵀ, yyᵀ⟩ = ⟨x,y⟩² ∈ [0, 1]`
//!
//! ```text
//! zero-out       V₂                         ‖xxᵀ‖ ≤ 1
//! in place       q·V₂                       ‖xxᵀ − yyᵀ‖² ≤ q = 2 (orthogonal records), 1 for d = 1
//! replace-one    min(4V₂, 2V₂ + 2k²g)       ‖P − Q‖² = ‖P‖² + ‖Q‖² − 2⟨P,Q⟩,
//!                                           ⟨P,Q⟩ = Σ X_ij⟨xᵢ,yⱼ⟩² ≥ −k²g
//! ```
//!
//! The same holds for Σ x∘x. For g = 0 the last bound is attained in every dimension by one record
//! that moves between two keys: `√2ζ²`. Algorithm 4 of the paper uses √2ζ² for d = 1 too. That is
//! right for records that move, and loose in place.
//!
//! # From the matrix to the C that runs
//! Matrices are C in floating point. Let Ĉ_ℓ be the matrix of C_ℓ, V_ℓ the bound above of `‖Ĉ_ℓu‖²`
//! for contributions of norm at most 1, and `‖(C_ℓ − Ĉ_ℓ)u‖ ≤ η_ℓ√V_ℓ`
//! ([`Discrepancy`](crate::strategy::Discrepancy)), η = max(η₁, η₂).
//!
//! *Theorem.* If s² is one of the bounds of [`sensitivity`](crate::sensitivity), or of the table
//! above, for Ĉ₁ and Ĉ₂, then (1 + 2η)²s² is a bound for C₁ and C₂.
//!
//! *Proof.* The difference of two neighbours is D = (D₁, √ν D₂), D₁ of counts and first moments, D₂
//! of second moments. Let a_ℓ be the largest norm of one record's contribution to D_ℓ: √(c+1) and 1
//! where it is blanked, 2 and √2 (1 for d = 1) where it is replaced in place. For records that
//! move, D is the difference of two patterns with the a_ℓ of blanked ones. So `‖(C_ℓ − Ĉ_ℓ)D_ℓ‖` is
//! at most η a_ℓ√V_ℓ, and at most 2η a_ℓ√V_ℓ where records move. Every bound s² is at least a₁²V₁
//! and νa₂²V₂, and twice that where records move:
//!
//! | | one strategy | two strategies |
//! |---|---|---|
//! | zero-out | K·V, K = c + 1 + ν | (1+c)·Z₁ + ν·Z₂ |
//! | in place | r_d(ν)·V, r_d(ν) ≥ 4 and ≥ νa₂² | Σ w₁ᵢ r_d(νw₂ᵢ/w₁ᵢ) ≥ 4Z₁ and ≥ νa₂²Z₂ |
//! | replace-one | at least 2K·V | at least (2+2c)·Z₁ and 2ν·Z₂ |
//!
//! where r_d(ν) ≥ νa₂² by its definition, and Z_ℓ ≥ V_ℓ. With one strategy, both parts together
//! contribute vectors of a norm a with a²V ≤ s². So the error is at most ηs, and √2ηs where records
//! move. With two strategies, each part's error is at most ηs, or √2ηs where records move, and both
//! together are √2 times as much. The triangle inequality gives s + 2ηs.
//!
//! Batches are the same: `α + βν` is the largest `‖Δfirst‖² + ν‖Δsecond‖²` for every ν, so α and β
//! are the largest values of the two terms. Moved records are blanked twice, and charged 4 times. ∎

use crate::participation::Participation;
use crate::sensitivity::{
    MomentStrategies, MomentWeights, Neighbours, OutOfRange, TrainingBatch, batch_participation_sensitivity,
    batch_sensitivity_squared, joint_participation_sensitivity, joint_sensitivity_squared,
    participation_sensitivity, positive, rounded_up,
};
use crate::strategy::{ColumnGeometry, Matrix};
use std::sync::Arc;

/// Columns of the strategies, and the columns that one entity reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct MomentGeometry {
    columns: StrategyColumns,
    /// Rounding of the encoder of counts and first moments, and of the encoder of second moments.
    rounding_squared: [f64; 2],
    participations: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum StrategyColumns {
    /// All moments go through one strategy, with one participation.
    Shared(ColumnGeometry),
    Matrices {
        first: Arc<Matrix>,
        second: Arc<Matrix>,
        participation: Participation,
    },
}

impl MomentGeometry {
    /// Describes one strategy for all moments; neighbours differ in one record.
    pub fn shared(columns: ColumnGeometry) -> Self {
        let rounding_squared = [columns.rounding_squared; 2];
        Self { columns: StrategyColumns::Shared(columns), rounding_squared, participations: 1 }
    }

    /// Describes one strategy for counts and first moments, and one for second moments, which may
    /// be the same. An entity takes part as `participation` allows, over as many steps as the
    /// matrices have columns. The rounding of each encoder is its
    /// [`ColumnGeometry::rounding_squared`].
    ///
    /// # Errors
    /// [`OutOfRange`] if the matrices have different numbers of steps.
    pub fn of_matrices(
        first: Arc<Matrix>,
        second: Arc<Matrix>,
        participation: Participation,
        rounding_squared: [f64; 2],
    ) -> Result<Self, OutOfRange> {
        MomentStrategies::separate(&first, &second)?;
        let participations = participation.on(first.columns()).count();
        let columns = StrategyColumns::Matrices { first, second, participation };
        Ok(Self { columns, rounding_squared, participations })
    }

    /// Returns the maximum number of records of one entity.
    pub fn participations(&self) -> usize {
        self.participations
    }

    /// Returns upper bounds of the squared rounding error of the encoders in a coordinate: for
    /// counts and first moments, and for second moments.
    pub fn rounding_squared(&self) -> [f64; 2] {
        self.rounding_squared
    }

    /// Returns the squared joint sensitivity of counts, first and second moments under weights, in
    /// units of ζ², rounded up.
    ///
    /// # Errors
    /// [`OutOfRange`] for a dimension of 0, negative weights, and results beyond the range of f64.
    pub fn joint(
        &self,
        neighbours: Neighbours,
        dimension: usize,
        weights: MomentWeights,
    ) -> Result<f64, OutOfRange> {
        match &self.columns {
            StrategyColumns::Shared(columns) => {
                joint_sensitivity_squared(neighbours, dimension, *columns, weights)
            }
            StrategyColumns::Matrices { first, second, participation } => {
                let strategies = MomentStrategies::separate(first, second)?;
                let claim = joint_participation_sensitivity(
                    neighbours,
                    dimension,
                    strategies,
                    *participation,
                    weights,
                )?;
                Ok(self.for_running_matrices(claim.squared))
            }
        }
    }

    /// Returns the squared joint sensitivity of the first moments of batches and ν-weighted
    /// squares, in units of ζ², rounded up.
    ///
    /// # Errors
    /// [`OutOfRange`] as [`joint`](Self::joint), and for an empty batch.
    pub fn of_batches(
        &self,
        batch: TrainingBatch,
        neighbours: Neighbours,
        dimension: usize,
        second_weight: f64,
    ) -> Result<f64, OutOfRange> {
        match &self.columns {
            StrategyColumns::Shared(columns) if neighbours != Neighbours::ReplaceOne => {
                let of_a_batch = batch_sensitivity_squared(batch, neighbours, dimension, second_weight)?;
                positive("squared sensitivity of batches", rounded_up(columns.max_norm_squared * of_a_batch))
            }
            StrategyColumns::Shared(_) => Err(OutOfRange {
                name: "squared sensitivity of batches",
                value: f64::INFINITY,
                expected: "records that stay in their batch",
            }),
            StrategyColumns::Matrices { first, second, participation } => {
                let strategies = MomentStrategies::separate(first, second)?;
                let claim = batch_participation_sensitivity(
                    batch,
                    neighbours,
                    dimension,
                    strategies,
                    *participation,
                    second_weight,
                )?;
                Ok(self.for_running_matrices(claim.squared))
            }
        }
    }

    /// Returns the squared sensitivity of second moments alone, in units of ζ⁴, rounded up: see the
    /// head of this module's source.
    ///
    /// # Errors
    /// [`OutOfRange`] as [`joint`](Self::joint).
    pub fn second_moments(&self, neighbours: Neighbours, dimension: usize) -> Result<f64, OutOfRange> {
        let vectors = self.vectors(1)?;
        let squared = match neighbours {
            Neighbours::ZeroOut => vectors,
            Neighbours::ReplaceOneInPlace if dimension == 1 => vectors,
            Neighbours::ReplaceOneInPlace => 2.0 * vectors,
            Neighbours::ReplaceOne => self.replaced(1, vectors),
        };
        positive("squared sensitivity of second moments", rounded_up(self.for_running_matrices(squared)))
    }

    /// Returns S: the squared sensitivity of the number of sent records alone, in units of M²,
    /// rounded up. The theorem is at the head of `sent.rs`.
    ///
    /// # Errors
    /// [`OutOfRange`] as [`joint`](Self::joint).
    pub(super) fn sent_records(&self, neighbours: Neighbours) -> Result<f64, OutOfRange> {
        let vectors = self.vectors(0)?;
        let squared = match neighbours {
            Neighbours::ReplaceOneInPlace => return Ok(0.0),
            Neighbours::ZeroOut => vectors,
            Neighbours::ReplaceOne => self.replaced(0, vectors),
        };
        positive("squared sensitivity of the sent records", rounded_up(self.for_running_matrices(squared)))
    }

    /// Returns the squared sensitivity of the bins of one histogram alone, rounded up. The theorem
    /// is at the head of `bins.rs`.
    ///
    /// # Errors
    /// [`OutOfRange`] as [`joint`](Self::joint).
    pub(super) fn bins(&self, neighbours: Neighbours) -> Result<f64, OutOfRange> {
        let vectors = self.vectors(0)?;
        let squared = match neighbours {
            Neighbours::ZeroOut => vectors,
            Neighbours::ReplaceOneInPlace => 2.0 * vectors,
            Neighbours::ReplaceOne => self.replaced(0, vectors),
        };
        positive(
            "squared sensitivity of the bins of a histogram",
            rounded_up(self.for_running_matrices(squared)),
        )
    }

    /// Returns the squared sensitivity for replaced contributions of norm 1 whose products are at
    /// least 0, from the one for blanked contributions.
    fn replaced(&self, part: usize, vectors: f64) -> f64 {
        let overlaps = self.overlap(part) * (self.participations as f64).powi(2);
        (2.0 * (vectors + overlaps)).min(4.0 * vectors)
    }

    /// Returns V₁/V₂: the ratio of the squared sensitivities of the strategies of first and second
    /// moments. 1 for one strategy.
    ///
    /// # Errors
    /// [`OutOfRange`] as [`joint`](Self::joint).
    pub(crate) fn first_over_second(&self) -> Result<f64, OutOfRange> {
        if self.is_shared() { Ok(1.0) } else { Ok(self.vectors(0)? / self.vectors(1)?) }
    }

    /// Returns whether all moments go through one strategy.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.columns {
            StrategyColumns::Shared(_) => true,
            StrategyColumns::Matrices { first, second, .. } => Arc::ptr_eq(first, second) || first == second,
        }
    }

    /// Converts a squared sensitivity of the matrices to that of the C that run: see the head of
    /// this module's source.
    fn for_running_matrices(&self, squared: f64) -> f64 {
        match &self.columns {
            StrategyColumns::Shared(_) => squared,
            StrategyColumns::Matrices { first, second, .. } => {
                let discrepancy_of = |matrix: &Matrix| matrix.relative_discrepancy(self.participations);
                rounded_up(squared * (1.0 + 2.0 * discrepancy_of(first).max(discrepancy_of(second))).powi(2))
            }
        }
    }

    /// Returns the squared sensitivity for vectors of norm 1 of the matrix of C₁ (0) or C₂ (1).
    fn vectors(&self, part: usize) -> Result<f64, OutOfRange> {
        match &self.columns {
            StrategyColumns::Shared(columns) => {
                positive("largest squared column norm", rounded_up(columns.max_norm_squared))
            }
            StrategyColumns::Matrices { first, second, participation } => {
                let matrix = if part == 0 { first } else { second };
                // Records of two keys are vectors, even in dimension 1.
                Ok(participation_sensitivity(matrix, *participation, 2)?.squared)
            }
        }
    }

    /// Returns g of C₁ (0) or C₂ (1); infinite where it is unknown.
    fn overlap(&self, part: usize) -> f64 {
        match &self.columns {
            StrategyColumns::Shared(columns) => columns.negative_overlap,
            StrategyColumns::Matrices { first, second, .. } => {
                [first, second][part].negative_overlap().unwrap_or(f64::INFINITY)
            }
        }
    }
}
