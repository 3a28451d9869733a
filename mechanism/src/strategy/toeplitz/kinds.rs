//! The Toeplitz strategies in the table of strategies.

use super::{Toeplitz, inverse::BandedInverse, root};
use crate::{
    strategy::{
        COEFFICIENT_BITS, Kind, MAX_HISTORY_HORIZON, MAX_HORIZON, Purpose, Specification, Strategy,
        StrategyError, StrategyName, StrategyParameters, kind::FULL_HISTORY,
    },
    workload::Workload,
};
use std::sync::Arc;

/// Largest number of bands.
pub(in crate::strategy) const MAX_BANDS: u32 = 1 << 20;

/// Longest horizon of scaled columns: computing their errors takes n² time, minutes beyond this.
pub(in crate::strategy) const MAX_NORMALIZED_HORIZON: u64 = 1 << 17;

/// Longest horizon of a banded inverse: all coefficients of its C are computed.
pub(in crate::strategy) const MAX_INVERSE_HORIZON: u64 = 1 << 24;

/// Longest horizon for which a comparison includes bands for windows of any length.
const ANY_WINDOW_HORIZON: u64 = 1 << 22;

/// Longest window for which a comparison includes bands at every horizon.
const LONG_HORIZON_WINDOW: u64 = 1 << 10;

/// `identity`: C = I, fresh noise at every step. No memory, no horizon.
pub(in crate::strategy) static IDENTITY: Kind = Kind {
    strategy: Some(|specification| Ok(Arc::new(Toeplitz::new(specification.name.clone(), &[1.0], None)))),
    ..Kind::new("identity", "fresh noise on every epoch")
};

/// `square-root`: `C = T^(1/2)` for the Toeplitz part T of the workload (Fichtenberger, Henzinger
/// and Upadhyay, "Constant matters", 2023, for prefix sums). Keeps all rows, or fewer if the
/// coefficients of a decaying workload round to 0.
pub(in crate::strategy) static SQUARE_ROOT: Kind = Kind {
    horizon: MAX_HISTORY_HORIZON,
    normalized: Some(MAX_NORMALIZED_HORIZON),
    compared: |kind, purpose| {
        let names = [kind.name()].into_iter().chain(kind.name().normalized());
        purpose.if_toeplitz(names.map(|name| name.up_to(FULL_HISTORY)))
    },
    strategy: Some(|specification| {
        let horizon = specification.steps()?;
        root::check(specification.name, specification.workload, horizon)?;
        first_of_root(specification, horizon, Some(horizon))
    }),
    ..Kind::new("square-root", "the Toeplitz square root of the workload, full history")
};

/// `banded-square-root:b`: the first b coefficients of the square root (Kalinin and Lampert,
/// "Banded square root matrix factorization for differentially private model training", 2024). Its
/// column norms are bounded for any length of the stream.
pub(in crate::strategy) static BANDED_SQUARE_ROOT: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    normalized: Some(MAX_NORMALIZED_HORIZON),
    compared: |kind, purpose| match &purpose.workload {
        Workload::Window(length) | Workload::WindowMean(length) => {
            let limit = if length.get() > LONG_HORIZON_WINDOW { ANY_WINDOW_HORIZON } else { MAX_HORIZON };
            Ok(vec![banded_for_window(length.get(), purpose).up_to(limit)])
        }
        _ => {
            let bands = purpose.bands_apart();
            let limit = if bands > 32 { FULL_HISTORY } else { MAX_HORIZON };
            purpose.if_toeplitz([kind.numbered(bands).up_to(limit)])
        }
    },
    strategy: Some(|specification| {
        let bands = u64::from(specification.name.number().get());
        if specification.name.is_normalized() {
            let horizon = specification.steps()?;
            root::check(specification.name, specification.workload, horizon)?;
            return first_of_root(specification, bands.min(horizon), Some(horizon));
        }
        // The rows of a matrix given entry by entry limit the horizon.
        let terms = bands.min(specification.workload.horizon().unwrap_or(MAX_HISTORY_HORIZON));
        root::check(specification.name, specification.workload, terms)?;
        first_of_root(specification, terms, specification.workload.horizon())
    }),
    ..Kind::new("banded-square-root", "the first b coefficients of square-root")
};

/// `banded-inverse-square-root:b`: `C⁻¹` has the first b coefficients of the inverse of the square
/// root ("Back to square roots", arXiv 2505.12128).
pub(in crate::strategy) static BANDED_INVERSE_SQUARE_ROOT: Kind = Kind {
    number: Some(("bands", MAX_BANDS)),
    horizon: MAX_INVERSE_HORIZON,
    normalized: Some(MAX_NORMALIZED_HORIZON),
    compared: |kind, purpose| {
        let plain = [8, 32].map(|bands| kind.numbered(bands).always());
        let normalized = kind.numbered(32).normalized().map(|name| name.up_to(FULL_HISTORY));
        purpose.if_toeplitz(plain.into_iter().chain(normalized))
    },
    strategy: Some(|specification| {
        let horizon = specification.steps()?;
        root::check(specification.name, specification.workload, horizon)?;
        let plain = BandedInverse::new(specification.name, specification.workload, horizon)?;
        Ok(Arc::new(if specification.name.is_normalized() { plain.normalized() } else { plain }))
    }),
    ..Kind::new("banded-inverse-square-root", "a square root whose inverse has b coefficients")
};

/// Returns enough bands for a window: four for each of its epochs, and no more than the columns of
/// one entity can have without overlaps.
pub(in crate::strategy) fn banded_for_window(length: u64, purpose: &Purpose) -> StrategyName {
    let bands = length.saturating_mul(4).min(purpose.gap().unwrap_or(u64::MAX));
    BANDED_SQUARE_ROOT.numbered(bands.min(MAX_BANDS.into()) as u32)
}

/// The first coefficients of the square root, with columns of norm 1 if the name says so.
fn first_of_root(
    specification: &Specification<'_>,
    terms: u64,
    horizon: Option<u64>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let plain = Toeplitz::new(
        specification.name.clone(),
        &root::root(specification.workload, terms as usize),
        horizon,
    );
    Ok(Arc::new(match horizon.filter(|_| specification.name.is_normalized()) {
        Some(horizon) => plain.normalized(horizon),
        None => plain,
    }))
}

/// The Toeplitz matrix with the coefficients that an optimiser found.
///
/// # Errors
/// [`StrategyError::NotFitted`] without coefficients. [`StrategyError::Parameters`] for a first
/// coefficient that is not positive, and any above 1 in magnitude.
pub(in crate::strategy) fn of_parameters(
    specification: &Specification<'_>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let Some(StrategyParameters::Toeplitz(coefficients)) = specification.fitted else {
        return Err(StrategyError::NotFitted { strategy: specification.name.to_string() });
    };
    let refused = |reason| Err(StrategyError::Parameters { reason });
    let one = 1_u64 << COEFFICIENT_BITS;
    match coefficients.iter().rposition(|&m| m != 0) {
        _ if coefficients.iter().any(|m| m.unsigned_abs() > one) => refused("a coefficient is above 1"),
        Some(last) if coefficients[0] > 0 => {
            let coefficients = coefficients[..=last].to_vec();
            let fingerprint = super::fingerprint(None, &coefficients);
            Ok(Arc::new(Toeplitz {
                fingerprint,
                ..Toeplitz::exact(specification.name.clone(), coefficients)
            }))
        }
        _ => refused("the first coefficient is not positive"),
    }
}

/// The C whose inverse has the coefficients that an optimiser found.
///
/// # Errors
/// [`StrategyError::NotFitted`] without coefficients. [`StrategyError::Parameters`] for a first
/// coefficient that is not 1, and for a C that grows too much.
pub(in crate::strategy) fn of_inverse(
    specification: &Specification<'_>,
) -> Result<Arc<dyn Strategy>, StrategyError> {
    let Some(StrategyParameters::Toeplitz(inverse)) = specification.fitted else {
        return Err(StrategyError::NotFitted { strategy: specification.name.to_string() });
    };
    let plain = BandedInverse::of_inverse(specification.name, inverse, specification.steps()?)?;
    Ok(Arc::new(if specification.name.is_normalized() { plain.normalized() } else { plain }))
}

/// Coefficients of magnitude at most 1, rounded to the nearest unit of 2^-[`COEFFICIENT_BITS`].
pub(in crate::strategy) fn units(coefficients: &[f64]) -> Vec<i64> {
    coefficients.iter().map(|c| (c / super::real(1)).round() as i64).collect()
}
