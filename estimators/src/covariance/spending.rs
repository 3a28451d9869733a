//! Total cost of an estimate from public numbers alone, so that it can be charged to a ledger
//! before any record is read. The cost is that of one Gaussian mechanism
//! ([`bounded_range`](hushflow_mechanism::accounting::bounded_range)).
//!
//! **ρ of selections.** Only `pace`, `adaptive` and `shrunk` select. The last two select once, with
//! an eighth and a twentieth of ρ. A round of `pace` spends a share of at most β on its selection:
//! it begins with β, and annealing doubles the selection while it quadruples the measurement. All
//! rounds share the rest after the diagonal, at most (1 − α)ρ. So on every path selections have at
//! most β(1 − α)ρ, except for the 10⁻⁹ of ρ by which the last part may be cut, and all parts have
//! at most ρ. Selections weigh more (π against 2), so μ² is largest for the largest share of
//! selections. A single column needs no rounds.
//!
//! **Total variation.** On its grid, no statistic has a smaller sensitivity than Q² ≥ (2²⁰/√d)²
//! (`sample`; counts and sums have finer grids), and no release has more than ρ. So no σ is below
//! 2⁴⁰/(d√(2ρ)) steps. Each round spends at least the share of the first one, except for the last,
//! which takes the rest: T + 1 rounds draw a number each. All other releases together draw fewer
//! than 3(d + 1)².
//!
//! **(ε, δ).** From the curve of that Gaussian mechanism, which is exact for estimates without
//! selections. It saves noise against the conversion of ρ (37 % of ρ at (1, 10⁻⁶)).
//!
//! # Budget
//! Budget ρ of zero-concentrated differential privacy, spent in parts.
//!
//! The parts of an adaptive composition add up, even if each size depends on earlier outputs, as
//! long as the sum never exceeds a bound fixed beforehand (Whitehouse et al. 2023, Theorem 1).
//! [`CovarianceBudget`] is that bound. Sums are rounded up.

use super::baselines::SHARE;
use super::{CovarianceError, CovarianceMethod, Pace, shrunk};
use hushflow_mechanism::accounting::bounded_range::RhoSpending;
use hushflow_mechanism::accounting::discrete::Discreteness;
use hushflow_mechanism::accounting::{
    AccountingError, Delta, Epsilon, MARGIN, Rho, composition, least, zcdp,
};
use hushflow_mechanism::moments::RECORD_BITS;
use hushflow_mechanism::numbers;
use hushflow_mechanism::release::Numbers;

/// Share of the budget added to that of selections. It exceeds what the last part of a path may
/// fall short by.
const ROUNDING: f64 = 2e-9;

/// Cost of an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CovarianceSpending {
    /// ρ by purpose.
    pub rho: RhoSpending,
    /// Bound on the distance of all its noise from the ideal.
    pub discreteness: Discreteness,
}

impl CovarianceSpending {
    fn new(dimension: usize, rho: Rho, selection: f64, rounds: f64) -> Result<Self, AccountingError> {
        let d = dimension.max(1) as f64;
        let least = (1u64 << (2 * RECORD_BITS)) as f64 / d / (2.0 * rho.value()).sqrt();
        let draws = 3.0 * (d + 1.0).powi(2) + rounds;
        let selection = (selection * (1.0 + MARGIN)).min(rho.value());
        Ok(Self {
            rho: RhoSpending { gaussian: rho.value() - selection, selection },
            discreteness: Discreteness::new(least * (1.0 - MARGIN), draws)?,
        })
    }

    fn composed(&self) -> Result<composition::Spending, AccountingError> {
        composition::Spending::of(self.rho.noise_multiplier_rounded_down()?, self.discreteness)
    }

    /// Returns the least known ε at this δ, rounded up: by the Gaussian mechanism or by the
    /// conversion of ρ.
    ///
    /// # Errors
    /// [`AccountingError`] if ρ is too large for the accounting.
    pub fn epsilon(&self, delta: Delta) -> Result<Epsilon, AccountingError> {
        let by_rho = zcdp::epsilon_rounded_up(Rho::new(self.rho.rho())?, delta);
        let by_curve = self.composed()?.epsilon(delta);
        Ok(by_curve.filter(|epsilon| *epsilon < by_rho).unwrap_or(by_rho))
    }
}

/// Returns the largest ρ whose cost is (ε, δ)-private, rounded down; `None` if even the least ρ
/// costs more.
fn rho_for(
    (epsilon, delta): (Epsilon, Delta),
    spending: impl Fn(Rho) -> Result<CovarianceSpending, CovarianceError>,
) -> Option<Rho> {
    let composed = |rho: f64| spending(Rho::new(rho).ok()?).ok()?.composed().ok();
    let exceeds = |rho: f64| composed(rho).is_none_or(|spent| spent.delta(epsilon) > delta.value());
    Rho::new(least(f64::MIN_POSITIVE, Rho::MAX, exceeds).next_down()).ok().filter(|rho| !exceeds(rho.value()))
}

impl Pace {
    /// Returns the cost of an estimate of `dimension` columns with a budget of `rho`.
    ///
    /// # Errors
    /// [`CovarianceError`] for invalid shares, or with an [`AccountingError`] if ρ is too large for
    /// the accounting.
    pub fn spending(&self, dimension: usize, rho: Rho) -> Result<CovarianceSpending, CovarianceError> {
        self.check()?;
        if dimension < 2 {
            return Ok(CovarianceSpending::new(dimension, rho, 0.0, 0.0)?);
        }
        let selection = (self.selection_share * (1.0 - self.diagonal_share) + ROUNDING) * rho.value();
        Ok(CovarianceSpending::new(dimension, rho, selection, self.rounds_for(dimension) as f64 + 1.0)?)
    }

    /// Returns the budget with which the estimate is (ε, δ)-private, rounded down; `None` if there
    /// is none.
    pub fn rho_for(&self, dimension: usize, promise: (Epsilon, Delta)) -> Option<Rho> {
        rho_for(promise, |rho| self.spending(dimension, rho))
    }
}

impl CovarianceMethod {
    /// Returns the cost of an estimate of `dimension` columns with a budget of `rho`.
    ///
    /// # Errors
    /// As [`Pace::spending`].
    pub fn spending(self, dimension: usize, rho: Rho) -> Result<CovarianceSpending, CovarianceError> {
        match self {
            Self::Pace => Pace::default().spending(dimension, rho),
            Self::Adaptive | Self::Shrunk => {
                let share = if self == Self::Shrunk { shrunk::SHARE } else { SHARE };
                Ok(CovarianceSpending::new(dimension, rho, (share + ROUNDING) * rho.value(), 0.0)?)
            }
            _ => Ok(CovarianceSpending::new(dimension, rho, 0.0, 0.0)?),
        }
    }

    /// Returns the budget with which the estimate is (ε, δ)-private, rounded down; `None` if there
    /// is none.
    pub fn rho_for(self, dimension: usize, promise: (Epsilon, Delta)) -> Option<Rho> {
        rho_for(promise, |rho| self.spending(dimension, rho))
    }
}

/// Purpose of a part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BudgetPurpose {
    /// The number of records, where it is private.
    Count,
    /// The number of records outside the bounds.
    Clipped,
    /// The mean, for centring.
    Mean,
    /// The diagonal.
    Diagonal,
    /// The selection of the next entry.
    Selection,
    /// A single entry.
    Measurement,
    /// All entries at once.
    Matrix,
    /// The eigenvalues.
    Eigenvalues,
    /// The sum of the diagonal.
    Trace,
}

impl BudgetPurpose {
    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Clipped => "clipped",
            Self::Mean => "mean",
            Self::Diagonal => "diagonal",
            Self::Selection => "selection",
            Self::Measurement => "measurement",
            Self::Matrix => "matrix",
            Self::Eigenvalues => "eigenvalues",
            Self::Trace => "trace",
        }
    }
}

numbers!(enum BudgetPurpose {
    0 Count, 1 Clipped, 2 Mean, 3 Diagonal, 4 Selection, 5 Measurement, 6 Matrix, 7 Eigenvalues, 8 Trace
});

/// A budget and the parts spent from it.
#[derive(Clone, Debug, PartialEq)]
pub struct CovarianceBudget {
    total: f64,
    spent: f64,
    parts: Vec<(BudgetPurpose, f64)>,
}

impl CovarianceBudget {
    /// Returns an unspent budget.
    pub fn new(total: Rho) -> Self {
        Self { total: total.value(), spent: 0.0, parts: Vec::new() }
    }

    /// Returns the total ρ.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Returns the unspent ρ.
    pub fn left(&self) -> f64 {
        (self.total - self.spent).max(0.0)
    }

    /// Spends a part and returns its ρ. A part that exceeds the rest by no more than a rounding
    /// error takes the rest.
    ///
    /// # Errors
    /// [`CovarianceError::Overspent`] if the part is not positive or exceeds the rest.
    pub fn spend(&mut self, part: BudgetPurpose, rho: f64) -> Result<f64, CovarianceError> {
        let left = self.left();
        let spent = rho.min(left);
        let fits = rho > 0.0 && spent > 0.0 && rho <= left * (1.0 + 1e-9);
        if !fits {
            return Err(CovarianceError::Overspent { wanted: rho, left });
        }
        let sum = self.spent + spent;
        self.spent = if sum < self.total { sum.next_up().min(self.total) } else { self.total };
        self.parts.push((part, spent));
        Ok(spent)
    }

    /// Returns the parts in the order of spending.
    pub fn parts(&self) -> &[(BudgetPurpose, f64)] {
        &self.parts
    }

    /// Returns the sum of each kind of part, in the order of their first occurrence.
    pub fn by_kind(&self) -> Vec<(BudgetPurpose, f64)> {
        let mut sums: Vec<(BudgetPurpose, f64)> = Vec::new();
        for &(part, rho) in &self.parts {
            match sums.iter_mut().find(|(kind, _)| *kind == part) {
                Some((_, sum)) => *sum += rho,
                None => sums.push((part, rho)),
            }
        }
        sums
    }
}

impl Numbers for CovarianceBudget {
    /// The total and the sum of each kind of part.
    fn write(&self, to: &mut Vec<i128>) {
        (self.total, self.by_kind()).write(to);
    }

    fn read(from: &mut &[i128]) -> Option<Self> {
        let (total, parts): (f64, Vec<(BudgetPurpose, f64)>) = Numbers::read(from)?;
        Some(Self { total, spent: parts.iter().map(|(_, rho)| rho).sum(), parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::covariance::{BudgetPurpose, CovarianceBudget, CovarianceSample};
    use hushflow_mechanism::noise::NoiseSource;
    use hushflow_mechanism::sensitivity::Neighbours;

    /// On many paths and with every option, selections spend at most the charged ρ and μ².
    #[test]
    fn no_path_spends_more_on_selections_than_is_charged() {
        let rho = Rho::new(0.7).unwrap();
        let records: Vec<f64> =
            (0..400).map(|position| f64::from(position * 37 % 101) / 50.0 - 1.0).collect();
        let bounds = vec![(-1.0, 1.0); 4];
        for seed in 0..40 {
            let pace = Pace {
                centre: (seed % 2 == 0).then_some(0.2),
                rounds: (seed % 3 == 0).then_some(1 + seed % 5),
                selection_share: 0.2 + 0.2 * (seed % 4) as f64,
                ..Pace::default()
            };
            let neighbours = [Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut][seed as usize / 20];
            let sample = CovarianceSample::new(&bounds, &records, neighbours).unwrap();
            let mut generator = NoiseSource::Seeded(seed).generator(1, 0).unwrap();
            let found = pace.estimate(&sample, CovarianceBudget::new(rho), &mut generator).unwrap();
            let spending = pace.spending(4, rho).unwrap();
            let spent_on = |kind: BudgetPurpose| {
                found.budget.by_kind().iter().find(|part| part.0 == kind).map_or(0.0, |part| part.1)
            };
            let selections = spent_on(BudgetPurpose::Selection);
            assert!(selections > 0.0 && selections <= spending.rho.selection, "{seed} {selections}");
            assert!(spending.rho.rho() <= 0.7 + 1e-15, "{seed}");
            assert!(found.rounds as f64 <= pace.rounds_for(4) as f64 + 1.0, "{seed}: {}", found.rounds);
        }
    }

    /// Nearly all of the promised budget is spent and no more; a method that selects spends less ρ.
    #[test]
    fn calibrated_mechanism_spends_its_budget() {
        for (epsilon, delta) in [(0.01, 1e-9), (1.0, 1e-6), (2.0, 1e-6), (10.0, 0.01)] {
            let promise = (Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap());
            let rho = |method: CovarianceMethod| {
                let rho = method.rho_for(5, promise).unwrap();
                let spending = method.spending(5, rho).unwrap();
                assert!(spending.composed().unwrap().delta(promise.0) <= delta, "{method} {epsilon}");
                let reported = spending.epsilon(promise.1).unwrap().value();
                assert!(reported <= epsilon && reported > 0.9 * epsilon, "{method}: {reported} {epsilon}");
                rho.value()
            };
            let exact = hushflow_mechanism::accounting::gaussian::noise_multiplier(promise.0, promise.1)
                .rho()
                .value();
            assert!((rho(CovarianceMethod::Ssp) / exact - 1.0).abs() < 1e-6);
            assert!(
                (rho(CovarianceMethod::Pace) / exact - 2.0 / (1.3 + 0.35 * std::f64::consts::PI)).abs()
                    < 1e-6
            );
        }
        let nothing = (Epsilon::new(0.0).unwrap(), Delta::new(f64::MIN_POSITIVE).unwrap());
        assert_eq!(CovarianceMethod::Pace.rho_for(5, nothing), None);
    }

    #[test]
    fn only_three_methods_make_selections() {
        let rho = Rho::new(2.0).unwrap();
        for method in CovarianceMethod::ALL {
            let spending = method.spending(5, rho).unwrap();
            let shares = match method {
                CovarianceMethod::Pace => [0.35, 0.0],
                CovarianceMethod::Adaptive => [0.125; 2],
                CovarianceMethod::Shrunk => [0.05; 2],
                _ => [0.0; 2],
            };
            let single = method.spending(1, rho).unwrap();
            for (spending, share) in [&spending, &single].into_iter().zip(shares) {
                assert!((spending.rho.selection - share * 2.0).abs() < 1e-8, "{method}");
            }
            assert!(spending.discreteness.total_variation() < 1e-18, "{method}");
        }
        assert!(CovarianceMethod::Ssp.spending(5, Rho::new(1e22).unwrap()).is_err(), "noise below the grid");
        assert!(Pace { selection_share: 1.5, ..Pace::default() }.spending(5, rho).is_err());
    }

    #[test]
    fn parts_add_up_and_never_exceed_the_whole() {
        let mut budget = CovarianceBudget::new(Rho::new(0.3).unwrap());
        for _ in 0..1000 {
            budget.spend(BudgetPurpose::Measurement, 0.1 / 1000.0).unwrap();
        }
        let refused = budget.spend(BudgetPurpose::Matrix, 0.21).unwrap_err();
        assert!(matches!(refused, CovarianceError::Overspent { .. }));
        budget.spend(BudgetPurpose::Selection, budget.left()).unwrap();
        assert_eq!(budget.left(), 0.0);
        let sum: f64 = budget.parts().iter().map(|(_, rho)| rho).sum();
        assert!(sum <= 0.3 && sum > 0.3 - 1e-12, "{sum}");
        assert!(budget.spend(BudgetPurpose::Matrix, f64::MIN_POSITIVE).is_err());
        let kinds: Vec<BudgetPurpose> = budget.by_kind().iter().map(|(part, _)| *part).collect();
        assert_eq!(kinds, [BudgetPurpose::Measurement, BudgetPurpose::Selection]);
    }

    #[test]
    fn no_part_is_free() {
        let mut budget = CovarianceBudget::new(Rho::new(1.0).unwrap());
        for rho in [0.0, -0.5, f64::NAN] {
            assert!(budget.spend(BudgetPurpose::Trace, rho).is_err(), "{rho}");
        }
    }
}
