//! The binary tree: the sums of all dyadic ranges of steps, each released when it is complete
//! (Dwork, Naor, Pitassi and Rothblum, 2010; Chan, Shi and Song, 2011).
//!
//! The node at height h and index j sums steps `j 2^h + 1` to `(j + 1) 2^h`. C has one row per
//! node, with ones at the node's steps. It has more rows than columns, and several decoders:
//! - `tree`: the sum of the first t steps from its dyadic nodes, one per binary digit 1 of t.
//! - `honaker`: each of these nodes is estimated from all nodes below it (Honaker, 2015, "estimator
//!   from below"): `e = v_h y + (1 − v_h)(e_left + e_right)`, of variance `v_h = 1/(2 − 2^-h)`. At
//!   the last step n the tree is completed by virtual steps. They are known to be 0, so nodes that
//!   hold only virtual steps need no noise ("Multi-Epoch Matrix Factorization Mechanisms",
//!   Choquette-Choo et al., 2023, Appendix D.3).
//! - `tree-optimal-decoder`: the optimal decoder for all nodes, including those of the completed
//!   tree ([`causal`]).
//!
//! The first two decoders estimate running sums S. Any other workload is a combination of them: row
//! t of A is `Σ_i (A[t,i] − A[t,i+1]) S_i`. Its error includes the correlation of the S_i.

mod causal;

pub(super) use causal::TREE_OPTIMAL_DECODER;

use super::{
    Factorization, Kind, MAX_DENSE_HORIZON, MAX_HISTORY_HORIZON, Matrix, MatrixError, RowNorms,
    StrategyError, check_horizon,
};
use crate::workload::Workload;
use nalgebra::DMatrix;
use std::{iter, sync::Arc};

/// `tree`: each sum from the nodes of its dyadic decomposition.
pub(super) static TREE: Kind = Kind {
    compared: Kind::if_short,
    factorization: Some(|horizon| Ok(Arc::new(Tree::new(horizon)?))),
    ..Kind::new("tree", "the binary tree, for comparison: `run` can't use it")
};

/// `honaker`: each sum estimated online from all nodes below (Honaker, 2015).
pub(super) static HONAKER: Kind = Kind {
    compared: Kind::if_short,
    factorization: Some(|horizon| Ok(Arc::new(Tree::honaker(horizon)?))),
    ..Kind::new("honaker", "the same, sums estimated from all nodes below, for comparison")
};

/// The binary tree over a number of steps, with the decoder `tree` or `honaker`.
///
/// ```
/// use hushflow_mechanism::strategy::{Factorization, Tree};
/// use hushflow_mechanism::workload::Workload;
///
/// let tree = Tree::honaker(4)?;
/// let variances: Vec<f64> = tree.decoder_row_norms(&Workload::Prefix, 4).map(|norm| norm * norm).collect();
/// assert!((variances[3] - 4.0 / 7.0).abs() < 1e-14);
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    horizon: u64,
    /// Whether to estimate from below and complete the tree at the horizon.
    honaker: bool,
}

impl Tree {
    /// The tree with the decoder `tree`.
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] for a horizon of 0 or more than [`MAX_HISTORY_HORIZON`] steps.
    pub fn new(horizon: u64) -> Result<Self, StrategyError> {
        check_horizon(&TREE.name(), horizon, MAX_HISTORY_HORIZON)?;
        Ok(Self { horizon, honaker: false })
    }

    /// The tree with the decoder `honaker`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn honaker(horizon: u64) -> Result<Self, StrategyError> {
        check_horizon(&HONAKER.name(), horizon, MAX_HISTORY_HORIZON)?;
        Ok(Self { horizon, honaker: true })
    }

    /// Number of nodes released at step t, counted from 1: all nodes that end there, lowest first.
    fn released(&self, t: u64) -> u32 {
        let top = if self.completes(t) { height(t) } else { t.trailing_zeros() };
        top + 1
    }

    fn completes(&self, t: u64) -> bool {
        self.honaker && t == self.horizon
    }

    /// Weight of a node's own sum in its estimate: the variance v_h of the estimate.
    fn own_weight(&self, height: u32) -> f64 {
        if self.honaker { 1.0 / (2.0 - 0.5f64.powi(height as i32)) } else { 1.0 }
    }

    fn within_horizon(&self, steps: u64) -> u64 {
        steps.min(self.horizon)
    }

    /// Squared norm of the weights of all nodes in `Σ_i row_i x_i`, with x from the running sums.
    /// The node at the even index j of height h is part of the sums of `(j + 1) 2^h` to fewer than
    /// `(j + 2) 2^h` steps. The root is also part of the last sum if the tree is completed there.
    /// The weight of a node carries over to the nodes below it.
    fn squared_row_norm(&self, row: &[f64]) -> f64 {
        let steps = row.len();
        let last = if self.completes(steps as u64) { row[steps - 1] } else { 0.0 };
        let entry = |i: usize| row.get(i - 1).copied().unwrap_or(last);
        let mut inherited = vec![last];
        let mut sum = 0.0;
        for h in (0..=height(steps as u64)).rev() {
            let own =
                |j: usize| if j.is_multiple_of(2) { entry((j + 1) << h) - entry((j + 2) << h) } else { 0.0 };
            let weights: Vec<f64> = (0..steps.div_ceil(1 << h)).map(|j| own(j) + inherited[j / 2]).collect();
            let share = self.own_weight(h);
            sum += weights.iter().map(|weight| (share * weight).powi(2)).sum::<f64>();
            inherited = weights.into_iter().map(|weight| (1.0 - share) * weight).collect();
        }
        sum
    }

    /// Variance of the sum of the first t steps.
    fn prefix_variance(&self, t: u64) -> f64 {
        if self.completes(t) {
            let level = |(weight, sum): (f64, f64), h: u32| {
                let share = self.own_weight(h);
                let nodes = t.div_ceil(1 << h) as f64;
                ((1.0 - share) * weight, sum + nodes * (share * weight).powi(2))
            };
            (0..=height(t)).rev().fold((1.0, 0.0), level).1
        } else {
            (0..u64::BITS).filter(|h| t >> h & 1 == 1).map(|h| self.own_weight(h)).sum()
        }
    }
}

/// Height of the lowest node that holds the first t steps.
fn height(t: u64) -> u32 {
    t.next_power_of_two().trailing_zeros()
}

impl Factorization for Tree {
    fn name(&self) -> String {
        if self.honaker { &HONAKER } else { &TREE }.name().to_string()
    }

    fn horizon(&self) -> Option<u64> {
        Some(self.horizon)
    }

    /// One row per node, in the order of release, up to [`MAX_DENSE_HORIZON`] steps.
    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let steps = self.within_horizon(steps);
        if steps > MAX_DENSE_HORIZON {
            return Err(MatrixError::WrittenOut { found: steps as usize, limit: MAX_DENSE_HORIZON as usize });
        }
        let nodes: Vec<(u64, u32)> =
            (1..=steps).flat_map(|t| (0..self.released(t)).map(move |h| (t - 1, h))).collect();
        let entry = |p: usize, i: usize| nodes[p].0 >> nodes[p].1 == i as u64 >> nodes[p].1;
        Matrix::dense(DMatrix::from_fn(nodes.len(), steps as usize, |p, i| entry(p, i).into()))
    }

    /// The number of nodes that hold the first step, which is the maximum over all steps.
    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        let steps = self.within_horizon(steps);
        let top = if self.completes(steps) { height(steps) } else { steps.max(1).ilog2() };
        f64::from(top + 1)
    }

    /// Uses a closed form for running sums and averages; takes O(t) for row t of any other
    /// workload.
    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        let divisors: Vec<f64> = (1..=steps).map(|t| workload.row_divisor(t)).collect();
        let squares: RowNorms<'_> = match workload {
            Workload::Prefix | Workload::Average => Box::new((1..=steps).map(|t| self.prefix_variance(t))),
            _ => {
                let mut rows = rows(workload, steps as usize);
                Box::new(iter::from_fn(move || rows.next().map(|row| self.squared_row_norm(&row))))
            }
        };
        Box::new(squares.zip(divisors).map(|(square, divisor)| square.sqrt() / divisor))
    }
}

/// Rows of A up to the diagonal, times their divisors.
fn rows(workload: &Workload, steps: usize) -> Box<dyn Iterator<Item = Vec<f64>>> {
    match workload.toeplitz_part(steps) {
        Some(toeplitz) => Box::new((1..=steps).map(move |t| toeplitz[..t].iter().rev().copied().collect())),
        None => {
            let workload = workload.clone();
            let row = move |t| (1..=t).map(|i| workload.coefficient(t, i)).collect();
            Box::new((1..=steps as u64).map(row))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, horizon: u64) -> Tree {
        if name == "honaker" { Tree::honaker(horizon).unwrap() } else { Tree::new(horizon).unwrap() }
    }

    /// Estimates running sums from the noisy sums of nodes.
    struct TreeDecoder {
        tree: Tree,
        coordinates: usize,
        steps: u64,
        /// For each height, the estimate of the complete node with no complete node above it, or
        /// zeros.
        estimates: Vec<f64>,
    }

    impl TreeDecoder {
        fn new(tree: &Tree, coordinates: usize) -> Self {
            let heights = height(tree.horizon) as usize + 1;
            Self { tree: tree.clone(), coordinates, steps: 0, estimates: vec![0.0; heights * coordinates] }
        }

        /// Adds the noisy sums of the nodes that a step released, lowest first, and writes the
        /// estimates of the sums of all steps so far.
        fn decode(&mut self, nodes: &[f64], sums: &mut [f64]) {
            let (t, coordinates) = (self.steps + 1, self.coordinates);
            let released = self.tree.released(t) as usize;
            let (first, above) = nodes.split_at(coordinates);
            sums.copy_from_slice(first);
            for (h, y) in (1..).zip(above.chunks_exact(coordinates.max(1))) {
                self.climb(h, y, sums);
            }
            self.estimates[(released - 1) * coordinates..][..coordinates].copy_from_slice(sums);
            sums.fill(0.0);
            for estimates in self.estimates.chunks_exact(coordinates.max(1)) {
                sums.iter_mut().zip(estimates).for_each(|(sum, estimate)| *sum += estimate);
            }
            self.steps = t;
        }

        /// Turns the estimates of a node into those of its parent at height h, whose noisy sums are
        /// `y`. A node at an odd index has a left neighbour. To the right of a node at an even
        /// index there are virtual steps.
        fn climb(&mut self, h: u32, y: &[f64], estimates: &mut [f64]) {
            let share = self.tree.own_weight(h);
            let has_left = self.steps >> (h - 1) & 1 == 1;
            let left = &mut self.estimates[(h as usize - 1) * self.coordinates..][..self.coordinates];
            for ((estimate, left), y) in estimates.iter_mut().zip(left).zip(y) {
                if has_left {
                    *estimate += std::mem::take(left);
                }
                *estimate = share * y + (1.0 - share) * *estimate;
            }
        }
    }

    fn prefix_decoder(tree: &Tree) -> DMatrix<f64> {
        let nodes: usize = (1..=tree.horizon).map(|t| tree.released(t) as usize).sum();
        let (mut decoder, mut first) = (TreeDecoder::new(tree, nodes), 0);
        let mut rows = Vec::new();
        for t in 1..=tree.horizon {
            let released = tree.released(t) as usize;
            let unit = |p: usize| (0..nodes).map(move |node| f64::from(u8::from(node == p)));
            let y: Vec<f64> = (first..first + released).flat_map(unit).collect();
            let mut sums = vec![0.0; nodes];
            decoder.decode(&y, &mut sums);
            rows.extend(sums);
            first += released;
        }
        DMatrix::from_row_iterator(tree.horizon as usize, nodes, rows)
    }

    #[test]
    fn decoders_undo_the_encoder_and_row_norms_are_theirs() {
        let any = DMatrix::from_fn(21, 21, |t, i| if i > t { 0.0 } else { ((t * 7 + i * 3) as f64).sin() });
        let any = Workload::from_matrix("any", any).unwrap();
        let workloads =
            ["prefix", "average", "exponential:0.8", "window:3", "window-mean:3", "momentum:0.9", "adam:0.9"];
        let workloads = workloads.map(|text| text.parse().unwrap()).into_iter().chain([any]);
        for workload in workloads {
            for (name, horizon) in
                ["tree", "honaker"].into_iter().flat_map(|name| (1..=21).map(move |n| (name, n)))
            {
                let (tree, n) = (tree(name, horizon), horizon as usize);
                let (b, c) = (prefix_decoder(&tree), tree.matrix(horizon).unwrap().entries());
                assert!((&b * &c - Workload::Prefix.matrix(n)).amax() < 1e-13, "{name} {horizon}");
                let norm = (0..n).map(|i| c.column(i).norm_squared()).fold(0.0, f64::max);
                assert_eq!(tree.max_column_norm_squared(horizon), norm, "{name} {horizon}");
                let differences = DMatrix::from_fn(n, n, |t, i| {
                    workload.coefficient(t as u64 + 1, i as u64 + 1)
                        - workload.coefficient(t as u64 + 1, i as u64 + 2)
                });
                let decoder = differences * b;
                for (t, norm) in tree.decoder_row_norms(&workload, horizon).enumerate() {
                    let expected = decoder.row(t).norm();
                    assert!(
                        (norm - expected).abs() < 1e-13 * (1.0 + expected),
                        "{name} {workload} {horizon}: row {t}: {norm} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn variances_are_the_known_ones() {
        let squares = |name: &str, n| -> Vec<f64> {
            tree(name, n).decoder_row_norms(&Workload::Prefix, n).map(|norm| norm * norm).collect()
        };
        let close =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-11, "{found} {expected}");
        for (found, expected) in squares("tree", 8).into_iter().zip([1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 3.0, 1.0])
        {
            close(found, expected);
        }
        let honaker = squares("honaker", 9);
        close(honaker[3], 4.0 / 7.0);
        close(honaker[6], 4.0 / 7.0 + 2.0 / 3.0 + 1.0);
        close(honaker[7], 8.0 / 15.0);
        let losses = [(2, 4.0), (4, 15.0), (8, 52.0), (32, 486.0), (128, 3592.0), (1024, 56331.0)];
        for (n, loss) in losses {
            close(squares("tree", n).iter().sum::<f64>() * tree("tree", n).max_column_norm_squared(n), loss);
        }
    }

    #[test]
    fn errors_agree_with_the_reference() {
        let cases =
            &crate::reference::cases(include_str!("../../../../tests/vectors/factorization_errors.json"));
        let online = cases.iter().filter(|case| case["input"]["factorization"] == "tree_online");
        let mut checked = 0;
        for case in online {
            let n = case["input"]["n"].as_u64().unwrap();
            assert_eq!(case["input"]["workload"], "prefix");
            let tree = tree("honaker", n);
            let norms: Vec<f64> = tree.decoder_row_norms(&Workload::Prefix, n).collect();
            let frobenius = norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt();
            let found = [
                ("c_norm_1to2", tree.max_column_norm_squared(n).sqrt()),
                ("b_frobenius", frobenius),
                ("b_max_row", norms.iter().copied().fold(0.0, f64::max)),
            ];
            for (name, found) in found {
                let expected = case["expected"][name].as_f64().unwrap();
                assert!((found / expected - 1.0).abs() < 1e-10, "{name} {n}: {found} {expected}");
            }
            checked += 1;
        }
        assert!(checked >= 3);
    }

    #[test]
    fn matrices_too_large_to_write_out_are_refused() {
        assert!(tree("tree", 5000).matrix(5000).is_err());
        assert!(Tree::new(0).is_err() && Tree::honaker(MAX_HISTORY_HORIZON + 1).is_err());
    }
}
