//! Lower bounds for all Toeplitz strategies.
//!
//! For a Toeplitz C with coefficients c and `A = D⁻¹T`, the coefficients d of `T C⁻¹` satisfy
//! `c ∗ d = a`, those of T. The squared sensitivity is ‖c‖², the squared error `Σ W_l d_l²` with
//! W_l > 0. For any φ, and the matrix `H_kl = φ_(k+l)`, zero where k + l reaches the number of
//! steps,
//!
//! ```text
//! Σ φ_m a_m = cᵀ H d ≤ ‖c‖ · ‖H W^(−1/2)‖ · (Σ W_l d_l²)^(1/2),
//! ```
//!
//! so sensitivity times error is at least `Σ φ_m a_m / ‖H W^(−1/2)‖`. For φ ≥ 0 the norm has the
//! bound of Collatz and Wielandt: for any positive u and v, its square is at most
//! `max (H v)_k/u_k · max (H u)_l/(W_l v_l)`.
//!
//! *Largest error.* All weights are 1. Let r be the coefficients of the root of T and take φ with
//! `H r = r`, that is `φ reversed = r reversed / r` as series. If r is positive and never grows,
//! and 1/r is 1 minus a series of positive coefficients of sum at most 1, then φ ≥ 0. With u = v =
//! r the norm is 1 and the bound is ‖r‖², so the root is optimal. This holds for `prefix`,
//! `exponential` and `momentum`, whose r are moments of probability measures on [0, 1] (Kaluza,
//! 1928, for 1/r).
//!
//! *Mean square.* At the optimum some φ closes the gap. Multiplicative steps search for it: where
//! `u ∗ v` is below a, φ grows. Every φ gives a bound, and the best is kept.

use super::{BufferedParameters, Buffers, Objective};
use crate::series::fourier::RealTransform;
use crate::strategy::buffered::rows::coefficients;
use crate::{series, workload::Workload};
use libm::{exp, log};
use std::f64::consts::PI;

/// Number of coefficients of a root that are summed one by one.
const SUMMED: u64 = 1 << 20;

/// Longest horizon for which the dual of the mean square is solved.
const MAX_STEPS: u64 = 1 << 20;

/// Number of multiplicative steps, and of steps of the power method in each.
const ROUNDS: [usize; 2] = [40, 4];

/// Larger than the errors of rounding and of transforms.
const MARGIN: f64 = 1e-9;

/// Returns a certified lower bound of sensitivity times error over all Toeplitz strategies under
/// single participation, for the workload and the horizon of these fitted parameters; `None` if no
/// bound is known.
///
/// For the largest error of `prefix`, `exponential` and `momentum` the bound is exact. For the mean
/// square it takes about a thousand transforms of twice the horizon, up to 2²⁰ steps.
pub(super) fn toeplitz_lower_bound(
    workload: &Workload,
    objective: Objective,
    parameters: &BufferedParameters,
) -> Option<f64> {
    let endless = parameters.horizon.is_none();
    match (workload, objective) {
        (Workload::Window(_) | Workload::WindowMean(_) | Workload::Matrix(_), _) => None,
        (Workload::Adam(decay), _) if endless => {
            Some((1.0 - decay.get()) * root_bound(&Workload::Exponential(*decay), parameters.steps()))
        }
        (Workload::Average | Workload::Adam(_), Objective::MaxError) => None,
        (_, Objective::MaxError) => Some(root_bound(workload, parameters.steps())),
        _ if endless => Some(root_bound(workload, parameters.steps())),
        _ => mean_bound(workload, parameters),
    }
}

/// Lower bound of ‖r‖² for the coefficients r of the root of the Toeplitz part,
/// `((1 − z)(1 − βz))^(−1/2)` or one of its factors. Beyond the summed coefficients, those of
/// `(1 − z)^(−1/2)` are at least `(π(k + ½))^(−1/2)`, and those of the product at least that times
/// the first of the other factor.
fn root_bound(workload: &Workload, steps: u64) -> f64 {
    let (lasting, decay) = match workload {
        Workload::Exponential(decay) => (false, decay.get()),
        Workload::Momentum(decay) => (true, decay.get()),
        _ => (true, 0.0),
    };
    let (slow, summed) = (if lasting { 1.0 } else { 0.0 }, steps.min(SUMMED));
    let (mut before, mut this, mut square) = (0.0, 1.0, 0.0);
    let (mut fast, mut others) = (1.0, 0.0);
    for k in 0..summed {
        let order = k as f64;
        square += this * this;
        others += fast;
        fast *= decay * (order + 0.5) / (order + 1.0);
        let next = (2.0 * order + 1.0) * 0.5 * (slow + decay) * this - order * slow * decay * before;
        (before, this) = (this, next / (order + 1.0));
    }
    let rest = log((steps as f64 + 0.5) / (summed as f64 + 0.5)) / PI;
    (square + slow * others * others * rest) * (1.0 - MARGIN)
}

fn mean_bound(workload: &Workload, parameters: &BufferedParameters) -> Option<f64> {
    let steps = parameters.horizon.filter(|&steps| steps <= MAX_STEPS)? as usize;
    let Buffers::Toeplitz(buffers) = &parameters.buffers else { return None };
    let c = coefficients(buffers, steps);
    let weights = row_weights(workload, steps);
    let target = workload.toeplitz_part(steps)?;
    let products = Products::new(steps);
    // φ with H d = c for the d of this strategy.
    let reversed: Vec<f64> = c.iter().rev().copied().collect();
    let denominator = denominator(workload)?;
    let turned = products.product(&series::product(&denominator, &c, steps), &reversed);
    let largest = turned.iter().fold(0.0f64, |largest, x| largest.max(*x));
    let phi = turned.iter().rev().map(|x| x.max(1e-18 * largest)).collect();
    let mut dual = DualAscent { products, weights, target, phi, v: vec![1.0; steps] };
    Some(dual.ascend() * (1.0 - MARGIN))
}

/// `Σ_(t>l) 1/divisor(t)²`, divided by the number of rows.
fn row_weights(workload: &Workload, steps: usize) -> Vec<f64> {
    let row = |t: u64| 1.0 / (workload.row_divisor(t) * workload.row_divisor(t) * steps as f64);
    let mut weights: Vec<f64> = (1..=steps as u64).map(row).collect();
    (1..steps).rev().for_each(|l| weights[l - 1] += weights[l]);
    weights
}

/// The series whose inverse is the Toeplitz part of the workload.
fn denominator(workload: &Workload) -> Option<Vec<f64>> {
    match workload {
        Workload::Prefix | Workload::Average => Some(vec![1.0, -1.0]),
        Workload::Exponential(decay) | Workload::Adam(decay) => Some(vec![1.0, -decay.get()]),
        Workload::Momentum(decay) => Some(vec![1.0, -1.0 - decay.get(), decay.get()]),
        _ => None,
    }
}

struct DualAscent {
    products: Products,
    weights: Vec<f64>,
    target: Vec<f64>,
    phi: Vec<f64>,
    v: Vec<f64>,
}

impl DualAscent {
    /// Returns the best bound of all rounds. A step that does not raise it is undone and shortened.
    fn ascend(&mut self) -> f64 {
        let (mut best, mut length) = (0.0, 0.3);
        let mut kept = (self.phi.clone(), self.v.clone());
        for _ in 0..ROUNDS[0] {
            let bound = self.bound();
            if bound > best {
                kept = (self.phi.clone(), self.v.clone());
                (best, length) = (bound, f64::min(1.0, 1.3 * length));
            } else {
                (self.phi, self.v) = kept.clone();
                length *= 0.4;
            }
            self.step(length);
        }
        best
    }

    /// Returns the bound of this φ, with v moved near the singular vector.
    fn bound(&mut self) -> f64 {
        let mut norm_squared = f64::INFINITY;
        for _ in 0..ROUNDS[1] {
            let u = self.products.hankel(&self.phi, &self.v);
            let again = self.products.hankel(&self.phi, &u);
            let next: Vec<f64> = again.iter().zip(&self.weights).map(|(x, w)| x / w).collect();
            let ratios = next.iter().zip(&self.v).map(|(next, v)| next / v);
            // A transform can lose the sign of tiny values; then there is no bound.
            let sound = u.iter().chain(&next).all(|x| *x > 0.0);
            norm_squared = if sound { ratios.fold(0.0, f64::max) } else { f64::INFINITY };
            let scale = 1.0 / next.iter().fold(f64::MIN_POSITIVE, |largest, x| largest.max(*x));
            self.v = next.into_iter().map(|x| x * scale).collect();
        }
        self.attained() / norm_squared.sqrt()
    }

    fn attained(&self) -> f64 {
        self.phi.iter().zip(&self.target).map(|(phi, a)| phi * a).sum()
    }

    /// Multiplies φ by a power of `a / (u ∗ v)`, where u is the other singular vector.
    fn step(&mut self, length: f64) {
        let u = self.products.hankel(&self.phi, &self.v);
        let reached = self.products.product(&u, &self.v);
        let total: f64 = self.phi.iter().zip(&reached).map(|(phi, reached)| phi * reached).sum();
        let scale = self.attained() / total;
        for ((phi, reached), a) in self.phi.iter_mut().zip(reached).zip(&self.target) {
            *phi *= exp(length * log((a / (scale * reached)).clamp(0.1, 10.0)));
        }
    }
}

/// Products of series by transforms.
struct Products {
    steps: usize,
    transform: RealTransform,
}

impl Products {
    fn new(steps: usize) -> Self {
        Self { steps, transform: RealTransform::new((2 * steps).next_power_of_two().max(4)) }
    }

    fn product(&self, left: &[f64], right: &[f64]) -> Vec<f64> {
        let mut product = self.transform.product(left, right);
        product.truncate(self.steps);
        product
    }

    /// `(H x)_k = Σ_l φ_(k+l) x_l`: the product of φ reversed with x, reversed.
    fn hankel(&self, phi: &[f64], x: &[f64]) -> Vec<f64> {
        let reversed: Vec<f64> = phi.iter().rev().copied().collect();
        let mut product = self.product(&reversed, x);
        product.reverse();
        product
    }
}
