//! Adam itself: averages of gradients and squares, and the direction they give.

use super::AdamSetting;

/// The averages of a run of coordinates: plain Adam, exact or of noisy increments.
///
/// ```
/// use hushflow_mechanism::estimate::adam::{Adam, AdamSetting};
/// use std::num::NonZeroU32;
///
/// let mut adam = Adam::new(&AdamSetting::new(NonZeroU32::MIN, 0.1), 2);
/// let mut direction = [0.0; 2];
/// let gradient = [3.0, -0.5];
/// adam.step(&gradient, &gradient.map(|g| g * g), 0.0, &mut direction);
/// // The first step has the sign of the gradient and the length of the learning rate.
/// assert!((direction[0] - 1.0).abs() < 1e-7 && (direction[1] + 1.0).abs() < 1e-7);
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    decays: [f64; 2],
    stability: f64,
    /// β₁^t and β₂^t.
    powers: [f64; 2],
    /// `Σ_i β^(t−i)(1 − β)·x_i` of gradients and of squares, coordinate by coordinate.
    averages: Vec<[f64; 2]>,
}

impl Adam {
    /// Starts before the first step.
    pub fn new(setting: &AdamSetting, coordinates: usize) -> Self {
        Self {
            decays: [setting.first_decay.get(), setting.second_decay.get()],
            stability: setting.stability,
            powers: [1.0; 2],
            averages: vec![[0.0; 2]; coordinates],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.averages.len()
    }

    /// Adds the gradient and the second moments of a step and writes `m/(√max(v, floor) + ε)`. All
    /// slices have as many coordinates as this state; the rest of longer ones is ignored.
    pub fn step(&mut self, gradient: &[f64], squares: &[f64], floor: f64, direction: &mut [f64]) {
        let decays = self.decays;
        self.powers = [self.powers[0] * decays[0], self.powers[1] * decays[1]];
        let corrections = self.powers.map(|power| 1.0 / (1.0 - power));
        let increments = gradient.iter().zip(squares);
        for (([m, v], (x, s)), direction) in self.averages.iter_mut().zip(increments).zip(direction) {
            *m = decays[0] * *m + (1.0 - decays[0]) * x;
            *v = decays[1] * *v + (1.0 - decays[1]) * s;
            *direction = *m * corrections[0] / ((*v * corrections[1]).max(floor).sqrt() + self.stability);
        }
    }

    /// Returns √v after the last step, 0 where v is negative.
    pub fn roots(&self) -> impl Iterator<Item = f64> + '_ {
        let correction = 1.0 / (1.0 - self.powers[1]);
        self.averages.iter().map(move |[_, v]| (v * correction).max(0.0).sqrt())
    }
}
