//! Private training: labelled images ([`data`]), a model with closed-form gradients per record
//! ([`model`]), and the promise of a run ([`plan`]).
//!
//! Gradients are the records of a stream, and the optimiser's steps are its epochs. [`train`] runs
//! the loop, [`exact`] the same without privacy. The scope is small on purpose: enough to train
//! real models on real images and to compare ways of making Adam private, not a library of tensors.

pub mod data;
pub mod exact;
pub mod model;
pub mod plan;
mod run;

pub use run::{Pass, Trained, TrainingOptions, train};
