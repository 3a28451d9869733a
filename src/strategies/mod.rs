//! From the name of a strategy to the one that runs: fitted, read from a file, or chosen among all.

pub mod file;
pub mod matrix;

use hushflow_mechanism::strategy::Chosen;

use crate::pipeline::Pipeline;

/// What a long search has come to.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is being found.
    pub strategy: String,
}

/// The strategy that a pipeline names.
pub fn choose(pipeline: &Pipeline, _progress: &mut dyn FnMut(&Progress)) -> Chosen {
    pipeline.release.strategy.clone().into()
}
