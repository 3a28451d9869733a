//! The dual of the optimal-strategy problem, and Newton's step in it.
//!
//! Among the Gram matrices X = CᵀC whose entries between different steps of a class vanish and whose trace over each
//! class is at most 1, the least total squared error tr(V X⁻¹) is the largest value of
//! `2 tr(Rᵀ V R)^(1/2) − Σ_c v_c` over U = R Rᵀ ≥ 0, block-diagonal over the classes with the constant diagonal v_c
//! in class c (Choquette-Choo et al. 2023, Theorem 3.1; for classes of one step, Yuan et al. 2016, Lemma 3, as
//! corrected). U may be scaled, so every U gives the lower bound `(tr(Rᵀ V R)^(1/2))² / Σ v_c`, and
//! X(U) = R⁻ᵀ (Rᵀ V R)^(1/2) R⁻¹ nearly satisfies the constraints when U is nearly optimal.
//!
//! With Rᵀ V R = Q diag(s²) Qᵀ and T = R⁻ᵀ Q, the derivative of X(U) along D is `−T (K ∘ (Tᵀ D T)) Tᵀ`,
//! K_ab = s_a s_b / (s_a + s_b). Where D is not restricted to blocks, its inverse is G ↦ −(Z G U + U G Z),
//! Z = X⁻¹, whose own restriction to blocks needs only the blocks of Z: the preconditioner.

use super::{
    algebra::{self, Eigen},
    classes::{self, Blocks, Classes},
    conjugate::conjugate_gradients,
};
use faer::{Mat, MatRef};

/// A conjugate-gradient step costs two half products; more than this many, and a new eigendecomposition is cheaper.
const CONJUGATE_GRADIENT_STEPS: usize = 60;

/// Eigenvalues of X(U) below this fraction of the largest are raised to it in the preconditioner.
const PRECONDITIONER_FLOOR: f64 = 1e-9;

/// A point U of the dual, scaled so that its value is the best along its ray, with V seen from there.
pub(super) struct Point {
    pub(super) multipliers: Blocks,
    /// R, lower triangular.
    roots: Blocks,
    inverse_roots: Blocks,
    /// s.
    values: Vec<f64>,
    /// Q.
    vectors: Mat<f64>,
}

impl Point {
    /// `None` unless the multipliers are positive definite. Costs one eigendecomposition then.
    pub(super) fn new(form: MatRef<'_, f64>, classes: &Classes, multipliers: &Blocks) -> Option<Self> {
        let roots: Blocks =
            multipliers.iter().map(|block| algebra::cholesky(block.as_ref())).collect::<Option<_>>()?;
        let half = classes.times(form, &roots);
        let Eigen { values, vectors } = algebra::eigen(classes.times(half.transpose(), &roots).as_ref())?;
        let values: Vec<f64> = values.into_iter().map(f64::sqrt).collect();
        let scale = values.iter().sum::<f64>() / diagonal_sum(multipliers);
        let inverse = |root: &Mat<f64>| {
            let identity = Mat::<f64>::identity(root.nrows(), root.nrows());
            algebra::solve_lower((root * faer::Scale(scale)).as_ref(), identity.as_ref())
        };
        Some(Self {
            multipliers: classes::scaled(multipliers, scale * scale),
            inverse_roots: roots.iter().map(inverse).collect(),
            roots: classes::scaled(&roots, scale),
            values: values.into_iter().map(|value| value * scale).collect(),
            vectors,
        })
    }

    /// The lower bound that this point proves.
    pub(super) fn bound(&self) -> f64 {
        self.values.iter().sum::<f64>().powi(2) / diagonal_sum(&self.multipliers)
    }

    /// X(U).
    pub(super) fn gram(&self, classes: &Classes) -> Mat<f64> {
        let mut half = self.transform(classes);
        algebra::scale_rows(&mut half, &self.values.iter().map(|s| s.sqrt()).collect::<Vec<_>>());
        algebra::gram(half.as_ref())
    }

    /// Tᵀ.
    fn transform(&self, classes: &Classes) -> Mat<f64> {
        classes.times(self.vectors.transpose(), &self.inverse_roots)
    }

    /// By how much X(U) misses the constraints: the gradient of the dual.
    fn gradient(&self, gram: &Mat<f64>, classes: &Classes) -> Blocks {
        let mut gradient = classes::project(classes.blocks_of(gram.as_ref()));
        for block in &mut gradient {
            let members = block.nrows();
            (0..members).for_each(|i| block[(i, i)] -= (members as f64).recip());
        }
        gradient
    }

    /// The ascent direction that solves Newton's equation by preconditioned conjugate gradients, to as many digits
    /// as the step itself is going to gain, but no further than to `target` relative to the bound.
    pub(super) fn newton_direction(&self, gram: &Mat<f64>, classes: &Classes, target: f64) -> Direction {
        let curvature = Curvature { transform: self.transform(classes), values: &self.values, classes };
        let preconditioner = Preconditioner::new(self, classes);
        let gradient = self.gradient(gram, classes);
        let bound = self.bound();
        let enough =
            |energy: f64| (energy * (energy / bound).min(0.01)).max(0.01 * target * bound).min(0.01 * energy);
        let (ascent, steps) = conjugate_gradients(
            |direction| curvature.apply(direction),
            |residual| preconditioner.apply(residual),
            &gradient,
            enough,
            CONJUGATE_GRADIENT_STEPS,
        );
        Direction { rise: classes::dot(&gradient, &ascent), ascent, conjugate_gradient_steps: steps }
    }
}

/// Where to go from a [`Point`].
pub(super) struct Direction {
    pub(super) ascent: Blocks,
    /// Slope of the dual along `ascent`: twice what a full step is going to gain.
    pub(super) rise: f64,
    pub(super) conjugate_gradient_steps: usize,
}

/// Minus the second derivative of the dual.
pub(super) struct Curvature<'a> {
    /// Tᵀ.
    pub(super) transform: Mat<f64>,
    /// s.
    pub(super) values: &'a [f64],
    pub(super) classes: &'a Classes,
}

impl Curvature<'_> {
    /// K_ab.
    pub(super) fn weight(&self, a: usize, b: usize) -> f64 {
        harmonic(self.values[a], self.values[b])
    }

    /// The blocks of `T (K ∘ (Tᵀ D T)) Tᵀ`. Of the symmetric inner matrix only the lower triangle is formed, with
    /// half its diagonal, so that both products are half ones.
    pub(super) fn apply(&self, direction: &Blocks) -> Blocks {
        let left = self.classes.times(self.transform.as_ref(), direction);
        let mut inner = algebra::lower_product(left.as_ref(), self.transform.transpose());
        for (b, s_b) in self.values.iter().enumerate() {
            let column = inner.col_as_slice_mut(b)[b..].iter_mut();
            column.zip(&self.values[b..]).for_each(|(entry, s_a)| *entry *= harmonic(*s_a, *s_b));
            inner[(b, b)] /= 2.0;
        }
        let right = algebra::lower_times(inner.as_ref(), self.transform.as_ref());
        let half = self.classes.blocks_of_product(self.transform.as_ref(), right.as_ref());
        classes::project(classes::scaled(&half, 2.0))
    }
}

/// `s_a s_b / (s_a + s_b)`.
fn harmonic(s_a: f64, s_b: f64) -> f64 {
    let sum = s_a + s_b;
    if sum > 0.0 { s_a * (s_b / sum) } else { 0.0 }
}

struct Preconditioner<'a> {
    multipliers: &'a Blocks,
    /// Blocks of Z.
    inverse_gram: Blocks,
}

impl<'a> Preconditioner<'a> {
    fn new(point: &'a Point, classes: &Classes) -> Self {
        let largest = point.values.iter().fold(0.0, |largest: f64, &s| largest.max(s));
        let weight = |s: &f64| s.max(PRECONDITIONER_FLOOR * largest).sqrt().recip();
        let transposed: Blocks = point.roots.iter().map(|root| root.transpose().to_owned()).collect();
        let mut half = classes.times(point.vectors.transpose(), &transposed);
        algebra::scale_rows(&mut half, &point.values.iter().map(weight).collect::<Vec<_>>());
        let inverse_gram = classes.blocks_of_product(half.as_ref(), half.as_ref());
        Self { multipliers: &point.multipliers, inverse_gram }
    }

    /// The blocks of `Z G U + U G Z`.
    fn apply(&self, gradient: &Blocks) -> Blocks {
        let blocks = self.inverse_gram.iter().zip(gradient).zip(self.multipliers);
        classes::project(blocks.map(|((z, g), u)| faer::Scale(2.0) * (z * g) * u).collect())
    }
}

/// Σ v_c.
fn diagonal_sum(multipliers: &Blocks) -> f64 {
    multipliers.iter().map(|block| block[(0, 0)]).sum()
}

/// Multipliers that are right where one class holds all steps or V is diagonal, pulled towards the others:
/// the correlations of V in each class, times `(Σ_c √V_jj)^(3/2)`.
pub(super) fn start(form: MatRef<'_, f64>, classes: &Classes) -> Blocks {
    let block = |range: &std::ops::Range<usize>| {
        let deviation: Vec<f64> = range.clone().map(|i| form[(i, i)].sqrt()).collect();
        let weight = deviation.iter().sum::<f64>().powf(1.5);
        Mat::from_fn(range.len(), range.len(), |i, j| {
            let covariance = form[(range.start + i, range.start + j)];
            let shrunk = if i == j { 1.0 } else { 0.9 * covariance / (deviation[i] * deviation[j]) };
            weight * shrunk
        })
    };
    classes.ranges().iter().map(block).collect()
}
