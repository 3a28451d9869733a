//! What private training needs beside the mechanism: labelled images ([`data`]) and a model whose gradients are known in
//! closed form, record by record ([`model`]).
//!
//! Gradients are the records of a stream and the optimiser's steps are its epochs. Small on purpose: enough to train real models on real images and to compare ways of making Adam private, not
//! a library of tensors.

pub mod data;
pub mod model;
