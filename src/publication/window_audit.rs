//! Audit of window estimates: a lower bound on the privacy loss of all windows that hold a unit.
//!
//! Two made-up streams differ in the records of one unit, which are as far apart as the estimator
//! lets them be: far outliers on either side for a mean; a corner of the bounds against their
//! middle, or against no record, for a covariance. All windows that hold the unit are estimated
//! many times from either stream. A threshold on the sum of their estimates along the diagonal,
//! learned from the first trials, guesses the stream in the others. The share of right guesses
//! bounds μ from below ([`EventPair::mu`](hushflow_mechanism::audit::bound::EventPair::mu)), and
//! the charge of all windows must be at least that.
//!
//! The audit reads no data. It is no proof: it tries one pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hushflow_mechanism::accounting::{Delta, NoiseMultiplier, gaussian};
use hushflow_mechanism::audit::bound::EventPair;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::sensitivity::Neighbours;
use serde::Serialize;
use serde_json::Value;

use super::windows::bounds;
use super::{PublicationError, WindowPublication};
use crate::pipeline::WindowEstimator;

/// Share of the trials from which the threshold is learned.
const LEARNT: f64 = 0.25;

/// Most windows that a trial estimates.
const MOST_WINDOWS: usize = 32;

/// Distance of an outlier from the middle of the bounds, in their distances.
const FAR: f64 = 1e3;

/// Size and confidence of an audit of windows.
#[derive(Clone, Copy, Debug)]
pub struct WindowAudit {
    /// Rows of one key in an epoch.
    pub rows_per_epoch: usize,
    /// Number of trials, half of them with each stream.
    pub trials: u64,
    /// Probability of accusing a correct estimator.
    pub false_alarm: f64,
    /// The noise: that of the operating system, or a seed in tests.
    pub source: NoiseSource,
}

/// Result of an audit of windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFinding {
    /// Number of trials.
    pub trials: u64,
    /// Windows of a trial, all of which hold records of the unit.
    pub windows: usize,
    /// Pairs of a window and a record of the unit in it.
    pub contributions: usize,
    /// Share of windows without an estimate.
    pub refused: f64,
    /// μ that the ledger is charged.
    pub mu_claimed: f64,
    /// Lower bound of μ, with the confidence of the audit.
    pub mu: f64,
    /// Lower bound of ε at the claimed δ.
    pub epsilon: f64,
    /// Whether the bound is within the claim.
    pub ok: bool,
}

/// A window of a trial.
struct AuditWindow {
    rows: usize,
    /// Records of the unit.
    own: usize,
}

impl WindowAudit {
    /// Audits the estimator of these windows, on all processors. `progress` receives the number of
    /// trials done so far.
    ///
    /// # Errors
    /// [`PublicationError`] if the charge is invalid.
    pub fn run(
        &self,
        publication: &WindowPublication,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<WindowFinding, PublicationError> {
        let windows = self.windows(publication);
        let tables: Vec<[Vec<f64>; 2]> = windows.iter().map(|window| table(publication, window)).collect();
        let weights: Vec<f64> = windows.iter().map(|window| window.own as f64).collect();
        let trial = |number: u64| {
            let (mut sum, mut refused) = (0.0, 0u64);
            for (window, (tables, weight)) in (0..).zip(tables.iter().zip(&weights)) {
                let generator = self.source.generator(number, window);
                let found = generator.ok().and_then(|mut generator| {
                    let rows = &tables[(number % 2) as usize];
                    let numbers = publication.window_estimate().numbers(rows, &mut generator);
                    statistic(publication, &numbers)
                });
                sum += weight * found.unwrap_or_default();
                refused += u64::from(found.is_none());
            }
            (sum, refused)
        };
        let found = in_parallel(self.trials, trial, progress);
        let learnt = ((self.trials as f64 * LEARNT) as usize).min(found.len());
        let (first, rest) = found.split_at(learnt);
        let mean_of = |world: usize| {
            let own = first.iter().skip(world).step_by(2).map(|(sum, _)| *sum);
            own.sum::<f64>() / (first.len() / 2).max(1) as f64
        };
        let (one, other) = (mean_of(0), mean_of(1));
        let (threshold, sign) = ((one + other) / 2.0, if one >= other { 1.0 } else { -1.0 });
        let mut event = EventPair::default();
        for ((sum, _), number) in rest.iter().zip(learnt..) {
            event.worlds[number % 2].add(sign * (sum - threshold) > 0.0);
        }
        let mu = event.mu(self.false_alarm / 2.0);
        let charge = publication.charge();
        let mu_claimed = charge.spending()?.mu();
        let delta = Delta::new(charge.delta)?;
        let epsilon = NoiseMultiplier::new(mu.recip());
        let refused = found.iter().map(|(_, refused)| refused).sum::<u64>() as f64;
        Ok(WindowFinding {
            trials: found.len() as u64,
            windows: windows.len(),
            contributions: windows.iter().map(|window| window.own).sum(),
            refused: refused / (found.len() * windows.len()).max(1) as f64,
            mu_claimed,
            mu,
            epsilon: epsilon.map_or(0.0, |sigma| gaussian::epsilon(sigma, delta).value()),
            ok: mu <= mu_claimed,
        })
    }

    /// Returns the windows that hold a unit which takes part as often as it may, as early as it is
    /// in most of them.
    fn windows(&self, publication: &WindowPublication) -> Vec<AuditWindow> {
        let parameters = publication.parameters();
        let (span, horizon) = (publication.span(), parameters.epochs.schedule.horizon());
        let (most, gap) = match parameters.participation() {
            Participation::MinSeparation { count, gap } => (count.get(), gap.get()),
            _ => (1, 1),
        };
        let most = most.min(MOST_WINDOWS as u64).min(horizon.div_ceil(gap));
        let reach = (most - 1).saturating_mul(gap);
        let first = match span.first_epoch(horizon) {
            1 => 1,
            _ => span.longest(horizon).min(horizon.saturating_sub(reach)).max(1),
        };
        let epochs: Vec<u64> = (0..most).map(|number| first + number * gap).collect();
        let records = parameters.records_at_once() as usize;
        let window = |end: u64| {
            let inside = span.first_epoch(end)..=end;
            let own = epochs.iter().filter(|epoch| inside.contains(epoch)).count() * records;
            let length = (end - inside.start() + 1) as usize;
            (own > 0).then(|| AuditWindow { rows: (length * self.rows_per_epoch).max(own), own })
        };
        let ends = (first..=horizon).filter(|&end| span.ends_at(end));
        let until = first.saturating_add(reach).saturating_add(span.longest(horizon));
        ends.take_while(|&end| end <= until).filter_map(window).take(MOST_WINDOWS).collect()
    }
}

/// Returns the rows of a window in both streams.
fn table(publication: &WindowPublication, window: &AuditWindow) -> [Vec<f64>; 2] {
    let parameters = publication.parameters();
    let bounds = bounds(parameters);
    let others = publication.made_up_rows(window.rows - window.own);
    let middle = |(lower, upper): &(f64, f64)| lower + (upper - lower) / 2.0;
    let own = |world: usize| -> Vec<f64> {
        let value = |bound: &(f64, f64)| match (publication.estimator(), world) {
            (WindowEstimator::Mean { .. }, 0) => middle(bound) + FAR * (bound.1 - bound.0),
            (WindowEstimator::Mean { .. }, _) => middle(bound) - FAR * (bound.1 - bound.0),
            (WindowEstimator::Covariance { .. }, 0) => bound.1,
            (WindowEstimator::Covariance { .. }, _) => middle(bound),
        };
        let is_absent = world == 1 && parameters.privacy.neighbours == Neighbours::ZeroOut;
        let records = if is_absent { 0 } else { window.own };
        (0..records).flat_map(|_| bounds.iter().map(value)).collect()
    };
    [0, 1].map(|world| [own(world), others.clone()].concat())
}

/// Returns the sum of an estimate along the diagonal, in distances of the bounds; `None` without
/// one.
fn statistic(publication: &WindowPublication, numbers: &[i128]) -> Option<f64> {
    let parameters = publication.parameters();
    let columns: Vec<String> = parameters.columns.iter().map(|column| column.name.clone()).collect();
    let report = publication.read_window(&columns, &mut &numbers[..])?;
    let bounds = bounds(parameters);
    let width = |at: usize| bounds[at].1 - bounds[at].0;
    let list = |value: &Value| -> Option<Vec<f64>> { value.as_array()?.iter().map(Value::as_f64).collect() };
    match publication.estimator() {
        WindowEstimator::Mean { .. } => {
            let means = list(report.get("mean")?)?;
            let centred = means
                .iter()
                .zip(&bounds)
                .map(|(mean, (lower, upper))| (mean - (lower + (upper - lower) / 2.0)) / (upper - lower));
            Some(centred.sum())
        }
        WindowEstimator::Covariance { .. } => {
            let rows: Vec<_> =
                report.get("covariance")?.as_array()?.iter().map(list).collect::<Option<_>>()?;
            let scaled = rows.iter().enumerate().flat_map(|(i, row)| {
                row.iter().enumerate().map(move |(j, entry)| entry / (width(i) * width(j)))
            });
            Some(scaled.sum())
        }
    }
}

/// Runs trials on all processors; returns their results in order.
fn in_parallel<T: Send>(
    trials: u64,
    trial: impl Fn(u64) -> T + Sync,
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let done = AtomicU64::new(0);
    let part = |thread: u64| {
        let own = (trials * thread / threads)..(trials * (thread + 1) / threads);
        let one = |number| {
            let result = trial(number);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            result
        };
        own.map(one).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}
