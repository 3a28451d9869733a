//! hushflow: running moments of a record stream, published epoch after epoch under differential privacy.

pub use hushflow_mechanism as mechanism;
pub use hushflow_operators as operators;

pub mod pipeline;
pub mod publication;
pub mod runtime;
pub mod sink;
pub mod source;
mod spelling;
pub mod state;
