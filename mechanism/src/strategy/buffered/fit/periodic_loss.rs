//! The loss of buffers for records that take part several times, and its gradient.
//!
//! All members of a class take part at the same phase. With a matrix K of the inner products of
//! the columns of T, and V between the steps of a class, `X = Vᵀ K V` are those of the columns of
//! C before gains. Entry i of a column of V is `−α Π β`, so products with V are sums
//! `H_j = K_(j+1) + β_(j+1) H_(j+1)`: a class of m steps costs O(m² b). The squared sensitivity of
//! a pattern is `Σ g_i g_l |X_il|`. Gains are divided by the root of the largest one of the class,
//! so all classes have sensitivity 1. Where gaps may be longer, a pattern may span several
//! classes, and gains are divided by the root of the largest one of all. Two maxima are smoothed:
//! `|x|` to `√(x² + ε²)`, and the largest pattern to a norm.
//!
//! `periodic_errors` computes the sum of squared errors. For the gradient, all recursions run in
//! reverse.

use super::periodic::Smoothing;
use super::periodic_errors::{ErrorSlopes, PeriodicPoint, PointSlopes, by_covariances, by_rows};
use crate::{
    participation::ParticipationSchedule,
    strategy::buffered::{
        MAX_BUFFERS, Square, array,
        periodic::cell,
        rows::WorkloadSums,
        square,
        variable::{logistic, shares},
    },
    workload::Workload,
};
use libm::{exp, log, pow};

/// `log Σ_t error_t²` at sensitivity 1, as a function of curves.
pub(super) struct PeriodicLoss {
    pub(super) sums: WorkloadSums,
    /// Square of the row divisor of each step.
    pub(super) divisors: Vec<f64>,
    schedule: ParticipationSchedule,
    knots: usize,
    /// Parts of the gap, for the curves of buffers.
    cells: usize,
    delay: bool,
    /// Whether all classes have one gain.
    is_shared: bool,
    /// For each step: index of the first B-spline that is not zero, the values of four, and the
    /// part of the gap.
    shares: Vec<(usize, [f64; 4], usize)>,
}

impl PeriodicLoss {
    pub(super) fn new(
        workload: &Workload,
        sums: WorkloadSums,
        schedule: ParticipationSchedule,
        [knots, cells]: [usize; 2],
        delay: bool,
        is_shared: bool,
    ) -> Self {
        let steps = schedule.horizon() as u64;
        let divisor = |t: u64| workload.row_divisor(t) * workload.row_divisor(t);
        let share = |t: u64| {
            let (first, shares) = shares(steps, knots, t as f64);
            (first, shares, cell(t, schedule.gap() as u32, cells))
        };
        let (divisors, shares) = ((1..=steps).map(divisor).collect(), (1..=steps).map(share).collect());
        Self { sums, divisors, schedule, knots, cells, delay, is_shared, shares }
    }

    /// Number of curves: gain, decay and weight of each buffer, and of the delay line.
    fn curves(&self, buffers: usize) -> usize {
        1 + 2 * buffers + if self.delay { 2 } else { 0 }
    }

    /// First variable of a curve; those of the parts of the gap follow its knots.
    pub(super) fn start(&self, buffers: usize, curve: usize) -> usize {
        curve * self.knots + curve.saturating_sub(1).min(2 * buffers) * self.cells
    }

    pub(super) fn variables(&self, buffers: usize) -> usize {
        self.start(buffers, self.curves(buffers))
    }

    /// The value and the gradient.
    pub(super) fn log(&self, buffers: usize, variables: &[f64], smoothing: Smoothing) -> (f64, Vec<f64>) {
        match buffers {
            ..=3 => PeriodicPass::<3>::new(self, buffers, variables, smoothing).log::<5>(),
            4 => PeriodicPass::<4>::new(self, buffers, variables, smoothing).log::<6>(),
            _ => PeriodicPass::<8>::new(self, buffers, variables, smoothing).log::<10>(),
        }
    }

    /// The logarithm by which the gain of each phase changes, so that its worst pattern, or that of
    /// all phases, has sensitivity 1.
    pub(super) fn levels(&self, buffers: usize, variables: &[f64]) -> Vec<f64> {
        let exact = Smoothing { corner: 0.0, norm: f64::INFINITY };
        PeriodicPass::<{ MAX_BUFFERS as usize }>::new(self, buffers, variables, exact).levels()
    }
}

/// The recursions at one point. B has room for the buffers. Buffers beyond the number in use have
/// weight zero, so they change no sum and no slope of the others.
struct PeriodicPass<'a, const B: usize> {
    loss: &'a PeriodicLoss,
    buffers: usize,
    points: Vec<PeriodicPoint<B>>,
    smoothing: Smoothing,
    /// G of `variable_loss`.
    below: Vec<Square<B>>,
    /// `G v`, and `1 + Θ G v`: the inner product of the step's column with the response to a unit
    /// in each buffer before the step.
    reach: Vec<[f64; B]>,
    overlap: Vec<[f64; B]>,
    /// Products of decays over the steps between a step and the next of its class.
    products: Vec<[f64; B]>,
    slopes: Vec<PointSlopes<B>>,
    by_below: Vec<Square<B>>,
    by_overlap: Vec<[f64; B]>,
    /// Differences between the slopes by `log θ` of successive steps; their running sums are the
    /// slopes.
    by_logarithm: Vec<[f64; B]>,
}

/// X of a class, and the quantities that its gradient needs.
struct ClassOverlaps<const B: usize> {
    members: Vec<usize>,
    /// The buffers of the column of each member before each later one.
    states: Vec<[f64; B]>,
    /// H for K V.
    column_sums: Vec<f64>,
    /// H for X.
    row_sums: Vec<f64>,
    /// X.
    overlaps: Vec<f64>,
}

impl<'a, const B: usize> PeriodicPass<'a, B> {
    fn new(loss: &'a PeriodicLoss, buffers: usize, variables: &[f64], smoothing: Smoothing) -> Self {
        let steps = loss.shares.len();
        let gap = loss.schedule.gap();
        let point = |(first, shares, cell): &(usize, [f64; 4], usize)| {
            let value = |curve: usize| -> f64 {
                let values = &variables[loss.start(buffers, curve)..];
                let ends: f64 =
                    shares.iter().zip(&values[*first..]).map(|(share, value)| share * value).sum();
                let phased = loss.cells > 0 && (1..=2 * buffers).contains(&curve);
                ends + if phased { values[loss.knots + cell] } else { 0.0 }
            };
            PeriodicPoint {
                decays: array(|j| if j < buffers { logistic(value(1 + 2 * j)) } else { 0.5 }),
                weights: array(|j| if j < buffers { exp(value(2 + 2 * j)) } else { 0.0 }),
                gain: exp(value(0)),
                line_decay: if loss.delay { logistic(value(1 + 2 * buffers)) } else { 0.0 },
                line_weight: if loss.delay { exp(value(2 + 2 * buffers)) } else { 0.0 },
            }
        };
        let points: Vec<PeriodicPoint<B>> = loss.shares.iter().map(point).collect();
        let mut below = vec![[[0.0; B]; B]; steps];
        for t in (1..steps).rev() {
            let PeriodicPoint { decays, .. } = points[t];
            let after = below[t];
            below[t - 1] = square(|j, k| 1.0 + decays[j] * after[j][k] * decays[k]);
        }
        let times = |(below, point): (&Square<B>, &PeriodicPoint<B>)| {
            array(|j| (0..B).map(|k| below[j][k] * point.weights[k]).sum())
        };
        let reach: Vec<[f64; B]> = below.iter().zip(&points).map(times).collect();
        let common =
            |(reach, point): (&[f64; B], &PeriodicPoint<B>)| array(|j| 1.0 + point.decays[j] * reach[j]);
        let overlap = reach.iter().zip(&points).map(common).collect();
        let mut logarithms = vec![[0.0; B]; steps + 1];
        for (t, point) in points.iter().enumerate() {
            logarithms[t + 1] = array(|j| logarithms[t][j] + log(point.decays[j]));
        }
        let product = |t: usize| match logarithms.get(t + gap) {
            Some(end) => array(|j| exp(end[j] - logarithms[t + 1][j])),
            None => [0.0; B],
        };
        Self {
            loss,
            buffers,
            smoothing,
            products: (0..steps).map(product).collect(),
            slopes: vec![PointSlopes::ZERO; steps],
            by_below: vec![[[0.0; B]; B]; steps],
            by_overlap: vec![[0.0; B]; steps],
            by_logarithm: vec![[0.0; B]; steps + 1],
            points,
            below,
            reach,
            overlap,
        }
    }

    fn classes(&self) -> usize {
        self.loss.schedule.gap().min(self.points.len())
    }

    fn levels(&self) -> Vec<f64> {
        let level = |class: usize| {
            let sums = self.pattern_sums(&self.class(class));
            -0.5 * log(sums.into_iter().fold(f64::MIN_POSITIVE, f64::max))
        };
        let mut levels: Vec<f64> = (0..self.classes()).map(level).collect();
        if self.loss.is_shared {
            levels = vec![levels.iter().copied().fold(f64::INFINITY, f64::min); levels.len()];
        }
        levels
    }

    /// The smoothed maximum.
    fn norm(&self, sums: &[f64]) -> f64 {
        let largest = sums.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let powers: f64 = sums.iter().map(|sum| pow(sum / largest, self.smoothing.norm)).sum();
        largest * pow(powers, 1.0 / self.smoothing.norm)
    }

    fn log<const S: usize>(mut self) -> (f64, Vec<f64>) {
        let classes: Vec<ClassOverlaps<B>> = (0..self.classes()).map(|class| self.class(class)).collect();
        let unscaled: Vec<f64> = self.points.iter().map(|point| point.gain).collect();
        let sums: Vec<Vec<f64>> = classes.iter().map(|class| self.pattern_sums(class)).collect();
        let mut norms: Vec<f64> = sums.iter().map(|sums| self.norm(sums)).collect();
        if self.loss.is_shared {
            norms = vec![self.norm(&norms); norms.len()];
        }
        for (class, norm) in classes.iter().zip(&norms) {
            class.members.iter().for_each(|&t| self.points[t].gain /= norm.sqrt());
        }
        let ErrorSlopes { total, slopes } = if self.loss.delay {
            by_rows(self.loss, self.loss.schedule.gap(), &self.points)
        } else {
            by_covariances::<B, S>(self.loss, &self.points)
        };
        self.slopes = slopes;
        self.points.iter_mut().zip(unscaled).for_each(|(point, gain)| point.gain = gain);
        let by_gains = |members: &[usize]| members.iter().map(|&t| self.slopes[t].gain).sum::<f64>();
        let mut by_norms: Vec<f64> = classes.iter().map(|class| by_gains(&class.members)).collect();
        if self.loss.is_shared {
            by_norms = vec![by_norms.iter().sum(); by_norms.len()];
        }
        for (((class, norm), by_norm), sums) in classes.iter().zip(norms).zip(by_norms).zip(sums) {
            let exponent = self.smoothing.norm - 1.0;
            let share = |sum: f64| -0.5 * by_norm / norm * pow(sum / norm, exponent);
            self.add_slopes_of_class(class, &sums.into_iter().map(share).collect::<Vec<f64>>());
        }
        self.add_slopes_of_columns();
        (log(total), self.gradient())
    }

    fn class(&self, first: usize) -> ClassOverlaps<B> {
        let gap = self.loss.schedule.gap();
        let members: Vec<usize> = (first..self.points.len()).step_by(gap).collect();
        let size = members.len();
        let (mut states, mut columns) = (vec![[0.0; B]; size * size], vec![0.0; size * size]);
        for (i, &from) in members.iter().enumerate() {
            let point = &self.points[from];
            let own: f64 = point.weights.iter().zip(self.reach[from]).map(|(v, reach)| v * reach).sum();
            columns[i * size + i] = 1.0 + own;
            let mut state: [f64; B] = array(|j| point.weights[j] * self.products[from][j]);
            for (l, &to) in members.iter().enumerate().skip(i + 1) {
                states[i * size + l] = state;
                let inner: f64 = state.iter().zip(self.overlap[to]).map(|(state, q)| state * q).sum();
                (columns[i * size + l], columns[l * size + i]) = (inner, inner);
                for (j, state) in state.iter_mut().enumerate() {
                    *state *= self.points[to].decays[j] * self.products[to][j];
                }
            }
        }
        let mut overlaps = columns.clone();
        let (mut column_sums, mut row_sums) = (Vec::new(), Vec::new());
        if self.loss.delay {
            (column_sums, row_sums) = (vec![0.0; size * size], vec![0.0; size * size]);
            for j in (0..size).rev() {
                let next = members.get(j + 1).map(|&t| self.points[t].line_decay);
                for i in 0..size {
                    if let Some(decay) = next {
                        // The entry of K to the right; `overlaps` holds K here.
                        column_sums[i * size + j] =
                            overlaps[i * size + j + 1] + decay * column_sums[i * size + j + 1];
                    }
                    columns[i * size + j] -= self.points[members[j]].line_weight * column_sums[i * size + j];
                }
            }
            overlaps.copy_from_slice(&columns);
            for i in (0..size).rev() {
                let next = members.get(i + 1).map(|&t| self.points[t].line_decay);
                for j in 0..size {
                    if let Some(decay) = next {
                        row_sums[i * size + j] =
                            columns[(i + 1) * size + j] + decay * row_sums[(i + 1) * size + j];
                    }
                    overlaps[i * size + j] -= self.points[members[i]].line_weight * row_sums[i * size + j];
                }
            }
        }
        ClassOverlaps { members, states, column_sums, row_sums, overlaps }
    }

    /// The smoothed absolute value.
    fn magnitude(&self, overlap: f64) -> f64 {
        (overlap * overlap + self.smoothing.corner * self.smoothing.corner).sqrt()
    }

    /// The part of a pair of members in the sum of a pattern.
    fn part(&self, class: &ClassOverlaps<B>, i: usize, l: usize) -> f64 {
        let size = class.members.len();
        let gains = self.points[class.members[i]].gain * self.points[class.members[l]].gain;
        let overlap = class.overlaps[i * size + l];
        gains * if i == l { overlap } else { 2.0 * self.magnitude(overlap) }
    }

    /// The squared sensitivity of each pattern of the class.
    fn pattern_sums(&self, class: &ClassOverlaps<B>) -> Vec<f64> {
        let (size, count) = (class.members.len(), self.loss.schedule.count());
        let sum = |first: usize| -> f64 {
            let end = size.min(first + count);
            (first..end).map(|l| (first..=l).map(|i| self.part(class, i, l)).sum::<f64>()).sum()
        };
        let mut sums = vec![sum(0)];
        for first in 1..=size.saturating_sub(count) {
            let left: f64 = (first - 1..first - 1 + count).map(|l| self.part(class, first - 1, l)).sum();
            let last = first + count - 1;
            let entered: f64 = (first..=last).map(|i| self.part(class, i, last)).sum();
            sums.push(sums[first - 1] - left + entered);
        }
        sums
    }

    fn add_slopes_of_class(&mut self, class: &ClassOverlaps<B>, by_sums: &[f64]) {
        let (size, count) = (class.members.len(), self.loss.schedule.count());
        let mut totals = vec![0.0];
        for by_sum in by_sums {
            totals.push(totals[totals.len() - 1] + by_sum);
        }
        let mut by_overlaps = vec![0.0; size * size];
        for i in 0..size {
            for l in i..size.min(i + count) {
                let patterns = (l + 1).saturating_sub(count)..(i + 1).min(by_sums.len());
                let weight = totals[patterns.end] - totals[patterns.start.min(patterns.end)];
                let (one, other) = (class.members[i], class.members[l]);
                let part = weight * self.part(class, i, l);
                self.slopes[one].gain += part;
                self.slopes[other].gain += part;
                let gains = self.points[one].gain * self.points[other].gain;
                let overlap = class.overlaps[i * size + l];
                let slope =
                    if i == l { 1.0 } else { overlap / self.magnitude(overlap).max(f64::MIN_POSITIVE) };
                by_overlaps[i * size + l] = weight * gains * slope;
                by_overlaps[l * size + i] = weight * gains * slope;
            }
        }
        if self.loss.delay {
            self.add_slopes_of_line(class, &mut by_overlaps);
        }
        self.add_slopes_of_products(class, &by_overlaps);
    }

    /// Turns slopes by X into slopes by K, and adds those by the delay line.
    fn add_slopes_of_line(&mut self, class: &ClassOverlaps<B>, by: &mut [f64]) {
        let ClassOverlaps { members, column_sums, row_sums, .. } = class;
        let size = members.len();
        let at = |i: usize, j: usize, rows: bool| if rows { i * size + j } else { j * size + i };
        for (sums, rows) in [(row_sums, true), (column_sums, false)] {
            let mut by_sums = vec![0.0; size];
            for i in 0..size {
                let PeriodicPoint { line_weight, line_decay, .. } = self.points[members[i]];
                let (mut by_weight, mut by_decay) = (0.0, 0.0);
                for (j, by_sum) in by_sums.iter_mut().enumerate() {
                    // `by_sum` is the derivative with respect to the sum of the previous member.
                    by_decay += *by_sum * sums[at(i, j, rows)];
                    let direct = by[at(i, j, rows)];
                    by_weight -= direct * sums[at(i, j, rows)];
                    by[at(i, j, rows)] += *by_sum;
                    *by_sum = line_decay * *by_sum - line_weight * direct;
                }
                self.slopes[members[i]].line_weight += by_weight;
                self.slopes[members[i]].line_decay += by_decay;
            }
        }
    }

    /// Adds the slopes through K.
    fn add_slopes_of_products(&mut self, class: &ClassOverlaps<B>, by: &[f64]) {
        let (gap, size) = (self.loss.schedule.gap(), class.members.len());
        for (i, &from) in class.members.iter().enumerate() {
            let (weights, own) = (self.points[from].weights, by[i * size + i]);
            for j in 0..B {
                self.slopes[from].weights[j] += 2.0 * own * self.reach[from][j];
                for k in 0..B {
                    self.by_below[from][j][k] += own * weights[j] * weights[k];
                }
            }
            let mut by_state = [0.0; B];
            for (l, &to) in class.members.iter().enumerate().skip(i + 1).rev() {
                let (state, by_inner) = (class.states[i * size + l], by[i * size + l] + by[l * size + i]);
                for j in 0..B {
                    self.by_overlap[to][j] += by_inner * state[j];
                    let factor = self.points[to].decays[j] * self.products[to][j];
                    let by_next = by_state[j] * state[j] * factor;
                    if to + gap < self.points.len() {
                        // By `log θ` of this step and of those up to the next member.
                        self.by_logarithm[to][j] += by_next;
                        self.by_logarithm[to + gap][j] -= by_next;
                    }
                    by_state[j] = by_inner * self.overlap[to][j] + by_state[j] * factor;
                }
            }
            if from + gap < self.points.len() {
                for j in 0..B {
                    self.slopes[from].weights[j] += by_state[j] * self.products[from][j];
                    let by_next = by_state[j] * weights[j] * self.products[from][j];
                    self.by_logarithm[from + 1][j] += by_next;
                    self.by_logarithm[from + gap][j] -= by_next;
                }
            }
        }
    }

    /// Adds the slopes through G.
    fn add_slopes_of_columns(&mut self) {
        let (mut before, mut logarithm) = ([[0.0; B]; B], [0.0; B]);
        for t in 0..self.points.len() {
            let PeriodicPoint { decays, weights, .. } = self.points[t];
            let (slopes, below) = (&mut self.slopes[t], &self.below[t]);
            let mut by_below = self.by_below[t];
            for j in 0..B {
                logarithm[j] += self.by_logarithm[t][j];
                slopes.decays[j] += self.by_overlap[t][j] * self.reach[t][j] + logarithm[j] / decays[j];
                let by_reach = decays[j] * self.by_overlap[t][j];
                for k in 0..B {
                    slopes.weights[k] += below[j][k] * by_reach;
                    slopes.decays[j] += 2.0 * before[j][k] * decays[k] * below[j][k];
                    by_below[j][k] += 0.5 * by_reach * weights[k] + decays[j] * before[j][k] * decays[k];
                    by_below[k][j] += 0.5 * by_reach * weights[k];
                }
            }
            before = by_below;
        }
    }

    /// The slopes by the variables of the curves.
    fn gradient(&self) -> Vec<f64> {
        let loss = self.loss;
        let buffers = self.buffers;
        let mut gradient = vec![0.0; loss.variables(buffers)];
        for ((first, shares, cell), (point, slopes)) in
            loss.shares.iter().zip(self.points.iter().zip(&self.slopes))
        {
            let mut add = |curve: usize, slope: f64| {
                let start = loss.start(buffers, curve);
                let knots = gradient[start + first..].iter_mut().zip(shares);
                knots.for_each(|(sum, share)| *sum += share * slope);
                if loss.cells > 0 && (1..=2 * buffers).contains(&curve) {
                    gradient[start + loss.knots + cell] += slope;
                }
            };
            add(0, slopes.gain);
            for j in 0..buffers {
                add(1 + 2 * j, slopes.decays[j] * point.decays[j] * (1.0 - point.decays[j]));
                add(2 + 2 * j, slopes.weights[j] * point.weights[j]);
            }
            if loss.delay {
                add(1 + 2 * buffers, slopes.line_decay * point.line_decay * (1.0 - point.line_decay));
                add(2 + 2 * buffers, slopes.line_weight * point.line_weight);
            }
        }
        gradient
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::participation::Participation;

    #[test]
    fn slopes_agree_with_the_loss() {
        let smoothing = Smoothing { corner: 1e-2, norm: 32.0 };
        for (workload, participation, cells, delay, is_shared) in [
            ("prefix", "4x10", 0, true, false),
            ("momentum:0.5", "2x10", 5, true, true),
            ("average", "3x7", 3, false, false),
            ("adam:0.9", "9x6", 6, false, true),
            ("prefix", "3x4", 0, false, true),
        ] {
            let workload = workload.parse().unwrap();
            let sums = WorkloadSums::new(&workload).unwrap();
            let schedule = participation.parse::<Participation>().unwrap().on(38);
            let loss = PeriodicLoss::new(&workload, sums, schedule, [5, cells], delay, is_shared);
            let variable = |k: usize| -1.0 + 1.5 * (1.7 * k as f64).sin();
            let variables: Vec<f64> = (0..loss.variables(2)).map(variable).collect();
            let (_, slopes) = loss.log(2, &variables, smoothing);
            for (k, slope) in slopes.into_iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = variables.clone();
                    moved[k] += step;
                    loss.log(2, &moved, smoothing).0
                };
                let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((slope - difference).abs() < 1e-7, "{participation} {k}: {slope} and {difference}");
            }
        }
    }
}
