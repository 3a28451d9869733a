//! Linear models with closed-form gradients per record: linear, logistic and softmax regression.
//!
//! A model has one row of weights and an intercept for each output: `z = Wx + b`. With the
//! canonical link of each loss, the derivative by z is prediction − target, so the gradient of a
//! record is `(p − y)(x, 1)` in the row of each output.
//!
//! | model | outputs | p | loss |
//! |---|---|---|---|
//! | linear | 1 | z | `½(z − y)²` |
//! | logistic | 1 | `1/(1 + exp(−z))` | `log(1 + exp z) − yz`, y 0 or 1 |
//! | softmax | one for each class | `exp z_k / Σ exp z` | `log Σ exp z − z_y` |
//!
//! Parameters are one flat vector: for each output its weights and then its intercept.

/// The loss of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Squares,
    Logistic,
    Softmax,
}

/// A linear model.
///
/// ```
/// use hushflow_training::linear::LinearModel;
///
/// let model = LinearModel::logistic(1);
/// let (mut outputs, mut gradient) = (Vec::new(), [0.0; 2]);
/// let loss = model.gradient(&[0.0, 0.0], &[0.5], 1.0, &mut outputs, &mut gradient);
/// assert_eq!((loss, gradient), (2f64.ln(), [-0.25, -0.5]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearModel {
    features: usize,
    outputs: usize,
    loss: Loss,
}

impl LinearModel {
    /// Linear regression; the target is a number.
    pub fn linear(features: usize) -> Self {
        Self { features, outputs: 1, loss: Loss::Squares }
    }

    /// Logistic regression; the target is 0 or 1.
    pub fn logistic(features: usize) -> Self {
        Self { features, outputs: 1, loss: Loss::Logistic }
    }

    /// Softmax regression; the target is the number of a class, from 0.
    pub fn softmax(features: usize, classes: usize) -> Self {
        Self { features, outputs: classes, loss: Loss::Softmax }
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.outputs * (self.features + 1)
    }

    /// Writes p of every output to `outputs` and returns the loss of a record.
    pub fn predict(&self, parameters: &[f64], features: &[f64], target: f64, outputs: &mut Vec<f64>) -> f64 {
        outputs.clear();
        outputs.extend(parameters.chunks_exact(self.features + 1).map(|row| {
            let (weights, intercept) = row.split_at(self.features);
            intercept[0] + weights.iter().zip(features).map(|(weight, x)| weight * x).sum::<f64>()
        }));
        match self.loss {
            Loss::Squares => 0.5 * (outputs[0] - target).powi(2),
            Loss::Logistic => {
                let z = outputs[0];
                outputs[0] = 1.0 / (1.0 + (-z).exp());
                // log(1 + exp z) without overflow.
                z.max(0.0) + (-z.abs()).exp().ln_1p() - target * z
            }
            Loss::Softmax => {
                let score = outputs.get(target as usize).copied().unwrap_or(f64::NAN);
                let largest = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                outputs.iter_mut().for_each(|z| *z = (*z - largest).exp());
                let total: f64 = outputs.iter().sum();
                outputs.iter_mut().for_each(|p| *p /= total);
                total.ln() + largest - score
            }
        }
    }

    /// Writes the gradient of the loss of a record and returns the loss. `outputs` is a buffer.
    pub fn gradient(
        &self,
        parameters: &[f64],
        features: &[f64],
        target: f64,
        outputs: &mut Vec<f64>,
        gradient: &mut [f64],
    ) -> f64 {
        let loss = self.predict(parameters, features, target, outputs);
        for (output, (row, p)) in gradient.chunks_exact_mut(self.features + 1).zip(&*outputs).enumerate() {
            let expected = match self.loss {
                Loss::Softmax => f64::from(output == target as usize),
                Loss::Squares | Loss::Logistic => target,
            };
            let (weights, intercept) = row.split_at_mut(self.features);
            weights.iter_mut().zip(features).for_each(|(weight, x)| *weight = (p - expected) * x);
            intercept[0] = p - expected;
        }
        loss
    }

    /// Returns the class with the largest p: 0 or 1 for logistic regression; `None` for linear.
    pub fn class(&self, outputs: &[f64]) -> Option<usize> {
        match self.loss {
            Loss::Squares => None,
            Loss::Logistic => Some(usize::from(outputs[0] > 0.5)),
            Loss::Softmax => {
                let best = outputs.iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
                best.map(|(class, _)| class)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEATURES: [f64; 3] = [0.9, -0.3, 0.4];

    #[test]
    fn gradients_match_finite_differences() {
        let models = [
            (LinearModel::linear(3), 0.7),
            (LinearModel::logistic(3), 1.0),
            (LinearModel::logistic(3), 0.0),
            (LinearModel::softmax(3, 4), 2.0),
        ];
        for (model, target) in models {
            let parameters: Vec<f64> =
                (0..model.parameters()).map(|at| (at as f64 * 0.7 + 0.2).sin()).collect();
            let (mut outputs, mut gradient) = (Vec::new(), vec![f64::NAN; model.parameters()]);
            model.gradient(&parameters, &FEATURES, target, &mut outputs, &mut gradient);
            for (index, found) in gradient.into_iter().enumerate() {
                let mut moved = parameters.clone();
                moved[index] += 1e-5;
                let above = model.predict(&moved, &FEATURES, target, &mut outputs);
                moved[index] -= 2e-5;
                let below = model.predict(&moved, &FEATURES, target, &mut outputs);
                let difference = (above - below) / 2e-5;
                assert!((found - difference).abs() < 1e-8, "{model:?} {index}: {found} {difference}");
            }
        }
    }

    #[test]
    fn scores_of_any_size_have_finite_losses_and_gradients() {
        let mut outputs = Vec::new();
        for (model, target) in [(LinearModel::logistic(1), 1.0), (LinearModel::softmax(1, 2), 0.0)] {
            for weight in [1e3, -1e3] {
                let mut parameters = vec![0.0; model.parameters()];
                parameters[0] = weight;
                let mut gradient = vec![f64::NAN; model.parameters()];
                let loss = model.gradient(&parameters, &[1.0], target, &mut outputs, &mut gradient);
                assert!(loss.is_finite() && gradient.iter().all(|value| value.is_finite()), "{model:?}");
            }
        }
    }

    #[test]
    fn blank_records_have_no_finite_gradient() {
        let (mut outputs, mut gradient) = (Vec::new(), [0.0; 2]);
        LinearModel::linear(1).gradient(&[1.0, 1.0], &[f64::NAN], 1.0, &mut outputs, &mut gradient);
        assert!(gradient[0].is_nan());
    }

    #[test]
    fn the_class_is_the_likeliest() {
        let mut outputs = Vec::new();
        let softmax = LinearModel::softmax(1, 3);
        softmax.predict(&[0.0, 0.1, 0.0, 0.3, 0.0, 0.2], &[1.0], 0.0, &mut outputs);
        assert_eq!(softmax.class(&outputs), Some(1));
        assert_eq!(LinearModel::logistic(1).class(&[0.7]), Some(1));
        assert_eq!(LinearModel::linear(1).class(&[0.7]), None);
    }
}
