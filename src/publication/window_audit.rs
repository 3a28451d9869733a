//! Audit of window estimates: a lower bound on the privacy loss of all windows that hold a unit.
//!
//! Two made-up streams differ in the records of one unit, which are as far apart as the estimator
//! lets them be:
//!
//! | estimate | one stream | the other |
//! |---|---|---|
//! | mean | far outliers above | far outliers below |
//! | covariance | a corner | the corner with every second value mirrored; the middle; no record |
//!
//! Other records are at corners too for a covariance, so that a private clipping norm is that of a
//! corner. For the corners x and w, the entries of xxᵀ − wwᵀ off the diagonal are 2 or 0: the
//! largest change of the matrix. The middle changes the diagonal most. The audit uses the pair that
//! the first trials separate best.
//!
//! All windows that hold the unit are estimated many times from either stream. The statistic is the
//! product of their estimates with the difference of the records. A threshold on it, learned from
//! the first trials, guesses the stream of the later trials. The share of right guesses bounds μ
//! from below
//! ([`EventPair::mu`](hushflow_mechanism::audit::bound::EventPair::mu)), and the charge of all
//! windows must be at least that. The audit reads no data and is not a proof.

use std::ops::Range;
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

/// Share of the trials from which the threshold is learned.
const LEARNT: f64 = 0.25;

/// Maximum number of windows that a trial estimates.
const MAX_WINDOWS: usize = 32;

/// Distance of an outlier from the middle of the bounds, in widths of the bounds.
const FAR: f64 = 1e3;

/// Size and confidence of an audit of windows.
#[derive(Clone, Copy, Debug)]
pub struct WindowAudit {
    /// Rows of one key in an epoch.
    pub rows_per_epoch: usize,
    /// Number of trials, half of them with each stream.
    pub trials: u64,
    /// Probability of a false alarm for a correct estimator.
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
        let weights: Vec<f64> = windows.iter().map(|window| window.own as f64).collect();
        let done = AtomicU64::new(0);
        let trials = |canary: Canary, numbers: Range<u64>| {
            let tables: Vec<_> = windows.iter().map(|window| table(publication, window, canary)).collect();
            let trial = |number: u64| {
                let (mut sum, mut refused) = (0.0, 0u64);
                for (window, (tables, weight)) in (0..).zip(tables.iter().zip(&weights)) {
                    let generator = self.source.generator(number, window);
                    let found = generator.ok().and_then(|mut generator| {
                        let rows = &tables[(number % 2) as usize];
                        let numbers = publication.window_estimate().numbers(rows, &mut generator);
                        statistic(publication, &numbers, canary)
                    });
                    sum += weight * found.unwrap_or_default();
                    refused += u64::from(found.is_none());
                }
                (sum, refused)
            };
            in_parallel(numbers, trial, &|| {
                progress((done.fetch_add(1, Ordering::Relaxed) + 1).min(self.trials));
            })
        };
        let learnt = (self.trials as f64 * LEARNT) as u64;
        let learn = |canary| (canary, Threshold::between(&trials(canary, 0..learnt)));
        let (mut canary, mut threshold) = learn(Canary::Far);
        if publication.is_covariance() && publication.parameters().privacy.neighbours != Neighbours::ZeroOut {
            let alternating = learn(Canary::Alternating);
            if alternating.1.separation > threshold.separation {
                (canary, threshold) = alternating;
            }
        }
        let found = trials(canary, learnt..self.trials);
        let mut event = EventPair::default();
        for ((sum, _), number) in found.iter().zip(learnt..) {
            event.worlds[(number % 2) as usize].add(threshold.sign * (sum - threshold.middle) > 0.0);
        }
        let mu = event.mu(self.false_alarm / 2.0);
        let charge = publication.charge();
        let mu_claimed = charge.spending()?.mu();
        let delta = Delta::new(charge.delta)?;
        let epsilon = NoiseMultiplier::new(mu.recip());
        let refused = found.iter().map(|(_, refused)| refused).sum::<u64>() as f64;
        Ok(WindowFinding {
            trials: self.trials,
            windows: windows.len(),
            contributions: windows.iter().map(|window| window.own).sum(),
            refused: refused / (found.len() * windows.len()).max(1) as f64,
            mu_claimed,
            mu,
            epsilon: epsilon.map_or(0.0, |sigma| gaussian::epsilon(sigma, delta).value()),
            ok: mu <= mu_claimed,
        })
    }

    /// Returns the windows that hold a unit. The unit takes part as often as it may, beginning at
    /// the earliest epoch with which it is in the largest number of windows.
    fn windows(&self, publication: &WindowPublication) -> Vec<AuditWindow> {
        let parameters = publication.parameters();
        let (span, horizon) = (publication.span(), parameters.epochs.schedule.horizon());
        let (most, gap) = match parameters.participation() {
            Participation::MinSeparation { count, gap } => (count.get(), gap.get()),
            _ => (1, 1),
        };
        let most = most.min(MAX_WINDOWS as u64).min(horizon.div_ceil(gap));
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
        ends.take_while(|&end| end <= until).filter_map(window).take(MAX_WINDOWS).collect()
    }
}

/// The records of the unit in the two streams.
#[derive(Clone, Copy, PartialEq)]
enum Canary {
    /// Means: outliers on either side. Covariances: a corner, and the middle or no record.
    Far,
    /// Covariances: a corner, and the corner with every second value at its other bound.
    Alternating,
}

impl Canary {
    /// The position of a column's value between its bounds, from −1 to 1 or beyond, in one of the
    /// two streams.
    fn position(self, is_covariance: bool, world: usize, column: usize) -> f64 {
        match (is_covariance, self, world) {
            (false, _, 0) => 2.0 * FAR,
            (false, _, _) => -2.0 * FAR,
            (true, _, 0) => 1.0,
            (true, Self::Far, _) => 0.0,
            (true, Self::Alternating, _) => [1.0, -1.0][column % 2],
        }
    }
}

/// A threshold between the statistics of two streams.
struct Threshold {
    middle: f64,
    /// 1 if the first stream is above it, else −1.
    sign: f64,
    /// Distance of the means, in standard deviations.
    separation: f64,
}

impl Threshold {
    /// Learns the threshold from trials that alternate between both streams.
    fn between(trials: &[(f64, u64)]) -> Self {
        let of = |world: usize| trials.iter().skip(world).step_by(2).map(|(sum, _)| *sum);
        let half = (trials.len() / 2).max(1) as f64;
        let [one, other] = [0, 1].map(|world| of(world).sum::<f64>() / half);
        let squares =
            [(0, one), (1, other)].map(|(world, mean)| of(world).map(|x| (x - mean).powi(2)).sum::<f64>());
        let deviation = ((squares[0] + squares[1]) / (2.0 * half)).sqrt();
        Self {
            middle: f64::midpoint(one, other),
            sign: if one >= other { 1.0 } else { -1.0 },
            separation: (one - other).abs() / deviation.max(f64::MIN_POSITIVE),
        }
    }
}

/// Returns the rows of a window in both streams.
fn table(publication: &WindowPublication, window: &AuditWindow, canary: Canary) -> [Vec<f64>; 2] {
    let parameters = publication.parameters();
    let bounds = bounds(parameters);
    let middle = |(lower, upper): (f64, f64)| lower + (upper - lower) / 2.0;
    let is_covariance = publication.is_covariance();
    let mut others = publication.made_up_rows(window.rows - window.own);
    if is_covariance {
        for (value, &bound) in others.iter_mut().zip(bounds.iter().cycle()) {
            *value = if *value < middle(bound) { bound.0 } else { bound.1 };
        }
    }
    let own = |world: usize| -> Vec<f64> {
        let value = |(column, &bound): (usize, &(f64, f64))| {
            middle(bound) + canary.position(is_covariance, world, column) * (bound.1 - bound.0) / 2.0
        };
        let is_absent = world == 1 && parameters.privacy.neighbours == Neighbours::ZeroOut;
        let records = if is_absent { 0 } else { window.own };
        (0..records).flat_map(|_| bounds.iter().enumerate().map(value)).collect()
    };
    [0, 1].map(|world| [own(world), others.clone()].concat())
}

/// Returns the product of an estimate with the difference of the records, in units of the bounds;
/// `None` without an estimate.
fn statistic(publication: &WindowPublication, numbers: &[i128], canary: Canary) -> Option<f64> {
    let parameters = publication.parameters();
    let columns: Vec<String> = parameters.columns.iter().map(|column| column.name.clone()).collect();
    let report = publication.read_window(&columns, &mut &numbers[..])?;
    let bounds = bounds(parameters);
    let width = |at: usize| bounds[at].1 - bounds[at].0;
    let list = |value: &Value| -> Option<Vec<f64>> { value.as_array()?.iter().map(Value::as_f64).collect() };
    if !publication.is_covariance() {
        let means = list(report.get("mean")?)?;
        let centred = means
            .iter()
            .zip(&bounds)
            .map(|(mean, (lower, upper))| (mean - (lower + (upper - lower) / 2.0)) / (upper - lower));
        return Some(centred.sum());
    }
    let rows: Vec<_> = report.get("covariance")?.as_array()?.iter().map(list).collect::<Option<_>>()?;
    let position = |world, column| canary.position(true, world, column);
    let change = |i, j| position(0, i) * position(0, j) - position(1, i) * position(1, j);
    let scaled = rows.iter().enumerate().flat_map(|(i, row)| {
        row.iter().enumerate().map(move |(j, entry)| change(i, j) * entry / (width(i) * width(j)))
    });
    Some(scaled.sum())
}

/// Runs trials on all processors; returns their results in order.
fn in_parallel<T: Send>(
    numbers: Range<u64>,
    trial: impl Fn(u64) -> T + Sync,
    done: &(dyn Fn() + Sync),
) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let trials = numbers.end - numbers.start;
    let part = |thread: u64| {
        let own = (trials * thread / threads)..(trials * (thread + 1) / threads);
        let one = |number| {
            let result = trial(numbers.start + number);
            done();
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
