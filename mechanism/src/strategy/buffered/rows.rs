//! Norms of the rows of A C⁻¹, step by step.

use super::{
    Buffered, Buffers,
    steps::{ROOM, RealStep},
};
use crate::{
    strategy::{RowNorms, Strategy as _},
    workload::{Decay, Workload},
};

/// Buffers and the one or two sums of a workload.
const SIZE: usize = ROOM + 2;

pub(super) fn norms<'a>(strategy: &'a Buffered, workload: &Workload, steps: u64) -> RowNorms<'a> {
    let steps = steps.min(workload.horizon().unwrap_or(steps));
    let toeplitz = matches!(strategy.parameters.buffers, Buffers::Toeplitz(_));
    match Sums::new(workload) {
        _ if toeplitz && workload.toeplitz_part(0).is_some() => toeplitz_norms(strategy, workload, steps),
        Some(sums) => covariance_norms(strategy, workload.clone(), sums, steps),
        None => dense_norms(strategy, workload.clone(), steps),
    }
}

/// For `A = D⁻¹T` with the row divisors D, row t of `A C⁻¹` holds the first t coefficients of `T C⁻¹`, divided. They are what
/// T makes of the answer of the decoder to a single 1.
fn toeplitz_norms<'a>(strategy: &'a Buffered, workload: &Workload, steps: u64) -> RowNorms<'a> {
    let mut decoder = strategy.decoder(1);
    let mut undivided = match workload {
        Workload::Average => Workload::Prefix,
        Workload::Adam(decay) => Workload::Exponential(*decay),
        other => other.clone(),
    }
    .state(1);
    let mut squares = Workload::Prefix.state(1);
    let workload = workload.clone();
    Box::new((1..=steps).map_while(move |t| {
        let (impulse, mut increment) = ([if t == 1 { 1.0 } else { 0.0 }], [0.0]);
        decoder.decode(&impulse, &mut increment).ok()?;
        let coefficient = undivided.push(&increment).ok()?[0];
        let square = squares.push(&[coefficient * coefficient]).ok()?[0];
        Some(square.sqrt() / workload.row_divisor(t))
    }))
}

/// The sums that make up a workload of constant memory, undivided: `s ← φ s + x`, and for momentum a sum of these.
#[derive(Clone, Copy)]
struct Sums {
    decay: f64,
    summed: bool,
}

impl Sums {
    fn new(workload: &Workload) -> Option<Self> {
        let with = |decay: &Decay, summed| Some(Self { decay: decay.get(), summed });
        match workload {
            Workload::Prefix | Workload::Average => Some(Self { decay: 1.0, summed: false }),
            Workload::Exponential(decay) | Workload::Adam(decay) => with(decay, false),
            Workload::Momentum(decay) => with(decay, true),
            _ => None,
        }
    }
}

/// The covariance of the buffers and the sums of the workload when y is white noise of unit variance: its last entry is
/// the squared norm of the row.
fn covariance_norms(strategy: &Buffered, workload: Workload, sums: Sums, steps: u64) -> RowNorms<'_> {
    let mut covariance = [[0.0; SIZE]; SIZE];
    Box::new((1..=steps).map(move |t| {
        advance(&mut covariance, &strategy.coefficients.step(t).real(), sums);
        covariance[SIZE - 1][SIZE - 1].sqrt() / workload.row_divisor(t)
    }))
}

/// `v ← D v + e x` with `x = (y − Σ r)/g`: with u = cov(v, x), `P ← D P Dᵀ + D u eᵀ + e (D u)ᵀ + e eᵀ var x`.
fn advance(covariance: &mut [[f64; SIZE]; SIZE], step: &RealStep, sums: Sums) {
    let from_buffers = |row: &[f64; SIZE]| -row[..ROOM].iter().sum::<f64>() / step.gain;
    let mut overlap = covariance.each_ref().map(from_buffers);
    let variance = from_buffers(&overlap) + 1.0 / (step.gain * step.gain);
    covariance.iter_mut().for_each(|row| forget(row, step, sums));
    for j in 0..SIZE {
        let mut column = covariance.each_ref().map(|row| row[j]);
        forget(&mut column, step, sums);
        covariance.iter_mut().zip(column).for_each(|(row, value)| row[j] = value);
    }
    forget(&mut overlap, step, sums);
    let mut added = [1.0; SIZE];
    added[..ROOM].copy_from_slice(&step.inputs);
    for (j, row) in covariance.iter_mut().enumerate() {
        for (k, entry) in row.iter_mut().enumerate() {
            *entry += overlap[j] * added[k] + added[j] * overlap[k] + added[j] * added[k] * variance;
        }
    }
}

/// `D v`. The last but one entry is the momentum; it is not used where the last is a sum of x itself.
fn forget(vector: &mut [f64; SIZE], step: &RealStep, sums: Sums) {
    vector.iter_mut().zip(step.decays).for_each(|(value, decay)| *value *= decay);
    vector[ROOM] *= sums.decay;
    vector[ROOM + 1] =
        if sums.summed { vector[ROOM + 1] + vector[ROOM] } else { sums.decay * vector[ROOM + 1] };
}

/// Row by row: `b C = a` from the last entry back, `b_i = (a_i − Σ_j h_ij q_j)/g_i` and `q_j ← b_i + θ_ij q_j`.
fn dense_norms(strategy: &Buffered, workload: Workload, steps: u64) -> RowNorms<'_> {
    let all: Vec<RealStep> = (1..=steps).map(|t| strategy.coefficients.step(t).real()).collect();
    Box::new((1..=steps).map(move |t| {
        let mut later = [0.0; ROOM];
        let square = |i: u64| {
            let step = &all[i as usize - 1];
            let known: f64 = step.inputs.iter().zip(later).map(|(input, later)| input * later).sum();
            let entry = (workload.coefficient(t, i) - known) / step.gain;
            later.iter_mut().zip(step.decays).for_each(|(later, decay)| *later = entry + decay * *later);
            entry * entry
        };
        (1..=t).rev().map(square).sum::<f64>().sqrt()
    }))
}
