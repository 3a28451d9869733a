//! The matrix mechanism: strategies with the noise for their sensitivity.
//!
//! A [`MatrixMechanism`] holds everything a release needs. It can only be made with the geometry of
//! its own strategies. With one strategy and one participation the guarantee holds for as many
//! steps as the strategy has. Otherwise the guarantee is computed for a horizon, and no release is
//! possible beyond it.
//!
//! The form of the release (encoded sums, or noise that is correlated ahead of them) is part of
//! [`Strategies`], and no mechanism changes it. So [calibration](MomentMechanism::calibrated)
//! charges the cost of the grid that the release uses.

use super::{MechanismError, Method, MomentGeometry, MomentMechanism, MomentParameters};
use crate::moments::{Layout, RECORD_BITS};
use crate::participation::Participation;
use crate::strategy::{Correlation, Strategy};
use std::sync::Arc;

/// The strategies C₁ of counts and first moments, and C₂ of second moments.
#[derive(Clone)]
pub struct Strategies {
    first: Arc<dyn Strategy>,
    second: Arc<dyn Strategy>,
    form: ReleaseForm,
}

/// The form of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseForm {
    /// Encoded sums plus noise.
    Encoded,
    /// Encoded sums, rounded to a grid for noise of 64 bits, plus noise.
    Rounded,
    /// Sums plus noise that is correlated ahead of them.
    Correlated,
}

impl Strategies {
    /// Builds one strategy for all moments.
    pub fn shared(strategy: Arc<dyn Strategy>) -> Self {
        Self { second: strategy.clone(), first: strategy, form: ReleaseForm::Encoded }
    }

    /// Builds one strategy for counts and first moments, and one for second moments.
    pub fn separate(first: Arc<dyn Strategy>, second: Arc<dyn Strategy>) -> Self {
        Self { first, second, form: ReleaseForm::Encoded }
    }

    /// Returns the same strategies with noise that is correlated by C⁻¹ ahead of the sums, instead
    /// of encoded sums. The release is the decoded form of the encoded one, and takes less time and
    /// memory. `strategy/correlation.rs` has the proof. The sensitivity increases by the effect of
    /// rounding the noise ([`MomentMechanism::rounding_share`]), and the grid is different.
    ///
    /// ```
    /// # use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
    /// # use hushflow_mechanism::moments::{Layout, SecondMoment};
    /// # use hushflow_mechanism::participation::Participation;
    /// # use hushflow_mechanism::sensitivity::Neighbours;
    /// # use hushflow_mechanism::strategy::buffered::{Buffered, BufferedParameters, Buffers};
    /// # use hushflow_mechanism::strategy::buffered::ExponentialBuffer;
    /// # use std::sync::Arc;
    /// # let parameters = MomentParameters {
    /// #     method: Method::Jme,
    /// #     layout: Layout::new(3, SecondMoment::Diagonal),
    /// #     neighbours: Neighbours::ReplaceOneInPlace,
    /// #     clip_norm: 1.0,
    /// #     noise_multiplier: 1.0,
    /// #     second_moment_weight: None,
    /// #     count_weight: None,
    /// #     bin_weight: None,
    /// # };
    /// let buffers = Buffers::Toeplitz(vec![ExponentialBuffer { decay: 0.75, weight: 0.5 }]);
    /// let fitted = BufferedParameters { horizon: Some(1000), buffers };
    /// let strategy = Buffered::new("blt:1".parse()?, fitted)?;
    /// let strategies = Strategies::shared(Arc::new(strategy)).correlated();
    /// let once = Participation::Single;
    /// let correlated = MatrixMechanism::with_participation(parameters, strategies, once, 1000)?;
    /// assert!(correlated.moments().rounding_share() < 1e-8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn correlated(self) -> Self {
        Self { form: ReleaseForm::Correlated, ..self }
    }

    /// Returns the same strategies with encoded sums that are rounded to a coarser grid: the
    /// coarsest on which the deviation of the noise is above 2⁴¹ units. Noise is then drawn in 64
    /// bits, and released integers take little more than half as many bytes.
    ///
    /// The release is `⌊y/2ˢ + ½⌋` of the integers `y = (C·sums)_t + 2ˢ·z`, modulo 2¹²⁸⁻ˢ, where
    /// z is the noise on the coarser grid. That is `⌊(C·sums)_t/2ˢ + ½⌋ + z`: an integer that
    /// depends on the data plus a discrete Gaussian. Between neighbours this integer moves by at
    /// most one unit more than `(C·sums)_t/2ˢ`, and only where that moves. The sensitivity includes
    /// the unit ([`MomentMechanism::rounding_share`]).
    ///
    /// Sums that contain the number of sent records are not rounded.
    #[must_use]
    pub fn rounded(self) -> Self {
        Self { form: ReleaseForm::Rounded, ..self }
    }

    /// Returns C₁.
    pub fn first(&self) -> &dyn Strategy {
        self.first.as_ref()
    }

    /// Returns C₂.
    pub fn second(&self) -> &dyn Strategy {
        self.second.as_ref()
    }

    /// Returns whether all moments go through one strategy.
    pub fn are_one(&self) -> bool {
        Arc::ptr_eq(&self.first, &self.second)
    }

    /// Returns whether encoded sums are released as they are.
    pub(crate) fn is_exact(&self) -> bool {
        self.form == ReleaseForm::Encoded
    }

    /// Returns the number of steps for which both strategies are defined; `None` if neither has a
    /// limit.
    pub fn horizon(&self) -> Option<u64> {
        [&self.first, &self.second].into_iter().filter_map(|strategy| strategy.horizon()).min()
    }

    /// Returns row norms and error bounds of the correlated noise: of counts and first moments, and
    /// of second moments.
    fn correlations(&self, steps: u64) -> Result<[Correlation; 2], MechanismError> {
        let correlation_of = |strategy: &dyn Strategy| {
            let correlation = strategy.correlates().map(|strategy| strategy.correlation(steps));
            correlation.ok_or(MechanismError::Correlation)
        };
        let first = correlation_of(self.first())?;
        let second = if self.are_one() { first } else { correlation_of(self.second())? };
        Ok([first, second])
    }

    fn geometry(&self, participation: Participation, horizon: u64) -> Result<MomentGeometry, MechanismError> {
        if self.are_one() && participation.is_single() {
            return Ok(MomentGeometry::shared(self.first.geometry()));
        }
        let first = Arc::new(self.first.matrix(horizon)?);
        let second = if self.are_one() { first.clone() } else { Arc::new(self.second.matrix(horizon)?) };
        let rounding = [&self.first, &self.second].map(|strategy| strategy.geometry().rounding_squared);
        Ok(MomentGeometry::of_matrices(first, second, participation, rounding)?)
    }
}

impl From<Arc<dyn Strategy>> for Strategies {
    fn from(strategy: Arc<dyn Strategy>) -> Self {
        Self::shared(strategy)
    }
}

/// A moment mechanism together with its strategies: everything that a release needs.
///
/// ```
/// use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters, Strategies};
/// use hushflow_mechanism::moments::{Layout, SecondMoment};
/// use hushflow_mechanism::sensitivity::Neighbours;
/// use hushflow_mechanism::strategy::build;
/// use hushflow_mechanism::workload::Workload;
///
/// let parameters = MomentParameters {
///     method: Method::Jme,
///     layout: Layout::new(3, SecondMoment::Diagonal),
///     neighbours: Neighbours::ReplaceOneInPlace,
///     clip_norm: 1.0,
///     noise_multiplier: 1.0,
///     second_moment_weight: None,
///     count_weight: None,
///     bin_weight: None,
/// };
/// let strategy = |workload: &str| -> Result<_, Box<dyn std::error::Error>> {
///     Ok(build("square-root", &workload.parse::<Workload>()?, Some(100))?)
/// };
/// // Adam: its own strategy for each moment, and five passes over the data, 20 steps each.
/// let strategies = Strategies::separate(strategy("exponential:0.9")?, strategy("exponential:0.999")?);
/// let mechanism = MatrixMechanism::with_participation(parameters, strategies, "5x20".parse()?, 100)?;
/// assert!(mechanism.moments().sensitivity() > 2.0 * 5f64.sqrt());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MatrixMechanism {
    moments: MomentMechanism,
    strategies: Strategies,
    horizon: Option<u64>,
    participation: Participation,
}

impl MatrixMechanism {
    /// Builds a mechanism with one strategy for all moments; neighbours differ in one record.
    ///
    /// # Errors
    /// [`MechanismError`], as [`MomentMechanism::new`].
    pub fn new(parameters: MomentParameters, strategy: Arc<dyn Strategy>) -> Result<Self, MechanismError> {
        let moments = MomentMechanism::new(parameters, &MomentGeometry::shared(strategy.geometry()))?;
        let strategies = Strategies::shared(strategy);
        let participation = Participation::Single;
        Ok(Self { moments, horizon: strategies.horizon(), strategies, participation })
    }

    /// Builds a mechanism with any strategies and any number of records of an entity, over
    /// `horizon` steps.
    ///
    /// # Errors
    /// [`MechanismError`], as [`MomentMechanism::new`], and if a strategy is not defined for
    /// `horizon` steps or the sensitivity can't be computed for them.
    /// [`MechanismError::Correlation`] for strategies that can't correlate noise,
    /// [`MechanismError::GridRounding`] and [`MechanismError::CorrelationRange`] where rounding
    /// would add too much.
    pub fn with_participation(
        parameters: MomentParameters,
        strategies: Strategies,
        participation: Participation,
        horizon: u64,
    ) -> Result<Self, MechanismError> {
        if let Some(limit) = strategies.horizon().filter(|&limit| limit < horizon) {
            return Err(MechanismError::Horizon { horizon, limit });
        }
        let geometry = strategies.geometry(participation, horizon)?;
        let moments = match strategies.form {
            ReleaseForm::Encoded => MomentMechanism::new(parameters, &geometry)?,
            ReleaseForm::Rounded => MomentMechanism::rounded(parameters, &geometry, horizon)?,
            ReleaseForm::Correlated => MomentMechanism::correlated(
                parameters,
                &geometry,
                strategies.correlations(horizon)?,
                horizon,
            )?,
        };
        Ok(Self { moments, strategies, horizon: Some(horizon), participation })
    }

    /// Returns whether noise is correlated ahead of the sums.
    pub fn is_correlated(&self) -> bool {
        self.strategies.form == ReleaseForm::Correlated
    }

    /// Returns the same mechanism with another noise multiplier. The multiplier is that of the
    /// guarantee: where an entity may have m records in a step, the noise is m times as large.
    ///
    /// # Errors
    /// As [`MomentMechanism::with_noise_multiplier`].
    pub fn with_noise_multiplier(&self, noise_multiplier: f64) -> Result<Self, MechanismError> {
        let noise_multiplier = match self.records_at_once() {
            1 => noise_multiplier,
            records => (noise_multiplier * f64::from(records)).next_up(),
        };
        let moments = self.moments.with_noise_multiplier(noise_multiplier)?;
        Ok(Self { moments, ..self.clone() })
    }

    /// Returns the same mechanism for entities of up to m records in each step that they take part
    /// in, with m times the noise. Number the records of each step 1 … m. The r-th records of all
    /// steps move the release by at most s, and the triangle inequality adds m of these.
    ///
    /// # Errors
    /// As [`MomentMechanism::with_noise_multiplier`].
    pub fn for_records_at_once(&self, records: u32) -> Result<Self, MechanismError> {
        let noise_multiplier = self.moments.parameters().noise_multiplier;
        let moments = self.moments.for_records_at_once(records)?;
        Self { moments, ..self.clone() }.with_noise_multiplier(noise_multiplier)
    }

    /// As [`MomentMechanism::with_fewer_columns`].
    pub(crate) fn with_fewer_columns(&self, dimension: usize) -> Result<Self, MechanismError> {
        let moments = self.moments.with_fewer_columns(dimension)?;
        Ok(Self { moments, ..self.clone() })
    }

    /// Returns the sensitivity and the noise.
    pub fn moments(&self) -> &MomentMechanism {
        &self.moments
    }

    /// Returns the strategies.
    pub fn strategies(&self) -> &Strategies {
        &self.strategies
    }

    /// Returns the positions of the coordinates of one key in a release.
    pub fn layout(&self) -> Layout {
        self.moments.layout()
    }

    /// Returns the participation that the sensitivity is for.
    pub fn participation(&self) -> Participation {
        self.participation
    }

    /// Returns m, the most records of an entity in a step that the noise covers.
    pub fn records_at_once(&self) -> u32 {
        self.moments.records_at_once()
    }

    /// Returns the number of records of one key in an epoch that a release always supports; `None`
    /// if there is no limit, because no strategy rounds sums.
    ///
    /// No sum of this many records leaves an encoder's range, so no error depends on sums. The
    /// limit is public. Compare it with public knowledge about the stream before anything is
    /// released.
    pub fn most_records(&self) -> Option<u64> {
        if self.is_correlated() {
            return None;
        }
        let (layout, strategies) = (self.layout(), &self.strategies);
        let squares_batches = matches!(self.moments.parameters().method, Method::BatchSquares { .. });
        // First moments are at most 2²⁰ times the number of records, second moments 2⁴⁰ times. The
        // bound of a squared sum is the square of the sum's bound.
        let of_first = strategies.first().input_limit().map(|limit| limit >> RECORD_BITS);
        let of_second = strategies.second().input_limit().filter(|_| layout.second_len() > 0);
        let of_second = of_second.map(|limit| limit >> (2 * RECORD_BITS));
        let of_second = of_second.map(|limit| if squares_batches { limit.isqrt() } else { limit });
        let limits = [of_first, of_second].into_iter().flatten();
        limits.min().map(|limit| u64::try_from(limit).unwrap_or(u64::MAX))
    }

    /// Returns the last step that may be released; `None` for no limit.
    pub fn horizon(&self) -> Option<u64> {
        self.horizon
    }
}
