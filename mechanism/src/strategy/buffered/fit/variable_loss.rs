//! The loss of buffers that vary with time, and its gradient.
//!
//! Let y be the released noise, of unit variance at every step. The buffers r and the sums s of the
//! workload follow `(r, s) ← F_t (r, s) + e_t y_t` with `e_t = (v_t, 1/g_t)` and
//! `F_t = D_t − e_t 1ᵀ`, the ones over the buffers. So their covariance follows
//! `P ← F_t P F_tᵀ + e_t e_tᵀ`, and its last entry is the squared error of the step. The gains are
//! the inverse column norms. Before scaling, column i has the squared norm `1 + v_iᵀ G v_i` with
//! `G_jk = Σ_(t>i) Π_(i<l<t) θ_lj θ_lk`, and one recursion back in time gives G. The gradient is
//! that of both recursions in reverse.
//!
//! *Blocks.* Curves vary slowly in the logarithm of the distance to the ends of the stream. So the
//! loss joins m steps to a block, with m a power of 2 and at most 1/64 of that distance. All steps
//! of a block have the curves and the gain of its middle. Then G has a closed form, and P follows
//! from doublings: `N ← M N Mᵀ + N`, `M ← M²`, from `M = F` and `N = e eᵀ`. Errors are interpolated
//! linearly from block to block. A value costs O(b³ log² n) operations.

use crate::{
    strategy::buffered::{Square, array, rows::WorkloadSums, square, steps::SLOTS, variable::shares},
    workload::Workload,
};
use libm::{exp, expm1, log, log1p, pow};

/// Smallest ratio of the distance to an end to the length of a block.
const SLOWNESS: u64 = 64;

/// `log (Σ_t error_t^(2 norm))^(1/norm)` as a function of curves.
pub(super) struct VariableLoss {
    sums: WorkloadSums,
    norm: f64,
    knots: usize,
    blocks: Vec<StepBlock>,
}

/// Steps that share their coefficients.
struct StepBlock {
    doublings: u32,
    /// Number of steps that the error of the last one represents.
    weight: f64,
    /// Square of the row divisor of the last step.
    divisor: f64,
    /// Index of the first B-spline that is not zero in the middle, and the values of four.
    shares: (usize, [f64; 4]),
}

impl StepBlock {
    fn steps(&self) -> f64 {
        (1u64 << self.doublings) as f64
    }

    /// Number of steps after the middle.
    fn half(&self) -> f64 {
        0.5 * (self.steps() - 1.0)
    }
}

fn blocks(workload: &Workload, steps: u64, knots: usize) -> Vec<StepBlock> {
    let mut blocks: Vec<StepBlock> = Vec::new();
    let mut before = 0;
    while before < steps {
        let distance = before.min((steps - before) * SLOWNESS / (SLOWNESS + 1));
        let doublings = (distance / SLOWNESS).max(1).ilog2();
        let length = 1 << doublings;
        if let Some(block) = blocks.last_mut() {
            block.weight += 0.5 * (length - 1) as f64;
        }
        let middle = before as f64 + 0.5 * (length + 1) as f64;
        before += length;
        blocks.push(StepBlock {
            doublings,
            weight: 0.5 * (length + 1) as f64,
            divisor: workload.row_divisor(before) * workload.row_divisor(before),
            shares: shares(steps, knots, middle),
        });
    }
    blocks
}

/// θ and v in a block; entries beyond the number of buffers are zero.
#[derive(Clone, Copy, Default)]
struct BlockCurves {
    decays: [f64; SLOTS],
    /// 1 − θ.
    complements: [f64; SLOTS],
    /// log θ.
    logarithms: [f64; SLOTS],
    weights: [f64; SLOTS],
}

/// Curves in every block.
struct CurvePass<'a> {
    loss: &'a VariableLoss,
    buffers: usize,
    points: Vec<BlockCurves>,
    gradient: Vec<f64>,
}

/// M and N of `P ← M P Mᵀ + N`.
#[derive(Clone, Copy)]
struct Transition<const S: usize> {
    matrix: Square<S>,
    noise: Square<S>,
}

/// P before and after the blocks.
struct CovariancePass<const S: usize> {
    /// P before each block.
    before: Vec<Square<S>>,
    /// The transitions over 1, 2, 4, … steps of each block, block after block.
    transitions: Vec<Transition<S>>,
    /// Squared error of the last step of each block, before division.
    errors: Vec<f64>,
}

impl VariableLoss {
    pub(super) fn new(workload: &Workload, sums: WorkloadSums, steps: u64, knots: usize, norm: f64) -> Self {
        Self { sums, norm, knots, blocks: blocks(workload, steps, knots) }
    }

    /// The value and the gradient. Curves of decays come first, then those of weights.
    pub(super) fn log(&self, curves: &[f64]) -> (f64, Vec<f64>) {
        let buffers = curves.len() / (2 * self.knots);
        // Rows of an even length fill the registers of every processor.
        match buffers + if self.sums.summed { 2 } else { 1 } {
            0..=4 => CurvePass::new(self, buffers, curves).run::<4>(),
            5..=6 => CurvePass::new(self, buffers, curves).run::<6>(),
            7..=8 => CurvePass::new(self, buffers, curves).run::<8>(),
            _ => CurvePass::new(self, buffers, curves).run::<10>(),
        }
    }
}

impl<'a> CurvePass<'a> {
    fn new(loss: &'a VariableLoss, buffers: usize, curves: &[f64]) -> Self {
        let point = |block: &StepBlock| {
            let (first, shares) = block.shares;
            let value = |curve: usize| -> f64 {
                let values = &curves[curve * loss.knots + first..];
                shares.iter().zip(values).map(|(share, value)| share * value).sum()
            };
            let mut point = BlockCurves::default();
            for j in 0..buffers {
                let odds = exp(value(j));
                point.decays[j] = odds / (1.0 + odds);
                point.complements[j] = 1.0 / (1.0 + odds);
                point.logarithms[j] = -log1p(1.0 / odds);
                point.weights[j] = exp(value(buffers + j));
            }
            point
        };
        let points = loss.blocks.iter().map(point).collect();
        Self { loss, buffers, points, gradient: vec![0.0; curves.len()] }
    }

    /// S is at least the number of buffers and sums.
    fn run<const S: usize>(mut self) -> (f64, Vec<f64>) {
        let loss = self.loss;
        let (norms, below) = self.columns();
        let covariances = self.covariances::<S>(&norms);
        let error = |(error, block): (&f64, &StepBlock)| error / block.divisor;
        let errors: Vec<f64> = covariances.errors.iter().zip(&loss.blocks).map(error).collect();
        let largest = errors.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let power = |error: f64, exponent: f64| {
            if exponent == 0.0 { 1.0 } else { pow(error / largest, exponent) }
        };
        let terms = errors.iter().zip(&loss.blocks);
        let powers: f64 = terms.clone().map(|(&error, block)| block.weight * power(error, loss.norm)).sum();
        let slope = |(&error, block): (&f64, &StepBlock)| {
            block.weight * power(error, loss.norm - 1.0) / (powers * largest * block.divisor)
        };
        let by_error: Vec<f64> = terms.map(slope).collect();
        let by_norm = self.add_slopes_of_errors(&norms, &covariances, &by_error);
        self.add_slopes_of_columns(&norms, &below, &by_norm);
        (log(largest) + log(powers) / loss.norm, self.gradient)
    }

    /// Column norms before scaling, in the middle of each block, and G at its end.
    fn columns(&self) -> (Vec<f64>, Vec<Square<SLOTS>>) {
        let buffers = self.buffers;
        let mut below = [[0.0; SLOTS]; SLOTS];
        let columns = self.points.iter().zip(&self.loss.blocks).rev().map(|(point, block)| {
            let end = below;
            let (half, all) = (point.fade(block.half()), point.fade(block.steps()));
            let mut square = 1.0;
            for j in 0..buffers {
                for k in 0..buffers {
                    let middle = point.earlier(&half, end[j][k], [j, k]);
                    square += point.weights[j] * middle * point.weights[k];
                    below[j][k] = point.earlier(&all, end[j][k], [j, k]);
                }
            }
            (square.sqrt(), end)
        });
        let (mut norms, mut ends): (Vec<_>, Vec<_>) = columns.unzip();
        norms.reverse();
        ends.reverse();
        (norms, ends)
    }

    fn covariances<const S: usize>(&self, norms: &[f64]) -> CovariancePass<S> {
        let blocks = &self.loss.blocks;
        let count = blocks.iter().map(|block| block.doublings as usize + 1).sum();
        let mut pass = CovariancePass {
            before: Vec::with_capacity(blocks.len()),
            transitions: Vec::with_capacity(count),
            errors: Vec::with_capacity(blocks.len()),
        };
        let mut covariance = [[0.0; S]; S];
        for ((point, block), &norm) in self.points.iter().zip(blocks).zip(norms) {
            let mut all = self.transition(point, norm);
            pass.transitions.push(all);
            for _ in 0..block.doublings {
                all = all.doubled();
                pass.transitions.push(all);
            }
            pass.before.push(covariance);
            covariance = all.applied(&covariance);
            pass.errors.push(covariance[S - 1][S - 1]);
        }
        pass
    }

    /// F and `e eᵀ`. The sums come last, and rows between the buffers and them are zero.
    fn transition<const S: usize>(&self, point: &BlockCurves, norm: f64) -> Transition<S> {
        let WorkloadSums { decay, summed } = self.loss.sums;
        let added = self.added::<S>(point, norm);
        let mut matrix = [[0.0; S]; S];
        for (row, added) in matrix.iter_mut().zip(added) {
            row[..self.buffers].fill(-added);
        }
        for (j, row) in matrix[..self.buffers].iter_mut().enumerate() {
            row[j] += point.decays[j];
        }
        matrix[S - 1][S - 1] = decay;
        if summed {
            matrix[S - 2][S - 2] = decay;
            (matrix[S - 1][S - 2], matrix[S - 1][S - 1]) = (decay, 1.0);
        }
        Transition { matrix, noise: square(|j, k| added[j] * added[k]) }
    }

    /// Start of the sums.
    fn first_sum<const S: usize>(&self) -> usize {
        if self.loss.sums.summed { S - 2 } else { S - 1 }
    }

    /// e: the change of the buffers and the sums by a unit of noise.
    fn added<const S: usize>(&self, point: &BlockCurves, norm: f64) -> [f64; S] {
        let sums = self.first_sum::<S>();
        array(|k| if k >= sums { norm } else { point.weights.get(k).copied().unwrap_or(0.0) })
    }

    /// Adds the slopes through P at fixed column norms. Returns the slopes by the norms.
    ///
    /// With Q the slopes by P after a transition, those by N are Q, those by M `2 Q M P`, and those
    /// by P before it `Mᵀ Q M`.
    fn add_slopes_of_errors<const S: usize>(
        &mut self,
        norms: &[f64],
        covariances: &CovariancePass<S>,
        by_error: &[f64],
    ) -> Vec<f64> {
        let mut by_norm = vec![0.0; norms.len()];
        let mut after = [[0.0; S]; S];
        let mut end = covariances.transitions.len();
        for (number, before) in covariances.before.iter().enumerate().rev() {
            after[S - 1][S - 1] += by_error[number];
            let start = end - 1 - self.loss.blocks[number].doublings as usize;
            let (shorter, all) = covariances.transitions[start..end].split_at(end - 1 - start);
            let part = product(&after, &all[0].matrix);
            let mut slopes = Transition { matrix: twice(&product(&part, before)), noise: after };
            after = transposed_product(&all[0].matrix, &part);
            for transition in shorter.iter().rev() {
                slopes = transition.slopes(&slopes);
            }
            by_norm[number] = self.add_slopes_of_transition(number, norms[number], &slopes);
            end = start;
        }
        by_norm
    }

    /// Adds the slopes through F and `e eᵀ` of a block. Returns the slope by the norm.
    fn add_slopes_of_transition<const S: usize>(
        &mut self,
        number: usize,
        norm: f64,
        slopes: &Transition<S>,
    ) -> f64 {
        let (point, buffers) = (self.points[number], self.buffers);
        let added = self.added::<S>(&point, norm);
        let by_added: [f64; S] = array(|k| {
            let of_noise: f64 = slopes.noise[k].iter().zip(added).map(|(slope, added)| slope * added).sum();
            2.0 * of_noise - slopes.matrix[k][..buffers].iter().sum::<f64>()
        });
        let (mut by_logit, mut by_weights) = ([0.0; SLOTS], [0.0; SLOTS]);
        for j in 0..buffers {
            by_logit[j] = slopes.matrix[j][j] * point.decays[j] * point.complements[j];
            by_weights[j] = by_added[j];
        }
        self.collect(number, &by_logit, &by_weights);
        by_added[self.first_sum::<S>()..].iter().sum()
    }

    /// Adds the slopes through the column norms, from the slopes H by G before each block.
    fn add_slopes_of_columns(&mut self, norms: &[f64], below: &[Square<SLOTS>], by_norm: &[f64]) {
        let mut by_below = [[0.0; SLOTS]; SLOTS];
        for (number, end) in below.iter().enumerate() {
            let (point, block) = (self.points[number], &self.loss.blocks[number]);
            let (half, all) = (point.fade(block.half()), point.fade(block.steps()));
            let by_square = 0.5 * by_norm[number] / norms[number];
            let (mut by_logit, mut by_weights) = ([0.0; SLOTS], [0.0; SLOTS]);
            for j in 0..self.buffers {
                for k in 0..self.buffers {
                    let middle = point.earlier(&half, end[j][k], [j, k]);
                    let by_half = point.slopes_of_earlier(&half, end[j][k], [j, k]);
                    let by_all = point.slopes_of_earlier(&all, end[j][k], [j, k]);
                    let by_earlier = [by_square * point.weights[j] * point.weights[k], by_below[j][k]];
                    let by = |n: usize| by_earlier[0] * by_half[n] + by_earlier[1] * by_all[n];
                    by_below[j][k] = by(0);
                    by_logit[j] += 2.0 * by(1) * point.complements[j];
                    by_weights[j] += 2.0 * by_square * middle * point.weights[k];
                }
            }
            self.collect(number, &by_logit, &by_weights);
        }
    }

    /// Adds the slopes by the logarithm of θ/(1 − θ) and by v of a block to those by the curves.
    fn collect(&mut self, number: usize, by_logit: &[f64; SLOTS], by_weights: &[f64; SLOTS]) {
        let (weights, (first, shares)) = (self.points[number].weights, self.loss.blocks[number].shares);
        for j in 0..self.buffers {
            let slopes = [by_logit[j], by_weights[j] * weights[j]];
            for (curve, slope) in [j, self.buffers + j].into_iter().zip(slopes) {
                let gradient = &mut self.gradient[curve * self.loss.knots + first..];
                gradient.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share * slope);
            }
        }
    }
}

/// `1 − θ^m` of every buffer, and m.
struct Fade {
    steps: f64,
    lost: [f64; SLOTS],
}

impl Fade {
    /// 1 − p of a pair of buffers.
    fn pair(&self, [j, k]: [usize; 2]) -> f64 {
        self.lost[j] + self.lost[k] - self.lost[j] * self.lost[k]
    }
}

impl BlockCurves {
    fn fade(&self, steps: f64) -> Fade {
        Fade { steps, lost: array(|j| -expm1(steps * self.logarithms[j])) }
    }

    /// An entry of G, m steps earlier: `p G + (1 − p)/(1 − q)` with `q = θ_j θ_k` and `p = q^m`.
    fn earlier(&self, fade: &Fade, below: f64, [j, k]: [usize; 2]) -> f64 {
        let lost = fade.pair([j, k]);
        (1.0 - lost) * below + lost * self.lasting([j, k])
    }

    /// The slopes of [`earlier`](Self::earlier) by G and by log q.
    fn slopes_of_earlier(&self, fade: &Fade, below: f64, [j, k]: [usize; 2]) -> [f64; 2] {
        let (lost, lasting) = (fade.pair([j, k]), self.lasting([j, k]));
        let decay = self.decays[j] * self.decays[k];
        let kept = 1.0 - lost;
        [kept, fade.steps * kept * (below - lasting) + lost * decay * lasting * lasting]
    }

    /// `1/(1 − θ_j θ_k)`.
    fn lasting(&self, [j, k]: [usize; 2]) -> f64 {
        let [one, other] = [self.complements[j], self.complements[k]];
        1.0 / (one + other - one * other)
    }
}

impl<const S: usize> Transition<S> {
    #[inline(never)]
    fn applied(&self, covariance: &Square<S>) -> Square<S> {
        let part = product(&self.matrix, covariance);
        sum(&self.noise, &product(&part, &transposed(&self.matrix)))
    }

    fn doubled(&self) -> Self {
        Self { matrix: product(&self.matrix, &self.matrix), noise: self.applied(&self.noise) }
    }

    /// The slopes by this transition from those by the doubled one.
    #[inline(never)]
    fn slopes(&self, doubled: &Self) -> Self {
        let part = product(&doubled.noise, &self.matrix);
        let noise = sum(&doubled.noise, &transposed_product(&self.matrix, &part));
        let factors = sum(
            &product(&doubled.matrix, &transposed(&self.matrix)),
            &transposed_product(&self.matrix, &doubled.matrix),
        );
        Self { matrix: sum(&factors, &twice(&product(&part, &self.noise))), noise }
    }
}

/// Compiled once for each size: it has many calls, and inlining each would take long to build.
#[inline(never)]
fn product<const S: usize>(a: &Square<S>, b: &Square<S>) -> Square<S> {
    let mut result = [[0.0; S]; S];
    for i in 0..S {
        for k in 0..S {
            for j in 0..S {
                result[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    result
}

/// `aᵀ b`.
fn transposed_product<const S: usize>(a: &Square<S>, b: &Square<S>) -> Square<S> {
    product(&transposed(a), b)
}

fn transposed<const S: usize>(a: &Square<S>) -> Square<S> {
    square(|i, j| a[j][i])
}

fn sum<const S: usize>(a: &Square<S>, b: &Square<S>) -> Square<S> {
    square(|i, j| a[i][j] + b[i][j])
}

fn twice<const S: usize>(a: &Square<S>) -> Square<S> {
    square(|i, j| 2.0 * a[i][j])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Factorization;
    use crate::strategy::buffered::{Buffered, BufferedParameters, Buffers, VARIABLE_BLT, VariableBuffer};

    const KNOTS: usize = 6;

    fn loss(workload: &str, steps: u64, norm: f64) -> VariableLoss {
        let workload = workload.parse().unwrap();
        let sums = WorkloadSums::new(&workload).unwrap();
        VariableLoss::new(&workload, sums, steps, KNOTS, norm)
    }

    /// Two buffers.
    fn curves() -> Vec<f64> {
        let level = |k: usize| if k < 2 * KNOTS { 2.0 } else { -2.0 };
        (0..4 * KNOTS).map(|k| level(k) + 0.3 * (k as f64).sin()).collect()
    }

    #[test]
    fn slopes_agree_with_the_loss() {
        for (workload, norm) in [("prefix", 1.0), ("average", 1.0), ("momentum:0.5", 1.0), ("adam:0.9", 4.0)]
        {
            let (loss, curves) = (loss(workload, 3000, norm), curves());
            let (_, slopes) = loss.log(&curves);
            for (k, slope) in slopes.into_iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = curves.clone();
                    moved[k] += step;
                    loss.log(&moved).0
                };
                let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((slope - difference).abs() < 1e-7, "{workload} {k}: {slope} and {difference}");
            }
        }
    }

    /// Short streams have no blocks of two steps.
    #[test]
    fn loss_agrees_with_the_error_of_the_strategy() {
        for workload in ["prefix", "average", "momentum:0.9", "adam:0.9"] {
            for (steps, tolerance) in [(90, 1e-9), (5000, 1e-3)] {
                let curves = curves();
                let mut parts = curves.chunks(KNOTS).map(<[f64]>::to_vec);
                let decays: Vec<_> = parts.by_ref().take(2).collect();
                let buffer = |(decay, weight)| VariableBuffer { decay, weight };
                let buffers = Buffers::Variable(decays.into_iter().zip(parts).map(buffer).collect());
                let parameters = BufferedParameters { horizon: Some(steps), buffers };
                let strategy = Buffered::new(VARIABLE_BLT.name(), parameters).unwrap();
                let rows = strategy.decoder_row_norms(&workload.parse().unwrap(), steps);
                let exact: f64 = rows.map(|row| row * row).sum();
                let found = exp(loss(workload, steps, 1.0).log(&curves).0);
                assert!((found / exact - 1.0).abs() < tolerance, "{workload} {steps}: {found} and {exact}");
            }
        }
    }
}
