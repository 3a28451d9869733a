//! What a person reads from released moments: post-processing, at no privacy cost.

pub mod adam;
pub mod debias;
pub mod density;
