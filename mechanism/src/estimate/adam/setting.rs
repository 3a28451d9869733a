//! The numbers that Adam is made of, and what can be wrong with them.

use crate::mechanism::{MatrixMechanism, Method};
use crate::strategy::StepError;
use crate::workload::Decay;
use std::num::NonZeroU32;
use thiserror::Error;

/// Everything about the optimiser that is not a part of the release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamSetting {
    /// m, by which released sums are divided: the number of records in a step, whatever became of them. Public.
    pub batch_size: NonZeroU32,
    /// α, above 0.
    pub learning_rate: f64,
    /// β₁.
    pub first_decay: Decay,
    /// β₂.
    pub second_decay: Decay,
    /// ε, above 0: what is added to √v.
    pub stability: f64,
    /// κ, at least 0: v is floored at this many deviations of its own noise.
    pub floor_deviations: f64,
    /// How second moments are made where they are not released.
    pub squares: GradientSquares,
    /// The largest Euclidean norm of an update `α m/(√v + ε)` of all parameters together; longer ones are scaled down to it.
    /// This is the clipping of updates in Table 4 of the paper.
    pub update_norm: Option<f64>,
}

/// Second moments that are made of the decoded mean gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GradientSquares {
    /// DP-AdamBC: the variance of the noise is taken off.
    #[default]
    Debiased,
    /// DP-Adam: as they are.
    Raw,
    /// Scale, then privatise: as they are, and gradients are scaled by their roots before they are clipped.
    Scaling {
        /// ρ, above 0: 0 would be the full geometry of Adam, infinity none.
        damping: f64,
    },
}

/// Why there is no optimiser, or no step of it.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AdamError {
    /// A number is out of its range.
    #[error("{name} is {value:?}, expected {expected}")]
    OutOfRange {
        /// The number.
        name: &'static str,
        /// What was found.
        value: f64,
        /// What is allowed.
        expected: &'static str,
    },
    /// The release has no second moments of single coordinates.
    #[error(
        "Adam needs the squares of single coordinates, but the release has {released} second moments for {dimension} \
         parameters: release the diagonal, or none by the method pp"
    )]
    SecondMoments {
        /// Second moments of the release.
        released: usize,
        /// Number of parameters.
        dimension: usize,
    },
    /// Scaling is for releases of first moments.
    #[error(
        "gradients can be scaled before they are clipped with the method pp only; the release is by {method}"
    )]
    Scaling {
        /// The method of the release.
        method: Method,
    },
    /// There are more releases than the optimiser was made for.
    #[error("the optimiser ends after {horizon} steps")]
    PastHorizon {
        /// Number of steps.
        horizon: u64,
    },
    /// A release has another number of values.
    #[error("the release has {found} values for {expected} parameters")]
    Length {
        /// Values found.
        found: usize,
        /// Values expected.
        expected: usize,
    },
    /// A release can't be decoded.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl AdamSetting {
    /// The setting of Kingma & Ba for batches of this size: β₁ = 0.9, β₂ = 0.999, ε = 10⁻⁸; κ = 1, squares without bias,
    /// updates as they are.
    pub fn new(batch_size: NonZeroU32, learning_rate: f64) -> Self {
        let [first_decay, second_decay] = [0.9, 0.999].map(|decay| Decay::new(decay).expect("it is below 1"));
        Self {
            batch_size,
            learning_rate,
            first_decay,
            second_decay,
            stability: 1e-8,
            floor_deviations: 1.0,
            squares: GradientSquares::Debiased,
            update_norm: None,
        }
    }

    /// Checks the ranges that the fields' documentation states.
    ///
    /// # Errors
    /// [`AdamError::OutOfRange`].
    pub fn check(&self) -> Result<(), AdamError> {
        positive("learning_rate", self.learning_rate)?;
        positive("stability", self.stability)?;
        self.update_norm.map_or(Ok(()), |norm| positive("update_norm", norm))?;
        self.damping().map_or(Ok(()), |damping| positive("damping", damping))?;
        let value = self.floor_deviations;
        match value >= 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(AdamError::OutOfRange {
                name: "floor_deviations",
                value,
                expected: "a finite number, at least 0",
            }),
        }
    }

    /// ρ, where gradients are scaled.
    pub fn damping(&self) -> Option<f64> {
        match self.squares {
            GradientSquares::Scaling { damping } => Some(damping),
            GradientSquares::Debiased | GradientSquares::Raw => None,
        }
    }

    /// What released sums of first and of second moments are divided by: m, and m² where the latter are squares of sums.
    pub(super) fn divisors(&self, mechanism: &MatrixMechanism) -> [f64; 2] {
        let size = f64::from(self.batch_size.get());
        match mechanism.moments().parameters().method {
            Method::BatchSquares { .. } => [size, size * size],
            _ => [size; 2],
        }
    }

    /// Checks that a release has what the optimiser needs.
    ///
    /// # Errors
    /// [`AdamError`].
    pub fn check_release(&self, mechanism: &MatrixMechanism) -> Result<(), AdamError> {
        self.check()?;
        let (layout, method) = (mechanism.layout(), mechanism.moments().parameters().method);
        let (released, dimension) = (layout.second_len(), layout.dimension);
        match released {
            0 => Ok(()),
            _ if self.damping().is_some() => Err(AdamError::Scaling { method }),
            _ if released == dimension => Ok(()),
            _ => Err(AdamError::SecondMoments { released, dimension }),
        }
    }
}

fn positive(name: &'static str, value: f64) -> Result<(), AdamError> {
    let expected = "a finite number above 0";
    if value > 0.0 && value.is_normal() {
        Ok(())
    } else {
        Err(AdamError::OutOfRange { name, value, expected })
    }
}
