//! The default strategy, and the strategies that are compared for a purpose.

use std::num::NonZeroU32;

use hushflow_mechanism::strategy::MAX_BANDS;
use hushflow_mechanism::strategy::StrategyName::{
    self, BandedInverseSquareRoot, BandedSquareRoot, BufferedToeplitz, Coa, Fourier, FourierOptimalDecoder,
    Honaker, Identity, LogPerturbedRoot, MatrixSquareRoot, Optimal, PowerLaw, SquareRoot, Tree,
    TreeOptimalDecoder,
};
use hushflow_mechanism::workload::Workload;

use super::Purpose;

/// Longest horizon for which a comparison includes dense strategies and searches, which take
/// seconds.
const DENSE: u64 = 512;

/// Longest horizon for which it includes strategies with full history and errors of quadratic cost.
const FULL_HISTORY: u64 = 1 << 13;

/// Longest horizon for bands of any window, and the longest window beyond it.
const STREAMED: u64 = 1 << 22;
const BANDED_WINDOW: u64 = 1 << 10;

fn number(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

/// Returns the default strategy: constant memory, and within about a per cent of the best.
pub fn default_strategy(workload: &Workload) -> StrategyName {
    match workload {
        Workload::Average => PowerLaw(number(2)),
        // Buffers forget gradually, so they don't fit a window, which forgets at once.
        Workload::Window(length) => BandedSquareRoot(bands(length.get(), 4)),
        _ => BufferedToeplitz(number(5)),
    }
}

/// `times` bands for every epoch of a window.
fn bands(length: u64, times: u64) -> NonZeroU32 {
    number(length.saturating_mul(times).min(u64::from(MAX_BANDS)) as u32)
}

/// Returns the strategies that `plan` compares for a purpose. Each takes at most seconds to make.
pub fn catalogue(purpose: &Purpose) -> Vec<StrategyName> {
    let workload = &purpose.workload;
    let toeplitz = workload.toeplitz_part(1).is_some_and(|part| part[0] > 0.0);
    let steps = purpose.horizon.div_ceil(purpose.stamps.max(1));
    let mut names = vec![Identity];
    if toeplitz {
        names.extend([2, 5].map(|buffers| BufferedToeplitz(number(buffers))));
        names.extend([8, 32].map(|bands| BandedInverseSquareRoot(number(bands))));
        names.extend(match workload {
            Workload::Window(length) if length.get() > BANDED_WINDOW && steps > STREAMED => None,
            Workload::Window(length) => Some(BandedSquareRoot(bands(length.get(), 4))),
            _ => Some(BandedSquareRoot(number(32))),
        });
    }
    if toeplitz && steps <= FULL_HISTORY {
        names.extend(BandedInverseSquareRoot(number(32)).normalized());
        names.push(SquareRoot);
        names.extend(SquareRoot.normalized());
    }
    if *workload == Workload::Average {
        names.extend([1, 2].map(|buffers| PowerLaw(number(buffers))));
    }
    if *workload == Workload::Prefix && steps <= FULL_HISTORY {
        names.push(LogPerturbedRoot);
    }
    if steps <= DENSE {
        // Without row divisors, the root of the workload is the square root above.
        if matches!(workload, Workload::Average | Workload::Adam(_) | Workload::Matrix(_)) {
            names.push(MatrixSquareRoot);
            names.extend(MatrixSquareRoot.normalized());
        }
        names.extend([TreeOptimalDecoder, Tree, Honaker, FourierOptimalDecoder, Fourier, Optimal]);
        names.extend((!purpose.participation.is_single()).then_some(Coa));
    }
    names
}
