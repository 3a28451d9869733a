//! Preconditioned conjugate gradients on block-diagonal matrices.

use super::classes::{self, Blocks};

/// Solves `curvature(x) = right` until the energy of the residual, ⟨r, precondition(r)⟩, is at most what `enough`
/// makes of the first, or for `limit` steps; with the number of steps.
pub(super) fn conjugate_gradients(
    curvature: impl Fn(&Blocks) -> Blocks,
    precondition: impl Fn(&Blocks) -> Blocks,
    right: &Blocks,
    enough: impl FnOnce(f64) -> f64,
    limit: usize,
) -> (Blocks, usize) {
    let mut residual = right.clone();
    let mut search = precondition(&residual);
    let mut energy = classes::dot(&residual, &search);
    let enough = enough(energy);
    let mut solution = classes::scaled(&search, 0.0);
    for step in 0..limit {
        if energy <= enough {
            return (solution, step);
        }
        let image = curvature(&search);
        let length = energy / classes::dot(&search, &image);
        if !length.is_finite() {
            return (solution, step);
        }
        solution = classes::plus(&solution, length, &search);
        residual = classes::plus(&residual, -length, &image);
        let next = precondition(&residual);
        let next_energy = classes::dot(&residual, &next);
        search = classes::plus(&next, next_energy / energy, &search);
        energy = next_energy;
    }
    (solution, limit)
}
