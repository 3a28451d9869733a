//! Budget ρ of zero-concentrated differential privacy, spent in parts.
//!
//! The parts of an adaptive composition add up, even if each size depends on earlier outputs, as
//! long as the sum never exceeds a bound fixed beforehand (Whitehouse et al. 2023, Theorem 1).
//! [`CovarianceBudget`] is that bound. Sums are rounded up.

use super::CovarianceError;
use hushflow_mechanism::accounting::Rho;
use hushflow_mechanism::numbers;
use hushflow_mechanism::release::Numbers;

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

/// A budget and the parts spent of it.
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
