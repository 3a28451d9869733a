//! Generalised least squares over a tree of noisy counts.
//!
//! Each node of a level above the bins counts the records of up to β neighbouring nodes below it,
//! and the root counts all, if the count is known. With independent noise of deviation τ (κ at the
//! root), estimates are computed in two passes (Hay et al. 2010, here for any variances):
//!
//! ```text
//! up     z_v = S + g(n_v − S)    S = Σ z_c,  V = Σ V_c,  g = V/(V + τ²),  V_v = V(1 − g)
//! down   x_c = z_c + (V_c/V)(x_v − S)
//! ```
//!
//! over the children c of v, with z = n and V = τ² for a bin. Given x_v, the noise of the x_c has
//! covariance `Λ = diag(V_c) − V_c V_c'/V`, and is independent of x_v. So for the sum P of a run of
//! bins, P = a·T + ε with independent noise ε of variance s. Let (a_c, s_c) belong to the part of
//! the run within one child c. With l = a_c for this child, and l = 1 for the children that are
//! wholly part of the run,
//!
//! ```text
//! a = Σ l_c V_c / V        s = s_c + Σ l_c² V_c − (Σ l_c V_c)²/V
//! ```
//!
//! P − p·T then has the variance s + (a − p)²·var T.

/// Noise of a sum of bins: a and s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NoiseOfSum {
    pub(super) slope: f64,
    pub(super) variance: f64,
}

/// The variances of a tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NoiseTree {
    branching: usize,
    deviation: f64,
    count_deviation: Option<f64>,
    /// V of each node, level by level, bins first.
    variances: Vec<Vec<f64>>,
    /// For each node, the sum of V of all nodes before it in its level.
    before: Vec<Vec<f64>>,
    /// Sum of V of the top level.
    below_root: f64,
    /// Variance of the noise of the total.
    pub(super) total_variance: f64,
}

/// Returns the weight of an observation with the variance `own`, if the estimate without it has
/// this `variance`.
fn gain(variance: f64, own: f64) -> f64 {
    if variance > 0.0 { variance / (variance + own) } else { 0.0 }
}

impl NoiseTree {
    /// A tree whose levels have these numbers of nodes, bins first.
    pub(super) fn new(
        levels: &[usize],
        branching: usize,
        deviation: f64,
        count_deviation: Option<f64>,
    ) -> Self {
        let own = deviation * deviation;
        let mut variances: Vec<Vec<f64>> = Vec::with_capacity(levels.len());
        for &number in levels {
            let level = match variances.last() {
                None => vec![own; number],
                Some(children) => children
                    .chunks(branching)
                    .map(|of| of.iter().sum::<f64>())
                    .map(|variance| variance * (1.0 - gain(variance, own)))
                    .collect(),
            };
            variances.push(level);
        }
        let running = |level: &Vec<f64>| {
            let mut sum = 0.0;
            let sums = level.iter().map(|variance| {
                sum += variance;
                sum
            });
            std::iter::once(0.0).chain(sums).collect::<Vec<f64>>()
        };
        let before: Vec<Vec<f64>> = variances.iter().map(running).collect();
        let below_root = before.last().and_then(|level| level.last()).copied().unwrap_or(0.0);
        let root = count_deviation.map_or(0.0, |noise| gain(below_root, noise * noise));
        let total_variance = below_root * (1.0 - root);
        Self { branching, deviation, count_deviation, variances, before, below_root, total_variance }
    }

    /// Number of all nodes below the root.
    pub(super) fn nodes(&self) -> usize {
        self.variances.iter().map(Vec::len).sum()
    }

    /// Standard deviation of the noise of a node, and of the count if it is known.
    pub(super) fn deviations(&self) -> (f64, Option<f64>) {
        (self.deviation, self.count_deviation)
    }

    /// Replaces noisy counts of all nodes, level by level, by estimates. Returns their total.
    pub(super) fn solve(&self, nodes: &mut [f64], count: f64) -> f64 {
        let own = self.deviation * self.deviation;
        let mut start = 0;
        for (children, before) in self.variances.iter().zip(&self.before).take(self.variances.len() - 1) {
            let (below, above) = nodes[start..].split_at_mut(children.len());
            for (at, (of, node)) in below.chunks(self.branching).zip(above).enumerate() {
                let [from, to] = self.group(at, children.len()).map(|edge| before[edge]);
                let sum: f64 = of.iter().sum();
                *node = sum + gain(to - from, own) * (*node - sum);
            }
            start += children.len();
        }
        let top: f64 = nodes[start..].iter().sum();
        let root = self.count_deviation.map_or(0.0, |noise| gain(self.below_root, noise * noise));
        let total = top + root * (count - top);
        let variances = self.variances.last().map_or(&[][..], Vec::as_slice);
        spread(&mut nodes[start..], variances, self.below_root, total - top);
        for (children, before) in self.variances.iter().zip(&self.before).rev().skip(1) {
            start -= children.len();
            let (below, above) = nodes[start..].split_at_mut(children.len());
            let groups = below.chunks_mut(self.branching).zip(children.chunks(self.branching));
            for (at, ((of, variances), node)) in groups.zip(above).enumerate() {
                let [from, to] = self.group(at, children.len()).map(|edge| before[edge]);
                let apart = *node - of.iter().sum::<f64>();
                spread(of, variances, to - from, apart);
            }
        }
        total
    }

    /// First and last edge of the children of a node.
    fn group(&self, node: usize, children: usize) -> [usize; 2] {
        [node * self.branching, ((node + 1) * self.branching).min(children)]
    }

    /// Noise of the sum of the first `k` bins, or of bin `k` alone.
    pub(super) fn noise_of(&self, k: usize, alone: bool) -> NoiseOfSum {
        let mut found = NoiseOfSum { slope: 1.0, variance: 0.0 };
        let mut child = if alone { k } else { k - 1 };
        for (level, (variances, before)) in self.variances.iter().zip(&self.before).enumerate() {
            let is_top = level + 1 == self.variances.len();
            let parent = child / self.branching;
            let [from, to] = if is_top { [0, variances.len()] } else { self.group(parent, variances.len()) };
            let all = before[to] - before[from];
            let whole = if alone { 0.0 } else { before[child] - before[from] };
            let own = variances[child];
            let linear = whole + found.slope * own;
            let square = whole + found.slope * found.slope * own;
            let share = if all > 0.0 { linear / all } else { 0.0 };
            let variance = found.variance + (square - share * linear).max(0.0);
            found = NoiseOfSum { slope: share, variance };
            child = parent;
        }
        found
    }
}

/// Spreads a difference over nodes in proportion to their variances.
fn spread(nodes: &mut [f64], variances: &[f64], all: f64, apart: f64) {
    if all > 0.0 {
        nodes.iter_mut().zip(variances).for_each(|(node, variance)| *node += variance / all * apart);
    }
}
