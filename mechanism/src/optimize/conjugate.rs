//! Preconditioned conjugate gradients and vector operations.

/// Solves `curvature(x) = right` until the energy of the residual, ⟨r, precondition(r)⟩, is at most
/// `enough` of the first one, or for `limit` steps. Also returns the number of steps.
pub(super) fn conjugate_gradients(
    curvature: impl Fn(&[f64]) -> Vec<f64>,
    precondition: impl Fn(&[f64]) -> Vec<f64>,
    right: &[f64],
    enough: impl FnOnce(f64) -> f64,
    limit: usize,
) -> (Vec<f64>, usize) {
    let mut residual = right.to_vec();
    let mut search = precondition(&residual);
    let mut energy = dot(&residual, &search);
    let enough = enough(energy);
    let mut solution = vec![0.0; right.len()];
    for step in 0..limit {
        if energy <= enough {
            return (solution, step);
        }
        let image = curvature(&search);
        let length = energy / dot(&search, &image);
        if !length.is_finite() {
            return (solution, step);
        }
        solution = plus(&solution, length, &search);
        residual = plus(&residual, -length, &image);
        let next = precondition(&residual);
        let next_energy = dot(&residual, &next);
        search = plus(&next, next_energy / energy, &search);
        energy = next_energy;
    }
    (solution, limit)
}

/// ⟨a, b⟩.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// a + factor · b.
pub(super) fn plus(a: &[f64], factor: f64, b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + factor * b).collect()
}
