//! Norms of the rows of `A C⁻¹` for windows, in O(b²) per row.
//!
//! Let y be white noise of unit variance, S the running sum of `C⁻¹ y`, and v the state of the
//! decoder: the buffers and S. Row t of a window of k steps, undivided, has the squared norm
//!
//! ```text
//! var(S_t − S_j) = var S_t + var S_j − 2 cov(S_t, S_j),    j = t − k
//! ```
//!
//! With `v_t = M_t v_(t−1) + noise` and P_j the covariance of v_j, the last term is
//! `eᵀ M_t ⋯ M_(j+1) P_j e`, where e selects S. Products over a sliding range can't drop their last
//! factor, so they are split at the start m of the block of k steps that holds t:
//!
//! ```text
//! (eᵀ M_t ⋯ M_(m+1)) (M_m ⋯ M_(j+1) P_j e)
//! ```
//!
//! The left factor grows with t. When a block begins, the right factors are computed for all j of
//! the block before, from the last back. M is a diagonal matrix plus one of rank one.

use super::Buffered;
use super::rows::{Covariance, advance};
use super::steps::{RealStep, SLOTS};
use crate::strategy::RowNorms;
use crate::workload::{Workload, WorkloadSums};

/// The buffers and the running sum.
const SIZE: usize = SLOTS + 1;

type Vector = [f64; SIZE];

/// A step j: var S_j and, once the block of j has ended at m, `M_m ⋯ M_(j+1) P_j e`.
#[derive(Clone, Copy)]
struct EarlierSum {
    variance: f64,
    covariances: Vector,
}

/// Returns the norms of a window of `length` steps, with the divisors of its workload.
pub(super) fn norms(strategy: &Buffered, workload: Workload, length: u64, steps: u64) -> RowNorms<'_> {
    let sums = WorkloadSums { decay: 1.0, summed: false };
    let mut covariance = Covariance::default();
    // The sums of the block before, and those of this one so far.
    let (mut before, mut block): (Vec<EarlierSum>, Vec<EarlierSum>) = (Vec::new(), Vec::new());
    let mut left = identity();
    Box::new((1..=steps).map(move |t| {
        if block.len() as u64 == length {
            carry_to_end(strategy, &mut block, t - 1);
            before = std::mem::take(&mut block);
            left = identity();
        }
        let step = strategy.coefficients.step(t).real();
        advance(&mut covariance, &step, sums);
        multiply_left(&mut left, &step);
        let sum = sums_of(&covariance);
        block.push(sum);
        let square = match before.get(block.len() - 1) {
            None => sum.variance,
            Some(earlier) => {
                let shared: f64 = left[SIZE - 1].iter().zip(earlier.covariances).map(|(m, v)| m * v).sum();
                (sum.variance + earlier.variance - 2.0 * shared).max(0.0)
            }
        };
        square.sqrt() / (length as f64 * workload.row_divisor(t))
    }))
}

/// Multiplies the vectors of a block that ends at `last` by the matrices of the steps after theirs.
fn carry_to_end(strategy: &Buffered, block: &mut [EarlierSum], last: u64) {
    let mut right = identity();
    for (sum, step) in block.iter_mut().rev().zip((1..=last).rev()) {
        let own = sum.covariances;
        let product = |row: &Vector| row.iter().zip(own).map(|(m, v)| m * v).sum();
        sum.covariances = right.each_ref().map(product);
        multiply_right(&mut right, &strategy.coefficients.step(step).real());
    }
}

/// var S and the covariances of S with the buffers and itself.
fn sums_of(covariance: &Covariance) -> EarlierSum {
    let of_sum = covariance[covariance.len() - 1];
    let variance = of_sum[of_sum.len() - 1];
    let mut covariances = [variance; SIZE];
    covariances[..SLOTS].copy_from_slice(&of_sum[..SLOTS]);
    EarlierSum { variance, covariances }
}

fn identity() -> [Vector; SIZE] {
    std::array::from_fn(|row| std::array::from_fn(|column| f64::from(u8::from(row == column))))
}

/// The diagonal of M, and the vector u of `M = D − u 1ᵀ`, where 1 selects the buffers.
fn parts(step: &RealStep) -> (Vector, Vector) {
    let (mut decays, mut inputs) = ([1.0; SIZE], [1.0 / step.gain; SIZE]);
    decays[..SLOTS].copy_from_slice(&step.decays);
    inputs[..SLOTS].iter_mut().zip(step.inputs).for_each(|(own, input)| *own *= input);
    (decays, inputs)
}

/// Replaces a matrix by the product with M on its left.
fn multiply_left(matrix: &mut [Vector; SIZE], step: &RealStep) {
    let (decays, inputs) = parts(step);
    let mut sums = [0.0; SIZE];
    for row in &matrix[..SLOTS] {
        sums.iter_mut().zip(row).for_each(|(sum, entry)| *sum += entry);
    }
    for ((row, decay), input) in matrix.iter_mut().zip(decays).zip(inputs) {
        row.iter_mut().zip(sums).for_each(|(entry, sum)| *entry = decay * *entry - input * sum);
    }
}

/// Replaces a matrix by the product with M on its right.
fn multiply_right(matrix: &mut [Vector; SIZE], step: &RealStep) {
    let (decays, inputs) = parts(step);
    for row in matrix {
        let sum: f64 = row.iter().zip(inputs).map(|(entry, input)| entry * input).sum();
        row.iter_mut().zip(decays).for_each(|(entry, decay)| *entry *= decay);
        row[..SLOTS].iter_mut().for_each(|entry| *entry -= sum);
    }
}
