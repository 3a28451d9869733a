//! Which strategies are worth a look for a purpose, and which one runs where none is named.

use std::num::NonZeroU32;

use hushflow_mechanism::strategy::MAX_BANDS;
use hushflow_mechanism::strategy::StrategyName::{
    self, BandedInverseSquareRoot, BandedSquareRoot, BufferedToeplitz, Coa, Fourier, FourierOptimalDecoder,
    Honaker, Identity, LogPerturbedRoot, MatrixSquareRoot, Optimal, PowerLaw, SquareRoot, Tree,
    TreeOptimalDecoder,
};
use hushflow_mechanism::workload::Workload;

use super::Purpose;

/// The longest horizon for which dense strategies and searches are part of a comparison: they take seconds.
const DENSE: u64 = 512;

/// The longest horizon for which strategies with full history and errors that cost a square of it are compared.
const FULL_HISTORY: u64 = 1 << 13;

/// The longest horizon for which bands for a window of any length are compared, and the longest window beyond.
const STREAMED: u64 = 1 << 22;
const BANDED_WINDOW: u64 = 1 << 10;

fn number(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

/// What runs where nothing is named: memory that does not grow with the stream, and within a per cent or so of the best.
pub fn default_strategy(workload: &Workload) -> StrategyName {
    match workload {
        Workload::Average => PowerLaw(number(2)),
        // What forgets all at once is none of buffers that forget little by little.
        Workload::Window(length) => BandedSquareRoot(bands(length.get(), 4)),
        _ => BufferedToeplitz(number(5)),
    }
}

/// So many bands for every epoch of a window.
fn bands(length: u64, times: u64) -> NonZeroU32 {
    number(length.saturating_mul(times).min(u64::from(MAX_BANDS)) as u32)
}

/// The strategies that `plan` compares for a purpose, none of which takes more than seconds to make.
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
