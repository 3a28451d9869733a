//! The loss of buffers that vary with time, and its gradient.
//!
//! Let y be the released noise, of unit variance at every step. The buffers r and the sums s of the
//! workload follow `(r, s) ← F_t (r, s) + e_t y_t` with `e_t = (v_t, 1/g_t)` and
//! `F_t = D_t − e_t 1ᵀ`, the ones over the buffers. So their covariance follows
//! `P ← F_t P F_tᵀ + e_t e_tᵀ`, and its last entry is the squared error of the step. The gains are
//! the inverse column norms, which one recursion back in time gives. The gradient is that of both
//! recursions in reverse. A value costs O(n (b + 2)²) operations, without an n × n matrix.
//!
//! Covariances are kept at every [`SEGMENT`]-th step, and computed again in between.

use crate::{
    strategy::buffered::{
        rows::WorkloadSums,
        variable::{logistic, shares},
    },
    workload::Workload,
};
use libm::{exp, log, pow};

/// Steps between two covariances that are kept.
const SEGMENT: usize = 512;

type Square<const S: usize> = [[f64; S]; S];

/// `log (Σ_t error_t^(2 norm))^(1/norm)` as a function of curves.
pub(super) struct VariableLoss {
    sums: WorkloadSums,
    norm: f64,
    knots: usize,
    /// Square of the row divisor of each step.
    divisors: Vec<f64>,
    /// The first B-spline that is not zero at each step, and the four values.
    shares: Vec<(usize, [f64; 4])>,
}

/// θ and v of one step.
#[derive(Clone, Copy)]
struct CurveStep<const B: usize> {
    decays: [f64; B],
    weights: [f64; B],
}

/// Curves at every step. B is the number of buffers; S = B + 2 has room for the sums.
struct CurvePass<'a, const B: usize, const S: usize> {
    loss: &'a VariableLoss,
    points: Vec<CurveStep<B>>,
    gradient: Vec<f64>,
}

/// Column norms before scaling, and G at the last step of each segment.
struct ColumnNorms<const B: usize> {
    norms: Vec<f64>,
    ends: Vec<Square<B>>,
}

impl VariableLoss {
    pub(super) fn new(workload: &Workload, sums: WorkloadSums, steps: u64, knots: usize, norm: f64) -> Self {
        let divisor = |t: u64| workload.row_divisor(t) * workload.row_divisor(t);
        Self {
            sums,
            norm,
            knots,
            divisors: (1..=steps).map(divisor).collect(),
            shares: (1..=steps).map(|t| shares(steps, knots, t)).collect(),
        }
    }

    /// The value and the gradient. Curves of decays come first, then those of weights.
    pub(super) fn log(&self, curves: &[f64]) -> (f64, Vec<f64>) {
        match curves.len() / (2 * self.knots) {
            1 => CurvePass::<1, 3>::run(self, curves),
            2 => CurvePass::<2, 4>::run(self, curves),
            3 => CurvePass::<3, 5>::run(self, curves),
            4 => CurvePass::<4, 6>::run(self, curves),
            5 => CurvePass::<5, 7>::run(self, curves),
            6 => CurvePass::<6, 8>::run(self, curves),
            7 => CurvePass::<7, 9>::run(self, curves),
            _ => CurvePass::<8, 10>::run(self, curves),
        }
    }
}

impl<'a, const B: usize, const S: usize> CurvePass<'a, B, S> {
    fn run(loss: &'a VariableLoss, curves: &[f64]) -> (f64, Vec<f64>) {
        let point = |&(first, shares): &(usize, [f64; 4])| {
            let value = |curve: usize| -> f64 {
                let values = &curves[curve * loss.knots + first..];
                shares.iter().zip(values).map(|(share, value)| share * value).sum()
            };
            CurveStep {
                decays: std::array::from_fn(|j| logistic(value(j))),
                weights: std::array::from_fn(|j| exp(value(B + j))),
            }
        };
        let points = loss.shares.iter().map(point).collect();
        let mut pass = Self { loss, points, gradient: vec![0.0; curves.len()] };
        let columns = pass.column_norms();
        let (mut errors, starts) = pass.errors(&columns.norms);
        errors.iter_mut().zip(&loss.divisors).for_each(|(error, divisor)| *error /= divisor);
        let largest = errors.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let power = |error: f64, exponent: f64| {
            if exponent == 0.0 { 1.0 } else { pow(error / largest, exponent) }
        };
        let powers: f64 = errors.iter().map(|&error| power(error, loss.norm)).sum();
        let slope =
            |(error, divisor): (&f64, &f64)| power(*error, loss.norm - 1.0) / (powers * largest * divisor);
        let by_error: Vec<f64> = errors.iter().zip(&loss.divisors).map(slope).collect();
        let by_norm = pass.add_slopes_of_errors(&columns.norms, &starts, &by_error);
        pass.add_slopes_of_columns(&columns, &by_norm);
        (log(largest) + log(powers) / loss.norm, pass.gradient)
    }

    fn column_norms(&self) -> ColumnNorms<B> {
        let steps = self.points.len();
        let mut norms = vec![0.0; steps];
        let mut below = [[0.0; B]; B];
        let mut ends = vec![below; steps.div_ceil(SEGMENT)];
        for t in (0..steps).rev() {
            if (t + 1) % SEGMENT == 0 || t + 1 == steps {
                ends[t / SEGMENT] = below;
            }
            norms[t] = self.points[t].column(&mut below).sqrt();
        }
        ColumnNorms { norms, ends }
    }

    /// Squared errors of all steps before division, and P before each segment.
    fn errors(&self, norms: &[f64]) -> (Vec<f64>, Vec<Square<S>>) {
        let (mut covariance, mut starts) = ([[0.0; S]; S], Vec::new());
        let errors = self.points.iter().zip(norms).enumerate().map(|(t, (point, &norm))| {
            if t % SEGMENT == 0 {
                starts.push(covariance);
            }
            self.advance(&mut covariance, point, norm);
            covariance[S - 1][S - 1]
        });
        (errors.collect(), starts)
    }

    /// `D v` of the sums.
    fn forget(&self, vector: &mut [f64; S]) {
        let WorkloadSums { decay, summed } = self.loss.sums;
        vector[B] *= decay;
        vector[B + 1] = if summed { vector[B + 1] + vector[B] } else { decay * vector[B + 1] };
    }

    /// `Dᵀ v` of the sums.
    fn forget_transposed(&self, vector: &mut [f64; S]) {
        let WorkloadSums { decay, summed } = self.loss.sums;
        vector[B] = decay * if summed { vector[B] + vector[B + 1] } else { vector[B] };
        vector[B + 1] *= if summed { 1.0 } else { decay };
    }

    /// `F v = D v − e Σ v`, the sum over the buffers.
    fn transit(&self, vector: &mut [f64; S], point: &CurveStep<B>, added: &[f64; S]) {
        let sum: f64 = vector[..B].iter().sum();
        vector.iter_mut().zip(point.decays).for_each(|(value, decay)| *value *= decay);
        self.forget(vector);
        for k in 0..S {
            vector[k] -= added[k] * sum;
        }
    }

    /// `Fᵀ v = Dᵀ v − (eᵀ v) 1`, the ones over the buffers.
    fn transit_transposed(&self, vector: &mut [f64; S], point: &CurveStep<B>, added: &[f64; S]) {
        let product: f64 = (0..S).map(|k| added[k] * vector[k]).sum();
        self.forget_transposed(vector);
        let buffers = vector.iter_mut().zip(point.decays);
        buffers.for_each(|(value, decay)| *value = decay * *value - product);
    }

    /// `P ← F P Fᵀ + e eᵀ`.
    fn advance(&self, covariance: &mut Square<S>, point: &CurveStep<B>, norm: f64) {
        let added = point.added::<S>(norm);
        for row in covariance.iter_mut() {
            self.transit(row, point, &added);
        }
        for k in 0..S {
            let mut column: [f64; S] = std::array::from_fn(|j| covariance[j][k]);
            self.transit(&mut column, point, &added);
            for j in 0..S {
                covariance[j][k] = column[j] + added[j] * added[k];
            }
        }
    }

    /// Adds the slopes through P at fixed column norms. Returns the slopes by the norms.
    ///
    /// With Q the slopes by P after a step, those by F are `2 Q F P`, those by e `2 Q e`, and those
    /// by P before it `Fᵀ Q F`.
    fn add_slopes_of_errors(&mut self, norms: &[f64], starts: &[Square<S>], by_error: &[f64]) -> Vec<f64> {
        let mut by_norm = vec![0.0; norms.len()];
        let mut after = [[0.0; S]; S];
        let mut segment = Vec::with_capacity(SEGMENT);
        for (number, start) in starts.iter().enumerate().rev() {
            let first = number * SEGMENT;
            let mut covariance = *start;
            segment.clear();
            for (point, &norm) in self.points.iter().zip(norms).skip(first).take(SEGMENT) {
                segment.push(covariance);
                self.advance(&mut covariance, point, norm);
            }
            for (number, before) in segment.iter().enumerate().rev() {
                let t = first + number;
                after[S - 1][S - 1] += by_error[t];
                by_norm[t] = self.add_slopes_of_step(&mut after, before, t, norms[t]);
            }
        }
        by_norm
    }

    fn add_slopes_of_step(&mut self, after: &mut Square<S>, before: &Square<S>, t: usize, norm: f64) -> f64 {
        let point = self.points[t];
        let added = point.added::<S>(norm);
        let mut by_added: [f64; S] =
            std::array::from_fn(|k| 2.0 * (0..S).map(|l| after[k][l] * added[l]).sum::<f64>());
        for row in after.iter_mut() {
            self.transit_transposed(row, &point, &added); // Q F
        }
        // The sums over the buffers' columns of P.
        let sums: [f64; S] = std::array::from_fn(|i| before[i][..B].iter().sum());
        let mut by_decays = [0.0; B];
        for k in 0..S {
            by_added[k] -= 2.0 * (0..S).map(|i| after[k][i] * sums[i]).sum::<f64>();
        }
        for (k, by_decay) in by_decays.iter_mut().enumerate() {
            *by_decay = 2.0 * (0..S).map(|i| after[k][i] * before[i][k]).sum::<f64>();
        }
        self.collect(t, &by_decays, &std::array::from_fn(|j| by_added[j]));
        let columns: [[f64; S]; S] = std::array::from_fn(|l| {
            let mut column = std::array::from_fn(|k| after[k][l]);
            self.transit_transposed(&mut column, &point, &added);
            column
        });
        *after = std::array::from_fn(|k| std::array::from_fn(|l| columns[l][k]));
        by_added[B] + by_added[B + 1]
    }

    /// Adds the slopes through the column norms. With H the slopes by G of a step, those by the next
    /// G are `Θ H Θ + ν v vᵀ`, ν the slope by the squared norm of that column.
    fn add_slopes_of_columns(&mut self, columns: &ColumnNorms<B>, by_norm: &[f64]) {
        let mut by_below = [[0.0; B]; B];
        let mut segment = Vec::with_capacity(SEGMENT);
        for (number, end) in columns.ends.iter().enumerate() {
            let first = number * SEGMENT;
            let mut below = *end;
            segment.clear();
            for t in (first..by_norm.len().min(first + SEGMENT)).rev() {
                segment.push(below);
                self.points[t].column(&mut below);
            }
            for (t, below) in (first..).zip(segment.iter().rev()) {
                let CurveStep { decays, weights } = self.points[t];
                let by_square = 0.5 * by_norm[t] / columns.norms[t];
                let (mut by_decays, mut by_weights) = ([0.0; B], [0.0; B]);
                for j in 0..B {
                    for k in 0..B {
                        by_decays[j] += 2.0 * by_below[j][k] * decays[k] * below[k][j];
                        by_weights[j] += 2.0 * by_square * below[j][k] * weights[k];
                        let kept = by_below[j][k] * decays[j] * decays[k];
                        by_below[j][k] = kept + by_square * weights[j] * weights[k];
                    }
                }
                self.collect(t, &by_decays, &by_weights);
            }
        }
    }

    /// Adds the slopes by θ and v of a step to those by the curves.
    fn collect(&mut self, t: usize, by_decays: &[f64; B], by_weights: &[f64; B]) {
        let (CurveStep { decays, weights }, (first, shares)) = (self.points[t], self.loss.shares[t]);
        for j in 0..B {
            let slopes = [by_decays[j] * decays[j] * (1.0 - decays[j]), by_weights[j] * weights[j]];
            for (curve, slope) in [j, B + j].into_iter().zip(slopes) {
                let gradient = &mut self.gradient[curve * self.loss.knots + first..];
                gradient.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share * slope);
            }
        }
    }
}

impl<const B: usize> CurveStep<B> {
    /// `1 + vᵀ G v`; G then becomes that of the step before.
    fn column(&self, below: &mut Square<B>) -> f64 {
        let Self { decays, weights } = self;
        let mut square = 1.0;
        for j in 0..B {
            for k in 0..B {
                square += weights[j] * below[j][k] * weights[k];
                below[j][k] = 1.0 + decays[j] * below[j][k] * decays[k];
            }
        }
        square
    }

    /// e: what a unit of noise adds to the buffers and the sums.
    fn added<const S: usize>(&self, norm: f64) -> [f64; S] {
        std::array::from_fn(|k| if k < B { self.weights[k] } else { norm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_loss() {
        for (workload, norm) in [("prefix", 1.0), ("average", 1.0), ("momentum:0.5", 1.0), ("adam:0.9", 4.0)]
        {
            let workload = workload.parse().unwrap();
            let sums = WorkloadSums::new(&workload).unwrap();
            let loss = VariableLoss::new(&workload, sums, SEGMENT as u64 + 60, 6, norm);
            let curves: Vec<f64> =
                (0..24).map(|k| if k < 12 { 2.0 } else { -2.0 } + 0.3 * (k as f64).sin()).collect();
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
}
