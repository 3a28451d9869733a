//! The records of one estimate as integers: clipped to a ball around a private centre, with marks
//! for removed ones.
//!
//! A record is divided by its columns' scales, clamped to a box around the centre, clipped to the
//! ball of radius r and rounded to integers q ≈ (x − centre)·2²⁰/r of squared norm ≤ 2⁴⁰
//! ([`Clipper`]), so its bound is exact. A record that is not finite counts at the centre, because
//! its presence must stay hidden. Sums are exact integers, by matrix products over runs of records.
//! Scores are floating-point. Each is a function of **its record and its position alone**, as
//! contraction of the filter requires (`filter`): a record keeps its position while others are
//! removed.
//!
//! Memory besides the table: 8 bytes for each value, 12 for each record.

use super::MeanError;
use faer::MatRef;
use hushflow_mechanism::moments::{
    Accumulators, Clipper, Layout, MomentError, QuantisedRows, RECORD_BITS, SecondMoment, Sums,
};
use nalgebra::{DMatrix, DMatrixView};
use std::collections::BTreeMap;
use std::thread;

/// Rows of a run, the unit of work.
const RUN: usize = 1 << 14;

const BLOCK: usize = 256;

/// Keys under which records are summed.
const KEPT: u32 = 0;
const TAKEN_OUT: u32 = 1;

pub(super) struct ClippedRecords {
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
    pub(super) fn place(&self, point: &[f64], scales: &[f64]) -> Vec<f64> {
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
        Ok(Self { ball, scales, records: rows.len() / dimension, runs, marks })
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
        let layout = Layout { dimension: self.dimension(), second };
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

    pub(super) fn is_kept(&self, place: usize) -> bool {
        self.marks[place / RUN][place % RUN] == KEPT
    }

    pub(super) fn take_out(&mut self, place: usize) {
        self.marks[place / RUN][place % RUN] = TAKEN_OUT;
    }

    /// The record at this position, in grid units.
    pub(super) fn row(&self, place: usize) -> &[f64] {
        &self.runs[place / RUN].values()[place % RUN * self.dimension()..][..self.dimension()]
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
        for (place, thread) in threads.into_iter().enumerate() {
            results.insert(place, thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    results.into_values().flatten().collect()
}
