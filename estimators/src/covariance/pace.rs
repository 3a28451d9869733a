//! PACE-GGM: repeatedly selects a poorly estimated entry, measures it and completes the matrix
//! (Ferrando et al. 2026, Algorithms 1 to 3).
//!
//! Scores and measurements are integer sums, so their sensitivities are exact
//! ([`sample`](super::sample)), and nothing is divided by the count before everything is public.
//! The current estimate enters a score as a public integer. So `||S − E| − |S' − E|| ≤ |S − S'|`,
//! the sensitivity of the entry.
//!
//! **Privacy.** With shares α and β of ρ: the diagonal is one Gaussian mechanism (αρ). Each round
//! is an exponential mechanism (ρ_sel) and a Gaussian one (ρ_meas), whose sizes depend on public
//! numbers. [`CovarianceBudget`] refuses any part beyond ρ. ∎

use super::CovarianceError;
use super::completion::Completion;
use super::estimate::{
    CovarianceEstimate, EntryMeasurement, PartialCorrelation, PreparedSample, check_share,
};
use super::sample::{CovarianceSample, add_noise, measure};
use super::spending::{BudgetPurpose, CovarianceBudget};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::selection::ExponentialMechanism;
use rand::CryptoRng;

/// Share of the budget below which the rest counts as spent.
const NOTHING: f64 = 1e-9;

/// Division of the budget. The default is the paper's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// α: the diagonal's share.
    pub diagonal_share: f64,
    /// β: share of the selection in each round.
    pub selection_share: f64,
    /// T: number of rounds for which the budget would last without annealing; by default twice the
    /// number of pairs.
    pub rounds: Option<u64>,
    /// Share of the mean, if the data are to be centred.
    pub centre: Option<f64>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { diagonal_share: 0.3, selection_share: 0.5, rounds: None, centre: None }
    }
}

impl Pace {
    /// Spends the rest of a budget.
    ///
    /// # Errors
    /// [`CovarianceError`]: from public numbers alone, unless it [follows from
    /// releases](CovarianceError::follows_from_releases).
    pub fn estimate<R: CryptoRng + ?Sized>(
        &self,
        sample: &CovarianceSample<'_>,
        mut budget: CovarianceBudget,
        rng: &mut R,
    ) -> Result<CovarianceEstimate, CovarianceError> {
        self.check()?;
        let dimension = sample.dimension();
        // A private count is charged like one more entry of the diagonal.
        let count_rho = self.diagonal_share * budget.left() / (dimension + 1) as f64;
        let start = PreparedSample::new(sample, count_rho, self.centre, &mut budget, rng)?;
        let sums = start.sample.moments(SecondMoment::Full)?.to_wide();
        let mut run = PaceRun::begin(self, &start, &sums[1 + dimension..], &mut budget, rng)?;
        if dimension > 1 {
            run.spend(self, &mut budget, rng)?;
        }
        run.completion.finish();
        run.estimate(budget)
    }

    pub(super) fn check(&self) -> Result<(), CovarianceError> {
        check_share("the diagonal", self.diagonal_share)?;
        check_share("selections", self.selection_share)
    }

    /// T for this number of columns.
    pub(super) fn rounds_for(&self, dimension: usize) -> u64 {
        let dimension = dimension as u64;
        self.rounds.unwrap_or(dimension * dimension.saturating_sub(1)).max(1)
    }
}

/// An entry with its measurements in z²: the weighted average y and the precision λ.
#[derive(Clone, Copy)]
struct EntryAverage {
    row: usize,
    column: usize,
    /// Σ q_j q_k, exact and private.
    sum: i128,
    value: f64,
    precision: f64,
    times: u32,
}

struct PaceRun<'a> {
    start: &'a PreparedSample<'a>,
    known: Vec<EntryAverage>,
    completion: Completion,
    rounds: u64,
}

#[derive(Clone, Copy)]
struct Allowance {
    selection: f64,
    measurement: f64,
}

impl Allowance {
    fn of(rho: f64, share: f64) -> Self {
        Self { selection: share * rho, measurement: rho - share * rho }
    }

    fn total(self) -> f64 {
        self.selection + self.measurement
    }
}

impl<'a> PaceRun<'a> {
    /// Algorithm 2.
    fn begin<R: CryptoRng + ?Sized>(
        pace: &Pace,
        start: &'a PreparedSample<'a>,
        second: &[i128],
        budget: &mut CovarianceBudget,
        rng: &mut R,
    ) -> Result<Self, CovarianceError> {
        let dimension = start.sample.dimension();
        let positions = Layout::new(dimension, SecondMoment::Full).second_entries();
        let entry = |((column, row), &sum): ((usize, usize), &i128)| EntryAverage {
            row,
            column,
            sum,
            value: 0.0,
            precision: 0.0,
            times: 0,
        };
        let mut known: Vec<EntryAverage> = positions.zip(second).map(entry).collect();
        let diagonal: Vec<i128> =
            known.iter().filter(|entry| entry.row == entry.column).map(|entry| entry.sum).collect();
        let share = if dimension == 1 { 1.0 } else { pace.diagonal_share };
        let sensitivity = start.sample.entry_sensitivity(true) * (dimension as f64).sqrt();
        let part = (BudgetPurpose::Diagonal, share * budget.left());
        let noisy = add_noise(budget, part, &diagonal, sensitivity, rng)?;
        let unit = start.unit();
        for (entry, noisy) in known.iter_mut().filter(|entry| entry.row == entry.column).zip(&noisy) {
            entry.learn(noisy.value as f64 * unit, noisy.deviation * unit);
        }
        let measured: Vec<(f64, f64)> = known
            .iter()
            .filter(|entry| entry.row == entry.column)
            .map(|entry| (entry.value, entry.precision))
            .collect();
        Ok(Self { start, known, completion: Completion::of_diagonal(&measured), rounds: 0 })
    }

    fn spend<R: CryptoRng + ?Sized>(
        &mut self,
        pace: &Pace,
        budget: &mut CovarianceBudget,
        rng: &mut R,
    ) -> Result<(), CovarianceError> {
        let rounds = pace.rounds_for(self.start.sample.dimension());
        let nothing = budget.total() * NOTHING;
        let mut allowance = Allowance::of(budget.left() / rounds as f64, pace.selection_share);
        while budget.left() > nothing {
            let informative = self.round(allowance, budget, rng)?;
            // Algorithm 3.
            if !informative {
                allowance.selection *= 2.0;
                allowance.measurement *= 4.0;
            }
            if budget.left() < 2.0 * allowance.total() {
                allowance = Allowance::of(budget.left(), pace.selection_share);
            }
        }
        Ok(())
    }

    /// Selects, measures and completes. Returns whether the estimate changed by more than the
    /// expected magnitude of the noise.
    fn round<R: CryptoRng + ?Sized>(
        &mut self,
        allowance: Allowance,
        budget: &mut CovarianceBudget,
        rng: &mut R,
    ) -> Result<bool, CovarianceError> {
        let sample = &self.start.sample;
        let rho = budget.spend(BudgetPurpose::Selection, allowance.selection)?;
        let sensitivity = sample.entry_sensitivity(false).max(sample.entry_sensitivity(true));
        let chosen = ExponentialMechanism::new(rho, sensitivity as i128)?.select(&self.scores(), rng)?;
        let unit = self.start.unit();
        let entry = &mut self.known[chosen];
        let (row, column) = (entry.row, entry.column);
        let part = (BudgetPurpose::Measurement, allowance.measurement);
        let noisy = measure(budget, part, entry.sum, sample.entry_sensitivity(row == column), rng)?;
        let deviation = noisy.deviation * unit;
        entry.learn(noisy.value as f64 * unit, deviation);
        let before = self.completion.covariance(row, column);
        self.completion.measure(row, column, entry.value, entry.precision);
        let change = (self.completion.covariance(row, column) - before).abs();
        self.rounds += 1;
        Ok(change > (2.0 / std::f64::consts::PI).sqrt() * deviation)
    }

    /// |Σ_jk − Σ̂_jk| of every entry, in integers.
    fn scores(&self) -> Vec<i128> {
        let per_unit = self.start.unit().recip();
        let score = |entry: &EntryAverage| {
            let estimate = (self.completion.covariance(entry.row, entry.column) * per_unit).round() as i128;
            entry.sum.saturating_sub(estimate).saturating_abs()
        };
        self.known.iter().map(score).collect()
    }

    fn estimate(self, budget: CovarianceBudget) -> Result<CovarianceEstimate, CovarianceError> {
        let PaceRun { start, known, completion, rounds } = self;
        let measured = known.iter().filter(|entry| entry.times > 0).map(|entry| {
            let units = start.own_units(entry.row, entry.column);
            let deviation = units * entry.precision.sqrt().recip();
            EntryMeasurement {
                row: entry.row,
                column: entry.column,
                value: units * entry.value,
                deviation,
                times: entry.times,
            }
        });
        let measurements: Vec<EntryMeasurement> = measured.collect();
        let multiplier = completion.multiplier();
        let pairs = measurements.iter().filter(|entry| entry.row != entry.column);
        let partial_correlations = pairs.map(|&EntryMeasurement { row, column, .. }| {
            let norm = (multiplier[(row, row)] * multiplier[(column, column)]).sqrt();
            PartialCorrelation { row, column, value: -multiplier[(row, column)] / norm }
        });
        let partial_correlations = partial_correlations.collect();
        let start =
            PreparedSample { sample: start.sample.clone(), rows: start.rows, mean: start.mean.clone() };
        let estimate = start.estimate(&completion.matrix(), budget)?;
        Ok(CovarianceEstimate { measurements, partial_correlations, rounds, ..estimate })
    }
}

impl EntryAverage {
    /// Adds a measurement to the average, weighted by its precision (Proposition 4.2).
    fn learn(&mut self, value: f64, deviation: f64) {
        let precision = deviation.powi(-2);
        self.value = (self.precision * self.value + precision * value) / (self.precision + precision);
        self.precision += precision;
        self.times += 1;
    }
}
