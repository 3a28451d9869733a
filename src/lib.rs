//! hushflow: running moments of a record stream, published epoch after epoch under differential privacy.

pub mod pipeline;
pub mod publication;
pub mod runtime;
pub mod source;
pub mod state;
