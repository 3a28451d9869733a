//! Settings of Adam and their errors.

use hushflow_mechanism::mechanism::{MatrixMechanism, Method};
use hushflow_mechanism::strategy::StepError;
use hushflow_mechanism::workload::Decay;
use std::num::NonZeroU32;
use thiserror::Error;

/// Parameters of the optimiser. Those of the release are separate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamHyperparameters {
    /// m, the public number of records in a step. Released sums are divided by it, even if records
    /// were dropped.
    pub batch_size: NonZeroU32,
    /// α, above 0.
    pub learning_rate: f64,
    /// β₁.
    pub first_decay: Decay,
    /// β₂.
    pub second_decay: Decay,
    /// ε, above 0, which is added to √v.
    pub stability: f64,
    /// κ, at least 0: v is floored at this many deviations of its own noise.
    pub floor_deviations: f64,
    /// How second moments are computed if they are not released.
    pub squares: GradientSquares,
    /// Maximum Euclidean norm of an update `α m/(√v + ε)` of all parameters together; longer ones
    /// are scaled down. This is the clipping of updates in Table 4 of the paper.
    pub update_norm: Option<f64>,
    /// β of heavy-ball momentum, `m_t = βm_{t−1} + x̂_t`, at least 0 and below 1: updates are `α
    /// m_t`, and second moments are not used. 0 is gradient descent. `None` is Adam.
    pub heavy_ball: Option<f64>,
}

/// How second moments follow from the decoded mean gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum GradientSquares {
    /// DP-AdamBC: the variance of the noise is subtracted.
    #[default]
    Debiased,
    /// DP-Adam: unchanged squares.
    Raw,
    /// Scale, then privatise: the roots of unchanged squares scale the gradients before clipping.
    Scaling {
        /// ρ, above 0: 0 would be the full geometry of Adam, infinity none.
        damping: f64,
    },
}

/// Reasons why the optimiser can't be built or can't take a step.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AdamError {
    /// A number is out of its range.
    #[error("{name} is {value:?}, expected {expected}")]
    OutOfRange {
        /// Name of the number.
        name: &'static str,
        /// Its value.
        value: f64,
        /// Allowed values.
        expected: &'static str,
    },
    /// The release has no second moments of single coordinates.
    #[error(
        "Adam needs the squares of single coordinates, but the release has {released} second moments for {dimension} \
         parameters: release the diagonal, or none by the method pp"
    )]
    SecondMoments {
        /// Number of second moments of the release.
        released: usize,
        /// Number of parameters.
        dimension: usize,
    },
    /// Scaling needs a release of first moments only.
    #[error(
        "gradients can be scaled before they are clipped with the method pp only; the release is by {method}"
    )]
    Scaling {
        /// The method of the release.
        method: Method,
    },
    /// The horizon of the optimiser is exceeded.
    #[error("the optimiser ends after {horizon} steps")]
    PastHorizon {
        /// Number of steps.
        horizon: u64,
    },
    /// A release has the wrong number of values.
    #[error("the release has {found} values for {expected} parameters")]
    Length {
        /// Number of values.
        found: usize,
        /// Expected number of values.
        expected: usize,
    },
    /// A release cannot be decoded.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl AdamHyperparameters {
    /// Returns the setting of Kingma & Ba for batches of this size: β₁ = 0.9, β₂ = 0.999, ε = 10⁻⁸.
    /// κ = 1, squares are debiased, updates are not clipped.
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
            heavy_ball: None,
        }
    }

    /// Checks the ranges that the fields state.
    ///
    /// # Errors
    /// [`AdamError::OutOfRange`].
    pub fn check(&self) -> Result<(), AdamError> {
        positive("learning_rate", self.learning_rate)?;
        positive("stability", self.stability)?;
        self.update_norm.map_or(Ok(()), |norm| positive("update_norm", norm))?;
        self.damping().map_or(Ok(()), |damping| positive("damping", damping))?;
        if let Some(value) = self.heavy_ball.filter(|decay| !(0.0..1.0).contains(decay)) {
            let expected = "a number at least 0 and below 1";
            return Err(AdamError::OutOfRange { name: "heavy_ball", value, expected });
        }
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

    /// Returns ρ if gradients are scaled.
    pub fn damping(&self) -> Option<f64> {
        match self.squares {
            GradientSquares::Scaling { damping } => Some(damping),
            GradientSquares::Debiased | GradientSquares::Raw => None,
        }
    }

    /// Divisors of released sums of first and second moments: m, and m² if the latter are squares
    /// of sums.
    pub(super) fn divisors(&self, mechanism: &MatrixMechanism) -> [f64; 2] {
        let size = f64::from(self.batch_size.get());
        match mechanism.moments().parameters().method {
            Method::BatchSquares { .. } => [size, size * size],
            _ => [size; 2],
        }
    }

    /// Checks that a release has the moments that the optimiser needs.
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
