//! Tests the distribution of noise: of single draws, and of the values read from whole releases.

mod covariance;
mod sampler;
