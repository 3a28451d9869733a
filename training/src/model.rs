//! Fully connected networks with hand-derived gradients per record, from softmax regression to any
//! number of layers.
//!
//! With a₀ the input, `a_l = φ(W_l a_{l−1} + b_l)` for hidden layers and z the last layer's
//! `W a + b`, the loss of class c is the cross-entropy `log Σ_k exp z_k − z_c`. By the chain rule
//! its gradients are `δ = softmax(z) − e_c` at the last layer, `δ_{l−1} = φ'(·) ∘ W_lᵀ δ_l` below,
//! and `∂W_l = δ_l a_{l−1}ᵀ`, `∂b_l = δ_l`.
//!
//! Parameters are one flat vector: layer by layer the weights, row by row, and then the biases.

use crate::data::LabelledImages;

/// Activation of a hidden unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `max(0, z)`.
    Relu,
    /// `tanh z`. Bounded, which keeps gradients short, so it suits clipping (Papernot et al. 2021).
    Tanh,
}

impl Activation {
    fn of(self, z: f64) -> f64 {
        match self {
            Self::Relu => z.max(0.0),
            Self::Tanh => z.tanh(),
        }
    }

    fn slope(self, activation: f64) -> f64 {
        match self {
            Self::Relu => f64::from(activation > 0.0),
            Self::Tanh => 1.0 - activation * activation,
        }
    }
}

/// A fully connected network: `[784, 10]` is softmax regression, `[784, 32, 10]` has one hidden
/// layer.
///
/// ```
/// use hushflow_training::model::{Activation, Network};
///
/// let network = Network::new(vec![2, 3, 2], Activation::Tanh);
/// assert_eq!(network.parameters(), 2 * 3 + 3 + 3 * 2 + 2);
/// let parameters = network.initial(1);
/// let (mut gradient, mut workspace) = (vec![0.0; network.parameters()], network.workspace());
/// let loss = network.gradient(&parameters, &[0.5, -1.0], 1, &mut workspace, &mut gradient);
/// assert!(loss > 0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    sizes: Vec<usize>,
    activation: Activation,
}

/// Buffers for the activations and errors of one record.
#[derive(Clone, Debug)]
pub struct Workspace {
    activations: Vec<Vec<f64>>,
    errors: Vec<Vec<f64>>,
}

impl Network {
    /// Makes a network of these layer sizes: inputs, hidden units, classes.
    pub fn new(sizes: Vec<usize>, activation: Activation) -> Self {
        Self { sizes, activation }
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.layers().map(|(inputs, outputs)| (inputs + 1) * outputs).sum()
    }

    /// Makes buffers for one record at a time.
    pub fn workspace(&self) -> Workspace {
        let layers: Vec<Vec<f64>> = self.sizes.iter().map(|&size| vec![0.0; size]).collect();
        Workspace { activations: layers.clone(), errors: layers }
    }

    /// Returns initial parameters, equal for equal seeds: weights uniform in
    /// `±√(6/(inputs + outputs))` (Glorot & Bengio 2010), biases 0. Softmax regression begins at 0.
    pub fn initial(&self, seed: u64) -> Vec<f64> {
        let mut parameters = Vec::with_capacity(self.parameters());
        let mut random = SplitMix(seed);
        for (inputs, outputs) in self.layers() {
            let hidden = self.sizes.len() > 2;
            let limit = if hidden { (6.0 / (inputs + outputs) as f64).sqrt() } else { 0.0 };
            parameters.extend((0..inputs * outputs).map(|_| limit * (2.0 * random.uniform() - 1.0)));
            parameters.extend(std::iter::repeat_n(0.0, outputs));
        }
        parameters
    }

    /// Writes the gradient of the loss of one record and returns the loss.
    pub fn gradient(
        &self,
        parameters: &[f64],
        input: &[f32],
        class: usize,
        workspace: &mut Workspace,
        gradient: &mut [f64],
    ) -> f64 {
        let loss = self.forward(parameters, input, Some(class), workspace);
        let Workspace { activations, errors } = workspace;
        let mut end = parameters.len();
        for layer in (1..self.sizes.len()).rev() {
            let (inputs, outputs) = (self.sizes[layer - 1], self.sizes[layer]);
            let start = end - (inputs + 1) * outputs;
            let (weights, biases) = gradient[start..end].split_at_mut(inputs * outputs);
            let (below, above) = errors.split_at_mut(layer);
            let (below, errors) = (&mut below[layer - 1], &above[0]);
            biases.copy_from_slice(errors);
            for (row, error) in weights.chunks_exact_mut(inputs).zip(errors) {
                row.iter_mut().zip(&activations[layer - 1]).for_each(|(weight, a)| *weight = error * a);
            }
            if layer > 1 {
                below.fill(0.0);
                for (row, error) in parameters[start..].chunks_exact(inputs).zip(errors) {
                    below.iter_mut().zip(row).for_each(|(below, weight)| *below += error * weight);
                }
                let slopes = activations[layer - 1].iter().map(|&a| self.activation.slope(a));
                below.iter_mut().zip(slopes).for_each(|(below, slope)| *below *= slope);
            }
            end = start;
        }
        loss
    }

    /// Returns the share of correctly classified images.
    pub fn accuracy(&self, parameters: &[f64], images: &LabelledImages) -> f64 {
        let mut workspace = self.workspace();
        let right = (0..images.len()).filter(|&image| {
            let (levels, class) = images.get(image);
            self.forward(parameters, levels, None, &mut workspace);
            let scores = workspace.activations.last().map_or(&[][..], Vec::as_slice);
            let best = scores.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
            best.is_some_and(|(best, _)| best == usize::from(class))
        });
        right.count() as f64 / images.len().max(1) as f64
    }

    /// Computes activations and, for a class, the loss and the last layer's errors.
    fn forward(
        &self,
        parameters: &[f64],
        input: &[f32],
        class: Option<usize>,
        workspace: &mut Workspace,
    ) -> f64 {
        let Workspace { activations, errors } = workspace;
        activations[0].iter_mut().zip(input).for_each(|(a, &level)| *a = f64::from(level));
        let (mut rest, last) = (parameters, self.sizes.len() - 1);
        for layer in 1..=last {
            let (inputs, outputs) = (self.sizes[layer - 1], self.sizes[layer]);
            let (weights, after) = rest.split_at(inputs * outputs);
            let (biases, after) = after.split_at(outputs);
            rest = after;
            let (below, above) = activations.split_at_mut(layer);
            let rows = weights.chunks_exact(inputs).zip(biases);
            for (a, (row, bias)) in above[0].iter_mut().zip(rows) {
                let z = bias + dot(row, &below[layer - 1]);
                *a = if layer < last { self.activation.of(z) } else { z };
            }
        }
        let (Some(class), Some(scores), Some(errors)) = (class, activations.last(), errors.last_mut()) else {
            return 0.0;
        };
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        errors.iter_mut().zip(scores).for_each(|(error, z)| *error = (z - largest).exp());
        let total: f64 = errors.iter().sum();
        errors.iter_mut().for_each(|error| *error /= total);
        errors[class] -= 1.0;
        total.ln() + largest - scores[class]
    }

    fn layers(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sizes.windows(2).map(|sizes| (sizes[0], sizes[1]))
    }
}

/// Σ ab in four interleaved sums, so that it can be vectorised.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut lanes = [0.0; 4];
    for (a, b) in a.iter().zip(b) {
        (0..4).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
    }
    lanes.iter().sum::<f64>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f64>()
}

/// Returns the order of records: a permutation of `0..number`, equal for equal seeds.
pub fn shuffled(number: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..number).collect();
    let mut random = SplitMix(seed);
    for last in (1..number).rev() {
        order.swap(last, (random.uniform() * (last + 1) as f64) as usize);
    }
    order
}

/// SplitMix64 (Steele, Lea & Flood 2014), for public choices: the same on every machine.
struct SplitMix(u64);

impl SplitMix {
    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_match_finite_differences() {
        for (sizes, activation) in [
            (vec![5, 3], Activation::Tanh),
            (vec![5, 4, 3], Activation::Tanh),
            (vec![5, 4, 3], Activation::Relu),
            (vec![5, 7, 4, 3], Activation::Tanh),
        ] {
            let network = Network::new(sizes, activation);
            let mut parameters = network.initial(3);
            let mut random = SplitMix(7);
            parameters.iter_mut().for_each(|parameter| *parameter += random.uniform() - 0.5);
            let input = [0.9, -0.3, 0.0, 1.0, 0.4];
            let mut workspace = network.workspace();
            let mut gradient = vec![f64::NAN; network.parameters()];
            network.gradient(&parameters, &input, 2, &mut workspace, &mut gradient);
            let mut loss = |parameters: &[f64]| network.forward(parameters, &input, Some(2), &mut workspace);
            for (index, found) in gradient.into_iter().enumerate() {
                let mut moved = parameters.clone();
                moved[index] += 1e-5;
                let above = loss(&moved);
                moved[index] -= 2e-5;
                let difference = (above - loss(&moved)) / 2e-5;
                assert!((found - difference).abs() < 1e-8, "{activation:?} {index}: {found} {difference}");
            }
        }
    }

    #[test]
    fn scores_of_any_size_have_finite_gradients() {
        let network = Network::new(vec![1, 2], Activation::Relu);
        let (mut workspace, mut gradient) = (network.workspace(), [0.0; 4]);
        let loss = network.gradient(&[1e3, -1e3, 0.0, 0.0], &[1.0], 1, &mut workspace, &mut gradient);
        assert_eq!((loss, gradient), (2000.0, [1.0, -1.0, 1.0, -1.0]));
    }

    #[test]
    fn initial_parameters_and_orders_depend_on_the_seed_alone() {
        let network = Network::new(vec![20, 10, 5], Activation::Tanh);
        assert_eq!(network.initial(1), network.initial(1));
        assert_ne!(network.initial(1), network.initial(2));
        let mut order = shuffled(1000, 4);
        assert_eq!(order, shuffled(1000, 4));
        assert_ne!(order, shuffled(1000, 5));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }

    #[test]
    fn accuracy_counts_correct_classes() {
        let images = LabelledImages { pixels: 1, levels: vec![1.0, 0.5, 1.0, 1.0], labels: vec![1, 1, 0, 1] };
        let network = Network::new(vec![1, 2], Activation::Tanh);
        assert_eq!(network.accuracy(&[0.0, 1.0, 0.0, 0.0], &images), 0.75);
    }
}
