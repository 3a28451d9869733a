//! The binary tree in causal square form: the lower-triangular C whose CᵀC is that of the completed
//! tree.
//!
//! The sensitivity depends on C only through CᵀC, so it is that of the tree. The decoder `A C⁻¹`
//! has the row norms of the tree's optimal decoder, `A` times its pseudo-inverse. Rows of C follow
//! from the last one by elimination, `C[t,i] C[t,t] = (CᵀC)[t,i] − Σ_(s>t) C[s,t] C[s,i]`. Swapping
//! the two halves of a node to the left of t leaves the right-hand side unchanged. So a row has one
//! value per binary digit 1 of t, that of the node there, and C takes O(n² log n) operations.

use super::height;
use crate::strategy::{Dense, Kind, MAX_DENSE_HORIZON, StrategyError};
use nalgebra::DMatrix;
use std::sync::Arc;

/// `tree-optimal-decoder`, which can run.
pub(in crate::strategy) static TREE_OPTIMAL_DECODER: Kind = Kind {
    horizon: MAX_DENSE_HORIZON,
    compared: Kind::if_short,
    strategy: Some(|specification| Ok(Arc::new(tree_optimal_decoder(specification.steps()?)?))),
    ..Kind::new("tree-optimal-decoder", "the encoder of `tree` with the best decoder, in causal form")
};

fn tree_optimal_decoder(horizon: u64) -> Result<Dense, StrategyError> {
    let rows = rows(horizon as usize);
    let entry = |t: usize, i: usize| if i > t { 0.0 } else { rows[t].entry(t, i) };
    Dense::new(TREE_OPTIMAL_DECODER.name(), &DMatrix::from_fn(rows.len(), rows.len(), entry))
}

struct TreeRow {
    diagonal: f64,
    /// For each height, the value in the node to the left of t that belongs to that binary digit of
    /// t.
    nodes: Vec<f64>,
}

impl TreeRow {
    /// `C[t,i]` for i ≤ t: the highest digit in which t and i differ selects the node.
    fn entry(&self, t: usize, i: usize) -> f64 {
        (t ^ i).checked_ilog2().map_or(self.diagonal, |digit| self.nodes[digit as usize])
    }
}

/// All rows of C, from the last to the first. Plain sums, for the same result on every machine.
fn rows(steps: usize) -> Vec<TreeRow> {
    let top = height(steps as u64);
    let mut reversed: Vec<TreeRow> = Vec::with_capacity(steps);
    for t in (0..steps).rev() {
        let later = || (t + 1..steps).rev().zip(&reversed);
        let eliminated = |i| later().map(|(s, row)| row.entry(s, t) * row.entry(s, i)).sum::<f64>();
        let diagonal = (f64::from(top + 1) - eliminated(t)).sqrt();
        let value = |digit: u32| {
            let node = t >> digit & 1 == 1;
            let first = (t >> digit << digit) - (usize::from(node) << digit);
            if node { (f64::from(top - digit) - eliminated(first)) / diagonal } else { 0.0 }
        };
        let nodes = (0..=top).map(value).collect();
        reversed.push(TreeRow { diagonal, nodes });
    }
    reversed.reverse();
    reversed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Factorization, Strategy, Tree, conformance};
    use crate::workload::Workload;

    #[test]
    fn the_square_form_has_the_columns_of_the_tree() {
        for steps in (1..40).chain([100, 257]) {
            let rows = rows(steps);
            let c = DMatrix::from_fn(steps, steps, |t, i| if i > t { 0.0 } else { rows[t].entry(t, i) });
            let tree = Tree::honaker(steps as u64).unwrap();
            let tree = tree.matrix(steps as u64).unwrap().entries();
            let error = (c.transpose() * c - tree.transpose() * tree).amax();
            assert!(error < 1e-12, "{steps} steps: {error}");
        }
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for (workload, steps) in [("prefix", 1), ("prefix", 21), ("window:3", 16), ("adam:0.9", 13)] {
            let strategy = tree_optimal_decoder(steps).unwrap();
            conformance::check(&strategy, &workload.parse().unwrap(), steps as usize);
        }
    }

    /// Squared norm of the decoder if the nodes are not scaled.
    fn squared_frobenius(steps: u64, workload: &Workload) -> f64 {
        let strategy = tree_optimal_decoder(steps).unwrap();
        let scale = strategy.geometry().max_norm_squared / f64::from(height(steps) + 1);
        strategy.decoder_row_norms(workload, steps).map(|norm| norm * norm * scale).sum()
    }

    #[test]
    fn losses_of_the_full_estimator_agree_with_known_values() {
        let losses = [
            (2, 8.0 / 3.0),
            (4, 54.0 / 7.0),
            (8, 21.942857143),
            (32, 158.653149),
            (128, 1010.657753),
            (1024, 13913.872007),
        ];
        for (n, expected) in losses {
            let found = squared_frobenius(n, &Workload::Prefix) * f64::from(height(n) + 1);
            assert!((found / expected - 1.0).abs() < 1e-8, "{n}: {found} {expected}");
        }
    }

    #[test]
    fn errors_agree_with_the_reference() {
        let mut checked = 0;
        for case in
            &crate::reference::cases(include_str!("../../../../tests/vectors/factorization_errors.json"))
        {
            let (input, expected) = (&case["input"], &case["expected"]);
            if input["factorization"] != "tree_full" {
                continue;
            }
            let (name, n) = (input["workload"].as_str().unwrap(), input["n"].as_u64().unwrap());
            let name = if name == "exp" { "exponential" } else { name };
            let text =
                if input["param"].is_null() { name.into() } else { format!("{name}:{}", input["param"]) };
            let found = squared_frobenius(n, &text.parse().unwrap()).sqrt();
            let expected = expected["b_frobenius"].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-10, "{text} {n}: {found} {expected}");
            checked += 1;
        }
        assert!(checked >= 10);
    }
}
