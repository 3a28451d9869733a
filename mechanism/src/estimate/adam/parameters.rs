//! Applies updates to the parameters of a model.

use super::{AdamError, AdamSetting};
use crate::moments::squared_norm;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;

/// The update of a run of parameters, before learning rate and clipping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdatePart {
    /// Index of the first parameter.
    pub start: usize,
    /// `m/(√v + ε)`.
    pub direction: Vec<f64>,
    /// Σ direction².
    pub squared_norm: f64,
    /// Factors for the next gradients; empty if gradients are not scaled.
    pub scale: Vec<f64>,
}

impl UpdatePart {
    /// Makes the update of the parameters from `start` on.
    pub fn new(start: usize, direction: Vec<f64>, scale: Vec<f64>) -> Self {
        let squared_norm = squared_norm(&direction);
        Self { start, direction, squared_norm, scale }
    }
}

/// Parameters of a model during training. Public; equal parts in equal order give equal parameters
/// everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    values: Vec<f64>,
    /// Empty if gradients are not scaled.
    scale: Vec<f64>,
    learning_rate: f64,
    update_norm: f64,
}

impl Parameters {
    /// Starts from these parameters.
    pub fn new(values: Vec<f64>, setting: &AdamSetting) -> Self {
        Self {
            values,
            scale: Vec::new(),
            learning_rate: setting.learning_rate,
            update_norm: setting.update_norm.unwrap_or(f64::INFINITY),
        }
    }

    /// The parameters.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the factors for gradients before clipping; empty if gradients are not scaled.
    pub fn scale(&self) -> &[f64] {
        &self.scale
    }

    /// Takes a step. `parts` must cover the parameters in order.
    ///
    /// # Errors
    /// [`AdamError::Length`] if they do not; then nothing changes.
    pub fn apply(&mut self, parts: &[impl Borrow<UpdatePart>]) -> Result<(), AdamError> {
        let parts = parts.iter().map(Borrow::borrow);
        let mut next = 0;
        for part in parts.clone() {
            if part.start != next {
                return Err(AdamError::Length { found: part.start, expected: next });
            }
            next += part.direction.len();
        }
        if next != self.values.len() {
            return Err(AdamError::Length { found: next, expected: self.values.len() });
        }
        let norm = parts.clone().map(|part| part.squared_norm).sum::<f64>().sqrt() * self.learning_rate;
        let rate = self.learning_rate * if norm > self.update_norm { self.update_norm / norm } else { 1.0 };
        let mut rest = &mut self.values[..];
        self.scale.clear();
        for UpdatePart { direction, scale, .. } in parts {
            let (values, after) = rest.split_at_mut(direction.len());
            values.iter_mut().zip(direction).for_each(|(value, direction)| *value -= rate * direction);
            self.scale.extend_from_slice(scale);
            rest = after;
        }
        Ok(())
    }
}
