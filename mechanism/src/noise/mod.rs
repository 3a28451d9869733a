//! (to come)

pub mod scale;
