//! One Gaussian release: integer sums, shifted to a fine grid, with exact noise.
//!
//! Sensitivities of the four queries over a kept set K and the set K′ of a neighbour, which differ
//! in at most one record on either side (`weights`). Records are integers q with ‖q‖² ≤ 2⁴⁰,
//! r = 2²⁰:
//!
//! | query | vector | one record replaced | one record only in K |
//! |---|---|---|---|
//! | counts | h | √(2g), g histograms | √g |
//! | sums | (√3·count, Σq/r) | ‖a − b‖ ≤ 2 | √(3 + 1) = 2 |
//! | moments | (√(5/2)·count, Σq/r, √½·Σqqᵀ/r²) | 2: `sensitivity` at ν = ½ | √(5/2 + 1 + ½) = 2 |
//! | second moments | √½·Σqqᵀ/r², all records kept | √½·‖aaᵀ−bbᵀ‖ ≤ 1 | |
//!
//! So beside the sums the count is free, and so are second moments of half weight. The moments row:
//! with p = ‖a‖², s = ‖b‖², c = a·b, `‖a−b‖² + ½‖aaᵀ−bbᵀ‖² = p + s − 2c + ½(p² + s² − 2c²) ≤ 2 + 1
//! − 2c − c² = 4 − (1 + c)² ≤ 4` as p, s ≤ 1. ∎ The upper triangle is released, with half the
//! variance off the diagonal, because the Frobenius norm counts these entries twice.
//!
//! # Clipped records
//! The records of one estimate as integers: clipped to a ball around a private centre, with marks
//! for removed ones.
//!
//! A record is divided by its columns' scales, clamped to a box around the centre, clipped to the
//! ball of radius r and rounded to integers q ≈ (x − centre)·2²⁰/r of squared norm ≤ 2⁴⁰
//! ([`Clipper`]), so its bound is exact. A record that is not finite counts at the centre, because
//! its presence must stay hidden. Sums are exact integers, by matrix products over runs of records.
//! Scores are floating-point. Each is a function of **its record and its position alone**, as
//! contraction of the filter requires (`weights`): a record keeps its position while others are
//! removed.
//!
//! Memory besides the table: 8 bytes for each value, 12 for each record.

use super::MeanError;
use super::budget::MeanBudget;
use faer::{Mat, MatRef};
use hushflow_mechanism::moments::{
    Accumulators, Clipper, Layout, MomentError, QuantisedRows, RECORD_BITS, SecondMoment, Sums,
};
use hushflow_mechanism::noise::{DiscreteGaussian, NoiseGenerator, NoiseScale};
use nalgebra::{DMatrix, DMatrixView};
use std::collections::BTreeMap;
use std::thread;

/// Weights of the count beside sums and beside moments: its deviation is that of Σq/r divided by
/// these.
const COUNT_WITH_SUMS: f64 = 1.732_050_807_568_877_2;
const COUNT_WITH_MOMENTS: f64 = 1.581_138_830_084_189_8;

/// Largest change of the weighted vector by a replaced record, in units of r.
pub(super) const SENSITIVITY: f64 = 2.0;

/// Target bits of deviations on the grid: far above the minimum for total variation at ε = 100,
/// below the sampler's 2¹⁰².
const DEVIATION_BITS: i32 = 98;

/// Maximum bits of sums with noise.
const SUM_BITS: i32 = 125;

/// Exceeds the relative rounding error of a deviation.
const ROUNDING: f64 = 1.0 + 1e-12;

/// Noisy sums in units of the ball's radius.
pub(super) struct NoisySums {
    pub(super) count: f64,
    pub(super) first: Vec<f64>,
    /// Empty if not requested.
    pub(super) second: Option<Mat<f64>>,
}

/// Deviation of Σq/r in a release of μ².
pub(super) fn deviation(squared_mu: f64) -> f64 {
    SENSITIVITY / squared_mu.sqrt() * ROUNDING
}

/// Likely bound of the spectral norm of the noise of Σqqᵀ/r²: 2√d times the deviation off the
/// diagonal.
pub(super) fn spectral_noise(squared_mu: f64, dimension: usize) -> f64 {
    2.0 * (dimension as f64).sqrt() * deviation(squared_mu)
}

/// Exceeds the records of any table: the grid of counts must not depend on the largest count.
const LARGEST_COUNT: u128 = 1 << 40;

/// Adds noise of `deviation` units to integers of unit 2^−`unit_bits`, on the finest grid that 128
/// bits hold.
struct Channel {
    shift: u32,
    gaussian: DiscreteGaussian,
    unit: f64,
}

impl Channel {
    fn new(deviation: f64, unit_bits: u32, largest: u128) -> Result<Self, MeanError> {
        let room = SUM_BITS - (128 - largest.leading_zeros()) as i32;
        let base = deviation * 2_f64.powi(unit_bits as i32);
        let shift = (DEVIATION_BITS - base.log2().ceil() as i32).clamp(0, room.max(0)) as u32;
        let scale = NoiseScale::at_least(base * 2_f64.powi(shift as i32)).map_err(|_| MeanError::Noise)?;
        let unit = 0.5_f64.powi((unit_bits + shift) as i32);
        Ok(Self { shift, gaussian: DiscreteGaussian::new(scale), unit })
    }

    fn grid_scale(&self) -> f64 {
        self.gaussian.scale().sigma()
    }

    /// Wraps; noise exceeds 127 bits with probability below exp(−2⁴⁰).
    fn release(&self, exact: &[i128], rng: &mut NoiseGenerator) -> Vec<f64> {
        let mut noise = vec![0; exact.len()];
        self.gaussian.fill(rng, &mut noise);
        let noisy = exact.iter().zip(&noise).map(|(&sum, &noise)| (sum << self.shift).wrapping_add(noise));
        noisy.map(|value| value as f64 * self.unit).collect()
    }
}

/// Releases counts of `histograms` histograms; each record is in at most one cell of each.
pub(super) fn counts(
    exact: &[i128],
    histograms: f64,
    (step, squared_mu): (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Vec<f64>, MeanError> {
    let deviation = count_deviation(histograms, squared_mu);
    let channel = Channel::new(deviation, 0, LARGEST_COUNT)?;
    // Only the counts that differ between neighbours matter: noise on equal ones has the same
    // distribution for both.
    budget.spend(step, squared_mu, channel.grid_scale(), 2.0 * histograms)?;
    Ok(channel.release(exact, rng))
}

/// Deviation of one count of [`counts`].
pub(super) fn count_deviation(histograms: f64, squared_mu: f64) -> f64 {
    (2.0 * histograms / squared_mu).sqrt() * ROUNDING
}

pub(super) fn sums(
    kept: &ClippedRecords,
    (step, squared_mu): (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<NoisySums, MeanError> {
    let exact = kept.moments(SecondMoment::None)?.to_wide();
    let dimension = kept.dimension();
    let (count, first) = channels(squared_mu, COUNT_WITH_SUMS, kept.len())?;
    budget.spend(step, squared_mu, count.grid_scale().min(first.grid_scale()), dimension as f64 + 1.0)?;
    Ok(NoisySums {
        count: count.release(&exact[..1], rng)[0],
        first: first.release(&exact[1..=dimension], rng),
        second: None,
    })
}

pub(super) fn moments(
    kept: &ClippedRecords,
    (step, squared_mu): (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<NoisySums, MeanError> {
    let exact = kept.moments(SecondMoment::Full)?.to_wide();
    let dimension = kept.dimension();
    let (count, first) = channels(squared_mu, COUNT_WITH_MOMENTS, kept.len())?;
    let second = Triangle::new(deviation(squared_mu), kept.len())?;
    let grid = count.grid_scale().min(first.grid_scale()).min(second.grid_scale());
    budget.spend(step, squared_mu, grid, exact.len() as f64)?;
    let (count, first) = (count.release(&exact[..1], rng)[0], first.release(&exact[1..=dimension], rng));
    Ok(NoisySums { count, first, second: Some(second.release(&exact[1 + dimension..], dimension, rng)) })
}

pub(super) fn second_moments(
    kept: &ClippedRecords,
    (step, squared_mu): (&'static str, f64),
    budget: &mut MeanBudget,
    rng: &mut NoiseGenerator,
) -> Result<Mat<f64>, MeanError> {
    let (exact, dimension) = (kept.moments(SecondMoment::Full)?.to_wide(), kept.dimension());
    let packed = &exact[1 + dimension..];
    let second = Triangle::new(squared_mu.sqrt().recip() * ROUNDING, kept.len())?;
    budget.spend(step, squared_mu, second.grid_scale(), packed.len() as f64)?;
    Ok(second.release(packed, dimension, rng))
}

/// Noise for the upper triangle of a symmetric matrix, with twice the variance on the diagonal.
struct Triangle {
    off_diagonal: Channel,
    diagonal: Channel,
}

impl Triangle {
    fn new(deviation: f64, records: usize) -> Result<Self, MeanError> {
        let channel =
            |deviation| Channel::new(deviation, 2 * RECORD_BITS, (records as u128) << (2 * RECORD_BITS));
        let diagonal = channel(deviation * std::f64::consts::SQRT_2)?;
        Ok(Self { off_diagonal: channel(deviation)?, diagonal })
    }

    fn grid_scale(&self) -> f64 {
        self.off_diagonal.grid_scale().min(self.diagonal.grid_scale())
    }

    fn release(&self, mut packed: &[i128], dimension: usize, rng: &mut NoiseGenerator) -> Mat<f64> {
        let mut matrix = Mat::zeros(dimension, dimension);
        for i in 0..dimension {
            let (row, rest) = packed.split_at(dimension - i);
            packed = rest;
            matrix[(i, i)] = self.diagonal.release(&row[..1], rng)[0];
            for (position, value) in self.off_diagonal.release(&row[1..], rng).into_iter().enumerate() {
                matrix[(i, i + 1 + position)] = value;
                matrix[(i + 1 + position, i)] = value;
            }
        }
        matrix
    }
}

fn channels(squared_mu: f64, weight: f64, records: usize) -> Result<(Channel, Channel), MeanError> {
    let records = records as u128 + 1;
    let count = Channel::new(deviation(squared_mu) / weight * ROUNDING, 0, records)?;
    Ok((count, Channel::new(deviation(squared_mu), RECORD_BITS, records << RECORD_BITS)?))
}

/// Rows of a run, the unit of work.
const RUN: usize = 1 << 14;

const BLOCK: usize = 256;

/// Keys under which records are summed.
const KEPT: u32 = 0;
const TAKEN_OUT: u32 = 1;

/// Share of the records below which filtered ones are refused if at most a tenth may be corrupt.
const LEAST_KEPT: f64 = 0.75;

/// The same share for any corruption: below it a majority may be corrupt.
const LEAST_EVER_KEPT: f64 = 0.25;

pub(super) struct ClippedRecords {
    least_kept: f64,
    ball: ClippingBall,
    scales: Vec<f64>,
    records: usize,
    runs: Vec<QuantisedRows>,
    /// [`KEPT`] or [`TAKEN_OUT`], for each record of each run.
    marks: Vec<Vec<u32>>,
}

/// The ball for clipping, in scaled units.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClippingBall {
    pub(super) centre: Vec<f64>,
    pub(super) radius: f64,
}

impl ClippingBall {
    /// Returns the clipper to the ball for columns of these scales.
    fn clipper(&self, scales: &[f64]) -> Result<Clipper, MeanError> {
        // The box is as wide as the ball or slightly wider, so the ball decides.
        let bounds: Vec<_> = self
            .centre
            .iter()
            .zip(scales)
            .map(|(centre, scale)| {
                let half_width = self.radius * scale;
                (centre * scale - half_width, centre * scale + half_width)
            })
            .collect();
        Ok(Clipper::new(&bounds, 1.0)?.counting_unusable())
    }

    /// Converts a point in units of the radius from the centre to the columns' own units.
    pub(super) fn to_units(&self, point: &[f64], scales: &[f64]) -> Vec<f64> {
        let columns = self.centre.iter().zip(scales).zip(point);
        columns.map(|((centre, scale), value)| (centre + value * self.radius) * scale).collect()
    }
}

impl ClippedRecords {
    pub(super) fn new(rows: &[f64], scales: &[f64], ball: &ClippingBall) -> Result<Self, MeanError> {
        let dimension = scales.len();
        let clipper = ball.clipper(scales)?;
        let quantise = |rows: &[f64]| {
            let mut run = QuantisedRows::new(dimension);
            clipper.quantise_all(rows, &mut run).map(|_| run)
        };
        let chunks: Vec<&[f64]> = rows.chunks(RUN * dimension).collect();
        let runs = in_parallel(&chunks, |rows| quantise(rows)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let marks = runs.iter().map(|run| vec![KEPT; run.len()]).collect();
        let (ball, scales) = (ball.clone(), scales.to_vec());
        let records = rows.len() / dimension;
        Ok(Self { least_kept: LEAST_KEPT, ball, scales, records, runs, marks })
    }

    /// Lowers the share of the records that a filter must keep: 1 − 2.5α if that is below three
    /// quarters, because filters remove clean records beside corrupt ones. It only refuses bad
    /// estimates: no sensitivity depends on it.
    pub(super) fn with_corruption(self, corruption: f64) -> Self {
        Self { least_kept: (1.0 - 2.5 * corruption).clamp(LEAST_EVER_KEPT, LEAST_KEPT), ..self }
    }

    /// Share of the records that a filter must keep.
    pub(super) fn least_kept(&self) -> f64 {
        self.least_kept
    }

    /// d.
    pub(super) fn dimension(&self) -> usize {
        self.scales.len()
    }

    pub(super) fn ball(&self) -> &ClippingBall {
        &self.ball
    }

    pub(super) fn scales(&self) -> &[f64] {
        &self.scales
    }

    /// Number of records of the table, kept or not.
    pub(super) fn len(&self) -> usize {
        self.records
    }

    /// Exact count, Σq and, if requested, the upper triangle of Σqqᵀ of the kept records.
    pub(super) fn moments(&self, second: SecondMoment) -> Result<Sums, MeanError> {
        let layout = Layout::new(self.dimension(), second);
        let sum = |&(run, marks): &(&QuantisedRows, &Vec<u32>)| {
            let mut accumulators = Accumulators::new(layout);
            accumulators.add(marks, run)?;
            Ok(accumulators.take().remove(&KEPT))
        };
        let runs: Vec<_> = self.runs.iter().zip(&self.marks).collect();
        let sums = in_parallel(&runs, sum).into_iter().collect::<Result<Vec<_>, MomentError>>()?;
        let zero = Sums::zero(layout.coordinates());
        Ok(sums.iter().flatten().fold(zero, |total, sums| total.plus(0, sums, None)))
    }

    /// ‖Wᵀ(q/r − m)‖² of every record, kept or not.
    pub(super) fn scores(&self, weights: MatRef<'_, f64>, mean: &[f64]) -> Vec<f64> {
        let (rows, columns) = (weights.nrows(), weights.ncols());
        let unit = 0.5_f64.powi(RECORD_BITS as i32);
        // Wᵀ, column-major, in units of the grid.
        let transposed = DMatrix::from_fn(columns, rows, |i, j| weights[(j, i)] * unit);
        let offset: Vec<f64> =
            (0..columns).map(|i| (0..rows).map(|j| weights[(j, i)] * mean[j]).sum()).collect();
        let runs: Vec<_> = self.runs.iter().collect();
        in_parallel(&runs, |run| score_run(run, &transposed, &offset)).concat()
    }

    pub(super) fn is_kept(&self, position: usize) -> bool {
        self.marks[position / RUN][position % RUN] == KEPT
    }

    pub(super) fn take_out(&mut self, position: usize) {
        self.marks[position / RUN][position % RUN] = TAKEN_OUT;
    }

    /// The record at this position, in grid units.
    pub(super) fn row(&self, position: usize) -> &[f64] {
        &self.runs[position / RUN].values()[position % RUN * self.dimension()..][..self.dimension()]
    }
}

fn score_run(run: &QuantisedRows, transposed: &DMatrix<f64>, offset: &[f64]) -> Vec<f64> {
    let (columns, dimension) = transposed.shape();
    let mut scores = Vec::with_capacity(run.len());
    let mut product = DMatrix::zeros(columns, BLOCK);
    for block in run.values().chunks(BLOCK * dimension) {
        let count = block.len() / dimension;
        // Row-major records are the columns of a d × n matrix.
        let values = DMatrixView::from_slice(block, dimension, count);
        let mut product = product.columns_mut(0, count);
        product.gemm(1.0, transposed, &values, 0.0);
        let score = |column: nalgebra::DVectorView<'_, f64>| {
            column.iter().zip(offset).map(|(value, offset)| (value - offset).powi(2)).sum::<f64>()
        };
        scores.extend(product.column_iter().map(score));
    }
    scores
}

/// Applies `work` to all items on all processors. Results keep the order of items.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(items.len()).max(1);
    if workers == 1 {
        return items.iter().map(work).collect();
    }
    let mut results: BTreeMap<usize, Vec<R>> = BTreeMap::new();
    thread::scope(|scope| {
        let share = items.len().div_ceil(workers);
        let work = &work;
        let threads: Vec<_> =
            items.chunks(share).map(|items| scope.spawn(move || items.iter().map(work).collect())).collect();
        for (position, thread) in threads.into_iter().enumerate() {
            results.insert(position, thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    results.into_values().flatten().collect()
}
