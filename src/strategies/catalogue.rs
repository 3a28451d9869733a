//! Which strategies are worth a look for a purpose, and which one runs where none is named.

use std::num::NonZeroU32;

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

fn number(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

/// What runs where nothing is named: constant memory, and within a per cent or so of the best.
pub fn default_strategy(workload: &Workload) -> StrategyName {
    match workload {
        Workload::Average => PowerLaw(number(2)),
        _ => BufferedToeplitz(number(4)),
    }
}

/// The strategies that `plan` compares for a purpose, none of which takes more than seconds to make.
pub fn catalogue(purpose: &Purpose) -> Vec<StrategyName> {
    let toeplitz = purpose.workload.toeplitz_part(1).is_some_and(|part| part[0] > 0.0);
    let steps = purpose.horizon.div_ceil(purpose.stamps.max(1));
    let mut names = vec![Identity];
    if toeplitz {
        names.extend([1, 2, 4].map(|buffers| BufferedToeplitz(number(buffers))));
        names.extend([8, 32].map(|bands| BandedInverseSquareRoot(number(bands))));
        names.push(BandedSquareRoot(number(32)));
        names.extend(BandedInverseSquareRoot(number(32)).normalized().filter(|_| steps <= FULL_HISTORY));
    }
    if toeplitz && steps <= FULL_HISTORY {
        names.push(SquareRoot);
        names.extend(SquareRoot.normalized());
    }
    if purpose.workload == Workload::Average {
        names.extend([1, 2].map(|buffers| PowerLaw(number(buffers))));
    }
    if purpose.workload == Workload::Prefix && steps <= FULL_HISTORY {
        names.push(LogPerturbedRoot);
    }
    if steps <= DENSE {
        names.push(MatrixSquareRoot);
        names.extend(MatrixSquareRoot.normalized());
        names.extend([TreeOptimalDecoder, Tree, Honaker, FourierOptimalDecoder, Fourier, Optimal]);
        names.extend((!purpose.participation.is_single()).then_some(Coa));
    }
    names
}
