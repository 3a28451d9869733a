//! Private training with Adam: (ε, δ) bounds what the model's parameters reveal about a record.
//!
//! Gradients are the records of a stream, and the optimiser's steps are its epochs. [`adam`] is the
//! optimiser as post-processing of releases, and [`Optimise`] its operator. [`training_loop`] feeds
//! the updates back to a [`Learner`], which takes the gradients. The other operators are those of
//! [`hushflow_operators`].
//!
//! A whole run on labelled images ([`data`]) has a model with closed-form gradients per record
//! ([`model`]), a guarantee ([`plan`]) and batches, in order or drawn at random ([`sampling`]).
//! [`train`] trains under the guarantee, and [`train_exactly`] without privacy. [`TrainingSteps`]
//! is for programs with a loop of their own, and [`linear`] has the models of `hushflow train`. The
//! scope is small on purpose: enough to train real models on real images and to compare ways of
//! making Adam private, not a tensor library.

pub mod adam;
mod batch_squares;
mod claims;
pub mod data;
pub mod linear;
pub mod model;
mod optimise;
pub mod plan;
mod run;
pub mod sampling;
mod saved;
mod steps;
mod training_loop;

pub use claims::{ClaimError, Journal};
pub use optimise::{AdamSetup, Optimise, SharedUpdate};
pub use run::{Pass, TrainingOptions, TrainingResult, train, train_exactly};
pub use steps::TrainingSteps;
pub use training_loop::{Learner, TrainingSetup, training_loop};
