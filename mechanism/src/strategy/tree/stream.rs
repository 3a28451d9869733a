//! The decoders of the tree as they are published, step by step: the reference of their row norms.

use super::{Tree, height};

/// Estimates running sums from the noisy sums of nodes.
pub(super) struct TreeDecoder {
    tree: Tree,
    coordinates: usize,
    steps: u64,
    /// For each height, the estimate of the complete node with no complete node above it, or zeros.
    estimates: Vec<f64>,
}

impl TreeDecoder {
    pub(super) fn new(tree: &Tree, coordinates: usize) -> Self {
        let heights = height(tree.horizon) as usize + 1;
        Self { tree: tree.clone(), coordinates, steps: 0, estimates: vec![0.0; heights * coordinates] }
    }

    /// Adds the noisy sums of the nodes that a step released, lowest first, and writes the
    /// estimates of the sums of all steps so far.
    pub(super) fn decode(&mut self, nodes: &[f64], sums: &mut [f64]) {
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
    /// `y`. A node at an odd index has a left neighbour; one at an even index has virtual steps to
    /// its right.
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
