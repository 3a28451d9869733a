//! ρ of zero-concentrated differential privacy, spent part by part.
//!
//! The parts of an adaptive composition add up, even where each part's size is chosen by what came before, as long as the sum never
//! exceeds a bound that was fixed beforehand (Whitehouse et al. 2023, Theorem 1). [`Budget`] is that bound. Sums are rounded up.

use super::CovarianceError;
use hushflow_mechanism::accounting::Rho;

/// What a part of the budget was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Part {
    /// The number of records, where it is private.
    Count,
    /// The number of records outside the bounds.
    Clipped,
    /// The mean, for centring.
    Mean,
    /// The diagonal.
    Diagonal,
    /// Which entry to measure next.
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

impl Part {
    /// Its name in JSON.
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

/// A budget and what was spent of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    total: f64,
    spent: f64,
    parts: Vec<(Part, f64)>,
}

impl Budget {
    /// A budget of which nothing was spent.
    pub fn new(total: Rho) -> Self {
        Self { total: total.value(), spent: 0.0, parts: Vec::new() }
    }

    /// ρ of it all.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// What is left.
    pub fn left(&self) -> f64 {
        (self.total - self.spent).max(0.0)
    }

    /// Spends a part. All that is left and a rounding error more is all that is left.
    ///
    /// # Errors
    /// [`CovarianceError::Overspent`] where it is not a positive number or more than is left.
    pub fn spend(&mut self, part: Part, rho: f64) -> Result<f64, CovarianceError> {
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

    /// The parts, in the order in which they were spent.
    pub fn parts(&self) -> &[(Part, f64)] {
        &self.parts
    }

    /// The sum of each kind of part, in the order of their first.
    pub fn by_kind(&self) -> Vec<(Part, f64)> {
        let mut sums: Vec<(Part, f64)> = Vec::new();
        for &(part, rho) in &self.parts {
            match sums.iter_mut().find(|(kind, _)| *kind == part) {
                Some((_, sum)) => *sum += rho,
                None => sums.push((part, rho)),
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_never_exceed_the_whole() {
        let mut budget = Budget::new(Rho::new(0.3).unwrap());
        for _ in 0..1000 {
            budget.spend(Part::Measurement, 0.1 / 1000.0).unwrap();
        }
        let refused = budget.spend(Part::Matrix, 0.21).unwrap_err();
        assert!(matches!(refused, CovarianceError::Overspent { .. }));
        budget.spend(Part::Selection, budget.left()).unwrap();
        assert_eq!(budget.left(), 0.0);
        let sum: f64 = budget.parts().iter().map(|(_, rho)| rho).sum();
        assert!(sum <= 0.3 && sum > 0.3 - 1e-12, "{sum}");
        assert!(budget.spend(Part::Matrix, f64::MIN_POSITIVE).is_err());
        let kinds: Vec<Part> = budget.by_kind().iter().map(|(part, _)| *part).collect();
        assert_eq!(kinds, [Part::Measurement, Part::Selection]);
    }

    #[test]
    fn no_part_is_free() {
        let mut budget = Budget::new(Rho::new(1.0).unwrap());
        for rho in [0.0, -0.5, f64::NAN] {
            assert!(budget.spend(Part::Trace, rho).is_err(), "{rho}");
        }
    }
}
