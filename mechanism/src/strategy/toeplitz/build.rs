//! Construction of the Toeplitz strategies by name. The caller has checked horizons and numbers of
//! bands: 1 to [`MAX_HORIZON`](super::super::MAX_HORIZON) and 1 to
//! [`MAX_BANDS`](super::super::MAX_BANDS).

use super::{Endless, Toeplitz, inverse::BandedInverse, log_perturbed, root};
use crate::{
    strategy::{COEFFICIENT_BITS, MAX_HISTORY_HORIZON, StrategyError, StrategyName, check_horizon},
    workload::Workload,
};
use std::num::NonZeroU32;

/// Longest horizon of scaled columns: computing their errors takes n² time, minutes beyond this.
const MAX_NORMALIZED_HORIZON: u64 = 1 << 17;

/// Longest horizon of a banded inverse: all coefficients of its C are computed.
const MAX_INVERSE_HORIZON: u64 = 1 << 24;

/// The Toeplitz matrix with these coefficients, in units of 2^-[`COEFFICIENT_BITS`].
///
/// # Errors
/// [`StrategyError::Parameters`] for a first coefficient that is not positive, and any above 1 in
/// magnitude.
pub(in crate::strategy) fn of_units(
    name: &StrategyName,
    mut coefficients: Vec<i64>,
) -> Result<Toeplitz, StrategyError> {
    let refused = |reason| Err(StrategyError::Parameters { reason });
    let one = 1_u64 << COEFFICIENT_BITS;
    match coefficients.iter().rposition(|&m| m != 0) {
        _ if coefficients.iter().any(|m| m.unsigned_abs() > one) => refused("a coefficient is above 1"),
        Some(last) if coefficients[0] > 0 => {
            coefficients.truncate(last + 1);
            let fingerprint = super::fingerprint(None, &coefficients);
            Ok(Toeplitz { fingerprint, ..Toeplitz::exact(name.clone(), coefficients) })
        }
        _ => refused("the first coefficient is not positive"),
    }
}

/// Coefficients of magnitude at most 1, rounded to the nearest unit of 2^-[`COEFFICIENT_BITS`].
pub fn toeplitz_units(coefficients: &[f64]) -> Vec<i64> {
    coefficients.iter().map(|c| (c / super::real(1)).round() as i64).collect()
}

pub(in crate::strategy) fn identity(name: &StrategyName) -> Toeplitz {
    Toeplitz::new(name.clone(), &[1.0], None)
}

/// `C = T^(1/2)` for the Toeplitz part T of the workload.
///
/// # Errors
/// [`StrategyError::Workload`] if T has no such root over the horizon.
pub(in crate::strategy) fn square_root(
    name: &StrategyName,
    workload: &Workload,
    horizon: u64,
) -> Result<Toeplitz, StrategyError> {
    check_horizon(name, horizon, MAX_HISTORY_HORIZON)?;
    root::check(name, workload, horizon)?;
    Ok(Toeplitz::new(name.clone(), &root::root(workload, horizon as usize), Some(horizon)))
}

/// The first `bands` coefficients of the square root (Kalinin and Lampert, "Banded square root
/// matrix factorization for differentially private model training", 2024). Its column norms are
/// bounded for any length of the stream.
///
/// # Errors
/// As [`square_root`]; the rows of a matrix given entry by entry limit the horizon.
pub(in crate::strategy) fn banded_square_root(
    name: &StrategyName,
    workload: &Workload,
    bands: NonZeroU32,
) -> Result<Toeplitz, StrategyError> {
    let terms = u64::from(bands.get()).min(workload.horizon().unwrap_or(MAX_HISTORY_HORIZON));
    root::check(name, workload, terms)?;
    Ok(Toeplitz::new(name.clone(), &root::root(workload, terms as usize), workload.horizon()))
}

/// The square root, or its first `bands` coefficients, with columns scaled to norm 1 over the
/// horizon.
///
/// # Errors
/// As [`square_root`], and [`StrategyError::Horizon`] beyond 2¹⁷ steps.
pub(in crate::strategy) fn normalized_square_root(
    name: &StrategyName,
    workload: &Workload,
    bands: Option<NonZeroU32>,
    horizon: u64,
) -> Result<Toeplitz, StrategyError> {
    check_horizon(name, horizon, MAX_NORMALIZED_HORIZON)?;
    root::check(name, workload, horizon)?;
    let terms = bands.map_or(horizon, |bands| u64::from(bands.get()).min(horizon));
    let plain = Toeplitz::new(name.clone(), &root::root(workload, terms as usize), Some(horizon));
    Ok(plain.normalized(name.clone(), horizon))
}

/// `C⁻¹` has the first `bands` coefficients of the inverse of the square root ("Back to square
/// roots", arXiv 2505.12128).
///
/// # Errors
/// As [`square_root`]; [`StrategyError::Horizon`] if the horizon times the bands exceeds 2³⁴;
/// [`StrategyError::Workload`] if the inverse grows too fast for its norms to be bounded.
pub(in crate::strategy) fn banded_inverse_square_root(
    name: &StrategyName,
    workload: &Workload,
    bands: NonZeroU32,
    horizon: u64,
) -> Result<BandedInverse, StrategyError> {
    check_horizon(name, horizon, MAX_INVERSE_HORIZON)?;
    root::check(name, workload, horizon)?;
    BandedInverse::new(name, workload, bands, horizon)
}

/// [`banded_inverse_square_root`] with columns scaled to norm 1 over the horizon.
///
/// # Errors
/// As [`banded_inverse_square_root`], and [`StrategyError::Horizon`] beyond 2¹⁷ steps.
pub(in crate::strategy) fn normalized_banded_inverse_square_root(
    name: &StrategyName,
    workload: &Workload,
    bands: NonZeroU32,
    horizon: u64,
) -> Result<BandedInverse, StrategyError> {
    check_horizon(name, horizon, MAX_NORMALIZED_HORIZON)?;
    Ok(banded_inverse_square_root(name, workload, bands, horizon)?.normalized())
}

/// For prefix sums and averages of an unbounded stream: see [`log_perturbed`].
///
/// # Errors
/// [`StrategyError::Workload`] for any other workload.
pub(in crate::strategy) fn log_perturbed_root(
    name: &StrategyName,
    workload: &Workload,
) -> Result<Toeplitz, StrategyError> {
    if !matches!(workload, Workload::Prefix | Workload::Average) {
        return Err(root::refused(name, workload, "it is for `prefix` and `average`"));
    }
    let squared_norm = log_perturbed::squared_norm();
    Ok(Toeplitz::endless(name.clone(), Endless { coefficients: log_perturbed::coefficients, squared_norm }))
}
