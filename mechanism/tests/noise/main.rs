//! The distribution of noise: of single draws, and of what is read from whole releases.

mod covariance;
mod sampler;
